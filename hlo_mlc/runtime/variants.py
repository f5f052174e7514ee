"""The variant table: which machine code runs for which logical id, and how long it took.

Code that somebody has leased is unmapped when the last lease is gone and no executable that calls
it is left.  Executables end when JAX says so, without a word to us: what they still held is tried
again whenever a lease ends, kernels are built, or Python has looked for cycles.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import llvmlite.binding as llvm

from hlo_mlc.runtime import library
from hlo_mlc.support.errors import CodegenError, RuntimeLibraryError, UsageError
from hlo_mlc.support.locks import process_lock


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel in memory: the address of its entry and the scratch one execution of it needs.

    `keep_alive` is what holds the code mapped: code that was never published goes away with it.
    """

    entry: int
    scratch_bytes: int = 0
    keep_alive: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Profile:
    """How often a kernel ran while profiling was enabled, and for how long altogether."""

    calls: int
    total_ns: int


class Lease:
    """As long as somebody has it, what is published as `kernel_id` stays in memory."""

    __slots__ = ("__weakref__", "kernel_id")

    def __init__(self, kernel_id: str) -> None:
        self.kernel_id = kernel_id


_published: dict[str, list[KernelCode]] = {}
"""Code that XLA's threads may be running at any time: of each id, also what was replaced."""

_leases: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()
_kept: dict[str, Lease] = {}  # for the life of the process
_ended: collections.deque[str] = collections.deque()  # ids whose lease has ended
_table_lock = process_lock()

_MACHINE = slice(18, 20)  # where an ELF header says what machine it is for; System V ABI

_jit_lock = process_lock()
_library_numbers = itertools.count()


def load_object(object_bytes: bytes, symbol: str, scratch_bytes: int = 0) -> KernelCode:
    """Maps an object file for this machine into the process and finds the entry `symbol` in it.

    Raises: CodegenError when the object is damaged, is for another machine, lacks the symbol or
    refers to one that this process does not have.
    """
    machine = object_bytes[_MACHINE]
    if object_bytes[:4] == b"\x7fELF" and machine != _machine_code():
        # LLVM would link it all the same.
        raise CodegenError(
            f"The object file of kernel {symbol!r} is for another machine "
            f"(ELF machine {int.from_bytes(machine, 'little')})"
        )
    with _jit_lock:
        builder = llvm.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
        try:
            loaded = builder.export_symbol(symbol).link(_jit(), f"hlo_mlc.{next(_library_numbers)}")
        except RuntimeError as error:
            raise CodegenError(
                f"The object file ({len(object_bytes)} bytes) of kernel {symbol!r} "
                f"cannot be loaded: {error}"
            ) from error
    return KernelCode(loaded[symbol], scratch_bytes, loaded)


def publish(kernel_id: str, code: KernelCode) -> None:
    """Makes `code` what runs for `kernel_id`, also in executables that are loaded or running.

    It stays in memory for the life of the process, unless the id was ever leased.

    Raises: UsageError for an id or scratch size that cannot be; RuntimeLibraryError when memory
    ran out or the native library is missing.
    """
    if code.scratch_bytes < 0:
        raise UsageError(f"The scratch of kernel {kernel_id!r} is {code.scratch_bytes} bytes")
    with _table_lock:
        held = _published.setdefault(kernel_id, [])
        if code not in held:
            held.append(code)
        done = library.load().mlc_variant_set(_encode(kernel_id), code.entry, code.scratch_bytes)
    if done < 0:
        raise RuntimeLibraryError(f"No memory to publish kernel {kernel_id!r}")


def describe(kernel_id: str, lines: Mapping[str, str]) -> None:
    """Says where in the user's program what each buffer of a kernel holds is computed, for the
    errors of kernels with checks; the name "" stands for all other buffers.

    Raises: RuntimeLibraryError when memory ran out.
    """
    text = "\n".join(f"{name}\t{where}" for name, where in lines.items())
    if library.load().mlc_variant_describe(_encode(kernel_id), text.encode()) < 0:
        raise RuntimeLibraryError(f"No memory to describe kernel {kernel_id!r}")


def lease(kernel_id: str) -> Lease:
    """The lease of `kernel_id`, to be taken before its code is published: the same for all who
    ask while anybody has it."""
    with _table_lock:
        found = _leases.get(kernel_id)
        if found is None:
            found = _leases[kernel_id] = Lease(kernel_id)
            weakref.finalize(found, _end, kernel_id).atexit = False
        return found


def keep(kernel_id: str) -> None:
    """Leases `kernel_id` for the life of the process."""
    _kept[kernel_id] = lease(kernel_id)


def release_unused() -> None:
    """Unmaps code that nobody has leased any longer, as far as no executable calls it."""
    if not _ended or not _table_lock.acquire(blocking=False):
        return  # whoever holds the lock, maybe further up on this stack, is not to be waited for
    unmapped = []  # with the list, outside of the lock
    try:
        for _ in range(len(_ended)):
            kernel_id = _ended.popleft()
            if kernel_id in _leases:
                continue  # it was built again, and ends again
            if library.load().mlc_variant_remove_unused(_encode(kernel_id)):
                unmapped.append(_published.pop(kernel_id, None))
            else:
                _ended.append(kernel_id)
    finally:
        _table_lock.release()


def _end(kernel_id: str) -> None:
    _ended.append(kernel_id)
    release_unused()


def _after_collection(phase: str, info: dict[str, int]) -> None:
    if _ended and phase == "stop" and info["generation"] == _OLDEST:
        release_unused()


_OLDEST = 2  # generation of objects, which is what an explicit collection goes through
gc.callbacks.append(_after_collection)


def exists(kernel_id: str) -> bool:
    """Whether there is code for `kernel_id` in this process."""
    return library.load().mlc_variant_exists(_encode(kernel_id)) > 0


def remove(kernel_id: str) -> bool:
    """Forgets `kernel_id`, for executables loaded from now on; says whether it was there."""
    return library.load().mlc_variant_remove(_encode(kernel_id)) > 0


def enable_profiling(enabled: bool = True) -> None:
    """Starts or stops counting the calls and the time of every published kernel."""
    library.load().mlc_profile_enable(enabled)


def read_profile(kernel_id: str) -> Profile | None:
    """What was counted for `kernel_id` since the last reset; None if there is no such kernel."""
    calls = ctypes.c_int64()
    nanoseconds = ctypes.c_int64()
    found = library.load().mlc_profile_read(
        _encode(kernel_id), ctypes.byref(calls), ctypes.byref(nanoseconds)
    )
    return Profile(calls.value, nanoseconds.value) if found > 0 else None


def reset_profile() -> None:
    """Sets the counts of every kernel to zero."""
    library.load().mlc_profile_reset()


def _encode(kernel_id: str) -> bytes:
    if not kernel_id or "\0" in kernel_id:
        raise UsageError(f"A kernel id is a non-empty string without NUL, not {kernel_id!r}")
    return kernel_id.encode()


@functools.cache
def _machine_code() -> bytes:
    """What the ELF header of this process's own program says."""
    with open("/proc/self/exe", "rb") as program:
        return program.read(_MACHINE.stop)[_MACHINE]


@functools.cache
def _jit() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()
