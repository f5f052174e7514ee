"""What is computed of each matrix of a batch, as tensor expressions: written out where matrices are
small, else as a procedure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import I32, Kind
from hlo_mlc.graph.core import Node
from hlo_mlc.ops import jacobi, rolled, small_matrices
from hlo_mlc.ops.definition import Indices, Read, Stepwise, Unrolled
from hlo_mlc.ops.elements import Complex, Element, conjugate
from hlo_mlc.ops.library_calls import TriangularSolve, flags, is_lower, options
from hlo_mlc.ops.small_matrices import Matrix, adjoint, transposed
from hlo_mlc.ops.steps import Array, Steps

# Rows and columns of the largest matrices that are written out; those that are larger are gone
# through in loops.  First calls grow with the cube of what is written out: LU of 8 square takes
# 0.4 s so, and 0.2 in loops, where jax.jit's takes 0.2; but a solve that is written out is one
# kernel, and takes half of the time.
_WRITTEN_OUT: Mapping[str, int] = {
    "potrf": 8,
    "trsm": 8,
    "getrf": 8,
    "geqrf": 4,
    "orgqr": 4,
    "ormqr": 4,
    "syevd": 4,
}
_WRITTEN_OUT_COMPLEX: Mapping[str, int] = {
    "potrf": 4,
    "trsm": 5,
    "getrf": 5,
    "geqrf": 2,
    "orgqr": 2,
    "ormqr": 2,
    "syevd": 0,
}
# Right-hand sides of a matrix in loops, and their elements: all are in the first cache.
_MOST_COLUMNS, _MOST_ELEMENTS = 32, 512
# Right-hand sides that are written out with the matrix, and the steps of all.
_MOST_WRITTEN_OUT, _MOST_STEPS = 16, 300


def is_complex(node: Node) -> bool:
    """Whether its matrices are of complex numbers."""
    return node.operands[0].type.dtype.kind is Kind.COMPLEX


def _is_rolled(node: Node) -> bool:
    """Whether matrices are so large that they are gone through in loops."""
    written_out = _WRITTEN_OUT_COMPLEX if is_complex(node) else _WRITTEN_OUT
    dialect, _, name = node.op.partition(".")
    return dialect == "lapack" and max(node.operands[0].type.shape[-2:]) > written_out[name]


def _is_short(node: Node, columns: int) -> bool:
    """Whether all of a matrix's right-hand sides, so many, are written out with it."""
    steps = math.prod(node.operands[0].type.shape[-2:]) * columns * (4 if is_complex(node) else 1)
    return not _is_rolled(node) and columns <= _MOST_WRITTEN_OUT and steps <= _MOST_STEPS


def _by_column(node: Node, columns: int) -> bool:
    """Whether right-hand sides, so many of each matrix, are in lanes of their own: those of a
    matrix alone, and where there are many."""
    alone = math.prod(node.operands[0].type.shape[:-2]) == 1
    elements = math.prod(node.results[0].type.shape[-2:])
    return alone or columns > _MOST_COLUMNS or elements > _MOST_ELEMENTS


def _matrix(read: Read, point: Indices, shape: Sequence[int]) -> Matrix:
    """The elements of the matrix at a point of the batch."""
    return [
        [read((*point, index.constant(i), index.constant(j))) for j in range(shape[-1])]
        for i in range(shape[-2])
    ]


def _elements(node: Node, reads: Sequence[Read]) -> list[Read | Callable[[Indices], Element]]:
    """How to read the operands, complex ones as two parts."""

    def both(read: Read) -> Callable[[Indices], Complex]:
        return lambda indices: Complex(*(read((*indices, index.constant(k))) for k in (0, 1)))

    return [
        both(read) if value.type.dtype.kind is Kind.COMPLEX else read
        for value, read in zip(node.operands, reads, strict=True)
    ]


def _vector(read: Read, point: Indices, length: int) -> list[Expr]:
    return [read((*point, index.constant(i))) for i in range(length)]


def _each_matrix(
    node: Node, compute: Callable[[Indices], Sequence[Matrix | list | Expr]]
) -> Unrolled:
    """Results that are matrices, vectors or numbers for each matrix of the batch."""
    return Unrolled(
        node.operands[0].type.shape[:-2], lambda point: _placed(node, point, compute(point))
    )


def _in_parts(place: Indices, element: Element) -> list[tuple[Indices, Expr]]:
    """An element and its place, or its parts and theirs."""
    if not isinstance(element, Complex):
        return [(place, element)]
    return [((*place, index.constant(k)), part) for k, part in enumerate(element)]


def _placed(
    node: Node, point: Indices, results: Sequence[Matrix | list | Expr]
) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
    """The elements of each result at a point of the batch, with their places."""
    found = []
    for value, result in zip(node.results, results, strict=True):
        placed = []
        for at in product(*map(range, value.type.shape[len(point) :])):
            element = result
            for i in at:
                element = element[i]
            place = (*point, *map(index.constant, at))
            placed += _in_parts(place, element)
        found.append(tuple(placed))
    return tuple(found)


def potrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, reads_lower = node.operands[0].type.shape, is_lower(node)
    (read,) = _elements(node, reads)
    if _is_rolled(node):

        def write(s: Steps, point: Indices) -> Sequence[Array]:
            # A factor that is upper is that of the conjugates, on its side.
            a = rolled.filled(s, "factor_of", _at(read, point), *shape[-2:])
            info = s.integers("info")
            rolled.cholesky(s, a, info, rolled.upright if reads_lower else rolled.on_its_side)
            return a, info

        return _stepwise(node, write)

    def compute(point: Indices) -> tuple:
        a = _matrix(read, point, shape)
        factor, info = small_matrices.cholesky(a if reads_lower else adjoint(a))
        factor = factor if reads_lower else adjoint(factor)
        return (factor, info)[: len(node.results)]

    return _each_matrix(node, compute)


def _stepwise(
    node: Node,
    write: Callable[[Steps, Indices], Sequence[Array]],
    columns: tuple[int, ...] = (),
    place: Callable[[Indices, Indices], Indices] = operator.add,
) -> Stepwise:
    """A procedure for each matrix of the batch, or for each of its `columns`; `write` gives the
    arrays that become results, of which an element is where `place` says."""
    matrix = node.operands[0].type
    extents = (*matrix.shape[:-2], *columns)
    part = matrix.part.dtype if is_complex(node) else matrix.dtype

    def written(point: Indices) -> tuple[Steps, Sequence[Array]]:
        steps = Steps(part, is_complex(node))
        return steps, write(steps, point)

    _, results = written(tuple(index.constant(0) for _ in extents))
    return Stepwise(
        extents,
        lambda point, tables: written(point)[0].procedure(),
        tuple(array.buffer for array in results),
        place=place,
    )


def _for_columns(
    node: Node,
    read: Callable[[Indices], Element],
    is_left: bool,
    write: Callable[[Steps, Array, Indices, int], None],
) -> Stepwise:
    """A procedure for each matrix and all that it meets, or for each column of that, or row, where
    the matrix does not stand on the left: `write(steps, x, point, columns)` puts the results in the
    place of so many columns, which `read` has given, at a point of the batch."""
    shape = node.results[0].type.shape[-2:]
    columns = shape[1 if is_left else 0]
    if not _by_column(node, columns):

        def of_all(s: Steps, point: Indices) -> Sequence[Array]:
            x = rolled.filled(s, "x", _at(read, point), *shape)
            write(s, x, point, columns)
            return (x,)

        return _stepwise(node, of_all)

    def at(column: Expr, i: Expr, j: Expr) -> Indices:
        return (i, column) if is_left else (column, j)

    def of_one(s: Steps, point: Indices) -> Sequence[Array]:
        *batch, column = point
        x = rolled.filled(
            s,
            "x",
            lambda i, j: read((*batch, *at(column, i, j))),
            *((shape[0], 1) if is_left else (1, shape[1])),
        )
        write(s, x, tuple(batch), 1)
        return (x,)

    def place(point: Indices, own: Indices) -> Indices:
        *batch, column = point
        return (*batch, *at(column, *own[:2]), *own[2:])

    return _stepwise(node, of_one, (columns,), place)


def _at(read: Read | Callable[[Indices], Element], point: Indices) -> Callable[..., Element]:
    """How to read what there is at a point of the batch."""
    return lambda *place: read((*point, *place))


def getrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape = node.operands[0].type.shape
    (read,) = _elements(node, reads)
    if _is_rolled(node):

        def write(s: Steps, point: Indices) -> Sequence[Array]:
            a = rolled.filled(s, "lu", _at(read, point), *shape[-2:])
            pivots, info = s.integers("pivots", min(shape[-2:])), s.integers("info")
            rolled.lu(s, a, pivots, info)
            return a, pivots, info

        return _stepwise(node, write)
    return _each_matrix(node, lambda point: small_matrices.lu(_matrix(read, point, shape)))


def geqrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape = node.operands[0].type.shape
    (read,) = _elements(node, reads)
    if _is_rolled(node):

        def write(s: Steps, point: Indices) -> Sequence[Array]:
            a = rolled.filled(s, "qr", _at(read, point), *shape[-2:])
            factors = s.array("factors", min(shape[-2:]))
            rolled.qr(s, a, factors)
            return a, factors

        return _stepwise(node, write)
    return _each_matrix(node, lambda point: small_matrices.qr(_matrix(read, point, shape)))


def orgqr(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, count = (v.type.shape for v in node.operands)
    matrix, vector = _elements(node, reads)
    if _is_rolled(node):

        def write(s: Steps, point: Indices) -> Sequence[Array]:
            q = s.array("q", *shape[-2:])
            rolled.q_of(s, q, _at(matrix, point), _at(vector, point), count[-1])
            return (q,)

        return _stepwise(node, write)

    def compute(point: Indices) -> tuple[Matrix]:
        factors = _vector(vector, point, count[-1])
        return (small_matrices.q_of(_matrix(matrix, point, shape), factors),)

    return _each_matrix(node, compute)


def ormqr(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, count, product = (v.type.shape for v in node.operands)
    given, (matrix, vector, right) = flags(node), _elements(node, reads)
    is_left, transpose = given.get("left", False), given.get("transpose", False)
    columns, rows = product[-1 if is_left else -2], product[-2 if is_left else -1]
    # c Q is (Q^T c^T)^T, and the transpose of a reflection is that by the conjugate vector; Q^H has
    # the conjugate factors.
    down = is_left != transpose

    def reflections(point: Indices) -> tuple[Callable[..., Element], Callable[..., Element]]:
        a, tau = _at(matrix, point), _at(vector, point)
        return (
            a if is_left else lambda i, k: conjugate(a(i, k)),
            (lambda k: conjugate(tau(k))) if transpose else tau,
        )

    if _by_column(node, columns) or not _is_short(node, columns):

        def write(s: Steps, x: Array, point: Indices, columns: int) -> None:
            at = rolled.upright if is_left else rolled.on_its_side
            rolled.times_q(s, x, at, columns, *reflections(point), count[-1], rows, down=down)

        return _for_columns(node, right, is_left, write)

    def compute(point: Indices) -> tuple[Matrix]:
        a, tau = reflections(point)
        vectors = _matrix(lambda place: a(*place), (), shape)
        factors = _vector(lambda place: tau(*place), (), count[-1])
        c = _matrix(right, point, product)
        turned = small_matrices.times_q(
            vectors, factors, c if is_left else transposed(c), down=down
        )
        return (turned if is_left else transposed(turned),)

    return _each_matrix(node, compute)


def syevd(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, reads_lower = node.operands[0].type.shape, is_lower(node)
    size = shape[-1]
    (element,) = _elements(node, reads)

    def matrix(point: Indices) -> Matrix:
        a = _matrix(element, point, shape)
        return a if reads_lower else transposed(a)

    if not _is_rolled(node):
        # Without vectors, nothing is said of what is in their place.
        return _each_matrix(
            node, lambda point: (*small_matrices.eigh(matrix(point)), const(0, I32))
        )
    has_vectors = options(node).get("mode") != "N"

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        read = _at(element, point)
        a = rolled.filled(
            s, "hermitian", read if reads_lower else lambda i, j: conjugate(read(j, i)), size, size
        )
        values, info = s.real("values", size), s.integers("info")
        rows = s.array("rows", size, size) if has_vectors else None
        jacobi.eigh(s, a, values, rows, jacobi.sweeps(size, s.dtype))
        s.put(info, (), const(0, I32))
        if rows is None:  # nothing is said of what is in their place
            return a, values, info
        return rolled.filled(s, "vectors", lambda i, j: rows[j, i], size, size), values, info

    return _stepwise(node, write)


def trsm(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    solve, shape = TriangularSolve(node), node.operands[0].type.shape
    batch, size, columns = shape[:-2], shape[-1], solve.columns(node)
    # X A = B is A^T X^T = B^T
    turned = solve.is_transposed == solve.is_left
    left, right = _elements(node, reads)
    is_lower = solve.is_lower != turned
    is_short, by_column = _is_short(node, columns), _by_column(node, columns)
    # What is written out for each column is as fast, and of real numbers not much longer.
    in_loops = is_complex(node) and _is_rolled(node) if by_column else not is_short
    if node.op == "lapack.trsm" and in_loops:
        return _for_columns(
            node, right, solve.is_left, lambda *to: _solved_in_steps(node, left, *to)
        )

    def at(column: Expr, row: Expr) -> Indices:
        return (row, column) if solve.is_left else (column, row)

    def solved(point: Indices, numbers: Sequence[Expr]) -> tuple[tuple[Indices, Expr], ...]:
        a = _matrix(left, point, shape)
        if solve.is_adjoint:
            a = transposed(adjoint(a))
        rows = [index.constant(i) for i in range(size)]
        b = [[right((*point, *at(j, i))) for j in numbers] for i in rows]
        x = small_matrices.solve_triangular(
            transposed(a) if turned else a, b, lower=is_lower, unit=solve.is_unit
        )
        return tuple(
            placed
            for k, i in enumerate(rows)
            for n, j in enumerate(numbers)
            for placed in _in_parts((*point, *at(j, i)), x[k][n])
        )

    if by_column or not is_short:
        return Unrolled((*batch, columns), lambda point: (solved(point[:-1], point[-1:]),))
    every = [index.constant(j) for j in range(columns)]
    return Unrolled(batch, lambda point: (solved(point, every),))


def _solved_in_steps(
    node: Node, a: Callable[[Indices], Element], s: Steps, x: Array, point: Indices, columns: int
) -> None:
    solve = TriangularSolve(node)
    turned = solve.is_transposed == solve.is_left

    def factor(i: Expr, j: Expr) -> Element:
        element = a((*point, j, i) if turned else (*point, i, j))
        return conjugate(element) if solve.is_adjoint else element

    rolled.solve_triangular(
        s,
        factor,
        x,
        rolled.upright if solve.is_left else rolled.on_its_side,
        node.operands[0].type.shape[-1],
        columns,
        lower=solve.is_lower != turned,
        unit=solve.is_unit,
    )
