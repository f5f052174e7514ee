"""Updates: windows overwritten, elements set and added to in order, gathered elements."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import For, LoopKind, walk
from hlo_mlc.loops.text import program_text
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")

# Repeated, negative, and out of bounds on both sides.
PLACES = np.array([0, 3, 3, -1, 7, 100, 3, -9, -100, 5], np.int32)


@pytest.mark.parametrize("start", [0, 2, 7, 30, -3, -30])
def test_windows_at_places_known_at_run_time(check, arrays, start):
    """A window that would stick out is moved inside."""
    x, y = arrays("float32", (8, 17), (3, 5))

    def function(x, y, start):
        return (
            lax.dynamic_update_slice(x, y, (start, start - 1)),
            lax.dynamic_slice(x, (start, start + 1), (3, 5)),
            lax.dynamic_update_slice(jnp.exp(x), y * 2, (start, 12)),
            lax.dynamic_slice_in_dim(x, start, 1, 0) + x,
        )

    check(function, x, y, np.int32(start))


@pytest.mark.parametrize("method", ["set", "add", "multiply", "max", "min", "apply"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_repeated_places(check, arrays, method, dtype):
    """In the order of the updates: the last one stays, or each one counts."""
    x, y = arrays(dtype, (8, 5), (10, 5))
    if dtype == "bool" and method in ("add", "multiply", "apply"):
        x, y = x.astype(np.int8), y.astype(np.int8)

    def function(x, y, places):
        if method == "apply":
            return x.at[places].apply(lambda e: 3 - e)
        row = getattr(x.at[places], method)(y)
        element = getattr(x.at[places, places % 5], method)(y[:, 0])
        column = getattr(x.at[:, places % 5], method)(y[:8].T[:1].T.repeat(10, 1))
        return row, element, column

    check(function, x, y, PLACES)


def test_fixed_places(check, arrays):
    x, y = arrays("float32", (9, 20), (20,))

    def function(x, y):
        return (
            x.at[1:-1, 1:-1].set(0),
            x.at[::2].add(y),
            x.at[:, 3].multiply(2.0),
            x.at[4].set(y),
            x.at[2, 3].set(y[0]),
            x.at[1:8].set(x[2:9] + x[:7]),
            x.at[np.array([1, 1, 4])].add(y[:3, None]),
            x.at[::-1].set(x),
        )

    check(function, x, y)


@pytest.mark.parametrize(
    ("rows", "updates", "others", "first"),
    [
        (64, 100, (), 0),  # whole vectors, and tails, of which nothing is within the array
        (64, 1000, (1,), 0),
        (300, 1000, (2,), 0),
        (32, 100, (40, 3), 31),
        (300, 17, (17, 8), 299),
        (5, 15, (2, 16), 6),  # nothing at all
    ],
)
def test_even_steps_that_leave_the_array(check, arrays, rows, updates, others, first):
    """What would be beyond its end is dropped, however much of it there is."""
    x, y = arrays("float32", (rows, *others), (updates, *others))

    def function(x, y):
        places = x.at[first + 2 * jnp.arange(updates)]
        return places.set(y), places.max(y), places.multiply(y, mode="fill")

    check(function, x, y, ulps=0)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_gathers(check, arrays, mode):
    (x,) = arrays("float32", (8, 17))
    places = np.clip(PLACES, 0, 7) if mode == "promise_in_bounds" else PLACES

    def function(x, places):
        return (
            x.at[places].get(mode=mode),
            x.at[places, places].get(mode=mode) * 2,
            x.at[:, places].get(mode=mode),
            x.ravel().at[places[:4, None] + places[None, :3]].get(mode=mode),
            jnp.take(x, places, 0, mode="wrap"),
        )

    check(function, x, places)


def test_gathered_and_scattered_along_axes(check, arrays):
    x, y = arrays("float32", (6, 9, 5), (6, 9, 5))
    order = np.argsort(x, 1)

    def function(x, y, order):
        taken = jnp.take_along_axis(x, order, 1)
        put = jnp.put_along_axis(y, order, taken * 2, 1, inplace=False)
        return taken, put, jax.ops.segment_sum(x, order[:, 0, 0] % 4, 4), x[order[0, 0, 0]]

    check(function, x, y, order)


def test_gradients_of_gathers(check, arrays):
    (table,) = arrays("float32", (8, 17))
    check(jax.grad(lambda t, places: jnp.sum(jnp.tanh(t[places]) ** 2)), table, PLACES % 8)


def test_one_update_after_another(check, arrays):
    x, y = arrays("float32", (12, 7), (12, 7))

    def function(x, y, places):
        a = x.at[2:5].set(y[:3])
        b = a.at[places].add(a[0])
        return a, b, b.at[0].set(b[places[0]] + x[0]), (a * b).sum(0)

    check(function, x, y, PLACES)


@pytest.mark.parametrize("width", [2, 5, 16, 33, 130])
def test_rows_that_meet_are_vectors(check, arrays, take_apart, width):
    """One after the other: the order of additions to an element is that of the rows."""
    x, y = arrays("float32", (8, width), (10, width))
    y = y * np.logspace(0, 9, 10, dtype=np.float32)[:, None]

    def function(x, y, places):
        return x.at[places].add(y), x.at[places].set(y)

    check(function, x, y, PLACES, ulps=0)
    decisions = [
        d
        for program in take_apart(function, x, y, PLACES).programs
        for d in schedule_program(program, TARGET)[1]
    ]
    assert [d.template.name for d in decisions].count("update") == 2
    check(lambda x, y, places: jax.ops.segment_sum(y, places % 4, 4) + x[:4], x, y, PLACES)


@pytest.mark.parametrize("width", [3, 5, 12])
def test_no_short_row_that_is_added_to_is_under_a_mask(arrays, take_apart, width):
    """The next addition to the same row would wait for it in memory."""
    (x,) = arrays("float32", (10, width))
    (program,) = take_apart(lambda x, k: jax.ops.segment_sum(x, k, 4), x, PLACES % 4).programs
    loops = program_text(schedule_program(program, TARGET)[0])
    lanes = [int(n) for n in re.findall(r"in 0..(\d+) vectorize:\n *r0\[.*\] = r0\[", loops)]
    assert lanes and all(n & (n - 1) == 0 for n in lanes)


@pytest.mark.parametrize("window", [(4, 16), (16, 3), (2, 2, 5)])
def test_rows_of_several_dimensions_are_vectors(check, arrays, take_apart, window):
    """As what heads of attention send along edges."""
    x, y = arrays("float32", (8, *window), (10, *window))

    def function(x, y, places):
        return x.at[places].add(y), x.at[places].set(y), jax.ops.segment_sum(y, places % 4, 4)

    check(function, x, y, PLACES)
    decisions = [
        d
        for program in take_apart(function, x, y, PLACES).programs
        for d in schedule_program(program, TARGET)[1]
    ]
    assert [d.template.name for d in decisions].count("update") == 3


def test_parts_of_rows_of_several_dimensions(check, arrays):
    """Windows that do not fill the dimensions that they go through, and begin where data say."""
    x, y = arrays("float32", (8, 9, 16), (10, 4, 16))

    def function(x, y, places):
        return (
            x.at[places, 2:6].add(y),
            x.at[places, :, 3].multiply(y[:, 0, :9]),
            lax.scatter_add(
                x,
                jnp.stack([places, places], 1),
                y,
                lax.ScatterDimensionNumbers((1, 2), (0,), (0, 1)),
                mode="clip",
            ),
        )

    check(function, x, y, PLACES)


def test_rows_that_lie_across_are_stored_before_they_are_added_up(check, arrays, take_apart):
    """No two elements of a row of the transposed image lie side by side."""
    image, columns = arrays("float32", (50, 40), (40, 70))
    places = np.resize(PLACES, 70)

    def added(image, columns):
        return image.at[places].add(columns.swapaxes(0, 1))

    check(added, image, columns, magnitude=200)
    _, (program,) = updates_of(take_apart(added, image, columns).programs)
    assert "in 0..16 vectorize" in program_text(program)


@pytest.mark.parametrize(("planes", "width"), [(64, 8), (99, 4), (35, 16)])
def test_pieces_of_several_planes_are_added_to_together(check, arrays, take_apart, planes, width):
    """Pieces that share lines of memory are of one task, and follow each other."""
    y, places = arrays("float32", (planes, 2000, width))[0], np.resize(PLACES, 2000)

    def function(y, places):
        return jnp.zeros((9, planes, width)).at[places].add(y.swapaxes(0, 1))

    check(function, y, places, magnitude=2000)
    _, (program,) = updates_of(take_apart(function, y, places).programs)
    assert re.search(
        r"(i\d+).o in .* parallel:\n.*in 0..2000:\n *for \1.i in .*\n *for .* in 0.."
        f"{width} vectorize",
        program_text(program),
    )


def test_elements_that_meet_are_no_vectors(check, arrays, take_apart):
    """Places of single elements, and windows whose rows overlap each other in a row's direction:
    some are written out."""
    x, y = arrays("float32", (9, 20), (10,))

    def function(x, y, places):
        return x.at[0, places].add(y), x.at[places, places].set(y)

    check(function, x, y, PLACES)
    decisions = [
        d
        for program in take_apart(function, x, y, PLACES).programs
        for d in schedule_program(program, TARGET)[1]
        if d.template.name == "update"
    ]
    for decision in decisions:
        (schedule,) = decision.schedules
        kinds = [s.kind for s in walk(schedule.program.body) if isinstance(s, For)]
        assert kinds == [LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.SERIAL]
    assert len(decisions) == 2


def loop_kinds(programs):
    """The kinds of loops of the one update among programs, outermost first."""
    (decision,) = [
        d
        for program in programs
        for d in schedule_program(program, TARGET)[1]
        if d.template.name == "update"
    ]
    (schedule,) = decision.schedules
    return [s.kind for s in walk(schedule.program.body) if isinstance(s, For)]


@pytest.mark.parametrize(("shape", "axis"), [((9, 40), 0), ((40, 9), 1), ((5, 40, 33), 0)])
def test_axes_on_which_none_meet_are_shared_out(check, arrays, take_apart, shape, axis):
    """Of scatters in batches, also where the batch comes last: every task has its own places."""
    batch = shape[axis]
    rest = tuple(n for k, n in enumerate(shape) if k not in (axis, 1 - axis))
    x, y = arrays("float32", shape, (batch, 4000, *rest))
    places = np.resize(PLACES, 4000)
    y *= np.resize(np.logspace(0, 9, 10, dtype=np.float32), 4000).reshape(1, -1, *[1] * len(rest))

    def function(x, y, places):
        return jax.vmap(lambda x, y: x.at[places].add(y), (axis, 0), axis)(x, y)

    check(function, x, y, places, ulps=0)
    kinds = loop_kinds(take_apart(function, x, y, places).programs)
    assert kinds[0] is LoopKind.PARALLEL
    assert LoopKind.PARALLEL not in kinds[1:]


@pytest.mark.parametrize("out", [0, 1])
def test_batches_that_come_last_are_added_up_in_rows(check, arrays, take_apart, out):
    """Whether the result has the batch last, too, or is transposed."""
    (y,) = arrays("float32", (40, 33))
    places = np.resize(PLACES, 40)

    def function(y, places):
        return jax.vmap(lambda y: jnp.full(9, 2.0).at[places].add(y), 1, out)(y)

    check(function, y, places)
    (decision,) = [
        d
        for program in take_apart(function, y, places).programs
        for d in schedule_program(program, TARGET)[1]
        if d.template.name == "update"
    ]
    (schedule,) = decision.schedules
    assert "in 0..16 vectorize" in program_text(schedule.program)


def test_batches_with_places_of_their_own_are_shared_out(check, arrays, take_apart):
    """Histograms of rows: no two rows meet, wherever each has its elements counted."""
    x, y = arrays("float32", (9, 20), (9, 3000))
    places = np.resize(PLACES, (9, 3000)) + np.arange(9, dtype=np.int32)[:, None]
    y *= np.resize(np.logspace(0, 9, 10, dtype=np.float32), 3000)

    def function(x, y, places):
        return jax.vmap(lambda x, y, places: x.at[places].add(y))(x, y, places)

    check(function, x, y, places, ulps=0)
    kinds = loop_kinds(take_apart(function, x, y, places).programs)
    assert kinds[0] is LoopKind.PARALLEL


@pytest.mark.parametrize("along", [0, 1])
def test_windows_that_begin_elsewhere_are_not_shared_out(check, arrays, take_apart, along):
    """Gradients of parts of an array at places that data say: parts overlap, either way."""
    x, y = arrays("float32", (90, 190), (16, 60, 130))
    places = np.arange(16, dtype=np.int32)

    def parts(x, places):
        return jax.vmap(
            lambda place: lax.dynamic_slice(x, (place, 3) if along == 0 else (2, place), (60, 130))
        )(places)

    def function(x, y, places):
        return jax.vjp(lambda x: parts(x, places), x)[1](y)[0]

    check(function, x, y, places)
    (decision,) = [
        d
        for program in take_apart(function, x, y, places).programs
        for d in schedule_program(program, TARGET)[1]
        if d.template.name == "update"
    ]
    (schedule,) = decision.schedules
    assert LoopKind.PARALLEL not in [
        s.kind for s in walk(schedule.program.body) if isinstance(s, For)
    ]


def updates_of(programs):
    """The one update among programs: its parameters, and its loops."""
    (decision,) = [
        d
        for program in programs
        for d in schedule_program(program, TARGET)[1]
        if d.template.name == "update"
    ]
    return decision.parameters, [s.program for s in decision.schedules]


def added(x, y, places):
    return x.at[places].add(y)


MANY = 70_001


@pytest.mark.parametrize("method", ["add", "subtract", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("row", [(), (130,), (2, 3)])
def test_many_updates_of_few_elements_are_of_copies(check, arrays, take_apart, method, dtype, row):
    """Whose order does not matter: tasks have some, and the target takes them up at the end."""
    x, y = arrays(dtype, (9, *row), (MANY, *row))
    x, y = np.round(x), np.round(y)  # sums of whole numbers are exact in any order
    places = np.resize(PLACES, MANY)

    def function(x, y, places):
        return getattr(x.at[places], method)(y)

    check(function, x, y, places, ulps=0)
    parameters, (_, inside, end) = updates_of(take_apart(function, x, y, places).programs)
    assert parameters["chunks"] > 1
    assert LoopKind.PARALLEL in [s.kind for s in walk(inside.body) if isinstance(s, For)]
    assert [b.shape[0] for b in inside.results] == [parameters["chunks"]]
    assert [b.shape for b in end.results] == [(9, *row)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", ["add", "max", "min"])
def test_copies_hand_on_what_is_no_number(check, arrays, value, method):
    x, y = arrays("float32", (9,), (MANY,))
    x, y = np.round(x), np.round(y)
    x[2], x[7], y[[5, 40_000]] = -0.0, value, value  # of which nothing updates the first

    def function(x, y, places):
        return jnp.copysign(1.0, x.at[places].add(y))[2], getattr(x.at[places], method)(y)

    check(function, x, y, np.resize(PLACES, MANY), ulps=0)


def test_updates_of_two_indices_are_of_copies(check, arrays, take_apart):
    x, y = arrays("float32", (9, 6), (MANY,))
    places = np.resize(PLACES, MANY)

    def function(x, y, places):
        return x.at[places, places[::-1] + 1].add(y)

    check(function, np.round(x), np.round(y), places, ulps=0)
    assert updates_of(take_apart(function, x, y, places).programs)[0]["chunks"] > 1


@pytest.mark.parametrize("shape", [(7, 10_000), (10_000, 7), (3, 40, 600)])
def test_updates_of_several_axes_are_of_copies(check, arrays, take_apart, shape):
    """Which keep their order: only the outermost axis is cut."""
    x, y = arrays("float32", (9,), shape)
    places = np.resize(PLACES, shape)
    check(added, np.round(x), np.round(y), places, ulps=0)
    assert updates_of(take_apart(added, x, y, places).programs)[0]["chunks"] > 1


@pytest.mark.parametrize(
    ("function", "elements", "updates"),
    [
        (lambda x, y, places: x.at[places].set(y), 9, MANY),  # the last one counts
        (lambda x, y, places: x.at[places].multiply(y), 9, MANY),  # overflows in another order
        (added, 9, 7000),
        (added, MANY, MANY),  # as many copied elements as updates
    ],
    ids=["set", "product", "few", "large"],
)
def test_updates_of_which_there_are_no_copies(
    check, arrays, take_apart, function, elements, updates
):
    x, y = arrays("float32", (elements,), (updates,))
    y, places = np.sign(y), np.resize(PLACES, updates)
    check(function, np.round(x), y, places, ulps=0)
    parameters, (loops,) = updates_of(take_apart(function, x, y, places).programs)
    assert parameters["chunks"] == 1
    assert LoopKind.PARALLEL not in [s.kind for s in walk(loops.body) if isinstance(s, For)]


@pytest.mark.parametrize("chunks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("updates", [17, 1000])
def test_any_number_of_copies_and_of_updates_at_a_time(
    machine_code, arrays, take_apart, chunks, unroll, updates
):
    """Chunks may be short, or have nothing in them."""
    x, y = arrays("float32", (9,), (updates,))
    args = np.round(x), np.round(y), np.resize(PLACES, updates)
    parts = take_apart(added, *args)
    (program,) = parts.programs
    names = [decision.template.name for decision in schedule_program(program, TARGET)[1]]
    tuned = {names.index("update"): ("update", {"unroll": unroll, "chunks": chunks})}
    (actual,) = parts.run([*args], machine_code.executing(tuned=tuned, threads=2))
    np.testing.assert_array_equal(actual, jax.jit(added)(*args))


def test_copies_in_every_trip_of_a_loop(check, arrays, take_apart):
    """Whose other parts are shared out, too."""
    x, y = arrays("int32", (9,), (MANY,))

    def function(x, y, places):
        def step(_, state):
            x, y = state
            return x.at[places].add(y), y * 5 + 1

        return lax.fori_loop(0, 3, step, (x, y))

    places = np.resize(PLACES, MANY)
    check(function, x, y, places, ulps=0)
    *_, program = take_apart(function, x, y, places).programs
    assert re.search(
        r"for n0 in 0..3:\n(.*\n)* *for .* parallel:\n.*\n.*unroll:\n *\w+_part\[i",
        program_text(schedule_program(program, TARGET)[0]),
    )
