"""Fewer cases of a test: with every two values, or every one, and the same in every run."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import hypothesis
from hypothesis import strategies as st

from making.pairs import covering, in_pairs, once

CASES = st.lists(st.tuples(*[st.integers(0, 4)] * 4), min_size=1, max_size=60, unique=True)


def named(rows: list[tuple[int, ...]]) -> list[dict[str, int]]:
    return [dict(zip("abcd", row, strict=False)) for row in rows]


@hypothesis.given(CASES)
def test_every_two_values_that_meet_meet_in_a_chosen_case(rows) -> None:
    def met(chosen: list[tuple[int, ...]]) -> set[tuple]:
        return {two for row in chosen for two in itertools.combinations(enumerate(row), 2)}

    chosen = covering(named(rows))
    assert chosen == sorted(set(chosen)) == covering(named(rows))
    assert met([rows[n] for n in chosen]) == met(rows)


def test_as_few_as_there_are_pairs_of_the_longest_two() -> None:
    rows = list(itertools.product(range(20), range(2), range(2), range(5)))
    assert len(covering(named(rows))) == 100


def test_parameters_that_change_together_are_one() -> None:
    rows = [(a, a, b, b) for a, b in itertools.product(range(5), range(4))]
    assert len(covering(named(rows))) == 20
    assert covering(named([(0, n, 0, n) for n in range(7)])) == list(range(7))


def test_each_seed_is_drawn_once_and_meets_as_many_others_as_there_are() -> None:
    rows = list(itertools.product(range(60), range(5)))
    chosen = [rows[n] for n in covering(named(rows), drawn=("a",))]
    assert len(chosen) == 60
    assert all(sum(b == k for _, b in chosen) == 12 for k in range(5))


def test_tests_are_told_apart_by_file_and_name() -> None:
    def cases(path: str, name: str, *extents: int) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(path=path, originalname=name, callspec=SimpleNamespace(params=row))
            for row in named(list(itertools.product(*map(range, extents))))
        ]

    three, others = cases("a.py", "test", 4, 3, 2), cases("b.py", "test", 4, 3)
    one = cases("b.py", "test_one", 5)
    alone = SimpleNamespace(path="b.py", originalname="test_alone")
    kept = in_pairs([*others, alone, *three])
    assert kept[:13] == [*others, alone]
    assert len(kept[13:]) == 12 and all(item in three for item in kept[13:])
    kept = once([*others, alone, *one, *three])
    assert [item.path for item in kept] == ["b.py"] * 10 + ["a.py"] * 4
    assert set(map(id, (alone, *one))) < set(map(id, kept))
    for whole in (others, three):
        params = [item.callspec.params for item in kept if item in whole]
        for name in params[0]:
            assert {p[name] for p in params} == {item.callspec.params[name] for item in whole}
