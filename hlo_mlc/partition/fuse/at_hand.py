"""A stage that joins a nest uses the values computed there instead of loading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hlo_mlc.expr.build import apply, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.classify import cost, is_map, is_plain, reads, stage_cost
from hlo_mlc.tensor.core import Assign, Stage
from hlo_mlc.tensor.rewrite import rename_axes, replace_loads

# A map cheaper than this is computed again by each of its readers in the nest (adam_update).
CHEAP = 2
# But what is looked up is not, by readers that take each element so often: small matrices by what
# stands at places that are read, as in finite elements, took 0.25 of the time where it was kept, of
# 8 x 8 and of 16 x 16, but 4 times as long of 6 x 6 (elements).
LOOKED_UP_AGAIN = 8
# Operations of a map that are worth no pass of their own over a row: arithmetic on rows of 8000
# elements took 0.4 of the time in one pass. Longer ones stay apart, as their elements wait for
# shorter chains of operations: sines took 0.6 of the time, and rounds of a cipher 0.8 (sampled).
LITTLE = 6


def appended(stages: tuple[Stage, ...], stage: Stage) -> tuple[Stage, ...]:
    """The stages with one more, which reuses values that the nest has just computed."""
    stage = _inline_cheap(stages, stage)
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


def _inline_cheap(stages: Sequence[Stage], stage: Stage) -> Stage:
    """Compute cheap elementwise values of the nest again rather than load them."""
    for writer in reversed(stages):
        if not is_map(writer):
            continue
        wanted = set(stage.inputs)
        for assign in writer.assigns:
            if (
                assign.buffer in wanted
                and cost(assign.value) <= CHEAP
                and not _is_looked_up_again(assign, writer, stage)
                and is_plain(assign, writer.axes)
            ):
                stage = replace_loads(stage, {assign.buffer: partial(_value_at, assign)})
    return stage


def _is_looked_up_again(assign: Assign, writer: Stage, reader: Stage) -> bool:
    """Whether places are read to compute a value, and its reader takes each many times."""
    places = (i for load in loads(assign.value) for i in load.indices)
    return any(map(loads, places)) and points(reader) >= LOOKED_UP_AGAIN * points(writer)


def _value_at(assign: Assign, load: Load) -> Expr | None:
    at = {i: j for i, j in zip(assign.indices, load.indices, strict=True) if isinstance(i, Var)}
    return substitute(assign.value, at) if load.guard is None else None


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
