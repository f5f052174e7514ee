"""Ops whose places depend on data: `gather`, `scatter` and `dynamic_update_slice`.

Dimension numbers are attributes under the names of the StableHLO specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import as_index
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Pointwise, Read, Update
from hlo_mlc.ops.regions import combiner_of
from hlo_mlc.tensor.access import clamped_index, conjunction, inside

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a tensor that index vectors name: what gather and scatter have in common.

    The other tensor holds one window for each index vector.  Its axes are `batch_axes`, one for
    each axis of the index tensor but `vector_axis`, and `window_axes`, one for each of `kept`.
    """

    shape: tuple[int, ...]  # of the tensor
    sizes: tuple[int, ...]  # of a window, along each axis of the tensor
    kept: tuple[int, ...]  # axes of the tensor that windows are stored with
    batch_axes: tuple[int, ...]
    window_axes: tuple[int, ...]
    index_rank: int
    vector_axis: int  # of the index tensor; its rank where every element is a vector
    start_map: tuple[int, ...]  # the tensor's axis for each component of an index vector
    batching: tuple[tuple[int, int], ...]  # (axis of the tensor, axis of the index tensor)

    @staticmethod
    def of_gather(node: Node) -> Windows:
        a = node.attributes
        shape, index_shape = (v.type.shape for v in node.operands)
        rank = len(node.results[0].type.shape)
        dropped = (*a["collapsed_slice_dims"], *a["operand_batching_dims"])
        return Windows(
            shape,
            a["slice_sizes"],
            tuple(d for d in range(len(shape)) if d not in dropped),
            tuple(d for d in range(rank) if d not in a["offset_dims"]),
            a["offset_dims"],
            len(index_shape),
            a["index_vector_dim"],
            a["start_index_map"],
            tuple(zip(a["operand_batching_dims"], a["start_indices_batching_dims"], strict=True)),
        )

    @staticmethod
    def of_scatter(node: Node) -> Windows:
        a = node.attributes
        shape, index_shape, update_shape = (v.type.shape for v in node.operands)
        window_axes = a["update_window_dims"]
        dropped = (*a["inserted_window_dims"], *a["input_batching_dims"])
        kept = tuple(d for d in range(len(shape)) if d not in dropped)
        sizes = dict(zip(kept, (update_shape[d] for d in window_axes), strict=True))
        return Windows(
            shape,
            tuple(sizes.get(d, 1) for d in range(len(shape))),
            kept,
            tuple(d for d in range(len(update_shape)) if d not in window_axes),
            window_axes,
            len(index_shape),
            a["index_vector_dim"],
            a["scatter_dims_to_operand_dims"],
            tuple(zip(a["input_batching_dims"], a["scatter_indices_batching_dims"], strict=True)),
        )

    def starts(self, read: Read, indices: Indices) -> dict[int, Expr]:
        """By axis of the tensor, where the window of element `indices` is to start."""
        batch = tuple(indices[d] for d in self.batch_axes)
        at = self.vector_axis
        has_vectors = at < self.index_rank
        return {
            axis: read((*batch[:at], index.constant(k), *batch[at:]) if has_vectors else batch)
            for k, axis in enumerate(self.start_map)
        }

    def limit(self, axis: int) -> int:
        """The last place along `axis` where a window can start."""
        return self.shape[axis] - self.sizes[axis]

    def place(self, indices: Indices, starts: dict[int, Expr]) -> Indices:
        """The tensor's element for element `indices` of a window that starts there."""
        result = [starts.get(axis, index.constant(0)) for axis in range(len(self.shape))]
        for axis, d in self.batching:
            batch_axis = self.batch_axes[d - (d > self.vector_axis)]
            result[axis] = result[axis] + indices[batch_axis]
        for axis, d in zip(self.kept, self.window_axes, strict=True):
            result[axis] = result[axis] + indices[d]
        return tuple(result)


def _gather(node: Node, reads: Sequence[Read]) -> Pointwise:
    windows = Windows.of_gather(node)

    def element(indices: Indices) -> Expr:
        starts = {
            axis: clamped_index(e, windows.limit(axis))
            for axis, e in windows.starts(reads[1], indices).items()
        }
        return reads[0](windows.place(indices, starts))

    return Pointwise((element,))


def _scatter(node: Node, reads: Sequence[Read]) -> Update:
    windows = Windows.of_scatter(node)
    combiner = combiner_of(node.regions[0])
    assert isinstance(combiner, Combiner), combiner
    extents = node.operands[2].type.shape

    def starts(point: Indices) -> dict[int, Expr]:
        return {axis: as_index(e) for axis, e in windows.starts(reads[1], point).items()}

    def guard(point: Indices) -> Expr:
        # As in XLA, and unlike the specification, a window that sticks out is dropped whole.
        return conjunction(
            *(inside(e, windows.limit(axis) + 1) for axis, e in starts(point).items())
        )

    return Update(
        0,
        extents,
        lambda point: windows.place(point, starts(point)),
        reads[2],
        guard,
        None if combiner.results == combiner.rhs else combiner,
    )


def _supports_scatter(node: Node) -> str:
    if len(node.operands) != 3:
        return "a scatter into several tensors, some updated with what is of others"
    combiner = combiner_of(node.regions[0])
    if isinstance(combiner, str):
        return combiner
    element = node.operands[0].type.dtype
    if combiner.lhs[0].dtype is not element:
        return f"a scatter into {element} whose body works on {combiner.lhs[0].dtype}"
    return ""


def _dynamic_update_slice(node: Node, reads: Sequence[Read]) -> Update:
    shape, extents = (v.type.shape for v in node.operands[:2])

    def place(point: Indices) -> Indices:
        starts = (
            clamped_index(read(()), extent - size)
            for read, extent, size in zip(reads[2:], shape, extents, strict=True)
        )
        return tuple(map(index.add, starts, point))

    return Update(0, extents, place, reads[1])


def _dynamic_update_slice_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    target, update, *starts = operands
    first = [
        min(max(int(s), 0), extent - size)
        for s, extent, size in zip(starts, target.shape, update.shape, strict=True)
    ]
    result = target.copy()
    result[tuple(slice(f, f + size) for f, size in zip(first, update.shape, strict=True))] = update
    return (result,)


class _Execution:
    """Index expressions of a node, evaluated on its operands for all points at once."""

    def __init__(self, node: Node, operands: Arrays, extents: Sequence[int]) -> None:
        self._buffers = [
            Buffer(f"operand{k}", v.type.dtype, v.type.shape) for k, v in enumerate(node.operands)
        ]
        self._arrays = dict(zip(self._buffers, operands, strict=True))
        self.point = tuple(Var(f"i{d}", INDEX, n) for d, n in enumerate(extents))
        self._env = dict(zip(self.point, np.indices(extents, sparse=True), strict=True))
        self._extents = tuple(extents)

    @property
    def reads(self) -> list[Read]:
        def read(buffer: Buffer) -> Read:
            return lambda indices: Load(buffer, indices)

        return [read(buffer) for buffer in self._buffers]

    def __call__(self, value: Expr) -> np.ndarray:
        array = evaluate(value, self._env, lambda buffer, indices: self._arrays[buffer][indices])
        return np.broadcast_to(array, self._extents)


def _gather_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    result = node.results[0].type
    if result.size == 0:
        return (np.empty(result.shape, result.dtype.numpy),)
    execution = _Execution(node, operands, result.shape)
    (element,) = _gather(node, execution.reads).elements
    return (execution(element(execution.point)),)


def _scatter_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    result = operands[0].copy()
    if operands[2].size == 0 or result.size == 0:
        return (result,)
    execution = _Execution(node, operands, operands[2].shape)
    update = _scatter(node, execution.reads)
    guard = execution(update.guard(execution.point))
    places = [execution(e)[guard] for e in update.place(execution.point)]
    values = operands[2][guard]
    if update.combiner is None:
        result[tuple(places)] = values if places else values[-1]  # the last of several wins
        return (result,)
    (old,), (new,), (combined,) = (getattr(update.combiner, f) for f in ("lhs", "rhs", "results"))
    for *place, value in zip(*places, values, strict=True):
        at = tuple(place)
        result[at] = evaluate(combined, {old: result[at], new: value})
    return (result,)


def _gather_example(operand: str, indices: str, result: str, numbers: str, sizes: str) -> str:
    return (
        f"func.func @main(%a: tensor<{operand}>, %i: tensor<{indices}>) "
        f"-> tensor<{result}> {{\n"
        f'  %r = "stablehlo.gather"(%a, %i) {{dimension_numbers = '
        f"#stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>, "
        f"indices_are_sorted = false}} : "
        f"(tensor<{operand}>, tensor<{indices}>) -> tensor<{result}>\n"
        f"  return %r : tensor<{result}>\n}}\n"
    )


def _scatter_example(
    operand: str,
    indices: str,
    updates: str,
    numbers: str,
    result: str = "stablehlo.add %x, %y",
    unique: str = "false",
) -> str:
    element = operand.rpartition("x")[2]
    return (
        f"func.func @main(%a: tensor<{operand}>, %i: tensor<{indices}>, "
        f"%u: tensor<{updates}>) -> tensor<{operand}> {{\n"
        f'  %r = "stablehlo.scatter"(%a, %i, %u) ({{\n'
        f"  ^bb0(%x: tensor<{element}>, %y: tensor<{element}>):\n"
        f"    %z = {result} : tensor<{element}>\n"
        f"    stablehlo.return %z : tensor<{element}>\n"
        f"  }}) {{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, "
        f"indices_are_sorted = false, unique_indices = {unique}}} : "
        f"(tensor<{operand}>, tensor<{indices}>, tensor<{updates}>) -> tensor<{operand}>\n"
        f"  return %r : tensor<{operand}>\n}}\n"
    )


def _update_slice_example(operand: str, update: str, start: str) -> str:
    types = f"tensor<{operand}>, tensor<{update}>, tensor<{start}>, tensor<{start}>"
    return (
        f"func.func @main(%a: tensor<{operand}>, %u: tensor<{update}>, %i: tensor<{start}>, "
        f"%j: tensor<{start}>) -> tensor<{operand}> {{\n"
        f"  %r = stablehlo.dynamic_update_slice %a, %u, %i, %j : "
        f"({types}) -> tensor<{operand}>\n  return %r : tensor<{operand}>\n}}\n"
    )


_ROWS = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
_INTO_ROWS = (
    "update_window_dims = [1], inserted_window_dims = [0], "
    "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
)
_INTO_PLACES = (
    "update_window_dims = [], inserted_window_dims = [0], "
    "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
)
_REPLACE = "stablehlo.optimization_barrier %y"

DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.gather",
        OpKind.MOVEMENT,
        _gather_reference,
        _gather,
        lambda node: "",
        (
            _gather_example("5x3xf32", "4x1xi32", "4x3xf32", _ROWS, "1, 3"),
            _gather_example("5x3xbf16", "4xi64", "4x3xbf16", _ROWS, "1, 3"),
            _gather_example(
                "5x6xi32",
                "2x4xui8",
                "4x3x2xi32",
                "offset_dims = [1, 2], start_index_map = [1, 0], index_vector_dim = 0",
                "3, 2",
            ),
            _gather_example(
                "2x3x4x2xi32",
                "2x2x3x2xi64",
                "2x2x3x2x2xi32",
                "offset_dims = [3, 4], collapsed_slice_dims = [1], "
                "operand_batching_dims = [0], start_indices_batching_dims = [1], "
                "start_index_map = [2, 1], index_vector_dim = 3",
                "1, 1, 2, 2",
            ),
            _gather_example("5x3xf32", "0x1xi32", "0x3xf32", _ROWS, "1, 3"),
        ),
        sources=slice(1),
    ),
    OpDef(
        "stablehlo.scatter",
        OpKind.UPDATE,
        _scatter_reference,
        _scatter,
        _supports_scatter,
        (
            _scatter_example("5x3xf32", "6x1xi32", "6x3xf32", _INTO_ROWS),
            _scatter_example("5x3xf32", "6xi64", "6x3xf32", _INTO_ROWS),
            _scatter_example(
                "7xi32", "9x1xi32", "9xi32", _INTO_PLACES, "stablehlo.multiply %x, %y"
            ),
            _scatter_example(
                "7xbf16", "9x1xi32", "9xbf16", _INTO_PLACES, "stablehlo.maximum %x, %y"
            ),
            _scatter_example("7xi1", "3x1xui8", "3xi1", _INTO_PLACES, "stablehlo.or %x, %y"),
            _scatter_example(
                "9xf32",
                "5x1xi32",
                "5x4xf32",
                "update_window_dims = [1], scatter_dims_to_operand_dims = [0], "
                "index_vector_dim = 1",
            ),
            _scatter_example(
                "5x6xf32",
                "2xi32",
                "2x3xf32",
                "update_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0], "
                "index_vector_dim = 0",
                _REPLACE,
                "true",
            ),
            _scatter_example(
                "2x3x4x2xi64",
                "2x2x3x2xi64",
                "2x2x3x2x2xi64",
                "update_window_dims = [3, 4], inserted_window_dims = [1], "
                "input_batching_dims = [0], scatter_indices_batching_dims = [1], "
                "scatter_dims_to_operand_dims = [2, 1], index_vector_dim = 3",
            ),
            _scatter_example("5x3xf32", "0x1xi32", "0x3xf32", _INTO_ROWS),
        ),
    ),
    OpDef(
        "stablehlo.dynamic_update_slice",
        OpKind.UPDATE,
        _dynamic_update_slice_reference,
        _dynamic_update_slice,
        lambda node: "",
        (
            _update_slice_example("5x6xf32", "2x6xf32", "i32"),
            _update_slice_example("5x6xi1", "2x3xi1", "i64"),
            _update_slice_example("5x6xbf16", "1x3xbf16", "ui64"),
            _update_slice_example("5x6xf32", "0x3xf32", "ui8"),
        ),
        sources=slice(2),
    ),
)
