"""Eigenvectors of symmetric matrices that are too large to be written out: a loop of rotations.

    trip:  0-1 2-3 4-5 6-7   then   1-2 3-4 5-6        neighbouring axes are turned

Every rotation makes the element between two axes 0 and leaves the axis of the smaller eigenvalue
on the side where it is wanted.  That side changes from sweep to sweep, which has as many turns as
there are axes: so all pass one another in every sweep, and where eigenvalues are close their axes
are neighbours, without which the last sweeps do not converge quadratically.

Source: Luk and Park, On parallel Jacobi orderings, SIAM J. Sci. Stat. Comput. 10 (1989), for the
order; van Kempen, Numer. Math. 9 (1966), for close eigenvalues.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, DType
from hlo_mlc.ops.small_matrices import Matrix, largest_of, rotation, turned
from hlo_mlc.tensor.combine import combiner_variables

# Even numbers of them: the last one leaves eigenvalues in ascending order.  Of 5 to 8 square, what
# was left off the diagonal was below a last place then: of random, graded, clustered, nearly
# constant matrices, of two eigenvalues, of products a a^T and Hilbert's.
SWEEPS: Mapping[DType, int] = {F32: 6, F64: 8}


def trips(size: int, dtype: DType) -> int:
    """How often all neighbours are turned, in two groups."""
    return SWEEPS[dtype] * size // 2


def initial(a: Matrix, vectors: bool) -> tuple[Expr, ...]:
    """The lower triangle of a symmetric matrix, scaled so that no square overflows, and of the unit
    matrix, where `vectors` are wanted, all."""
    size, scale = len(a), _scale(a)
    one, zero = const(1, scale.dtype), const(0, scale.dtype)
    triangle = [apply("div", a[i][j], scale) for i in range(size) for j in range(i + 1)]
    unit = [one if i == j else zero for i in range(size) for j in range(size)]
    return (*triangle, *(unit if vectors else ()))


def told(trip: Expr, size: int, count: int, dtype: DType) -> tuple[Expr, ...]:
    """What a trip is told: whether (1 or 0) eigenvalues are to ascend, in its first group of turns
    and in its second; nothing else of `count` values."""
    turns = index.multiply(trip, index.constant(2))
    sides = (apply("convert", index.floormod(index.floordiv(turn, size), 2), dtype=dtype)
             for turn in (turns, index.add(turns, index.constant(1))))
    return (*sides, *(const(0, dtype) for _ in range(count - 2)))


def step(size: int, dtype: DType, vectors: bool) -> Combiner:
    """One trip."""
    count = size * (size + 1) // 2 + vectors * size * size
    lhs, rhs = combiner_variables([dtype] * count)
    a, v = _matrices(lhs, size)
    for group in (0, 1):
        ascends = apply("ne", rhs[group], const(0, dtype))
        for p in range(group, size - 1, 2):
            _rotate(a, v, p, ascends)
    triangle = (a[i][j] for i in range(size) for j in range(i + 1))
    return Combiner(lhs, rhs, (*triangle, *(e for row in v for e in row)), None, in_order=True)


def results(a: Matrix, state: tuple[Expr, ...]) -> tuple[Matrix, list[Expr]]:
    """Eigenvectors, as columns, and eigenvalues in ascending order."""
    turned_to, vectors = _matrices(state, len(a))
    values = [turned_to[i][i] for i in range(len(a))]
    for last in reversed(range(1, len(a))):  # equal ones may have changed in the last place
        for k in range(last):
            low, high = values[k], values[k + 1]
            is_larger = apply("gt", low, high)
            values[k] = apply("select", is_larger, high, low)
            values[k + 1] = apply("select", is_larger, low, high)
    return vectors, [apply("mul", value, _scale(a)) for value in values]


def _scale(a: Matrix) -> Expr:
    largest = largest_of([a[i][j] for i in range(len(a)) for j in range(i + 1)])
    zero, one = (const(n, largest.dtype) for n in (0, 1))
    return apply("select", apply("eq", largest, zero), one, largest)


def _matrices(state: tuple[Expr, ...], size: int) -> tuple[Matrix, Matrix]:
    """The symmetric matrix and the vectors of what is carried."""
    def place(i: int, j: int) -> int:
        return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)

    triangle, rest = state[:place(size, 0)], list(state[place(size, 0):])
    return [[triangle[place(i, j)] for j in range(size)] for i in range(size)], \
        [rest[k:k + size] for k in range(0, len(rest), size)]


def _rotate(a: Matrix, vectors: Matrix, p: int, ascends: Expr) -> None:
    """A rotation of the axes p and p + 1 after which the element between them is 0, and the
    elements on the diagonal are in order."""
    q, between = p + 1, a[p][p + 1]
    zero, apart = const(0, between.dtype), apply("sub", a[q][q], a[p][p])
    cosine, sine, moved = rotation(apart, between)
    low, high = apply("sub", a[p][p], moved), apply("add", a[q][q], moved)
    # Which of both is larger stays as it is, unless the rotation is by a right angle more.
    is_more = apply("xor", apply("ge", apart, zero), ascends)
    a[p][p], a[q][q] = apply("select", is_more, high, low), apply("select", is_more, low, high)
    cosine, sine = apply("select", is_more, apply("neg", sine), cosine), \
        apply("select", is_more, cosine, sine)
    a[p][q] = a[q][p] = zero
    for k in range(len(a)):
        if k not in (p, q):
            a[k][p], a[k][q] = turned(a[k][p], a[k][q], cosine, sine)
            a[p][k], a[q][k] = a[k][p], a[k][q]
    for row in vectors:
        row[p], row[q] = turned(row[p], row[q], cosine, sine)
