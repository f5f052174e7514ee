"""What is derived from a stage's expressions: strides, and that each fact is derived once."""

from __future__ import annotations

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.tensor.classify import is_apart, is_injective, offset, stride, walks_columns
from hlo_mlc.tensor.core import Assign, Stage, derived

ROW, COLUMN = variable("i", 24), variable("j", 7)


@pytest.mark.parametrize(
    ("shape", "indices", "expected"),
    [
        ((24, 7), (ROW, COLUMN), 7),
        ((24, 7), (index.constant(3), COLUMN), 0),
        ((54, 7), (index.add(index.multiply(ROW, index.constant(2)), COLUMN), COLUMN), 14),
        ((24, 24), (ROW, ROW), 25),
        ((6, 4), (index.floordiv(ROW, 4), index.floormod(ROW, 4)), 1),  # one completes the other
        ((6, 24), (index.floordiv(ROW, 4), ROW), None),
        ((6, 4), (index.constant(0), index.floormod(ROW, 4)), None),
    ],
)
def test_stride(shape: tuple[int, ...], indices: tuple[Expr, ...], expected: int | None) -> None:
    buffer = Buffer("b", F32, shape)
    access = load(buffer, indices)
    assert stride(access, ROW) == expected
    assert index.coefficient(offset(buffer, indices), ROW) == expected


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((ROW, COLUMN), True),
        ((ROW,), False),
        ((index.add(index.multiply(ROW, index.constant(7)), COLUMN),), True),
        ((index.add(index.multiply(ROW, index.constant(6)), COLUMN),), False),
        ((index.add(ROW, COLUMN), COLUMN), True),  # what the one says makes the other clear
        ((index.add(ROW, index.floordiv(COLUMN, 2)), COLUMN), True),
        ((index.subtract(ROW, index.floordiv(ROW, 2)), COLUMN), False),
        ((index.add(ROW, as_index(load(Buffer("b", I32, (24,)), (ROW,)))), COLUMN), False),
        ((index.add(ROW, as_index(load(Buffer("b", I32, (7,)), (COLUMN,)))), COLUMN), True),
    ],
)
def test_where_no_two_points_meet(indices: tuple[Expr, ...], expected: bool) -> None:
    buffer = Buffer("y", F32, (200,) * len(indices))
    assign = Assign(buffer, indices, const(0.0, F32))
    assert is_injective(assign, (ROW, COLUMN)) == expected


TRIP = variable("n", 10)


def ahead(e: Expr, by: int) -> Expr:
    return index.add(e, index.constant(by))


@pytest.mark.parametrize(
    ("place", "read", "expected"),
    [
        ((ROW, ahead(TRIP, 2)), (ROW, TRIP), True),
        ((ROW, ahead(TRIP, 2)), (COLUMN, ahead(TRIP, 1)), True),  # wherever in another column
        ((ROW, TRIP), (ROW, TRIP), False),
        (
            (ahead(ROW, 1), TRIP),
            (ahead(ROW, 25), TRIP),
            True,
        ),  # the first 24 rows, those behind them
        ((ahead(ROW, 1), TRIP), (ahead(ROW, 24), TRIP), False),
        ((ROW, TRIP), (ahead(ROW, 1), TRIP), False),  # other points are there
        ((ROW, TRIP), (ROW, index.multiply(TRIP, index.constant(2))), False),  # in trip 0 it is
        (
            (ROW, as_index(load(Buffer("b", I32, (10,)), (TRIP,)))),
            (ROW, ahead(as_index(load(Buffer("b", I32, (10,)), (TRIP,))), 1)),
            False,
        ),
    ],
)
def test_what_is_read_apart_from_what_is_written(place, read, expected) -> None:
    buffer = Buffer("y", F32, (60, 40))
    access = load(buffer, read)
    stage = Stage("s", (ROW, COLUMN), (assign := Assign(buffer, place, access),))
    assert is_apart(access, assign, stage) == expected


LONG, INNER = variable("l", 500), variable("k", 6)
PART = index.constant(1)  # of a complex number


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([(LONG, INNER)], False),
        ([(INNER, COLUMN)], True),
        ([(LONG, INNER), (INNER, COLUMN)], True),  # what is long to read moves along rows only
        ([(LONG, INNER), (COLUMN, INNER)], False),
        ([(LONG, COLUMN), (COLUMN, INNER)], False),
        ([(INNER, LONG), (INNER, COLUMN)], True),
        ([(LONG, COLUMN), (LONG, INNER)], False),  # either way would do
        ([(INNER, COLUMN, PART)], True),
        ([(LONG, INNER, PART)], False),
        ([(COLUMN, INNER, PART)], False),
    ],
)
def test_which_way_a_reduction_walks(reads, expected) -> None:
    terms = [
        load(Buffer(f"b{n}", F32, tuple(2 if v is PART else v.extent for v in at)), at)
        for n, at in enumerate(reads)
    ]
    total = terms[0] if len(terms) == 1 else apply("add", *terms)
    a, b = Var("a", F32), Var("b", F32)
    largest = Combiner((a,), (b,), (apply("max", a, b),), None, "max")
    fold = Stage("s", (LONG, COLUMN), (), (INNER,), largest, (total,), (const(0.0, F32),), (a,))
    assert walks_columns(fold) == expected


def test_facts_are_derived_once_for_each_stage() -> None:
    asked = []

    @derived
    def fact(stage: Stage) -> str:
        asked.append(stage)
        return stage.name

    def stage(name: str) -> Stage:
        buffer = Buffer(name, F32, (24,))
        return Stage(name, (ROW,), (Assign(buffer, (ROW,), load(Buffer("x", F32, (24,)), (ROW,))),))

    one, other = stage("one"), stage("other")
    assert [fact(one), fact(other), fact(one)] == ["one", "other", "one"]
    assert asked == [one, other]
    assert one.inputs is one.inputs
