"""Running generated CUDA C++ on this machine: emulator.h, compiled together with the kernels.
Nothing here is fast but the wish to know whether a kernel is right.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hlo_mlc.codegen.cuda.plan import CudaSource, Launch
from hlo_mlc.codegen.cuda.printer import DYNAMIC_SHARED
from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.tensor.core import TensorProgram

HEADER = Path(__file__).parent / "emulator.h"
_DEVICE = HEADER.with_name("emulated_device.h")
# Arithmetic exactly as written; fused multiply-adds as instructions.
FLAGS = (
    "-std=c++17",
    "-march=native",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fPIC",
    "-shared",
    "-w",
)
# The header's memory in the place of what the launch gives.
_EMULATED_SHARED = "unsigned char* shared = emulated::dynamic_shared;"
ALIGNMENT = 16  # of every buffer's start: what GPU allocators give at least
Arrays = Sequence[np.ndarray]
# So many bytes, between pages that cannot be touched, at the end of its own or at their start.
Fenced = Callable[[int, bool], np.ndarray]


class Emulator:
    """Compiles sources, several at once, and runs their launches."""

    def __init__(self, folder: Path, passing: Path, fenced: Fenced) -> None:
        """`folder` is kept between runs, `passing` is not."""
        self._folder, self._passing, self._fenced = folder, passing, fenced
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._paths: dict[str, Path] = {}

    def build(self, text: str, *flags: str, keep: bool = True) -> Path:
        """A shared library of this C++, compiled unless that was done before."""
        parts = text, HEADER.read_text(), _DEVICE.read_text(), str(flags)
        key = hashlib.sha256("".join(parts).encode()).hexdigest()
        path = (self._folder if keep else self._passing) / f"{key}.so"
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            subprocess.run(
                ["g++", *flags, "-x", "c++", "-I", str(HEADER.parent), "-", "-o", str(unfinished)],
                input=text,
                text=True,
                check=True,
            )
            unfinished.replace(path)
        return path

    def image(self, source: CudaSource) -> bytes:
        """What the stand-in for the driver takes as the machine code of a source."""
        self.prepare([source])
        return f"EMULATED {self._paths[namespace_of(source)]} {namespace_of(source)}\0".encode()

    def prepare(
        self, sources: Sequence[CudaSource], keep: bool = True, run_once: bool = False
    ) -> None:
        """Make sure that these are compiled: most of g++'s time is spent on each call of it.

        `keep`: whether they will be wanted in the next run too; `run_once`: what runs so little
        that optimising it takes longer.
        """
        missing = list(
            {
                space: s for s in sources if (space := namespace_of(s)) not in self._libraries
            }.values()
        )
        if not missing:
            return
        level = "-O0" if run_once else "-O1"
        path = self.build(translation_unit(missing), level, *FLAGS, keep=keep)
        library = ctypes.CDLL(str(path))
        self._paths.update({namespace_of(s): path for s in missing})
        self._libraries.update({namespace_of(s): library for s in missing})

    def run(
        self,
        source: CudaSource,
        program: LoopProgram | TensorProgram,
        operands: Arrays,
        order: int = 0,
        fence_at: str = "end",
    ) -> list[np.ndarray]:
        """The results of all launches, on memory that ends or starts at a fence.

        Raises: CodegenError where threads wait for each other in vain, or break other rules of
        the machine.
        """
        self.prepare([source])
        twins = dict(program.aliases)
        memory = {
            b: self._place(b, fence_at)
            for b in (*program.operands, *program.results)
            if b not in twins
        }
        for buffer, given in zip(program.operands, operands, strict=True):
            memory[buffer][...] = np.asarray(given).reshape(buffer.shape)
        for buffer in program.results:
            if buffer in twins:
                memory[buffer] = memory[twins[buffer]].view()
            else:
                memory[buffer].reshape(-1).view(np.uint8)[...] = 0x55
        scratch = self._fenced(max(1, source.scratch_bytes), False)
        scratch[...] = 0xFF
        buffers = [memory[b] for b in (*program.operands, *program.results)]
        for launch in source.launches:
            self._launch(source, launch, buffers, scratch, order)
        return [memory[b].copy() for b in program.results]

    def _place(self, buffer: Buffer, fence_at: str) -> np.ndarray:
        size = max(1, buffer.bytes)
        raw = self._fenced(-(-size // ALIGNMENT) * ALIGNMENT, fence_at == "end")
        return raw[: buffer.bytes].view(buffer.dtype.numpy).reshape(buffer.shape)

    def _launch(
        self, source: CudaSource, launch: Launch, buffers: Arrays, scratch: np.ndarray, order: int
    ) -> None:
        values = [ctypes.c_void_p(buffers[n].ctypes.data) for n in launch.buffers]
        if launch.takes_scratch:
            values.append(ctypes.c_void_p(scratch.ctypes.data))
        values += [ctypes.c_int(n) for n in launch.counters]
        arguments = (ctypes.c_void_p * max(1, len(values)))(
            *[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]
        )
        space = namespace_of(source)
        function = getattr(self._libraries[space], f"{space}_{launch.function}")
        function.restype = ctypes.c_char_p
        error = function(
            ctypes.c_uint(launch.blocks),
            ctypes.c_uint(launch.threads),
            ctypes.c_uint(launch.shared_bytes),
            arguments,
            ctypes.c_uint(order),
        )
        if error is not None:
            raise CodegenError(f"{launch.function}: {error.decode()}")


def translation_unit(sources: Sequence[CudaSource]) -> str:
    """The C++ of all sources, each in a namespace of its own, with the emulator."""
    return "\n".join(['#include "emulator.h"', *map(_in_namespace, sources)])


def namespace_of(source: CudaSource) -> str:
    """Where a source's functions are found: `namespace_function` launches one of them."""
    return f"s{hashlib.sha256(source.text.encode()).hexdigest()[:16]}"


def _in_namespace(source: CudaSource) -> str:
    space = namespace_of(source)
    text = source.text.replace('extern "C" __global__', "__global__").replace(
        DYNAMIC_SHARED, _EMULATED_SHARED
    )
    calls = "\n".join(f"EMULATED({space}, {name})" for name in source.functions)
    return f"namespace {space} {{\n{text}\n}}\n{calls}"
