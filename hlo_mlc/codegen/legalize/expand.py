"""legalize: from any scalar expression to one of ops that every printer has.

What remains: add sub mul div max min fma neg abs floor ceil trunc round_even sqrt, comparisons,
is_finite, select, select_unlikely, convert, convert_in_range, bitcast, logic, shifts, popcnt,
clz, mul_high, rem of integers, and ldexp and pick where the target has them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import NamedTuple

from hlo_mlc.codegen.legalize import (
    bessel,
    division,
    error_function,
    exponential,
    gamma,
    integer,
    inverse,
    logarithm,
    narrow,
    power,
    rounding,
    trigonometric,
    zeta,
)
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, compare, select, transform
from hlo_mlc.expr.core import Apply, Expr, Var, loads, walk
from hlo_mlc.expr.dtypes import BOOL, F32, INDEX, DType

Expansion = Callable[..., Expr]

_FLOAT: Mapping[str, Expansion] = {
    "exp": exponential.exp,
    "expm1": exponential.expm1,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log": logarithm.log,
    "log1p": logarithm.log1p,
    "erf_inv": error_function.erf_inv,
    "asin": inverse.asin,
    "acos": inverse.acos,
    "atan": inverse.atan,
    "atan2": inverse.atan2,
    "asinh": inverse.asinh,
    "acosh": inverse.acosh,
    "atanh": inverse.atanh,
    "larger": lambda x, y: select(compare("gt", y, x), y, x),
    "sign": rounding.sign,
    "round_away": rounding.round_away,
    "rsqrt": rounding.rsqrt,
}
# These have another form in f32 where the target picks from tables.
_FLOAT_BY_PICK: Mapping[str, Expansion] = {
    "exp": exponential.exp_by_pick,
    "erf": error_function.erf_by_pieces,
}
# These have another form in f32 where the target is fast in f64.
_FLOAT_IN_F64: Mapping[str, Expansion] = {"pow": power.pow_in_f64}
# These divide, or do without, by a refined reciprocal or a polynomial, where that takes less.
_FLOAT_BY_DIVISION: Mapping[str, Expansion] = {
    "erf": error_function.erf,
    "tanh": exponential.tanh,
    "logistic": exponential.logistic,
}
# These have another form where the target has no fused multiply-add.
_FLOAT_BY_FMA: Mapping[str, Expansion] = {
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "erfc": error_function.erfc,
    "pow": power.pow,
    "rem": rounding.remainder,
    "div_common": division.div_common,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "zeta": zeta.zeta,
    "polygamma": zeta.polygamma,
    "cbrt": rounding.cbrt,
    "bessel_i1e": bessel.bessel_i1e,
}
_INTEGER: Mapping[str, Expansion] = {"sign": integer.sign, "pow": integer.pow}


class Abilities(NamedTuple):
    """What expansions depend on, by the names that `CpuTarget` has for it.

    `has_fast_f64`: whether it pays to compute in f64 what takes two numbers of f32; `own`: ops that
    a target has besides those of every printer, by the type of their operands.
    """

    has_fma: bool = True
    has_ldexp: bool = False
    has_fast_division: bool = False
    has_pick: bool = False
    has_fast_f64: bool = False
    own: Container[tuple[str, DType]] = ()


_USUAL = Abilities()


def legalize(expr: Expr, target: Abilities = _USUAL, memo: dict[Expr, Expr] | None = None) -> Expr:
    """`expr` without the ops that printers lack, the same on all targets that have as much.

    Pass one `memo` for all expressions of a kernel to share the work.
    """

    def rule(node: Expr) -> Expr | None:
        return _legal(node.op, node.args, node.dtype, target) if isinstance(node, Apply) else None

    memo = {} if memo is None else memo
    for sine, cosine in _sines_with_cosines(expr, memo):
        x = transform(sine.args[0], rule, memo, is_data)
        memo[sine], memo[cosine] = trigonometric.sin_and_cos(x, target.has_fma)
    return transform(expr, rule, memo, is_data)


def _sines_with_cosines(expr: Expr, memo: Container[Expr]) -> Iterator[tuple[Apply, Apply]]:
    """Each pair in f32 of one argument, inner ones first, outside of what `memo` knows."""
    found: dict[tuple[str, Expr], Apply] = {}
    for node in walk(expr, into=lambda node: node not in memo and is_data(node)):
        if isinstance(node, Apply) and node.op in ("sin", "cos") and node.dtype is F32:
            found[node.op, node.args[0]] = node
            if ("sin", node.args[0]) in found and ("cos", node.args[0]) in found:
                yield found["sin", node.args[0]], found["cos", node.args[0]]


def is_data(node: Expr) -> bool:
    """Whether a value is more than index arithmetic, which needs no expansion: a place that is
    computed from numbers of the loops may well be `floor(sin(…))`."""
    if node.dtype is not INDEX or loads(node):
        return True
    if not node.children:
        return False
    inner = [atom for atom in index.affine(node)[0] if not isinstance(atom, Var)]
    return bool(inner) and any(part.dtype not in (INDEX, BOOL) for part in walk(*inner))


def _legal(op: str, args: tuple[Expr, ...], dtype: DType, target: Abilities) -> Expr | None:
    """The expansion of one op whose operands are legal; None if it is legal itself."""
    if (op, args[0].dtype) in target.own:
        return None
    if narrow.concerns(args, dtype):
        return narrow.expand(op, args, dtype, lambda *wide: _in_f32(op, wide, target))
    operand = args[0].dtype
    if operand is BOOL:
        return integer.both(*args) if op == "and" else None
    if operand.is_float:
        if op in _FLOAT_BY_PICK and target.has_pick and operand is F32:
            return _FLOAT_BY_PICK[op](*args)
        if op == "exp" and target.has_ldexp:
            return exponential.exp_by_ldexp(*args)
        if op in _FLOAT_IN_F64 and target.has_fast_f64 and operand is F32:
            return _FLOAT_IN_F64[op](*args)
        if op in _FLOAT_BY_DIVISION:
            divides = target.has_fast_division or not target.has_fma
            return _FLOAT_BY_DIVISION[op](*args, divides=divides)
        if op in _FLOAT_BY_FMA:
            return _FLOAT_BY_FMA[op](*args, has_fma=target.has_fma)
        return _FLOAT[op](*args) if op in _FLOAT else None
    return _INTEGER[op](*args) if operand.is_integer and op in _INTEGER else None


def _in_f32(op: str, args: tuple[Expr, ...], target: Abilities) -> Expr:
    expansion = _legal(op, args, F32, target)
    return apply(op, *args) if expansion is None else expansion
