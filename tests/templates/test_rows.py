"""Row-wise chains: what is reduced along a row and used all along it."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import For, LoopKind, Store, walk
from hlo_mlc.loops.text import program_text
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.reduction import FAR

SHAPES = ((1, 1), (3, 15), (7, 16), (16, 17), (2, 33), (65, 31), (5, 1000), (300, 517))


def layer_norm(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * scale + shift


def rms_norm(x, scale, shift):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale + shift


def by_largest(x, scale, shift):
    return x / jnp.max(jnp.abs(x), -1, keepdims=True) * scale


def largest_of_rows(x):
    return jnp.argmax(x, -1)


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_and_its_kin(check, arrays, shape):
    (x,) = arrays("float32", shape)
    check(lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x), jax.nn.logsumexp(x, 1)), x)


@pytest.mark.parametrize("shape", SHAPES)
def test_norms(check, arrays, shape):
    x, scale, shift = arrays("float32", shape, shape[1:], shape[1:])
    check(lambda *a: (layer_norm(*a), rms_norm(*a), by_largest(*a)), x, scale, shift)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats(check, arrays, dtype):
    x, scale, shift = arrays(dtype, (9, 37), (37,), (37,))
    check(
        lambda x, a, b: (jax.nn.softmax(x), layer_norm(x, a, b), rms_norm(x, a, b)),
        x,
        scale,
        shift,
        ulps=8,
    )


def test_masks_of_minus_infinity(check, arrays):
    """Masked elements get exactly 0, a row that is masked as a whole NaN, and no other row."""
    x, mask = arrays("float32", (20, 37))[0], arrays("bool", (20, 37))[0]
    mask[3], mask[7] = False, True

    def function(x, mask):
        hidden = jnp.where(mask, x, -jnp.inf)
        return (
            jax.nn.softmax(hidden),
            jax.nn.log_softmax(hidden),
            jax.nn.logsumexp(hidden, 1),
            jnp.max(hidden, 1),
            jax.nn.softmax(x, where=mask),
        )

    check(function, x, mask)


def test_extreme_rows(check, arrays):
    """Overflow is kept away by the maximum; infinities and NaN stay in their rows."""
    (x,) = arrays("float32", (12, 33))
    x[0] *= 1e4
    x[1], x[2, 5], x[3, 5], x[4] = 3e38, np.inf, np.nan, -3e38
    check(lambda x: (jax.nn.softmax(x), jax.nn.logsumexp(x, 1), jax.nn.log_softmax(x)), x)


@pytest.mark.parametrize("axis", [0, 1, (0, 2), (1, 2), None])
def test_other_axes(check, arrays, axis):
    (x,) = arrays("float32", (6, 17, 9))
    check(lambda x: (jax.nn.softmax(x, axis), x - x.mean(axis, keepdims=True)), x)


def test_rows_of_other_layouts(check, arrays):
    x, y = arrays("float32", (17, 33), (33, 17))
    check(
        lambda x, y: (
            jax.nn.softmax(x.T),
            jax.nn.softmax(x[::2, 3:]),
            jax.nn.softmax(x[:, ::-1]),
            layer_norm(x + y.T, x[0], y[:, 0]),
            jax.nn.softmax(y, 0).T * 2,
        ),
        x,
        y,
    )


def test_results_used_in_several_places(check, arrays):
    """Values inside a chain that are results too, or feed another chain."""
    x, w = arrays("float32", (13, 40), (40,))

    def function(x, w):
        p = jax.nn.softmax(x * w)
        entropy = -(p * jnp.log(p)).sum(-1)
        q = jax.nn.softmax(p * entropy[:, None])
        return p, entropy, q.sum(0), jnp.argmax(q, -1), layer_norm(q, w, entropy.sum())

    check(function, x, w)


@pytest.mark.parametrize("shape", [(3, 17), (8, 64), (50, 517)])
def test_gradients(check, arrays, shape):
    x, scale, shift = arrays("float32", shape, shape[1:], shape[1:])

    def loss(x, scale, shift):
        return (jax.nn.softmax(layer_norm(x, scale, shift)) ** 2).sum() + jax.nn.logsumexp(
            by_largest(x, scale, shift), 1
        ).mean()

    check(jax.grad(loss, (0, 1, 2)), x, scale, shift, ulps=64)


def fetched(take_apart, function, *shape: int) -> set[tuple[str, int]]:
    """What the loops of a function of one array ask for: in which pass, and how far ahead."""
    (program,) = take_apart(function, jnp.zeros(shape)).programs
    text = program_text(schedule_program(program, named("x86-64-v4"))[0])
    return {
        (re.findall(r"(i\d+)\.v", line)[0], int(line.rpartition("+ ")[2]))
        for line in text.splitlines()
        if "prefetch" in line
    }


def test_what_comes_next_is_fetched(take_apart):
    """In the longest pass the next row, or what is some way ahead of one pass; nothing where the
    data stay in cache or two rows would not fit."""
    norm = functools.partial(layer_norm, scale=2.0, shift=1.0)
    for function, shape, expected in (
        (jax.nn.softmax, (512, 1024), {("i3", 1024)}),
        (jax.nn.softmax, (64, 8192), {("i3", 8192)}),
        (jax.nn.softmax, (64, 1024), set()),
        (largest_of_rows, (32, 1 << 15), {("i1", 1024)}),
        (largest_of_rows, (1 << 12, 96), {("i1", 960)}),
        (norm, (128, 4096), set()),
    ):
        assert fetched(take_apart, function, *shape) == expected


@pytest.mark.parametrize(("shape", "dtype"), [((701, 203), "float32"), ((260, 1031), "bfloat16")])
def test_large_arrays(check, arrays, shape, dtype):
    """Those whose next row is fetched."""
    (x,) = arrays(dtype, shape)
    assert x.nbytes >= FAR
    check(lambda x: (jax.nn.softmax(x), largest_of_rows(x), x.max(1)), x, ulps=8)


@pytest.mark.parametrize(
    ("function", "expected"), [(lambda x: jnp.exp(jnp.tanh(x)) * x, 4), (lambda x: x * 3 + 1, 2)]
)
def test_long_chains_are_computed_side_by_side(check, take_apart, arrays, function, expected):
    """Of maps between folds, those whose operations wait for each other."""

    def rows(x):
        return function(x - x.max(1, keepdims=True))

    (x,) = arrays("float32", (5, 260))
    (program,) = take_apart(rows, x).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    abreast = {
        str(loop.extent)
        for loop in walk(loops.body)
        if isinstance(loop, For)
        and loop.kind is LoopKind.UNROLL
        and any(isinstance(s, Store) and s.buffer in loops.results for s in walk((loop,)))
    }
    assert abreast == {str(expected)}
    check(rows, x, ulps=64)


def test_more_rows_than_fit_onto_a_stack(check, arrays):
    """Each waits for the largest of the one before, and all are needed in the end."""
    (x,) = arrays("float32", (3, 8000))

    def function(x):
        rows = [x]
        for _ in range(10):
            rows.append(jnp.tanh(rows[-1] - 0.5 * rows[-1].max(1, keepdims=True)))
        return sum(row * row[:, :1] for row in rows)

    check(function, x, ulps=64)
