"""How arrays that become registers are used: what may be overwritten, what loops hand on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hlo_mlc.codegen.cpu.program import element_strides, is_unrolled
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.loops.core import (
    LEAVES,
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    Stmt,
    Store,
    While,
    bodies,
    walk,
)
from hlo_mlc.loops.rewrite import constant_extent, expressions

Statements = tuple[Stmt, ...]


class Use(NamedTuple):
    """An access to a buffer, with the vector loop that it is in; without indices, to all of it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    vector: For | None

    @property
    def is_vector(self) -> bool:
        """Whether the lanes are neighbours."""
        if self.vector is None or not self.indices:
            return False
        lane = self.vector.var
        return index.affine(self.indices[-1])[0].get(lane) == 1 and not any(
            [lane in row.free for row in self.indices[:-1]]
        )


def uses(statements: Statements) -> list[Use]:
    """Every access of the statements to a buffer of the function's own."""
    found: list[Use] = []
    _use(statements, None, found)
    return found


_OWN = ("register", "stack")


def _use(statements: Statements, vector: For | None, found: list[Use]) -> None:
    for stmt in statements:
        kind = type(stmt)
        if kind is Call:
            found += [Use(buffer, (), vector) for buffer in stmt.buffers]
        elif kind is Store or kind is Accumulate:
            found += [Use(b, stmt.indices, vector) for b in stmt.buffers if b.scope in _OWN]
        for one in expressions(stmt):
            found += [
                Use(x.source, x.indices, vector) for x in loads(one) if x.source.scope in _OWN
            ]
        if kind not in LEAVES:
            is_vector = kind is For and stmt.kind is LoopKind.VECTORIZE
            for body in bodies(stmt):
                _use(body, stmt if is_vector else vector, found)


@functools.lru_cache(maxsize=2)  # of buffers that begin to exist one after the other
def _by_buffer(statements: Statements) -> Mapping[Buffer, Sequence[Use]]:
    found: dict[Buffer, list[Use]] = {}
    for use in uses(statements):
        found.setdefault(use.buffer, []).append(use)
    return MappingProxyType(found)


def _within_allocations(statements: Statements) -> Statements:
    """All uses of the buffers that are allocated here."""
    while len(statements) == 1 and isinstance(statements[0], Allocate):
        statements = statements[0].body
    return statements


def has_spare_lanes(buffer: Buffer, statements: Statements) -> bool:
    """Whether vectors with fewer lanes than they have room for may be written as whole ones.

    They may if their rows have that room, and nobody reads or writes what lies there.
    """
    if not buffer.shape:
        return False
    spare: set[tuple[float, float]] = set()
    found = _by_buffer(_within_allocations(statements)).get(buffer, ())
    for use in found:
        if use.is_vector:
            live = constant_extent(use.vector)
            if live is None or use.vector.var.extent != live:
                return False
            width = 1 << (live - 1).bit_length()
            if live < width:
                low, high = index.bounds(use.indices[-1])
                spare.add((low + live, high - live + width))
        elif (
            use.vector is not None
            and any(use.vector.var in i.free for i in use.indices)
            and (buffer.scope == "register" or not _is_full(use.vector))
        ):
            return False
    if not spare:
        return True
    # What is written out has thousands of uses, at a few places along a row.
    reached = {index.bounds(use.indices[-1]) for use in found}
    row = element_strides(buffer)[-2] if len(buffer.shape) > 1 else buffer.shape[-1]
    return all(last < row for _, last in spare) and not any(
        low <= last and first <= high for first, last in spare for low, high in reached
    )


def _is_full(vector: For) -> bool:
    """Whether all lanes of a vector are on."""
    lanes = constant_extent(vector)
    return lanes is not None and lanes & (lanes - 1) == 0


def handed_on(statements: Statements) -> frozenset[Buffer]:
    """The register buffers of which a loop with this body uses the same elements each time.

    None where there are loops or conditions inside.
    """
    numbers: set[Var] = set()
    fixed: dict[Buffer, bool] = {}
    for stmt in walk(statements):
        if isinstance(stmt, If | While | Call):
            return frozenset()
        if isinstance(stmt, For):
            if stmt.kind is LoopKind.VECTORIZE or is_unrolled(stmt):
                numbers.add(stmt.var)
            else:
                return frozenset()
        elif isinstance(stmt, Store | Accumulate) and stmt.guard is not None:
            return frozenset()
        elif isinstance(stmt, Allocate):
            fixed[stmt.buffer] = False
    for use in uses(statements):
        if use.buffer.scope == "register" and fixed.setdefault(use.buffer, True):
            fixed[use.buffer] = all([i.free <= numbers for i in use.indices]) and (
                use.vector is None
                or use.is_vector
                or not any([use.vector.var in i.free for i in use.indices])
            )
    return frozenset(buffer for buffer, is_fixed in fixed.items() if is_fixed)
