"""Loops inside kernels: trip counts, counters, and bodies as steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hlo_mlc.expr.build import apply, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import BOOL, INDEX
from hlo_mlc.graph.core import BRANCHES, WHILE, Graph, Node, Value
from hlo_mlc.graph.counting import Progression, counting
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.definition import Indices
from hlo_mlc.ops.registry import supports
from hlo_mlc.ops.shape import splat_value
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.fuse.fuser import Fuser
from hlo_mlc.partition.fuse.groups import finished, in_order, readers
from hlo_mlc.partition.lower.loop_carried import (
    Carried,
    Segment,
    alternating,
    read_first,
    take_turns,
    write_back,
)
from hlo_mlc.partition.lower.stages import Item, StageLowering
from hlo_mlc.partition.lower.unrolled_loops import write_out
from hlo_mlc.tensor.core import Branch, Loop, Nest, Step
from hlo_mlc.tensor.liveness import step_reads


def refusal(node: Node, left: Mapping[str, str]) -> str:
    """Why an op cannot become part of a kernel, empty where it can; those in `left` cannot on this
    target."""
    if node.op != WHILE:
        return left.get(node.op) or supports(node)
    return _inner_refusal(node, left)


def _inner_refusal(node: Node, left: Mapping[str, str]) -> str:
    """Branches that are chosen in a loop are part of its kernel."""
    for region in node.regions:
        for inner in region.nodes:
            chooses = inner.op in BRANCHES and inner.op not in left
            if reason := _inner_refusal(inner, left) if chooses else refusal(inner, left):
                return reason if chooses else f"its body has {inner.op}: {reason}"
            if inner.op == "stablehlo.constant" and splat_value(inner.literal) is None:
                return "its body has a constant table"
    return ""


def lower_branch(node: Node, outer: StageLowering) -> list[Step]:
    """The steps of a choice between branches; its results, and what they are chosen by, get buffers
    in `outer`."""
    choice = node.operands[0]
    branches = node.regions[::-1] if node.op == "stablehlo.if" else node.regions
    buffers: dict[int, Buffer] = {}
    for k, result in enumerate(node.results):
        same, *others = {branch.results[k] for branch in branches}
        if others or any(same in n.results for n in branches[0].nodes):
            buffers[k] = outer.define(result)
        else:
            outer.alias(node, result, same)
    sides = [_branch_steps(node, branch, buffers, outer) for branch in branches]
    steps = sides.pop()  # numbers that no branch has choose the last one
    for number, side in reversed(list(enumerate(sides))):
        chosen = outer.read(choice, ())
        wanted = (
            ~chosen
            if choice.type.dtype is BOOL
            else apply("eq", chosen, const(number, choice.type.dtype))
        )
        if loads(wanted):
            verdict = Buffer(outer.fresh("b"), BOOL, ())
            outer.store_into(node, verdict, lambda _, e=wanted: e)
            wanted = load(verdict, ())
        steps = [Branch(wanted, tuple(side), tuple(steps))]
    return steps


def _branch_steps(
    node: Node, branch: Graph, buffers: Mapping[int, Buffer], outer: StageLowering
) -> list[Step]:
    """The steps of one branch, which fill the buffers of what is chosen, by position."""
    results = {k: branch.results[k] for k in buffers}
    lowering = StageLowering(
        branch, frozenset(results.values()), outer.read, outer.fresh, outer.costs, around=outer
    )
    own = {value for inner in branch.nodes for value in inner.results}
    for k, value in results.items():
        if value in own:
            lowering.given.setdefault(value, buffers[k])
    segments = _lower_body(branch, lowering, {})
    for k, value in results.items():
        if lowering.buffers.get(value) != buffers[k]:
            lowering.store_into(node, buffers[k], lowering.reader(value))
    segments.append(list(lowering.items))
    lowering.items.clear()
    return _steps(segments, frozenset(buffers.values()), outer.costs)


def lower_while(node: Node, outer: StageLowering) -> list[Step] | None:
    """The steps of a while loop; its results get buffers in `outer`.  None for a short one, which
    has become a stage among the others of `outer`."""
    if write_out(node, outer, lambda value: _literal(value, outer)):
        return None
    loop = _WhileLoop(node, outer)
    steps = loop.initialized()
    if loop.trip_count == 0:
        return steps
    body, twins = loop.body_steps()
    if twins:
        return [*steps, *alternating(body, loop.iteration, loop.trip_count, twins, outer)]
    if loop.trip_count is not None:
        return [*steps, Loop(tuple(body), loop.iteration, loop.trip_count)]
    test, verdict = loop.test_steps()
    return [*steps, Loop(tuple(body), loop.iteration, None, tuple(test), load(verdict, ()))]


class _WhileLoop:
    """The lowering of a loop to steps: each carried value is constant, a counter, or has a
    buffer."""

    def __init__(self, node: Node, outer: StageLowering) -> None:
        self.node, self.outer = node, outer
        self.condition, self.body = node.regions
        found = counting(node, lambda value: _literal(value, outer))
        self.trip_count = None if found is None else found.trips
        self.counters = {} if found is None else found.carried(self.body)
        self.progressions = {} if found is None else found.progressions
        self.iteration = Var(outer.fresh("n"), INDEX, self.trip_count)
        self.invariant = {
            k
            for k, v in enumerate(self.body.results)
            if v is self.body.parameters[k] or self.trip_count == 0
        }
        self.carried: dict[int, Buffer] = {}

    def initialized(self) -> list[Step]:
        """The steps before the first iteration; from here on the results are known in `outer`."""
        node, outer = self.node, self.outer
        first = len(outer.items)
        for k, result in enumerate(node.results):
            if k in self.invariant:
                outer.alias(node, result, node.operands[k])
            elif k in self.counters:
                end = self.counters[k].at(self.trip_count)
                outer.compute(node, result, lambda _, t=result.type.dtype, v=end: const(v, t))
            else:
                self.carried[k] = outer.store(node, result, outer.reader(node.operands[k]))
        initial = outer.items[first:]
        del outer.items[first:]
        written = frozenset(b for item in initial for b in item.stage.outputs)
        return _fused(initial, written, outer.costs)

    def body_steps(self) -> tuple[list[Step], dict[Buffer, Buffer]]:
        """The steps of an iteration, and the buffers that take turns with others in it."""
        inner = self._inside(self.body)
        segments = _lower_body(self.body, inner, self._known())
        state = Carried(self.node, inner, self.carried, self.trip_count)
        segments = read_first(state, segments)
        if self.trip_count is not None and self.trip_count >= 2:
            segments = take_turns(state, segments)
        segments = write_back(state, segments)
        needed = frozenset((*self.carried.values(), *state.twins.values()))
        return _steps(segments, needed, self.outer.costs), state.twins

    def test_steps(self) -> tuple[list[Step], Buffer]:
        """The steps that decide whether there is another iteration, and where they say so."""
        test = self._inside(self.condition)
        segments = _lower_body(self.condition, test, {})
        predicate = self.condition.results[0]
        verdict = test.buffers.get(predicate)
        if verdict is None:  # a constant, or what the loop hands on unchanged
            verdict = Buffer(test.fresh("t"), BOOL, ())
            test.store_into(self.node, verdict, test.reader(predicate))
            segments.append(list(test.items))
            test.items.clear()
        return _steps(segments, frozenset((verdict,)), self.outer.costs), verdict

    def _inside(self, region: Graph) -> StageLowering:
        """The lowering of a region, which reads what is carried and what lies around the loop."""
        positions = {value: k for k, value in enumerate(region.parameters)}

        def outside(value: Value, indices: Indices) -> Expr:
            k = positions.get(value)
            if k is None:
                return self.outer.read(value, indices)
            if k in self.invariant:
                return self.outer.read(self.node.operands[k], indices)
            return _counted(self.counters[k], self.iteration, value)

        wanted = (
            value
            for k, value in enumerate(region.results)
            if region is self.condition or k in self.carried
        )
        lowering = StageLowering(
            region,
            frozenset(wanted),
            outside,
            self.outer.fresh,
            self.outer.costs,
            around=self.outer,
        )
        for k, buffer in self.carried.items():
            lowering.buffers[region.parameters[k]] = buffer
        return lowering

    def _known(self) -> dict[Value, Expr]:
        """What is computed in the body from the number of the iteration alone."""
        parameters = set(self.body.parameters)
        return {
            value: _counted(progression, self.iteration, value)
            for value, progression in self.progressions.items()
            if value not in parameters
        }


def _counted(progression: Progression, iteration: Var, value: Value) -> Expr:
    number = iteration * progression.step + progression.start
    return apply("convert", number, dtype=value.type.dtype)


def _literal(value: Value, outer: StageLowering) -> int | None:
    """The integer that a scalar value is known to be."""
    node = outer.definition(value)
    if node is None or node.literal is None or node.literal.ndim:
        return None
    return int(node.literal) if node.literal.dtype.kind in "iu" else None


def _lower_body(
    graph: Graph, lowering: StageLowering, known: Mapping[Value, Expr]
) -> list[Segment]:
    """`known`: scalars that are expressions of the loop's counter."""
    uses = uses_among(graph.nodes)
    segments: list[Segment] = []
    for node in graph.nodes:
        if node.results and (number := known.get(node.results[0])) is not None:
            lowering.compute(node, node.results[0], lambda _, e=number: e)
        elif node.op == WHILE or node.op in BRANCHES:
            steps = (
                lower_while(node, lowering) if node.op == WHILE else lower_branch(node, lowering)
            )
            if steps is not None:
                segments += [list(lowering.items), *steps]
                lowering.items.clear()
        else:
            lowering.add(node, uses)
    segments.append(list(lowering.items))
    lowering.items.clear()
    return segments


def _fused(items: list[Item], needed: frozenset[Buffer], costs: Costs) -> list[Step]:
    """The nests of a straight run of stages; `needed` buffers are read after it."""
    fuser = Fuser(costs)
    for item in _live(items, needed):
        if item.update or item.closed:
            nest = Nest((item.stage,), len(item.stage.axes))
            fuser.add_steps(item.node, [nest], after_all=True)
        else:
            fuser.add_stage(item.node, item.stage)
    fuser.join_chains(needed)
    fuser.join_handed(needed)
    fuser.compact()
    read_by = readers(fuser.groups)
    return [step for group in in_order(fuser.groups) for step in finished(group, read_by, needed)]


def _live(items: Sequence[Item], needed: Iterable[Buffer]) -> list[Item]:
    """The items without those whose buffers nobody reads: what is padded by less than nothing is
    read nowhere."""
    live, kept = set(needed), []
    for item in reversed(items):
        if not live.isdisjoint(item.stage.outputs):
            live.update(item.stage.inputs)
            kept.append(item)
    return kept[::-1]


def _steps(segments: list[Segment], needed: frozenset[Buffer], costs: Costs) -> list[Step]:
    read_later: set[Buffer] = set(needed)
    results: list[list[Step]] = []
    for segment in reversed(segments):
        if isinstance(segment, list):
            results.append(_fused(segment, frozenset(read_later), costs))
            read_later.update(b for item in segment for b in item.stage.inputs)
        else:
            results.append([segment])
            read_later.update(step_reads(segment))
    return [step for group in reversed(results) for step in group]
