"""Narrow elements that are looked up in words: every type, tables of few elements next to pages
that must not be touched, tails and guards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import CpuTarget, named

NARROW = [d for d in t.ALL if d.kind is not t.Kind.COMPLEX and d.bytes < 4]


def _lookups(dtype: DType, entries: int, lanes: int, guarded: bool = False) -> LoopProgram:
    """Rows of a table at places that are read, two tables in all: the second row of each place, and
    only where the place is even, if that is guarded."""
    table = Buffer("table", dtype, (2, entries), "operand")
    places = Buffer("places", t.I32, (lanes,), "operand")
    found = Buffer("found", dtype, (2, lanes), "result")
    row, lane = variable("row", 2), variable("lane", lanes)
    place = index.minimum(index.maximum(load(places, (lane,)), 0), entries - 1)
    guard = index.compare("lt", index.floormod(place, 2), index.constant(1)) if guarded else None
    value = load(table, (row, place), guard, const(1, dtype) if guarded else None)
    body = For(lane, index.constant(lanes), LoopKind.VECTORIZE, (Store(found, (row, lane), value),))
    loop = For(row, index.constant(2), LoopKind.SERIAL, (body,))
    return LoopProgram("lookups", (table, places), (found,), (loop,))


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("lanes", [5, 16, 64])
@pytest.mark.parametrize("entries", [1, 2, 3, 4, 5, 300])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_words(
    dtype: DType, entries: int, lanes: int, guarded: bool, target, machine, samples, monkeypatch
) -> None:
    """Whatever the processor, which LLVM has read one by one where it has no gathers."""
    monkeypatch.setattr(CpuTarget, "has_fast_lookup", True)
    program = _lookups(dtype, entries, lanes, guarded)
    places = np.random.default_rng(entries).integers(-1, entries + 1, lanes, np.int32)
    table = samples(dtype, 2 * entries, entries).reshape(2, entries)
    operands = [table, places]
    expected = interpret(program, operands)
    for at_end in (True, False):
        (found,) = machine.run(program, operands, target=target, at_end=at_end)
        assert found.tobytes() == expected[0].tobytes()


@pytest.mark.parametrize(
    ("dtype", "entries", "processor", "is_by_words"),
    [
        (t.I8, 300, "sapphirerapids", True),
        (t.BF16, 300, "sapphirerapids", True),
        (t.I8, 300, "x86-64-v4", False),
        (t.F32, 300, "sapphirerapids", False),
        (t.I8, 1, "sapphirerapids", False),
    ],
)
def test_which_are_words(dtype: DType, entries: int, processor: str, is_by_words: bool) -> None:
    """Where there are four bytes at all, and processors gather at places that are not known."""
    target = dataclasses.replace(named("x86-64-v4"), cpu=processor)
    text = print_program(_lookups(dtype, entries, 16), target)
    assert ("llvm.umin.v16i32" in text) == is_by_words
