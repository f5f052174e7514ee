"""What follows from loop extents and conditions, checked against all points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer, Const, Expr, Var
from hlo_mlc.expr.dtypes import I32, INDEX
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.loops.core import For, If, LoopKind
from hlo_mlc.loops.facts import impossible, learned, never_positive, of_condition, resolved, within
from hlo_mlc.loops.rewrite import loop

A, B = variable("a", 6), variable("b", 5)


def times(x: Expr, factor: int) -> Expr:
    return index.multiply(x, index.constant(factor))


def blocks(extent: int, size: int) -> tuple[For, Expr]:
    """A loop over a block, and the position it stands for."""
    start = times(A, size)
    rest = index.minimum(index.constant(size), index.subtract(index.constant(extent), start))
    inner = loop("t", rest, LoopKind.SERIAL, lambda t: ())
    return inner, index.add(start, inner.var)


def test_a_block_ends_where_the_whole_does() -> None:
    inner, position = blocks(22, 4)
    assert not within(position, 22, ())
    assert within(position, 22, learned(inner)[0])
    assert not within(position, 21, learned(inner)[0])


def test_a_block_of_a_guarded_shift() -> None:
    inner, position = blocks(22, 4)
    before = index.subtract(position, index.constant(3))
    facts = (*learned(inner)[0], *of_condition(apply("ge", before, index.constant(0))))
    assert within(before, 19, facts)
    assert not within(before, 19, learned(inner)[0])


def test_quotients_of_what_is_bounded() -> None:
    total = index.add(times(A, 8), B)
    facts = of_condition(apply("lt", total, index.constant(37)))
    assert within(index.floordiv(total, 37), 1, facts)
    assert not within(index.floordiv(total, 36), 1, facts)


@pytest.mark.parametrize("extent", range(2, 7))
@pytest.mark.parametrize("divisor", [2, 3])
def test_remainders_are_quotients_too(divisor: int, extent: int) -> None:
    """Of whole blocks, those before a bound: i % c == 0 and c * (i // c) <= j."""
    i, j = variable("i", extent), variable("j", divisor)
    start = times(index.floordiv(i, divisor), divisor)
    whole = of_condition(apply("eq", index.floormod(i, divisor), index.constant(0)))
    before = of_condition(apply("ge", index.subtract(j, start), index.constant(0)))
    assert within(start, 1, (*whole, *before)) and within(i, 1, (*whole, *before))
    assert not within(start, 1, whole) or extent <= divisor
    assert not within(i, 1, before)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("divisor", [2, 3])
@pytest.mark.parametrize("least", range(4))
def test_quotients_of_what_is_large_enough(divisor: int, least: int, factor: int) -> None:
    a, start = variable("a", 24), least * divisor
    facts = of_condition(apply("ge", a, index.constant(start)))
    quotient = times(index.floordiv(a, divisor), factor)
    for lowest in range(2 * least + 3):
        shifted = index.subtract(quotient, index.constant(lowest))
        certain = all(n // divisor * factor >= lowest for n in range(start, 24))
        assert within(shifted, 99, facts) == certain


@pytest.mark.parametrize("step, divisor, other", [(1, 2, 4), (3, 2, 4), (2, 3, 5), (3, 4, 2)])
def test_quotients_of_what_has_large_enough_quotients(step: int, divisor: int, other: int) -> None:
    """Windows over padded and dilated elements: what one quotient says of another."""
    a = variable("a", 24)
    known = index.subtract(
        index.floordiv(index.add(times(a, step), index.constant(1)), divisor), index.constant(2)
    )
    facts = of_condition(apply("ge", known, index.constant(0)))
    quotient = index.floordiv(index.add(times(a, step), index.constant(3)), other)
    points = [n for n in range(24) if (step * n + 1) // divisor >= 2]
    least = min((step * n + 3) // other for n in points)
    for lowest in (least, least + 1):
        assert within(index.subtract(quotient, index.constant(lowest)), 99, facts) == (
            lowest == least
        )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bound", range(9))
def test_quotients_of_what_a_condition_bounds_beside_others(bound: int, sign: int) -> None:
    """Windows of three by three that were shifted: the first rows of windows are the last ones."""
    row, column = variable("row", 9), variable("column", 9)
    facts = of_condition(apply("lt" if sign > 0 else "ge", row, index.constant(bound)))
    down, along = (index.floordiv(index.add(i, index.constant(2)), 3) for i in (row, column))
    window = index.add(times(down, 4 * sign), along)
    rows = [n for n in range(9) if (n < bound) == (sign > 0)]
    if not rows:
        return
    at = [sign * 4 * ((i + 2) // 3) + (j + 2) // 3 for i in rows for j in range(9)]
    shifted = index.subtract(window, index.constant(min(at)))
    assert within(shifted, max(at) - min(at) + 1, facts)
    assert not within(shifted, max(at) - min(at), facts)


def test_a_quotient_beside_what_it_is_rounded_with() -> None:
    """Where a row and a column ahead by one are, from the second place on."""
    row, column = variable("row", 6), variable("column", 7)
    place = index.add(times(row, 7), column)
    ahead = index.add(row, index.floordiv(index.add(column, index.constant(6)), 7))
    facts = of_condition(apply("ge", place, index.constant(1)))
    before = index.subtract(ahead, index.constant(1))
    assert within(before, 6, facts)
    assert not within(before, 6, ())
    assert not within(before, 5, facts)


@pytest.mark.parametrize("least", range(1, 12))
@pytest.mark.parametrize(("divisor", "digits"), [(2, 2), (3, 4), (4, 3)])
def test_a_digit_of_what_is_large_enough(divisor: int, digits: int, least: int) -> None:
    """From i % 4 >= 2 follows (i // 2) % 2 >= 1."""
    i = variable("i", 50)
    whole = index.floormod(i, divisor * digits)
    digit = index.floormod(index.floordiv(i, divisor), digits)
    facts = of_condition(apply("ge", whole, index.constant(least)))
    there = [n // divisor % digits for n in range(50) if n % (divisor * digits) >= least]
    if there:
        above = index.subtract(digit, min(there))
        assert within(above, digits - min(there), facts)
        assert not within(index.subtract(above, 1), digits, facts)


def test_a_part_of_a_position() -> None:
    """The row of a place from some row on, or up to one."""
    row, column = variable("row", 6), variable("column", 7)
    place = index.add(times(row, 7), column)
    for least, most in ((21, 41), (20, 41), (0, 20), (0, 21)):
        facts = (
            *of_condition(apply("ge", place, index.constant(least))),
            *of_condition(apply("le", place, index.constant(most))),
        )
        first, last = least // 7, most // 7
        assert within(index.subtract(row, index.constant(first)), last - first + 1, facts)
        assert not within(index.subtract(row, index.constant(first + 1)), 6, facts)
        assert not within(row, last, facts)


def test_both_branches_know_something() -> None:
    short = apply("lt", A, index.constant(2))
    assert never_positive(index.subtract(A, index.constant(1)), of_condition(short))
    assert never_positive(index.subtract(index.constant(2), A), of_condition(short, holds=False))
    assert of_condition(Const(True, short.dtype)) == ()


def test_facts_about_memory_end_with_the_next_store() -> None:
    n = Buffer("n", I32, (), "scratch")
    small = apply("lt", apply("convert", load(n, ()), dtype=INDEX), index.constant(3))
    assert of_condition(small)
    assert learned(If(small, (), ())) == ((), ())
    fixed = Buffer("n", I32, (), "operand")
    small = apply("lt", apply("convert", load(fixed, ()), dtype=INDEX), index.constant(3))
    assert len(learned(If(small, (), ()))[0]) == 1


def test_minima_are_resolved_where_one_side_is_known() -> None:
    inner, position = blocks(22, 4)
    clamped = index.minimum(position, index.constant(21))
    assert resolved(clamped, ()) is clamped
    assert resolved(clamped, learned(inner)[0]) is position
    floor = index.maximum(index.subtract(A, index.constant(2)), index.constant(0))
    early = apply("lt", A, index.constant(2))
    assert resolved(floor, of_condition(early)) is index.constant(0)
    assert resolved(floor, of_condition(early, holds=False)) is floor.args[0]


def random_condition(rng: np.random.Generator, depth: int = 2) -> Expr:
    kind = rng.random()
    if depth and kind < 0.2:
        return apply("not", random_condition(rng, depth - 1))
    if depth and kind < 0.6:
        return apply(
            str(rng.choice(["and", "or"])),
            random_condition(rng, depth - 1),
            random_condition(rng, depth - 1),
        )
    return apply(
        str(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"])),
        random_index(rng),
        index.constant(int(rng.integers(0, 12))),
    )


def random_index(rng: np.random.Generator) -> Expr:
    e = index.add(times(A, int(rng.integers(-2, 4))), times(B, int(rng.integers(-2, 4))))
    if rng.random() < 0.3:
        e = index.floordiv(e, int(rng.integers(2, 5)))
    return index.floormod(e, int(rng.integers(2, 5))) if rng.random() < 0.3 else e


@pytest.mark.parametrize("seed", range(200))
def test_consequences_hold_at_every_point(seed) -> None:
    rng = np.random.default_rng(seed)
    condition, holds = random_condition(rng), bool(rng.random() < 0.5)
    claim = index.add(random_index(rng), index.constant(int(rng.integers(-9, 3))))
    facts = of_condition(condition, holds)
    points = np.array(list(itertools.product(range(A.extent), range(B.extent)))).T
    env: dict[Var, np.ndarray] = {A: points[0], B: points[1]}
    here = np.broadcast_to(evaluate(condition, env), points.shape[1]) == holds
    for fact in facts:
        assert (np.broadcast_to(evaluate(fact, env), points.shape[1])[here] <= 0).all()
    if impossible(facts):
        assert not here.any()
    if never_positive(claim, facts):
        assert (np.broadcast_to(evaluate(claim, env), points.shape[1])[here] <= 0).all()
