"""Loops as part of a kernel: carried values in buffers, written in place where nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.ops.definition import Indices
from hlo_mlc.ops.registry import supports
from hlo_mlc.ops.shape import splat_value
from hlo_mlc.partition.lowering import Item, StageLowering, uses_of
from hlo_mlc.partition.units import Fuser, finished, in_order, readers, step_reads
from hlo_mlc.tensor.classify import is_map, reads
from hlo_mlc.tensor.core import Assign, Loop, Nest, Stage, Step
from hlo_mlc.tensor.rewrite import rename_axes, replace_buffers, replace_loads, replace_variable


def loop_refusal(node: Node) -> str:
    """Why a while loop cannot become part of a kernel; empty where it can."""
    for region in node.regions:
        for inner in region.nodes:
            reason = loop_refusal(inner) if inner.op == "stablehlo.while" else supports(inner)
            if reason:
                return f"its body has {inner.op}: {reason}"
            if inner.op == "stablehlo.constant" and splat_value(inner.literal) is None:
                return "its body has a constant table"
    return ""


@dataclass(frozen=True, slots=True)
class _Counter:
    """A carried value that is `start + iteration * step`."""

    start: int
    step: int


def lower_while(node: Node, outer: StageLowering) -> list[Step]:
    """The steps of a while loop; its results get buffers in `outer`."""
    condition, body = node.regions
    trip_count, counters = _find_counters(node, outer)
    iteration = Var(outer.fresh("n"), INDEX, trip_count)
    invariant = {k for k, v in enumerate(body.results) if v is body.parameters[k]}
    if trip_count == 0:
        invariant = set(range(len(body.results)))
    carried: dict[int, Buffer] = {}
    first = len(outer.items)
    for k, result in enumerate(node.results):
        if k in invariant:
            outer.alias(node, result, node.operands[k])
        elif k in counters:
            end = counters[k].start + counters[k].step * trip_count
            outer.compute(node, result, lambda _, t=result.type.dtype, v=end: const(v, t))
        else:
            carried[k] = outer.store(node, result, outer.reader(node.operands[k]))
    initial = outer.items[first:]
    del outer.items[first:]
    steps = fuse_items(initial, _all_written(initial))
    if trip_count == 0:
        return steps

    def inner_lowering(region: Graph, wanted: frozenset[Value]) -> StageLowering:
        def outside(value: Value, indices: Indices) -> Expr:
            if value in region.parameters:
                k = region.parameters.index(value)
                if k in invariant:
                    return outer.read(node.operands[k], indices)
                scaled = apply("mul", iteration, index.constant(counters[k].step))
                shifted = apply("add", scaled, index.constant(counters[k].start))
                return apply("convert", shifted, dtype=value.type.dtype)
            return outer.read(value, indices)

        lowering = StageLowering(region, wanted, outside, outer.fresh, around=outer)
        for k, buffer in carried.items():
            lowering.buffers[region.parameters[k]] = buffer
        return lowering

    inner = inner_lowering(body, frozenset(body.results))
    segments = _lower_body(body, inner)
    twins: dict[Buffer, Buffer] = {}
    if trip_count is not None and trip_count >= 2:
        segments, twins = _take_turns(node, segments, inner, carried)
    segments = _write_back(node, segments, inner, carried, twins)
    needed = frozenset((*carried.values(), *twins.values()))
    body_steps = _steps(segments, needed)
    if twins:
        return [*steps, *_alternating(body_steps, iteration, trip_count, twins, outer)]
    if trip_count is not None:
        return [*steps, Loop(tuple(body_steps), iteration, trip_count)]
    test = inner_lowering(condition, frozenset(condition.results))
    predicate = condition.results[0]
    test_segments = _lower_body(condition, test)
    if predicate not in test.buffers:
        test.store(node, predicate, test.reader(predicate))
        test_segments.append(list(test.items))
        test.items.clear()
    verdict = test.buffers[predicate]
    test_steps = _steps(test_segments, frozenset((verdict,)))
    return [*steps, Loop(tuple(body_steps), iteration, None, tuple(test_steps), load(verdict, ()))]


# The lowered body: lists of items, with the steps of inner loops between them.
Segment = list[Item] | Step


def _lower_body(graph: Graph, lowering: StageLowering) -> list[Segment]:
    uses = uses_of(graph)
    segments: list[Segment] = []
    for node in graph.nodes:
        if node.op == "stablehlo.while":
            steps = lower_while(node, lowering)
            segments += [list(lowering.items), *steps]
            lowering.items.clear()
        else:
            lowering.add(node, uses)
    segments.append(list(lowering.items))
    lowering.items.clear()
    return segments


def _own_source(loop: Node, k: int, inner: StageLowering, carried: dict[int, Buffer]
                ) -> Buffer | None:
    """The buffer of the body's result k, if it is nothing but that result; None otherwise."""
    body = loop.regions[1]
    value = body.results[k]
    source = inner.buffers.get(value)
    alone = (sum(v is value for v in body.results) == 1 and source not in carried.values()
             and inner.definition(value) is not None
             and all(body.results[j] is not body.parameters[k] for j in carried if j != k))
    return source if alone else None


def _take_turns(loop: Node, segments: list[Segment], inner: StageLowering,
                carried: dict[int, Buffer]) -> tuple[list[Segment], dict[Buffer, Buffer]]:
    """Carried buffers whose new values depend on old neighbours: two buffers, taking turns.

        repeat: t = f(c); c = t        ->    repeat half as often: t = f(c); c = f(t)

    Returns the body that writes the second buffer, and {first: second}.  Where the body updates
    part of a copy, the rest of the second buffer is filled once, before the loop.
    """
    twins: dict[Buffer, Buffer] = {}
    if not all(isinstance(s, list) for s in segments):
        return segments, twins
    items = [i for s in segments for i in s]
    changing = {*carried.values(), *(b for item in items for b in item.stage.outputs)}
    for k, target in carried.items():
        source = _own_source(loop, k, inner, carried)
        if source is None:
            continue
        writers = [i for i in items if source in i.stage.outputs]
        filler, updates = writers[0], writers[1:]
        if _in_place(items, source, target, inner.fresh) is not None \
                and not any(reads(u.stage, target) for u in updates):
            continue
        points = set(filler.stage.axes)
        if updates:
            (own,) = filler.stage.assigns
            if own.value is not load(target, own.indices) \
                    or not all(_is_steady(u.stage, source, changing) for u in updates):
                continue
            items = [i for i in items if i is not filler]
        elif filler.update or not points:
            continue
        twins[target] = source
    return [items], twins


def _is_steady(update: Stage, target: Buffer, changing: set[Buffer]) -> bool:
    """True where every iteration overwrites the same elements of `target`, whatever they hold."""
    if reads(update, target):
        return False
    places = [i for a in update.assigns for i in a.indices]
    return all(a.guard is None for a in update.assigns) and all(
        i.free <= set(update.axes) and changing.isdisjoint(e.source for e in loads(i))
        for i in places)


def _alternating(body: list[Step], iteration: Var, trip_count: int, twins: dict[Buffer, Buffer],
                 outer: StageLowering) -> list[Step]:
    """A loop over pairs of iterations, the first writing the twins and the second reading them."""
    pairs = Var(outer.fresh("n"), INDEX, trip_count // 2)
    swap = {**twins, **{second: first for first, second in twins.items()}}
    even = index.multiply(pairs, index.constant(2))
    odd = index.add(even, index.constant(1))
    first = [replace_variable(s, iteration, even) for s in body]
    second = [replace_variable(replace_buffers(s, swap), iteration, odd) for s in body]
    fill = [_copy(source, target, outer.fresh) for target, source in
            ((second_, first_) for first_, second_ in twins.items())]
    steps: list[Step] = [*fill, Loop((*first, *second), pairs, trip_count // 2)]
    if trip_count % 2:
        last = index.constant(trip_count - 1)
        steps += [replace_variable(s, iteration, last) for s in body]
        steps += [_copy(second_, first_, outer.fresh) for first_, second_ in twins.items()]
    return steps


def _copy(source: Buffer, target: Buffer, fresh: Callable[[str], str]) -> Nest:
    axes = tuple(Var(fresh("i"), INDEX, extent) for extent in target.shape)
    return Nest((Stage(fresh("s"), axes, (Assign(target, axes, load(source, axes)),)),), len(axes))


def _write_back(loop: Node, segments: list[Segment], inner: StageLowering,
                carried: dict[int, Buffer], twins: dict[Buffer, Buffer]) -> list[Segment]:
    """Make the body's results the next iteration's carried values: in place, else by copies."""
    body = loop.regions[1]
    taken: set[Buffer] = set()
    copies: list[tuple[int, Value]] = []
    only_items = all(isinstance(s, list) for s in segments)
    items = [i for s in segments if isinstance(s, list) for i in s]
    for k, target in carried.items():
        if target in twins:
            continue
        value = body.results[k]
        source = _own_source(loop, k, inner, carried) if only_items else None
        movable = source is not None and source not in taken
        rewritten = _in_place(items, source, target, inner.fresh) if movable else None
        if rewritten is None:
            copies.append((k, value))
        else:
            items = rewritten
            taken.add(source)
            inner.buffers[value] = target
    if only_items:
        segments = [items]
    # Values that are about to be overwritten are copied out of the way first.
    inner.items.clear()
    staged: list[tuple[int, Value, Buffer]] = []
    for k, value in copies:
        source = inner.buffers.get(value)
        if source is None or source in carried.values():
            temporary = Buffer(inner.fresh("b"), carried[k].dtype, carried[k].shape)
            inner.store_into(loop, temporary, inner.reader(value))
            staged.append((k, value, temporary))
        else:
            staged.append((k, value, source))
    for k, _, source in staged:
        inner.store_into(loop, carried[k], lambda i, b=source: load(b, i), closed=True)
    result = [*segments, list(inner.items)]
    inner.items.clear()
    return result


def _in_place(items: list[Item], source: Buffer, target: Buffer,
              fresh: Callable[[str], str]) -> list[Item] | None:
    """Items that write into `target` instead of `source`, if every old value is read in time."""
    writers = [n for n, item in enumerate(items) if source in item.stage.outputs]
    if not writers:
        return None
    first = writers[0]
    filler = items[first].stage
    if not is_map(filler) or filler.outputs != (source,) or items[first].update:
        return None
    own = filler.assigns[0]
    if any(r.indices != own.indices or r.guard is not None for r in reads(filler, target)):
        return None
    is_copy = own.value is load(target, own.indices)
    result = list(items[:first])
    if not is_copy:
        result.append(replace(items[first], stage=_retarget(filler, source, target), closed=True))
    for n in range(first + 1, len(items)):
        item = items[n]
        old = reads(item.stage, target)
        if n not in writers:
            if old:
                return None
            result.append(replace(item, stage=_read_from(item.stage, source, target)))
            continue
        if old and not (is_copy and _is_separable(item.stage, source, target)):
            return None
        result += _update_in_place(item, source, target, bool(old), fresh)
    return result


def _retarget(stage: Stage, source: Buffer, target: Buffer) -> Stage:
    stage = _read_from(stage, source, target)
    return replace(stage, assigns=tuple(
        replace(a, buffer=target if a.buffer == source else a.buffer) for a in stage.assigns))


def _read_from(stage: Stage, source: Buffer, target: Buffer) -> Stage:
    def moved(access: Load) -> Expr:
        return load(target, access.indices, access.guard, access.default)

    return replace_loads(stage, source, moved)


def _is_separable(update: Stage, source: Buffer, target: Buffer) -> bool:
    """True where all new values can be computed before the first is written: they do not depend
    on each other, and where they go does not depend on `target`."""
    places = [e for a in update.assigns for e in (*a.indices, a.guard) if e is not None]
    return not reads(update, source) and all(
        access.source != target for e in places for access in loads(e))


def _update_in_place(item: Item, source: Buffer, target: Buffer, reads_old: bool,
                     fresh: Callable[[str], str]) -> list[Item]:
    """An update of `target`; if its new values depend on old ones, all are computed first."""
    (assign,) = item.stage.assigns
    if not reads_old:
        return [replace(item, stage=_retarget(item.stage, source, target), closed=True)]
    shape = tuple(v.extent for v in item.stage.axes)
    fetched = Buffer(fresh("b"), target.dtype, shape)
    point = item.stage.axes
    compute = Stage(fresh("s"), point, (Assign(fetched, point, assign.value),))
    other = tuple(Var(fresh("i"), INDEX, v.extent) for v in point)
    assigns = (replace(assign, buffer=target, value=load(fetched, point)),)
    writing = rename_axes(replace(item.stage, assigns=assigns),
                          dict(zip(point, other, strict=True)))
    return [Item(compute, item.node), Item(writing, item.node, update=True, closed=True)]


def fuse_items(items: list[Item], needed: frozenset[Buffer]) -> list[Step]:
    """Nests for a straight run of stages; `needed` buffers are read after it."""
    fuser = Fuser()
    for item in items:
        if item.update or item.closed:
            nest = Nest((item.stage,), len(item.stage.axes))
            fuser.add_steps(item.node, [nest], after_all=True)
        else:
            fuser.add_stage(item.node, item.stage)
    read_by = readers(fuser.units)
    return [step for unit in in_order(fuser.units) for step in finished(unit, read_by, needed)]


def _steps(segments: list[Segment], needed: frozenset[Buffer]) -> list[Step]:
    read_later: set[Buffer] = set(needed)
    results: list[list[Step]] = []
    for segment in reversed(segments):
        if isinstance(segment, list):
            results.append(fuse_items(segment, frozenset(read_later)))
            read_later.update(b for item in segment for b in item.stage.inputs)
        else:
            results.append([segment])
            read_later.update(step_reads(segment))
    return [step for group in reversed(results) for step in group]


def _all_written(items: list[Item]) -> frozenset[Buffer]:
    return frozenset(b for item in items for b in item.stage.outputs)


def _find_counters(node: Node, outer: StageLowering) -> tuple[int | None, dict[int, _Counter]]:
    """The number of trips of `while i < limit: …; i = i + step` with literal start, limit and
    step, and everything that is carried and counts trips; (None, {}) for other loops."""
    condition, body = node.regions
    verdict = _definition(condition, condition.results[0])
    if verdict is None or verdict.op != "stablehlo.compare":
        return None, {}
    left, right = verdict.operands
    if left not in condition.parameters or verdict.attributes.get("comparison_direction") != "LT":
        return None, {}
    counters = {k: found for k in range(len(body.results))
                if (found := _counter(node, k, outer)) is not None}
    limit = _literal(right, outer, condition)
    counter = counters.get(condition.parameters.index(left))
    if limit is None or counter is None or counter.step <= 0:
        return None, {}
    trip_count = max(0, -(-(limit - counter.start) // counter.step))
    wraps = counter.start + counter.step * trip_count > np.iinfo(left.type.dtype.numpy).max
    return (None, {}) if wraps else (trip_count, counters)


def _counter(node: Node, position: int, outer: StageLowering) -> _Counter | None:
    body = node.regions[1]
    update = _definition(body, body.results[position])
    if update is None or update.op != "stablehlo.add":
        return None
    old, step = update.operands
    if old is not body.parameters[position]:
        old, step = step, old
    start, literal = _literal(node.operands[position], outer), _literal(step, outer, body)
    if old is not body.parameters[position] or start is None or literal is None:
        return None
    return _Counter(start, literal)


def _definition(graph: Graph, value: Value) -> Node | None:
    return next((n for n in graph.nodes if value in n.results), None)


def _literal(value: Value, outer: StageLowering, region: Graph | None = None) -> int | None:
    """The integer that a rank-0 value is known to be."""
    node = _definition(region, value) if region is not None else None
    node = node or outer.definition(value)
    if node is None or node.literal is None or node.literal.ndim:
        return None
    return int(node.literal) if node.literal.dtype.kind in "iu" else None
