"""What a loop carries: written in place where nothing is lost, else by turns or by copies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.partition.lower.stages import Item, StageLowering
from hlo_mlc.tensor.classify import is_apart, is_map, reads
from hlo_mlc.tensor.core import Assign, Loop, Nest, Stage, Step
from hlo_mlc.tensor.rewrite import (
    rename_axes,
    replace_buffers,
    replace_loads,
    replace_variable,
    without_impossible,
)

# The lowered body: lists of items, with the steps of inner loops between them.
Segment = list[Item] | Step


@dataclass(slots=True)
class Carried:
    """The carried buffers of one loop, by position, and the buffers of the body's results."""

    loop: Node
    inner: StageLowering  # of the body
    buffers: dict[int, Buffer]
    trip_count: int | None = None
    twins: dict[Buffer, Buffer] = field(default_factory=dict)

    def own_sources(self) -> dict[int, Buffer]:
        """By position, the buffers of results that are nothing but this one result."""
        body = self.loop.regions[1]
        counts = Counter(body.results)
        carried = set(self.buffers.values())
        found = {}
        for k in self.buffers:
            source = self.inner.buffers.get(body.results[k])
            if (
                source is not None
                and source not in carried
                and counts[body.results[k]] == 1
                and self.inner.definition(body.results[k]) is not None
                and not counts[body.parameters[k]]
            ):
                found[k] = source
        return found


@dataclass(slots=True)
class _Run:
    """The items of a body without inner loops, in order, and which of them touch a buffer."""

    slots: list[list[Item]]
    touching: dict[Buffer, set[int]] = field(default_factory=dict)

    @staticmethod
    def of(segments: Iterable[list[Item]]) -> _Run:
        run = _Run([[item] for segment in segments for item in segment])
        for place, (item,) in enumerate(run.slots):
            run._note(place, item)
        return run

    def _note(self, place: int, item: Item) -> None:
        for buffer in (*item.stage.inputs, *item.stage.outputs):
            self.touching.setdefault(buffer, set()).add(place)

    def items(self) -> list[Item]:
        """What is left of them, in order."""
        return [item for slot in self.slots for item in slot]

    def around(self, *buffers: Buffer) -> list[tuple[int, Item]]:
        """The items that may touch one of these buffers, with their places."""
        places = sorted(set().union(*(self.touching.get(b, ()) for b in buffers)))
        return [(place, item) for place in places for item in self.slots[place]]

    def put(self, edits: dict[int, list[Item]]) -> None:
        """Other items in place of those that were there."""
        for place, items in edits.items():
            self.slots[place] = items
            for item in items:
                self._note(place, item)


def read_first(carried: Carried, segments: list[Segment]) -> list[Segment]:
    """The body with what reads old values, and what that needs, before these are overwritten.

        t = c; t[n] = x; y[n] = c[n - 1]; c = t    ->    y[n] = c[n - 1]; t = c; t[n] = x; c = t

    Where several updates follow each other, each of a copy of what the one before has made, what
    the later ones read of old values is put aside.
    """
    if not all(isinstance(s, list) for s in segments):
        return segments
    items = [item for segment in segments for item in segment]
    for k, source in carried.own_sources().items():
        target = carried.buffers[k]
        first, made = _beginning(items, source)
        place, updated = first, False
        while (place := place + 1) < len(items):
            item = items[place]
            if made.isdisjoint(item.stage.outputs):
                if reads(item.stage, target):
                    first = _moved_up(items, place, first)
            elif updated and reads(item.stage, target) and _always_reads(item.stage):
                items[place : place + 1] = put_aside = _put_aside(item, target, carried.inner.fresh)
                for number in range(len(put_aside) - 1):
                    first = _moved_up(items, place + number, first)
                place += len(put_aside) - 1
            else:
                updated |= item.update
    return [items]


def _beginning(items: list[Item], source: Buffer) -> tuple[int, set[Buffer]]:
    """Where the first of the buffers is filled that are copied to each other up to `source`, and
    which these are."""
    filled = {b: n for n, item in reversed([*enumerate(items)]) for b in item.stage.outputs}
    place, made = filled.get(source, len(items)), {source}
    while place < len(items) and filled.get(copied := _copied(items[place].stage), place) < place:
        place = filled[copied]
        made.add(copied)
    return place, made


def _always_reads(stage: Stage) -> bool:
    """Whether a stage reads what it reads once for each of its points, at all of them."""
    return is_map(stage) and all(a.guard is None for a in stage.assigns)


def _put_aside(item: Item, target: Buffer, fresh: Callable[[str], str]) -> list[Item]:
    """What fetches all that the item reads of `target`, and the item that uses it."""
    stage, fetching, fetched = item.stage, [], {}
    for access in reads(stage, target):
        axes = tuple(v for v in stage.axes if v in access.free)
        aside = Buffer(fresh("b"), target.dtype, tuple(v.extent for v in axes))
        fetched[access] = load(aside, axes)
        fetch = Stage(fresh("s"), axes, (Assign(aside, axes, access),))
        own = {v: Var(fresh("i"), INDEX, v.extent) for v in axes}
        fetching.append(Item(rename_axes(fetch, own), item.node))
    using = replace_loads(stage, {target: lambda access: fetched.get(access, access)})
    return [*fetching, replace(item, stage=using)]


def _moved_up(items: list[Item], place: int, first: int) -> int:
    """Moves an item, and what has to come before it, in front of the one at `first`, where that is
    nothing of this kind; says where the latter is then."""
    moving = [place]
    touched, written = _touched(items[place]), set(items[place].stage.outputs)
    for earlier in range(place - 1, first - 1, -1):
        other = items[earlier]
        if touched.isdisjoint(other.stage.outputs) and written.isdisjoint(other.stage.inputs):
            continue
        if earlier == first:
            return first
        moving.append(earlier)
        touched |= _touched(other)
        written.update(other.stage.outputs)
    moved = [items[n] for n in reversed(moving)]
    for n in moving:
        del items[n]
    items[first:first] = moved
    return first + len(moved)


def _touched(item: Item) -> set[Buffer]:
    return {*item.stage.inputs, *item.stage.outputs}


def take_turns(carried: Carried, segments: list[Segment]) -> list[Segment]:
    """Carried buffers whose new values depend on old neighbours: two buffers, taking turns.

        repeat: t = f(c); c = t        ->    repeat half as often: t = f(c); c = f(t)

    Returns the body that writes the second buffer, and notes the pairs.  Where the body updates
    part of a copy, the rest of the second buffer is filled once, before the loop.
    """
    if not all(isinstance(s, list) for s in segments):
        return segments
    run = _Run.of(segments)
    changing = {*carried.buffers.values(), *(b for i in run.items() for b in i.stage.outputs)}
    for k, source in carried.own_sources().items():
        target = carried.buffers[k]
        writers = [(place, i) for place, i in run.around(source) if source in i.stage.outputs]
        (place, filler), updates = writers[0], [i.stage for _, i in writers[1:]]
        if _in_place(run, source, target, carried.inner.fresh) is not None and not any(
            _depends_on(u, target) for u in updates
        ):
            continue
        if updates and _copied(filler.stage) == target:
            if not all(_is_steady(u, source, changing) for u in updates) or not _pays(
                carried.trip_count, target, updates
            ):
                continue
            run.put({place: []})
        elif filler.update or not filler.stage.axes:
            continue
        carried.twins[target] = source
    return [run.items()]


def _copied(filler: Stage) -> Buffer | None:
    """The buffer that the stage does nothing but copy."""
    sources = {
        a.value.source
        if isinstance(a.value, Load) and a.value.guard is None and a.value.indices == a.indices
        else None
        for a in filler.assigns
    }
    return sources.pop() if len(sources) == 1 else None


def _pays(trip_count: int, target: Buffer, updates: Iterable[Stage]) -> bool:
    """Whether putting new values aside at every trip would move more than filling the second
    buffer, and copying it back where the number of trips is odd: inner loops begin often."""
    aside = sum(math.prod(v.extent for v in u.axes) for u in updates)
    return trip_count * aside >= target.size * (1 + trip_count % 2)


def _is_steady(update: Stage, target: Buffer, changing: set[Buffer]) -> bool:
    """True where every iteration overwrites the same elements of `target`, whatever they hold."""
    if reads(update, target):
        return False
    places = [i for a in update.assigns for i in a.indices]
    return all(a.guard is None for a in update.assigns) and all(
        i.free <= set(update.axes) and changing.isdisjoint(e.source for e in loads(i))
        for i in places
    )


def alternating(
    body: list[Step],
    iteration: Var,
    trip_count: int,
    twins: dict[Buffer, Buffer],
    outer: StageLowering,
) -> list[Step]:
    """A loop over pairs of iterations, the first writing the twins and the second reading them."""
    pairs = Var(outer.fresh("n"), INDEX, trip_count // 2)
    swap = {**twins, **{second: first for first, second in twins.items()}}
    even = pairs * 2
    odd = even + 1
    first = _at(body, iteration, even)
    second = _at([replace_buffers(s, swap) for s in body], iteration, odd)
    fill = [
        _copy(source, target, outer.fresh)
        for target, source in ((second_, first_) for first_, second_ in twins.items())
    ]
    steps: list[Step] = [*fill, Loop((*first, *second), pairs, trip_count // 2)]
    if trip_count % 2:
        last = index.constant(trip_count - 1)
        steps += _at(body, iteration, last)
        steps += [_copy(second_, first_, outer.fresh) for first_, second_ in twins.items()]
    return steps


def _at(body: Iterable[Step], iteration: Var, trip: Expr) -> tuple[Step, ...]:
    """The body for such trips, some of which may lie beyond all that an update reaches."""
    return without_impossible(replace_variable(s, iteration, trip) for s in body)


def _copy(source: Buffer, target: Buffer, fresh: Callable[[str], str]) -> Nest:
    axes = tuple(Var(fresh("i"), INDEX, extent) for extent in target.shape)
    return Nest((Stage(fresh("s"), axes, (Assign(target, axes, load(source, axes)),)),), len(axes))


def write_back(carried: Carried, segments: list[Segment]) -> list[Segment]:
    """Make the body's results the next iteration's carried values: in place, else by copies."""
    body, inner = carried.loop.regions[1], carried.inner
    sources: dict[int, Buffer] = {}
    if all(isinstance(s, list) for s in segments):
        sources = carried.own_sources()
        run = _Run.of(segments)
    copies: list[tuple[int, Value]] = []
    for k, target in carried.buffers.items():
        if target in carried.twins:
            continue
        source = sources.get(k)
        edits = None if source is None else _in_place(run, source, target, inner.fresh)
        if edits is None:
            copies.append((k, body.results[k]))
        else:
            run.put(edits)
            inner.buffers[body.results[k]] = target
    if sources:
        segments = [run.items()]
    # Values that are about to be overwritten are copied out of the way first.
    inner.items.clear()
    overwritten = set(carried.buffers.values())
    staged: list[tuple[Buffer, Buffer]] = []
    for k, value in copies:
        source, target = inner.buffers.get(value), carried.buffers[k]
        if source is None or source in overwritten:
            source = Buffer(inner.fresh("b"), target.dtype, target.shape)
            inner.store_into(carried.loop, source, inner.reader(value))
        staged.append((source, target))
    for source, target in staged:
        inner.store_into(carried.loop, target, lambda i, b=source: load(b, i), closed=True)
    result = [*segments, list(inner.items)]
    inner.items.clear()
    return result


def _in_place(
    run: _Run, source: Buffer, target: Buffer, fresh: Callable[[str], str]
) -> dict[int, list[Item]] | None:
    """What to put in which places so that all write into `target` instead of `source`; None where
    some old value is read too late."""
    touching = run.around(source, target)
    writers = [place for place, item in touching if source in item.stage.outputs]
    if not writers:
        return None
    first = writers[0]
    edits: dict[int, list[Item]] = {}
    for place, item in touching:
        if place < first:
            continue
        old = reads(item.stage, target)
        if place == first:
            if not is_map(item.stage) or item.stage.outputs != (source,) or item.update:
                return None
            own = item.stage.assigns[0]
            if any(r.indices != own.indices or r.guard is not None for r in old):
                return None
            is_copy = own.value is load(target, own.indices)
            edits[place] = (
                []
                if is_copy
                else [replace(item, stage=_retarget(item.stage, source, target), closed=True)]
            )
        elif place not in writers:
            if old:
                return None
            edits.setdefault(place, []).append(
                replace(item, stage=_read_from(item.stage, source, target))
            )
        elif old and not (is_copy and _is_separable(item.stage, source, target)):
            return None
        else:
            edits.setdefault(place, []).extend(
                _update_in_place(item, source, target, _depends_on(item.stage, target), fresh)
            )
    return edits


def _retarget(stage: Stage, source: Buffer, target: Buffer) -> Stage:
    stage = _read_from(stage, source, target)
    return replace(
        stage,
        assigns=tuple(
            replace(a, buffer=target if a.buffer == source else a.buffer) for a in stage.assigns
        ),
    )


def _read_from(stage: Stage, source: Buffer, target: Buffer) -> Stage:
    def moved(access: Load) -> Expr:
        return load(target, access.indices, access.guard, access.default)

    return replace_loads(stage, {source: moved})


def _is_separable(update: Stage, source: Buffer, target: Buffer) -> bool:
    """True where all new values can be computed before the first is written: they do not depend
    on each other, and where they go does not depend on `target`."""
    places = [e for a in update.assigns for e in (*a.indices, a.guard) if e is not None]
    return not reads(update, source) and all(
        access.source != target for e in places for access in loads(e)
    )


def _depends_on(update: Stage, target: Buffer) -> bool:
    """Whether the update reads of `target` what another of its points may overwrite."""
    return not all(
        is_apart(access, assign, update)
        for access in reads(update, target)
        for assign in update.assigns
    )


def _update_in_place(
    item: Item, source: Buffer, target: Buffer, depends: bool, fresh: Callable[[str], str]
) -> list[Item]:
    """An update of `target`; if its new values depend on old ones, all are computed first."""
    (assign,) = item.stage.assigns
    if not depends:
        return [replace(item, stage=_retarget(item.stage, source, target), closed=True)]
    shape = tuple(v.extent for v in item.stage.axes)
    fetched = Buffer(fresh("b"), target.dtype, shape)
    point = item.stage.axes
    compute = Stage(fresh("s"), point, (Assign(fetched, point, assign.value),))
    other = tuple(Var(fresh("i"), INDEX, v.extent) for v in point)
    assigns = (replace(assign, buffer=target, value=load(fetched, point)),)
    writing = rename_axes(
        replace(item.stage, assigns=assigns), dict(zip(point, other, strict=True))
    )
    return [Item(compute, item.node), Item(writing, item.node, update=True, closed=True)]
