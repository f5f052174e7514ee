"""A stage that joins a nest uses the values computed there instead of loading them."""

from __future__ import annotations

from dataclasses import replace

from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.tensor.classify import is_map, reads, stage_cost
from hlo_mlc.tensor.core import Assign, Stage
from hlo_mlc.tensor.rewrite import rename_axes, replace_loads

# Operations of a map that are worth no pass of their own over a row: arithmetic on rows of 8000
# elements took 0.4 of the time in one pass. Longer ones stay apart, as their elements wait for
# shorter chains of operations: sines took 0.6 of the time, and rounds of a cipher 0.8 (sampled).
LITTLE = 6


def appended(stages: tuple[Stage, ...], stage: Stage) -> tuple[Stage, ...]:
    """The stages with one more, which reuses values that the nest has just computed."""
    last = stages[-1]
    if is_map(stage) and (stage.axes == last.axes or _is_little(last, stage)):
        along = rename_axes(stage, dict(zip(stage.axes, last.axes, strict=True)))
        forwarded = _forwarded(along, last.assigns)
        if set(last.outputs).isdisjoint(forwarded.inputs):  # else it needs all of a row
            return (*stages[:-1], replace(last, assigns=(*last.assigns, *forwarded.assigns)))
    if not is_map(stage) and is_map(last) and not stage.along:
        merged = _store_along(last, stage)
        if merged is not None:
            return (*stages[:-1], merged)
    return (*stages, stage)


def _is_little(last: Stage, stage: Stage) -> bool:
    """Whether a map does so little with what another one stores that it may go along with it:

    for j: e[j] = f(j);  for k: r[k] = g(e[k])   ->   for j: e[j] = f(j), r[j] = g(f(j))
    """
    return (
        is_map(last)
        and [v.extent for v in last.axes] == [v.extent for v in stage.axes]
        and not set(last.outputs).isdisjoint(stage.inputs)
        and stage_cost(stage) <= LITTLE
    )


def _forwarded(stage: Stage, assigns: tuple[Assign, ...]) -> Stage:
    """The stage reading what is stored at the same point before that is stored. At once: values are
    large where many stages came before, and hold nothing more to replace."""
    stored: dict[Buffer, list[Assign]] = {}
    for assign in assigns:
        stored.setdefault(assign.buffer, []).append(assign)

    def value(load: Load) -> Expr | None:
        found = (_forward(assign, load) for assign in stored[load.source])
        return next((one for one in found if one is not None), None)

    return replace_loads(stage, dict.fromkeys(stored.keys() & set(stage.inputs), value))


def _forward(assign: Assign, load: Load) -> Expr | None:
    """What `load` reads of the element that is stored at the same point; None at other points.

    The value needs no guard, since it is computed at every point all the same.
    """
    if load.indices != assign.indices:
        return None
    return (
        assign.value
        if load.guard is None
        else apply("select", load.guard, assign.value, load.default)
    )


def _store_along(writer: Stage, fold: Stage) -> Stage | None:
    """for j: e[j] = f(j);  s = sum over k of g(e[k])   ->   for k: e[k] = f(k), s += g(f(k))

    Only where the fold comes to every j and no other point: what was padded, joined or cut has
    longer or shorter rows than what the fold goes over.
    """
    points = (*fold.axes, *fold.reduce_axes)
    if len(writer.axes) != len(points):
        return None
    mapping: dict[Var, Var] | None = None
    for assign in writer.assigns:
        for load in reads(fold, assign.buffer):
            at = dict(zip(assign.indices, load.indices, strict=True))
            found = {v: at.get(v) for v in writer.axes}
            if (
                set(found.values()) != set(points)
                or (mapping is not None and found != mapping)
                or any(theirs.extent != ours.extent for ours, theirs in found.items())
            ):
                return None
            mapping = found
    if mapping is None:
        return None
    moved = rename_axes(writer, mapping)
    return replace(_forwarded(fold, moved.assigns), along=moved.assigns)
