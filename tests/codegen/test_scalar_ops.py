"""Every scalar op on every type against its meaning in expr/ops.py, on every level of this CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer, Const, Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import compute
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget, host, named
from making.code import generate
from making.operations import CONVERSIONS, FUNCTIONS, REALS, assert_same, ops_of, taken, values_of

COUNT = 1024
LANES = 16


@pytest.fixture
def machine(unflushed_machine):
    return unflushed_machine


def _elementwise(
    operands: list[Buffer], values: list[Callable[..., Expr]], result_types: list[DType]
) -> LoopProgram:
    """Each value for each element: the first half in vectors, the second one by one."""
    results = tuple(Buffer(f"out{i}", d, (COUNT,), "result") for i, d in enumerate(result_types))
    outer, lane = variable("outer", COUNT // 2 // LANES), variable("lane", LANES)
    single = variable("single", COUNT // 2)
    in_vectors = index.add(index.multiply(outer, index.constant(LANES)), lane)
    one_by_one = index.add(single, index.constant(COUNT // 2))

    def stores(where: Expr) -> tuple[Store, ...]:
        loaded = [load(b, (where,)) for b in operands]
        return tuple(
            Store(r, (where,), value(*loaded)) for r, value in zip(results, values, strict=True)
        )

    return LoopProgram(
        "elementwise",
        tuple(operands),
        results,
        (
            For(
                outer,
                index.constant(COUNT // 2 // LANES),
                LoopKind.SERIAL,
                (For(lane, index.constant(LANES), LoopKind.VECTORIZE, stores(in_vectors)),),
            ),
            For(single, index.constant(COUNT // 2), LoopKind.SERIAL, stores(one_by_one)),
        ),
    )


def _of_values(dtype: DType, values: list[Callable[..., Expr]]) -> LoopProgram:
    """The same of two operands, whatever types the values have."""
    operands = [Buffer(name, dtype, (COUNT,), "operand") for name in "xy"]
    types = [v(*[load(b, (variable("i", COUNT),)) for b in operands]).dtype for v in values]
    return _elementwise(operands, values, types)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_ops(dtype: DType, target: CpuTarget, machine, samples) -> None:
    arrays = [samples(dtype, COUNT, 1), samples(dtype, COUNT, 2)]
    program = _of_values(dtype, values_of(dtype))
    results = machine.run(program, arrays, target=target)
    for name, buffer, one in zip(ops_of(dtype), program.results, results, strict=True):
        given = taken(name, arrays)
        assert_same(one, compute(name, given, buffer.dtype), f"{name}:{dtype}", *given)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_ops_compile_for_other_machines(dtype: DType) -> None:
    values = [*values_of(dtype), *(lambda x, y, to=to: to(x) for to in CONVERSIONS)]
    assert generate(_of_values(dtype, values), named("aarch64")).object_code


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_conversions(dtype: DType, target: CpuTarget, machine, samples) -> None:
    x = samples(dtype, COUNT, 3)
    program = _elementwise([Buffer("x", dtype, (COUNT,), "operand")], CONVERSIONS, REALS)
    for to, one in zip(REALS, machine.run(program, [x], target=target), strict=True):
        assert_same(one, compute("convert", [x], to), f"convert:{dtype}->{to}", x)


def test_every_half_precision_value_widens(target: CpuTarget, machine) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (t.F16, t.BF16):
        source, result = (
            Buffer("x", dtype, (1 << 16,), "operand"),
            Buffer("y", t.F32, (1 << 16,), "result"),
        )
        outer, lane = variable("outer", 1 << 12), variable("lane", 16)
        at = index.add(index.multiply(outer, index.constant(16)), lane)
        program = LoopProgram(
            "widen",
            (source,),
            (result,),
            (
                For(
                    outer,
                    index.constant(1 << 12),
                    LoopKind.SERIAL,
                    (
                        For(
                            lane,
                            index.constant(16),
                            LoopKind.VECTORIZE,
                            (
                                Store(
                                    result,
                                    (at,),
                                    apply("convert", load(source, (at,)), dtype=t.F32),
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        )
        (actual,) = machine.run(program, [bits.view(dtype.numpy)], target=target)
        assert_same(actual, bits.view(dtype.numpy).astype(np.float32), str(dtype), bits)


@pytest.mark.parametrize("dtype", [t.F32, t.F64], ids=str)
def test_fma_rounds_once_where_the_target_can(
    dtype: DType, target: CpuTarget, machine, samples
) -> None:
    arrays = [samples(dtype, COUNT, seed) for seed in (4, 5, 6)]
    operands = [Buffer(name, dtype, (COUNT,), "operand") for name in "xyz"]
    program = _elementwise(operands, [lambda *v: apply("fma", *v)], [dtype])
    (actual,) = machine.run(program, arrays, target=target)
    with np.errstate(all="ignore"):
        expected = (
            compute("fma", arrays, dtype)
            if target.has_fma
            else (arrays[0] * arrays[1] + arrays[2]).astype(dtype.numpy)
        )
    assert_same(actual, expected, "fma", *arrays)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *((op, dtype) for op in ("max", "min", "div") for dtype in (t.F32, t.F64, t.I32)),
        ("rem", t.I32),
        ("shl", t.I32),
    ],
    ids=str,
)
def test_ops_with_a_constant(op: str, dtype: DType, target: CpuTarget, machine, samples) -> None:
    x = samples(dtype, COUNT, 7)
    constants = [0.0, -0.0, 1.0, -2.5, np.inf] if dtype.is_float else [0, 1, -1, 7, 8, -8, 40]
    values = [lambda v, c=c: apply(op, v, Const(c, dtype)) for c in constants]
    program = _elementwise(
        [Buffer("x", dtype, (COUNT,), "operand")], values, [dtype] * len(constants)
    )
    actual = machine.run(program, [x], target=target)
    for c, one in zip(constants, actual, strict=True):
        expected = compute(op, [x, np.full_like(x, c)], dtype)
        assert_same(one, expected, f"{op} by {c}", x)


def test_functions_of_f64(target: CpuTarget, machine) -> None:
    x = np.random.default_rng(11).uniform(0.1, 0.9, COUNT)
    names = [*FUNCTIONS, "rem", "pow", "atan2"]
    binary = ("rem", "pow", "atan2")
    values = [
        lambda v, name=name: apply(name, *([v, Const(0.3, t.F64)] if name in binary else [v]))
        for name in names
    ]
    program = _elementwise([Buffer("x", t.F64, (COUNT,), "operand")], values, [t.F64] * len(names))
    actual = machine.run(program, [x], target=target)
    for name, one in zip(names, actual, strict=True):
        arguments = [x, np.full_like(x, 0.3)] if name in binary else [x]
        np.testing.assert_allclose(one, compute(name, arguments, t.F64), rtol=1e-14, err_msg=name)


def test_select_and_bitcast(target: CpuTarget, machine, samples) -> None:
    x, y = samples(t.F32, COUNT, 8), samples(t.F32, COUNT, 9)
    operands = [Buffer("x", t.F32, (COUNT,), "operand"), Buffer("y", t.F32, (COUNT,), "operand")]
    values = [
        lambda a, b: apply("select", apply("lt", a, b), a, b),
        lambda a, b: apply("bitcast", a, dtype=t.I32),
        lambda a, b: apply("bitcast", apply("bitcast", a, dtype=t.U32), dtype=t.F32),
    ]
    program = _elementwise(operands, values, [t.F32, t.I32, t.F32])
    chosen, bits, same = machine.run(program, [x, y], target=target)
    assert_same(chosen, np.where(x < y, x, y), "select", x, y)
    np.testing.assert_array_equal(bits, x.view(np.int32))
    np.testing.assert_array_equal(same.view(np.int32), x.view(np.int32))


@pytest.mark.parametrize("threshold", [-10.0, 0.0, 2.0, 10.0])
def test_the_unlikely_side_is_computed_where_it_is_needed(
    threshold: float, target: CpuTarget, machine
) -> None:
    x = np.random.default_rng(10).standard_normal(COUNT).astype(np.float32)

    def value(v: Expr) -> Expr:
        slow = apply("div", Const(1.0, t.F32), v)
        fast = apply("mul", v, v)
        outer = apply("select_unlikely", apply("gt", v, Const(threshold, t.F32)), slow, fast)
        return apply("add", outer, apply("select_unlikely", apply("eq", v, v), slow, outer))

    program = _elementwise([Buffer("x", t.F32, (COUNT,), "operand")], [value], [t.F32])
    (actual,) = machine.run(program, [x], target=target)
    expected = np.where(x > np.float32(threshold), np.float32(1) / x, x * x) + np.float32(1) / x
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [t.F32, t.F64, t.I64], ids=str)
def test_index_values(dtype: DType, target: CpuTarget, machine) -> None:
    """Positions as data, where they are vectors of 32 and of 64 bits."""
    constant = index.constant
    zero = Buffer("x", t.F32, (COUNT,), "operand")
    outer, lane = variable("outer", COUNT // 16), variable("lane", 16)
    at = index.add(index.multiply(outer, constant(16)), lane)
    shifted = index.subtract(at, constant(100))
    formulas = {
        "plain": at,
        "huge": index.multiply(at, constant(1 << 33)),
        "div": index.floordiv(shifted, 7),
        "mod": index.floormod(shifted, 7),
        "div8": index.floordiv(shifted, 8),
        "mod8": index.floormod(shifted, 8),
        "unsigned": index.add(index.floordiv(at, 10), index.floormod(at, 10)),
        "min": index.minimum(at, constant(40)),
        "max": index.maximum(shifted, constant(3)),
        "select": apply("select", apply("lt", at, constant(9)), shifted, at),
    }
    results = tuple(Buffer(name, dtype, (COUNT,), "result") for name in formulas)
    stores = tuple(
        Store(r, (at,), apply("convert", e, dtype=dtype))
        for r, e in zip(results, formulas.values(), strict=True)
    )
    program = LoopProgram(
        "positions",
        (zero,),
        results,
        (
            For(
                outer,
                constant(COUNT // 16),
                LoopKind.SERIAL,
                (For(lane, constant(16), LoopKind.VECTORIZE, stores),),
            ),
        ),
    )
    actual = dict(
        zip(formulas, machine.run(program, [np.zeros(COUNT)], target=target), strict=True)
    )
    i = np.arange(COUNT)
    s = i - 100
    expected = {
        "plain": i,
        "huge": i << 33,
        "div": s // 7,
        "mod": s % 7,
        "div8": s // 8,
        "mod8": s % 8,
        "unsigned": i // 10 + i % 10,
        "min": np.minimum(i, 40),
        "max": np.maximum(s, 3),
        "select": np.where(i < 9, s, i),
    }
    for name in formulas:
        np.testing.assert_array_equal(actual[name], expected[name].astype(dtype.numpy), name)


def test_complex_values_are_refused() -> None:
    x, y = Buffer("x", t.C64, (4,), "operand"), Buffer("y", t.C64, (4,), "result")
    i = variable("i", 4)
    program = LoopProgram(
        "copy",
        (x,),
        (y,),
        (For(i, index.constant(4), LoopKind.SERIAL, (Store(y, (i,), load(x, (i,))),)),),
    )
    with pytest.raises(CodegenError, match="split into real and imaginary"):
        generate(program, host())
