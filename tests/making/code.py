"""Object code of CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.target.cpu import CpuTarget


@dataclass(frozen=True, slots=True)
class Generated:
    """A kernel's object file and its entry's symbol."""

    object_code: bytes
    symbol: str


def generate(program: LoopProgram, target: CpuTarget, checked: bool = False) -> Generated:
    """The code of a kernel for a target, with checks of every access if they are asked for."""
    return Generated(compile_ir(print_program(program, target, checked), target), program.name)
