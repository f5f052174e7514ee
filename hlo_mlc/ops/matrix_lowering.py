"""What is computed of each matrix of a batch: by steps that are written out, as tensor expressions,
where matrices are small, else by a procedure."""

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
from hlo_mlc.ops import factorizations, jacobi, rotations
from hlo_mlc.ops.definition import Indices, Read, Stepwise, Unrolled
from hlo_mlc.ops.elements import Complex, Element, conjugate
from hlo_mlc.ops.library_calls import TriangularSolve, flags, is_lower, options
from hlo_mlc.ops.steps import Array, Steps, places

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


Write = Callable[[Steps, Indices], Sequence[Array]]
"""Writes the steps for the matrix at a point of the batch; gives the arrays that become results."""


def _elements(node: Node, reads: Sequence[Read]) -> list[Callable[[Indices], Element]]:
    """How to read the operands, complex ones as two parts."""

    def both(read: Read) -> Callable[[Indices], Complex]:
        return lambda indices: Complex(*(read((*indices, index.constant(k))) for k in (0, 1)))

    return [
        both(read) if value.type.dtype.kind is Kind.COMPLEX else read
        for value, read in zip(node.operands, reads, strict=True)
    ]


def _at(read: Callable[[Indices], Element], point: Indices) -> Callable[..., Element]:
    """How to read what there is at a point of the batch."""
    return lambda *place: read((*point, *place))


def _steps(node: Node, is_written_out: bool) -> Steps:
    matrix = node.operands[0].type
    part = matrix.part.dtype if is_complex(node) else matrix.dtype
    return Steps(part, is_complex(node), is_written_out)


def _each_matrix(node: Node, write: Write) -> Unrolled | Stepwise:
    """The steps of each matrix of the batch."""
    if _is_rolled(node):
        return _stepwise(node, write)
    return Unrolled(
        node.operands[0].type.shape[:-2], lambda point: _written_out(node, write, point)
    )


def _written_out(
    node: Node,
    write: Write,
    point: Indices,
    place: Callable[[Indices, Indices], Indices] = operator.add,
) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
    """The elements of each result at a point, with their places."""
    return tuple(
        tuple(
            (place(point, places(at)), value)
            for at in product(*map(range, array.buffer.shape))
            for value in (array.known[places(at)],)
        )
        for array in write(_steps(node, is_written_out=True), point)
    )


def _stepwise(
    node: Node,
    write: Write,
    columns: tuple[int, ...] = (),
    place: Callable[[Indices, Indices], Indices] = operator.add,
) -> Stepwise:
    """A procedure for each matrix of the batch, or for each of its `columns`; an element of an
    array is where `place` says in the result."""
    extents = (*node.operands[0].type.shape[:-2], *columns)

    def written(point: Indices) -> tuple[Steps, Sequence[Array]]:
        steps = _steps(node, is_written_out=False)
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
    in_lanes: bool,
    is_written_out: bool,
) -> Unrolled | Stepwise:
    """The steps of each matrix and all that it meets, or of each column of that `in_lanes`, or row,
    where the matrix does not stand on the left: `write(steps, x, point, columns)` puts the results
    in the place of so many columns, which `read` has given, at a point of the batch."""
    batch, shape = node.operands[0].type.shape[:-2], node.results[0].type.shape[-2:]
    columns = shape[1 if is_left else 0]

    def of_all(s: Steps, point: Indices) -> Sequence[Array]:
        x = factorizations.filled(s, "x", _at(read, point), *shape)
        write(s, x, point, columns)
        return (x,)

    def at(column: Expr, i: Expr, j: Expr) -> Indices:
        return (i, column) if is_left else (column, j)

    def of_one(s: Steps, point: Indices) -> Sequence[Array]:
        *batch, column = point
        x = factorizations.filled(
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

    extents, each, there = ((columns,), of_one, place) if in_lanes else ((), of_all, operator.add)
    if is_written_out:
        return Unrolled((*batch, *extents), lambda point: _written_out(node, each, point, there))
    return _stepwise(node, each, extents, there)


def potrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, reads_lower = node.operands[0].type.shape, is_lower(node)
    (read,) = _elements(node, reads)

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        # A factor that is upper is that of the conjugates, on its side.
        a = factorizations.filled(s, "factor_of", _at(read, point), *shape[-2:])
        info = s.integers("info")
        at = factorizations.upright if reads_lower else factorizations.on_its_side
        factorizations.cholesky(s, a, info, at)
        return (a, info)[: len(node.results)]

    return _each_matrix(node, write)


def getrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape = node.operands[0].type.shape
    (read,) = _elements(node, reads)

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        a = factorizations.filled(s, "lu", _at(read, point), *shape[-2:])
        pivots, info = s.integers("pivots", min(shape[-2:])), s.integers("info")
        factorizations.lu(s, a, pivots, info)
        return a, pivots, info

    return _each_matrix(node, write)


def geqrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape = node.operands[0].type.shape
    (read,) = _elements(node, reads)

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        a = factorizations.filled(s, "qr", _at(read, point), *shape[-2:])
        factors = s.array("factors", min(shape[-2:]))
        factorizations.qr(s, a, factors)
        return a, factors

    return _each_matrix(node, write)


def orgqr(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, count = (v.type.shape for v in node.operands)
    matrix, vector = _elements(node, reads)

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        q = s.array("q", *shape[-2:])
        a, tau = _at(matrix, point), _at(vector, point)
        factorizations.q_of(s, q, factorizations.Reflections(a, tau, count[-1], shape[-2]))
        return (q,)

    return _each_matrix(node, write)


def ormqr(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    _, count, product = (v.type.shape for v in node.operands)
    given, (matrix, vector, right) = flags(node), _elements(node, reads)
    is_left, transpose = given.get("left", False), given.get("transpose", False)
    columns, rows = product[-1 if is_left else -2], product[-2 if is_left else -1]
    # c Q is (Q^T c^T)^T, and the transpose of a reflection is that by the conjugate vector; Q^H has
    # the conjugate factors.
    down = is_left != transpose

    def write(s: Steps, x: Array, point: Indices, columns: int) -> None:
        a, tau = _at(matrix, point), _at(vector, point)
        reflections = factorizations.Reflections(
            a if is_left else lambda i, k: conjugate(a(i, k)),
            (lambda k: conjugate(tau(k))) if transpose else tau,
            count[-1],
            rows,
        )
        at = factorizations.upright if is_left else factorizations.on_its_side
        factorizations.times_q(s, x, at, columns, reflections, down=down)

    by_column = _by_column(node, columns)
    is_written_out = not by_column and _is_short(node, columns)
    return _for_columns(node, right, is_left, write, by_column, is_written_out)


def syevd(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    reads_lower, size = is_lower(node), node.operands[0].type.shape[-1]
    (element,) = _elements(node, reads)
    has_vectors = options(node).get("mode") != "N"

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        read = _at(element, point)
        a = factorizations.filled(
            s, "hermitian", read if reads_lower else lambda i, j: conjugate(read(j, i)), size, size
        )
        values, info = s.real("values", size), s.integers("info")
        s.put(info, (), const(0, I32))
        rows = s.array("rows", size, size) if has_vectors else None
        if s.is_written_out:
            rotations.eigh(s, a, values, rows)
        else:
            jacobi.eigh(s, a, values, rows, jacobi.sweeps(size, s.dtype))
        if rows is None:  # nothing is said of what is in their place
            return a, values, info
        vectors = factorizations.filled(s, "vectors", lambda i, j: rows[j, i], size, size)
        return vectors, values, info

    return _each_matrix(node, write)


def trsm(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    solve = TriangularSolve(node)
    columns = solve.columns(node)
    # X A = B is A^T X^T = B^T
    turned = solve.is_transposed == solve.is_left
    left, right = _elements(node, reads)

    def write(s: Steps, x: Array, point: Indices, columns: int) -> None:
        def factor(i: Expr, j: Expr) -> Element:
            element = left((*point, j, i) if turned else (*point, i, j))
            return conjugate(element) if solve.is_adjoint else element

        factorizations.solve_triangular(
            s,
            factor,
            x,
            factorizations.upright if solve.is_left else factorizations.on_its_side,
            node.operands[0].type.shape[-1],
            columns,
            lower=solve.is_lower != turned,
            unit=solve.is_unit,
        )

    by_column, is_short = _by_column(node, columns), _is_short(node, columns)
    # What is written out for each column is as fast, and of real numbers not much longer.
    in_loops = is_complex(node) and _is_rolled(node) if by_column else not is_short
    is_written_out = node.op != "lapack.trsm" or not in_loops
    in_lanes = by_column or (is_written_out and not is_short)
    return _for_columns(node, right, solve.is_left, write, in_lanes, is_written_out)
