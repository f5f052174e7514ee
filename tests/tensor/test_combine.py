"""Combiners: recognition, neutral elements, accumulation in a wider type."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr.build import apply, const, variable
from hlo_mlc.expr.core import Buffer, Load, Var
from hlo_mlc.expr.dtypes import ALL, BF16, BOOL, F8E8M0FNU, F16, F32, I32, Kind
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.tensor.combine import (
    combiner_from,
    combiner_variables,
    merging,
    named_combiner,
    update_of,
    widened,
    with_identity,
)

OPS = [
    (op, dtype)
    for dtype in ALL
    if dtype.kind is not Kind.COMPLEX and dtype is not F8E8M0FNU
    for op in ("add", "mul", "max", "min") + (() if dtype.is_float else ("and", "or", "xor"))
]


@pytest.mark.parametrize(("op", "dtype"), OPS, ids=lambda p: str(p))
def test_identities_are_neutral(op: str, dtype) -> None:
    combiner = named_combiner(op, dtype)
    values = np.array([0, 1, -1, -0.0, 3, np.inf, -np.inf] if dtype.is_float else [0, 1, 5])
    values = values.astype(dtype.numpy)
    neutral = np.full(values.shape, combiner.identity[0].value, dtype.numpy)
    for pair in ((values, neutral), (neutral, values)):
        values_of = dict(zip((*combiner.lhs, *combiner.rhs), pair, strict=True))
        found = evaluate(combiner.results[0], values_of)
        assert found.tobytes() == values.tobytes()


def test_recognises_one_op_in_either_order() -> None:
    (x,), (y,) = lhs, rhs = combiner_variables([F32])
    assert combiner_from(lhs, rhs, (apply("max", y, x),)).name == "max"
    assert combiner_from(lhs, rhs, (apply("sub", x, y),)).identity is None
    assert combiner_from(lhs, rhs, (apply("add", x, x),)).identity is None


def test_separable_combiners_have_identities_but_no_name() -> None:
    lhs, rhs = combiner_variables([F32, I32])
    results = (apply("add", lhs[0], rhs[0]), apply("max", lhs[1], rhs[1]))
    combiner = combiner_from(lhs, rhs, results)
    assert combiner.name == ""
    assert [c.value for c in combiner.identity] == [-0.0, -(2**31)]


def test_initial_values_serve_as_identity_only_where_repeating_them_is_harmless() -> None:
    (x,), (y,) = lhs, rhs = combiner_variables([F32])
    clipped = apply("min", apply("max", x, y), const(9.0, F32))
    combiner = combiner_from(lhs, rhs, (clipped,))
    zero = (const(0.0, F32),)
    assert with_identity(combiner, zero).identity == zero
    assert with_identity(combiner, (const(10.0, F32),)).identity is None
    assert with_identity(combiner, (x,)).identity is None
    assert with_identity(named_combiner("add", F32), zero).identity[0].value == 0


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("add", BF16, F32),
        ("mul", F16, F32),
        ("max", BF16, BF16),
        ("add", I32, I32),
        ("or", BOOL, BOOL),
    ],
)
def test_sums_of_narrow_floats_accumulate_in_f32(op: str, dtype, expected) -> None:
    combiner = widened(named_combiner(op, dtype))
    assert combiner.name == op
    assert combiner.lhs[0].dtype is expected


@pytest.mark.parametrize("swapped", [False, True])
def test_products_of_complex_numbers_commute(swapped: bool) -> None:
    lhs, rhs = combiner_variables([F32, F32])
    (a, b), (c, d) = (rhs, lhs) if swapped else (lhs, rhs)
    re = apply("sub", apply("mul", a, c), apply("mul", b, d))
    im = apply("add", apply("mul", a, d), apply("mul", b, c))
    combiner = combiner_from(lhs, rhs, (re, im))
    assert merging(combiner, lhs, ()) is combiner
    for other in (
        (im, re),
        (re, apply("sub", *im.args)),
        (re, apply("add", im.args[0], a)),
        (apply("sub", apply("mul", a, d), apply("mul", b, c)), im),
    ):
        assert merging(combiner_from(lhs, rhs, other), lhs, ()) is None


def argmax():
    """The combiner of argmax, its terms, and the axis that they are over."""
    lhs, rhs = combiner_variables([F32, I32])
    (x, m), (y, n) = lhs, rhs
    larger = apply("or", apply("gt", x, y), apply("ne", x, x))
    earlier = apply("and", apply("eq", x, y), apply("lt", m, n))
    combiner = combiner_from(
        lhs,
        rhs,
        (apply("select", larger, x, y), apply("select", apply("or", larger, earlier), m, n)),
    )
    axis = variable("k", 7)
    return combiner, (Var("x", F32), apply("convert", axis, dtype=I32)), axis


def test_ops_on_one_value_merge_in_any_order() -> None:
    combiner = named_combiner("add", F32)
    assert merging(combiner, (Var("x", F32),), (variable("k", 4),)) is combiner


def test_argmax_merges_by_position() -> None:
    """Whichever side comes first, the lower position wins among equals and among NaNs."""
    combiner, terms, axis = argmax()
    merged = merging(combiner, terms, (axis,))
    values = np.array([1, 2, np.nan, np.inf, -0.0, 0.0], np.float32)
    pairs = [(a, b, m, n) for a in values for b in values for m, n in ((2, 5), (5, 2))]
    (x, m), (y, n) = merged.lhs, merged.rhs
    for a, b, at_a, at_b in pairs:
        here = {x: np.asarray(a), y: np.asarray(b), m: np.int32(at_a), n: np.int32(at_b)}
        there = {x: np.asarray(b), y: np.asarray(a), m: np.int32(at_b), n: np.int32(at_a)}
        one, other = ([np.asarray(evaluate(r, at)) for r in merged.results] for at in (here, there))
        np.testing.assert_array_equal(one, other)
        if np.isnan(a) and np.isnan(b):
            assert one[1] == 2


def test_order_is_kept_where_nothing_tells_it() -> None:
    """A choice of the last, positions that do not ascend, positions that are data."""
    lhs, rhs = combiner_variables([F32])
    last = combiner_from(
        lhs, rhs, (apply("select", apply("ne", rhs[0], const(0.0, F32)), rhs[0], lhs[0]),)
    )
    assert merging(last, (Var("x", F32),), (variable("k", 4),)) is None
    combiner, (value, position), axis = argmax()
    assert merging(combiner, (value, position), (variable("other", 3), axis)) is None
    assert merging(combiner, (value, Var("data", I32)), (axis,)) is None


@pytest.mark.parametrize("dtype", [F32, BF16, I32], ids=str)
def test_what_is_subtracted_is_added_with_another_sign(dtype) -> None:
    element, term = Load(Buffer("y", dtype, ()), ()), Var("x", dtype)
    combiner, added = update_of(apply("sub", element, term), element)
    assert (combiner.name, added) == ("add", apply("neg", term))
    assert update_of(apply("sub", term, element), element) is None
