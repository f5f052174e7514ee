"""Fourier transforms of a few elements, a batch of them at a time, written out.

Each transform is one point: its numbers are in one lane of vectors.  A transform of n = p m numbers
is p of m, of every p-th number, whose results are turned and combined; p is 4, or a prime:

    X[k + m q] = sum over r < p of  w_p^(r q)  (w_n^(r k)  Y_r[k]),   w_n = exp(-2 pi i / n)

Source: J. W. Cooley, J. W. Tukey, An algorithm for the machine calculation of complex Fourier
series, Mathematics of Computation 19 (1965); for primes, the sums and differences of conjugate
pairs.  Longer transforms stay with XLA's library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import DType, Kind
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Read, Unrolled

LONGEST = 64
"""Numbers of a transform that is written out."""


class Number(NamedTuple):
    """A complex number; `im` is None where that is zero."""

    re: Expr
    im: Expr | None


Numbers = dict[tuple[int, ...], Number]  # by their places


def _supports(node: Node) -> str:
    lengths = node.attributes["fft_length"]
    if not 0 < math.prod(lengths) <= LONGEST:
        return "long Fourier transforms stay with XLA's library"
    return ""


def _reference(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    kind, lengths = node.attributes["fft_type"], node.attributes["fft_length"]
    function = getattr(np.fft, f"{kind.lower()}n")
    axes = tuple(range(-len(lengths), 0))
    found = function(operands[0], s=lengths, axes=axes)
    return (found.astype(node.results[0].type.dtype.numpy),)


def _lower(node: Node, reads: Sequence[Read]) -> Unrolled:
    kind, lengths = node.attributes["fft_type"], tuple(node.attributes["fft_length"])
    given, result = node.operands[0].type, node.results[0].type
    batch = given.shape[:len(given.shape) - len(lengths)]
    is_complex = result.dtype.kind is Kind.COMPLEX

    def number(point: Indices, at: tuple[int, ...]) -> Number:
        place = (*point, *map(index.constant, at))
        if given.dtype.kind is not Kind.COMPLEX:
            return Number(reads[0](place), None)
        return Number(*(reads[0]((*place, index.constant(part))) for part in range(2)))

    def elements(point: Indices) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
        shape = given.shape[len(batch):]
        values = {at: number(point, at) for at in product(*map(range, shape))}
        found = transform(values, kind, lengths)
        placed = []
        for at in product(*map(range, result.shape[len(batch):])):
            place, value = (*point, *map(index.constant, at)), found[at]
            if not is_complex:
                placed.append((place, value.re))
                continue
            zero = const(0.0, value.re.dtype)
            placed += [((*place, index.constant(0)), value.re),
                       ((*place, index.constant(1)), zero if value.im is None else value.im)]
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
    return {at: _scaled(value, scale) for at, value in values.items()}


def _along(values: Numbers, axis: int, change: Callable[[Sequence[Number]], Sequence[Number]]
           ) -> Numbers:
    """Every row of numbers along an axis changed."""
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Number]] = {}
    for at in sorted(values):
        rows.setdefault((at[:axis], at[axis + 1:]), []).append(values[at])
    return {(*before, k, *after): value for (before, after), row in rows.items()
            for k, value in enumerate(change(row))}


def _real_of(row: Sequence[Number], length: int) -> list[Number]:
    """The inverse of half of a row, whose other half is its conjugate; unscaled, and real."""
    half = [Number(row[0].re, None), *row[1:]]
    if length % 2 == 0:
        half[length // 2] = Number(half[length // 2].re, None)
    whole = half[:length // 2 + 1] + [
        _conjugate(half[length - k]) for k in range(length // 2 + 1, length)]
    return [Number(value.re, None) for value in dft(whole[:length], is_inverse=True)]


def dft(x: Sequence[Number], is_inverse: bool) -> Sequence[Number]:
    """The transform of a row of numbers, unscaled."""
    n = len(x)
    if n == 1:
        return x
    p = 4 if n % 4 == 0 else next(p for p in range(2, n + 1) if n % p == 0)
    m = n // p
    parts = [dft(x[r::p], is_inverse) for r in range(p)]
    found: list[Number | None] = [None] * n
    for k in range(m):
        turned = [_turned(parts[r][k], r * k, n, is_inverse) for r in range(p)]
        found[k::m] = _BUTTERFLIES.get(p, _prime)(turned, is_inverse)
    return found


def _two(x: list[Number], is_inverse: bool) -> list[Number]:
    one, other = x
    return [_add(one, other), _subtract(one, other)]


def _four(x: list[Number], is_inverse: bool) -> list[Number]:
    even, odd = _two(x[0::2], is_inverse), _two(x[1::2], is_inverse)
    turned = _turned(odd[1], 1, 4, is_inverse)
    return [_add(even[0], odd[0]), _add(even[1], turned),
            _subtract(even[0], odd[0]), _subtract(even[1], turned)]


_BUTTERFLIES = {2: _two, 4: _four}


def _prime(x: list[Number], is_inverse: bool) -> list[Number]:
    """Of an odd number of elements: those of conjugate factors are added and subtracted first."""
    p, first = len(x), x[0]
    half = range(1, p // 2 + 1)
    sums, differences = ([f(x[r], x[p - r]) for r in half] for f in (_add, _subtract))
    total = first
    for one in sums:
        total = _add(total, one)
    found: list[Number] = [total] * p
    for q in half:
        even, odd = first, None
        for r, one, other in zip(half, sums, differences, strict=True):
            angle = 2 * math.pi * (r * q % p) / p
            even = _add(even, _scaled(one, math.cos(angle)))
            part = _scaled(other, math.sin(angle))
            odd = part if odd is None else _add(odd, part)
        turned = _turned(odd, 1, 4, is_inverse)
        found[q], found[p - q] = _add(even, turned), _subtract(even, turned)
    return found


# Numbers whose imaginary parts may be known to be zero


def _turned(x: Number, k: int, n: int, is_inverse: bool) -> Number:
    """x w_n^k, or its conjugate factor's."""
    k = -k % n if is_inverse else k % n
    quarters, rest = divmod(4 * k, n)
    for _ in range(quarters):  # by -i: a quarter of a turn clockwise
        x = Number(_zero(x) if x.im is None else x.im, _negated(x.re))
    if not rest:
        return x
    angle = math.pi / 2 * rest / n
    cosine, sine = math.cos(angle), math.sin(angle)
    if 2 * rest == n:
        if x.im is None:
            part = _times(x.re, cosine)
            return Number(part, _negated(part))
        return Number(_times(apply("add", x.re, x.im), cosine),
                      _times(apply("sub", x.im, x.re), cosine))
    if x.im is None:
        return Number(_times(x.re, cosine), _times(x.re, -sine))
    return Number(apply("add", _times(x.re, cosine), _times(x.im, sine)),
                  apply("sub", _times(x.im, cosine), _times(x.re, sine)))


def _add(one: Number, other: Number) -> Number:
    if one.im is None or other.im is None:
        im = one.im if other.im is None else other.im
    else:
        im = apply("add", one.im, other.im)
    return Number(apply("add", one.re, other.re), im)


def _subtract(one: Number, other: Number) -> Number:
    if other.im is None:
        im = one.im
    else:
        im = _negated(other.im) if one.im is None else apply("sub", one.im, other.im)
    return Number(apply("sub", one.re, other.re), im)


def _scaled(x: Number, factor: float) -> Number:
    return Number(_times(x.re, factor), None if x.im is None else _times(x.im, factor))


def _conjugate(x: Number) -> Number:
    return Number(x.re, None if x.im is None else _negated(x.im))


def _times(x: Expr, factor: float) -> Expr:
    return apply("mul", x, const(factor, x.dtype))


def _negated(x: Expr) -> Expr:
    return apply("neg", x)


def _zero(x: Number) -> Expr:
    return const(0.0, x.re.dtype)


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
        return (one("FFT", numbers(z, 3, *lengths), numbers(z, 3, *lengths), lengths),
                one("IFFT", numbers(z, 3, *lengths), numbers(z, 3, *lengths), lengths),
                one("RFFT", numbers(part, 3, *lengths), numbers(z, 3, *half), lengths),
                one("IRFFT", numbers(z, 3, *half), numbers(part, 3, *lengths), lengths))

    return (*of("f32", 8), *of("f64", 12), *of("f32", 2, 5), *of("f32", 1), *of("f64", 7))


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef("stablehlo.fft", OpKind.SOLVE, _reference, _lower, _supports, _examples(),
          "fft, StableHLO specification"),
)
