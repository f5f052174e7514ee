"""Element types of tensors and scalars, and the type of a whole tensor."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np


class Kind(enum.Enum):
    """The family of an element type."""

    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    COMPLEX = "complex"


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type; the instances below are the only ones, so identity is equality."""

    name: str  # as StableHLO spells it: i1, i8, ui8, f32, bf16, …
    kind: Kind
    bits: int
    numpy: np.dtype
    # What follows from these is asked for at every line of generated code.
    bytes: int = field(init=False)  # of one element: of a bool and what is packed a whole byte
    is_float: bool = field(init=False)
    is_integer: bool = field(init=False)
    is_signed: bool = field(init=False)
    is_narrow_float: bool = field(init=False)  # computed in f32 and rounded after every op
    is_packed: bool = field(init=False)  # several share a byte in memory, the first its lowest bits

    def __post_init__(self) -> None:
        follows = {
            "bytes": max(1, self.bits // 8),
            "is_float": self.kind is Kind.FLOAT,
            "is_integer": self.kind in (Kind.SIGNED, Kind.UNSIGNED),
            "is_signed": self.kind is Kind.SIGNED,
            "is_narrow_float": self.kind is Kind.FLOAT and self.bits < 32,
            "is_packed": self.kind is not Kind.BOOL and self.bits < 8,
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple:
        return dtype, (self.name,)


BOOL = DType("i1", Kind.BOOL, 1, np.dtype(np.bool_))
I2 = DType("i2", Kind.SIGNED, 2, np.dtype(ml_dtypes.int2))
I4 = DType("i4", Kind.SIGNED, 4, np.dtype(ml_dtypes.int4))
I8 = DType("i8", Kind.SIGNED, 8, np.dtype(np.int8))
I16 = DType("i16", Kind.SIGNED, 16, np.dtype(np.int16))
I32 = DType("i32", Kind.SIGNED, 32, np.dtype(np.int32))
I64 = DType("i64", Kind.SIGNED, 64, np.dtype(np.int64))
U2 = DType("ui2", Kind.UNSIGNED, 2, np.dtype(ml_dtypes.uint2))
U4 = DType("ui4", Kind.UNSIGNED, 4, np.dtype(ml_dtypes.uint4))
U8 = DType("ui8", Kind.UNSIGNED, 8, np.dtype(np.uint8))
U16 = DType("ui16", Kind.UNSIGNED, 16, np.dtype(np.uint16))
U32 = DType("ui32", Kind.UNSIGNED, 32, np.dtype(np.uint32))
U64 = DType("ui64", Kind.UNSIGNED, 64, np.dtype(np.uint64))
F8E3M4 = DType("f8E3M4", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e3m4))
F8E4M3 = DType("f8E4M3", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e4m3))
F8E4M3B11FNUZ = DType("f8E4M3B11FNUZ", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e4m3b11fnuz))
F8E4M3FN = DType("f8E4M3FN", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e4m3fn))
F8E4M3FNUZ = DType("f8E4M3FNUZ", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e4m3fnuz))
F8E5M2 = DType("f8E5M2", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e5m2))
F8E5M2FNUZ = DType("f8E5M2FNUZ", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e5m2fnuz))
F8E8M0FNU = DType("f8E8M0FNU", Kind.FLOAT, 8, np.dtype(ml_dtypes.float8_e8m0fnu))
F16 = DType("f16", Kind.FLOAT, 16, np.dtype(np.float16))
BF16 = DType("bf16", Kind.FLOAT, 16, np.dtype(ml_dtypes.bfloat16))
F32 = DType("f32", Kind.FLOAT, 32, np.dtype(np.float32))
F64 = DType("f64", Kind.FLOAT, 64, np.dtype(np.float64))
C64 = DType("complex<f32>", Kind.COMPLEX, 64, np.dtype(np.complex64))
C128 = DType("complex<f64>", Kind.COMPLEX, 128, np.dtype(np.complex128))

# Loop variables, sizes and addresses.  Index arithmetic never overflows, so it may be
# rearranged freely (expr/index.py); i64 arithmetic of the user's program wraps and may not.
INDEX = DType("index", Kind.SIGNED, 64, np.dtype(np.int64))

FLOATS_OF_A_BYTE = (
    F8E3M4,
    F8E4M3,
    F8E4M3B11FNUZ,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0FNU,  # powers of two, by which blocks of others are scaled: neither zero nor sign
)
ALL = (
    BOOL,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    *FLOATS_OF_A_BYTE,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
)
"""Types of what is computed with, and whole complex numbers."""
PACKED = (I2, I4, U2, U4)
"""Integers of less than a byte, which are bytes where anything is computed with them."""
# Bits of the significand of floats, the hidden one included, and of their exponent.
# Floats of a byte are among those of f16 and bf16, but none of them among those of another one.
_SIGNIFICAND_BITS = {BF16: 8, F16: 11, F32: 24, F64: 53}
_EXPONENT_BITS = {BF16: 8, F16: 5, F32: 8, F64: 11}
_BY_NAME = {t.name: t for t in (*ALL, *PACKED, INDEX)}
_BY_NUMPY = {t.numpy: t for t in (*ALL, *PACKED)}


def dtype(name: str) -> DType:
    """The type that StableHLO spells `name`.

    Raises: KeyError for a type that is not modelled.
    """
    return _BY_NAME[name]


def from_numpy(numpy_dtype: np.dtype) -> DType:
    """The type of a NumPy array's elements.

    Raises: KeyError for a type that is not modelled.
    """
    return _BY_NUMPY[np.dtype(numpy_dtype)]


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide is narrow:
        return True
    if narrow is BOOL:
        return wide.is_integer or (wide.is_float and wide is not F8E8M0FNU)  # it has no zero
    if narrow.is_integer and wide.is_integer:
        return wide.bits > narrow.bits and (wide.is_signed or not narrow.is_signed)
    if narrow.is_integer and wide.is_float:
        # An unsigned n-bit integer needs n bits of significand; no exponent is too small then.
        return narrow.bits <= _SIGNIFICAND_BITS.get(wide, 0)
    if not (narrow.is_float and wide.is_float) or wide in FLOATS_OF_A_BYTE:
        return False
    if narrow in FLOATS_OF_A_BYTE:
        return narrow is not F8E8M0FNU or wide is not F16  # which ends at 2**15
    return (
        _SIGNIFICAND_BITS[wide] >= _SIGNIFICAND_BITS[narrow]
        and _EXPONENT_BITS[wide] >= _EXPONENT_BITS[narrow]
    )


# A dimension is a number, or, of what stays with XLA, the name of one that is known at run time.
Dim = int | str


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: tuple[Dim, ...]
    dtype: DType

    @property
    def is_static(self) -> bool:
        return str not in map(type, self.shape)

    @property
    def size(self) -> int:
        """Number of elements of a static shape."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return (
            -(-self.size * self.dtype.bits // 8)
            if self.dtype.is_packed
            else self.size * self.dtype.bytes
        )

    @property
    def part(self) -> TensorType:
        """The type of the real parts, and of the imaginary ones, of complex numbers."""
        return TensorType(self.shape, F32 if self.dtype is C64 else F64)

    @property
    def stored(self) -> TensorType:
        """The type of the buffer that holds it: complex numbers are two parts side by side, packed
        ones bytes with whole rows, or in one row where rows do not end with a byte."""
        if self.dtype.kind is Kind.COMPLEX:
            return TensorType((*self.shape, 2), self.part.dtype)
        if not self.dtype.is_packed:
            return self
        if self.shape and self.shape[-1] * self.dtype.bits % 8 == 0:
            return TensorType((*self.shape[:-1], self.shape[-1] * self.dtype.bits // 8), U8)
        return TensorType((self.bytes,), U8)

    def __str__(self) -> str:
        return "x".join([*(str(d) for d in self.shape), self.dtype.name])
