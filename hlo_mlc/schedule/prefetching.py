"""Schedule primitives that ask for memory before it is needed: prefetch, prefetch_next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, Prefetch, Stmt, bodies
from hlo_mlc.loops.dependence import accesses
from hlo_mlc.loops.rewrite import Body, loads_of, paths, transform, with_bodies, with_body
from hlo_mlc.schedule.loops import most_iterations, refuse, require_loops
from hlo_mlc.schedule.tiles import Tile, tile_around
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.target.cpu import CACHE_LINE_BYTES


def prefetch(program: LoopProgram, name: str, at: str, ahead: int) -> LoopProgram:
    """Ask for what lies `ahead` elements behind, wherever vectors in a loop read a buffer.

        for i.v vectorize:                  for i.v vectorize:
          y[r, i.v] = x[r, i.v]     ->        prefetch x[r, i.v] + 1024
                                              y[r, i.v] = x[r, i.v]

    Apart from the distance this is Halide's prefetch. The vectors are those inside of the loop
    called `at` (in the picture r would do), or of what rewrites made of it (i); what all lanes read
    is not asked for, and what is read several times in unrolled loops is asked for in front of
    them, once.
    """
    found = 0

    def ask(stmt: Stmt) -> Body | None:
        nonlocal found
        if not isinstance(stmt, For) or stmt.kind not in (LoopKind.VECTORIZE, LoopKind.UNROLL):
            return None
        reads: dict[Load, list[For]] = {}
        for path in paths((stmt,)):
            around = [s for s in path if isinstance(s, For)]
            if bodies(path[-1]) or around[-1].kind is not LoopKind.VECTORIZE:
                continue
            for load in loads_of(path[-1]):
                where = frozenset().union(*(i.free for i in load.indices))
                if load.source.name == name and load.guard is None and around[-1].var in where:
                    reads[load] = [s for s in around if s.var in where]
        found += len(reads)
        if stmt.kind is LoopKind.VECTORIZE:
            asked = tuple(Prefetch(load.source, load.indices, ahead) for load in reads)
            return (with_bodies(stmt, ((*asked, *stmt.body),)),)
        return (
            *(
                s
                for load, around in reads.items()
                for s in _around(around, (Prefetch(load.source, load.indices, ahead),))
            ),
            stmt,
        )

    def visit(stmt: Stmt) -> Body | None:
        is_there = isinstance(stmt, For) and f"{stmt.var.name}.".startswith(f"{at}.")
        return transform((stmt,), ask) if is_there else None

    body = transform(program.body, visit)
    if not found:
        raise ScheduleError(f"prefetch: no vector in a loop called {at!r} reads {name!r}")
    return with_body(program, body)


def _around(loops: list[For], body: Body) -> Body:
    for s in reversed(loops):
        body = (s.around(body),)
    return body


def prefetch_next(program: LoopProgram, name: str, at: tuple[str, ...], every: str) -> LoopProgram:
    """Ask for what is read of a buffer in the next iteration of some loops, line by line.

        for p in 0..9:                          for p in 0..9:
          for t in 0..6:                          for t in 0..6:
            for k in 0..64:              ->         for k in 0..64:
              s[t] <- add x[k, p * 16]                prefetch x[floordiv(t * 64 + k, 6), …]
                                                      s[t] <- add x[k, p * 16]

    Each iteration of the loop `every` asks for one line (in the picture there are 64, in columns
    from `(p + 1) * 16` on), by how far the loops inside of the outermost of `at` are: neither what
    is computed nor what is asked for has to wait.  Behind the last iteration of the last of `at`
    comes its first one, in the next iteration of the one before.  Where all iterations of the first
    of `at` read the same, nothing is asked for.  Halide: a share of prefetch.
    """
    asked: dict[tuple[For, ...], Body] = {}  # by the loops `at`, too: others may hold the same one
    tiles: dict[Body, tuple[Buffer, Tile]] = {}
    for path in paths(program.body):
        if not isinstance(path[-1], For) or path[-1].var.name != every:
            continue
        around = [s for s in path if isinstance(s, For)]
        turns = [s for s in around if s.var.name in at]
        if tuple(s.var.name for s in turns) != at or turns[-1] is path[-1]:
            continue
        branch = _branch(path[path.index(turns[-1]) :], turns)
        if branch not in tiles:
            tiles[branch] = _tile(turns[-1], branch, name)
        buffer, tile = tiles[branch]
        asked[*turns, path[-1]] = ()
        if any(turns[0].var in b.free for b in tile.base):
            counted = [s for s in around[around.index(turns[0]) :] if s not in turns]
            line = _line(buffer, tile, _next(turns), counted)
            asked[*turns, path[-1]] = (Prefetch(buffer, line, 0),)
    if not asked:
        raise refuse(
            "prefetch_next",
            require_loops(program, "prefetch_next", every)[0],
            f"is not inside of {', '.join(at)}, in this order",
        )

    return with_body(program, _asking(program.body, at, (), asked))


def _asking(
    statements: Body,
    at: Sequence[str],
    turns: tuple[For, ...],
    asked: Mapping[tuple[For, ...], Body],
) -> Body:
    """The statements, which are inside of `turns`, with what is asked for in front of loops."""

    def visit(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, For):
            return None
        if stmt.var.name in at:
            return (with_bodies(stmt, (_asking(stmt.body, at, (*turns, stmt), asked),)),)
        first = asked.get((*turns, stmt))
        return (with_bodies(stmt, ((*first, *stmt.body),)),) if first else None

    return transform(statements, visit)


def _branch(path: tuple[Stmt, ...], turns: list[For]) -> Body:
    """What an iteration of the last of some loops does on the way to what the path leads to."""
    body = turns[-1].body
    for stmt, inner in pairwise(path):
        if isinstance(stmt, If) and any(s.var in stmt.condition.free for s in turns):
            body = next(branch for branch in bodies(stmt) if inner in branch)
    return body


def _tile(stmt: For, branch: Body, name: str) -> tuple[Buffer, Tile]:
    """The buffer of a name, and what an iteration of a loop touches of it in a branch."""
    found = accesses(branch)
    buffer = next((a.buffer for a in found if a.buffer.name == name), None)
    if buffer is None:
        raise refuse("prefetch_next", stmt, f"does not use {name}")
    return buffer, tile_around(buffer, found, branch)


def _next(turns: list[For]) -> dict[Var, Expr]:
    """What the variables of nested loops are in the iteration after this one."""
    after, carry = {}, index.constant(1)
    for s in reversed(turns):
        moved, count = s.var + carry, most_iterations("prefetch_next", s)
        after[s.var] = moved if s is turns[0] else moved % count
        carry = moved // count
    return after


def _line(
    buffer: Buffer, tile: Tile, after: dict[Var, Expr], counted: list[For]
) -> tuple[Expr, ...]:
    """The line of a tile that it is the turn of, when so many iterations are done."""
    line = CACHE_LINE_BYTES // buffer.dtype.bytes
    lines = (*tile.extents[:-1], -(-tile.extents[-1] // line))
    steps, step = 1, index.constant(0)
    for s in counted:
        most = most_iterations("prefetch_next", s)
        steps, step = steps * most, step * most + s.var
    number = step * math.prod(lines) // steps
    inside: list[Expr] = []
    for extent in reversed(lines[1:]):
        inside.append(number % extent)
        number = number // extent
    inside.append(number)
    inside[0] = inside[0] * line
    return tuple(substitute(b, after) + i for b, i in zip(tile.base, reversed(inside), strict=True))
