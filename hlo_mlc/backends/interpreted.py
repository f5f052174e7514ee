"""A kernel without machine code: its proved loops, interpreted. Right, and very slow."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.runtime import library
from hlo_mlc.runtime.variants import KernelCode

_address = ctypes.c_void_p
_ENTRY = ctypes.CFUNCTYPE(None, _address, ctypes.POINTER(_address), _address)


def interpreted(loops: LoopProgram) -> KernelCode:
    """What machine code of these loops would compute, or else an error of the execution."""
    buffers = (*loops.operands, *loops.results)
    failed_by = library.load().mlc_failed_by

    def run(context: int, addresses: Any, scratch: int) -> None:
        # Whoever calls this takes it to have failed until the last line.
        try:
            arrays = [_array_at(addresses[n], buffer) for n, buffer in enumerate(buffers)]
            computed = interpret(loops, arrays[: len(loops.operands)])
            for result, values in zip(arrays[len(loops.operands) :], computed, strict=True):
                result[...] = values
        except BaseException as error:  # also an interrupt: it could not go on to the caller
            failed_by(
                context,
                f"hlo_mlc: there is no machine code of kernel {loops.name}, and "
                f"interpreting it failed: {error!r}".encode(),
            )
        else:
            failed_by(context, b"")

    entry = _ENTRY(run)
    address = ctypes.cast(entry, _address).value
    assert address is not None
    return KernelCode(address, loops.scratch_bytes, entry, is_interpreted=True)


def _array_at(address: int | None, buffer: Buffer) -> np.ndarray:
    shape = tuple(map(int, buffer.shape))
    dtype = np.dtype(buffer.dtype.numpy)
    size = int(np.prod(shape)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(address or 0))
