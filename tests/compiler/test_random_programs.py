"""Random programs of all kinds of ops, in arithmetic that is exact in every order."""

from __future__ import annotations

import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st

EXTENTS = st.sampled_from((1, 2, 3, 5, 8, 15, 16, 17, 31, 33))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=3).filter(lambda s: np.prod(s) <= 3000)
OPERAND = st.integers(0, 3)
# Digits: where 100 and more are allowed, Hypothesis also draws numbers out of the source of loaded
# modules, and which are loaded differs by the tests before.
CHOICES = st.lists(st.integers(0, 99), min_size=14, max_size=14).map(
    lambda digits: sum(digit * 100**n for n, digit in enumerate(digits))
)
RECIPES = st.lists(
    st.tuples(st.integers(0, 99), OPERAND, OPERAND, CHOICES), min_size=3, max_size=25
).map(tuple)


@hypothesis.settings(
    max_examples=100,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(recipe=RECIPES, outputs=st.integers(1, 3), shape=SHAPES, seed=st.integers(0, 99))
def test_random_programs(check, random_program, recipe, outputs, shape, seed):
    """Whole numbers below 2**24, so that nothing is rounded and results must be equal."""
    rng = np.random.default_rng(seed)
    program = random_program(recipe, outputs)
    args = (
        rng.integers(-4, 5, shape).astype(np.float32),
        rng.integers(-4, 5, shape[::-1]).astype(np.int32),
        rng.integers(-4, 5, shape[-1:]).astype(np.float32),
    )
    try:
        check(program, *args, coverage=0.8, kernels=None, ulps=0)
    finally:
        jax.clear_caches()
