"""Eigenvectors of symmetric matrices, and Hermitian ones, in loops of rotations.

    turns:  0-1 2-3 4-5 6-7   then   1-2 3-4 5-6        neighbouring axes are turned

Every rotation makes the element between two axes 0 and leaves the axis of the smaller eigenvalue
on the side where it is wanted.  That side changes from sweep to sweep, which has as many turns as
there are axes: so all pass one another in every sweep, and where eigenvalues are close their axes
are neighbours, without which the last sweeps do not converge quadratically.

Of complex numbers, the second axis of two first gets the phase that makes the element between them
real.

Source: Luk and Park, On parallel Jacobi orderings, SIAM J. Sci. Stat. Comput. 10 (1989), for the
order; van Kempen, Numer. Math. 9 (1966), for close eigenvalues.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F64, DType
from hlo_mlc.ops.elements import Complex, Element, conjugate, parts, real_part, scaled, times
from hlo_mlc.ops.factorizations import as_element, unit_element
from hlo_mlc.ops.rotations import rotation, turned
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


Turn = tuple[Expr, Expr, Element | None]
"""Cosine and sine of an angle, and the phase of the second axis; None where there are none."""


def eigh(s: Steps, a: Array, values: Array, vectors: Array | None, sweeps: int) -> None:
    """The eigenvalues, in ascending order, of a Hermitian matrix whose lower triangle is in `a`,
    which is lost, and eigenvectors, as rows, where there is an array for them."""
    size = a.shape[0]
    scale = _scaled_down(s, a)
    if vectors is not None:
        for i in s.each("i", 0, size):
            for j in s.each("j", 0, size):
                s.put(vectors, (i, j), unit_element(vectors, i, j))
    for trip in s.each("trip", 0, sweeps * size // 2):
        for group in (0, 1):
            turn = trip * 2 + group
            side = turn // size % 2
            _turn_neighbours(s, a, vectors, group, index.compare("eq", side, 1))
    for i in s.each("i", 0, size):
        s.put(values, i, real_part(a[i, i]))
    _sort(s, values)
    for i in s.each("i", 0, size):
        s.put(values, i, values[i] * scale)


def _scaled_down(s: Steps, a: Array) -> Expr:
    """The lower triangle, divided by its largest element, so that no square overflows; and that."""
    size, zero = a.shape[0], const(0, s.dtype)
    largest = s.let("largest", zero)
    for i in s.each("i", 0, size):
        s.put(a, (i, i), as_element(a, real_part(a[i, i])))
        for j in s.each("j", 0, i + 1):
            for part in parts(a[i, j]):
                s.let("largest", apply("max", largest, apply("abs", part)))
    scale = s.let("scale", apply("select", apply("eq", largest, zero), const(1, s.dtype), largest))
    for i in s.each("i", 0, size):
        for j in s.each("j", 0, i + 1):
            s.put(a, (i, j), scaled(a[i, j], scale))
    return scale


def _turn_neighbours(s: Steps, a: Array, vectors: Array | None, group: int, ascends: Expr) -> None:
    """Rotations of the axes 2 k + group and 2 k + group + 1 after which elements between them are
    0, and those on the diagonal in order.

    All angles are found first: none has to wait for another one's.
    """
    size = a.shape[0]
    count = max(1, size // 2)
    cosines, sines = s.real("cosines", count), s.real("sines", count)
    phases = s.array("phases", count) if a.is_complex else None

    def pairs() -> Iterable[Expr]:
        return s.each("pair", 0, (size - group) // 2)

    def first(pair: Expr) -> Expr:
        return pair * 2 + group

    for pair in pairs():
        cosine, sine, phase = _turned_diagonal(s, a, first(pair), ascends)
        s.put(cosines, pair, cosine)
        s.put(sines, pair, sine)
        if phases is not None:
            s.put(phases, pair, phase)
    for pair in pairs():
        p = first(pair)
        turn = cosines[pair], sines[pair], None if phases is None else phases[pair]
        _turn_others(s, a, p, turn)
        if vectors is not None:
            for i in s.each("i", 0, size):
                _turn(s, vectors, (p, i), (p + 1, i), turn)


def _turned_diagonal(s: Steps, a: Array, p: Expr, ascends: Expr) -> Turn:
    """How the axes p and p + 1 are turned, what is of them alone having been turned."""
    q, zero = p + 1, const(0, s.dtype)
    between, phase = _made_real(s, s.let("between", a[q, p]))
    on_p, on_q = real_part(a[p, p]), real_part(a[q, q])
    apart = s.let("apart", on_q - on_p)
    cosine, sine, moved = rotation(apart, between)
    low, high = s.let("low", on_p - moved), s.let("high", on_q + moved)
    # Which of both is larger stays as it is, unless the rotation is by a right angle more.
    is_more = apply("ge", apart, zero) ^ ascends
    s.put(a, (p, p), as_element(a, apply("select", is_more, high, low)))
    s.put(a, (q, q), as_element(a, apply("select", is_more, low, high)))
    s.put(a, (q, p), as_element(a, zero))
    return (apply("select", is_more, -sine, cosine), apply("select", is_more, cosine, sine), phase)


def _made_real(s: Steps, x: Element) -> tuple[Expr, Element | None]:
    """The length of a complex number and its phase; what is so small that its square has lost
    digits is taken for 0."""
    if not isinstance(x, Complex):
        return x, None
    limits, zero, one = np.finfo(s.dtype.numpy), const(0, s.dtype), const(1, s.dtype)
    square = s.let("square", x.real * x.real + x.imaginary * x.imaginary)
    is_none = apply("lt", square, const(float(limits.tiny / limits.eps), s.dtype))
    length = s.let("length", apply("select", is_none, zero, apply("sqrt", square)))
    return length, Complex(
        *(
            apply("select", is_none, alone, apply("div", part, length))
            for part, alone in zip(x, (one, zero), strict=True)
        )
    )


def _turn_others(s: Steps, a: Array, p: Expr, turn: Turn) -> None:
    """What is left and below of two axes in the lower triangle."""
    q = p + 1
    cosine, sine, phase = turn
    across = cosine, sine, None if phase is None else conjugate(phase)
    for i in s.each("i", 0, p):
        _turn(s, a, (p, i), (q, i), across)
    for i in s.each("i", q + 1, a.shape[0]):
        _turn(s, a, (i, p), (i, q), turn)


def _turn(s: Steps, a: Array, one: tuple[Expr, Expr], other: tuple[Expr, Expr], turn: Turn) -> None:
    cosine, sine, phase = turn
    x, y = s.let("x", a[one]), s.let("y", a[other] if phase is None else times(a[other], phase))
    both = [turned(*of, cosine, sine) for of in zip(parts(x), parts(y), strict=True)]
    for place, new in zip((one, other), zip(*both, strict=True), strict=True):
        s.put(a, place, Complex(*new) if a.is_complex else new[0])


def _sort(s: Steps, values: Array) -> None:
    """Equal values may have changed in the last place."""
    last = index.constant(values.shape[0] - 1)
    for i in s.each("i", 0, last):
        for j in s.each("j", 0, last - i):
            low, high = s.let("low", values[j]), s.let("high", values[j + 1])
            is_larger = apply("gt", low, high)
            s.put(values, j, apply("select", is_larger, high, low))
            s.put(values, j + 1, apply("select", is_larger, low, high))
