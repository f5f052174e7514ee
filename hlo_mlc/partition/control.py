"""Loops as part of a kernel: their trips, their counters, and their bodies as steps."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.counting import Progression, counting
from hlo_mlc.ops.definition import Indices
from hlo_mlc.ops.registry import supports
from hlo_mlc.ops.shape import splat_value
from hlo_mlc.partition.carrying import Carried, Segment, alternating, take_turns, write_back
from hlo_mlc.partition.lowering import Item, StageLowering, uses_of
from hlo_mlc.partition.units import Fuser, finished, in_order, readers, step_reads
from hlo_mlc.tensor.core import Loop, Nest, Step


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


def lower_while(node: Node, outer: StageLowering) -> list[Step]:
    """The steps of a while loop; its results get buffers in `outer`."""
    condition, body = node.regions
    found = counting(node, lambda value: _literal(value, outer))
    trip_count = None if found is None else found.trips
    counters = {} if found is None else found.carried(body)
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
            end = counters[k].at(trip_count)
            outer.compute(node, result, lambda _, t=result.type.dtype, v=end: const(v, t))
        else:
            carried[k] = outer.store(node, result, outer.reader(node.operands[k]))
    initial = outer.items[first:]
    del outer.items[first:]
    steps = fuse_items(initial, _all_written(initial))
    if trip_count == 0:
        return steps

    def inner_lowering(region: Graph, wanted: frozenset[Value]) -> StageLowering:
        positions = {value: k for k, value in enumerate(region.parameters)}

        def outside(value: Value, indices: Indices) -> Expr:
            k = positions.get(value)
            if k is not None:
                if k in invariant:
                    return outer.read(node.operands[k], indices)
                return _counted(counters[k], iteration, value)
            return outer.read(value, indices)

        lowering = StageLowering(region, wanted, outside, outer.fresh, around=outer)
        for k, buffer in carried.items():
            lowering.buffers[region.parameters[k]] = buffer
        return lowering

    inner = inner_lowering(body, frozenset(body.results))
    parameters = set(body.parameters)
    known = {} if found is None else {
        value: _counted(progression, iteration, value)
        for value, progression in found.progressions.items() if value not in parameters}
    segments = _lower_body(body, inner, known)
    state = Carried(node, inner, carried)
    if trip_count is not None and trip_count >= 2:
        segments = take_turns(state, segments)
    segments = write_back(state, segments)
    needed = frozenset((*carried.values(), *state.twins.values()))
    body_steps = _steps(segments, needed)
    if state.twins:
        turns = alternating(body_steps, iteration, trip_count, state.twins, outer)
        return [*steps, *turns]
    if trip_count is not None:
        return [*steps, Loop(tuple(body_steps), iteration, trip_count)]
    test = inner_lowering(condition, frozenset(condition.results))
    predicate = condition.results[0]
    test_segments = _lower_body(condition, test, {})
    if predicate not in test.buffers:
        test.store(node, predicate, test.reader(predicate))
        test_segments.append(list(test.items))
        test.items.clear()
    verdict = test.buffers[predicate]
    test_steps = _steps(test_segments, frozenset((verdict,)))
    return [*steps, Loop(tuple(body_steps), iteration, None, tuple(test_steps), load(verdict, ()))]


def _counted(progression: Progression, iteration: Var, value: Value) -> Expr:
    scaled = apply("mul", iteration, index.constant(progression.step))
    shifted = apply("add", scaled, index.constant(progression.start))
    return apply("convert", shifted, dtype=value.type.dtype)


def _literal(value: Value, outer: StageLowering) -> int | None:
    """The integer that a rank-0 value is known to be."""
    node = outer.definition(value)
    if node is None or node.literal is None or node.literal.ndim:
        return None
    return int(node.literal) if node.literal.dtype.kind in "iu" else None


def _lower_body(graph: Graph, lowering: StageLowering, known: Mapping[Value, Expr]
                ) -> list[Segment]:
    """`known`: scalars that are expressions of the loop's counter."""
    uses = uses_of(graph)
    segments: list[Segment] = []
    for node in graph.nodes:
        if node.results and (number := known.get(node.results[0])) is not None:
            lowering.compute(node, node.results[0], lambda _, e=number: e)
        elif node.op == "stablehlo.while":
            steps = lower_while(node, lowering)
            segments += [list(lowering.items), *steps]
            lowering.items.clear()
        else:
            lowering.add(node, uses)
    segments.append(list(lowering.items))
    lowering.items.clear()
    return segments


def fuse_items(items: list[Item], needed: frozenset[Buffer]) -> list[Step]:
    """Nests for a straight run of stages; `needed` buffers are read after it."""
    fuser = Fuser()
    for item in items:
        if item.update or item.closed:
            nest = Nest((item.stage,), len(item.stage.axes))
            fuser.add_steps(item.node, [nest], after_all=True)
        else:
            fuser.add_stage(item.node, item.stage)
    fuser.join_chains(needed)
    fuser.settle()
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
