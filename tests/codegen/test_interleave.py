"""Copies of a loop's body side by side: every line behind its operands, memory in its order."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.interleave import SHORTEST, interleave
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store

REGISTERS = 32


def chain(number: int, length: int = SHORTEST, last: str = "store") -> list[str]:
    """A load, a chain of operations on it, and an effect."""
    lines = [f"  %a{number}_0 = load <16 x float>, ptr %p{number}, align 4, !invariant.load !0"]
    lines += [f"  %a{number}_{k} = fmul <16 x float> %a{number}_{k - 1}, %a{number}_{k - 1}"
              for k in range(1, length)]
    return [*lines, f"  {last} <16 x float> %a{number}_{length - 1}, ptr %q{number}, align 4"]


def check_order(lines: list[str], copies: list[list[str]]) -> None:
    assert sorted(lines) == sorted(line for copy in copies for line in copy)
    for copy in copies:
        assert [line for line in lines if line in copy] == copy
    names = {line.partition(" = ")[0].strip() for line in lines if " = " in line}
    seen: set[str] = set()
    for line in lines:
        name, _, operation = line.partition(" = ")
        assert set(re.findall(r"%[\w.]+", operation or line)) & names <= seen
        seen.add(name.strip())


def test_chains_take_turns() -> None:
    copies = [chain(n) for n in range(3)]
    lines = interleave(copies, REGISTERS)
    check_order(lines, copies)
    assert lines == [copy[k] for k in range(len(copies[0])) for copy in copies]


def test_short_bodies_stay_as_they_are() -> None:
    copies = [chain(n, length=3) for n in range(3)]
    assert interleave(copies, REGISTERS) == [line for copy in copies for line in copy]


def test_what_the_first_copy_computed_for_all_comes_before_its_uses() -> None:
    """The other copies use a value that the first one happens to define late."""
    first, second = chain(0), chain(1)
    first.insert(-1, "  %shared = fadd <16 x float> %outside, %outside")
    second[2] = second[2].replace("%a1_1, %a1_1", "%a1_1, %shared")
    lines = interleave([first, second], REGISTERS)
    check_order(lines, [first, second])
    assert lines.index(second[1]) < lines.index(first[-2]) < lines.index(second[2])


@pytest.mark.parametrize("read", [
    "load <16 x float>, ptr %p1, align 4",
    "call <16 x float> @llvm.masked.load.v16f32.p0(ptr %p1, i32 4)",
    "call <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr> %p1, i32 4)"])
def test_reads_of_what_may_be_written_stay_behind_the_writes_before(read: str) -> None:
    copies = [chain(n) for n in range(2)]
    copies[1][0] = f"  %a1_0 = {read}"
    assert interleave(copies, REGISTERS) == [*copies[0], *copies[1]]


def test_prefetches_hold_nothing_up() -> None:
    copies = [[f"  call void @llvm.prefetch.p0(ptr %p{n}, i32 0, i32 3, i32 1)", *chain(n)]
              for n in range(2)]
    lines = interleave(copies, REGISTERS)
    check_order(lines, copies)
    assert lines.index(copies[1][3]) < lines.index(copies[0][-1])


@pytest.mark.parametrize(("alive", "abreast"), [(1, 8), (7, 4), (14, 2), (30, 1)])
def test_as_many_chains_as_there_are_registers_for(alive: int, abreast: int) -> None:
    copies = []
    for n in range(8):
        begin = [f"  %b{n}_{k} = fmul <16 x float> %x, %x" for k in range(alive)]
        total = [f"  %s{n}_{k} = fadd <16 x float> %s{n}_{k - 1}, %b{n}_{k}" for k in range(alive)]
        rest = [f"  %c{n}_{k} = add i64 %i, {k}" for k in range(SHORTEST)]
        copies.append([*begin, *total, *rest])
    lines = interleave(copies, REGISTERS)
    check_order(lines, copies)
    started = [n for n in range(8) if lines.index(copies[n][0]) < lines.index(copies[0][-1])]
    assert len(started) == abreast


def test_machine_code_of_interleaved_copies(machine, target) -> None:
    count, lanes, copies = 96, 8, 4
    x, y = Buffer("x", F32, (count,), "operand"), Buffer("y", F32, (count,), "result")
    outer, copy, lane = (variable("o", count // lanes // copies), variable("c", copies),
                         variable("l", lanes))
    where = index.add(index.multiply(outer, index.constant(copies * lanes)),
                      index.add(index.multiply(copy, index.constant(lanes)), lane))
    value = load(x, (where,))
    for _ in range(SHORTEST):
        value = apply("add", apply("mul", value, value), const(0.25, F32))
    program = LoopProgram("chains", (x,), (y,), (
        For(outer, index.constant(count // lanes // copies), LoopKind.SERIAL, (
            For(copy, index.constant(copies), LoopKind.UNROLL, (
                For(lane, index.constant(lanes), LoopKind.VECTORIZE, (
                    Store(y, (where,), value),)),)),)),))
    loads = [k for k, line in enumerate(print_program(program, target).splitlines())
             if "= load <8 x float>" in line]
    assert len(loads) == copies and loads[-1] - loads[0] < SHORTEST
    given = np.random.default_rng(0).uniform(-0.7, 0.7, count).astype(np.float32)
    expected = given
    for _ in range(SHORTEST):
        expected = expected * expected + np.float32(0.25)
    actual, = machine.run(program, [given], target=target)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
