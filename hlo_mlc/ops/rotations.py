"""Eigenvectors of small symmetric matrices by rotations, written out: every element as an
expression of the elements that are given."""

from __future__ import annotations

import functools

from hlo_mlc.expr.build import apply, compare, const, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64
from hlo_mlc.ops.steps import Array, Steps

Matrix = list[list[Expr]]  # rows
# After one sweep less, what was left off the diagonal of 4 x 4 was below a tenth of the last place:
# of random, graded, clustered and nearly constant matrices.
_SWEEPS = {F32: 5, F64: 6}


def eigh(s: Steps, given: Array, found: Array, rows: Array | None) -> None:
    """The eigenvalues in ascending order, and as rows their vectors, of a symmetric matrix, of
    which the lower triangle is read.

    Cyclic rotations of Jacobi, a fixed number of sweeps; each squares what is left off the diagonal
    once that is small.  The matrix is scaled by its largest element, so that no square overflows.
    """
    size, dtype = given.shape[0], s.dtype
    zero, one = const(0, dtype), const(1, dtype)
    lower = [[given[max(i, j), min(i, j)] for j in range(size)] for i in range(size)]
    sizes = (apply("abs", lower[i][j]) for i in range(size) for j in range(i + 1))
    largest = functools.reduce(lambda x, y: apply("max", x, y), sizes)
    scale = select(compare("eq", largest, 0), one, largest)
    a = [[element / scale for element in row] for row in lower]
    vectors = [[one if i == j else zero for j in range(size)] for i in range(size)]
    for _ in range(_SWEEPS[dtype] if size > 2 else 1):
        for p in range(size - 1):
            for q in range(p + 1, size):
                _rotate(a, vectors, p, q)
    values = [a[i][i] for i in range(size)]
    for last in reversed(range(1, size)):
        for k in range(last):
            _in_order(values, vectors, k)
    for i, value in enumerate(values):
        s.put(found, i, value * scale)
        for j in range(size) if rows is not None else ():
            s.put(rows, (i, j), vectors[j][i])


def rotation(apart: Expr, between: Expr) -> tuple[Expr, Expr, Expr]:
    """Cosine and sine of the smaller angle by which two axes are turned so that the element between
    them becomes 0, and what the elements on the diagonal, so far apart, move."""
    one, tangent = const(1, between.dtype), _tangent_between(apart, between)
    cosine = apply("div", one, apply("sqrt", tangent * tangent + one))
    return cosine, tangent * cosine, tangent * between


def _rotate(a: Matrix, vectors: Matrix, p: int, q: int) -> None:
    """A rotation of the axes p and q after which the element between them is 0.

    Source: Golub and Van Loan, Matrix Computations, 8.5; the smaller of both angles.
    """
    cosine, sine, moved = rotation(a[q][q] - a[p][p], a[p][q])
    a[p][p], a[q][q] = a[p][p] - moved, a[q][q] + moved
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
    twice = between + between
    length = apply("sqrt", twice * twice + apart * apart)
    divisor = apply("abs", apart) + length
    is_done = apply("eq", divisor, zero)
    tangent = apply("div", twice, apply("select", is_done, one, divisor))
    return apply("select", apply("lt", apart, zero), -tangent, tangent)


def turned(x: Expr, y: Expr, cosine: Expr, sine: Expr) -> tuple[Expr, Expr]:
    """(x cos - y sin, x sin + y cos), where either may be the constant 0."""
    zero = const(0, cosine.dtype)
    if x is zero and y is zero:
        return zero, zero
    if x is zero:
        return -(y * sine), y * cosine
    if y is zero:
        return x * cosine, x * sine
    return (x * cosine - y * sine, x * sine + y * cosine)


def _in_order(values: list[Expr], vectors: Matrix, k: int) -> None:
    """Eigenvalues k and k + 1 change places, with their vectors, if the first is larger."""
    is_larger = apply("gt", values[k], values[k + 1])

    for row in (values, *vectors):
        x, y = row[k], row[k + 1]
        row[k], row[k + 1] = select(is_larger, y, x), select(is_larger, x, y)
