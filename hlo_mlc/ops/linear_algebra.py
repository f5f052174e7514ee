"""Factorizations and solves of small matrices, a batch of them at a time.

Each matrix is one point: what is computed of it stands side by side with what is computed of the
others, in the lanes of vectors.  That pays up to a certain size; larger ones stay with LAPACK,
which works in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hlo_mlc.expr.dtypes import C64, C128, F32, F64
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops import lapack_reference, matrix_lowering
from hlo_mlc.ops.definition import OpDef, OpKind
from hlo_mlc.ops.lapack_examples import (
    COMPLEX,
    SQUARE,
    call,
    factors_of,
    in_stablehlo,
    numbers_of,
    solve_examples,
)
from hlo_mlc.ops.matrix_lowering import is_complex

# Rows and columns of the largest matrices.
_LARGEST = 16
# And of those that are reflected, which may be tall.
_MOST_ELEMENTS = 512
# On GPUs, where nothing but StableHLO's own ops comes to us, all are written out.
_LARGEST_OF_STABLEHLO, _LARGEST_COMPLEX_OF_STABLEHLO = 16, 8


def _supports(node: Node) -> str:
    name = node.op.partition(".")[2]
    matrix = node.operands[0].type
    if matrix.dtype not in (F32, F64, C64, C128):
        return f"factorizations and solves of {matrix.dtype.name} stay with XLA"
    if any(value.type.shape[:-2] != matrix.shape[:-2] for value in _matrices(node)):
        return "its operands have different batches"
    rows, columns = matrix.shape[-2:]
    if not min(rows, columns):
        return "matrices without elements stay with LAPACK"
    if name in ("geqrf", "orgqr", "ormqr"):
        reflected = (node.operands[0],) if name == "ormqr" else _matrices(node)
        if min(rows, columns) > _LARGEST or any(
            math.prod(value.type.shape[-2:]) > _MOST_ELEMENTS for value in reflected
        ):
            return (
                f"matrices of more than {_LARGEST} columns, or of more than "
                f"{_MOST_ELEMENTS} elements, stay with LAPACK"
            )
    elif max(rows, columns) > (largest := _largest(node)):
        return f"matrices larger than {largest} x {largest} stay with LAPACK"
    return ""


def _largest(node: Node) -> int:
    if node.op.startswith("stablehlo."):
        return _LARGEST_COMPLEX_OF_STABLEHLO if is_complex(node) else _LARGEST_OF_STABLEHLO
    return _LARGEST


def _matrices(node: Node) -> tuple[Value, ...]:
    rank = len(node.operands[0].type.shape)
    return tuple(v for v in (*node.operands, *node.results) if len(v.type.shape) == rank)


def _solve(name: str, examples: Iterable[str], op: str = "") -> OpDef:
    """A call of LAPACK's or BLAS's function of that name, or an op that computes the same."""
    reference, lower = getattr(lapack_reference, name), getattr(matrix_lowering, name)
    op = op or f"lapack.{name}"
    return OpDef(op, OpKind.SOLVE, reference, lower, _supports, tuple(examples))


DEFINITIONS: tuple[OpDef, ...] = (
    _solve(
        "potrf",
        tuple(
            call("potrf", t, f"{t}, {numbers_of(t)}", f"uplo={uplo}")
            for t in SQUARE
            for uplo in "LU"
        )
        + tuple(
            call("potrf", t, f"{t}, {batch}i32", f"uplo={uplo}")
            for t, batch in COMPLEX
            for uplo in "LU"
        ),
    ),
    _solve(
        "getrf",
        tuple(
            call("getrf", t, f"{t}, {numbers_of(t, steps)}, {numbers_of(t)}")
            for t, steps in (*((t, t[-5]) for t in SQUARE), ("3x4x2xf32", "2"), ("3x2x4xf64", "2"))
        )
        + tuple(
            call("getrf", t, f"{t}, {batch}{steps}xi32, {batch}i32")
            for (t, batch), steps in zip(COMPLEX, "341", strict=True)
        ),
    ),
    _solve("trsm", solve_examples()),
    _solve(
        "geqrf",
        tuple(
            call("geqrf", t, f"{t}, {factors_of(t, steps)}")
            for t, steps in (*((t, t[-5]) for t in SQUARE), ("3x4x2xf32", "2"), ("3x2x4xf64", "2"))
        )
        + tuple(
            call("geqrf", t, f"{t}, {factors}")
            for t, factors in (
                ("3x4x2xcomplex<f32>", "3x2xcomplex<f32>"),
                ("2x3x3xcomplex<f64>", "2x3xcomplex<f64>"),
                ("1x1xcomplex<f32>", "1xcomplex<f32>"),
            )
        ),
    ),
    _solve(
        "orgqr",
        (
            call("orgqr", "7x3x3xf32, 7x3xf32", "7x3x3xf32"),
            call("orgqr", "2x5x3xf64, 2x2xf64", "2x5x3xf64"),
            call("orgqr", "1x1xf32, 1xf32", "1x1xf32"),
            call("ungqr", "7x4x3xcomplex<f32>, 7x3xcomplex<f32>", "7x4x3xcomplex<f32>"),
            call("ungqr", "2x3x3xcomplex<f64>, 2x2xcomplex<f64>", "2x3x3xcomplex<f64>"),
        ),
    ),
    _solve(
        "ormqr",
        (
            *(
                call(
                    "ormqr",
                    "7x5x3xf32, 7x3xf32, 7x5x2xf32",
                    "7x5x2xf32",
                    f"left=true transpose={t}",
                )
                for t in ("true", "false")
            ),
            *(
                call(
                    "ormqr",
                    "4x5x3xf64, 4x3xf64, 4x2x5xf64",
                    "4x2x5xf64",
                    f"left=false transpose={t}",
                )
                for t in ("true", "false")
            ),
            call("ormqr", "3x4x4xf32, 3x4xf32, 3x4x1xf32", "3x4x1xf32", "left=true transpose=true"),
            call(
                "ormqr", "2x6x5xf64, 2x5xf64, 2x6x40xf64", "2x6x40xf64", "left=true transpose=true"
            ),
            *(
                call(
                    "unmqr",
                    f"{batch}x{rows}x2xcomplex<{t}>, {batch}x2xcomplex<{t}>, {c}xcomplex<{t}>",
                    f"{c}xcomplex<{t}>",
                    f"left={left} transpose={transpose}",
                )
                for t, batch, rows, sides in (
                    ("f32", 7, 2, (("true", "7x2x3"), ("false", "7x3x2"))),
                    ("f64", 2, 4, (("true", "2x4x3"), ("false", "2x3x4"))),
                    ("f32", 1, 4, (("true", "1x4x5"), ("false", "1x5x4"))),
                )
                for left, c in sides
                for transpose in ("true", "false")
            ),
        ),
    ),
    _solve(
        "syevd",
        tuple(
            call("syevd", t, f"{t}, {factors_of(t, t[-5])}, {numbers_of(t)}", f"mode=V uplo={uplo}")
            for t in ("7x3x3xf32", "2x2x4x4xf64", "1x1xf32", "3x5x5xf64", "2x8x8xf32")
            for uplo in "LU"
        )
        + tuple(
            call(
                "heevd",
                f"{t}xcomplex<f{bits}>",
                f"{t}xcomplex<f{bits}>, {values}xf{bits}, {batch}i32",
                f"mode=V uplo={uplo}",
            )
            for t, bits, values, batch in (
                ("5x3x3", 32, "5x3", "5x"),
                ("2x4x4", 64, "2x4", "2x"),
                ("1x1", 32, "1", ""),
            )
            for uplo in "LU"
        ),
    ),
    _solve(
        "potrf",
        op="stablehlo.cholesky",
        examples=(
            in_stablehlo("cholesky", "4x3x3xf32", "4x3x3xf32", "lower = true"),
            in_stablehlo("cholesky", "3x3xf64", "3x3xf64", "lower = false"),
            *(
                in_stablehlo(
                    "cholesky", "5x3x3xcomplex<f32>", "5x3x3xcomplex<f32>", f"lower = {lower}"
                )
                for lower in ("true", "false")
            ),
        ),
    ),
    _solve(
        "trsm",
        op="stablehlo.triangular_solve",
        examples=(
            *(
                in_stablehlo(
                    "triangular_solve",
                    f"4x3x3x{t}, 4x3x3x{t}",
                    f"4x3x3x{t}",
                    f"left_side = {left}, lower = {lower}, unit_diagonal = {unit}, "
                    f"transpose_a = #stablehlo<transpose {transpose}>",
                )
                for t in ("f32", "complex<f32>")
                for left, lower, unit, transpose in (
                    ("true", "true", "false", "NO_TRANSPOSE"),
                    ("false", "true", "true", "TRANSPOSE"),
                    ("true", "false", "false", "ADJOINT"),
                    ("false", "false", "true", "NO_TRANSPOSE"),
                )
            ),
        ),
    ),
)
