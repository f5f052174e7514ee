"""Which nodes may be removed or merged."""

from __future__ import annotations

from hlo_mlc.graph.core import Node

_DIALECTS = ("stablehlo", "chlo", "hlo_mlc")
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


def is_removable(node: Node) -> bool:
    """Whether a node whose results nobody uses can be dropped."""
    if node.op == "stablehlo.custom_call":
        # Where its attributes could not be read, assume the worst.
        return not node.attributes.get("has_side_effect", "call_target_name" not in node.attributes)
    if node.opaque or node.op in _EFFECTFUL or node.op.partition(".")[0] not in _DIALECTS:
        return False
    return all(is_removable(inner) for region in node.regions for inner in region.nodes)


def is_mergeable(node: Node) -> bool:
    """Whether a second node with the same op, operands, attributes and regions is redundant."""
    return not node.opaque and node.op not in _NOT_MERGEABLE and is_removable(node)
