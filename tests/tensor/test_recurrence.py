"""Recurrences: what is linear in the value before, and over how many steps its factors last."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr.build import FALSE, TRUE, apply, const, convert, load, select
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import BF16, BOOL, F16, F32, F64, I32
from hlo_mlc.tensor.recurrence import few_values, keeps_to, lasting, linear, pairs, step_of


def _scalar(name, dtype=F32):
    return load(Buffer(name, dtype, ()), ())


X, A, B = (_scalar(name) for name in "xab")
N, M = (_scalar(name, I32) for name in "nm")
HALF = const(0.5, F32)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (X, (const(1, F32), None)),
        (X * A, (A * const(1, F32), None)),
        (apply("fma", X, A, B), (const(1, F32) * A, B)),
        (apply("fma", A, X, B), (const(1, F32) * A, B)),
        (apply("fma", A, B, X), (const(1, F32), A * B)),
        (B - X, (const(-1, F32), B)),
        (X - B, (const(1, F32), -B)),
        (-(X * HALF + B), (-HALF, -B)),
        ((X + B) * HALF, (HALF, B * HALF)),
        (B + A, None),
        (apply("sin", X), None),
        (X * X, None),
        (X * HALF + X, None),  # the sum of the factors would be rounded
        (select(_scalar("c", BOOL), X, B), None),  # forgets infinities, which a factor 0 does not
    ],
)
def test_parts_of_what_is_linear(e, expected):
    assert linear(e, X) == expected


def test_integers_may_be_there_twice():
    factor, rest = linear(N * 3 + M - N, N)
    assert factor is const(2, I32)
    assert rest is M


def test_few_values():
    flag, other = _scalar("flag", BOOL), _scalar("other", BOOL)
    chosen = select(flag, const(0, F32), HALF)
    assert few_values(chosen) == {const(0, F32), HALF}
    assert few_values(const(1, F32) - convert(flag, F32)) == {const(0, F32), const(1, F32)}
    assert few_values(select(other, chosen * HALF, HALF)) == {const(v, F32) for v in (0, 0.25, 0.5)}
    assert few_values(A) is None
    assert few_values(select(flag, A, HALF)) is None


@pytest.mark.parametrize(
    ("value", "dtype", "steps"),
    [
        (0.5, F32, 126),
        (-0.5, F32, 126),
        (2.0**-7, F32, 18),
        (2.0**-8, F32, 0),
        (0.5, F64, 1022),
        (0.5, BF16, 126),
        (0.5, F16, 0),
        (0.9, F16, 92),
        (1.5, F32, 0),
        (float("nan"), F32, 0),
    ],
)
def test_products_of_factors_neither_vanish_nor_overflow(value, dtype, steps):
    """`value` to the power of so many steps is a normal number."""
    assert lasting((const(value, dtype), const(0, dtype))) == steps


def test_zero_and_one_last_for_ever():
    mask = select(_scalar("flag", BOOL), const(0, F32), const(1, F32))
    assert lasting((mask, B)) is None
    assert lasting((N, M)) is None
    assert lasting((B,)) is None
    assert lasting((A, B)) == 0


@pytest.mark.parametrize("op", ["max", "min", "and", "or", "xor"])
def test_what_combines_exactly(op):
    x, term = (N, M) if op in ("and", "or", "xor") else (X, B)
    combiner, terms, initial = step_of(apply(op, x, term), x)
    assert combiner.results == (apply(op, *combiner.lhs, *combiner.rhs),)
    assert (terms, initial) == ((term,), (x,))


def test_factors_that_are_known_to_be_out_of_range_are_refused():
    assert step_of(X * const(1.5, F32) + B, X) is None
    assert step_of(X * A, X)[1] == (A, const(-0.0, F32))
    assert step_of(N * M, N)[1] == (M, const(0, I32))


@pytest.mark.parametrize(
    ("factor", "kept"),
    [
        (0, True),
        (1, True),
        (-1, True),
        (2**-7, True),
        (2**-8, False),
        (1.5, False),
        (np.nan, False),
    ],
)
def test_what_is_asked_of_factors_that_nobody_knows(factor, kept):
    assert keeps_to(const(factor, F32)) is (TRUE if kept else FALSE)


def test_pairs_are_associative():
    combiner = pairs(I32)
    (a, b), (c, d) = combiner.lhs, combiner.rhs
    assert combiner.results == (a * c, c * b + d)
