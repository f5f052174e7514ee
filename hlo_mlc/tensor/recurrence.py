"""Linear recurrences, `y[t] = a[t] * y[t - 1] + b[t]`, as scans: two steps compose to one step.

    (a, b) then (c, d)   ->   (a * c, c * b + d)

In a scan of pairs, each lane of a vector runs through a part of the steps, as the loop would, and
the product of a part's factors carries over what lies before it. That product must neither
underflow nor overflow, which would turn infinities into NaNs and small numbers into zeros: factors
of floats must not exceed one, and a part is only as long as its smallest factor allows. Where
factors are unknown, a run-time test decides.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import ml_dtypes

from hlo_mlc.expr.build import FALSE, TRUE, apply, const, rebuild
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Const, Expr, Load, loads
from hlo_mlc.expr.dtypes import BOOL, DType
from hlo_mlc.expr.ops import OPS, Accuracy, identity
from hlo_mlc.tensor.combine import combiner_variables, named_combiner

LEAST_PART = 16  # steps of one part at least: a block of templates/scan_loops.py
_MOST_VALUES = 8  # that a factor may have: masks and choices of constants have two to four


def step_of(value: Expr, old: Load) -> tuple[Combiner, tuple[Expr, ...], tuple[Expr, ...]] | None:
    """The combiner and the terms of a scan whose last value is `value` where the one before is
    `old`, and its initial values; None where it is not known to be as exact as the loop."""
    dtype = value.dtype
    if isinstance(value, Apply) and _is_exact(value):
        rest = [e for e in value.args if old not in loads(e)]
        if len(rest) != 1 or old not in value.args:
            return None
        return named_combiner(value.op, dtype), (rest[0],), (old,)
    if not (dtype.is_integer or (dtype.is_float and dtype.bits > 8)):
        return None
    found = linear(value, old)
    if found is None:
        return None
    factor, rest = found
    if rest is None:
        rest = _nothing(dtype)
    if factor is const(1, dtype):
        return named_combiner("add", dtype), (rest,), (old,)
    known = few_values(factor) is not None
    if lasting((factor, rest)) == 0 and (known or not _halvings(dtype)):
        return None
    return pairs(dtype), (factor, rest), (const(1, dtype), old)


def _is_exact(value: Apply) -> bool:
    """Whether it is an op of which any order of evaluation gives the same value, without
    rounding."""
    op = OPS[value.op]
    exact = op.accuracy is Accuracy.EXACT and op.commutative
    return exact and identity(value.op, value.dtype) is not None


def pairs(dtype: DType) -> Combiner:
    """The combiner of steps, each of them a pair of a factor and a summand."""
    lhs, rhs = combiner_variables((dtype, dtype))
    (a, b), (c, d) = lhs, rhs
    both = apply("fma", c, b, d) if dtype.is_float and not dtype.is_narrow_float else c * b + d
    return Combiner(lhs, rhs, (a * c, both), (const(1, dtype), _nothing(dtype)))


def _nothing(dtype: DType) -> Const:
    """The neutral element of addition, which keeps even the sign of a zero."""
    return const(-0.0 if dtype.is_float else 0, dtype)


@functools.lru_cache(256)
def linear(e: Expr, x: Expr) -> tuple[Expr, Expr | None] | None:
    """`(a, b)` where `e` is `a * x + b`, with b None where nothing is added; None where it is not.

    A float x must occur once: adding up its factors would round otherwise than `e` does.
    """
    if e is x:
        return const(1, x.dtype), None
    if not isinstance(e, Apply) or e.dtype is not x.dtype:
        return None
    parts = [linear(arg, x) if x in loads(arg) else arg for arg in e.args]
    with_x = [part for part in parts if not isinstance(part, Expr)]
    if not with_x or None in with_x:
        return None
    if len(with_x) > 1:
        return _both(e, parts) if x.dtype.is_integer else None
    ((factor, rest),) = with_x
    match e.op, parts:
        case "neg", _:
            return -factor, None if rest is None else -rest
        case "add", _:
            other = next(part for part in parts if isinstance(part, Expr))
            return factor, other if rest is None else rest + other
        case "sub", (_, Expr() as other):
            return factor, -other if rest is None else rest - other
        case "sub", (Expr() as other, _):
            return -factor, other if rest is None else other - rest
        case "mul", _:
            other = next(part for part in parts if isinstance(part, Expr))
            return factor * other, None if rest is None else rest * other
        case "fma", (Expr() as one, Expr() as other, _):
            product = one * other if rest is None else apply("fma", one, other, rest)
            return factor, product
        case "fma", (*factors, Expr() as added):
            other = next(part for part in factors if isinstance(part, Expr))
            return factor * other, added if rest is None else apply("fma", rest, other, added)
    return None


def _both(e: Apply, parts: list) -> tuple[Expr, Expr | None] | None:
    """Sums and differences of what has an integer on both sides, in which all is exact."""
    if e.op not in ("add", "sub"):
        return None
    (a, b), (c, d) = parts
    sign = -1 if e.op == "sub" else 1
    return a + sign * c, b if d is None else sign * d if b is None else b + sign * d


@functools.lru_cache(256)
def few_values(e: Expr) -> frozenset[Const] | None:
    """All values that an expression may have, whatever is read, where there are only a few; else
    None."""
    if isinstance(e, Const):
        return frozenset((e,))
    if e.dtype is BOOL:
        return frozenset((TRUE, FALSE))
    if not isinstance(e, Apply):
        return None
    known = [few_values(arg) for arg in (e.args[1:] if e.op == "select" else e.args)]
    if None in known or math.prod(map(len, known)) > _MOST_VALUES**2:
        return None
    if e.op == "select":
        found = frozenset().union(*known)
    else:
        found = frozenset(rebuild(e, args) for args in itertools.product(*known))
    few = len(found) <= _MOST_VALUES and all(isinstance(v, Const) for v in found)
    return found if few else None


def lasting(terms: Sequence[Expr]) -> int | None:
    """For how many steps of a scan the product of its factors neither underflows nor overflows: 0
    where that is unknown or next to nothing, None where there is no limit."""
    factor = terms[0]
    if len(terms) == 1 or not factor.dtype.is_float:
        return None
    values = few_values(factor)
    if values is None or any(not abs(v.value) <= 1 for v in values):
        return 0
    least = min((abs(v.value) for v in values if v.value), default=1.0)
    if least == 1:
        return None
    steps = int(ml_dtypes.finfo(factor.dtype.numpy).minexp / math.log2(least))
    return steps if steps >= LEAST_PART else 0


def keeps_to(factor: Expr) -> Expr:
    """Whether products of so many factors as a part has at least neither vanish nor overflow."""
    zero, one, size = const(0, factor.dtype), const(1, factor.dtype), apply("abs", factor)
    least = const(2.0 ** -_halvings(factor.dtype), factor.dtype)
    return apply("eq", factor, zero) | (apply("ge", size, least) & apply("le", size, one))


def _halvings(dtype: DType) -> int:
    """How often each of so many factors as a part has at least may halve a number."""
    return -ml_dtypes.finfo(dtype.numpy).minexp // LEAST_PART
