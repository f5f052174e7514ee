"""Neighbours of which some lie off the buffer, where no instruction leaves lanes out: arrays next
to pages that must not be touched, either end, both ways."""

from __future__ import annotations

import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import named

DTYPES = [d for d in t.ALL if d.kind is not t.Kind.COMPLEX and not d.is_packed]
ROWS, STEP = 24, 3


def _shifted(dtype: DType, way: str, size: int, lanes: int) -> LoopProgram:
    """Rows of an array, each shifted further over an end of it, where they are another number."""
    source = Buffer("source", dtype, (size,), "operand")
    found = Buffer("found", dtype, (ROWS, lanes), "result")
    row, lane = variable("row", ROWS), variable("lane", lanes)
    shift = row * STEP
    place, guard = {
        "before": (lane - shift, index.compare("lt", shift, lane + 1)),
        "behind": (lane + shift, index.compare("lt", lane + shift, index.constant(size))),
        "backwards": (
            size - 1 - lane - shift,
            index.compare("lt", lane + shift, index.constant(size)),
        ),
    }[way]
    value = load(source, (place,), guard, const(1, dtype))
    body = For(lane, index.constant(lanes), LoopKind.VECTORIZE, (Store(found, (row, lane), value),))
    loop = For(row, index.constant(ROWS), LoopKind.SERIAL, (body,))
    return LoopProgram("shifted", (source,), (found,), (loop,))


@pytest.mark.parametrize("way", ["before", "behind", "backwards"])
@pytest.mark.parametrize(("size", "lanes"), [(32, 32), (40, 16), (9, 8), (70, 64), (7, 4)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows(dtype: DType, size: int, lanes: int, way: str, target, machine, samples) -> None:
    program = _shifted(dtype, way, size, lanes)
    operands = [samples(dtype, size, lanes)]
    expected = interpret(program, operands)
    for at_end in (True, False):
        (found,) = machine.run(program, operands, target=target, at_end=at_end)
        assert found.tobytes() == expected[0].tobytes()


@pytest.mark.parametrize(
    ("dtype", "lanes", "processor", "is_window"),
    [
        (t.U8, 32, "x86-64-v3", True),
        (t.BF16, 16, "x86-64-v3", True),
        (t.BOOL, 16, "x86-64-v2", True),
        (t.F32, 8, "x86-64-v3", False),
        (t.U8, 32, "x86-64-v4", False),
    ],
)
def test_which_are_windows(dtype: DType, lanes: int, processor: str, is_window: bool) -> None:
    """What no instruction reads under a mask."""
    text = print_program(_shifted(dtype, "before", lanes, lanes), named(processor))
    assert ("alloca" in text) == is_window
    assert ("llvm.masked.load" in text) != is_window
