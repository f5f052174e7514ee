"""Arrays that become registers: random tiles against the interpreter, and how little is written."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    While,
)
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import CpuTarget, named

ROWS, COLUMNS, INPUTS = 2, 16, 64
X = Buffer("x", t.I32, (INPUTS,), "operand")
Y = Buffer("y", t.I32, (ROWS, COLUMNS), "result")
TILE = Buffer("tile", t.I32, (ROWS, COLUMNS), "register")
COUNT = Buffer("count", t.I32, (), "stack")
SUM = Combiner(
    (Var("a", t.I32),),
    (Var("b", t.I32),),
    (apply("add", Var("a", t.I32), Var("b", t.I32)),),
    (const(0, t.I32),),
    "add",
)


class _Programs:
    """Random statements on one register tile; loops are numbered so that names differ."""

    def __init__(self, seed: int) -> None:
        self.random, self.loops = random.Random(seed), 0

    def program(self) -> LoopProgram:
        body = (
            *self._rows(lambda r, c: Store(TILE, (r, c), self._input(c))),
            *self.statements(3, None),
            *self._rows(lambda r, c: Store(Y, (r, c), load(TILE, (r, c)))),
        )
        return LoopProgram("registers", (X,), (Y,), (Allocate(TILE, body),))

    def _rows(self, body) -> tuple[Stmt, ...]:
        return (
            self._loop(
                ROWS,
                LoopKind.UNROLL,
                lambda r: (self._loop(COLUMNS, LoopKind.VECTORIZE, lambda c: (body(r, c),)),),
            ),
        )

    def _loop(self, extent: int, kind: LoopKind, body) -> For:
        self.loops += 1
        var = variable(f"i{self.loops}", extent)
        return For(var, index.constant(extent), kind, body(var))

    def statements(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        return tuple(
            s for _ in range(self.random.randint(1, 4)) for s in self._statement(depth, serial)
        )

    def _statement(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        kinds = [self._vector, self._vector, self._element, self._fold]
        if serial is not None:
            kinds += [self._moving] * 3
        if depth:
            kinds += [self._unrolled, self._serial, self._branch, self._while]
        return self.random.choice(kinds)(depth, serial)

    def _input(self, *parts: Expr) -> Expr:
        where: Expr = index.constant(self.random.randrange(INPUTS // 2))
        for part in parts:
            where = index.add(where, part)
        return load(X, (where,))

    def _row(self) -> Expr:
        return index.constant(self.random.randrange(ROWS))

    def _column(self, width: int = 1) -> Expr:
        return index.constant(self.random.randrange(COLUMNS - width + 1))

    def _update(self, at: tuple[Expr, ...], value: Expr, guard: Expr | None = None) -> Stmt:
        if self.random.random() < 0.5:
            return Accumulate((TILE,), at, SUM, (value,), guard)
        return Store(TILE, at, value, guard)

    def _vector(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        width = self.random.choice((16, 16, 8, 5, 4))
        start, source = self._column(width), self._column(width)

        def body(lane: Var) -> tuple[Stmt, ...]:
            there = load(TILE, (self._row(), index.add(source, lane)))
            value = apply("add", there, self._input(lane))
            guard = (
                apply("lt", self._input(lane), const(0, t.I32))
                if self.random.random() < 0.3
                else None
            )
            return (self._update((self._row(), index.add(start, lane)), value, guard),)

        return (self._loop(width, LoopKind.VECTORIZE, body),)

    def _element(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        value = apply("sub", load(TILE, (self._row(), self._column())), self._input())
        guard = apply("lt", self._input(), const(0, t.I32)) if self.random.random() < 0.3 else None
        return (self._update((self._row(), self._column()), value, guard),)

    def _fold(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        """All lanes into one element."""
        at = (self._row(), self._column())
        return (
            self._loop(
                8,
                LoopKind.VECTORIZE,
                lambda lane: (Accumulate((TILE,), at, SUM, (self._input(lane),)),),
            ),
        )

    def _moving(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        """An element that differs from iteration to iteration."""
        at = (self._row(), index.add(serial, index.constant(self.random.randrange(COLUMNS - 3))))
        return (self._update(at, apply("add", load(TILE, at), self._input(serial))),)

    def _unrolled(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        return (self._loop(2, LoopKind.UNROLL, lambda _: self.statements(depth - 1, serial)),)

    def _serial(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        return (self._loop(3, LoopKind.SERIAL, lambda s: self.statements(depth - 1, s)),)

    def _branch(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        otherwise = self.statements(depth - 1, serial) if self.random.random() < 0.5 else ()
        return (
            If(
                apply("lt", self._input(), const(0, t.I32)),
                self.statements(depth - 1, serial),
                otherwise,
            ),
        )

    def _while(self, depth: int, serial: Var | None) -> tuple[Stmt, ...]:
        """As long as an element of the tile is below a bound, which it comes nearer each time."""
        at, steps = (self._row(), self._column()), load(COUNT, ())
        body = (
            *self.statements(depth - 1, serial),
            Store(COUNT, (), apply("add", steps, const(1, t.I32))),
        )
        goes_on = apply(
            "and",
            apply("lt", steps, const(2, t.I32)),
            apply("lt", load(TILE, at), const(10, t.I32)),
        )
        return (
            (Allocate(COUNT, (Store(COUNT, (), const(0, t.I32)), While(goes_on, body))),)
            if depth > 2
            else body[:-1]
        )


@pytest.mark.parametrize("seed", range(40))
def test_random_tiles(machine, target: CpuTarget, seed: int) -> None:
    """Vectors that overlap, elements, moving elements, guards, branches and loops of both kinds."""
    program = _Programs(seed).program()
    x = np.random.default_rng(seed).integers(-9, 9, INPUTS).astype(np.int32)
    (expected,) = interpret(program, [x])
    (actual,) = machine.run(program, [x], target=target)
    np.testing.assert_array_equal(actual, expected)


def test_an_element_that_moves_is_written_between_two_vectors(machine, target: CpuTarget) -> None:
    """What was known of the vector holds no longer behind it."""
    k, row = variable("k", 4), index.constant(0)

    def lanes(name: str, to: Buffer, value) -> For:
        lane = variable(name, COLUMNS)
        return For(
            lane,
            index.constant(COLUMNS),
            LoopKind.VECTORIZE,
            (Store(to, (row, lane), value(lane)),),
        )

    def doubled(name: str) -> For:
        return lanes(name, TILE, lambda c: apply("add", load(TILE, (row, c)), load(TILE, (row, c))))

    program = LoopProgram(
        "moves",
        (X,),
        (Buffer("y", t.I32, (1, COLUMNS), "result"),),
        (
            Allocate(
                TILE,
                (
                    lanes("a", TILE, lambda c: load(X, (c,))),
                    For(
                        k,
                        index.constant(4),
                        LoopKind.SERIAL,
                        (doubled("b"), Store(TILE, (row, k), load(X, (k,))), doubled("c")),
                    ),
                    lanes(
                        "d",
                        Buffer("y", t.I32, (1, COLUMNS), "result"),
                        lambda c: load(TILE, (row, c)),
                    ),
                ),
            ),
        ),
    )
    x = np.arange(1, INPUTS + 1, dtype=np.int32)
    (expected,) = interpret(program, [x])
    (actual,) = machine.run(program, [x], target=target)
    np.testing.assert_array_equal(actual, expected)


def test_a_vector_of_which_one_element_was_met_before() -> None:
    """Its other elements are read from memory, into which they are stored in each iteration."""

    def inner(r: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = jnp.sin(y.at[1:].set(r[:-1])) + 0.25 * r
        return jnp.where(r > y, r, y), made

    def outer(r: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.scan(inner, r, jnp.stack([x, x * 2]))[1][-1], None

    function = mlc_jit(lambda x: jax.lax.scan(outer, jnp.ones(2), x)[0], choose="ours")
    for x in ([[-2.0, 2.0], [3.0, 1.0]], [[1.0, 2.0], [-3.0, -3.0]], [[0.0, -1.0], [3.0, 0.0]]):
        r = np.ones(2)
        for row in np.array(x):
            state = r
            for y in (row, row * 2):
                r = np.sin([y[0], state[0]]) + 0.25 * state
                state = np.maximum(state, y)
        np.testing.assert_allclose(function(jnp.array(x)), r, rtol=1e-5)
    assert function.report(jnp.array(x)).coverage == 1


def test_a_loop_hands_on_what_it_holds_in_registers() -> None:
    """Ten additions to one vector in the body of a loop touch no memory, before it or after."""
    k = variable("k", 4)

    def lanes(name: str, stmt) -> For:
        lane = variable(name, COLUMNS)
        return For(lane, index.constant(COLUMNS), LoopKind.VECTORIZE, (stmt(lane),))

    row = index.constant(0)
    terms = tuple(
        lanes(
            f"l{n}",
            lambda c, n=n: Accumulate(
                (TILE,), (row, c), SUM, (load(X, (index.add(index.add(c, k), index.constant(n)),)),)
            ),
        )
        for n in range(10)
    )
    program = LoopProgram(
        "sums",
        (X,),
        (Y,),
        (
            Allocate(
                TILE,
                (
                    lanes("z", lambda c: Store(TILE, (row, c), const(0, t.I32))),
                    For(k, index.constant(4), LoopKind.SERIAL, terms),
                    lanes("s", lambda c: Store(Y, (row, c), load(TILE, (row, c)))),
                ),
            ),
        ),
    )
    lines = print_program(program, named("x86-64-v4")).splitlines()
    (tile,) = (line.split()[0] for line in lines if "alloca" in line)
    touching = [line for line in lines if f"ptr {tile}," in line]
    assert not touching
    assert sum("phi <" in line for line in lines) == 1
