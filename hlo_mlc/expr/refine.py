"""Forms that take fewer instructions and round less often: fused multiply-add, logistic.

These change last bits, for the better: each replaces several roundings by one op that rounds
(almost) once.  It happens here, once for each kernel, so that the interpreter and all targets
compute the same; nothing else in the compiler contracts or reassociates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hlo_mlc.expr.build import apply, rebuild
from hlo_mlc.expr.core import Apply, Const, Expr, Var, uses_of, walk

# Of one divisor, for which its reciprocal is not worth computing.
FEW_QUOTIENTS = 16


def refine(roots: Sequence[Expr], inner: Sequence[Var] = (), nested: bool = False) -> list[Expr]:
    """The expressions in better forms, `roots` being all that is computed together.

        a * b + c                ->  fma(a, b, c)
        (tanh(x) + 1) * 0.5      ->  logistic(2 x)
        1 / (exp(-x) + 1)        ->  logistic(x)
        erf(x) + 1 if |x| < c else 2 - erfc(|x|) if x > 0 else erfc(|x|)  ->  erfc(-x)
        a[i, j] / b[i]           ->  div_common(a[i, j], b[i]), where j is one of `inner`

    Only where nothing else uses the inner values, and only in f32 and f64: narrower floats are
    rounded after every op.  `inner` are the variables of the innermost loops; if they are `nested`,
    each loop runs inside of those before it, for which nothing of its own is kept.
    """
    order = list(walk(*roots))
    uses = uses_of(roots, order)
    new: dict[Expr, Expr] = {}
    for node in order:
        better = None
        if isinstance(node, Apply) and node.dtype.is_float and not node.dtype.is_narrow_float:
            better = _better(node, uses, new) or _with_common_divisor(node, inner, nested, new)
        new[node] = better or rebuild(node, tuple([new[part] for part in node.children]))
    return [new[root] for root in roots]


def _better(node: Apply, uses: Counter[Expr], new: dict[Expr, Expr]) -> Expr | None:
    def alone(e: Expr, op: str) -> bool:
        return isinstance(e, Apply) and e.op == op and uses[e] == 1

    if node.op in ("add", "sub"):
        x, y = node.args
        negate = node.op == "sub"
        if alone(x, "mul"):
            addend = -new[y] if negate else new[y]
            return apply("fma", new[x.args[0]], new[x.args[1]], addend)
        if alone(y, "mul"):
            factor = new[y.args[0]]
            return apply("fma", -factor if negate else factor, new[y.args[1]], new[x])
    elif node.op == "mul":
        x, half = node.args
        if _is(half, 0.5) and alone(x, "add") and _is(x.args[1], 1.0) and alone(x.args[0], "tanh"):
            argument = new[x.args[0].args[0]]
            return apply("logistic", argument + argument)
    elif node.op == "div":
        one, y = node.args
        if (
            _is(one, 1.0)
            and alone(y, "add")
            and _is(y.args[1], 1.0)
            and alone(y.args[0], "exp")
            and alone(y.args[0].args[0], "neg")
        ):
            return apply("logistic", new[y.args[0].args[0].args[0]])
    elif node.op == "select" and (found := _complement(node)) is not None:
        x, negated = found
        return apply("erfc", -new[x] if negated else new[x])
    return None


def _complement(node: Apply) -> tuple[Expr, bool] | None:
    """(x, whether it is negated) where a select between erf and erfc is no more than erfc(±x).

    Source: jax.scipy.special.ndtr, the normal distribution; our erfc is accurate everywhere.
    """
    match node.args:
        case (
            Apply(op="lt", args=(Apply(op="abs", args=(x,)), Const())),
            Apply(op="add" | "sub" as near_op, args=near),
            Apply(
                op="select",
                args=(
                    Apply(op="gt", args=(positive, zero)),
                    Apply(op="sub", args=(two, tail)),
                    other,
                ),
            ),
        ):
            negated = near_op == "add"
            erf, one = near if negated else near[::-1]
            if (
                _is(zero, 0.0)
                and _is(one, 1.0)
                and _is(two, 2.0)
                and tail is other
                and tail is apply("erfc", apply("abs", x))
                and erf is apply("erf", x)
                and positive is (x if negated else -x)
            ):
                return x, negated
    return None


def _with_common_divisor(
    node: Apply, inner: Sequence[Var], nested: bool, new: dict[Expr, Expr]
) -> Expr | None:
    if node.op != "div":
        return None
    x, y = node.args
    if not any(
        v in x.free
        and v not in y.free
        and v.extent >= FEW_QUOTIENTS
        and (not nested or y.free.isdisjoint(inner[place + 1 :]))
        for place, v in enumerate(inner)
    ):
        return None
    return apply("div_common", new[x], new[y])


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value
