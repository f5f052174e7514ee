"""Loops that go on while any point of an array does, where no point needs what another one has.

    while any over i of p(x[i]):
      for i: x[i] = f(x[i]) if p(x[i]) else x[i]

is what `vmap` makes of a loop with a condition of its own: points that are done keep what they
have, until the last one is done.  So each point, or each block of them, may as well end by itself.
That takes two things to be shown of the steps of the loop, which may be many, with what they hand
to each other in buffers between them:

  - what a step reads and writes of what the loop changes is of the point that it is at;
  - a trip leaves all that is needed after it as it was, at a point where p does not hold.

Loops inside of it go as many trips as a block needs then, too: so the second is shown of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from hlo_mlc.expr.build import FALSE, TRUE, load, substitute, transform
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import Kind
from hlo_mlc.tensor.classify import folds_conditions, is_map, is_plain
from hlo_mlc.tensor.coalesce import accesses
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Stage, Step, TensorProgram, buffer_of
from hlo_mlc.tensor.liveness import Buffers, effects, live_after, step_writes

_ROUNDED = (Kind.FLOAT, Kind.COMPLEX)


@dataclass(frozen=True, slots=True, eq=False)
class PointsApart:
    """A loop of points: `axes` are those of the fold over them, and `own` are each stage's for
    them; `verdicts` are what such folds fill, this one and those of loops inside.  `before` the
    loop comes what is the same in all trips, for all points."""

    before: tuple[Nest, ...]
    loop: Loop
    verdicts: tuple[Buffer, ...]
    axes: tuple[Var, ...]
    own: dict[Stage, tuple[Var, ...]]


def loops_apart(program: TensorProgram) -> dict[Loop, PointsApart]:
    """The loops of a program whose points may end one by one."""
    asking = [
        loop
        for step in program.steps
        for loop in _loops(step)
        if loop.test and isinstance(loop.test[-1], Nest)
    ]
    if not asking:
        return {}
    live = live_after(program.steps, program.results)
    found = ((loop, points_apart(loop, live)) for loop in asking)
    return {loop: apart for loop, apart in found if apart is not None}


def _loops(step: Step) -> Iterator[Loop]:
    """All loops of a step, outer ones first."""
    if isinstance(step, Loop):
        yield step
    if not isinstance(step, Nest):
        for inner in step.inner:
            yield from _loops(inner)


def points_apart(loop: Loop, live: Mapping[Nest, Buffers]) -> PointsApart | None:
    """The points of a loop that may end one by one; None where that is not shown.  `live`: by nest
    of the program, the buffers whose contents after it matter."""
    if loop.trip_count is not None:
        return None
    folds = {inner: _any_of(inner) for inner in _loops(loop) if inner.trip_count is None}
    if None in folds.values() or any(isinstance(s, Branch) for s in _steps(loop)):
        return None
    last, verdicts = folds[loop], tuple(fold.outputs[0] for fold in folds.values())
    needed = _needed(loop, live)
    before, loop = _same_in_all_trips(loop, needed)
    nests = [s for s in _steps(loop) if isinstance(s, Nest)]
    stages = [stage for nest in nests for stage in nest.stages]
    changing = step_writes(loop) - {*verdicts}
    if not changing:  # it never ends, if it begins
        return None
    counters = {inner.counter for inner in folds}
    if any(e.free & counters for s in stages for e in s.expressions):
        return None
    if not {*verdicts}.isdisjoint(b for s in stages for b in s.inputs):
        return None
    own = _own_axes({*folds.values()}, last, stages, changing)
    if own is None or not all(_agrees(nest, own) for nest in nests):
        return None
    waiting = (inner for inner in _loops(loop) if inner.trip_count is None)
    stays = all(_stays(inner, _needed(inner, live), own, {*folds.values()}) for inner in waiting)
    if not stays or not needed.isdisjoint(verdicts):
        return None
    return PointsApart(before, loop, verdicts, last.reduce_axes, own)


def _needed(loop: Loop, live: Mapping[Nest, Buffers]) -> Buffers:
    """The buffers whose contents at the end of a trip matter, besides the answer."""
    last = loop.test[-1]
    return live[last] - effects(last).writes


def _stays(
    loop: Loop, needed: Buffers, own: dict[Stage, tuple[Var, ...]], folds: set[Stage]
) -> bool:
    """Whether a trip leaves all that is needed after it as it was, where a point is done."""
    (last,) = loop.test[-1].stages
    testing = (s for nest in loop.test[:-1] if isinstance(nest, Nest) for s in nest.stages)
    active = _condition(last, testing)
    changing = step_writes(loop) - {s.outputs[0] for s in folds}
    done = _Inactive(last.reduce_axes, active, own, folds, needed, changing)
    return done.stay((*loop.body, *loop.test))


def _same_in_all_trips(loop: Loop, needed: Buffers) -> tuple[tuple[Nest, ...], Loop]:
    """The nests that fill temporaries with what does not change, and the loop without them."""
    changing = step_writes(loop)
    written = Counter(b for step in loop.inner for b in step_writes(step))
    same = [
        step
        for step in loop.body
        if isinstance(step, Nest)
        and changing.isdisjoint(effects(step).needs)
        and needed.isdisjoint(effects(step).writes)
        and all(written[b] == 1 for b in effects(step).writes)
        and all(loop.counter not in e.free for s in step.stages for e in s.expressions)
    ]
    return tuple(same), replace(loop, body=tuple(s for s in loop.body if s not in same))


def _steps(loop: Loop) -> Iterator[Step]:
    """All that a loop does, and what loops in it do."""
    for step in loop.inner:
        yield step
        if isinstance(step, Loop):
            yield from _steps(step)


def _any_of(loop: Loop) -> Stage | None:
    """The stage that asks whether the condition holds at any point, the last of the test."""
    asks = loop.test[-1] if loop.test else None
    if not isinstance(asks, Nest) or len(asks.stages) != 1:
        return None
    (stage,) = asks.stages
    if (
        stage.axes
        or not stage.reduce_axes
        or not folds_conditions(stage)
        or stage.combiner.name != "or"
        or stage.initial != (FALSE,)
        or stage.along
        or len(stage.assigns) != 1
    ):
        return None
    (assign,) = stage.assigns
    holds = assign.guard is None and assign.value is stage.accumulators[0]
    return stage if holds and loop.condition is load(assign.buffer, ()) else None


def _own_axes(
    folds: set[Stage], last: Stage, stages: list[Stage], changing: set[Buffer]
) -> dict[Stage, tuple[Var, ...]] | None:
    """The axes of each stage that say at which point it is, all axes of those that are folds over
    the points; None where one touches what changes elsewhere."""
    dimensions: dict[Buffer, tuple[int, ...]] = {}
    own = {last: last.reduce_axes}
    waiting = [last, *(s for s in stages if s is not last)]
    while waiting:
        known = [s for s in waiting if s in own or _located(s, dimensions)]
        if not known:
            return None
        for stage in known:
            at = own.setdefault(stage, _located(stage, dimensions))
            walked = stage.reduce_axes if stage in folds else stage.axes
            if not {*walked}.issuperset(at) or _in_turns(stage) in at:
                return None
            if stage in folds and walked != at:
                return None
            for access in accesses(stage):
                buffer = buffer_of(access)
                if buffer not in changing:
                    continue
                if not set(access.indices).issuperset(at):
                    return None
                places = tuple(map(access.indices.index, at))
                if dimensions.setdefault(buffer, places) != places or any(
                    buffer.shape[d] != v.extent for d, v in zip(places, at, strict=True)
                ):
                    return None
        waiting = [s for s in waiting if s not in known]
    extents = tuple(v.extent for v in last.reduce_axes)
    return own if all(tuple(v.extent for v in at) == extents for at in own.values()) else None


def _located(stage: Stage, dimensions: dict[Buffer, tuple[int, ...]]) -> tuple[Var, ...]:
    """The axes of a stage at the dimensions of something that it touches and that has some; none
    where it touches nothing of this kind."""
    for access in accesses(stage):
        places = dimensions.get(buffer_of(access))
        if places is not None:
            at = tuple(access.indices[d] for d in places)
            return at if all(isinstance(v, Var) for v in at) else ()
    return ()


def _in_turns(stage: Stage) -> Var | None:
    """The axis along which points wait for each other."""
    if stage.scan is not None:
        return stage.scan.axis
    return None if stage.sort is None else stage.sort.place


def _agrees(nest: Nest, own: dict[Stage, tuple[Var, ...]]) -> bool:
    """Whether the stages of a nest have the points at the same axes."""
    (first, *others) = (tuple(s.axes.index(v) for v in own[s] if v in s.axes) for s in nest.stages)
    return all(places == first for places in others)


Held = dict[Buffer, tuple[tuple[Expr, ...], Expr]]


@dataclass(slots=True)
class _Inactive:
    """A trip at a point that is done: `active` says that it is not, over the axes of the fold.

    `held` is what temporaries then have, as far as it is known, with the indices that this is
    told of.
    """

    axes: tuple[Var, ...]
    active: Expr
    own: dict[Stage, tuple[Var, ...]]
    folds: set[Stage]
    needed: Buffers
    changing: set[Buffer]
    held: Held = field(default_factory=dict)

    def stay(self, trip: Iterable[Step]) -> bool:
        """Whether a trip changes nothing that is needed, nor what says that the point is done."""
        asked = {read.source for read in loads(self.active)} & self.changing
        return asked <= self.needed and all(map(self._leaves, trip))

    def _leaves(self, step: Step) -> bool:
        """The same of a step."""
        if isinstance(step, Nest):
            return all(map(self._keeps, (s for s in step.stages if s not in self.folds)))
        self._forget(step_writes(step))
        kept = all(map(self._leaves, step.inner))
        self._forget(step_writes(step))  # there may have been no trip
        return kept

    def _forget(self, buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            self.held.pop(buffer, None)

    def _keeps(self, stage: Stage) -> bool:
        active = substitute(self.active, dict(zip(self.axes, self.own[stage], strict=True)))
        told = {active: FALSE}
        if isinstance(active, Apply) and active.op == "not":
            told[active.args[0]] = TRUE
        memo: dict[Expr, Expr] = {}

        def rule(node: Expr) -> Expr | None:
            return told.get(node) or _held_at(node, self.held)

        def known(e: Expr) -> Expr:
            return transform(e, rule, memo)

        stores = (*stage.along, *stage.assigns)
        values = [
            (a, known(a.value)) for a in stores if a.guard is None or known(a.guard) is not FALSE
        ]
        for assign, value in values:
            before = load(assign.buffer, assign.indices)
            if assign.buffer in self.needed and value is not known(before):
                return False
        self._forget(stage.outputs)
        for assign, value in values:
            if assign.buffer not in self.needed and self._lasts(value):
                _note(self.held, assign, value, stage)
        return True

    def _lasts(self, value: Expr) -> bool:
        """Whether a value is the same until the trip is over, and rounds nothing, so that it may be
        part of others."""
        return (isinstance(value, Const | Load) or value.dtype.kind not in _ROUNDED) and all(
            read.source in self.needed or read.source not in self.changing for read in loads(value)
        )


def _condition(last: Stage, before: Iterable[Stage]) -> Expr:
    """What is asked at each point, of what the stages before it have not put aside for it; floats
    that they have would be rounded otherwise as part of something else."""
    held: Held = {}
    for stage in before:
        for assign in stage.assigns:
            if is_map(stage) and assign.buffer.dtype.kind not in _ROUNDED:
                value = transform(assign.value, lambda node: _held_at(node, held))
                _note(held, assign, value, stage)
    return transform(last.terms[0], lambda node: _held_at(node, held))


def _note(held: Held, assign: Assign, value: Expr, stage: Stage) -> None:
    """Notes what a buffer has, where one store of a stage fills it."""
    alone = sum(a.buffer is assign.buffer for a in (*stage.along, *stage.assigns)) == 1
    if alone and is_plain(assign, stage.axes):
        held[assign.buffer] = (assign.indices, value)


def _held_at(node: Expr, held: Held) -> Expr | None:
    """What a load gives, where that is known."""
    if not isinstance(node, Load) or node.guard is not None or node.source not in held:
        return None
    indices, value = held[node.source]
    there = zip(indices, node.indices, strict=True)
    return substitute(value, {v: e for v, e in there if isinstance(v, Var)})
