"""Complex numbers as their two parts.

    z = x * y   ->   a, b = real(x), imag(x); c, d = real(y), imag(y)
                     real(z) = a c - b d; imag(z) = a d + b c

What is moved, chosen, added up or carried by a loop is so part by part.  Whole numbers are left at
the border: `real` and `imag` of what comes from outside and of what an op gives that is not known
here, `complex` of what goes there.  Kernels see the parts of a whole number side by side in memory.

Requires: nothing.  Ensures: the same values but for roundings; no ops on complex numbers but those
three and what is not known here.
Source of division: Smith, Algorithm 116, 1962; by zero, as NumPy has it, by its absolute value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, Kind, TensorType
from hlo_mlc.graph.build import constant_node
from hlo_mlc.graph.core import Attribute, Graph, Node, Value
from hlo_mlc.graph.rewrite import with_parts

Parts = tuple[Value, Value]
_CONTROL = frozenset(("stablehlo.while", "stablehlo.case", "stablehlo.if"))


# What kernels are faster at than XLA, on complex numbers: an exponential of a million f32 took 0.1
# of its time, an absolute value 0.5, a product of 256 x 256 matrices 0.5, scans of small arrays 0.1
# to 0.3; sums and products of elements take as long as there in arrays of less than a megabyte.
_FASTER = frozenset(f"stablehlo.{name}" for name in ("abs", "dot_general", "exponential"))
_LARGE = 1 << 20


def has_complex(graph: Graph) -> bool:
    """Whether there is an op on complex numbers in the graph that has a rule here."""
    return any(node.op in _RULES and _concerns_complex(node) for node in graph.walk())


def gains_in_parts(graph: Graph) -> bool:
    """Whether kernels may be faster than XLA at what the graph does with complex numbers."""
    return any(
        (node.op == "stablehlo.while" and any(map(_is_known_inside, node.regions)))
        or (node.op in _RULES and _concerns_complex(node) and (
            node.op in _FASTER or any(v.type.bytes >= _LARGE for v in node.results)))
        for node in graph.walk())


def _is_known_inside(region: Graph) -> bool:
    """Whether it computes with complex numbers, and nothing but what has a rule here."""
    concerned = [node for node in region.walk() if _concerns_complex(node)]
    return bool(concerned) and all(node.op in _RULES or node.op in _CONTROL for node in concerned)


def _concerns_complex(node: Node) -> bool:
    return any(map(_is_complex, (*node.operands, *node.results)))


def split_complex(graph: Graph) -> Graph:
    """The graph with complex numbers in parts; `graph` itself where it has none."""
    return _Splitter().whole(graph) if has_complex(graph) else graph


def _is_complex(value: Value) -> bool:
    return value.type is not None and value.type.dtype.kind is Kind.COMPLEX


class _Splitter:
    """One walk over a graph and its regions.  `parts`: of every complex number that is in parts;
    `there`: those that exist as a whole; `real`: those whose imaginary parts are known to be zero;
    `renamed`: what other values have become."""

    def __init__(self) -> None:
        self.parts: dict[Value, Parts] = {}
        self.there: set[Value] = set()
        self.real: set[Value] = set()
        self.renamed: dict[Value, Value] = {}
        self.nodes: list[Node] = []
        self.location = ""

    def whole(self, graph: Graph) -> Graph:
        """A graph whose parameters and results stay as they are."""
        outer, self.nodes = self.nodes, []
        for value in graph.parameters:
            self._arrived(value)
        for node in graph.nodes:
            self._node(node)
        results = tuple([self._as_before(v) for v in graph.results])
        nodes, self.nodes = tuple(self.nodes), outer
        return Graph(graph.parameters, nodes, results)

    def in_parts(self, graph: Graph) -> Graph:
        """A region whose parameters and results are parts."""
        outer, self.nodes = self.nodes, []
        parameters: list[Value] = []
        for value in graph.parameters:
            if _is_complex(value):
                self.parts[value] = Value(value.type.part), Value(value.type.part)
                parameters += self.parts[value]
            else:
                parameters.append(value)
        for node in graph.nodes:
            self._node(node)
        results = self._expanded(graph.results)
        nodes, self.nodes = tuple(self.nodes), outer
        return Graph(tuple(parameters), nodes, results)

    def add(self, op: str, operands: Sequence[Value], tensor: TensorType,
            attributes: Mapping[str, Attribute] | None = None, regions: Sequence[Graph] = ()
            ) -> Value:
        """A new node of one result."""
        result = Value(tensor)
        self.nodes.append(Node(f"stablehlo.{op}", tuple(operands), (result,), attributes or {},
                               tuple(regions), location=self.location))
        return result

    def like(self, op: str, *operands: Value) -> Value:
        """A new node of the type of its first operand."""
        return self.add(op, operands, operands[0].type)

    def constant(self, number: float, tensor: TensorType) -> Value:
        """A number in every place."""
        literal = np.broadcast_to(np.asarray(number, tensor.dtype.numpy), tensor.shape)
        self.nodes.append(constant_node(literal, self.location))
        return self.nodes[-1].results[0]

    def compare(self, direction: str, one: Value, other: Value) -> Value:
        """Whether one part is so to another."""
        return self.add("compare", (one, other), TensorType(one.type.shape, BOOL),
                        {"comparison_direction": direction, "compare_type": "FLOAT"})

    def value(self, value: Value) -> Value:
        """What a value that is not complex has become."""
        return self.renamed.get(value, value)

    def _arrived(self, value: Value) -> None:
        """A complex number comes from outside."""
        if _is_complex(value):
            self.there.add(value)
            tensor = value.type.part
            self.parts[value] = self.add("real", (value,), tensor), \
                self.add("imag", (value,), tensor)

    def _as_before(self, value: Value) -> Value:
        if not _is_complex(value) or value in self.there:
            return self.value(value)
        return self.add("complex", self.parts[value], value.type)

    def _expanded(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple([part for v in values for part in (
            self.parts[v] if _is_complex(v) else (self.value(v),))])

    def _node(self, node: Node) -> None:
        self.location = node.location
        concerned = (*node.operands, *node.results)
        if node.op in _CONTROL and not node.opaque \
                and all(v.type is not None for v in concerned):
            self._control(node)
            return
        rule = _RULES.get(node.op)
        if rule is not None and not node.opaque and any(map(_is_complex, concerned)) \
                and all(v.type is not None and v.type.is_static for v in concerned):
            found = rule(node, self)
            if found is not None:
                (result,) = node.results
                if _is_complex(result):
                    self.parts[result] = found
                else:
                    self.renamed[result] = found
                return
        self._as_it_is(node)

    def _as_it_is(self, node: Node) -> None:
        """Complex numbers go in and come out as a whole, also what regions take from around."""
        captured = {v for region in node.regions for v in region.captures}
        renamed = {v: self._as_before(v) for v in captured}
        regions = tuple([_reading(region, renamed) for region in node.regions]) \
            if any(old is not new for old, new in renamed.items()) else node.regions
        operands = tuple([self._as_before(v) for v in node.operands])
        self.nodes.append(with_parts(node, operands, regions))
        for value in node.results:
            self._arrived(value)

    def _control(self, node: Node) -> None:
        regions = tuple([self.in_parts(region) for region in node.regions])
        operands = self._expanded(node.operands)
        if operands == node.operands and not any(map(_is_complex, node.results)):
            self.nodes.append(with_parts(node, operands, regions))
            return
        results: list[Value] = []
        for value in node.results:
            if _is_complex(value):
                self.parts[value] = Value(value.type.part), Value(value.type.part)
                results += self.parts[value]
            else:
                results.append(value)
        self.nodes.append(Node(node.op, operands, tuple(results), node.attributes, regions,
                               location=node.location))


def _reading(graph: Graph, renamed: Mapping[Value, Value]) -> Graph:
    """The region with other values in place of those from around it."""
    def new(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([renamed.get(v, v) for v in values])

    nodes = tuple([with_parts(node, new(node.operands),
                              tuple([_reading(r, renamed) for r in node.regions]))
                   for node in graph.nodes])
    return Graph(graph.parameters, nodes, new(graph.results))


# A rule gives the parts of a node's result, or the result where that is no complex number; None
# where it does not apply.
Split = Callable[[Node, _Splitter], Parts | Value | None]


def _part_by_part(*complex_operands: int) -> Split:
    """An op that does the same to both parts; which of its operands are complex (all where none is
    named)."""
    def rule(node: Node, s: _Splitter) -> Parts | None:
        positions = complex_operands or range(len(node.operands))
        if len(node.results) != 1 or node.regions:
            return None
        name = node.op.removeprefix("stablehlo.")
        tensor = node.results[0].type.part
        re, im = (s.add(name, [s.parts[v][k] if n in positions else s.value(v)
                               for n, v in enumerate(node.operands)], tensor, node.attributes)
                  for k in (0, 1))
        if all(node.operands[n] in s.real for n in positions):
            s.real.add(node.results[0])
        return re, im
    return rule


def _folded(*regions: str) -> Split:
    """Reductions and scatters by a sum, or that replace, of one complex array."""
    def rule(node: Node, s: _Splitter) -> Parts | None:
        kind = _kind_of(node.regions[0]) if len(node.results) == 1 else None
        if kind not in regions:
            return None
        name = node.op.removeprefix("stablehlo.")
        tensor = node.results[0].type.part

        def one(k: int) -> Value:
            operands = [s.parts[v][k] if _is_complex(v) else s.value(v) for v in node.operands]
            return s.add(name, operands, tensor, node.attributes, (_region(kind, tensor),))

        return one(0), one(1)
    return rule


def _kind_of(region: Graph) -> str | None:
    """Whether a region of two complex scalars adds them up, or gives the second."""
    if len(region.parameters) != 2 or len(region.results) != 1:
        return None
    if not region.nodes and region.results[0] is region.parameters[1]:
        return "second"
    if len(region.nodes) == 1 and region.nodes[0].op == "stablehlo.add" \
            and set(region.nodes[0].operands) == set(region.parameters) \
            and region.results == region.nodes[0].results:
        return "add"
    return None


def _region(kind: str, tensor: TensorType) -> Graph:
    scalar = TensorType((), tensor.dtype)
    one, other, total = Value(scalar), Value(scalar), Value(scalar)
    if kind == "second":
        return Graph((one, other), (), (other,))
    return Graph((one, other), (Node("stablehlo.add", (one, other), (total,)),), (total,))


def _real(node: Node, s: _Splitter) -> Value:
    return s.parts[node.operands[0]][0]


def _imag(node: Node, s: _Splitter) -> Value:
    return s.parts[node.operands[0]][1]


def _complex(node: Node, s: _Splitter) -> Parts:
    one, other = node.operands
    return s.value(one), s.value(other)


def _constant(node: Node, s: _Splitter) -> Parts:
    found = []
    if not np.any(node.literal.imag):
        s.real.add(node.results[0])
    for part in (node.literal.real, node.literal.imag):
        # One number for all places stays one; tables lie part by part.
        literal = part if 0 in part.strides else part.copy()
        s.nodes.append(constant_node(literal, s.location))
        found.append(s.nodes[-1].results[0])
    return found[0], found[1]


def _convert(node: Node, s: _Splitter) -> Parts | Value:
    source, result = node.operands[0], node.results[0]
    if not _is_complex(result):
        return s.add("convert", (s.parts[source][0],), result.type)
    tensor = result.type.part
    if not _is_complex(source):
        s.real.add(result)
        return s.add("convert", (s.value(source),), tensor), s.constant(0.0, tensor)
    re, im = (s.add("convert", (part,), tensor) for part in s.parts[source])
    return re, im


def _conjugate(node: Node, s: _Splitter) -> Parts:
    re, im = s.parts[node.operands[0]]
    return re, s.like("negate", im)


def _multiply(node: Node, s: _Splitter) -> Parts:
    (a, b), (c, d) = (s.parts[v] for v in node.operands)
    return s.like("subtract", s.like("multiply", a, c), s.like("multiply", b, d)), \
        s.like("add", s.like("multiply", a, d), s.like("multiply", b, c))


def _square(node: Node, s: _Splitter) -> Parts:
    a, b = s.parts[node.operands[0]]
    product = s.like("multiply", a, b)
    return s.like("subtract", s.like("multiply", a, a), s.like("multiply", b, b)), \
        s.like("add", product, product)


def _divide(node: Node, s: _Splitter) -> Parts:
    (a, b), (c, d) = (s.parts[v] for v in node.operands)
    tensor = c.type
    if node.operands[1] in s.real:
        re = s.like("divide", s.like("add", a, s.like("multiply", b, d)), c)
        return re, s.like("divide", s.like("subtract", b, s.like("multiply", a, d)), c)
    lengths = s.like("abs", c), s.like("abs", d)
    wide, larger = s.compare("GE", *lengths), s.like("maximum", *lengths)  # NaN where one is

    def chosen(one: Value, other: Value) -> Value:
        return s.add("select", (wide, one, other), tensor)

    large, small = chosen(c, d), chosen(d, c)
    ratio = s.like("divide", small, large)
    below = s.like("add", large, s.like("multiply", small, ratio))
    # (a + b r) / q and (b - a r) / q where c is the larger, (a r + b) / q and (b r - a) / q else.
    ar, br = s.like("multiply", a, ratio), s.like("multiply", b, ratio)
    over = chosen(s.like("add", a, br), s.like("add", ar, b)), \
        chosen(s.like("subtract", b, ar), s.like("subtract", br, a))
    by_zero = s.compare("EQ", larger, s.constant(0.0, tensor))
    re, im = (s.add("select", (by_zero, s.like("divide", part, larger),
                               s.like("divide", quotient, below)), tensor)
              for part, quotient in zip((a, b), over, strict=True))
    return re, im


def _abs(node: Node, s: _Splitter) -> Value:
    """The larger part times sqrt(1 + (smaller / larger)^2): squares may leave the range."""
    re, im = (s.like("abs", part) for part in s.parts[node.operands[0]])
    large, small = s.like("maximum", re, im), s.like("minimum", re, im)
    zero, one = s.constant(0.0, re.type), s.constant(1.0, re.type)
    ratio = s.like("divide", small, large)
    length = s.like("multiply", large, s.like("sqrt", s.like(
        "add", one, s.like("multiply", ratio, ratio))))
    length = s.add("select", (s.compare("EQ", small, zero), large, length), re.type)
    infinite = s.constant(np.inf, re.type)
    is_infinite = s.like("or", s.compare("EQ", re, infinite), s.compare("EQ", im, infinite))
    return s.add("select", (is_infinite, infinite, length), re.type)


def _exponential(node: Node, s: _Splitter) -> Parts:
    a, b = s.parts[node.operands[0]]
    zero, length = s.constant(0.0, a.type), s.like("exponential", a)
    re = s.like("multiply", length, s.like("cosine", b))
    im = s.like("multiply", length, s.like("sine", b))
    on_axis, vanishes = s.compare("EQ", b, zero), s.compare("EQ", length, zero)
    re = s.add("select", (on_axis, length, re), a.type)
    im = s.add("select", (on_axis, b, im), a.type)
    return s.add("select", (vanishes, zero, re), a.type), \
        s.add("select", (vanishes, zero, im), a.type)


def _compare(node: Node, s: _Splitter) -> Value | None:
    direction = node.attributes["comparison_direction"]
    if direction not in ("EQ", "NE"):
        return None
    (a, b), (c, d) = (s.parts[v] for v in node.operands)
    return s.like("and" if direction == "EQ" else "or",
                  s.compare(direction, a, c), s.compare(direction, b, d))


def _product(node: Node, s: _Splitter) -> Parts:
    """Four products of real arrays."""
    (a, b), (c, d) = (s.parts[v] for v in node.operands)
    tensor = node.results[0].type.part

    def product(one: Value, other: Value) -> Value:
        return s.add("dot_general", (one, other), tensor, node.attributes)

    return s.like("subtract", product(a, c), product(b, d)), \
        s.like("add", product(a, d), product(b, c))


_ALIKE = ("add", "subtract", "negate", "broadcast_in_dim", "reshape", "transpose", "slice",
          "reverse", "concatenate", "pad")
_RULES: Mapping[str, Split] = {
    **{f"stablehlo.{name}": _part_by_part() for name in _ALIKE},
    "stablehlo.dynamic_slice": _part_by_part(0),
    "stablehlo.gather": _part_by_part(0),
    "stablehlo.dynamic_update_slice": _part_by_part(0, 1),
    "stablehlo.select": _part_by_part(1, 2),
    "stablehlo.reduce": _folded("add"),
    "stablehlo.reduce_window": _folded("add"),
    "stablehlo.scatter": _folded("add", "second"),
    "stablehlo.real": _real,
    "stablehlo.imag": _imag,
    "stablehlo.complex": _complex,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _convert,
    "stablehlo.multiply": _multiply,
    "stablehlo.divide": _divide,
    "stablehlo.abs": _abs,
    "stablehlo.exponential": _exponential,
    "stablehlo.compare": _compare,
    "stablehlo.dot_general": _product,
    "chlo.conj": _conjugate,
    "chlo.square": _square,
}
