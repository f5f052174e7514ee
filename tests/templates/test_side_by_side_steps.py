"""Procedures whose trips do not wait for each other: vectors of them, interpreted and compiled
alike."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import Allocate, For, LoopKind, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from making.verified import unproven

TARGETS = {name: named(name) for name in ("x86-64-v3", "x86-64-v4")}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def scheduled(take_apart, function, *args, target="x86-64-v4"):
    (program,) = take_apart(function, *args).programs
    return schedule_program(program, TARGETS[target])


@pytest.mark.parametrize(
    ("function", "template"),
    [
        (lambda x: jnp.fft.rfft(x), "side_by_side_steps"),
        (lambda x: lax.linalg.lu(x.reshape(5, 9, 16)[..., :9])[0], "stepwise"),
    ],
)
def test_trips_that_wait_have_lanes_for_tensors(take_apart, function, template):
    _, decisions = scheduled(take_apart, function, numbers(5, 144))
    assert decisions[0].template.name == template


@pytest.mark.parametrize(
    ("rows", "length", "template"),
    [
        (200, 75, "stepwise"),  # 16 lanes for 5 trips or 15
        (5, 75, "side_by_side_steps"),
        (200, 128, "side_by_side_steps"),
        (200, 2048, "side_by_side_steps"),
    ],
)
def test_half_empty_vectors_are_of_tensors(take_apart, rows, length, template):
    _, decisions = scheduled(take_apart, lambda x: jnp.fft.fft(x), numbers(rows, length))
    assert decisions[0].template.name == template


def test_vectors_are_of_neighbouring_trips(take_apart):
    loops, _ = scheduled(take_apart, lambda x: jnp.fft.rfft(x), numbers(5, 512))
    widths = {
        s.var.extent
        for s in walk(loops.body)
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZE
    }
    assert widths == {8, 16}
    assert all(
        "transformed" not in s.buffer.name for s in walk(loops.body) if isinstance(s, Allocate)
    ), "the last pass stores the result"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [66, 75, 96, 256])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: jnp.fft.rfft(x),
        lambda x, n: jnp.fft.ifft(lax.complex(x, x * 2)),
        lambda x, n: jnp.fft.irfft(lax.complex(x, x * 2)[:, : n // 2 + 1], n),
    ],
    ids=["rfft", "ifft", "irfft"],
)
def test_loops_are_proved_and_compute_what_kernels_do(take_apart, function, length, target):
    x = numbers(3, length)
    parts = take_apart(lambda x: function(x, length), x)
    for program in parts.programs:
        assert not unproven(schedule_program(program, TARGETS[target])[0])
    (interpreted,) = parts.run(
        [x],
        lambda program, arrays: interpret(schedule_program(program, TARGETS[target])[0], arrays),
    )
    ours = mlc_jit(lambda x: function(x, length), choose="ours")(x)
    np.testing.assert_allclose(ours, interpreted, rtol=1e-4, atol=1e-4)


def test_the_parts_of_numbers_are_stored_together(take_apart):
    """Two vectors are shuffled into two that lie side by side; no lane is stored alone."""
    x = numbers(4, 256) + 1j * numbers(4, 256)
    loops, _ = scheduled(take_apart, lambda x: jnp.fft.fft(x), x)
    lines = print_program(loops, TARGETS["x86-64-v4"], False, 1 << 20).splitlines()
    assert not any("extractelement <" in line or "scatter" in line for line in lines)
