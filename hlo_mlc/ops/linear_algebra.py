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
from hlo_mlc.ops import jacobi, small_matrices
from hlo_mlc.ops import lapack_reference as reference
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Read, Repeated, Unrolled
from hlo_mlc.ops.elements import Complex, Element
from hlo_mlc.ops.library_calls import TriangularSolve, flags, is_lower, options
from hlo_mlc.ops.small_matrices import Matrix, adjoint, transposed

# Rows and columns of the largest matrices that are written out, by what the first call takes:
# jax.jit's takes 0.2 s, LU and QR of 8 square took 0.4, of 12 square 1.1, of 16 square 4, Cholesky
# of 16 square 0.6, eigenvectors of 4 square 0.6.
_LARGEST: Mapping[str, int] = {
    "potrf": 16, "cholesky": 16, "trsm": 16, "triangular_solve": 16, "getrf": 8, "syevd": 8,
}
# Of complex numbers: LU of 5 square took 0.35 s, a solve by it 0.45, of 6 square 0.75.
_LARGEST_COMPLEX: Mapping[str, int] = {
    "potrf": 8, "cholesky": 8, "trsm": 8, "triangular_solve": 8, "getrf": 5,
}
# And of those whose eigenvectors are, not found by a loop.
_LARGEST_WRITTEN_OUT = 4
# Columns of those whose columns are reflected, and their elements: they may be tall.
_MOST_REFLECTED, _MOST_REFLECTED_COMPLEX = (8, 160), (4, 40)
# Right-hand sides that are written out with the matrix where there are several matrices, and the
# steps of all; more are points of their own: 8 of 8 x 8 took half of the time so, 16 of 16 x 16 as
# well, in f64 a third, and their first call a fifth.
_MOST_COLUMNS, _MOST_STEPS = 16, 300


def _supports(node: Node) -> str:
    name = node.op.partition(".")[2]
    matrix = node.operands[0].type
    if matrix.dtype not in (F32, F64, C64, C128):
        return f"factorizations and solves of {matrix.dtype.name} stay with XLA"
    largest = _LARGEST_COMPLEX if matrix.dtype.kind is Kind.COMPLEX else _LARGEST
    if matrix.dtype.kind is Kind.COMPLEX and name in ("ormqr", "syevd"):
        return f"{name} of complex matrices stays with LAPACK"
    if any(value.type.shape[:-2] != matrix.shape[:-2] for value in _matrices(node)):
        return "its operands have different batches"
    rows, columns = matrix.shape[-2:]
    if name not in largest:
        columns_most, most = _MOST_REFLECTED_COMPLEX if matrix.dtype.kind is Kind.COMPLEX \
            else _MOST_REFLECTED
        if min(rows, columns) > columns_most or any(
                math.prod(value.type.shape[-2:]) > most for value in _matrices(node)):
            return f"matrices of more than {columns_most} columns, or of more than {most} " \
                "elements, stay with LAPACK"
    elif max(rows, columns) > largest[name]:
        return f"matrices larger than {largest[name]} x {largest[name]} stay with LAPACK"
    if not min(rows, columns):
        return "matrices without elements stay with LAPACK"
    return ""


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


def _potrf(node: Node, reads: Sequence[Read]) -> Unrolled:
    shape, reads_lower = node.operands[0].type.shape, is_lower(node)
    (read,) = _elements(node, reads)

    def compute(point: Indices) -> tuple:
        a = _matrix(read, point, shape)
        factor, info = small_matrices.cholesky(a if reads_lower else adjoint(a))
        factor = factor if reads_lower else adjoint(factor)
        return (factor, info)[:len(node.results)]

    return _each_matrix(node, compute)


def _getrf(node: Node, reads: Sequence[Read]) -> Unrolled:
    shape = node.operands[0].type.shape
    (read,) = _elements(node, reads)
    return _each_matrix(node, lambda point: small_matrices.lu(_matrix(read, point, shape)))


def _geqrf(node: Node, reads: Sequence[Read]) -> Unrolled:
    shape = node.operands[0].type.shape
    (read,) = _elements(node, reads)
    return _each_matrix(node, lambda point: small_matrices.qr(_matrix(read, point, shape)))


def _orgqr(node: Node, reads: Sequence[Read]) -> Unrolled:
    shape, count = (v.type.shape for v in node.operands)
    matrix, vector = _elements(node, reads)

    def compute(point: Indices) -> tuple[Matrix]:
        factors = _vector(vector, point, count[-1])
        return (small_matrices.q_of(_matrix(matrix, point, shape), factors),)

    return _each_matrix(node, compute)


def _ormqr(node: Node, reads: Sequence[Read]) -> Unrolled:
    shape, count, product = (v.type.shape for v in node.operands)
    given = flags(node)
    is_left, transpose = given.get("left", False), given.get("transpose", False)

    def compute(point: Indices) -> tuple[Matrix]:
        a, c = _matrix(reads[0], point, shape), _matrix(reads[2], point, product)
        factors = _vector(reads[1], point, count[-1])
        if is_left:
            return (small_matrices.times_q(a, factors, c, transpose=transpose),)
        # c Q is (Q^T c^T)^T
        turned = small_matrices.times_q(a, factors, transposed(c), transpose=not transpose)
        return (transposed(turned),)

    return _each_matrix(node, compute)


def _syevd(node: Node, reads: Sequence[Read]) -> Unrolled | Repeated:
    shape, reads_lower = node.operands[0].type.shape, is_lower(node)
    size, dtype = shape[-1], node.operands[0].type.dtype

    def matrix(point: Indices) -> Matrix:
        a = _matrix(reads[0], point, shape)
        return a if reads_lower else transposed(a)

    if size <= _LARGEST_WRITTEN_OUT:
        # Without vectors, nothing is said of what is in their place.
        return _each_matrix(node, lambda point: (
            *small_matrices.eigh(matrix(point)), const(0, I32)))
    has_vectors = options(node).get("mode") != "N"
    step = jacobi.step(size, dtype, has_vectors)

    def elements(point: Indices, state: tuple[Expr, ...]
                 ) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
        a = matrix(point)
        vectors, values = jacobi.results(a, state)
        return _placed(node, point, (vectors or a, values, const(0, I32)))

    return Repeated(shape[:-2], jacobi.trips(size, dtype),
                    lambda point: jacobi.initial(matrix(point), has_vectors),
                    lambda trip: jacobi.told(trip, size, len(step.lhs), dtype), step, elements)


def _trsm(node: Node, reads: Sequence[Read]) -> Unrolled:
    solve, shape = TriangularSolve(node), node.operands[0].type.shape
    batch, size, columns = shape[:-2], shape[-1], solve.columns(node)
    # X A = B is A^T X^T = B^T
    turned = solve.is_transposed == solve.is_left
    left, right = _elements(node, reads)
    is_lower = solve.is_lower != turned

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

    steps = size * size * columns * (4 if node.operands[0].type.dtype.kind is Kind.COMPLEX else 1)
    if columns > _MOST_COLUMNS or steps > _MOST_STEPS or math.prod(batch) == 1:
        return Unrolled((*batch, columns), lambda point: (solved(point[:-1], point[-1:]),))
    every = [index.constant(j) for j in range(columns)]
    return Unrolled(batch, lambda point: (solved(point, every),))


# Examples

def _call(function: str, given: str, found: str, config: str = "") -> str:
    """A call of LAPACK; types are separated by ", ", options are `name=letter` or `name=true`."""
    operands = [f"tensor<{t}>" for t in given.split(", ")]
    results = [f"tensor<{t}>" for t in found.split(", ")]
    letter = ("c" if "f32" in given else "z") if "complex" in given else \
        "s" if "f32" in given else "d"
    matrix = _rank(given.split(", ")[0])
    options = ", ".join(f"{name} = " + (f"{ord(value)} : ui8" if len(value) == 1 else value)
                        for name, value in (pair.split("=") for pair in config.split()))
    values = [f"%r#{k}" for k in range(len(results))] if len(results) > 1 else ["%r"]
    several = f":{len(results)}" if len(results) > 1 else ""
    parameters = [f"%a{k}: {t}" for k, t in enumerate(operands)]
    return (f"func.func @main({', '.join(parameters)}) -> ({', '.join(results)}) {{\n"
            f"  %r{several} = stablehlo.custom_call @lapack_{letter}{function}_ffi("
            f"{', '.join(p.partition(':')[0] for p in parameters)}) "
            f"{{backend_config = \"\", mhlo.backend_config = {{{options}}}, "
            f"operand_layouts = [{_layouts(given, matrix)}], "
            f"result_layouts = [{_layouts(found, matrix)}]}} : "
            f"({', '.join(operands)}) -> ({', '.join(results)})\n"
            f"  return {', '.join(values)} : {', '.join(results)}\n}}\n")


def _layouts(types: str, matrix: int) -> str:
    """Those that LAPACK wants: the columns of what has rank `matrix` one behind the other."""
    found = []
    for text in types.split(", "):
        rank = _rank(text)
        order = [*range(rank)][::-1]
        if rank == matrix:
            order[:2] = order[1::-1]
        found.append(f"dense<{order if rank else '[]'}> : tensor<{rank}xindex>")
    return ", ".join(found)


def _rank(text: str) -> int:
    return text.replace("complex", "").count("x")


def _in_stablehlo(op: str, given: str, found: str, attributes: str) -> str:
    operands = [f"tensor<{t}>" for t in given.split(", ")]
    names = [f"%a{k}" for k in range(len(operands))]
    parameters = ", ".join(f"{n}: {t}" for n, t in zip(names, operands, strict=True))
    return (f"func.func @main({parameters}) -> tensor<{found}> {{\n"
            f"  %r = \"stablehlo.{op}\"({', '.join(names)}) {{{attributes}}} : "
            f"({', '.join(operands)}) -> tensor<{found}>\n"
            f"  return %r : tensor<{found}>\n}}\n")


def _numbers(matrix: str, length: str = "") -> str:
    """The type of an integer, or of so many, for each matrix of a batch."""
    return "x".join((*matrix.split("x")[:-3], *filter(None, (length,)), "i32"))


def _factors(matrix: str, length: str) -> str:
    return "x".join((*matrix.split("x")[:-3], length, matrix.split("x")[-1]))


_COMPLEX = (("7x3x3xcomplex<f32>", "7x"), ("2x2x4x4xcomplex<f64>", "2x2x"),
            ("1x1xcomplex<f32>", ""))
_SQUARE = ("7x3x3xf32", "2x2x8x8xf64", "1x1xf32", "0x4x4xf32")


def _solve_examples() -> tuple[str, ...]:
    sides = (f"side={s} uplo={u} trans_x={t} diag={d}"
             for s in "LR" for u in "LU" for t in "NT" for d in "NU")
    shapes = ("5x3x3xf32, 5x3x2xf32", "5x3x3xf32, 5x2x3xf32")
    return (*(_call("trsm", shapes[side.startswith("side=R")],
                    shapes[side.startswith("side=R")].split(", ")[1], side) for side in sides),
            _call("trsm", "4x4xf64, 4x40xf64", "4x40xf64", "side=L uplo=L trans_x=N diag=N"),
            *(_call("trsm", "5x3x3xcomplex<f32>, 5x3x3xcomplex<f32>", "5x3x3xcomplex<f32>",
                    f"side={s} uplo=L trans_x={t} diag=N") for s in "LR" for t in "NTC"),
            _call("trsm", "4x4xcomplex<f64>, 4x40xcomplex<f64>", "4x40xcomplex<f64>",
                  "side=L uplo=U trans_x=C diag=U"))


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef("lapack.potrf", OpKind.SOLVE, reference.potrf, _potrf, _supports, tuple(
        _call("potrf", t, f"{t}, {_numbers(t)}", f"uplo={uplo}")
        for t in _SQUARE for uplo in "LU") + tuple(
            _call("potrf", t, f"{t}, {batch}i32", f"uplo={uplo}")
            for t, batch in _COMPLEX for uplo in "LU"), "potrf, LAPACK"),
    OpDef("lapack.getrf", OpKind.SOLVE, reference.getrf, _getrf, _supports, tuple(
        _call("getrf", t, f"{t}, {_numbers(t, steps)}, {_numbers(t)}")
        for t, steps in (*((t, t[-5]) for t in _SQUARE), ("3x4x2xf32", "2"), ("3x2x4xf64", "2")))
        + tuple(_call("getrf", t, f"{t}, {batch}{steps}xi32, {batch}i32") for (t, batch), steps in
                zip(_COMPLEX, "341", strict=True)), "getrf, LAPACK"),
    OpDef("lapack.trsm", OpKind.SOLVE, reference.trsm, _trsm, _supports, _solve_examples(),
          "trsm, BLAS"),
    OpDef("lapack.geqrf", OpKind.SOLVE, reference.geqrf, _geqrf, _supports, tuple(
        _call("geqrf", t, f"{t}, {_factors(t, steps)}")
        for t, steps in (*((t, t[-5]) for t in _SQUARE), ("3x4x2xf32", "2"), ("3x2x4xf64", "2")))
        + tuple(_call("geqrf", t, f"{t}, {factors}") for t, factors in (
            ("3x4x2xcomplex<f32>", "3x2xcomplex<f32>"), ("2x3x3xcomplex<f64>", "2x3xcomplex<f64>"),
            ("1x1xcomplex<f32>", "1xcomplex<f32>"))),
        "geqrf, LAPACK"),
    OpDef("lapack.orgqr", OpKind.SOLVE, reference.orgqr, _orgqr, _supports, (
        _call("orgqr", "7x3x3xf32, 7x3xf32", "7x3x3xf32"),
        _call("orgqr", "2x5x3xf64, 2x2xf64", "2x5x3xf64"),
        _call("orgqr", "1x1xf32, 1xf32", "1x1xf32"),
        _call("ungqr", "7x4x3xcomplex<f32>, 7x3xcomplex<f32>", "7x4x3xcomplex<f32>"),
        _call("ungqr", "2x3x3xcomplex<f64>, 2x2xcomplex<f64>", "2x3x3xcomplex<f64>"),
    ), "orgqr, LAPACK"),
    OpDef("lapack.ormqr", OpKind.SOLVE, reference.ormqr, _ormqr, _supports, (
        *(_call("ormqr", "7x5x3xf32, 7x3xf32, 7x5x2xf32", "7x5x2xf32",
                f"left=true transpose={t}") for t in ("true", "false")),
        *(_call("ormqr", "4x5x3xf64, 4x3xf64, 4x2x5xf64", "4x2x5xf64",
                f"left=false transpose={t}") for t in ("true", "false")),
        _call("ormqr", "3x4x4xf32, 3x4xf32, 3x4x1xf32", "3x4x1xf32",
              "left=true transpose=true"),
    ), "ormqr, LAPACK"),
    OpDef("lapack.syevd", OpKind.SOLVE, reference.syevd, _syevd, _supports, tuple(
        _call("syevd", t, f"{t}, {_factors(t, t[-5])}, {_numbers(t)}", f"mode=V uplo={uplo}")
        for t in ("7x3x3xf32", "2x2x4x4xf64", "1x1xf32", "3x5x5xf64", "2x8x8xf32")
        for uplo in "LU"), "syevd, LAPACK"),
    OpDef("stablehlo.cholesky", OpKind.SOLVE, reference.potrf, _potrf, _supports, (
        _in_stablehlo("cholesky", "4x3x3xf32", "4x3x3xf32", "lower = true"),
        _in_stablehlo("cholesky", "3x3xf64", "3x3xf64", "lower = false"),
        *(_in_stablehlo("cholesky", "5x3x3xcomplex<f32>", "5x3x3xcomplex<f32>", f"lower = {lower}")
          for lower in ("true", "false")),
    ), "cholesky, StableHLO specification"),
    OpDef("stablehlo.triangular_solve", OpKind.SOLVE, reference.trsm, _trsm, _supports, tuple(
        _in_stablehlo("triangular_solve", f"4x3x3x{t}, 4x3x3x{t}", f"4x3x3x{t}",
                      f"left_side = {left}, lower = {lower}, unit_diagonal = {unit}, "
                      f"transpose_a = #stablehlo<transpose {transpose}>")
        for t in ("f32", "complex<f32>") for left, lower, unit, transpose in (
            ("true", "true", "false", "NO_TRANSPOSE"), ("false", "true", "true", "TRANSPOSE"),
            ("true", "false", "false", "ADJOINT"), ("false", "false", "true", "NO_TRANSPOSE"))),
        "triangular_solve, StableHLO specification"),
)
