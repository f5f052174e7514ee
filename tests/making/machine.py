"""Kernels as machine code, on arrays whose borders may not be touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.runtime.variants import KernelCode, load_object
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.levels import missing_features
from hlo_mlc.templates.base import Parameters
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import Branch, Nest, Step, TensorProgram
from making.apart import Arrays, Execute
from making.code import generate

Tuned = Mapping[int, tuple[str, Parameters]]
_PAGE = mmap.PAGESIZE


def is_for_cpus(step: Step) -> bool:
    """Whether GPUs leave it to XLA."""
    if isinstance(step, Nest):
        return any(s.sort or s.procedure for s in step.stages)
    return isinstance(step, Branch) or any(map(is_for_cpus, step.inner))


class Fenced:
    """Arrays whose first (or last) element borders on memory that cannot be touched."""

    def __init__(self) -> None:
        self._protect = ctypes.CDLL(None, use_errno=True).mprotect

    def empty(self, shape: Sequence[int], dtype: np.dtype, at_end: bool) -> np.ndarray:
        """An array of zeros that ends (or starts) at a page without access."""
        count = int(np.prod(shape, dtype=np.int64))
        size = max(1, count * np.dtype(dtype).itemsize)
        pages = -(-size // _PAGE)
        memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for fence in (base, base + (pages + 1) * _PAGE):
            assert self._protect(ctypes.c_void_p(fence), ctypes.c_size_t(_PAGE), 0) == 0
        # The array keeps what is mapped; a process may only have so many maps at once.
        start = _PAGE + (pages * _PAGE - size if at_end else 0)
        return np.ndarray(shape, dtype, memory, start)

    def copy(self, array: np.ndarray, at_end: bool) -> np.ndarray:
        """A copy of the array between fences."""
        result = self.empty(array.shape, array.dtype, at_end)
        result[...] = array
        return result


class MachineCode:
    """Runs tensor programs as machine code, outside of XLA."""

    def __init__(self, fences: Fenced, check: Callable[..., None] | None = None) -> None:
        """`check(program, operands, results)` looks at all that is run."""
        self._fences, self._check = fences, check
        self.target = target_of(Options.from_environment())  # --target, else this machine

    def code(
        self, program: TensorProgram, tuned: Tuned | None = None, target: CpuTarget | None = None
    ) -> KernelCode:
        """A program compiled with these templates and parameters, for this target."""
        target = target or self.target
        loops, _ = schedule_program(program, target, tuned)
        generated = generate(loops, target, Options.from_environment().check)
        return load_object(generated.object_code, generated.symbol, loops.scratch_bytes)

    def executing(
        self,
        *,
        tuned: Tuned | None = None,
        target: CpuTarget | None = None,
        threads: int = 1,
        fence_at: str | None = None,
    ) -> Execute:
        """What runs programs this way; `fence_at` "start" or "end" fences every buffer there.
        Code that would end the process here is compiled, and the rest of the test skipped."""

        def execute(program: TensorProgram, operands: Arrays) -> list[np.ndarray]:
            code = self.code(program, tuned, target)
            if missing := missing_features(target or self.target):
                pytest.skip(f"this machine lacks {', '.join(sorted(missing))}")
            place = (
                (lambda a: a)
                if fence_at is None
                else (lambda a: self._fences.copy(a, fence_at == "end"))
            )
            inputs = [
                place(np.ascontiguousarray(a)).reshape(b.shape)
                for a, b in zip(operands, program.operands, strict=True)
            ]
            outputs = [
                place(np.full(b.shape, 85, np.uint8).astype(b.dtype.numpy)) for b in program.results
            ]
            bind_kernel(code, inputs, outputs, threads=threads)()
            if self._check is not None:
                self._check(program, operands, outputs)
            return outputs

        return execute
