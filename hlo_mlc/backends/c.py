"""Kernels for CPUs by way of C11: what LLVM's are, for whoever has a compiler and no LLVM.

The same plans, schedules and machines as in cpu.py; only what is printed and who assembles it
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.backends.base import KernelObject, Source
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.codegen.c import compile as cc
from hlo_mlc.codegen.c.printer import print_file, print_program
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget


@dataclass(frozen=True, slots=True)
class CSource:
    """A kernel as a file of C."""

    symbol: str
    scratch_bytes: int
    text: str
    target: CpuTarget

    def assemble(self) -> bytes:
        """A relocatable object file."""
        return cc.compile_c(self.text, self.target)


@dataclass(frozen=True, slots=True)
class CBackend(CpuBackend):
    """CPUs, through the system's C compiler; it refuses what C has no words for."""

    refusals = (CodegenError,)
    has_checks = is_bounded = False
    promise = None  # it is the compiler that says what C has no words for
    suffixes = ("c", "txt")

    @property
    def variant(self) -> str:
        return f"{CpuBackend(self.target, self.pin).variant}-c"

    @property
    def identity(self) -> str:
        return f"{self.target}\n{cc.version()}\n{cc.options(self.target)}"

    def require(self) -> None:
        cc.version()

    def warm_up(self) -> None:
        pass

    def print(self, loops: LoopProgram, checked: bool, most_lines: int) -> CSource:
        return CSource(
            loops.name,
            loops.scratch_bytes,
            print_file(print_program(loops, loops.name, is_static=False)),
            self.target,
        )

    def listing(self, made: KernelObject, source: Source | None) -> str:
        return f"{cc.version()}: {len(made.code)} bytes\n"
