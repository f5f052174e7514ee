"""f16 and bf16: computed in f32, and rounded after every op as StableHLO and XLA do.

Of the conversions only those between a narrow type and f32 remain; others go through f32, so f64
is rounded twice, as XLA does.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.codegen.legalize.arithmetic import both, convert, xor
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import BOOL, F32, U16, DType


def concerns(args: tuple[Expr, ...], dtype: DType) -> bool:
    """True where an operand or the result is a narrow float."""
    return dtype.is_narrow_float or any(a.dtype.is_narrow_float for a in args)


def expand(op: str, args: tuple[Expr, ...], dtype: DType,
           in_f32: Callable[..., Expr]) -> Expr | None:
    """`op` on narrow floats, None if it is legal; in_f32(*operands) builds the op on f32.

    Ops that only move values stay in the narrow type; signs change in the bits, which is exact.
    """
    match op:
        case "select" | "select_unlikely" | "bitcast":
            return None
        case "convert" | "convert_in_range":
            return _convert(op, args[0], dtype)
        case "neg":
            return _on_bits(lambda x: xor(x, 0x8000), args[0])
        case "abs":
            return _on_bits(lambda x: both(x, 0x7FFF), args[0])
    result = in_f32(*(convert(a, F32) for a in args))
    return result if dtype is BOOL else convert(result, dtype)


def _on_bits(function: Callable[[Expr], Expr], x: Expr) -> Expr:
    return apply("bitcast", function(apply("bitcast", x, dtype=U16)), dtype=x.dtype)


def _convert(op: str, x: Expr, dtype: DType) -> Expr | None:
    if x.dtype is F32 or (dtype is F32 and op == "convert"):
        return None
    return apply(op, convert(x, F32), dtype=dtype)
