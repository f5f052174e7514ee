"""Sums of products: `dot_general` and `convolution`.

Dimension numbers are attributes under the names of the StableHLO specification
(`lhs_batching_dimensions`, `input_spatial_dimensions`, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import BOOL, F32, F64, U32, DType
from hlo_mlc.expr.meanings import convert
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.arrays import dilated, strided
from hlo_mlc.ops.definition import Fold, Indices, OpDef, OpKind, Read
from hlo_mlc.tensor.access import conjunction, masked, undilated
from hlo_mlc.tensor.combine import named_combiner

Arrays = Sequence[np.ndarray]


def accumulate_dtype(node: Node) -> DType:
    """The type in which products are formed and added.

    Integers wrap in the result's type; floats take the widest of operands, result and f32.
    """
    result = node.results[0].type.dtype
    if not result.is_float:
        return result
    types = [result, *(v.type.dtype for v in node.operands)]
    algorithm = node.attributes.get("algorithm")
    wide = F64 in types or (isinstance(algorithm, tuple) and algorithm[2] == "f64")
    return F64 if wide else F32


def _asks_for_tf32(node: Node) -> bool:
    """Whether f32 factors are to be multiplied as tf32.

    Only where the algorithm says so, in one pass: default precision allows XLA to do so on GPUs,
    but does not ask for it.
    """
    algorithm = node.attributes.get("algorithm")
    return (
        isinstance(algorithm, tuple)
        and algorithm[:3] == ("tf32", "tf32", "f32")
        and algorithm[5] == 1
        and all(v.type.dtype is F32 for v in node.operands)
    )


# tf32 is f32 without the last 13 bits of the fraction.
_LAST_BITS = 13


def as_tf32(x: Expr) -> Expr:
    """An f32 rounded to tf32, to the nearest, ties to even."""
    bits = apply("bitcast", x, dtype=U32)
    odd = (bits >> _LAST_BITS) & 1
    rounded = bits + ((1 << _LAST_BITS - 1) - 1) + odd
    quiet = bits | (1 << 22)  # of a NaN, something must be left
    chosen = apply("select", apply("ne", x, x), quiet, rounded)
    return apply("bitcast", chosen & (-1 << _LAST_BITS), dtype=F32)


def _supports(node: Node) -> str:
    result = node.results[0].type.dtype
    for value in node.operands:
        if value.type.dtype.is_float and not result.is_float:
            return f"a product of {value.type.dtype} summed as {result}"
    return ""


def _sum_of_products(node: Node, extents: tuple[int, ...], lhs, rhs) -> Fold:
    """lhs, rhs: (indices, reduced) -> the element that is multiplied."""
    dtype, result = accumulate_dtype(node), node.results[0].type.dtype
    combiner: Combiner = named_combiner("or" if dtype is BOOL else "add", dtype)
    narrowed = _asks_for_tf32(node)

    def terms(indices: Indices, reduced: Indices) -> tuple[Expr, ...]:
        left, right = (apply("convert", side(indices, reduced), dtype=dtype) for side in (lhs, rhs))
        if narrowed:
            left, right = as_tf32(left), as_tf32(right)
        return (apply("and" if dtype is BOOL else "mul", left, right),)

    def finish(accumulators: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (apply("convert", accumulators[0], dtype=result),)

    return Fold(extents, combiner, terms, (const(0, dtype),), None if dtype is result else finish)


@dataclass(frozen=True, slots=True)
class DotAxes:
    """Which axes of the operands are paired, and which are left: result = batch, lhs, rhs."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_free: tuple[int, ...]
    rhs_free: tuple[int, ...]

    @staticmethod
    def of(node: Node) -> DotAxes:
        a = node.attributes
        names = (
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        )
        lhs_batch, rhs_batch, lhs_contracting, rhs_contracting = (tuple(a[n]) for n in names)
        lhs_rank, rhs_rank = (len(v.type.shape) for v in node.operands)
        return DotAxes(
            lhs_batch,
            rhs_batch,
            lhs_contracting,
            rhs_contracting,
            tuple(d for d in range(lhs_rank) if d not in lhs_batch + lhs_contracting),
            tuple(d for d in range(rhs_rank) if d not in rhs_batch + rhs_contracting),
        )


def _dot(node: Node, reads: Sequence[Read]) -> Fold:
    axes = DotAxes.of(node)
    batch, rows = len(axes.lhs_batch), len(axes.lhs_free)

    def lhs(indices: Indices, reduced: Indices) -> Expr:
        at = dict(zip(axes.lhs_batch + axes.lhs_free, indices[: batch + rows], strict=True))
        at.update(zip(axes.lhs_contracting, reduced, strict=True))
        return reads[0](tuple(at[d] for d in range(len(at))))

    def rhs(indices: Indices, reduced: Indices) -> Expr:
        free = indices[:batch] + indices[batch + rows :]
        at = dict(zip(axes.rhs_batch + axes.rhs_free, free, strict=True))
        at.update(zip(axes.rhs_contracting, reduced, strict=True))
        return reads[1](tuple(at[d] for d in range(len(at))))

    shape = node.operands[0].type.shape
    return _sum_of_products(node, tuple(shape[d] for d in axes.lhs_contracting), lhs, rhs)


def _widen(node: Node, operand: np.ndarray) -> np.ndarray:
    """Floats as f64, so that the reference's own rounding does not count; others accumulate
    as they do in the op."""
    dtype = accumulate_dtype(node)
    return convert(operand, F64 if dtype.is_float else dtype)


def _dot_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    axes = DotAxes.of(node)
    lhs, rhs = (_widen(node, o) for o in operands)
    batch = [lhs.shape[d] for d in axes.lhs_batch]
    depth = int(np.prod([lhs.shape[d] for d in axes.lhs_contracting], dtype=int))
    rows, columns = (
        int(np.prod([o.shape[d] for d in free], dtype=int))
        for o, free in ((lhs, axes.lhs_free), (rhs, axes.rhs_free))
    )
    left = lhs.transpose(axes.lhs_batch + axes.lhs_free + axes.lhs_contracting)
    right = rhs.transpose(axes.rhs_batch + axes.rhs_contracting + axes.rhs_free)
    with np.errstate(all="ignore"):
        result = np.matmul(
            left.reshape((*batch, rows, depth)), right.reshape((*batch, depth, columns))
        )
    kind = node.results[0].type
    return (convert(result, kind.dtype).reshape(kind.shape),)


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis of a convolution; sizes in elements."""

    input_size: int
    size: int
    stride: int
    before: int
    after: int
    input_dilation: int
    kernel_dilation: int
    reversed: bool


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution's axes in one order: input [n, c, *spatial], kernel [o, c / groups,
    *spatial], output [n, o, *spatial]."""

    input_axes: tuple[int, ...]
    kernel_axes: tuple[int, ...]
    output_axes: tuple[int, ...]
    windows: tuple[Window, ...]
    feature_groups: int
    batch_groups: int

    @staticmethod
    def of(node: Node) -> Convolution:
        a = node.attributes
        input_spatial, kernel_spatial = (a[f"{n}_spatial_dimensions"] for n in ("input", "kernel"))
        rank = len(input_spatial)
        ones = (1,) * rank
        input_shape, kernel_shape = (v.type.shape for v in node.operands)
        padding = a.get("padding") or ((0, 0),) * rank
        reversal = a.get("window_reversal") or (False,) * rank
        windows = tuple(
            Window(
                input_shape[i], kernel_shape[k], stride, before, after, dilation, spread, bool(flip)
            )
            for i, k, stride, (before, after), dilation, spread, flip in zip(
                input_spatial,
                kernel_spatial,
                a.get("window_strides") or ones,
                padding,
                a.get("lhs_dilation") or ones,
                a.get("rhs_dilation") or ones,
                reversal,
                strict=True,
            )
        )
        return Convolution(
            (a["input_batch_dimension"], a["input_feature_dimension"], *input_spatial),
            (
                a["kernel_output_feature_dimension"],
                a["kernel_input_feature_dimension"],
                *kernel_spatial,
            ),
            (
                a["output_batch_dimension"],
                a["output_feature_dimension"],
                *a["output_spatial_dimensions"],
            ),
            windows,
            a.get("feature_group_count", 1),
            a.get("batch_group_count", 1),
        )


def _placed(axes: Sequence[int], indices: Sequence[Expr]) -> Indices:
    at = dict(zip(axes, indices, strict=True))
    return tuple(at[d] for d in range(len(at)))


def _convolution(node: Node, reads: Sequence[Read]) -> Fold:
    c = Convolution.of(node)
    kernel_shape, result_shape = node.operands[1].type.shape, node.results[0].type.shape
    channels = kernel_shape[c.kernel_axes[1]]
    features = result_shape[c.output_axes[1]]
    batch = node.operands[0].type.shape[c.input_axes[0]]
    zero = const(0, node.operands[0].type.dtype)
    # Channels and window positions, in the order in which they lie in the input.
    order = sorted(range(1, len(c.input_axes)), key=lambda d: c.input_axes[d])
    extents = (channels, *(w.size for w in c.windows))

    def in_order(reduced: Indices) -> Indices:
        at = dict(zip(order, reduced, strict=True))
        return tuple(at[d] for d in range(1, len(c.input_axes)))

    def lhs(indices: Indices, reduced: Indices) -> Expr:
        n, o, *spatial = (indices[d] for d in c.output_axes)
        channel, *offsets = in_order(reduced)
        if c.feature_groups > 1:
            group = o // (features // c.feature_groups)
            channel = group * channels + channel
        if c.batch_groups > 1:
            group = o // (features // c.batch_groups)
            n = group * (batch // c.batch_groups) + n
        found = []
        for i, r, w in zip(spatial, offsets, c.windows, strict=True):
            place = i * w.stride + r * w.kernel_dilation
            place = place - w.before
            found.append(undilated(place, w.input_size, w.input_dilation))
        element = reads[0](_placed(c.input_axes, (n, channel, *(place for place, _ in found))))
        return masked(element, conjunction(*(guard for _, guard in found)), zero)

    def rhs(indices: Indices, reduced: Indices) -> Expr:
        channel, *offsets = in_order(reduced)
        flipped = [
            w.size - 1 - r if w.reversed else r for r, w in zip(offsets, c.windows, strict=True)
        ]
        return reads[1](_placed(c.kernel_axes, (indices[c.output_axes[1]], channel, *flipped)))

    return _sum_of_products(node, tuple(extents[d - 1] for d in order), lhs, rhs)


def _convolution_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    c, kind = Convolution.of(node), node.results[0].type
    image = _widen(node, operands[0]).transpose(c.input_axes)
    kernel = _widen(node, operands[1]).transpose(c.kernel_axes)
    for d, w in enumerate(c.windows, 2):
        image = dilated(image, d, w.input_dilation, w.before, w.after, 0)
        kernel = np.flip(kernel, d) if w.reversed else kernel
    batch, features, *sizes = (kind.shape[d] for d in c.output_axes)
    result = np.zeros((batch, features, *sizes), image.dtype)
    groups = max(c.feature_groups, c.batch_groups)
    channels, per_group = kernel.shape[1], features // groups
    for g in range(groups):
        block = (
            image[g * batch : (g + 1) * batch]
            if c.batch_groups > 1
            else image[:, g * channels : (g + 1) * channels]
        )
        weights = kernel[g * per_group : (g + 1) * per_group]
        for corner in product(*(range(w.size) for w in c.windows)):
            view = block[
                (
                    ...,
                    *(
                        strided(k * w.kernel_dilation, w.stride, count)
                        for k, count, w in zip(corner, sizes, c.windows, strict=True)
                    ),
                )
            ]
            with np.errstate(all="ignore"):
                result[:, g * per_group : (g + 1) * per_group] += np.einsum(
                    "nc...,oc->no...", view, weights[(..., *corner)]
                )
    inverse = np.argsort(c.output_axes)
    return (convert(result.transpose(inverse), kind.dtype),)


def _dot_example(lhs: str, rhs: str, result: str, numbers: str) -> str:
    return (
        f"func.func @main(%a: tensor<{lhs}>, %b: tensor<{rhs}>) -> tensor<{result}> {{\n"
        f"  %r = stablehlo.dot_general %a, %b, {numbers} : "
        f"(tensor<{lhs}>, tensor<{rhs}>) -> tensor<{result}>\n"
        f"  return %r : tensor<{result}>\n}}\n"
    )


_MATMUL = "contracting_dims = [1] x [0]"


def _convolution_example(
    lhs: str,
    rhs: str,
    result: str,
    numbers: str,
    window: str,
    groups: str = "feature_group_count = 1, batch_group_count = 1",
) -> str:
    groups = groups.replace(",", " : i64,") + " : i64"
    return (
        f"func.func @main(%a: tensor<{lhs}>, %b: tensor<{rhs}>) -> tensor<{result}> {{\n"
        f"  %r = stablehlo.convolution(%a, %b) dim_numbers = {numbers}, "
        f"window = {{{window}}} {{{groups}}} : "
        f"(tensor<{lhs}>, tensor<{rhs}>) -> tensor<{result}>\n"
        f"  return %r : tensor<{result}>\n}}\n"
    )


_NHWC = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"

DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.dot_general",
        OpKind.PRODUCT,
        _dot_reference,
        _dot,
        _supports,
        (
            _dot_example("3x4xf32", "4x5xf32", "3x5xf32", _MATMUL),
            _dot_example("3x4xbf16", "4x5xbf16", "3x5xbf16", _MATMUL),
            _dot_example("3x4xf16", "4x5xf16", "3x5xf32", _MATMUL),
            _dot_example("3x4xf64", "4x5xf64", "3x5xf64", _MATMUL),
            _dot_example("3x4xi8", "4x5xi8", "3x5xi32", _MATMUL),
            _dot_example("3x4xui32", "4x5xui32", "3x5xui32", _MATMUL),
            _dot_example("3x4xi1", "4x5xi1", "3x5xi1", _MATMUL),
            _dot_example(
                "2x4x3x6xf32",
                "6x2x4x5xf32",
                "2x3x5xf32",
                "batching_dims = [0] x [1], contracting_dims = [1, 3] x [2, 0]",
            ),
            _dot_example("7xf32", "7xf32", "f32", "contracting_dims = [0] x [0]"),
            _dot_example("2xf32", "3xf32", "2x3xf32", "contracting_dims = [] x []"),
            _dot_example("2x0xf32", "0x3xf32", "2x3xf32", _MATMUL),
        ),
    ),
    OpDef(
        "stablehlo.convolution",
        OpKind.PRODUCT,
        _convolution_reference,
        _convolution,
        _supports,
        (
            _convolution_example(
                "2x5x6x3xf32",
                "3x2x3x4xf32",
                "2x3x6x4xf32",
                _NHWC,
                "stride = [2, 1], pad = [[1, 1], [0, 1]]",
            ),
            _convolution_example(
                "1x4x4x4xbf16",
                "3x3x1x8xbf16",
                "1x4x4x8xbf16",
                _NHWC,
                "pad = [[1, 1], [1, 1]]",
                "feature_group_count = 4, batch_group_count = 1",
            ),
            _convolution_example(
                "4x5x5x3xf32",
                "2x2x3x4xf32",
                "2x4x4x4xf32",
                _NHWC,
                "",
                "feature_group_count = 1, batch_group_count = 2",
            ),
            _convolution_example(
                "2x3x7xf32",
                "3x4x3xf32",
                "2x4x10xf32",
                "[b, f, 0]x[i, o, 0]->[b, f, 0]",
                "pad = [[2, -1]], lhs_dilate = [2], rhs_dilate = [2], reverse = [true]",
            ),
            _convolution_example("2x4xi8", "4x3xi8", "2x3xi32", "[b, f]x[i, o]->[b, f]", ""),
        ),
    ),
)
