"""Long code that is rarely run is there once, and gives what it gave where it was needed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.codegen.cpu.rare import LONG_AGAIN, cut
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, walk
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.target.cpu import CpuTarget

LANES = 8


def waves(dtype: DType, count: int) -> LoopProgram:
    """sin and cos of multiples, in vectors and then one by one."""
    x = Buffer("x", dtype, (count,), "operand")
    results = tuple(Buffer(f"out{k}", dtype, (count,), "result") for k in range(4))
    outer, lane = variable("outer", count // 2 // LANES), variable("lane", LANES)
    single = variable("single", count // 2)

    def stores(where: Expr) -> tuple[Store, ...]:
        here = load(x, (where,))
        return tuple(
            Store(out, (where,), apply(op, apply("mul", here, const(k, dtype))))
            for out, (op, k) in zip(
                results, (("sin", 1.0), ("cos", 1.0), ("sin", 3.0), ("cos", 3.0)), strict=True
            )
        )

    at = index.add(index.multiply(outer, index.constant(LANES)), lane)
    behind = index.add(single, index.constant(count // 2))
    return LoopProgram(
        "waves",
        (x,),
        results,
        (
            For(
                outer,
                index.constant(outer.extent),
                LoopKind.SERIAL,
                (For(lane, index.constant(LANES), LoopKind.VECTORIZE, stores(at)),),
            ),
            For(single, index.constant(single.extent), LoopKind.SERIAL, stores(behind)),
        ),
    )


@pytest.mark.parametrize("dtype", [t.F32, t.F64], ids=str)
def test_huge_arguments(dtype: DType, target: CpuTarget, machine) -> None:
    program = waves(dtype, 64)
    generator = np.random.default_rng(1)
    x = (generator.uniform(-4, 4, 64) * 10.0 ** generator.integers(0, 30, 64)).astype(dtype.numpy)
    x[[3, 40]] = np.inf, np.nan
    wide = np.longdouble
    with np.errstate(invalid="ignore"):
        expected = [
            op((x * dtype.numpy.type(k)).astype(np.float64)).astype(wide)
            for op, k in ((np.sin, 1), (np.cos, 1), (np.sin, 3), (np.cos, 3))
        ]
    for got, want in zip(machine.run(program, [x], target=target), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=4 * np.finfo(dtype.numpy).eps)


@pytest.mark.parametrize(("dtype", "calls"), [(t.F64, 2), (t.F32, 1)], ids=["f64", "f32"])
def test_it_is_there_once(dtype: DType, calls: int, target: CpuTarget) -> None:
    """In f32, where it is shorter, it is a function from the second place on."""
    text = print_program(waves(dtype, 64), target)
    functions = re.findall(r"define internal .* (@rare\d+)\(", text)
    assert len(functions) == 4  # sin and cos, of vectors and of scalars
    for name in functions:
        assert len(re.findall(rf"call .* {name}\(", text)) == calls


def test_what_is_given_stays_outside() -> None:
    x, i = Buffer("x", t.F32, (8,), "operand"), variable("i", 8)
    here = load(x, (i,))
    known = apply("mul", here, here)
    value: Expr = known
    for k in range(LONG_AGAIN):
        value = apply("add", apply("mul", value, known), const(float(k), t.F32))
    part = cut(value, lambda node: node is known)
    assert part is not None
    assert part.arguments == (known,)
    assert part.body.free == {*part.parameters} == {Var("x0", t.F32)}
    kept = [node.op for node in walk(part.body) if isinstance(node, Apply)]
    assert kept == [
        node.op for node in walk(value, into=lambda e: e is not known) if isinstance(node, Apply)
    ]
    assert cut(known, lambda node: False) is None  # which is short
