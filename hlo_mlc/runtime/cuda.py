"""Kernels for NVIDIA GPUs: what runs for which logical id, and the custom call that runs it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from hlo_mlc.runtime import library
from hlo_mlc.support.errors import RuntimeLibraryError
from hlo_mlc.support.locks import process_lock

PLATFORM = "CUDA"
"""What XLA calls it."""

_STATE_TYPE_NAME = "hlo_mlc_cuda_kernel_state"
_published: dict[str, tuple[bytes, tuple[int, ...]]] = {}  # code and plan, by id
_registration_lock = process_lock()
_registered = False


def publish(
    kernel_id: str,
    cubin: bytes,
    functions: Sequence[str],
    plan: Sequence[int],
    scratch_bytes: int = 0,
) -> None:
    """Makes machine code and the launches of its functions what runs for `kernel_id` on GPUs, in
    programs that are loaded from now on.

    `plan` and `scratch_bytes` are as `mlc_cuda_set` of custom_calls/mlc_abi.h describes.

    Raises: RuntimeLibraryError for a malformed plan, or when memory ran out.
    """
    published = cubin, tuple(plan)
    if _published.get(kernel_id) == published:
        return
    names = (ctypes.c_char_p * len(functions))(*[name.encode() for name in functions])
    numbers = (ctypes.c_int64 * len(plan))(*plan)
    done = library.load().mlc_cuda_set(
        kernel_id.encode(),
        cubin,
        len(cubin),
        names,
        len(functions),
        numbers,
        len(plan),
        scratch_bytes,
    )
    if done <= 0:
        raise RuntimeLibraryError(
            f"The launches of kernel {kernel_id!r} were refused"
            if done == 0
            else f"No memory to publish kernel {kernel_id!r}"
        )
    _published[kernel_id] = published


def exists(kernel_id: str) -> bool:
    """Whether there is machine code for `kernel_id` in this process."""
    return kernel_id in _published


def register_with_jax() -> None:
    """Makes the custom call known to XLA's CUDA backend; does nothing the second time.

    Where there is a GPU, its backend has to run by then, as it does when a program is lowered for
    arguments on it.
    """
    global _registered
    with _registration_lock:
        if _registered:
            return
        own = library.load()
        stages = ("instantiate", "initialize", "execute")
        library.register(own, "mlc_cuda_ffi", _STATE_TYPE_NAME, stages, PLATFORM)
        _registered = True
