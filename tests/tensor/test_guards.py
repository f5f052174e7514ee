"""Guards of whole blocks, and what is left of an expression where some of them hold."""

from __future__ import annotations

import itertools

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, all_of, apply, const, load, substitute, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.tensor.access import inside, masked, undilated
from hlo_mlc.tensor.guards import conjuncts, everywhere, guards, vanishes_outside, where_true

ROW, TAP, TILE = variable("i", 5), variable("j", 3), variable("n", 7)
X, K = Buffer("x", F32, (20,)), Buffer("k", F32, (3,))
ZERO = const(0, F32)


def place(*terms: tuple[Expr, int], offset: int = 0) -> Expr:
    total = index.constant(offset)
    for e, factor in terms:
        total = index.add(total, index.multiply(e, index.constant(factor)))
    return total


@pytest.mark.parametrize(
    "where",
    [
        place((TILE, 4), (ROW, 1), (TAP, 1), offset=-3),
        place((TILE, 4), (ROW, -2), (TAP, 3)),
        place((TILE, 1), offset=-2),
        place((ROW, 5), (TAP, 2), offset=-1),
        place((TILE, -3), (ROW, 2), offset=14),
    ],
)
def test_everywhere_is_what_holds_at_every_point(where):
    """It says neither more nor less than the conditions at all points of the axes."""
    asked = conjuncts(inside(where, 20))
    found = everywhere(asked, {ROW, TAP})
    assert found is not None
    assert found.free <= {TILE}
    for n in range(TILE.extent):
        points = [
            {TILE: index.constant(n), ROW: index.constant(i), TAP: index.constant(j)}
            for i, j in itertools.product(range(ROW.extent), range(TAP.extent))
        ]
        at_all = all(substitute(c, point) is TRUE for c in asked for point in points)
        said = substitute(found, {TILE: index.constant(n)})
        assert said is (TRUE if at_all else FALSE), n


def test_what_cannot_be_said_of_a_block():
    _, exact = undilated(index.add(ROW, TILE), 20, 2)
    assert everywhere(conjuncts(exact), {ROW}) is None
    assert everywhere(conjuncts(exact), {TAP}) is exact


def test_conjuncts_come_apart_and_together():
    condition = all_of(*conjuncts(inside(place((TILE, 4), (ROW, 1), offset=-3), 20)))
    assert len(conjuncts(condition)) == 2
    assert all_of(*conjuncts(condition)) is condition
    assert conjuncts(TRUE) == ()


def test_known_conditions_go_and_others_stay():
    where = place((TILE, 4), (ROW, 1), offset=-3)
    low, high = conjuncts(inside(where, 20))
    term = apply("mul", masked(load(X, (where,)), inside(where, 20), ZERO), load(K, (TAP,)))
    assert where_true(term, {low, high}) is apply("mul", load(X, (where,)), load(K, (TAP,)))
    assert guards(where_true(term, {low})) == (high,)
    assert where_true(term, set()) is term
    computed = masked(apply("exp", load(X, (where,))), inside(where, 20), ZERO)
    assert where_true(computed, {low, high}) is apply("exp", load(X, (where,)))


@pytest.mark.parametrize(
    "name, default, vanishes",
    [
        ("add", 0.0, True),
        ("max", float("-inf"), True),
        ("min", float("inf"), True),
        ("mul", 1.0, True),
        ("add", 1.0, False),
        ("max", 0.0, False),
        ("mul", 0.0, False),
    ],
)
def test_terms_that_vanish_outside(name, default, vanishes):
    where = place((TILE, 4), (ROW, 1), offset=-3)
    term = masked(load(X, (where,)), inside(where, 20), const(default, F32))
    neutral = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}[name]
    assert vanishes_outside(term, name, const(neutral, F32)) is vanishes


def test_products_vanish_and_terms_with_two_guards_do_not():
    where = place((TILE, 4), (ROW, 1), offset=-3)
    one = masked(load(X, (where,)), inside(where, 20), ZERO)
    other = masked(load(X, (TILE,)), apply("lt", TILE, index.constant(5)), ZERO)
    assert vanishes_outside(apply("mul", one, load(K, (TAP,))), "add", ZERO)
    assert not vanishes_outside(apply("mul", one, other), "add", ZERO)
    assert not vanishes_outside(apply("add", one, load(K, (TAP,))), "add", ZERO)
    assert not vanishes_outside(load(K, (TAP,)), "add", ZERO)
