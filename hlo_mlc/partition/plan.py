"""The plan for a graph: which nodes become which kernel, what stays with XLA, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.graph.core import WHILE, Graph, Node, Value, constant_node
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.definition import Indices
from hlo_mlc.partition.calls import HOLDING, WHOLE, with_calls
from hlo_mlc.partition.cluster import Cluster, Context, cluster_of, counts, is_table
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.fuse.groups import Fuser, in_order, merge_runs, readers
from hlo_mlc.partition.fuse.loops import lower_while, refusal
from hlo_mlc.partition.fuse.nests import FusionLimits
from hlo_mlc.partition.lower.layouts import stated_orders
from hlo_mlc.partition.lower.stages import StageLowering
from hlo_mlc.partition.naming import told_apart
from hlo_mlc.partition.row_blocks import RowBlocks, row_blocks
from hlo_mlc.tensor.core import Nest

LIMITS = FusionLimits()  # those of CPUs


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


def partition(
    graph: Graph,
    choose: Chooser,
    costs: Costs,
    donated: Sequence[tuple[int, int]] = (),
    limits: FusionLimits = LIMITS,
) -> Plan:
    """Cut `graph` into clusters, let `choose` decide each, and rewrite the graph.

    By the `costs` of the machine, runs of small units become one kernel, and products that gain by
    it.  `donated` are the numbers of parameters and of the results that their memory is for;
    `limits` are those of the target.
    """
    opened: dict[Node, str] = {}
    while True:
        plan = _planned(graph, choose, costs, donated, frozenset(), limits, opened)
        more = {
            node: verdict.reason
            for cluster, verdict in plan.rejected
            if verdict.opens
            for node in cluster.nodes
            if node.op == WHILE
        }
        if not more:
            break
        opened |= more
    return _rewritten(_told_apart(plan, graph), graph)


def _told_apart(plan: Plan, graph: Graph) -> Plan:
    """The plan in which different kernels have different names, whichever of them are taken."""
    places = {node: place for place, node in enumerate(graph.walk())}
    clusters = sorted(
        (cluster for cluster, _ in (*plan.taken, *plan.rejected)),
        key=lambda cluster: places.get(cluster.nodes[0], 0),
    )
    names = {cluster.kernel.fingerprint: cluster.kernel.name for cluster in reversed(clusters)}
    first = dict.fromkeys(cluster.kernel.fingerprint for cluster in clusters)
    apart = dict(zip(first, told_apart(names[one] for one in first), strict=True))

    def renamed(cluster: Cluster) -> Cluster:
        name = apart[cluster.kernel.fingerprint]
        return replace(cluster, kernel=replace(cluster.kernel, name=name))

    return replace(
        plan,
        taken=[(renamed(c), v) for c, v in plan.taken],
        rejected=[(renamed(c), v) for c, v in plan.rejected],
    )


def with_taken(plan: Plan, graph: Graph, more: Collection[Cluster], reason: str) -> Plan:
    """The plan for `graph` that takes `more` of what it rejects."""
    taken, rejected = list(plan.taken), []
    for cluster, verdict in plan.rejected:
        if cluster in more:
            taken.append(
                (cluster, replace(verdict, take=True, reason=f"{verdict.reason}, {reason}"))
            )
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


def in_row_blocks(
    plan: Plan,
    graph: Graph,
    block_bytes: int,
    refused: Container[str],
    axes: Mapping[int, int] | None = None,
    all_rows: bool = False,
) -> Plan:
    """The plan for `graph` with kernels that serve any number of rows where that can be, and that
    are none of those `refused`, by their fingerprints; with `all_rows`, those that other numbers
    need are beside them.  `axes` are those along which its parameters have rows, by their numbers,
    where that is known."""
    known = {graph.parameters[n]: axis for n, axis in (axes or {}).items()}
    for node in graph.nodes:
        if node.op == "stablehlo.reshape" and known.get(node.operands[0]) == 0:
            given, made = node.operands[0].type.shape, node.results[0].type.shape
            if made and given[0] == made[0]:
                known[node.results[0]] = 0

    def divided(cluster: Cluster) -> Cluster:
        of_operands = {n: known[v] for n, v in enumerate(cluster.operands) if v in known}
        blocks = row_blocks(cluster.kernel, block_bytes, {} if cluster.orders else of_operands)
        if blocks is None:
            return cluster
        known.update((cluster.results[n], axis) for n, axis in blocks.axes.items())
        if any(k.fingerprint in refused for k, *_ in blocks.kernels):
            return cluster
        program = cluster.kernel.program
        values = zip(
            (*program.operands, *program.results),
            (*cluster.operands, *cluster.results),
            strict=True,
        )
        orders = {
            value: blocks.orders[b][: len(value.type.shape)]  # without the parts of complex numbers
            for b, value in values
            if b in blocks.orders
        }
        divided = _of_one_kernel(cluster, blocks) or replace(cluster, blocks=blocks)
        return replace(
            divided, orders={**cluster.orders, **orders}, others=blocks.others if all_rows else ()
        )

    return _rewritten(replace(plan, taken=[(divided(c), v) for c, v in plan.taken]), graph)


def _of_one_kernel(cluster: Cluster, blocks: RowBlocks) -> Cluster | None:
    """The cluster with the one kernel that it is in one block of; None if there are more."""
    (call, *more), kernels = blocks.calls, blocks.kernels
    if more or len(kernels) > 1 or kernels[0][1] > 1 or call.folds:
        return None
    constants = tuple(map(constant_node, call.constants.values()))
    return replace(
        cluster,
        kernel=kernels[0][0],
        constants=(*cluster.constants, *constants),
        operands=(*cluster.operands, *(node.results[0] for node in constants)),
    )


def _rewritten(plan: Plan, graph: Graph) -> Plan:
    """The plan with what it makes of `graph` and of the loops and branches in it."""
    produced = {value: cluster for cluster, _ in plan.taken for value in cluster.results}
    rebuilt = with_calls(graph, produced)
    left = frozenset(value for node in plan.left for value in node.results)
    return replace(plan, graph=rebuilt, remaining=_remaining(rebuilt, left))


def _planned(
    graph: Graph,
    choose: Chooser,
    costs: Costs,
    donated: Sequence[tuple[int, int]],
    around: frozenset[str],
    limits: FusionLimits,
    opened: Mapping[Node, str],
) -> Plan:
    """What is to become of the nodes; `around` are the ops that `graph` is a region of, `opened`
    loops that are not to become part of a kernel, and why."""
    reasons = {node: opened.get(node) or refusal(node, limits.left) for node in graph.nodes}
    plan = _planned_regions(graph, reasons, choose, costs, around, limits, opened)
    fuser, values, fresh, tables = _lower(graph, reasons, limits)
    results = frozenset(graph.results)
    needed = frozenset(b for b, v in values.items() if v in results)
    fuser.join_chains(needed)
    if limits.folds_both_ways and limits.rows is None:
        fuser.join_both_ways(needed, fresh)
    fuser.join_handed(needed)
    fuser.join_siblings(costs.gains_from_company)
    fuser.join_updates(needed)
    fuser.compact()
    plan.apart.update(fuser.refusals)
    mergeable = {u.number: not u.is_outside and costs.are_small(u.all_steps) for u in fuser.units}
    runs = merge_runs(in_order(fuser.units), mergeable)
    read_by = readers(fuser.units)
    makers = {v: n for n in (*graph.nodes, *tables) for v in n.results}
    heirs = {
        graph.results[r]: graph.parameters[p]
        for p, r in donated
        if graph.parameters[p] not in results and graph.parameters[p].type == graph.results[r].type
    }
    orders = (
        stated_orders(graph, [node for node, reason in reasons.items() if reason])
        if limits.takes_layouts
        else {}
    )
    outside = {u.number for u in fuser.units if u.is_outside} if orders else set()
    free = (
        {
            b
            for b, v in values.items()
            if v not in results and v not in orders and outside.isdisjoint(read_by.get(b, outside))
        }
        if orders
        else set()
    )
    context = Context(
        results,
        values,
        read_by,
        makers,
        tables,
        heirs,
        orders,
        free,
        limits,
        len(runs) == 1 and around <= WHOLE,
        WHILE in around,
    )
    for run in runs:
        if run[0].is_outside:
            continue
        cluster = cluster_of(run, context)
        if not cluster.results:  # all who read it compute it themselves by now
            continue
        verdict = choose(cluster)
        (plan.taken if verdict.take else plan.rejected).append((cluster, verdict))
        if verdict.take:
            orders.update(cluster.orders)
    plan.left.update({n: r for n, r in reasons.items() if r})
    plan.nodes += sum(counts(n) for n in graph.nodes)
    return plan


def _planned_regions(
    graph: Graph,
    reasons: Mapping[Node, str],
    choose: Chooser,
    costs: Costs,
    around: frozenset[str],
    limits: FusionLimits,
    opened: Mapping[Node, str],
) -> Plan:
    """What is to become of the bodies of control flow that stays with XLA."""
    plan = Plan(graph, limits)
    for node in graph.nodes:
        if not reasons[node] or node.op not in HOLDING:
            continue
        for region in node.regions:
            inner = _planned(
                region, choose, costs, _carried(node, region), around | {node.op}, limits, opened
            )
            plan.taken += inner.taken
            plan.rejected += inner.rejected
            plan.left.update(inner.left)
            plan.apart.update(inner.apart)
            plan.nodes += inner.nodes
    return plan


def _carried(node: Node, region: Graph) -> list[tuple[int, int]]:
    """The parameters of the body of a loop whose memory is for what takes their place."""
    if node.op != WHILE or region is not node.regions[1]:
        return []
    return [(k, k) for k in range(len(region.results))]


def _remaining(graph: Graph, left: frozenset[Value]) -> int:
    """Its non-trivial operations that are not in kernels, and those of the loops whose results are
    left to XLA."""
    inner = sum(
        _remaining(region, left)
        for node in graph.nodes
        if node.op in HOLDING and not left.isdisjoint(node.results)
        for region in node.regions
    )
    return inner + sum(counts(node) for node in graph.nodes)


def _lower(
    graph: Graph, reasons: dict[Node, str], limits: FusionLimits
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

    lowering = StageLowering(
        graph,
        frozenset(wanted),
        outside,
        lambda prefix: f"{prefix}{next(counter)}",
        limits.prologue,
        limits.rows is not None,
    )
    fuser = Fuser(limits.row_elements, limits.rows)
    for value in (*graph.parameters, *graph.captures):
        if value.type is not None:
            lowering.define(value)
    known = lowering.buffers
    # What a value without a buffer is made from.  Nothing of it may be left in its expression, but
    # where that stays with XLA, so does the order.
    made_from: dict[Value, frozenset[Buffer]] = {}
    for node in graph.nodes:
        before = frozenset[Buffer]().union(
            *({known[v]} if v in known else made_from.get(v, ()) for v in node.used)
        )
        made_from.update((v, before) for v in node.results)
        if reasons[node] or is_table(node):
            for value in node.results:
                if value.type is not None:
                    lowering.define(value)
            fuser.add_outside(node, before, {known[v] for v in node.results if v in known})
        elif node.op == WHILE:
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
