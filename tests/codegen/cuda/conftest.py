"""Running generated CUDA C++ on this machine: emulator.h, compiled together with the kernels."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from hlo_mlc.codegen.cuda.plan import Launch, Source
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.target import cuda
from hlo_mlc.templates.base import Parameters
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram

HEADER = Path(__file__).parent / "emulator.h"
# Arithmetic exactly as written; fused multiply-adds as instructions.
FLAGS = ("-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
         "-fwrapv", "-fPIC", "-shared", "-w")
ALIGNMENT = 16  # of every buffer's start: what GPU allocators give at least
SM90 = cuda.named("sm_90")
Arrays = Sequence[np.ndarray]


class Emulator:
    """Compiles sources, several at once, and runs their launches."""

    def __init__(self, folder: Path, passing: Path, fenced) -> None:
        """`folder` is kept between runs, `passing` is not."""
        self._folder, self._passing, self._fenced = folder, passing, fenced
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._paths: dict[str, Path] = {}

    def build(self, text: str, *flags: str, keep: bool = True) -> Path:
        """A shared library of this C++, compiled unless that was done before."""
        key = hashlib.sha256((text + HEADER.read_text() + str(flags)).encode()).hexdigest()
        path = (self._folder if keep else self._passing) / f"{key}.so"
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            subprocess.run(["g++", *flags, "-x", "c++", "-I", str(HEADER.parent), "-", "-o",
                            str(unfinished)], input=text, text=True, check=True)
            unfinished.replace(path)
        return path

    def image(self, source: Source) -> bytes:
        """What the stand-in for the driver takes as the machine code of a source."""
        self.prepare([source])
        return f"EMULATED {self._paths[_space(source)]} {_space(source)}\0".encode()

    def prepare(self, sources: Sequence[Source], keep: bool = True) -> None:
        """Make sure that these are compiled: most of g++'s time is spent on each call of it.

        `keep`: whether they will be wanted in the next run too.
        """
        missing = list({_space(s): s for s in sources if _space(s) not in self._libraries}.values())
        if not missing:
            return
        text = "\n".join(["#include \"emulator.h\"", *map(_in_namespace, missing)])
        path = self.build(text, *FLAGS, keep=keep)
        library = ctypes.CDLL(str(path))
        self._paths.update({_space(s): path for s in missing})
        self._libraries.update({_space(s): library for s in missing})

    def run(self, source: Source, program: LoopProgram | TensorProgram, operands: Arrays,
            order: int = 0, fence_at: str = "end") -> list[np.ndarray]:
        """The results of all launches, on memory that ends or starts at a fence."""
        self.prepare([source])
        twins = dict(program.aliases)
        memory = {b: self._place(b, fence_at) for b in (*program.operands, *program.results)
                  if b not in twins}
        for buffer, given in zip(program.operands, operands, strict=True):
            memory[buffer][...] = np.asarray(given).reshape(buffer.shape)
        for buffer in program.results:
            if buffer in twins:
                memory[buffer] = memory[twins[buffer]].view()
            else:
                memory[buffer].reshape(-1).view(np.uint8)[...] = 0x55
        scratch = self._fenced.empty((max(1, source.scratch_bytes),), np.uint8, False)
        scratch[...] = 0xFF
        buffers = [memory[b] for b in (*program.operands, *program.results)]
        for launch in source.launches:
            self._launch(source, launch, buffers, scratch, order)
        return [memory[b].copy() for b in program.results]

    def _place(self, buffer: Buffer, fence_at: str) -> np.ndarray:
        size = max(1, buffer.bytes)
        raw = self._fenced.empty((-(-size // ALIGNMENT) * ALIGNMENT,), np.uint8,
                                 fence_at == "end")
        return raw[:buffer.bytes].view(buffer.dtype.numpy).reshape(buffer.shape)

    def _launch(self, source: Source, launch: Launch, buffers: Arrays, scratch: np.ndarray,
                order: int) -> None:
        values = [ctypes.c_void_p(buffers[n].ctypes.data) for n in launch.buffers]
        if launch.takes_scratch:
            values.append(ctypes.c_void_p(scratch.ctypes.data))
        values += [ctypes.c_int(n) for n in launch.counters]
        arguments = (ctypes.c_void_p * max(1, len(values)))(
            *[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        function = getattr(self._libraries[_space(source)], f"{_space(source)}_{launch.function}")
        function.restype = ctypes.c_char_p
        error = function(ctypes.c_uint(launch.blocks), ctypes.c_uint(launch.threads), arguments,
                         ctypes.c_uint(order))
        assert error is None, f"{launch.function}: {error.decode()}"


def _space(source: Source) -> str:
    """A namespace of its own for each source."""
    return f"s{hashlib.sha256(source.text.encode()).hexdigest()[:16]}"


def _in_namespace(source: Source) -> str:
    space = _space(source)
    text = source.text.replace('extern "C" __global__', "__global__")
    calls = "\n".join(f"EMULATED({space}, {name})" for name in source.functions)
    return f"namespace {space} {{\n{text}\n}}\n{calls}"


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest, tmp_path_factory, fenced) -> Emulator:
    """Skips where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("g++, which the emulator is compiled with, is not installed")
    return Emulator(Path(request.config.cache.mkdir("emulator")),
                    tmp_path_factory.mktemp("emulator"), fenced)


@pytest.fixture(scope="session")
def cuda_source() -> Callable[..., Source]:
    """`cuda_source(tensor program, tuned=None)`: its CUDA C++ and launches."""

    def make(program: TensorProgram, tuned: Mapping[int, Parameters] | None = None) -> Source:
        return print_program(schedule_program(program, SM90, tuned)[0], SM90)

    return make
