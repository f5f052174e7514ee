"""Convolutions of many channels: sums of vectors, squares, packed filters."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import For, LoopKind, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.base import lanes
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.window_roles import in_groups, roles_of
from hlo_mlc.tensor.coalesce import coalesce
from making.windows import LEVELS, NCHW, NHWC, TARGET, drawn

# By name: (input, kernel, layout, options) of convolutions of many channels.
DENSE = {
    "plain": ((1, 7, 13, 5), (3, 3, 5, 33), NHWC, {}),
    "batch": ((2, 6, 9, 17), (2, 3, 17, 16), NHWC, {}),
    "one row": ((1, 1, 20, 4), (3, 3, 4, 20), NHWC, {}),
    "small image": ((2, 2, 2, 9), (3, 3, 9, 70), NHWC, {}),
    "stride": ((1, 9, 15, 6), (3, 3, 6, 18), NHWC, {"window_strides": (2, 2)}),
    "uneven": (
        (1, 8, 14, 3),
        (4, 2, 3, 18),
        NHWC,
        {"window_strides": (1, 3), "padding": ((0, 3), (2, -1))},
    ),
    "dilated": ((1, 11, 12, 4), (3, 3, 4, 16), NHWC, {"rhs_dilation": (2, 3)}),
    "spread input": (
        (1, 5, 6, 4),
        (3, 3, 4, 17),
        NHWC,
        {"lhs_dilation": (2, 3), "padding": ((2, 1), (1, 2))},
    ),
    "groups": ((1, 6, 7, 12), (3, 3, 4, 15), NHWC, {"feature_group_count": 3}),
    "groups of 24": ((1, 6, 7, 10), (3, 3, 5, 48), NHWC, {"feature_group_count": 2}),
    "groups of 8": (
        (2, 5, 9, 9),
        (2, 3, 3, 24),
        NHWC,
        {"feature_group_count": 3, "window_strides": (2, 1)},
    ),
    "groups of 10 planes": ((1, 6, 5, 8), (30, 2, 3, 3), NCHW, {"feature_group_count": 3}),
    "one by one": ((1, 6, 7, 12), (1, 1, 12, 15), NHWC, {"window_strides": (2, 2)}),
    "planes": ((2, 5, 7, 18), (33, 5, 3, 3), NCHW, {}),
    "planes, stride": ((1, 4, 9, 35), (8, 4, 3, 3), NCHW, {"window_strides": (2, 2)}),
    "filters first": ((1, 7, 13, 5), (33, 3, 3, 5), ("NHWC", "OHWI", "NHWC"), {}),
    "few results": ((1, 7, 13, 37), (3, 3, 37, 3), NHWC, {}),
    "four from few": ((1, 6, 7, 5), (3, 3, 5, 4), NHWC, {}),
    "two, stride": ((2, 6, 9, 16), (3, 3, 16, 2), NHWC, {"window_strides": (2, 2)}),
    "few planes": ((1, 19, 6, 9), (3, 19, 3, 3), NCHW, {}),
    "one axis": ((2, 25, 6), (5, 6, 18), ("NWC", "WIO", "NWC"), {"window_strides": (1,)}),
    "three axes": (
        (1, 4, 5, 6, 3),
        (2, 3, 3, 3, 17),
        ("NDHWC", "DHWIO", "NDHWC"),
        {"window_strides": (1, 1, 1)},
    ),
}


def test_few_results_of_many_channels_are_sums_of_vectors(take_apart, arrays):
    """Lanes along the channels that are summed: along three results, most would be empty."""
    shape, kernel, layout, options = DENSE["few results"]
    parts = take_apart(
        lambda x, k: dense(x, k, layout, **options), *arrays("float32", shape, kernel)
    )
    (step,) = parts.programs[0].steps
    stage, target = coalesce(step.stages[0]), named("x86-64-v4")
    lane = roles_of(stage, lanes((stage,), target), 12).lane
    assert lane in stage.reduce_axes and lane.extent == 37


def dense(x, k, layout, **options):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(x, k, dimension_numbers=layout, **options)


@pytest.mark.parametrize("name", DENSE)
def test_many_channels_and_gradients(check, arrays, name):
    shape, kernel, layout, options = DENSE[name]
    x, k = arrays("float32", shape, kernel)

    def function(x, k):
        y, back = jax.vjp(functools.partial(dense, layout=layout, **options), x, k)
        return jnp.maximum(y, 0), *back(y / 2 + 1)

    check(function, x, k, ulps=256)


@pytest.mark.parametrize(
    "number, name",
    list(
        enumerate(
            (
                "plain",
                "small image",
                "uneven",
                "spread input",
                "planes",
                "groups of 24",
                "groups of 8",
                "few results",
            )
        )
    ),
)
def test_many_channels_with_every_choice_of_parameters(
    take_apart, machine_code, arrays, number, name
):
    shape, kernel, layout, options = DENSE[name]
    x, k = (np.round(a * 2) for a in arrays("float32", shape, kernel))
    parts = take_apart(lambda x, k: dense(x, k, layout, **options), x, k)
    target = named(LEVELS[number % len(LEVELS)])
    expected = dense(x, k, layout, **options)
    rng = np.random.default_rng(len(name))
    tuned = drawn(parts.programs[0], target, rng)
    for fence in ("start", "end"):
        (result,) = parts.run(
            [x, k], machine_code.executing(tuned=tuned, target=target, threads=2, fence_at=fence)
        )
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("widen", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("name", ["plain", "uneven", "dilated", "planes"])
def test_images_are_widened_first(take_apart, machine_code, arrays, name, dtype, widen):
    """To the same bits as where they are read, in every layout and behind every edge."""
    shape, kernel, layout, options = DENSE[name]
    options = {"preferred_element_type": jnp.int32 if dtype == "int8" else None, **options}
    x, k = (np.round(a * 2).astype(dtype) for a in arrays("float32", shape, kernel))
    parts = take_apart(lambda x, k: dense(x, k, layout, **options), x, k)
    (decision,) = schedule_program(parts.programs[0], named("x86-64-v3"))[1]
    assert decision.parameters["widen"] == 1
    tuned = {0: ("window", {**decision.parameters, "widen": widen})}
    expected = dense(x, k, layout, **options)
    for level in LEVELS:
        execute = machine_code.executing(tuned=tuned, target=named(level), fence_at="end")
        (result,) = parts.run([x, k], execute)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("dtype", "level", "cpu", "widened"),
    [
        ("bfloat16", "x86-64-v4", "znver4", 0),
        ("bfloat16", "x86-64-v4", "sapphirerapids", 1),
        ("bfloat16", "x86-64-v3", "znver3", 1),
        ("float16", "x86-64-v4", "znver4", 1),
        ("float32", "x86-64-v3", "x86-64-v3", 0),
    ],
)
def test_images_are_widened_unless_that_costs_nothing(
    take_apart, arrays, dtype, level, cpu, widened
):
    x, k = arrays(dtype, (1, 14, 14, 32), (3, 3, 32, 32))
    parts = take_apart(lambda x, k: dense(x, k, NHWC), x, k)
    _, (decision,) = schedule_program(parts.programs[0], replace(named(level), cpu=cpu))
    assert decision.parameters["widen"] == widened


@pytest.mark.parametrize(
    ("level", "size", "channels", "features", "packed"),
    [
        ("x86-64-v3", 8, 61, 61, 1),  # rows do not begin with a line
        ("x86-64-v3", 4, 61, 61, 0),  # too few results
        ("x86-64-v3", 28, 64, 64, 1),  # rows of four panels
        ("x86-64-v3", 14, 64, 64, 0),
        ("x86-64-v3", 28, 64, 32, 0),
        ("x86-64-v3", 28, 64, 13, 0),  # a panel is all there is
        ("x86-64-v3", 8, 64, 256, 1),  # far apart
        ("x86-64-v4", 28, 61, 61, 0),
        ("x86-64-v4", 28, 64, 128, 0),
        ("x86-64-v4", 8, 64, 512, 1),
    ],
)
def test_filters_are_packed_where_panels_lie_badly(
    take_apart, level, size, channels, features, packed
):
    """In a line or more than they fill, in a share of the first level, or over many pages."""
    x, k = (
        jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in ((1, size, size, channels), (3, 3, channels, features))
    )
    (program,) = take_apart(lambda x, k: dense(x, k, NHWC), x, k).programs
    _, (decision,) = schedule_program(program, named(level))
    assert decision.template.name == "window"
    assert decision.parameters["pack"] == packed


@pytest.mark.parametrize(
    ("layout", "kind"), [(NHWC, LoopKind.UNROLL), (NCHW, LoopKind.SERIAL)], ids=["NHWC", "NCHW"]
)
def test_results_are_written_out_unless_their_lanes_lie_apart(take_apart, arrays, layout, kind):
    """Of 64 channels of a row of 9 each would be stored by itself."""
    image, filters = {"N": 1, "H": 9, "W": 9, "C": 64}, {"H": 3, "W": 3, "I": 64, "O": 64}
    x, k = arrays("float32", [image[c] for c in layout[0]], [filters[c] for c in layout[1]])
    (program,) = take_apart(lambda x, k: dense(x, k, layout), x, k).programs
    loops, _ = schedule_program(program, TARGET)
    stored = {
        s.kind for s in walk(loops.body) if isinstance(s, For) and s.var.name.endswith(".i.s")
    }
    assert stored == {kind}


@pytest.mark.parametrize(
    ("features", "axes"),
    [
        (48, [5, 7, 2, 24]),
        (24, [5, 7, 2, 12]),
        (16, [5, 7, 2, 8]),
        (32, [5, 7, 32]),
        (14, [5, 7, 14]),
    ],
)
def test_vectors_stay_within_a_group_of_features(take_apart, machine_code, arrays, features, axes):
    """Where they would not, and would not be mostly empty; verifier and interpreter agree."""
    x, k = (np.round(a * 2) for a in arrays("float32", (1, 5, 7, 6), (3, 3, 3, features)))
    parts = take_apart(lambda x, k: dense(x, k, NHWC, feature_group_count=2), x, k)
    (program,) = parts.programs
    (nest,) = program.steps
    stage = in_groups(coalesce(nest.stages[0]), 16)
    assert [v.extent for v in stage.axes] == axes
    loops, (decision,) = schedule_program(program, TARGET)
    assert decision.template.name == "window"
    verify(loops)
    (expected,) = interpret(loops, [x, k], seed=1)
    (result,) = parts.run([x, k], machine_code.executing())
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(result, dense(x, k, NHWC, feature_group_count=2))
