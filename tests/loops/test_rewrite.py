"""Rewriting statements: substitution, replacing, redirecting, finding."""

from __future__ import annotations

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32, INDEX
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, Store, While, walk
from hlo_mlc.loops.rewrite import (
    constant_extent,
    guarded,
    loop,
    loop_names,
    loops_named,
    map_expressions,
    paths,
    redirect,
    substitute,
    transform,
    transform_lists,
)
from hlo_mlc.loops.text import body_text
from hlo_mlc.tensor.combine import named_combiner

X, Y = Buffer("x", F32, (8,), "operand"), Buffer("y", F32, (8,), "result")
A, B = variable("a", 8), variable("b", 4)
ONE = const(1.0, F32)
HELD = Buffer("held", F32, (), "register")
EVERYTHING = (
    For(
        A,
        index.constant(8),
        LoopKind.SERIAL,
        (
            Allocate(
                HELD,
                (
                    Store(HELD, (), ONE),
                    For(
                        B,
                        index.add(A, index.constant(1)),
                        LoopKind.SERIAL,
                        (
                            Accumulate(
                                (HELD,),
                                (),
                                named_combiner("add", F32),
                                (load(X, (A,)),),
                                apply("lt", B, A),
                            ),
                        ),
                    ),
                    Store(Y, (A,), load(HELD, ())),
                ),
            ),
            If(
                apply("lt", load(X, (A,)), ONE),
                (Store(Y, (A,), ONE),),
                (Store(Y, (A,), load(X, (A,))),),
            ),
            While(apply("lt", load(Y, (A,)), ONE), (Store(Y, (A,), ONE),)),
        ),
    ),
)


def test_substitute_reaches_every_expression() -> None:
    inner = EVERYTHING[0].body
    moved = substitute(inner, {A: index.add(variable("c", 2), index.constant(3))})
    assert body_text(moved) == body_text(inner).replace("x[a]", "x[c + 3]").replace(
        "y[a]", "y[c + 3]"
    ).replace("0..a + 1", "0..c + 4").replace("b < a", "b < (c + 3)")


def test_what_does_not_change_stays_the_same_object() -> None:
    assert substitute(EVERYTHING, {variable("z", 2): index.constant(0)}) is EVERYTHING
    assert transform(EVERYTHING, lambda stmt: None) is EVERYTHING
    assert transform_lists(EVERYTHING, lambda body: body) is EVERYTHING


def test_guards_that_become_constant_disappear() -> None:
    late = Store(Y, (A,), ONE, apply("ge", A, index.constant(4)))
    assert body_text(substitute((late,), {A: index.constant(6)})) == "y[6] = 1.0:f32\n"
    assert substitute((late,), {A: index.constant(2)}) == ()


def test_guarded_adds_a_condition() -> None:
    store = Store(Y, (A,), ONE, apply("ge", A, index.constant(4)), streaming=True)
    assert guarded(store, None) is store
    assert guarded(store, TRUE) is store
    assert guarded(store, FALSE) is None
    both = guarded(store, apply("lt", A, index.constant(6)))
    assert body_text((both,)) == "y[a] = 1.0:f32 where (a >= 4) & (a < 6) streaming\n"


def test_transform_replaces_one_by_many_and_removes() -> None:
    def twice(stmt):
        return (stmt, stmt) if isinstance(stmt, Store) else None

    def drop(stmt):
        return () if isinstance(stmt, While) else None

    before = sum(isinstance(s, Store) for s in walk(EVERYTHING))
    assert sum(isinstance(s, Store) for s in walk(transform(EVERYTHING, twice))) == 2 * before
    assert "while" not in body_text(transform(EVERYTHING, drop))


def test_a_branch_that_is_decided_disappears() -> None:
    first, second = (Store(Y, (A,), const(v, F32)) for v in (1.0, 2.0))
    branch = (If(apply("lt", A, index.constant(4)), (first,), (second,)),)
    assert body_text(substitute(branch, {A: index.constant(3)})) == "y[3] = 1.0:f32\n"
    assert body_text(substitute(branch, {A: index.constant(4)})) == "y[4] = 2.0:f32\n"


def test_redirect_moves_reads_and_writes() -> None:
    tile = Buffer("tile", F32, (), "register")
    moved = redirect(EVERYTHING, {Y: tile}, lambda at: ())
    assert body_text(moved) == body_text(EVERYTHING).replace("y[a]", "tile[]")
    partial = Buffer("partial", F32, (3,), "register")
    summed = redirect(EVERYTHING, {HELD: partial}, lambda at: (index.constant(2),))
    assert "partial[2] <- add x[a] where b < a" in body_text(summed)


def test_map_expressions_visits_extents_and_conditions() -> None:
    seen = []

    def note(e):
        seen.append(str(e))
        return e

    map_expressions(EVERYTHING, note)
    assert {"8", "a + 1", "x[a] < 1.0:f32", "y[a] < 1.0:f32", "b < a"} <= set(seen)


def test_finding_loops() -> None:
    assert loop_names(EVERYTHING) == ("a", "b")
    assert [s.var for s in loops_named(EVERYTHING, "b")] == [B]
    assert constant_extent(EVERYTHING[0]) == 8
    assert constant_extent(loops_named(EVERYTHING, "b")[0]) is None


def test_paths_follow_program_order() -> None:
    assert [path[-1] for path in paths(EVERYTHING)] == list(walk(EVERYTHING))
    deepest = max(paths(EVERYTHING), key=len)
    assert [type(s).__name__ for s in deepest] == ["For", "Allocate", "For", "Accumulate"]


def test_a_new_loop_knows_its_range() -> None:
    blocked = loop("t", index.minimum(index.constant(4), A), LoopKind.SERIAL, lambda t: ())
    assert blocked.var.extent == 4
    unknown = loop("t", Var("n", INDEX), LoopKind.SERIAL, lambda t: ())
    assert unknown.var.extent is None
