"""Languages like C: how types, literals and scalar ops are spelled.

What they differ in is a method or a table of the dialect of each.  Ops that have no spelling are
expanded by codegen/legalize, the same way as for CPUs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from hlo_mlc.codegen.clike.literals import INT_LIMIT, decimal, integer
from hlo_mlc.codegen.clike.spelling import Binding, cast, choice, infix, operand
from hlo_mlc.codegen.legalize import Abilities
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Const, Expr
from hlo_mlc.expr.dtypes import BF16, BOOL, F16, F32, F64, INDEX, U32, U64, DType
from hlo_mlc.expr.ops import OPS
from hlo_mlc.support.errors import CodegenError

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# i1 values: the ring of add and mul is the lattice of or and and.
_BOOL = {
    "add": "|",
    "sub": "^",
    "mul": "&",
    "and": "&",
    "or": "|",
    "xor": "^",
    "max": "|",
    "min": "&",
}


class Dialect(ABC):
    """A language: it raises CodegenError for what it has no words for."""

    # The names of types; what f32 and f64 functions are called; those of x * y + z; what it
    # has on all machines, so that expansions may be made of it.
    name: ClassVar[str]
    types: ClassVar[Mapping[DType, str]]
    functions: ClassVar[Mapping[str, tuple[str, str]]]
    fused: ClassVar[Mapping[DType, str]]
    abilities: ClassVar[Abilities]

    @abstractmethod
    def endless(self, value: float, dtype: DType) -> str:
        """An infinity, or what is no number."""

    @abstractmethod
    def call(self, op: str, node: Apply, args: Sequence[str]) -> str:
        """A division, shift, count of bits or upper half of a product of integers."""

    @abstractmethod
    def place(self, node: Apply, args: Sequence[str]) -> str:
        """The smaller or larger of two indices, or their quotient or remainder of any sign."""

    @abstractmethod
    def saturated(self, node: Apply, x: str) -> str:
        """A float as the nearest integer that there is, towards zero."""

    @abstractmethod
    def bits(self, source: DType, to: DType, x: str) -> str:
        """The bits of a value as another type; one of them is f32 or f64."""

    def element_type(self, dtype: DType) -> str:
        """The type of one element; narrow floats are their bits: only moved and converted.

        Raises: CodegenError for complex numbers, which are split before code generation.
        """
        if dtype not in self.types:
            raise CodegenError(f"Expected a type that {self.name} has, got {dtype}")
        return self.types[dtype]

    def type_of(self, e: Expr) -> str:
        """The type of a value; of an index, `int` where that is certainly wide enough."""
        return index_type(e) if e.dtype is INDEX else self.element_type(e.dtype)

    def wrapping_type(self, dtype: DType) -> str:
        """The unsigned type in which arithmetic on an integer type wraps, and is not promoted."""
        return self.types[U64 if dtype.bits == 64 else U32]

    def literal(self, node: Const) -> str:
        """A constant as an expression of its type."""
        value, dtype = node.value, node.dtype
        if dtype is BOOL:
            return "true" if value else "false"
        if dtype in (F32, F64):
            if not math.isfinite(value):
                return self.endless(value, dtype)
            return f"{decimal(np.float32(value))}f" if dtype is F32 else decimal(np.float64(value))
        if dtype.is_narrow_float:
            bits = int(np.asarray(value).astype(dtype.numpy).view(f"u{dtype.bytes}"))
            return f"({self.element_type(dtype)})0x{bits:0{2 * dtype.bytes}x}"
        return integer(int(value), dtype, "" if dtype is INDEX else self.element_type(dtype))

    def spell(self, node: Apply, args: Sequence[str]) -> str:
        """`op(args)` as an expression.

        Raises: CodegenError for an op that codegen/legalize should have expanded.
        """
        op, dtype = node.op, node.args[0].dtype
        if op in ("select", "select_unlikely"):
            return choice(args[0], self.operand(node, 1, args), self.operand(node, 2, args))
        if op in _COMPARISONS:
            return infix(args[0], _COMPARISONS[op], args[1])
        if op in ("convert", "convert_in_range"):
            return self._convert(node, args[0])
        if op == "bitcast":
            return (
                self.bits(dtype, node.dtype, args[0])
                if {dtype, node.dtype} & {F32, F64}
                else cast(self.element_type(node.dtype), args[0])
            )
        if dtype is INDEX:
            return self._on_index(node, args)
        if dtype is BOOL:
            return f"!{operand(args[0])}" if op == "not" else infix(args[0], _BOOL[op], args[1])
        if dtype in (F32, F64):
            if op == "neg":
                return f"-{operand(args[0], Binding.ATOM)}"
            if op in self.functions:
                return f"{self.functions[op][dtype is F64]}({', '.join(args)})"
            if op in ("add", "sub", "mul", "div"):
                return infix(args[0], INFIX[op], args[1])
        if dtype.is_integer and op in _INTEGER:
            return _INTEGER[op](self, node, args)
        if dtype.is_integer and op in _CALLED:
            return self.call(op, node, args)
        raise CodegenError(
            f"Expected a scalar op that {self.name} has, or one of its expansions, got {op} "
            f"({OPS[op].arity} operands) on {dtype}: codegen/legalize has not expanded it"
        )

    def operand(self, node: Apply, position: int, args: Sequence[str]) -> str:
        """An operand of the node's own type: indices may be narrower."""
        part, text = node.args[position], args[position]
        if node.dtype is INDEX and self.type_of(part) != self.type_of(node):
            return cast(self.type_of(node), text)
        return text

    def is_narrowed(self, node: Apply) -> bool:
        """True for an index of int of which an operand may need more."""
        return self.type_of(node) == "int" and any(
            self.type_of(a) == "long long" for a in node.args
        )

    def _on_index(self, node: Apply, args: Sequence[str]) -> str:
        """Index arithmetic does not overflow in the type of its result."""
        op, narrowed = node.op, self.is_narrowed(node)
        if op in ("floordiv", "floormod") and index.bounds(node.args[0])[0] >= 0:
            text = infix(args[0], "/" if op == "floordiv" else "%", args[1])
        elif op not in INFIX:
            return self.place(node, args)
        elif narrowed:
            text = infix(args[0], INFIX[op], args[1])
        else:
            text = infix(self.operand(node, 0, args), INFIX[op], self.operand(node, 1, args))
        return cast("int", text) if narrowed else text

    def _convert(self, node: Apply, x: str) -> str:
        source, to = node.args[0].dtype, node.dtype
        if to is BOOL:
            return infix(x, "!=", "0")
        if to in (F16, BF16):
            return f"mlc_to_{to}({x})"
        if source in (F16, BF16):
            return f"mlc_from_{source}({x})"
        if source.is_float and to.is_integer and node.op == "convert":
            return self.saturated(node, x)
        return cast(self.type_of(node), x)


def index_type(e: Expr) -> str:
    """`int` if it holds every value that an index expression can take."""
    low, high = index.bounds(e)
    return "int" if low >= -INT_LIMIT and high < INT_LIMIT else "long long"


# Integers: signed overflow has no meaning in C, so arithmetic is done without sign.


def _wrapping(dialect: Dialect, node: Apply, args: Sequence[str]) -> str:
    dtype, symbol = node.dtype, INFIX[node.op]
    if dtype in (U32, U64):
        return infix(args[0], symbol, args[1])
    first, second = (cast(dialect.wrapping_type(dtype), a) for a in args)
    return cast(dialect.element_type(dtype), infix(first, symbol, second))


def _logic(dialect: Dialect, node: Apply, args: Sequence[str]) -> str:
    text = infix(args[0], INFIX[node.op], args[1])
    return text if node.dtype.bits >= 32 else cast(dialect.element_type(node.dtype), text)


def _negate(dialect: Dialect, node: Apply, args: Sequence[str]) -> str:
    return cast(
        dialect.element_type(node.dtype),
        infix("0", "-", cast(dialect.wrapping_type(node.dtype), args[0])),
    )


def _absolute(dialect: Dialect, node: Apply, args: Sequence[str]) -> str:
    return (
        choice(infix(args[0], "<", "0"), _negate(dialect, node, args), args[0])
        if node.dtype.is_signed
        else args[0]
    )


def _not(dialect: Dialect, node: Apply, args: Sequence[str]) -> str:
    dtype = node.dtype
    if not dtype.is_signed and dtype.bits < 32:  # ~ has more bits, of which compilers warn
        return cast(
            dialect.element_type(dtype), infix(args[0], "^", f"0x{(1 << dtype.bits) - 1:x}")
        )
    return cast(dialect.element_type(dtype), f"~{operand(args[0])}")


def _larger(_: Dialect, node: Apply, args: Sequence[str]) -> str:
    return choice(infix(args[0], ">" if node.op == "max" else "<", args[1]), args[0], args[1])


def _multiply_high(dialect: Dialect, node: Apply, args: Sequence[str]) -> str:
    if node.dtype in (U32, U64):
        return dialect.call("mul_high", node, args)
    first, second = (cast(dialect.types[U32], a) for a in args)
    shifted = infix(infix(first, "*", second), ">>", str(node.dtype.bits))
    return cast(dialect.element_type(node.dtype), shifted)


_INTEGER: Mapping[str, Callable[[Dialect, Apply, Sequence[str]], str]] = {
    "add": _wrapping,
    "sub": _wrapping,
    "mul": _wrapping,
    "and": _logic,
    "or": _logic,
    "xor": _logic,
    "neg": _negate,
    "abs": _absolute,
    "not": _not,
    "max": _larger,
    "min": _larger,
    "mul_high": _multiply_high,
}
_CALLED = {"div", "rem", "shl", "shr_logical", "shr_arithmetic", "popcnt", "clz"}
