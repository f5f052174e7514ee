"""Fourier transforms of long rows, in passes over the row: in each, butterflies side by side.

A row of n = r m s numbers, the s transforms of r m numbers that earlier passes have left in it side
by side, becomes r s transforms of m numbers:

    y[q + s (r p + k)] = w_(r m)^(p k)  sum over i < r of  w_r^(i k)  x[q + s (p + m i)]

for q < s and p < m.  Neighbours in x are neighbours in y where s is large, so every pass but the
first works on vectors as they lie.  The first one has neighbouring p in them; its results are
transposed.  Passes go from one array to another one, so that no trip of a loop has to wait for
another.

Real rows of an even length are complex ones of half of it:

    z[j] = x[2 j] + i x[2 j + 1];   X[k] = E + w_n^k O,   X[n / 2 - k] = conj(E - w_n^k O)

where E and O, the transforms of what is at even and at odd places, are half of the sum and of the
difference of Z[k] and conj(Z[n / 2 - k]), the latter by -i.

Source: W. T. Cochran et al., What is the fast Fourier transform?, Proceedings of the IEEE 55
(1967), where the order that comes out sorted is ascribed to T. G. Stockham.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.procedure import Count, Move, Procedure, Put
from hlo_mlc.ops.butterflies import Number, dft, scaled

LONGEST = 4096
"""Complex numbers of the longest rows."""
# Simple operations for a number of a butterfly, and for loading, turning and storing it; for each
# where the results of the first pass are transposed.  What larger ones take does not stay in 32
# registers: on Zen 4, rows of 512 numbers took 0.6 (f32) and 0.4 (f64) of the time by 8, 8 and 8 as
# by 16, 16 and 2.
_OPERATIONS = {2: 2, 3: 5, 4: 4, 5: 8, 6: 7, 7: 12, 8: 7, 9: 12, 11: 20, 13: 24}
_MOVED, _TRANSPOSED = 7, 4
_LANES = 16  # of the widest vectors

Read = Callable[[Expr], Number]
Table = Callable[[tuple[Expr, ...]], Expr]


@functools.cache
def radices(n: int) -> tuple[int, ...]:
    """The radices of the passes over a row of n numbers, two or more; none where a prime is too
    large."""
    found = [(_passes_cost(one), one) for one in _products(n) if len(one) > 1]
    return min(found)[1] if found else ()


def _products(n: int) -> list[tuple[int, ...]]:
    if n == 1:
        return [()]
    return [(r, *rest) for r in _OPERATIONS if n % r == 0 for rest in _products(n // r)]


def _passes_cost(radices: Sequence[int]) -> float:
    """Of a number, in operations of full vectors."""
    total, before, n = float(_TRANSPOSED), 1, math.prod(radices)
    for r in radices:
        total += (_MOVED + _OPERATIONS[r]) * _filled(n // r if before == 1 else before)
        before *= r
    return total


def _filled(neighbours: int) -> float:
    """How much longer vectors of so many take than full ones: the last one may begin early, and
    those that are half as long take two thirds of the time."""
    side = min(_LANES, 1 << neighbours.bit_length() - 1)
    return -(-neighbours // side) * side / neighbours * (_LANES / side) ** 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """The transform of a row.

    kind: FFT, IFFT, RFFT (of real numbers, half of the result) or IRFFT (its inverse).
    """

    kind: str
    length: int
    dtype: DType  # of parts

    @property
    def is_inverse(self) -> bool:
        return self.kind.startswith("I")

    @property
    def is_halved(self) -> bool:
        """Whether pairs of real numbers are taken for complex ones."""
        return "R" in self.kind and self.length % 2 == 0

    @property
    def numbers(self) -> int:
        """Complex numbers that the passes are over."""
        return self.length // 2 if self.is_halved else self.length

    @property
    def refusal(self) -> str:
        """Why it is not done in passes; empty where it is."""
        if self.numbers > LONGEST:
            return "long Fourier transforms stay with XLA's library"
        return (
            ""
            if radices(self.numbers)
            else "Fourier transforms of lengths with large prime factors stay with XLA's library"
        )

    @property
    def result(self) -> Buffer:
        """The array that becomes the result."""
        shape = {"RFFT": (self.length // 2 + 1, 2), "IRFFT": (self.length,)}.get(
            self.kind, (self.length, 2)
        )
        return Buffer("transformed", self.dtype, shape, "stack")

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        """What the passes but the last, and real rows, turn numbers by: cosines and sines."""
        found, before, n = [], 1, self.numbers
        for r in radices(n)[:-1]:
            m = n // (r * before)
            turns = np.outer(np.arange(r), np.arange(m)) * before
            found.append(self._turns(turns if before == 1 else turns.T, n))
            before *= r
        if self.is_halved:
            found.append(self._turns(np.arange(n), 2 * n))
        return tuple(found)

    def _turns(self, turns: np.ndarray, whole: int) -> np.ndarray:
        angle = 2 * np.pi / whole * (turns % whole)
        sine = np.sin(angle)
        return np.stack((np.cos(angle), sine if self.is_inverse else -sine)).astype(
            self.dtype.numpy
        )

    def procedure(self, read: Read, tables: Sequence[Table]) -> Procedure:
        """All steps; `read(k)` is the number at place k of what is given."""
        return _Steps(self, tables).procedure(read)


class _Steps:
    """The steps of a transform in the making."""

    def __init__(self, row: Row, tables: Sequence[Table]) -> None:
        self.row, self.tables, self.n = row, tables, row.numbers
        self.arrays: dict[str, tuple[Buffer, Buffer]] = {}
        self.body: list[Move] = []

    def procedure(self, read: Read) -> Procedure:
        kind, n = self.row.kind, self.n
        result, scale = self.row.result, 1 / self.row.length if self.row.is_inverse else 1.0

        def put_number(place: Expr, x: Number) -> list[Move]:
            x, zero = scaled(x, scale) if scale != 1 else x, const(0.0, self.row.dtype)
            return [
                Put(result, (place, index.constant(0)), x.re),
                Put(result, (place, index.constant(1)), zero if x.im is None else x.im),
            ]

        if kind == "RFFT":
            last = self._passes(self._pairs(read) if self.row.is_halved else read)
            if self.row.is_halved:
                self._apart(last, put_number)
            else:
                self._each("k", n // 2 + 1, lambda k: put_number(k, last(k)))
        elif kind == "IRFFT" and self.row.is_halved:
            self._together(read)
            self._passes(
                self._reading("even"),
                lambda place, x: [
                    Put(result, (place * 2 + part,), one)
                    for part, one in enumerate(scaled(x, scale))
                ],
            )
        elif kind == "IRFFT":
            self._whole(read)
            self._passes(
                self._reading("even"), lambda place, x: [Put(result, (place,), scaled(x, scale).re)]
            )
        else:
            self._passes(read, put_number)
        arrays = (result, *(b for pair in self.arrays.values() for b in pair))
        return Procedure(arrays, tuple(self.body))

    def _passes(self, read: Read, put: Callable[[Expr, Number], list[Move]] | None = None) -> Read:
        """From what is read to where the last pass puts it: into an array, if that is not said."""
        first, *others = radices(self.n)
        m = self.n // first
        self._each(
            "p",
            m,
            lambda p: self._butterfly(
                first,
                lambda i: read(p + m * i),
                self._putting("apart"),
                lambda k: p + m * k,
                lambda k: (index.constant(k), p),
                self.tables[0],
            ),
        )
        self._each(
            "p",
            m,
            lambda p: self._inner(
                "k",
                first,
                lambda k: self._putting("even")(p * first + k, self._reading("apart")(k * m + p)),
            ),
        )
        before, source, names = first, "even", ("apart", "even")
        for number, r in enumerate(others, 1):
            m //= r
            target = names[number % 2 == 0]
            putting = put if put is not None and m == 1 else self._putting(target)
            self._pass(
                r, m, before, self._reading(source), putting, self.tables[number] if m > 1 else None
            )
            before, source = before * r, target
        return self._reading(source)

    def _pass(
        self,
        r: int,
        m: int,
        s: int,
        read: Read,
        put: Callable[[Expr, Number], list[Move]],
        table: Table | None,
    ) -> None:
        def at(p: Expr) -> list[Move]:
            return self._inner(
                "q",
                s,
                lambda q: self._butterfly(
                    r,
                    lambda i: read(q + p * s + s * m * i),
                    put,
                    lambda k: q + p * (s * r) + s * k,
                    lambda k: (p, index.constant(k)),
                    table,
                ),
            )

        self._each("p", m, at)

    def _butterfly(
        self,
        r: int,
        read: Callable[[int], Number],
        put: Callable[[Expr, Number], list[Move]],
        place: Callable[[int], Expr],
        turn: Callable[[int], tuple[Expr, ...]],
        table: Table | None,
    ) -> list[Move]:
        found = dft([read(i) for i in range(r)], self.row.is_inverse)
        moves = []
        for k, x in enumerate(found):
            if table is not None and k:
                x = turned(x, table, turn(k))
            moves += put(place(k), x)
        return moves

    # Real rows

    def _pairs(self, read: Read) -> Read:
        return lambda j: Number(read(j * 2).re, read(j * 2 + 1).re)

    def _apart(self, last: Read, put: Callable[[Expr, Number], list[Move]]) -> None:
        """The spectrum of a real row from that of its pairs."""
        h = self.n
        first = last(index.constant(0))
        self.body += put(index.constant(0), Number(first.re + first.im, None))
        self.body += put(index.constant(h), Number(first.re - first.im, None))

        def one(number: Expr) -> list[Move]:
            k = number + 1
            x, y = last(k), last(h - k)
            even = Number(x.re + y.re, x.im - y.im)
            odd = Number(x.im + y.im, y.re - x.re)
            odd = turned(odd, self.tables[-1], (k,))
            return put(k, scaled(Number(even.re + odd.re, even.im + odd.im), 0.5))

        self._each("k", h - 1, one)

    def _together(self, read: Read) -> None:
        """The spectrum of pairs, twice as large, from that of a real row."""
        h, put = self.n, self._putting("even")
        first, middle = read(index.constant(0)).re, read(index.constant(h)).re
        self.body += put(index.constant(0), Number(first + middle, first - middle))

        def one(number: Expr) -> list[Move]:
            k = number + 1
            x, y = read(k), read(h - k)
            even = Number(x.re + y.re, x.im - y.im)
            odd = Number(x.re - y.re, x.im + y.im)
            odd = turned(odd, self.tables[-1], (k,))
            return put(k, Number(even.re - odd.im, even.im + odd.re))

        self._each("k", h - 1, one)

    def _whole(self, read: Read) -> None:
        """The spectrum of a real row of an odd length with the half that is not stored."""
        n, put = self.n, self._putting("even")
        self.body += put(
            index.constant(0), Number(read(index.constant(0)).re, const(0.0, self.row.dtype))
        )

        def one(number: Expr) -> list[Move]:
            k = number + 1
            x = read(k)
            return [*put(k, x), *put(n - k, Number(x.re, -x.im))]

        self._each("k", n // 2, one)

    # Arrays and loops

    def _parts(self, name: str) -> tuple[Buffer, Buffer]:
        if name not in self.arrays:
            re, im = (
                Buffer(f"{name}_{part}", self.row.dtype, (self.n,), "stack")
                for part in ("re", "im")
            )
            self.arrays[name] = (re, im)
        return self.arrays[name]

    def _reading(self, name: str) -> Read:
        re, im = self._parts(name)
        return lambda place: Number(load(re, (place,)), load(im, (place,)))

    def _putting(self, name: str) -> Callable[[Expr, Number], list[Move]]:
        re, im = self._parts(name)

        def put(place: Expr, x: Number) -> list[Move]:
            zero = const(0.0, self.row.dtype)
            return [Put(re, (place,), x.re), Put(im, (place,), zero if x.im is None else x.im)]

        return put

    def _each(self, name: str, extent: int, body: Callable[[Expr], list[Move]]) -> None:
        self.body += self._inner(name, extent, body)

    def _inner(self, name: str, extent: int, body: Callable[[Expr], list[Move]]) -> list[Move]:
        if extent == 1:
            return body(index.constant(0))
        var = variable(f"{name}{len(self.body)}", extent)
        return [Count(var, index.constant(extent), tuple(body(var)))]


def turned(x: Number, table: Table, at: tuple[Expr, ...]) -> Number:
    """A number by one of a table."""
    cosine, sine = (table((index.constant(part), *at)) for part in (0, 1))
    if x.im is None:
        return Number(x.re * cosine, x.re * sine)
    return Number(x.re * cosine - x.im * sine, x.re * sine + x.im * cosine)
