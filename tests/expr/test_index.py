"""Index arithmetic: one normal form for what is equal, and always the value it stands for."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import compute

I, J, K = variable("i", 6), variable("j", 4), variable("k", 16)  # noqa: E741
AXES = (I, J, K)
POINTS = dict(zip(AXES, (grid.ravel() for grid in np.indices((6, 4, 16))), strict=True))

Value = Callable[[Mapping[Var, np.ndarray]], np.ndarray]


def random_index(rng: random.Random, depth: int) -> tuple[Expr, Value]:
    """An expression, built by the functions under test, and what it has to be."""
    kind = rng.choice(("leaf", "add", "subtract", "scale", "floordiv", "floormod"))
    if not depth or kind == "leaf":
        if rng.random() < 0.2:
            literal = rng.randrange(-5, 9)
            return index.constant(literal), lambda at: np.asarray(literal)
        axis = rng.choice(AXES)
        return axis, lambda at: at[axis]
    x, x_value = random_index(rng, depth - 1)
    if kind in ("add", "subtract"):
        y, y_value = random_index(rng, depth - 1)
        sign = 1 if kind == "add" else -1
        return getattr(index, kind)(x, y), lambda at: x_value(at) + sign * y_value(at)
    n = rng.choice((1, 2, 3, 4, 5, 6, 12, 15))
    match kind:
        case "scale":
            return index.multiply(x, index.constant(n)), lambda at: x_value(at) * n
        case "floordiv":
            return index.floordiv(x, n), lambda at: x_value(at) // n
        case _:
            return index.floormod(x, n), lambda at: x_value(at) % n


@pytest.mark.parametrize("seed", range(20))
def test_random_expressions_keep_their_value_and_their_bounds(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        expression, value = random_index(rng, 5)
        expected = value(POINTS)
        np.testing.assert_array_equal(evaluate(expression, POINTS), expected, repr(expression))
        low, high = index.bounds(expression)
        assert low <= expected.min() and expected.max() <= high, repr(expression)


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_random_comparisons_hold_where_they_should(op: str) -> None:
    rng = random.Random(op)
    for _ in range(200):
        (x, x_value), (y, y_value) = random_index(rng, 3), random_index(rng, 2)
        expected = compute(op, [np.asarray(x_value(POINTS)), np.asarray(y_value(POINTS))], INDEX)
        np.testing.assert_array_equal(
            evaluate(index.compare(op, x, y), POINTS), expected, f"{x!r} {op} {y!r}"
        )


def test_places_in_a_tile_do_not_matter_to_its_bounds() -> None:
    """Where the bound is that of a tile."""
    place = index.add(index.multiply(I, index.constant(16)), K)
    for op in ("lt", "ge"):
        assert index.compare(op, place, index.constant(64)) is index.compare(
            op, I, index.constant(4)
        )
        assert K in index.compare(op, place, index.constant(65)).free


def _row_major(x: Expr, shape: tuple[int, ...]) -> Expr:
    """The address of the element whose number is `x`, from its indices."""
    address, step = index.constant(0), 1
    for extent in reversed(shape):
        address = index.add(
            address, index.multiply(index.floormod(x, extent), index.constant(step))
        )
        x, step = index.floordiv(x, extent), step * extent
    return index.add(address, index.multiply(x, index.constant(step)))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (5, 4), (2, 3, 5), (7, 1, 6, 2)])
@pytest.mark.parametrize(
    "number",
    [
        variable("f", 1000),
        index.add(index.multiply(variable("o", 9), index.constant(16)), variable("n", 16)),
        index.add(index.multiply(variable("o", 9), index.constant(16)), index.constant(7)),
        index.add(variable("f", 1000), index.constant(3)),
    ],
    ids=repr,
)
def test_taking_a_number_apart_and_together_again_gives_the_number(
    number: Expr, shape: tuple[int, ...]
) -> None:
    assert _row_major(number, shape) is number


def test_quotients_and_remainders_have_one_form_in_either_order() -> None:
    f = variable("f", 1000)
    assert index.floordiv(index.floormod(f, 15), 5) is index.floormod(index.floordiv(f, 5), 3)
    assert index.floordiv(index.add(J, index.floordiv(f, 4)), 5) is index.floordiv(
        index.add(index.multiply(J, index.constant(4)), f), 20
    )


def test_what_does_not_straddle_a_tile_stays_out_of_the_division() -> None:
    """16 lanes in rows of 48: the lane moves along the row, whatever the row."""
    tile, lane = variable("tile", 9), variable("lane", 16)
    at = index.add(index.multiply(tile, index.constant(16)), lane)
    assert index.floordiv(at, 48) is index.floordiv(tile, 3)
    assert index.coefficient(index.floormod(at, 48), lane) == 1
    assert index.coefficient(index.floormod(at, 40), lane) is None


def test_weighted_sums_have_the_normal_form_of_the_same_additions() -> None:
    """Quotients and remainders rejoin, other parts cancel."""
    at = index.add(index.multiply(I, index.constant(16)), K)
    parts = [(index.floordiv(at, 5), 10), (J, 3), (index.floormod(at, 5), 2), (J, -3)]
    assert index.weighted_sum(parts) == index.affine(index.multiply(at, index.constant(2)))
    apart = index.weighted_sum([(index.floordiv(at, 5), 10), (index.floormod(at, 5), 3)])
    assert apart == ({index.floordiv(at, 5): 10, index.floormod(at, 5): 3}, 0)


def test_a_bound_within_a_bound_counts_once() -> None:
    i = variable("i", 100)
    assert index.minimum(index.minimum(i, 9), 5) is index.minimum(i, 5)
    assert index.minimum(index.minimum(i, 5), 9) is index.minimum(i, 5)
    assert index.maximum(index.maximum(i, 5), 9) is index.maximum(i, 9)
    assert index.maximum(index.maximum(i, 9), 5) is index.maximum(i, 9)
