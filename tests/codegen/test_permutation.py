"""Rows of registers that are read in another order: by a shuffle, what was written last."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.rewrite import allocated
from hlo_mlc.target.cpu import CpuTarget

WIDTH = 8


def _vector(*body: Stmt, lane: Expr) -> For:
    return For(lane, index.constant(WIDTH), LoopKind.VECTORIZE, body)


def _exchanged(lane: Expr, apart: int) -> Expr:
    """The lane so far away, within blocks of twice that length."""
    block = index.constant(2 * apart)
    return index.add(
        index.multiply(index.floordiv(lane, 2 * apart), block),
        index.floormod(index.add(lane, index.constant(apart)), 2 * apart),
    )


ORDERS = {
    "backwards": lambda lane: index.subtract(index.constant(WIDTH - 1), lane),
    "neighbours": lambda lane: _exchanged(lane, 1),
    "halves": lambda lane: _exchanged(lane, WIDTH // 2),
    "pairs": lambda lane: index.floordiv(lane, 2),
}


@pytest.mark.parametrize("dtype", [t.I8, t.BF16, t.U32, t.F64, t.BOOL], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_another_order(order: str, dtype: t.DType, target: CpuTarget, machine, samples) -> None:
    """Of the second row, before and after it is written again."""
    x, y = Buffer("x", dtype, (2, WIDTH), "operand"), Buffer("y", dtype, (2, WIDTH), "result")
    rows = Buffer("rows", dtype, (2, WIDTH), "register")
    zero, one = index.constant(0), index.constant(1)
    body: list[Stmt] = []
    for result in (zero, one):
        lane, other = variable("lane", WIDTH), variable("lane", WIDTH)
        body += [
            _vector(
                *(
                    Store(
                        rows,
                        (row, lane),
                        load(x, (index.subtract(one, row) if result is one else row, lane)),
                    )
                    for row in (zero, one)
                ),
                lane=lane,
            ),
            _vector(Store(y, (result, other), load(rows, (one, ORDERS[order](other)))), lane=other),
        ]
    program = LoopProgram("permuted", (x,), (y,), allocated((rows,), tuple(body)))
    values = samples(dtype, 2 * WIDTH, 1).reshape(2, WIDTH)
    picks = [int(index.bounds(ORDERS[order](index.constant(k)))[0]) for k in range(WIDTH)]
    (expected,) = interpret(program, [values])
    assert expected.tobytes() == np.ascontiguousarray(values[::-1][:, picks]).tobytes()
    for at_end in (True, False):
        (actual,) = machine.run(program, [values], target=target, at_end=at_end)
        assert actual.tobytes() == expected.tobytes()
    if dtype is t.U32:
        text = print_program(program, target)
        assert "shufflevector" in text and "gather" not in text
