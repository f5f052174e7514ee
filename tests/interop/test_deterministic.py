"""`deterministic=True`: the same bits for any number of threads, whatever was tuned or measured."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.backends.cpu import target_of
from hlo_mlc.interop.settling import Settling
from hlo_mlc.interop.staged import forget
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options

OTHER = {"count": 1, "unroll": 1}  # of the sums that a row is cut into
X = np.random.default_rng(0).normal(size=(700, 900)).astype(np.float32)


def attention(x: jax.Array) -> jax.Array:
    q = x[:512, :64]
    return jax.nn.softmax(q @ q.T / 8) @ q


PROGRAMS: dict[str, Callable] = {
    "whole": lambda x: x.sum(),
    "rows": lambda x: jnp.exp(x).sum(1),
    "columns": lambda x: (x * x).sum(0),
    "few columns": lambda x: x.reshape(-1, 3).sum(0),
    "cumulative": lambda x: jnp.cumsum(x.ravel()),
    "along columns": lambda x: jnp.cumsum(x, 0),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "product": lambda x: x @ x.T,
    "few rows": lambda x: x[:5] @ x[5:].T,
    "dot": lambda x: jnp.vdot(x, x[::-1]),
    "attention": attention,
    "convolution": lambda x: lax.conv(x[None, None], x[None, None, :5, :7], (1, 1), "VALID"),
    "window": lambda x: lax.reduce_window(x, 0.0, lax.add, (9, 3), (2, 1), "SAME"),
    "scattered": lambda x: jnp.zeros(50).at[(jnp.abs(x[0]) * 20).astype(int)].add(x[1]),
    "loop": lambda x: lax.fori_loop(0, 5, lambda i, y: jnp.tanh(y @ x[:64, :64] / 9), x[:, :64]),
}


def bits(function: Callable, x: np.ndarray) -> list[bytes]:
    return [np.asarray(r).tobytes() for r in jax.tree.leaves(function(x))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """That kernels are planned for. (On how many they run is in tests/runtime.)"""
    found = set()
    for threads in (1, 2, 3, 8, 64):
        monkeypatch.setenv("HLO_MLC_THREADS", str(threads))
        function = mlc_jit(lambda x: PROGRAMS[name](x), choose="ours", deterministic=True)
        found.add(tuple(bits(function, X)))
        assert function.report(X).coverage == 1
    assert len(found) == 1


def test_what_was_tuned_has_no_say() -> None:
    """It has where nobody asks for the same bits, in the same process."""

    def row_sums(x: jax.Array) -> jax.Array:
        return x.sum(1)

    usual = Options.from_environment(choose="ours")
    before = bits(mlc_jit(lambda x: row_sums(x), choose="ours"), X)
    fixed = mlc_jit(row_sums, choose="ours", deterministic=True)
    expected = bits(fixed, X)
    (kernel,) = fixed.report(X).kernels
    (nest,) = kernel.nests
    schedule = (nest.template, OTHER)
    open_records(usual).put(
        Record(kernel.id, target_of(usual).key, {0: schedule}, Measured(2.0, 1.0, 2.0))
    )
    forget()
    tuned = mlc_jit(lambda x: row_sums(x), choose="ours")
    assert bits(tuned, X) != before
    again = mlc_jit(lambda x: row_sums(x), choose="ours", deterministic=True)
    assert bits(again, X) == expected == bits(fixed, X)
    assert tuned.report(X).kernels[0].tuned and not again.report(X).kernels[0].tuned
    with pytest.raises(UsageError, match="nothing that was tuned is compiled"):
        fixed.tune(X, trials=1)


def test_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_SETTLE", "1")
    monkeypatch.setenv("HLO_MLC_CALIBRATE", "1")
    assert isinstance(mlc_jit(attention).func, Settling)
    assert not isinstance(mlc_jit(attention, deterministic=True).func, Settling)
    options = Options.from_environment(deterministic=True)
    assert target_of(options).rates == target_of(options.replace(calibrate=False)).rates
    with pytest.raises(UsageError, match="contradict each other"):
        mlc_jit(attention, deterministic=True, choose="measure")


def test_the_environment_can_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_DETERMINISTIC", "1")
    function = mlc_jit(lambda x: x.sum(0), choose="ours")
    assert "the same bits on any number of threads" in str(function.explain(X))
    monkeypatch.setenv("HLO_MLC_DETERMINISTIC", "0")
    assert "the same bits" not in str(mlc_jit(lambda x: x.sum(0), choose="ours").explain(X))
