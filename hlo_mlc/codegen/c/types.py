"""How C spells element types and literals.

Narrow floats are their bits: they are only moved and converted.
"""

from __future__ import annotations

import math

import numpy as np

from hlo_mlc.codegen.clike.dialect import index_type
from hlo_mlc.codegen.clike.literals import decimal, integer
from hlo_mlc.expr.core import Const, Expr
from hlo_mlc.expr.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    FLOATS_OF_A_BYTE,
    I8,
    I16,
    I32,
    I64,
    INDEX,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from hlo_mlc.support.errors import CodegenError

_TYPES = {
    BOOL: "bool", I8: "int8_t", I16: "int16_t", I32: "int32_t", I64: "int64_t",
    U8: "uint8_t", U16: "uint16_t", U32: "uint32_t", U64: "uint64_t",
    F16: "uint16_t", BF16: "uint16_t", F32: "float", F64: "double",
    **dict.fromkeys(FLOATS_OF_A_BYTE, "uint8_t"),
}


def element_type(dtype: DType) -> str:
    """The type of one element.

    Raises: CodegenError for complex numbers, which are split into parts before code generation.
    """
    if dtype not in _TYPES:
        raise CodegenError(f"Expected a type that C has, got {dtype}")
    return _TYPES[dtype]


def unsigned_type(dtype: DType) -> str:
    """The unsigned type of the width of an integer."""
    return f"uint{dtype.bits}_t"


def wrapping_type(dtype: DType) -> str:
    """The unsigned type in which arithmetic on an integer type wraps, and is not promoted."""
    return f"uint{max(32, dtype.bits)}_t"


def type_of(e: Expr) -> str:
    """The type of a value."""
    return index_type(e) if e.dtype is INDEX else element_type(e.dtype)


def literal(node: Const) -> str:
    """A constant as an expression of its type."""
    value, dtype = node.value, node.dtype
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype in (F32, F64) and not math.isfinite(value):
        text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return text if dtype is F32 else f"(double){text}"
    if dtype is F32:
        return f"{decimal(np.float32(value))}f"
    if dtype is F64:
        return decimal(np.float64(value))
    if dtype.is_narrow_float:
        bits = int(np.asarray(value).astype(dtype.numpy).view(f"u{dtype.bytes}"))
        return f"({element_type(dtype)})0x{bits:0{2 * dtype.bytes}x}"
    return integer(int(value), dtype, "" if dtype is INDEX else element_type(dtype))
