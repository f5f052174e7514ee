"""Which elements stores fill, against going through all points."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.tensor.core import Assign
from hlo_mlc.tensor.covering import left_over, stored_box, whole

EXTENTS = st.integers(1, 6)


@st.composite
def places(draw: st.DrawFn) -> tuple[list[Var], list[Expr]]:
    """Axes, and indices that are sums of digits of them, from anywhere on."""
    axes = [variable(f"i{n}", e) for n, e in enumerate(draw(st.lists(EXTENTS, max_size=3)))]
    digits: list[Expr] = [index.constant(0)]
    for axis in axes:
        by = draw(st.integers(1, axis.extent))
        digits += [axis, index.floordiv(axis, by), index.floormod(axis, by)]
    term = st.tuples(st.sampled_from(digits), st.integers(1, 6))
    indices = []
    for terms in draw(st.lists(st.lists(term, max_size=2), min_size=1, max_size=3)):
        total: Expr = index.constant(draw(st.integers(0, 2)))
        for digit, factor in terms:
            total = index.add(total, index.multiply(digit, index.constant(factor)))
        indices.append(total)
    return axes, indices


def reached(axes: list[Var], indices: list[Expr]) -> set[tuple[int, ...]]:
    extents = [v.extent for v in axes]
    count = math.prod(extents)
    env = dict(zip(axes, np.indices(extents).reshape(len(axes), count), strict=True))
    found = [np.broadcast_to(evaluate(i, env), (count,)).tolist() for i in indices]
    return set(zip(*found, strict=True))


@given(places(), st.booleans())
def test_every_element_of_the_box_is_stored(place, exact):
    axes, indices = place
    found = reached(axes, indices)
    shape = tuple(max(at[d] for at in found) + 1 + (not exact) for d in range(len(indices)))
    box = stored_box(Assign(Buffer("b", F32, shape), tuple(indices), const(0, F32)), axes)
    if box is not None:
        inside = set(itertools.product(*(range(low, high + 1) for low, high in box)))
        assert inside <= found


def test_what_is_seen_to_be_whole():
    i, j = variable("i", 4), variable("j", 6)
    low, high = index.floormod(j, 3), index.floordiv(j, 3)
    for shape, indices in (
        ((4, 6), (i, j)),
        ((6, 1, 4), (j, index.constant(0), i)),
        ((2, 4, 3), (high, i, low)),
        ((24,), (index.add(index.multiply(i, index.constant(6)), j),)),
        ((3, 8), (low, index.add(index.multiply(i, index.constant(2)), high))),
    ):
        buffer = Buffer("b", F32, shape)
        assert stored_box(Assign(buffer, indices, const(0, F32)), (i, j)) == whole(shape)[0]


def test_digits_may_fill_a_part():
    """As of complex numbers, whose parts lie side by side."""
    i, j = variable("i", 4), variable("j", 6)
    indices = (index.floordiv(j, 3), i, index.floormod(j, 3), index.constant(1))
    assign = Assign(Buffer("b", F32, (2, 4, 3, 2)), indices, const(0, F32))
    assert stored_box(assign, (i, j)) == ((0, 1), (0, 3), (0, 2), (1, 1))


def test_parts_make_a_whole():
    missing = whole((4, 10))
    for low, high in ((0, 2), (7, 9), (3, 6)):
        assert missing
        missing = left_over(missing, ((0, 3), (low, high)))
    assert missing == ()
    assert whole((3, 0)) == ()


BOX = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda pair: (min(pair), max(pair))),
    min_size=2,
    max_size=2,
).map(tuple)


@given(st.lists(BOX, max_size=4))
def test_what_is_left_over(taken):
    def elements(boxes) -> set[tuple[int, ...]]:
        found = [
            at for box in boxes for at in itertools.product(*(range(a, b + 1) for a, b in box))
        ]
        assert len(set(found)) == len(found)  # none of them twice
        return set(found)

    missing, expected = whole((5, 5)), elements(whole((5, 5)))
    for box in taken:
        missing = left_over(missing, box)
        expected -= elements((box,))
        assert elements(missing) == expected
