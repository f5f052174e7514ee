"""What kills the process when XLA runs it, or comes out wrong: we take that, whatever is predicted.

In jaxlib 0.10.2 and 0.11.0 YNNPACK computes sums of products of 7 dimensions and more, one of them
summed, and reads past what describes those (jax #39257, #40412); later ones do not.

In loops XLA sets parts of a row to other parts of it where the row is, although it still reads
them, if the row was given another shape first (seen with jaxlib 0.10.2 to 0.12.0):

    r = reshape(dynamic_slice(x, i))
    r.at[1:].set(r[:-1])    ->    r[0] everywhere
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jaxlib

from hlo_mlc.expr.dtypes import F32
from hlo_mlc.graph.core import WHILE, Node, Value
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.registry import lookup

OLD_LIBRARY = ("0.10.2", "0.11.0")
_RANK = 7
_RESHAPE = "stablehlo.reshape"
_SLICES = frozenset(("stablehlo.slice", "stablehlo.dynamic_slice"))


def is_faulty(rank: int, version: str = jaxlib.__version__) -> bool:
    """Whether XLA may fail at sums of so many dimensions."""
    return version in OLD_LIBRARY and rank >= _RANK


def fault(nodes: Sequence[Node], version: str = jaxlib.__version__, in_loop: bool = False) -> str:
    """Why XLA may fail at some of them, which may be those of a loop's body; "" if it does not."""
    makers = {node.results[0]: node for node in nodes if len(node.results) == 1}
    if any(
        is_faulty(len(node.operands[0].type.shape), version) and _sums_products(node, makers)
        for node in nodes
        if node.op == "stablehlo.reduce"
    ):
        return f"XLA of jaxlib {version} may crash at sums of products of {_RANK} dimensions"
    if in_loop and any(_sets_to_own_parts(node, makers) for node in nodes):
        return "XLA may overwrite what it still reads where a row is set to parts of itself"
    return next(
        filter(
            None,
            (
                fault(region.nodes, version, in_loop or node.op == WHILE)
                for node in nodes
                for region in node.regions
            ),
        ),
        "",
    )


def _sets_to_own_parts(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether it sets part of what was reshaped to what is computed of slices of that."""
    if node.op == "stablehlo.dynamic_update_slice":
        whole, part = node.operands[:2]
    elif node.op == "stablehlo.scatter" and len(node.operands) == 3 and not node.regions[0].nodes:
        whole, _, part = node.operands
    else:
        return False
    if whole not in makers or makers[whole].op != _RESHAPE:
        return False
    seen: set[Value] = set()
    left = [part]
    while left:
        value = left.pop()
        maker = makers.get(value)
        if maker is None or value in seen:
            continue
        seen.add(value)
        if maker.op in _SLICES and maker.operands[0] == whole:
            return True
        definition = lookup(maker.op)
        if maker.op == _RESHAPE or (definition and definition.kind is OpKind.ELEMENTWISE):
            left += maker.operands
    return False


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
