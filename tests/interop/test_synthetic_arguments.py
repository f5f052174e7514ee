"""Arguments that are made up are such that programs can be compared on them."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.synthetic_arguments import synthetic_arguments
from hlo_mlc.interop.tuning import tune_module
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.agreement import baseline_fault


def recurrence(x, inner, outer, table, index):
    def step(state, given):
        state = jnp.tanh((given @ inner.T + state @ outer) * 4)
        return state, state[0]

    return lax.scan(step, jnp.zeros((8, 64)), x + table[index])[1] @ outer


def test_states_of_loops_do_not_become_chaotic() -> None:
    """Where 200 trips would magnify a rounding step into a different result."""
    shapes = ((200, 8, 48), (64, 48), (64, 64), (10, 48), (8,))
    types = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes[:-1]]
    types.append(jax.ShapeDtypeStruct(shapes[-1], jnp.int32))
    function = jax.jit(recurrence)
    x, inner, outer, table, index = synthetic_arguments(function.lower(*types).compiler_ir())
    assert abs(inner.std() - 48**-0.5) < 0.02
    assert abs(outer.std() - 64**-0.5) < 0.02
    assert min(x.std(), table.std()) > 0.9  # what loops do not multiply with is as it was
    assert index.max() < 10

    def last(scale: float) -> list[np.ndarray]:
        return [
            np.asarray(
                function(
                    np.nextafter(x, np.inf, dtype=x.dtype) if near else x,
                    inner * scale,
                    outer * scale,
                    table,
                    index,
                )
            )
            for near in (False, True)
        ]

    actual, expected = last(0.25)
    assert not baseline_fault([actual], [expected])
    actual, expected = last(8.0)
    assert baseline_fault([actual], [expected])


def test_recurrences_are_tuned_on_types_alone(tmp_path: Path) -> None:
    """Their matrices are found where simplified loops use them, from outside."""

    def scan(x, inner, outer):
        def step(state, given):
            state = jnp.tanh(given @ inner + state @ outer)
            return state, state

        return lax.scan(step, jnp.zeros((8, 96)), x)[1]

    types = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((300, 8, 48), (48, 96), (96, 96))]
    module = jax.jit(scan).lower(*types).compiler_ir()
    report = tune_module(module, Options(cache_dir=tmp_path, choose="ours"), trials=1)
    assert any("while" in op for kernel in report.kernels for op in kernel.ops)
    assert not [kernel.reason for kernel in report.kernels if kernel.reason]
