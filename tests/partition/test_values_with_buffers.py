"""Which values get a buffer of their own, and what is computed where it is read."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.expr.core import loads
from hlo_mlc.partition.lower.joined_arrays import JOINED_LIMIT, MANY_PARTS, SHORTEST_PART
from hlo_mlc.partition.lower.storing import FOUND_BY_PRODUCT
from hlo_mlc.partition.lower.uses import DEPTH_LIMIT, FAR_BYTES, REUSED
from hlo_mlc.tensor.classify import is_map, stride
from hlo_mlc.tensor.core import Loop


def _stages(parts):
    return [stage for program in parts.programs for step in program.steps for stage in _in(step)]


def _in(step):
    if isinstance(step, Loop):
        return [stage for inner in step.body for stage in _in(inner)]
    return step.stages


def _stored(parts, ones=True):
    """The shapes of all that is stored, without axes of length one unless `ones`."""
    return [
        tuple(n for n in a.buffer.shape if ones or n > 1)
        for stage in _stages(parts)
        for a in stage.assigns
    ]


def _is_kept(parts, dtype, size):
    """Whether so many elements between operands and results are stored."""
    return any(
        buffer.size == size and buffer.dtype.numpy == dtype
        for program in parts.programs
        for buffer in program.temporaries
    )


def test_a_sum_of_few_terms_is_part_of_what_reads_it(take_apart, arrays):
    (x,) = arrays("float32", (100, 6))
    (stage,) = _stages(take_apart(lambda x: jnp.sqrt((x * x).sum(1) + 1), x))
    assert is_map(stage)


def test_what_a_scatter_updates_is_computed_where_it_goes(take_apart, arrays):
    x, place = arrays("float32", (30, 20)), arrays("int32", (1,))
    parts = take_apart(lambda x, k: jnp.tanh(x).at[:, k].add(1), x[0], place[0][0])
    assert _stored(parts).count((30, 20)) == 2  # all of it, and the column again


@pytest.mark.parametrize(
    ("summed", "is_stored"),
    [
        (lambda x, w, a, b: jax.ops.segment_sum(jnp.exp(w), a, 9), True),
        (lambda x, w, a, b: jnp.zeros(9).at[a].max(jnp.exp(w).reshape(-1, 1)[:, 0]), True),
        (lambda x, w, a, b: jnp.zeros(9).at[a].add(f := x[a] - x[b]).at[b].add(f), True),
        (lambda x, w, a, b: jax.ops.segment_sum(jnp.where(x[b] < w, w, 0), a, 9), True),
        (lambda x, w, a, b: jax.ops.segment_sum(w * 2, a, 9), False),  # as fast one by one
        (lambda x, w, a, b: jax.ops.segment_sum(x[b] * w, a, 9), False),
        (lambda x, w, a, b: jnp.zeros(99).at[::3].add(jnp.exp(w)), False),  # in vectors as it is
        (lambda x, w, a, b: jnp.zeros((33, 9)).at[jnp.arange(33), b[0]].set(jnp.exp(w)), False),
        (lambda x, w, a, b: jnp.zeros(9).at[a[:1]].add(jnp.exp(w[:1])), False),
    ],
)
def test_what_is_scattered_one_by_one_is_computed_in_vectors_first(
    take_apart, check, arrays, summed, is_stored
):
    x, w = arrays("float32", (9,), (33,))
    a, b = np.random.default_rng(0).integers(0, 9, (2, 33)).astype(np.int32)
    parts = take_apart(summed, x, w, a, b)
    assert any(_is_kept(parts, "float32", n) for n in (33, 1)) == is_stored
    check(summed, x, w, a, b)


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_several_scatters_of_a_loop_look_up_is_looked_up_once(
    take_apart, check, arrays, rounds
):
    (x,) = arrays("float32", (9,))
    a, b = np.random.default_rng(0).integers(0, 9, (2, 33)).astype(np.int32)

    def function(x, a, b):
        def lower(_, x):
            least = jnp.minimum(x[a], x[b]) - 0.5
            return x.at[a].min(least).at[b].min(least)

        return lax.fori_loop(0, rounds, lower, x)

    assert _is_kept(take_apart(function, x, a, b), "float32", 33)
    check(function, x, a, b)


@pytest.mark.parametrize(
    ("across", "is_stored"),
    [
        (lambda x: x[:, None] + x, True),
        (lambda x: jnp.abs(x[:, None] + 2 - x), True),
        (lambda x: x[:, None] * jnp.arange(40.0), False),  # once for a row
        (lambda x: x + jnp.ones((REUSED - 1, 1)), False),
    ],
)
def test_what_is_looked_up_and_read_many_times_is_stored(
    take_apart, check, arrays, across, is_stored
):
    (x,) = arrays("float32", (100,))
    places = np.random.default_rng(0).integers(0, 100, 40)

    def function(x, places):
        return across(x[places])

    assert _is_kept(take_apart(function, x, places), "float32", 40) == is_stored
    check(function, x, places)


@pytest.mark.parametrize(
    ("size", "is_stored"), [(FOUND_BY_PRODUCT, True), (FOUND_BY_PRODUCT - 1, False)]
)
def test_what_is_looked_up_for_small_matrices_is_stored_if_these_read_it_often(
    take_apart, check, arrays, size, is_stored
):
    x, k = arrays("float32", (100,), (40, size, size))
    places = np.random.default_rng(0).integers(0, 100, (40, size))

    def function(x, k, places):
        return jnp.einsum("eij,ej->ei", k, x[places])

    folds = [s for s in _stages(take_apart(function, x, k, places)) if s.terms]
    found = [i for s in folds for term in s.terms for one in loads(term) for i in one.indices]
    assert bool(folds)
    assert any(map(loads, found)) != is_stored
    check(function, x, k, places)


@pytest.mark.parametrize(
    ("parts", "is_stored"),
    [
        (lambda y: y[1:] - y[:-1], True),
        (lambda y: y - jnp.roll(y, 3), True),
        (lambda y: y.reshape(8, 5)[:, 1:] - y.reshape(8, 5)[:, :-1], True),
        (lambda y: y[:20] - y[20:], False),
        (lambda y: (y + 3) * y, False),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_what_is_looked_up_and_read_in_parts_that_overlap_is_stored(
    take_apart, check, arrays, dtype, parts, is_stored
):
    (x,) = arrays(dtype, (100,))
    places = np.random.default_rng(0).integers(0, 100, 40)

    def function(x, places):
        return parts(x[places])

    assert _is_kept(take_apart(function, x, places), dtype, 40) == is_stored
    check(function, x, places)


@pytest.mark.parametrize(("reach", "is_stored"), [(1, False), (8, True)])
@pytest.mark.parametrize("mode", ["wrap", "edge", "reflect"])
def test_joined_arrays_that_are_read_in_many_shifted_parts_are_stored(
    take_apart, check, arrays, mode, reach, is_stored
):
    """To find each element's part takes longer than to store it, if it is done so often."""
    (x,) = arrays("float32", (200,))

    def line(x):
        padded = jnp.pad(x, reach, mode=mode)
        return sum(padded[i : i + 200] * (i + 1) for i in range(2 * reach + 1))

    assert _is_kept(take_apart(line, x), "float32", 200 + 2 * reach) == is_stored
    check(line, x)


def test_parts_of_joined_arrays_that_are_taken_apart_again_need_no_copy(take_apart, check, arrays):
    x, y = arrays("float32", (40, 30), (40, 20))

    def again(x, y):
        both = jnp.concatenate([x, y], 1)
        return sum(both[:, n : n + 10] * (n + 1) for n in range(0, 50, 10))

    assert not _is_kept(take_apart(again, x, y), "float32", 40 * 50)
    check(again, x, y)


def test_vectors_that_are_looked_up_are_loaded_where_they_are_read(take_apart, arrays):
    (x,) = arrays("float32", (100, 16))
    places = np.random.default_rng(0).integers(0, 100, 40)
    parts = take_apart(lambda x, places: x[places][1:] - x[places][:-1], x, places)
    assert not _is_kept(parts, "float32", 40 * 16)


def test_places_of_rows_are_computed_where_these_are_looked_up(take_apart, check, arrays):
    """In front of each row; but for what has none, once for all, and where that takes long."""
    (x,) = arrays("float32", (100, 3, 40))
    places = np.random.default_rng(0).integers(-100, 100, 50, np.int32)

    def rows(x, places):
        return x[places]

    def columns(x, places):
        return x[:, 0][:, places]

    def far(x, places):
        return x[(places * 7 + 3) ** 5 % 99 // 3]

    for function, kept in ((rows, False), (columns, True), (far, True)):
        args = x if function is not columns else x.T[:40].copy(), places
        assert _is_kept(take_apart(function, *args), "int32", 50) is kept
        check(function, *args, ulps=0)


@pytest.mark.parametrize(
    "update",
    [
        lambda x, y: x.at[::2, 1::2].set(y),
        lambda x, y: x.at[::2, 1::2].add(y).at[1::2, ::2].add(y * 2),
        lambda x, y: x.at[jnp.arange(15) * 2 + 1, :10].set(y),
        lambda x, y: x[jnp.arange(15) * 2][:, :10] + x[29 - 2 * jnp.arange(15)][:, 10:] * y,
    ],
)
def test_places_in_even_steps_are_not_stored(take_apart, arrays, update):
    """They are expressions of where they are read, in bounds without a question."""
    parts = take_apart(update, *arrays("float32", (30, 20), (15, 10)))
    (program,) = parts.programs
    assert not [b for b in (*program.operands, *program.temporaries) if b.dtype.is_integer]
    assert all(a.guard is None for stage in _stages(parts) for a in stage.assigns)


def test_places_that_wrap_around_are_stored_or_computed_but_right(take_apart, arrays):
    """257 numbers of eight bits are no even steps."""

    def function(x, y):
        return jnp.tanh(x).at[(jnp.arange(257).astype(jnp.int8) * 2).astype(jnp.int32) & 127].add(y)

    args = arrays("float32", (300,), (257,))
    np.testing.assert_allclose(mlc_jit(function, choose="ours")(*args), function(*args), rtol=1e-5)


def test_a_sum_of_more_terms_is_a_reduction(take_apart, arrays):
    (x,) = arrays("float32", (100, 7))
    assert not all(map(is_map, _stages(take_apart(lambda x: (x * x).sum(1), x))))


_BACK = {  # whose folds go back to their rows, or are of rows to which one went back
    "softmax": jax.nn.softmax,
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "norm": lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1),
    "largest": lambda x: jnp.where(x == x.max(1, keepdims=True), x, 0),
    "between": lambda x: jax.nn.softmax(x.reshape(10, -1, 10), 1),
}


@pytest.mark.parametrize("name", _BACK)
@pytest.mark.parametrize("terms", [7, 8, 9])
def test_a_row_is_written_out_where_its_sum_goes_back_to_it(name, terms, take_apart, check, arrays):
    (x,) = arrays("float32", (100, terms), special=True)
    stages = _stages(take_apart(_BACK[name], x))
    assert all(map(is_map, stages)) == (terms < 9)
    check(_BACK[name], x, ulps=64.0)


def test_a_sum_that_goes_elsewhere_is_a_reduction(take_apart, arrays):
    (x,) = arrays("float32", (8, 8))
    (y,) = arrays("float32", (8, 9))
    for function in (lambda x, y: x.sum(1), lambda x, y: jnp.exp(x).sum(1)[:, None] * y):
        assert not all(map(is_map, _stages(take_apart(function, x, y))))


def test_what_is_joined_for_a_product_is_put_together_once(take_apart, arrays):
    x, y, w = arrays("float32", (3, 5), (3, 4), (9, 8))

    def function(x, y, w):
        return jnp.concatenate([x, y], 1) @ w

    assert (3, 9) in _stored(take_apart(function, x, y, w))
    rows = JOINED_LIMIT // 36 + 1
    x, y = arrays("float32", (rows, 5), (rows, 4))
    assert (rows, 9) in _stored(take_apart(function, x, y, w))
    assert (rows, 9) not in _stored(take_apart(function, x, y, w[:, : REUSED - 1]))


def test_what_is_joined_for_a_convolution_is_put_together_once(take_apart, check, arrays):
    """Also where it is moved in between: choosing the part of each element of a window took
    twenty times as long."""
    x, y, w = arrays("float32", (1, 8, 9, 4), (1, 8, 9, 4), (3, 3, 8, 5))

    def convolution(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def skip(x, y, w):
        return convolution(jnp.concatenate([x, y], -1), w)

    def interleaved(x, y, w):
        return convolution(jnp.stack([x, y], -1).reshape(1, 8, 9, 8), w)

    assert (8, 9, 8) in _stored(take_apart(skip, x, y, w), ones=False)
    assert (8, 9, 4, 2) in _stored(take_apart(interleaved, x, y, w), ones=False)
    check(skip, x, y, w, magnitude=10)
    check(interleaved, x, y, w, magnitude=10)


@pytest.mark.parametrize(
    ("step", "window", "stored"), [((1, 2), 3, True), ((2, 1), 3, False), ((1, 2), 1, False)]
)
def test_what_is_convolved_has_no_gaps_along_rows(step, window, stored, take_apart, check, arrays):
    x, k = arrays("float32", (2, 1, 24 * step[0], 30 * step[1]), (1, 1, window, window))

    def function(x, k):
        return lax.conv(x[..., :: step[0], :: step[1]], k, (1, 1), "SAME")

    assert ((2, 1, 24, 30) in _stored(take_apart(function, x, k))[:-1]) is stored
    check(function, x, k, ulps=64)


@pytest.mark.parametrize(("shape", "axis"), [((120,), 0), ((40, 5), 0), ((1, 130), 1)], ids=str)
def test_many_long_parts_are_put_together_one_by_one(shape, axis, take_apart, arrays, check):
    parts = arrays("float32", *[shape] * MANY_PARTS, (*shape[:axis], 1, *shape[axis + 1 :]))

    def function(*parts):
        joined = jnp.concatenate([parts[0] * 2, *parts[1:]], axis)
        return joined + 1, joined[::-1]

    first = [s for s in _stages(take_apart(function, *parts)) if len(s.inputs) == 1]
    assert len([s for s in first if s.inputs[0].shape != s.outputs[0].shape]) >= len(parts)
    check(function, *parts)
    check(lambda *parts: jnp.concatenate(parts, axis), *parts)
    check(
        lambda x, *rest: lax.fori_loop(  # in a loop, whose buffers are reused
            0, 3, lambda i, c: jnp.concatenate([c, *rest], axis)[tuple(map(slice, c.shape))] * 2, x
        ),
        *parts,
    )


def test_parts_in_a_loop_are_put_together_one_by_one(take_apart, check, arrays):
    """Planes that flow in several directions: each is shifted once, not wherever it is read."""
    (x,) = arrays("float32", (MANY_PARTS, 12, 16))

    def flow(x):
        def step(_, x):
            moved = jnp.stack([jnp.roll(plane, n, n % 2) for n, plane in enumerate(x)])
            mean = moved.mean(0)
            return moved + (mean - moved) * mean * 0.5

        return lax.fori_loop(0, 3, step, x)

    parts = take_apart(flow, x)
    planes = [s for s in _stages(parts) if s.outputs[0].shape == x.shape and len(s.axes) == 2]
    assert len(planes) == MANY_PARTS
    check(flow, x)


@pytest.mark.parametrize(
    ("shape", "axis"), [((9, 70), 1), ((5, 33, 40), 1), ((130, 7), 0)], ids=str
)
def test_parts_that_are_computed_are_put_together_one_by_one(
    shape, axis, take_apart, arrays, check
):
    """One loop over all would compute every part for each element: wavelets of 64 rows took eight
    times as long."""
    x, y = arrays("float32", shape, (*shape[:axis], shape[axis] + 3, *shape[axis + 1 :]))

    def function(x, y):
        joined = jnp.concatenate([jnp.tanh(x) * x, jnp.exp(-y * y), jnp.tanh(y)], axis)
        return joined, jnp.flip(joined, axis) + 1

    def cheap(x, y):
        return jnp.concatenate([x + 1, y * 2], axis)

    def halved(x):
        parts = []
        while x.shape[axis] % 2 == 0:
            even, odd = (lax.slice_in_dim(x, k, None, 2, axis) for k in (0, 1))
            parts, x = [even - odd, *parts], even + odd
        return jnp.concatenate([x, *parts], axis)

    def repeated(x, y):
        return lax.fori_loop(
            0, 3, lambda _, c: function(c, y)[1][tuple(map(slice, x.shape))] - 1, x
        )

    filled = _stored(take_apart(function, x, y)).count(function(x, y)[0].shape)
    assert filled >= 3  # once for each part
    has_long_rows = math.prod(shape[axis + 1 :]) >= SHORTEST_PART  # else each part is found for few
    assert len(_stages(take_apart(cheap, x, y))) == (1 if has_long_rows else 2)
    check(function, x, y, magnitude=2)
    check(cheap, x, y)
    check(repeated, x, y, magnitude=100)
    (even,) = arrays("float32", (*shape[:axis], 96, *shape[axis + 1 :]))
    check(halved, even, magnitude=100)


def test_parts_are_put_together_where_data_say_what_is_read(take_apart, arrays, check):
    """Each element of a part of an image with mirrored edges looked for its own among nine."""
    (x,) = arrays("float32", (5, 14, 15, 3))
    places = np.arange(10).reshape(5, 2) % 9

    def cut(x, places):
        edged = jnp.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
        return jax.vmap(lambda x, p: lax.dynamic_slice(x, (p[0], p[1], 0), (14, 15, 3)))(
            edged, places
        )

    def rolled(x, places):
        return jnp.roll(x, places[0, 0], 1) * 2

    edged, whole = (5, 22, 23, 3), (5, 28, 15, 3)
    assert edged in _stored(take_apart(cut, x, places))
    assert whole not in _stored(take_apart(rolled, x, places))
    check(cut, x, places)
    check(rolled, x, places)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_columns_beside_images_are_parts_of_their_own(take_apart, arrays, check, mode):
    """But for the ends of rows, which one loop along each row computes."""
    images, rows = arrays("float32", (16, 32, 32, 3), (512, 96))

    def wide(x):
        return jnp.pad(x, ((0, 0), (0, 0), (4, 4), (0, 0)), mode)

    def long(x):
        return jnp.pad(x, ((0, 0), (4, 4)), mode)

    assert len(_stages(take_apart(wide, images))) == 3
    assert len(_stages(take_apart(long, rows))) == 1
    check(wide, images)
    check(long, rows)


def test_few_or_short_or_interleaved_parts_are_chosen_where_they_are_read(take_apart, arrays):
    (x,) = arrays("float32", (8, 40))
    for parts, axis in (((x,) * 3, 0), ((x[0, :9],) * 9, 0), ((x,) * 6, 1)):
        stages = _stages(take_apart(lambda *p, axis=axis: jnp.concatenate(p, axis) + 1, *parts))
        assert len(stages) == 1


def test_moves_on_top_of_each_other_end_in_a_buffer(take_apart, arrays):
    (x,) = arrays("float32", (6, 6))

    def function(x, depth):
        for _ in range(depth):
            x = jnp.roll(x.T, 1, 0)
        return x

    assert len(_stages(take_apart(lambda x: function(x, 2), x))) == 1
    assert len(_stages(take_apart(lambda x: function(x, DEPTH_LIMIT), x))) > 1


def _limited(x):
    """Differences of a Laplacian, none where they would steepen it; in a weather model, on a grid,
    a step of several stencils."""
    laplacian = 4 * x[1:-1] - x[2:] - x[:-2]
    flux = laplacian[1:] - laplacian[:-1]
    flux = jnp.where(flux * (x[2:-1] - x[1:-2]) > 0, 0, flux)
    return x[2:-2] - flux[1:] + flux[:-1]


def test_stencils_in_several_steps_are_one_loop_where_arrays_are_large(take_apart, check, arrays):
    large, small = arrays("float32", (FAR_BYTES // 4 + 100,), (3000,))
    (stage,) = _stages(take_apart(_limited, large))
    assert is_map(stage)
    assert len(_stages(take_apart(_limited, small))) > 1, "caches hand it on for less"
    check(_limited, large, magnitude=20)


def test_what_is_not_only_read_in_shifted_parts_is_stored(take_apart, arrays):
    (x,) = arrays("float32", (FAR_BYTES // 4 + 100,))

    def laplacian(x):
        return 4 * x[1:-1] - x[2:] - x[:-2]

    def every_other(x):
        y = laplacian(x)
        return y[::2][:-1] - y[2::2]

    def whole_as_well(x):
        y = laplacian(x)
        return y[1:] - y[:-1], y.sum()

    def two_heads(x):
        y = laplacian(x)
        a, b = y * 2, y + 1
        return a[1:] - a[:-1] * b[1:] + b[:-1]

    for function in (every_other, whole_as_well, two_heads):
        assert len(_stages(take_apart(function, x))) > 1


def test_stencils_of_stencils_end_somewhere(take_apart, arrays):
    """What is computed again for each of its readers doubles with each step."""
    (x,) = arrays("float32", (FAR_BYTES // 4 + 100,))

    def smoothed(x):
        for _ in range(10):
            x = x[2:] + x[1:-1] * 2 + x[:-2]
        return x

    assert 2 <= len(_stages(take_apart(smoothed, x))) <= 5


REDUCED = {
    "sum": jnp.sum,
    "largest": jnp.max,
    "product": lambda x: jnp.prod(1 + x / 64),
    "any": lambda x: jnp.any(x > 1),
    "first": jnp.argmax,
    "variance": jnp.var,
    "two": lambda x: x.sum((0, 1)),
    "last two": lambda x: x.sum((1, 2)),
    "one": lambda x: x.sum(1),
    "norms": lambda x: jnp.linalg.norm(x.reshape(-1, x.shape[-1])),
    "windows": lambda x: x.reshape(-1, 2, x.shape[-1]).max(1),
}


@pytest.mark.parametrize("reduced", REDUCED)
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_what_is_transposed_is_reduced_in_the_order_of_memory(
    check, take_apart, arrays, reduced, order
):
    """Where the order of the terms is free: the first of several largest elements stays that."""
    (x,) = arrays("float32", (6, 18, 20))
    x[2, 3] = x[1, 2] = x.max()

    def function(x):
        return REDUCED[reduced](jnp.transpose(jnp.tanh(x), order))

    check(function, x)
    if reduced in ("sum", "largest", "product", "two", "last two"):
        *_, fold = (s for s in _stages(take_apart(function, x)) if not is_map(s))
        (read,) = (load for term in fold.terms for load in loads(term))
        steps = [abs(stride(read, v)) for v in fold.reduce_axes]
        assert len(steps) > 1 and sorted(steps, reverse=True) == steps


@pytest.mark.parametrize(
    "shape, crossed",
    [((160, 128), True), ((96, 80), False), ((6000, 3), False), ((3, 6000), False)],
)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("reduced", [jnp.sum, jnp.max, jnp.any])
def test_what_is_read_along_rows_and_columns_is_stored_before_it_is_reduced(
    check, take_apart, arrays, shape, crossed, axis, reduced
):
    """Large arrays of long rows only."""
    x, y = arrays("float32", shape, shape[::-1])

    def function(x, y):
        return reduced(x.T * y, axis=axis)

    check(function, x, y)
    assert (shape[::-1] in _stored(take_apart(function, x, y))) == crossed


def test_maps_of_different_shapes_that_share_a_scalar_stay_apart(check, take_apart, arrays):
    """An update of weights, one of them transposed, by one rate."""
    w, g, b, rate = arrays("float32", (160, 128), (128, 160), (160,), ())

    def function(w, g, b, rate):
        return w - rate * g.T, b - rate * b

    check(function, w, g, b, rate)
    nests = [
        step for program in take_apart(function, w, g, b, rate).programs for step in program.steps
    ]
    assert sorted(len(stage.axes) for nest in nests for stage in nest.stages) == [1, 2]
    assert all(len(nest.stages) == 1 for nest in nests)


def test_a_loop_whose_values_all_readers_compute_themselves_is_no_kernel(
    take_apart, arrays
) -> None:
    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = lax.map(jnp.tanh, x.at[::2].set(3.0))
        return rows.argmin(1), rows.argmax(1)

    (x,) = arrays("float64", (64, 1, 33))
    parts = take_apart(function, x)
    assert all(program.results for program in parts.programs)
    ours = mlc_jit(function, choose="ours")
    for found, expected in zip(ours(x), jax.jit(function)(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert ours.report(x).coverage == 1


@pytest.mark.parametrize(
    ("function", "tokens", "is_stored"),
    [
        (lambda a, x: lax.top_k((a[..., None] + x).reshape(3, -1), 2), 50, True),
        (lambda a, x: lax.top_k((a[..., None] + x).reshape(3, -1), 2), 48, False),  # whole vectors
        (lambda a, x: lax.top_k((a[..., None] * x + x - a[..., None]).reshape(3, -1), 2), 48, True),
        (lambda a, x: jnp.sort((a[..., None] + x).reshape(3, -1)), 50, True),
        (lambda a, x: jnp.sort((a[..., None] + x).reshape(3, -1)), 48, False),
        (lambda a, x: jnp.sort((a[..., None] + x).reshape(3, -1), axis=0), 50, False),
        (lambda a, x: lax.top_k(a[..., None] + x, 2), 50, False),  # computed again in less time
        (lambda a, x: lax.top_k(a[..., None] - jnp.log(-jnp.log(x)), 2), 50, True),
        (lambda a, x: jnp.sort(a[..., None] - jnp.log(-jnp.log(x))), 50, False),
    ],
)
def test_keys_that_are_put_in_order(check, take_apart, arrays, function, tokens, is_stored):
    """Of rows joined to one that are no whole vectors, and costly ones that are looked at twice."""
    scores, steps = arrays("float32", (3, 4), (3, 4, tokens))
    steps = np.abs(steps) / 8 + 1 / 64
    check(function, scores, steps)
    assert _is_kept(take_apart(function, scores, steps), "float32", 12 * tokens) == is_stored


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: jnp.sin(x).reshape(()) * y,
        lambda x, y: jnp.cumsum(x)[-1] + y,
        lambda x, y: jnp.pad(jnp.sin(x), 3)[2:4][1] + y,
    ],
    ids=["reshaped", "last", "window"],
)
def test_a_row_of_one_element_is_read_as_a_single_number(check, arrays, function) -> None:
    """Which has no rows that could be joined."""
    check(function, *arrays("float32", (1,), ()))
