"""The simplifier: rules, merging and removal of dead nodes until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import EVERY_OP, apply_rules, eliminate_dead_nodes
from hlo_mlc.passes.arithmetic import ARITHMETIC_RULES
from hlo_mlc.passes.common import merge_common_nodes
from hlo_mlc.passes.folding import Reference, constant_folding
from hlo_mlc.passes.movement import MOVEMENT_RULES, merged
from hlo_mlc.passes.pipeline import Pass, PassRecord, Property, run_passes
from hlo_mlc.passes.sinking import sink_constants

# Every rule sees its operands already rewritten, so one round does nearly all; a second one
# finds what merging made equal.
_MAX_ROUNDS = 4

NO_DEAD_NODES = Property("no dead nodes", lambda graph: eliminate_dead_nodes(graph) is graph)
NO_COMMON_NODES = Property("no common nodes", lambda graph: merge_common_nodes(graph) is graph)
OWN_CONSTANTS = Property(
    "no constants used across regions", lambda graph: sink_constants(graph) is graph
)


def simplification(references: Mapping[str, Reference]) -> tuple[Pass, ...]:
    """The passes of one round; `references` are the ops' meanings for constant folding."""
    folding = {EVERY_OP: (constant_folding(references),)}
    rules = merged(MOVEMENT_RULES, ARITHMETIC_RULES, folding)
    return (
        Pass("sink-constants", sink_constants, ensures=(OWN_CONSTANTS,)),
        Pass("apply-rules", lambda graph: apply_rules(graph, rules)),
        Pass("merge-common-nodes", merge_common_nodes, ensures=(NO_COMMON_NODES,)),
        Pass(
            "eliminate-dead-nodes",
            eliminate_dead_nodes,
            requires=(NO_COMMON_NODES,),
            ensures=(NO_COMMON_NODES, NO_DEAD_NODES),
        ),
    )


def simplify(
    graph: Graph, references: Mapping[str, Reference], *, verify: bool = False
) -> tuple[Graph, tuple[PassRecord, ...]]:
    """The graph after at most four rounds of simplification, and what each pass did.

    It is the very graph that was given where nothing applied.
    Raises: PassError, VerifyError if `verify` finds a pass at fault.
    """
    passes = simplification(references)
    records: list[PassRecord] = []
    for _ in range(_MAX_ROUNDS):
        before = graph
        graph, done = run_passes(graph, passes, verify=verify)
        records += done
        if graph is before:
            break
    return graph, tuple(records)
