"""Values of a loop's body that are one row of an array: row `start` of what f gives for all rows.

    x = dynamic_slice(xs, i);  y = f(x)    =    y = dynamic_slice(f(xs), i)

Holds for every `start`, in any order and as often as wanted; start is clamped alike on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import NodeList
from hlo_mlc.ops.contraction import DotAxes
from hlo_mlc.ops.registry import ELEMENTWISE
from hlo_mlc.passes.invariant import invariant_nodes

DOT_OP = "stablehlo.dot_general"
_SLICE_OP = "stablehlo.dynamic_slice"

Attributes = Mapping[str, object]


def _further(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Axes behind one more."""
    return tuple(d + 1 for d in axes)


# How all rows are moved as each is: the attributes of that, and the number of rows.
_MOVES: Mapping[str, Callable[[Attributes, int], Attributes]] = {
    "stablehlo.reshape": lambda own, count: own,
    "stablehlo.transpose": lambda own, count: {"permutation": (0, *_further(own["permutation"]))},
    "stablehlo.broadcast_in_dim": lambda own, count: {
        "broadcast_dimensions": (0, *_further(own["broadcast_dimensions"]))
    },
    "stablehlo.concatenate": lambda own, count: {"dimension": own["dimension"] + 1},
    "stablehlo.reverse": lambda own, count: {"dimensions": _further(own["dimensions"])},
    "stablehlo.slice": lambda own, count: {
        "start_indices": (0, *own["start_indices"]),
        "limit_indices": (count, *own["limit_indices"]),
        "strides": (1, *own["strides"]),
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """Which row a value is: `start`, of `count`."""

    start: Value
    count: int


@dataclass(slots=True)
class Rows:
    """The rows among the values of a loop's body."""

    body: Graph
    rows: dict[Value, Row] = field(default_factory=dict)
    invariant: Mapping[Value, Node] = field(default_factory=dict)
    made: dict[Value, Node] = field(default_factory=dict)
    parameters: frozenset[Value] = frozenset()
    _whole: dict[Value, Value] = field(default_factory=dict)
    _outside: dict[Value, Value] = field(default_factory=dict)

    @staticmethod
    def of(body: Graph) -> Rows:
        """The rows of a body, found in one walk."""
        found = Rows(body, parameters=frozenset(body.parameters))
        found.invariant = {
            v: node
            for v, node in invariant_nodes(body).items()
            if len(node.results) == 1 and not node.regions
        }
        found.made = {v: node for node in body.nodes for v in node.results}
        for node in body.nodes:
            if (row := found._row(node)) is not None:
                found.rows[node.results[0]] = row
        return found

    def is_invariant(self, value: Value) -> bool:
        """Whether a value is the same in every trip."""
        return value in self.invariant or (value not in self.made and value not in self.parameters)

    def _row(self, node: Node) -> Row | None:
        if node.opaque or len(node.results) != 1 or node.results[0].type is None:
            return None
        if node.op == _SLICE_OP:
            axis = sliced_axis(node)
            if axis is None or not self.is_invariant(node.operands[0]):
                return None
            return Row(node.operands[1 + axis], node.operands[0].type.shape[axis])
        if node.op not in ELEMENTWISE and node.op not in _MOVES and node.op != DOT_OP:
            return None
        rows = {self.rows[v] for v in node.operands if v in self.rows}
        others = [v for v in node.operands if v not in self.rows]
        if len(rows) != 1 or not all(map(self.is_invariant, others)):
            return None
        if node.op == DOT_OP and len(others) != 1:
            return None
        return rows.pop()

    def outside(self, value: Value, new: NodeList) -> Value:
        """An invariant value, computed out of the loop."""
        self._compute([value], new)
        return self._outside.get(value, value)

    def whole(self, value: Value, new: NodeList) -> Value:
        """All rows of which `value` is one: [count, *shape of value]."""
        self._compute([value], new)
        return self._whole[value]

    def stack(self, value: Value, row: Row, whole: Value) -> None:
        """From now on take `value` for a row of `whole`."""
        self.rows[value], self._whole[value] = row, whole

    def _compute(self, wanted: list[Value], new: NodeList) -> None:
        """Make all rows of what varies, and copies of what does not, operands first."""
        needed: set[Node] = set()
        pending = list(wanted)
        while pending:
            value = pending.pop()
            node = self.made.get(value)
            if node is None or node in needed or value in self._whole or value in self._outside:
                continue
            needed.add(node)
            pending += node.operands[:1] if node.op == _SLICE_OP else node.operands
        for node in self.body.nodes if needed else ():
            if node not in needed:
                continue
            (value,) = node.results
            if value in self.rows:
                self._whole[value] = self._all_rows(node, self.rows[value].count, new)
            else:
                operands = [self._outside.get(v, v) for v in node.operands]
                self._outside[value] = new.add(
                    node.op, operands, value.type, node.attributes, literal=node.literal
                )

    def _all_rows(self, node: Node, count: int, new: NodeList) -> Value:
        (result,) = node.results
        tensor = stacked(result.type, count)
        if node.op == _SLICE_OP:
            array = self._outside.get(node.operands[0], node.operands[0])
            return new.reshape(new.move(array, sliced_axis(node), 0), tensor.shape)
        if node.op == DOT_OP:
            return self._all_products(node, tensor, new)
        rows = [self._broadcast(v, count, node, new) for v in node.operands]
        move = _MOVES.get(node.op)
        attributes = move(node.attributes, count) if move else node.attributes
        return new.add(node.op, rows, tensor, attributes)

    def _broadcast(self, value: Value, count: int, node: Node, new: NodeList) -> Value:
        """All rows of an operand, be it invariant or not."""
        shape = node.results[0].type.shape
        is_scalar = not value.type.shape and shape and node.op in ELEMENTWISE
        if value in self.rows:
            whole = self._whole[value]
            if not is_scalar:
                return whole
            return new.broadcast(whole, (count, *shape), (0,))  # one predicate or bound each row
        value = self._outside.get(value, value)
        if is_scalar:
            return value
        dimensions = tuple(range(1, len(value.type.shape) + 1))
        return new.broadcast(value, (count, *value.type.shape), dimensions)

    def _all_products(self, node: Node, tensor: TensorType, new: NodeList) -> Value:
        axes = DotAxes.of(node)
        batch, lhs_free = len(axes.lhs_batch), len(axes.lhs_free)
        is_left = node.operands[0] in self.rows
        operands = [
            self._whole[v] if v in self.rows else self._outside.get(v, v) for v in node.operands
        ]
        attributes = dict(node.attributes)
        side = "lhs" if is_left else "rhs"
        for kind in ("batching", "contracting"):
            name = f"{side}_{kind}_dimensions"
            attributes[name] = _further(attributes[name])
        # The axis of the rows comes first among the free ones of its side.
        place = batch if is_left else batch + lhs_free
        shape = tensor.shape[1:]
        result = new.add(
            node.op,
            operands,
            TensorType((*shape[:place], tensor.shape[0], *shape[place:]), tensor.dtype),
            attributes,
        )
        return new.move(result, place, 0)


def sliced_axis(node: Node) -> int | None:
    """The axis of which this dynamic_slice, or dynamic_update_slice, takes one element, and all of
    the others; None for other slices."""
    shape = node.operands[0].type.shape
    is_slice = node.op == _SLICE_OP
    sizes = node.attributes["slice_sizes"] if is_slice else node.operands[1].type.shape
    partial = [
        d for d, (size, extent) in enumerate(zip(sizes, shape, strict=True)) if size != extent
    ]
    return partial[0] if len(partial) == 1 and sizes[partial[0]] == 1 else None


def stacked(tensor: TensorType, count: int) -> TensorType:
    """The type of `count` rows of this type."""
    return TensorType((count, *tensor.shape), tensor.dtype)
