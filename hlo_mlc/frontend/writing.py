"""StableHLO written in front of an operation, sizes as numbers of it where they are not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir

Sizes = Sequence[ir.Value]
"""Scalars of 64 bits."""


class Writer:
    """Operations in front of one, whose place in the user's code they have."""

    def __init__(self, before: ir.Operation) -> None:
        self._point = ir.InsertionPoint(before)
        self._location = before.location

    def op(
        self, name: str, operands: Sequence[ir.Value], result: ir.Type, **attributes: ir.Attribute
    ) -> ir.Value:
        """An operation of one result."""
        return ir.Operation.create(
            name, [result], list(operands), attributes, loc=self._location, ip=self._point
        ).result

    def same(self, name: str, *operands: ir.Value) -> ir.Value:
        """One of the type of its first operand."""
        return self.op(name, operands, operands[0].type)

    def number(self, value: float, element: ir.Type) -> ir.Value:
        """A scalar constant."""
        scalar = ir.RankedTensorType.get((), element)
        if isinstance(element, ir.ComplexType):
            parts = [self.number(part, element.element_type) for part in (value, 0)]
            return self.op("stablehlo.complex", parts, scalar)
        attribute = (
            ir.IntegerAttr.get(element, int(value))
            if isinstance(element, ir.IntegerType)
            else ir.FloatAttr.get(element, value)
        )
        return self.constant(ir.DenseElementsAttr.get_splat(scalar, attribute))

    def constant(self, value: ir.Attribute) -> ir.Value:
        return self.op("stablehlo.constant", (), value.type, value=value)

    def integer(self, value: int) -> ir.Value:
        return self.number(value, integers())

    def converted(self, value: ir.Value, element: ir.Type) -> ir.Value:
        """With other elements; itself where it has these."""
        wanted = with_elements(value.type, element)
        return value if wanted == value.type else self.op("stablehlo.convert", (value,), wanted)

    def size(self, array: ir.Value, axis: int) -> ir.Value:
        """Of one dimension: a scalar."""
        tensor = ir.RankedTensorType(array.type)
        if not tensor.is_dynamic_dim(axis):
            return self.integer(tensor.get_dim_size(axis))
        narrow = ir.RankedTensorType.get((), ir.IntegerType.get_signless(32))
        found = self.op(
            "stablehlo.get_dimension_size",
            (array,),
            narrow,
            dimension=ir.IntegerAttr.get(integers(), axis),
        )
        return self.converted(found, integers())

    def sizes(self, array: ir.Value) -> list[ir.Value]:
        """Of all dimensions."""
        return [self.size(array, axis) for axis in range(ir.RankedTensorType(array.type).rank)]

    def joined(self, numbers: Sequence[ir.Value]) -> ir.Value:
        """Scalars as one array."""
        if not numbers:
            return self.constant(
                ir.DenseElementsAttr.get(np.zeros(0, np.int64), type=integers(), shape=(0,))
            )
        element = ir.RankedTensorType(numbers[0].type).element_type
        one = ir.RankedTensorType.get((1,), element)
        parts = [self.op("stablehlo.reshape", (number,), one) for number in numbers]
        return (
            parts[0]
            if len(parts) == 1
            else self.op(
                "stablehlo.concatenate",
                parts,
                ir.RankedTensorType.get((len(parts),), element),
                dimension=ir.IntegerAttr.get(integers(), 0),
            )
        )

    def element(self, array: ir.Value, place: int) -> ir.Value:
        """One of an array of one dimension, a scalar."""
        element = ir.RankedTensorType(array.type).element_type
        if np.prod(ir.RankedTensorType(array.type).shape) != 1:
            array = self.op(
                "stablehlo.slice",
                (array,),
                ir.RankedTensorType.get((1,), element),
                start_indices=integer_array((place,)),
                limit_indices=integer_array((place + 1,)),
                strides=integer_array((1,)),
            )
        return self.op("stablehlo.reshape", (array,), ir.RankedTensorType.get((), element))

    def elements(self, array: ir.Value) -> list[ir.Value]:
        """All of an array of one dimension of a known size."""
        return [self.element(array, n) for n in range(ir.RankedTensorType(array.type).shape[0])]

    def reshaped(self, array: ir.Value, result: ir.Type, sizes: Sizes) -> ir.Value:
        """To a type, whose sizes are these where it says none."""
        if (
            ir.RankedTensorType(result).has_static_shape
            and ir.RankedTensorType(array.type).has_static_shape
        ):
            return self.op("stablehlo.reshape", (array,), result)
        return self.op("stablehlo.dynamic_reshape", (array, self.joined(sizes)), result)

    def broadcast(
        self, array: ir.Value, axes: Sequence[int], shape: ir.Type, sizes: Callable[[], Sizes]
    ) -> ir.Value:
        """To the shape of a type, whose sizes are these where it says none; its dimensions become
        `axes`."""
        given = ir.RankedTensorType(array.type)
        result = with_elements(shape, given.element_type)
        if result == given and tuple(axes) == tuple(range(given.rank)) and given.has_static_shape:
            return array
        dimensions = integer_array(axes)
        if given.has_static_shape and ir.RankedTensorType(result).has_static_shape:
            return self.op(
                "stablehlo.broadcast_in_dim", (array,), result, broadcast_dimensions=dimensions
            )
        return self.op(
            "stablehlo.dynamic_broadcast_in_dim",
            (array, self.joined(sizes())),
            result,
            broadcast_dimensions=dimensions,
        )

    def filled(self, value: float, shape: ir.Type, sizes: Callable[[], Sizes]) -> ir.Value:
        """One number everywhere, as `broadcast` makes it."""
        number = self.number(value, ir.RankedTensorType(shape).element_type)
        return self.broadcast(number, (), shape, sizes)

    def places(self, shape: ir.Type, axis: int, sizes: Callable[[], Sizes]) -> ir.Value:
        """Along a dimension, of each element: an array of that type."""
        dimension = ir.IntegerAttr.get(integers(), axis)
        if ir.RankedTensorType(shape).has_static_shape:
            return self.op("stablehlo.iota", (), shape, iota_dimension=dimension)
        return self.op(
            "stablehlo.dynamic_iota", (self.joined(sizes()),), shape, iota_dimension=dimension
        )

    def compare(self, one: ir.Value, direction: str, other: ir.Value) -> ir.Value:
        """Whether it is EQ, NE, LE, LT, GE or GT, as integers of one type are."""
        return self.op(
            "stablehlo.compare",
            (one, other),
            with_elements(one.type, ir.IntegerType.get_signless(1)),
            comparison_direction=ir.Attribute.parse(
                f"#stablehlo<comparison_direction {direction}>"
            ),
        )

    def sum(self, array: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Over these dimensions."""
        tensor = ir.RankedTensorType(array.type)
        kept = [
            tensor.get_dim_size(d)
            if not tensor.is_dynamic_dim(d)
            else ir.ShapedType.get_dynamic_size()
            for d in range(tensor.rank)
            if d not in axes
        ]
        scalar = ir.RankedTensorType.get((), tensor.element_type)
        reduce = ir.Operation.create(
            "stablehlo.reduce",
            [ir.RankedTensorType.get(kept, tensor.element_type)],
            [array, self.number(0, tensor.element_type)],
            {"dimensions": integer_array(axes)},
            regions=1,
            loc=self._location,
            ip=self._point,
        )
        block = reduce.regions[0].blocks.append(scalar, scalar, arg_locs=[self._location] * 2)
        with ir.InsertionPoint(block), self._location:
            total = ir.Operation.create("stablehlo.add", [scalar], list(block.arguments)).result
            ir.Operation.create("stablehlo.return", [], [total])
        return reduce.result


def integers() -> ir.Type:
    """What sizes and places are, in the current context."""
    return ir.IntegerType.get_signless(64)


def integer_array(numbers: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(numbers))


def with_elements(tensor: ir.Type, element: ir.Type) -> ir.Type:
    """The type of a tensor of that shape."""
    found = ir.RankedTensorType(tensor)
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get(
        [dynamic if found.is_dynamic_dim(d) else found.get_dim_size(d) for d in range(found.rank)],
        element,
    )


def with_sizes(tensor: ir.Type, sizes: Sequence[int]) -> ir.Type:
    """The type of a tensor of other sizes with these elements."""
    return ir.RankedTensorType.get(list(sizes), ir.RankedTensorType(tensor).element_type)


def in_stablehlo(attribute: ir.Attribute) -> ir.Attribute:
    """Enumerations of CHLO's in StableHLO's words."""
    text = str(attribute)
    return (
        ir.Attribute.parse(text.replace("#chlo<", "#stablehlo<")) if "#chlo<" in text else attribute
    )
