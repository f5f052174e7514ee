"""Constant factors of products are laid out in panels of columns while compiling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.partition.lower.packing import Panels


def weights(*shape: int, seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape) / 8
    return jnp.asarray(values.astype(np.float32))


def through_two_layers(x):
    hidden = jax.nn.gelu(x @ weights(256, 192) + weights(192))
    return hidden @ weights(192, 256, seed=1)


def tied(tokens):
    table = weights(256, 160)
    return table[tokens] @ table.T


def recurrent(x):
    def step(h, row):
        h = jnp.tanh(row @ weights(160, 256) + h @ weights(256, 256, seed=1))
        return h, h.sum()

    return lax.scan(step, jnp.zeros(256), x)


@pytest.mark.parametrize(
    "function, shape, operands",
    [
        (lambda x: x @ weights(256, 192), (5, 256), [(3, 256, 64)]),
        (lambda x: x @ weights(256, 144), (5, 256), [(3, 256, 48)]),
        (lambda x: x @ weights(192, 256).T, (5, 256), [(3, 256, 64)]),
        (lambda x: x @ weights(251, 256).T, (5, 256), [(256, 251)]),  # nothing divides the columns
        (lambda x: x @ weights(20, 30).T, (5, 30), [(30, 20)]),  # one panel
        (lambda x: x @ weights(256, 251), (5, 256), [(256, 251)]),  # as it is
        (lambda x: x @ weights(64, 64), (5, 64), [(64, 64)]),
        (lambda x: jnp.einsum("sd,dhe->she", x, weights(128, 8, 64)), (5, 128), [(8, 128, 64)]),
        (
            lambda x: jnp.einsum("hsd,hdn->hsn", x, weights(4, 64, 192)),
            (4, 5, 64),
            [(4, 3, 64, 64)],
        ),
        (through_two_layers, (5, 256), [(3, 256, 64), (4, 192, 64)]),
        (lambda x: x @ weights(256, 192), (256,), [(3, 256, 64)]),
        (lambda x: x @ weights(192, 256).T, (256,), [(192, 256)]),  # goes along both
        (recurrent, (7, 160), [(4, 160, 64), (4, 256, 64)]),
    ],
)
def test_constant_factors_are_laid_out_as_tiles_read_them(
    take_apart, check, arrays, function, shape, operands
):
    (x,) = arrays("float32", shape)
    found = [b.shape for p in take_apart(function, x).programs for b in p.operands]
    assert set(operands) <= set(found)
    check(function, x, ulps=32)


def convolved(x, filters, layout=("NHWC", "HWIO", "NHWC"), **options):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(x, filters, dimension_numbers=layout, **options)


CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")


@pytest.mark.parametrize(
    "function, shape, panels",
    [
        (lambda x: convolved(x, weights(3, 3, 40, 192)), (2, 5, 9, 40), (3, 3, 3, 40, 64)),
        (
            lambda x: convolved(x, weights(192, 40, 3, 3), CHANNELS_FIRST),
            (1, 40, 5, 9),
            (3, 40, 3, 3, 64),
        ),
        (  # one panel
            lambda x: convolved(x, weights(48, 16, 3, 3), CHANNELS_FIRST),
            (1, 16, 5, 9),
            (16, 3, 3, 48),
        ),
        (  # nothing divides them
            lambda x: convolved(x, weights(3, 3, 40, 161)),
            (1, 5, 9, 40),
            (3, 3, 40, 161),
        ),
        (
            lambda x: convolved(x, weights(2, 3, 40, 192), window_strides=(2, 1), padding="VALID"),
            (1, 6, 9, 40),
            (3, 2, 3, 40, 64),
        ),
        (  # of each group their own
            lambda x: convolved(x, weights(3, 3, 20, 128), feature_group_count=2),
            (1, 5, 9, 40),
            (3, 3, 20, 128),
        ),
        (lambda x: convolved(x, weights(3, 3, 1, 40)), (1, 5, 9, 1), (3, 3, 1, 40)),
    ],
)
def test_constant_filters_are_laid_out_too(take_apart, check, arrays, function, shape, panels):
    (x,) = arrays("float32", shape)
    found = [b.shape for p in take_apart(function, x).programs for b in p.operands]
    assert panels in found
    check(function, x, ulps=64)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_of_every_type(take_apart, check, arrays, dtype):
    with jax.enable_x64(dtype == "float64"):
        x = arrays("float32", (5, 256))[0].astype(dtype)
        table = (weights(384, 256) * 20).astype(dtype)
        found = [b.shape for p in take_apart(lambda x: x @ table.T, x).programs for b in p.operands]
        assert (6, 256, 64) in found
        check(lambda x: x @ table.T, x, ulps=32)


def test_what_else_reads_a_constant_gets_it_as_it_is(take_apart, check):
    tokens = jnp.arange(0, 250, 50)
    shapes = {b.shape for p in take_apart(tied, tokens).programs for b in p.operands}
    assert {(256, 160), (4, 160, 64)} <= shapes
    check(tied, tokens, ulps=32)


def test_each_reader_gets_a_layout_of_its_own(take_apart, check, arrays):
    def function(x):
        w = weights(192, 192)
        return x @ w, x @ w.T, w + x[:1]

    (x,) = arrays("float32", (5, 192))
    shapes = [b.shape for p in take_apart(function, x).programs for b in p.operands]
    assert shapes.count((3, 192, 64)) == 2 and (192, 192) in shapes
    check(function, x, ulps=32)


def test_arguments_stay_as_they_are(take_apart, arrays):
    (program,) = take_apart(lambda x, w: x @ w, *arrays("float32", (5, 256), (256, 192))).programs
    assert [b.shape for b in program.operands] == [(5, 256), (256, 192)]


def test_what_xla_computes_gets_the_constant_as_it_was():
    function = mlc_jit(lambda x: x @ weights(256, 192), choose="xla")
    assert "3x256x64" not in function.lower(jnp.ones((5, 256))).as_text()


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Panels]:
    rank = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    column, *others = draw(st.permutations(range(rank)))
    width = draw(st.integers(1, 4))
    shape[column] = width * draw(st.integers(1, 3))
    cut = draw(st.integers(0, len(others)))
    return tuple(shape), Panels(tuple(others[:cut]), tuple(others[cut:]), column, width)


@given(layouts())
def test_panels_hold_each_element_where_it_is_looked_for(layout):
    shape, panels = layout
    constant = np.arange(np.prod(shape)).reshape(shape)
    packed = panels.of(constant)
    assert packed.shape == panels.shape(shape)
    several = shape[panels.column] > panels.width
    for point in np.ndindex(*shape):
        piece, within = divmod(point[panels.column], panels.width)
        assert packed[panels.place(point, piece if several else None, within)] == constant[point]
