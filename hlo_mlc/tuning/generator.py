"""What makes candidates: the space of a kernel, and the code of each configuration in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.codegen.cuda.compile import compile_source
from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program as print_cuda
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.prove import prove
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates import program as cpu
from hlo_mlc.templates.base import Decision, Named, Template
from hlo_mlc.templates.cuda import program as cuda
from hlo_mlc.templates.cuda import registry as for_gpus
from hlo_mlc.templates.registry import TEMPLATES
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.bench import Bench, CandidateSource, CpuBench
from hlo_mlc.tuning.gpu_bench import GpuBench
from hlo_mlc.tuning.gpu_model import ModelBench, ModelledSource, works_of
from hlo_mlc.tuning.space import Space, space_of

Target = TypeVar("Target", CpuTarget, CudaTarget, contravariant=True)


class Generator(Protocol[Target]):
    """The code of the candidates; it is sent to worker processes, so its class is importable."""

    @property
    def is_predicted(self) -> bool:
        """Whether there is a model of what its loops take, which says what to try next."""

    def space(self, program: TensorProgram, target: Target) -> Space:
        """What there is to choose for this kernel."""

    def source(
        self, program: TensorProgram, target: Target, schedules: Schedules
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

    def bench(
        self, target: Target, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> Bench:
        """Where candidates run on these operands, to results like these.

        Raises: MlcError where they cannot.
        """


@dataclass(frozen=True, slots=True)
class ByTemplates(Generator[Target]):
    """Candidates from the templates, by the compiler's own path."""

    templates: ClassVar[Sequence[Template]]
    is_predicted: ClassVar[bool]
    common: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    @abstractmethod
    def schedule(
        self, program: TensorProgram, target: Target, schedules: Schedules
    ) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
        """Loops that are yet to be proved, and what was chosen for each nest."""

    @abstractmethod
    def decisions(self, program: TensorProgram, target: Target) -> Sequence[Decision[Named]]:
        """What is chosen for each nest by default."""

    def space(self, program: TensorProgram, target: Target) -> Space:
        """The parameters of the templates that the compiler chooses, and of those that could take
        their places."""
        decisions = self.decisions(program, target)
        return space_of(program, decisions, target, self.templates, self.common)

    def loops(self, program: TensorProgram, target: Target, schedules: Schedules) -> LoopProgram:
        """The loops alone."""
        return self.schedule(program, target, schedules)[0]


@dataclass(frozen=True, slots=True)
class TemplateGenerator(ByTemplates[CpuTarget]):
    """Candidates for CPUs."""

    templates = TEMPLATES
    is_predicted = True

    def schedule(
        self, program: TensorProgram, target: CpuTarget, schedules: Schedules
    ) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
        return cpu.schedule_program(program, target, schedules)

    def decisions(self, program: TensorProgram, target: CpuTarget) -> Sequence[Decision[Named]]:
        return cpu.decisions_of(program, target)

    def source(
        self, program: TensorProgram, target: CpuTarget, schedules: Schedules
    ) -> CandidateSource:
        """LLVM IR of proved loops."""
        loops, _ = prove(self.loops(program, target, schedules))
        return CandidateSource(print_program(loops, target), loops.name, loops.scratch_bytes)

    def assemble(self, source: CandidateSource, target: CpuTarget) -> bytes:
        """An object file, by LLVM."""
        return compile_ir(source.text, target)

    def bench(
        self, target: CpuTarget, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> CpuBench:
        """This CPU."""
        return CpuBench(target, operands, results)


@dataclass(frozen=True, slots=True)
class CudaGenerator(ByTemplates[CudaTarget]):
    """Candidates for GPUs."""

    templates = for_gpus.TEMPLATES
    is_predicted = False
    common = cuda.COMMON

    def schedule(
        self, program: TensorProgram, target: CudaTarget, schedules: Schedules
    ) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
        return cuda.schedule_program(program, target, schedules)

    def decisions(self, program: TensorProgram, target: CudaTarget) -> Sequence[Decision[Named]]:
        return cuda.decisions_of(program, target)

    def source(
        self, program: TensorProgram, target: CudaTarget, schedules: Schedules
    ) -> CandidateSource:
        """CUDA C++ of proved loops."""
        loops, _ = prove(self.loops(program, target, schedules))
        source = print_cuda(loops, target)
        return CandidateSource(source.text, loops.name, source.scratch_bytes, source.launches)

    def assemble(self, source: CandidateSource, target: CudaTarget) -> bytes:
        """A packed `Compiled`, by NVRTC."""
        return compile_source(
            CudaSource(source.text, source.launches, source.scratch_bytes), target
        ).pack()

    def bench(
        self, target: CudaTarget, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> Bench:
        """The GPU here."""
        return GpuBench(operands, results)


@dataclass(frozen=True, slots=True)
class ModelledGenerator(CudaGenerator):
    """The same where there is no such GPU: nothing runs, and times are those of a model."""

    def source(
        self, program: TensorProgram, target: CudaTarget, schedules: Schedules
    ) -> ModelledSource:
        """CUDA C++ of proved loops, which are what the model looks at."""
        loops, _ = prove(self.loops(program, target, schedules))
        source = print_cuda(loops, target)
        return ModelledSource(
            source.text, loops.name, source.scratch_bytes, source.launches, works_of(loops)
        )

    def bench(
        self, target: CudaTarget, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> ModelBench:
        """A GPU as its data sheet has it."""
        return ModelBench(target)
