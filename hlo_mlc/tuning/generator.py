"""What makes candidates: the space of a kernel, and the code of each configuration in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.prove import prove
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.space import Space, space_of


@dataclass(frozen=True, slots=True)
class CandidateSource:
    """A candidate before it is assembled. Equal text is equal code."""

    text: str
    symbol: str
    scratch_bytes: int


class Generator(Protocol):
    """The code of the candidates; it is sent to worker processes, so its class is importable."""

    def space(self, program: TensorProgram, target: CpuTarget) -> Space:
        """What there is to choose for this kernel."""

    def source(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
               ) -> CandidateSource:
        """The kernel with these schedules.

        Raises: MlcError for schedules that cannot be followed.
        """

    def loops(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
              ) -> LoopProgram:
        """Its loops, to be looked at before any code is made.

        Raises: MlcError for schedules that cannot be followed.
        """

    def assemble(self, source: CandidateSource, target: CpuTarget) -> bytes:
        """The object file of a candidate.

        Raises: MlcError.
        """


@dataclass(frozen=True, slots=True)
class TemplateGenerator:
    """Candidates from the templates, by the compiler's own path."""

    def space(self, program: TensorProgram, target: CpuTarget) -> Space:
        """The parameters of the templates that the compiler chooses."""
        _, decisions = schedule_program(program, target)
        return space_of(program, decisions, target)

    def source(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
               ) -> CandidateSource:
        """LLVM IR of proved loops."""
        loops, _ = prove(self.loops(program, target, schedules))
        return CandidateSource(print_program(loops, target), loops.name, loops.scratch_bytes)

    def loops(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
              ) -> LoopProgram:
        """Loops that are yet to be proved."""
        loops, _ = schedule_program(program, target, schedules)
        return loops

    def assemble(self, source: CandidateSource, target: CpuTarget) -> bytes:
        """An object file, by LLVM."""
        return compile_ir(source.text, target)
