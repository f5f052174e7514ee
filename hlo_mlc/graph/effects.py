"""Which nodes may be removed or merged."""

from __future__ import annotations

from hlo_mlc.graph.core import Graph, Node

_DIALECTS = ("stablehlo", "chlo", "hlo_mlc", "lapack")
# They talk to other devices, which wait for them, or stand for a call of unknown contents.
# (What talks to the host has a token among its types, so it is opaque.)
_EFFECTFUL = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "composite",
        "cross-replica-sum",
        "reduce_scatter",
    )
)
# Two random draws differ, and barriers are apart on purpose: JAX puts one before what a
# checkpoint recomputes.
_NOT_MERGEABLE = frozenset(("stablehlo.rng", "stablehlo.optimization_barrier"))


def is_removable(node: Node, known: dict[Graph, bool] | None = None) -> bool:
    """Whether a node whose results nobody uses can be dropped.

    `known`: what was found for regions before, for callers that ask about nodes at every depth.
    """
    if node.op == "stablehlo.custom_call":
        # Where its attributes could not be read, assume the worst.
        return not node.attributes.get("has_side_effect", "call_target_name" not in node.attributes)
    if node.opaque or node.op in _EFFECTFUL or node.op.partition(".")[0] not in _DIALECTS:
        return False
    known = {} if known is None else known
    for region in node.regions:
        if region not in known:
            known[region] = all([is_removable(inner, known) for inner in region.nodes])
        if not known[region]:
            return False
    return True


def is_mergeable(node: Node) -> bool:
    """Whether a second node with the same op, operands, attributes and regions is redundant."""
    return not node.opaque and node.op not in _NOT_MERGEABLE and is_removable(node)
