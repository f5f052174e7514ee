"""Making combiners: from a scalar op, and from expressions in which scalar ops are recognised."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, substitute
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, walk
from hlo_mlc.expr.dtypes import BOOL, INDEX, DType
from hlo_mlc.expr.ops import compute_dtype, identity

# Where rounding after every step may be left out: one rounding at the end is at least as exact.
_WIDENED = ("add", "mul")


def combiner_variables(dtypes: Sequence[DType]) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """The variables that a combiner of values of these types is written in: (lhs, rhs)."""
    lhs = tuple(Var(f"lhs{k}", dtype) for k, dtype in enumerate(dtypes))
    rhs = tuple(Var(f"rhs{k}", dtype) for k, dtype in enumerate(dtypes))
    return lhs, rhs


def named_combiner(op: str, dtype: DType) -> Combiner:
    """The combiner that is one associative scalar op."""
    lhs, rhs = combiner_variables([dtype])
    return Combiner(lhs, rhs, (apply(op, *lhs, *rhs),), (const(identity(op, dtype), dtype),), op)


def update_of(value: Expr, element: Load) -> tuple[Combiner, Expr] | None:
    """The combiner and the term by which a value updates an element, if it does no more than that
    and others may do so before it."""
    if not isinstance(value, Apply):
        return None
    if value.op == "fma" and value.args[2] is element:
        return named_combiner("add", value.dtype), apply("mul", *value.args[:2])
    if value.op == "sub" and value.args[0] is element:
        return named_combiner("add", value.dtype), apply("neg", value.args[1])
    if element not in value.args or identity(value.op, value.dtype) is None:
        return None
    one, other = value.args
    return named_combiner(value.op, value.dtype), other if one is element else one


def combiner_from(
    lhs: tuple[Var, ...], rhs: tuple[Var, ...], results: tuple[Expr, ...]
) -> Combiner:
    """A combiner with its name and neutral elements, where each result is one associative op of
    its own two variables."""
    ops = [_associative_op(r, x, y) for r, x, y in zip(results, lhs, rhs, strict=True)]
    if None in ops:
        return Combiner(lhs, rhs, results, None)
    neutral = tuple(const(identity(op, x.dtype), x.dtype) for op, x in zip(ops, lhs, strict=True))
    return Combiner(lhs, rhs, results, neutral, ops[0] if len(ops) == 1 else "")


def side_by_side(one: Combiner, other: Combiner) -> Combiner:
    """A combiner of both: `one` for the first values and `other` for the rest."""
    dtypes = [v.dtype for c in (one, other) for v in c.lhs]
    lhs, rhs = combiner_variables(dtypes)
    count = len(one.lhs)
    results = (*one.combined(lhs[:count], rhs[:count]), *other.combined(lhs[count:], rhs[count:]))
    both = one.identity is not None and other.identity is not None
    return Combiner(lhs, rhs, results, one.identity + other.identity if both else None)


def commutes(combiner: Combiner) -> bool:
    """Whether values may be folded in any order: each result is an associative op of its own two
    values."""
    return all(map(_associative_op, combiner.results, combiner.lhs, combiner.rhs))


def chooses(combiner: Combiner) -> bool:
    """Whether all results come from one side, as argmax takes them."""
    choices = {
        (r.args[0], r.args[1:] == (x, y))
        if isinstance(r, Apply) and r.op == "select" and set(r.args[1:]) == {x, y}
        else None
        for r, x, y in zip(combiner.results, combiner.lhs, combiner.rhs, strict=True)
    }
    return len(choices) == 1 and None not in choices


def is_several(combiner: Combiner) -> bool:
    """Whether each of several values has one associative op of its own, independent of the
    others."""
    return len(combiner.lhs) > 1 and all(
        map(_associative_op, combiner.results, combiner.lhs, combiner.rhs)
    )


@functools.lru_cache(maxsize=64)  # asked of every update of a kernel, which has few combiners
def is_sum(combiner: Combiner) -> bool:
    """Whether it adds floats, possibly beside other independent associative ops."""
    ops = [
        _associative_op(*each)
        for each in zip(combiner.results, combiner.lhs, combiner.rhs, strict=True)
    ]
    return None not in ops and any(
        op == "add" and x.dtype.is_float for op, x in zip(ops, combiner.lhs, strict=True)
    )


def _associative_op(result: Expr, x: Var, y: Var) -> str | None:
    if (
        isinstance(result, Apply)
        and set(result.args) == {x, y}
        and identity(result.op, x.dtype) is not None
    ):
        return result.op
    return None


def with_identity(combiner: Combiner, initial: tuple[Expr, ...]) -> Combiner:
    """`combiner`, taking constant initial values for neutral elements where it has none.

    StableHLO lets an implementation insert initial values of a reduction anywhere.  We do so only
    if combining them with themselves gives them back, so that their number cannot matter.
    """
    if combiner.identity is not None or not is_idempotent(combiner, initial):
        return combiner
    return Combiner(combiner.lhs, combiner.rhs, combiner.results, initial, combiner.name)


def is_idempotent(combiner: Combiner, initial: tuple[Expr, ...]) -> bool:
    """Whether these are constants that, combined with themselves, give themselves."""
    return (
        all(isinstance(e, Const) for e in initial)
        and combiner.combined(initial, initial) == initial
    )


def skipping(combiner: Combiner) -> Combiner:
    """A combiner of values each of which comes with a flag behind it, whether it is present: an
    absent value changes nothing."""
    lhs, rhs = combiner_variables([*(v.dtype for v in combiner.lhs), BOOL])
    results = (
        apply("select", lhs[-1] & rhs[-1], r, apply("select", lhs[-1], x, y))
        for r, x, y in zip(combiner.combined(lhs[:-1], rhs[:-1]), lhs, rhs, strict=False)
    )
    return Combiner(lhs, rhs, (*results, lhs[-1] | rhs[-1]), None)


def widened(combiner: Combiner) -> Combiner:
    """Sums and products of narrow floats as sums and products of f32; extremes of those of a byte
    too, which may lack the infinity that is neutral."""
    dtype = combiner.lhs[0].dtype
    if dtype.is_narrow_float and (combiner.name in _WIDENED or (combiner.name and dtype.bits == 8)):
        return named_combiner(combiner.name, compute_dtype(dtype))
    return combiner


def merging(combiner: Combiner, terms: Sequence[Expr], axes: Sequence[Var]) -> Combiner | None:
    """The combiner of partial results whose terms interleave; None where it takes neighbours.

    `axes` are the loops over the terms, outermost first.  A reduction is associative, but need
    not commute.  Ops on one value each do, and products of complex numbers.  Argmax and its kin do
    not: they keep the first of several NaNs only if they meet them in order; so of two partial
    results the one of the lower position comes first.
    """
    if (
        _multiplies_complex(combiner)
        or all(
            _associative_op(r, x, y) or _picks_extreme(r, x, y)
            for r, x, y in zip(combiner.results, combiner.lhs, combiner.rhs, strict=True)
        )
        or any(_is_ordered(combiner, position) for position in range(len(terms)))
    ):
        return combiner
    for position in range(len(terms)):
        if _breaks_ties(combiner, position) and _ascends(terms[position], axes):
            return _ordered(combiner, position)
    return None


def _multiplies_complex(combiner: Combiner) -> bool:
    """a c - b d, a d + b c"""
    if len(combiner.results) != 2:
        return False
    (a, b), (c, d) = combiner.lhs, combiner.rhs
    re, im = combiner.results
    return _products(re, "sub") == [{a, c}, {b, d}] and _products(im, "add") in (
        [{a, d}, {b, c}],
        [{b, c}, {a, d}],
    )


def _products(e: Expr, op: str) -> list[set[Expr]]:
    """The factors of the products that an expression combines by an op."""
    found = e.args if isinstance(e, Apply) and e.op == op else ()
    return [set(p.args) for p in found if isinstance(p, Apply) and p.op == "mul"]


def _picks_extreme(result: Expr, x: Var, y: Var) -> bool:
    """select(y > x, y, x) or with <: commutes but for the sign of zero, and passes NaNs over."""
    return any(result is apply("select", apply(op, y, x), y, x) for op in ("gt", "lt"))


def _breaks_ties(combiner: Combiner, position: int) -> bool:
    """True for a choice of one of both sides that falls on the one of the lower integer where none
    is better; besides, there may be associative ops on other values."""
    sides = tuple(zip(combiner.results, combiner.lhs, combiner.rhs, strict=True))
    chosen = [side for side in sides if not _associative_op(*side)]
    x, y = combiner.lhs[position], combiner.rhs[position]
    if (
        not x.dtype.is_integer
        or sides[position] not in chosen
        or not all(
            isinstance(r, Apply) and r.op == "select" and set(r.args[1:]) == {a, b}
            for r, a, b in chosen
        )
    ):
        return False
    lower = (("lt", (x, y)), ("gt", (y, x)))
    if any(isinstance(e, Apply) and (e.op, e.args) in lower for e in walk(*combiner.results)):
        return True
    return any(
        all(r is apply("select", apply(op, b, a), right, left) for r, left, right in chosen)
        for _, a, b in chosen
        for op in ("gt", "lt")
    )


def _ascends(term: Expr, axes: Sequence[Var]) -> bool:
    """True for a loop index as a number that grows from each term to the next."""
    if not isinstance(term, Apply) or term.op != "convert" or term.args[0].dtype is not INDEX:
        return False
    reach = 0
    for axis in reversed(axes):
        step = index.coefficient(term.args[0], axis)
        if step is None or step <= reach:
            return False
        reach += step * (axis.extent - 1)
    return True


def _is_ordered(combiner: Combiner, position: int) -> bool:
    """Whether it is what `_ordered` gives: it takes sides by their integers, not as they come."""
    lhs, rhs = combiner.lhs, combiner.rhs
    if not lhs[position].dtype.is_integer:
        return False
    swapped = dict(zip((*lhs, *rhs), (*rhs, *lhs), strict=True))
    first = apply("le", lhs[position], rhs[position])
    return all(
        isinstance(r, Apply)
        and r.op == "select"
        and r.args[0] is first
        and r.args[2] is substitute(r.args[1], swapped)
        for r in combiner.results
    )


def _ordered(combiner: Combiner, position: int) -> Combiner:
    """`combiner` with the side whose integer at `position` is lower taken as the left one."""
    lhs, rhs = combiner.lhs, combiner.rhs
    first = apply("le", lhs[position], rhs[position])
    both = zip(combiner.results, combiner.combined(rhs, lhs), strict=True)
    results = tuple(apply("select", first, r, swapped) for r, swapped in both)
    return Combiner(lhs, rhs, results, combiner.identity)
