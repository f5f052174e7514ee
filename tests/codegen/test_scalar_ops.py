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

COUNT = 1024
LANES = 16

_COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
_ARITHMETIC = ["add", "sub", "mul", "max", "min"]
_FLOAT = [
    *_ARITHMETIC,
    *_COMPARISONS,
    "div",
    "neg",
    "abs",
    "floor",
    "ceil",
    "trunc",
    "sqrt",
    "round_even",
    "round_away",
    "is_finite",
    "sign",
]
_INTEGER = [
    *_ARITHMETIC,
    *_COMPARISONS,
    "div",
    "rem",
    "neg",
    "abs",
    "and",
    "or",
    "xor",
    "not",
    "shl",
    "shr_logical",
    "shr_arithmetic",
    "popcnt",
    "clz",
    "sign",
]
_BOOL = ["add", "sub", "mul", "max", "min", "and", "or", "xor", "not", *_COMPARISONS]
_REALS = [d for d in t.ALL if d.kind is not t.Kind.COMPLEX]
_UNARY = frozenset(
    (
        "neg",
        "abs",
        "floor",
        "ceil",
        "trunc",
        "sqrt",
        "round_even",
        "round_away",
        "is_finite",
        "sign",
        "not",
        "popcnt",
        "clz",
        "rsqrt",
    )
)


@pytest.fixture
def machine(unflushed_machine):
    return unflushed_machine


def _ops(dtype: DType) -> list[str]:
    if dtype is t.BOOL:
        return _BOOL
    if dtype.is_float:
        return _FLOAT
    return _INTEGER if dtype.is_signed else [*_INTEGER, "mul_high"]


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


def _assert_same(
    actual: np.ndarray, expected: np.ndarray, what: str, operands: list[np.ndarray]
) -> None:
    assert actual.dtype == expected.dtype
    if actual.dtype.kind in "fV":  # equal bits, but any NaN is a NaN
        with np.errstate(invalid="ignore"):
            wide, wide_expected = actual.astype(np.float64), expected.astype(np.float64)
        same = (wide == wide_expected) & (np.signbit(wide) == np.signbit(wide_expected))
        same |= np.isnan(wide) & np.isnan(wide_expected)
    else:
        same = actual == expected
    if not same.all():
        at = int(np.flatnonzero(~same)[0])
        inputs = ", ".join(repr(x[at]) for x in operands)
        pytest.fail(
            f"{what}({inputs}) [element {at}] gives {actual[at]!r}, not {expected[at]!r}; "
            f"{int((~same).sum())} differ"
        )


@pytest.mark.parametrize("dtype", _REALS, ids=str)
def test_ops(dtype: DType, target: CpuTarget, machine, samples) -> None:
    names = _ops(dtype)
    x, y = samples(dtype, COUNT, 1), samples(dtype, COUNT, 2)
    operands = [Buffer("x", dtype, (COUNT,), "operand"), Buffer("y", dtype, (COUNT,), "operand")]
    values, types, expected = [], [], []
    for name in names:
        arguments = 1 if name in _UNARY else 2
        values.append(lambda *xs, name=name, n=arguments: apply(name, *xs[:n]))
        types.append(values[-1](*[load(b, (variable("i", COUNT),)) for b in operands]).dtype)
        expected.append(compute(name, [x, y][:arguments], types[-1]))
    program = _elementwise(operands, values, types)
    actual = machine.run(program, [x, y], target=target)
    for name, one, other in zip(names, actual, expected, strict=True):
        _assert_same(one, other, f"{name}:{dtype}", [x, y])


@pytest.mark.parametrize("dtype", _REALS, ids=str)
def test_ops_compile_for_other_machines(dtype: DType) -> None:
    operands = [Buffer("x", dtype, (COUNT,), "operand"), Buffer("y", dtype, (COUNT,), "operand")]
    values = [
        lambda *xs, name=name: apply(name, *xs[: 1 if name in _UNARY else 2])
        for name in _ops(dtype)
    ]
    values += [lambda x, y, to=to: apply("convert", x, dtype=to) for to in _REALS]
    types = [v(*[load(b, (variable("i", COUNT),)) for b in operands]).dtype for v in values]
    assert generate(_elementwise(operands, values, types), named("aarch64")).object_code


@pytest.mark.parametrize("dtype", _REALS, ids=str)
def test_conversions(dtype: DType, target: CpuTarget, machine, samples) -> None:
    x = samples(dtype, COUNT, 3)
    values = [lambda v, to=to: apply("convert", v, dtype=to) for to in _REALS]
    program = _elementwise([Buffer("x", dtype, (COUNT,), "operand")], values, _REALS)
    actual = machine.run(program, [x], target=target)
    for to, one in zip(_REALS, actual, strict=True):
        _assert_same(one, compute("convert", [x], to), f"convert:{dtype}->{to}", [x])


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
        _assert_same(actual, bits.view(dtype.numpy).astype(np.float32), str(dtype), [bits])


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
    _assert_same(actual, expected, "fma", arrays)


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
        _assert_same(one, expected, f"{op} by {c}", [x])


def test_functions_of_f64(target: CpuTarget, machine) -> None:
    x = np.random.default_rng(11).uniform(0.1, 0.9, COUNT)
    names = [
        "exp",
        "expm1",
        "log",
        "log1p",
        "cbrt",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "erf",
        "erfc",
        "asin",
        "acos",
        "atan",
        "asinh",
        "atanh",
        "logistic",
        "rem",
        "pow",
        "atan2",
    ]
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
    _assert_same(chosen, np.where(x < y, x, y), "select", [x, y])
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
