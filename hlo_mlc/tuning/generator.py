"""What makes candidates: the space of a kernel, and the code of each configuration in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.codegen.cuda.compile import compile_source
from hlo_mlc.codegen.cuda.plan import CudaSource, Launch
from hlo_mlc.codegen.cuda.printer import print_program as print_cuda
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.prove import prove
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates import TEMPLATES
from hlo_mlc.templates import cuda as for_gpus
from hlo_mlc.templates.base import Decision, Named
from hlo_mlc.templates.cuda.program import COMMON
from hlo_mlc.templates.cuda.program import schedule_program as schedule_for_gpu
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.bench import Bench, CpuBench
from hlo_mlc.tuning.gpu_bench import GpuBench
from hlo_mlc.tuning.gpu_model import BlockWork, ModelBench, works_of
from hlo_mlc.tuning.space import Space, space_of

Target = TypeVar("Target", CpuTarget, CudaTarget, contravariant=True)


@dataclass(frozen=True, slots=True)
class CandidateSource:
    """A candidate before it is assembled; for GPUs with the launches of its functions."""

    text: str
    symbol: str
    scratch_bytes: int
    launches: tuple[Launch, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal code."""
        content = f"{self.text}{self.launches}" if self.launches else self.text
        return hashlib.sha256(content.encode()).hexdigest()[:24]


class Generator(Protocol[Target]):
    """The code of the candidates; it is sent to worker processes, so its class is importable."""

    def space(self, program: TensorProgram, target: Target) -> Space:
        """What there is to choose for this kernel."""

    def source(self, program: TensorProgram, target: Target, schedules: Schedules
               ) -> CandidateSource:
        """The kernel with these schedules.

        Raises: MlcError for schedules that cannot be followed.
        """

    def loops(self, program: TensorProgram, target: Target, schedules: Schedules) -> LoopProgram:
        """Its loops, to be looked at before any code is made.

        Raises: MlcError for schedules that cannot be followed.
        """

    def assemble(self, source: CandidateSource, target: Target) -> bytes:
        """The machine code of a candidate, as the bench takes it.

        Raises: MlcError.
        """

    def bench(self, target: Target, operands: Sequence[np.ndarray],
              results: Sequence[np.ndarray]) -> Bench:
        """Where candidates run on these operands, to results like these.

        Raises: MlcError where they cannot.
        """


@dataclass(frozen=True, slots=True)
class TemplateGenerator:
    """Candidates for CPUs from the templates, by the compiler's own path."""

    def space(self, program: TensorProgram, target: CpuTarget) -> Space:
        """The parameters of the templates that the compiler chooses, and of those that could take
        their places."""
        _, decisions = self.schedule(program, target, {})
        return space_of(program, decisions, target, TEMPLATES, {})

    def schedule(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
                 ) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
        """Loops that are yet to be proved, and what was chosen for each nest."""
        return schedule_program(program, target, schedules)

    def loops(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
              ) -> LoopProgram:
        """The loops alone."""
        return self.schedule(program, target, schedules)[0]

    def source(self, program: TensorProgram, target: CpuTarget, schedules: Schedules
               ) -> CandidateSource:
        """LLVM IR of proved loops."""
        loops, _ = prove(self.loops(program, target, schedules))
        return CandidateSource(print_program(loops, target), loops.name, loops.scratch_bytes)

    def assemble(self, source: CandidateSource, target: CpuTarget) -> bytes:
        """An object file, by LLVM."""
        return compile_ir(source.text, target)

    def bench(self, target: CpuTarget, operands: Sequence[np.ndarray],
              results: Sequence[np.ndarray]) -> CpuBench:
        """This CPU."""
        return CpuBench(target, operands, results)


@dataclass(frozen=True, slots=True)
class CudaGenerator:
    """The same for GPUs."""

    def space(self, program: TensorProgram, target: CudaTarget) -> Space:
        """The parameters of the templates that the compiler chooses, and of those that could take
        their places."""
        _, decisions = self.schedule(program, target, {})
        return space_of(program, decisions, target, for_gpus.TEMPLATES, COMMON)

    def schedule(self, program: TensorProgram, target: CudaTarget, schedules: Schedules
                 ) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
        """Loops that are yet to be proved, and what was chosen for each nest."""
        return schedule_for_gpu(program, target, schedules)

    def loops(self, program: TensorProgram, target: CudaTarget, schedules: Schedules
              ) -> LoopProgram:
        """The loops alone."""
        return self.schedule(program, target, schedules)[0]

    def source(self, program: TensorProgram, target: CudaTarget, schedules: Schedules
               ) -> CandidateSource:
        """CUDA C++ of proved loops."""
        loops, _ = prove(self.loops(program, target, schedules))
        source = print_cuda(loops, target)
        return CandidateSource(source.text, loops.name, source.scratch_bytes, source.launches)

    def assemble(self, source: CandidateSource, target: CudaTarget) -> bytes:
        """A packed `Compiled`, by NVRTC."""
        return compile_source(CudaSource(source.text, source.launches, source.scratch_bytes),
                              target).pack()

    def bench(self, target: CudaTarget, operands: Sequence[np.ndarray],
              results: Sequence[np.ndarray]) -> GpuBench:
        """The GPU here."""
        return GpuBench(operands, results)


@dataclass(frozen=True, slots=True)
class ModelledSource(CandidateSource):
    """A candidate for a GPU that is not here, and what the blocks of each function do."""

    works: Mapping[str, BlockWork] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelledGenerator(CudaGenerator):
    """The same where there is no such GPU: nothing runs, and times are those of a model."""

    def source(self, program: TensorProgram, target: CudaTarget, schedules: Schedules
               ) -> ModelledSource:
        """CUDA C++ of proved loops, which are what the model looks at."""
        loops, _ = prove(self.loops(program, target, schedules))
        source = print_cuda(loops, target)
        return ModelledSource(source.text, loops.name, source.scratch_bytes, source.launches,
                              works_of(loops))

    def bench(self, target: CudaTarget, operands: Sequence[np.ndarray],
              results: Sequence[np.ndarray]) -> ModelBench:
        """A GPU as its data sheet has it."""
        return ModelBench(target)
