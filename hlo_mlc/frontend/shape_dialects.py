"""Arithmetic on sizes in MLIR's dialects shape, tensor and arith, as StableHLO.

A number is a tensor without dimensions, an index or a size an integer of 64 bits, a shape an array
of these.  Operands are what other rewrites have left: StableHLO already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.frontend.writing import Writer, integers, with_elements

Rewrite = Callable[[Writer, ir.Operation], ir.Value | Sequence[ir.Value] | None]
"""What takes the place of an operation's results; None where it has to stay."""

WITNESSES = frozenset(
    (
        "shape.cstr_broadcastable",
        "shape.cstr_eq",
        "shape.cstr_require",
        "shape.const_witness",
        "shape.assuming_all",
    )
)
"""That shapes fit, for `shape.assuming`: it shows when they are known."""

# By MLIR's numbers; those of integers without a sign come last.
_PREDICATES = ("EQ", "NE", "LT", "LE", "GT", "GE", "LT", "LE", "GT", "GE")


def _tensor(written: ir.Type) -> ir.Type:
    """What stands for a value of a type."""
    if isinstance(written, ir.RankedTensorType):
        return with_elements(written, integers()) if has_indices(written) else written
    is_size = isinstance(written, ir.IndexType) or str(written) == "!shape.size"
    return ir.RankedTensorType.get((), integers() if is_size else written)


def has_indices(written: ir.Type) -> bool:
    """Whether it is the type of an array of indices."""
    return isinstance(written, ir.RankedTensorType) and isinstance(
        written.element_type, ir.IndexType
    )


def _element(written: ir.Type) -> ir.Type:
    return ir.RankedTensorType(_tensor(written)).element_type


def _is_truth(element: ir.Type) -> bool:
    return element == ir.IntegerType.get_signless(1)


def _known(value: ir.Value) -> int | None:
    """The number that a scalar is, where it is a constant."""
    operation = value.owner
    if isinstance(operation, ir.Block) or operation.name != "stablehlo.constant":
        return None
    return int(np.asarray(operation.attributes["value"]).item())


def _same(name: str) -> Rewrite:
    """An operation of StableHLO, element by element."""

    def rewrite(writer: Writer, operation: ir.Operation) -> ir.Value:
        return writer.op(name, list(operation.operands), _tensor(operation.results[0].type))

    return rewrite


def _itself(writer: Writer, operation: ir.Operation) -> ir.Value:
    return operation.operands[0]


def _converted(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    (operand,) = operation.operands
    if operation.name == "arith.extsi" and _is_truth(_element(operand.type)):
        return None  # true is -1
    return writer.converted(operand, _element(operation.results[0].type))


def _compared(writer: Writer, operation: ir.Operation) -> ir.Value:
    """Sizes are not negative, so that it does not matter whether they have a sign."""
    one, other = operation.operands
    direction = _PREDICATES[ir.IntegerAttr(operation.attributes["predicate"]).value]
    return writer.op(
        "stablehlo.compare",
        (one, other),
        with_elements(one.type, ir.IntegerType.get_signless(1)),
        comparison_direction=ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>"),
    )


def _constant(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    """A number, or sizes; other arrays are read with those of StableHLO (parse.py)."""
    written = operation.results[0].type
    if not isinstance(written, ir.RankedTensorType):
        return writer.number(operation.attributes["value"].value, _element(written))
    if not has_indices(written):
        return None
    sizes = np.asarray(operation.attributes["value"]).astype(np.int64)
    return writer.constant(
        ir.DenseElementsAttr.get(
            np.broadcast_to(sizes, written.shape).copy(), type=integers(), shape=written.shape
        )
    )


def _constant_shape(writer: Writer, operation: ir.Operation) -> ir.Value:
    sizes = [int(n) for n in np.asarray(operation.attributes["shape"])]
    return writer.joined([writer.integer(n) for n in sizes])


def _size(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    array, axis = operation.operands
    number = _known(axis)
    return None if number is None else writer.size(array, number)


def _shape(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    (array,) = operation.operands
    return (
        writer.joined(writer.sizes(array)) if isinstance(array.type, ir.RankedTensorType) else None
    )


def _element_at(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    array, *places = operation.operands
    if not places:
        return array
    numbers = [_known(place) for place in places]
    return None if len(numbers) > 1 or numbers[0] is None else writer.element(array, numbers[0])


def _joined(writer: Writer, operation: ir.Operation) -> ir.Value:
    written, whole = operation.results[0].type, writer.joined(list(operation.operands))
    if not isinstance(written, ir.RankedTensorType) or whole.type == _tensor(written):
        return whole
    return writer.reshaped(whole, _tensor(written), ())


def _broadcast_shape(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    """From the last dimension on, what is not 1."""
    if not all(_has_a_length(operand) for operand in operation.operands):
        return None
    return writer.joined(
        broadcast_sizes(writer, [writer.elements(operand) for operand in operation.operands])
    )


def broadcast_sizes(writer: Writer, shapes: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
    """Those of arrays of such sizes, broadcast to each other from the last dimension on."""
    found: list[ir.Value] = []
    for back in range(1, max(map(len, shapes), default=0) + 1):
        size, *others = [sizes[-back] for sizes in shapes if len(sizes) >= back]
        for other in others:
            size = _larger(writer, size, other)
        found.append(size)
    return found[::-1]


def _larger(writer: Writer, one: ir.Value, other: ir.Value) -> ir.Value:
    """The size that is not 1, if one is not."""
    if _known(one) not in (None, 1) or _known(other) == 1:
        return one
    if _known(other) is not None or _known(one) == 1:
        return other
    truth = ir.RankedTensorType.get((), ir.IntegerType.get_signless(1))
    is_one = writer.op(
        "stablehlo.compare",
        (one, writer.integer(1)),
        truth,
        comparison_direction=ir.Attribute.parse("#stablehlo<comparison_direction EQ>"),
    )
    return writer.op("stablehlo.select", (is_one, other, one), one.type)


def _has_a_length(value: ir.Value) -> bool:
    return (
        isinstance(value.type, ir.RankedTensorType)
        and value.type.has_static_shape
        and value.type.rank == 1
    )


def _product(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    if not _has_a_length(operation.operands[0]):
        return None
    total = writer.integer(1)
    for size in writer.elements(operation.operands[0]):
        total = writer.same("stablehlo.multiply", total, size)
    return total


def _recast(writer: Writer, operation: ir.Operation) -> ir.Value:
    """An array of which more, or less, of the shape is said."""
    (array,), result = operation.operands, _tensor(operation.results[0].type)
    return array if array.type == result else writer.reshaped(array, result, writer.sizes(array))


REWRITES: Mapping[str, Rewrite] = {
    **dict.fromkeys(("arith.constant", "stablehlo.constant"), _constant),
    "arith.cmpi": _compared,
    "arith.select": _same("stablehlo.select"),
    **{
        f"arith.{name}": _converted
        for name in (
            "index_cast",
            "index_castui",
            "extsi",
            "extui",
            "trunci",
            "sitofp",
            "uitofp",
            "fptosi",
            "extf",
            "truncf",
        )
    },
    **{
        f"arith.{name}": _same(f"stablehlo.{op}")
        for name, op in {
            "addi": "add",
            "subi": "subtract",
            "muli": "multiply",
            "divsi": "divide",
            "divui": "divide",
            "floordivsi": "divide",
            "remsi": "remainder",
            "remui": "remainder",
            "maxsi": "maximum",
            "maxui": "maximum",
            "minsi": "minimum",
            "minui": "minimum",
            "andi": "and",
            "ori": "or",
            "xori": "xor",
            "addf": "add",
            "subf": "subtract",
            "mulf": "multiply",
            "divf": "divide",
            "negf": "negate",
            "maximumf": "maximum",
            "minimumf": "minimum",
        }.items()
    },
    "tensor.dim": _size,
    "tensor.extract": _element_at,
    "tensor.from_elements": _joined,
    "tensor.cast": _recast,
    "shape.shape_of": _shape,
    "shape.const_shape": _constant_shape,
    "shape.dim": _size,
    "shape.broadcast": _broadcast_shape,
    "shape.num_elements": _product,
    "shape.get_extent": _element_at,
    "shape.from_extents": _joined,
    **dict.fromkeys(
        (
            "shape.to_extent_tensor",
            "shape.from_extent_tensor",
            "shape.index_to_size",
            "shape.size_to_index",
            "shape.value_as_shape",
        ),
        _itself,
    ),
}
# Sizes are not negative: divisions and remainders are the same with and without a sign.
