"""Candidates for GPUs on the emulator; workers import it from this folder.

How long a candidate takes is made up: a microsecond for each warp that is launched.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulation.emulator import Emulator
from hlo_mlc.codegen.cuda.compile import Compiled, Usage
from hlo_mlc.codegen.cuda.plan import CudaSource, Launch
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.tuning.generator import CandidateSource, CudaGenerator
from hlo_mlc.tuning.gpu_bench import GpuBench

GREEDY = 4  # rows of a block, of which registers are said not to suffice


@dataclass(frozen=True, slots=True)
class EmulatedGenerator(CudaGenerator):
    """What g++ makes of the same code."""

    def assemble(self, source: CandidateSource, target: CudaTarget) -> bytes:
        image = _emulator().image(CudaSource(source.text, source.launches, source.scratch_bytes))
        threads = source.launches[0].threads
        spilled = 64 if threads == 32 * GREEDY else 0
        return Compiled(image, {source.symbol: Usage(32, spilled, 0, 0)}).pack()

    def bench(
        self, target: CudaTarget, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> GpuBench:
        return GpuBench(operands, results, EmulatedDevice())


@functools.cache
def _emulator() -> Emulator:
    folder = Path(tempfile.mkdtemp())
    return Emulator(folder, folder, lambda size, at_end: np.empty(size, np.uint8))


class EmulatedDevice:
    """Memory of this process, and functions of shared libraries."""

    def __init__(self) -> None:
        self._warps = 0
        self._libraries: dict[str, ctypes.CDLL] = {}

    def place(self, content: np.ndarray) -> np.ndarray:
        memory = np.zeros(content.size + 16, np.uint8)
        start = -memory.ctypes.data % 16
        memory[start : start + content.size] = content
        return memory[start : start + content.size]

    def content(self, memory: np.ndarray) -> np.ndarray:
        return memory.copy()

    def functions(self, code: bytes, shared_bytes: dict[str, int]) -> dict[str, Any]:
        _, path, space = code.rstrip(b"\0").decode().split()
        library = self._libraries.setdefault(path, ctypes.CDLL(path))
        found = {name: getattr(library, f"{space}_{name}") for name in shared_bytes}
        for function in found.values():
            function.restype = ctypes.c_char_p
        return found

    def launch(self, function: Any, launch: Launch, arguments: Sequence[Any]) -> None:
        values = [
            ctypes.c_int(int(a)) if isinstance(a, np.int32) else ctypes.c_void_p(a.ctypes.data)
            for a in arguments
        ]
        given = (ctypes.c_void_p * max(1, len(values)))(
            *[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]
        )
        error = function(
            ctypes.c_uint(launch.blocks),
            ctypes.c_uint(launch.threads),
            ctypes.c_uint(launch.shared_bytes),
            given,
            ctypes.c_uint(0),
        )
        assert error is None, error
        self._warps += launch.blocks * launch.threads // 32

    def finish(self) -> None:
        pass

    def repeated(self, run: Callable[[], None], times: int) -> Callable[[], float]:
        before = self._warps
        run()
        us = float(self._warps - before)
        return lambda: us * times
