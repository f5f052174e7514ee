"""What kills the process when XLA runs it, or comes out wrong: we take that, whatever is predicted.

In jaxlib 0.10.2 and 0.11.0 YNNPACK computes sums of products of 7 dimensions and more, one of them
summed, and reads past what describes those (jax #39257, #40412); later ones do not.

In loops XLA sets parts of a row to other parts of it where the row is, although it still reads
them, if the row was given another shape first (seen with jaxlib 0.10.2 to 0.12.0):

    r = reshape(dynamic_slice(x, i))
    r.at[1:].set(r[:-1])    ->    r[0] everywhere

In loops it also writes results of fusions where it still reads an operand: one that is an operand
twice, as it is and transposed without being copied, as when rows of a few numbers are taken apart
(jaxlib 0.10.2 and 0.11.0, not later ones, nor with xla_cpu_copy_insertion_use_region_analysis; it
depends on what else there is):

    a, b = jnp.moveaxis(x, -1, 0);  x + jnp.stack([a * b, b], -1)    ->    of new rows in part

Squares and magnitudes of signed integers it takes for not negative, also where they overflow (seen
with jaxlib 0.10.2, not 0.12.0, tensorflow #118178; source: IsNonNegative in xla/hlo/transforms/
simplifiers/algebraic_simplifier.cc):

    x * x < 0    ->    false
    abs(x * x)   ->    x * x
    abs(x) / 8   ->    shift_right_logical(abs(x), 3)

Where it sums what is the same along several dimensions, tasks write over each other's sums (seen
with jaxlib 0.10.2, not 0.12.0, tensorflow #126812):

    sum(broadcast_in_dim(x : 1024x1 -> 2x1024x2048))    ->    one call in four wrong on two cores

Of dimensions with holes between their elements it forgets the holes, where windows of one element
step through them one by one and the array is large (jaxlib 0.10.2 to 0.12.0, openxla #48714):

    reduce_window(x, window = (2, 1), base_dilations = (1, 2))    ->    elements where holes are

Loops that count by more than one may run a trip less where they end past their limit (seen with
jaxlib 0.10.2, not 0.12.0):

    i = 0;  while i < 1: i = i + 2    ->    i is 0

Sorts of integers of 2 bits end the process or are refused (jaxlib 0.10.2 to 0.12.0).  They may have
become bytes by then (passes/packed_integers.py).
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import jaxlib

from hlo_mlc.expr.dtypes import F32, I2, U2
from hlo_mlc.graph.core import WHILE, Node, Value
from hlo_mlc.graph.counting import overshoots
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.registry import lookup
from hlo_mlc.ops.shape import splat_value
from hlo_mlc.partition.choose.xla_nodes import folds_repeated

OLD_LIBRARY = ("0.10.2", "0.11.0")
_RANK = 7
_RANK_OF_SAME = 3
_TRANSPOSE = "stablehlo.transpose"
_RESHAPE = "stablehlo.reshape"
_BROADCAST = "stablehlo.broadcast_in_dim"
_CONVERT = "stablehlo.convert"
_SLICES = frozenset(("stablehlo.slice", "stablehlo.dynamic_slice"))
_PICKS = frozenset(("stablehlo.maximum", "stablehlo.minimum", "stablehlo.select"))


def is_faulty(rank: int, version: str = jaxlib.__version__) -> bool:
    """Whether XLA may fail at sums of so many dimensions."""
    return version in OLD_LIBRARY and rank >= _RANK


def options_without(rank: int, transposes_and_loops: bool) -> dict[str, str | bool]:
    """XLA's options by which it does not fail at sums of so many dimensions, nor write over what
    loops take apart."""
    found: dict[str, str | bool] = {}
    if is_faulty(rank):
        found["xla_cpu_experimental_ynn_fusion_type"] = ""
    if transposes_and_loops and jaxlib.__version__ in OLD_LIBRARY:
        found["xla_cpu_copy_insertion_use_region_analysis"] = True
    return found


def fault(
    nodes: Sequence[Node],
    version: str = jaxlib.__version__,
    in_loop: bool = False,
    makers: Mapping[Value, Node] = MappingProxyType({}),
) -> str:
    """Why XLA may fail at some of them, which may be those of a loop's body; "" if it does not.
    `makers` are the operations that values from elsewhere come from."""
    nodes = [node for node in nodes if not node.opaque]  # whose types may not be known
    own = {node.results[0]: node for node in nodes if len(node.results) == 1}
    makers = ChainMap(own, makers)
    if any(
        is_faulty(len(node.operands[0].type.shape), version) and _sums_products(node, makers)
        for node in nodes
        if node.op == "stablehlo.reduce"
    ):
        return f"XLA of jaxlib {version} may crash at sums of products of {_RANK} dimensions"
    if in_loop and any(_sets_to_own_parts(node, makers) for node in nodes):
        return "XLA may overwrite what it still reads where a row is set to parts of itself"
    if in_loop and version in OLD_LIBRARY and _takes_apart(nodes, makers):
        return f"XLA of jaxlib {version} may overwrite rows of numbers that it takes apart in loops"
    if any(_asks_for_a_sign(node, makers) for node in nodes):
        return "XLA takes integers that overflow for positive"
    if version in OLD_LIBRARY and any(_sums_the_same(node, makers) for node in nodes):
        return f"XLA of jaxlib {version} may sum wrongly what is the same along dimensions"
    if any(map(_steps_over_holes, nodes)):
        return "XLA may leave out the holes of dimensions that windows of one element step over"
    if version in OLD_LIBRARY and any(_miscounts(node, makers) for node in nodes):
        return f"XLA of jaxlib {version} may miscount loops that end past their limit"
    if any(_sorts_two_bits(node, nodes, makers) for node in nodes):
        return "XLA sorts integers of 2 bits past their end"
    return next(
        filter(
            None,
            (
                fault(region.nodes, version, in_loop or node.op == WHILE, makers)
                for node in nodes
                for region in node.regions
            ),
        ),
        "",
    )


def _sets_to_own_parts(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether it sets part of what was reshaped to what is computed of slices of that."""
    if node.op == "stablehlo.dynamic_update_slice":
        whole, part = node.operands[:2]
    elif node.op == "stablehlo.scatter" and len(node.operands) == 3 and not node.regions[0].nodes:
        whole, _, part = node.operands
    else:
        return False
    if whole not in makers or makers[whole].op != _RESHAPE:
        return False
    seen: set[Value] = set()
    left = [part]
    while left:
        value = left.pop()
        maker = makers.get(value)
        if maker is None or value in seen:
            continue
        seen.add(value)
        if maker.op in _SLICES and maker.operands[0] == whole:
            return True
        definition = lookup(maker.op)
        if maker.op == _RESHAPE or (definition and definition.kind is OpKind.ELEMENTWISE):
            left += maker.operands
    return False


def _takes_apart(nodes: Sequence[Node], makers: Mapping[Value, Node]) -> bool:
    """Whether parts of something transposed are computed with, and it as well."""
    parts = Counter(
        transposed.operands[0]
        for transposed in (makers.get(n.operands[0]) for n in nodes if n.op in _SLICES)
        if transposed is not None and transposed.op == _TRANSPOSE
    )
    whole = {value for value, count in parts.items() if count > 1}
    return any(
        (definition := lookup(node.op)) is not None
        and definition.kind is OpKind.ELEMENTWISE
        and not whole.isdisjoint(node.operands)
        for node in nodes
    )


def _asks_for_a_sign(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether XLA simplifies it by a sign that signed integers need not have."""
    if node.op in ("stablehlo.abs", "stablehlo.shift_right_arithmetic"):  # a division that was
        return _overflows(node.operands[0], makers)
    if node.op == "stablehlo.compare":
        direction = node.attributes["comparison_direction"]
        if direction not in ("LT", "GE", "GT", "LE"):
            return False
        value, other = node.operands if direction in ("LT", "GE") else node.operands[::-1]
        return _known(other, makers) == 0 and _overflows(value, makers)
    if node.op in ("stablehlo.divide", "stablehlo.remainder"):
        value, by = node.operands
        divisor = _known(by, makers) if _overflows(value, makers) else None
        return divisor is not None and int(divisor).bit_count() == 1
    return False


def _overflows(value: Value, makers: Mapping[Value, Node]) -> bool:
    """Whether it may be negative, as XLA does not expect of it."""
    seen: set[Value] = set()
    left = [value]
    while left:
        value = left.pop()
        maker = _seen_through(value, makers, (_RESHAPE, _BROADCAST))
        if maker is None or value in seen or not value.type.dtype.is_signed:
            continue
        seen.add(value)
        if maker.op in _PICKS:
            left += maker.operands
        elif maker.op == "stablehlo.abs" or (
            maker.op == "stablehlo.multiply" and maker.operands[0] == maker.operands[1]
        ):
            return True
    return False


def _sums_the_same(reduce: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether it sums what is computed of one array along dimensions that this does not have, and
    others."""
    if (
        reduce.op != "stablehlo.reduce"
        or len(reduce.operands[0].type.shape) < _RANK_OF_SAME
        or not reduce.operands[0].type.dtype.is_float
        or [node.op for node in reduce.regions[0].nodes] != ["stablehlo.add"]
    ):
        return False
    maker = makers.get(reduce.operands[0])
    while maker is not None and len(maker.operands) == 1 and maker.op != _BROADCAST:
        definition = lookup(maker.op)
        if definition is None or definition.kind is not OpKind.ELEMENTWISE:
            return False
        maker = makers.get(maker.operands[0])
    return maker is not None and folds_repeated(reduce, maker)


def _miscounts(node: Node, makers: Mapping[Value, Node]) -> bool:
    def known(value: Value) -> int | None:
        number = None if value.type.shape else _known(value, makers)
        return None if number is None else int(number)

    return node.op == WHILE and overshoots(node, known)


def _steps_over_holes(node: Node) -> bool:
    if node.op != "stablehlo.reduce_window":
        return False
    sizes = node.attributes["window_dimensions"]
    ones = (1,) * len(sizes)
    holes, steps = (node.attributes.get(a) or ones for a in ("base_dilations", "window_strides"))
    return any(
        hole > 1 and size == step == 1 for size, hole, step in zip(sizes, holes, steps, strict=True)
    )


def _sorts_two_bits(node: Node, nodes: Sequence[Node], makers: Mapping[Value, Node]) -> bool:
    """Whether it sorts what is, or was, of 2 bits an element: some of it comes from such, or is
    made such."""
    if node.op != "stablehlo.sort":
        return False
    beside = (makers[v] for v in node.operands if v in makers)
    return any(map(_is_of_two_bits, (node, *beside, *(n for n in nodes if n.op == _CONVERT))))


def _is_of_two_bits(node: Node) -> bool:
    return any(v.type.dtype in (I2, U2) for v in (*node.operands, *node.results))


def _known(value: Value, makers: Mapping[Value, Node]) -> float | None:
    """The number that all elements of a value are known to be."""
    maker = _seen_through(value, makers, (_BROADCAST,))
    return None if maker is None or maker.literal is None else splat_value(maker.literal)


def _seen_through(value: Value, makers: Mapping[Value, Node], ops: Collection[str]) -> Node | None:
    """What makes a value, seen through such ops."""
    maker = makers.get(value)
    while maker is not None and maker.op in ops:
        maker = makers.get(maker.operands[0])
    return maker


def _sums_products(reduce: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether it is a sum along one dimension, computed in f32."""
    term = makers.get(reduce.operands[0])
    if term is not None and term.op == _CONVERT:
        term = makers.get(term.operands[0])
    return (
        term is not None
        and term.op == "stablehlo.multiply"
        and reduce.operands[0].type.dtype is F32
        and len(reduce.attributes["dimensions"]) == 1
        and [node.op for node in reduce.regions[0].nodes] == ["stablehlo.add"]
    )
