"""The largest and smallest of narrow floats as integers: pictures, and that they are the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import BF16, F16, F32, DType
from hlo_mlc.expr.ops import identity
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.rewrite import with_body
from hlo_mlc.loops.text import body_text
from hlo_mlc.loops.verify import verify
from hlo_mlc.schedule.ordered_bits import by_ordered_bits
from hlo_mlc.tensor.combine import named_combiner

# Zeros, subnormals, infinities and NaNs of both signs, and whatever else there is.
BITS = {
    BF16: (0, 1, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF),
    F16: (0, 1, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF),
}


def _folding(op: str, dtype: DType, rows: int, then: str = "") -> LoopProgram:
    """A fold of each row, through a second register where another fold comes `then`."""
    x, y = Buffer("x", dtype, (rows, 3), "operand"), Buffer("y", dtype, (rows,), "result")
    first, second = (Buffer(name, dtype, (), "register") for name in ("m", "n"))
    row, column, combiner = variable("i", rows), variable("j", 3), named_combiner(op, dtype)
    neutral = const(identity(op, dtype), dtype)
    fold = Accumulate((first,), (), combiner, (load(x, (row, column)),))
    last, body = (
        first,
        [Store(first, (), neutral), For(column, index.constant(3), LoopKind.SERIAL, (fold,))],
    )
    if then:
        last = second
        body += [
            Store(second, (), load(x, (row, index.constant(0)))),
            Accumulate((second,), (), named_combiner(then, dtype), (load(first, ()),)),
        ]
    body += [Store(y, (row,), load(last, ()))]
    inner: Stmt = Allocate(first, (Allocate(second, tuple(body)),) if then else tuple(body))
    loop = For(row, index.constant(rows), LoopKind.SERIAL, (inner,))
    return LoopProgram("folding", (x,), (y,), (loop,))


def _rewritten(program: LoopProgram) -> LoopProgram:
    return with_body(program, by_ordered_bits(program.body))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("op", "then"), [("max", ""), ("min", ""), ("max", "max"), ("max", "min")])
def test_nans_win_and_zeros_have_signs(dtype: DType, op: str, then: str) -> None:
    bits = [b | sign for b in BITS[dtype] for sign in (0, 0x8000)]
    rows = np.array([*itertools.product(bits, repeat=3)], np.uint16)
    before = _folding(op, dtype, len(rows), then)
    after = _rewritten(before)
    verify(after)
    expected, actual = (interpret(p, [rows.view(dtype.numpy)])[0] for p in (before, after))
    missing = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float32)), missing)
    same = actual.view(np.uint16) == expected.view(np.uint16)
    np.testing.assert_array_equal(same | missing, True)


def test_one_register_updates_another_as_it_is() -> None:
    text = body_text(_rewritten(_folding("max", BF16, 2, "max")).body)
    assert "n[] <- max m[]" in text and "m: i16 register" in text


@pytest.mark.parametrize(("op", "dtype"), [("add", BF16), ("max", F32)])
def test_what_stays(op: str, dtype: DType) -> None:
    program = _folding(op, dtype, 2)
    assert by_ordered_bits(program.body) is program.body
