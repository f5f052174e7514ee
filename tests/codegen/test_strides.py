"""Lanes that are apart by a constant: every type, direction, tail and guard, next to pages that
must not be touched."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import CpuTarget, named
from hlo_mlc.tensor.combine import named_combiner

ELEMENTS = [d for d in t.ALL if d.kind is not t.Kind.COMPLEX]
SOME_ELEMENTS = [t.BOOL, t.I8, t.BF16, t.I32, t.F64]
LIVE = (1, 2, 3, 8, 13, 16)


def _plus(e: Expr, offset: int) -> Expr:
    return index.add(e, index.constant(offset))


def _loop(var: Expr, kind: LoopKind, *body: Stmt) -> For:
    return For(var, index.constant(var.extent), kind, body)


def _rows(lane: Expr, backwards: bool) -> Expr:
    return index.subtract(index.constant(lane.extent - 1), lane) if backwards else lane


def _check(machine, program: LoopProgram, operands: list[np.ndarray], target: CpuTarget) -> None:
    expected = interpret(program, operands)
    for at_end in (True, False):
        actual = machine.run(program, operands, target=target, at_end=at_end)
        for one, other in zip(actual, expected, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("apart", [3, 37])
@pytest.mark.parametrize("backwards", [False, True])
def test_columns(
    backwards: bool, apart: int, dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """Lanes go down each column of a matrix, to read it and to write it."""
    operands, results, body, values = [], [], [], []
    for live in LIVE:
        lane, column = variable("lane", live), variable("column", apart)
        x = Buffer(f"x{live}", dtype, (live, apart), "operand")
        y = Buffer(f"y{live}", dtype, (apart, live), "result")
        z = Buffer(f"z{live}", dtype, (live, apart), "result")
        row = _rows(lane, backwards)
        body.append(
            _loop(
                column,
                LoopKind.SERIAL,
                _loop(
                    lane,
                    LoopKind.VECTORIZE,
                    Store(y, (column, lane), load(x, (row, column))),
                    Store(z, (row, column), load(x, (row, column))),
                ),
            )
        )
        operands.append(x)
        results += [y, z]
        values.append(samples(dtype, live * apart, live).reshape(live, apart))
    program = LoopProgram("columns", tuple(operands), tuple(results), tuple(body))
    for at_end in (True, False):
        actual = machine.run(program, values, target=target, at_end=at_end)
        for one, y, z in zip(values, actual[::2], actual[1::2], strict=True):
            assert y.tobytes() == (one[::-1] if backwards else one).T.tobytes()
            assert z.tobytes() == one.tobytes()


@pytest.mark.parametrize("dtype", SOME_ELEMENTS, ids=str)
@pytest.mark.parametrize("apart", [4, 37])
@pytest.mark.parametrize("default", ["constant", "computed"])
def test_columns_that_may_not_exist(
    default: str, apart: int, dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """A condition for all lanes at once: nothing is read in front of the matrix or behind it."""
    for live, backwards in ((8, False), (8, True), (13, False)):
        lane, position = variable("lane", live), variable("position", apart + 4)
        x = Buffer("x", dtype, (live, apart), "operand")
        y = Buffer("y", dtype, (apart + 4, live), "result")
        column = _plus(position, -2)
        inside = all_of(
            index.compare("ge", column, index.constant(0)),
            index.compare("lt", column, index.constant(apart)),
        )
        other: Expr = const(1, dtype)
        if default == "computed":
            other = apply("convert", apply("convert", lane, dtype=t.I32), dtype=dtype)
        value = load(x, (_rows(lane, backwards), column), inside, other)
        program = LoopProgram(
            "padded",
            (x,),
            (y,),
            (
                _loop(
                    position,
                    LoopKind.SERIAL,
                    _loop(lane, LoopKind.VECTORIZE, Store(y, (position, lane), value)),
                ),
            ),
        )
        _check(machine, program, [samples(dtype, live * apart, 3).reshape(live, apart)], target)


@pytest.mark.parametrize("dtype", SOME_ELEMENTS, ids=str)
@pytest.mark.parametrize("apart", [2, 3, 5])
@pytest.mark.parametrize("first", [0, 2])
def test_lanes_that_may_not_exist(
    first: int, apart: int, dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """A condition for each lane: those that are off have no row."""
    rows = 9
    for live in (13, 16):
        lane, column = variable("lane", live), variable("column", apart)
        x = Buffer("x", dtype, (rows, apart), "operand")
        y = Buffer("y", dtype, (apart, live), "result")
        z = Buffer("z", dtype, (rows, apart), "result")
        row = _plus(lane, -first)
        inside = all_of(
            index.compare("ge", row, index.constant(0)),
            index.compare("lt", row, index.constant(rows)),
        )
        value = load(x, (row, column), inside, const(1, dtype))
        program = LoopProgram(
            "lanes",
            (x,),
            (y, z),
            (
                _loop(
                    column,
                    LoopKind.SERIAL,
                    _loop(
                        lane,
                        LoopKind.VECTORIZE,
                        Store(y, (column, lane), value),
                        Store(z, (row, column), value, inside),
                    ),
                ),
            ),
        )
        _check(machine, program, [samples(dtype, rows * apart, 4).reshape(rows, apart)], target)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("apart", [2, 4, 8])
def test_columns_known_by_number(
    apart: int, dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """Some of the columns of a matrix with so few: nothing is read but whole rows of it, each
    vector once, and what columns have in common on their way is shuffled once."""
    for live in (8, 16, 32):
        lane, block = variable("lane", live), variable("block", 3)
        rows = 3 * live + 5
        x = Buffer("x", dtype, (rows, apart), "operand")
        columns = (0, apart - 1, apart // 2)
        results = tuple(Buffer(f"y{n}", dtype, (3, live), "result") for n in range(3))
        row = _plus(index.add(index.multiply(block, index.constant(live)), lane), 5)
        program = LoopProgram(
            "known",
            (x,),
            results,
            (
                _loop(
                    block,
                    LoopKind.SERIAL,
                    _loop(
                        lane,
                        LoopKind.VECTORIZE,
                        *(
                            Store(y, (block, lane), load(x, (row, index.constant(c))))
                            for c, y in zip(columns, results, strict=True)
                        ),
                    ),
                ),
            ),
        )
        _check(machine, program, [samples(dtype, rows * apart, 9).reshape(rows, apart)], target)
        if apart <= 4 or live >= 16:
            text = print_program(program, target)
            assert text.count(f"load <{live} x ") == apart and "insertelement" not in text


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("apart", [2, 3, 4])
def test_stores_between_each_other(
    apart: int, dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """Columns of a matrix, written out: together they are its rows, with nothing behind them."""
    for live in LIVE:
        lane, column = variable("lane", live), variable("column", apart)
        x = Buffer("x", dtype, (apart, live), "operand")
        y = Buffer("y", dtype, (live, apart), "result")
        program = LoopProgram(
            "between",
            (x,),
            (y,),
            (
                _loop(
                    column,
                    LoopKind.UNROLL,
                    _loop(
                        lane, LoopKind.VECTORIZE, Store(y, (lane, column), load(x, (column, lane)))
                    ),
                ),
            ),
        )
        _check(machine, program, [samples(dtype, live * apart, 7).reshape(apart, live)], target)
        if live in (8, 16):
            text = print_program(program, target)
            assert text.count(f"store <{live} x ") == apart and "extractelement" not in text


def test_what_is_stored_between_is_not_read_later(target: CpuTarget, machine, samples) -> None:
    """Copies that read what others write store one after the other; so do those under a guard."""
    lane, column = variable("lane", 8), variable("column", 2)
    x, y = Buffer("x", t.I32, (8, 2), "operand"), Buffer("y", t.I32, (8, 2), "result")
    before = index.subtract(index.constant(1), column)
    value = apply("add", load(y, (lane, before)), load(x, (lane, column)))
    guard = index.compare("lt", index.add(lane, column), index.constant(7))
    row, across = variable("row", 8), variable("across", 2)
    copied = _loop(
        row,
        LoopKind.SERIAL,
        _loop(across, LoopKind.SERIAL, Store(y, (row, across), load(x, (row, across)))),
    )
    for last in (Store(y, (lane, column), value), Store(y, (lane, column), const(1, t.I32), guard)):
        program = LoopProgram(
            "after",
            (x,),
            (y,),
            (copied, _loop(column, LoopKind.UNROLL, _loop(lane, LoopKind.VECTORIZE, last))),
        )
        _check(machine, program, [samples(t.I32, 16, 8).reshape(8, 2)], target)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("live", [8, 13])
def test_sums_in_columns(live: int, guarded: bool, target: CpuTarget, machine, samples) -> None:
    """Lanes add to what is in their own rows."""
    apart = 6
    lane, column, trip = variable("lane", live), variable("column", apart), variable("trip", 3)
    x = Buffer("x", t.I32, (3, live), "operand")
    y = Buffer("y", t.I32, (live, apart), "result")
    guard = index.compare("le", lane, column) if guarded else None
    cleared = _loop(
        lane,
        LoopKind.SERIAL,
        _loop(column, LoopKind.SERIAL, Store(y, (lane, column), const(0, t.I32))),
    )
    summed = _loop(
        column,
        LoopKind.SERIAL,
        _loop(
            trip,
            LoopKind.SERIAL,
            _loop(
                lane,
                LoopKind.VECTORIZE,
                Accumulate(
                    (y,),
                    (lane, column),
                    named_combiner("add", t.I32),
                    (load(x, (trip, lane)),),
                    guard,
                ),
            ),
        ),
    )
    program = LoopProgram("sums", (x,), (y,), (cleared, summed))
    _check(machine, program, [samples(t.I32, 3 * live, 5).reshape(3, live)], target)


@pytest.mark.parametrize("scope", ["stack", "register"])
@pytest.mark.parametrize("live", [5, 8])
def test_columns_of_arrays_of_the_function(
    live: int, scope: str, target: CpuTarget, machine, samples
) -> None:
    """Rows are written whole, columns read and written back, rows read whole."""
    lane, number = variable("lane", live), variable("number", 8)
    x, y = Buffer("x", t.F32, (live, 8), "operand"), Buffer("y", t.F32, (live, 8), "result")
    tile = Buffer("tile", t.F32, (live, 8), scope)
    row, across = variable("row", live), variable("across", 8)
    doubled = apply("mul", load(tile, (lane, number)), const(2.0, t.F32))
    program = LoopProgram(
        "tile",
        (x,),
        (y,),
        (
            Allocate(
                tile,
                (
                    _loop(
                        row,
                        LoopKind.UNROLL,
                        _loop(
                            across,
                            LoopKind.VECTORIZE,
                            Store(tile, (row, across), load(x, (row, across))),
                        ),
                    ),
                    _loop(
                        number,
                        LoopKind.UNROLL,
                        _loop(lane, LoopKind.VECTORIZE, Store(tile, (lane, number), doubled)),
                    ),
                    _loop(
                        row,
                        LoopKind.UNROLL,
                        _loop(
                            across,
                            LoopKind.VECTORIZE,
                            Store(y, (row, across), load(tile, (row, across))),
                        ),
                    ),
                ),
            ),
        ),
    )
    values = np.arange(live * 8, dtype=np.float32).reshape(live, 8)
    _check(machine, program, [values], target)


@pytest.mark.parametrize("op", ["div", "rem"])
def test_lanes_that_are_no_iterations_divide(op: str, target: CpuTarget, machine, samples) -> None:
    """What they hold instead of an element is no reason to fault."""
    lane, column = variable("lane", 5), variable("column", 6)
    x, by = (Buffer(n, t.I32, (5, 6), "operand") for n in ("x", "by"))
    y = Buffer("y", t.I32, (6, 5), "result")
    value = apply(op, load(x, (lane, column)), load(by, (lane, column)))
    program = LoopProgram(
        "divided",
        (x, by),
        (y,),
        (
            _loop(
                column,
                LoopKind.SERIAL,
                _loop(lane, LoopKind.VECTORIZE, Store(y, (column, lane), value)),
            ),
        ),
    )
    _check(
        machine,
        program,
        [samples(t.I32, 30, 6).reshape(5, 6), np.arange(1, 31, dtype=np.int32).reshape(5, 6)],
        target,
    )


def _column(dtype: DType, apart: int, *, guarded: bool = False) -> LoopProgram:
    """Read down one matrix, written down another."""
    lane, column = variable("lane", 8), variable("column", apart)
    rows = 6 if guarded else 8
    x = Buffer("x", dtype, (rows, apart), "operand")
    y = Buffer("y", dtype, (rows, apart), "result")
    guard = index.compare("lt", lane, index.constant(rows)) if guarded else None
    return LoopProgram(
        "column",
        (x,),
        (y,),
        (
            _loop(
                column,
                LoopKind.SERIAL,
                _loop(
                    lane,
                    LoopKind.VECTORIZE,
                    Store(y, (lane, column), load(x, (lane, column)), guard),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("dtype", SOME_ELEMENTS, ids=str)
def test_no_level_gathers_what_is_a_constant_apart(dtype: DType, level: str, guarded: bool) -> None:
    text = print_program(_column(dtype, 37, guarded=guarded), named(level))
    assert "masked.gather" not in text
    assert "masked.scatter" not in text


@pytest.mark.parametrize(("level", "loads"), [("x86-64-v2", 0), ("x86-64-v3", 0), ("x86-64-v4", 2)])
def test_lanes_that_may_be_off_are_masked(level: str, loads: int) -> None:
    """Where that takes half of the loads, or less, and a mask is a part of them."""
    count = variable("count", 13)
    text = print_program(_some_lanes(count), named(level))
    assert text.count("call <16 x i16> @llvm.masked.load") == loads
    assert ("insertelement <16 x i16>" in text) == (not loads)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_lanes_that_are_off_are_left_out_of_vectors(level: str) -> None:
    """Where numbers of lanes say which: what others read is in two vectors, the last one short."""
    text = print_program(_some_lanes(index.constant(12)), named(level))
    assert text.count("load <16 x i16>") == text.count("load <8 x i16>") == 1
    assert "masked.load" not in text
    assert "insertelement <16 x i16>" not in text


def _some_lanes(count: Expr) -> LoopProgram:
    """Every other element, by so many of 16 lanes; each number below 13 in turn, if that is a
    variable."""
    lane = variable("lane", 16)
    x, y = Buffer("x", t.I16, (12, 2), "operand"), Buffer("y", t.I16, (13, 16), "result")
    body = _loop(
        lane,
        LoopKind.VECTORIZE,
        Store(
            y,
            (count, lane),
            load(x, (lane, index.constant(0)), index.compare("lt", lane, count), const(1, t.I16)),
        ),
    )
    if isinstance(count, Var):
        body = _loop(count, LoopKind.SERIAL, body)
    return LoopProgram("half", (x,), (y,), (body,))


@pytest.mark.parametrize(
    ("dtype", "gathers"),
    [(t.F32, True), (t.F64, True), (t.BF16, False), (t.I8, False), (t.BOOL, False)],
    ids=str,
)
def test_processors_that_gather_fast_do(dtype: DType, gathers: bool) -> None:
    """Elements that their instructions know, and that are too far apart for shuffles."""
    target = dataclasses.replace(named("x86-64-v4"), cpu="skylake-avx512")
    text = print_program(_column(dtype, 37), target)
    assert ("masked.gather" in text) == gathers
    assert ("masked.scatter" in text) == gathers
    assert "masked.gather" not in print_program(_column(dtype, 3), target)


PATTERNS = {
    "twice": lambda place: index.floordiv(place, 2),
    "again": lambda place: index.floormod(place, 3),
    "turned": lambda place: _plus(
        index.subtract(
            index.multiply(index.floordiv(place, 3), index.constant(3)), index.floormod(place, 3)
        ),
        2,
    ),
    "first_of_five": lambda place: index.add(
        index.multiply(index.floordiv(place, 3), index.constant(5)), index.floormod(place, 3)
    ),
    "far": lambda place: index.multiply(index.floormod(place, 2), index.constant(70)),
}


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_places_that_follow_from_the_number_of_the_lane(
    pattern: str, dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """Some vectors of a row written out, each in an order of its own; nothing is read behind it."""
    for live in LIVE:
        lane, copy, row = variable("lane", live), variable("copy", 3), variable("row", 2)
        place = index.add(index.multiply(copy, index.constant(live)), lane)
        _, last = index.bounds(PATTERNS[pattern](place))
        # Bounds of such sums are wide: what is read is not.
        width = 1 + max(_at(PATTERNS[pattern], n) for n in range(3 * live))
        assert width <= last + 1
        x = Buffer("x", dtype, (2, width), "operand")
        y = Buffer("y", dtype, (2, 3, live), "result")
        program = LoopProgram(
            "ordered",
            (x,),
            (y,),
            (
                _loop(
                    row,
                    LoopKind.SERIAL,
                    _loop(
                        copy,
                        LoopKind.UNROLL,
                        _loop(
                            lane,
                            LoopKind.VECTORIZE,
                            Store(y, (row, copy, lane), load(x, (row, PATTERNS[pattern](place)))),
                        ),
                    ),
                ),
            ),
        )
        _check(machine, program, [samples(dtype, 2 * width, live).reshape(2, width)], target)


def _at(pattern, number: int) -> int:
    return pattern(index.constant(number)).value
