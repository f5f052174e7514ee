"""Updates of elements that several threads may update at the same time.

Where the machine has no instruction, a thread computes the new value from the old one and exchanges
them, until nobody was in between.  Sums of f32 flush subnormals to zero, as that instruction does.
"""

from __future__ import annotations

from hlo_mlc.codegen.cuda.dialect import CUDA
from hlo_mlc.codegen.cuda.writer import Writer
from hlo_mlc.expr.dtypes import BF16, F16, F32, F64, I16, I32, I64, U16, U32, U64, DType
from hlo_mlc.loops.core import Accumulate
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError

_FUNCTIONS = {
    "add": "atomicAdd",
    "min": "atomicMin",
    "max": "atomicMax",
    "and": "atomicAnd",
    "or": "atomicOr",
    "xor": "atomicXor",
}
_WHOLE = (I32, U32, I64, U64)
# The unsigned type of the same size, and how to make a value of it and back; @ is the value.
_EXCHANGED: dict[DType, tuple[str, str, str]] = {
    F32: ("unsigned", "__float_as_uint(@)", "__uint_as_float(@)"),
    F64: (
        "unsigned long long",
        "(unsigned long long)__double_as_longlong(@)",
        "__longlong_as_double((long long)@)",
    ),
    **{
        d: ("unsigned short", "(unsigned short)(@)", f"({CUDA.element_type(d)})@")
        for d in (F16, BF16, I16, U16)
    },
    **{d: ("unsigned", "(unsigned)(@)", f"({CUDA.element_type(d)})@") for d in (I32, U32)},
    **{
        d: ("unsigned long long", "(unsigned long long)(@)", f"({CUDA.element_type(d)})@")
        for d in (I64, U64)
    },
}
DTYPES = frozenset(_EXCHANGED)
"""The types that can be updated so: narrower ones cannot be exchanged alone."""


def write_atomic(writer: Writer, stmt: Accumulate) -> None:
    """An update of one element.

    Raises: CodegenError for several elements at once, and types that cannot be exchanged.
    """
    if len(stmt.buffers) != 1 or stmt.buffers[0].dtype not in DTYPES:
        raise CodegenError(
            f"Expected one element of 16 bits or more to be updated at a time, got "
            f"`{headline(stmt)}`"
        )
    with writer.guarded(stmt.guard):
        _update(writer, stmt)


def _update(writer: Writer, stmt: Accumulate) -> None:
    lines, buffer = writer.lines, stmt.buffers[0]
    dtype, op = buffer.dtype, stmt.combiner.name
    values = writer.values()
    (term,) = values.write(*stmt.terms)
    element = values.element(buffer, stmt.indices)
    unsigned, to_bits, from_bits = _EXCHANGED[dtype]
    if op in _FUNCTIONS and (dtype in _WHOLE or (op == "add" and dtype in (F32, F64))):
        if dtype is I64 and op not in ("min", "max"):  # wraps
            lines.emit(f"{_FUNCTIONS[op]}(({unsigned}*)&{element}, ({unsigned})({term}));")
        else:
            lines.emit(f"{_FUNCTIONS[op]}(&{element}, {term});")
        return
    kind = CUDA.element_type(dtype)
    given, place, bits, seen, old = (lines.temporary() for _ in range(5))
    lines.emit(f"const {kind} {given} = {term};")
    lines.emit(f"{unsigned}* {place} = reinterpret_cast<{unsigned}*>(&{element});")
    lines.emit(f"{unsigned} {bits} = *{place}, {seen};")
    with writer.braces("do"):
        lines.emit(f"{seen} = {bits};")
        lines.emit(f"{kind} {old} = {from_bits.replace('@', seen)};")
        writer.combine(stmt, (old,), (given,), (old,))
        lines.emit(f"{bits} = atomicCAS({place}, {seen}, {to_bits.replace('@', old)});")
    lines.emit(f"while ({bits} != {seen});")
