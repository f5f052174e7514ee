"""What stages are counted to do: operations, elements that lie apart, bytes."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.partition.work import Work
from hlo_mlc.tensor.core import Stage


@pytest.fixture
def stage_of(take_apart) -> Callable[..., Stage]:
    """`stage_of(function, *arrays)`: the one stage that the function becomes."""

    def stage(function: Callable, *args: np.ndarray) -> Stage:
        (program,) = take_apart(function, *args).programs
        (nest,) = program.steps
        (stage,) = nest.stages
        return stage

    return stage


X = np.ones((24, 40), np.float32)
U = np.ones((24, 40), np.uint32)


def test_moves_compute_nothing(stage_of):
    work = Work.of(stage_of(lambda x: x[:, ::-1], X))
    assert (work.operations, work.products, work.apart) == (0, 0, 0)
    assert work.moved_bytes == 2 * X.nbytes


def test_places_of_rows_are_computed_in_front_of_them(stage_of):
    """Of such as are long enough; places along a row are computed for each of its elements."""
    columns, numbers = X.shape[1], np.arange(12, dtype=np.int32)
    of_rows = Work.of(stage_of(lambda x, i: x[i], X, numbers))
    assert of_rows.only_moves
    assert 0 < of_rows.operations < numbers.size * columns
    scaled = Work.of(stage_of(lambda x, i: x[i] * 2, X, numbers))
    assert scaled.operations == of_rows.operations + numbers.size * columns
    assert not scaled.only_moves
    assert not Work.of(stage_of(lambda x, i: x[i], X.ravel(), numbers)).only_moves


def test_a_rotation_is_one_operation(stage_of):
    shifts = stage_of(lambda u: (u << 13) ^ (u >> 19), U)
    rotation = stage_of(lambda u: (u << 13) | (u >> 19), U)
    assert Work.of(shifts).operations == 3 * U.size
    assert Work.of(rotation).operations == U.size


def test_guards_of_folded_elements_do_not_count(stage_of):
    def windows(padding):
        return lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), padding)

    padded = stage_of(windows("SAME"), X)
    inside = stage_of(windows("VALID"), np.ones((24, 42), np.float32))
    assert any(load.guard is not None for load in padded.loads_by_buffer[padded.inputs[0]])
    assert Work.of(padded).operations == Work.of(inside).operations


@pytest.mark.parametrize(
    ("function", "apart", "read"),
    [
        (lambda x: x + 1, 0, X.nbytes),
        (lambda x: x[:, ::2] + 1, X.size // 8, X.nbytes),  # every other element, but every line
        (lambda x: x[:, ::5] + 1, X.size // 5, X.nbytes),
        (lambda x: x[::2] + 1, 0, X.nbytes // 2),
        (lambda x: x.T + 1, X.size // 4, X.nbytes),  # its neighbours are read as well
        (lambda x: x[:, ::2].T + 1, X.size // 2, X.nbytes),
        (lambda x: x.sum(1), 0, X.nbytes),
        (lambda x: x.sum(0), 0, X.nbytes),
    ],
)
def test_elements_that_lie_apart(stage_of, function, apart, read):
    stage = stage_of(function, X)
    assert Work.of(stage).apart == apart
    assert Work.of(stage).moved[stage.inputs[0]] == read


def test_what_waits_and_what_divides_takes_longer(stage_of):
    plain = Work.of(stage_of(lambda x: x.sum(1), X)).operations
    scan = Work.of(stage_of(lambda x: jnp.cumsum(x, 1), X)).operations
    assert scan > 4 * plain
    products = stage_of(lambda x: jnp.cumsum(x * x, 1), X)
    assert Work.of(products).operations > scan  # each sum waits for the one before it, too
    assert not Work.of(products).products
    product = Work.of(stage_of(lambda x: x * (x + 1), X)).operations
    quotient = Work.of(stage_of(lambda x: x / (x + 1), X)).operations
    assert quotient > 4 * product


def test_integers_are_divided_by_constants_without_a_division(stage_of):
    constant = Work.of(stage_of(lambda u: u // 7, U)).operations
    assert Work.of(stage_of(lambda u: u // (u | 1), U)).operations > 4 * constant


def test_lines_leave_the_cache_where_many_are_read_before_their_neighbours(stage_of):
    large = np.ones((10_000, 40), np.float32)
    work = Work.of(stage_of(lambda x: x[:, ::2].T + 1, large))
    assert work.moved_bytes == large.nbytes // 2 + large.size // 2 * 64
    small = Work.of(stage_of(lambda x: x[:, ::2].T + 1, X))
    assert small.moved_bytes == X.nbytes // 2 + X.nbytes
    assert small.walked_bytes == X.nbytes // 2 + X.size // 2 * 64  # without tiles


def test_small_matrices_are_transposed_in_registers(stage_of):
    matrices = np.ones((1000, 4, 4), np.float32)
    every = Work.of(stage_of(lambda x: x[:, 0, 0] * x[:, 1, 1] - x[:, 0, 1] * x[:, 1, 0], matrices))
    one = Work.of(stage_of(lambda x: x[:, 0, 0] + 1, matrices))
    assert (every.apart, one.apart) == (1000, 1000)


def test_rows_put_together_compute_what_is_chosen(stage_of):
    stacked = Work.of(
        stage_of(lambda x: jnp.stack([x[:, 0] * 2 + 1, x[:, 1] * 3 + 2, x[:, 2] * 4], -1), X)
    )
    assert stacked.operations <= 6 * X.shape[0]
