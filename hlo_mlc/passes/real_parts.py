"""Arithmetic on real arrays of a graph, written as arithmetic: each operation adds a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, F32, U32, U64, DType, TensorType
from hlo_mlc.graph.builder import Builder
from hlo_mlc.graph.core import Value


@dataclass(frozen=True, slots=True)
class Range:
    """What a float can hold, and the halves that it is split into."""

    largest: float
    smallest_normal: float
    largest_exponent: float  # what exp takes to the largest number, rounded down
    low_bits: int  # of the fraction: without them, and of them alone, squares are exact

    @property
    def squares_below(self) -> float:
        """The square of a sum of several numbers below this stays in the range."""
        return float(np.sqrt(self.largest)) / 8

    @property
    def squares_above(self) -> float:
        """The square of a number above this keeps all its bits."""
        return float(np.sqrt(self.smallest_normal)) * 4

    @property
    def sums_of_squares_above(self) -> float:
        """The square of a number above this is so large that of another one, which is too small to
        be a normal number, nothing is seen in the sum of the two."""
        return self.squares_above * 2.0**self.low_bits

    @property
    def scales(self) -> tuple[float, float]:
        """Powers of two that take all numbers below `sums_of_squares_above`, subnormal ones too,
        and all above `squares_below` to where squares are normal numbers."""
        bits = 2 * self.low_bits
        exponent = int(np.log2(self.largest)) // 2
        return 2.0 ** (exponent + bits), 2.0 ** -(exponent + 4)


_SINGLE = Range(float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny), 88.0, 12)
_DOUBLE = Range(float(np.finfo(np.float64).max), float(np.finfo(np.float64).tiny), 709.0, 27)


def _applied(op: str) -> Callable[..., Real]:
    """A method that applies an op."""
    return lambda number, *others: number.apply(op, *others)


def _compared(direction: str) -> Callable[[Real, Real | float], Real]:
    return lambda number, other: number.compare(direction, other)


@dataclass(frozen=True, slots=True)
class Real:
    """A real array, or whether something holds in each of its places."""

    value: Value
    builder: Builder

    @property
    def range(self) -> Range:
        return _SINGLE if self.value.type.dtype is F32 else _DOUBLE

    def apply(self, op: str, *others: Real | float) -> Real:
        """An op on this and others, of this type; numbers stand for arrays of them."""
        return self._of(self.builder.like(f"stablehlo.{op}", *self._operands(others)))

    def apply_chlo(self, op: str) -> Real:
        """An op of CHLO."""
        return self._of(self.builder.like(f"chlo.{op}", self.value))

    def _of(self, value: Value) -> Real:
        return Real(value, self.builder)

    def _operands(self, others: Sequence[Real | float]) -> list[Value]:
        return [self.value, *(self.like(other).value for other in others)]

    def like(self, number: Real | float) -> Real:
        """An array of this type that holds a number in every place."""
        if isinstance(number, Real):
            return number
        return self._of(self.builder.constant(number, self.value.type))

    __add__, __sub__ = _applied("add"), _applied("subtract")
    __mul__, __truediv__ = _applied("multiply"), _applied("divide")
    __neg__, __abs__, __and__, __or__ = map(_applied, ("negate", "abs", "and", "or"))
    __lt__, __le__, __gt__, __ge__ = map(_compared, ("LT", "LE", "GT", "GE"))
    sqrt, exp, log = _applied("sqrt"), _applied("exponential"), _applied("log")
    log1p, sin, cos = _applied("log_plus_one"), _applied("sine"), _applied("cosine")

    def __radd__(self, other: float) -> Real:
        return self.like(other) + self

    def __rsub__(self, other: float) -> Real:
        return self.like(other) - self

    def __rmul__(self, other: float) -> Real:
        return self.like(other) * self

    def __rtruediv__(self, other: float) -> Real:
        return self.like(other) / self

    def compare(self, direction: str, other: Real | float) -> Real:
        """Whether this is so to the other."""
        return self._of(self.builder.compare(direction, *self._operands((other,))))

    def equals(self, other: Real | float) -> Real:
        """Whether both are the same number; zeros of both signs are."""
        return self.compare("EQ", other)

    def choose(self, one: Real, other: Real | float) -> Real:
        """`one` where this holds, `other` elsewhere."""
        return self._of(self.builder.select(self.value, one.value, one.like(other).value))

    def converted(self, dtype: DType) -> Real:
        """As numbers of another type."""
        return self._of(self.builder.convert(self.value, dtype))

    def is_finite(self) -> Real:
        """Whether it is a number and no infinity."""
        tensor = TensorType(self.value.type.shape, BOOL)
        return self._of(self.builder.add("stablehlo.is_finite", (self.value,), tensor))

    def larger(self, other: Real | float) -> Real:
        """NaN where one of both is."""
        return self.apply("maximum", other)

    def smaller(self, other: Real | float) -> Real:
        """NaN where one of both is."""
        return self.apply("minimum", other)

    def bits(self) -> Real:
        """As unsigned integers."""
        dtype = U32 if self.value.type.dtype is F32 else U64
        return self._of(self.builder.bitcast(self.value, dtype))

    def _of_bits(self, bits: Real) -> Real:
        return self._of(self.builder.bitcast(bits.value, self.value.type.dtype))

    def with_sign_of(self, other: Real) -> Real:
        """Zeros and NaN have signs too."""
        sign = other.bits() & _mask(other, 1, 0)
        return self._of_bits(self.bits() & _mask(self, 0, 1) | sign)

    def halves(self) -> tuple[Real, Real]:
        """The number rounded to half of its digits, and the rest: products of both are exact."""
        bits, low = self.bits(), 1 << self.range.low_bits
        kept = bits.like((1 << self.value.type.dtype.bits) - low)
        high = self._of_bits((bits + bits.like(low // 2)) & kept)
        return high, self - high


def _mask(number: Real, sign: int, rest: int) -> Real:
    bits = number.bits()
    top = 1 << (number.value.type.dtype.bits - 1)
    return bits.like(sign * top + rest * (top - 1))
