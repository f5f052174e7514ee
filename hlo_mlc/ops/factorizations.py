"""Factorizations and solves of matrices, step by step: in loops over rows and columns, or, of small
ones, with all loops written out (steps.py), where an element costs what it adds to those before it.

Nothing branches: a row is exchanged by selecting, for each element, which of two rows it comes
from.  What is defined for a whole matrix by the first step that fails (`info`) is selected the same
way.

Source: the unblocked algorithms of LAPACK (getf2, potf2, geqr2, org2r, orm2r) and BLAS (trsm),
whose results these are but for rounding, and for what NaNs make of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, compare, const, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import I32
from hlo_mlc.ops.elements import (
    Complex,
    Element,
    chosen,
    conjugate,
    is_zero,
    less_product,
    like,
    minus,
    negated,
    over,
    parts,
    real_part,
    scaled,
    times,
)
from hlo_mlc.ops.elements import size as size_of
from hlo_mlc.ops.steps import Array, Steps, number, places

# Columns whose elements are in registers while rows are exchanged.
_ABREAST = 4

At = Callable[[Expr, Expr], tuple[Expr, Expr]]
"""Where in an array the element in a row and a column of a matrix is."""
Read = Callable[[Expr, Expr], Element]
"""The element in a row and a column."""


def upright(i: Expr, j: Expr) -> tuple[Expr, Expr]:
    """Rows of a matrix are rows of its array."""
    return i, j


def on_its_side(i: Expr, j: Expr) -> tuple[Expr, Expr]:
    """Rows of a matrix are columns of its array."""
    return j, i


@dataclass(frozen=True, slots=True)
class Reflection:
    """1 - tau (1, v) (1, v)^H for the rows from number `first` on; vector(i) is v in row i."""

    first: Expr
    rows: int
    vector: Callable[[Expr], Element]
    tau: Element

    def reflect(self, s: Steps, a: Array, j: Expr, at: At = upright) -> None:
        """Column j becomes what this makes of it; a[at(i, j)] is the element in row i."""
        first, below = at(self.first, j), (self.first + 1, self.rows)
        total = s.array("total")
        s.put(total, (), a[first])
        for i in s.each("i", *below):
            product = negated(conjugate(self.vector(i)))
            s.put(total, (), less_product(total[()], product, a[at(i, j)]))
        total = s.let("total", times(self.tau, total[()]))
        s.put(a, first, minus(a[first], total))
        for i in s.each("i", *below):
            s.put(a, at(i, j), less_product(a[at(i, j)], self.vector(i), total))


@dataclass(frozen=True, slots=True)
class Reflections:
    """What `qr` leaves: `count` vectors below the diagonal of `a`, of so many rows, and factors."""

    a: Read
    factors: Callable[[Expr], Element]
    count: int
    rows: int

    def each(self, s: Steps, down: bool) -> Iterator[Reflection]:
        """One after the other, the last one first if `down`."""
        for k in s.each("k", 0, self.count, down=down):
            vector = s.array("vector", self.rows)
            for i in s.each("i", k + 1, self.rows):
                s.put(vector, i, self.a(i, k))
            yield Reflection(k, self.rows, vector.__getitem__, s.let("tau", self.factors(k)))


def lu(s: Steps, a: Array, pivots: Array, info: Array) -> None:
    """L and U in place of `a`, the row (from 1) that each step exchanged its own with, and the
    number (from 1) of the first step without a pivot, else 0."""
    rows, columns = a.shape
    row = s.array("row", columns)
    s.put(info, (), const(0, I32))
    for k in s.each("k", 0, min(rows, columns)):
        after = k + 1
        place = _largest_below(s, a, k)
        s.put(pivots, k, place + const(1, I32))
        for first in range(0, columns, _ABREAST):
            _exchange(s, a, row, k, place, range(first, min(first + _ABREAST, columns)))
        _note_failure(s, info, k, is_zero(row[k]))
        divisor = s.let("divisor", _usable(row[k]))
        for i in s.each("i", after, rows):
            s.put(a, (i, k), over(a[i, k], divisor))
            factor = s.let("factor", a[i, k])
            for j in s.each("j", after, columns):
                s.put(a, (i, j), less_product(a[i, j], factor, row[j]))
        for j in s.each("column", 0, columns):
            s.put(a, (k, j), row[j])


def _exchange(s: Steps, a: Array, row: Array, k: Expr, place: Expr, columns: Sequence[int]) -> None:
    """Of some columns, row k goes to a place, and what was there is put aside as `row`."""
    found = [s.array(f"found{number}") for number, _ in enumerate(columns)]
    own = [s.array(f"own{number}") for number, _ in enumerate(columns)]
    for one, mine, j in zip(found, own, columns, strict=True):
        s.put(mine, (), a[k, j])
        s.put(one, (), a[k, j])
    for i in s.each("i", k + 1, a.shape[0]):
        is_there = apply("eq", place, number(i))
        for one, mine, j in zip(found, own, columns, strict=True):
            s.put(one, (), chosen(is_there, a[i, j], one[()]))
            s.put(a, (i, j), chosen(is_there, mine[()], a[i, j]))
    for one, j in zip(found, columns, strict=True):
        s.put(row, j, one[()])


def _largest_below(s: Steps, a: Array, k: Expr) -> Expr:
    """The row, from k on, of the largest element in column k."""
    largest, place = s.real("largest"), s.integers("place")
    s.put(largest, (), size_of(a[k, k]))
    s.put(place, (), number(k))
    for i in s.each("i", k + 1, a.shape[0]):
        size = s.let("size", size_of(a[i, k]))
        is_larger = apply("gt", size, largest[()])
        s.put(place, (), apply("select", is_larger, number(i), place[()]))
        s.put(largest, (), apply("select", is_larger, size, largest[()]))
    return place[()]


def _usable(pivot: Element) -> Element:
    """What to divide by: nothing is divided by what is no pivot, where all are zero, zeros stay."""
    size = size_of(pivot)
    smallest = const(float(np.finfo(size.dtype.numpy).tiny), size.dtype)
    return chosen(apply("ge", size, smallest), pivot, like(pivot, 1))


def _note_failure(s: Steps, info: Array, k: Expr, failed: Expr) -> None:
    is_first = failed & apply("eq", info[()], const(0, I32))
    s.put(info, (), apply("select", is_first, number(k + 1), info[()]))


def solve_triangular(
    s: Steps, a: Read, x: Array, at: At, size: int, columns: int, *, lower: bool, unit: bool
) -> None:
    """`x`, which is to hold b, becomes x in a x = b; x[at(i, j)] is that of row i, column j."""
    for k in s.each("k", 0, size, down=not lower):
        if not unit:
            divisor = s.let("divisor", a(k, k))
            for j in s.each("j", 0, columns):
                s.put(x, at(k, j), over(x[at(k, j)], divisor))
        rest = (k + 1, size) if lower else (0, k)
        for i in s.each("i", *rest):
            factor = s.let("factor", a(i, k))
            for j in s.each("j", 0, columns):
                s.put(x, at(i, j), less_product(x[at(i, j)], factor, x[at(k, j)]))


def filled(s: Steps, name: str, read: Read, rows: int, columns: int) -> Array:
    """A matrix of what is read."""
    a = s.array(name, rows, columns)
    for i in s.each("i", 0, rows):
        for j in s.each("j", 0, columns):
            s.put(a, (i, j), read(*places((i, j))))
    return a


def cholesky(s: Steps, a: Array, info: Array, at: At) -> None:
    """The lower triangle of `a` becomes L, where a = L L^H; a[at(i, j)] is the element in row i,
    column j.  `info` is the number (from 1) of the first step whose pivot is not positive, else 0.
    """
    size = a.shape[0]
    s.put(info, (), const(0, I32))
    for k in s.each("k", 0, size):
        after = k + 1
        pivot = s.let("pivot", real_part(a[at(k, k)]))
        _note_failure(s, info, k, apply("le", pivot, const(0, pivot.dtype)))
        root = s.let("root", apply("sqrt", pivot))
        s.put(a, at(k, k), as_element(a, root))
        for i in s.each("i", after, size):
            s.put(a, at(i, k), scaled(a[at(i, k)], root))
        for j in s.each("j", after, size):
            factor = s.let("factor", conjugate(a[at(j, k)]))
            for i in s.each("i", j, size):
                s.put(a, at(i, j), less_product(a[at(i, j)], a[at(i, k)], factor))


def qr(s: Steps, a: Array, factors: Array) -> None:
    """R on and above the diagonal of `a`, below it the vectors of the reflections, whose first
    element is 1 and left out, and their factors: Q is the product of 1 - tau v v^H."""
    rows, columns = a.shape
    for k in s.each("k", 0, min(rows, columns)):
        tau = _reflection(s, a, k)
        s.put(factors, k, tau)
        reflection = Reflection(k, rows, lambda i, k=k: a[i, k], conjugate(tau))
        for j in s.each("j", k + 1, columns):
            reflection.reflect(s, a, j)


def q_of(s: Steps, q: Array, reflections: Reflections) -> None:
    """`q` becomes the first columns of the product of the reflections."""
    rows, columns = q.shape
    for i in s.each("i", 0, rows):
        for j in s.each("j", 0, columns):
            s.put(q, (i, j), unit_element(q, i, j))
    for reflection in reflections.each(s, down=True):
        k, tau = reflection.first, reflection.tau
        for j in s.each("j", k + 1, columns):
            reflection.reflect(s, q, j)
        s.put(q, (k, k), minus(like(tau, 1), tau))
        for i in s.each("i", k + 1, rows):
            s.put(q, (i, k), negated(times(tau, reflection.vector(i))))


def times_q(
    s: Steps, c: Array, at: At, columns: int, reflections: Reflections, *, down: bool
) -> None:
    """`c` is reflected, by the last one first if `down`; c[at(i, j)] is the element in row i,
    column j."""
    for reflection in reflections.each(s, down):
        for j in s.each("j", 0, columns):
            reflection.reflect(s, c, j, at)


def as_element(a: Array, real: Expr) -> Element:
    """A real number as an element of an array."""
    return Complex(real, const(0, real.dtype)) if a.is_complex else real


def unit_element(a: Array, i: Expr, j: Expr) -> Element:
    """The element in row i, column j of the unit matrix."""
    zero, one = (like(a[i, j], number) for number in (0, 1))
    return chosen(index.compare("eq", i, j), one, zero)


def _reflection(s: Steps, a: Array, k: Expr) -> Element:
    """Column k from row k on, (first, tail), becomes (beta, v); the result is tau: such that
    (1 - tau (1, v) (1, v)^H)^H (first, tail) = (beta, 0), where beta is real.

    Norms are taken of what is scaled by the largest element, so that no square overflows.
    """
    first = s.let("first", a[k, k])
    real, *imaginary = parts(first)
    zero, one = const(0, real.dtype), const(1, real.dtype)
    below = (k + 1, a.shape[0])
    largest, squares = s.real("largest"), s.real("squares")
    s.put(largest, (), apply("abs", imaginary[0]) if imaginary else zero)
    for i in s.each("i", *below):
        for part in parts(a[i, k]):
            s.put(largest, (), apply("max", largest[()], apply("abs", part)))
    is_done = compare("eq", largest[()], 0)
    divisor = s.let("scale", select(is_done, one, apply("max", largest[()], apply("abs", real))))

    def add_square(element: Element) -> None:
        for part in parts(element):
            fraction = part / divisor
            s.put(squares, (), fraction * fraction + squares[()])

    s.put(squares, (), zero)
    add_square(first)
    for i in s.each("i", *below):
        add_square(a[i, k])
    norm = divisor * apply("sqrt", squares[()])
    beta = s.let("beta", select(is_done, real, select(compare("lt", real, 0), norm, -norm)))
    tau, rest = (beta - real) / beta, real - beta
    if imaginary:
        tau = Complex(tau, -(imaginary[0] / beta))
        rest = Complex(rest, imaginary[0])
    tau = s.let("tau", chosen(is_done, like(first, 0), tau))
    rest = s.let("rest", chosen(is_done, like(first, 1), rest))
    s.put(a, (k, k), as_element(a, beta))
    for i in s.each("i", *below):
        s.put(a, (i, k), over(a[i, k], rest))
    return tau
