"""A generator whose candidates do what no candidate should; workers import it from this folder."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.bench import CpuBench
from hlo_mlc.tuning.generator import CandidateSource, TemplateGenerator
from hlo_mlc.tuning.space import Parameter, Space

SLOW, FAST, CRASH, HANG, WRONG, UNTOUCHED, REFUSED, DIES, SLEEPS, SAME = range(10)

TEMPLATE = "faulty"
# One sum at a time: each multiply-add waits for the one before.
_SLOW = {0: ("contraction", {"rows": 1, "vectors": 1, "pack": 0, "row_blocks": 1})}
_BODIES = {
    CRASH: "store i8 0, ptr null\n  call void @llvm.trap()\n  unreachable",
    HANG: "br label %forever\nforever:\n  br label %forever",
    UNTOUCHED: "ret void",
}


@dataclass(frozen=True, slots=True)
class FaultyGenerator:
    """What it makes depends on the one parameter, `kind`; the default, SLOW, is slow but right."""

    kinds: tuple[int, ...]
    almost: TensorProgram | None = None  # what WRONG computes instead
    is_predicted: ClassVar[bool] = True

    def space(self, program: TensorProgram, target: CpuTarget) -> Space:
        return Space((Parameter(0, TEMPLATE, "kind", self.kinds, SLOW),))

    def source(
        self, program: TensorProgram, target: CpuTarget, schedules: Schedules
    ) -> CandidateSource:
        kind = schedules[0][1]["kind"] if schedules else SLOW
        if kind == REFUSED:
            raise ScheduleError("refused\nfor a reason of many lines")
        if kind == DIES:
            os._exit(3)
        if kind == SLEEPS:
            time.sleep(1000)
        right = TemplateGenerator()
        if kind in (FAST, SAME):
            return right.source(program, target, {})
        if kind == WRONG:
            return right.source(self.almost, target, {})
        source = right.source(program, target, _SLOW)
        if kind == SLOW:
            return source
        text = (
            f"declare void @llvm.trap()\n"
            f"define void @{source.symbol}(ptr %c, ptr %b, ptr %d, ptr %s) {{\n"
            f"  {_BODIES[kind]}\n}}\n"
        )
        return CandidateSource(text, source.symbol, 0)

    def loops(self, program: TensorProgram, target: CpuTarget, schedules: Schedules) -> LoopProgram:
        raise ScheduleError("nobody knows what these do")

    def bench(
        self, target: CpuTarget, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> CpuBench:
        return TemplateGenerator().bench(target, operands, results)

    def assemble(self, source: CandidateSource, target: CpuTarget) -> bytes:
        return TemplateGenerator().assemble(source, target)
