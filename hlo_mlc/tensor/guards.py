"""Guards: what they ask for, when they hold for a whole block, and what remains where they do."""

from __future__ import annotations

from collections.abc import Iterable, Set

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, all_of, load, transform
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BOOL, INDEX
from hlo_mlc.expr.facts import Facts, of_condition

_BELOW, _ABOVE = ("lt", "le"), ("gt", "ge")


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions of which `condition` is the conjunction, each once."""
    found: dict[Expr, None] = {}
    stack = [condition]
    while stack:
        part = stack.pop()
        if isinstance(part, Apply) and part.op == "and" and part.dtype is BOOL:
            stack.extend(reversed(part.args))
        elif part is not TRUE:
            found.setdefault(part)
    return tuple(found)


def guards(root: Expr) -> tuple[Expr, ...]:
    """The distinct guards of the loads in `root`."""
    return tuple(dict.fromkeys(one.guard for one in loads(root) if one.guard is not None))


def everywhere(conditions: Iterable[Expr], axes: Set[Var]) -> Expr | None:
    """A condition without `axes` under which all `conditions` hold at all their points.

        everywhere((8 * t + i - 1 >= 0,), {i < 8})   =   8 * t - 1 >= 0

    None where a condition is no comparison of sums in which each axis has its own term.
    """
    found = []
    for condition in conditions:
        if not condition.free.isdisjoint(axes):
            condition = _at_worst(condition, axes)
            if condition is None:
                return None
        found.append(condition)
    return all_of(*dict.fromkeys(found))


def _at_worst(condition: Expr, axes: Set[Var]) -> Expr | None:
    if (
        not isinstance(condition, Apply)
        or condition.op not in (*_BELOW, *_ABOVE)
        or condition.args[0].dtype is not INDEX
    ):
        return None
    terms, offset = index.affine(index.subtract(*condition.args))
    rest = {}
    for atom, factor in terms.items():
        if atom in axes:
            if (factor > 0) == (condition.op in _BELOW):
                offset += factor * (atom.extent - 1)
        elif atom.free.isdisjoint(axes):
            rest[atom] = factor
        else:
            return None
    return index.compare(condition.op, index.from_affine(rest, offset), 0)


def where_true(root: Expr, facts: Set[Expr]) -> Expr:
    """The expression, simplified under the assumption that these conjuncts of its guards and
    selections hold."""

    def left_of(condition: Expr) -> Expr:
        return all_of(*(c for c in conjuncts(condition) if c not in facts))

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.guard is not None:
            return load(node.source, node.indices, left_of(node.guard), node.default)
        if isinstance(node, Apply) and node.op == "select" and left_of(node.args[0]) is TRUE:
            return node.args[1]
        return None

    return transform(root, rule)


def where_guarded(i: Expr, conditions: Iterable[Expr]) -> tuple[Expr, Facts]:
    """An index where all conditions hold, and what follows from them: what is read or selected
    under some of them only is the same there as without, in the conditions as well.

    An index that was looked up is compared as it is, and read again under the comparison:

        max(k[i] if k[i] - 3 >= 0 else 0, 0) - 3  where  max(k[i], 0) - 3 >= 0
    """
    known = dict.fromkeys(part for condition in conditions for part in conjuncts(condition))
    known |= dict.fromkeys([where_true(part, known.keys()) for part in known])
    facts = tuple(fact for part in known for fact in of_condition(part))
    return where_true(i, known.keys()), facts


def vanishes_outside(term: Expr, combiner: str, identity: Const) -> bool:
    """Whether `term` is neutral where its guard fails, there being only one.

    A product with zero counts as zero, though the other factor may be NaN or infinite: what lies in
    the padding of a convolution is left out, as XLA's own loops leave it out and its library does
    not.
    """
    asked = guards(term)
    if len(asked) != 1:
        return False
    (condition,) = asked

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.guard is condition:
            return node.default
        if isinstance(node, Apply) and node.op == "select" and node.args[0] is condition:
            return node.args[2]
        return None

    outside = transform(term, rule)
    if combiner == "add" and isinstance(outside, Apply) and outside.op == "mul":
        return any(isinstance(a, Const) and a.value == 0 for a in outside.args)
    return outside is identity or (
        combiner == "add" and isinstance(outside, Const) and outside.value == 0
    )
