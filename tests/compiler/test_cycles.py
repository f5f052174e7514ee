"""What a compilation makes is freed as soon as nobody needs it: what is left to the collector of
cycles makes that take longer, which comes by right behind it, within the first call."""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hlo_mlc.compiler import compile_module
from hlo_mlc.support.options import Options


@pytest.fixture
def uncollected() -> Iterator[list[object]]:
    """What the collector finds is shown, not freed."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()


def layers(x: jax.Array, w: jax.Array) -> jax.Array:
    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(carry * 0.5 + row), carry

    scores = jax.nn.softmax(x @ w @ w.T, axis=-1)
    return lax.scan(step, jnp.zeros(x.shape[1]), scores[:, : x.shape[1]] @ w[: x.shape[1]])[1]


def test_compilations_leave_no_cycles(tmp_path: Path, uncollected: list[object]) -> None:
    of = [jax.ShapeDtypeStruct((96, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)]
    module = jax.jit(layers).lower(*of).compiler_ir()
    gc.collect()
    uncollected.clear()
    before = gc.get_objects()  # of other tests, which caches may let go of now
    compiled = compile_module(module, Options(choose="ours", cache_dir=tmp_path))
    gc.collect()
    del before
    assert compiled.report.coverage > 0.9
    kinds = (one if isinstance(one, types.FunctionType) else type(one) for one in uncollected)
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    ours = Counter(name for name in names if name.startswith("hlo_mlc."))
    assert not any("<locals>" in name for name in ours), ours  # functions that call themselves
    assert sum(ours.values()) < 100, ours
