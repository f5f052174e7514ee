"""What calls of LAPACK compute, in NumPy: step by step in f64, or complex numbers of it, one matrix
after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_mlc.graph.core import Node
from hlo_mlc.ops.library_calls import TriangularSolve, flags, is_lower

Arrays = Sequence[np.ndarray]
Results = tuple[np.ndarray, ...]


def _widely(function: Callable[..., Results]) -> Callable[[Node, Arrays], Results]:
    """`function` of single matrices in f64, for a batch; results as the node has them."""

    def reference(node: Node, operands: Arrays) -> Results:
        batch = operands[0].shape[:-2]
        results = [np.empty(v.type.shape, v.type.dtype.numpy) for v in node.results]
        with np.errstate(all="ignore"):
            for point in np.ndindex(batch):
                found = function(
                    node, *(x[point].astype(np.result_type(x, np.float64)) for x in operands)
                )
                for result, element in zip(results, found, strict=False):
                    result[point] = element
        return tuple(results)

    return reference


@_widely
def potrf(node: Node, a: np.ndarray) -> Results:
    a = a if is_lower(node) else a.conj().T
    lower, info = a.copy(), 0
    for j in range(len(a)):
        pivot = (a[j, j] - lower[j, :j] @ lower[j, :j].conj()).real
        info = info or (j + 1 if pivot <= 0 else 0)
        lower[j, j] = np.sqrt(pivot)
        lower[j + 1 :, j] = (a[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j].conj()) / lower[j, j]
    return (lower if is_lower(node) else lower.conj().T), info


@_widely
def getrf(node: Node, a: np.ndarray) -> Results:
    count, info = min(a.shape), 0
    pivots = np.zeros(count, np.int32)
    for k in range(count):
        chosen = k + int(np.argmax(np.abs(a[k:, k].real) + np.abs(a[k:, k].imag)))
        a[[k, chosen]], pivots[k] = a[[chosen, k]], chosen + 1
        if a[k, k] == 0:
            info = info or k + 1
        else:
            a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, pivots, info


@_widely
def geqrf(node: Node, a: np.ndarray) -> Results:
    factors, raw = np.zeros(min(a.shape), a.dtype), a
    for k in range(len(factors)):
        column = raw[k:, k].copy()
        if np.any(column[1:] != 0) or column[0].imag != 0:
            beta = -np.copysign(np.linalg.norm(column), column[0].real)
            factors[k] = (beta - column[0]) / beta
            vector = np.append(1, column[1:] / (column[0] - beta))
            raw[k:, k:] -= factors[k].conj() * np.outer(vector, vector.conj() @ raw[k:, k:])
            raw[k + 1 :, k] = vector[1:]
    return raw, factors


def _reflections(a: np.ndarray, factors: np.ndarray, columns: int) -> np.ndarray:
    """The first columns of the product of the reflections whose vectors lie below the diagonal."""
    q = np.eye(len(a), columns, dtype=a.dtype)
    for k in reversed(range(len(factors))):
        vector = np.append(np.append(np.zeros(k), 1), a[k + 1 :, k])
        q -= factors[k] * np.outer(vector, vector.conj() @ q)
    return q


@_widely
def orgqr(node: Node, a: np.ndarray, factors: np.ndarray) -> Results:
    return (_reflections(a, factors, a.shape[1]),)


@_widely
def ormqr(node: Node, a: np.ndarray, factors: np.ndarray, c: np.ndarray) -> Results:
    q = _reflections(a, factors, len(a))
    given = flags(node)
    q = q.conj().T if given.get("transpose", False) else q
    return (q @ c if given.get("left", False) else c @ q,)


@_widely
def trsm(node: Node, a: np.ndarray, b: np.ndarray) -> Results:
    solve = TriangularSolve(node)
    a = np.tril(a) if solve.is_lower else np.triu(a)
    if solve.is_unit:
        np.fill_diagonal(a, 1)
    a = a.T if solve.is_transposed else a
    a = a.conj() if solve.is_adjoint else a
    a, b = (a, b) if solve.is_left else (a.T, b.T)
    steps, x = range(len(a)), np.zeros(b.shape, b.dtype)
    for i in steps if solve.is_lower != (solve.is_transposed == solve.is_left) else reversed(steps):
        x[i] = (b[i] - a[i] @ x) / a[i, i]
    return (x if solve.is_left else x.T,)


@_widely
def syevd(node: Node, a: np.ndarray) -> Results:
    values, vectors = np.linalg.eigh(a, "L" if is_lower(node) else "U")
    return vectors, values, 0
