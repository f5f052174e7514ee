"""Division by a value that many quotients share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.legalize import legalize
from hlo_mlc.expr.build import apply, load
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32, F64, INDEX
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.refine import refine

SPECIAL = (0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, 1e-30, 3e38, -2e38, 1e30, 7.0, 0.1)

# Below, what the second part of a reciprocal adds is less than the smallest number.
_WITHOUT_SECOND_PART = {"float32": 2.0**-102, "float64": 2.0**-969}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_quotients_are_those_of_a_division(dtype):
    with jax.enable_x64(dtype == "float64"):
        divisors = np.array(SPECIAL, dtype)
        rows = np.tile(divisors, (len(divisors), 3))
        function = mlc_jit(lambda x, y: x / y[:, None], choose="ours")
        ours = np.asarray(function(rows, divisors))
        assert function.report(rows, divisors).coverage == 1
    with np.errstate(all="ignore"):
        expected = rows / divisors[:, None]
    expected = np.where(abs(expected) < np.finfo(dtype).tiny, np.copysign(0, expected), expected)
    exact = ~(abs(expected) < _WITHOUT_SECOND_PART[dtype]) | (expected == 0)
    np.testing.assert_array_equal(ours[exact], expected[exact])
    np.testing.assert_array_max_ulp(ours[~exact], expected[~exact], 2)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(ours[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_are_rounded_once(dtype):
    rng = np.random.default_rng(3)
    with jax.enable_x64(dtype == "float64"):
        x = (rng.normal(size=(300, 1021)) * 2.0 ** rng.integers(-20, 20, (300, 1021))).astype(dtype)
        y = (rng.normal(size=300) * 2.0 ** rng.integers(-20, 20, 300)).astype(dtype)
        y[:3] = np.nextafter(np.array(2, dtype), np.array(1, dtype)), 1 + 2e-7, 2e10
        ours = np.asarray(mlc_jit(lambda x, y: x / y[:, None], choose="ours")(x, y))
    expected = x / y[:, None]
    apart = abs(ours - expected) / np.spacing(abs(expected))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_of_all_exponents_are_near(dtype):
    rng = np.random.default_rng(5)
    limit = np.finfo(dtype).maxexp - 2
    with jax.enable_x64(dtype == "float64"):
        x, y = (
            (rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-limit, limit, shape)).astype(dtype)
            for shape in ((300, 1021), 300)
        )
        y[::2] *= -1
        y[:40] = np.copysign(2.0 ** rng.integers(-limit, limit, 40), y[:40])
        x[:, ::97] = np.inf
        function = mlc_jit(lambda x, y: x / y[:, None], choose="ours")
        ours = np.asarray(function(x, y))
        assert function.report(x, y).coverage == 1
    with np.errstate(over="ignore", under="ignore"):
        expected = x / y[:, None]
    small = abs(expected) < _WITHOUT_SECOND_PART[dtype]
    seen = abs(expected) > 2 * np.finfo(dtype).tiny
    np.testing.assert_array_max_ulp(ours[~small], expected[~small], 1)
    np.testing.assert_array_max_ulp(ours[small & seen], expected[small & seen], 2)
    assert np.array_equal(np.signbit(ours), np.signbit(expected))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_subnormal_divisors_are_numbers_where_they_are(dtype):
    """As on GPUs: the reciprocals of the smallest are beyond the range."""
    info = np.finfo(dtype.numpy)
    tiny, largest = float(info.smallest_subnormal), float(info.max)
    divisors = np.array([tiny, -3 * tiny, info.tiny / 4, 0.75 * info.tiny, info.tiny], dtype.numpy)
    values = np.array([0.0, -0.0, tiny, -info.tiny, 1e-20, 1.0, largest, np.inf, np.nan])
    x, y = Var("x", dtype), Var("y", dtype)
    given = {x: np.tile(values.astype(dtype.numpy), 5), y: np.repeat(divisors, len(values))}
    with np.errstate(all="ignore"):
        expected = given[x] / given[y]
        actual = evaluate(legalize(apply("div_common", x, y)), given)
    np.testing.assert_array_equal(actual, expected)


def test_divisors_are_shared_along_the_inner_axis_only():
    i, j = Var("i", INDEX, 64), Var("j", INDEX, 64)
    x = load(Buffer("x", F32, (64, 64)), (i, j))
    y = Buffer("y", F32, (64,))
    by_row, by_column = (apply("div", x, load(y, (v,))) for v in (i, j))
    assert refine([by_row], [j])[0].op == "div_common"
    assert refine([by_column], [j])[0].op == "div"
    assert refine([by_column], [i, j])[0].op == "div_common"
    assert refine([by_column], [i, j], nested=True)[0].op == "div"
    assert refine([by_row], [i, j], nested=True)[0].op == "div_common"
    few = Var("k", INDEX, 3)
    short = apply("div", load(Buffer("z", F32, (64, 3)), (i, few)), load(y, (i,)))
    assert refine([short], [few])[0].op == "div"


def test_softmax_is_no_less_accurate():
    x = np.random.default_rng(1).normal(size=(64, 1000)).astype(np.float32)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = wide / wide.sum(1, keepdims=True)
    ours = np.asarray(mlc_jit(lambda x: jax.nn.softmax(jnp.asarray(x)), choose="ours")(x))
    theirs = np.asarray(jax.jit(jax.nn.softmax)(x))
    assert abs(ours / expected - 1).max() <= 2 * abs(theirs / expected - 1).max()
