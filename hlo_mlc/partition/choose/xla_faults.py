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

Squares of signed integers it takes for not negative, also where they overflow (seen with jaxlib
0.10.2, tensorflow #118178; source: IsNonNegative in xla/hlo/transforms/simplifiers/
algebraic_simplifier.cc):

    x * x < 0    ->    false
    abs(x * x)   ->    x * x
    x * x / 8    ->    shift_right_logical(x * x, 3)
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import jaxlib

from hlo_mlc.expr.dtypes import F32
from hlo_mlc.graph.core import WHILE, Node, Value
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.registry import lookup
from hlo_mlc.ops.shape import splat_value

OLD_LIBRARY = ("0.10.2", "0.11.0")
_RANK = 7
_TRANSPOSE = "stablehlo.transpose"
_RESHAPE = "stablehlo.reshape"
_BROADCAST = "stablehlo.broadcast_in_dim"
_SLICES = frozenset(("stablehlo.slice", "stablehlo.dynamic_slice"))


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
    if any(_asks_for_the_sign_of_a_square(node, makers) for node in nodes):
        return "XLA takes squares of integers that overflow for positive"
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


def _asks_for_the_sign_of_a_square(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether XLA simplifies it by a sign that a square of signed integers need not have."""
    if node.op == "stablehlo.abs":
        return _is_square(node.operands[0], makers)
    if node.op == "stablehlo.compare":
        direction = node.attributes["comparison_direction"]
        if direction not in ("LT", "GE", "GT", "LE"):
            return False
        square, other = node.operands if direction in ("LT", "GE") else node.operands[::-1]
        return _is_square(square, makers) and _known(other, makers) == 0
    if node.op in ("stablehlo.divide", "stablehlo.remainder"):
        square, by = node.operands
        if not _is_square(square, makers):
            return False
        divisor = _known(by, makers)
        return divisor is not None and int(divisor).bit_count() == 1
    return False


def _is_square(value: Value, makers: Mapping[Value, Node]) -> bool:
    maker = _seen_through(value, makers, (_RESHAPE, _BROADCAST))
    return (
        maker is not None
        and maker.op == "stablehlo.multiply"
        and maker.operands[0] == maker.operands[1]
        and value.type.dtype.is_signed
    )


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
    if term is not None and term.op == "stablehlo.convert":
        term = makers.get(term.operands[0])
    return (
        term is not None
        and term.op == "stablehlo.multiply"
        and reduce.operands[0].type.dtype is F32
        and len(reduce.attributes["dimensions"]) == 1
        and [node.op for node in reduce.regions[0].nodes] == ["stablehlo.add"]
    )
