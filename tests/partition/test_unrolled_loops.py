"""Loops of a few trips over short vectors are written out, each trip as in the loop."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.tensor.core import Loop

SHAPES = [(4,), (1, 4), (3, 4), (2, 3, 4), (1, 1, 2), (4, 1), (1, 1)]
UPDATES = {
    "element": lambda i, v, x: v.at[..., i % v.shape[-1]].set(x[..., 0]),
    "added_to": lambda i, v, x: v.at[..., i % v.shape[-1]].add(x[..., -1]) + x,
    "first_row": lambda i, v, x: v.at[0].set(x[-1]) + x,
    "first_rows": lambda i, v, x: v.at[:1].set(x[-1:]) * 2,
    "row_at": lambda i, v, x: v.at[i % v.shape[0]].set(x[0]) - 1,
    "slice": lambda i, v, x: lax.dynamic_update_slice_in_dim(v, x[..., -1:], i, -1) - v[..., ::-1],
    "whole": lambda i, v, x: lax.dynamic_update_slice(v, x, [0] * v.ndim) + v,
    "chosen": lambda i, v, x: v.at[..., jnp.abs(x.ravel()[0]) % v.shape[-1]].set(i),
    "turned": lambda i, v, x: (
        lax.dynamic_update_slice_in_dim(
            jnp.concatenate([v[..., 1:], v[..., :1]], -1), v[..., -1:], i, -1
        )
        * 3
    ),
    "many": lambda i, v, x: v.at[..., jnp.array([0, v.shape[-1] - 1])].set(x[..., :1] + i),
}


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_trips_are_those_of_the_loop(check, update, shape, dtype):
    rng = np.random.default_rng(len(shape))
    v, x = (rng.integers(0, 9, shape).astype(dtype) for _ in range(2))
    check(lambda v, x: lax.fori_loop(0, 3, lambda i, v: UPDATES[update](i, v, x), v), v, x)


def test_what_comes_from_outside_is_handed_on(check):
    def function(v, x):
        return lax.fori_loop(0, 3, lambda i, s: (x, s[1].at[i].set(s[0][i])), (v, v))

    check(function, np.arange(4, dtype=np.int32), np.arange(4, 8, dtype=np.int32))


def test_vectors_of_a_batch_stay_in_registers(take_apart):
    """No loop is left, and no step between the trips."""

    def function(pivots):
        def exchange(i, p):
            other = p[jnp.arange(5), pivots[:, i]]
            return p.at[jnp.arange(5), pivots[:, i]].set(p[:, i]).at[:, i].set(other)

        return lax.fori_loop(0, 3, exchange, jnp.broadcast_to(jnp.arange(3), (5, 3)))

    (program,) = take_apart(function, np.zeros((5, 3), np.int32)).programs
    assert not any(isinstance(step, Loop) for step in program.steps)
    assert program.temporaries == ()
