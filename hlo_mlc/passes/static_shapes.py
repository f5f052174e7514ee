"""Ops whose operands say a shape, where the shape is known: as ops whose attributes or types say
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hlo_mlc.graph.core import Attribute, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule


def _numbers(value: Value, context: Rewriter) -> tuple[int, ...] | None:
    """The elements of a constant, in order."""
    literal = context.literal(value)
    return None if literal is None else tuple(int(n) for n in literal.ravel())


def _static(node: Node) -> bool:
    return all(v.type is not None and v.type.is_static for v in (*node.operands, *node.results))


def of_known_shape(op: str, operands: int) -> Rule:
    """`dynamic_op(x, shape) : t` -> `op(x) : t`"""

    def rule(node: Node, context: Rewriter) -> Value | None:
        if not _static(node):
            return None
        attributes = {
            name: value for name, value in node.attributes.items() if not name.startswith("known_")
        }
        return context.add(op, node.operands[:operands], node.results[0].type, attributes)

    rule.__name__ = f"{op.partition('.')[2]}_of_known_shape"
    return rule


def _with_numbers(
    op: str,
    names: Sequence[str],
    convert: Callable[[Sequence[tuple[int, ...]], Node], Mapping[str, Attribute]],
) -> Rule:
    """`dynamic_op(x, …, constants)` -> `op(x, …)` with the constants as attributes"""

    def rule(node: Node, context: Rewriter) -> Value | None:
        kept = node.operands[: len(node.operands) - len(names)]
        numbers = [_numbers(v, context) for v in node.operands[len(kept) :]]
        if not _static(node) or any(n is None for n in numbers):
            return None
        attributes = {**node.attributes, **convert([n for n in numbers if n is not None], node)}
        return context.add(op, kept, node.results[0].type, attributes)

    rule.__name__ = f"{op.partition('.')[2]}_of_constants"
    return rule


def _named(*names: str) -> Callable[[Sequence[tuple[int, ...]], Node], Mapping[str, Attribute]]:
    return lambda numbers, node: dict(zip(names, numbers, strict=True))


def _pairs(numbers: Sequence[tuple[int, ...]], node: Node) -> Mapping[str, Attribute]:
    """Padding before and after each axis in turn."""
    (flat,) = numbers
    return {"padding": tuple(zip(flat[::2], flat[1::2], strict=True))}


_SLICE = ("start_indices", "limit_indices", "strides")
_PAD = ("edge_padding_low", "edge_padding_high", "interior_padding")

STATIC_SHAPE_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.dynamic_broadcast_in_dim": (of_known_shape("stablehlo.broadcast_in_dim", 1),),
    "stablehlo.dynamic_reshape": (of_known_shape("stablehlo.reshape", 1),),
    "stablehlo.dynamic_iota": (of_known_shape("stablehlo.iota", 0),),
    "stablehlo.real_dynamic_slice": (_with_numbers("stablehlo.slice", _SLICE, _named(*_SLICE)),),
    "stablehlo.dynamic_pad": (_with_numbers("stablehlo.pad", _PAD, _named(*_PAD)),),
    "stablehlo.dynamic_gather": (
        _with_numbers("stablehlo.gather", ("slice_sizes",), _named("slice_sizes")),
    ),
    "stablehlo.dynamic_conv": (_with_numbers("stablehlo.convolution", ("padding",), _pairs),),
}
