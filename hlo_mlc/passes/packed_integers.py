"""Integers of 4 and 2 bits as bytes, wherever anything is done with them.

    y = x + x : 8x6xi4   ->   a = convert(x) : 8x6xi8
                              b = a + a
                              y = convert(b << 4 >> 4) : 8x6xi4

Packed ones are left at the border: a `convert` of what comes from outside and of what an op gives
that is not known here, and one of what goes there.  A product of matrices reads packed factors.

Requires: nothing.  Ensures: the same values; no ops on packed integers but `convert` and what is
not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_mlc.expr.dtypes import I8, PACKED, U8, U16, U32, U64, DType, Kind, TensorType
from hlo_mlc.graph.builder import combining
from hlo_mlc.graph.core import CONTROL_FLOW, Graph, Node, Value
from hlo_mlc.graph.rewrite import NodeList, with_other_values
from hlo_mlc.ops.definition import FewBits
from hlo_mlc.ops.registry import lookup

_CONVERT, _BITCAST = "stablehlo.convert", "stablehlo.bitcast_convert"
_WHOLE = {8: U8, 16: U16, 32: U32, 64: U64}
_IOTA, _CLZ = "stablehlo.iota", "stablehlo.count_leading_zeros"
# Of what a region combines so, the bits in front go once, after all of it.
_RINGS = frozenset(("stablehlo.add", "stablehlo.multiply"))


def has_packed(graph: Graph) -> bool:
    """Whether something is done with integers of less than a byte that is known here."""
    return any(
        any(map(_is_packed, (*node.operands, *node.results))) and _is_known(node)
        for node in graph.walk()
    )


def in_bytes(graph: Graph) -> Graph:
    """The graph with bytes in place of packed integers; `graph` itself where it has none."""
    return _Unpacking().border(graph) if has_packed(graph) else graph


def _is_packed(value: Value) -> bool:
    return value.type is not None and value.type.dtype in PACKED


def _is_known(node: Node) -> bool:
    """Whether bytes take the place of packed integers in a node."""
    concerned = (*node.operands, *node.results)
    if node.opaque or any(v.type is None or not v.type.is_static for v in concerned):
        return False
    if node.op == _BITCAST and any(v.type.dtype.kind is Kind.COMPLEX for v in concerned):
        return False
    kind = _few_bits(node)
    return kind is not FewBits.NONE and (
        kind is not FewBits.LAST_IF_SIGNED or node.results[0].type.dtype.is_signed
    )


def _few_bits(node: Node) -> FewBits:
    if node.op in CONTROL_FLOW:
        return FewBits.SAME
    definition = lookup(node.op)
    return FewBits.NONE if definition is None else definition.of_few_bits


def _byte_of(dtype: DType) -> DType:
    return I8 if dtype.is_signed else U8


class _Unpacking(NodeList):
    """One walk over a graph and its regions.  `bytes`: what packed integers have become; `packed`:
    those that exist as they were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[Value, Value] = {}
        self.packed: dict[Value, Value] = {}

    def border(self, graph: Graph) -> Graph:
        """A graph whose parameters and results stay as they are."""
        return self._walked(
            graph,
            graph.parameters,
            lambda: [self._as_before(v) for v in graph.results],
            arrive=graph.parameters,
        )

    def inside(self, graph: Graph) -> Graph:
        """A region whose parameters and results are bytes."""
        parameters = tuple(map(self._another, graph.parameters))
        return self._walked(graph, parameters, lambda: [self._byte(v) for v in graph.results])

    def _walked(
        self,
        graph: Graph,
        parameters: tuple[Value, ...],
        results: Callable[[], Sequence[Value]],
        arrive: Sequence[Value] = (),
    ) -> Graph:
        outer, self.nodes = self.nodes, []
        self._arrived(arrive)
        for node in graph.nodes:
            self._node(node)
        found = tuple(results())
        nodes, self.nodes = tuple(self.nodes), outer
        return Graph(parameters, nodes, found)

    def _another(self, value: Value) -> Value:
        """What takes the place of a value that a known node or a region defines."""
        if not _is_packed(value):
            return value
        self.bytes[value] = Value(TensorType(value.type.shape, _byte_of(value.type.dtype)))
        return self.bytes[value]

    def _arrived(self, values: Sequence[Value]) -> None:
        """Packed integers come from outside."""
        for value in filter(_is_packed, values):
            self.packed[value] = value
            self.bytes[value] = self.convert(value, _byte_of(value.type.dtype))

    def _byte(self, value: Value) -> Value:
        return self.bytes.get(value, value)

    def _as_before(self, value: Value) -> Value:
        if not _is_packed(value):
            return value
        return self.packed.get(value) or self.convert(self.bytes[value], value.type.dtype)

    def _node(self, node: Node) -> None:
        self.location = node.location
        concerned = (
            *node.operands,
            *node.results,
            *(v for region in node.regions for v in (*region.captures, *region.parameters)),
        )
        if not any(map(_is_packed, concerned)) and node.op not in CONTROL_FLOW:
            self.nodes.append(node)
        elif not _is_known(node):
            self._as_it_is(node)
        elif node.op == _CONVERT and node.operands[0].type.dtype.is_float:
            self._rounded(node)
        elif node.op == _BITCAST:
            self._cast(node)
        elif _few_bits(node) is FewBits.UNSIGNED:
            self._by_bits(node)
        else:
            self._in_bytes(node)

    def _as_it_is(self, node: Node) -> None:
        self.nodes.append(with_other_values(node, self._as_before))
        self._arrived(node.results)

    def _in_bytes(self, node: Node) -> None:
        operands, literal = tuple(map(self._byte, node.operands)), node.literal
        if node.op not in CONTROL_FLOW and len(node.regions) == 1 and _is_ring(node.regions[0]):
            regions, is_wrapped = (_plain(node.regions[0]),), True
        else:
            regions = tuple(map(self.inside, node.regions))
            is_wrapped = node.op == _IOTA or _few_bits(node) is not FewBits.SAME
        if literal is not None:
            literal = literal.astype(_byte_of(node.results[0].type.dtype).numpy)
        results = tuple(map(self._another, node.results))
        self.nodes.append(
            Node(node.op, operands, results, node.attributes, regions, literal, node.location)
        )
        if is_wrapped:
            for old in filter(_is_packed, node.results):
                self.bytes[old] = self._wrapped(self.bytes[old], old.type.dtype)

    def _wrapped(self, value: Value, dtype: DType) -> Value:
        """The number that the last bits of a byte are."""
        tensor = value.type
        if not dtype.is_signed:
            return self.like("stablehlo.and", value, self.constant((1 << dtype.bits) - 1, tensor))
        apart = self.constant(8 - dtype.bits, tensor)
        shifted = self.like("stablehlo.shift_left", value, apart)
        return self.like("stablehlo.shift_right_arithmetic", shifted, apart)

    def _rounded(self, node: Node) -> None:
        """Floats end at the limits."""
        (operand,), (result,) = node.operands, node.results
        dtype = result.type.dtype
        least = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
        limits = (least, least + (1 << dtype.bits) - 1)
        low, high = (self.scalar(n, operand.type.dtype) for n in limits)
        within = self.add("stablehlo.clamp", (low, operand, high), operand.type)
        self.bytes[result] = self.convert(within, _byte_of(dtype))

    def _by_bits(self, node: Node) -> None:
        """What is said of bits is said of those in an unsigned byte."""
        (result,) = node.results
        found = self.add(
            node.op, list(map(self._bits, node.operands)), TensorType(result.type.shape, U8)
        )
        if node.op == _CLZ:
            in_front = self.constant(8 - result.type.dtype.bits, found.type)
            found = self.like("stablehlo.subtract", found, in_front)
        self._from_bits(result, found)

    def _cast(self, node: Node) -> None:
        """Bits that stay, lie apart along a new last axis or are put together along the last."""
        (operand,), (result,) = node.operands, node.results
        source, target = operand.type, result.type
        if source.dtype.bits == target.dtype.bits:
            self._from_bits(result, self._bits(operand))
        elif source.dtype.bits > target.dtype.bits:
            whole = self.bitcast(self._byte(operand), _WHOLE.get(source.dtype.bits, U8))
            spread = self.broadcast(whole, target.shape, range(len(source.shape)))
            starts = self._starts(spread.type, target.dtype)
            found = self.like("stablehlo.shift_right_logical", spread, starts)
            self._from_bits(result, self.convert(found, U8))
        else:
            self._put_together(operand, result)

    def _put_together(self, operand: Value, result: Value) -> None:
        dtype = _WHOLE.get(result.type.dtype.bits, U8)
        spread = self.convert(self._bits(operand), dtype)
        starts = self._starts(spread.type, operand.type.dtype)
        parts = self.like("stablehlo.shift_left", spread, starts)
        last = len(operand.type.shape) - 1
        found = self.fold("stablehlo.add", parts, self.scalar(0, dtype), (last,))
        if _is_packed(result):
            self._from_bits(result, found)
        else:
            self.add(_BITCAST, (found,), result)

    def _starts(self, tensor: TensorType, dtype: DType) -> Value:
        """Along the last axis, how far from the last bit an element begins."""
        along = self.iota(tensor, len(tensor.shape) - 1)
        return self.like("stablehlo.multiply", along, self.constant(dtype.bits, tensor))

    def _bits(self, value: Value) -> Value:
        """The bits of packed integers, in unsigned bytes."""
        byte = self.bitcast(self._byte(value), U8)
        mask = self.constant((1 << value.type.dtype.bits) - 1, byte.type)
        return self.like("stablehlo.and", byte, mask)

    def _from_bits(self, result: Value, bits: Value) -> None:
        """The number that the last bits are."""
        dtype = result.type.dtype
        self.bytes[result] = self._wrapped(self.bitcast(bits, _byte_of(dtype)), dtype)


def _is_ring(region: Graph) -> bool:
    """Whether it adds or multiplies two packed integers."""
    return (
        len(region.nodes) == 1
        and region.nodes[0].op in _RINGS
        and region.nodes[0].results == region.results
        and _is_packed(region.results[0])
        and set(region.nodes[0].operands) == set(region.parameters)
    )


def _plain(region: Graph) -> Graph:
    """The same of two bytes."""
    return combining(region.nodes[0].op, _byte_of(region.results[0].type.dtype))
