"""Nests that differ in names alone: what is derived of one is known of all, and of no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.partition.work import Work
from hlo_mlc.tensor.alike import outline_of
from hlo_mlc.tensor.canonical import canonical
from hlo_mlc.tensor.core import Nest, Step, TensorProgram, derived_of_any_names

X = np.ones((3, 4), np.float32)
LONG = np.ones((3, 5), np.float32)
HALF = np.ones((3, 4), np.float16)
I32, I16 = np.ones((3, 4), np.int32), np.ones((3, 4), np.int16)


@pytest.fixture
def nests_of(take_apart) -> Callable[..., list[Nest]]:
    """`nests_of(function, *arrays)`: those that the function becomes, in loops, too."""

    def nests(function: Callable, *args: np.ndarray) -> list[Nest]:
        return [
            nest
            for program in take_apart(function, *args).programs
            for nest in _nests(program.steps)
        ]

    return nests


def _nests(steps: tuple[Step, ...]) -> Iterator[Nest]:
    for step in steps:
        if isinstance(step, Nest):
            yield step
        else:
            yield from _nests(step.inner)


def _written_out(x):
    for n in range(6):
        x = jnp.cumsum(jnp.sort(x, 1), 1) * (1.5 if n < 5 else 2.5)
    return x


def test_nests_of_a_loop_that_is_written_out_share_what_is_derived(nests_of):
    asked = []

    @derived_of_any_names
    def fact(nest: Nest) -> int:
        asked.append(nest)
        return len(nest.stages)

    nests = nests_of(_written_out, X)
    assert len(nests) > 6
    assert [fact(nest) for nest in nests] == [len(nest.stages) for nest in nests]
    assert len(asked) == len({outline_of(nest) for nest in nests}) < len(nests) / 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((lambda x, y: x + y, X, X), (lambda x, y: x + y, LONG, LONG)),
        ((lambda x, y: x + y, X, X), (lambda x, y: x + y, HALF, HALF)),
        ((lambda x, y: x + y, X, X), (lambda x, y: x - y, X, X)),
        ((lambda x, y: x + y, X, X), (lambda x, y: x + y[::-1], X, X)),
        ((lambda x, y: x * y + x, X, X), (lambda x, y: x * y + y, X, X)),
        ((lambda x, y: x[::-1] + x, X, X), (lambda x, y: x[::-1] + y, X, X)),
        ((lambda x, y: x + 1.5, X, X), (lambda x, y: x + 2.5, X, X)),
        ((lambda x, y: x.sum(0), X, X), (lambda x, y: x.max(0), X, X)),
        ((lambda x, y: x.sum(0), X, X), (lambda x, y: x.sum(1), X, X)),
        ((lambda x, y: jnp.cumsum(x, 1), X, X), (lambda x, y: lax.cumsum(x, 1, True), X, X)),
        ((lambda x, y: jnp.sort(x, 1), X, X), (lambda x, y: -jnp.sort(-x, 1), X, X)),
        ((lambda x: x.astype(np.int8).astype(np.int32) + 1, I32),
         (lambda x: x.astype(np.int16).astype(np.int32) + 1, I32)),
        ((lambda x: x + 1, I32), (lambda x: x + 1, I16)),
        ((lambda x: jnp.pad(x, ((0, 0), (1, 0)))[:, :4], X),
         (lambda x: jnp.pad(x, ((0, 0), (0, 1)), constant_values=2)[:, 1:], X)),
    ],
)  # fmt: skip
def test_what_differs_in_more_is_not_alike(nests_of, one, other):
    (first, second) = ([outline_of(nest) for nest in nests_of(*how)] for how in (one, other))
    assert first != second
    assert first == [outline_of(nest) for nest in nests_of(*one)]


def test_what_is_known_before_buffers_are_renamed_is_known_afterwards(take_apart):
    (program,) = take_apart(lambda x: jnp.tanh(x) * 2, X).programs
    asked = []

    @derived_of_any_names
    def fact(nest: Nest) -> int:
        asked.append(nest)
        return 7

    (stage,) = program.steps[0].stages
    fact(stage)
    renamed = _again(program)
    assert renamed.steps[0].stages[0] is not stage
    fact(renamed.steps[0].stages[0])
    assert len(asked) == 1


def test_work_names_the_buffers_of_its_own_stage(nests_of):
    for nest in nests_of(_written_out, X):
        for stage in nest.stages:
            moved = Work.of(stage).moved
            assert list(moved) == list(dict.fromkeys((*stage.outputs, *stage.inputs)))
            assert all(0 < moved[buffer] <= buffer.bytes for buffer in stage.outputs)


def _again(program: TensorProgram) -> TensorProgram:
    """The same on buffers of other names."""
    return canonical(
        "again", program.steps, program.operands, program.results, prefixes=("x", "y", "z")
    )
