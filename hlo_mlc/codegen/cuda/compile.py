"""CUDA C++ -> machine code, through the NVRTC binding of CuPy: no GPU, no driver, no toolkit."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import asdict, dataclass
from types import ModuleType

from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.support.described import described, taken_apart
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import CudaTarget

# Fused multiply-add is ours to form, and subnormals are numbers.
OPTIONS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
_USED = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers(?:[^\n]* (\d+) bytes smem)?",
    re.DOTALL,
)

_BOUNDS = re.compile(r"(__launch_bounds__\(\d+)(\)\n(\w+)\()")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a function needs: of a thread, but for the shared memory of a block."""

    registers: int
    spilled_bytes: int  # stored in memory because registers did not suffice
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of a source's functions, and what each of them needs."""

    cubin: bytes
    usage: dict[str, Usage]

    @property
    def spilled_bytes(self) -> int:
        """Of a thread, in all functions together."""
        return sum(use.spilled_bytes for use in self.usage.values())

    def pack(self) -> bytes:
        """Both as bytes."""
        return described({name: asdict(use) for name, use in self.usage.items()}, self.cubin)

    @classmethod
    def unpack(cls, data: bytes) -> Compiled:
        """What `pack` made bytes of."""
        about, end = taken_apart(data)
        return cls(data[end:], {name: Usage(**usage) for name, usage in about.items()})


@functools.cache
def _nvrtc() -> ModuleType | str:
    """CuPy's binding, or why there is none; at first use, since CPU programs need none."""
    try:
        nvrtc = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
        nvrtc.getVersion()  # loads the library
    except Exception as error:  # whatever CuPy or the dynamic linker raise
        return f"NVRTC cannot be used ({error}); pip install 'hlo-mlc[cuda]'"
    return nvrtc


def version() -> str:
    """That of the compiler: part of the key under which machine code is kept."""
    return ".".join(map(str, require().getVersion()))


def require() -> ModuleType:
    """CuPy's binding.

    Raises: CodegenError where there is none, with what to install.
    """
    found = _nvrtc()
    if isinstance(found, str):
        raise CodegenError(f"CUDA C++ cannot be compiled: {found}")
    return found


def compile_source(source: CudaSource, target: CudaTarget) -> Compiled:
    """The machine code of all functions of a source.

    Raises: CodegenError where the compiler is missing or rejects the source.
    """
    compiled = _compile(source.text, target)
    if not compiled.spilled_bytes:
        return compiled
    # Where blocks are small, ptxas spills so that more of them are on a multiprocessor at a time.
    roomy = _BOUNDS.sub(
        lambda m: f"{m[1]}, 1{m[2]}" if compiled.usage[m[3]].spilled_bytes else m[0], source.text
    )
    return min(compiled, _compile(roomy, target), key=lambda c: c.spilled_bytes)


def _compile(text: str, target: CudaTarget) -> Compiled:
    nvrtc = require()
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch={target.name}", *OPTIONS, "--ptxas-options=-v"))
        log = nvrtc.getProgramLog(program)
        # The binding drops the last byte, which is a zero.
        cubin = bytes(nvrtc.getCUBIN(program)) + b"\0"
    except nvrtc.NVRTCError as error:
        raise CodegenError(
            f"NVRTC rejects a kernel for {target.name}: {error}",
            context=nvrtc.getProgramLog(program),
        ) from error
    finally:
        nvrtc.destroyProgram(program)
    usage = {
        m[1]: Usage(int(m[5]), int(m[3]) + int(m[4]), int(m[2]), int(m[6] or 0))
        for m in _USED.finditer(log)
    }
    return Compiled(cubin, usage)
