"""`select_and_scatter`: each window hands its source element to one of its own elements.

In gather form: the selected position of every window first, then every element of the operand
folds the sources of the windows that contain and have selected it.  What lies outside of the
operand is never selected; of several elements that `select` cannot tell apart the first stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import I32
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import Fold, Indices, OpDef, OpKind, Read, Staged
from hlo_mlc.ops.regions import combiner_of, inline_scalar_graph, supports_scalar_graph
from hlo_mlc.tensor.access import conjunction, inside, linearize, masked, undilated
from hlo_mlc.tensor.combine import combiner_variables, widened

Arrays = Sequence[np.ndarray]
NOWHERE = -1  # the position of a window that has met no element yet


def _supports(node: Node) -> str:
    select, scatter = node.regions
    if reason := supports_scalar_graph(select):
        return reason
    combiner = combiner_of(scatter)
    if isinstance(combiner, str):
        return combiner
    if combiner.identity is None:
        return "its sources are combined by something without a neutral element"
    return ""


def _window(node: Node) -> tuple[tuple[int, int, int], ...]:
    """By axis: (size, stride, padding before)."""
    a, rank = node.attributes, len(node.operands[0].type.shape)
    ones = (1,) * rank
    padding = a.get("padding") or ((0, 0),) * rank
    return tuple(
        zip(
            a.get("window_dimensions") or ones,
            a.get("window_strides") or ones,
            (before for before, _ in padding),
            strict=True,
        )
    )


def _lower(node: Node, reads: Sequence[Read]) -> Staged:
    window = _window(node)
    sizes = tuple(size for size, _, _ in window)
    shape, windows = (v.type.shape for v in node.operands[:2])
    operand, source, start = reads
    dtype = node.operands[0].type.dtype

    def position(reduced: Indices) -> Expr:
        return apply("convert", linearize(reduced, sizes), dtype=I32)

    def candidates(indices: Indices, reduced: Indices) -> tuple[Expr, ...]:
        places = tuple(
            o * stride + r - before
            for o, r, (_, stride, before) in zip(indices, reduced, window, strict=True)
        )
        there = conjunction(*(inside(p, n) for p, n in zip(places, shape, strict=True)))
        return (
            masked(operand(places), there, const(0, dtype)),
            masked(position(reduced), there, const(NOWHERE, I32)),
        )

    selected = Fold(
        sizes,
        _selection(node),
        candidates,
        (const(0, dtype), const(NOWHERE, I32)),
        lambda accumulators: accumulators[1:],
    )
    combiner = widened(combiner_of(node.regions[1]))
    wide, neutral = combiner.lhs[0].dtype, combiner.identity[0]

    def scattered(chosen: Read) -> Fold:
        def terms(indices: Indices, reduced: Indices) -> tuple[Expr, ...]:
            # The last element of a window first: that is, windows in order.
            reduced = tuple(size - 1 - r for r, size in zip(reduced, sizes, strict=True))
            found = [
                undilated(i + before - r, n, stride)
                for i, r, n, (_, stride, before) in zip(
                    indices, reduced, windows, window, strict=True
                )
            ]
            at = tuple(place for place, _ in found)
            given = apply("convert", source(at), dtype=wide)
            taken = apply("select", apply("eq", chosen(at), position(reduced)), given, neutral)
            return (masked(taken, conjunction(*(guard for _, guard in found)), neutral),)

        initial = apply("convert", start(()), dtype=wide)
        return Fold(
            sizes,
            combiner,
            terms,
            (initial,),
            None
            if wide is dtype
            else (lambda accumulators: (apply("convert", accumulators[0], dtype=dtype),)),
        )

    return Staged(windows, selected, scattered)


def _selection(node: Node) -> Combiner:
    """Of two elements with their positions, the one that `select` keeps."""
    lhs, rhs = combiner_variables([node.operands[0].type.dtype, I32])
    nowhere = const(NOWHERE, I32)
    (chosen,) = inline_scalar_graph(node.regions[0], (lhs[0], rhs[0]))
    stays = apply("eq", rhs[1], nowhere) | (apply("ne", lhs[1], nowhere) & chosen)
    return Combiner(
        lhs, rhs, tuple(apply("select", stays, x, y) for x, y in zip(lhs, rhs, strict=True)), None
    )


def _reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    operand, source, start = operands
    window, selection = _window(node), _selection(node)
    value = np.zeros(source.shape, operand.dtype)
    chosen = np.full(source.shape, NOWHERE, np.int32)
    corners = list(product(*(range(size) for size, _, _ in window)))
    for number, corner in enumerate(corners):
        windows, places = _reached(corner, window, source.shape, operand.shape)
        met = [value[windows], chosen[windows], operand[places], np.full((), number, np.int32)]
        values = dict(zip((*selection.lhs, *selection.rhs), met, strict=True))
        value[windows], chosen[windows] = (evaluate(r, values) for r in selection.results)
    combiner = widened(combiner_of(node.regions[1]))
    wide, neutral = combiner.lhs[0].dtype.numpy, combiner.identity[0].value
    result = np.full(operand.shape, start, wide)
    for number, corner in reversed(list(enumerate(corners))):  # windows in order
        windows, places = _reached(corner, window, source.shape, operand.shape)
        given = np.where(chosen[windows] == number, source[windows].astype(wide), neutral)
        values = {combiner.lhs[0]: result[places], combiner.rhs[0]: given.astype(wide)}
        result[places] = evaluate(combiner.results[0], values)
    return (result.astype(operand.dtype),)


def _reached(
    corner: tuple[int, ...],
    window: tuple[tuple[int, int, int], ...],
    windows: tuple[int, ...],
    shape: tuple[int, ...],
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The windows whose element at `corner` exists, and these elements."""
    found, places = [], []
    for r, (_, stride, before), count, extent in zip(corner, window, windows, shape, strict=True):
        first = max(0, -(-(before - r) // stride))
        last = min(count, (extent - 1 + before - r) // stride + 1)
        last = max(first, last)
        start = first * stride + r - before
        found.append(slice(first, last))
        places.append(
            slice(start, start + (last - first - 1) * stride + 1, stride)
            if last > first
            else slice(0, 0)
        )
    return tuple(found), tuple(places)


def _example(
    operand: str, source: str, attributes: str, direction: str = "GE", op: str = "stablehlo.add"
) -> str:
    element = operand.rpartition("x")[2]
    t = f"tensor<{element}>"
    kind = "FLOAT" if "f" in element else "SIGNED"
    return (
        f"func.func @main(%a: tensor<{operand}>, %s: tensor<{source}>, %i: {t}) "
        f"-> tensor<{operand}> {{\n"
        f'  %r = "stablehlo.select_and_scatter"(%a, %s, %i) ({{\n'
        f"  ^bb0(%x: {t}, %y: {t}):\n"
        f"    %z = stablehlo.compare {direction}, %x, %y, {kind} : ({t}, {t}) -> tensor<i1>\n"
        f"    stablehlo.return %z : tensor<i1>\n  }}, {{\n"
        f"  ^bb0(%x: {t}, %y: {t}):\n"
        f"    %z = {op} %x, %y : {t}\n"
        f"    stablehlo.return %z : {t}\n  }}) {{{attributes}}} : "
        f"(tensor<{operand}>, tensor<{source}>, {t}) -> tensor<{operand}>\n"
        f"  return %r : tensor<{operand}>\n}}\n"
    )


def _attributes(dimensions: str, strides: str, padding: str = "") -> str:
    text = f"window_dimensions = array<i64: {dimensions}>, window_strides = array<i64: {strides}>"
    rank = len(dimensions.split(","))
    return text + (f", padding = dense<{padding}> : tensor<{rank}x2xi64>" if padding else "")


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.select_and_scatter",
        OpKind.UPDATE,
        _reference,
        _lower,
        _supports,
        (
            _example("6xf32", "3xf32", _attributes("2", "2")),
            _example("7xf32", "3xf32", _attributes("3", "2")),
            _example(
                "2x5x6x3xf32",
                "2x3x3x3xf32",
                _attributes("1, 3, 2, 1", "1, 2, 2, 1", "[[0, 0], [1, 1], [0, 0], [0, 0]]"),
            ),
            _example("5x6xi32", "5x5xi32", _attributes("3, 2", "1, 1", "[[1, 1], [0, 0]]"), "LT"),
            _example("6x5xbf16", "3x4xbf16", _attributes("2, 2", "2, 1")),
            _example("6x5xf32", "2x2xf32", _attributes("3, 2", "3, 2"), op="stablehlo.maximum"),
        ),
    ),
)
