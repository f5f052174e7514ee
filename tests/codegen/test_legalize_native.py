"""Legalised functions as machine code agree with the evaluator to the bit, on all kinds of CPU."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.program import abilities
from hlo_mlc.codegen.legalize import legalize
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Var
from hlo_mlc.expr.dtypes import F32, F64
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import OPS, ScalarOp

FUNCTIONS = [
    "exp",
    "expm1",
    "tanh",
    "logistic",
    "sinh",
    "cosh",
    "log",
    "log1p",
    "sin",
    "cos",
    "tan",
    "erf",
    "erfc",
    "erf_inv",
    "lgamma",
    "digamma",
    "bessel_i1e",
    "zeta",
    "polygamma",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "rsqrt",
    "cbrt",
    "pow",
    "atan2",
    "rem",
    "sign",
    "round_away",
]
COUNT = 2048


@pytest.fixture
def machine(unflushed_machine):
    return unflushed_machine


def operands(dtype, seed: int) -> np.ndarray:
    """Special values, every magnitude, and many of ordinary magnitude; no subnormals."""
    random = np.random.default_rng(seed)
    info = np.finfo(dtype.numpy)
    special = [0.0, 1.0, 2.0, 3.0, 0.5, np.inf, np.nan, info.max, info.tiny, 1e22, 131073.0]
    anywhere = np.exp2(random.uniform(info.minexp, info.maxexp, COUNT))
    ordinary = np.exp2(random.uniform(-12, 8, COUNT))
    values = np.choose(
        random.integers(0, 3, COUNT), [random.choice(special, COUNT), anywhere, ordinary]
    )
    return (values * random.choice([-1, 1], COUNT)).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_machine_code_computes_what_the_expression_says(
    machine, target, monkeypatch, elementwise, op, dtype
):
    check(machine, target, monkeypatch, elementwise, op, dtype, lanes=16)


@pytest.mark.parametrize(
    ("op", "dtype"), [("exp", F32), ("exp", F64), ("erf", F32), ("pow", F32)], ids=str
)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 32])
def test_vectors_of_all_sizes(machine, target, monkeypatch, elementwise, lanes, op, dtype):
    check(machine, target, monkeypatch, elementwise, op, dtype, lanes)


def check(machine, target, monkeypatch, elementwise, op: str, dtype, lanes: int) -> None:
    arity = OPS[op].arity
    inputs = [operands(dtype, seed) for seed in range(arity)]
    (actual,) = machine.run(elementwise(op, dtype, COUNT, lanes), inputs, target=target)

    if not target.has_fma:
        monkeypatch.setitem(OPS, "fma", ScalarOp("fma", 3, lambda x, y, z: x * y + z))
    variables = [Var(f"v{i}", dtype) for i in range(arity)]
    expr = legalize(apply(op, *variables), abilities(target, in_vector=lanes > 1))
    with np.errstate(all="ignore"):
        expected = evaluate(expr, dict(zip(variables, inputs, strict=True)))

    tiny = np.abs(expected) < np.finfo(dtype.numpy).tiny  # machine code may give 0
    np.testing.assert_array_less(np.abs(actual[tiny]), np.finfo(dtype.numpy).tiny)
    np.testing.assert_array_equal(actual[~tiny], expected[~tiny])
