"""The random programs of test_random_programs.py as CUDA C++ on the emulator."""

from __future__ import annotations

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

EXTENTS = st.sampled_from((1, 2, 3, 5, 8, 15, 16, 17, 31, 33))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=3).filter(lambda s: np.prod(s) <= 1000)
OPERAND = st.integers(0, 3)
RECIPES = st.lists(
    st.tuples(st.integers(0, 99), OPERAND, OPERAND, st.integers(0, 2**90)), min_size=3, max_size=8
).map(tuple)
# One call of g++ compiles them all.
BATCH = st.lists(st.tuples(RECIPES, SHAPES, st.integers(0, 10**6)), min_size=10, max_size=10)


@pytest.mark.parametrize("half", range(2))
@hypothesis.settings(
    max_examples=3,
    deadline=None,
    print_blob=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(batch=BATCH)
def test_random_programs(half, take_apart, random_program, emulator, cuda_source, batch) -> None:
    """Whole numbers below 2**24, so that nothing is rounded and results must be equal."""
    prepared = []
    for recipe, shape, seed in batch:
        rng = np.random.default_rng(seed + half)
        args = (
            rng.integers(-4, 5, shape).astype(np.float32),
            rng.integers(-4, 5, shape[::-1]).astype(np.int32),
            rng.integers(-4, 5, shape[-1:]).astype(np.float32),
        )
        program = random_program(recipe, 2)
        parts = take_apart(program, *args)
        sources = {p: cuda_source(p) for p in parts.programs}
        prepared.append((program, args, parts, sources, seed, f"{recipe} {shape} {seed}"))
    emulator.prepare(
        [s for *_, sources, _, _ in prepared for s in sources.values()], keep=False, run_once=True
    )
    for program, args, parts, sources, seed, recipe in prepared:

        def execute(inner, operands, sources=sources, seed=seed):
            return emulator.run(
                sources[inner], inner, operands, seed % 9, ("end", "start")[seed % 2]
            )

        expected = jax.tree.leaves(jax.jit(program)(*args))
        for ours, theirs in zip(parts.run(args, execute), expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(
                ours.astype(np.float64), np.asarray(theirs).astype(np.float64), recipe
            )
