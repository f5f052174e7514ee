"""Planning a graph: what is computed together, and whether ours or XLA's kernels compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.graph.core import BRANCHES, WHILE, Graph, Node, Value
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.definition import Indices
from hlo_mlc.partition.calls import HOLDING, WHOLE
from hlo_mlc.partition.cluster import Cluster, Context, cluster_of, counts, is_table
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.fuse.fuser import Fuser
from hlo_mlc.partition.fuse.groups import Group, in_order, merge_runs, readers
from hlo_mlc.partition.fuse.limits import LIMITS, FusionLimits
from hlo_mlc.partition.fuse.loops import lower_while, refusal
from hlo_mlc.partition.fuse.row_parts import row_by_row
from hlo_mlc.partition.lower.layouts import stated_orders
from hlo_mlc.partition.lower.stages import StageLowering
from hlo_mlc.partition.naming import told_apart
from hlo_mlc.partition.plan import Chooser, Plan, rewritten
from hlo_mlc.tensor.core import Nest
from hlo_mlc.tensor.orders import Order


def partition(
    graph: Graph,
    choose: Chooser,
    costs: Costs,
    donated: Sequence[tuple[int, int]] = (),
    limits: FusionLimits = LIMITS,
) -> Plan:
    """Cut `graph` into clusters, let `choose` decide each, and rewrite the graph.

    By the `costs` of the machine, runs of small groups become one kernel, and products that gain by
    it.  `donated` are the numbers of parameters and of the results that their memory is for;
    `limits` are those of the target.
    """
    opened: dict[Node, str] = {}
    while True:
        plan = _Planner(choose, costs, limits, opened).plan(graph, donated)
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
    return rewritten(_told_apart(plan, graph), graph)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans a graph and the regions in it; `opened` are loops that are not to become part of a
    kernel, and why."""

    choose: Chooser
    costs: Costs
    limits: FusionLimits
    opened: Mapping[Node, str]

    def plan(
        self, graph: Graph, donated: Sequence[tuple[int, int]], around: frozenset[str] = frozenset()
    ) -> Plan:
        """What is to become of the nodes; `around` are the ops that `graph` is a region of."""
        reasons = {
            node: self.opened.get(node) or refusal(node, self.limits.left) for node in graph.nodes
        }
        plan = self._plan_of_regions(graph, reasons, around)
        lowered = _lower(graph, reasons, self.costs, self.limits)
        groups = self._fused(lowered, graph)
        plan.apart.update(lowered.fuser.refusals)
        mergeable = {
            g.number: not g.is_outside and self.costs.are_small(g.all_steps) for g in groups
        }
        runs = merge_runs(in_order(groups), mergeable)
        context = replace(
            self._context(lowered, graph, reasons, donated),
            is_whole=len(runs) == 1 and around <= WHOLE,
            in_loop=WHILE in around,
            in_branch=not around.isdisjoint(BRANCHES),
        )
        for run in runs:
            if run[0].is_outside:
                continue
            cluster = cluster_of(run, context)
            if not cluster.results:  # all who read it compute it themselves by now
                continue
            verdict = self.choose(cluster)
            (plan.taken if verdict.take else plan.rejected).append((cluster, verdict))
            if verdict.take:
                context.orders.update(cluster.orders)
        plan.left.update({n: r for n, r in reasons.items() if r})
        plan.nodes += sum(counts(n) for n in graph.nodes)
        return plan

    def _plan_of_regions(
        self, graph: Graph, reasons: Mapping[Node, str], around: frozenset[str]
    ) -> Plan:
        """What is to become of the bodies of control flow that stays with XLA."""
        plan = Plan(graph, self.limits)
        for node in graph.nodes:
            if not reasons[node] or node.op not in HOLDING:
                continue
            for region in node.regions:
                inner = self.plan(region, _carried(node, region), around | {node.op})
                plan.taken += inner.taken
                plan.rejected += inner.rejected
                plan.left.update(inner.left)
                plan.apart.update(inner.apart)
                plan.nodes += inner.nodes
        return plan

    def _fused(self, lowered: _Lowered, graph: Graph) -> list[Group]:
        """The groups that stages become."""
        fuser, limits, results = lowered.fuser, self.limits, frozenset(graph.results)
        needed = frozenset(b for b, v in lowered.values.items() if v in results)
        fuser.join_chains(needed)
        if limits.folds_both_ways and self.costs.rows is None:
            fuser.join_both_ways(needed, lowered.fresh)
        fuser.join_handed(needed)
        fuser.join_siblings()
        fuser.join_updates(needed)
        fuser.compact()
        return fuser.groups

    def _context(
        self,
        lowered: _Lowered,
        graph: Graph,
        reasons: Mapping[Node, str],
        donated: Sequence[tuple[int, int]],
    ) -> Context:
        """What is known of the graph that clusters are cut out of."""
        results, groups = frozenset(graph.results), lowered.fuser.groups
        read_by = readers(groups)
        orders: dict[Value, Order] = {}
        if self.limits.takes_layouts:
            orders = stated_orders(graph, [node for node, reason in reasons.items() if reason])
        outside = {g.number for g in groups if g.is_outside}
        free = {
            b
            for b, v in lowered.values.items()
            if v not in results and v not in orders and outside.isdisjoint(read_by.get(b, outside))
        }
        parameters = graph.parameters
        return Context(
            results,
            lowered.values,
            read_by,
            makers={v: n for n in (*graph.nodes, *lowered.tables) for v in n.results},
            own=lowered.tables,
            heirs={
                graph.results[r]: parameters[p]
                for p, r in donated
                if parameters[p] not in results and parameters[p].type == graph.results[r].type
            },
            orders=orders,
            free=free if orders else set(),
            limits=self.limits,
            held_bytes=_held_bytes(graph),
        )


@dataclass(frozen=True, slots=True)
class _Lowered:
    """What fuses the stages of a graph, the values in their buffers, what gives more names, and
    constants that only stages read."""

    fuser: Fuser
    values: Mapping[Buffer, Value]
    fresh: Callable[[str], str]
    tables: Sequence[Node]


def _lower(
    graph: Graph, reasons: Mapping[Node, str], costs: Costs, limits: FusionLimits
) -> _Lowered:
    """The stages of a graph, each node's joined to those before it."""
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
        costs,
        limits.prologue,
    )
    fuser = Fuser(costs, limits.row_elements)
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
            stages = [i.stage for i in lowering.items]
            apart = [Nest((s,), len(s.axes)) for s in stages]
            fuser.add_steps(node, row_by_row(stages) if limits.fills_rows else apart, before)
        else:
            for item in lowering.items:
                fuser.add_stage(item.node, item.stage, before)
        lowering.items.clear()
    lowering.close()
    values = {b: v for v, b in lowering.buffers.items()}
    return _Lowered(fuser, values, lowering.fresh, lowering.tables)


def _held_bytes(graph: Graph) -> int:
    """Of what it is given, of its constants, and of its results."""
    constants = (node.results[0] for node in graph.nodes if node.op == "stablehlo.constant")
    held = {*graph.parameters, *graph.captures, *constants, *graph.results}
    return sum(v.type.bytes for v in held if v.type is not None and v.type.is_static)


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


def _carried(node: Node, region: Graph) -> list[tuple[int, int]]:
    """The parameters of the body of a loop whose memory is for what takes their place."""
    if node.op != WHILE or region is not node.regions[1]:
        return []
    return [(k, k) for k in range(len(region.results))]
