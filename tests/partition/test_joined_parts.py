"""What is joined, padded, repeated, turned round or cut is a result too, and somebody folds it.

The value is stored once and read twice: at its own points, and at those of an array that is longer
or shorter than it is.  Whoever computes both in one nest must keep them apart.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.core import Assign, Stage
from hlo_mlc.tensor.rewrite import rename_axes


def pad(e: jax.Array, axis: int, before: int, after: int, interior: int = 0) -> jax.Array:
    edges = [(0, 0, 0)] * e.ndim
    edges[axis] = (before, after, interior)
    return lax.pad(e, jnp.float32(0.25), edges)


def tiled(e: jax.Array, axis: int) -> jax.Array:
    return jnp.tile(e, [3 if d == axis else 1 for d in range(e.ndim)])


# A value and the same along an axis, as something that is folded.
PARTS: dict[str, Callable[[jax.Array, jax.Array, int], jax.Array]] = {
    "joined_first": lambda e, b, axis: jnp.concatenate([e, b], axis),
    "joined_last": lambda e, b, axis: jnp.concatenate([b[:1] if axis == 0 else b[:, :1], e], axis),
    "padded": lambda e, b, axis: pad(e, axis, 0, 2),
    "padded_before": lambda e, b, axis: pad(e, axis, 3, 0),
    "spread": lambda e, b, axis: pad(e, axis, 1, 1, 1),
    "cropped": lambda e, b, axis: pad(e, axis, -1, 2),
    "repeated": lambda e, b, axis: tiled(e, axis),
    "reversed": lambda e, b, axis: jnp.flip(e, axis),
    "rolled": lambda e, b, axis: jnp.roll(e, 2, axis),
    "cut": lambda e, b, axis: lax.slice_in_dim(e, 1, e.shape[axis] - 1, axis=axis),
    "strided": lambda e, b, axis: lax.slice_in_dim(e, 0, None, 2, axis),
    "masked": lambda e, b, axis: jnp.where(
        lax.broadcasted_iota(jnp.int32, e.shape, axis) > 2, e, b
    ),
}


def normalized(p: jax.Array, axis: int) -> jax.Array:
    return (p - p.mean(axis, keepdims=True)) * lax.rsqrt(p.var(axis, keepdims=True) + 1e-5)


def attended(p: jax.Array, axis: int) -> jax.Array:
    rows = p if axis else p.T
    return jax.nn.softmax(rows @ rows.T * 0.1, -1) @ rows


CONSUMERS: dict[str, Callable[[jax.Array, int], object]] = {
    "softmax": lambda p, axis: jax.nn.softmax(p, axis),
    "log_softmax": lambda p, axis: jax.nn.log_softmax(p, axis),
    "norm": lambda p, axis: jnp.linalg.norm(p, axis=axis),
    "argmax": lambda p, axis: jnp.argmax(p, axis),
    "sum": lambda p, axis: p.sum(axis),
    "max": lambda p, axis: p.max(axis),
    "cumsum": lambda p, axis: jnp.cumsum(p, axis),
    "layernorm": normalized,
    "attention": attended,
}
SHAPES = ((37, 19), (13, 70))


def value_and_fold(part: str, consumer: str, axis: int) -> Callable:
    def function(a: jax.Array, b: jax.Array) -> tuple:
        e = jnp.tanh(a) * a
        return CONSUMERS[consumer](PARTS[part](e, b, axis), axis), e

    return function


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_a_result_too(check, arrays, part, consumer, axis):
    shape = SHAPES[(len(part) + len(consumer) + axis) % len(SHAPES)]
    check(value_and_fold(part, consumer, axis), *arrays("float32", shape, shape))


def test_a_choice_that_is_joined(check, arrays):
    a, b = arrays("float32", (37, 5), (37, 5))

    def function(a, b):
        w = jnp.where(a > 0, a, b)
        return jax.nn.log_softmax(jnp.concatenate([w, b], 1), -1), w

    check(function, a, b)


@pytest.mark.parametrize(
    "looked_up",
    [
        lambda k: jnp.take(jnp.concatenate([k, k[1:] + 1]), k, mode="clip"),
        lambda k: jnp.pad(k, ((0, 1),), mode="edge")[jnp.concatenate([k[:1], k])],
        lambda k: jnp.take(jnp.roll(k, 1), jnp.roll(k, 2), mode="clip"),
        lambda k: jnp.concatenate([k, k + 1])[jnp.concatenate([k, k + 2]) % 36],
    ],
)
def test_what_is_looked_up_in_joined_parts_is_joined_too(check, looked_up):
    """The guard of a part asks where the index points, and the index is read under the guard."""
    check(looked_up, np.arange(-3, 20, dtype=np.int32) * 5 % 17)


LOOKED_UP: dict[str, Callable[[jnp.ndarray], jnp.ndarray]] = {
    "itself": lambda k: k,
    "part": lambda k: k[1:] + 1,
    "reversed": lambda k: k[::-1],
    "cut": lambda k: lax.pad(k, jnp.int32(2), [(-2, -3, 0)]),
    "apart": lambda k: lax.pad(k, jnp.int32(0), [(-2, 1, 1)]),
    "rolled": lambda k: jnp.roll(k, 3),
    "every other": lambda k: k[::2],
}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_looked_up_again_and_again_in_joined_parts(check, data):
    """An index is read under a guard whose own indices are read under guards, and so on."""
    names = data.draw(
        st.lists(
            st.lists(st.sampled_from(sorted(LOOKED_UP)), min_size=1, max_size=4),
            min_size=1,
            max_size=4,
        )
    )
    mode = data.draw(st.sampled_from(["clip", "wrap", "fill"]))
    is_joined = data.draw(st.booleans())

    def function(k, more):
        found = k
        for parts in names:
            table = jnp.concatenate([LOOKED_UP[name](k) for name in parts])
            found = jnp.take(table, found, mode=mode)
        return jnp.concatenate([found, k, more]) if is_joined else found

    check(function, np.arange(-3, 18, dtype=np.int32) * 5 % 17, np.zeros(9, np.int32))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_parts_of_parts(check, data):
    """Any few of them one after the other, each of them a result or not."""
    shape = data.draw(st.tuples(st.integers(4, 21), st.integers(4, 21)))
    axis = data.draw(st.integers(0, 1))
    names = data.draw(
        st.lists(st.tuples(st.sampled_from(sorted(PARTS)), st.booleans()), min_size=1, max_size=3)
    )
    consumer = data.draw(st.sampled_from(sorted(CONSUMERS)))
    rng = np.random.default_rng(0)
    a = rng.normal(size=shape).astype(np.float32)

    def function(a):
        e = jnp.tanh(a) * a
        results = [e]
        for name, wanted in names:
            if e.shape[axis] < 4:  # too short to be cut again
                break
            e = PARTS[name](e, jnp.cos(e), axis) * 0.5
            results += [e] if wanted else []
        return CONSUMERS[consumer](e, axis), results

    check(function, a)


def test_what_is_merged_is_still_merged(take_apart, arrays):
    """Exponentials are stored while they are summed, also if they are chosen by position."""

    def function(x):
        e = jnp.exp(x) + jnp.tanh(x)
        return e, e.sum(1)

    def chosen(x):
        e = jnp.exp(x) + jnp.tanh(x)
        return e, jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 1) > 2, e, 0).sum(1)

    for one in (function, chosen):
        (program,) = take_apart(one, *arrays("float32", (37, 19))).programs
        (nest,) = program.steps
        (stage,) = nest.stages
        assert len(stage.along) == 1


def test_an_axis_becomes_one_of_its_own_extent():
    i, j, longer = variable("i", 4), variable("j", 4), variable("j", 5)
    stage = Stage("s", (i,), (Assign(Buffer("b", F32, (4,)), (i,), i),))
    assert rename_axes(stage, {i: j}).axes == (j,)
    with pytest.raises(VerifyError, match="4 points as well"):
        rename_axes(stage, {i: longer})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_of_short_rows_are_one_nest(take_apart, dtype) -> None:
    """Cross products are joined along the first axis, and turned round: they have no buffer."""
    with jax.enable_x64(dtype is np.float64):
        v = np.ones((20_000, 3), dtype)
        (program,) = take_apart(
            lambda v, w: jnp.concatenate([jnp.cross(v, w), 2 * v + w], -1), v, v
        ).programs
    assert len(program.steps) == 1


def _turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _normed_and_turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    return _turned(x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6), cos, sin)


# Programs of x, cos and sin, and how many nests what is joined in them is computed in.
SHARING: dict[str, tuple[Callable[..., object], int]] = {
    "one_loop": (_turned, 1),
    "with_its_rows": (_normed_and_turned, 1),
    "read_again": (lambda *args: (y := _turned(*args), y.sum(-1), jax.nn.softmax(y, -1)), 2),
    "of_other_elements": (
        lambda x, c, s: jnp.concatenate([jnp.sin(c), jnp.sin(s), jnp.sin(x)], -1),
        3,
    ),
    "of_two_lengths": (
        lambda x, c, s: jnp.concatenate([jnp.sin(c) * s, jnp.cos(c) * s, jnp.sin(x)], -1),
        2,
    ),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("program", SHARING)
def test_parts_of_the_same_elements_share_a_loop(check, arrays, take_apart, program, donated):
    function, nests = SHARING[program]
    x, cos, sin = arrays("float32", (9, 5, 38), (9, 5, 19), (9, 5, 19))
    apart = take_apart(function, x, cos, sin)
    assert sum(len(program.steps) for program in apart.programs) == nests
    if not donated:
        check(function, x, cos, sin)
        return
    by_us = mlc_jit(function, choose="ours", donate_argnums=0)
    results = jax.tree.leaves(by_us(jnp.array(x), cos, sin))
    assert by_us.report().coverage == 1
    for ours, expected in zip(
        results, jax.tree.leaves(jax.jit(function)(x, cos, sin)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, 1e-5, 1e-6)


def test_parts_that_are_too_much_for_one_loop_are_apart(take_apart) -> None:
    def function(x: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.tan(x + k) * jnp.arctan(x - k) for k in range(12)])

    (program,) = take_apart(function, np.ones((300, 20), np.float32)).programs
    assert 1 < len(program.steps) < 12


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("parts", "loops"), [(8, 1), (9, 2), (24, 3)])
def test_one_loop_stores_no_more_parts_than_a_cache_has_ways(
    check, arrays, take_apart, axis: int, parts: int, loops: int
) -> None:
    def function(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x * (k + 0.5) for k in range(parts)], axis)

    (x,) = arrays("float32", (35, 77))
    (program,) = take_apart(function, x).programs
    assert len(program.steps) == loops
    check(function, x)


@pytest.mark.parametrize(("rows", "columns", "channels"), [(300, 32, 3), (41, 9, 5), (3, 7000, 2)])
def test_parts_of_the_same_rows_are_filled_row_by_row(
    check, arrays, take_apart, rows: int, columns: int, channels: int
) -> None:
    """Rows that are longer than those that are kept between passes are not."""

    def function(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, 0), (4, 4), (0, 0)), mode="reflect")

    (x,) = arrays("float32", (2, rows, columns, channels))
    check(function, x, ulps=0)
    (program,) = take_apart(function, x).programs
    shared = [(len(nest.stages), nest.shared) for nest in program.steps]
    assert shared == ([(3, 2)] if columns * channels < 8192 else [(1, 4)] * 3)
