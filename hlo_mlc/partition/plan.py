"""The plan for a graph: which nodes become which kernel, what stays with XLA, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field, replace

from hlo_mlc.graph.core import Graph, Node, Value, constant_node
from hlo_mlc.partition.calls import HOLDING, with_calls
from hlo_mlc.partition.cluster import Cluster, counts
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.fuse.limits import FusionLimits
from hlo_mlc.partition.row_blocks import RowBlocks, row_blocks


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
    """The rewritten graph with everything that explains it; `limits` are those of the target,
    `came` the program as XLA gets it where nothing is taken."""

    graph: Graph
    limits: FusionLimits
    taken: list[tuple[Cluster, Verdict]] = field(default_factory=list)
    rejected: list[tuple[Cluster, Verdict]] = field(default_factory=list)
    left: dict[Node, str] = field(default_factory=dict)  # why a node stays with XLA
    apart: dict[Node, str] = field(default_factory=dict)  # why it did not join those before it
    nodes: int = 0  # non-trivial nodes before
    remaining: int = 0  # and after
    came: Graph | None = None

    @property
    def coverage(self) -> float:
        """The share of non-trivial ops that run in our kernels; 1 where there are no such ops."""
        return 1.0 - self.remaining / self.nodes if self.nodes else 1.0


def with_taken(plan: Plan, graph: Graph, more: Collection[Cluster], reason: str) -> Plan:
    """The plan for `graph` that takes `more` of what it rejects."""
    taken, rejected = list(plan.taken), []
    for cluster, verdict in plan.rejected:
        if cluster in more:
            because = f"{verdict.reason}, {reason}"
            taken.append((cluster, replace(verdict, take=True, reason=because)))
        else:
            rejected.append((cluster, verdict))
    return rewritten(replace(plan, taken=taken, rejected=rejected), graph)


def with_fault(plan: Plan, fault: str) -> Plan:
    """The plan, the first kernel of which says why XLA is better not asked to compute the program
    as it came, nor timed at it, if there is a reason."""
    if not (fault and plan.taken):
        return plan
    (cluster, verdict), *others = plan.taken
    first = replace(verdict, fault=verdict.fault or fault)
    return replace(plan, taken=[(cluster, first), *others])


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
    return rewritten(replace(plan, taken=taken, rejected=rejected), graph)


def in_row_blocks(
    plan: Plan,
    graph: Graph,
    block_bytes: int,
    refused: Container[str],
    axes: Mapping[int, int],
    all_rows: bool,
) -> Plan:
    """The plan for `graph` with kernels that serve any number of rows where that can be, and that
    are none of those `refused`, by their fingerprints; with `all_rows`, those that other numbers
    need are beside them.  `axes` are those along which its parameters have rows, by their numbers,
    where that is known."""
    known = {graph.parameters[n]: axis for n, axis in axes.items()}
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

    return rewritten(replace(plan, taken=[(divided(c), v) for c, v in plan.taken]), graph)


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


def rewritten(plan: Plan, graph: Graph) -> Plan:
    """The plan with what it makes of `graph` and of the loops and branches in it."""
    produced = {value: cluster for cluster, _ in plan.taken for value in cluster.results}
    rebuilt = with_calls(graph, produced)
    left = frozenset(value for node in plan.left for value in node.results)
    return replace(plan, graph=rebuilt, remaining=_remaining(rebuilt, left))


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
