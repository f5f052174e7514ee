"""Evaluation of expressions, and the exactness of `fma` that accuracy tests build on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32, F64, INDEX
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import compute


def test_arrays_broadcast():
    x, y = Var("x", F32), Var("y", F32)
    value = evaluate(
        apply("add", x, y), {x: np.ones((3, 1), np.float32), y: np.arange(4, dtype=np.float32)}
    )
    np.testing.assert_array_equal(value, np.ones((3, 1)) + np.arange(4))


def test_loads_ask_for_elements_inside_the_guard_only():
    buffer = Buffer("b", F32, (4,))
    i = variable("i", 8)
    asked = []

    def read(source: Buffer, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        asked.append((source, indices[0]))
        return np.arange(10, 14, dtype=np.float32)[indices[0]]

    guard = apply("lt", i, const(4, INDEX))
    value = evaluate(load(buffer, (i,), guard, const(-1.0, F32)), {i: np.arange(8)}, read)
    np.testing.assert_array_equal(value, [10, 11, 12, 13, -1, -1, -1, -1])
    assert asked[0][0] is buffer
    assert asked[0][1].max() == 3


def test_a_load_without_read_is_refused():
    i = variable("i", 4)
    with pytest.raises(TypeError, match="read"):
        evaluate(load(Buffer("b", F32, (4,)), (i,)), {i: np.arange(4)})


def test_a_variable_without_value_is_refused():
    with pytest.raises(KeyError):
        evaluate(apply("neg", Var("x", F32)), {})


def _exact_fma(x: float, y: float, z: float) -> Fraction:
    return Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_fma_rounds_once(dtype):
    random = np.random.default_rng(0)
    x, y, z = (random.standard_normal(3000).astype(dtype.numpy) for _ in range(3))
    scale = np.exp2(random.integers(-70, 70, 3000)).astype(dtype.numpy)
    one_ulp = 1 + np.finfo(dtype.numpy).eps * random.integers(-2, 3, 3000).astype(dtype.numpy)
    x = np.concatenate([x, x, x])
    y = np.concatenate([y, y, y])
    z = np.concatenate([z * scale, -x[:3000] * y[:3000], -x[:3000] * y[:3000] * one_ulp])
    actual = compute("fma", [x, y, z], dtype)
    for value, *operands in zip(actual, x, y, z, strict=True):
        exact = _exact_fma(*operands)
        error = abs(Fraction(float(value)) - exact)
        for neighbour in (np.nextafter(value, -np.inf), np.nextafter(value, np.inf)):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_f64_fma_at_the_ends_of_the_range():
    special = np.array([0.0, 1.0, np.inf, np.nan, 1e308, 1e-308, 2.0**500])
    special = np.concatenate([special, -special])
    x, y, z = (a.ravel() for a in np.meshgrid(special, special, special))
    actual = compute("fma", [x, y, z], F64)
    with np.errstate(all="ignore"):
        plain = x * y + z
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    np.testing.assert_array_equal(actual[~finite], plain[~finite])
    # x * y overflows on its own, the sum does not.
    np.testing.assert_array_equal(
        compute("fma", [np.array([1e308]), np.array([2.0]), np.array([-1e308])], F64), [1e308]
    )
