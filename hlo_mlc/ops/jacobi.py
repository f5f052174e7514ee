"""Eigenvectors of symmetric matrices that are too large to be written out: loops of rotations.

    turns:  0-1 2-3 4-5 6-7   then   1-2 3-4 5-6        neighbouring axes are turned

Every rotation makes the element between two axes 0 and leaves the axis of the smaller eigenvalue
on the side where it is wanted.  That side changes from sweep to sweep, which has as many turns as
there are axes: so all pass one another in every sweep, and where eigenvalues are close their axes
are neighbours, without which the last sweeps do not converge quadratically.

Source: Luk and Park, On parallel Jacobi orderings, SIAM J. Sci. Stat. Comput. 10 (1989), for the
order; van Kempen, Numer. Math. 9 (1966), for close eigenvalues.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F64, DType
from hlo_mlc.ops.rolled import ONE, unit_element
from hlo_mlc.ops.small_matrices import rotation, turned
from hlo_mlc.ops.steps import Array, Steps


def sweeps(size: int, dtype: DType) -> int:
    """How often all axes pass one another: even numbers, so that eigenvalues ascend in the end.

    What was left off the diagonal was below a last place then, or a few: of random, graded,
    clustered, nearly constant matrices, of two eigenvalues, of products a a^T and Hilbert's.  In
    f64, graded ones of 12 square took 10 sweeps, of 16 square 11.
    """
    if dtype is F64:
        return 8 if size <= 8 else 10 if size <= 12 else 12
    return 6 if size <= 8 else 8


def eigh(s: Steps, a: Array, values: Array, vectors: Array | None, sweeps: int) -> None:
    """The eigenvalues, in ascending order, of a symmetric matrix whose lower triangle is in `a`,
    which is lost, and eigenvectors, as rows, where there is an array for them."""
    size = a.shape[0]
    scale = _scaled_down(s, a)
    if vectors is not None:
        with s.each("i", 0, size) as i, s.each("j", 0, size) as j:
            s.put(vectors, (i, j), unit_element(vectors, i, j))
    with s.each("trip", 0, sweeps * size // 2) as trip:
        for group in (0, 1):
            turn = index.add(index.multiply(trip, index.constant(2)), index.constant(group))
            side = index.floormod(index.floordiv(turn, size), 2)
            _turn_neighbours(s, a, vectors, group, index.compare("eq", side, ONE))
    with s.each("i", 0, size) as i:
        s.put(values, i, a[i, i])
    _sort(s, values)
    with s.each("i", 0, size) as i:
        s.put(values, i, apply("mul", values[i], scale))


def _turn_neighbours(s: Steps, a: Array, vectors: Array | None, group: int, ascends: Expr) -> None:
    """Rotations of the axes 2 k + group and 2 k + group + 1 after which elements between them are
    0, and those on the diagonal in order.

    All angles are found first: none has to wait for another one's.
    """
    size = a.shape[0]
    cosines, sines = s.real("cosines", size // 2), s.real("sines", size // 2)

    def pairs() -> AbstractContextManager[Expr]:
        return s.each("pair", 0, (size - group) // 2)

    def first(pair: Expr) -> Expr:
        return index.add(index.multiply(pair, index.constant(2)), index.constant(group))

    with pairs() as pair:
        cosine, sine = _turned_diagonal(s, a, first(pair), ascends)
        s.put(cosines, pair, cosine)
        s.put(sines, pair, sine)
    with pairs() as pair:
        p, turn = first(pair), (cosines[pair], sines[pair])
        q = index.add(p, ONE)
        with s.each("i", 0, p) as i:
            _turn(s, a, (p, i), (q, i), turn)
        with s.each("i", index.add(q, ONE), size) as i:
            _turn(s, a, (i, p), (i, q), turn)
        if vectors is not None:
            with s.each("i", 0, size) as i:
                _turn(s, vectors, (p, i), (q, i), turn)


def _turned_diagonal(s: Steps, a: Array, p: Expr, ascends: Expr) -> tuple[Expr, Expr]:
    """Cosine and sine of the angle by which the axes p and p + 1 are turned, what is of them alone
    having been turned."""
    q, zero = index.add(p, ONE), const(0, s.dtype)
    between = s.let("between", a[q, p])
    apart = s.let("apart", apply("sub", a[q, q], a[p, p]))
    cosine, sine, moved = rotation(apart, between)
    low = s.let("low", apply("sub", a[p, p], moved))
    high = s.let("high", apply("add", a[q, q], moved))
    # Which of both is larger stays as it is, unless the rotation is by a right angle more.
    is_more = apply("xor", apply("ge", apart, zero), ascends)
    s.put(a, (p, p), apply("select", is_more, high, low))
    s.put(a, (q, q), apply("select", is_more, low, high))
    s.put(a, (q, p), zero)
    return apply("select", is_more, apply("neg", sine), cosine), \
        apply("select", is_more, cosine, sine)


def _scaled_down(s: Steps, a: Array) -> Expr:
    """The lower triangle, divided by its largest element, so that no square overflows; and that."""
    size, zero = a.shape[0], const(0, s.dtype)
    largest = s.let("largest", zero)
    with s.each("i", 0, size) as i, s.each("j", 0, index.add(i, ONE)) as j:
        s.let("largest", apply("max", largest, apply("abs", a[i, j])))
    scale = s.let("scale", apply("select", apply("eq", largest, zero), const(1, s.dtype), largest))
    with s.each("i", 0, size) as i, s.each("j", 0, index.add(i, ONE)) as j:
        s.put(a, (i, j), apply("div", a[i, j], scale))
    return scale


def _turn(s: Steps, a: Array, one: tuple[Expr, Expr], other: tuple[Expr, Expr],
          turn: tuple[Expr, Expr]) -> None:
    x, y = turned(s.let("x", a[one]), s.let("y", a[other]), *turn)
    s.put(a, one, x)
    s.put(a, other, y)


def _sort(s: Steps, values: Array) -> None:
    """Equal values may have changed in the last place."""
    size = values.shape[0]
    with s.each("i", 0, size) as i, s.each("j", 0, index.subtract(index.constant(size - 1), i)
                                           ) as j:
        low, high = s.let("low", values[j]), s.let("high", values[index.add(j, ONE)])
        is_larger = apply("gt", low, high)
        s.put(values, j, apply("select", is_larger, high, low))
        s.put(values, index.add(j, ONE), apply("select", is_larger, low, high))
