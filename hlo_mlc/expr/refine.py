"""Forms that take fewer instructions and round less often: fused multiply-add, logistic.

These change last bits, for the better: each replaces several roundings by one op that rounds
(almost) once.  It happens here, once for each kernel, so that the interpreter and all targets
compute the same; nothing else in the compiler contracts or reassociates.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.expr.build import apply, rebuild
from hlo_mlc.expr.core import Apply, Const, Expr, children, walk


def refine(roots: Sequence[Expr]) -> list[Expr]:
    """The expressions in better forms, `roots` being all that is computed together.

        a * b + c                ->  fma(a, b, c)
        (tanh(x) + 1) * 0.5      ->  logistic(2 x)
        1 / (exp(-x) + 1)        ->  logistic(x)

    Only where nothing else uses the inner values, and only in f32 and f64: narrower floats are
    rounded after every op.
    """
    uses: dict[Expr, int] = {}
    for node in walk(*roots):
        for part in children(node):
            uses[part] = uses.get(part, 0) + 1
    for root in roots:
        uses[root] = uses.get(root, 0) + 1
    new: dict[Expr, Expr] = {}
    for node in walk(*roots):
        better = None
        if isinstance(node, Apply) and node.dtype.is_float and not node.dtype.is_narrow_float:
            better = _better(node, uses, new)
        new[node] = better or rebuild(node, tuple(new[part] for part in children(node)))
    return [new[root] for root in roots]


def _better(node: Apply, uses: dict[Expr, int], new: dict[Expr, Expr]) -> Expr | None:
    def alone(e: Expr, op: str) -> bool:
        return isinstance(e, Apply) and e.op == op and uses[e] == 1

    if node.op in ("add", "sub"):
        x, y = node.args
        negate = node.op == "sub"
        if alone(x, "mul"):
            addend = apply("neg", new[y]) if negate else new[y]
            return apply("fma", new[x.args[0]], new[x.args[1]], addend)
        if alone(y, "mul"):
            factor = new[y.args[0]]
            return apply("fma", apply("neg", factor) if negate else factor, new[y.args[1]], new[x])
    elif node.op == "mul":
        x, half = node.args
        if _is(half, 0.5) and alone(x, "add") and _is(x.args[1], 1.0) and alone(x.args[0], "tanh"):
            argument = new[x.args[0].args[0]]
            return apply("logistic", apply("add", argument, argument))
    elif node.op == "div":
        one, y = node.args
        if _is(one, 1.0) and alone(y, "add") and _is(y.args[1], 1.0) and alone(y.args[0], "exp") \
                and alone(y.args[0].args[0], "neg"):
            return apply("logistic", new[y.args[0].args[0].args[0]])
    return None


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value
