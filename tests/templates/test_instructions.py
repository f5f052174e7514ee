"""What the CPU's printer says of its instructions is what LLVM reads in their text."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import pytest

from hlo_mlc.codegen.cpu.block import Block, Instruction, Kind
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

VALUE = re.compile(r"%v\d+[.\d]*")  # neither an argument nor a basic block


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_operands_lanes_and_kinds(samples, level: str, monkeypatch) -> None:
    emitted: list[Instruction] = []
    lines = Block.lines
    monkeypatch.setattr(
        Block, "lines", lambda block: emitted.extend(block.instructions) or lines(block)
    )
    programs = [p for sample in samples(0).values() for p in sample.parts.programs]
    for program in programs:
        emitted.clear()
        text = print_program(schedule_program(program, named(level))[0], named(level))
        found = [
            instruction
            for function in llvm.parse_assembly(text).functions
            for block in function.blocks
            for instruction in block.instructions
        ]
        # A function's last instruction, and what makes its stores past the caches seen, are not of
        # blocks.
        found = [i for i in found if i.opcode != "ret" and "@llvm.x86.sse.sfence" not in str(i)]
        expected = [one for one in emitted if one[2] is not Kind.LABEL]
        for one, instruction in zip(expected, found, strict=True):
            check(one, instruction)
    assert len(programs) > 20


def check(one: Instruction, found: llvm.ValueRef) -> None:
    name, lanes, kind, pieces = one
    text = str(found)
    assert (name or "%")[1:] == found.name
    assert not any(VALUE.search(piece) for piece in pieces[::2]), text
    vector = re.match(r"<(\d+) x ", str(found.type))
    assert lanes == (int(vector[1]) if vector else 0), text
    if found.opcode == "store" or ".store." in text or ".scatter." in text:
        assert kind is Kind.WRITE, text
    elif found.opcode == "load" or ".masked.load." in text or ".gather." in text:
        is_fixed, is_of_a_class = "!invariant.load" in text, "!alias.scope" in text
        assert kind is Kind.COMPUTE if is_fixed else kind is Kind.READ or is_of_a_class, text
        assert is_of_a_class or not isinstance(kind, int), text
    elif found.opcode == "br":
        assert kind is Kind.CONTROL, text
    elif found.opcode == "call" and name is None:
        assert kind is (Kind.HINT if "@llvm.prefetch" in text else Kind.WRITE), text
    else:
        assert kind is Kind.COMPUTE, text
