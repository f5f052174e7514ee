"""C as one of the languages like it, on a processor without fused multiply-add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from hlo_mlc.codegen.clike.dialect import Dialect
from hlo_mlc.codegen.clike.spelling import cast
from hlo_mlc.codegen.legalize import Abilities
from hlo_mlc.expr.core import Apply
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

_PLACES = {
    "min": "mlc_smaller",
    "max": "mlc_larger",
    "floordiv": "mlc_floor_divide",
    "floormod": "mlc_floor_modulo",
}
_SHIFTS = {
    "shl": "mlc_shift_left",
    "shr_logical": "mlc_shift_right_logical",
    "shr_arithmetic": "mlc_shift_right_arithmetic",
}


class _C(Dialect):
    name = "C"
    types: ClassVar = {
        BOOL: "bool",
        I8: "int8_t",
        I16: "int16_t",
        I32: "int32_t",
        I64: "int64_t",
        U8: "uint8_t",
        U16: "uint16_t",
        U32: "uint32_t",
        U64: "uint64_t",
        F16: "uint16_t",
        BF16: "uint16_t",
        F32: "float",
        F64: "double",
        **dict.fromkeys(FLOATS_OF_A_BYTE, "uint8_t"),
    }
    functions: ClassVar = {
        "sqrt": ("sqrtf", "sqrt"),
        "abs": ("fabsf", "fabs"),
        "fma": ("mlc_multiply_add_f32", "mlc_multiply_add_f64"),
        "floor": ("floorf", "floor"),
        "ceil": ("ceilf", "ceil"),
        "trunc": ("truncf", "trunc"),
        "round_even": ("rintf", "rint"),
        "max": ("mlc_max_f32", "mlc_max_f64"),
        "min": ("mlc_min_f32", "mlc_min_f64"),
        "is_finite": ("isfinite", "isfinite"),
    }
    fused: ClassVar = {F32: "mlc_multiply_add_f32", F64: "mlc_multiply_add_f64"}
    abilities = Abilities(has_fma=False, has_fast_f64=True)

    def endless(self, value: float, dtype: DType) -> str:
        text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return text if dtype is F32 else f"(double){text}"

    def call(self, op: str, node: Apply, args: Sequence[str]) -> str:
        dtype, kind = node.dtype, self.element_type(node.dtype)
        unsigned, sign = f"uint{dtype.bits}_t", "signed" if dtype.is_signed else "unsigned"
        if op in ("div", "rem"):
            name = "mlc_divide" if op == "div" else "mlc_remainder"
            return cast(kind, f"{name}_{sign}({', '.join(args)})")
        if op == "popcnt":
            return cast(kind, f"__builtin_popcountll({cast(unsigned, args[0])})")
        if op == "clz":
            return cast(kind, f"mlc_leading_zeros({cast(unsigned, args[0])}, {dtype.bits})")
        if op == "mul_high":
            return f"mlc_multiply_high_u{dtype.bits}({args[0]}, {args[1]})"
        x = cast(f"int{dtype.bits}_t" if op == "shr_arithmetic" else unsigned, args[0])
        return cast(kind, f"{_SHIFTS[op]}({x}, {cast(unsigned, args[1])}, {dtype.bits})")

    def place(self, node: Apply, args: Sequence[str]) -> str:
        text = f"{_PLACES[node.op]}({', '.join(args)})"
        return cast("int", text) if self.type_of(node) == "int" else text

    def saturated(self, node: Apply, x: str) -> str:
        to = node.dtype
        text = (
            f"mlc_saturate_signed({x}, INT{to.bits}_MIN, INT{to.bits}_MAX)"
            if to.is_signed
            else f"mlc_saturate_unsigned({x}, UINT{to.bits}_MAX)"
        )
        return cast(self.element_type(to), text)

    def bits(self, source: DType, to: DType, x: str) -> str:
        if source in (F32, F64) and to in (F32, F64):
            return cast(self.element_type(to), x)
        if source in (F32, F64):
            return cast(self.element_type(to), f"mlc_bits_of_{source}({x})")
        return f"mlc_{to}_of_bits({cast(f'uint{to.bits}_t', x)})"


C = _C()
