"""Floats of fewer bits than f32: computed in f32, and rounded after every op as StableHLO and XLA
do.  Powers of two, the least of which is subnormal, are computed by their exponents.

Of the conversions only those between f16 or bf16 and f32 remain; others go through f32, so f64 is
rounded twice, as XLA does.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.codegen.legalize import bytes as of_a_byte
from hlo_mlc.expr.build import apply, convert, select
from hlo_mlc.expr.core import Apply, Expr
from hlo_mlc.expr.dtypes import (
    BF16,
    BOOL,
    F8E8M0FNU,
    F32,
    F64,
    FLOATS_OF_A_BYTE,
    U8,
    U16,
    U32,
    DType,
)
from hlo_mlc.expr.ops import OPS, Accuracy


def concerns(args: tuple[Expr, ...], dtype: DType) -> bool:
    """True where an operand or the result is a narrow float."""
    return dtype.is_narrow_float or any(a.dtype.is_narrow_float for a in args)


def expand(
    op: str, args: tuple[Expr, ...], dtype: DType, in_f32: Callable[..., Expr]
) -> Expr | None:
    """`op` on narrow floats, None if it is legal; in_f32(*operands) builds the op on f32.

    Ops that only move values stay in the narrow type; signs change in the bits, which is exact.
    The larger of two, and a whole number near one, need no rounding either; one of two that were
    rounded is so after it was chosen.
    """
    match op:
        case "select" if any(map(_is_rounded, args[1:])):
            return _chosen_before(*args)
        case "select" | "select_unlikely" | "bitcast":
            return None
        case "convert" | "convert_in_range":
            return _convert(op, args[0], dtype)
        case "neg" if _changes_sign_in_bits(dtype):
            return _on_bits(lambda x, sign: x ^ sign, args[0])
        case "abs" if _changes_sign_in_bits(dtype):
            return _on_bits(lambda x, sign: x & (sign - 1), args[0])
        case "mul" | "div" | "max" | "min" if dtype is F8E8M0FNU:
            return of_a_byte.of_two_powers(op, *args)
    result = in_f32(*(_widened(a) for a in args))
    if dtype is BF16 and OPS[op].accuracy is Accuracy.EXACT:
        return _upper_half(result)
    return result if dtype is BOOL else _narrowed(result, dtype)


def _is_rounded(x: Expr) -> bool:
    """Whether a bf16 or f16 is what an f32 was rounded to."""
    return (
        isinstance(x, Apply)
        and x.op == "convert"
        and x.dtype not in FLOATS_OF_A_BYTE
        and x.args[0].dtype is F32
    )


def _chosen_before(condition: Expr, *choices: Expr) -> Expr:
    """Of two numbers one, rounded once, while it has as many bits as what conditions compare."""
    wide = (x.args[0] if _is_rounded(x) else convert(x, F32) for x in choices)
    return convert(select(condition, *wide), choices[0].dtype)


def _upper_half(x: Expr) -> Expr:
    """An f32 with nothing in its lower half, as a bf16."""
    raw = apply("bitcast", x, dtype=U32) >> 16
    return apply("bitcast", apply("convert", raw, dtype=U16), dtype=BF16)


def _changes_sign_in_bits(dtype: DType) -> bool:
    return dtype not in FLOATS_OF_A_BYTE or of_a_byte.has_signed_zero(dtype)


def _on_bits(function: Callable[[Expr, int], Expr], x: Expr) -> Expr:
    """function(bits, sign bit)"""
    unsigned = U8 if x.dtype.bits == 8 else U16
    raw = apply("bitcast", x, dtype=unsigned)
    return apply("bitcast", function(raw, 1 << (x.dtype.bits - 1)), dtype=x.dtype)


def _widened(x: Expr) -> Expr:
    return of_a_byte.widened(x) if x.dtype in FLOATS_OF_A_BYTE else convert(x, F32)


def _narrowed(x: Expr, dtype: DType) -> Expr:
    return of_a_byte.narrowed(x, dtype) if dtype in FLOATS_OF_A_BYTE else convert(x, dtype)


def _convert(op: str, x: Expr, dtype: DType) -> Expr | None:
    """Through f32, unless it is from or to that."""
    if x.dtype is F32 and dtype not in FLOATS_OF_A_BYTE:
        return None
    if dtype is F32 and op == "convert" and x.dtype not in FLOATS_OF_A_BYTE:
        return None
    if (x.dtype, dtype) == (F8E8M0FNU, F64):
        return of_a_byte.power_in_f64(x)
    if (x.dtype, dtype) == (F64, F8E8M0FNU):
        return of_a_byte.power_of_f64(x)
    wide = _widened(x)
    if dtype is F32:
        return wide
    return _narrowed(wide, dtype) if dtype.is_narrow_float else apply(op, wide, dtype=dtype)
