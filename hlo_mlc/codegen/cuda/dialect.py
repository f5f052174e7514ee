"""CUDA C++ as one of the languages like C.

Basic arithmetic is what IEEE 754 says: code is compiled without contraction, and divisions and
roots are rounded correctly, which is CUDA's default.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar

from hlo_mlc.codegen.clike.dialect import Dialect
from hlo_mlc.codegen.clike.spelling import cast, infix
from hlo_mlc.codegen.legalize import Abilities
from hlo_mlc.expr.core import Apply, Const
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
    U8,
    U16,
    U32,
    U64,
    DType,
)

_BITS = {
    (F32, I32): "__float_as_int",
    (F32, U32): "__float_as_uint",
    (I32, F32): "__int_as_float",
    (U32, F32): "__uint_as_float",
    (F64, I64): "__double_as_longlong",
    (I64, F64): "__longlong_as_double",
}
_SIGNED = {8: I8, 16: I16, 32: I32, 64: I64}
_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}
# What each shift is called, and as what type it takes the value.
_SHIFTS = {
    "shl": ("mlc_shift_left", _UNSIGNED),
    "shr_logical": ("mlc_shift_right_logical", _UNSIGNED),
    "shr_arithmetic": ("mlc_shift_right_arithmetic", _SIGNED),
}


# Ops on narrow floats that GPUs have: a result rounded once is what f32 rounds to.  A quotient of
# narrow floats is so far from the middle between two others that f32 need not have it exactly.
_NARROW = frozenset(
    (op, dtype)
    for dtype in (F16, BF16)
    for op in ("add", "sub", "mul", "div", "max", "min", "larger")
)
# What keeps a number within a limit: a comparison, and the function that does it in one step.
_LIMITS = {"gt": "mlc_max", "lt": "mlc_min"}


class _Cuda(Dialect):
    name = "a GPU"
    types: ClassVar = {
        BOOL: "bool",
        I8: "signed char",
        I16: "short",
        I32: "int",
        I64: "long long",
        U8: "unsigned char",
        U16: "unsigned short",
        U32: "unsigned",
        U64: "unsigned long long",
        F16: "unsigned short",
        BF16: "unsigned short",
        F32: "float",
        F64: "double",
        **dict.fromkeys(FLOATS_OF_A_BYTE, "unsigned char"),
    }
    functions: ClassVar = {
        "sqrt": ("__fsqrt_rn", "sqrt"),
        "fma": ("__fmaf_rn", "fma"),
        "abs": ("fabsf", "fabs"),
        "floor": ("floorf", "floor"),
        "ceil": ("ceilf", "ceil"),
        "trunc": ("truncf", "trunc"),
        "round_even": ("rintf", "rint"),
        "max": ("mlc_max", "mlc_max"),
        "min": ("mlc_min", "mlc_min"),
        "is_finite": ("mlc_is_finite", "mlc_is_finite"),
        "larger": ("fmaxf", "fmax"),
    }
    fused: ClassVar = {F32: "__fmaf_rn", F64: "fma"}
    abilities = Abilities(own=_NARROW | {("larger", F32), ("larger", F64)})

    def spell(self, node: Apply, args: Sequence[str]) -> str:
        if (node.op, node.args[0].dtype) in _NARROW:
            return f"mlc_{node.op}_{node.dtype}({', '.join(args)})"
        if _is_limit(node):
            return f"{_LIMITS[node.args[0].op]}({args[1]}, {args[2]})"
        return super().spell(node, args)

    def endless(self, value: float, dtype: DType) -> str:
        if dtype is F32:
            return f"__int_as_float(0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x})"
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        return f"__longlong_as_double(0x{bits:016x}ll)"

    def call(self, op: str, node: Apply, args: Sequence[str]) -> str:
        dtype, kind = node.dtype, self.element_type(node.dtype)
        if op in ("div", "rem"):
            name = "mlc_divide" if op == "div" else "mlc_remainder"
            return f"{name}<{kind}>({', '.join(args)})"
        if op == "mul_high":
            return f"{'__umulhi' if dtype is U32 else '__umul64hi'}({args[0]}, {args[1]})"
        if op in _SHIFTS:
            return self._shift(op, dtype, args)
        x = self._unpromoted(dtype, args[0])
        if op == "popcnt":
            return cast(kind, f"{'__popcll' if dtype.bits == 64 else '__popc'}({x})")
        if dtype.bits == 64:
            return cast(kind, f"__clzll({cast('long long', x)})")
        return cast(kind, infix(f"__clz({cast('int', x)})", "-", str(32 - dtype.bits)))

    def _shift(self, op: str, dtype: DType, args: Sequence[str]) -> str:
        name, kinds = _SHIFTS[op]
        amount = args[1] if dtype.bits >= 32 else infix(args[1], "&", str((1 << dtype.bits) - 1))
        if dtype not in (U32, U64):
            amount = cast(self.wrapping_type(dtype), amount)
        kind = self.element_type(kinds[dtype.bits])
        if kinds[dtype.bits] is dtype:
            return f"{name}<{kind}>({args[0]}, {amount})"
        return cast(self.element_type(dtype), f"{name}<{kind}>({cast(kind, args[0])}, {amount})")

    def _unpromoted(self, dtype: DType, x: str) -> str:
        """The bits of a value, in a type that is not promoted."""
        text = cast(self.wrapping_type(dtype), x)
        return text if dtype.bits >= 32 else infix(text, "&", f"{(1 << dtype.bits) - 1}u")

    def place(self, node: Apply, args: Sequence[str]) -> str:
        if node.op in ("min", "max"):
            if self.is_narrowed(node):
                first, second = (cast("long long", a) for a in args)
                return f"(int){node.op}({first}, {second})"
            return f"{node.op}({self.operand(node, 0, args)}, {self.operand(node, 1, args)})"
        name = "mlc_floor_divide" if node.op == "floordiv" else "mlc_floor_modulo"
        text = f"{name}<{self.type_of(node.args[0])}>({args[0]}, {args[1]})"
        return cast("int", text) if self.is_narrowed(node) else text

    def saturated(self, node: Apply, x: str) -> str:
        to, kind = node.dtype, self.element_type(node.dtype)
        low, high = (
            (-(1 << to.bits - 1), (1 << to.bits - 1) - 1)
            if to.is_signed
            else (0, (1 << to.bits) - 1)
        )
        lowest, highest = (self.literal(Const(v, to)) for v in (low, high))
        source = self.element_type(node.args[0].dtype)
        return f"mlc_saturate<{kind}, {source}>({x}, {lowest}, {highest})"

    def bits(self, source: DType, to: DType, x: str) -> str:
        if (source, to) in _BITS:
            return f"{_BITS[source, to]}({x})"
        if source is F64:
            return cast(self.element_type(to), f"__double_as_longlong({x})")
        if to is F64:
            return f"__longlong_as_double({cast('long long', x)})"
        return cast(self.element_type(to), x)


def _is_limit(node: Apply) -> bool:
    """Whether a choice is `limit > x ? limit : x`: the larger one, and NaN where x is.  (Zeros of
    both signs are equal in comparisons, and not in what _LIMITS has.)"""
    if node.op != "select" or node.dtype is not F32:
        return False
    condition, limit, x = node.args
    return (
        isinstance(condition, Apply)
        and condition.op in _LIMITS
        and condition.args == (limit, x)
        and isinstance(limit, Const)
        and limit.value != 0
    )


CUDA = _Cuda()
