"""Which values get a buffer of their own, and what is computed where it is read."""

from __future__ import annotations

import jax.numpy as jnp

from hlo_mlc.partition.lowering import DEPTH_LIMIT, JOINED_LIMIT
from hlo_mlc.tensor.classify import is_map


def _stages(parts):
    return [stage for program in parts.programs for step in program.steps
            for stage in step.stages]


def test_a_sum_of_few_terms_is_part_of_what_reads_it(take_apart, arrays):
    x, = arrays("float32", (100, 3))
    (stage,) = _stages(take_apart(lambda x: jnp.sqrt((x * x).sum(1) + 1), x))
    assert is_map(stage)


def test_a_sum_of_more_terms_is_a_reduction(take_apart, arrays):
    x, = arrays("float32", (100, 5))
    assert not all(map(is_map, _stages(take_apart(lambda x: (x * x).sum(1), x))))


def test_what_is_joined_for_a_product_is_put_together_once(take_apart, arrays):
    x, y, w = arrays("float32", (3, 5), (3, 4), (9, 8))

    def function(x, y, w):
        return jnp.concatenate([x, y], 1) @ w

    joined = [a.buffer.shape for s in _stages(take_apart(function, x, y, w)) for a in s.assigns]
    assert (3, 9) in joined
    rows = JOINED_LIMIT // 36 + 1
    x, y = arrays("float32", (rows, 5), (rows, 4))
    joined = [a.buffer.shape for s in _stages(take_apart(function, x, y, w)) for a in s.assigns]
    assert (rows, 9) not in joined


def test_moves_on_top_of_each_other_end_in_a_buffer(take_apart, arrays):
    x, = arrays("float32", (6, 6))

    def function(x, depth):
        for _ in range(depth):
            x = jnp.roll(x.T, 1, 0)
        return x

    assert len(_stages(take_apart(lambda x: function(x, 2), x))) == 1
    assert len(_stages(take_apart(lambda x: function(x, DEPTH_LIMIT), x))) > 1
