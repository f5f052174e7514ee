"""On a machine with a GPU: kernels launched by hand through CuPy, and by XLA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cuda.raw import raw_kernel

pytestmark = pytest.mark.cuda

FUNCTIONS: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "map": (lambda x: jnp.tanh(x) * 2 + 1, (1003,)),
    "softmax": (jax.nn.softmax, (37, 1000)),
    "softmax of rows in shared memory": (jax.nn.softmax, (3, 40_000)),
    "cumulative sums": (lambda x: jnp.cumsum(jnp.abs(x), 1), (37, 1004)),
    "cumulative sums of a long row": (lambda x: jnp.cumsum(jnp.abs(x)), (100_000,)),
    "cumulative maxima": (lambda x: lax.cummax(x, 0, reverse=True), (1000, 50)),
    "product of a long depth": (
        lambda x: (
            jnp.dot(
                x.T.astype(jnp.bfloat16), x.astype(jnp.bfloat16), preferred_element_type=jnp.float32
            )
            + 1
        ),
        (4096, 40),
    ),
    "sum of all": (lambda x: x.sum(), (1000, 1000)),
    "sums of columns": (lambda x: x.sum(0), (3000, 50)),
    "places of the largest": (lambda x: jnp.argmax(x, -1), (64, 777)),
    "transpose": (lambda x: x.T + 1, (333, 130)),
    "product": (lambda x: jnp.tanh(jnp.dot(x, x.T, precision="highest")), (37, 130)),
    "product of narrow floats": (
        lambda x: (
            jnp.dot(
                x.T.astype(jnp.bfloat16), x.astype(jnp.bfloat16), preferred_element_type=jnp.float32
            )
            + 1
        ),
        (65, 100),
    ),
    "product of halves": (
        lambda x: (
            jnp.dot(
                x.astype(jnp.float16), x.T.astype(jnp.float16), preferred_element_type=jnp.float32
            )
            + 1
        ),
        (100, 64),
    ),
    "pool": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"), (61, 130)),
    "sums by places": (lambda x: jnp.asarray(x).at[jnp.arange(300) % 7].add(x), (300, 20)),
    "loop": (lambda x: lax.fori_loop(0, 20, lambda i, c: c * 0.5 + jnp.roll(c, 1) * i, x), (300,)),
}


@pytest.fixture(scope="module")
def cupy() -> ModuleType:
    """CuPy with a GPU; skips where there is none."""
    found = pytest.importorskip("cupy")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("JAX has no GPU here")
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_raw_kernels(cupy, take_apart, cuda_source, name: str) -> None:
    function, shape = FUNCTIONS[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    parts = take_apart(function, x, platform="cuda")

    def execute(program, operands):
        source = cuda_source(program)
        # As bytes: CuPy does not know all of our types.
        buffers = [
            cupy.asarray(np.ascontiguousarray(a).reshape(-1).view(np.uint8)) for a in operands
        ]
        buffers += [cupy.zeros(b.bytes, cupy.uint8) for b in program.results]
        scratch = cupy.zeros(max(1, source.scratch_bytes), cupy.uint8)
        for launch in source.launches:
            arguments = [buffers[n] for n in launch.buffers]
            arguments += [scratch] * launch.takes_scratch
            arguments += [np.int32(n) for n in launch.counters]
            raw = raw_kernel(source, launch.function)
            if launch.shared_bytes:
                raw.max_dynamic_shared_size_bytes = launch.shared_bytes
            raw(
                (launch.blocks,),
                (launch.threads,),
                tuple(arguments),
                shared_mem=launch.shared_bytes,
            )
        return [
            cupy.asnumpy(raw).view(b.dtype.numpy).reshape(b.shape)
            for raw, b in zip(buffers[len(operands) :], program.results, strict=True)
        ]

    for ours, theirs in zip(parts.run([x], execute), jax.tree.leaves(function(x)), strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), 1e-4, 1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs(cupy, name: str) -> None:
    function, shape = FUNCTIONS[name]
    compiled = mlc_jit(function, choose="ours")
    for device in jax.devices("gpu"):
        x = jax.device_put(
            np.random.default_rng(1).standard_normal(shape).astype(np.float32), device
        )
        actual, expected = compiled(x), jax.jit(function)(x)
        assert compiled.report(x).coverage == 1, compiled.report(x).explain()
        for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_arithmetic_of_narrow_floats(cupy, dtype: str) -> None:
    """Every number with others: as f32 has it, rounded."""
    every = np.tile(np.arange(1 << 16, dtype=np.uint16).view(dtype), 64)
    others = np.random.default_rng(0).permutation(every)
    ops = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "max": np.maximum,
        "min": np.minimum,
    }
    compiled = mlc_jit(
        lambda x, y: (x + y, x - y, x * y, x / y, jnp.maximum(x, y), jnp.minimum(x, y)),
        choose="ours",
    )
    results = compiled(every, others)
    assert compiled.report(every, others).coverage == 1
    with np.errstate(all="ignore"):
        for (name, op), actual in zip(ops.items(), results, strict=True):
            wide = op(every.astype(np.float32), others.astype(np.float32))
            np.testing.assert_array_equal(
                np.asarray(actual).astype(np.float32), wide.astype(dtype).astype(np.float32), name
            )


@pytest.mark.parametrize("name", ("softmax", "product of narrow floats", "sum of all"))
def test_tuning(cupy, name: str, tmp_path: Path, monkeypatch) -> None:
    """Candidates run on the GPU, and programs then run the winner."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    function, shape = FUNCTIONS[name]
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    compiled = mlc_jit(lambda x: function(x), choose="ours")
    report = compiled.tune(x, trials=6)
    assert report.whole is not None
    for kernel in report.kernels:
        assert kernel.record is not None, kernel.reason
        assert kernel.failed < kernel.tried == 6
        assert kernel.record.measured.xla_ratio > 0
    actual, expected = compiled(x), jax.jit(function)(x)
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), 1e-4, 1e-4)
    assert compiled.report(x).coverage == 1
