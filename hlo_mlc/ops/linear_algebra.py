"""Factorizations and solves of small matrices, a batch of them at a time.

Each matrix is one point: what is computed of it stands side by side with what is computed of the
others, in the lanes of vectors.  That pays up to a certain size; larger ones stay with LAPACK,
which works in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import C64, C128, F32, F64, I32, Kind
from hlo_mlc.graph.core import Node
from hlo_mlc.ops import jacobi, rolled, small_matrices
from hlo_mlc.ops import lapack_reference as reference
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Read, Stepwise, Unrolled
from hlo_mlc.ops.elements import Complex, Element, conjugate
from hlo_mlc.ops.lapack_examples import (
    COMPLEX,
    SQUARE,
    call,
    factors_of,
    in_stablehlo,
    numbers_of,
    solve_examples,
)
from hlo_mlc.ops.library_calls import TriangularSolve, flags, is_lower, options
from hlo_mlc.ops.small_matrices import Matrix, adjoint, transposed
from hlo_mlc.ops.steps import Array, Steps

# Rows and columns of the largest matrices.
_LARGEST = 16
# And of those that are reflected, which may be tall.
_MOST_ELEMENTS = 512
# Rows and columns of the largest matrices that are written out; those that are larger are gone
# through in loops.  First calls grow with the cube of what is written out: LU of 8 square took
# 0.4 s so, and 0.2 in loops, where jax.jit's takes 0.2.  Written out, LU of 5 square ran in four
# fifths of the time, of 8 square in six fifths; Cholesky of 7 square in half of it.
_WRITTEN_OUT: Mapping[str, int] = {"potrf": 7, "trsm": 5, "getrf": 5, "geqrf": 4, "orgqr": 4,
                                   "ormqr": 4, "syevd": 4}
_WRITTEN_OUT_COMPLEX: Mapping[str, int] = {"potrf": 4, "trsm": 2, "getrf": 4, "geqrf": 2,
                                           "orgqr": 2, "syevd": 0}
# Rows of the largest matrix without others beside it whose eigenvectors are found by rotations: of
# 16 square they took 32 us, of f64 47, in LAPACK 24 and 27; of two such matrices 33 and 48.
_LARGEST_ALONE = 9
# On GPUs, where nothing but StableHLO's own ops comes to us, all are written out.
_LARGEST_OF_STABLEHLO, _LARGEST_COMPLEX_OF_STABLEHLO = 16, 8
# Right-hand sides of a matrix in loops.
_MOST_ROLLED_COLUMNS = 32
# Right-hand sides that are written out with the matrix where there are several matrices, and the
# steps of all; more are points of their own: 8 of 8 x 8 took half of the time so, 16 of 16 x 16 as
# well, in f64 a third, and their first call a fifth.
_MOST_COLUMNS, _MOST_STEPS = 16, 300


def _supports(node: Node) -> str:
    name = node.op.partition(".")[2]
    matrix = node.operands[0].type
    if matrix.dtype not in (F32, F64, C64, C128):
        return f"factorizations and solves of {matrix.dtype.name} stay with XLA"
    if _is_complex(node) and name == "ormqr":
        return "products with Q of complex matrices stay with LAPACK"
    if any(value.type.shape[:-2] != matrix.shape[:-2] for value in _matrices(node)):
        return "its operands have different batches"
    rows, columns = matrix.shape[-2:]
    if not min(rows, columns):
        return "matrices without elements stay with LAPACK"
    if name in ("geqrf", "orgqr", "ormqr"):
        if min(rows, columns) > _LARGEST or any(
                math.prod(value.type.shape[-2:]) > _MOST_ELEMENTS for value in _matrices(node)):
            return f"matrices of more than {_LARGEST} columns, or of more than " \
                f"{_MOST_ELEMENTS} elements, stay with LAPACK"
    elif name == "syevd" and rows > _LARGEST_ALONE and math.prod(matrix.shape[:-2]) == 1:
        return f"eigenvectors of one matrix of more than {_LARGEST_ALONE} rows stay with LAPACK"
    elif max(rows, columns) > (largest := _largest(node)):
        return f"matrices larger than {largest} x {largest} stay with LAPACK"
    return ""


def _largest(node: Node) -> int:
    if node.op.startswith("stablehlo."):
        return _LARGEST_COMPLEX_OF_STABLEHLO if _is_complex(node) else _LARGEST_OF_STABLEHLO
    return _LARGEST


def _is_complex(node: Node) -> bool:
    return node.operands[0].type.dtype.kind is Kind.COMPLEX


def _is_rolled(node: Node) -> bool:
    """Whether matrices are so large that they are gone through in loops."""
    written_out = _WRITTEN_OUT_COMPLEX if _is_complex(node) else _WRITTEN_OUT
    largest = written_out.get(node.op.removeprefix("lapack."), _LARGEST)
    return max(node.operands[0].type.shape[-2:]) > largest


def _matrices(node: Node) -> tuple:
    rank = len(node.operands[0].type.shape)
    return tuple(v for v in (*node.operands, *node.results) if len(v.type.shape) == rank)


# What is computed of a matrix, given by its elements


def _matrix(read: Read, point: Indices, shape: Sequence[int]) -> Matrix:
    """The elements of the matrix at a point of the batch."""
    return [[read((*point, index.constant(i), index.constant(j))) for j in range(shape[-1])]
            for i in range(shape[-2])]


def _elements(node: Node, reads: Sequence[Read]) -> list[Read | Callable[[Indices], Element]]:
    """How to read the operands, complex ones as two parts."""
    def both(read: Read) -> Callable[[Indices], Complex]:
        return lambda indices: Complex(*(read((*indices, index.constant(k))) for k in (0, 1)))

    return [both(read) if value.type.dtype.kind is Kind.COMPLEX else read
            for value, read in zip(node.operands, reads, strict=True)]


def _vector(read: Read, point: Indices, length: int) -> list[Expr]:
    return [read((*point, index.constant(i))) for i in range(length)]


def _each_matrix(node: Node, compute: Callable[[Indices], Sequence[Matrix | list | Expr]]
                 ) -> Unrolled:
    """Results that are matrices, vectors or numbers for each matrix of the batch."""
    return Unrolled(node.operands[0].type.shape[:-2],
                    lambda point: _placed(node, point, compute(point)))


def _in_parts(place: Indices, element: Element) -> list[tuple[Indices, Expr]]:
    """An element and its place, or its parts and theirs."""
    if not isinstance(element, Complex):
        return [(place, element)]
    return [((*place, index.constant(k)), part) for k, part in enumerate(element)]


def _placed(node: Node, point: Indices, results: Sequence[Matrix | list | Expr]
            ) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
    """The elements of each result at a point of the batch, with their places."""
    found = []
    for value, result in zip(node.results, results, strict=True):
        placed = []
        for at in product(*map(range, value.type.shape[len(point):])):
            element = result
            for i in at:
                element = element[i]
            place = (*point, *map(index.constant, at))
            placed += _in_parts(place, element)
        found.append(tuple(placed))
    return tuple(found)


def _potrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
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
        return (factor, info)[:len(node.results)]

    return _each_matrix(node, compute)


def _stepwise(node: Node, write: Callable[[Steps, Indices], Sequence[Array]]) -> Stepwise:
    """A procedure for each matrix of the batch; `write` gives the arrays that become results."""
    matrix, extents = node.operands[0].type, node.operands[0].type.shape[:-2]
    part = matrix.part.dtype if _is_complex(node) else matrix.dtype

    def written(point: Indices) -> tuple[Steps, Sequence[Array]]:
        steps = Steps(part, _is_complex(node))
        return steps, write(steps, point)

    _, results = written(tuple(index.constant(0) for _ in extents))
    return Stepwise(extents, lambda point: written(point)[0].procedure(),
                    tuple(array.buffer for array in results))


def _at(read: Read | Callable[[Indices], Element], point: Indices) -> Callable[..., Element]:
    """How to read what there is at a point of the batch."""
    return lambda *place: read((*point, *place))


def _getrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
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


def _geqrf(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
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


def _orgqr(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
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


def _ormqr(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, count, product = (v.type.shape for v in node.operands)
    given = flags(node)
    is_left, transpose = given.get("left", False), given.get("transpose", False)
    if _is_rolled(node):
        def write(s: Steps, point: Indices) -> Sequence[Array]:
            # c Q is (Q^T c^T)^T
            c = rolled.filled(s, "product", _at(reads[2], point), *product[-2:])
            at, rows, columns = (rolled.upright, *product[-2:]) if is_left \
                else (rolled.on_its_side, *product[:-3:-1])
            rolled.times_q(s, c, at, columns, _at(reads[0], point), _at(reads[1], point),
                           count[-1], rows, transpose=transpose == is_left)
            return (c,)

        return _stepwise(node, write)

    def compute(point: Indices) -> tuple[Matrix]:
        a, c = _matrix(reads[0], point, shape), _matrix(reads[2], point, product)
        factors = _vector(reads[1], point, count[-1])
        if is_left:
            return (small_matrices.times_q(a, factors, c, transpose=transpose),)
        # c Q is (Q^T c^T)^T
        turned = small_matrices.times_q(a, factors, transposed(c), transpose=not transpose)
        return (transposed(turned),)

    return _each_matrix(node, compute)


def _syevd(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    shape, reads_lower = node.operands[0].type.shape, is_lower(node)
    size = shape[-1]
    (element,) = _elements(node, reads)

    def matrix(point: Indices) -> Matrix:
        a = _matrix(element, point, shape)
        return a if reads_lower else transposed(a)

    if not _is_rolled(node):
        # Without vectors, nothing is said of what is in their place.
        return _each_matrix(node, lambda point: (
            *small_matrices.eigh(matrix(point)), const(0, I32)))
    has_vectors = options(node).get("mode") != "N"

    def write(s: Steps, point: Indices) -> Sequence[Array]:
        read = _at(element, point)
        a = rolled.filled(s, "hermitian", read if reads_lower else lambda i, j: conjugate(
            read(j, i)), size, size)
        values, info = s.real("values", size), s.integers("info")
        rows = s.array("rows", size, size) if has_vectors else None
        jacobi.eigh(s, a, values, rows, jacobi.sweeps(size, s.dtype))
        s.put(info, (), const(0, I32))
        if rows is None:  # nothing is said of what is in their place
            return a, values, info
        return rolled.filled(s, "vectors", lambda i, j: rows[j, i], size, size), values, info

    return _stepwise(node, write)


def _trsm(node: Node, reads: Sequence[Read]) -> Unrolled | Stepwise:
    solve, shape = TriangularSolve(node), node.operands[0].type.shape
    batch, size, columns = shape[:-2], shape[-1], solve.columns(node)
    # X A = B is A^T X^T = B^T
    turned = solve.is_transposed == solve.is_left
    left, right = _elements(node, reads)
    is_lower = solve.is_lower != turned
    if _is_rolled(node) and math.prod(batch) > 1 \
            and columns <= _MOST_ROLLED_COLUMNS:
        def write(s: Steps, point: Indices) -> Sequence[Array]:
            x = rolled.filled(s, "x", _at(right, point), *node.operands[1].type.shape[-2:])
            read = _at(left, point)

            def factor(i: Expr, j: Expr) -> Element:
                element = read(j, i) if turned else read(i, j)
                return conjugate(element) if solve.is_adjoint else element

            rolled.solve_triangular(
                s, factor, x, rolled.upright if solve.is_left else rolled.on_its_side, size,
                columns, lower=is_lower, unit=solve.is_unit)
            return (x,)

        return _stepwise(node, write)

    def at(column: Expr, row: Expr) -> Indices:
        return (row, column) if solve.is_left else (column, row)

    def solved(point: Indices, numbers: Sequence[Expr]) -> tuple[tuple[Indices, Expr], ...]:
        a = _matrix(left, point, shape)
        if solve.is_adjoint:
            a = transposed(adjoint(a))
        rows = [index.constant(i) for i in range(size)]
        b = [[right((*point, *at(j, i))) for j in numbers] for i in rows]
        x = small_matrices.solve_triangular(transposed(a) if turned else a, b, lower=is_lower,
                                            unit=solve.is_unit)
        return tuple(placed for k, i in enumerate(rows) for n, j in enumerate(numbers)
                     for placed in _in_parts((*point, *at(j, i)), x[k][n]))

    steps = size * size * columns * (4 if _is_complex(node) else 1)
    if columns > _MOST_COLUMNS or steps > _MOST_STEPS or math.prod(batch) == 1:
        return Unrolled((*batch, columns), lambda point: (solved(point[:-1], point[-1:]),))
    every = [index.constant(j) for j in range(columns)]
    return Unrolled(batch, lambda point: (solved(point, every),))


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef("lapack.potrf", OpKind.SOLVE, reference.potrf, _potrf, _supports, tuple(
        call("potrf", t, f"{t}, {numbers_of(t)}", f"uplo={uplo}")
        for t in SQUARE for uplo in "LU") + tuple(
            call("potrf", t, f"{t}, {batch}i32", f"uplo={uplo}")
            for t, batch in COMPLEX for uplo in "LU"), "potrf, LAPACK"),
    OpDef("lapack.getrf", OpKind.SOLVE, reference.getrf, _getrf, _supports, tuple(
        call("getrf", t, f"{t}, {numbers_of(t, steps)}, {numbers_of(t)}")
        for t, steps in (*((t, t[-5]) for t in SQUARE), ("3x4x2xf32", "2"), ("3x2x4xf64", "2")))
        + tuple(call("getrf", t, f"{t}, {batch}{steps}xi32, {batch}i32") for (t, batch), steps in
                zip(COMPLEX, "341", strict=True)), "getrf, LAPACK"),
    OpDef("lapack.trsm", OpKind.SOLVE, reference.trsm, _trsm, _supports, solve_examples(),
          "trsm, BLAS"),
    OpDef("lapack.geqrf", OpKind.SOLVE, reference.geqrf, _geqrf, _supports, tuple(
        call("geqrf", t, f"{t}, {factors_of(t, steps)}")
        for t, steps in (*((t, t[-5]) for t in SQUARE), ("3x4x2xf32", "2"), ("3x2x4xf64", "2")))
        + tuple(call("geqrf", t, f"{t}, {factors}") for t, factors in (
            ("3x4x2xcomplex<f32>", "3x2xcomplex<f32>"), ("2x3x3xcomplex<f64>", "2x3xcomplex<f64>"),
            ("1x1xcomplex<f32>", "1xcomplex<f32>"))),
        "geqrf, LAPACK"),
    OpDef("lapack.orgqr", OpKind.SOLVE, reference.orgqr, _orgqr, _supports, (
        call("orgqr", "7x3x3xf32, 7x3xf32", "7x3x3xf32"),
        call("orgqr", "2x5x3xf64, 2x2xf64", "2x5x3xf64"),
        call("orgqr", "1x1xf32, 1xf32", "1x1xf32"),
        call("ungqr", "7x4x3xcomplex<f32>, 7x3xcomplex<f32>", "7x4x3xcomplex<f32>"),
        call("ungqr", "2x3x3xcomplex<f64>, 2x2xcomplex<f64>", "2x3x3xcomplex<f64>"),
    ), "orgqr, LAPACK"),
    OpDef("lapack.ormqr", OpKind.SOLVE, reference.ormqr, _ormqr, _supports, (
        *(call("ormqr", "7x5x3xf32, 7x3xf32, 7x5x2xf32", "7x5x2xf32",
                f"left=true transpose={t}") for t in ("true", "false")),
        *(call("ormqr", "4x5x3xf64, 4x3xf64, 4x2x5xf64", "4x2x5xf64",
                f"left=false transpose={t}") for t in ("true", "false")),
        call("ormqr", "3x4x4xf32, 3x4xf32, 3x4x1xf32", "3x4x1xf32",
              "left=true transpose=true"),
    ), "ormqr, LAPACK"),
    OpDef("lapack.syevd", OpKind.SOLVE, reference.syevd, _syevd, _supports, tuple(
        call("syevd", t, f"{t}, {factors_of(t, t[-5])}, {numbers_of(t)}", f"mode=V uplo={uplo}")
        for t in ("7x3x3xf32", "2x2x4x4xf64", "1x1xf32", "3x5x5xf64", "2x8x8xf32")
        for uplo in "LU") + tuple(
            call("heevd", f"{t}xcomplex<f{bits}>", f"{t}xcomplex<f{bits}>, {values}xf{bits}, "
                 f"{batch}i32", f"mode=V uplo={uplo}")
            for t, bits, values, batch in (("5x3x3", 32, "5x3", "5x"), ("2x4x4", 64, "2x4", "2x"),
                                           ("1x1", 32, "1", "")) for uplo in "LU"),
        "syevd, LAPACK"),
    OpDef("stablehlo.cholesky", OpKind.SOLVE, reference.potrf, _potrf, _supports, (
        in_stablehlo("cholesky", "4x3x3xf32", "4x3x3xf32", "lower = true"),
        in_stablehlo("cholesky", "3x3xf64", "3x3xf64", "lower = false"),
        *(in_stablehlo("cholesky", "5x3x3xcomplex<f32>", "5x3x3xcomplex<f32>", f"lower = {lower}")
          for lower in ("true", "false")),
    ), "cholesky, StableHLO specification"),
    OpDef("stablehlo.triangular_solve", OpKind.SOLVE, reference.trsm, _trsm, _supports, tuple(
        in_stablehlo("triangular_solve", f"4x3x3x{t}, 4x3x3x{t}", f"4x3x3x{t}",
                      f"left_side = {left}, lower = {lower}, unit_diagonal = {unit}, "
                      f"transpose_a = #stablehlo<transpose {transpose}>")
        for t in ("f32", "complex<f32>") for left, lower, unit, transpose in (
            ("true", "true", "false", "NO_TRANSPOSE"), ("false", "true", "true", "TRANSPOSE"),
            ("true", "false", "false", "ADJOINT"), ("false", "false", "true", "NO_TRANSPOSE"))),
        "triangular_solve, StableHLO specification"),
)
