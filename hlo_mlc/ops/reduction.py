"""Reductions with any body: `reduce` (attribute `dimensions`) and `reduce_window`
(`window_dimensions`, `window_strides`, `base_dilations`, `window_dilations`, `padding`).

The operands are N tensors, then their N initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

import numpy as np

from hlo_mlc.expr.build import FALSE, TRUE, apply
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.index import constant
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.arrays import dilated, strided
from hlo_mlc.ops.definition import Fold, Indices, OpDef, OpKind, Pointwise, Read, Scan
from hlo_mlc.ops.regions import combiner_of
from hlo_mlc.tensor.access import at_axes, conjunction, masked, undilated
from hlo_mlc.tensor.combine import (
    chooses,
    commutes,
    is_idempotent,
    skipping,
    widened,
    with_identity,
)

Arrays = Sequence[np.ndarray]


def _combiner(node: Node) -> Combiner:
    combiner = combiner_of(node.regions[0])
    assert isinstance(combiner, Combiner), combiner
    return widened(combiner)


def _supports(node: Node) -> str:
    combiner = combiner_of(node.regions[0])
    return combiner if isinstance(combiner, str) else ""


def _halves(items: Sequence) -> tuple[Sequence, Sequence]:
    half = len(items) // 2
    return items[:half], items[half:]


def _fold(
    node: Node,
    reads: Sequence[Read],
    extents: tuple[int, ...],
    element: Callable[[Indices, Indices], tuple[Indices, Expr]],
    *,
    may_lack: bool = False,
) -> Fold:
    """`element(indices, reduced)` is the place of what is folded, and the guard under which it is
    there: if it `may_lack` nothing is folded instead, as XLA does; the specification would fold
    one initial value more, which is another result where that is not neutral."""
    combiner = _combiner(node)
    tensors, starts = _halves(reads)
    dtypes = [v.dtype for v in combiner.lhs]
    initial = tuple(
        apply("convert", read(()), dtype=t) for read, t in zip(starts, dtypes, strict=True)
    )
    # What stands for what is not there: neutral values, or initial ones where their number does not
    # matter (zeros are read at less cost than -0, which is neutral).
    absent = (
        initial
        if is_idempotent(combiner, initial) and (commutes(combiner) or chooses(combiner))
        else combiner.identity
    )
    results = [v.type.dtype for v in node.results]

    def values(indices: Indices, reduced: Indices) -> tuple[list[Expr], Expr]:
        where, guard = element(indices, reduced)
        return (
            [
                apply("convert", read(where), dtype=t)
                for read, t in zip(tensors, dtypes, strict=True)
            ]
            if guard is not FALSE
            else list(initial)
        ), guard

    def terms(indices: Indices, reduced: Indices) -> tuple[Expr, ...]:
        found, guard = values(indices, reduced)
        return tuple(
            found
            if absent is None
            else (masked(v, guard, a) for v, a in zip(found, absent, strict=True))
        )

    def terms_or_nothing(indices: Indices, reduced: Indices) -> tuple[Expr, ...]:
        found, guard = values(indices, reduced)
        return *(masked(v, guard, i) for v, i in zip(found, initial, strict=True)), guard

    def finish(accumulators: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(
            apply("convert", a, dtype=t) for a, t in zip(accumulators, results, strict=False)
        )  # less whether any was

    if absent is None and may_lack:
        return Fold(extents, skipping(combiner), terms_or_nothing, (*initial, TRUE), finish)
    return Fold(
        extents,
        with_identity(combiner, initial),
        terms,
        initial,
        None if results == dtypes else finish,
    )


def _combine(combiner: Combiner, left: Arrays, right: Arrays) -> list[np.ndarray]:
    values = dict(zip((*combiner.lhs, *combiner.rhs), (*left, *right), strict=True))
    shape = np.broadcast_shapes(*(a.shape for a in (*left, *right)))
    return [np.broadcast_to(evaluate(r, values), shape) for r in combiner.results]


def _fold_reference(
    node: Node, operands: Arrays, rows: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, ...]:
    """`rows(tensor)`: what is folded, along axis 0 and in order, with zeros where nothing is.

    Neighbours are combined in rounds: as exact as pairwise summation, and log2(n) NumPy calls.
    """
    combiner = skipping(_combiner(node))
    tensors, starts = _halves(operands)
    tensors = (*tensors, np.ones(tensors[0].shape, bool))
    starts = (*starts, np.True_)
    dtypes = [v.dtype.numpy for v in combiner.lhs]
    values = [rows(t).astype(d) for t, d in zip(tensors, dtypes, strict=True)]
    result = [
        np.broadcast_to(s, v.shape[1:]).astype(d)
        for s, v, d in zip(starts, values, dtypes, strict=True)
    ]
    while (count := len(values[0])) > 1:
        pairs = count // 2 * 2
        joined = _combine(combiner, [v[0:pairs:2] for v in values], [v[1:pairs:2] for v in values])
        values = [np.concatenate([j, v[pairs:]]) for j, v in zip(joined, values, strict=True)]
    if count:
        result = _combine(combiner, result, [v[0] for v in values])
    return tuple(
        r.astype(v.type.dtype.numpy) for r, v in zip(result[:-1], node.results, strict=True)
    )


def _reduce(node: Node, reads: Sequence[Read]) -> Fold | Pointwise:
    """A single element is its own fold, as XLA has it: the specification says of initial values
    that any number of them is folded, none as well."""
    axes = sorted(node.attributes["dimensions"])
    shape = node.operands[0].type.shape
    extents = tuple(shape[d] for d in axes)
    if prod(extents) == 1:
        first = tuple(constant(0) for _ in axes)

        def single(read: Read, dtype: DType, indices: Indices) -> Expr:
            return apply("convert", read(at_axes(axes, first, indices)), dtype=dtype)

        return Pointwise(
            tuple(
                partial(single, read, value.type.dtype)
                for read, value in zip(_halves(reads)[0], node.results, strict=True)
            )
        )
    return _fold(
        node, reads, extents, lambda indices, reduced: (at_axes(axes, reduced, indices), TRUE)
    )


def _reduce_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    axes = sorted(node.attributes["dimensions"])
    if prod(node.operands[0].type.shape[d] for d in axes) == 1:
        return tuple(
            np.reshape(tensor, v.type.shape).astype(v.type.dtype.numpy)
            for tensor, v in zip(_halves(operands)[0], node.results, strict=True)
        )

    def rows(tensor: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(tensor, axes, range(len(axes)))
        shape = node.results[0].type.shape
        return moved.reshape((int(np.prod(moved.shape[: len(axes)], dtype=int)), *shape))

    return _fold_reference(node, operands, rows)


def _window(node: Node) -> tuple[tuple[int, ...], ...]:
    """By axis: (size, stride, base dilation, window dilation, padding before, padding after)."""
    a, rank = node.attributes, len(node.operands[0].type.shape)
    ones = (1,) * rank
    before, after = zip(*(a.get("padding") or ((0, 0),) * rank), strict=True) if rank else ((), ())
    return tuple(
        zip(
            a["window_dimensions"],
            a.get("window_strides") or ones,
            a.get("base_dilations") or ones,
            a.get("window_dilations") or ones,
            before,
            after,
            strict=True,
        )
    )


def scanned_axis(node: Node) -> tuple[int, bool] | None:
    """The axis along which a reduce_window gives each result its neighbours up to an end of the
    axis, as JAX writes cumulative sums, and whether that is the high end; None for other windows.
    """
    shape, found = node.operands[0].type.shape, None
    for d, (extent, axis) in enumerate(zip(shape, _window(node), strict=True)):
        size, *steps, before, after = axis
        if steps != [1, 1, 1]:
            return None
        if size == 1 and before == after == 0:
            continue
        if (
            found
            or size < extent
            or extent < 2
            or (before, after) not in ((size - 1, 0), (0, size - 1))
        ):
            return None
        found = d, before == 0
    return found


def _reduce_window(node: Node, reads: Sequence[Read]) -> Fold | Scan:
    window, shape = _window(node), node.operands[0].type.shape
    scanned = scanned_axis(node)
    if scanned is not None:
        fold = _fold(node, reads, (), lambda indices, reduced: (indices, TRUE))
        if fold.combiner.identity is not None and is_idempotent(fold.combiner, fold.initial):
            return _scan(fold, *scanned)

    def element(indices: Indices, reduced: Indices) -> tuple[Indices, Expr]:
        if 0 in shape:
            return (), FALSE
        found = []
        for i, r, extent, axis in zip(indices, reduced, shape, window, strict=True):
            _, stride, base_dilation, window_dilation, before, _ = axis
            place = i * stride + r * window_dilation
            place = place - before
            found.append(undilated(place, extent, base_dilation))
        return tuple(place for place, _ in found), conjunction(*(guard for _, guard in found))

    return _fold(
        node,
        reads,
        tuple(axis[0] for axis in window),
        element,
        may_lack=any(dilation > 1 or max(padding) > 0 for _, _, dilation, _, *padding in window),
    )


def _scan(fold: Fold, axis: int, reverse: bool) -> Scan:
    """The running fold of single terms."""
    combiner = fold.combiner
    if reverse and not combiner.name:  # what comes later in the tensor was accumulated before
        combiner = replace(combiner, results=combiner.combined(combiner.rhs, combiner.lhs))
    return Scan(
        axis, reverse, combiner, lambda indices: fold.terms(indices, ()), fold.initial, fold.finish
    )


def _reduce_window_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    window, shape = _window(node), node.results[0].type.shape

    def rows(tensor: np.ndarray) -> np.ndarray:
        for d, (_, _, dilation, _, before, after) in enumerate(window):
            tensor = dilated(tensor, d, dilation, before, after, 0)
        corners = product(*(range(axis[0]) for axis in window))
        views = [
            tensor[
                tuple(
                    strided(c * axis[3], axis[1], count)
                    for c, count, axis in zip(corner, shape, window, strict=True)
                )
            ]
            for corner in corners
        ]
        return np.stack(views) if views else np.empty((0, *shape), tensor.dtype)

    return _fold_reference(node, operands, rows)


def _body(op: str, element: str) -> str:
    t = f"tensor<{element}>"
    return (
        f"({{\n  ^bb0(%x: {t}, %y: {t}):\n    %z = {op} %x, %y : {t}\n"
        f"    stablehlo.return %z : {t}\n  }})"
    )


def _reduce_example(operand: str, result: str, axes: str, op: str = "stablehlo.add") -> str:
    element = operand.rpartition("x")[2]
    return (
        f"func.func @main(%a: tensor<{operand}>, %i: tensor<{element}>) -> tensor<{result}> {{\n"
        f'  %r = "stablehlo.reduce"(%a, %i) {_body(op, element)} '
        f"{{dimensions = array<i64{': ' if axes else ''}{axes}>}} : "
        f"(tensor<{operand}>, tensor<{element}>) -> tensor<{result}>\n"
        f"  return %r : tensor<{result}>\n}}\n"
    )


def _argmax_example(direction: str, start: str) -> str:
    return f"""
func.func @main(%a: tensor<4x9xf32>) -> (tensor<4xf32>, tensor<4xi32>) {{
  %p = stablehlo.iota dim = 1 : tensor<4x9xi32>
  %i = stablehlo.constant dense<{start}> : tensor<f32>
  %j = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = "stablehlo.reduce"(%a, %p, %i, %j) ({{
  ^bb0(%x: tensor<f32>, %m: tensor<i32>, %y: tensor<f32>, %n: tensor<i32>):
    %0 = stablehlo.compare {direction}, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1 = stablehlo.compare NE, %x, %x, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.or %0, %1 : tensor<i1>
    %3 = stablehlo.compare EQ, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %4 = stablehlo.compare LT, %m, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %5 = stablehlo.and %3, %4 : tensor<i1>
    %6 = stablehlo.or %2, %5 : tensor<i1>
    %7 = stablehlo.select %2, %x, %y : tensor<i1>, tensor<f32>
    %8 = stablehlo.select %6, %m, %n : tensor<i1>, tensor<i32>
    stablehlo.return %7, %8 : tensor<f32>, tensor<i32>
  }}) {{dimensions = array<i64: 1>}}
      : (tensor<4x9xf32>, tensor<4x9xi32>, tensor<f32>, tensor<i32>)
      -> (tensor<4xf32>, tensor<4xi32>)
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xi32>
}}
"""


def _window_example(operand: str, result: str, op: str, attributes: str) -> str:
    element = operand.rpartition("x")[2]
    return (
        f"func.func @main(%a: tensor<{operand}>, %i: tensor<{element}>) -> tensor<{result}> {{\n"
        f'  %r = "stablehlo.reduce_window"(%a, %i) {_body(op, element)} {{{attributes}}} : '
        f"(tensor<{operand}>, tensor<{element}>) -> tensor<{result}>\n"
        f"  return %r : tensor<{result}>\n}}\n"
    )


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.reduce",
        OpKind.FOLD,
        _reduce_reference,
        _reduce,
        _supports,
        (
            _reduce_example("5x7xf32", "5xf32", "1"),
            _reduce_example("5x7x3xf32", "7xf32", "0, 2", "stablehlo.maximum"),
            _reduce_example("5x7xbf16", "bf16", "0, 1"),
            _reduce_example("5x7xf16", "7xf16", "0", "stablehlo.minimum"),
            _reduce_example("5x7xi8", "5xi8", "1", "stablehlo.multiply"),
            _reduce_example("5x7xui8", "7xui8", "0", "stablehlo.xor"),
            _reduce_example("5x7xi1", "5xi1", "1", "stablehlo.and"),
            _reduce_example("5x7xf64", "7xf64", "0", "stablehlo.add"),
            _reduce_example("5x0xf32", "5xf32", "1"),
            _reduce_example("0x5xf32", "0xf32", "1"),
            _reduce_example("5xf32", "5xf32", ""),
            _argmax_example("GT", "0xFF800000"),
            _argmax_example("LT", "0x7F800000"),
        ),
    ),
    OpDef(
        "stablehlo.reduce_window",
        OpKind.FOLD,
        _reduce_window_reference,
        _reduce_window,
        _supports,
        (
            _window_example(
                "6xf32",
                "6xf32",
                "stablehlo.add",
                "window_dimensions = array<i64: 6>, padding = dense<[[5, 0]]> : tensor<1x2xi64>",
            ),
            _window_example(
                "3x5xbf16",
                "3x5xbf16",
                "stablehlo.multiply",
                "window_dimensions = array<i64: 1, 5>, "
                "padding = dense<[[0, 0], [0, 4]]> : tensor<2x2xi64>",
            ),
            _window_example(
                "5x6xi32",
                "2x3xi32",
                "stablehlo.maximum",
                "window_dimensions = array<i64: 2, 3>, "
                "window_strides = array<i64: 3, 2>, "
                "padding = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>",
            ),
            _window_example(
                "4xbf16",
                "5xbf16",
                "stablehlo.add",
                "window_dimensions = array<i64: 2>, base_dilations = array<i64: 2>, "
                "window_dilations = array<i64: 2>",
            ),
            _window_example(
                "4xf32",
                "3xf32",
                "stablehlo.minimum",
                "window_dimensions = array<i64: 2>, padding = dense<[[-1, 1]]> : tensor<1x2xi64>",
            ),
        ),
    ),
)
