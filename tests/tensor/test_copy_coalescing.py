"""Buffers that are only copied become one where that changes nothing, and only there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import I32
from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, Stmt, While
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.tensor.canonical import stages, written
from hlo_mlc.tensor.classify import is_plain
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.copy_coalescing import merge_copies
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.rewrite import renamed
from hlo_mlc.tensor.text import program_text
from hlo_mlc.tensor.verify import verify

SIZE = 4
OPERANDS = tuple(Buffer(f"a{n}", I32, (SIZE,), "operand") for n in range(2))
RESULTS = tuple(Buffer(f"r{n}", I32, (SIZE,), "result") for n in range(2))
TEMPORARIES = tuple(Buffer(f"t{n}", I32, (SIZE,)) for n in range(4))
ROW, COLUMN = variable("i", SIZE), variable("j", SIZE)
MIRRORED = index.subtract(index.constant(SIZE - 1), ROW)
ADD = named_combiner("add", I32)


def program_of(steps: Sequence[Step]) -> TensorProgram:
    """The steps as a program that keeps all rules; operands that nobody reads are there too."""
    own = {*OPERANDS, *RESULTS}
    temporaries = tuple(b for b in written(steps) if b not in own)
    names = (f"_{n}" for n in range(1 << 20))
    fresh = tuple(renamed(step, {}, lambda prefix: prefix + next(names)) for step in steps)
    program = TensorProgram("kernel", OPERANDS, RESULTS, temporaries, fresh)
    verify(program)
    return program


def run(program: TensorProgram) -> list[list[int]]:
    """The results of a program on some operands: every stage as the plainest loops, in order."""
    offsets = range(0, 64 * (len(program.temporaries) + 1), 64)
    loops = LoopProgram(
        program.name,
        program.operands,
        program.results,
        tuple(_statements(program.steps)),
        tuple(zip(program.temporaries, offsets, strict=False)),
    )
    values = [np.array([3, 1, 0, 2], np.int32), np.array([5, -7, 2, 11], np.int32)]
    return [r.tolist() for r in interpret(loops, values)]


def _statements(steps: Sequence[Step]) -> Iterator[Stmt]:
    for step in steps:
        if isinstance(step, Nest):
            for stage in step.stages:
                yield from lower_stage(stage)
        elif isinstance(step, Branch):
            yield If(
                step.condition, tuple(_statements(step.then)), tuple(_statements(step.otherwise))
            )
        elif step.trip_count is not None:
            yield For(
                step.counter,
                index.constant(step.trip_count),
                LoopKind.SERIAL,
                tuple(_statements(step.body)),
            )
        else:
            test = tuple(_statements(step.test))
            yield from test
            yield While(step.condition, (*_statements(step.body), *test))


def copies(steps: Sequence[Step]) -> int:
    """How many buffers are copied as a whole."""
    return sum(
        a.value is load(b, a.indices) and is_plain(a, s.axes)
        for step in steps
        for s in stages(step)
        for a in s.assigns
        for b in s.inputs
        if b.shape == a.buffer.shape
    )


def nest(*assigns: Assign, axes: tuple[Var, ...] = (ROW,)) -> Nest:
    return Nest((Stage("s", axes, assigns),), len(axes))


def copied(target: Buffer, source: Buffer) -> Nest:
    return nest(Assign(target, (ROW,), load(source, (ROW,))))


def plus(*terms: Expr | int) -> Expr:
    first, *more = [const(t, I32) if isinstance(t, int) else t for t in terms]
    return apply("add", first, plus(*more)) if more else first


def inside(value: Expr) -> Expr:
    return index.minimum(
        index.maximum(as_index(value), index.constant(0)), index.constant(SIZE - 1)
    )


def mapped(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    return nest(Assign(target, (ROW,), plus(load(x, (ROW,)), load(y, (ROW,)), 1)))


def mirrored(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    return nest(Assign(target, (ROW,), plus(load(x, (MIRRORED,)), load(y, (ROW,)))))


def part_updated(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    row = variable("k", 2)
    value = plus(load(x, (row,)), load(y, (row,)))
    return nest(Assign(target, (index.add(row, index.constant(1)),), value), axes=(row,))


def point_updated(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    at = [(index.constant(n),) for n in range(3)]
    return nest(Assign(target, at[2], plus(load(x, at[1]), load(y, at[0]))), axes=())


def updated_under_a_guard(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    guard = apply("gt", load(y, (ROW,)), const(1, I32))
    return nest(Assign(target, (MIRRORED,), plus(load(x, (ROW,)), 2), guard))


def scattered(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    return nest(Assign(target, (inside(load(y, (ROW,))),), plus(load(x, (ROW,)), 1)))


def added_where_places_meet(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    place = (inside(load(y, (ROW,))),)
    return nest(Assign(target, place, plus(load(target, place), load(x, (ROW,)))))


def looked_up_where_it_lies(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    place = (inside(load(y, (ROW,))),)
    return nest(Assign(target, place, plus(load(x, place), 1)))


def summed(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    total = Var("acc", I32)
    term = plus(load(x, (COLUMN,)), load(y, (ROW,)))
    return Nest(
        (
            Stage(
                "s",
                (ROW,),
                (Assign(target, (ROW,), total),),
                (COLUMN,),
                ADD,
                (term,),
                (const(0, I32),),
                (total,),
            ),
        ),
        1,
    )


def two_values(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    return nest(
        Assign(target, (ROW,), plus(load(x, (ROW,)), 1)),
        Assign(other, (ROW,), plus(load(y, (ROW,)), load(x, (ROW,)))),
    )


def used_again(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    """A value is stored, and computed once more for another."""
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    value = plus(load(x, (ROW,)), load(y, (ROW,)), 1)
    return nest(Assign(target, (ROW,), value), Assign(other, (ROW,), apply("neg", value)))


def changed_in_between(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    """What is stored is computed once more, when the point has changed what it is computed of."""
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    value = plus(load(x, (ROW,)), load(other, (ROW,)), 1)
    return nest(
        Assign(target, (ROW,), value),
        Assign(other, (ROW,), load(y, (ROW,))),
        Assign(other, (ROW,), apply("neg", value)),
    )


def two_stages(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    first = Stage("s", (ROW,), (Assign(other, (ROW,), plus(load(y, (ROW,)), 3)),))
    value = plus(load(x, (MIRRORED,)), load(other, (ROW,)))
    return Nest((first, Stage("z", (ROW,), (Assign(target, (ROW,), value),))), 1)


def copied_beside(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    first = Stage("s", (ROW,), (Assign(other, (ROW,), load(y, (ROW,))),))
    return Nest((first, Stage("z", (ROW,), (Assign(target, (ROW,), load(x, (ROW,))),))), 1)


def shifted_under_a_guard(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    place, from_end = index.add(ROW, index.constant(1)), index.add(MIRRORED, index.constant(-1))
    guard = apply("lt", place, index.constant(SIZE))
    return nest(Assign(target, (place,), plus(load(x, (from_end,)), load(y, (ROW,))), guard))


def read_after_it_is_written(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    return nest(
        Assign(target, (ROW,), plus(load(x, (MIRRORED,)), 1)),
        Assign(other, (ROW,), plus(load(target, (ROW,)), load(y, (ROW,)))),
    )


def handed_on(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    first = Stage("s", (ROW,), (Assign(target, (ROW,), plus(load(x, (MIRRORED,)), 1)),))
    second = plus(load(target, (ROW,)), load(y, (ROW,)))
    return Nest((first, Stage("z", (ROW,), (Assign(other, (ROW,), second),))), 1)


def copied_on(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    first = Stage("s", (ROW,), (Assign(target, (ROW,), plus(load(x, (ROW,)), 1)),))
    return Nest((first, Stage("z", (ROW,), (Assign(other, (ROW,), load(target, (ROW,))),))), 1)


def updated_copy(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    place = index.floormod(index.add(ROW, index.constant(2)), SIZE)
    return nest(
        Assign(target, (ROW,), load(x, (ROW,))),
        Assign(target, (ROW,), plus(load(y, (ROW,)), load(target, (ROW,)), 1)),
        Assign(target, (ROW,), plus(load(target, (ROW,)), load(y, (place,)))),
    )


def moved_on(target: Buffer, x: Buffer, y: Buffer) -> Nest:
    other = next(b for b in TEMPORARIES if b not in (target, x, y))
    return nest(
        Assign(other, (ROW,), load(target, (ROW,))),
        Assign(target, (ROW,), plus(load(x, (ROW,)), load(y, (ROW,)))),
    )


KINDS: tuple[Callable[[Buffer, Buffer, Buffer], Nest], ...] = (
    mapped,
    mirrored,
    part_updated,
    point_updated,
    updated_under_a_guard,
    scattered,
    added_where_places_meet,
    looked_up_where_it_lies,
    summed,
    two_values,
    used_again,
    changed_in_between,
    two_stages,
    copied_beside,
    shifted_under_a_guard,
    read_after_it_is_written,
    handed_on,
    copied_on,
    updated_copy,
    moved_on,
)
FLAG = Buffer("flag", I32, ())
COUNT = Buffer("count", I32, ())


@st.composite
def nests(draw: st.DrawFn) -> Step:
    """A nest that writes a temporary; most copy."""
    target = draw(st.sampled_from(TEMPORARIES))
    readable = [b for b in (*TEMPORARIES, *OPERANDS) if b != target]
    x, y = draw(st.sampled_from(readable)), draw(st.sampled_from(readable))
    if draw(st.booleans()):
        return copied(target, x)
    return draw(st.sampled_from(KINDS))(target, x, y)


def loops(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Loops of a known number of trips, and such as end when the data says so."""

    @st.composite
    def one(draw: st.DrawFn) -> Step:
        body = tuple(draw(st.lists(inner, min_size=1, max_size=5)))
        trips = draw(st.sampled_from((None, 0, 1, 2, 3)))
        if trips is not None:
            return Loop(body, Var("n", ROW.dtype, trips), trips)
        seen = draw(st.sampled_from(TEMPORARIES))
        first = load(seen, (index.constant(0),))
        counted = apply("add", load(COUNT, ()), const(1, I32))
        test = (nest(Assign(COUNT, (), counted), axes=()), nest(Assign(FLAG, (), first), axes=()))
        condition = apply(
            "and",
            apply("lt", load(FLAG, ()), const(40, I32)),
            apply("lt", load(COUNT, ()), const(30, I32)),
        )
        return Loop(body, Var("n", ROW.dtype, None), None, test, condition)

    return one()


def carried(kind: Callable, old: Buffer, new: Buffer, x: Buffer, y: Buffer, inside: bool) -> Loop:
    """What loops make of a new value: copied before it is changed, and back."""
    changed: Step = kind(new, x, y)
    if inside:
        changed = Loop((changed,), Var("n", ROW.dtype, 2), 2)
    return Loop((copied(new, old), changed, copied(old, new)), Var("n", ROW.dtype, 3), 3)


@st.composite
def carrying(draw: st.DrawFn) -> Step:
    """Such a loop, of any kind."""
    old, new, *others = draw(st.permutations(TEMPORARIES))
    other = draw(st.sampled_from((*OPERANDS, *others)))
    x, y = draw(st.sampled_from(((old, other), (other, old), (old, old))))
    return carried(draw(st.sampled_from(KINDS)), old, new, x, y, draw(st.booleans()))


STEPS = st.lists(st.recursive(nests() | carrying(), loops, max_leaves=12), min_size=1, max_size=6)
BEGIN = [copied(b, a) for a, b in itertools.pairwise((OPERANDS[0], *TEMPORARIES))]
BEGIN += [nest(Assign(b, (), const(0, I32)), axes=()) for b in (FLAG, COUNT)]


@settings(max_examples=200, deadline=None)
@given(STEPS, st.permutations(TEMPORARIES))
def test_random_programs_compute_the_same(middle, order):
    """No program may tell; the rules that every program keeps are kept."""
    steps = [*BEGIN, *middle, copied(RESULTS[0], order[0]), copied(RESULTS[1], order[1])]
    program = program_of(steps)
    merged = program_of(merge_copies(program.steps, RESULTS))
    assert run(merged) == run(program), program_text(program) + "\n" + program_text(merged)
    assert copies(merged.steps) <= copies(program.steps)


T, U, V, _ = TEMPORARIES
A, R = OPERANDS[0], RESULTS[0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_change_of_what_is_carried(kind):
    """Whatever reads the old values or the new ones, and wherever it does."""
    for x, y in itertools.product((T, OPERANDS[1]), repeat=2):
        for inside in (False, True):
            steps = [
                *BEGIN,
                carried(kind, T, U, x, y, inside),
                mapped(RESULTS[0], T, U),
                mapped(RESULTS[1], V, TEMPORARIES[3]),
            ]
            for wanted in (steps, [*steps[:-2], copied(RESULTS[0], T), steps[-1]]):
                program = program_of(wanted)
                merged = program_of(merge_copies(program.steps, RESULTS))
                assert run(merged) == run(program), program_text(merged)


def looped(*body: Step, trips: int = 3) -> Loop:
    return Loop(body, Var("n", ROW.dtype, trips), trips)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        # What an inner loop carries is what the outer one carries.
        (
            [
                copied(T, A),
                looped(copied(U, T), looped(point_updated(U, U, A)), copied(T, U)),
                copied(R, T),
            ],
            1,
        ),
        # An update of a copy, whose old values are read first.
        (
            [copied(T, A), looped(copied(U, T), part_updated(U, T, T), copied(T, U)), copied(R, T)],
            1,
        ),
        # New values for all elements, from other elements: both are needed, and taking one for the
        # other would copy as much.
        ([copied(T, A), looped(mirrored(U, T, T), copied(T, U)), copied(R, T)], 2),
        # The old value is needed after the update.
        (
            [
                copied(T, A),
                looped(copied(U, T), point_updated(U, T, T), mapped(V, U, T), copied(T, V)),
                copied(R, T),
            ],
            2,
        ),
        # The old value is needed only to compute the new one once more.
        ([copied(T, A), looped(used_again(U, T, A), copied(T, U)), mapped(R, T, V)], 1),
        # A copy that nobody changes is the operand itself.
        ([copied(T, A), looped(mapped(R, T, T))], 0),
        ([copied(R, A), copied(T, A), looped(part_updated(R, T, T))], 1),
        # Two results cannot be one.
        ([mapped(R, A, A), copied(RESULTS[1], R)], 1),
        # Copied to make room, by the stage that then changes it.
        ([copied(T, A), moved_on(T, A, A), mapped(R, T, U)], 2),
        # Swapped at every trip.
        (
            [
                copied(T, A),
                mapped(U, A, A),
                looped(copied(V, T), copied(T, U), copied(U, V)),
                copied(R, T),
            ],
            4,
        ),
    ],
)
def test_how_many_copies_are_left(steps, left):
    if RESULTS[1] not in written(steps):
        steps = [*steps, nest(Assign(RESULTS[1], (ROW,), const(0, I32)))]
    program = program_of(steps)
    merged = program_of(merge_copies(program.steps, RESULTS))
    assert run(merged) == run(program)
    assert copies(merged.steps) == left, program_text(merged)


def test_what_is_kept_stays():
    """As results in the memory of operands do."""
    steps = [copied(T, A), copied(R, T)]
    assert copies(merge_copies(steps, (R,), (R, A))) == 2
    assert copies(merge_copies(steps, (R,))) == 1


LOOPS = {
    "Gauss-Seidel": lambda a: lax.fori_loop(
        0,
        3,
        lambda t, a: lax.fori_loop(
            1,
            7,
            lambda i, a: lax.fori_loop(
                1,
                7,
                lambda j, a: a.at[i, j].set((a[i, j] + a[i, j - 1] + a[i - 1, j]) * 0.3),
                a.at[i, 1:-1].add(a[i - 1, :-2] * 0.1),
            ),
            a,
        ),
        a,
    ),
    "rank-k update": lambda a: lax.fori_loop(
        0,
        8,
        lambda i, c: lax.fori_loop(
            0,
            8,
            lambda k, c: c.at[i].add(jnp.where(jnp.arange(8) <= i, a[i, k] * a[:, k], 0)),
            c.at[i].multiply(0.5),
        ),
        a,
    ),
    "orthogonal columns": lambda a: lax.fori_loop(
        0,
        8,
        lambda k, q: lax.fori_loop(
            k + 1,
            8,
            lambda j, q: q.at[:, j].add(-(q[:, k] @ q[:, j]) * 0.1 * q[:, k]),
            q.at[:, k].multiply(1 - jnp.abs(q[:, k]).sum() * 0.1),
        ),
        a,
    ),
    "table": lambda a: lax.fori_loop(
        0,
        8,
        lambda i, t: lax.fori_loop(
            i + 1,
            8,
            lambda j, t: lax.cond(j > 0, lambda t: t.at[i, j].max(t[i, j - 1]), lambda t: t, t),
            t,
        ),
        a,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_nested_loops_work_in_place(check, take_apart, arrays, name):
    """No matrix is copied inside of the loops, and what comes out is right."""
    (x,) = arrays("float32", (8, 8))
    (program,) = take_apart(LOOPS[name], x).programs
    inner = [
        step
        for loop in program.steps
        if isinstance(loop, Loop)
        for step in (*loop.body, *loop.test)
    ]
    large = [
        a
        for step in inner
        for s in stages(step)
        for a in s.assigns
        if a.buffer.size == 64 and is_plain(a, s.axes)
    ]
    assert not large, program_text(program)
    check(LOOPS[name], x, ulps=64)
