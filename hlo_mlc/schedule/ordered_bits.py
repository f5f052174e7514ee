"""The largest or smallest of bf16 or f16 is looked for among integers in the same order.

    alloc m: bf16 register:           alloc m: i16 register:
      m[] = -inf                        m[] = order(-inf)
      for i: m[] <- max x[i]     ->     for i: m[] <- max order(x[i])
      r[] = m[]                         r[] = bf16(m[])

In f32, where they are computed else, a maximum is rounded every time, and AVX2 takes five
instructions to say what is NaN and the larger zero, 15 in all.  Of integers it is one, with four
for their order.
"""

from __future__ import annotations

from hlo_mlc.expr.build import apply, const, load, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, loads
from hlo_mlc.expr.dtypes import BF16, F16, I16, DType
from hlo_mlc.loops.core import Accumulate, Allocate, Call, Stmt, Store, walk
from hlo_mlc.loops.rewrite import Body, map_expressions
from hlo_mlc.loops.rewrite import transform as rewritten
from hlo_mlc.ops.bits import total_order_key
from hlo_mlc.tensor.combine import named_combiner

# What each combiner adds to the key of a total order, in which NaNs are the first and the last
# numbers: so many as there are of one sign come from one end to the other, where they win.  Nobody
# sees what `larger` makes of them (tensor/strictness.py).
OF_ONE_SIGN = {BF16: 0x7F, F16: 0x3FF}
TURNS = {"max": -1, "min": 1, "larger": 0}


def by_ordered_bits(statements: Body) -> Body:
    """The statements, with integers for private bf16 and f16 that nothing but one such combiner
    updates."""
    kept = _updated(statements)
    if not kept:
        return statements
    codes: dict[tuple[Expr, str], Expr] = {}  # that numbers are made of
    known: dict[Expr, Expr] = {}

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source not in kept:
            return None
        op = kept[node.source]
        default = None if node.default is None else _code(node.default, op)
        code = load(_integers(node.source), node.indices, node.guard, default)
        number = _number(code, op, node.dtype)
        codes[number, op] = code
        return number

    def rule(e: Expr) -> Expr:
        return transform(e, read, known) if any(x.source in kept for x in loads(e)) else e

    def visit(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Allocate) and stmt.buffer in kept:
            return (Allocate(_integers(stmt.buffer), rewritten(stmt.body, visit)),)
        if not isinstance(stmt, Store | Accumulate) or stmt.buffers[0] not in kept:
            return None
        (buffer,), (term,) = stmt.buffers, stmt.terms
        op, into = kept[buffer], _integers(buffer)
        code = codes.get((term, op)) or _code(term, op)
        if isinstance(stmt, Store):
            return (Store(into, stmt.indices, code, stmt.guard),)
        combiner = named_combiner("min" if op == "min" else "max", I16)
        return (Accumulate((into,), stmt.indices, combiner, (code,), stmt.guard),)

    return rewritten(map_expressions(statements, rule), visit)


def _updated(statements: Body) -> dict[Buffer, str]:
    """The buffers, and what updates each."""
    every = [*walk(statements)]
    found: dict[Buffer, set[str]] = {
        s.buffer: set() for s in every if isinstance(s, Allocate) and s.buffer.dtype in OF_ONE_SIGN
    }
    for stmt in every if found else ():
        if isinstance(stmt, Accumulate):
            name = stmt.combiner.name if not stmt.atomic else ""
            for buffer in found.keys() & set(stmt.buffers):
                found[buffer].add(name)
        for buffer in stmt.buffers if isinstance(stmt, Call) else ():
            found.pop(buffer, None)
    return {b: op for b, ops in found.items() if len(ops) == 1 for op in ops if op in TURNS}


def _integers(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, I16, buffer.shape, buffer.scope)


def _code(x: Expr, op: str) -> Expr:
    """An integer for a number, in the order that it has for a combiner."""
    return total_order_key(x) + const(TURNS[op] * OF_ONE_SIGN[x.dtype], I16)


def _number(code: Expr, op: str, dtype: DType) -> Expr:
    """The number of an integer: twice the key of a total order is the bits again."""
    key = code - const(TURNS[op] * OF_ONE_SIGN[dtype], I16)
    return apply("bitcast", total_order_key(apply("bitcast", key, dtype=dtype)), dtype=dtype)
