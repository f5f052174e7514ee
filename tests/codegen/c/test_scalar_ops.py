"""Every scalar op on every type, as C, against its meaning; and statements of all kinds, against
the interpreter of loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlo_mlc.codegen.c.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer, Const, Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import compute
from hlo_mlc.loops.core import Accumulate, For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.tensor.combine import named_combiner
from making.operations import CONVERSIONS, REALS, assert_all, ops_of, taken, values_of

COUNT = 1024
LANES = 8


def loop(name: str, extent: int, kind: LoopKind, body: Callable[[Expr], tuple[Stmt, ...]]) -> For:
    var = variable(name, extent)
    return For(var, index.constant(extent), kind, body(var))


def elementwise(
    name: str, dtype: DType, operands: int, values: Sequence[Callable[..., Expr]]
) -> LoopProgram:
    """One result for each value: tasks, and vectors in them."""
    given = tuple(Buffer(f"x{n}", dtype, (COUNT,), "operand") for n in range(operands))
    probe = [value(*[load(b, (index.constant(0),)) for b in given]) for value in values]
    results = tuple(Buffer(f"r{n}", e.dtype, (COUNT,), "result") for n, e in enumerate(probe))

    def stores(at: Expr) -> tuple[Stmt, ...]:
        loads = [load(b, (at,)) for b in given]
        return tuple(
            Store(r, (at,), value(*loads)) for r, value in zip(results, values, strict=True)
        )

    body = loop(
        "task",
        COUNT // LANES,
        LoopKind.PARALLEL,
        lambda task: (
            loop(
                "l",
                LANES,
                LoopKind.VECTORIZE,
                lambda lane: stores(index.add(index.multiply(task, index.constant(LANES)), lane)),
            ),
        ),
    )
    return LoopProgram(name, given, results, (body,))


PROGRAMS = {
    **{("ops", d): elementwise(f"ops_{d}", d, 2, values_of(d)) for d in REALS},
    **{("convert", d): elementwise(f"convert_{d}", d, 1, CONVERSIONS) for d in REALS},
}


@pytest.fixture(scope="module")
def run(as_c) -> Callable[..., list[np.ndarray]]:
    """All programs are compiled together, with traps where C leaves open what happens."""
    flags = ("-O0", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
    codes = dict(zip(PROGRAMS, as_c(list(PROGRAMS.values()), *flags), strict=True))

    def call(key: tuple[str, DType], *operands: np.ndarray) -> list[np.ndarray]:
        results = [np.zeros(b.shape, b.dtype.numpy) for b in PROGRAMS[key].results]
        bind_kernel(codes[key], list(operands), results)()
        return results

    return call


def assert_same(actual: np.ndarray, expected: np.ndarray, what: str, *operands: np.ndarray) -> None:
    """Equal, but any NaN is a NaN, and subnormal numbers, which are flushed, are zero."""
    assert actual.dtype == expected.dtype
    with np.errstate(invalid="ignore"):
        same = actual == expected
        if actual.dtype.kind in "fV":
            same |= np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64))
        for x in (*operands, expected):
            if x.dtype.kind in "fV":
                wide = x.astype(np.float64)
                same |= (np.abs(wide) < 1.2e-38) & (wide != 0)
    assert_all(same, actual, expected, what, *operands)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_ops(dtype: DType, run, samples) -> None:
    x, y = samples(dtype, COUNT, 1), samples(dtype, COUNT, 2)
    for name, one, result in zip(
        ops_of(dtype), run(("ops", dtype), x, y), PROGRAMS["ops", dtype].results, strict=True
    ):
        operands = taken(name, [x, y])
        assert_same(one, compute(name, operands, result.dtype), f"{name}:{dtype}", *operands)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_conversions(dtype: DType, run, samples) -> None:
    x = samples(dtype, COUNT, 3)
    for to, one in zip(REALS, run(("convert", dtype), x), strict=True):
        assert_same(one, compute("convert", [x], to), f"convert:{dtype}->{to}", x)


def lanes(width: int, body: Callable[[Expr], tuple[Stmt, ...]]) -> For:
    return loop("l", width, LoopKind.VECTORIZE, body)


X = Buffer("x", t.F32, (16,), "operand")
R = Buffer("r", t.F32, (16,), "result")
ZERO = index.constant(0)


def filled() -> For:
    return lanes(16, lambda i: (Store(R, (i,), load(X, (i,))),))


STATEMENTS: dict[str, tuple[Stmt, ...]] = {
    # Lanes read before any of them writes.
    "shifted in place": (
        filled(),
        lanes(15, lambda i: (Store(R, (index.add(i, index.constant(1)),), load(R, (i,))),)),
    ),
    "added to a neighbour": (
        filled(),
        lanes(
            15,
            lambda i: (
                Accumulate(
                    (R,),
                    (index.add(i, index.constant(1)),),
                    named_combiner("add", t.F32),
                    (load(R, (i,)),),
                ),
            ),
        ),
    ),
    # Lanes combined by halves.
    "sum of lanes": (
        filled(),
        lanes(
            13,
            lambda i: (Accumulate((R,), (ZERO,), named_combiner("add", t.F32), (load(X, (i,)),)),),
        ),
    ),
    "sum of some lanes": (
        filled(),
        lanes(
            13,
            lambda i: (
                Accumulate(
                    (R,),
                    (ZERO,),
                    named_combiner("add", t.F32),
                    (load(X, (i,)),),
                    apply("gt", load(X, (i,)), Const(0.0, t.F32)),
                ),
            ),
        ),
    ),
    "largest of no lanes": (
        filled(),
        lanes(
            7,
            lambda i: (
                Accumulate(
                    (R,),
                    (ZERO,),
                    named_combiner("max", t.F32),
                    (load(X, (i,)),),
                    apply("gt", load(X, (i,)), Const(99.0, t.F32)),
                ),
            ),
        ),
    ),
}


def test_statements_mean_what_the_interpreter_says(as_c) -> None:
    programs = [
        LoopProgram(f"s{n}", (X,), (R,), body) for n, body in enumerate(STATEMENTS.values())
    ]
    x = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    for name, program, code in zip(STATEMENTS, programs, as_c(programs, "-O2"), strict=True):
        result = np.zeros(16, np.float32)
        bind_kernel(code, [x], [result])()
        np.testing.assert_array_equal(result, interpret(program, [x])[0], name)


def test_what_c_has_no_words_for_is_refused() -> None:
    of_threads = loop("t", 16, LoopKind.THREAD, lambda i: (Store(R, (i,), load(X, (i,))),))
    z = Buffer("z", t.C64, (16,), "operand")
    to = Buffer("r", t.C64, (16,), "result")
    of_complex = loop("i", 16, LoopKind.SERIAL, lambda i: (Store(to, (i,), load(z, (i,))),))
    for program, message in (
        (LoopProgram("threads", (X,), (R,), (of_threads,)), "that C has words for"),
        (LoopProgram("complex", (z,), (to,), (of_complex,)), "Expected a type that C has"),
    ):
        with pytest.raises(CodegenError, match=message):
            print_program(program, "kernel")
