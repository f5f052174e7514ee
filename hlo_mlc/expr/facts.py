"""What follows for index values from conditions that hold, and from the ranges of variables.

A fact is an index expression that is never positive: `i - n + 1` says that i < n.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Const, Expr, loads
from hlo_mlc.expr.dtypes import BOOL, INDEX

Facts = tuple[Expr, ...]

_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
# A consequence is looked for among sums of this many facts: blocks of blocks, and a guard.
_DEPTH = 4


def below(x: Expr, y: Expr) -> Expr:
    """The fact that x < y."""
    return index.add(index.subtract(x, y), 1)


def of_condition(condition: Expr, holds: bool = True) -> Facts:
    """What follows from a condition that holds, or does not."""
    if not isinstance(condition, Apply):
        return ()
    op, args = condition.op, condition.args
    if op == "not":
        return of_condition(args[0], not holds)
    if (op == "and" and holds) or (op == "or" and not holds):
        return tuple(fact for part in args for fact in of_condition(part, holds))
    if args[0].dtype is not INDEX or op not in _NEGATED:
        return ()
    compared = _compared(op if holds else _NEGATED[op], *args)
    return tuple(
        _tight(f) for fact in compared for f in (fact, *_with_quotients(fact), *_undivided(fact))
    )


def _with_quotients(fact: Expr) -> Facts:
    """The same of quotients in place of remainders, which elsewhere are written so."""
    terms, offset = index.affine(fact)
    remainders = {a: k for a, k in terms.items() if isinstance(a, Apply) and a.op == "floormod"}
    if not remainders:
        return ()
    same = index.from_affine({a: k for a, k in terms.items() if a not in remainders}, offset)
    for remainder, k in remainders.items():
        x, c = remainder.args
        quotient = index.multiply(index.floordiv(x, c.value), -c.value)
        same = index.add(same, index.multiply(index.add(x, quotient), k))
    return (same,)


def _compared(op: str, x: Expr, y: Expr) -> Facts:
    match op:
        case "lt":
            return (below(x, y),)
        case "le":
            return (index.subtract(x, y),)
        case "gt":
            return (below(y, x),)
        case "ge":
            return (index.subtract(y, x),)
        case "eq":
            return index.subtract(x, y), index.subtract(y, x)
    return ()


def exactly(condition: Expr, holds: bool = True) -> Facts | None:
    """The facts that mean the same as a condition that holds, or does not; None where index
    comparisons, all of which are true, do not say it."""
    if isinstance(condition, Const):
        return () if condition.value == holds else (index.constant(1),)
    if not isinstance(condition, Apply):
        return None
    op, args = condition.op, condition.args
    if op == "not":
        return exactly(args[0], not holds)
    if op == ("and" if holds else "or"):
        parts = [exactly(part, holds) for part in args]
        return None if None in parts else tuple(fact for part in parts for fact in part)
    if any(loads(part) for part in args):
        return None
    if args[0].dtype is not INDEX or op not in _NEGATED:
        return None
    return _compared(op if holds else _NEGATED[op], *args) or None


def cases(condition: Expr, holds: bool = True) -> tuple[Facts, ...] | None:
    """The same for conditions of which one or another holds: facts for each of them, which may hold
    together."""
    if isinstance(condition, Apply):
        if condition.op == "not":
            return cases(condition.args[0], not holds)
        if condition.op == ("or" if holds else "and") and condition.args[0].dtype is BOOL:
            parts = [cases(part, holds) for part in condition.args]
            return None if None in parts else tuple(itertools.chain(*parts))
        if (
            condition.op == ("ne" if holds else "eq")
            and condition.args[0].dtype is INDEX
            and not any(map(loads, condition.args))
        ):
            x, y = condition.args
            return (below(x, y),), (below(y, x),)
    facts = exactly(condition, holds)
    return None if facts is None else (facts,)


def never_positive(e: Expr, facts: Facts, depth: int = _DEPTH) -> bool:
    """Whether `e <= 0` follows from the ranges of variables and from the facts."""
    if index.bounds(e)[1] <= 0:
        return True
    if not depth:
        return False
    found = []
    for weaker in itertools.chain(_eliminated(e, facts), _relaxed(e, facts)):
        if index.bounds(weaker)[1] <= 0:
            return True
        found.append(weaker)
    return depth > 1 and any(never_positive(weaker, facts, depth - 1) for weaker in found)


def _relaxed(e: Expr, facts: Facts) -> Iterator[Expr]:
    """Expressions that are never less than `e`, one of its terms made simpler."""
    exact = tuple(_undivided(e))
    yield from exact
    terms, _ = index.affine(e)
    for atom, k in terms.items():
        if not isinstance(atom, Apply):
            continue
        rest = index.subtract(e, index.multiply(atom, k))
        if (atom.op == "min" and k > 0) or (atom.op == "max" and k < 0):
            for part in atom.args:
                yield index.add(rest, index.multiply(part, k))
        elif atom.op == "floordiv":
            x, c = atom.args[0], atom.args[1].value
            if not exact and k % c == 0:
                # x - c + 1 <= c * (x // c) <= x
                least = index.constant(0 if k > 0 else 1 - c)
                yield index.add(rest, index.multiply(index.add(x, least), k // c))
            yield from _limited(rest, k, atom, x, c, facts)
        elif atom.op == "floormod" and _is_quotient(atom.args[0]):
            # (x // c) % n == x % (c * n) // c
            x, c = atom.args[0].args[0], atom.args[0].args[1].value
            whole = index.floormod(x, c * atom.args[1].value)
            yield from _limited(rest, k, atom, whole, c, facts)


def _is_quotient(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op == "floordiv"


def _limited(rest: Expr, k: int, atom: Expr, x: Expr, c: int, facts: Facts) -> Iterator[Expr]:
    """`rest + k * atom` for an atom that is x // c: that is at most n // c where x <= n."""
    sign = 1 if k > 0 else -1
    limit = sign * _most(index.multiply(x, sign), facts) // c
    if k * limit < max(k * bound for bound in index.bounds(atom)):
        yield index.add(rest, k * limit)


def _undivided(e: Expr) -> Iterator[Expr]:
    """Expressions that are not positive just where `e` is not, without one of its divisions."""
    terms, offset = index.affine(e)
    for atom, k in terms.items():
        if not isinstance(atom, Apply) or atom.op != "floordiv":
            continue
        x, c = atom.args[0], atom.args[1].value
        others = {a: n for a, n in terms.items() if a is not atom}
        if all(n % k == 0 for n in (*others.values(), offset)):
            # k * (x // c + rest) <= 0, and x // c + rest == (x + c * rest) // c
            apart = index.from_affine({a: n // k for a, n in others.items()}, offset // k)
            whole = index.add(x, index.multiply(apart, c))
            yield (below(whole, index.constant(c)) if k > 0 else index.subtract(0, whole))
        elif not others:
            # k * (x // c) + offset <= 0  <=>  x < c * (-offset // k + 1), or for k < 0
            # x >= c * (offset / -k rounded up)
            yield (
                below(x, index.constant(c * (-offset // k + 1)))
                if k > 0
                else index.subtract(c * -(offset // k), x)
            )


def _tight(fact: Expr) -> Expr:
    """What says the same of integers in smaller numbers: `i <= 2` for `3 * i <= 8`."""
    terms, offset = index.affine(fact)
    common = math.gcd(*terms.values())
    if common < 2:
        return fact
    return index.from_affine({a: k // common for a, k in terms.items()}, -(-offset // common))


def _eliminated(e: Expr, facts: Facts) -> Iterator[Expr]:
    """`e - c * f` for facts f and c > 0, which is never less than `e`, with a term less; or where
    `e` has one term, of which f has a multiple, `c * e - (c - 1) - f`: no multiple of c is between
    it and 0.

        i <= 3   where   7 * i + j <= 21 and j >= 0
    """
    terms, _ = index.affine(e)
    for fact in facts:
        yield from _less(e, fact)
        known, _ = index.affine(fact)
        if len(terms) == 1:
            ((atom, k),) = terms.items()
            times, rest = divmod(known.get(atom, 0), k)
            if times > 1 and not rest:
                scaled = index.multiply(e, times)
                yield index.subtract(index.subtract(scaled, times - 1), fact)


def _less(e: Expr, fact: Expr) -> Iterator[Expr]:
    """`e - c * fact` for c > 0, which is never less than `e`, with a term less."""
    terms, _ = index.affine(e)
    known, _ = index.affine(fact)
    shared = {
        terms[a] // k for a, k in known.items() if terms.get(a, 0) * k > 0 and terms[a] % k == 0
    }
    for factor in shared if terms else (1,):
        yield index.subtract(e, index.multiply(fact, factor))


def _most(e: Expr, facts: Facts) -> int:
    """What `e` is at most by its range or one of the facts."""
    return min(
        index.bounds(weaker)[1]
        for weaker in (e, *(less for fact in facts for less in _less(e, fact)))
    )


def impossible(facts: Facts) -> bool:
    """Whether the facts contradict each other, so that the point is never reached."""
    return never_positive(index.constant(1), facts)


def within(i: Expr, extent: int, facts: Facts) -> bool:
    """Whether `0 <= i < extent` is certain."""
    return _within(i, extent, related(i, facts))


def related(e: Expr, facts: Facts) -> Facts:
    """The facts that have to do with the variables of `e`, directly or through others, and those
    about what depends on none."""
    known, left = e.free, [f for f in facts if f.free]
    while near := [f for f in left if not f.free.isdisjoint(known)]:
        known = known.union(*(f.free for f in near))
        left = [f for f in left if f not in near]
    return tuple(f for f in facts if f not in left) if left else facts


# Tensor programs ask it before they are scheduled, and loops for each statement that is written
# out: expressions are interned, so the same question is seen to be the same.
@functools.lru_cache(maxsize=1 << 12)
def _within(i: Expr, extent: int, facts: Facts) -> bool:
    return never_positive(index.subtract(0, i), facts) and never_positive(
        below(i, index.constant(extent)), facts
    )


def resolved(e: Expr, facts: Facts) -> Expr:
    """`e` without minima and maxima of which the facts tell which side it is."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Apply) or node.op not in ("min", "max") or node.dtype is not INDEX:
            return None
        x, y = node.args
        difference = index.subtract(x, y) if node.op == "min" else index.subtract(y, x)
        if never_positive(difference, facts):
            return x
        opposite = index.subtract(0, difference)
        return y if never_positive(opposite, facts) else None

    return build.transform(e, rule)
