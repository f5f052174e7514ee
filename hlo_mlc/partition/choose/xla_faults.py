"""What kills the process when XLA runs it: we take that, whatever is predicted.

In jaxlib 0.10.2 and 0.11.0 YNNPACK computes sums of products of 7 dimensions and more, one of them
summed, and reads past what describes those (jax #39257, #40412); later ones do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jaxlib

from hlo_mlc.expr.dtypes import F32
from hlo_mlc.graph.core import Node, Value

_VERSIONS = ("0.10.2", "0.11.0")
_RANK = 7


def is_faulty(rank: int, version: str = jaxlib.__version__) -> bool:
    """Whether XLA may fail at sums of so many dimensions."""
    return version in _VERSIONS and rank >= _RANK


def fault(nodes: Sequence[Node], version: str = jaxlib.__version__) -> str:
    """Why XLA may fail at some of them; "" if it does not."""
    makers = {node.results[0]: node for node in nodes if len(node.results) == 1}
    if any(
        is_faulty(len(node.operands[0].type.shape), version) and _sums_products(node, makers)
        for node in nodes
        if node.op == "stablehlo.reduce"
    ):
        return f"XLA of jaxlib {version} may crash at sums of products of {_RANK} dimensions"
    return next(
        filter(None, (fault(region.nodes, version) for node in nodes for region in node.regions)),
        "",
    )


def _sums_products(reduce: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether it is a sum along one dimension, computed in f32."""
    term = makers.get(reduce.operands[0])
    if term is not None and term.op == "stablehlo.convert":
        term = makers.get(term.operands[0])
    return (
        term is not None
        and term.op == "stablehlo.multiply"
        and reduce.operands[0].type.dtype is F32
        and len(reduce.attributes["dimensions"]) == 1
        and [node.op for node in reduce.regions[0].nodes] == ["stablehlo.add"]
    )
