"""Kernels of several nests: what is shared out among threads in a loop, and which are calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Const
from hlo_mlc.loops.core import Call, For, LoopKind, Store, walk
from hlo_mlc.loops.prove import prove
from hlo_mlc.loops.rewrite import substitute
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program


def _accumulated(x: jax.Array) -> jax.Array:
    """Copies, and zeros but for a row: half of each trip is one thread's."""

    def trip(n: int, x: jax.Array) -> jax.Array:
        others = x.at[n + 1].set(0)
        return others + jnp.zeros_like(x).at[n].set(jnp.sin(x[n + 1]))

    return lax.fori_loop(0, 100, trip, x)


def _smoothed(x: jax.Array) -> jax.Array:
    """All of each trip is shared."""
    return lax.fori_loop(0, 100, lambda _, x: x.at[1:-1].set(x[:-2] * 0.5 + x[2:] * 0.25 + 1), x)


@pytest.mark.parametrize(
    ("function", "shape", "shared"),
    [
        (_accumulated, (500, 100), False),
        (_accumulated, (4000, 100), True),  # worth waking for
        (_smoothed, (500, 100), True),
        (_smoothed, (50, 100), False),
    ],
    ids=["asleep", "large", "awake", "small"],
)
def test_threads_that_fall_asleep_are_not_woken_in_every_trip(
    function: Callable, shape: tuple[int, ...], shared: bool, take_apart: Callable, arrays: Callable
) -> None:
    (program,) = take_apart(function, *arrays("float32", shape)).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    in_trips = [
        stmt
        for trip in loops.body
        if isinstance(trip, For)
        and trip.kind is LoopKind.SERIAL
        and isinstance(trip.extent, Const)
        and trip.extent.value in (50, 100)
        for stmt in walk(trip.body)
    ]
    assert in_trips
    assert (
        any(isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL for stmt in in_trips) is shared
    )


@pytest.mark.parametrize(("rows", "shared"), [(16, False), (512, True)])
def test_short_trips_are_on_one_thread(
    rows: int, shared: bool, take_apart: Callable, arrays: Callable
) -> None:
    """Handing a product's results over takes longer than computing a few."""
    (program,) = take_apart(
        lambda x, w: lax.fori_loop(0, 50, lambda _, x: jnp.tanh(x @ w), x),
        *arrays("float32", (rows, 128), (128, 128)),
    ).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    in_trips = [
        stmt
        for trip in loops.body
        if isinstance(trip, For)
        and trip.kind is LoopKind.SERIAL
        and isinstance(trip.extent, Const)
        and trip.extent.value == 50
        for stmt in walk(trip.body)
    ]
    assert in_trips
    assert (
        any(isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL for stmt in in_trips) is shared
    )


def _euler(size: int, x: jax.Array) -> jax.Array:
    """Steps of equal nests, in each of which one element is a sine."""

    def step(_: int, x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = x + 0.01 * jnp.concatenate([jnp.roll(x[:-1], 1), -jnp.sin(x[:1])])
        return x

    return lax.fori_loop(0, 100, step, x[:size])


@pytest.mark.parametrize(("size", "called"), [(4, False), (33, False), (500, True)])
def test_equal_nests_in_a_loop_are_calls_where_there_is_enough_to_do(
    size: int, called: bool, take_apart: Callable, arrays: Callable, check: Callable
) -> None:
    (x,) = arrays("float32", (500,))
    (program,) = take_apart(functools.partial(_euler, size), x).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    assert any(isinstance(stmt, Call) for stmt in walk(loops.body)) is called
    check(functools.partial(_euler, size), x, ulps=4)


def _layers(x: jax.Array, w: jax.Array) -> jax.Array:
    """Their weights are stacked, as inputs are of the steps of a network that are written out."""
    for n in range(6):
        x = jnp.tanh(x @ w[n])
    return x


def test_nests_that_read_different_rows_are_calls_of_one_program(
    take_apart: Callable, arrays: Callable, check: Callable, as_c: Callable
) -> None:
    x, w = arrays("float32", (8, 16), (6, 16, 16))
    (program,) = take_apart(_layers, x, w).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    calls = [stmt for stmt in walk(loops.body) if isinstance(stmt, Call)]
    assert len({call.program for call in calls}) == 1
    assert [call.places for call in calls] == [((), (n,)) for n in range(6)]
    check(_layers, x, w, ulps=64)
    (compiled,) = as_c([loops])
    (result,) = results = [np.zeros((8, 16), np.float32)]
    bind_kernel(compiled, [np.asarray(x), np.asarray(w)], results)()
    np.testing.assert_allclose(result, _layers(x, w), rtol=1e-3, atol=1e-4)


def test_what_takes_long_for_one_element_of_a_row_is_written_out(
    take_apart: Callable, arrays: Callable
) -> None:
    """A sine for each element is a vector of them; one of a single element waits for that alone."""
    (x,) = arrays("float32", (4,))
    for function, lanes in (
        (functools.partial(_euler, 4), False),
        (lambda x: lax.fori_loop(0, 100, lambda _, x: x - jnp.sin(x), x), True),
    ):
        (program,) = take_apart(function, x).programs
        loops, _ = schedule_program(program, named("x86-64-v3"))
        assert (
            any(
                isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZE
                for stmt in walk(loops.body)
            )
            is lanes
        )


def test_threads_share_the_rows_of_a_product(take_apart: Callable, arrays: Callable) -> None:
    """What comes before and after it goes along rows, too."""
    (program,) = take_apart(lambda x, w: x @ w, *arrays("float32", (128, 128), (128, 128))).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    (tasks,) = (
        stmt
        for stmt in walk(loops.body)
        if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL
    )
    half = tasks.extent.value // 2
    assert half >= 1

    def rows_of(task: int) -> tuple[int, int]:
        body = substitute(tasks.body, {tasks.var: index.constant(task)})
        found = [
            index.bounds(stmt.indices[0])
            for stmt in walk(body)
            if isinstance(stmt, Store) and stmt.buffer in program.results
        ]
        return min(low for low, _ in found), max(high for _, high in found)

    assert max(rows_of(n)[1] for n in range(half)) < 80
    assert min(rows_of(n)[0] for n in range(half, 2 * half)) > 48


def test_small_temporaries_share_whole_places(take_apart: Callable, arrays: Callable) -> None:
    """What is known of one is known still when another one is stored that is in use as well."""
    x, y, z = arrays("float32", (5, 7), (7, 9), (40, 3))

    def function(x: jax.Array, y: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
        near = jnp.sort(jnp.tanh(x @ y), 1)
        far = jnp.sort(jnp.cumsum(z, 0), 0)
        return jnp.sort(near @ near.T), far.sum(0), jnp.sort(jnp.sort(near @ far[:9], 0), 1)

    (program,) = take_apart(function, x, y, z).programs
    scratch = schedule_program(program, named("x86-64-v3"))[0].scratch
    assert len({offset for _, offset in scratch}) < len(scratch)
    for buffer, offset in scratch:
        assert not any(offset < other < offset + buffer.bytes for _, other in scratch)


LARGE = {  # what is refused if it is not seen which elements the loops write
    "transposed planes": (lambda x: x.transpose(2, 3, 0, 4, 1) + 1, (3, 5, 7, 11, 10007)),
    "columns of planes": (lambda x: x.T * 2, (17, 1023, 1025)),
    "moved to the front": (lambda x: jnp.moveaxis(x, -1, 0) * 2, (65, 33, 17, 129)),
    "transposed": (lambda x: x.T + 1, (4097, 4095)),
    "pairs sorted": (lambda x: lax.top_k(x, 2), (1000003, 3, 2)),
    "rows before": (lambda x: jnp.pad(x, ((3, 0), (0, 0), (1, 0))) + 1, (8191, 129, 7)),
}


@pytest.mark.parametrize("cores", [2, 3, 8, 64])
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", LARGE)
def test_large_arrays_of_odd_sizes_are_proved(take_apart, name, level, cores) -> None:
    """Whichever tasks are shorter, or do again what another does."""
    function, shape = LARGE[name]
    (program,) = take_apart(function, jax.ShapeDtypeStruct(shape, "float32")).programs
    loops, _ = schedule_program(program, replace(named(level), cores=cores))
    _, proof = prove(loops)
    assert not proof.guarded
