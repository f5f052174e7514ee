"""Buffers of one element in memory: what was stored is read back only where that is not known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, Stmt, Store, While
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import CpuTarget, named

INPUTS = 32
X = Buffer("x", t.I32, (INPUTS,), "operand")
Y = Buffer("y", t.I32, (4,), "result")
KEPT = tuple(Buffer(f"kept{n}", t.I32, (), "scratch") for n in range(3))
IS_LESS = Buffer("is_less", t.BOOL, (), "scratch")
STEPS = Buffer("steps", t.I32, (), "scratch")
SCRATCH = tuple((buffer, 64 * n) for n, buffer in enumerate((*KEPT, IS_LESS, STEPS)))


class _Programs:
    """Random statements on a few single elements; loops are numbered so that names differ."""

    def __init__(self, seed: int) -> None:
        self.random, self.loops = random.Random(seed), 0

    def program(self) -> LoopProgram:
        body = (
            *(Store(kept, (), self._input()) for kept in KEPT),
            Store(IS_LESS, (), apply("lt", self._input(), self._input())),
            *self.statements(3),
            *(Store(Y, (index.constant(n),), load(kept, ())) for n, kept in enumerate(KEPT)),
            Store(Y, (index.constant(3),), self._chosen(const(1, t.I32), const(0, t.I32))),
        )
        return LoopProgram("elements", (X,), (Y,), body, SCRATCH)

    def statements(self, depth: int) -> tuple[Stmt, ...]:
        kinds = [self._stored, self._stored, self._compared]
        if depth:
            kinds += [self._loop, self._branch]
        if depth > 2:
            kinds.append(self._while)
        return tuple(
            s for _ in range(self.random.randrange(2, 5)) for s in self.random.choice(kinds)(depth)
        )

    def _input(self) -> Expr:
        return load(X, (index.constant(self.random.randrange(INPUTS)),))

    def _kept(self) -> Expr:
        return load(self.random.choice(KEPT), ())

    def _chosen(self, one: Expr, other: Expr) -> Expr:
        return apply("select", load(IS_LESS, ()), one, other)

    def _stored(self, depth: int) -> tuple[Stmt, ...]:
        value = self.random.choice(
            (
                self._kept(),
                self._input(),
                const(3, t.I32),
                self._chosen(const(5, t.I32), const(7, t.I32)),
                self._chosen(self._kept(), self._input()),
            )
        )
        guard = apply("lt", self._kept(), self._input()) if self.random.random() < 0.4 else None
        return (Store(self.random.choice(KEPT), (), apply("sub", value, self._kept()), guard),)

    def _compared(self, depth: int) -> tuple[Stmt, ...]:
        known = self.random.random() < 0.4
        return (
            Store(
                IS_LESS,
                (),
                const(self.random.random() < 0.5, t.BOOL)
                if known
                else apply("lt", self._kept(), self._input()),
            ),
        )

    def _loop(self, depth: int) -> tuple[Stmt, ...]:
        self.loops += 1
        kind = self.random.choice((LoopKind.SERIAL, LoopKind.UNROLL))
        trips = self.random.choice((0, 1, 3))
        return (
            For(
                variable(f"i{self.loops}", 3),
                index.constant(trips),
                kind,
                self.statements(depth - 1),
            ),
        )

    def _branch(self, depth: int) -> tuple[Stmt, ...]:
        otherwise = self.statements(depth - 1) if self.random.random() < 0.5 else ()
        return (If(load(IS_LESS, ()), self.statements(depth - 1), otherwise),)

    def _while(self, depth: int) -> tuple[Stmt, ...]:
        steps = load(STEPS, ())
        return (
            Store(STEPS, (), const(0, t.I32)),
            While(
                apply("lt", steps, const(3, t.I32)),
                (
                    *self.statements(depth - 1),
                    Store(STEPS, (), apply("add", steps, const(1, t.I32))),
                ),
            ),
        )


@pytest.mark.parametrize("seed", range(60))
def test_random_elements(machine, target: CpuTarget, seed: int) -> None:
    """Stores behind guards, in branches and in loops of all kinds."""
    program = _Programs(seed).program()
    x = np.random.default_rng(seed).integers(-9, 9, INPUTS).astype(np.int32)
    (expected,) = interpret(program, [x])
    (actual,) = machine.run(program, [x], target=target)
    np.testing.assert_array_equal(actual, expected)


def test_what_was_just_stored_is_not_read_back() -> None:
    """Not by the next statement, nor behind its guard; by the next trip of a loop it is."""
    kept, at = KEPT[0], (index.constant(0),)
    trip = (
        Store(kept, (), apply("add", load(kept, ()), load(X, at))),
        Store(Y, at, load(kept, ()), apply("lt", load(kept, ()), const(9, t.I32))),
    )
    program = LoopProgram(
        "elements",
        (X,),
        (Y,),
        (
            Store(kept, (), const(0, t.I32)),
            For(variable("i", 5), index.constant(5), LoopKind.SERIAL, trip),
        ),
        SCRATCH,
    )
    source = print_program(program, named("x86-64-v3"))
    assert source.count("store i32") == 3
    assert source.count("load i32") == 2  # the operand, and the sum so far
