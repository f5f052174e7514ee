"""Every example of every op: reference, tensor expressions and XLA agree."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hlo_mlc.expr.dtypes import from_numpy
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.registry import DEFINITIONS, evaluate_graph, supports

CASES = [
    pytest.param(text, id=f"{definition.name}-{k}")
    for definition in DEFINITIONS.values()
    for k, text in enumerate(definition.examples)
]
SUMS = (
    "stablehlo.reduce",
    "stablehlo.reduce_window",
    "stablehlo.dot_general",
    "stablehlo.convolution",
    "stablehlo.scatter",
)
SELECTIONS = ("stablehlo.maximum", "stablehlo.minimum", "stablehlo.compare")
# XLA's own lose their digits where the result passes through 0, or is small.
ABSOLUTE = ("lgamma", "digamma", "polygamma")
# Factorizations and solves: they round differently in every order of sums.
MATRICES = (
    "lapack.potrf",
    "lapack.getrf",
    "lapack.trsm",
    "lapack.geqrf",
    "lapack.orgqr",
    "lapack.ormqr",
    "lapack.syevd",
    "stablehlo.cholesky",
    "stablehlo.triangular_solve",
)
KNOWN = ("stablehlo.get_dimension_size",)  # made of what its operand is, not of its elements
ULPS = 32  # XLA's own atanh of f64 is 18 away from NumPy's


def assert_same(
    actual: np.ndarray,
    expected: np.ndarray,
    ulps: int = 0,
    zero_signs: bool = True,
    absolute: bool = False,
) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind == "c":
        for part in ("real", "imag"):
            assert_same(getattr(actual, part), getattr(expected, part), ulps, zero_signs, absolute)
        return
    if actual.dtype.kind in "iub" or from_numpy(actual.dtype).is_integer:
        np.testing.assert_array_equal(actual, expected)
        return
    eps = float(ml_dtypes.finfo(actual.dtype).eps)
    x, y = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(x, y, rtol=ulps * eps, atol=ulps * eps * (1 if absolute else 1e-3))
    if not ulps and zero_signs:
        np.testing.assert_array_equal(np.signbit(x) & (x == 0), np.signbit(y) & (y == 0))


def _tame_matrix(array: np.ndarray, operand: int) -> np.ndarray:
    """A matrix far from singular, whose pivots do not hang on the last place."""
    rng = np.random.default_rng(array.size + operand)
    values = rng.uniform(-1, 1, array.shape)
    if array.dtype.kind == "c":
        values = values + 1j * rng.uniform(-1, 1, array.shape)
    if operand == 0:
        eye = np.eye(*array.shape[-2:])
        is_square = eye.shape[0] == eye.shape[1]
        values = (values + values.conj().swapaxes(-1, -2) if is_square else values) / 4
        values = values + 2 * eye
    return values.astype(array.dtype)


def _said(op: str, text: str, result: np.ndarray) -> np.ndarray:
    """What the specification says of a result: nothing of the other triangle of a factor."""
    if op == "lapack.syevd" and result.ndim and result.shape[-1:] == result.shape[-2:-1]:
        return np.abs(result)  # an eigenvector may point either way
    if op != "stablehlo.cholesky":
        return result
    return np.tril(result) if "lower = true" in text else np.triu(result)


def _main_op(graph) -> str:
    return next(n.op for n in reversed(graph.nodes))


@pytest.mark.parametrize("text", CASES)
def test_example(text: str, examples) -> None:
    graph = examples.graph(text)
    assert [supports(n) for n in graph.nodes] == [""] * len(graph.nodes)
    op = _main_op(graph)
    tamed = op in (*SUMS, "stablehlo.fft") and not any(name in text for name in SELECTIONS)
    arrays = examples.inputs(graph, text, tamed)
    if op == "stablehlo.power" and arrays[1].dtype.kind in "iu":
        arrays[1] = np.minimum(arrays[1], 63)  # XLA looks at six bits of the exponent only
    if op == "chlo.digamma":  # at 0 XLA gives NaN in one version, -infinity in another
        arrays[0] = np.where(arrays[0] == 0, arrays[0].dtype.type(0.5), arrays[0])
    if op in ("chlo.polygamma", "chlo.zeta"):  # XLA is far off elsewhere, but for NaN
        orders, at = (np.abs(a.astype(np.float64)) for a in arrays)
        least = 0 if op == "chlo.polygamma" else 2
        with np.errstate(invalid="ignore"):  # infinities leave NaN
            arrays = [
                (np.round(orders) % 5 + least).astype(arrays[0].dtype),
                (at % 16 + 0.25).astype(arrays[1].dtype),
            ]
    if op in MATRICES:
        arrays = [_tame_matrix(a, k) for k, a in enumerate(arrays)]
        reference = evaluate_graph(graph, arrays)
        ulps = 1024 if op == "lapack.syevd" else 64  # vectors turn where values lie side by side
        for other in (examples.lowered(graph, arrays), examples.compiled(text, arrays)):
            for actual, expected in zip(other, reference, strict=True):
                assert_same(_said(op, text, actual), _said(op, text, expected), ulps, absolute=True)
        return
    if op == "stablehlo.fft":
        reference = evaluate_graph(graph, arrays)
        for other in (examples.lowered(graph, arrays), examples.compiled(text, arrays)):
            for actual, expected in zip(other, reference, strict=True):
                assert_same(actual, expected, 64, absolute=True)
        return
    # Nothing prescribes how functions round in the last places.
    ulps = 0 if DEFINITIONS[op].kind is not OpKind.ELEMENTWISE or DEFINITIONS[op].is_exact else ULPS
    reference = evaluate_graph(graph, arrays)
    for actual, expected in zip(examples.lowered(graph, arrays), reference, strict=True):
        assert_same(actual, expected)
    for actual, expected in zip(reference, examples.compiled(text, arrays), strict=True):
        assert_same(actual, expected, ulps, op not in SUMS, op.partition(".")[2] in ABSOLUTE)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=f"{definition.name}-{k}")
        for definition in DEFINITIONS.values()
        if definition.kind is OpKind.MOVEMENT
        for k, text in enumerate(definition.examples)
    ],
)
def test_movements_compute_nothing(text: str, examples) -> None:
    graph = examples.graph(text)
    (node,) = graph.nodes
    if not node.operands or node.op in KNOWN:
        return
    arrays = examples.inputs(graph, text, False)
    operands = {_bits(element) for array in arrays for element in _parts(array)}
    for result in evaluate_graph(graph, arrays):
        assert {_bits(element) for element in _parts(result)} <= operands


def _parts(array: np.ndarray) -> np.ndarray:
    """All numbers of an array, those of complex ones apart."""
    return np.ravel(array.view(array.real.dtype) if array.dtype.kind == "c" else array)


def _bits(element: np.generic) -> bytes:
    return np.asarray(element).tobytes()
