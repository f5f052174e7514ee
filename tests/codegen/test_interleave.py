"""Copies of a body side by side: each instruction behind its operands, memory in its order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.block import Instruction, Kind
from hlo_mlc.codegen.cpu.interleave import SHORTEST, interleave
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store

REGISTERS = 32


def instruction(
    name: str | None, *pieces: str, lanes: int = 16, kind: Kind = Kind.COMPUTE
) -> Instruction:
    return name, lanes, kind, pieces


def chain(number: int, length: int = SHORTEST, last: Kind = Kind.WRITE) -> list[Instruction]:
    """A load, a chain of operations on it, and an effect.  Its text says nothing."""
    names = [f"a{number}_{k}" for k in range(length)]
    return [
        instruction(names[0], "", f"p{number}"),
        *(instruction(y, "", x, "", x) for x, y in itertools.pairwise(names)),
        instruction(None, "", names[-1], "", f"q{number}", kind=last),
    ]


def check_order(merged: list[Instruction], copies: list[list[Instruction]]) -> None:
    assert sorted(map(id, merged)) == sorted(id(one) for copy in copies for one in copy)
    for copy in copies:
        own = {*map(id, copy)}
        assert [one for one in merged if id(one) in own] == copy
    names = {name for name, *_ in merged}
    seen: set[str | None] = set()
    for name, _, _, pieces in merged:
        assert names & {*pieces[1::2]} <= seen
        seen.add(name)


def test_chains_take_turns() -> None:
    copies = [chain(n) for n in range(3)]
    merged = interleave(copies, REGISTERS, frozenset())
    check_order(merged, copies)
    assert merged == [copy[k] for k in range(len(copies[0])) for copy in copies]


def test_short_bodies_stay_as_they_are() -> None:
    copies = [chain(n, length=3) for n in range(3)]
    assert interleave(copies, REGISTERS, frozenset()) == [one for copy in copies for one in copy]


def test_what_the_first_copy_computed_for_all_comes_before_its_uses() -> None:
    """The other copies use a value that the first one happens to define late."""
    first, second = chain(0), chain(1)
    first.insert(-1, instruction("shared", "", "outside"))
    second[2] = instruction("a1_2", "", "a1_1", "", "shared")
    merged = interleave([first, second], REGISTERS, frozenset())
    check_order(merged, [first, second])
    assert merged.index(second[1]) < merged.index(first[-2]) < merged.index(second[2])


def test_reads_of_what_may_be_written_stay_behind_the_writes_before() -> None:
    copies = [chain(n) for n in range(2)]
    copies[1][0] = instruction("a1_0", "", "p1", kind=Kind.READ)
    assert interleave(copies, REGISTERS, frozenset()) == [*copies[0], *copies[1]]


def test_reads_of_what_no_copy_writes_hold_nothing_up() -> None:
    """Their kind is the alias class that they read."""
    copies = [chain(n) for n in range(2)]
    for number, copy in enumerate(copies):
        copy[0] = (f"a{number}_0", 16, 3, ("", f"p{number}"))
    merged = interleave(copies, REGISTERS, {4})
    check_order(merged, copies)
    assert merged == [copy[k] for k in range(len(copies[0])) for copy in copies]
    assert interleave(copies, REGISTERS, {3, 4}) == [*copies[0], *copies[1]]


def test_facts_count_and_no_text() -> None:
    """A computation that is called like a load holds nothing up, nor does a name within a piece."""
    copies = [chain(n) for n in range(2)]
    copies[1][0] = instruction("a1_0", "load %a0_9 ", "p1")
    merged = interleave(copies, REGISTERS, frozenset())
    check_order(merged, copies)
    assert merged[1] is copies[1][0]


def test_prefetches_hold_nothing_up() -> None:
    copies = [[instruction(None, "", f"p{n}", kind=Kind.HINT), *chain(n)] for n in range(2)]
    merged = interleave(copies, REGISTERS, frozenset())
    check_order(merged, copies)
    assert merged.index(copies[1][3]) < merged.index(copies[0][-1])


@pytest.mark.parametrize(("alive", "abreast"), [(1, 8), (7, 4), (14, 2), (30, 1)])
def test_as_many_chains_as_there_are_registers_for(alive: int, abreast: int) -> None:
    copies = []
    for n in range(8):
        begin = [instruction(f"b{n}_{k}", "", "x") for k in range(alive)]
        total = [
            instruction(f"s{n}_{k}", "", f"s{n}_{k - 1}", "", f"b{n}_{k}") for k in range(alive)
        ]
        rest = [instruction(f"c{n}_{k}", "", "i", lanes=0) for k in range(SHORTEST)]
        copies.append([*begin, *total, *rest])
    merged = interleave(copies, REGISTERS, frozenset())
    check_order(merged, copies)
    started = [n for n in range(8) if merged.index(copies[n][0]) < merged.index(copies[0][-1])]
    assert len(started) == abreast


def test_numbers_take_no_registers_of_vectors() -> None:
    copies = [
        [instruction(f"b{n}_{k}", "", "i", lanes=0) for k in range(30)]
        + [instruction(None, "", f"b{n}_{k}") for k in range(30)]
        for n in range(2)
    ]
    assert interleave(copies, REGISTERS, frozenset())[1] is copies[1][0]


def test_machine_code_of_interleaved_copies(machine, target) -> None:
    count, lanes, copies = 96, 8, 4
    x, y = Buffer("x", F32, (count,), "operand"), Buffer("y", F32, (count,), "result")
    outer, copy, lane = (
        variable("o", count // lanes // copies),
        variable("c", copies),
        variable("l", lanes),
    )
    where = index.add(
        index.multiply(outer, index.constant(copies * lanes)),
        index.add(index.multiply(copy, index.constant(lanes)), lane),
    )
    value = load(x, (where,))
    for _ in range(SHORTEST):
        value = apply("add", apply("mul", value, value), const(0.25, F32))
    program = LoopProgram(
        "chains",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(count // lanes // copies),
                LoopKind.SERIAL,
                (
                    For(
                        copy,
                        index.constant(copies),
                        LoopKind.UNROLL,
                        (
                            For(
                                lane,
                                index.constant(lanes),
                                LoopKind.VECTORIZE,
                                (Store(y, (where,), value),),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )
    loads = [
        k
        for k, line in enumerate(print_program(program, target).splitlines())
        if "= load <8 x float>" in line
    ]
    assert len(loads) == copies and loads[-1] - loads[0] < SHORTEST
    given = np.random.default_rng(0).uniform(-0.7, 0.7, count).astype(np.float32)
    expected = given
    for _ in range(SHORTEST):
        expected = expected * expected + np.float32(0.25)
    (actual,) = machine.run(program, [given], target=target)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
