"""Faults planted in loop programs: each mutator yields programs that differ in one place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Expr, Load, Var, loads
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.rewrite import (
    Body,
    constant_extent,
    expressions,
    map_expressions,
    substitute,
    transform,
    transform_lists,
    with_body,
)

Mutants = Iterator[LoopProgram]


def _replacing(program: LoopProgram, old: Stmt, new: Body) -> LoopProgram:
    return with_body(program, transform(program.body, lambda s: new if s is old else None))


def _with_extent(loop: For, extent: Expr, most: int) -> For:
    """The loop with another extent, and a variable that says so."""
    var = Var(loop.var.name, loop.var.dtype, most)
    return For(var, extent, loop.kind, substitute(loop.body, {loop.var: var}))


def _resized(program: LoopProgram, by: int, vectors: bool) -> Mutants:
    for stmt in walk(program.body):
        if isinstance(stmt, For) and (stmt.kind is LoopKind.VECTORIZE) == vectors:
            size = constant_extent(stmt)
            if size is not None and size + by > 0:
                yield _replacing(
                    program, stmt, (_with_extent(stmt, index.constant(size + by), size + by),)
                )


def one_more(program: LoopProgram) -> Mutants:
    """A loop with an iteration too many."""
    return _resized(program, 1, vectors=False)


def one_less(program: LoopProgram) -> Mutants:
    """A loop without its last iteration."""
    return _resized(program, -1, vectors=False)


def lane_too_many(program: LoopProgram) -> Mutants:
    """A vector with a lane too many."""
    return _resized(program, 1, vectors=True)


def task_boundary(program: LoopProgram) -> Mutants:
    """A loop whose last iterations are as many as those of others."""
    for stmt in walk(program.body):
        if isinstance(stmt, For) and isinstance(stmt.extent, Apply) and stmt.var.extent:
            yield _replacing(
                program,
                stmt,
                (For(stmt.var, index.constant(stmt.var.extent), stmt.kind, stmt.body),),
            )


def lost_guard(program: LoopProgram) -> Mutants:
    """A store, load or branch without its condition."""
    for stmt in walk(program.body):
        if isinstance(stmt, Store | Accumulate) and stmt.guard is not None:
            values = (stmt.value,) if isinstance(stmt, Store) else (stmt.combiner, stmt.terms)
            buffers = stmt.buffer if isinstance(stmt, Store) else stmt.buffers
            yield _replacing(program, stmt, (type(stmt)(buffers, stmt.indices, *values),))
        if isinstance(stmt, If):
            yield _replacing(program, stmt, stmt.then)
    guarded = {
        node
        for stmt in walk(program.body)
        for e in expressions(stmt)
        for node in loads(e)
        if node.guard is not None
    }
    for wanted in sorted(guarded, key=str):
        yield with_body(
            program, map_expressions(program.body, lambda e, wanted=wanted: _unguarded(e, wanted))
        )


def _unguarded(e: Expr, wanted: Load) -> Expr:
    def rule(node: Expr) -> Expr | None:
        return Load(node.source, node.indices) if node is wanted else None

    return build.transform(e, rule)


def index_swapped(program: LoopProgram) -> Mutants:
    """A store whose last two indices have changed places."""
    yield from _moved(program, lambda at: (*at[:-2], at[-1], at[-2]), rank=2)


def index_shifted(program: LoopProgram) -> Mutants:
    """A store one element further."""
    yield from _moved(program, lambda at: (*at[:-1], index.add(at[-1], index.constant(1))), rank=1)


def _moved(
    program: LoopProgram, move: Callable[[tuple[Expr, ...]], tuple[Expr, ...]], rank: int
) -> Mutants:
    for stmt in walk(program.body):
        if (
            isinstance(stmt, Store)
            and len(stmt.indices) >= rank
            and move(stmt.indices) != stmt.indices
        ):
            yield _replacing(
                program,
                stmt,
                (Store(stmt.buffer, move(stmt.indices), stmt.value, stmt.guard, stmt.streaming),),
            )


def tile_twice(program: LoopProgram) -> Mutants:
    """A loop that repeats its last iteration."""
    for stmt in walk(program.body):
        if isinstance(stmt, For) and stmt.kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
            size = constant_extent(stmt)
            if size is None or size < 2:
                continue
            var = Var(stmt.var.name, stmt.var.dtype, size + 1)
            last = index.minimum(var, index.constant(size - 1))
            yield _replacing(
                program,
                stmt,
                (
                    For(
                        var,
                        index.constant(size + 1),
                        stmt.kind,
                        substitute(stmt.body, {stmt.var: last}),
                    ),
                ),
            )


def aliased(program: LoopProgram) -> Mutants:
    """A result in the memory of an operand."""
    for result in program.results:
        for operand in program.operands:
            same = (operand.shape, operand.dtype) == (result.shape, result.dtype)
            if same and (result, operand) not in program.aliases:
                yield replace(program, aliases=((result, operand),))


def overlapping_scratch(program: LoopProgram) -> Mutants:
    """Scratch that begins where other scratch does."""
    for n, (buffer, offset) in enumerate(program.scratch):
        for _, other in program.scratch[:n]:
            if other != offset:
                placed = (*program.scratch[:n], (buffer, other), *program.scratch[n + 1 :])
                yield replace(program, scratch=placed)


def no_barrier(program: LoopProgram) -> Mutants:
    """What threads do after a barrier, done before it."""
    pairs: list[tuple[Stmt, Stmt]] = []

    def note(body: Body) -> Body:
        pairs.extend(
            (a, b)
            for a, b in itertools.pairwise(body)
            if _threads(a) and [s.extent for s in _threads(a)] == [s.extent for s in _threads(b)]
        )
        return body

    transform_lists(program.body, note)
    for first, second in pairs:

        def merge(body: Body, first: Stmt = first, second: Stmt = second) -> Body:
            if first not in body or second not in body:
                return body
            at = body.index(first)
            return (*body[:at], *_together(_threads(first), _threads(second)), *body[at + 2 :])

        yield with_body(program, transform_lists(program.body, merge))


def _together(first: list[For], second: list[For]) -> Body:
    """One nest of threads that does what two of the same extents do."""
    names = {other.var: own.var for own, other in zip(first, second, strict=True)}
    body = (*first[-1].body, *substitute(second[-1].body, names))
    for stmt in reversed(first):
        body = (For(stmt.var, stmt.extent, stmt.kind, body),)
    return body


def _threads(stmt: Stmt) -> list[For]:
    """The loops over threads that are directly inside each other, from a statement on."""
    found: list[For] = []
    while isinstance(stmt, For) and stmt.kind is LoopKind.THREAD:
        found.append(stmt)
        stmt = stmt.body[0]
    return found


MUTATORS = (
    one_more,
    one_less,
    lane_too_many,
    task_boundary,
    lost_guard,
    index_swapped,
    index_shifted,
    tile_twice,
    aliased,
    overlapping_scratch,
    no_barrier,
)


@pytest.fixture(scope="session")
def mutators() -> tuple[Callable[[LoopProgram], Mutants], ...]:
    return MUTATORS
