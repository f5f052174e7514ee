"""Fourier transforms over several axes: those over short ones as products with matrices of roots of
unity, others axis by axis.

    fft(z, [m, n])   ->   the sum over j and k of z[j, k] exp(-2 pi i (j p / m + k q / n))

Each step is a product over the foremost of the axes that are left, whose result has it behind all
others: after the last step they are in their order again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hlo_mlc.expr.dtypes import Kind, TensorType
from hlo_mlc.graph.builder import Builder
from hlo_mlc.graph.core import Node, Value

# Takes a product of a real array with a constant matrix: (array, its axis, matrix) -> product.
Multiply = Callable[[Value, int, np.ndarray], Value]
Combine = Callable[[str, Value, Value], Value]  # by the op of this name


def transformed(
    kind: str,
    lengths: tuple[int, ...],
    re: Value,
    im: Value | None,
    multiply: Multiply,
    combine: Combine,
) -> tuple[Value, Value | None]:
    """The parts of a transform; `im` is None where the imaginary part is zero.

    kind: FFT, IFFT, RFFT (of real numbers, half of the result) or IRFFT (its inverse).
    """
    axis = len(re.type.shape) - len(lengths)
    for step, length in enumerate(lengths):
        last = step == len(lengths) - 1
        cosine, sine = _roots(kind, length, last)
        if last and kind == "IRFFT":  # the result is real
            assert im is not None
            return combine(
                "stablehlo.subtract", multiply(re, axis, cosine), multiply(im, axis, sine)
            ), None
        if im is None:
            re, im = multiply(re, axis, cosine), multiply(re, axis, sine)
            continue
        re, im = (
            combine("stablehlo.subtract", multiply(re, axis, cosine), multiply(im, axis, sine)),
            combine("stablehlo.add", multiply(re, axis, sine), multiply(im, axis, cosine)),
        )
    return re, im


def _roots(kind: str, length: int, last: bool) -> tuple[np.ndarray, np.ndarray]:
    """The cosines and sines that elements of an axis (rows) have in those of the result."""
    rows, columns = np.arange(length), np.arange(length)
    if last and kind == "RFFT":
        columns = columns[: length // 2 + 1]
    if last and kind == "IRFFT":
        rows = rows[: length // 2 + 1]
    # Angles of whole numbers of eighths of a turn come out as what they are.
    turns = np.outer(rows, columns) % length
    angle = 2 * np.pi * turns / length
    cosine, sine = np.cos(angle), np.sin(angle)
    cosine[4 * turns == length] = cosine[4 * turns == 3 * length] = 0
    sine[2 * turns == length] = 0
    if not kind.startswith("I"):
        return cosine, -sine
    if last and kind == "IRFFT":  # what is not stored is the conjugate of what is
        twice = (rows != 0) & (2 * rows != length)
        cosine[twice] *= 2
        sine[twice] *= 2
    return cosine / length, sine / length


def product_type(tensor: TensorType, axis: int, matrix: np.ndarray) -> TensorType:
    """The type of the product over an axis, which comes behind the others."""
    shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :], matrix.shape[1])
    return TensorType(shape, tensor.dtype)


def along_each(node: Node) -> tuple[Node, ...]:
    """The transforms that one over several axes is, in order, each over the last axis of its
    operand, to which it is brought: those before in turn, and the last one first unless it is an
    inverse; none of what is over one axis."""
    kind, lengths = node.attributes["fft_type"], node.attributes["fft_length"]
    (operand,), (result,) = node.operands, node.results
    if len(lengths) < 2 or not all(v.type.is_static for v in (operand, result)):
        return ()
    first = len(operand.type.shape) - len(lengths)
    is_inverse = kind.startswith("I")
    complex_type = (operand if kind == "IRFFT" else result).type
    others = [
        _one(complex_type, complex_type, "IFFT" if is_inverse else "FFT", axis, length)
        for axis, length in enumerate(lengths[:-1], first)
    ]
    last = _one(
        operand.type if not is_inverse else complex_type,
        result.type if is_inverse else complex_type,
        kind,
        first + len(lengths) - 1,
        lengths[-1],
    )
    return (*others, last) if is_inverse else (last, *others)


def axis_by_axis(
    node: Node, given: Value | tuple[Value, Value], new: Builder
) -> Value | tuple[Value, Value]:
    """A transform over several axes of real numbers, or of the parts of complex ones, by those
    `along_each`: its axis is brought to the end, and back."""
    rank = len(node.operands[0].type.shape)
    axes = [*range(rank - len(node.attributes["fft_length"]), rank)]
    if not node.attributes["fft_type"].startswith("I"):
        axes = [axes[-1], *axes[:-1]]
    found = given
    for axis, step in zip(axes, along_each(node), strict=True):
        order = swapped(axis, rank)

        def turned(part: Value, order: tuple[int, ...] = order) -> Value:
            return new.transpose(part, order)

        whole = (
            turned(found)
            if isinstance(found, Value)
            else new.add("stablehlo.complex", tuple(map(turned, found)), step.operands[0].type)
        )
        result = new.add(step.op, (whole,), step.results[0].type, step.attributes)
        if result.type.dtype.kind is not Kind.COMPLEX:
            return turned(result)
        part = result.type.part
        found = (
            turned(new.add("stablehlo.real", (result,), part)),
            turned(new.add("stablehlo.imag", (result,), part)),
        )
    return found


def _one(given: TensorType, result: TensorType, kind: str, axis: int, length: int) -> Node:
    """A transform along one axis, which is the last one of its operand and result."""

    def turned(tensor: TensorType) -> TensorType:
        return TensorType(
            tuple(tensor.shape[d] for d in swapped(axis, len(tensor.shape))), tensor.dtype
        )

    return Node(
        "stablehlo.fft",
        (Value(turned(given)),),
        (Value(turned(result)),),
        {"fft_type": kind, "fft_length": (length,)},
    )


def swapped(axis: int, rank: int) -> tuple[int, ...]:
    """All axes, this one and the last exchanged."""
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return tuple(order)
