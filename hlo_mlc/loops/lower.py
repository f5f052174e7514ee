"""From stages and steps to the simplest loops that compute them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.expr.procedure import Move, Put
from hlo_mlc.loops import rewrite
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, Stmt, Store, While
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Branch, Loop, Stage


def lower_stage(stage: Stage) -> tuple[Stmt, ...]:
    """The naive loop nest of one stage: its axes in order, all serial.

    A reduction runs in register accumulators:

        for i:
          alloc sum:
            sum[] = initial
            for k:
              sum[] = add(sum[], term)
            y[i] = sum[]

    A scan does so inside of its other axes, and stores at every step.  A sort counts, for every
    element, those that come before it.
    """
    if any(axis.extent == 0 for axis in stage.axes):
        return ()
    if stage.scan is not None:
        others = tuple(v for v in stage.axes if v is not stage.scan.axis)
        return _nest(others, _scan(stage))
    if stage.sort is not None:
        others = tuple(v for v in stage.axes if v is not stage.sort.place or stage.sort.at is not v)
        return _nest(others, _sort(stage))
    if stage.procedure is not None:
        return _nest(stage.axes, _steps(stage))
    body = stores_at(stage.assigns, {})
    if stage.combiner is not None:
        body = _reduction(stage)
    return _nest(stage.axes, body)


def lower_nest(shared: tuple[Var, ...], stages: Sequence[Stage]) -> tuple[Stmt, ...]:
    """The naive loops of one or more stages inside of those over the axes that they share."""
    return _nest(shared, tuple(stmt for s in stages for stmt in lower_stage(s)))


def lower_loop(step: Loop, body: tuple[Stmt, ...], test: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The loop of a step around its body; `test` computes what its condition reads."""
    if step.trip_count is None:
        return (*test, While(step.condition, (*body, *test)))
    return (For(step.counter, index.constant(step.trip_count), LoopKind.SERIAL, body),)


def lower_blocks(
    blocks: tuple[Var, ...], body: tuple[Stmt, ...], own: Mapping[Buffer, Buffer]
) -> tuple[Stmt, ...]:
    """The loops over `blocks` around what is done in each, which has registers of its `own` in
    place of some buffers."""
    return _nest(blocks, rewrite.allocated(own.values(), rewrite.redirect(body, own)))


def lower_branch(
    step: Branch, then: tuple[Stmt, ...], otherwise: tuple[Stmt, ...]
) -> tuple[Stmt, ...]:
    """The branch of a step with its two bodies."""
    return (If(step.condition, then, otherwise),) if then or otherwise else ()


def _steps(stage: Stage) -> tuple[Stmt, ...]:
    results = tuple(
        _nest(tuple(v for v in stage.reduce_axes if v in assign.indices), stores_at((assign,), {}))
        for assign in stage.along
    )
    body = (*procedure_loops(stage.procedure.body), *(s for loops in results for s in loops))
    return rewrite.allocated(stage.procedure.arrays, body)


def procedure_loops(
    body: Sequence[Move], put: Callable[[Sequence[Put]], tuple[Stmt, ...]] | None = None
) -> tuple[Stmt, ...]:
    """The loops of a procedure; `put` says how some puts, one after the other, are done."""
    put = put or (lambda puts: tuple(Store(p.array, p.indices, p.value) for p in puts))
    found: list[Stmt] = []
    for kind, moves in itertools.groupby(body, type):
        if kind is Put:
            found += put(tuple(moves))
        else:
            found += (
                For(m.var, m.extent, LoopKind.SERIAL, procedure_loops(m.body, put)) for m in moves
            )
    return tuple(found)


def _reduction(stage: Stage) -> tuple[Stmt, ...]:
    buffers, start, results = _accumulators(stage)
    step = (*stores_at(stage.along, {}), Accumulate(buffers, (), stage.combiner, stage.terms))
    if any(axis.extent == 0 for axis in stage.reduce_axes):
        fold: tuple[Stmt, ...] = ()
    else:
        fold = _nest(stage.reduce_axes, step)
    return rewrite.allocated(buffers, (*start, *fold, *stores_at(stage.assigns, results)))


def _scan(stage: Stage) -> tuple[Stmt, ...]:
    buffers, start, results = _accumulators(stage)
    axis, extent = stage.scan.axis, stage.scan.axis.extent
    step = (
        Accumulate(buffers, (), stage.combiner, stage.terms),
        *stores_at(stage.assigns, results),
    )
    if stage.scan.reverse:
        step = rewrite.substitute(step, {axis: extent - 1 - axis})
    return rewrite.allocated(buffers, (*start, *_nest((axis,), step)))


def _sort(stage: Stage) -> tuple[Stmt, ...]:
    """
        for k:
          rank[] = 0
          for j:
            rank[] = rank[] + (key(j) < key(k) or key(j) == key(k) and j < k)
          if rank[] < places:
            y[rank[]] = term(k)

    or, at every place, `if rank[] == at: y[place] = term(k)` where these are not the first.
    """
    (element,), place = stage.reduce_axes, stage.sort.place
    other = build.variable(f"{element.name}_before", element.extent)
    rank = Buffer(f"{stage.name}.rank", U32, (), "register")
    here = dict(zip(stage.accumulators, stage.terms, strict=True))
    there = {v: build.substitute(e, {element: other}) for v, e in here.items()}
    before = index.compare("lt", other, element)
    for key in reversed(stage.sort.keys):
        mine, theirs = build.substitute(key, here), build.substitute(key, there)
        before = build.apply(
            "or",
            build.apply("lt", theirs, mine),
            build.apply("and", build.apply("eq", theirs, mine), before),
        )
    count = Accumulate(
        (rank,), (), named_combiner("add", U32), (build.apply("convert", before, dtype=U32),)
    )
    taken = build.as_index(Load(rank, ()))
    if stage.sort.at is place:
        stores = stores_at(stage.assigns, {**here, place: taken})
        fits = build.apply("lt", taken, index.constant(place.extent))
    else:
        stores = stores_at(stage.assigns, here)
        fits = build.apply("eq", taken, stage.sort.at)
    body = (
        Store(rank, (), build.const(0, U32)),
        *_nest((other,), (count,)),
        *(rewrite.guarded(s, fits) for s in stores),
    )
    return _nest((element,), (Allocate(rank, body),))


def _accumulators(stage: Stage) -> tuple[tuple[Buffer, ...], tuple[Stmt, ...], dict[Var, Expr]]:
    """Registers for the accumulators, the stores that start them, and how to read them."""
    buffers = tuple(
        Buffer(f"{stage.name}.{var.name}", var.dtype, (), "register") for var in stage.accumulators
    )
    start = tuple(Store(b, (), value) for b, value in zip(buffers, stage.initial, strict=True))
    results: dict[Var, Expr] = {
        var: Load(buffer, ()) for var, buffer in zip(stage.accumulators, buffers, strict=True)
    }
    return buffers, start, results


def stores_at(assigns: Iterable[Assign], point: Mapping[Var, Expr]) -> tuple[Store, ...]:
    """The stores of assignments, with values substituted for variables."""
    memo: dict[Expr, Expr] = {}

    def finish(e: Expr) -> Expr:
        return build.substitute(e, point, memo) if point else e

    return tuple(
        Store(
            a.buffer,
            tuple(map(finish, a.indices)),
            finish(a.value),
            None if a.guard is None else finish(a.guard),
        )
        for a in assigns
    )


def _nest(axes: tuple[Var, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for axis in reversed(axes):
        body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
    return body
