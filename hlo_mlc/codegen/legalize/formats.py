"""The two float formats that kernels compute in, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, I32, I64, U32, U64, DType


@dataclass(frozen=True, slots=True)
class Format:
    """An IEEE binary format, with the integers of its width."""

    float: DType
    signed: DType
    unsigned: DType
    fraction_bits: int  # of the significand, the leading one not counted
    bias: int  # of the exponent; also the largest exponent

    @property
    def rounding(self) -> float:
        """Adding this to a number below a quarter of it rounds that to an integer, which is then
        in the low bits."""
        return 1.5 * 2.0**self.fraction_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def hidden_bit(self) -> int:
        """The bits of an exponent field of 1; also the significand's leading one."""
        return 1 << self.fraction_bits

    @property
    def infinity_bits(self) -> int:
        return (2 * self.bias + 1) << self.fraction_bits

    @property
    def sign_bit(self) -> int:
        """As a signed integer."""
        return -1 << (self.float.bits - 1)


BINARY32 = Format(F32, I32, U32, 23, 127)
BINARY64 = Format(F64, I64, U64, 52, 1023)


def format_of(x: Expr) -> Format:
    """The format of a float, or the one as wide as an integer."""
    return BINARY32 if x.dtype.bits == 32 else BINARY64
