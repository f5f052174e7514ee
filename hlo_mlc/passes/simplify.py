"""The simplifier: which passes run, in which order, until nothing changes.

| pass | needs | leaves | why here |
| --- | --- | --- | --- |
| sink-constants | | splats where they are used, tables outside | rules see splats, kernels tables |
| apply-rules | | | operands first, so that one walk finds what rules make of each other |
| merge-common-nodes | | no common nodes | rules make nodes alike |
| eliminate-dead-nodes | no common nodes | and no dead ones | what was replaced is dead |
| close-loops | no dead nodes | loops that carry only what changes | dead nodes seem to change it |
| carry-conditions | closed loops | | what a condition and its body take is now the same value |
| hoist-invariants | closed loops | | what does not change is then what comes from outside |
| multiply-before-loops | closed loops | | rows are of arrays from outside |
| multiply-after-loops | closed loops | | takes what rows before the loop have left |
| update-in-place | | | sees sums that loops carry; those of products are outside now |
| fold-parts | | | dead nodes, which seem to read what is put together, are gone |
| narrow-results | | | what only dead nodes read, and what loops carry, is settled |

The last passes add nodes that rules improve and that are alike: another round tidies up.  Each pass
takes time in proportion to the number of nodes (tests/passes/test_work.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import EVERY_OP, Rules, apply_rules, eliminate_dead_nodes
from hlo_mlc.passes.arithmetic import ARITHMETIC_RULES
from hlo_mlc.passes.bit_patterns import BIT_RULES
from hlo_mlc.passes.branches import BRANCH_RULES
from hlo_mlc.passes.carried import close_loops
from hlo_mlc.passes.common import merge_common_nodes
from hlo_mlc.passes.composition import COMPOSITION_RULES
from hlo_mlc.passes.conditions import carry_conditions
from hlo_mlc.passes.convolutions import CONVOLUTION_RULES
from hlo_mlc.passes.fold_parts import FOLD_RULES, fold_parts
from hlo_mlc.passes.folding import Reference, constant_folding
from hlo_mlc.passes.integers import INTEGER_RULES
from hlo_mlc.passes.invariant import hoist_invariants
from hlo_mlc.passes.known_places import KNOWN_PLACES_RULES
from hlo_mlc.passes.movement import MOVEMENT_RULES, merged
from hlo_mlc.passes.narrowing import narrow_results
from hlo_mlc.passes.pipeline import Pass, PassRecord, Property, run_passes
from hlo_mlc.passes.powers import POWER_RULES
from hlo_mlc.passes.products import PRODUCT_RULES
from hlo_mlc.passes.products_after_loops import multiply_after_loops
from hlo_mlc.passes.products_before_loops import multiply_before_loops
from hlo_mlc.passes.scans import SCAN_RULES
from hlo_mlc.passes.scatters import SCATTER_RULES
from hlo_mlc.passes.sinking import sink_constants
from hlo_mlc.passes.static_shapes import STATIC_SHAPE_RULES
from hlo_mlc.passes.unrolling import unroll_short_loop
from hlo_mlc.passes.updates import update_in_place

# Every rule sees its operands already rewritten, so one round does nearly all; a second one
# finds what merging made equal.
_MAX_ROUNDS = 4

NO_DEAD_NODES = Property("no dead nodes", lambda graph: eliminate_dead_nodes(graph) is graph)
NO_COMMON_NODES = Property("no common nodes", lambda graph: merge_common_nodes(graph) is graph)
CLOSED_LOOPS = Property(
    "loops that carry only what changes", lambda graph: close_loops(graph) is graph
)
OWN_CONSTANTS = Property(
    "splats where they are used, tables outside", lambda graph: sink_constants(graph) is graph
)


def graph_rules(references: Mapping[str, Reference]) -> Rules:
    """All rules by op, in order; `references` are the ops' meanings for constant folding."""
    folding = {EVERY_OP: (constant_folding(references),)}
    unrolling = {"stablehlo.while": (unroll_short_loop,)}
    return merged(
        BIT_RULES,
        STATIC_SHAPE_RULES,
        SCAN_RULES,
        MOVEMENT_RULES,
        ARITHMETIC_RULES,
        INTEGER_RULES,
        POWER_RULES,
        COMPOSITION_RULES,
        FOLD_RULES,
        CONVOLUTION_RULES,
        PRODUCT_RULES,
        BRANCH_RULES,
        SCATTER_RULES,
        KNOWN_PLACES_RULES,
        folding,
        unrolling,
    )


def simplification(references: Mapping[str, Reference]) -> tuple[Pass, ...]:
    """The passes of one round; `references` are the ops' meanings for constant folding."""
    rules = graph_rules(references)
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
        Pass("close-loops", close_loops, requires=(NO_DEAD_NODES,), ensures=(CLOSED_LOOPS,)),
        Pass("carry-conditions", carry_conditions, requires=(CLOSED_LOOPS,)),
        Pass("hoist-invariants", hoist_invariants, requires=(CLOSED_LOOPS,)),
        Pass("multiply-before-loops", multiply_before_loops, requires=(CLOSED_LOOPS,)),
        Pass("multiply-after-loops", multiply_after_loops, requires=(CLOSED_LOOPS,)),
        Pass("update-in-place", update_in_place),
        Pass("fold-parts", fold_parts),
        Pass("narrow-results", narrow_results),
    )


def simplify(
    graph: Graph, references: Mapping[str, Reference], *, verify: bool = False
) -> tuple[Graph, tuple[PassRecord, ...]]:
    """The graph after at most four rounds of simplification, and what each pass did.

    It is the very graph that was given where nothing applied.
    Raises: PassError, VerifyError if `verify` finds a pass at fault.
    """
    return run_passes(graph, simplification(references), rounds=_MAX_ROUNDS, verify=verify)
