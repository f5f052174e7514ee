"""CPU kernels: loop IR -> LLVM IR text -> object code."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.target.cpu import CpuTarget


@dataclass(frozen=True, slots=True)
class Generated:
    """A kernel's code: the LLVM IR, the object file made of it, and its entry's symbol."""

    ir: str
    object_code: bytes
    symbol: str


def generate(program: LoopProgram, target: CpuTarget, checked: bool = False) -> Generated:
    """The code of a kernel for a target, with checks of every access if they are asked for.

    Raises: CodegenError for a program that breaks the loop IR's rules or needs too much stack.
    """
    ir = print_program(program, target, checked)
    return Generated(ir, compile_ir(ir, target), program.name)
