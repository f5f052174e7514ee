"""Accesses that could not be proved to stay within their buffers: they are guarded at run time."""

from __future__ import annotations

from collections.abc import Set

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, loads
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.loops.core import Accumulate, LoopProgram, Stmt, Store
from hlo_mlc.loops.rewrite import Body, guarded, map_expressions, transform, with_body

Place = tuple[Buffer, tuple[Expr, ...]]


def with_guards(program: LoopProgram, places: Set[Place]) -> LoopProgram:
    """`program` with a guard at every access to one of the `places`: what lies outside of the
    buffer is read as zero, and not written.

        y[i + k] = x[j]  ->  y[i + k] = (x[j] if 0 <= j < n else 0) where 0 <= i + k < m
    """
    memo: dict[Expr, Expr] = {}
    wanted = {build.load(*place) for place in places}

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or build.load(node.source, node.indices) not in wanted:
            return None
        inside = _inside(node.source, node.indices)
        if node.guard is None:
            return build.load(node.source, node.indices, inside, _zero(node.source))
        return build.load(
            node.source, node.indices, build.apply("and", node.guard, inside), node.default
        )

    def write(stmt: Stmt) -> Body | None:
        for buffer in stmt.buffers if isinstance(stmt, Store | Accumulate) else ():
            if (buffer, stmt.indices) in places:
                stmt = guarded(stmt, _inside(buffer, stmt.indices))
                return () if stmt is None else (stmt,)
        return None

    def rule(e: Expr) -> Expr:
        return build.transform(e, read, memo) if loads(e) else e

    return with_body(program, map_expressions(transform(program.body, write), rule))


def _inside(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """Whether an element is in its buffer."""
    return build.all_of(
        *(
            build.apply(comparison, i, index.constant(limit))
            for i, extent in zip(indices, buffer.shape, strict=True)
            for comparison, limit in (("ge", 0), ("lt", extent))
        )
    )


def _zero(buffer: Buffer) -> Expr:
    dtype = buffer.dtype
    if dtype is BOOL:
        return build.FALSE
    return build.const(0.0 if dtype.is_float else 0, dtype)
