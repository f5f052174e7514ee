"""`hlo_mlc.compare`: both sides of a function on the same arguments, and what it says of them."""

from __future__ import annotations

import functools
import gc
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.interop.comparing import FunctionComparison, first_call_s
from hlo_mlc.interop.referee import largest_error
from hlo_mlc.support.errors import UsageError

X = jnp.linspace(-2.0, 3.0, 64 * 32).reshape(64, 32)
compare = functools.partial(hlo_mlc.compare, rounds=1)


def softmax(x: jax.Array) -> jax.Array:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_both_sides_are_measured() -> None:
    found = compare(mlc_jit(softmax, choose="ours"), X)
    assert found.name == "softmax" and found.rounds == 1 and not found.difference
    assert [kernel.name.partition("@")[0] for kernel in found.report.kernels] == ["softmax"]
    for side in (found.ours, found.jax):
        assert side.us > 0 and side.first_call_s > 0
        assert side.error is not None and 0 < side.error < 1e-6
        assert side.memory_bytes is not None and side.memory_bytes >= 2 * X.nbytes
    assert found.speedup == pytest.approx(found.jax.us / found.ours.us, rel=1e-6)


def test_it_is_a_short_table_and_data() -> None:
    found = compare(mlc_jit(softmax, choose="ours"), X)
    lines = str(found).splitlines()
    assert lines[0].split() == ["softmax", "ours", "jax.jit", "jax.jit", "/", "ours"]
    assert len(lines) <= 10 and max(map(len, lines)) <= 80
    assert repr(found) == str(found)
    content = json.loads(json.dumps(found.as_dict()))
    assert content["ours"]["us"] == found.ours.us and content["speedup"] == found.speedup
    assert content["report"]["kernels"][0]["name"] == found.report.kernels[0].name


def test_kernels_that_are_known_are_no_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    x = jnp.ones((64, 33))
    first, again = (
        str(compare(mlc_jit(lambda x: jnp.sin(x) * 3.25, choose="ours"), x)) for _ in range(2)
    )
    assert "known from before" not in first and "its kernels were known from before" in again


def test_a_first_call_has_no_full_collection() -> None:
    """Which takes as long as the process has objects, whoever runs into it."""
    before, seen = gc.get_threshold(), []

    def f(x: jax.Array) -> jax.Array:
        seen.append(gc.get_threshold())
        return x + 1

    assert first_call_s(jax.jit(f), (X,)) > 0
    assert [thresholds[:2] for thresholds in seen] == [before[:2]] and seen[0][2] > 1e9
    assert gc.get_threshold() == before


def test_what_xla_runs_is_said() -> None:
    found = compare(mlc_jit(softmax, choose="xla"), X)
    assert 'no kernels of ours, both ran XLA\'s code: choose="xla" asks for it' in str(found)


def test_arguments_of_all_kinds() -> None:
    @functools.partial(mlc_jit, choose="ours", static_argnames="power")
    def f(tree: dict[str, jax.Array], key: jax.Array, *, power: int) -> dict[str, jax.Array]:
        return {"y": tree["x"] ** power + jax.random.normal(key, tree["x"].shape), "key": key}

    found = compare(f, {"x": X}, jax.random.key(0), power=3)
    assert not found.difference and found.report.kernels


def test_donated_arguments_are_kept() -> None:
    found = compare(mlc_jit(lambda x: jnp.sin(x) * 2, choose="ours", donate_argnums=0), X)
    assert "nothing was donated" in str(found)
    assert not X.is_deleted()


def test_values_are_made_up_for_types() -> None:
    table, places = (
        jax.ShapeDtypeStruct((100, 8), jnp.float32),
        jax.ShapeDtypeStruct((50,), jnp.int32),
    )
    found = compare(mlc_jit(lambda t, i: jnp.sin(t[i]), choose="ours"), table, places)
    assert "its arguments are made up" in str(found) and not found.difference


def test_methods_and_modules() -> None:
    class Model:
        scale = 3.0

        @functools.partial(mlc_jit, choose="ours", static_argnums=0)
        def apply(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(x) * self.scale

    assert compare(Model().apply, X).report.kernels
    module = jax.jit(softmax).lower(X).as_text()
    assert compare(compile_stablehlo(module, choose="ours"), X).report.kernels


def test_static_arguments_of_what_jax_jit_made() -> None:
    @functools.partial(jax.jit, static_argnums=1, static_argnames="scale")
    def pooled(x: jax.Array, rows: int, *, scale: int) -> jax.Array:
        return jnp.tanh(x.reshape(rows, -1)).sum(0) * float(scale)

    found = compare(pooled, X, 4, scale=2, rounds=5)
    assert found.name == "pooled" and not found.difference


def test_functions_that_call_back_are_not_run_in_f64() -> None:
    def noisy(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda _: None, x[0, 0])
        return jnp.tanh(x)

    found = compare(noisy, X)
    assert found.ours.error is None and "error against f64" not in str(found)
    assert re.search(r"no errors against f64: \w*python_cpu_callback cannot", str(found))


def test_lapack_is_called_with_f64_for_what_is_exact() -> None:
    def whitened(x: jax.Array) -> jax.Array:
        factor = jnp.linalg.cholesky(x @ x.T + 64 * jnp.eye(len(x)))
        return jax.scipy.linalg.solve_triangular(factor, x, lower=True)

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    found = compare(whitened, x, rounds=5)
    assert found.ours.error is not None and found.ours.error < 1e-5


def test_vectors_that_may_turn_round_have_no_error() -> None:
    found = compare(lambda x: jnp.linalg.eigh(x @ x.T)[1], X, rounds=5)
    assert found.ours.error is None
    assert "no errors against f64: lapack_ssyevd_ffi cannot be called with it" in " ".join(
        str(found).split()
    )


def test_results_that_differ_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(results: object, expected: object) -> str:
        return "12% of the elements of result 0 differ"

    monkeypatch.setattr("hlo_mlc.interop.comparing.disagreement", measured)
    monkeypatch.setattr("hlo_mlc.interop.comparing.as_near", lambda *_: False)
    assert "the results differ: 12% of the elements" in str(compare(softmax, X))


def test_what_is_0_but_for_rounding_has_no_relative_error() -> None:
    """As gradients have that cancel: 1e-8 for 1e-17 would be an error of 1e9."""

    def centred(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x, (x - x.mean()).mean()

    found = hlo_mlc.compare(centred, jnp.linspace(0.1, 1.7, 1001), rounds=1)
    assert found.ours.error is not None and found.jax.error is not None
    assert max(found.ours.error, found.jax.error) < 1e-5
    assert largest_error(np.array([1e-8]), np.array([1e-17])) > 1e8
    assert largest_error(np.array([1e-8]), np.array([1e-17]), noise=1e-16) < 1.1e-8


def test_nothing_is_settled_by_it() -> None:
    function = mlc_jit(softmax)
    found: FunctionComparison = hlo_mlc.compare(function, X, rounds=20)
    assert not found.report.comparisons and function.report(X).comparisons == ()


def test_what_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="compare takes a function first, got int"):
        compare(3, X)  # type: ignore[arg-type]
    for rounds in (0, 2.5, "3"):
        with pytest.raises(UsageError, match=f"at least one round, not {rounds!r}"):
            hlo_mlc.compare(softmax, X, rounds=rounds)
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        compare(softmax, X, X)


def test_the_largest_error() -> None:
    exact = np.array([2.0, -4.0, np.inf])
    assert largest_error(np.array([2.0, -3.0, np.inf], np.float32), exact) == 0.25
    assert largest_error(np.array([2.0, -4.0, 1.0], np.float32), exact) == math.inf
    assert largest_error(np.array([np.nan, -4.0, np.inf], np.float32), exact) == math.inf
    assert largest_error(np.zeros(2, np.float32), exact) == math.inf
    assert largest_error(np.array([1, 2]), np.array([1, 2])) == 0.0
    assert largest_error(np.array([1, 2]), np.array([1, 3])) == math.inf
