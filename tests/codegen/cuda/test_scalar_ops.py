"""Every scalar op on every type, as CUDA C++ on the emulator, against its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Const, Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import compute
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target import cuda
from making.operations import CONVERSIONS, FUNCTIONS, REALS, assert_same, ops_of, taken, values_of

COUNT, THREADS = 1024, 256
SM90 = cuda.named("sm_90")
POSITION = variable("i", COUNT)


def elementwise(
    name: str, operands: Sequence[Buffer], values: Sequence[Callable[..., Expr]]
) -> LoopProgram:
    """One result for each value, four elements a thread."""
    o, thread = variable("o", COUNT // THREADS), variable("t", THREADS)
    at = index.add(index.multiply(o, index.constant(THREADS)), thread)
    made = [value(*[load(b, (at,)) for b in operands]) for value in values]
    results = tuple(Buffer(f"r{n}", e.dtype, (COUNT,), "result") for n, e in enumerate(made))
    stores = tuple(Store(r, (at,), e) for r, e in zip(results, made, strict=True))
    body = For(
        thread,
        index.constant(THREADS),
        LoopKind.THREAD,
        (For(o, index.constant(COUNT // THREADS), LoopKind.SERIAL, stores),),
    )
    block = variable("b", 1)
    return LoopProgram(
        name, tuple(operands), results, (For(block, index.constant(1), LoopKind.BLOCK, (body,)),)
    )


def operand(name: str, dtype: DType) -> Buffer:
    return Buffer(name, dtype, (COUNT,), "operand")


def of_ops(dtype: DType) -> LoopProgram:
    return elementwise(f"ops_{dtype}", [operand("x", dtype), operand("y", dtype)], values_of(dtype))


def of_conversions(dtype: DType) -> LoopProgram:
    return elementwise(f"conversions_{dtype}", [operand("x", dtype)], CONVERSIONS)


def of_fma(dtype: DType) -> LoopProgram:
    return elementwise(
        f"fma_{dtype}", [operand(n, dtype) for n in "xyz"], [lambda *v: apply("fma", *v)]
    )


OF_ONE = (*FUNCTIONS, "rsqrt", "bessel_i1e")


def of_functions(dtype: DType) -> LoopProgram:
    """The same expansions as on CPUs."""
    return elementwise(
        f"functions_{dtype}",
        [operand("x", dtype)],
        [lambda v, name=name: apply(name, v) for name in OF_ONE]
        + [lambda v: apply("zeta", const(2, dtype), v)],
    )


def slow_where(threshold: float) -> Callable[[Expr], Expr]:
    def value(v: Expr) -> Expr:
        slow, fast = apply("div", Const(1.0, t.F32), v), apply("mul", v, v)
        outer = apply("select_unlikely", apply("gt", v, Const(threshold, t.F32)), slow, fast)
        return apply("add", outer, apply("select_unlikely", apply("eq", v, v), slow, outer))

    return value


THRESHOLDS = (-10.0, 0.0, 2.0, 10.0)


def of_positions(dtype: DType) -> tuple[LoopProgram, dict[str, np.ndarray]]:
    """Index arithmetic, within 32 bits and beyond."""
    constant = index.constant
    shifted = index.subtract(POSITION, constant(100))
    huge = index.multiply(POSITION, constant(1 << 33))
    formulas = {
        "plain": POSITION,
        "huge": huge,
        "div": index.floordiv(shifted, 7),
        "mod": index.floormod(shifted, 7),
        "huge div": index.floordiv(huge, 1 << 30 | 1),
        "huge mod": index.floormod(huge, 1 << 30 | 1),
        "min": index.minimum(POSITION, constant(40)),
        "max": index.maximum(shifted, constant(3)),
        "huge min": index.minimum(huge, constant(40)),
        "select": apply("select", apply("lt", POSITION, constant(9)), shifted, huge),
    }
    results = tuple(Buffer(f"r{n}", dtype, (COUNT,), "result") for n in range(len(formulas)))
    stores = tuple(
        Store(r, (POSITION,), apply("convert", e, dtype=dtype))
        for r, e in zip(results, formulas.values(), strict=True)
    )
    thread, block = variable("t", 1), variable("b", 1)
    loops = For(
        block,
        constant(1),
        LoopKind.BLOCK,
        (
            For(
                thread,
                constant(1),
                LoopKind.THREAD,
                (For(POSITION, constant(COUNT), LoopKind.SERIAL, stores),),
            ),
        ),
    )
    i = np.arange(COUNT)
    s, h = i - 100, i << 33
    expected = {
        "plain": i,
        "huge": h,
        "div": s // 7,
        "mod": s % 7,
        "huge div": h // (1 << 30 | 1),
        "huge mod": h % (1 << 30 | 1),
        "min": np.minimum(i, 40),
        "max": np.maximum(s, 3),
        "huge min": np.minimum(h, 40),
        "select": np.where(i < 9, s, h),
    }
    return LoopProgram(f"positions_{dtype}", (), results, (loops,)), expected


PROGRAMS = {
    **{("ops", d): of_ops(d) for d in REALS},
    **{("convert", d): of_conversions(d) for d in REALS},
    **{("fma", d): of_fma(d) for d in (t.F32, t.F64)},
    **{("functions", d): of_functions(d) for d in (t.F32, t.F64)},
    **{("positions", d): of_positions(d)[0] for d in (t.F64, t.I64)},
    ("unlikely", t.F32): elementwise(
        "unlikely", [operand("x", t.F32)], [slow_where(threshold) for threshold in THRESHOLDS]
    ),
}


@pytest.fixture(scope="module")
def run(emulator) -> Callable[..., list[np.ndarray]]:
    """All programs are compiled together."""
    sources: dict[tuple[str, DType], CudaSource] = {
        key: print_program(program, SM90) for key, program in PROGRAMS.items()
    }
    emulator.prepare(list(sources.values()))
    return lambda key, *operands: emulator.run(sources[key], PROGRAMS[key], operands)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_ops(dtype: DType, run, samples) -> None:
    x, y = samples(dtype, COUNT, 1), samples(dtype, COUNT, 2)
    for name, one, result in zip(
        ops_of(dtype), run(("ops", dtype), x, y), PROGRAMS["ops", dtype].results, strict=True
    ):
        expected = compute(name, taken(name, [x, y]), result.dtype)
        assert_same(one, expected, f"{name}:{dtype}", x, y)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_conversions(dtype: DType, run, samples) -> None:
    x = samples(dtype, COUNT, 3)
    for to, one in zip(REALS, run(("convert", dtype), x), strict=True):
        assert_same(one, compute("convert", [x], to), f"convert:{dtype}->{to}", x)


@pytest.mark.parametrize("dtype", [t.F32, t.F64], ids=str)
def test_fma_rounds_once(dtype: DType, run, samples) -> None:
    arrays = [samples(dtype, COUNT, seed) for seed in (4, 5, 6)]
    (actual,) = run(("fma", dtype), *arrays)
    assert_same(actual, compute("fma", arrays, dtype), "fma", *arrays)


@pytest.mark.parametrize("dtype", [t.F32, t.F64], ids=str)
def test_functions_are_as_exact_as_on_cpus(dtype: DType, run) -> None:
    x = np.random.default_rng(5).uniform(0.01, 0.99, COUNT).astype(dtype.numpy)
    for name, one in zip([*OF_ONE, "zeta"], run(("functions", dtype), x), strict=True):
        wide = x.astype(np.float64)
        true = compute(name, [np.full_like(wide, 2), wide] if name == "zeta" else [wide], t.F64)
        error = np.abs(one.astype(np.float64) - true) / np.spacing(np.abs(true).astype(dtype.numpy))
        assert error.max() <= 4, name


@pytest.mark.parametrize("dtype", [t.F64, t.I64], ids=str)
def test_positions(dtype: DType, run) -> None:
    _, expected = of_positions(dtype)
    for (name, wanted), one in zip(expected.items(), run(("positions", dtype)), strict=True):
        np.testing.assert_array_equal(one, wanted.astype(dtype.numpy), name)


def test_the_unlikely_side_is_computed_where_it_is_needed(run) -> None:
    x = np.random.default_rng(10).standard_normal(COUNT).astype(np.float32)
    for threshold, one in zip(THRESHOLDS, run(("unlikely", t.F32), x), strict=True):
        expected = np.where(x > threshold, np.float32(1) / x, x * x) + np.float32(1) / x
        np.testing.assert_array_equal(one, expected)


def test_complex_values_are_refused() -> None:
    program = elementwise("copy", [operand("x", t.C64)], [lambda v: v])
    with pytest.raises(CodegenError, match="Expected a type that a GPU"):
        print_program(program, SM90)


def test_ops_that_nobody_expanded_are_refused() -> None:
    program = elementwise(
        "rest", [operand("x", t.BF16)], [lambda v: apply("floordiv", v, Const(2.0, t.BF16))]
    )
    with pytest.raises(CodegenError, match="got floordiv"):
        print_program(program, SM90)
