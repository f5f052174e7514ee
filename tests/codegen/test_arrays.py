"""How arrays that become registers are used: lanes to spare, and what loops hand on."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.arrays import handed_on, has_spare_lanes
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import host, named
from hlo_mlc.target.levels import runnable

X = Buffer("x", t.F32, (4, 13), "operand")
Y = Buffer("y", t.F32, (2, 13), "result")
TILE = Buffer("tile", t.F32, (2, 13), "register")
SUM = Combiner(
    (Var("a", t.F32),),
    (Var("b", t.F32),),
    (apply("add", Var("a", t.F32), Var("b", t.F32)),),
    (const(0.0, t.F32),),
    "add",
)
K = variable("k", 4)


def _loop(name: str, extent: int, kind: LoopKind, body) -> For:
    var = variable(name, extent)
    return For(var, index.constant(extent), kind, (body(var),))


def _rows(name: str, lanes: int, body) -> For:
    return _loop(
        name,
        2,
        LoopKind.UNROLL,
        lambda r: _loop(f"{name}l", lanes, LoopKind.VECTORIZE, lambda c: body(r, c)),
    )


def _zero(lanes: int = 13) -> For:
    return _rows("z", lanes, lambda r, c: Store(TILE, (r, c), const(0.0, t.F32)))


def _sum(*inside: Stmt, at=lambda r: r) -> For:
    add = _rows("s", 13, lambda r, c: Accumulate((TILE,), (at(r), c), SUM, (load(X, (K, c)),)))
    return For(K, index.constant(4), LoopKind.SERIAL, (add, *inside))


def _result(read=lambda r, c: load(TILE, (r, c))) -> For:
    return _rows("y", 13, lambda r, c: Store(Y, (r, c), read(r, c)))


def test_nobody_looks_behind_the_last_lane() -> None:
    assert has_spare_lanes(TILE, (_zero(), _sum(), _result()))


@pytest.mark.parametrize(
    "others",
    [
        (_zero(16),),  # whole vectors
        (Store(TILE, (index.constant(0), index.add(K, index.constant(10))), const(1.0, t.F32)),),
        (
            _rows("t", 2, lambda r, c: Store(TILE, (c, r), const(1.0, t.F32))),
        ),  # lanes along columns
    ],
)
def test_somebody_uses_what_lies_there(others: tuple[Stmt, ...]) -> None:
    tile = Buffer("tile", t.F32, (2, 16), "register")

    def moved(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            return For(stmt.var, stmt.extent, stmt.kind, tuple(map(moved, stmt.body)))
        return Store(tile, stmt.indices, stmt.value)

    short = moved(_zero())
    assert has_spare_lanes(tile, (short,))
    assert not has_spare_lanes(tile, (short, *map(moved, others)))


def test_vectors_across_rows_on_the_stack_leave_lanes_to_spare() -> None:
    """Where no lane of theirs is off."""
    tile = Buffer("tile", t.F32, (8, 16), "stack")
    short = _rows("z", 13, lambda r, c: Store(tile, (r, c), const(0.0, t.F32)))

    def turned(lanes: int) -> For:
        return _rows("t", lanes, lambda r, c: Store(tile, (c, r), const(1.0, t.F32)))

    assert has_spare_lanes(tile, (short, turned(8)))
    assert not has_spare_lanes(tile, (short, turned(7)))
    assert not has_spare_lanes(Buffer("alone", t.F32, (), "stack"), (short,))


def test_vectors_side_by_side_have_no_lanes_to_spare() -> None:
    """The second of 11 lanes begins in the room of the first."""
    body = _rows("z", 11, lambda r, c: Store(TILE, (r, c), const(0.0, t.F32)))
    other = _rows(
        "w", 2, lambda r, c: Store(TILE, (r, index.add(c, index.constant(11))), const(0.0, t.F32))
    )
    assert not has_spare_lanes(TILE, (body, other))


def test_an_innermost_loop_hands_on_its_tile() -> None:
    assert handed_on(_sum().body) == {TILE}


@pytest.mark.parametrize(
    "body",
    [
        _sum(
            _loop(
                "n",
                3,
                LoopKind.SERIAL,
                lambda n: Store(Y, (index.constant(0), n), const(0.0, t.F32)),
            )
        ).body,
        _sum(If(index.compare("lt", K, index.constant(2)), (_result(),))).body,
        _sum(at=lambda r: index.minimum(r, K)).body,  # another row each time
    ],
)
def test_other_loops_do_not(body: tuple[Stmt, ...]) -> None:
    assert not handed_on(body)


def _program(*body: Stmt) -> LoopProgram:
    return LoopProgram("sums", (X,), (Y,), (Allocate(TILE, body),))


def test_short_vectors_in_registers_are_written_whole() -> None:
    source = print_program(_program(_zero(), _sum(), _result()), named("x86-64-v4"))
    assert "select" not in source and "fadd <16 x float>" in source


@pytest.mark.parametrize(
    "program",
    [
        _program(_zero(), _sum(), _result()),
        _program(
            _zero(),
            _sum(
                _rows(
                    "d",
                    5,
                    lambda r, c: Store(
                        TILE, (r, c), apply("mul", load(TILE, (r, c)), const(0.5, t.F32))
                    ),
                )
            ),
            _result(),
        ),
        _program(_zero(), _sum(at=lambda r: index.minimum(r, K)), _result()),
        _program(
            _zero(),
            _sum(
                _loop(
                    "e",
                    1,
                    LoopKind.UNROLL,
                    lambda r: Store(
                        TILE,
                        (r, index.constant(3)),
                        load(TILE, (index.constant(1), index.constant(12))),
                    ),
                )
            ),
            _result(),
        ),
        _program(
            For(
                K,
                index.constant(4),
                LoopKind.SERIAL,
                (_rows("w", 13, lambda r, c: Store(TILE, (r, c), load(X, (K, c)))),),
            ),
            _result(),
        ),
        _program(If(TRUE, (_zero(),)), _sum(), _sum(), _result()),
        _program(
            If(
                apply("lt", load(X, (index.constant(0),) * 2), const(1.0, t.F32)),
                (_zero(),),
                (_zero(),),
            ),
            For(
                K,
                index.constant(4),
                LoopKind.SERIAL,
                (
                    _loop(
                        "w",
                        9,
                        LoopKind.VECTORIZE,
                        lambda c: Store(
                            TILE,
                            (index.constant(1), index.add(c, index.constant(4))),
                            load(X, (K, c)),
                        ),
                    ),
                    *_sum().body,
                ),
            ),
            _result(),
        ),
    ],
    ids=["sum", "two widths", "moving row", "one element", "last one stays", "twice", "beyond"],
)
def test_tiles_by_machine_code(program: LoopProgram, machine) -> None:
    """Against the interpreter, on numbers whose sums are exact."""
    x = np.round(np.random.default_rng(3).standard_normal(X.shape) * 8).astype(np.float32)
    (expected,) = interpret(program, [x])
    for target in (host(), *(named(level) for level in runnable() if level == "x86-64")):
        (actual,) = machine.run(program, [x], target=target)
        np.testing.assert_array_equal(actual, expected)
