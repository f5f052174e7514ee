"""Every rule for scalar expressions is proved on small types.

The rules come from the simplifier's own table.  `operands` has what an operand may be: variables,
constants, what one more op makes of a variable, counters.  Where a rule applies, the expression
before and after must be the same for all values of its variables, bit by bit but for NaNs.  What
kernels compute by formulas of ours is what these formulas give.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from hlo_mlc.codegen.legalize import Abilities, legalize
from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, variable
from hlo_mlc.expr.core import Apply, Const, Expr, Var, walk
from hlo_mlc.expr.dtypes import ALL, BOOL, F8E8M0FNU, INDEX, DType, Kind
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import OPS, Accuracy, compute
from hlo_mlc.expr.rules import RULES, Rule
from proving.inputs import grid_of, same_bits, values_of
from proving.reached import Reached

# Of those of more than 16 bits, the values are samples.
TYPES = [t for t in ALL if t.kind is not Kind.COMPLEX]
BITWISE = ("and", "or", "xor", "not")
INTEGERS_ONLY = ("shl", "shr_logical", "shr_arithmetic")
# What powers of two, which have neither zero nor sign, are computed with.
OF_POWERS = ("mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "select", "is_finite")
# (start, extent) of loop counters: within the range of a byte, and beyond either end.
COUNTERS = ((0, 1), (0, 5), (3, 120), (-4, 9), (0, 256), (0, 300), (-130, 7))
FORMULAS = (
    Abilities(),
    Abilities(has_fma=False),
    Abilities(has_ldexp=True, has_fast_division=True, has_pick=True),
)


def constants(dtype: DType) -> list[Const]:
    if dtype.bits <= 8:
        values = values_of(dtype).tolist()
    else:
        values = [0, 1, -1, 2, 7, dtype.bits - 1, dtype.bits]
        if dtype.is_float:
            values += [
                -0.0,
                0.3,
                *(s * 2.0**n for s in (1, -1) for n in range(-127, 128, 7)),
                *(2.0**n for n in (-14, -13, -12, 12, 13, 119, 120)),
                np.inf,
                -np.inf,
                np.nan,
            ]
    return list(dict.fromkeys(const(v, dtype) for v in values))


def has_meaning(op: str, dtype: DType) -> bool:
    """Whether an op is for numbers of this type."""
    if dtype is F8E8M0FNU:
        return op in OF_POWERS
    if op in BITWISE:
        return not dtype.is_float
    if op in INTEGERS_ONLY:
        return dtype.is_integer
    functions = OPS[op].accuracy is Accuracy.APPROXIMATE
    return dtype.is_float or not (functions or (dtype is BOOL and op in ("neg", "abs", "div")))


def varying(name: str, dtype: DType) -> list[Expr]:
    """A variable, and what an op of one operand makes of it."""
    x = Var(name, dtype)
    return [x, *(Apply(op, (x,), dtype) for op in ("neg", "abs", "not") if has_meaning(op, dtype))]


def counters(name: str, dtype: DType) -> list[Expr]:
    return (
        [
            Apply("convert", (index.add(variable(name, extent), index.constant(start)),), dtype)
            for start, extent in COUNTERS
        ]
        if dtype.is_integer
        else []
    )


def converted(op: str, dtype: DType) -> Iterator[Expr]:
    """What is converted, or has its bits taken for another type, to this type."""
    for source in (*TYPES, *((INDEX,) if op == "convert" else ())):
        if op == "convert" or source.bits == dtype.bits:
            if source is INDEX:
                yield from counters("i", dtype)
            else:
                yield Apply(op, (Var("x", source),), dtype)


def applications(op: str) -> Iterator[tuple[tuple[Expr, ...], DType]]:
    """Operands of an op, and the type of what it gives."""
    if op in ("convert", "bitcast"):
        for dtype in TYPES:
            for x in (Var("x", dtype), *converted(op, dtype)):
                for result in (*TYPES, *((INDEX,) if op == "convert" else ())):
                    if op == "convert" or result.bits == dtype.bits:
                        yield (x,), result
        return
    for dtype in TYPES:
        if not has_meaning(op, dtype):
            continue
        result = BOOL if OPS[op].result == "bool" else dtype
        if OPS[op].arity == 1:
            yield from (((x,), result) for x in varying("x", dtype))
            continue
        names = "xy" if dtype.bits <= 8 or dtype.bits > 16 else "x"
        pool = [e for name in names for e in varying(name, dtype)]
        numbers = constants(dtype)
        pairs = [
            *itertools.product(pool, repeat=2),
            *itertools.product(counters("i", dtype), counters("j", dtype)),
            *itertools.product([*pool, *counters("i", dtype)], numbers),
            *itertools.product(numbers, [*pool, *counters("i", dtype)]),
        ]
        if OPS[op].arity == 2:
            yield from ((pair, result) for pair in pairs)
            continue
        predicates = [*varying("p", BOOL), *constants(BOOL)]
        both = [*itertools.product(pool, repeat=2), *itertools.product(numbers[:4], repeat=2)]
        yield from (((p, *pair), result) for p in predicates for pair in both)


def value(e: Expr, env: Mapping[Var, np.ndarray], formulas: Abilities) -> np.ndarray:
    """What a kernel computes: functions by our formulas, all else as it is defined."""
    values: dict[Expr, np.ndarray] = {}
    for node in walk(e):
        if not isinstance(node, Apply):
            values[node] = evaluate(node, env)
            continue
        given = [values[a] for a in node.args]
        if OPS[node.op].accuracy is Accuracy.APPROXIMATE:
            names = [Var(f"a{k}", a.dtype) for k, a in enumerate(node.args)]
            formula = legalize(Apply(node.op, tuple(names), node.dtype), formulas)
            values[node] = evaluate(formula, dict(zip(names, given, strict=True)))
        else:
            values[node] = compute(node.op, given, node.dtype)
    return values[e]


def inputs(*roots: Expr) -> dict[Var, np.ndarray]:
    """All values of all variables together."""
    names = list(frozenset().union(*(e.free for e in roots)))
    choices = [np.arange(v.extent) if v.extent is not None else values_of(v.dtype) for v in names]
    return dict(zip(names, grid_of(choices), strict=True))


def proved(rule: Rule, op: str, formulas: Sequence[Abilities]) -> int:
    """How often the rule applies; none of it may change a result."""
    applied = 0
    for args, dtype in applications(op):
        if all(isinstance(a, Const) for a in args):
            continue  # folded before rules see it
        after = rule(args, dtype)
        if after is None:
            continue
        applied += 1
        before = Apply(op, args, dtype)
        assert after.dtype is dtype, (before, after)
        env = inputs(before, after)
        for formula in formulas:
            with np.errstate(all="ignore"):
                one, other = np.broadcast_arrays(
                    value(after, env, formula), value(before, env, formula)
                )
            assert same_bits(one, other), f"{before} -> {after}: {env}, {one}, not {other}"
    return applied


@pytest.mark.parametrize("op", RULES)
def test_a_rule_is_proved(op: str) -> None:
    rule = RULES[op]
    functions = OPS[op].accuracy is Accuracy.APPROXIMATE
    with Reached(rule) as reached:
        assert proved(rule, op, FORMULAS if functions else FORMULAS[:1])
    assert not reached.missing
