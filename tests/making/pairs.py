"""Which cases of a test with several parameters are run: every two values meet in one of them, or
every value is in one.

Faults that tests find nearly always depend on one value or on two.  Source: Kuhn, Wallace, Gallo,
"Software fault interactions and implications for software testing", IEEE TSE 30(6), 2004.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence

import pytest

Value = tuple[int, int]  # of an axis: its position, and the number of the value


def in_pairs(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Of each test as many cases as have every two values of its parameters together, in order;
    parameters called `seed` only have to be there."""
    return _chosen(items, drawn=lambda name: name == "seed")


def once(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Of each test as many cases as have every value of its parameters, in order."""
    return _chosen(items, drawn=lambda name: True)


def _chosen(items: Sequence[pytest.Item], drawn: Callable[[str], bool]) -> list[pytest.Item]:
    tests: dict[tuple, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        if hasattr(item, "callspec"):
            tests[item.path, item.originalname].append(number)
    left_out: set[int] = set()
    for numbers in tests.values():
        cases = [items[n].callspec.params for n in numbers]
        chosen = covering(cases, drawn=[name for name in cases[0] if drawn(name)])
        left_out |= set(numbers).difference(numbers[n] for n in chosen)
    return [item for number, item in enumerate(items) if number not in left_out]


def covering(cases: Sequence[Mapping[str, object]], drawn: Container[str] = ()) -> list[int]:
    """The positions of some cases, in order, with every value and every two values that meet in
    one of all cases; for the same cases always the same.

    A case is its values by the names of the parameters; values are the same if they are the same
    object, and parameters that change together are one.  Those in `drawn` are seeds: each has to be
    there, with whatever others.
    """
    names, rows = _axes(cases)
    seeds = {n for n, name in enumerate(names) if name in drawn}
    if len(names) <= 1 or (len(names) == 2 and not seeds):
        return list(range(len(rows)))
    wanted = [_met(row, seeds) for row in rows]
    left: set[tuple[Value, ...]] = set().union(*wanted)
    chosen: list[int] = []
    used: Counter[Value] = Counter()

    def worth(n: int) -> tuple[int, int, int]:
        """Least for what is chosen next: it brings most that is new, its values are least used."""
        return -len(wanted[n] & left), sum(used[value] for value in enumerate(rows[n])), n

    # Whatever is chosen, no other is worth more than before: only the first has to be looked at
    # anew, until it stays the first.
    heap = [worth(n) for n in range(len(rows))]
    heapq.heapify(heap)
    while left:
        number = heap[0][-1]
        if (now := worth(number)) != heap[0]:
            heapq.heapreplace(heap, now)
            continue
        heapq.heappop(heap)
        chosen.append(number)
        left -= wanted[number]
        used.update(enumerate(rows[number]))
    return sorted(chosen)


def _axes(cases: Sequence[Mapping[str, object]]) -> tuple[list[str], list[tuple[int, ...]]]:
    """The names of the parameters and the numbers of their values, without parameters that change
    with one before."""
    columns: dict[tuple[int, ...], str] = {}
    for name in cases[0]:
        numbers: dict[int, int] = {}
        column = tuple(numbers.setdefault(id(case[name]), len(numbers)) for case in cases)
        columns.setdefault(column, name)
    return list(columns.values()), list(zip(*columns, strict=True))


def _met(row: tuple[int, ...], drawn: set[int]) -> set[tuple[Value, ...]]:
    values = list(enumerate(row))
    known = [value for value in values if value[0] not in drawn]
    return {*((value,) for value in values), *itertools.combinations(known, 2)}
