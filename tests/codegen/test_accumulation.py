"""Accumulation lane by lane, across lanes, where lanes meet, and with combiners of two values."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Const, Expr, Var
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import identity
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, LoopProgram, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget, host
from making.code import generate


def _one_op(op: str, dtype: DType, with_identity: bool = True) -> Combiner:
    lhs, rhs = Var("lhs", dtype), Var("rhs", dtype)
    neutral = (Const(identity(op, dtype), dtype),) if with_identity else None
    return Combiner((lhs,), (rhs,), (apply(op, lhs, rhs),), neutral, op)


def _argmax(with_identity: bool) -> Combiner:
    """The larger value with its position; NaN wins, then the lower position."""
    a, i, b, j = Var("a", t.F32), Var("i", t.I32), Var("b", t.F32), Var("j", t.I32)
    left = apply("or", apply("gt", a, b), apply("ne", a, a))
    tie = apply("and", apply("eq", a, b), apply("lt", i, j))
    keep = apply("or", left, tie)
    neutral = (Const(-math.inf, t.F32), Const(2**31 - 1, t.I32)) if with_identity else None
    return Combiner(
        (a, i), (b, j), (apply("select", keep, a, b), apply("select", keep, i, j)), neutral
    )


def _vector(extent: int, *body) -> For:
    return For(variable("lane", extent), index.constant(extent), LoopKind.VECTORIZE, body)


def _check(machine, program: LoopProgram, operands: list[np.ndarray], target: CpuTarget) -> None:
    expected = interpret(program, operands)
    actual = machine.run(program, operands, target=target)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 8, 13, 16])
@pytest.mark.parametrize("with_identity", [True, False])
def test_across_lanes(
    extent: int, with_identity: bool, target: CpuTarget, machine, samples
) -> None:
    """The order is by halves, so float sums agree to the bit with the interpreter's."""
    lane = variable("lane", extent)
    cases = [
        ("add", t.F32),
        ("mul", t.F64),
        ("max", t.F32),
        ("min", t.I8),
        ("add", t.I64),
        ("or", t.BOOL),
        ("add", t.BF16),
    ]
    operands = [Buffer(f"x{n}", d, (extent,), "operand") for n, (_, d) in enumerate(cases)]
    results = [Buffer(f"y{n}", d, (), "result") for n, (_, d) in enumerate(cases)]
    body = []
    for (op, dtype), x, y in zip(cases, operands, results, strict=True):
        body += [
            Store(y, (), const(1, dtype)),
            _vector(
                extent, Accumulate((y,), (), _one_op(op, dtype, with_identity), (load(x, (lane,)),))
            ),
        ]
    program = LoopProgram("across", tuple(operands), tuple(results), tuple(body))
    random = np.random.default_rng(extent)
    arrays = [
        random.integers(-3, 4, extent).astype(d.numpy)
        if not d.is_float
        else random.standard_normal(extent).astype(d.numpy)
        for _, d in cases
    ]
    _check(machine, program, arrays, target)


@pytest.mark.parametrize("scope", ["result", "register"])
@pytest.mark.parametrize("with_identity", [True, False])
@pytest.mark.parametrize("count", [1, 5, 16, 18])
def test_across_guarded_lanes(
    count: int, with_identity: bool, scope: str, target: CpuTarget, machine
) -> None:
    x = Buffer("x", t.F32, (count,), "operand")
    value, position = Buffer("v", t.F32, (), "result"), Buffer("p", t.I32, (), "result")
    best, where = Buffer("best", t.F32, (), scope), Buffer("where", t.I32, (), scope)
    if scope == "result":
        best, where = value, position
    outer, lane = variable("outer", 2), variable("lane", 16)
    at = index.add(index.multiply(outer, index.constant(16)), lane)
    inside = index.compare("lt", at, index.constant(count))
    body = (
        Store(best, (), const(-math.inf, t.F32)),
        Store(where, (), const(-1, t.I32)),
        For(
            outer,
            index.constant(2),
            LoopKind.SERIAL,
            (
                _vector(
                    16,
                    Accumulate(
                        (best, where),
                        (),
                        _argmax(with_identity),
                        (load(x, (at,)), apply("convert", at, dtype=t.I32)),
                        inside,
                    ),
                ),
            ),
        ),
    )
    if scope == "register":
        body = (
            Allocate(
                best,
                (
                    Allocate(
                        where,
                        (
                            *body,
                            Store(value, (), load(best, ())),
                            Store(position, (), load(where, ())),
                        ),
                    ),
                ),
            ),
        )
    program = LoopProgram("argmax", (x,), (value, position), body)
    random = np.random.default_rng(count)
    for values in (
        random.integers(0, 4, count),
        np.where(np.arange(count) % 4 == 2, np.nan, 1.0),
        np.full(count, -np.inf),
    ):
        one, other = machine.run(program, [values.astype(np.float32)], target=target)
        if np.isneginf(values).all():
            assert other in (0, -1)
            continue
        nan = np.flatnonzero(np.isnan(values))
        best_at = nan[0] if nan.size else np.argmax(values)
        np.testing.assert_array_equal(one, np.float32(values[best_at]))
        assert other == best_at


def test_lane_by_lane(target: CpuTarget, machine, samples) -> None:
    """Sums of rows in vectors of columns, and a product of two operands that is fused."""
    x = Buffer("x", t.F32, (9, 13), "operand")
    w = Buffer("w", t.F32, (9,), "operand")
    sums, dots = Buffer("sums", t.F32, (13,), "result"), Buffer("dots", t.F32, (13,), "result")
    acc = Buffer("acc", t.F32, (13,), "register")
    k, lane = variable("k", 9), variable("lane", 13)
    item = load(x, (k, lane))
    body = (
        _vector(13, Store(acc, (lane,), const(0, t.F32)), Store(dots, (lane,), const(0, t.F32))),
        For(
            k,
            index.constant(9),
            LoopKind.SERIAL,
            (
                _vector(
                    13,
                    Accumulate((acc,), (lane,), _one_op("add", t.F32), (item,)),
                    Accumulate(
                        (dots,),
                        (lane,),
                        _one_op("add", t.F32),
                        (apply("mul", item, load(w, (k,))),),
                    ),
                ),
            ),
        ),
        _vector(13, Store(sums, (lane,), load(acc, (lane,)))),
    )
    program = LoopProgram("rows", (x, w), (sums, dots), (Allocate(acc, body),))
    random = np.random.default_rng(1)
    values = random.standard_normal((9, 13)).astype(np.float32)
    weights = random.standard_normal(9).astype(np.float32)
    one, other = machine.run(program, [values, weights], target=target)
    total, dot = np.zeros(13, np.float32), np.zeros(13, np.float32)
    for row, weight in zip(values, weights, strict=True):
        total = total + row
        exact = row.astype(np.float64) * np.float64(weight) + dot
        dot = exact.astype(np.float32) if target.has_fma else dot + row * weight
    np.testing.assert_array_equal(one, total)
    np.testing.assert_array_equal(other, dot)


@pytest.mark.parametrize("guarded", [True, False])
def test_lanes_that_meet(guarded: bool, target: CpuTarget, machine) -> None:
    """A histogram: lanes may name the same bin, and then all of them count."""
    count = 37
    x = Buffer("x", t.I32, (count,), "operand")
    y = Buffer("y", t.I32, (5,), "result")
    outer, lane = variable("outer", 3), variable("lane", 13)
    at = index.add(index.multiply(outer, index.constant(13)), lane)
    inside = index.compare("lt", at, index.constant(count))
    fill = {"guard": inside, "default": const(0, t.I32)} if not guarded else {}
    item = load(x, (at,), **fill)
    guard = inside if guarded else all_of(inside, apply("ge", item, const(0, t.I32)))
    program = LoopProgram(
        "histogram",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(3),
                LoopKind.SERIAL,
                (
                    _vector(
                        13,
                        Accumulate(
                            (y,),
                            (apply("convert", item, dtype=t.INDEX),),
                            _one_op("add", t.I32),
                            (const(1, t.I32),),
                            guard,
                        ),
                    ),
                ),
            ),
        ),
    )
    values = np.random.default_rng(2).integers(0, 5, count).astype(np.int32)
    (actual,) = machine.run(program, [values], results=[np.zeros(5, np.int32)], target=target)
    np.testing.assert_array_equal(actual, np.bincount(values, minlength=5))


@pytest.mark.parametrize("dtype", [t.F32, t.F16, t.F64, t.I32], ids=str)
def test_scalar_loops(dtype: DType, target: CpuTarget, machine) -> None:
    x, y = Buffer("x", dtype, (10,), "operand"), Buffer("y", dtype, (), "result")
    i = variable("i", 10)
    program = LoopProgram(
        "sum",
        (x,),
        (y,),
        (
            Store(y, (), const(0, dtype)),
            For(
                i,
                index.constant(10),
                LoopKind.SERIAL,
                (
                    Accumulate(
                        (y,),
                        (),
                        _one_op("add", dtype),
                        (load(x, (i,)),),
                        index.compare("ne", i, index.constant(3)),
                    ),
                ),
            ),
        ),
    )
    _check(machine, program, [np.arange(10).astype(dtype.numpy)], target)


def test_lanes_share_all_places_or_none() -> None:
    own, z = Buffer("y", t.F32, (), "stack"), Buffer("z", t.F32, (), "result")
    a, b, c, d = (Var(n, t.F32) for n in "abcd")
    pair = Combiner((a, b), (c, d), (apply("add", a, c), apply("add", b, d)), None)
    one: Expr = const(1, t.F32)
    update = Accumulate((own, z), (), pair, (one, one))
    program = LoopProgram("mixed", (), (z,), (_vector(4, Allocate(own, (update,))),))
    with pytest.raises(CodegenError, match="places of one kind"):
        generate(program, host())


def test_the_first_element_is_not_touched_when_all_lanes_are_off(
    target: CpuTarget, machine
) -> None:
    """A place that exists for some iterations only."""
    x, y = Buffer("x", t.F32, (20,), "operand"), Buffer("y", t.F32, (2,), "result")
    outer, lane = variable("outer", 700), variable("lane", 16)
    at = index.add(index.multiply(outer, index.constant(10)), lane)
    inside = index.compare("lt", at, index.constant(20))
    program = LoopProgram(
        "sparse",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(700),
                LoopKind.SERIAL,
                (
                    _vector(
                        16,
                        Accumulate(
                            (y,), (outer,), _one_op("add", t.F32), (load(x, (at,)),), inside
                        ),
                    ),
                ),
            ),
        ),
    )
    values = np.arange(20, dtype=np.float32)
    (actual,) = machine.run(program, [values], results=[np.zeros(2, np.float32)], target=target)
    np.testing.assert_array_equal(actual, [values[:16].sum(), values[10:].sum()])


def test_what_no_lane_adds_to_is_not_touched(target: CpuTarget, machine, samples) -> None:
    """Guards of lanes keep whole rows away from an array of registers without a place for them."""
    x, y = Buffer("x", t.F32, (4, 4), "operand"), Buffer("y", t.F32, (2,), "result")
    held = Buffer("held", t.F32, (2,), "register")
    row, place, lane = variable("row", 4), variable("place", 2), variable("lane", 4)
    number = index.add(index.multiply(row, index.constant(4)), lane)
    update = Accumulate(
        (held,),
        (row,),
        _one_op("add", t.F32),
        (load(x, (row, lane)),),
        index.compare("lt", number, index.constant(7)),
    )

    def each(var: Var, stmt) -> For:
        return For(var, index.constant(var.extent), LoopKind.UNROLL, (stmt,))

    program = LoopProgram(
        "held",
        (x,),
        (y,),
        (
            Allocate(
                held,
                (
                    each(place, Store(held, (place,), const(0.0, t.F32))),
                    each(row, _vector(4, update)),
                    each(place, Store(y, (place,), load(held, (place,)))),
                ),
            ),
        ),
    )
    assert not prove(program)[1].guarded
    text = print_program(program, target)
    name, size = re.search(r"(%\w+) = alloca \[(\d+) x i8\]", text).groups()
    registers = re.findall(rf"{re.escape(name)}\.(\d+) = getelementptr", text)
    assert registers and all(int(offset) < int(size) for offset in registers)
    _check(machine, program, [samples(t.F32, 16, 1).reshape(4, 4)], target)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("into", ["each", "one", "looked up"])
@pytest.mark.parametrize("private", [False, True])
def test_pairs_of_products(
    lanes: int, into: str, private: bool, target: CpuTarget, machine
) -> None:
    """Into an element of each lane, one of all, or one that is looked up; of a pair that is the
    same for all lanes, or that each has to itself."""
    x, y = Buffer("x", t.I16, (2,), "operand"), Buffer("y", t.I16, (lanes, 2), "operand")
    where, sums = Buffer("at", t.I32, (lanes,), "operand"), Buffer("s", t.I32, (lanes,), "result")
    near = Buffer("near", t.I16, (2,), "stack")
    lane, pair, first = variable("lane", lanes), variable("k", 2), variable("f", lanes)
    place = {
        "each": lane,
        "one": index.constant(0),
        "looked up": apply("convert", load(where, (lane,)), dtype=t.INDEX),
    }[into]

    def unrolled(stmt) -> For:
        return For(pair, index.constant(2), LoopKind.UNROLL, (stmt,))

    one, each = (
        apply("convert", read, dtype=t.I32)
        for read in (load(near if private else x, (pair,)), load(y, (lane, pair)))
    )
    added = unrolled(
        Accumulate((sums,), (place,), _one_op("add", t.I32), (apply("mul", one, each),))
    )
    own = apply("add", load(x, (pair,)), load(y, (lane, index.constant(0))))
    body = (Allocate(near, (unrolled(Store(near, (pair,), own)), added)),) if private else (added,)
    program = LoopProgram(
        "pairs",
        (x, y, where),
        (sums,),
        (
            For(
                first,
                index.constant(lanes),
                LoopKind.SERIAL,
                (Store(sums, (first,), Const(5, t.I32)),),
            ),
            For(lane, index.constant(lanes), LoopKind.VECTORIZE, body),
        ),
    )
    rng = np.random.default_rng(0)
    operands = [
        rng.integers(-(2**15), 2**15, (2,)).astype(np.int16),
        rng.integers(-(2**15), 2**15, (lanes, 2)).astype(np.int16),
        rng.permutation(lanes).astype(np.int32),
    ]
    _check(machine, program, operands, target)
