"""How LLVM spells element types, vectors and literals.

Narrow floats are their bits (i8, i16) in registers: they are only moved and converted, and LLVM
would call library functions for them where the target has no instructions.
"""

from __future__ import annotations

import functools
import struct

import numpy as np

from hlo_mlc.expr.core import Const
from hlo_mlc.expr.dtypes import BOOL, F32, F64, INDEX, DType, Kind
from hlo_mlc.support.errors import CodegenError


@functools.cache
def register_type(dtype: DType) -> str:
    """The LLVM type of one value in a register.

    Raises: CodegenError for complex numbers, which are split into parts before code generation.
    """
    if dtype.kind is Kind.COMPLEX:
        raise CodegenError(
            f"Expected a type that machine registers hold, got {dtype}: complex values have to be "
            f"split into real and imaginary parts before code generation"
        )
    if dtype is F32:
        return "float"
    if dtype is F64:
        return "double"
    return f"i{dtype.bits}"


@functools.cache
def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory: a bool takes a byte."""
    return "i8" if dtype is BOOL else register_type(dtype)


@functools.cache
def vector(element: str, lanes: int) -> str:
    """`lanes` elements side by side; 0 lanes is a scalar."""
    return f"<{lanes} x {element}>" if lanes else element


@functools.cache
def registers(dtype: DType, lanes: int) -> str:
    """The LLVM type of `lanes` values in a register."""
    return vector(register_type(dtype), lanes)


@functools.cache
def suffix(element: str, lanes: int = 0) -> str:
    """The mangled type at the end of an intrinsic's name."""
    name = {"float": "f32", "double": "f64", "ptr": "p0"}.get(element, element)
    return f"v{lanes}{name}" if lanes else name


def literal(value: int | float | bool, dtype: DType) -> str:
    """A scalar constant without its type."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype is F32 or dtype is F64:  # LLVM writes an f32 by the bits of the equal f64
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype.is_float:
        return str(int(np.asarray(value).astype(dtype.numpy).view(f"i{dtype.bytes}")))
    return str(int(value))


def constant(node: Const) -> str:
    """The literal of a constant expression."""
    return literal(node.value, node.dtype)


def spread(text: str, element: str, lanes: int) -> str:
    """A scalar literal as a literal of `lanes` equal ones."""
    return f"splat ({element} {text})" if lanes else text


def value_of_splat(text: str) -> int | None:
    """The integer of which `spread` made a vector, if the text is such a vector."""
    return int(text.split()[-1].rstrip(")")) if text.startswith("splat (i") else None


@functools.cache
def prefix_mask(live: int, lanes: int) -> str:
    """The vector of `lanes` bools of which the first `live` are true."""
    return f"<{', '.join('i1 true' if lane < live else 'i1 false' for lane in range(lanes))}>"


@functools.cache
def iota(element: str, lanes: int, step: int = 1) -> str:
    """0, step, 2*step, …"""
    return f"<{', '.join(f'{element} {lane * step}' for lane in range(lanes))}>"


@functools.cache
def shuffle_mask(picks: tuple[int | None, ...]) -> str:
    """The operand of `shufflevector` that takes these lanes of its two vectors; None is any."""
    lanes = ", ".join(f"i32 {'poison' if lane is None else lane}" for lane in picks)
    return f"<{len(picks)} x i32> <{lanes}>"


def is_literal(text: str) -> bool:
    """Whether an operand is a constant and no name."""
    return not text.startswith(("%", "@"))


INDEX_TYPE = register_type(INDEX)
