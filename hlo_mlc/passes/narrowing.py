"""Slices move towards what they are of, where nothing else reads it: no element is computed that
nobody asked for.

    (x @ w + b)[-1:]   ->   x[-1:] @ w + b[-1:]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule, apply_rules
from hlo_mlc.ops.contraction import DotAxes
from hlo_mlc.ops.registry import ELEMENTWISE

_SLICE = "stablehlo.slice"
_STARTS, _LIMITS, _STRIDES = "start_indices", "limit_indices", "strides"


def narrow_slices(graph: Graph) -> Graph:
    """`f(x)[a:b]` -> `f(x[a:b])`, for elementwise ops, transposes and products of matrices.

    Only within one region: a slice in a loop must not take into it what is computed before.
    Returns `graph` itself where there is nothing to move.
    """
    if not any(node.op == _SLICE for node in graph.walk()):
        return graph
    alone: set[Value] = set()
    _find_alone(graph, alone)
    return apply_rules(graph, {_SLICE: (_narrowing(alone),)})


def _find_alone(graph: Graph, alone: set[Value]) -> None:
    """Adds the values that one node reads, once, in the graph that defines them."""
    uses = Counter(graph.results)
    for node in graph.nodes:
        uses.update(node.operands)
        for region in node.regions:
            uses.update((*region.captures, *region.captures))
            _find_alone(region, alone)
    alone.update(v for node in graph.nodes for v in node.results if uses[v] == 1)


def _narrowing(alone: set[Value]) -> Rule:
    def slice_of_result(node: Node, context: Rewriter) -> Value | None:
        (whole,) = node.operands
        maker = context.definition(whole)
        if whole not in alone or maker is None or maker.opaque:
            return None
        if maker.op in ELEMENTWISE and not maker.operands[0].type.dtype.is_packed:
            parts = [v if v.type.shape != whole.type.shape else _same_slice(node, v, context)
                     for v in maker.operands]
        elif maker.op == "stablehlo.transpose":
            permutation = maker.attributes["permutation"]
            parts = [_slice(maker.operands[0], dict(zip(permutation, _ranges(node), strict=True)),
                            context)]
        elif maker.op == "stablehlo.dot_general":
            parts = _factors(maker, _ranges(node), context)
        else:
            return None
        return context.add(maker.op, parts, node.results[0].type, maker.attributes)

    return slice_of_result


# (start, limit, stride) along one axis.
_Range = tuple[int, int, int]


def _ranges(node: Node) -> list[_Range]:
    return list(zip(*(node.attributes[name] for name in (_STARTS, _LIMITS, _STRIDES)),
                    strict=True))


def _same_slice(node: Node, value: Value, context: Rewriter) -> Value:
    return context.add(_SLICE, (value,), TensorType(node.results[0].type.shape, value.type.dtype),
                       node.attributes)


def _factors(dot: Node, ranges: Sequence[_Range], context: Rewriter) -> list[Value]:
    axes = DotAxes.of(dot)
    batch = len(axes.lhs_batch)
    left, right = ranges[batch:batch + len(axes.lhs_free)], ranges[batch + len(axes.lhs_free):]
    lhs, rhs = dot.operands
    return [_slice(lhs, dict(zip((*axes.lhs_batch, *axes.lhs_free), (*ranges[:batch], *left),
                                 strict=True)), context),
            _slice(rhs, dict(zip((*axes.rhs_batch, *axes.rhs_free), (*ranges[:batch], *right),
                                 strict=True)), context)]


def _slice(value: Value, ranges: dict[int, _Range], context: Rewriter) -> Value:
    """The value sliced along some axes; itself where that is all of it."""
    whole = [(0, extent, 1) for extent in value.type.shape]
    wanted = [ranges.get(axis, given) for axis, given in enumerate(whole)]
    if wanted == whole:
        return value
    starts, limits, strides = (tuple(r[n] for r in wanted) for n in range(3))
    shape = tuple(-(-(limit - start) // stride) for start, limit, stride in wanted)
    return context.add(_SLICE, (value,), TensorType(shape, value.type.dtype),
                       {_STARTS: starts, _LIMITS: limits, _STRIDES: strides})
