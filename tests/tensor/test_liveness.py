"""Which buffers are needed after a nest: at the end, in later steps, and in later iterations."""

from __future__ import annotations

from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, substitute, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import BOOL, F32, INDEX
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Stage
from hlo_mlc.tensor.liveness import effects, live_after, without_dead
from hlo_mlc.tensor.rewrite import map_expressions

A, B, C, D = (Buffer(name, F32, (4,)) for name in "abcd")
GOES_ON = Buffer("goes_on", BOOL, ())
ROW = variable("i", 4)
PART = variable("k", 2)
SUM = Var("sum", F32)


def filled(target: Buffer, *sources: Buffer) -> Nest:
    value = const(1, F32)
    for source in sources:
        value = apply("add", load(source, (ROW,)), value)
    return Nest((Stage("s", (ROW,), (Assign(target, (ROW,), value),)),), 1)


def updated(target: Buffer, first: int) -> Nest:
    place = (index.add(PART, index.constant(first)),)
    return Nest((Stage("s", (PART,), (Assign(target, place, const(2, F32)),)),), 1)


def test_what_is_filled_keeps_nothing():
    assert effects(filled(A, B)).needs == {B}
    assert effects(filled(A, A)).needs == {A}
    assert effects(updated(A, 1)).needs == {A}
    assert effects(updated(A, 1)).fills == frozenset()


def test_parts_fill_together():
    first, second = (updated(A, at).stages[0].assigns[0] for at in (0, 2))
    both = Nest((Stage("s", (PART,), (first, second)),), 1)
    assert effects(both).fills == {A}
    assert effects(both).needs == frozenset()
    halves = Nest((Stage("s", (PART,), (first,)), Stage("t", (PART,), (second,))), 0)
    assert effects(halves).fills == {A}


def test_what_is_stored_along_a_fold_is_filled():
    term = load(B, (ROW,))
    total = Buffer("total", F32, ())
    fold = Stage(
        "s",
        (),
        (Assign(total, (), SUM),),
        (ROW,),
        named_combiner("add", F32),
        (term,),
        (const(0, F32),),
        (SUM,),
        along=(Assign(A, (ROW,), term),),
    )
    assert effects(Nest((fold,), 0)).fills == {A, total}
    assert effects(Nest((fold,), 0)).needs == {B}


def test_straight_on():
    first, second, third = filled(A, B), filled(C, A), updated(C, 0)
    after = live_after((first, second, third), (C,))
    assert after == {first: {A}, second: {C}, third: {C}}


def test_later_iterations():
    """What the next trip reads is needed at the end of this one; what it fills first is not."""
    read, fill, use = filled(D, A), filled(B, D), filled(A, B)
    after = live_after((Loop((read, fill, use), Var("n", INDEX, 3), 3),), (C,))
    assert after == {read: {D, C}, fill: {B, C}, use: {A, C}}


def test_loops_in_loops():
    """What an inner loop reads of the trip before of the outer one is needed all the way round."""
    inner, outer = filled(B, A, B), filled(C, B)
    loop = Loop((Loop((inner,), Var("n", INDEX, 2), 2), outer), Var("m", INDEX, 2), 2)
    assert live_after((loop,), (C,)) == {inner: {A, B}, outer: {A, B, C}}


def test_no_iteration_at_all():
    """What comes before a loop may be what comes out of it; its test reads as well."""
    before, body = filled(A), filled(A)
    test = Nest(
        (
            Stage(
                "t",
                (),
                (Assign(GOES_ON, (), apply("lt", load(B, (index.constant(0),)), const(0, F32))),),
            ),
        ),
        0,
    )
    loop = Loop((body,), Var("n", INDEX, None), None, (test,), load(GOES_ON, ()))
    after = live_after((before, loop), (A,))
    assert after == {before: {A, B}, test: {A, B, GOES_ON}, body: {A, B}}
    assert live_after((before, Loop((body,), Var("n", INDEX, 2), 2)), (A,))[before] == frozenset()


def test_what_a_loop_stores_as_a_whole_needs_no_start():
    """Each trip stores its element: what was there before is seen by nobody, unless a trip reads
    it, trips are too few, or there may be none."""
    trip = Var("n", INDEX, 4)
    stored = Nest((Stage("s", (), (Assign(A, (trip,), const(1, F32)),)),), 0)

    def left(*body: Nest, trips: int | None = 4) -> bool:
        start, counter = filled(A), Var("n", INDEX, trips)
        own = tuple(
            replace(
                n,
                stages=tuple(
                    map_expressions(s, lambda e: substitute(e, {trip: counter})) for s in n.stages
                ),
            )
            for n in body
        )
        loop = Loop(own, counter, trips)
        return start in without_dead((start, loop), (A, D))

    assert not left(stored)
    assert not left(filled(D, B), stored)
    assert left(filled(D, A), stored)
    assert left(stored, trips=3)
    assert left(stored, trips=None)


def test_what_a_condition_reads_needs_its_start():
    """Each trip asks for what the one before it stored, the first for what was there before."""
    start, again = (
        Nest((Stage("s", (), (Assign(GOES_ON, (), const(value, BOOL)),)),), 0)
        for value in (True, False)
    )
    body, counter = filled(D, B), Var("n", INDEX, 4)
    branch = Branch(load(GOES_ON, ()), (body,), ())
    assert start in without_dead((start, Loop((branch, again), counter, 4)), (D, GOES_ON))
    assert start not in without_dead((start, Loop((body, again), counter, 4)), (D, GOES_ON))


def test_nothing_is_left_of_steps_whose_nests_are_dead():
    last = filled(D)
    loop = Loop((filled(A, B),), Var("n", INDEX, 4), 4)
    branch = Branch(load(GOES_ON, ()), (filled(A, B),), ())
    assert without_dead((loop, branch, last), (D,)) == [last]
