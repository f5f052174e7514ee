"""Complex numbers as their two parts.

    z = x * y   ->   a, b = real(x), imag(x); c, d = real(y), imag(y)
                     real(z) = a c - b d; imag(z) = a d + b c

What is moved, chosen, added up or carried by a loop is so part by part.  Whole numbers are left at
the border: `real` and `imag` of what comes from outside and of what an op gives that is not known
here, `complex` of what goes there.  Kernels see the parts of a whole number side by side in memory.

What combines or compares numbers, such as a product of all or a sort, has the parts as operands of
their own; Fourier transforms over several short axes are products with matrices, those over others
are done axis by axis (`fourier.py`), and along one axis they are left whole (ops/fourier.py).

Requires: nothing.  Ensures: the same values but for roundings; no ops on complex numbers but those
three and what is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import CONTROL_FLOW, WHILE, Graph, Node, Value
from hlo_mlc.ops.registry import SOLVES, SOURCES, supports
from hlo_mlc.passes import complex_functions
from hlo_mlc.passes.complex_functions import Complex
from hlo_mlc.passes.complex_splitting import Parts, Split, Splitter, concerns_complex, is_complex
from hlo_mlc.passes.complex_transforms import FOURIER, is_transformed, transform_in_parts
from hlo_mlc.passes.complex_updates import known_updates
from hlo_mlc.passes.real_parts import Real

# What kernels are faster at than XLA, on complex numbers: an exponential of a million f32 took 0.1
# of its time, an absolute value 0.5, a product of 256 x 256 matrices 0.5, scans of small arrays 0.1
# to 0.3, functions of 100,000 complex64 on Zen 5 0.04 (atan) to 0.4 (sqrt), powers 0.12, rows of 64
# in order 0.06; sums, products and signs of elements take as long as there in arrays of less than a
# megabyte.
_FASTER = (
    complex_functions.FUNCTIONS.keys() - {"stablehlo.sign"}
    | complex_functions.FUNCTIONS_OF_TWO.keys()
    | {f"stablehlo.{name}" for name in ("abs", "dot_general", "sort")}
)
# So are factorizations and solves of small matrices, which take whole numbers: 10 to 40 times.
_LARGE = 1 << 20


def has_complex(graph: Graph) -> bool:
    """Whether there is an op on complex numbers in the graph that has a rule here."""
    return any(
        (_has_rule(node) or is_transformed(node)) and concerns_complex(node)
        for node in graph.walk()
    )


def gains_in_parts(graph: Graph) -> bool:
    """Whether kernels may be faster than XLA at what the graph does with complex numbers."""
    return any(
        (node.op in SOLVES and concerns_complex(node) and not supports(node))
        or (node.op == WHILE and any(map(_is_known_inside, node.regions)))
        or (
            _has_rule(node)
            and concerns_complex(node)
            and (node.op in _FASTER or any(v.type.bytes >= _LARGE for v in node.results))
        )
        for node in graph.walk()
    )


def _is_known_inside(region: Graph) -> bool:
    """Whether it computes with complex numbers, and nothing but what has a rule here."""
    concerned = [node for node in region.walk() if concerns_complex(node)]
    return bool(concerned) and all(_has_rule(node) or node.op in CONTROL_FLOW for node in concerned)


def _has_rule(node: Node) -> bool:
    return node.op in _RULES and node.op != FOURIER


def nothing(node: Node) -> bool:
    """No node."""
    return False


def split_complex(graph: Graph, stays: Callable[[Node], bool] = nothing) -> Graph:
    """The graph with complex numbers in parts; `graph` itself where it has none.

    stays: of which nodes, of static shapes, whole numbers go in and come out.
    """
    if not has_complex(graph):
        return graph
    return Splitter(_RULES, _is_joint, stays).whole(known_updates(graph))


def _is_joint(node: Node) -> bool:
    """Whether it has parts of all arrays as operands, where all that its regions do with complex
    numbers has a rule here."""
    return node.op in _JOINTLY and all(
        _has_rule(inner)
        for region in node.regions
        for inner in region.walk()
        if concerns_complex(inner)
    )


def _part_by_part(complex_operands: slice = slice(None)) -> Split:
    """An op that does the same to both parts; which of its operands are complex."""

    def rule(node: Node, s: Splitter) -> Parts | None:
        positions = range(len(node.operands))[complex_operands]
        if len(node.results) != 1 or node.regions:
            return None
        tensor = node.results[0].type.part
        re, im = (
            s.add(
                node.op,
                [
                    s.parts[v][k] if n in positions else s.value(v)
                    for n, v in enumerate(node.operands)
                ],
                tensor,
                node.attributes,
            )
            for k in (0, 1)
        )
        if all(node.operands[n] in s.real for n in positions):
            s.real.add(node.results[0])
        return re, im

    return rule


def _folded(*regions: str) -> Split:
    """Reductions and scatters by a sum, or that replace, of one complex array."""

    def rule(node: Node, s: Splitter) -> Parts | None:
        kind = _kind_of(node.regions[0]) if len(node.results) == 1 else None
        if kind not in regions:
            return None
        tensor = node.results[0].type.part

        def one(k: int) -> Value:
            operands = [s.parts[v][k] if is_complex(v) else s.value(v) for v in node.operands]
            return s.add(node.op, operands, tensor, node.attributes, (_region(kind, tensor),))

        return one(0), one(1)

    return rule


def _kind_of(region: Graph) -> str | None:
    """Whether a region of two complex scalars adds them up, or gives the second."""
    if len(region.parameters) != 2 or len(region.results) != 1:
        return None
    if not region.nodes and region.results[0] is region.parameters[1]:
        return "second"
    if (
        len(region.nodes) == 1
        and region.nodes[0].op == "stablehlo.add"
        and set(region.nodes[0].operands) == set(region.parameters)
        and region.results == region.nodes[0].results
    ):
        return "add"
    return None


def _region(kind: str, tensor: TensorType) -> Graph:
    scalar = TensorType((), tensor.dtype)
    one, other, total = Value(scalar), Value(scalar), Value(scalar)
    if kind == "second":
        return Graph((one, other), (), (other,))
    return Graph((one, other), (Node("stablehlo.add", (one, other), (total,)),), (total,))


def _real(node: Node, s: Splitter) -> Value:
    return s.parts[node.operands[0]][0]


def _imag(node: Node, s: Splitter) -> Value:
    return s.parts[node.operands[0]][1]


def _complex(node: Node, s: Splitter) -> Parts:
    one, other = node.operands
    return s.value(one), s.value(other)


def _constant(node: Node, s: Splitter) -> Parts:
    found = []
    if not np.any(node.literal.imag):
        s.real.add(node.results[0])
    for part in (node.literal.real, node.literal.imag):
        # One number for all places stays one; tables lie part by part.
        found.append(s.array(part if 0 in part.strides else part.copy()))
    return found[0], found[1]


def _convert(node: Node, s: Splitter) -> Parts | Value:
    source, result = node.operands[0], node.results[0]
    if not is_complex(result):
        return s.convert(s.parts[source][0], result.type.dtype)
    tensor = result.type.part
    if not is_complex(source):
        s.real.add(result)
        return s.convert(s.value(source), tensor.dtype), s.constant(0.0, tensor)
    re, im = (s.convert(part, tensor.dtype) for part in s.parts[source])
    return re, im


def _iota(node: Node, s: Splitter) -> Parts:
    (result,) = node.results
    tensor = result.type.part
    s.real.add(result)
    return s.add(node.op, (), tensor, node.attributes), s.constant(0.0, tensor)


def _bitcast(node: Node, s: Splitter) -> Parts | None:
    same = node.results[0].type == node.operands[0].type
    return s.parts[node.operands[0]] if same else None


def _conjugate(node: Node, s: Splitter) -> Parts:
    re, im = s.parts[node.operands[0]]
    return re, s.like("stablehlo.negate", im)


def _reals(s: Splitter, value: Value) -> Complex:
    re, im = s.parts[value]
    return Real(re, s), Real(im, s)


def _values(number: Complex) -> Parts:
    re, im = number
    return re.value, im.value


def _function(function: Callable[[Complex], Complex]) -> Split:
    def rule(node: Node, s: Splitter) -> Parts:
        return _values(function(_reals(s, node.operands[0])))

    return rule


def _multiply(node: Node, s: Splitter) -> Parts:
    (a, b), (c, d) = (_reals(s, v) for v in node.operands)
    return _values((a * c - b * d, a * d + b * c))


def _square(node: Node, s: Splitter) -> Parts:
    a, b = _reals(s, node.operands[0])
    product = a * b
    return _values(((a - b) * (a + b), product + product))


def _divide(node: Node, s: Splitter) -> Parts:
    (a, b), (c, d) = (_reals(s, v) for v in node.operands)
    if node.operands[1] in s.real:
        return _values(((a + b * d) / c, (b - a * d) / c))
    return _values(complex_functions.divide((a, b), (c, d)))


def _of_two(function: Callable[[Complex, Complex], Complex]) -> Split:
    def rule(node: Node, s: Splitter) -> Parts:
        z, w = (_reals(s, v) for v in node.operands)
        return _values(function(z, w))

    return rule


def _abs(node: Node, s: Splitter) -> Value:
    return complex_functions.length(_reals(s, node.operands[0])).value


def _extreme(direction: str) -> Split:
    """The larger or smaller one by its real part, then by its imaginary part."""

    def rule(node: Node, s: Splitter) -> Parts:
        (a, b), (c, d) = (_reals(s, v) for v in node.operands)
        before = a.compare(direction, c) | a.equals(c) & b.compare(direction[0] + "E", d)
        # As among real numbers, one with NaN in it is the result.
        first = a.compare("NE", a) | b.compare("NE", b) | before & c.equals(c) & d.equals(d)
        return _values((first.choose(a, c), first.choose(b, d)))

    return rule


def _compare(node: Node, s: Splitter) -> Value | None:
    direction = node.attributes["comparison_direction"]
    if direction not in ("EQ", "NE"):
        return None
    (a, b), (c, d) = (s.parts[v] for v in node.operands)
    return s.like(
        "stablehlo.and" if direction == "EQ" else "stablehlo.or",
        s.compare(direction, a, c),
        s.compare(direction, b, d),
    )


def _product(node: Node, s: Splitter) -> Parts | None:
    """Four products of real arrays; None, which leaves it to XLA, if sums are of another type."""
    if not all(map(is_complex, (*node.operands, *node.results))):
        return None
    (a, b), (c, d) = (s.parts[v] for v in node.operands)
    tensor = node.results[0].type.part

    def product(one: Value, other: Value) -> Value:
        return s.add("stablehlo.dot_general", (one, other), tensor, node.attributes)

    return s.like("stablehlo.subtract", product(a, c), product(b, d)), s.like(
        "stablehlo.add", product(a, d), product(b, c)
    )


def _other(node: Node, s: Splitter) -> None:
    """No rule for one array."""


_JOINTLY = frozenset(
    f"stablehlo.{name}" for name in ("optimization_barrier", "reduce", "reduce_window", "sort")
)
_RULES: Mapping[str, Split] = {
    **{name: _part_by_part(sources) for name, sources in SOURCES.items()},
    **{f"stablehlo.{name}": _part_by_part() for name in ("add", "subtract", "negate")},
    "stablehlo.reduce": _folded("add"),
    "stablehlo.reduce_window": _folded("add"),
    "stablehlo.sort": _other,
    "stablehlo.optimization_barrier": _other,
    FOURIER: transform_in_parts,
    "stablehlo.scatter": _folded("add", "second"),
    "stablehlo.real": _real,
    "stablehlo.imag": _imag,
    "stablehlo.complex": _complex,
    "stablehlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.convert": _convert,
    **{name: _function(function) for name, function in complex_functions.FUNCTIONS.items()},
    **{name: _of_two(function) for name, function in complex_functions.FUNCTIONS_OF_TWO.items()},
    "stablehlo.multiply": _multiply,
    "stablehlo.divide": _divide,
    "stablehlo.maximum": _extreme("GT"),
    "stablehlo.minimum": _extreme("LT"),
    "stablehlo.abs": _abs,
    "stablehlo.compare": _compare,
    "stablehlo.dot_general": _product,
    "chlo.conj": _conjugate,
    "chlo.square": _square,
    "stablehlo.bitcast_convert": _bitcast,
}
OPS_IN_PARTS = frozenset(_RULES)
"""Names of the ops whose complex numbers are computed as their two parts."""
