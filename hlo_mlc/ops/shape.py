"""Ops that move elements: each result element is one operand's element at another index.

Attributes are those of the ops: `broadcast_dimensions`, `permutation`, `start_indices`,
`limit_indices`, `strides`, `edge_padding_low`, `edge_padding_high`, `interior_padding`,
`dimension`, `dimensions`, `iota_dimension`, `slice_sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.meanings import convert
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.arrays import dilated
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Pointwise, Read
from hlo_mlc.tensor.access import clamped_index, conjunction, inside, masked, reshaped, undilated

Arrays = Sequence[np.ndarray]


def _define(
    name: str,
    reference: Callable[[Node, Arrays], np.ndarray],
    element: Callable[[Node, Sequence[Read], Indices], Expr],
    examples: Sequence[str],
    sources: slice | None = slice(1),
) -> OpDef:
    """An op of one result, from the value of the element at `indices`."""

    def lower(node: Node, reads: Sequence[Read]) -> Pointwise:
        return Pointwise((lambda indices: element(node, reads, indices),))

    return OpDef(
        f"stablehlo.{name}",
        OpKind.MOVEMENT,
        lambda node, operands: (reference(node, operands),),
        lower,
        lambda node: "",
        tuple(examples),
        sources=sources,
    )


def _shape(node: Node) -> tuple[int, ...]:
    return node.operands[0].type.shape


def _result_shape(node: Node) -> tuple[int, ...]:
    return node.results[0].type.shape


def splat_value(literal: np.ndarray) -> int | float | bool | None:
    """The value of a constant that has one element, or the same one everywhere without having it
    stored more than once; else None."""
    if literal.size == 0:
        return None
    steps = zip(literal.strides, literal.shape, strict=True)
    if all(stride == 0 or extent == 1 for stride, extent in steps):
        return literal[(0,) * literal.ndim].item()
    return None


def _lower_constant(node: Node, reads: Sequence[Read]) -> Pointwise:
    """A splat is a literal; other constants are memory, and read through the one read given."""
    value = splat_value(node.literal)
    if value is None:
        return Pointwise((reads[0],))
    literal = const(value, node.results[0].type.dtype)
    return Pointwise((lambda indices: literal,))


def _broadcast_reference(node: Node, operands: Arrays) -> np.ndarray:
    (operand,), shape = operands, _result_shape(node)
    axes = node.attributes["broadcast_dimensions"]
    ordered = np.transpose(operand, np.argsort(axes)) if axes else operand
    sizes = dict(zip(sorted(axes), ordered.shape, strict=True))
    return np.broadcast_to(ordered.reshape([sizes.get(d, 1) for d in range(len(shape))]), shape)


def _broadcast(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    axes = node.attributes["broadcast_dimensions"]
    sources = zip(axes, _shape(node), strict=True)
    return reads[0](
        tuple(index.constant(0) if extent == 1 else indices[axis] for axis, extent in sources)
    )


def _reshape(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    return reads[0](reshaped(indices, _result_shape(node), _shape(node)))


def _transpose(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    at = dict(zip(node.attributes["permutation"], indices, strict=True))
    return reads[0](tuple(at[d] for d in range(len(indices))))


def _slice_reference(node: Node, operands: Arrays) -> np.ndarray:
    a = node.attributes
    bounds = zip(a["start_indices"], a["limit_indices"], a["strides"], strict=True)
    return operands[0][tuple(slice(*b) for b in bounds)]


def _strided(i: Expr, start: int, stride: int) -> Expr:
    return i * stride + start


def _slice(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    a = node.attributes
    places = zip(indices, a["start_indices"], a["strides"], strict=True)
    return reads[0](tuple(_strided(*place) for place in places))


def _pad_reference(node: Node, operands: Arrays) -> np.ndarray:
    result, value = operands
    a = node.attributes
    edges = zip(a["interior_padding"], a["edge_padding_low"], a["edge_padding_high"], strict=True)
    for axis, (interior, low, high) in enumerate(edges):
        result = dilated(result, axis, interior + 1, low, high, value)
    return result


def _pad(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    a, shape = node.attributes, _shape(node)
    value = reads[1](())
    if 0 in shape:
        return value
    found = [
        undilated(i - low, extent, interior + 1)
        for i, extent, low, interior in zip(
            indices, shape, a["edge_padding_low"], a["interior_padding"], strict=True
        )
    ]
    element = reads[0](tuple(place for place, _ in found))
    return masked(element, conjunction(*(guard for _, guard in found)), value)


def _concatenate(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    axis = node.attributes["dimension"]
    extents = [v.type.shape[axis] for v in node.operands]
    starts = accumulate(extents[:-1], initial=0)
    dtype = node.results[0].type.dtype
    value: Expr = const(0, dtype)  # never the result: the operands cover the axis
    for read, start, extent in reversed(list(zip(reads, starts, extents, strict=True))):
        if extent:
            place = indices[axis] - start
            element = read((*indices[:axis], place, *indices[axis + 1 :]))
            value = masked(element, inside(place, extent), value)
    return value


def _reverse(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    axes, shape = node.attributes["dimensions"], _shape(node)
    return reads[0](
        tuple(
            extent - 1 - i if d in axes else i
            for d, (i, extent) in enumerate(zip(indices, shape, strict=True))
        )
    )


def _iota_reference(node: Node, operands: Arrays) -> np.ndarray:
    result = node.results[0].type
    positions = np.indices(result.shape, sparse=True)[node.attributes["iota_dimension"]]
    return np.broadcast_to(convert(positions, result.dtype), result.shape)


def _iota(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    position = indices[node.attributes["iota_dimension"]]
    return apply("convert", position, dtype=node.results[0].type.dtype)


def _dynamic_slice_reference(node: Node, operands: Arrays) -> np.ndarray:
    operand, *starts = operands
    sizes = node.attributes["slice_sizes"]
    first = [
        min(max(int(s), 0), extent - size)
        for s, extent, size in zip(starts, operand.shape, sizes, strict=True)
    ]
    return operand[tuple(slice(f, f + size) for f, size in zip(first, sizes, strict=True))]


def _dynamic_slice(node: Node, reads: Sequence[Read], indices: Indices) -> Expr:
    sizes = node.attributes["slice_sizes"]
    starts = [
        clamped_index(read(()), extent - size)
        for read, extent, size in zip(reads[1:], _shape(node), sizes, strict=True)
    ]
    return reads[0](tuple(map(index.add, starts, indices)))


def _lower_barrier(node: Node, reads: Sequence[Read]) -> Pointwise:
    """It only restrains reordering, which changes no value."""
    return Pointwise(tuple(reads))


def _function(parameters: str, result: str, op: str) -> str:
    return (
        f"func.func @main({parameters}) -> {result} {{\n  %r = {op}\n  return %r : {result}\n}}\n"
    )


def _one(operand: str, result: str, op: str) -> str:
    return _function(f"%a: tensor<{operand}>", f"tensor<{result}>", op)


def _broadcast_example(operand: str, result: str, axes: str) -> str:
    return _one(
        operand,
        result,
        f"stablehlo.broadcast_in_dim %a, dims = [{axes}] : (tensor<{operand}>) -> tensor<{result}>",
    )


def _reshape_example(operand: str, result: str) -> str:
    return _one(operand, result, f"stablehlo.reshape %a : (tensor<{operand}>) -> tensor<{result}>")


def _pad_example(operand: str, result: str, low: str, high: str, interior: str) -> str:
    element = operand.rpartition("x")[2]
    return _function(
        f"%a: tensor<{operand}>, %v: tensor<{element}>",
        f"tensor<{result}>",
        f"stablehlo.pad %a, %v, low = [{low}], high = [{high}], interior = [{interior}] : "
        f"(tensor<{operand}>, tensor<{element}>) -> tensor<{result}>",
    )


_CONSTANT = OpDef(
    "stablehlo.constant",
    OpKind.MOVEMENT,
    lambda node, operands: (node.literal,),
    _lower_constant,
    lambda node: "",
    (
        _function("", "tensor<2x3xf32>", "stablehlo.constant dense<1.5> : tensor<2x3xf32>"),
        _function("", "tensor<bf16>", "stablehlo.constant dense<-0.0> : tensor<bf16>"),
        _function("", "tensor<3xi32>", "stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>"),
        _function("", "tensor<2xi1>", "stablehlo.constant dense<true> : tensor<2xi1>"),
    ),
)

_BARRIER = OpDef(
    "stablehlo.optimization_barrier",
    OpKind.MOVEMENT,
    lambda node, operands: tuple(operands),
    _lower_barrier,
    lambda node: "",
    (
        "func.func @main(%a: tensor<3xf32>, %b: tensor<2xi32>) "
        "-> (tensor<3xf32>, tensor<2xi32>) {\n"
        "  %r:2 = stablehlo.optimization_barrier %a, %b : tensor<3xf32>, tensor<2xi32>\n"
        "  return %r#0, %r#1 : tensor<3xf32>, tensor<2xi32>\n}\n",
    ),
)

DEFINITIONS: tuple[OpDef, ...] = (
    _CONSTANT,
    _BARRIER,
    _define(
        "broadcast_in_dim",
        _broadcast_reference,
        _broadcast,
        [
            _broadcast_example("f32", "2x3xf32", ""),
            _broadcast_example("3xf32", "2x3xf32", "1"),
            _broadcast_example("3x1xi32", "2x3x5xi32", "1, 2"),
            _broadcast_example("3x2xbf16", "2x5x3xbf16", "2, 0"),
            _broadcast_example("3xi1", "0x3xi1", "1"),
        ],
    ),
    _define(
        "reshape",
        lambda node, operands: operands[0].reshape(_result_shape(node)),
        _reshape,
        [
            _reshape_example("6xf32", "2x3xf32"),
            _reshape_example("4x1x6xf32", "4x2x3x1xf32"),
            _reshape_example("3x4x5xi32", "5x12xi32"),
            _reshape_example("1x1xi8", "i8"),
            _reshape_example("f32", "1x1xf32"),
            _reshape_example("2x6x5xf32", "4x3x5xf32"),
            _reshape_example("0x4xf32", "2x0xf32"),
        ],
    ),
    _define(
        "transpose",
        lambda node, operands: operands[0].transpose(node.attributes["permutation"]),
        _transpose,
        [
            _one(
                "2x3x4xf32",
                "4x2x3xf32",
                "stablehlo.transpose %a, dims = [2, 0, 1] : "
                "(tensor<2x3x4xf32>) -> tensor<4x2x3xf32>",
            ),
            _one("i32", "i32", "stablehlo.transpose %a, dims = [] : (tensor<i32>) -> tensor<i32>"),
        ],
    ),
    _define(
        "slice",
        _slice_reference,
        _slice,
        [
            _one(
                "9x5xf32",
                "3x2xf32",
                "stablehlo.slice %a [1:8:3, 2:4] : (tensor<9x5xf32>) -> tensor<3x2xf32>",
            ),
            _one("9xi64", "0xi64", "stablehlo.slice %a [4:4] : (tensor<9xi64>) -> tensor<0xi64>"),
        ],
    ),
    _define(
        "pad",
        _pad_reference,
        _pad,
        [
            _pad_example("3x4xf32", "6x12xf32", "1, 2", "2, 3", "0, 1"),
            _pad_example("5xi32", "3xi32", "-1", "-1", "0"),
            _pad_example("5xf32", "9xf32", "-3", "-1", "2"),
            _pad_example("4xbf16", "5xbf16", "3", "-2", "0"),
            _pad_example("0xf32", "3xf32", "1", "2", "0"),
            _pad_example("4xf32", "6xf32", "-7", "9", "0"),
            _pad_example("4xf32", "2xf32", "6", "-8", "0"),
        ],
        slice(2),
    ),
    _define(
        "concatenate",
        lambda node, operands: np.concatenate(operands, node.attributes["dimension"]),
        _concatenate,
        [
            _function(
                "%a: tensor<2x3xf32>, %b: tensor<2x0xf32>, %c: tensor<2x4xf32>",
                "tensor<2x7xf32>",
                "stablehlo.concatenate %a, %b, %c, dim = 1 : (tensor<2x3xf32>, "
                "tensor<2x0xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>",
            ),
            _function(
                "%a: tensor<2xi1>, %b: tensor<1xi1>",
                "tensor<3xi1>",
                "stablehlo.concatenate %a, %b, dim = 0 : (tensor<2xi1>, tensor<1xi1>) "
                "-> tensor<3xi1>",
            ),
        ],
        slice(None),
    ),
    _define(
        "reverse",
        lambda node, operands: np.flip(operands[0], node.attributes["dimensions"]),
        _reverse,
        [
            _one(
                "2x3x4xf32", "2x3x4xf32", "stablehlo.reverse %a, dims = [0, 2] : tensor<2x3x4xf32>"
            ),
            _one("3xui8", "3xui8", "stablehlo.reverse %a, dims = [] : tensor<3xui8>"),
        ],
    ),
    _define(
        "iota",
        _iota_reference,
        _iota,
        [
            _function("", f"tensor<3x5x{t}>", f"stablehlo.iota dim = {d} : tensor<3x5x{t}>")
            for d, t in ((0, "i32"), (1, "f32"), (1, "bf16"), (0, "ui8"), (1, "i64"))
        ],
        None,
    ),
    _define(
        "dynamic_slice",
        _dynamic_slice_reference,
        _dynamic_slice,
        [
            _function(
                f"%a: tensor<5x6xf32>, %i: tensor<{t}>, %j: tensor<{t}>",
                "tensor<2x6xf32>",
                "stablehlo.dynamic_slice %a, %i, %j, sizes = [2, 6] : (tensor<5x6xf32>, "
                f"tensor<{t}>, tensor<{t}>) -> tensor<2x6xf32>",
            )
            for t in ("i32", "i64", "ui8", "ui64")
        ],
    ),
    _define(
        "get_dimension_size",
        lambda node, operands: np.asarray(
            operands[0].shape[node.attributes["dimension"]], np.int32
        ),
        lambda node, reads, indices: const(
            _shape(node)[node.attributes["dimension"]], node.results[0].type.dtype
        ),
        [
            _one(
                "5x6xf32",
                "i32",
                "stablehlo.get_dimension_size %a, dim = 1 : (tensor<5x6xf32>) -> tensor<i32>",
            )
        ],
        None,
    ),
)
