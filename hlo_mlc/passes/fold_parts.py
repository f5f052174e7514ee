"""What is put together only to be folded is folded part by part, and what is repeated, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hlo_mlc.expr.dtypes import F32, F64, DType, TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule, apply_rules
from hlo_mlc.ops.registry import ELEMENTWISE
from hlo_mlc.passes.splat import is_splat_of, splat

_REDUCE, _CONCATENATE, _BROADCAST = (
    f"stablehlo.{name}" for name in ("reduce", "concatenate", "broadcast_in_dim")
)
# Operations that may begin every part with the same number: because it changes nothing, or because
# it counts only once however often it is taken.
_NEUTRAL = {"stablehlo.add": 0, "stablehlo.multiply": 1}
_IDEMPOTENT = frozenset(f"stablehlo.{name}" for name in ("maximum", "minimum", "and", "or"))
# Nodes of all parts together: the squares of a hundred arrays are two hundred.
MAX_NODES = 512
# Up to where all whole numbers are floats.
_EXACT = {F32: 1 << 24, F64: 1 << 53}


def fold_parts(graph: Graph) -> Graph:
    """`reduce(f(concatenate(x, y)))` -> `g(reduce(f(x)), reduce(f(y)))`, f elementwise.

    For folds along the axis that the parts lie on, by a single operation g, where nothing else
    reads what is put together.  Returns `graph` itself where there is none.
    """
    if _CONCATENATE not in graph.ops:
        return graph
    uses: Counter[Value] = Counter()
    for inner in (graph, *(region for node in graph.walk() for region in node.regions)):
        uses.update(inner.results)
        for node in inner.nodes:
            uses.update(node.operands)
    return apply_rules(graph, {_REDUCE: (_splitting(uses),)})


def _splitting(uses: Mapping[Value, int]) -> Rule:
    def reduce_of_parts(node: Node, context: Rewriter) -> Value | None:
        operation = _operation(node, context)
        if operation is None:
            return None
        whole = node.operands[0]
        tree = _Tree.over(whole, context)
        if (
            tree is None
            or tree.axis not in node.attributes["dimensions"]
            or len(tree.nodes) * len(tree.extents) > MAX_NODES
            or any(uses[v] != count for v, count in tree.uses(whole).items())
        ):
            return None
        parts = [tree.part(whole, number, context) for number in range(len(tree.extents))]
        axes = node.attributes["dimensions"]
        folded = [context.fold(operation, part, node.operands[1], axes) for part in parts]
        while len(folded) > 1:  # neighbours in rounds, as exact as one fold
            pairs = zip(folded[::2], folded[1::2], strict=False)
            rest = folded[len(folded) // 2 * 2 :]
            folded = [context.like(operation, *pair) for pair in pairs] + rest
        return folded[0]

    return reduce_of_parts


def fold_of_repeated(node: Node, context: Rewriter) -> Value | None:
    """`reduce(broadcast(x : 4, [0]) : 4x3, add, [0, 1])` -> `reduce(x, add, [0]) * 3`, where a
    float counts exactly so far; no product for what counts only once, such as maxima"""
    inner = context.definition(node.operands[0])
    operation = _operation(node, context)
    if inner is None or inner.op != _BROADCAST or operation in (None, "stablehlo.multiply"):
        return None
    (source,), places = inner.operands, inner.attributes["broadcast_dimensions"]
    wide, reduced = inner.results[0].type, node.attributes["dimensions"]
    own = {d for d, extent in zip(places, source.type.shape, strict=True) if extent != 1}
    once = [d for d in reduced if d not in own and wide.shape[d] > 1]
    count = prod(wide.shape[d] for d in once)
    if count <= 1 or not _counts(operation, wide.dtype, count):
        return None
    kept = [d for d in range(len(wide.shape)) if d not in once]
    there = [n for n, d in enumerate(places) if d in kept]
    value = context.reshape(source, [source.type.shape[n] for n in there])
    axes = [kept.index(places[n]) for n in there]
    value = context.broadcast(value, [wide.shape[d] for d in kept], axes)
    over = tuple(kept.index(d) for d in reduced if d in kept)
    result, initial = node.results[0].type, node.operands[1]
    if over:
        value = context.fold(operation, value, initial, over)
    else:
        value = context.like(operation, context.broadcast(initial, result.shape), value)
    if operation in _IDEMPOTENT:
        return value
    # All together, as parts may be too large for a float where their sum is not.
    return context.like("stablehlo.multiply", value, context.constant(count, result))


def _counts(operation: str, dtype: DType, count: int) -> bool:
    """Whether so many of the same are folded by a product, if not at once."""
    return operation in _IDEMPOTENT or count <= _EXACT.get(dtype, 0)


def _operation(node: Node, context: Rewriter) -> str | None:
    """The one operation that a reduction folds by, where its parts may be folded apart."""
    if len(node.operands) != 2:
        return None
    (body,), (whole, initial) = node.regions, node.operands
    if (
        len(body.nodes) != 1
        or body.nodes[0].results != body.results
        or set(body.nodes[0].operands) != set(body.parameters)
    ):
        return None
    operation, dtype = body.nodes[0].op, whole.type.dtype
    if operation in _IDEMPOTENT:
        return operation
    if (
        operation not in _NEUTRAL
        or dtype.is_narrow_float
        or not is_splat_of(initial, _NEUTRAL[operation], context)
    ):
        return None  # sums of narrow floats would be rounded part by part
    return operation


@dataclass(frozen=True, slots=True)
class _Tree:
    """What is computed from arrays put together in one way: `nodes` by their values."""

    nodes: Mapping[Value, Node]
    axis: int
    extents: tuple[int, ...]

    @staticmethod
    def over(whole: Value, context: Rewriter) -> _Tree | None:
        """All that leads to `whole`; None where other than equal parts and numbers do."""
        nodes: dict[Value, Node] = {}
        ways: set[tuple[int, tuple[int, ...]]] = set()
        waiting = [whole]
        while waiting:
            value = waiting.pop()
            if value in nodes or not value.type.shape or splat(value, context) is not None:
                continue
            node = context.definition(value)
            if node is None or node.opaque or value.type.shape != whole.type.shape:
                return None
            nodes[value] = node
            if node.op == _CONCATENATE:
                axis = node.attributes["dimension"]
                ways.add((axis, tuple(v.type.shape[axis] for v in node.operands)))
            elif node.op in ELEMENTWISE:
                waiting += node.operands
            elif node.op != _BROADCAST or node.operands[0].type.shape:
                return None
        return _Tree(nodes, *ways.pop()) if len(ways) == 1 else None

    def uses(self, whole: Value) -> Counter[Value]:
        """How often each value is used here; `whole` once more than that."""
        found = Counter((whole,))
        for node in self.nodes.values():
            found.update(v for v in node.operands if v in self.nodes)
        return found

    def part(self, whole: Value, number: int, context: Rewriter) -> Value:
        """The same of one part."""
        shape = list(whole.type.shape)
        shape[self.axis] = self.extents[number]
        known: dict[Value, Value] = {}

        def typed(value: Value) -> TensorType:
            return TensorType(tuple(shape), value.type.dtype)

        def of_part(value: Value) -> Value:
            if value in self.nodes or not value.type.shape:
                return known.get(value, value)
            return context.constant(splat(value, context), typed(value))

        for value, node in _operands_first(whole, self.nodes):
            if node.op == _CONCATENATE:
                known[value] = node.operands[number]
            else:
                known[value] = context.add(
                    node.op, [of_part(v) for v in node.operands], typed(value), node.attributes
                )
        return known[whole]


def _operands_first(whole: Value, nodes: Mapping[Value, Node]) -> Sequence[tuple[Value, Node]]:
    ordered: dict[Value, Node] = {}
    stack = [(whole, False)]
    while stack:
        value, ready = stack.pop()
        if ready:
            ordered.setdefault(value, nodes[value])
        elif value in nodes and value not in ordered:
            stack.append((value, True))
            if nodes[value].op != _CONCATENATE:
                stack += [(v, False) for v in nodes[value].operands]
    return tuple(ordered.items())


FOLD_RULES: Mapping[str, Sequence[Rule]] = {_REDUCE: (fold_of_repeated,)}
