"""What the verifier of tensor programs refuses, and why, one program for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import BOOL, F32, I32, INDEX
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.verify import verify


def store(
    buffer: Buffer,
    axes: Sequence[Var],
    value: Expr | None = None,
    indices: Sequence[Expr] | None = None,
    guard: Expr | None = None,
) -> Assign:
    return Assign(
        buffer,
        tuple(axes if indices is None else indices),
        const(1, F32) if value is None else value,
        guard,
    )


A, R, T = (
    Buffer("a", F32, (4, 6), "operand"),
    Buffer("r", F32, (4, 6), "result"),
    Buffer("t", F32, (4, 6)),
)

I, J, K = variable("i", 4), variable("j", 6), variable("k", 6)  # noqa: E741


def program(*steps: Step, aliases: tuple = ()) -> TensorProgram:
    return TensorProgram("kernel", (A,), (R,), (T,), steps, aliases)


def nest(*stages: Stage, shared: int = 2) -> Nest:
    return Nest(stages, shared)


def mirrored(buffer: Buffer) -> Expr:
    return load(buffer, (I, index.subtract(index.constant(5), J)))


FULL = Stage("s", (I, J), (store(R, (I, J)),))
EARLY = Stage("e", (I, J), (store(T, (I, J)),))
MIRRORS = Stage("m", (I, J), (store(T, (I, J), mirrored(A)),))
COPY = Stage("c", (I, J), (store(R, (I, J), load(A, (I, J))),), overwrites=(A,))
N = Buffer("n", I32, (), "operand")


# A row of the result in each trip of a loop.
TRIP3, TRIP4 = variable("m", 3), variable("l", 4)
ROW = Stage("s", (J,), (store(R, (J,), indices=(TRIP3, J)),))
ROW_OF_FOUR = (store(R, (J,), indices=(TRIP4, J)),)
READS = Stage("t", (I, J), (store(T, (I, J), load(R, (I, J))),))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            [nest(Stage("s", (I, J), (store(R, (I, J), load(A, (I, index.add(J, I)))),)))],
            "index i \\+ j, from 0 to 8",
        ),
        (
            [
                nest(
                    Stage(
                        "s",
                        (I, J),
                        (store(R, (I, J), apply("add", load(T, (I, J)), const(1, F32))),),
                    )
                )
            ],
            "is read before",
        ),
        (
            [nest(Stage("s", (I,), (store(R, (I,), indices=(I, index.constant(2))),)))],
            r"\[0…3, 0…1\] is missing",
        ),
        ([nest(Stage("s", (I,), (store(R, (I,), indices=(I, J)),)))], "defines j"),
        ([nest(replace(FULL, assigns=(store(A, (I, J)),)))], "nothing that it may write"),
        ([nest(EARLY, Stage("s", (I, J), (store(R, (I, J), mirrored(T)),)))], "point by point"),
        ([nest(EARLY, Stage("s", (J, I), (store(R, (I, J)),)))], "expected its first axes"),
        (
            [
                nest(EARLY),
                nest(
                    Stage("s", (I, J), (store(R, (I, J), load(T, (I, J))),)),
                    replace(EARLY, name="later"),
                ),
            ],
            "overwrites t",
        ),
        (
            [nest(FULL), nest(Stage("s", (I, J), (store(R, (I, J), mirrored(R)),)))],
            "another of its points writes",
        ),
        ([Loop((nest(FULL),), variable("n", 0), 0)], "is missing"),
        ([Loop((nest(FULL),), variable("n", 2), 3)], "count 3 rounds"),
        ([Loop((nest(ROW, shared=1),), TRIP3, 3)], r"\[3, 0…5\] is missing"),
        (
            [
                Loop(
                    (
                        Branch(
                            const(1, BOOL), (nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1),), ()
                        ),
                    ),
                    TRIP4,
                    4,
                )
            ],
            "is missing",
        ),
        (
            [Loop((nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1), nest(READS)), TRIP4, 4)],
            "is read before",
        ),
        (
            [
                Loop(
                    (nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1),),
                    TRIP4,
                    None,
                    (),
                    const(1, BOOL),
                )
            ],
            "count None rounds",
        ),
        ([Branch(const(1, BOOL), (nest(FULL),), ())], "is missing"),
        ([Branch(const(1, BOOL), (), (nest(FULL),))], "is missing"),
        ([Branch(apply("eq", I, index.constant(1)), (), ())], "no axis or loop defines"),
        ([Loop((nest(FULL),), variable("n", 2), None, (), const(1, BOOL))], "count None rounds"),
        (
            [nest(EARLY, replace(FULL, assigns=(store(R, (I, J), guard=apply("ge", J, I)),)))],
            "under a guard",
        ),
        ([nest(replace(FULL, assigns=(store(R, (I, J), const(1, I32)),)))], "of the type"),
        (
            [nest(replace(FULL, assigns=(store(R, (I, J), load(Buffer("?", F32, ()), ())),)))],
            "does not exist",
        ),
    ],
)
def test_what_breaks_a_rule(steps, reason):
    with pytest.raises(VerifyError, match=reason):
        verify(program(*steps))


@pytest.mark.parametrize("read_by", [(), (nest(READS),)], ids=["result", "read_later"])
def test_a_loop_stores_a_row_in_each_trip(read_by):
    """All of them have run when it ends; so it is of a loop in a loop."""
    row = nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1)
    verify(program(Loop((row,), TRIP4, 4), *read_by))
    one = variable("o", 1)
    element = Stage("s", (), (store(R, (), indices=(TRIP4, J)),))
    verify(program(Loop((Loop((nest(element, shared=0),), J, 6),), TRIP4, 4), *read_by))
    verify(program(Loop((Loop((row,), one, 1),), TRIP4, 4), *read_by))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([nest(replace(COPY, overwrites=()))], "does not say so"),
        (
            [nest(COPY), nest(Stage("s", (I, J), (store(T, (I, J), load(A, (I, J))),)))],
            "by stage s",
        ),
        ([nest(replace(COPY, assigns=(store(R, (I, J), mirrored(A)),)))], "another point reads"),
        (
            [nest(replace(COPY, assigns=(*COPY.assigns, store(T, (I, J), load(A, (I, J))))))],
            "before its point has read it",
        ),
        ([nest(MIRRORS, COPY)], "another point reads"),
        ([nest(COPY, MIRRORS, shared=1)], "by stage m"),
        ([nest(COPY), nest(FULL)], "one elementwise stage"),
        ([Loop((nest(COPY),), variable("n", 2), 2)], "one elementwise stage"),
    ],
)
def test_what_is_lost_in_place(steps, reason):
    for right in (nest(COPY), nest(EARLY, COPY), nest(MIRRORS, COPY, shared=1)):
        verify(program(right, aliases=((R, A),)))
    with pytest.raises(VerifyError, match=reason):
        verify(program(*steps, aliases=((R, A),)))


def test_the_kernel_and_the_index_are_named():
    far = index.add(J, index.constant(1))
    guard = apply("ge", J, index.constant(2))
    stage = Stage("s7", (I, J), (store(R, (I, J), load(A, (I, far), guard, const(0, F32))),))
    with pytest.raises(VerifyError) as caught:
        verify(program(nest(stage)))
    assert str(caught.value) == (
        "kernel kernel, stage s7 for i<4, j<6: index j + 1, from 1 to 6, is not known to stay "
        "inside of a: 4x6xf32 operand where j >= 2"
    )


@pytest.mark.parametrize("offset, right", [(-2, True), (-1, False)])
def test_what_is_looked_up_may_be_read_again_under_its_own_comparison(offset, right):
    """As from parts that are joined: the index is compared, and read or chosen under that."""
    table = Buffer("table", I32, (4,), "operand")
    first = apply("lt", I, index.constant(3))
    zero = const(0, I32)

    def place(value: Expr) -> Expr:
        clamped = index.minimum(apply("convert", value, dtype=INDEX), index.constant(7))
        return index.add(index.maximum(clamped, index.constant(0)), index.constant(-2))

    there = load(table, (I,), first, zero)
    inside = apply("ge", place(there), index.constant(-2 - offset))
    guard = apply("and", first, inside)
    for value in (load(table, (I,), guard, zero), apply("select", inside, there, zero)):
        looked = load(A, (I, place(value)), guard, const(0, F32))
        checked = TensorProgram(
            "kernel", (A, table), (R,), (), (nest(Stage("s", (I, J), (store(R, (I, J), looked),))),)
        )
        if right:
            verify(checked)
        else:
            with pytest.raises(VerifyError, match="from -2 to 5"):
                verify(checked)


def test_what_is_looked_up_is_guarded_or_clamped():
    there = apply("convert", load(N, ()), dtype=INDEX)
    inside = apply(
        "and", apply("ge", there, index.constant(0)), apply("lt", there, index.constant(6))
    )
    clamped = index.maximum(index.minimum(there, index.constant(5)), index.constant(0))
    for value, right in (
        (Load(A, (I, there)), False),
        (Load(A, (I, clamped)), True),
        (Load(A, (I, there), inside, const(0, F32)), True),
    ):
        looked = TensorProgram(
            "kernel", (A, N), (R,), (), (nest(Stage("s", (I, J), (store(R, (I, J), value),))),)
        )
        if right:
            verify(looked)
        else:
            with pytest.raises(VerifyError, match="from -2147483648 to 2147483647"):
                verify(looked)
