"""Building expressions: constants, applications with simplification, substitution."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var
from hlo_mlc.expr.dtypes import BOOL, INDEX, DType
from hlo_mlc.expr.ops import OPS, compute, result_type
from hlo_mlc.expr.rules import simplify

TRUE = Const(True, BOOL)
FALSE = Const(False, BOOL)


def const(value: int | float | bool, dtype: DType) -> Const:
    """A literal, wrapped or rounded to `dtype`."""
    if dtype is INDEX:
        return Const(int(value), INDEX)
    if dtype.is_integer:
        mask = (1 << dtype.bits) - 1
        raw = int(value) & mask
        return Const(
            raw - (mask + 1) if dtype.is_signed and raw >> (dtype.bits - 1) else raw, dtype
        )
    with np.errstate(all="ignore"):
        rounded = np.asarray(value).astype(dtype.numpy)
    if dtype is BOOL:
        return Const(bool(rounded), dtype)
    as_float = float(rounded)
    return Const(math.nan if math.isnan(as_float) else as_float, dtype)


def variable(name: str, extent: int) -> Var:
    """An index variable over [0, extent)."""
    return Var(name, INDEX, extent)


def apply(op: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """`op(args)`, simplified; `dtype` is needed for convert and bitcast only."""
    result = dtype or result_type(op, tuple(a.dtype for a in args))
    if args[0].dtype is INDEX and (simple := _index(op, args)) is not None:
        return simple
    if (
        isinstance(args[0], Const)
        and all([isinstance(a, Const) for a in args])
        and (folded := _folded(op, args, result))
    ):
        return folded
    if OPS[op].commutative and isinstance(args[0], Const) and not isinstance(args[1], Const):
        args = (args[1], args[0])
    simple = simplify(op, args, result)
    if isinstance(simple, Expr):
        return simple
    op, args = simple
    return Apply(op, args, result)


def literals(*operands: Expr | float) -> list[Expr]:
    """The operands, of which numbers become literals of the first expression's type."""
    dtype = next(x.dtype for x in operands if isinstance(x, Expr))
    return [x if isinstance(x, Expr) else const(x, dtype) for x in operands]


def compare(relation: str, x: Expr | float, y: Expr | float) -> Expr:
    """relation: eq, ne, lt, le, gt, ge; false where an operand is NaN, but `ne`."""
    return apply(relation, *literals(x, y))


def select(condition: Expr, on_true: Expr | float, on_false: Expr | float) -> Expr:
    return apply("select", condition, *literals(on_true, on_false))


def convert(x: Expr, dtype: DType) -> Expr:
    return apply("convert", x, dtype=dtype)


def operation(op: str, *operands: Expr | float) -> Expr:
    """What an operator of expressions builds; of integers with a sign, `>>` keeps that."""
    first = operands[0] if isinstance(operands[0], Expr) else operands[1]
    if first.dtype is INDEX and op in _OF_INDICES:
        return _OF_INDICES[op](*operands)  # which remembers what was computed lately
    if op == "shr":
        op = "shr_arithmetic" if first.dtype.is_signed else "shr_logical"
    return apply(op, *literals(*operands))


Expr.operation = operation


def _folded(op: str, args: tuple[Const, ...], dtype: DType) -> Const | None:
    values = [np.asarray(a.value).astype(a.dtype.numpy) for a in args]
    result = const(compute(op, values, dtype).item(), dtype)
    # A NaN's sign and payload are visible through bitcast only; leave those to run time.
    hides_bits = op == "bitcast" and any(
        v.dtype.is_float and math.isnan(v.value) for v in (*args, result)
    )
    return None if hides_bits else result


_OF_INDICES = {
    "add": index.add,
    "sub": index.subtract,
    "mul": index.multiply,
    "floordiv": index.floordiv,
    "floormod": index.floormod,
    "min": index.minimum,
    "max": index.maximum,
    "neg": functools.partial(index.subtract, 0),
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _index(op: str, args: tuple[Expr, ...]) -> Expr | None:
    if op in _COMPARISONS:
        return index.compare(op, *args)
    if op in ("floordiv", "floormod"):
        return _OF_INDICES[op](args[0], args[1].value)
    return _OF_INDICES[op](*args) if op in _OF_INDICES else None


def load(
    source: Buffer,
    indices: tuple[Expr, ...],
    guard: Expr | None = None,
    default: Expr | None = None,
) -> Expr:
    """`source[indices] if guard else default`; a constant guard disappears, and of an array without
    elements the default is all there is."""
    if guard is TRUE:
        guard = default = None
    if guard is FALSE or (guard is not None and 0 in source.shape):
        return default
    return Load(source, indices, guard, default)


def all_of(*conditions: Expr) -> Expr:
    """Conjunction of any number of conditions."""
    result: Expr = TRUE
    for condition in conditions:
        if condition is FALSE:
            return FALSE
        if condition is not TRUE:
            result = condition if result is TRUE else apply("and", result, condition)
    return result


def as_index(e: Expr) -> Expr:
    """An integer value as an index."""
    return e if e.dtype is INDEX else apply("convert", e, dtype=INDEX)


def rebuild(node: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`node` with other children, simplified again."""
    if parts == node.children:
        return node
    if isinstance(node, Load):
        rank = len(node.indices)
        guarded = node.guard is not None
        return load(node.source, parts[:rank], *(parts[rank:] if guarded else ()))
    return apply(node.op, *parts, dtype=node.dtype)


def transform(
    root: Expr,
    rule: Callable[[Expr], Expr | None],
    memo: dict[Expr, Expr] | None = None,
    into: Callable[[Expr], bool] | None = None,
) -> Expr:
    """Rewrite bottom-up: `rule(node with new children)` gives a replacement or None.

    Operands that `into` refuses stay as they are.  Pass one `memo` to several calls with the same
    rule to share the work between roots.
    """
    done = {} if memo is None else memo
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        parts = node.children
        pending = [p for p in parts if p not in done and (into is None or into(p))]
        if pending:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        new = rebuild(node, tuple([done.get(p, p) for p in parts])) if parts else node
        replacement = rule(new)
        done[node] = new if replacement is None else replacement
    return done[root]


def substitute(
    root: Expr, mapping: Mapping[Var, Expr], memo: dict[Expr, Expr] | None = None
) -> Expr:
    """Replace variables; subtrees without them are left as they are."""
    done: dict[Expr, Expr] = {} if memo is None else memo
    done.update(mapping)
    return replaced(root, frozenset(mapping), done)


# Functions call themselves so deep; what is below, a loop with a stack of its own takes.
_DEEP = 32


def replaced(node: Expr, variables: frozenset[Var], done: dict[Expr, Expr], depth: int = 0) -> Expr:
    """The same, `done` being what has become of expressions, of the variables at least."""
    known = done.get(node)
    if known is not None:
        return known
    if node.free.isdisjoint(variables):
        return node
    if depth > _DEEP:
        return _replaced_deep(node, variables, done)
    depth += 1
    parts = children = node.children
    # A sum is added up once, not term by term.
    if node.dtype is INDEX and (parts := index.atoms(node)) is not children:
        new = index.with_atoms(node, {p: replaced(p, variables, done, depth) for p in parts})
    else:
        new = rebuild(node, tuple([replaced(p, variables, done, depth) for p in parts]))
    done[node] = new
    return new


def _replaced_deep(root: Expr, variables: frozenset[Var], done: dict[Expr, Expr]) -> Expr:
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        parts = index.atoms(node) if node.dtype is INDEX else node.children
        pending = [p for p in parts if p not in done and not p.free.isdisjoint(variables)]
        if pending:
            pending.reverse()
            stack += pending
            continue
        stack.pop()
        if parts is node.children:
            done[node] = rebuild(node, tuple([done.get(p, p) for p in parts]))
        else:
            done[node] = index.with_atoms(node, done)
    return done[root]
