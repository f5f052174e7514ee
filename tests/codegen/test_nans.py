"""Rounding to bf16, which looks for NaNs only where it could make numbers of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.nans import Nans, NansOf
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, compare, const, convert, load, select, variable
from hlo_mlc.expr.core import Buffer, Const, Expr, Var
from hlo_mlc.expr.dtypes import BF16, F16, F32, I32, DType
from hlo_mlc.expr.ops import compute
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.target.cpu import CpuTarget, named

COUNT, LANES = 1 << 16, 16

# Of a bf16, x; whether rounding looks for NaNs.
ROUNDED: dict[str, tuple[Callable[[Expr], Expr], bool]] = {
    "sum": (lambda x: x + 1.5, False),
    "chain": (lambda x: (x * x + x) * x, False),
    "larger of a constant": (lambda x: apply("max", x * x, const(0.5, BF16)), False),
    "larger": (lambda x: apply("max", x * x, x), True),
    "exp": (lambda x: apply("exp", x), False),
    "tanh": (lambda x: apply("tanh", x), False),
    "chosen": (lambda x: convert(select(compare("lt", _wide(x), 1.0), _wide(x), 2.0), BF16), True),
    "chosen sum": (
        lambda x: convert(apply("neg", select(compare("lt", x, 1.0), _wide(x) + 3.0, 2.0)), BF16),
        False,
    ),
    "of an integer": (lambda x: convert(apply("bitcast", _wide(x), dtype=I32), BF16), False),
    "of f16": (lambda x: convert(_wide(convert(x, F16)) + _wide(x), BF16), True),
    "of bits": (
        lambda x: convert(
            apply("bitcast", apply("bitcast", _wide(x), dtype=I32) | 1, dtype=F32), BF16
        ),
        True,
    ),
}


def _wide(x: Expr) -> Expr:
    return convert(x, F32)


def _elementwise(
    values: Sequence[Callable[[Expr], Expr]], dtype: DType, to: DType = BF16
) -> LoopProgram:
    source = Buffer("x", dtype, (COUNT,), "operand")
    results = tuple(Buffer(f"y{n}", to, (COUNT,), "result") for n in range(len(values)))
    outer, lane = variable("outer", COUNT // LANES), variable("lane", LANES)
    at = (outer * LANES + lane,)
    stores = tuple(
        Store(result, at, value(load(source, at)))
        for result, value in zip(results, values, strict=True)
    )
    vector = For(lane, index.constant(LANES), LoopKind.VECTORIZE, stores)
    loop = For(outer, index.constant(COUNT // LANES), LoopKind.SERIAL, (vector,))
    return LoopProgram("elementwise", (source,), results, (loop,))


def test_no_bit_depends_on_whether_rounding_looks_for_nans(
    target: CpuTarget, machine, monkeypatch
) -> None:
    """Of all numbers and NaNs, also those that signal."""
    x = np.arange(COUNT, dtype=np.uint16).view(BF16.numpy)
    program = _elementwise([value for value, _ in ROUNDED.values()], BF16)
    actual = machine.run(program, [x], target=target)
    monkeypatch.setattr(NansOf, "__missing__", lambda self, node: Nans.ANY)
    expected = machine.run(program, [x], target=target)
    for name, one, other in zip(ROUNDED, actual, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint16), other.view(np.uint16), name)


@pytest.mark.parametrize("name", ROUNDED)
def test_it_looks_where_it_has_to(name: str) -> None:
    value, looks = ROUNDED[name]
    text = print_program(_elementwise([value], BF16), named("x86-64-v3"))
    assert ("fcmp uno" in text) == looks


def test_nans_of_f32_stay_nans(target: CpuTarget, machine) -> None:
    """Whatever their bits are: adding to these must not carry into the sign."""
    low = np.arange(1, COUNT + 1, dtype=np.uint32)
    for head in (0x7F800000, 0xFF800000, 0x7FFF0000, 0xFFFF0000):
        x = (head | low & 0xFFFF | (low == COUNT)).astype(np.uint32).view(np.float32)
        (actual,) = machine.run(_elementwise([lambda v: convert(v, BF16)], F32), [x], target=target)
        assert np.isnan(actual.astype(np.float32)).all()


# Of x, and how often it is rounded.
CHOSEN: dict[str, tuple[Callable[[Expr], Expr], int]] = {
    "larger": (lambda x: apply("max", x * x, apply("min", x, const(3.0, x.dtype))), 1),
    "whole": (lambda x: apply("floor", x) + apply("round_even", x), 1),
    "one of two sums": (lambda x: select(compare("lt", x, 1.0), x + 2.0, x * x), 1),
    "itself or a product": (lambda x: select(compare("ge", x, 0.0), x, x * 0.01), 1),
    "one of three": (
        lambda x: select(
            compare("lt", x, 1.0), x + 2.0, select(compare("lt", x, 5.0), x * x, x * 3.0)
        ),
        1,
    ),
    "one of two numbers": (lambda x: select(compare("lt", x, 1.0), apply("neg", x), x), 0),
}


def _evaluated(node: Expr, x: np.ndarray) -> np.ndarray:
    """By the definition of every op."""
    if isinstance(node, Var):
        return x
    if isinstance(node, Const):
        return np.asarray(node.value).astype(node.dtype.numpy)
    return compute(node.op, [_evaluated(a, x) for a in node.args], node.dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_what_is_chosen_has_the_same_bits(dtype: DType, target: CpuTarget, machine) -> None:
    """Of all numbers, as if each had been rounded at once, but for what may count as zero."""
    x = np.arange(COUNT, dtype=np.uint16).view(dtype.numpy)
    program = _elementwise([value for value, _ in CHOSEN.values()], dtype, dtype)
    actual = machine.run(program, [x], target=target)
    magnitude = np.abs(x.astype(np.float32))
    tiny = (magnitude > 0) & (magnitude < 2.0**-60)  # squares that are subnormal in f32, and less
    for (name, (value, _)), one in zip(CHOSEN.items(), actual, strict=True):
        other = _evaluated(value(Var("x", dtype)), x)
        missing = np.isnan(other.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(one.astype(np.float32)), missing, name)
        same = one.view(np.uint16) == other.view(np.uint16)
        assert (same | missing | tiny).all(), name


@pytest.mark.parametrize("name", CHOSEN)
def test_it_is_rounded_no_more_than_it_has_to(name: str) -> None:
    value, times = CHOSEN[name]
    text = print_program(_elementwise([value], BF16), named("x86-64-v3"))
    assert text.count("splat (i32 32767)") == times
