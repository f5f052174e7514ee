"""Loops of a few trips over elementwise bodies become straight lines.

What such a loop carries then stays in registers from start to end, tables that its body indexes
become numbers, and all of it fuses with what comes before and after.  The rounds of JAX's random
bits (threefry) are a loop of five trips.
"""

from __future__ import annotations

import numpy as np

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.counting import counting
from hlo_mlc.graph.rewrite import Rewriter
from hlo_mlc.ops.registry import ELEMENTWISE
from hlo_mlc.passes.branches import computed
from hlo_mlc.passes.invariant import FREE
from hlo_mlc.passes.splat import splat

# Trips, and nodes of all trips together: five trips of threefry take about 350.
MAX_TRIPS = 8
MAX_NODES = 512

_POINTWISE = ELEMENTWISE | FREE | {"stablehlo.slice"}


def unroll_short_loop(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`while i < 3: x = f(x); i = i + 1` -> `f(f(f(x)))`, f elementwise"""
    if len(node.regions) != 2:
        return None
    body = node.regions[1]
    found = counting(node, lambda value: _integer(value, context))
    if found is None or found.trips > MAX_TRIPS or found.trips * len(body.nodes) > MAX_NODES:
        return None
    if any(inner.opaque or inner.op not in _POINTWISE for inner in body.nodes):
        return None
    values = node.operands
    for _ in range(found.trips):
        known = computed(body, dict(zip(body.parameters, values, strict=True)), (), context)
        values = tuple(known.get(value, value) for value in body.results)
    return values


def _integer(value: Value, context: Rewriter) -> int | None:
    if value.type.shape:
        return None
    element = splat(value, context)
    return int(element) if isinstance(element, np.integer) else None
