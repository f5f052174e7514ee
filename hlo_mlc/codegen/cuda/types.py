"""How CUDA C++ spells element types and literals.

Narrow floats are their bits in registers too: they are only moved and converted.
"""

from __future__ import annotations

import math
import struct

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
    BOOL: "bool", I8: "signed char", I16: "short", I32: "int", I64: "long long",
    U8: "unsigned char", U16: "unsigned short", U32: "unsigned", U64: "unsigned long long",
    F16: "unsigned short", BF16: "unsigned short", F32: "float", F64: "double",
    **dict.fromkeys(FLOATS_OF_A_BYTE, "unsigned char"),
}


def element_type(dtype: DType) -> str:
    """The C++ type of one element.

    Raises: CodegenError for complex numbers, which are split into parts before code generation.
    """
    if dtype not in _TYPES:
        raise CodegenError(f"Expected a type that GPU registers hold, got {dtype}")
    return _TYPES[dtype]


def unsigned_type(dtype: DType) -> str:
    """The unsigned type in which arithmetic on an integer type wraps, and is not promoted."""
    return "unsigned long long" if dtype.bits == 64 else "unsigned"


def type_of(e: Expr) -> str:
    """The C++ type of a value."""
    return index_type(e) if e.dtype is INDEX else element_type(e.dtype)


def literal(node: Const) -> str:
    """A constant as an expression of its type."""
    value, dtype = node.value, node.dtype
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype is F32:
        if not math.isfinite(value):
            return f"__int_as_float(0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x})"
        return f"{decimal(np.float32(value))}f"
    if dtype is F64:
        if not math.isfinite(value):
            bits = struct.unpack("<Q", struct.pack("<d", value))[0]
            return f"__longlong_as_double(0x{bits:016x}ll)"
        return decimal(np.float64(value))
    if dtype.is_narrow_float:
        bits = int(np.asarray(value).astype(dtype.numpy).view(f"u{dtype.bytes}"))
        return f"({element_type(dtype)})0x{bits:0{2 * dtype.bytes}x}"
    return integer(int(value), dtype, "" if dtype is INDEX else element_type(dtype))
