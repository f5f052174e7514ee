"""Short rows with a lane each: right for any shape, type and layout, with what is no number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import For, LoopKind, walk
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program


def _after(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


FUNCTIONS = {
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "norms": lambda x: (x - x.mean(-1, keepdims=True)) / (1 + (x * x).sum(-1, keepdims=True)),
    "places": lambda x: (jnp.argmax(x, -1), jnp.argmin(x, -1), x.max(-1)),
    "turned": lambda x: jnp.tanh(jnp.flip(x, -1) - x.sum(-1, keepdims=True)),
    "state": lambda x: jnp.stack([x[..., 1], jnp.tanh(x.sum(-1)), jnp.cos(x[..., 0])], -1),
    "before": lambda x: (
        jnp.concatenate([jnp.exp(-jnp.abs(x[..., :2])), x[..., 1:]], -1) * x[..., :1]
    ),
    "maps": lambda x: lax.reduce(
        (x, x + 1), (jnp.ones((), x.dtype), jnp.zeros((), x.dtype)), _after, (x.ndim - 1,)
    ),
    "some": lambda x: jnp.where(jnp.arange(x.shape[-1]) < 3, jnp.exp(x), 0).sum(-1) * x[..., 2],
    "across": lambda x: jnp.moveaxis(jax.nn.softmax(x, -1), -1, 0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(check, arrays, name, dtype) -> None:
    rng = np.random.default_rng([*name.encode(), *dtype.encode()])
    with jax.enable_x64(dtype == "float64"):
        for lead in ((16,), (37,), (3, 20), (1000,)):
            (x,) = arrays(dtype, (*lead, int(rng.integers(5, 17))))
            if dtype != "int32":
                x[..., 1, 2], x[..., 3, 0], x[..., 5, :] = np.nan, np.inf, 0
            check(
                lambda x: (
                    jax.tree.map(lambda y: y.astype(x.dtype), FUNCTIONS[name](x))
                    if dtype != "int32"
                    else FUNCTIONS[name](x)
                ),
                x,
                magnitude=8,
            )


def test_a_state_of_a_few_numbers(check, arrays) -> None:
    """What is computed once for a row is a vector, in a loop, too."""
    x, push = arrays("float32", (64, 4), (64,))

    def function(x, push):
        def step(state, _):
            _, speed, angle, turn = state.T
            force = jnp.tanh(state @ jnp.ones(4) + push)
            bent = (force + turn * turn * jnp.sin(angle)) / (1 + jnp.cos(angle) ** 2)
            state = state + 0.02 * jnp.stack([speed, bent, turn, force - bent], 1)
            return jnp.where((jnp.abs(state[:, 0]) > 2)[:, None], 0, state), state[:, 2]

        return lax.scan(step, x, None, length=5)

    report = check(function, x, push)
    assert "side_by_side" in {n.template for k in report.kernels for n in k.nests}


@pytest.mark.parametrize("rows", [16, 37, 64])
def test_rows_of_which_a_result_has_several_pieces(check, arrays, rows) -> None:
    """What is stored for some rows is turned at once only where nothing else lies between."""

    def function(x):
        normed = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 0.125)
        return jnp.concatenate([x, normed], 0)

    report = check(function, *arrays("float32", (rows, 9)))
    assert "side_by_side" in {n.template for k in report.kernels for n in k.nests}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_folds_of_which_a_row_keeps_several(check, arrays, dtype) -> None:
    """What is private to a row, and what is private to a place of it, is there for each lane."""
    x, kernel = arrays(dtype, (37, 1), (1, 3, 2))

    def pulled(x, kernel):
        def function(x):
            return lax.conv_general_dilated(
                jnp.broadcast_to(x[:, :, None], (37, 1, 3)),
                kernel,
                (1,),
                "SAME",
                dimension_numbers=("NHC", "HIO", "NHC"),
            )

        return jax.vjp(function, x)[1](jnp.ones((37, 1, 2), x.dtype))

    report = check(pulled, x, kernel)
    assert "side_by_side" in {n.template for k in report.kernels for n in k.nests}


@pytest.mark.parametrize("rows", [2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_fewer_rows_than_lanes(check, arrays, dtype, rows) -> None:
    with jax.enable_x64(dtype == "float64"):
        a, x = arrays(dtype, (rows, 5), (5,))
        report = check(lambda a, x: a @ x, a, x)
    assert "side_by_side" in {n.template for k in report.kernels for n in k.nests}


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_sums_of_short_rows_along_two_axes(check, arrays, dtype) -> None:
    """Grey levels of an image."""
    (x,) = arrays(dtype, (21, 37, 3))
    weights = jnp.array([0.3, 0.6, 0.1], jnp.float32)
    report = check(lambda x: x.astype(jnp.float32) @ weights, x)
    assert "side_by_side" in {n.template for k in report.kernels for n in k.nests}


@pytest.mark.parametrize("k", [4, 5, 7, 12])
def test_rows_are_stored_without_masks_where_these_take_long(check, arrays, take_apart, k) -> None:
    """Rows of a lag each, joined: 5 elements are 4 and one."""
    (x,) = arrays("float32", (70, 30))

    def lags(x):
        return jnp.stack([jnp.pad(x, ((n, 0), (0, 0)))[:70] for n in range(k)], -1)

    (program,) = take_apart(lags, x).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    assert all(
        s.extent.value.bit_count() == 1
        for s in walk(loops.body)
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZE and ".o." in s.var.name
    )
    check(lags, x)


# Matrices of which each element is something else, by the numbers of rows.
MATRICES = {
    "skew": lambda x: jnp.stack(
        [
            jnp.stack([jnp.zeros_like(x[..., 0]), -x[..., 2], x[..., 1]], -1),
            jnp.stack([x[..., 2], jnp.zeros_like(x[..., 0]), -x[..., 0]], -1),
            jnp.stack([-x[..., 1], x[..., 0], jnp.zeros_like(x[..., 0])], -1),
        ],
        -2,
    ),
    "gathered": lambda x: jnp.stack([x[..., (3 * k) % x.shape[-1]] for k in range(8)], -1).reshape(
        *x.shape[:-1], 2, 4
    ),
    "bordered": lambda x: jnp.concatenate(
        [
            jnp.concatenate([x[..., None, :2] * x[..., 1:3, None], x[..., :2, None]], -1),
            jnp.ones((*x.shape[:-1], 1, 3), x.dtype),
        ],
        -2,
    ),
    "turned": lambda x: (
        jnp.stack([x[..., k] for k in range(6)], -1)
        .reshape(*x.shape[:-1], 2, 3, 1)
        .swapaxes(-1, -3)
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16"])
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_of_different_elements(check, arrays, name, dtype) -> None:
    for lead in ((2,), (37,), (5, 19), (1000,)):
        check(MATRICES[name], *arrays(dtype, (*lead, 7)))


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_a_matrix_is_stored_as_one_row(take_apart, arrays, level) -> None:
    (program,) = take_apart(
        lambda *a: jnp.stack(a, -1).reshape(-1, 3, 3), *arrays("float32", *[(100,)] * 9)
    ).programs
    loops, (decision,) = schedule_program(program, named(level))
    assert decision.template.name == "side_by_side"
    extents = [
        s.extent.value
        for s in walk(loops.body)
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZE and ".o." in s.var.name
    ]
    assert extents == ([9] if level == "x86-64-v4" else [8])


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_rows_of_much_the_same_are_not_written_out(check, take_apart, arrays, level) -> None:
    """64 copies of a long body save no more than what conditions at both ends of a row cost."""
    size, colours = 64, 5
    states = np.random.default_rng(1).integers(0, colours, (size, size))
    (noise,) = arrays("float32", (size, size, colours))

    def step(states, noise):
        ones = jax.nn.one_hot(states, colours)
        near = sum(jnp.roll(ones, by, axis) for by in (1, -1) for axis in (0, 1))
        gumbel = -jnp.log(-jnp.log(0.1 + 0.8 * jax.nn.sigmoid(noise)))
        return jnp.argmax(1.2 * near + gumbel, -1)

    (program,) = take_apart(step, states, noise).programs
    loops, _ = schedule_program(program, named(level))
    copies = [
        s.extent.value for s in walk(loops.body) if isinstance(s, For) and s.kind is LoopKind.UNROLL
    ]
    assert max(copies, default=1) < size
    check(step, states, noise)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.packbits(x > 100),
        lambda x: x.reshape(-1, 8).max(-1),
        lambda x: x.reshape(48, 5, 60, 5).min((1, 3)),
    ],
)
def test_windows_that_do_not_overlap_are_rows(check, take_apart, arrays, function) -> None:
    """Along neighbouring windows every lane would be loaded by itself."""
    (x,) = arrays("uint8", (240, 300))
    (program,) = take_apart(function, x).programs
    _, (decision,) = schedule_program(program, named("x86-64-v4"))
    assert decision.template.name == "side_by_side"
    check(function, x)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("size", [3, 6])
def test_small_matrices_by_what_is_looked_up_are_rows(
    check, take_apart, arrays, level, size
) -> None:
    """Lanes along their few terms would be empty, and no two results share what is looked up."""
    k, x = arrays("float32", (50, size, size), (90,))
    places = np.random.default_rng(0).integers(0, 90, (50, size))

    def function(k, x, places):
        return jnp.einsum("eij,ej->ei", k, x[places])

    (program,) = take_apart(function, k, x, places).programs
    _, (*_, decision) = schedule_program(program, named(level))
    assert decision.template.name == "side_by_side"
    check(function, k, x, places)
