"""What loops carry in registers: pictures, and that it is the same with and without."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import I32
from hlo_mlc.loops.core import Allocate, For, If, LoopKind, LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.rewrite import with_body
from hlo_mlc.loops.text import body_text
from hlo_mlc.loops.verify import verify
from hlo_mlc.schedule.scalar_replacement import replace_scalars

TRIPS = 9
X, Y, T = (
    Buffer(name, I32, shape, scope)
    for name, shape, scope in (
        ("x", (TRIPS,), "operand"),
        ("y", (TRIPS + 4,), "result"),
        ("t", (3,), "scratch"),
    )
)


def _program(*body: Stmt) -> LoopProgram:
    return LoopProgram("carrying", (X,), (Y,), body, ((T, 0),))


def _each(v: Var, *body: Stmt) -> For:
    return For(v, index.constant(v.extent), LoopKind.SERIAL, body)


def _replaced(program: LoopProgram, most: int = 64) -> LoopProgram:
    (body,) = replace_scalars([program.body], most)
    return with_body(program, body)


def test_what_all_trips_touch_is_a_register() -> None:
    n, i, j, zero = variable("n", TRIPS), variable("i", 3), variable("j", 3), index.constant(0)
    carrying = _program(
        _each(i, Store(T, (i,), const(1, I32))),
        _each(n, Store(T, (zero,), apply("add", load(T, (zero,)), load(X, (n,))))),
        _each(j, Store(Y, (j,), load(T, (j,)))),
    )
    assert "t.n[0] = t.n[0] + x[n]" in body_text(_replaced(carrying).body)
    assert _replaced(carrying, most=2).body == carrying.body


def test_a_tile_in_the_loop_may_have_the_name_of_its_registers() -> None:
    n, i, zero = variable("n", TRIPS), variable("i", 3), index.constant(0)
    tile = Buffer("t.n", I32, (1,), "stack")
    summed = Store(T, (zero,), apply("add", load(T, (zero,)), load(tile, (zero,))))
    carrying = _program(
        _each(i, Store(T, (i,), const(1, I32))),
        _each(n, Allocate(tile, (Store(tile, (zero,), load(X, (n,))), summed))),
        _each(i, Store(Y, (i,), load(T, (i,)))),
    )
    replaced = _replaced(carrying)
    assert "t.n.r[0] = t.n.r[0] + t.n[0]" in body_text(replaced.body)
    verify(replaced)


def test_what_a_trip_stores_stays_for_the_next_ones() -> None:
    n = variable("n", TRIPS)
    before = index.add(n, index.constant(1))
    carrying = _program(
        _each(variable("i", TRIPS + 4), Store(Y, (variable("i", TRIPS + 4),), const(1, I32))),
        _each(
            n,
            Store(
                Y,
                (index.add(n, index.constant(2)),),
                apply("add", load(Y, (before,)), load(X, (n,))),
            ),
        ),
    )
    text = body_text(_replaced(carrying).body)
    assert "y.n.0[] = x[n] + y.n.1[]" in text or "y.n.0[] = y.n.1[] + x[n]" in text


class _Random:
    """Loops, in loops and branches, over what they read and write of a few elements."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.made = 0

    def program(self) -> LoopProgram:
        i, j = variable("i", TRIPS + 4), variable("j", 3)
        return _program(
            _each(i, Store(Y, (i,), const(1, I32))),
            _each(j, Store(T, (j,), const(2, I32))),
            *self.body((), 0),
        )

    def body(self, around: tuple[Var, ...], depth: int) -> tuple[Stmt, ...]:
        return tuple(self.statement(around, depth) for _ in range(int(self.rng.integers(1, 4))))

    def statement(self, around: tuple[Var, ...], depth: int) -> Stmt:
        kind = self.rng.random()
        if depth < 2 and (kind < 0.5 or not around):
            self.made += 1
            v = variable(f"n{self.made}", int(self.rng.choice((1, 3, TRIPS))))
            return _each(v, *self.body((*around, v), depth + 1))
        if 0.5 <= kind < 0.6 and depth < 3:
            condition = apply("lt", around[-1], index.constant(int(self.rng.integers(1, 9))))
            return If(condition, self.body(around, 3), self.body(around, 3))
        value = apply("add", self.read(around), self.read(around))
        buffer = (Y, T)[int(self.rng.integers(2))]
        return Store(buffer, (self.place(buffer, around),), value)

    def read(self, around: tuple[Var, ...]) -> Expr:
        source = (X, Y, T)[int(self.rng.integers(3))]
        return load(source, (self.place(source, around),))

    def place(self, buffer: Buffer, around: tuple[Var, ...]) -> Expr:
        inside = [v for v in around if v.extent + 4 * (buffer is Y) <= buffer.shape[0]]
        if not inside or self.rng.random() < 0.2:
            return index.constant(int(self.rng.integers(buffer.shape[0])))
        further = int(self.rng.integers(5)) if buffer is Y else 0
        return index.add(inside[int(self.rng.integers(len(inside)))], index.constant(further))


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_any_loops_mean_the_same(start, assert_same) -> None:
    changed = 0
    for seed in range(start, start + 50):
        program = _Random(seed).program()
        replaced = _replaced(program)
        changed += any(isinstance(s, Allocate) for s in walk(replaced.body))
        assert_same(program, replaced, [np.arange(TRIPS, dtype=np.int32)])
    assert changed >= 5
