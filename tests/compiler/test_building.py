"""Kernels of one program are assembled by two threads."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import building, mlc_jit
from hlo_mlc.target.cpu import CpuTarget

# Too large for any two of them to share a kernel.
_SHAPES = ((96, 131, 67), (67, 131, 96), (131, 67, 96), (131, 96, 67))


def _products(*pairs: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
    return [x @ y for x, y in pairs]


def _pairs() -> list[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(0)
    return [(jnp.asarray(rng.standard_normal((m, k)), jnp.float32),
             jnp.asarray(rng.standard_normal((k, n)), jnp.float32)) for m, k, n in _SHAPES]


def test_the_printing_thread_assembles_what_the_other_one_has_not_begun(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The assembling thread waits in its first kernel until the other one has had one, too."""
    main, helped, real = threading.current_thread(), threading.Event(), building.compile_ir
    threads: list[threading.Thread] = []

    def assemble(source: str, target: CpuTarget) -> bytes:
        threads.append(threading.current_thread())
        if threads[-1] is main:
            helped.set()
        assert helped.wait(60)
        return real(source, target)

    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "compile_ir", assemble)
    function, pairs = mlc_jit(_products, choose="ours"), _pairs()
    results = function(*pairs)
    assert function.report(*pairs).coverage == 1
    assert len(threads) == len(_SHAPES) and len(set(threads)) == 2
    for result, (x, y) in zip(results, pairs, strict=True):
        np.testing.assert_allclose(result, np.float64(x) @ np.float64(y), rtol=1e-4, atol=1e-4)


def test_what_fails_on_the_printing_thread_is_raised(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, failed, real = threading.current_thread(), threading.Event(), building.compile_ir

    def assemble(source: str, target: CpuTarget) -> bytes:
        if threading.current_thread() is main:
            failed.set()
            raise ArithmeticError("no such instruction")
        assert failed.wait(60)
        return real(source, target)

    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "compile_ir", assemble)
    with pytest.raises(Exception, match="no such instruction"):
        mlc_jit(lambda *pairs: [y * 2 for y in _products(*pairs)], choose="ours")(*_pairs())
    assert gc.isenabled()
