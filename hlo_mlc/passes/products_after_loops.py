"""Loop distribution: products of one row in each trip become one product of all rows, after it.

    while(i, ys)  { ys[i] = f(…) @ w }          ->   while(i, fs) { fs[i] = f(…) };  ys = fs @ w
    while(i, sum) { sum += u(…)ᵀ @ xs[i] }      ->   while(i, us) { us[i] = u(…) };  sum += usᵀ @ xs

The first is how the gradient of a scan returns that of its inputs, the second how it returns those
of its weights.  A sum over the trips of a loop becomes part of the sum that each product is; it
runs over the rows in their order, whatever the order of the trips.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.counting import Counting, Known, Progression, counting
from hlo_mlc.graph.rewrite import NodeList, uses_among
from hlo_mlc.ops.contraction import DotAxes
from hlo_mlc.ops.registry import ELEMENTWISE
from hlo_mlc.passes.loop_rewriting import Rewritten, rewrite_loops
from hlo_mlc.passes.products_before_loops import LEAST_TERMS, MOST_BYTES, terms_of
from hlo_mlc.passes.rows import DOT_OP, Row, Rows, sliced_axis, stacked

_UPDATE_OP = "stablehlo.dynamic_update_slice"
_SLICE_OP = "stablehlo.slice"
# Elements that a sum of products has for each element of the factors that have to be kept for it:
# with fewer, keeping them costs as much as adding to the sum in every trip.
_LEAST_GAIN = 4


def multiply_after_loops(graph: Graph) -> Graph:
    """`while { ys[i] = f @ w; s = s + uᵀ @ v }` -> `while { fs[i] = f; us[i] = u; … }`, then the
    products of all rows.

    Only where every row is written once.  Returns `graph` itself where there is no such product.
    """
    return rewrite_loops(graph, _multiply_after)


@dataclass(frozen=True, slots=True)
class _Sink:
    """A product that only goes into one carried value: rows of it (`update`), or a sum.

    `chain` are the nodes on the way there, the one next to it first: for a sum they only change
    its shape.
    """

    position: int
    product: Node
    chain: tuple[Node, ...]
    last: Node  # what makes the carried value
    start: Value  # which row it is

    @property
    def is_sum(self) -> bool:
        return self.last.op != _UPDATE_OP


def _multiply_after(loop: Node, known: Known) -> Rewritten | None:
    found = counting(loop, known)
    if found is None or found.trips < 2:
        return None
    body = _parted(loop.regions[1], found)
    rows = Rows.of(body)
    sinks = _Search(loop, body, rows, found).sinks()
    if not sinks:
        return None
    return _Writer(loop, body, rows, found, sinks).rewritten()


class _Search:
    """Finds the products that can be computed after the loop."""

    def __init__(self, loop: Node, body: Graph, rows: Rows, found: Counting) -> None:
        self._loop, self._body, self._rows, self._found = loop, body, rows, found
        self._uses = Counter(v for node in body.nodes for v in node.used)
        self._uses.update(body.results)
        self._condition = {v for node in loop.regions[0].nodes for v in node.used}
        self._condition.update(loop.regions[0].results)

    def sinks(self) -> list[_Sink]:
        """Those that are worth it, as long as their factors fit into what may be kept."""
        found: list[_Sink] = []
        kept = 0
        for position in range(len(self._body.results)):
            sink = self._sink(position)
            if sink is None:
                continue
            new = sum(
                stacked(v.type, self._found.trips).bytes for v in _to_keep(sink.product, self._rows)
            )
            if kept + new <= MOST_BYTES:
                kept += new
                found.append(sink)
        return found

    def _sink(self, position: int) -> _Sink | None:
        parameter, result = self._body.parameters[position], self._body.results[position]
        last = self._rows.made.get(result)
        if (
            last is None
            or self._uses[parameter] != 1
            or self._uses[result] != 1
            or self._loop.regions[0].parameters[position] in self._condition
        ):
            return None
        if last.op == _UPDATE_OP and last.operands[0] is parameter:
            return self._stack(position, last)
        if last.op == "stablehlo.add" and parameter in last.operands:
            return self._sum(position, last)
        return None

    def _stack(self, position: int, last: Node) -> _Sink | None:
        axis = sliced_axis(last)
        if axis is None:
            return None
        start = last.operands[2 + axis]
        progression = self._found.progressions.get(start)
        extent = last.operands[0].type.shape[axis]
        if progression is None or not progression.covers(extent, self._found.trips):
            return None
        product, chain = self._follow(last.operands[1], _SAME_ORDER | ELEMENTWISE)
        if product is None or terms_of(product) < LEAST_TERMS:
            return None
        factors = product.operands
        if sum(map(self._rows.is_invariant, factors)) != 1 or any(
            v in self._rows.rows for v in factors
        ):
            return None
        return _Sink(position, product, chain, last, start)

    def _sum(self, position: int, last: Node) -> _Sink | None:
        parameter = self._body.parameters[position]
        (added,) = [v for v in last.operands if v is not parameter] or (parameter,)
        product, chain = self._follow(added, _ANY_ORDER)
        if (
            product is None
            or added.type.dtype.is_narrow_float
            or any(map(self._rows.is_invariant, product.operands))
        ):
            return None
        start = self._common_start(product)
        if start is None:
            return None
        sink = _Sink(position, product, chain, last, start)
        kept = sum(v.type.size for v in _to_keep(product, self._rows))
        return sink if product.results[0].type.size >= _LEAST_GAIN * kept else None

    def _follow(self, value: Value, ops: frozenset[str]) -> tuple[Node | None, tuple[Node, ...]]:
        """The product that `value` is made of, and the nodes on the way: `ops` of it alone."""
        chain: list[Node] = []
        node = self._rows.made.get(value)
        while node is not None and self._uses[value] == 1 and node.op in ops:
            varying = [v for v in node.operands if not self._rows.is_invariant(v)]
            if len(varying) != 1 or varying[0].type.size != value.type.size:
                break
            chain.append(node)
            (value,) = varying
            node = self._rows.made.get(value)
        if node is None or node.op != DOT_OP or self._uses[value] != 1:
            return None, ()
        return node, tuple(reversed(chain))

    def _common_start(self, product: Node) -> Value | None:
        """What numbers the trips: where the factors are rows, their own numbers."""
        trips = self._found.trips
        starts = [self._rows.rows[v].start for v in product.operands if v in self._rows.rows]
        counts = {self._rows.rows[v].count for v in product.operands if v in self._rows.rows}
        if counts - {trips}:
            return None
        candidates = starts or [
            v for v in self._found.progressions if self._found.progressions[v].covers(trips, trips)
        ]
        numbers = {self._found.progressions.get(v) for v in starts}
        if not candidates or len(numbers) > 1:
            return None
        progression = self._found.progressions.get(candidates[0])
        if progression is None or not progression.covers(trips, trips):
            return None
        return candidates[0]


_SAME_ORDER = frozenset(("stablehlo.reshape", "stablehlo.broadcast_in_dim"))
_ANY_ORDER = _SAME_ORDER | {"stablehlo.transpose"}


@dataclass(slots=True)
class _Writer:
    """Writes the loop without the products, and the products after it."""

    loop: Node
    body: Graph
    rows: Rows
    found: Counting
    sinks: list[_Sink]
    kept: dict[tuple[Value, Progression], Value] = field(default_factory=dict)

    def rewritten(self) -> Rewritten:
        """The new loop, what is before and after it, and the results."""
        moved = {sink.position: sink for sink in self.sinks}
        staying = [k for k in range(len(self.body.results)) if k not in moved]
        condition = self.loop.regions[0]
        parameters = [self.body.parameters[k] for k in staying]
        shadows = [condition.parameters[k] for k in staying]
        operands = [self.loop.operands[k] for k in staying]
        results = [self.body.results[k] for k in staying]
        produced = [Value(self.loop.results[k].type) for k in staying]
        gone = {sink.last for sink in self.sinks}
        nodes = [node for node in self.body.nodes if node not in gone]
        before, inside = NodeList(self.loop.location), NodeList(self.loop.location)
        for sink in self.sinks:
            for value in _to_keep(sink.product, self.rows):
                key = value, self.found.progressions[sink.start]
                if key in self.kept:
                    continue
                tensor = stacked(value.type, self.found.trips)
                parameter, whole = Value(tensor), Value(tensor)
                zero = before.scalar(0, value.type.dtype)
                operands.append(before.broadcast(zero, tensor.shape))
                parameters.append(parameter)
                shadows.append(Value(tensor))
                results.append(_stored(parameter, value, sink.start, inside))
                produced.append(whole)
                self.kept[key] = whole
        regions = (
            Graph(tuple(shadows), condition.nodes, condition.results),
            Graph(tuple(parameters), (*nodes, *inside.nodes), tuple(results)),
        )
        loop = Node(
            self.loop.op,
            tuple(operands),
            tuple(produced),
            self.loop.attributes,
            regions,
            location=self.loop.location,
        )
        after = NodeList(self.loop.location)
        values = dict(zip(staying, produced, strict=False))
        known: dict[Progression, Rows] = {}
        for sink in self.sinks:
            numbers = self.found.progressions[sink.start]
            if numbers not in known:
                known[numbers] = Rows.of(self.body)
            values[sink.position] = self._after(sink, known[numbers], after)
        ordered = tuple([values[k] for k in range(len(self.body.results))])
        return Rewritten((*before.nodes, loop, *after.nodes), ordered)

    def _after(self, sink: _Sink, rows: Rows, new: NodeList) -> Value:
        row = Row(sink.start, self.found.trips)
        progression = self.found.progressions[sink.start]
        for value in _to_keep(sink.product, self.rows):
            rows.stack(value, row, self.kept[value, progression])
        for factor in sink.product.operands:
            for node in _moves(factor, self.rows):
                rows.rows[node.results[0]] = row
        if sink.is_sum:
            return self._all_added(sink, rows, new)
        for node in (sink.product, *sink.chain):
            rows.rows[node.results[0]] = row
        axis = sliced_axis(sink.last)
        whole = rows.whole(sink.last.operands[1], new)
        shape = sink.last.results[0].type.shape
        flat = new.reshape(whole, (shape[axis], *shape[:axis], *shape[axis + 1 :]))
        return new.move(flat, 0, axis)

    def _all_added(self, sink: _Sink, rows: Rows, new: NodeList) -> Value:
        attributes = dict(sink.product.attributes)
        for side in ("lhs", "rhs"):
            for kind in ("batching", "contracting"):
                name = f"{side}_{kind}_dimensions"
                attributes[name] = tuple(d + 1 for d in attributes[name])
            name = f"{side}_contracting_dimensions"
            attributes[name] = (0, *attributes[name])
        factors = [rows.whole(v, new) for v in sink.product.operands]
        value = new.add(DOT_OP, factors, sink.product.results[0].type, attributes)
        for node in sink.chain:
            value = new.add(node.op, (value,), node.results[0].type, node.attributes)
        initial = self.loop.operands[sink.position]
        return new.add("stablehlo.add", (initial, value), initial.type)


def _to_keep(product: Node, rows: Rows) -> list[Value]:
    """What the factors are made of that has no array of rows yet."""
    found: dict[Value, None] = {}
    for factor in product.operands:
        if factor not in rows.rows and not rows.is_invariant(factor):
            moves = _moves(factor, rows)
            found.setdefault(moves[-1].operands[0] if moves else factor)
    return list(found)


def _moves(factor: Value, rows: Rows) -> list[Node]:
    """The nodes that only move the elements of a factor, the last one first."""
    moves: list[Node] = []
    node = rows.made.get(factor)
    while (
        factor not in rows.rows
        and node is not None
        and node.op in _ANY_ORDER
        and node.operands[0].type.size == factor.type.size
    ):
        moves.append(node)
        (factor,) = node.operands
        node = rows.made.get(factor)
    return moves


def _stored(parameter: Value, value: Value, start: Value, new: NodeList) -> Value:
    """`parameter` with `value` for row `start`."""
    one = new.reshape(value, (1, *value.type.shape))
    zero = new.scalar(0, start.type.dtype)
    return new.update(parameter, one, (start, *(zero,) * len(value.type.shape)))


def _parted(body: Graph, found: Counting) -> Graph:
    """`d = g @ w; ys[i] = d[:n]; h = d[n:]` -> `ys[i] = g @ w[:n]; h = g @ w[n:]`"""
    rows = Rows.of(body)
    users = uses_among(body.nodes)
    results = set(body.results)
    stored = _stored_values(body, found, rows)
    replaced: dict[Node, list[Node]] = {}
    for product in body.nodes:
        if product.op != DOT_OP or product.results[0] in results:
            continue
        value = product.results[0]
        slices = users.get(value, ())
        if (
            len(slices) < 2
            or any(node.op != _SLICE_OP for node in slices)
            or not any(node.results[0] in stored for node in slices)
        ):
            continue
        parts = [_part(product, node, rows) for node in slices]
        if all(parts):
            replaced.update(zip(slices, parts, strict=True))
    if not replaced:
        return body
    nodes = [new for node in body.nodes for new in replaced.get(node, (node,))]
    return Graph(body.parameters, tuple(nodes), body.results)


def _stored_values(body: Graph, found: Counting, rows: Rows) -> set[Value]:
    """Values that, in another shape, become rows of a carried array."""
    stored: set[Value] = set()
    for result in body.results:
        node = rows.made.get(result)
        if (
            node is None
            or node.op != _UPDATE_OP
            or sliced_axis(node) is None
            or node.operands[2 + sliced_axis(node)] not in found.progressions
        ):
            continue
        value = node.operands[1]
        stored.add(value)
        while (made := rows.made.get(value)) is not None and made.op in _SAME_ORDER:
            value = made.operands[0]
            stored.add(value)
    return stored


def _part(product: Node, cut: Node, rows: Rows) -> list[Node]:
    """The nodes of one slice of a product, computed alone; none where that is not one product."""
    axes = DotAxes.of(product)
    shape = product.results[0].type.shape
    starts, limits = cut.attributes["start_indices"], cut.attributes["limit_indices"]
    partial = [d for d in range(len(shape)) if limits[d] - starts[d] != shape[d]]
    first_right = len(axes.lhs_batch) + len(axes.lhs_free)
    if (
        len(partial) != 1
        or any(step != 1 for step in cut.attributes["strides"])
        or partial[0] < len(axes.lhs_batch)
    ):
        return []
    (axis,) = partial
    side = int(axis >= first_right)
    place = axes.rhs_free[axis - first_right] if side else axes.lhs_free[axis - len(axes.lhs_batch)]
    factor = product.operands[side]
    if not rows.is_invariant(factor):
        return []
    new = NodeList(product.location)
    factors = list(product.operands)
    factors[side] = new.cut(factor, place, starts[axis], limits[axis] - starts[axis])
    return [
        *new.nodes,
        Node(DOT_OP, tuple(factors), cut.results, product.attributes, location=product.location),
    ]
