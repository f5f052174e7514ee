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
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

from hlo_mlc.runtime import elf, library
from hlo_mlc.runtime.linking import block_of
from hlo_mlc.support.errors import CodegenError, RuntimeLibraryError, UsageError
from hlo_mlc.support.locks import process_lock


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel in memory: the address of its entry and the scratch one execution of it needs.

    `keep_alive` is what holds the code mapped: code that was never published goes away with it.
    `is_interpreted` where it only leads to an interpreter.
    """

    entry: int
    scratch_bytes: int = 0
    keep_alive: object = field(default=None, repr=False, compare=False)
    is_interpreted: bool = False


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

_NO_MORE = (
    "memory, or the number of maps that the system allows a process (vm.max_map_count), ran out"
)


class _Pages:
    """Memory of some code, given back when nobody has this any longer: by the native library, so
    that it does not matter what the thread that lets it go is doing.  At the end of the process
    other threads may still run what lies there; it stays."""

    __slots__ = ("__weakref__", "address")

    def __init__(self, size: int) -> None:
        native = library.load()
        address = native.mlc_code_reserve(size)
        if address is None:
            raise RuntimeLibraryError(f"There is no memory for {size:,} bytes of code: {_NO_MORE}")
        self.address: int = address
        weakref.finalize(self, native.mlc_code_release, self.address).atexit = False

    def publish(self, code: bytes) -> None:
        """Puts the code there, which can be run from now on."""
        if library.load().mlc_code_publish(self.address, code, len(code)) < 0:
            raise RuntimeLibraryError(
                f"The system does not make {len(code):,} bytes of code executable: {_NO_MORE}, or "
                "it forbids code that a process makes"
            )


def load_object(object_bytes: bytes, symbol: str, scratch_bytes: int = 0) -> KernelCode:
    """Maps an object file for this machine into the process and finds the entry `symbol` in it.

    Raises: CodegenError when the object is damaged, is for another machine, lacks the symbol or
    refers to one that this process does not have; RuntimeLibraryError when memory ran out.
    """
    machine = object_bytes[elf.MACHINE]
    if object_bytes[: len(elf.MAGIC)] == elf.MAGIC and machine != _machine_code():
        raise CodegenError(
            f"The object file of kernel {symbol!r} is for another machine "
            f"(ELF machine {int.from_bytes(machine, 'little')})"
        )
    try:
        block = block_of(elf.read_object(object_bytes))
        offset = block.offset(symbol)
        pages = _Pages(block.size)
        code = block.linked(pages.address, _function_of_process)
    except CodegenError as error:
        raise CodegenError(
            f"The object file ({len(object_bytes)} bytes) of kernel {symbol!r} "
            f"cannot be loaded: {error}"
        ) from error
    pages.publish(code)
    return KernelCode(pages.address + offset, scratch_bytes, pages)


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


class Promise:
    """Code that `kernel_id` will have: programs that call it can be loaded, and what they run
    waits until the promise is kept, and fails if nobody is left to keep it.

    Raises: RuntimeLibraryError when memory ran out.
    """

    __slots__ = ("_handle", "_kernel_id")

    def __init__(self, kernel_id: str, scratch_bytes: int) -> None:
        self._handle: int | None = None
        self._kernel_id = kernel_id
        self._handle = library.load().mlc_variant_promise(_encode(kernel_id), scratch_bytes)
        if self._handle is None:
            raise RuntimeLibraryError(f"No memory to promise kernel {kernel_id!r}")

    def keep(self, code: KernelCode) -> None:
        """Makes `code`, which takes as much scratch as was said, what runs; once."""
        with _table_lock:
            _published.setdefault(self._kernel_id, []).append(code)
            self._end(code.entry, code.is_interpreted)

    def break_(self) -> None:
        """Has all that waits fail, and what is executed later; nothing if it was kept."""
        if self._handle is not None:
            self._end(None, True)

    __del__ = break_

    def _end(self, entry: int | None, may_fail: bool) -> None:
        handle, self._handle = self._handle, None
        library.load().mlc_variant_keep(handle, entry, may_fail)


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
            if library.load().mlc_variant_remove_unused(_encode(kernel_id)) > 0:
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


def _function_of_process(name: str) -> int:
    try:
        found = getattr(_process(), name)
    except AttributeError:
        raise CodegenError(f"it calls {name!r}, which this process does not have") from None
    return ctypes.cast(found, ctypes.c_void_p).value or 0


@functools.cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _machine_code() -> bytes:
    """What the ELF header of this process's own program says."""
    with open("/proc/self/exe", "rb") as program:
        return program.read(elf.MACHINE.stop)[elf.MACHINE]
