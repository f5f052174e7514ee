"""Which scalar ops there are of which types, and when results of one are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import OPS

REALS = [d for d in t.ALL if d.kind is not t.Kind.COMPLEX]
CONVERSIONS: list[Callable[..., Expr]] = [
    lambda v, to=to: apply("convert", v, dtype=to) for to in REALS
]
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = ("add", "sub", "mul", "max", "min", *_COMPARISONS)
_LOGIC = ("and", "or", "xor", "not")
_NUMBERS = (*_ARITHMETIC, "div", "neg", "abs", "sign")
_ROUNDING = ("floor", "ceil", "trunc", "round_even", "round_away")
_FLOAT = (*_NUMBERS, *_ROUNDING, "sqrt", "is_finite")
_SHIFTS = ("shl", "shr_logical", "shr_arithmetic")
BIT_OPS = (*_LOGIC, *_SHIFTS, "popcnt", "clz")
_INTEGER = (*_NUMBERS, *BIT_OPS, "rem")
FUNCTIONS = (
    "exp",
    "expm1",
    "log",
    "log1p",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "cosh",
    "erf",
    "erfc",
    "asin",
    "acos",
    "atan",
    "asinh",
    "atanh",
    "logistic",
)
"""Of one float each, that printers write out as basic operations."""


def ops_of(dtype: DType) -> tuple[str, ...]:
    """The ops of a type that every printer has words for."""
    if dtype is t.BOOL:
        return (*_ARITHMETIC, *_LOGIC)
    if dtype.is_float:
        return _FLOAT
    return _INTEGER if dtype.is_signed else (*_INTEGER, "mul_high")


def taken(name: str, operands: Sequence) -> Sequence:
    """Those of two operands that an op takes."""
    return operands[: OPS[name].arity]


def values_of(dtype: DType) -> list[Callable[..., Expr]]:
    """Each of these ops on two operands."""
    return [lambda *xs, name=name: apply(name, *taken(name, xs)) for name in ops_of(dtype)]


def assert_same(actual: np.ndarray, expected: np.ndarray, what: str, *operands: np.ndarray) -> None:
    """Equal bits, but any NaN is a NaN."""
    assert actual.dtype == expected.dtype
    if actual.dtype.kind not in "fV":
        same = actual == expected
    else:
        with np.errstate(invalid="ignore"):
            wide, wide_expected = actual.astype(np.float64), expected.astype(np.float64)
        same = (wide == wide_expected) & (np.signbit(wide) == np.signbit(wide_expected))
        same |= np.isnan(wide) & np.isnan(wide_expected)
    assert_all(same, actual, expected, what, *operands)


def assert_all(
    same: np.ndarray, actual: np.ndarray, expected: np.ndarray, what: str, *operands: np.ndarray
) -> None:
    """Says of the first element that is not the same what it was computed of."""
    for at in np.flatnonzero(~same)[:1]:
        inputs = ", ".join(repr(x[at]) for x in operands)
        pytest.fail(
            f"{what}({inputs}) gives {actual[at]!r}, not {expected[at]!r}; "
            f"{int((~same).sum())} differ"
        )
