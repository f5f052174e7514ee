"""Sliding windows: depthwise and few-channel convolutions, their gradients, and pooling."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.build import apply, load
from hlo_mlc.loops.core import Allocate, For, LoopKind, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import host, named
from hlo_mlc.templates.base import lanes
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.window_loops import WindowLoops
from hlo_mlc.templates.window_roles import order_of, roles_of
from hlo_mlc.tensor.coalesce import coalesce
from making.windows import LEVELS, NCHW, NHWC, TARGET, drawn


def depthwise(x, k, layout=NHWC, **options):
    """A convolution of each channel with filters of its own."""
    channels = x.shape[layout[0].index("C")]
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(
        x, k, dimension_numbers=layout, feature_group_count=channels, **options
    )


def gradients(x, k, **options):
    result, back = jax.vjp(functools.partial(depthwise, **options), x, k)
    return back(result / 2 + 1)


def pool(x, dims, strides, op=lax.max, start=-np.inf, padding="SAME", **dilation):
    return lax.reduce_window(x, start, op, dims, strides, padding, **dilation)


def templates(parts) -> list[str]:
    """The templates of all nests of a function."""
    return [d.template.name for p in parts.programs for d in schedule_program(p, TARGET)[1]]


# By name: (input, kernel, options).  Sizes around tiles of 8 and vectors of 16.
DEPTHWISE = {
    "plain": ((1, 9, 17, 33), (3, 3, 1, 33), {}),
    "a whole tile": ((1, 8, 8, 32), (3, 3, 1, 32), {}),
    "batch": ((2, 5, 7, 16), (3, 3, 1, 16), {}),
    "one row": ((1, 1, 23, 20), (3, 3, 1, 20), {}),
    "one pixel": ((2, 1, 1, 17), (3, 3, 1, 17), {}),
    "stride": ((1, 11, 19, 18), (3, 3, 1, 18), {"window_strides": (2, 2)}),
    "uneven": (
        (1, 12, 18, 5),
        (5, 2, 1, 5),
        {"window_strides": (1, 3), "padding": ((0, 3), (2, -1))},
    ),
    "dilated": ((1, 13, 14, 16), (3, 3, 1, 16), {"rhs_dilation": (2, 3)}),
    "spread input": (
        (1, 6, 7, 16),
        (3, 3, 1, 16),
        {"lhs_dilation": (2, 3), "padding": ((2, 1), (1, 2))},
    ),
    "long filter": ((1, 20, 21, 3), (13, 14, 1, 3), {}),
    "multiplier": ((1, 6, 9, 4), (3, 3, 1, 12), {}),
    "planes": ((2, 7, 12, 37), (7, 1, 3, 5), {"layout": NCHW}),
    "planes, stride": ((1, 4, 19, 35), (4, 1, 3, 3), {"layout": NCHW, "window_strides": (2, 2)}),
    "single channel": ((2, 25, 50, 1), (9, 9, 1, 1), {}),
    "long rows": ((1, 2, 47, 17), (3, 3, 1, 17), {}),
    "long rows, stride": ((1, 2, 99, 5), (2, 4, 1, 5), {"window_strides": (1, 2)}),
    "high planes": ((1, 2, 46, 19), (2, 1, 7, 3), {"layout": NCHW}),
}


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(check, take_apart, arrays, name):
    shape, kernel, options = DEPTHWISE[name]
    x, k = arrays("float32", shape, kernel)

    def function(x, k):
        return depthwise(x, k, **options)

    check(function, x, k, ulps=64)
    expected = "columns" if name == "one pixel" else "window"
    assert set(templates(take_apart(function, x, k))) == {expected}


@pytest.mark.parametrize("name", DEPTHWISE)
def test_gradients(check, arrays, name):
    shape, kernel, options = DEPTHWISE[name]
    x, k = arrays("float32", shape, kernel)
    check(lambda x, k: gradients(x, k, **options), x, k, ulps=256)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "int8", "uint8"])
def test_types(check, arrays, dtype):
    x, k, y = arrays(dtype, (1, 9, 17, 33), (3, 3, 1, 33), (2, 3, 11, 35))
    low = np.asarray(jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.integer) else -np.inf, dtype)
    zero = np.asarray(0, dtype)

    def function(x, k, y):
        return (
            depthwise(x, k),
            pool(x, (1, 3, 3, 1), (1, 2, 2, 1), start=low),
            pool(y, (1, 1, 2, 3), (1, 1, 1, 1), lax.add, zero),
            pool(y, (1, 1, 3, 3), (1, 1, 2, 1), start=low),
        )

    check(function, x, k, y, ulps=64)


def test_f64(check, arrays):
    with jax.enable_x64(True):
        x, k = arrays("float64", (1, 9, 17, 33), (3, 3, 1, 33))
        check(lambda x, k: (depthwise(x, k), *gradients(x, k)), x, k, ulps=64)


@pytest.mark.parametrize(
    "op, start", [(lax.max, -np.inf), (lax.min, np.inf), (lax.add, 0.0), (lax.max, 0.5)]
)
def test_pooling(check, arrays, op, start):
    """Also from values that are not neutral, which padding then counts as elements."""
    x, y = arrays("float32", (2, 9, 18, 19), (2, 3, 10, 37))

    def function(x, y):
        p = functools.partial(pool, op=op, start=start)
        return (
            p(x, (1, 3, 3, 1), (1, 1, 1, 1)),
            p(x, (1, 2, 2, 1), (1, 2, 2, 1)),
            p(x, (1, 3, 2, 1), (1, 1, 2, 1), padding=((0, 0), (1, 2), (3, 0), (0, 0))),
            p(y, (1, 1, 3, 3), (1, 1, 2, 2)),
            p(y, (1, 1, 5, 1), (1, 1, 1, 1)),
            p(y, (1, 1, 1, 4), (1, 1, 1, 1)),
            p(x, (1, 2, 2, 1), (1, 1, 1, 1), base_dilation=(1, 2, 3, 1)),
            p(x, (1, 2, 2, 1), (1, 1, 1, 1), window_dilation=(1, 2, 3, 1)),
        )

    check(function, x, y, ulps=64)


def test_special_values(check, arrays):
    """NaNs win, infinities stay, and a result of only -0 terms is what XLA makes of it."""
    x, k = arrays("float32", (1, 9, 17, 20), (3, 3, 1, 20), special=True)
    k = np.where(np.isfinite(k), k, 1).astype(k.dtype)  # times a padding of zeros: not defined

    def function(x, k):
        return (
            pool(x, (1, 3, 3, 1), (1, 1, 1, 1)),
            depthwise(x, k),
            pool(x, (1, 3, 3, 1), (1, 2, 2, 1), lax.min, np.inf),
            pool(x, (1, 3, 3, 1), (1, 2, 2, 1), lax.add, 0.0),
        )

    check(function, x, k, ulps=64)


def test_prologues_and_epilogues(check, arrays):
    x, k, bias = arrays("float32", (1, 9, 17, 33), (3, 3, 1, 33), (33,))

    def function(x, k, bias):
        y = depthwise(x * 2 + 1, k) + bias
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return jnp.maximum(y, 0), jax.nn.gelu(depthwise(padded, k, padding="VALID") + bias)

    check(function, x, k, bias, ulps=64)


def test_average_pooling_and_its_gradient(check, arrays):
    (x,) = arrays("float32", (2, 12, 13, 18))

    def function(x):
        def average(x):
            return pool(x, (1, 3, 3, 1), (1, 2, 2, 1), lax.add, 0.0) / 9

        return jax.vjp(average, x)[1](jnp.cos(average(x)))

    check(function, x, ulps=64)


@pytest.mark.parametrize("columns, in_turn", [(18, False), (46, True)])
def test_positions_of_windows_take_turns_where_edges_are_rare(take_apart, arrays, columns, in_turn):
    """Two tiles of nine have nothing but edges; of six, four have none."""
    x, k = arrays("float32", (1, 3, columns, 16), (3, 3, 1, 16))
    (program,) = take_apart(depthwise, x, k).programs
    serial = {
        s.var.name
        for s in walk(schedule_program(program, TARGET)[0].body)
        if isinstance(s, For) and s.kind is LoopKind.SERIAL
    }
    assert any(name.endswith(".e") for name in serial) == in_turn


@pytest.mark.skipif(not host().is_x86, reason="names targets of x86")
@pytest.mark.parametrize(
    "channels, tile", [(32, (9, 32)), (64, (6, 64)), (128, (3, 128)), (256, (3, 128)), (1, (5, 48))]
)
def test_channels_are_read_in_long_pieces(take_apart, arrays, channels, tile):
    """Fewer results side by side leave room for more of their channels; lanes along the image
    stay as they are."""
    x, k = arrays("float32", (1, 20, 90, channels), (3, 3, 1, channels))
    (program,) = take_apart(depthwise, x, k).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    shapes = [s.buffer.shape for s in walk(loops.body) if isinstance(s, Allocate)]
    assert shapes == [tile]


@pytest.mark.skipif(not host().is_x86, reason="names targets of x86")
@pytest.mark.parametrize("window, tile", [(5, (9, 32)), (7, (9, 16)), (9, (9, 16)), (13, (9, 32))])
def test_long_windows_take_one_vector_of_each_result(take_apart, arrays, window, tile):
    """Those that are written out along one axis; longer ones go in pieces."""
    x, k = arrays("float32", (1, 99, 320, 1), (window, window, 1, 1))
    (program,) = take_apart(depthwise, x, k).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    shapes = {s.buffer.shape for s in walk(loops.body) if isinstance(s, Allocate)}
    assert shapes == {tile}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 2, 4, 95), (1, 40, 40, 95), (1, 70, 239, 1)])
def test_all_panels_share_their_code(take_apart, machine_code, arrays, shape, level):
    """The last one begins earlier, and stores only what the one before it does not: under a mask,
    or in code of its own where masks cost time."""
    x, k = (np.round(a * 2) for a in arrays("float32", shape, (3, 3, 1, shape[-1])))
    parts = take_apart(depthwise, x, k)
    (program,) = parts.programs
    target = named(level)
    loops, (decision,) = schedule_program(program, target)
    sums = [s for s in walk(loops.body) if isinstance(s, Allocate)]
    assert decision.template.name == "window" and len(sums) == 1
    verify(loops)
    for ours in (
        parts.run([x, k], machine_code.executing(target=target, threads=2)),
        parts.run([x, k], lambda program, operands: interpret(loops, operands)),
    ):
        np.testing.assert_array_equal(ours[0], depthwise(x, k))


@pytest.mark.parametrize(
    "shape, kernel, options",
    [
        ((1, 40, 37, 17), (3, 3, 1, 17), {}),
        ((1, 21, 43, 5), (3, 2, 1, 5), {}),
        ((2, 3, 17, 67), (3, 1, 3, 5), {"layout": NCHW}),
        ((1, 35, 37, 16), (3, 3, 1, 16), {"window_strides": (1, 2)}),
    ],
)
def test_the_last_tile_of_a_row_is_whole(take_apart, machine_code, arrays, shape, kernel, options):
    """It begins early enough, with results that the tile before it has stored."""
    x, k = (np.round(a * 2) for a in arrays("float32", shape, kernel))
    parts = take_apart(lambda x, k: jnp.maximum(depthwise(x, k, **options), 0), x, k)
    (program,) = parts.programs
    target = replace(TARGET, cores=1)
    loops, (decision,) = schedule_program(program, target)
    stage = coalesce(decision.nest.stages[0])
    builder = WindowLoops.of(stage, target, decision.parameters)
    axis, count = builder.roles.tile[0]
    assert axis.extent % count and builder.order.repeated is axis
    verify(loops)
    expected = jnp.maximum(depthwise(x, k, **options), 0)
    for ours in (
        parts.run([x, k], machine_code.executing(threads=2)),
        parts.run([x, k], lambda program, operands: interpret(loops, operands)),
    ):
        np.testing.assert_array_equal(ours[0], expected)


def test_results_that_are_read_are_not_computed_twice(take_apart, arrays):
    """A result added to what was in its place would be added once more."""
    x, k = arrays("float32", (1, 40, 37, 17), (3, 3, 1, 17))
    (program,) = take_apart(depthwise, x, k).programs
    (decision,) = schedule_program(program, replace(TARGET, cores=1))[1]
    stage = coalesce(decision.nest.stages[0])
    roles = roles_of(stage, lanes((stage,), TARGET), 8)
    (assign,) = stage.assigns
    added = replace(assign, value=apply("add", assign.value, load(assign.buffer, assign.indices)))
    assert order_of(stage, roles, 1, 1).repeated is not None
    assert order_of(replace(stage, assigns=(added,)), roles, 1, 1).repeated is None


@pytest.mark.parametrize("shape", [(1, 40, 40, 48), (2, 70, 90, 1)])
def test_large_ones_do_not_depend_on_threads(take_apart, machine_code, arrays, shape):
    x, k = arrays("float32", shape, (5, 5, 1, shape[-1]))
    parts = take_apart(lambda x, k: (depthwise(x, k), *gradients(x, k)), x, k)
    assert "window" in templates(parts)
    results = [parts.run([x, k], machine_code.executing(threads=threads)) for threads in (1, 2, 8)]
    for other in results[1:]:
        assert [r.tobytes() for r in results[0]] == [r.tobytes() for r in other]


@pytest.mark.parametrize(
    "number, name",
    list(enumerate(("plain", "uneven", "spread input", "planes", "single channel", "long rows"))),
)
def test_every_choice_of_parameters_is_right(take_apart, machine_code, arrays, number, name):
    """Whole numbers, so that every order of summation is exact; buffers between fences."""
    shape, kernel, options = DEPTHWISE[name]
    x, k = (np.round(a * 2) for a in arrays("float32", shape, kernel))

    def function(x, k):
        y, back = jax.vjp(functools.partial(depthwise, **options), x, k)
        return y, *back(jnp.round(y / 4))

    parts, target = take_apart(function, x, k), named(LEVELS[number % len(LEVELS)])
    expected = jax.jit(function)(x, k)
    rng = np.random.default_rng(len(name))
    for fence in ("start", "end"):

        def execute(program, operands, fence=fence):
            return machine_code.executing(
                tuned=drawn(program, target, rng), target=target, threads=2, fence_at=fence
            )(program, operands)

        for ours, theirs in zip(parts.run([x, k], execute), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "shape, kernel, options",
    [
        ((1, 4, 9, 3), (3, 3, 1, 3), {}),
        ((1, 1, 46, 3), (3, 3, 1, 3), {}),
        ((1, 2, 4, 18), (2, 1, 3, 3), {"layout": NCHW}),
        ((1, 5, 6, 2), (2, 3, 1, 2), {"window_strides": (2, 2)}),
        ((1, 3, 3, 2), (2, 2, 1, 2), {"lhs_dilation": (2, 2), "padding": ((1, 0), (0, 2))}),
    ],
)
def test_machine_code_does_what_the_loops_say(
    take_apart, machine_code, arrays, shape, kernel, options
):
    """The loops pass the verifier, and the interpreter gets the same."""
    x, k = (np.round(a * 2) for a in arrays("float32", shape, kernel))
    parts = take_apart(lambda x, k: (depthwise(x, k, **options), *gradients(x, k, **options)), x, k)
    ran = []

    def interpreted(program, operands):
        loops, _ = schedule_program(program, machine_code.target)
        verify(loops)
        ran.append(loops)
        return interpret(loops, operands, seed=len(ran))

    expected = parts.run([x, k], interpreted)
    for ours, theirs in zip(parts.run([x, k], machine_code.executing()), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-6, 1e-6)


def test_max_pooling_gradients(check, arrays):
    """The first of equal elements is selected, and what XLA makes of NaNs."""
    x, y = arrays("float32", (2, 9, 10, 19), (2, 3, 10, 37), special=True)
    (z,) = arrays("bfloat16", (1, 8, 8, 17))
    x, y = np.round(x), np.round(y)

    def function(x, y, z):
        def pooled(x, *window, **options):
            result, back = jax.vjp(lambda x: pool(x, *window, **options), x)
            return back(jnp.ones_like(result) / 4)

        return (
            pooled(x, (1, 3, 3, 1), (1, 2, 2, 1)),
            pooled(x, (1, 2, 2, 1), (1, 2, 2, 1)),
            pooled(x, (1, 3, 2, 1), (1, 1, 3, 1), padding="VALID"),
            pooled(y, (1, 1, 3, 3), (1, 1, 2, 2)),
            pooled(y, (1, 1, 2, 2), (1, 1, 1, 1)),
            pooled(z, (1, 3, 3, 1), (1, 2, 2, 1)),
            pooled(y, (1, 1, 2, 2), (1, 1, 2, 2), op=lax.min, start=np.inf),
        )

    check(function, x, y, z)


def test_windows_that_find_no_place(take_apart, check, arrays):
    """Nothing is read of what has no elements, not even to be left out then."""
    (x,) = arrays("bfloat16", (4, 2, 3))

    def gradient(x):
        def largest(x):
            least = np.asarray(-np.inf, x.dtype)
            return lax.reduce_window(x, least, lax.max, (3, 3, 1), (1, 1, 2), "VALID").sum()

        return jax.grad(largest)(x)

    (program,) = take_apart(gradient, x).programs
    assert not any(0 in b.shape for nest in program.steps for s in nest.stages for b in s.inputs)
    assert check(gradient, x).coverage == 1
