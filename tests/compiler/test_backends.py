"""The path of a program with a backend that is not the usual one."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.backends.base import Backend
from hlo_mlc.backends.c import CBackend
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import CompiledModule, compile_module
from hlo_mlc.interop import compat
from hlo_mlc.interop.measuring import register_handler
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import host

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def network(x: jax.Array, w: jax.Array, places: jax.Array) -> tuple[jax.Array, ...]:
    hidden = jax.nn.softmax(jnp.tanh(x @ w) * 3)
    looped = lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) + c[::-1] * i, x[:, 0])
    return hidden, jnp.cumsum(x, 1), hidden.at[places].add(1.0).T, looped, jnp.argmax(x, 1)


RNG = np.random.default_rng(0)
ARGS = (
    RNG.standard_normal((70, 48)).astype(np.float32),
    RNG.standard_normal((48, 48)).astype(np.float32),
    RNG.integers(0, 70, 20).astype(np.int32),
)


def compiled(backend: Backend, **options: object) -> CompiledModule:
    module = jax.jit(network).lower(*ARGS).compiler_ir()
    return compile_module(
        module, Options.from_environment(choose="ours", **options), backend=backend
    )


@pytest.mark.parametrize("backend", [CpuBackend(host()), CBackend(host())], ids=["LLVM", "C"])
def test_programs_run_through_every_backend_for_cpus(backend: Backend) -> None:
    made = compiled(backend)
    assert made.report.coverage == 1 and not made.faults, made.report.explain()
    register_handler("cpu")
    results = compat.compile_for(made.module)(ARGS)
    for ours, theirs in zip(results, jax.tree.leaves(jax.jit(network)(*ARGS)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_kernels_of_several_backends_are_told_apart() -> None:
    names = [
        str(compiled(backend).module).count('-c"')
        for backend in (CpuBackend(host()), CBackend(host()))
    ]
    assert names[0] == 0 < names[1]


def test_every_stage_can_be_seen(tmp_path: Path) -> None:
    compiled(CBackend(host()), dump_dir=tmp_path)
    (folder,) = tmp_path.iterdir()
    sources = list(folder.glob("80-*.c"))
    assert sources and len(sources) == len(list(folder.glob("90-*.txt")))
    assert all("MlcContext* context" in source.read_text() for source in sources)
