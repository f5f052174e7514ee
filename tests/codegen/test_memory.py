"""Loads and stores in every shape that lanes take, next to pages that must not be touched."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import STACK_BYTES, Allocate, For, LoopKind, LoopProgram, Prefetch, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget, host, named
from making.code import generate

EXTENTS = [*range(1, 10), 13, 15, 16, 17]
ELEMENTS = [t.BOOL, t.I8, t.BF16, t.I32, t.F64]


def _times(factor: int, e: Expr, offset: int = 0) -> Expr:
    return index.add(index.multiply(e, index.constant(factor)), index.constant(offset))


def _vector(extent: int, *body) -> For:
    return For(variable("lane", extent), index.constant(extent), LoopKind.VECTORIZE, body)


def _check(
    machine, program: LoopProgram, operands: list[np.ndarray], target: CpuTarget | None
) -> None:
    expected = interpret(program, operands)
    for at_end in (True, False):
        actual = machine.run(program, operands, target=target, at_end=at_end)
        for one, other in zip(actual, expected, strict=True):
            written = ~np.isnan(other) if other.dtype.kind == "f" else np.ones(other.shape, bool)
            np.testing.assert_array_equal(one[written], other[written])


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("step", [0, 1, -1, 2, -2, 3, 4, -4, 5])
def test_steps_between_lanes(step: int, dtype: DType, target: CpuTarget, machine, samples) -> None:
    """All extents in one kernel: x[step * lane] -> y[lane], and x[lane] -> z[step * lane]."""
    for extent in EXTENTS if dtype is t.I32 else (5, 16):
        lane = variable("lane", extent)
        reach = abs(step) * (extent - 1) + 1
        first = reach - 1 if step < 0 else 0
        x = Buffer("x", dtype, (reach,), "operand")
        y = Buffer("y", dtype, (extent,), "result")
        z = Buffer("z", dtype, (reach,), "result")
        place = _times(step, lane, first)
        body = [Store(y, (lane,), load(x, (place,)))]
        if step:
            body.append(Store(z, (place,), load(x, (place,))))
        program = LoopProgram("steps", (x,), (y, z), (_vector(extent, *body),))
        values = samples(dtype, reach, extent)
        for at_end in (True, False):
            one, other = machine.run(program, [values], target=target, at_end=at_end)
            picked = first + step * np.arange(extent)
            assert one.tobytes() == values[picked].tobytes()
            expected = np.zeros_like(values)
            if step:
                expected[picked] = values[picked]
            assert other.tobytes() == expected.tobytes()


@pytest.mark.parametrize("count", [1, 15, 16, 33, 40])
@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_guarded_tails(dtype: DType, count: int, target: CpuTarget, machine, samples) -> None:
    x, y = Buffer("x", dtype, (count,), "operand"), Buffer("y", dtype, (count,), "result")
    lane, outer = variable("lane", 16), variable("outer", -(-count // 16))
    at = index.add(_times(16, outer), lane)
    inside = index.compare("lt", at, index.constant(count))
    back = index.subtract(index.constant(count - 1), at)
    program = LoopProgram(
        "tail",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(-(-count // 16)),
                LoopKind.SERIAL,
                (_vector(16, Store(y, (at,), load(x, (back,)), inside)),),
            ),
        ),
    )
    values = samples(dtype, count, count)
    for at_end in (True, False):
        (actual,) = machine.run(program, [values], target=target, at_end=at_end)
        assert actual.tobytes() == values[::-1].tobytes()


def _rotated(dtype: DType, count: int, by: int) -> LoopProgram:
    """y[i] = x[i - by], and the end of x at the beginning of y."""
    x, y = Buffer("x", dtype, (count,), "operand"), Buffer("y", dtype, (count,), "result")
    lane, outer = variable("lane", 16), variable("outer", count // 16)
    at = index.add(_times(16, outer), lane)
    behind = index.compare("ge", at, index.constant(by))
    end = load(
        x, (index.add(at, index.constant(count - by)),), apply("not", behind), const(0, dtype)
    )
    begin = load(x, (index.subtract(at, index.constant(by)),), behind, const(0, dtype))
    both = apply("select", behind, begin, end)
    return LoopProgram(
        "rotated",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(count // 16),
                LoopKind.SERIAL,
                (_vector(16, Store(y, (at,), both)),),
            ),
        ),
    )


@pytest.mark.parametrize("by", [1, 24, 70])
@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_rotations(dtype: DType, by: int, target: CpuTarget, machine, samples) -> None:
    values, program = samples(dtype, 96, by), _rotated(dtype, 96, by)
    for at_end in (True, False):
        (actual,) = machine.run(program, [values], target=target, at_end=at_end)
        assert actual.tobytes() == np.roll(values, by).tobytes()


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_far_vectors_that_are_switched_off_as_a_whole(
    dtype: DType, target: CpuTarget, machine, samples
) -> None:
    """What is read instead is the default, also in lanes that are on."""
    x, y = Buffer("x", dtype, (5,), "operand"), Buffer("y", dtype, (96,), "result")
    lane, outer = variable("lane", 16), variable("outer", 6)
    at = index.add(_times(16, outer), lane)
    first = index.compare("lt", outer, index.constant(1))
    inside = index.compare("lt", lane, index.constant(5))
    one = const(1, dtype)
    program = LoopProgram(
        "far",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(6),
                LoopKind.SERIAL,
                (_vector(16, Store(y, (at,), load(x, (at,), first, one), inside)),),
            ),
        ),
    )
    values, before = samples(dtype, 5, 3), samples(dtype, 96, 4)
    expected = before.copy().reshape(6, 16)
    expected[:, :5] = one.value
    expected[0, :5] = values
    for at_end in (True, False):
        (actual,) = machine.run(program, [values], results=[before], target=target, at_end=at_end)
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("by, away", [(1, 1), (24, 2), (95, 1)])
def test_vectors_off_a_buffer_ask_its_memory_for_nothing(by: int, away: int) -> None:
    """Those of one end, of both, of the other; up to a vector off it they may lie."""
    text = print_program(_rotated(t.F32, 96, by), named("x86-64-v4"))
    assert text.count("icmp ult i64") == away


@pytest.mark.parametrize("alone", [0, 6, 15])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(
    "wide, narrow",
    [(t.F32, t.BF16), (t.I32, t.I16), (t.I32, t.I8), (t.I16, t.I8), (t.F32, t.F16)],
    ids=str,
)
def test_one_lane_of_what_is_narrowed(
    wide: DType, narrow: DType, step: int, alone: int, target: CpuTarget, machine
) -> None:
    """LLVM takes a masked store of a single lane for one as wide as what was narrowed."""
    lane = variable("lane", 16)
    x, y = Buffer("x", wide, (16,), "operand"), Buffer("y", narrow, (4,), "result")
    only = index.compare("eq", lane, index.constant(alone))
    for at in range(4):
        stored = Store(
            y,
            (_times(step, lane, at - step * alone),),
            apply("convert", load(x, (lane,)), dtype=narrow),
            only,
        )
        program = LoopProgram("alone", (x,), (y,), (_vector(16, stored),))
        values, before = ((np.arange(n) - 5).astype(d.numpy) for n, d in ((16, wide), (4, narrow)))
        expected = before.copy()
        expected[at] = values[alone]
        for at_end in (True, False):
            (actual,) = machine.run(
                program, [values], results=[before], target=target, at_end=at_end
            )
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("default", ["constant", "computed"])
def test_guarded_loads(dtype: DType, default: str, target: CpuTarget, machine, samples) -> None:
    """A padded window: rows are out for all lanes at once, columns lane by lane."""
    rows, columns = 3, 11
    x = Buffer("x", dtype, (rows, columns), "operand")
    y = Buffer("y", dtype, (rows + 4, columns + 5), "result")
    r, lane = variable("r", rows + 4), variable("lane", columns + 5)
    row, column = _times(1, r, -2), _times(1, lane, -2)
    inside = all_of(
        *(index.compare("ge", i, index.constant(0)) for i in (row, column)),
        index.compare("lt", row, index.constant(rows)),
        index.compare("lt", column, index.constant(columns)),
    )
    row_inside = all_of(
        index.compare("ge", row, index.constant(0)), index.compare("lt", row, index.constant(rows))
    )
    other: Expr = const(1, dtype)
    if default == "computed":
        other = apply("convert", apply("convert", lane, dtype=t.I32), dtype=dtype)
    value = apply(
        "select",
        index.compare("lt", lane, index.constant(columns)),
        load(x, (row, column), inside, other),
        load(x, (row, index.constant(columns - 1)), row_inside, other),
    )
    value = apply(
        "select",
        index.compare("eq", lane, index.constant(4)),
        value,
        load(x, (row, column), inside, other),
    )
    program = LoopProgram(
        "pad",
        (x,),
        (y,),
        (
            For(
                r,
                index.constant(rows + 4),
                LoopKind.SERIAL,
                (_vector(columns + 5, Store(y, (r, lane), value)),),
            ),
        ),
    )
    values = samples(dtype, rows * columns, 5).reshape(rows, columns)
    (expected,) = interpret(program, [values])
    for at_end in (True, False):
        (actual,) = machine.run(program, [values], target=target, at_end=at_end)
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("extent", [3, 8, 13, 16])
def test_lanes_anywhere(extent: int, target: CpuTarget, machine) -> None:
    """Gather, guarded gather whose positions come from guarded memory, scatter."""
    random = np.random.default_rng(extent)
    lane = variable("lane", extent)
    x = Buffer("x", t.F32, (40, 3), "operand")
    where = Buffer("where", t.I32, (extent,), "operand")
    y, z, w, v = (Buffer(n, t.F32, (extent,), "result") for n in "yzwv")
    row = apply("convert", load(where, (lane,)), dtype=t.INDEX)
    inside = index.compare("lt", lane, index.constant(extent - 2))
    shifted = apply(
        "convert", load(where, (_times(1, lane, 2),), inside, const(0, t.I32)), dtype=t.INDEX
    )
    slot = apply("convert", load(where, (lane,)), dtype=t.INDEX)
    body = [
        Store(v, (lane,), const(0.0, t.F32)),
        Store(v, (lane,), load(x, (row, index.constant(1))), inside),
        Store(y, (lane,), load(x, (row, index.constant(1)))),
        Store(z, (lane,), load(x, (shifted, index.constant(2)), inside, const(7.0, t.F32))),
        Store(w, (index.floormod(slot, extent),), load(x, (row, index.constant(0)))),
    ]
    program = LoopProgram("anywhere", (x, where), (y, z, w, v), (_vector(extent, *body),))
    positions = random.permutation(extent).astype(np.int32)
    values = random.standard_normal((40, 3)).astype(np.float32)
    _check(machine, program, [values, positions], target)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("columns", [4, 7, 13, 16])
@pytest.mark.parametrize("dtype", [t.I8, t.BF16, t.F64], ids=str)
def test_blocks_against_the_grain(
    dtype: DType, columns: int, backwards: bool, target: CpuTarget, machine, samples
) -> None:
    """Columns of a block, all or the first of its rows, read by rows and transposed."""
    for live in (3, 13, 16):
        x = Buffer("x", dtype, (live, 2 * columns + 1), "operand")
        y = Buffer("y", dtype, (2 * columns, live), "result")
        block, column, lane = variable("b", 2), variable("c", columns), variable("lane", live)
        place = index.add(_times(columns, block), column)
        source = _times(-1, place, 2 * columns) if backwards else place
        body = _vector(live, Store(y, (place, lane), load(x, (lane, source))))
        program = LoopProgram(
            "block",
            (x,),
            (y,),
            (
                For(
                    block,
                    index.constant(2),
                    LoopKind.SERIAL,
                    (For(column, index.constant(columns), LoopKind.UNROLL, (body,)),),
                ),
            ),
        )
        text = print_program(program, target)
        assert "masked.gather" not in text
        assert f"load {types.memory_type(dtype)}, " not in text
        values = samples(dtype, live * (2 * columns + 1), columns).reshape(x.shape)
        expected = values[:, :0:-1] if backwards else values[:, :-1]
        for at_end in (True, False):
            (actual,) = machine.run(program, [values], target=target, at_end=at_end)
            assert actual.tobytes() == expected.T.tobytes()


@pytest.mark.parametrize("shape", [(3, 5), (1, 7), (4, 1), (0, 5)])
def test_small_and_empty_sizes(shape: tuple[int, int], target: CpuTarget, machine, samples) -> None:
    x, y = Buffer("x", t.F32, shape, "operand"), Buffer("y", t.F32, shape[::-1], "result")
    i, j = (variable(name, extent) for name, extent in zip("ij", shape, strict=True))
    rows, columns = map(index.constant, shape)
    row = For(j, columns, LoopKind.SERIAL, (Store(y, (j, i), load(x, (i, j))),))
    program = LoopProgram("transpose", (x,), (y,), (For(i, rows, LoopKind.PARALLEL, (row,)),))
    values = samples(t.F32, max(1, shape[0] * shape[1]), 3)[: shape[0] * shape[1]].reshape(shape)
    (actual,) = machine.run(program, [values], target=target)
    np.testing.assert_array_equal(actual, values.T)


def test_one_place_for_all_lanes_that_are_on(target: CpuTarget, machine) -> None:
    """A place that is the same for all lanes and for a whole loop, and may not exist."""
    x, y = Buffer("x", t.I32, (20,), "operand"), Buffer("y", t.I32, (8, 4), "result")
    size, lane, k = Buffer("n", t.I32, (), "operand"), variable("lane", 8), variable("k", 4)
    n = apply("convert", load(size, ()), dtype=t.INDEX)
    inside = index.compare("lt", index.add(lane, index.constant(3)), n)
    value = load(x, (index.subtract(n, index.constant(1)),), inside, const(-1, t.I32))
    program = LoopProgram(
        "shared",
        (x, size),
        (y,),
        (_vector(8, For(k, index.constant(4), LoopKind.SERIAL, (Store(y, (lane, k), value),))),),
    )
    for count in (0, 5, 20):
        (actual,) = machine.run(program, [np.arange(20), np.int32(count)], target=target)
        expected = np.where(np.arange(8) + 3 < count, count - 1, -1)
        np.testing.assert_array_equal(actual, np.repeat(expected[:, None], 4, 1))


def test_a_result_in_the_memory_of_its_operand(target: CpuTarget, machine) -> None:
    """What was read before a store to the shared memory is not used after it."""
    x, y = Buffer("x", t.I32, (8,), "operand"), Buffer("y", t.I32, (8,), "result")
    i = variable("i", 8)
    once = apply("add", load(x, (i,)), const(1, t.I32))
    program = LoopProgram(
        "update",
        (x,),
        (y,),
        (
            For(
                i,
                index.constant(8),
                LoopKind.SERIAL,
                (Store(y, (i,), once), Store(y, (i,), apply("mul", once, load(x, (i,))))),
            ),
        ),
        aliases=((y, x),),
    )
    (actual,) = machine.run(program, [np.arange(8)], target=target)
    np.testing.assert_array_equal(actual, (np.arange(8) + 2) * (np.arange(8) + 1))


@pytest.mark.parametrize("scope", ["stack", "register"])
@pytest.mark.parametrize("extent", [5, 16])
def test_private_buffers(scope: str, extent: int, target: CpuTarget, machine, samples) -> None:
    """Allocated in a vector loop, each lane has its own; outside, the lanes share one."""
    lane, k = variable("lane", extent), variable("k", 4)
    x = Buffer("x", t.F32, (4, extent), "operand")
    y, z = (Buffer(n, t.F32, (4, extent), "result") for n in "yz")
    own, shared = Buffer("own", t.F32, (4,), scope), Buffer("shared", t.F32, (4, extent), scope)
    kind = LoopKind.UNROLL if scope == "register" else LoopKind.SERIAL

    def each(*body) -> For:
        return For(k, index.constant(4), kind, body)

    back = index.subtract(index.constant(3), k)
    inside = index.compare("ge", lane, index.constant(1))
    own_body = _vector(
        extent,
        Allocate(
            own,
            (
                each(Store(own, (k,), load(x, (k, lane)))),
                each(Store(own, (k,), const(5.0, t.F32), inside)),
                each(Store(y, (k, lane), load(own, (back,)))),
            ),
        ),
    )
    shared_body = Allocate(
        shared,
        (
            each(_vector(extent, Store(shared, (k, lane), load(x, (k, lane))))),
            each(_vector(extent, Store(shared, (k, lane), const(6.0, t.F32), inside))),
            each(_vector(extent, Store(z, (k, lane), load(shared, (back, lane))))),
        ),
    )
    program = LoopProgram("private", (x,), (y, z), (own_body, shared_body))
    _check(machine, program, [samples(t.F32, 4 * extent, 2).reshape(4, extent)], target)


@pytest.mark.parametrize("scope", ["stack", "register"])
@pytest.mark.parametrize("extent", [5, 16])
def test_private_buffers_are_not_left(scope: str, extent: int, target: CpuTarget, machine) -> None:
    """What a guard keeps a lane from is far away from its own buffer, too."""
    lane, k = variable("lane", extent), variable("k", 4)
    where = Buffer("where", t.I32, (extent,), "operand")
    y, own = Buffer("y", t.F32, (extent,), "result"), Buffer("own", t.F32, (4,), scope)
    z = Buffer("z", t.F32, (4, extent), "result")
    place = apply("convert", load(where, (lane,)), dtype=t.INDEX)
    inside = apply(
        "and",
        index.compare("ge", place, index.constant(0)),
        index.compare("lt", place, index.constant(4)),
    )
    number = apply("convert", k, dtype=t.F32)
    body = _vector(
        extent,
        Allocate(
            own,
            (
                For(k, index.constant(4), LoopKind.SERIAL, (Store(own, (k,), number),)),
                Store(y, (lane,), load(own, (place,), inside, const(-1.0, t.F32))),
                Store(own, (place,), const(9.0, t.F32), inside),
                For(k, index.constant(4), LoopKind.SERIAL, (Store(z, (k, lane), load(own, (k,))),)),
            ),
        ),
    )
    program = LoopProgram("private", (where,), (y, z), (body,))
    assert not prove(program)[1].guarded
    places = np.array([3, 1 << 30, -(1 << 30), 0, 4, 1, -1, 2] * 2, np.int32)[:extent]
    _check(machine, program, [places], target)


def test_too_large_a_stack_is_refused() -> None:
    big = Buffer("big", t.F64, (40_000,), "stack")
    y = Buffer("y", t.F64, (1,), "result")
    program = LoopProgram(
        "deep", (), (y,), (Allocate(big, (Store(big, (index.constant(0),), const(1.0, t.F64)),)),)
    )
    with pytest.raises(CodegenError, match="into scratch"):
        generate(program, host())


def test_operands_are_not_written() -> None:
    x = Buffer("x", t.F32, (1,), "operand")
    program = LoopProgram("bad", (x,), (), (Store(x, (index.constant(0),), const(1.0, t.F32)),))
    with pytest.raises(CodegenError, match="stores to operand x"):
        generate(program, host())


def test_unknown_buffers_and_variables_are_refused() -> None:
    y, other = Buffer("y", t.F32, (4,), "result"), Buffer("other", t.F32, (4,), "stack")
    i = variable("i", 4)
    unknown_variable = LoopProgram("bad", (), (y,), (Store(y, (i,), const(1.0, t.F32)),))
    with pytest.raises(CodegenError, match="'i' in kernel 'bad' to be the variable"):
        generate(unknown_variable, host())
    unknown_buffer = LoopProgram(
        "bad",
        (),
        (y,),
        (For(i, index.constant(4), LoopKind.SERIAL, (Store(y, (i,), load(other, (i,))),)),),
    )
    with pytest.raises(CodegenError, match="other: 4xf32 stack to be an operand"):
        generate(unknown_buffer, host())


@pytest.mark.parametrize("count", [64, 65])
def test_streaming_stores(count: int, target: CpuTarget, machine, samples) -> None:
    """Past the caches where vectors are aligned; the same values at any alignment."""
    lanes = target.vector_bytes // 4
    outer, lane = variable("outer", 64 // lanes), variable("lane", lanes)
    x = Buffer("x", t.F32, (count,), "operand")
    y = Buffer("y", t.F32, (count,), "result")
    at = index.add(_times(lanes, outer), lane)
    program = LoopProgram(
        "stream",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(64 // lanes),
                LoopKind.SERIAL,
                (_vector(lanes, Store(y, (at,), load(x, (at,)), streaming=True)),),
            ),
        ),
    )
    values = samples(t.F32, count, 6)
    for at_end in (True, False):
        (actual,) = machine.run(program, [values], target=target, at_end=at_end)
        assert actual[:64].tobytes() == values[:64].tobytes()
    text = print_program(program, target)
    assert "!nontemporal" in text
    assert "sfence" in text


@pytest.mark.parametrize("ahead", [0, 7, 1 << 30, -(1 << 30)])
def test_prefetches_touch_nothing(ahead: int, machine, samples) -> None:
    """They may lead anywhere; vectors that share a line ask for it once."""
    lanes = 4
    outer, lane = variable("outer", 16), variable("lane", lanes)
    x = Buffer("x", t.F32, (64 * lanes,), "operand")
    y = Buffer("y", t.F32, (64 * lanes,), "result")
    at = index.add(_times(lanes, outer), lane)
    program = LoopProgram(
        "ahead",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(16),
                LoopKind.UNROLL,
                (_vector(lanes, Prefetch(x, (at,), ahead), Store(y, (at,), load(x, (at,)))),),
            ),
        ),
    )
    _check(machine, program, [samples(t.F32, 64 * lanes, 3)], host())
    assert print_program(program, named("x86-64-v3")).count("@llvm.prefetch") == 4


def test_what_llvm_is_told_of_buffers_grows_with_their_number() -> None:
    """Of each pair of a thousand buffers, it would be most of the code."""

    def size(count: int) -> int:
        results = tuple(Buffer(f"y{n}", t.F32, (8,), "result") for n in range(count))
        body = tuple(
            _vector(8, Store(y, (variable("lane", 8),), const(float(n), t.F32)))
            for n, y in enumerate(results)
        )
        text = print_program(LoopProgram("many", (), results, body), named("x86-64-v3"))
        return text.count("!")

    small, large = size(100), size(1000)
    assert large < 15 * small


def test_buffers_on_the_stack_take_turns(machine) -> None:
    """Any number of large ones, one after the other, need no more memory than the largest; what is
    inside another one is beside it."""
    n = STACK_BYTES // 4 // t.F32.bytes
    x = Buffer("x", t.F32, (n,), "operand")
    results = [Buffer(f"y{k}", t.F32, (n,), "result") for k in range(6)]
    body: list[Allocate] = []
    for k, y in enumerate(results):
        outer = Buffer(f"outer{k}", t.F32, (n,), "stack")
        inner = Buffer(f"inner{k}", t.F32, (n,), "stack")
        i, j, m = (variable(f"{name}{k}", n) for name in "ijm")
        fill = _over(i, Store(outer, (i,), apply("add", load(x, (i,)), const(k, t.F32))))
        turn = _over(j, Store(inner, (_times(-1, j, n - 1),), load(outer, (j,))))
        total = apply("mul", load(outer, (m,)), load(inner, (m,)))
        body.append(
            Allocate(outer, (fill, Allocate(inner, (turn, _over(m, Store(y, (m,), total))))))
        )
    program = LoopProgram("turns", (x,), tuple(results), tuple(body))
    assert print_program(program, named("x86-64-v3")).count("alloca") == 2
    _check(machine, program, [np.arange(n, dtype=np.float32)], None)


def _over(variable: Var, *body) -> For:
    return For(variable, index.constant(variable.extent), LoopKind.SERIAL, body)
