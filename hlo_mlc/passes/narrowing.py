"""Slices and conversions move towards what they are of, where nothing else reads it: no element is
computed that nobody asked for, and no bit of one.

    (x @ w + b)[-1:]   ->   x[-1:] @ w + b[-1:]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hlo_mlc.expr.dtypes import Kind
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule, apply_rules
from hlo_mlc.ops.contraction import DotAxes
from hlo_mlc.ops.registry import ELEMENTWISE

_SLICE, _CONVERT, _REDUCE = (f"stablehlo.{name}" for name in ("slice", "convert", "reduce"))


def narrow_results(graph: Graph) -> Graph:
    """`f(x)[a:b]` -> `f(x[a:b])`, for elementwise ops, transposes and products of matrices, and
    conversions of sums of integers -> sums of converted ones.

    Only within one region: a slice in a loop must not take into it what is computed before.
    Returns `graph` itself where there is nothing to move.
    """
    if graph.ops.isdisjoint((_SLICE, _CONVERT)):
        return graph
    alone: set[Value] = set()
    _find_alone(graph, alone)
    return apply_rules(
        graph,
        {
            op: (_alone(alone, rule),)
            for op, rule in ((_SLICE, slice_of_result), (_CONVERT, convert_of_sum))
        },
    )


def _find_alone(graph: Graph, alone: set[Value]) -> None:
    """Adds the values that one node reads, once, in the graph that defines them."""
    uses = Counter(graph.results)
    for node in graph.nodes:
        uses.update(node.operands)
        for region in node.regions:
            uses.update((*region.captures, *region.captures))
            _find_alone(region, alone)
    alone.update(v for node in graph.nodes for v in node.results if uses[v] == 1)


def _alone(alone: set[Value], rule: Rule) -> Rule:
    """The rule, for nodes that alone read what they take."""
    return lambda node, context: rule(node, context) if node.operands[0] in alone else None


def slice_of_result(node: Node, context: Rewriter) -> Value | None:
    """`f(x)[a:b]` -> `f(x[a:b])`"""
    (whole,) = node.operands
    maker = context.definition(whole)
    if maker is None:
        return None
    if maker.op in ELEMENTWISE and not maker.operands[0].type.dtype.is_packed:
        parts = [
            v if v.type.shape != whole.type.shape else context.slice(v, *_bounds(node))
            for v in maker.operands
        ]
    elif maker.op == "stablehlo.transpose":
        permutation = maker.attributes["permutation"]
        parts = [
            _slice(maker.operands[0], dict(zip(permutation, _ranges(node), strict=True)), context)
        ]
    elif maker.op == "stablehlo.dot_general":
        parts = _factors(maker, _ranges(node), context)
    else:
        return None
    return context.add(maker.op, parts, node.results[0].type, maker.attributes)


def convert_of_sum(node: Node, context: Rewriter) -> Value | None:
    """`convert(sum(convert(x) : u) : u) : v` -> `sum(convert(x) : v)` for integers that wrap in v

    Vectors hold more of the narrower ones: bits that are put together to bytes.
    """
    total = context.definition(node.operands[0])
    narrow = node.results[0].type.dtype
    if total is None or total.op != _REDUCE or len(total.operands) != 2:
        return None
    operand, first = total.operands
    made, wide = context.definition(operand), first.type.dtype
    if (
        made is None
        or made.op != _CONVERT
        or not _adds(total.regions[0])
        or not (narrow.is_integer and wide.is_integer and narrow.bits < wide.bits)
        or made.operands[0].type.dtype.kind not in (Kind.SIGNED, Kind.UNSIGNED, Kind.BOOL)
    ):
        return None
    term, initial = context.convert(made.operands[0], narrow), context.convert(first, narrow)
    return context.fold("stablehlo.add", term, initial, total.attributes["dimensions"])


def _adds(region: Graph) -> bool:
    """Whether it gives the sum of its two parameters."""
    return (
        [n.op for n in region.nodes] == ["stablehlo.add"]
        and {*region.nodes[0].operands} == {*region.parameters}
        and region.results == region.nodes[0].results
    )


# (start, limit, stride) along one axis.
_Range = tuple[int, int, int]


def _ranges(node: Node) -> list[_Range]:
    return list(zip(*_bounds(node), strict=True))


def _bounds(node: Node) -> list[tuple[int, ...]]:
    """The starts, limits and strides of a slice."""
    return [node.attributes[name] for name in ("start_indices", "limit_indices", "strides")]


def _factors(dot: Node, ranges: Sequence[_Range], context: Rewriter) -> list[Value]:
    axes = DotAxes.of(dot)
    batch = len(axes.lhs_batch)
    left, right = ranges[batch : batch + len(axes.lhs_free)], ranges[batch + len(axes.lhs_free) :]
    lhs, rhs = dot.operands
    return [
        _slice(
            lhs,
            dict(zip((*axes.lhs_batch, *axes.lhs_free), (*ranges[:batch], *left), strict=True)),
            context,
        ),
        _slice(
            rhs,
            dict(zip((*axes.rhs_batch, *axes.rhs_free), (*ranges[:batch], *right), strict=True)),
            context,
        ),
    ]


def _slice(value: Value, ranges: dict[int, _Range], context: Rewriter) -> Value:
    """The value sliced along some axes; itself where that is all of it."""
    whole = [(0, extent, 1) for extent in value.type.shape]
    wanted = [ranges.get(axis, given) for axis, given in enumerate(whole)]
    if wanted == whole:
        return value
    return context.slice(value, *zip(*wanted, strict=True))
