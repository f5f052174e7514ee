"""Writing nodes of common ops: the one place that spells their attributes and result types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, DType, TensorType
from hlo_mlc.graph.core import Attribute, Graph, Node, Value


class Builder(ABC):
    """Whatever new nodes are added to.  Ops that would change nothing give their operand."""

    __slots__ = ()

    @abstractmethod
    def add(
        self,
        op: str,
        operands: Sequence[Value],
        tensor: TensorType,
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Graph] = (),
    ) -> Value:
        """A new node of one result."""

    @abstractmethod
    def array(self, literal: np.ndarray) -> Value:
        """A new constant of the array's own type."""

    def constant(self, number: float, tensor: TensorType) -> Value:
        """A number in every place."""
        return self.array(np.broadcast_to(np.asarray(number, tensor.dtype.numpy), tensor.shape))

    def scalar(self, number: float, dtype: DType) -> Value:
        """A number of rank 0."""
        return self.array(np.asarray(number, dtype.numpy))

    def like(self, op: str, *operands: Value) -> Value:
        """An op whose result has the type of its first operand."""
        return self.add(op, operands, operands[0].type)

    def convert(self, value: Value, dtype: DType) -> Value:
        """The elements as numbers of another type."""
        return self._of_type("stablehlo.convert", value, dtype)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        """The bits of the elements as numbers of another type of the same size."""
        return self._of_type("stablehlo.bitcast_convert", value, dtype)

    def _of_type(self, op: str, value: Value, dtype: DType) -> Value:
        if value.type.dtype is dtype:
            return value
        return self.add(op, (value,), TensorType(value.type.shape, dtype))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The elements, in order, in another shape."""
        if value.type.shape == tuple(shape):
            return value
        tensor = TensorType(tuple(shape), value.type.dtype)
        return self.add("stablehlo.reshape", (value,), tensor)

    def broadcast(self, value: Value, shape: Sequence[int], axes: Sequence[int] = ()) -> Value:
        """The value repeated along all axes of `shape` but `axes`, which are its own."""
        return self.add(
            "stablehlo.broadcast_in_dim",
            (value,),
            TensorType(tuple(shape), value.type.dtype),
            {"broadcast_dimensions": tuple(axes)},
        )

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """The axes in this order."""
        if list(order) == sorted(order):
            return value
        tensor = TensorType(tuple(value.type.shape[d] for d in order), value.type.dtype)
        return self.add("stablehlo.transpose", (value,), tensor, {"permutation": tuple(order)})

    def move(self, value: Value, axis: int, place: int) -> Value:
        """One axis moved elsewhere."""
        order = [d for d in range(len(value.type.shape)) if d != axis]
        order.insert(place, axis)
        return self.transpose(value, order)

    def slice(
        self,
        value: Value,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        """Every element of a box, or every so many."""
        strides = tuple(strides or (1,) * len(value.type.shape))
        shape = tuple(
            -(-(limit - start) // stride)
            for start, limit, stride in zip(starts, limits, strides, strict=True)
        )
        if shape == value.type.shape:
            return value
        return self.add(
            "stablehlo.slice",
            (value,),
            TensorType(shape, value.type.dtype),
            {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": strides},
        )

    def cut(self, value: Value, axis: int, start: int, size: int) -> Value:
        """`size` elements along one axis, and all along the others."""
        starts, limits = [0] * len(value.type.shape), list(value.type.shape)
        starts[axis], limits[axis] = start, start + size
        return self.slice(value, starts, limits)

    def pad(self, value: Value, low: Sequence[int], high: Sequence[int]) -> Value:
        """Zeros before and behind the elements along each axis."""
        dtype, extents = value.type.dtype, zip(low, value.type.shape, high, strict=True)
        return self.add(
            "stablehlo.pad",
            (value, self.scalar(0, dtype)),
            TensorType(tuple(map(sum, extents)), dtype),
            {
                "edge_padding_low": tuple(low),
                "edge_padding_high": tuple(high),
                "interior_padding": (0,) * len(value.type.shape),
            },
        )

    def iota(self, tensor: TensorType, axis: int) -> Value:
        """The place along an axis."""
        return self.add("stablehlo.iota", (), tensor, {"iota_dimension": axis})

    def compare(self, direction: str, one: Value, other: Value) -> Value:
        """Whether two values compare so, element by element; neither is complex."""
        dtype = one.type.dtype
        kind = "FLOAT" if dtype.is_float else "SIGNED" if dtype.is_signed else "UNSIGNED"
        return self.add(
            "stablehlo.compare",
            (one, other),
            TensorType(one.type.shape, BOOL),
            {"comparison_direction": direction, "compare_type": kind},
        )

    def select(self, condition: Value, one: Value, other: Value) -> Value:
        """`one` where the condition holds, else `other`."""
        return self.add("stablehlo.select", (condition, one, other), one.type)

    def dynamic_slice(self, value: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        """A box of these sizes."""
        tensor = TensorType(tuple(sizes), value.type.dtype)
        attributes = {"slice_sizes": tensor.shape}
        return self.add("stablehlo.dynamic_slice", (value, *starts), tensor, attributes)

    def fold(self, op: str, value: Value, initial: Value, axes: Sequence[int]) -> Value:
        """All elements along some axes, and `initial`, as one by an op."""
        dtype, extents = value.type.dtype, enumerate(value.type.shape)
        return self.add(
            "stablehlo.reduce",
            (value, initial),
            TensorType(tuple(extent for d, extent in extents if d not in axes), dtype),
            {"dimensions": tuple(sorted(axes))},
            (combining(op, dtype),),
        )

    def update(self, value: Value, part: Value, starts: Sequence[Value]) -> Value:
        """The value with a box of it replaced."""
        return self.add("stablehlo.dynamic_update_slice", (value, part, *starts), value.type)


def combining(op: str, dtype: DType) -> Graph:
    """The region by which folds and scatters combine two elements: one op."""
    left, right, result = (Value(TensorType((), dtype)) for _ in range(3))
    return Graph((left, right), (Node(op, (left, right), (result,)),), (result,))
