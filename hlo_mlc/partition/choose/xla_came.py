"""What XLA needs at least for a program as it came, of which our passes make something else.

Where nothing of a program is taken, XLA gets what came, and where some is, what our passes have
made of the rest: scatters to known places that are reads then, convolutions that are products.
"""

from __future__ import annotations

from hlo_mlc.graph.core import Graph
from hlo_mlc.partition.choose.shares import runs
from hlo_mlc.partition.choose.xla_convolutions import convolutions_us
from hlo_mlc.partition.choose.xla_nodes import scattered_us
from hlo_mlc.target.rates import Rates


def came_us(graph: Graph, rates: Rates) -> float:
    """What those of its operations take that XLA does one by one, in all trips of loops."""
    entry = frozenset(graph.nodes)
    return sum(
        times * (convolutions_us((node,), node in entry, rates) + scattered_us((node,), rates))
        for node, times in runs(graph).items()
    )
