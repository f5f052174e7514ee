"""`fn.verify`: kernels and XLA's code against f64, and what it says of kernels that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir import ir

from hlo_mlc import mlc_jit
from hlo_mlc.interop import verifying
from hlo_mlc.interop.verifying import accuracy, ulp
from hlo_mlc.support.errors import UsageError

RNG = np.random.default_rng(7)
X = RNG.standard_normal((40, 33)).astype(np.float32)


def model(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.nn.softmax(jnp.sin(x) @ x.T, -1), jnp.argmax(x, 0)


def test_kernels_are_held_against_f64() -> None:
    ours = mlc_jit(model, choose="ours")
    found = ours.verify(X)
    assert found.is_right and found.kernels
    assert all(kernel.given and kernel.exact_known and kernel.repeats for kernel in found.kernels)
    floats = [k for k in found.kernels if k.ours.ulp is not None]
    assert floats and all(0 < k.ours.error < 1e-5 and 0 < k.by_xla.error < 1e-5 for k in floats)
    assert "as near to f64 as rounding allows" in str(found)
    assert found.as_dict()["is_right"] is True
    assert np.allclose(ours(X)[0], jax.jit(model)(X)[0], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64", "int32"])
def test_types(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(X * 3, dtype)
        (kernel,) = mlc_jit(lambda x: (x * x + 2).sum(0), choose="ours").verify(x).kernels
    assert not kernel.fault and kernel.repeats
    assert kernel.exact_known == (dtype != "float64")
    assert (kernel.ours.ulp is None) == (dtype == "int32")


def test_types_for_arguments() -> None:
    found = mlc_jit(model, choose="ours").verify(jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert found.is_right and not any(kernel.given for kernel in found.kernels)
    assert "on made-up operands" in str(found)


@pytest.mark.filterwarnings("error")
def test_infinities_and_nan_are_compared_without_a_warning() -> None:
    x = X.copy()
    x[3, 5], x[4, 4], x[5, 5] = np.nan, np.inf, -np.inf
    found = mlc_jit(lambda x: (x * 2, jnp.exp(x).sum(1)), choose="ours").verify(x)
    assert found.is_right and found.kernels


def test_loops_that_end_when_data_says_so() -> None:
    def halving(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: jnp.any(jnp.abs(v) > 1), lambda v: v / 2, x)

    ours = mlc_jit(halving, choose="ours")
    assert ours.verify(X).is_right
    assert "give arrays for arguments" in str(ours.verify(jax.ShapeDtypeStruct(X.shape, X.dtype)))


def test_arguments_that_a_loop_overwrites_unread() -> None:
    """Kernels are not given them, what they are held against is."""

    @mlc_jit(choose="ours")
    def function(x, y):
        def step(i, carried):
            a, _ = carried
            return a / 2 + jnp.cumsum(a, 0), a * i

        return jax.lax.fori_loop(0, 9, step, (x, y))

    found = function.verify(X, 2 * X)
    assert found.is_right and all(kernel.ours.error < 1e-5 for kernel in found.kernels)


def test_what_it_verifies_is_what_runs() -> None:
    """Whatever a function computes of no argument is an operation of it, too."""
    ours = mlc_jit(lambda x: x[0, jnp.arange(13) * 7 % 5], choose="ours")
    assert [k.name for k in ours.verify(X).kernels] == [k.name for k in ours.report(X).kernels]
    assert len(ours.report(X).kernels) == 1


def test_nothing_of_ours() -> None:
    assert "no kernels of ours" in str(
        mlc_jit(jnp.sin, choose="ours").verify(jnp.zeros((0,), jnp.float32))
    )


def test_too_few_runs() -> None:
    for runs in (0, "3"):
        with pytest.raises(UsageError, match=f"at least one run, not {runs!r}"):
            mlc_jit(model).verify(X, runs=runs)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r: np.where(np.arange(r.size).reshape(r.shape) % 9, r, r * 1.5), "differ"),
        (lambda r: np.full_like(r, np.nan), "differ"),
    ],
    ids=["wrong", "nan"],
)
def test_what_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, damage: Callable[[np.ndarray], np.ndarray], said: str
) -> None:
    results = verifying._results

    def damaged(program: ir.Module, operands: Sequence[Any], runs: int) -> list[list[np.ndarray]]:
        found = results(program, operands, runs)
        if "custom_call" in str(program):
            return [[damage(r) for r in run] for run in found]
        return found

    monkeypatch.setattr(verifying, "_results", damaged)
    found = mlc_jit(lambda x: jnp.exp(x) + x, choose="ours").verify(X)
    assert not found.is_right
    assert said in found.kernels[0].fault and "a fault of ours" in " ".join(str(found).split())


def test_runs_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    results = verifying._results
    monkeypatch.setattr(
        verifying,
        "_results",
        lambda program, operands, runs: [
            [r + np.float32(number * 1e-7) for r in run]
            for number, run in enumerate(results(program, operands, runs))
        ],
    )
    found = mlc_jit(lambda x: jnp.exp(x), choose="ours").verify(X)
    assert not found.is_right and not found.kernels[0].xla_repeats
    assert "runs of ours differ" in str(found) and "runs of XLA's code differ" in str(found)


@pytest.mark.parametrize(
    "dtype",
    [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e4m3fn],
    ids=lambda t: t.__name__,
)
def test_ulp_is_the_distance_to_the_next(dtype: type) -> None:
    values = np.array([1, 1.5, 2, 3.75, 0.015625, 240, 0], dtype)
    got = ulp(values.astype(np.float64), np.dtype(dtype))
    bits = np.dtype(f"uint{8 * values.itemsize}")
    after = (values.view(bits) + bits.type(1)).view(dtype)
    np.testing.assert_array_equal(got, after.astype(np.float64) - values.astype(np.float64))


def test_accuracy_counts_specials_and_integers() -> None:
    exact = [np.array([1.0, np.nan, 1e39, 2.0]), np.array([1, 2, 3])]
    right = [np.array([1.0, np.nan, np.inf, 2.0], np.float32), np.array([1, 2, 3])]
    assert accuracy(right, exact) == verifying.Accuracy(0.0, 0.0, 0, 0)
    wrong = [
        np.array([np.nan, np.nan, 1.0, np.nextafter(np.float32(2), np.float32(3))], np.float32),
        np.array([1, 2, 4]),
    ]
    found = accuracy(wrong, exact)
    assert (found.specials, found.differing, found.ulp) == (2, 1, 1.0)
