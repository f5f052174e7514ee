"""Schedule primitives that copy what loops touch, or keep stores out of caches: cache_read,
cache_write, stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, loads
from hlo_mlc.loops.accesses import Inside, is_full
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Store,
    While,
    walk,
)
from hlo_mlc.loops.dependence import Access, accesses, variables
from hlo_mlc.loops.equations import solve
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    map_expressions,
    paths,
    redirect,
    serial,
    transform,
    transform_loops,
    when,
    with_body,
)
from hlo_mlc.schedule.loops import changed, most_iterations, refuse, require_loops
from hlo_mlc.schedule.storage import nest_like, refuse_large, refuse_tasks, taken_out
from hlo_mlc.schedule.tiles import Tile, tile_around, unstable_in
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.classify import stride

T = TypeVar("T")

_LAYOUTS = {"rows": 0, "transposed": 1}  # how many dimensions of a tile the others are before


def cache_read(
    program: LoopProgram, name: str, at: str, layout: str = "rows", same: str = "", along: str = ""
) -> LoopProgram:
    """Copy what each iteration of a loop reads of a buffer to a private tile first.

        for i in 0..4:                   for i in 0..4:
          for j in 0..8:                   alloc x.i: 8xf32 stack:
            y[i, j] = x[j, i]      ->        for x.i.0 in 0..8:
                                               x.i[x.i.0] = x[x.i.0, i]
                                             for j in 0..8:
                                               y[i, j] = x.i[j]

    With the `layout` "loops" there is a tile for each place at which the buffer is read, with an
    element for each iteration of the loops in which the place changes, in their order: nothing
    between them is copied.  Where a loop is named in which places are to be the `same`, others are
    left alone; so are, where one is named `along` which places are to be nearest to each other,
    those that are nearer along another loop in which they change, or change in no other.

        for i in 0..4:                   for i in 0..4:
          for j in 0..8:                   alloc x.i: 8xf32 stack:
            y[i, j] = x[j * 3, i]  ->        for x.i.j in 0..8:
                                               x.i[x.i.j] = x[x.i.j * 3, i]
                                             for j in 0..8:
                                               y[i, j] = x.i[j]

    Halide: in + compute_at; TVM: cache_read.
    """
    _require_layout("cache_read", name, layout, ("rows", "loops"))
    for loop_name in filter(None, (same, along)):
        require_loops(program, "cache_read", loop_name)
        if layout != "loops":
            raise ScheduleError(
                f"cache_read: expected the layout 'loops' for the places of "
                f"{name!r} that {loop_name!r} tells; got {layout!r}"
            )

    def stage(stmt: For, touched: list[Access]) -> Body:
        writer = next((a for a in touched if a.writes), None)
        if writer is not None:
            raise refuse("cache_read", stmt, f"also writes {name} in {writer}; use cache_write")
        if layout == "loops":
            chosen = [
                a
                for a in touched
                if (not same or _is_same(a, same)) and (not along or _is_nearest(a, along))
            ]
            if not chosen:
                raise refuse(
                    "cache_read",
                    stmt,
                    f"reads {name} elsewhere in each iteration of {same}"
                    if same
                    else f"reads {name} at no places that are nearest to each other along {along}",
                )
            return _read_first(stmt, chosen, _tile_name(name, at))
        buffer = touched[0].buffer
        tile = tile_around(buffer, accesses(stmt.body), stmt.body)
        cached = Buffer(_tile_name(name, at), buffer.dtype, tile.shape, "stack")
        copy = _copy(tile, cached, buffer)
        return (Allocate(cached, (*copy, *redirect(stmt.body, {buffer: cached}, tile.place))),)

    return _staged(program, "cache_read", name, at, stage)


def cache_write(program: LoopProgram, name: str, at: str, layout: str = "rows") -> LoopProgram:
    """Collect what each iteration of a loop writes of a buffer in a private tile.

        for i in 0..4:                   for i in 0..4:
          for j in 0..8:                   alloc y.i: 8xf32 stack:
            y[j, i] = x[i, j]      ->        for j in 0..8:
                                               y.i[j] = x[i, j]
                                             for y.i.0 in 0..8:
                                               y[y.i.0, i] = y.i[y.i.0]

    With the `layout` "transposed" the first dimension of the tile is its last one, and so is the
    loop over it: `y.i.0` is over the second one.  Refused unless an iteration writes the whole
    tile.  Where it reads the tile before that, the tile starts as a copy.  TVM: cache_write.
    """
    _require_layout("cache_write", name, layout, tuple(_LAYOUTS))
    turn = _LAYOUTS[layout]

    def stage(stmt: For, touched: list[Access]) -> Body:
        buffer = touched[0].buffer
        together = next(
            (
                a
                for a in touched
                if a.writes and isinstance(a.stmt, Accumulate) and len(a.stmt.buffers) > 1
            ),
            None,
        )
        if together is not None:
            raise refuse(
                "cache_write", stmt, f"updates other buffers together with {name} in {together}"
            )
        tile = tile_around(buffer, accesses(stmt.body), stmt.body)
        cover = _cover(stmt, touched, math.prod(tile.extents))
        if cover is None:
            raise refuse(
                "cache_write",
                stmt,
                f"does not surely write every element of the "
                f"{'x'.join(map(str, tile.extents))} tile of {name} that it touches",
            )
        cached = Buffer(_tile_name(name, at), buffer.dtype, _turned(tile.shape, turn), "stack")
        reads = [
            n
            for n, s in enumerate(taken_out(stmt.body)[1])
            for a in accesses((s,), buffer)
            if not a.writes or isinstance(a.stmt, Accumulate)
        ]
        starts = reads and min(reads) <= max(cover)
        start = _copy(tile, cached, buffer, turn) if starts else ()
        finish = _copy(tile, cached, buffer, turn, back=True)
        body = redirect(stmt.body, {buffer: cached}, lambda place: _turned(tile.place(place), turn))
        return (Allocate(cached, (*start, *body, *finish)),)

    return _staged(program, "cache_write", name, at, stage)


def _require_layout(primitive: str, name: str, layout: str, known: tuple[str, ...]) -> None:
    if layout not in known:
        raise ScheduleError(
            f"{primitive}: expected a layout of {name!r} out of {', '.join(known)}; got {layout!r}"
        )


def _is_same(access: Access, name: str) -> bool:
    """Whether an access is in a loop of that name, and to one place in all its iterations."""
    around = [s.var for s, _ in access.path if isinstance(s, For) and s.var.name == name]
    return bool(around) and all(v not in i.free for v in around for i in access.indices)


def _is_nearest(access: Access, name: str) -> bool:
    """Whether an access moves through memory along the loop of that name, and farther along all
    others around it in which it moves, of which there are some."""
    read = Load(access.buffer, access.indices)
    steps = {
        s.var.name: stride(read, s.var)
        for s, _ in access.path
        if isinstance(s, For) and any(s.var in i.free for i in access.indices)
    }
    own = steps.pop(name, None)
    return bool(own and steps) and all(
        step is not None and abs(own) < abs(step) for step in steps.values()
    )


def _read_first(stmt: For, touched: list[Access], name: str) -> Body:
    """The body of a loop behind copies of what it reads at each place."""
    varying, written = variables(stmt.body), Inside.of(stmt.body).written
    places: dict[tuple[Expr, ...], list[For]] = {}
    conditions: dict[tuple[Expr, ...], Expr | None] = {}
    for a in touched:
        loops = [
            s for s, _ in a.path if isinstance(s, For) and any(s.var in i.free for i in a.indices)
        ]
        known = places.setdefault(a.indices, loops)
        if any(not s.extent.free.isdisjoint(varying) or loads(s.extent) for s in loops) or any(
            read.source in written for i in a.indices for read in loads(i)
        ):
            raise refuse("cache_read", stmt, f"changes meanwhile what {a} reads")
        if [s.extent for s in known] != [s.extent for s in loops]:
            raise refuse("cache_read", stmt, f"holds loops of several extents around {a}")
        condition = _reached(a, loops)
        if conditions.setdefault(a.indices, condition) is not condition:
            conditions[a.indices] = None
    buffer, tiles, fills = touched[0].buffer, {}, ()
    for number, (place, loops) in enumerate(places.items()):
        tile = Buffer(
            f"{name}.{number}" if number else name,
            buffer.dtype,
            tuple(most_iterations("cache_read", s) for s in loops),
            "stack",
        )
        refuse_large("cache_read", stmt, tile)
        tiles[place] = tile, tuple(s.var for s in loops)
        guard = _inside(buffer, place) if conditions[place] is None else None
        fill = Store(tile, tuple([s.var for s in loops]), Load(buffer, place), guard)
        fills += nest_like(loops, when(conditions[place] or build.TRUE, (fill,)), name)

    def swap(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source == buffer and node.indices in tiles:
            return build.load(*tiles[node.indices], node.guard, node.default)
        return None

    memo: dict[Expr, Expr] = {}
    body = map_expressions(stmt.body, lambda e: build.transform(e, swap, memo))
    return allocated((tile for tile, _ in tiles.values()), (*fills, *body))


def _reached(access: Access, loops: Sequence[For]) -> Expr | None:
    """The condition, on loops and branches, under which a place is read that changes in these
    loops; None where more than that decides about it."""
    own, condition = {s.var for s in loops}, build.TRUE
    if access.guards:
        return None
    inside = {s.var for s, _ in access.path if isinstance(s, For)} - own
    for s, branch in access.path:
        if (
            isinstance(s, If)
            and branch == 0
            and not loads(s.condition)
            and s.condition.free.isdisjoint(inside)
        ):
            condition = build.all_of(condition, s.condition)
        elif not isinstance(s, Allocate | For) or (
            isinstance(s, For) and s.var not in own and not is_full(s)
        ):
            return None
    return condition


def stream(program: LoopProgram, name: str) -> LoopProgram:
    """Let stores to a buffer bypass the caches, where the target can.

        y[i] = x[i]       ->       y[i] = x[i] streaming

    Halide: store_in with a streaming hint; elsewhere non-temporal stores.
    """
    body = transform(
        program.body,
        lambda s: (
            (replace(s, streaming=True),)
            if isinstance(s, Store) and s.buffer.name == name
            else None
        ),
    )
    if body is program.body:
        raise ScheduleError(f"stream: nothing is stored to a buffer called {name!r}")
    return with_body(program, body)


def _staged(
    program: LoopProgram,
    primitive: str,
    name: str,
    at: str,
    stage: Callable[[For, list[Access]], Body],
) -> LoopProgram:
    buffers = {a.buffer.name: a.buffer for a in accesses(program.body)} | {
        s.buffer.name: s.buffer for s in walk(program.body) if isinstance(s, Allocate)
    }
    if name not in buffers:
        raise ScheduleError(
            f"{primitive}: no buffer is called {name!r}; those in use are: {', '.join(buffers)}"
        )
    for inner in walk(program.body):
        if isinstance(inner, Allocate) and inner.buffer.name == _tile_name(name, at):
            raise refuse(primitive, inner, f"keeps a part of {name} at {at} already")

    def visit(stmt: For) -> Body | None:
        if stmt.kind is LoopKind.VECTORIZE:
            raise refuse(primitive, stmt, "is a vector; stage around a loop outside of it")
        refuse_tasks(primitive, stmt.body, buffers[name])
        touched = accesses(stmt.body, buffers[name])
        if not touched:
            return None
        return (stmt.around(stage(stmt, touched)),)

    return changed(
        program, transform_loops(program.body, at, visit), primitive, at, f"does not use {name}"
    )


def _turned(of: tuple[T, ...], by: int) -> tuple[T, ...]:
    """So many dimensions from the start to the end, or from the end to the start."""
    return (*of[by:], *of[:by])


def _tile_name(buffer: str, at: str) -> str:
    return f"{buffer}.{at}"


def _copy(tile: Tile, cached: Buffer, buffer: Buffer, turn: int = 0, back: bool = False) -> Body:
    """Loops that copy a buffer to a tile, or back; elements outside of the buffer are left out."""

    def nest(inside: tuple[Expr, ...]) -> Body:
        if len(inside) == len(cached.shape):
            origin = tile.origin(_turned(inside, -turn))
            guard = _inside(buffer, origin)
            if back:
                return (Store(buffer, origin, Load(cached, inside), guard),)
            return (Store(cached, inside, Load(buffer, origin), guard),)
        depth = len(inside)
        return (
            serial(f"{cached.name}.{depth}", cached.shape[depth], lambda var: nest((*inside, var))),
        )

    return nest(())


def _inside(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr | None:
    """The condition that an element is one of the buffer, None where that is known."""
    conditions = [
        build.apply(op, i, index.constant(bound))
        for i, extent in zip(indices, buffer.shape, strict=True)
        for op, bound in (("ge", 0), ("lt", extent))
    ]
    guard = build.all_of(*conditions)
    return None if guard is build.TRUE else guard


def _cover(stmt: For, touched: list[Access], size: int) -> list[int] | None:
    """Positions in the body, its private buffers aside, of stores that together write `size`
    elements for certain, found by counting writes that never hit the same element; None where they
    do not add up."""
    varying, unstable = variables(stmt.body), unstable_in(stmt.body)
    position = {}
    certain: dict[int, list[For]] = {}
    for n, part in enumerate(taken_out(stmt.body)[1]):
        for path in paths((part,)):
            position[id(path[-1])] = n
            if not any(isinstance(s, If | While) for s in path):
                certain[id(path[-1])] = [s for s in path if isinstance(s, For)]
    chosen: list[Access] = []
    covered = 0
    for a in touched:
        if not isinstance(a.stmt, Store) or not a.writes or a.guards or id(a.stmt) not in certain:
            continue
        free = frozenset().union(*(i.free for i in a.indices))
        loops = [s for s in certain[id(a.stmt)] if s.var in free]
        settled = solve(a, a, varying, unstable)
        if (
            settled is None
            or any(s.var not in settled for s in loops)
            or any(solve(a, b, varying, unstable) is not None for b in chosen)
        ):
            continue
        counts = [s.extent.value for s in loops if not s.extent.free and not loads(s.extent)]
        if len(counts) < len(loops):
            continue
        chosen.append(a)
        covered += math.prod(counts)
    return [position[id(a.stmt)] for a in chosen] if covered == size else None
