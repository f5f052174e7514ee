"""Legalised f32 functions against the table's own functions in f64: errors and special values."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.legalize import legalize
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Apply, Expr, Var, walk
from hlo_mlc.expr.dtypes import F32, F64
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import OPS, ScalarOp, compute

X, Y = Var("x", F32), Var("y", F32)
SMALLEST_NORMAL = 2.0**-126

# The largest errors in units in the last place that each function may have.
BOUNDS = {
    "exp": 1.6, "expm1": 1.7, "tanh": 2.6, "logistic": 2.5, "sinh": 1.8, "cosh": 1.8,
    "log": 1.2, "log1p": 1.8, "sin": 1.6, "cos": 1.6, "tan": 3.1, "erf": 1.8, "erfc": 4.4,
    "asin": 2.5, "acos": 1.4, "atan": 1.9, "asinh": 2.0, "acosh": 2.2, "atanh": 2.3,
    "rsqrt": 1.6, "cbrt": 1.9,
}
# What computing products and sums separately may add.
WITHOUT_FMA = 0.5

SPECIAL = np.array([
    0.0, 1.0, 0.5, 2.0, np.inf, np.nan, SMALLEST_NORMAL, 1e-30, 1.0000001, 0.99999994,
    87.33654, 87.33655, 88.72283, 88.72284, 89.415985, 89.41599, 104.0, 131072.0, 131073.0, 1e22,
    16777215.0, 16777216.0, 3.4028235e38], np.float32)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


def sweep() -> np.ndarray:
    """Every 40009th bit pattern, and as many numbers again of magnitudes from 2**-12 to 2**8."""
    patterns = np.arange(7, 1 << 32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    normal = patterns[np.abs(patterns) >= SMALLEST_NORMAL]
    middle = np.exp2(np.random.default_rng(0).uniform(-12, 8, 50_000)).astype(np.float32)
    return np.concatenate([SPECIAL, normal, middle, -middle])


def ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distances in units in the last place of an f32 at `expected`, which is f64.

    0 where both are NaN or the same infinity, and where a subnormal result has become 0;
    infinity where only one is special or has the wrong sign of zero.
    """
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        exponent = np.frexp(np.where(np.isfinite(expected), expected, 0.0))[1] - 1
        unit = np.exp2(np.maximum(exponent, -126) - 23.0)
        error = np.abs(actual.astype(np.float64) - expected) / unit
        tiny = (np.abs(expected) < SMALLEST_NORMAL) & (np.abs(actual) <= SMALLEST_NORMAL)
        same = (actual == rounded) | (np.isnan(actual) & np.isnan(expected))
        error = np.where(same & ~np.isfinite(error) | tiny, 0.0, error)
        both_zero = (actual == 0) & (expected == 0)
        wrong_zero = both_zero & (np.signbit(actual) != np.signbit(expected))
    return np.where(np.isnan(error) | wrong_zero, np.inf, error)


def assert_close(actual: np.ndarray, expected: np.ndarray, bound: float, *inputs: np.ndarray):
    error = ulps(actual, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (
        f"{error[worst]} ulp at {[float(i[worst]) for i in inputs]}: "
        f"{actual[worst]!r}, expected {expected[worst]!r}")


@pytest.fixture(params=[True, False], ids=["fma", "no_fma"])
def has_fma(request, monkeypatch) -> bool:
    """Without it, `fma` is computed as the printers write it for targets that lack it."""
    if not request.param:
        monkeypatch.setitem(OPS, "fma", ScalarOp("fma", 3, lambda x, y, z: x * y + z))
    return request.param


def run(expr: Expr, *inputs: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return evaluate(expr, dict(zip((X, Y), inputs)))


@pytest.mark.parametrize("op", BOUNDS)
def test_error_is_bounded_over_all_magnitudes(op, has_fma):
    values = sweep()
    actual = run(legalize(apply(op, X), has_fma=has_fma), values)
    expected = compute(op, [values.astype(np.float64)], F64)
    assert_close(actual, expected, BOUNDS[op] + (0 if has_fma else WITHOUT_FMA), values)


@pytest.mark.parametrize("op, at, value", [
    ("exp", 0.0, 1.0), ("exp", -np.inf, 0.0), ("exp", -1e30, 0.0), ("exp", 89.0, np.inf),
    ("expm1", -np.inf, -1.0), ("tanh", 20.0, 1.0), ("tanh", -np.inf, -1.0),
    ("logistic", -np.inf, 0.0), ("logistic", 0.0, 0.5), ("log", 1.0, 0.0), ("log", 0.0, -np.inf),
    ("log", -0.0, -np.inf), ("log1p", -1.0, -np.inf), ("erf", 5.0, 1.0), ("erf", -np.inf, -1.0),
    ("erfc", np.inf, 0.0), ("erfc", -np.inf, 2.0), ("sin", 0.0, 0.0), ("cos", 0.0, 1.0),
    ("acos", 1.0, 0.0), ("acosh", 1.0, 0.0), ("atanh", 1.0, np.inf), ("rsqrt", 0.0, np.inf),
    ("rsqrt", -0.0, -np.inf), ("rsqrt", 4.0, 0.5), ("cbrt", 27.0, 3.0), ("cosh", -np.inf, np.inf),
])
def test_exact_values(op, at, value):
    actual = run(legalize(apply(op, X)), np.float32([at]))
    np.testing.assert_array_equal(actual, np.float32([value]))


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_arguments_nearest_to_multiples_of_half_pi(op, has_fma):
    """The f32 numbers whose reduction cancels most, in the fast range and beyond."""
    multiples = np.arange(1, 200_000, dtype=np.float64) * (np.pi / 2)
    near = multiples.astype(np.float32)
    distance = np.abs(np.sin(near.astype(np.float64) * 2))
    worst = near[np.argsort(distance)[:2000]]
    # 16367173 * 2**72 is the f32 nearest to a multiple of pi/2.
    values = np.concatenate([worst, np.float32([16367173.0 * 2.0**72, -16367173.0 * 2.0**72])])
    actual = run(legalize(apply(op, X), has_fma=has_fma), values)
    expected = compute(op, [values.astype(np.float64)], F64)
    assert_close(actual, expected, BOUNDS[op] + (0 if has_fma else WITHOUT_FMA), values)


def test_pow_error_is_bounded_up_to_overflow(has_fma):
    random = np.random.default_rng(1)
    base = np.exp2(random.uniform(-126, 128, 60_000))
    near_one = 1 + random.uniform(-1, 1, 60_000) * np.exp2(-random.uniform(1, 22, 60_000))
    x = np.concatenate([base, near_one]).astype(np.float32)
    x = x[(x != 1) & (x < np.inf)]
    y = (random.uniform(-130, 130, x.size) / np.log2(x.astype(np.float64))).astype(np.float32)
    actual = run(legalize(apply("pow", X, Y), has_fma=has_fma), x, y)
    assert_close(actual, compute("pow", [x.astype(np.float64), y.astype(np.float64)], F64), 1.6,
                 x, y)


def test_pow_special_values(has_fma):
    values = np.concatenate([SPECIAL, np.float32([3, -3, 7, -7, 1.5, -1.5, 16777217, 1e30, -1e30])])
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    actual = run(legalize(apply("pow", X, Y), has_fma=has_fma), x, y)
    assert_close(actual, compute("pow", [x.astype(np.float64), y.astype(np.float64)], F64), 1.6,
                 x, y)


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_small_constant_powers_are_products(exponent):
    expr = legalize(apply("pow", X, const(exponent, F32)))
    assert {node.op for node in walk(expr) if isinstance(node, Apply)} == {"mul"}
    values = sweep()
    expected = compute("pow", [values.astype(np.float64), np.float64(exponent)], F64)
    assert_close(run(expr, values), expected, 1.5, values)


def test_atan2_error_is_bounded():
    random = np.random.default_rng(2)
    y, x = (np.exp2(random.uniform(-20, 20, 100_000)) * random.choice([-1, 1], 100_000)
            for _ in range(2))
    y, x = y.astype(np.float32), x.astype(np.float32)
    actual = run(legalize(apply("atan2", X, Y)), y, x)
    assert_close(actual, np.arctan2(y.astype(np.float64), x.astype(np.float64)), 3.0, y, x)


def test_atan2_special_values():
    y, x = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    actual = run(legalize(apply("atan2", X, Y)), y, x)
    assert_close(actual, np.arctan2(y.astype(np.float64), x.astype(np.float64)), 3.0, y, x)
