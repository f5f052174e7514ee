"""Programs as those of test_random_programs.py as CUDA C++ on the emulator."""

from __future__ import annotations

import jax
import numpy as np
import pytest

EXTENTS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33)
LARGEST = 1000


def a_recipe(rng: np.random.Generator) -> tuple[tuple[int, int, int, int], ...]:
    return tuple(
        (*rng.integers((100, 4, 4)).tolist(), int.from_bytes(rng.bytes(12)))
        for _ in range(rng.integers(3, 9))
    )


def a_shape(rng: np.random.Generator) -> tuple[int, ...]:
    while True:
        shape = rng.choice(EXTENTS, rng.integers(1, 4))
        if shape.prod() <= LARGEST:
            return tuple(shape.tolist())


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed, take_apart, random_program, emulator, cuda_source) -> None:
    """Whole numbers below 2**24, so that nothing is rounded and results must be equal."""
    rng = np.random.default_rng(seed)
    prepared = []
    for number in range(10):  # one call of g++ compiles them all
        recipe, shape = a_recipe(rng), a_shape(rng)
        args = (
            rng.integers(-4, 5, shape).astype(np.float32),
            rng.integers(-4, 5, shape[::-1]).astype(np.int32),
            rng.integers(-4, 5, shape[-1:]).astype(np.float32),
        )
        program = random_program(recipe, 2)
        parts = take_apart(program, *args)
        sources = {p: cuda_source(p) for p in parts.programs}
        prepared.append((program, args, parts, sources, number, f"{recipe} {shape}"))
    emulator.prepare(
        [s for *_, sources, _, _ in prepared for s in sources.values()], keep=False, run_once=True
    )
    for program, args, parts, sources, number, recipe in prepared:

        def execute(inner, operands, sources=sources, number=number):
            return emulator.run(
                sources[inner], inner, operands, number % 9, ("end", "start")[number % 2]
            )

        expected = jax.tree.leaves(jax.jit(program)(*args))
        for ours, theirs in zip(parts.run(args, execute), expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(
                ours.astype(np.float64), np.asarray(theirs).astype(np.float64), recipe
            )
