"""Simplification rules for scalar expressions; each keeps every bit of the result.

Float rules hold for -0, infinities and NaN (up to a NaN's payload): `x + 0` stays, `x + -0` goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hlo_mlc.expr.core import Apply, Const, Expr
from hlo_mlc.expr.dtypes import BOOL, INDEX, DType, holds
from hlo_mlc.expr.index import add, bounds, compare, constant, floordiv, multiply, subtract

Simplified = Expr | tuple[str, tuple[Expr, ...]]
Rule = Callable[[tuple[Expr, ...], DType], Expr | None]


def _is(e: Expr, value: float) -> bool:
    if not isinstance(e, Const) or e.value != value:
        return False
    return not isinstance(value, float) or math.copysign(1, e.value) == math.copysign(1, value)


def _is_op(e: Expr, op: str) -> bool:
    return isinstance(e, Apply) and e.op == op


def _add(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x + 0 -> x (integers);  x + -0.0 -> x (floats);  x + -y -> x - y"""
    x, y = args
    if _is(y, -0.0 if dtype.is_float else 0):
        return x
    if _is_op(y, "neg"):
        return Apply("sub", (x, y.args[0]), dtype)
    if _is_op(x, "neg"):
        return Apply("sub", (y, x.args[0]), dtype)
    return _of_counters(add, args, dtype)


def _sub(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x - 0 -> x;  x - x -> 0 (integers);  x - -y -> x + y"""
    x, y = args
    if _is(y, 0.0 if dtype.is_float else 0):
        return x
    if x is y and dtype.is_integer:
        return Const(0, dtype)
    if _is_op(y, "neg"):
        return Apply("add", (x, y.args[0]), dtype)
    return _of_counters(subtract, args, dtype)


def _mul(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x * 1 -> x;  x * 0 -> 0 (integers);  -x * y -> -(x * y)"""
    x, y = args
    if _is(y, 1.0 if dtype.is_float else 1):
        return x
    if _is(y, 0) and dtype.is_integer:
        return y
    if (outside := _negation_outside("mul", args, dtype)) is not None:
        return outside
    return _of_counters(multiply, args, dtype) if isinstance(y, Const) else None


def _of_counters(
    function: Callable[[Expr, Expr], Expr], args: tuple[Expr, ...], dtype: DType
) -> Expr | None:
    """convert(i) + convert(j) -> convert(i + j), likewise - and *, where nothing wraps

    Index arithmetic has a normal form, and is as wide as it must be: a counter of 64 bits costs
    half of the lanes of all that is computed with it.
    """
    if not dtype.is_integer or dtype is INDEX:
        return None
    counters = [_counter(x) for x in args]
    if None in counters or all(isinstance(c, Const) for c in counters):
        return None
    result = function(*counters)
    return Apply("convert", (result,), dtype) if _holds_all(dtype, result) else None


def _counter(x: Expr) -> Expr | None:
    """The index expression that the integer `x` has the value of, if it is known to be one."""
    if isinstance(x, Const):
        return constant(x.value)
    if isinstance(x, Apply) and x.op == "convert" and x.args[0].dtype is INDEX:
        return x.args[0] if _holds_all(x.dtype, x.args[0]) else None
    return None


def _holds_all(integer: DType, e: Expr) -> bool:
    """True where every value that the index expression `e` can take is one of `integer`."""
    low, high = bounds(e)
    info = np.iinfo(integer.numpy)
    return info.min <= low and high <= info.max


def _div(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x / 1 -> x;  x / 2**k -> x * 2**-k (floats: both are exact or round alike);
    -x / y -> -(x / y) (floats)"""
    x, y = args
    if _is(y, 1.0 if dtype.is_float else 1):
        return x
    if dtype.is_float and (outside := _negation_outside("div", args, dtype)) is not None:
        return outside
    if dtype.is_float and isinstance(y, Const) and _is_safe_power_of_two(y.value, dtype):
        return Apply("mul", (x, Const(1 / y.value, dtype)), dtype)
    return None


def _negation_outside(op: str, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """op(-x, y) -> -op(x, y), likewise for y: what differs by its sign only becomes the same."""
    x, y = args
    if not (_is_op(x, "neg") or _is_op(y, "neg")):
        return None
    positive = Apply(op, tuple(e.args[0] if _is_op(e, "neg") else e for e in args), dtype)
    both = _is_op(x, "neg") and _is_op(y, "neg")
    return positive if both else Apply("neg", (positive,), dtype)


def _odd(op: str) -> Rule:
    def rule(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
        """f(-x) -> -f(x)"""
        x = args[0]
        if not _is_op(x, "neg"):
            return None
        return Apply("neg", (Apply(op, (x.args[0],), dtype),), dtype)

    return rule


def _even(op: str) -> Rule:
    def rule(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
        """f(-x) -> f(x);  f(|x|) -> f(x)"""
        x = args[0]
        if not dtype.is_float or not (_is_op(x, "neg") or _is_op(x, "abs")):
            return None  # the smallest integer is its own negative
        return Apply(op, x.args, dtype)

    return rule


def _is_safe_power_of_two(value: float, dtype: DType) -> bool:
    """True where the reciprocal is exact and normal in `dtype`."""
    if value == 0 or not math.isfinite(value) or dtype.bits == 8:
        return False
    mantissa, exponent = math.frexp(value)
    return abs(mantissa) == 0.5 and abs(exponent) < (13 if dtype.name == "f16" else 120)


def _neg(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """--x -> x"""
    inner = args[0]
    return inner.args[0] if isinstance(inner, Apply) and inner.op == "neg" else None


def _and(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x & true -> x;  x & false -> false;  x & x -> x"""
    x, y = args
    if x is y:
        return x
    if isinstance(y, Const) and dtype is BOOL:
        return x if y.value else y
    return y if _is(y, 0) else None


def _or(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x | false -> x;  x | true -> true;  x | x -> x"""
    x, y = args
    if x is y:
        return x
    if isinstance(y, Const) and dtype is BOOL:
        return y if y.value else x
    return x if _is(y, 0) else None


def _xor(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x ^ 0 -> x"""
    return args[0] if _is(args[1], 0) else None


def _shift(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x << 0 -> x, likewise to the right"""
    return args[0] if _is(args[1], 0) else None


def _shift_right(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x >> 0 -> x;  convert(i) >> k -> convert(i // 2**k) for counters"""
    x, amount = args
    if _is(amount, 0):
        return x
    if isinstance(x, Const) or not isinstance(amount, Const) or not 0 < amount.value < dtype.bits:
        return None
    counter = _counter(x)
    if counter is None or bounds(counter)[0] < 0:
        return None
    quotient = floordiv(counter, 1 << amount.value)
    if isinstance(quotient, Const):
        return Const(quotient.value, dtype)
    return Apply("convert", (quotient,), dtype)


def _shift_right_arithmetic(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """The same, where the highest bit of an unsigned integer, which fills up, is not set"""
    counter = _counter(args[0])
    fills_up = (
        not dtype.is_signed and counter is not None and bounds(counter)[1] >= 1 << (dtype.bits - 1)
    )
    return _shift(args, dtype) if fills_up else _shift_right(args, dtype)


def _not(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """~~x -> x"""
    inner = args[0]
    return inner.args[0] if isinstance(inner, Apply) and inner.op == "not" else None


def _max(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """max(x, x) -> x;  max(x, -inf) -> x;  max(x, nan) -> nan;  max of counters of which the larger
    one is known -> that one"""
    return _extremum(args, -math.inf)


def _min(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """min(x, x) -> x;  min(x, inf) -> x;  min(x, nan) -> nan;  min of counters of which the smaller
    one is known -> that one"""
    return _extremum(args, math.inf)


def _extremum(args: tuple[Expr, ...], neutral: float) -> Expr | None:
    x, y = args
    if x is y or _is(y, neutral):
        return x
    if x.dtype.is_integer and (i := _counter(x)) is not None and (j := _counter(y)) is not None:
        low, high = bounds(subtract(i, j))
        return (
            x
            if (low >= 0 if neutral < 0 else high <= 0)
            else y
            if (high <= 0 if neutral < 0 else low >= 0)
            else None
        )
    return y if isinstance(y, Const) and y.value != y.value else None  # NaN


def _larger(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """larger(x, x) -> x;  larger(x, -inf) -> x"""
    x, y = args
    return x if x is y or _is(y, -math.inf) else None


def _select(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """select(true, a, b) -> a;  select(p, a, a) -> a;  select(p, true, false) -> p"""
    predicate, on_true, on_false = args
    if isinstance(predicate, Const):
        return on_true if predicate.value else on_false
    if on_true is on_false:
        return on_true
    if dtype is BOOL and _is(on_true, True) and _is(on_false, False):
        return predicate
    return None


def _convert(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """convert to the same type -> nothing;  convert(convert(x: A -> B) -> A) -> x if B holds A"""
    x = args[0]
    if x.dtype is dtype:
        return x
    if not (isinstance(x, Apply) and x.op == "convert"):
        return None
    inner = x.args[0]
    if inner.dtype is INDEX and x.dtype.is_integer:  # a loop counter that the integer can hold
        if _holds_all(x.dtype, inner):
            return inner if dtype is INDEX else Apply("convert", (inner,), dtype)
        return None
    return inner if inner.dtype is dtype and _survives(dtype, x.dtype) else None


def _survives(narrow: DType, wide: DType) -> bool:
    """True where every value of `narrow` comes back from a trip through `wide`."""
    wraps_back = narrow.is_integer and wide.is_integer and wide.bits >= narrow.bits
    return wraps_back or holds(wide, narrow)


def _compared(op: str) -> Rule:
    def rule(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
        """convert(i) < convert(j) -> true or false for counters of which i < j is known"""
        x, y = args
        if not x.dtype.is_integer:
            return None
        i, j = _counter(x), _counter(y)
        if i is None or j is None:
            return None
        known = compare(op, i, j)
        return known if isinstance(known, Const) else None

    return rule


_decided_not_equal = _compared("ne")


def _not_equal(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x != false -> x;  convert(i) != convert(j) as other comparisons"""
    x, y = args
    return x if x.dtype is BOOL and _is(y, False) else _decided_not_equal(args, dtype)


def _bitcast(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """bitcast to the same type -> nothing;  bitcast(bitcast(x)) -> bitcast(x)"""
    x = args[0]
    if x.dtype is dtype:
        return x
    if isinstance(x, Apply) and x.op == "bitcast":
        inner = x.args[0]
        return inner if inner.dtype is dtype else Apply("bitcast", (inner,), dtype)
    return None


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shift,
    "shr_logical": _shift_right,
    "shr_arithmetic": _shift_right_arithmetic,
    "not": _not,
    "max": _max,
    "min": _min,
    "larger": _larger,
    "select": _select,
    "select_unlikely": _select,
    "convert": _convert,
    "bitcast": _bitcast,
    **{op: _compared(op) for op in ("lt", "le", "gt", "ge", "eq")},
    "ne": _not_equal,
    # Our own functions are odd and even to the last bit (tanh is not).
    **{
        op: _odd(op)
        for op in ("sin", "tan", "erf", "erf_inv", "asin", "atan", "sinh", "asinh", "atanh", "cbrt")
    },
    **{op: _even(op) for op in ("cos", "cosh", "abs")},
}


def simplify(op: str, args: tuple[Expr, ...], dtype: DType) -> Simplified:
    """A simpler equal expression, or the (op, args) to build."""
    rule = RULES.get(op)
    simple = rule(args, dtype) if rule else None
    return (op, args) if simple is None else simple
