"""Operands of which a nest reads one part only."""

from __future__ import annotations

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.tensor.canonical import canonical
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.parts_read import on_parts, parts_read
from hlo_mlc.tensor.text import program_text

W, Y = Buffer("w", F32, (3, 5, 4)), Buffer("y", F32, (4,))
I = variable("i", 4)  # noqa: E741


def nest(value: Expr) -> Nest:
    return Nest((Stage("s", (I,), (Assign(Y, (I,), value),)),), 1)


def at(*first: Expr | int) -> Expr:
    return load(W, (*(index.constant(n) if isinstance(n, int) else n for n in first), I))


@pytest.mark.parametrize(
    "value, place",
    [
        (at(2, 1), (2, 1)),
        (apply("add", at(2, 1), at(2, 3)), (2,)),
        (apply("add", at(2, 1), at(0, 1)), ()),
        (at(I, 1), ()),
        (apply("add", at(2, I), at(2, 1)), (2,)),
    ],
)
def test_the_largest_part_that_has_all_that_is_read(value: Expr, place: tuple[int, ...]) -> None:
    assert parts_read(nest(value), (W,)) == {W: place}


def test_what_only_a_guard_keeps_from_being_read_is_no_part() -> None:
    guard = apply("lt", load(Buffer("n", F32, (4,)), (I,)), const(0.0, F32))
    beyond = load(W, (index.constant(3), index.constant(0), I), guard, const(0.0, F32))
    assert parts_read(nest(beyond), (W,)) == {W: ()}


def test_nests_that_differ_in_the_part_are_one() -> None:
    texts = set()
    for row in range(3):
        one = nest(apply("exp", at(row, 4 - row)))
        given, parts = on_parts(one, parts_read(one, (W,)))
        assert [part.shape for part in parts] == [(4,)]
        texts.add(program_text(canonical("nest", (given,), parts, (Y,))))
    assert len(texts) == 1
