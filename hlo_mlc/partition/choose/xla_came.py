"""What XLA needs at least for a program as it came, of which our passes make something else.

Where nothing of a program is taken, XLA gets what came, and where some is, what our passes have
made of the rest: scatters to known places that are reads then, convolutions that are products,
folds of what is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.partition.choose.shares import runs
from hlo_mlc.partition.choose.xla_convolutions import convolutions_us
from hlo_mlc.partition.choose.xla_nodes import folds_repeated, scattered_us
from hlo_mlc.target.rates import Rates


def came_us(graph: Graph, rates: Rates) -> float:
    """What those of its operations take that XLA does one by one, in all trips of loops."""
    entry, found = frozenset(graph.nodes), runs(graph)
    makers = {node.results[0]: node for node in found if len(node.results) == 1}
    return sum(
        times
        * (
            convolutions_us((node,), node in entry, rates)
            + scattered_us((node,), rates)
            + rates.pass_us(_repeated_bytes(node, makers))
        )
        for node, times in found.items()
    )


def _repeated_bytes(node: Node, makers: Mapping[Value, Node]) -> int:
    """What it folds of what is repeated: it takes no less than to read as much.  Case
    `repeated_rows`."""
    spread = makers.get(node.operands[0]) if node.op == "stablehlo.reduce" else None
    is_found = spread is not None and folds_repeated(node, spread)
    return node.operands[0].type.bytes if is_found else 0
