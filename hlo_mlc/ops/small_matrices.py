"""Factorizations and solves of small matrices, written out: every element of the results as an
expression of the operands' elements.

Expressions are shared, so an element costs what it adds to those before it.  Nothing branches: a
row is exchanged by selecting, for each element, which of two rows it comes from.  What is defined
for a whole matrix by the first step that fails (`info`) is selected the same way.

Source: the unblocked algorithms of LAPACK (potf2, getf2, geqr2, org2r), whose results these are
but for rounding, and for what NaNs make of comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, I32
from hlo_mlc.ops.elements import (
    Complex,
    Element,
    chosen,
    conjugate,
    is_nothing,
    is_zero,
    less_product,
    like,
    minus,
    negated,
    over,
    parts,
    plus,
    real_part,
    scaled,
    times,
)
from hlo_mlc.ops.elements import size as size_of

Matrix = list[list[Element]]  # rows
# After one sweep less, what was left off the diagonal of 4 x 4 was below a tenth of the last place:
# of random, graded, clustered and nearly constant matrices.
_SWEEPS = {F32: 5, F64: 6}


def cholesky(a: Matrix) -> tuple[Matrix, Expr]:
    """The lower triangle of `a` as L, where a = L L^H; above the diagonal `a` as it was.

    Reads the lower triangle only, and of its diagonal what is real.  `info` is the number (from 1)
    of the first step whose pivot is not positive, else 0.
    """
    size, lower, failed = len(a), [list(row) for row in a], []
    zero = const(0, real_part(a[0][0]).dtype)
    for j in range(size):
        before = [e for k in range(j) for e in parts(lower[j][k])]
        pivot = _less_products(real_part(a[j][j]), [(e, e) for e in before])
        failed.append(apply("le", pivot, zero))
        root = apply("sqrt", pivot)
        lower[j][j] = Complex(root, zero) if isinstance(a[j][j], Complex) else root
        for i in range(j + 1, size):
            rest = _less_products(
                a[i][j], [(lower[i][k], conjugate(lower[j][k])) for k in range(j)]
            )
            lower[i][j] = scaled(rest, root)
    return lower, _first(failed)


def solve_triangular(a: Matrix, b: Matrix, *, lower: bool, unit: bool) -> Matrix:
    """x in a x = b; reads one triangle of `a`, and no diagonal where that is `unit`."""
    size = len(a)
    x: Matrix = [[] for _ in range(size)]
    for i in range(size) if lower else reversed(range(size)):
        known = range(i) if lower else reversed(range(i + 1, size))
        for column, start in enumerate(b[i]):
            rest = _less_products(start, [(a[i][k], x[k][column]) for k in known])
            x[i].append(rest if unit else over(rest, a[i][i]))
            known = range(i) if lower else reversed(range(i + 1, size))
    return x


def lu(a: Matrix) -> tuple[Matrix, list[Expr], Expr]:
    """L and U in one matrix, the row (from 1) that each step exchanged its own with, and `info`:
    the number (from 1) of the first step without a pivot, else 0."""
    rows, columns = len(a), len(a[0])
    a, pivots, failed = [list(row) for row in a], [], []
    dtype = real_part(a[0][0]).dtype
    smallest = const(float(np.finfo(dtype.numpy).tiny), dtype)
    for k in range(min(rows, columns)):
        largest, place = size_of(a[k][k]), _number(k)
        for i in range(k + 1, rows):
            size = size_of(a[i][k])
            is_larger = apply("gt", size, largest)
            largest = apply("select", is_larger, size, largest)
            place = apply("select", is_larger, _number(i), place)
        pivots.append(apply("add", place, _number(1)))
        is_chosen = {i: apply("eq", place, _number(i)) for i in range(k + 1, rows)}
        _exchange(a, k, is_chosen)
        failed.append(is_zero(a[k][k]))
        # Nothing is divided by what is no pivot: where all are zero, zeros stay.
        usable = apply("ge", size_of(a[k][k]), smallest)
        divisor = chosen(usable, a[k][k], like(a[k][k], 1))
        for i in range(k + 1, rows):
            a[i][k] = over(a[i][k], divisor)
            for j in range(k + 1, columns):
                a[i][j] = _less_products(a[i][j], [(a[i][k], a[k][j])])
    return a, pivots, _first(failed)


def qr(a: Matrix) -> tuple[Matrix, list[Element]]:
    """R on and above the diagonal, below it the vectors of the reflections, whose first element is
    1 and left out, and their factors: Q is the product of 1 - tau v v^H."""
    rows, columns = len(a), len(a[0])
    a, factors = [list(row) for row in a], []
    for k in range(min(rows, columns)):
        a_k, tail = a[k][k], [a[i][k] for i in range(k + 1, rows)]
        a[k][k], vector, tau = _reflection(a_k, tail)
        factors.append(tau)
        for i, element in enumerate(vector, k + 1):
            a[i][k] = element
        for j in range(k + 1, columns):
            _reflect(a, k, j, vector, conjugate(tau))
    return a, factors


def q_of(a: Matrix, factors: Sequence[Element]) -> Matrix:
    """The first columns of the product of reflections that `qr` leaves, as many as `a` has."""
    rows, columns = len(a), len(a[0])
    zero, one = like(a[0][0], 0), like(a[0][0], 1)
    q = [[one if i == j else zero for j in range(columns)] for i in range(rows)]
    for k in reversed(range(len(factors))):
        vector, tau = [a[i][k] for i in range(k + 1, rows)], factors[k]
        for j in range(k + 1, columns):
            _reflect(q, k, j, vector, tau)
        q[k][k] = minus(one, tau)
        for i, element in enumerate(vector, k + 1):
            q[i][k] = negated(times(tau, element))
    return q


def times_q(a: Matrix, factors: Sequence[Element], c: Matrix, *, down: bool) -> Matrix:
    """`c` reflected by what `qr` leaves behind in `a`, by the last vector first if `down`."""
    c = [list(row) for row in c]
    steps = range(len(factors))
    for k in reversed(steps) if down else steps:
        vector = [a[i][k] for i in range(k + 1, len(a))]
        for j in range(len(c[0])):
            _reflect(c, k, j, vector, factors[k])
    return c


def eigh(a: Matrix) -> tuple[Matrix, list[Expr]]:
    """Eigenvectors, as columns, and eigenvalues in ascending order of a symmetric matrix, of which
    the lower triangle is read.

    Cyclic rotations of Jacobi, a fixed number of sweeps; each squares what is left off the diagonal
    once that is small.  The matrix is scaled by its largest element, so that no square overflows.
    """
    size, dtype = len(a), a[0][0].dtype
    zero, one = const(0, dtype), const(1, dtype)
    largest = largest_of([a[i][j] for i in range(size) for j in range(i + 1)])
    scale = apply("select", apply("eq", largest, zero), one, largest)
    a = [[apply("div", a[max(i, j)][min(i, j)], scale) for j in range(size)] for i in range(size)]
    vectors = [[one if i == j else zero for j in range(size)] for i in range(size)]
    for _ in range(_SWEEPS[dtype] if size > 2 else 1):
        for p in range(size - 1):
            for q in range(p + 1, size):
                _rotate(a, vectors, p, q)
    values = [a[i][i] for i in range(size)]
    for last in reversed(range(1, size)):
        for k in range(last):
            _in_order(values, vectors, k)
    return vectors, [apply("mul", value, scale) for value in values]


def rotation(apart: Expr, between: Expr) -> tuple[Expr, Expr, Expr]:
    """Cosine and sine of the smaller angle by which two axes are turned so that the element between
    them becomes 0, and what the elements on the diagonal, so far apart, move."""
    one, tangent = const(1, between.dtype), _tangent_between(apart, between)
    cosine = apply("div", one, apply("sqrt", apply("add", apply("mul", tangent, tangent), one)))
    return cosine, apply("mul", tangent, cosine), apply("mul", tangent, between)


def _rotate(a: Matrix, vectors: Matrix, p: int, q: int) -> None:
    """A rotation of the axes p and q after which the element between them is 0.

    Source: Golub and Van Loan, Matrix Computations, 8.5; the smaller of both angles.
    """
    cosine, sine, moved = rotation(apply("sub", a[q][q], a[p][p]), a[p][q])
    a[p][p], a[q][q] = apply("sub", a[p][p], moved), apply("add", a[q][q], moved)
    a[p][q] = a[q][p] = const(0, moved.dtype)
    for k in range(len(a)):
        if k not in (p, q):
            a[k][p], a[k][q] = turned(a[k][p], a[k][q], cosine, sine)
            a[p][k], a[q][k] = a[k][p], a[k][q]
        vectors[k][p], vectors[k][q] = turned(vectors[k][p], vectors[k][q], cosine, sine)


def _tangent_between(apart: Expr, between: Expr) -> Expr:
    """The tangent of the smaller angle that makes `between` 0, where elements on the diagonal are
    so far `apart`."""
    zero, one = const(0, apart.dtype), const(1, apart.dtype)
    twice = apply("add", between, between)
    length = apply("sqrt", _sum_of_products([(apart, apart), (twice, twice)]))
    divisor = apply("add", apply("abs", apart), length)
    is_done = apply("eq", divisor, zero)
    tangent = apply("div", twice, apply("select", is_done, one, divisor))
    return apply("select", apply("lt", apart, zero), apply("neg", tangent), tangent)


def turned(x: Expr, y: Expr, cosine: Expr, sine: Expr) -> tuple[Expr, Expr]:
    """(x cos - y sin, x sin + y cos), where either may be the constant 0."""
    zero = const(0, cosine.dtype)
    if x is zero and y is zero:
        return zero, zero
    if x is zero:
        return apply("neg", apply("mul", y, sine)), apply("mul", y, cosine)
    if y is zero:
        return apply("mul", x, cosine), apply("mul", x, sine)
    return (
        apply("sub", apply("mul", x, cosine), apply("mul", y, sine)),
        apply("add", apply("mul", x, sine), apply("mul", y, cosine)),
    )


def _in_order(values: list[Expr], vectors: Matrix, k: int) -> None:
    """Eigenvalues k and k + 1 change places, with their vectors, if the first is larger."""
    is_larger = apply("gt", values[k], values[k + 1])

    def exchanged(row: list[Expr]) -> None:
        x, y = row[k], row[k + 1]
        row[k] = apply("select", is_larger, y, x)
        row[k + 1] = apply("select", is_larger, x, y)

    for row in (values, *vectors):
        exchanged(row)


def _sum_of_products(pairs: Sequence[tuple[Expr, Expr]]) -> Expr:
    total = apply("mul", *pairs[0])
    for pair in pairs[1:]:
        total = apply("add", apply("mul", *pair), total)
    return total


def _reflection(first: Element, tail: Sequence[Element]) -> tuple[Element, list[Element], Element]:
    """(beta, v, tau) such that (1 - tau (1, v) (1, v)^H)^H (first, tail) = (beta, 0), where beta is
    real.

    Norms are taken of what is scaled by the largest element, so that no square overflows.
    """
    real, *imaginary = parts(first)
    zero, one = const(0, real.dtype), const(1, real.dtype)
    others = [part for element in tail for part in parts(element)]
    if not others and not imaginary:
        return first, [], zero
    largest = largest_of([*others, *imaginary])
    is_done = apply("eq", largest, zero)
    divisor = apply("select", is_done, one, apply("max", largest, apply("abs", real)))
    squares = zero
    for part in (real, *imaginary, *others):
        fraction = apply("div", part, divisor)
        squares = apply("add", apply("mul", fraction, fraction), squares)
    norm = apply("mul", divisor, apply("sqrt", squares))
    beta = apply("select", apply("lt", real, zero), norm, apply("neg", norm))
    tau, rest = apply("div", apply("sub", beta, real), beta), apply("sub", real, beta)
    beta = apply("select", is_done, real, beta)
    if isinstance(first, Complex):
        tau = Complex(tau, apply("neg", apply("div", first.imaginary, beta)))
        rest, beta = Complex(rest, first.imaginary), Complex(beta, zero)
    rest = chosen(is_done, like(first, 1), rest)
    return beta, [over(element, rest) for element in tail], chosen(is_done, like(first, 0), tau)


def _reflect(a: Matrix, k: int, j: int, vector: Sequence[Element], tau: Element) -> None:
    """Column j from row k on becomes (1 - tau (1, v) (1, v)^H) times itself; of it, elements may be
    the constant 0."""
    total = a[k][j]
    for i, element in enumerate(vector, k + 1):
        if not is_nothing(a[i][j]):
            product = times(conjugate(element), a[i][j])
            total = product if is_nothing(total) else plus(product, total)
    total = times(tau, total)
    a[k][j] = negated(total) if is_nothing(a[k][j]) else minus(a[k][j], total)
    for i, element in enumerate(vector, k + 1):
        product = times(element, total)
        a[i][j] = negated(product) if is_nothing(a[i][j]) else minus(a[i][j], product)


def largest_of(elements: Sequence[Expr]) -> Expr:
    """The largest absolute value."""
    largest = apply("abs", elements[0])
    for element in elements[1:]:
        largest = apply("max", largest, apply("abs", element))
    return largest


def _exchange(a: Matrix, k: int, is_chosen: dict[int, Expr]) -> None:
    """Row k changes places with the row that is chosen, if any is."""
    for j, old in enumerate(a[k]):
        new = old
        for i, is_here in is_chosen.items():
            new = chosen(is_here, a[i][j], new)
            a[i][j] = chosen(is_here, old, a[i][j])
        a[k][j] = new


def _less_products(start: Element, pairs: Sequence[tuple[Element, Element]]) -> Element:
    for x, y in pairs:
        start = less_product(start, x, y)
    return start


def _first(failed: Sequence[Expr]) -> Expr:
    """The number (from 1) of the first that is true, 0 if none is."""
    info = _number(0)
    for k in reversed(range(len(failed))):
        info = apply("select", failed[k], _number(k + 1), info)
    return info


def _number(value: int) -> Expr:
    return const(value, I32)


def transposed(a: Matrix) -> Matrix:
    """Rows as columns."""
    return [list(column) for column in zip(*a, strict=True)]


def adjoint(a: Matrix) -> Matrix:
    """The conjugates of rows as columns."""
    return transposed([[conjugate(e) for e in row] for row in a])
