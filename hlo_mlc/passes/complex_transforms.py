"""Fourier transforms with complex numbers in parts: products, or others, take their places."""

from __future__ import annotations

import numpy as np

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops.registry import supports
from hlo_mlc.passes.complex_splitting import Parts, Splitter, is_complex
from hlo_mlc.passes.fourier import along_each, axis_by_axis, product_type, transformed

FOURIER = "stablehlo.fft"
_LONGEST = 64  # elements along each axis of one that is done by products


def is_transform(node: Node) -> bool:
    """Whether it is a Fourier transform."""
    return node.op == FOURIER


def is_transformed(node: Node) -> bool:
    """Whether it is a Fourier transform that is done here, by others or by products."""
    if node.op != FOURIER or node.opaque or not supports(node):
        return False
    steps = along_each(node)
    return _is_short(node) or (bool(steps) and not any(map(supports, steps)))


def _is_short(node: Node) -> bool:
    lengths = node.attributes["fft_length"]
    return bool(lengths) and all(0 < n <= _LONGEST for n in lengths)


def transform_in_parts(node: Node, s: Splitter) -> Parts | Value | None:
    """The rule for Fourier transforms; None for one that is not done here."""
    if not is_transformed(node):
        return None
    (operand,) = node.operands
    if not _is_short(node):
        given = s.parts[operand] if is_complex(operand) else s.value(operand)
        return axis_by_axis(node, given, s)
    re, im = s.parts[operand] if is_complex(operand) else (s.value(operand), None)

    def multiply(array: Value, axis: int, matrix: np.ndarray) -> Value:
        factor = s.array(matrix.astype(array.type.dtype.numpy))
        return s.add(
            "stablehlo.dot_general",
            (array, factor),
            product_type(array.type, axis, matrix),
            {
                "lhs_batching_dimensions": (),
                "rhs_batching_dimensions": (),
                "lhs_contracting_dimensions": (axis,),
                "rhs_contracting_dimensions": (0,),
            },
        )

    kind, lengths = node.attributes["fft_type"], node.attributes["fft_length"]
    re, im = transformed(kind, lengths, re, im, multiply, s.like)
    return re if im is None else (re, im)
