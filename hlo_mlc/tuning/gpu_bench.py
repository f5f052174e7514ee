"""Candidates on a GPU: machine code that CuPy launches, timed by events of the device.

What is timed is a graph of launches, so that neither Python nor the driver is.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hlo_mlc.codegen.cuda.compile import Compiled
from hlo_mlc.codegen.cuda.plan import Launch
from hlo_mlc.runtime.measure import PairedTimes
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.tuning.bench import UNTOUCHED, CandidateSource

# Launching a graph takes 10 us, and events tell 0.5 us apart: of a timed graph both are little.
_GRAPH_US = 400.0
_MOST_RUNS = 200  # in a graph
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 301
_FEWEST_BYTES = 16  # of a buffer: what is aligned so even where there is nothing in it


class Device(Protocol):
    """What takes memory, functions and launches."""

    def place(self, content: np.ndarray) -> Any:
        """Memory with these bytes."""

    def content(self, memory: Any) -> np.ndarray:
        """The bytes in memory, when all that was launched is done."""

    def functions(self, code: bytes, shared_bytes: dict[str, int]) -> dict[str, Any]:
        """The functions with these names, which launches give so much shared memory."""

    def launch(self, function: Any, launch: Launch, arguments: Sequence[Any]) -> None:
        """Runs a function after all that was launched before."""

    def finish(self) -> None:
        """Waits for all that was launched."""

    def repeated(self, run: Callable[[], None], times: int) -> Callable[[], float]:
        """What runs all that `run` launches so many times, waits, and says how many microseconds
        that took."""


class Unpacker:
    """Unpacks candidates of one kernel: the first is the default."""

    def __init__(self) -> None:
        self._spilled: int | None = None  # by the first

    def compiled(self, code: bytes) -> Compiled:
        """Machine code with its functions.

        Raises: CodegenError where more registers spill than those of the first.
        """
        compiled = Compiled.unpack(code)
        spilled = compiled.spilled_bytes
        if self._spilled is None:
            self._spilled = spilled
        elif spilled > self._spilled:
            raise CodegenError(f"registers do not suffice: {spilled} bytes spill")
        return compiled


class GpuBench:
    """The GPU here."""

    def __init__(
        self,
        operands: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        device: Device | None = None,
    ) -> None:
        """`results` are arrays like those that a kernel computes."""
        self._device = device or CupyDevice()
        self._like = results
        self._operands = [self._device.place(_bytes(array)) for array in operands]
        self._unpacker = Unpacker()

    def load(self, source: CandidateSource, code: bytes) -> _OnGpu:
        """Its functions, on this GPU.

        Raises: CodegenError where more registers spill than those of the first that was loaded.
        """
        cubin = self._unpacker.compiled(code).cubin
        return _OnGpu(self._device, source, cubin, self._operands, self._like)

    def time(self, a: _OnGpu, b: _OnGpu, seconds: float) -> PairedTimes:
        """By events on the device."""
        sides, calls = [], []
        for candidate in (a, b):
            alone_us = self._device.repeated(candidate.launch, 1)()
            calls.append(max(1, min(_MOST_RUNS, math.ceil(_GRAPH_US / max(alone_us, 1e-3)))))
            sides.append(self._device.repeated(candidate.launch, calls[-1]))
        one_round_us = sum(side() for side in sides)
        rounds = min(max(int(seconds * 1e6 / one_round_us), _FEWEST_ROUNDS), _MOST_ROUNDS)
        times = [
            [side() / runs for side, runs in zip(sides, calls, strict=True)] for _ in range(rounds)
        ]
        return PairedTimes.of(*map(list, zip(*times, strict=True)))


class _OnGpu:
    def __init__(
        self,
        device: Device,
        source: CandidateSource,
        cubin: bytes,
        operands: Sequence[Any],
        like: Sequence[np.ndarray],
    ) -> None:
        self._device, self._like = device, like
        self._results = [device.place(np.full(array.nbytes, UNTOUCHED, np.uint8)) for array in like]
        buffers = [*operands, *self._results]
        scratch = device.place(np.full(source.scratch_bytes, UNTOUCHED, np.uint8))
        shared: dict[str, int] = {}
        for each in source.launches:
            shared[each.function] = max(shared.get(each.function, 0), each.shared_bytes)
        functions = device.functions(cubin, shared)
        self._launches = [
            (
                functions[each.function],
                each,
                (
                    *(buffers[n] for n in each.buffers),
                    *([scratch] if each.takes_scratch else []),
                    *map(np.int32, each.counters),
                ),
            )
            for each in source.launches
        ]

    def launch(self) -> None:
        """Has it run, without waiting for it."""
        for function, how, arguments in self._launches:
            self._device.launch(function, how, arguments)

    def run(self) -> None:
        self.launch()
        self._device.finish()

    def results(self) -> list[np.ndarray]:
        return [
            self._device.content(memory)[: array.nbytes].view(array.dtype).reshape(array.shape)
            for memory, array in zip(self._results, self._like, strict=True)
        ]


class CupyDevice:
    """The first GPU, through CuPy."""

    def __init__(self) -> None:
        """Raises: CodegenError where CuPy or a GPU is missing."""
        try:
            self._cupy = importlib.import_module("cupy")
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
        except Exception as error:  # whatever CuPy, the driver or the dynamic linker raise
            raise CodegenError(f"No GPU can be used through CuPy ({error})") from error

    def place(self, content: np.ndarray) -> Any:
        memory = self._cupy.empty(max(content.size, _FEWEST_BYTES), np.uint8)
        if content.size:
            memory[: content.size].set(content)
        self._cupy.cuda.Device().synchronize()
        return memory

    def content(self, memory: Any) -> np.ndarray:
        self.finish()
        return self._cupy.asnumpy(memory)

    def functions(self, code: bytes, shared_bytes: dict[str, int]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "candidate.cubin"
            path.write_bytes(code)
            module = self._cupy.RawModule(path=str(path))
            functions = {name: module.get_function(name) for name in shared_bytes}
            for function in functions.values():
                function.compile()  # loads it, while the file is there
        for name, size in shared_bytes.items():
            if size:
                functions[name].max_dynamic_shared_size_bytes = size
        return functions

    def launch(self, function: Any, launch: Launch, arguments: Sequence[Any]) -> None:
        with self._stream:
            function(
                (launch.blocks,),
                (launch.threads,),
                tuple(arguments),
                shared_mem=launch.shared_bytes,
            )

    def finish(self) -> None:
        self._stream.synchronize()

    def repeated(self, run: Callable[[], None], times: int) -> Callable[[], float]:
        run()  # what is done at first use could not be captured
        self.finish()
        with self._stream:
            self._stream.begin_capture()
            for _ in range(times):
                run()
            graph = self._stream.end_capture()
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()

        def timed() -> float:
            begin.record(self._stream)
            graph.launch(self._stream)
            end.record(self._stream)
            end.synchronize()
            return 1e3 * self._cupy.cuda.get_elapsed_time(begin, end)

        return timed


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
