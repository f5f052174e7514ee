"""The plan for a graph: which nodes become which kernel, what stays with XLA, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Graph, Node, Value, constant_node
from hlo_mlc.graph.rewrite import operands_first, uses_among
from hlo_mlc.ops.definition import Indices
from hlo_mlc.ops.shape import splat_value
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.fuse.donation import in_place
from hlo_mlc.partition.fuse.groups import Fuser, Unit, finished, in_order, merge_runs, readers
from hlo_mlc.partition.fuse.loops import lower_while, refusal
from hlo_mlc.partition.fuse.nests import FusionLimits
from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.partition.lower.layouts import Order, lay_out, stated_orders
from hlo_mlc.partition.lower.packing import pack
from hlo_mlc.partition.lower.stages import StageLowering
from hlo_mlc.partition.naming import kernel_name, told_apart
from hlo_mlc.partition.row_blocks import RowBlocks, RowCall, row_blocks
from hlo_mlc.tensor.canonical import stages, written
from hlo_mlc.tensor.core import Nest, Step
from hlo_mlc.tensor.liveness import step_writes, without_dead
from hlo_mlc.tensor.merging import merge_copies

LIMITS = FusionLimits()  # those of CPUs
CONSTRAINT = "sdy.sharding_constraint"
TRIVIAL = frozenset((CONSTRAINT, "stablehlo.constant", "stablehlo.reshape", "stablehlo.iota"))


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A kernel in its place: the nodes that it computes and the values that it connects.

    `aliases` are the positions of results and of the operands whose memory they take over.
    `border_bytes` are those of values that pass between it and other nodes of its graph,
    `copied_bytes` those of results that XLA has to copy into memory that is read for them;
    `is_whole` says that there is nothing else in the program, `in_loop` that it is a part of the
    body of a loop that stays with XLA.  `constants` are those that only it uses: constants of the
    graph in another layout.  `locations` are the lines of the user's program that compute what the
    kernel's buffers hold, by the names that they have in the kernel.  `blocks` are kernels that
    compute so many rows of it each, in its stead.  `orders` are those of the values that it has in
    memory otherwise than row by row, `transposed` are such that XLA transposes for it.
    """

    kernel: Kernel
    nodes: tuple[Node, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    aliases: tuple[tuple[int, int], ...]
    border_bytes: int
    copied_bytes: int
    is_whole: bool
    in_loop: bool = False
    constants: tuple[Node, ...] = ()
    locations: Mapping[str, str] = field(default_factory=dict)
    blocks: RowBlocks | None = None
    orders: Mapping[Value, Order] = field(default_factory=dict)
    transposed: tuple[Value, ...] = ()

    def call(self, operands: tuple[Value, ...], results: tuple[Value, ...],
             attributes: Mapping[str, object]) -> Node:
        """A call of its kernel, or of one that computes a part of it."""
        layouts = {name: tuple(self.orders.get(v, ())[::-1] for v in values)
                   for name, values in (("operand_layouts", operands), ("result_layouts", results))
                   } if self.orders else {}
        return Node("hlo_mlc.kernel", operands, results, {**attributes, **layouts},
                    location=self.kernel.name)  # what XLA, and so JAX's profiler, calls it by

    @property
    def kernels(self) -> list[tuple[Kernel, int, float]]:
        """What is called, how often, and which share of the whole one call computes."""
        if self.blocks is None:
            return [(self.kernel, 1, 1.0)]
        return self.blocks.kernels


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Whether a cluster is taken, why, and what both sides are expected to need.

    `ours_us` and `xla_us` are those of the cluster in its place: more than its kernel's.  What was
    `recorded` when the kernel was tuned stands, whatever the rest of the program is.
    """

    take: bool
    reason: str
    estimate: Estimate
    ours_us: float
    xla_us: float
    recorded: bool = False
    fault: str = ""  # why XLA is better not asked to compute it
    opens: bool = False  # its loops are better left to XLA, with kernels in their bodies


Chooser = Callable[[Cluster], Verdict]


@dataclass(slots=True)
class Plan:
    """The rewritten graph with everything that explains it; `limits` are those of the target."""

    graph: Graph
    limits: FusionLimits
    taken: list[tuple[Cluster, Verdict]] = field(default_factory=list)
    rejected: list[tuple[Cluster, Verdict]] = field(default_factory=list)
    left: dict[Node, str] = field(default_factory=dict)  # why a node stays with XLA
    apart: dict[Node, str] = field(default_factory=dict)  # why it did not join those before it
    nodes: int = 0  # non-trivial nodes before
    remaining: int = 0  # and after

    @property
    def coverage(self) -> float:
        """Share of the non-trivial ops that are in our kernels (1 where there are none)."""
        return 1.0 - self.remaining / self.nodes if self.nodes else 1.0


def partition(graph: Graph, choose: Chooser, small: Callable[[Unit], bool],
              donated: Sequence[tuple[int, int]] = (), limits: FusionLimits = LIMITS) -> Plan:
    """Cut `graph` into clusters, let `choose` decide each, and rewrite the graph.

    `small(unit)` says that a unit is too small to deserve a kernel of its own: runs of such units
    become one kernel.  `donated` are the numbers of parameters and of the results that their
    memory is for; `limits` are those of the target.
    """
    opened: dict[Node, str] = {}
    while True:
        plan = _planned(graph, choose, small, donated, frozenset(), limits, opened)
        more = {node: verdict.reason for cluster, verdict in plan.rejected if verdict.opens
                for node in cluster.nodes if node.op == _LOOP}
        if not more:
            break
        opened |= more
    return _rewritten(_told_apart(plan, graph), graph)


def _told_apart(plan: Plan, graph: Graph) -> Plan:
    """The plan in which different kernels have different names, whichever of them are taken."""
    places = {node: place for place, node in enumerate(graph.walk())}
    clusters = sorted((cluster for cluster, _ in (*plan.taken, *plan.rejected)),
                      key=lambda cluster: places.get(cluster.nodes[0], 0))
    names = {cluster.kernel.fingerprint: cluster.kernel.name for cluster in reversed(clusters)}
    first = dict.fromkeys(cluster.kernel.fingerprint for cluster in clusters)
    apart = dict(zip(first, told_apart(names[one] for one in first), strict=True))

    def renamed(cluster: Cluster) -> Cluster:
        name = apart[cluster.kernel.fingerprint]
        return replace(cluster, kernel=replace(cluster.kernel, name=name))

    return replace(plan, taken=[(renamed(c), v) for c, v in plan.taken],
                   rejected=[(renamed(c), v) for c, v in plan.rejected])


def with_taken(plan: Plan, graph: Graph, more: Collection[Cluster], reason: str) -> Plan:
    """The plan for `graph` that takes `more` of what it rejects."""
    taken, rejected = list(plan.taken), []
    for cluster, verdict in plan.rejected:
        if cluster in more:
            taken.append((cluster, replace(verdict, take=True,
                                           reason=f"{verdict.reason}, {reason}")))
        else:
            rejected.append((cluster, verdict))
    return _rewritten(replace(plan, taken=taken, rejected=rejected), graph)


def without(plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
    """The plan for `graph` that leaves kernels, by their fingerprints, to XLA, for these reasons.

    Where the borders of clusters run does not depend on which of them are taken.
    """
    if not refused:
        return plan
    taken, rejected = [], []
    for cluster, verdict in (*plan.taken, *plan.rejected):
        reason = refused.get(cluster.kernel.fingerprint)
        if reason is not None:
            verdict = replace(verdict, take=False, reason=reason)
        (taken if verdict.take else rejected).append((cluster, verdict))
    return _rewritten(replace(plan, taken=taken, rejected=rejected), graph)


def in_row_blocks(plan: Plan, graph: Graph, block_bytes: int, refused: Container[str]) -> Plan:
    """The plan for `graph` with kernels that serve any number of rows where that can be, and that
    are none of those `refused`, by their fingerprints."""
    def divided(cluster: Cluster) -> Cluster:
        blocks = row_blocks(cluster.kernel, block_bytes)
        if blocks is None or any(k.fingerprint in refused for k, *_ in blocks.kernels):
            return cluster
        return _of_one_kernel(cluster, blocks) or replace(cluster, blocks=blocks)

    return _rewritten(replace(plan, taken=[(divided(c), v) for c, v in plan.taken]), graph)


def _of_one_kernel(cluster: Cluster, blocks: RowBlocks) -> Cluster | None:
    """The cluster with the one kernel that it is in one block of; None if there are more."""
    (call, *more), kernels = blocks.calls, blocks.kernels
    if more or len(kernels) > 1 or kernels[0][1] > 1 or call.folds:
        return None
    constants = tuple(map(constant_node, call.constants.values()))
    return replace(cluster, kernel=kernels[0][0], constants=(*cluster.constants, *constants),
                   operands=(*cluster.operands, *(node.results[0] for node in constants)))


def _rewritten(plan: Plan, graph: Graph) -> Plan:
    """The plan with what it makes of `graph` and of the loops and branches in it."""
    produced = {value: cluster for cluster, _ in plan.taken for value in cluster.results}
    rebuilt = _rebuild(graph, produced)
    left = frozenset(value for node in plan.left for value in node.results)
    return replace(plan, graph=rebuilt, remaining=_remaining(rebuilt, left))


def _planned(graph: Graph, choose: Chooser, small: Callable[[Unit], bool],
             donated: Sequence[tuple[int, int]], around: frozenset[str],
             limits: FusionLimits, opened: Mapping[Node, str]) -> Plan:
    """What is to become of the nodes; `around` are the ops that `graph` is a region of, `opened`
    loops that are not to become part of a kernel, and why."""
    reasons = {node: opened.get(node) or refusal(node, limits.left) for node in graph.nodes}
    plan = _planned_regions(graph, reasons, choose, small, around, limits, opened)
    fuser, values, fresh, tables = _lower(graph, reasons, limits)
    results = frozenset(graph.results)
    needed = frozenset(b for b, v in values.items() if v in results)
    fuser.join_chains(needed)
    if limits.folds_both_ways:
        fuser.join_both_ways(needed, fresh)
    fuser.join_handed(needed)
    fuser.join_siblings()
    fuser.join_updates(needed)
    fuser.settle()
    plan.apart.update(fuser.refusals)
    mergeable = {u.number: not u.is_outside and small(u) for u in fuser.units}
    runs = merge_runs(in_order(fuser.units), mergeable)
    read_by = readers(fuser.units)
    makers = {v: n for n in (*graph.nodes, *tables) for v in n.results}
    heirs = {graph.results[r]: graph.parameters[p] for p, r in donated
             if graph.parameters[p] not in results
             and graph.parameters[p].type == graph.results[r].type}
    whole = len(runs) == 1 and around <= _WHOLE
    orders = stated_orders(graph, [node for node, reason in reasons.items() if reason]) \
        if limits.takes_layouts else {}
    outside = {u.number for u in fuser.units if u.is_outside} if orders else set()
    free = {b for b, v in values.items() if v not in results and v not in orders
            and outside.isdisjoint(read_by.get(b, outside))} if orders else set()
    for run in runs:
        if run[0].is_outside:
            continue
        cluster = _cluster(run, read_by, results, values, makers, heirs, whole,
                           _LOOP in around, limits, tables, orders, free)
        if not cluster.results:  # all who read it compute it themselves by now
            continue
        verdict = choose(cluster)
        (plan.taken if verdict.take else plan.rejected).append((cluster, verdict))
        if verdict.take:
            orders.update(cluster.orders)
    plan.left.update({n: r for n, r in reasons.items() if r})
    plan.nodes += sum(_counts(n) for n in graph.nodes)
    return plan


def _planned_regions(graph: Graph, reasons: Mapping[Node, str], choose: Chooser,
                     small: Callable[[Unit], bool], around: frozenset[str], limits: FusionLimits,
                     opened: Mapping[Node, str]) -> Plan:
    """What is to become of the bodies of control flow that stays with XLA."""
    plan = Plan(graph, limits)
    for node in graph.nodes:
        if not reasons[node] or node.op not in CONTROL_FLOW:
            continue
        for region in node.regions:
            inner = _planned(region, choose, small, _carried(node, region), around | {node.op},
                             limits, opened)
            plan.taken += inner.taken
            plan.rejected += inner.rejected
            plan.left.update(inner.left)
            plan.apart.update(inner.apart)
            plan.nodes += inner.nodes
    return plan


def _carried(node: Node, region: Graph) -> list[tuple[int, int]]:
    """The parameters of the body of a loop whose memory is for what takes their place."""
    if node.op != "stablehlo.while" or region is not node.regions[1]:
        return []
    return [(k, k) for k in range(len(region.results))]


def _remaining(graph: Graph, left: frozenset[Value]) -> int:
    """Its non-trivial operations that are not in kernels, and those of the loops whose results are
    left to XLA."""
    inner = sum(_remaining(region, left) for node in graph.nodes
                if node.op in CONTROL_FLOW and not left.isdisjoint(node.results)
                for region in node.regions)
    return inner + sum(_counts(node) for node in graph.nodes)


def _counts(node: Node) -> bool:
    return node.op not in TRIVIAL and node.op != "hlo_mlc.kernel"


_LOOP = "stablehlo.while"
_WHOLE = frozenset(("sdy.manual_computation",))  # its region is all that a device runs
CONTROL_FLOW = frozenset((_LOOP, "stablehlo.if", "stablehlo.case", *_WHOLE))


def _lower(graph: Graph, reasons: dict[Node, str], limits: FusionLimits
           ) -> tuple[Fuser, dict[Buffer, Value], Callable[[str], str], Sequence[Node]]:
    """What fuses the stages of a graph, the values in their buffers, more names, and constants that
    only stages read."""
    counter = iter(range(1 << 62))
    uses = uses_among(graph.nodes)
    wanted = set(graph.results)
    for node in graph.nodes:
        if reasons[node]:
            wanted.update(node.used)

    def outside(value: Value, indices: Indices) -> Expr:
        raise KeyError(f"{value!r} has no buffer")

    lowering = StageLowering(graph, frozenset(wanted), outside,
                             lambda prefix: f"{prefix}{next(counter)}", limits.prologue)
    fuser = Fuser(limits.row_elements)
    for value in (*graph.parameters, *graph.captures):
        if value.type is not None:
            lowering.define(value)
    known = lowering.buffers
    # What a value without a buffer is made from.  Nothing of it may be left in its expression, but
    # where that stays with XLA, so does the order.
    made_from: dict[Value, frozenset[Buffer]] = {}
    for node in graph.nodes:
        before = frozenset[Buffer]().union(
            *({known[v]} if v in known else made_from.get(v, ()) for v in node.used))
        made_from.update((v, before) for v in node.results)
        if reasons[node] or _is_table(node):
            for value in node.results:
                if value.type is not None:
                    lowering.define(value)
            fuser.add_outside(node, before, {known[v] for v in node.results if v in known})
        elif node.op == "stablehlo.while":
            steps = lower_while(node, lowering)
            if steps is not None:
                fuser.add_steps(node, steps, before)
        else:
            lowering.add(node, uses)
        if lowering.items and any(item.update or item.inner for item in lowering.items):
            steps = [Nest((i.stage,), len(i.stage.axes)) for i in lowering.items]
            fuser.add_steps(node, list(steps), before)
        else:
            for item in lowering.items:
                fuser.add_stage(item.node, item.stage, before)
        lowering.items.clear()
    return fuser, {b: v for v, b in lowering.buffers.items()}, lowering.fresh, lowering.tables


def _is_table(node: Node) -> bool:
    """A constant that is not one repeated value: kernels read it as an operand."""
    return node.op == "stablehlo.constant" and splat_value(node.literal) is None


def _cluster(run: list[Unit], read_by: Mapping[Buffer, set[int]], results: frozenset[Value],
             values: dict[Buffer, Value], makers: Mapping[Value, Node],
             heirs: Mapping[Value, Value], is_whole: bool, in_loop: bool, limits: FusionLimits,
             own: Sequence[Node], orders: Mapping[Value, Order], free: Set[Buffer]
             ) -> Cluster:
    members = {u.number for u in run}
    needed = frozenset(b for u in run for b in u.writes
                       if values.get(b) in results or not read_by.get(b, members) <= members)
    steps = without_dead([s for unit in run for s in finished(unit, read_by, needed)], needed)
    written = {b for s in steps for b in step_writes(s)}
    operands = tuple(dict.fromkeys(b for s in steps for stage in stages(s) for b in stage.inputs
                                   if b not in written))
    outputs = tuple(b for b in dict.fromkeys(b for s in steps for b in _ordered_writes(s))
                    if b in needed)
    at = {values[o]: o for o in operands}
    wanted = [(r, o) for r in outputs
              if (o := at.get(heirs.get(values[r]))) is not None and read_by[o] <= members]
    spent = [o for o in operands if read_by[o] <= members and values[o] not in results
             and values[o] in makers and _makes_memory(makers[values[o]])]
    wanted += [(r, o) for r in outputs for o in spent
               if values[r].type == values[o].type]
    laid = lay_out(steps, {b: orders[values[b]] for b in (*operands, *outputs)
                           if values[b] in orders}, outputs, free)
    wanted = [(laid.made.get(r, r), laid.made.get(o, o)) for r, o in wanted
              if laid.orders.get(r) == laid.orders.get(o)]
    operands, outputs = (tuple(laid.made.get(b, b) for b in group) for group in (operands, outputs))
    values = {**values, **{new: values[b] for b, new in laid.made.items()}}
    steps, aliases = in_place(laid.steps, wanted)
    steps = without_dead(merge_copies(steps, outputs, (b for pair in aliases for b in pair)),
                         outputs)
    tables = {b: makers[values[b]].literal for b in operands
              if values[b] in makers and _is_table(makers[values[b]])}
    steps, panels = pack(steps, tables) if limits.packs_constants else (steps, {})
    constants = {new: constant_node(layout.of(tables[b])) for new, (b, layout) in panels.items()}
    read = {b for s in steps for stage in stages(s) for b in stage.inputs}
    operands = (*(b for b in operands if b in read), *constants)
    kernel = make_kernel(steps, operands, outputs, aliases)
    border = [b for b in operands
              if b not in constants and values[b] in makers and _counts(makers[values[b]])]
    border += [b for b in outputs if values[b] not in results]
    sources = tuple(constants[b].results[0] if b in constants else values[b] for b in operands)
    targets = tuple(values[b] for b in outputs)
    moved = dict(aliases)
    copied = [b for b in outputs if heirs.get(values[b]) in at and b not in moved]
    nodes = _between(sources, targets, makers)
    locations = _locations(kernel, steps, values, makers)
    kernel = replace(kernel, name=kernel_name(kernel.program, locations,
                                              [node.location for node in nodes]))
    return Cluster(kernel, nodes, sources, targets,
                   tuple((outputs.index(r), operands.index(o)) for r, o in aliases),
                   sum(b.bytes for b in border), sum(b.bytes for b in copied), is_whole,
                   in_loop, (*constants.values(), *(n for n in own if n.results[0] in sources)),
                   locations, orders={values[b]: order for b, order in laid.orders.items()
                                      if laid.made[b] in (*operands, *outputs)},
                   transposed=tuple(values[b] for b in (*operands, *outputs)
                                    if b not in constants and values[b] in orders
                                    and b not in laid.made.values()))


def _makes_memory(node: Node) -> bool:
    """Whether the results of an operation are in memory of their own, as far as is known."""
    return _counts(node) and node.op not in ("stablehlo.optimization_barrier",
                                             "stablehlo.bitcast_convert")


def _locations(kernel: Kernel, steps: Sequence[Step], values: Mapping[Buffer, Value],
               makers: Mapping[Value, Node]) -> dict[str, str]:
    """Where the values in a kernel's results and temporaries come from."""
    own = {*kernel.inputs, *kernel.outputs}
    names = {**dict(zip(kernel.outputs, kernel.program.results, strict=True)),
             **dict(zip((b for b in written(steps) if b not in own), kernel.program.temporaries,
                        strict=True))}
    return {name.name: makers[values[b]].location for b, name in names.items()
            if values.get(b) in makers}


def _between(sources: tuple[Value, ...], targets: tuple[Value, ...],
             makers: Mapping[Value, Node]) -> tuple[Node, ...]:
    """The operations that lead from some values to others, each after those that it needs."""
    given = set(sources)
    ordered = operands_first([makers[v] for v in targets if v in makers],
                             lambda v: None if v in given else makers.get(v))
    return tuple(n for n in ordered if _counts(n)) or ordered


def _ordered_writes(step: Step) -> list[Buffer]:
    return sorted(step_writes(step), key=lambda b: int(b.name[1:]))


def _rebuild(graph: Graph, produced: Mapping[Value, Cluster]) -> Graph:
    """The graph in which the values of `produced` come from kernels, in dependency order.

    Raises: VerifyError where kernels wait for each other.
    """
    nodes = [_with_kernels(node, produced) for node in graph.nodes]
    maker = {v: n for n in nodes for v in n.results}
    for cluster in dict.fromkeys(produced[value] for value in tuple(maker) if value in produced):
        nodes_of = (*cluster.constants, *_calls(cluster))
        maker.update((value, node) for node in nodes_of for value in node.results)

    def producer(value: Value) -> Node | None:
        return maker.get(value)

    # Operations with effects stay, in their order.
    wanted = [*(node for node in nodes if node.opaque), *map(producer, graph.results)]
    ordered = operands_first(filter(None, wanted), producer)
    return Graph(graph.parameters, ordered, graph.results)


def _calls(cluster: Cluster) -> Iterator[Node]:
    """The calls of a cluster's kernels, and the constants that only they read, in order."""
    if cluster.blocks is None:
        yield cluster.call(cluster.operands, cluster.results, {
            "id": cluster.kernel.fingerprint, "aliases": cluster.aliases, "dims": ()})
        return
    program = cluster.kernel.program
    values = dict(zip((*program.operands, *program.results),
                      (*cluster.operands, *cluster.results), strict=True))
    for call in cluster.blocks.calls:
        constants = {b: constant_node(table) for b, table in call.constants.items()}
        constants |= {f.before: constant_node(np.full(f.before.shape, f.initial.value,
                                                      f.before.dtype.numpy)) for f in call.folds}
        yield from constants.values()
        values.update((b, node.results[0]) for b, node in constants.items())
        for buffer in call.results:
            values.setdefault(buffer, Value(TensorType(buffer.shape, buffer.dtype)))
        results = [values[b] for b in call.results]
        spare = [Value(one.type) for one in results[len(results) - len(call.folds):]]
        yield cluster.call(tuple(values[b] for b in call.operands), (*results, *spare),
                           _attributes(call, cluster.blocks.rows))


def _attributes(call: RowCall, rows: int) -> dict[str, object]:
    """Those of a call (frontend/emit.py)."""
    aliases = tuple((call.results.index(r), call.operands.index(o)) for r, o in call.aliases)
    if not call.has_rows:
        ((_, kernel),) = call.kernels.values()
        return {"id": kernel.fingerprint, "aliases": aliases, "dims": ()}
    return {"blocks": {size: kernel.fingerprint for size, (_, kernel) in call.kernels.items()},
            "aliases": aliases,
            "dims": (rows, call.groups, len(call.folds), *call.row_bytes,
                     *(fold.before.bytes for fold in call.folds))}


def _with_kernels(node: Node, produced: Mapping[Value, Cluster]) -> Node:
    """Control flow with the kernels in its regions; any other node as it is."""
    if node.op not in CONTROL_FLOW or not any(
            v in produced for region in node.regions for n in region.walk() for v in n.results):
        return node
    return Node(node.op, node.operands, node.results, node.attributes,
                tuple(_rebuild(region, produced) for region in node.regions), node.literal,
                node.location, node.origin, node.opaque)
