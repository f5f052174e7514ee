"""Fourier transforms, a batch of them at a time.

Each transform is one point.  Those of a few elements are written out (`butterflies.py`), their
numbers in one lane of vectors; those of longer rows go through them in passes
(`fourier_passes.py`).  The longest, and long ones of large primes, stay with XLA's library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import DType, Kind
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.butterflies import Number, conjugate, dft, scaled
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Read, Stepwise, Unrolled
from hlo_mlc.ops.fourier_passes import Row

LONGEST = 64
"""Numbers of a transform that is written out."""
# Complex numbers, by the bytes of a part, from which on rows go in passes as soon as these are
# known: 64 in f32 took 32 us so, 37 written out, and a fifth of the time to compile; 48, 63 and 64
# in f64 took 66, 77 and 57 us, and 66, 76 and 72 written out.  63 in f32: 50, and 45.
_IN_PASSES = {4: 64, 8: 48}

Numbers = dict[tuple[int, ...], Number]  # by their places


def _supports(node: Node) -> str:
    lengths = node.attributes["fft_length"]
    if _is_written_out(node):
        return ""
    if not all(lengths) or len(lengths) > 1:
        return "long Fourier transforms stay with XLA's library"
    return _row(node).refusal


def _is_written_out(node: Node) -> bool:
    lengths = node.attributes["fft_length"]
    if not 0 < math.prod(lengths) <= LONGEST:
        return False
    row = _row(node)
    return len(lengths) > 1 or row.numbers < _IN_PASSES[row.dtype.bytes] or bool(row.refusal)


def _row(node: Node) -> Row:
    """The transform of one row."""
    given = node.operands[0].type
    dtype = given.part.dtype if given.dtype.kind is Kind.COMPLEX else given.dtype
    return Row(node.attributes["fft_type"], node.attributes["fft_length"][0], dtype)


def _reference(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    kind, lengths = node.attributes["fft_type"], node.attributes["fft_length"]
    function = getattr(np.fft, f"{kind.lower()}n")
    axes = tuple(range(-len(lengths), 0))
    found = function(operands[0], s=lengths, axes=axes)
    return (found.astype(node.results[0].type.dtype.numpy),)


def _lower(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    kind, lengths = node.attributes["fft_type"], tuple(node.attributes["fft_length"])
    given, result = node.operands[0].type, node.results[0].type
    batch = given.shape[: len(given.shape) - len(lengths)]
    is_complex = result.dtype.kind is Kind.COMPLEX

    def number(point: Indices, at: Indices) -> Number:
        place = (*point, *at)
        if given.dtype.kind is not Kind.COMPLEX:
            return Number(reads[0](place), None)
        return Number(*(reads[0]((*place, index.constant(part))) for part in range(2)))

    if not _is_written_out(node):
        row = _row(node)
        return Stepwise(
            batch,
            lambda point, tables: row.procedure(lambda place: number(point, (place,)), tables),
            (row.result,),
            row.tables,
        )

    def elements(point: Indices) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
        shape = given.shape[len(batch) :]
        values = {
            at: number(point, tuple(map(index.constant, at))) for at in product(*map(range, shape))
        }
        found = transform(values, kind, lengths)
        placed = []
        for at in product(*map(range, result.shape[len(batch) :])):
            place, value = (*point, *map(index.constant, at)), found[at]
            if not is_complex:
                placed.append((place, value.re))
                continue
            zero = const(0.0, value.re.dtype)
            placed += [
                ((*place, index.constant(0)), value.re),
                ((*place, index.constant(1)), zero if value.im is None else value.im),
            ]
        return (tuple(placed),)

    return Unrolled(batch, elements)


def transform(values: Numbers, kind: str, lengths: tuple[int, ...]) -> Numbers:
    """The numbers of a transform over all axes, by their places.

    kind: FFT, IFFT, RFFT (of real numbers, half of the result) or IRFFT (its inverse).
    """
    *others, last = range(len(lengths))
    is_inverse = kind.startswith("I")

    def along(axes: Sequence[int], values: Numbers) -> Numbers:
        for axis in axes:
            values = _along(values, axis, lambda row: dft(row, is_inverse))
        return values

    if kind == "IRFFT":  # what becomes real comes last
        values = _along(along(others, values), last, lambda row: _real_of(row, lengths[-1]))
    elif kind == "RFFT":
        half = lengths[-1] // 2 + 1
        values = along(others, _along(values, last, lambda row: dft(row, is_inverse)[:half]))
    else:
        values = along((last, *others), values)
    if not is_inverse:
        return values
    scale = 1 / math.prod(lengths)
    return {at: scaled(value, scale) for at, value in values.items()}


def _along(
    values: Numbers, axis: int, change: Callable[[Sequence[Number]], Sequence[Number]]
) -> Numbers:
    """Every row of numbers along an axis changed."""
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Number]] = {}
    for at in sorted(values):
        rows.setdefault((at[:axis], at[axis + 1 :]), []).append(values[at])
    return {
        (*before, k, *after): value
        for (before, after), row in rows.items()
        for k, value in enumerate(change(row))
    }


def _real_of(row: Sequence[Number], length: int) -> list[Number]:
    """The inverse of half of a row, whose other half is its conjugate; unscaled, and real."""
    half = [Number(row[0].re, None), *row[1:]]
    if length % 2 == 0:
        half[length // 2] = Number(half[length // 2].re, None)
    whole = half[: length // 2 + 1] + [
        conjugate(half[length - k]) for k in range(length // 2 + 1, length)
    ]
    return [Number(value.re, None) for value in dft(whole[:length], is_inverse=True)]


def _examples() -> tuple[str, ...]:
    """Of all kinds and both types, of lengths with different factors, along one axis and two."""

    def one(kind: str, given: str, found: str, lengths: Sequence[int]) -> str:
        return f"""func.func @main(%a: tensor<{given}>) -> tensor<{found}> {{
          %0 = stablehlo.fft %a, type = {kind}, length = {list(lengths)} : (tensor<{given}>)
            -> tensor<{found}>
          return %0 : tensor<{found}>
        }}"""

    def numbers(dtype: str, *shape: int) -> str:
        return "x".join([*map(str, shape), dtype])

    def of(part: DType | str, *lengths: int) -> tuple[str, ...]:
        *outer, last = lengths
        z, half = f"complex<{part}>", (*outer, last // 2 + 1)
        return (
            one("FFT", numbers(z, 3, *lengths), numbers(z, 3, *lengths), lengths),
            one("IFFT", numbers(z, 3, *lengths), numbers(z, 3, *lengths), lengths),
            one("RFFT", numbers(part, 3, *lengths), numbers(z, 3, *half), lengths),
            one("IRFFT", numbers(z, 3, *half), numbers(part, 3, *lengths), lengths),
        )

    return (
        *of("f32", 8),
        *of("f64", 12),
        *of("f32", 2, 5),
        *of("f32", 1),
        *of("f64", 7),
        *of("f32", 96),
        *of("f64", 75),
    )


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef("stablehlo.fft", OpKind.SOLVE, _reference, _lower, _supports, _examples()),
)
