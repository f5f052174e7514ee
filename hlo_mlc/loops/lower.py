"""From what a stage computes to the plainest loops that compute it."""

from __future__ import annotations

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.loops import rewrite
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, Stmt, Store
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.core import Assign, Stage


def lower_stage(stage: Stage) -> tuple[Stmt, ...]:
    """The naive loop nest of one stage: its axes in order, all serial.

    A reduction runs in register accumulators:

        for i:
          alloc sum:
            sum[] = initial
            for k:
              sum[] = add(sum[], term)
            y[i] = sum[]

    A scan does so inside of its other axes, and stores at every step.

    Raises: VerifyError for an axis whose extent is not known.
    """
    if any(_extent(stage, axis) == 0 for axis in stage.axes):
        return ()
    if stage.scan is not None:
        others = tuple(v for v in stage.axes if v is not stage.scan.axis)
        return _nest(stage, others, _scan(stage))
    body = _stores(stage.assigns, {})
    if stage.combiner is not None:
        body = _reduction(stage)
    return _nest(stage, stage.axes, body)


def _reduction(stage: Stage) -> tuple[Stmt, ...]:
    buffers, start, results = _accumulators(stage)
    step = (*_stores(stage.along, {}), Accumulate(buffers, (), stage.combiner, stage.terms))
    if any(_extent(stage, axis) == 0 for axis in stage.reduce_axes):
        fold: tuple[Stmt, ...] = ()
    else:
        fold = _nest(stage, stage.reduce_axes, step)
    return _allocated(buffers, (*start, *fold, *_stores(stage.assigns, results)))


def _scan(stage: Stage) -> tuple[Stmt, ...]:
    buffers, start, results = _accumulators(stage)
    axis, extent = stage.scan.axis, _extent(stage, stage.scan.axis)
    step = (Accumulate(buffers, (), stage.combiner, stage.terms),
            *_stores(stage.assigns, results))
    if stage.scan.reverse:
        step = rewrite.substitute(
            step, {axis: index.subtract(index.constant(extent - 1), axis)})
    return _allocated(buffers, (*start, *_nest(stage, (axis,), step)))


def _accumulators(stage: Stage) -> tuple[tuple[Buffer, ...], tuple[Stmt, ...], dict[Var, Expr]]:
    """Registers for the accumulators, the stores that start them, and how to read them."""
    buffers = tuple(Buffer(f"{stage.name}.{var.name}", var.dtype, (), "register")
                    for var in stage.accumulators)
    start = tuple(Store(b, (), value) for b, value in zip(buffers, stage.initial, strict=True))
    results: dict[Var, Expr] = {
        var: Load(buffer, ()) for var, buffer in zip(stage.accumulators, buffers, strict=True)}
    return buffers, start, results


def _allocated(buffers: tuple[Buffer, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for buffer in reversed(buffers):
        body = (Allocate(buffer, body),)
    return body


def _stores(assigns: tuple[Assign, ...], results: dict[Var, Expr]) -> tuple[Store, ...]:
    memo: dict[Expr, Expr] = {}

    def finish(e: Expr) -> Expr:
        return build.substitute(e, results, memo) if results else e

    return tuple(
        Store(a.buffer, tuple(map(finish, a.indices)), finish(a.value),
              None if a.guard is None else finish(a.guard))
        for a in assigns)


def _nest(stage: Stage, axes: tuple[Var, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for axis in reversed(axes):
        body = (For(axis, index.constant(_extent(stage, axis)), LoopKind.SERIAL, body),)
    return body


def _extent(stage: Stage, axis: Var) -> int:
    if axis.extent is None:
        raise VerifyError(f"stage {stage.name}: expected an axis of known extent, got {axis.name}; "
                          "give its variable an extent (expr.build.variable)")
    return axis.extent
