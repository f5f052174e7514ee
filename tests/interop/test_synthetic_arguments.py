"""Arguments that are made up are such that programs can be compared on them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.synthetic_arguments import invented_arguments
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
    x, inner, outer, table, index = invented_arguments(function.lower(*types).compiler_ir())
    assert abs(inner.std() - 48 ** -0.5) < 0.02
    assert abs(outer.std() - 64 ** -0.5) < 0.02
    assert min(x.std(), table.std()) > 0.9  # what loops do not multiply with is as it was
    assert index.max() < 10

    def last(scale: float) -> list[np.ndarray]:
        return [np.asarray(function(np.nextafter(x, np.inf, dtype=x.dtype) if near else x,
                                    inner * scale, outer * scale, table, index))
                for near in (False, True)]

    actual, expected = last(0.25)
    assert not baseline_fault([actual], [expected])
    actual, expected = last(8.0)
    assert baseline_fault([actual], [expected])
