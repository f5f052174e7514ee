"""The verifier: every rule has a program that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import F32, I32, INDEX
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
)
from hlo_mlc.loops.verify import verify
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.combine import named_combiner
from making.verified import unproven

X, Y = Buffer("x", F32, (8,), "operand"), Buffer("y", F32, (8,), "result")
HELD = Buffer("held", F32, (), "register")
A, B = variable("a", 8), variable("b", 4)
T = variable("t", 4)
ONE, ADD = const(1.0, F32), named_combiner("add", F32)
SERIAL, PARALLEL, VECTORIZE = LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZE
BLOCK, THREAD = LoopKind.BLOCK, LoopKind.THREAD
OWN, ONE_SHARED = Buffer("own", F32, (4,), "thread"), Buffer("one", F32, (), "shared")


def loop(var: Var, kind: LoopKind, *body: Stmt, extent: Expr | None = None) -> For:
    return For(var, index.constant(var.extent) if extent is None else extent, kind, body)


def program(*body: Stmt, **more) -> LoopProgram:
    return LoopProgram("test", (X,), (Y,), body, **more)


def shifted(by: int) -> Expr:
    return index.add(A, index.constant(by))


def by_warp(within: Callable[[Stmt], Stmt]) -> tuple[Stmt, ...]:
    tensor = loop(variable("e", 4), LoopKind.TENSOR, COPY)
    return (loop(variable("c", 1), BLOCK, loop(A, THREAD, within(tensor))),)


COPY = Store(Y, (A,), load(X, (A,)))
BROKEN = {
    "no loop around it defines a": (COPY,),
    "no loop around it defines b": (loop(A, SERIAL, Store(Y, (A,), load(X, (B,)))),),
    "a loop around it is called a too": (loop(A, SERIAL, loop(A, SERIAL, COPY)),),
    "the variable is declared to stay below 8": (loop(A, SERIAL, COPY, extent=index.constant(9)),),
    "expected a variable and an extent of type index": (
        loop(Var("a", I32, 8), SERIAL, extent=index.constant(8)),
    ),
    "expected a constant extent": (
        loop(B, SERIAL, loop(A, VECTORIZE, COPY, extent=index.add(B, index.constant(1)))),
    ),
    "expected at most 64 lanes": (loop(variable("w", 65), VECTORIZE),),
    "a vector inside of a vector": (loop(B, VECTORIZE, loop(A, VECTORIZE, COPY)),),
    "tasks inside of a task or a vector": (loop(B, PARALLEL, loop(A, PARALLEL, COPY)),),
    "a while loop inside of a vector": (
        loop(A, VECTORIZE, While(apply("lt", load(X, (index.constant(0),)), ONE), (COPY,))),
    ),
    "control flow depends on the lane a": (
        loop(A, VECTORIZE, If(apply("lt", A, index.constant(3)), (COPY,))),
    ),
    "which is private to the code around it": (
        Allocate(HELD, (loop(A, PARALLEL, Store(HELD, (), ONE)),)),
    ),
    "touch the same element of y": (loop(A, PARALLEL, Store(Y, (index.constant(0),), ONE)),),
    "x is an operand, which is never written": (loop(A, SERIAL, Store(X, (A,), ONE)),),
    "z: 8xf32 scratch does not exist here": (
        loop(A, SERIAL, Store(Buffer("z", F32, (8,)), (A,), ONE)),
    ),
    "held: f32 register does not exist here": (
        Allocate(HELD, (Store(HELD, (), ONE),)),
        Store(Y, (index.constant(0),), load(HELD, ())),
    ),
    "held exists already": (Allocate(HELD, (Allocate(HELD, ()),)),),
    "expected the scope stack or register": (Allocate(Buffer("z", F32, (2,), "scratch"), ()),),
    "expected threads to be in a block": (loop(A, THREAD, COPY),),
    "tasks inside of a task": (loop(A, BLOCK, loop(B, BLOCK, COPY)),),
    "no thread of the block is said to do this": (
        loop(B, BLOCK, Store(Y, (B,), ONE), loop(A, THREAD)),
    ),
    "expected the scope shared or thread": (loop(B, BLOCK, Allocate(HELD, (loop(A, THREAD),))),),
    "expected own: 4xf32 thread to be indexed by the threads first": (
        loop(
            B,
            BLOCK,
            Allocate(
                OWN, (loop(T, THREAD, Store(OWN, (index.subtract(index.constant(3), T),), ONE)),)
            ),
        ),
    ),
    "touch the same element of one": (
        loop(B, BLOCK, Allocate(ONE_SHARED, (loop(A, THREAD, Store(ONE_SHARED, (), ONE)),))),
    ),
    "some of its statements are for fewer threads": (
        loop(variable("c", 1), BLOCK, loop(A, THREAD, COPY, loop(B, THREAD))),
    ),
    "expected threads directly inside of threads": (
        loop(
            variable("c", 1),
            BLOCK,
            loop(A, THREAD, If(apply("lt", A, index.constant(3)), (loop(B, THREAD),))),
        ),
    ),
    "`if a < 3:` depends on the thread": by_warp(
        lambda tensor: If(apply("lt", A, index.constant(3)), (tensor,))
    ),
    "`for s in 0..a + 1:` depends on the thread": by_warp(
        lambda tensor: loop(
            variable("s", 8), SERIAL, tensor, extent=index.add(A, index.constant(1))
        )
    ),
    "`while held[] < 1.0:f32:` depends on the thread": by_warp(
        lambda tensor: Allocate(HELD, (While(apply("lt", load(HELD, ()), ONE), (tensor,)),))
    ),
    "expected 1 indices of type index": (loop(A, SERIAL, Store(Y, (const(0, I32),), ONE)),),
    "takes values from 1 to 8, which is outside of x": (
        loop(A, SERIAL, Store(Y, (A,), load(X, (shifted(1),)))),
    ),
    "takes values from -1 to 6, which is outside of y": (
        loop(A, SERIAL, Store(Y, (shifted(-1),), ONE)),
    ),
    "expected a value of type f32, got i32": (loop(A, SERIAL, Store(Y, (A,), const(1, I32))),),
    "expected a guard of type i1, got f32": (loop(A, SERIAL, Store(Y, (A,), ONE, ONE)),),
    "expected a condition of type i1, got f32": (If(ONE, ()),),
    "expected terms of types": (loop(A, SERIAL, Accumulate((Y,), (A,), ADD, (const(1, I32),))),),
    "expected buffers of types": (loop(A, SERIAL, Accumulate((Y, Y), (A,), ADD, (ONE,))),),
    "which are not its own variables": (
        loop(
            A,
            SERIAL,
            Accumulate(
                (Y,),
                (A,),
                Combiner(ADD.lhs, ADD.rhs, (apply("add", ADD.lhs[0], Var("other", F32)),), None),
                (ONE,),
            ),
        ),
    ),
}


@pytest.mark.parametrize("reason", list(BROKEN))
def test_broken_programs_are_refused(reason) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(program(*BROKEN[reason]))
    assert reason in str(caught.value)


def test_the_error_shows_the_path_to_the_statement() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(program(loop(B, PARALLEL, loop(A, SERIAL, Store(X, (A,), ONE)))))
    assert str(caught.value).splitlines()[1:] == [
        "  | for b in 0..4 parallel:",
        "  |   for a in 0..8:",
        "  |     x[a] = 1.0:f32",
    ]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"operands": (X, X)}, "two buffers are called x"),
        ({"operands": (Y,), "results": ()}, "expected scope operand, got y"),
        ({"scratch": ((Buffer("s", F32, (4,), "scratch"), 8),)}, "multiple of 64, got 8"),
        ({"aliases": ((X, Y),)}, "expected an alias of a result and an operand"),
    ],
)
def test_signatures_are_checked(changes, reason) -> None:
    fields = {"operands": (X,), "results": (Y,), "body": (loop(A, SERIAL, COPY),), **changes}
    with pytest.raises(VerifyError) as caught:
        verify(LoopProgram("test", **fields))
    assert reason in str(caught.value)


def test_scratch_that_shares_bytes_must_not_live_at_once() -> None:
    s, t = Buffer("s", F32, (8,), "scratch"), Buffer("t", F32, (8,), "scratch")

    def copy(target: Buffer, source: Buffer) -> For:
        return loop(A, SERIAL, Store(target, (A,), load(source, (A,))))

    def placed(*body: Stmt) -> LoopProgram:
        return program(*body, scratch=((s, 0), (t, 0)))

    verify(placed(copy(s, X), copy(Y, s), copy(t, X), copy(Y, t)))
    with pytest.raises(VerifyError, match="share bytes of the arena while both are in use"):
        verify(placed(copy(s, X), copy(t, X), copy(Y, s)))


def test_sound_programs_leave_nothing_unproven() -> None:
    inside = apply("lt", shifted(1), index.constant(8))
    window = Store(Y, (A,), load(X, (shifted(1),), inside, ONE))
    assert unproven(program(loop(A, PARALLEL, window))) == ()
    total = loop(A, VECTORIZE, Accumulate((HELD,), (), ADD, (load(X, (A,)),)))
    assert unproven(program(Allocate(HELD, (Store(HELD, (), ONE), total)))) == ()


def test_what_cannot_be_decided_is_reported() -> None:
    where = Buffer("where", I32, (8,), "operand")
    place = apply("convert", load(where, (A,)), dtype=INDEX)
    scattered = LoopProgram(
        "test", (X, where), (Y,), (loop(A, PARALLEL, Store(Y, (place,), Load(X, (A,)))),)
    )
    left = unproven(scattered)
    assert any("iterations of `for a in 0..8 parallel:` are independent" in u for u in left)
    assert any("is within y" in u for u in left)


def test_accesses_that_may_never_happen_are_not_errors() -> None:
    far = Store(Y, (shifted(1),), ONE)
    condition = apply("lt", load(X, (index.constant(0),)), ONE)
    assert unproven(program(loop(A, SERIAL, If(condition, (far,)))))
    empty = variable("none", 0)
    verify(program(loop(A, SERIAL, loop(empty, SERIAL, far))))


def test_prefetches_may_lead_anywhere() -> None:
    assert unproven(program(loop(A, SERIAL, Prefetch(X, (shifted(5),), 1000)))) == ()
    with pytest.raises(VerifyError, match="expected 1 indices of type index"):
        verify(program(loop(A, SERIAL, Prefetch(X, (A, A), 0))))
