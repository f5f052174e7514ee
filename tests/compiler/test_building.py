"""Kernels of one program are assembled on a thread of their own."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.backends import cpu
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.target.cpu import CpuTarget

# Too large for any two of them to share a kernel.
_SHAPES = ((96, 131, 67), (67, 131, 96), (131, 67, 96), (131, 96, 67))


def _products(*pairs: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
    return [x @ y for x, y in pairs]


def _pairs() -> list[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(0)
    return [
        (
            jnp.asarray(rng.standard_normal((m, k)), jnp.float32),
            jnp.asarray(rng.standard_normal((k, n)), jnp.float32),
        )
        for m, k, n in _SHAPES
    ]


def test_a_kernel_is_printed_while_another_is_assembled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assembling threads wait in their first kernels until a second one is printed."""
    assemble, write = cpu.compile_ir, cpu.printer.print_program
    threads, printed, second = [], [], threading.Event()

    def assemble_later(source: str, target: CpuTarget) -> bytes:
        threads.append(threading.current_thread())
        assert second.wait(60)
        return assemble(source, target)

    def write_noting(program: LoopProgram, target: CpuTarget, checked: bool, most: int) -> str:
        printed.append(program.name)
        if len(printed) == 2:
            second.set()
        return write(program, target, checked, most)

    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu, "compile_ir", assemble_later)
    monkeypatch.setattr(cpu.printer, "print_program", write_noting)
    function, pairs = mlc_jit(_products, choose="ours"), _pairs()
    results = function(*pairs)
    assert function.report(*pairs).coverage == 1
    assert len(threads) == len(printed) == len(_SHAPES)
    assert threading.current_thread() not in threads
    for result, (x, y) in zip(results, pairs, strict=True):
        np.testing.assert_allclose(result, np.float64(x) @ np.float64(y), rtol=1e-4, atol=1e-4)


def test_what_fails_on_the_assembling_thread_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assemble(source: str, target: CpuTarget) -> bytes:
        assert not gc.isenabled()  # looking for cycles would take time, and find none
        raise ArithmeticError("no such instruction")

    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu, "compile_ir", assemble)
    with pytest.raises(Exception, match="no such instruction"):
        mlc_jit(lambda *pairs: [y * 2 for y in _products(*pairs)], choose="ours")(*_pairs())
    assert gc.isenabled()
