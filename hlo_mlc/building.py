"""From clusters to callable kernels.

This is the path of kernels, whatever they are for: while some are assembled on threads of their
own, the next one is fetched or printed (`kernel_objects.py`).  What is proved and printed can be
promised (`choose="auto"`): XLA compiles the program meanwhile (`promises.py`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hlo_mlc.backends.base import Backend, BuiltKernel, KernelObject, PromisedKernel
from hlo_mlc.kernel_objects import BegunObject, begin_object, has_checks, recorded_object
from hlo_mlc.promises import TURN_S, Kept, KernelKey, keep_later, store_later, was_broken
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.cache import object_cache
from hlo_mlc.support.dumps import Recorder, file_name
from hlo_mlc.support.errors import CodeLimitError
from hlo_mlc.support.faults import Contained, Fault
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.support.turns import short_turns
from hlo_mlc.support.warning import users_line, work_for

if TYPE_CHECKING:
    from hlo_mlc.partition.kernel import Kernel

_T = TypeVar("_T")
# Threads that assemble: LLVM takes up to twice as long for a kernel as scheduling and printing it.
_ASSEMBLERS = 2
# Kernels that turn out too long, scheduled and printed in vain, before no other is tried.
_MISFITS = 3


@dataclass(frozen=True, slots=True)
class Building:
    """The kernels that can be called, why others could not be built, and why others are not to be,
    by fingerprint."""

    built: Mapping[str, BuiltKernel]
    failed: Mapping[str, Fault]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A kernel that is being assembled, or will be."""

    begun: BegunObject
    key: KernelKey
    future: Future[tuple[KernelObject, BuiltKernel]]


_built: weakref.WeakValueDictionary[KernelKey, BuiltKernel] = weakref.WeakValueDictionary()
_building = process_lock()
_keepers: list[list[BuiltKernel]] = []


def built_kernel(fingerprint: str, backend: Backend, checked: bool) -> BuiltKernel | None:
    """The kernel with this fingerprint, if this process has compiled it for this backend, with
    checks or without, and needs it."""
    return _built.get((fingerprint, backend, checked))


def kernel_with_id(kernel_id: str) -> Kernel | None:
    """The kernel with this id, if this process has compiled it for anything and needs it."""
    return next((b.kernel for (known, *_), b in _built.items() if known == kernel_id), None)


@contextlib.contextmanager
def keeping() -> Iterator[list[BuiltKernel]]:
    """All kernels that are built in here, or were and are needed, can be called until the end."""
    kept: list[BuiltKernel] = []
    _keepers.append(kept)
    try:
        yield kept
    finally:
        _keepers.remove(kept)


def rebuild_kernel(kernel: Kernel, options: Options, backend: Backend) -> BuiltKernel:
    """The kernel as it is recorded by now, also for programs that have it already.

    Raises: MlcError for a fault of the compiler.
    """
    with _building:
        _forget(_key(kernel, options, backend))
    wanted = options.replace(choose="ours")
    return build_kernels([kernel], wanted, backend, Recorder(None)).built[kernel.fingerprint]


def adopt_recorded(kernel: Kernel, options: Options, backend: Backend) -> BuiltKernel | None:
    """The kernel as another process has recorded and assembled it, from now on in the place of that
    which programs have; None where its code is not in the cache. Nothing is compiled here."""
    made = recorded_object(kernel, options, backend)
    if made is None:
        return None
    fresh, key = backend.load(kernel, made), _key(kernel, options, backend)
    with _building:  # behind whoever builds it as it was recorded before
        _forget(key)
        fresh.publish()
        _built[key] = fresh
    return fresh


def recalled_kernels(
    kernels: Mapping[str, tuple[Kernel, str]], options: Options, backend: Backend
) -> Mapping[str, BuiltKernel] | None:
    """Kernels whose objects are in the cache, each by its fingerprint with the object's key, so
    that they can be called; None where one is missing."""
    variants.release_unused()
    objects, found = object_cache(options), {}
    with _building, short_turns(TURN_S):
        for fingerprint, (kernel, object_key) in kernels.items():
            key = _key(kernel, options, backend)
            built = _built.get(key)
            if built is None:
                packed = objects.get(object_key)
                if packed is None:
                    return None
                built = backend.load(kernel, KernelObject.unpack(packed))
            elif was_broken(key):
                return None
            built.publish()  # others may have come since
            found[fingerprint] = _built[key] = built
    for kept in tuple(_keepers):
        kept += found.values()
    return found


def build_kernels(
    kernels: Iterable[Kernel],
    options: Options,
    backend: Backend,
    record: Recorder,
    most_lines: int = sys.maxsize,
) -> Building:
    """Generate, or fetch from the cache, every kernel, and make it callable by its fingerprint.

    A fault of the compiler costs only the kernel that shows it.  A kernel that would make it more
    than `most_lines` of source is not built, nor are those after the `_MISFITS`th such one; what
    is in the cache counts the same, so that a program always gets the same kernels.

    Raises: MlcError for the fault if `options.choose` is "ours"; CodegenError where there is no
    assembler.
    """
    wanted = {kernel.fingerprint: kernel for kernel in kernels}
    if not wanted:
        return Building({}, {}, {})
    backend.require()
    variants.release_unused()
    # Others want to see what fails, or what comes out, before the program is compiled.
    may_promise = (
        options.choose == "auto" and not has_checks(options, backend) and record.folder is None
    )
    with _building, short_turns(TURN_S), assemblers(wait=not may_promise) as assembler:
        batch = _Batch(options, backend, record, assembler, may_promise, most_lines, most_lines)
        try:
            for kernel in wanted.values():
                batch.begin(kernel)
            for pending in batch.pending:
                batch.finish(pending)
        finally:
            store_later(batch.kept, batch.tally, options, assembler)
    for kept in tuple(_keepers):
        kept += batch.built.values()
    return Building(batch.built, batch.failed, batch.refused)


@dataclass(slots=True)
class _Batch:
    """Kernels that are built one after the other, of which no more than `remaining` lines of source
    are to be left."""

    options: Options
    backend: Backend
    record: Recorder
    assembler: ThreadPoolExecutor
    may_promise: bool
    most_lines: int
    remaining: int
    misfits: int = 0
    is_announced: bool = False
    tally: Counter[str] = field(default_factory=Counter)
    built: dict[str, BuiltKernel] = field(default_factory=dict)
    failed: dict[str, Fault] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    pending: list[_Pending] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    def begin(self, kernel: Kernel) -> None:
        """Takes a kernel that there is, or prints one and has it assembled."""
        fingerprint, key = kernel.fingerprint, _key(kernel, self.options, self.backend)
        known = _built.get(key)
        if self.misfits >= _MISFITS:
            self.refused[fingerprint] = _too_long(self.most_lines)
        elif (
            known is not None
            and self.record.folder is None
            and known.lines <= self.remaining
            and not was_broken(key)
        ):  # a dump shows all stages every time
            known.publish()  # others may have come since
            self.built[fingerprint] = known
            self.remaining -= known.lines
        else:
            with self._contained(kernel):
                self._print(kernel, key)

    def finish(self, one: _Pending) -> None:
        """Publishes a kernel when it is assembled."""
        kernel, name = one.begun.kernel, one.begun.kernel.name
        with self._contained(kernel):
            try:
                made, fresh = one.future.result()
            except self.backend.refusals as error:
                self.refused[kernel.fingerprint] = _why_refused(error, self.most_lines)
                return
            self.record.stage(
                f"assemble {name}",
                f"90-{file_name(name)}.{self.backend.suffixes[1]}",
                functools.partial(self.backend.listing, made, one.begun.source),
            )
            fresh.publish()
            self.built[kernel.fingerprint] = _built[one.key] = fresh

    def _contained(self, kernel: Kernel) -> Contained:
        """What fails in here is the kernel's fault alone, unless the user wants ours only."""
        return Contained(
            self.options.choose, functools.partial(self.failed.__setitem__, kernel.fingerprint)
        )

    def _print(self, kernel: Kernel, key: KernelKey) -> None:
        promise = self.backend.promise if self.may_promise and not was_broken(key) else None
        try:
            begun = begin_object(
                kernel,
                self.options,
                self.backend,
                self.record,
                self.tally,
                self.remaining,
                self._announce,
                self._assemble_ahead if promise is not None else None,
            )
        except self.backend.refusals as error:
            self.misfits += isinstance(error, CodeLimitError)
            self.refused[kernel.fingerprint] = _why_refused(error, self.most_lines)
            return
        self.remaining -= begun.draft.lines
        if promise is not None and begun.loops is not None:
            promised = promise(kernel, begun.draft)
            self.kept.append(keep_later(promised, key, begun, self.assembler))
            self.built[kernel.fingerprint] = _built[key] = promised
        else:
            self.pending.append(_Pending(begun, key, self.assembler.submit(_loaded, begun)))

    def _assemble_ahead(self, assemble: Callable[[], bytes]) -> Future[bytes]:
        """Has an assembler begin with what is printed and not proved yet."""
        return self.assembler.submit(short_turns(TURN_S)(assemble))

    def _announce(self) -> None:
        """Has an assembler warmed up before the first kernel is printed."""
        if not self.is_announced:
            self.assembler.submit(self.backend.warm_up)
            self.is_announced = True


class _Threads(ThreadPoolExecutor):
    """Threads for work; where none can be started, as while Python ends, the caller does it."""

    def submit(self, work: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        try:
            return super().submit(work, *args, **kwargs)
        except RuntimeError:
            done: Future[_T] = Future()
            try:
                done.set_result(work(*args, **kwargs))
            except Exception as error:
                done.set_exception(error)
            return done


@contextlib.contextmanager
def assemblers(wait: bool) -> Iterator[ThreadPoolExecutor]:
    """Threads that assemble; they end when they are done, which is waited for or not."""
    assembler = _Threads(_ASSEMBLERS, "hlo_mlc", work_for, (users_line(),))
    try:
        yield assembler
    finally:
        assembler.shutdown(wait)


def _loaded(begun: BegunObject) -> tuple[KernelObject, BuiltKernel]:
    made = begun.assembled()
    begun.store(made)
    return made, begun.backend.load(begun.kernel, made)


def _key(kernel: Kernel, options: Options, backend: Backend) -> KernelKey:
    return kernel.fingerprint, backend, has_checks(options, backend)


def _forget(key: KernelKey) -> None:
    """Has the kernel built anew: behind whoever is about to keep a promise of it."""
    known = _built.pop(key, None)
    if isinstance(known, PromisedKernel):
        known.wait()


def _why_refused(error: Exception, most_lines: int) -> str:
    return _too_long(most_lines) if isinstance(error, CodeLimitError) else str(error)


def _too_long(most_lines: int) -> str:
    return (
        f"with those that save more, it would be more than {most_lines:,} lines of LLVM IR, "
        "which take longer to compile than XLA may need for such a program and a call of it; "
        'choose="ours" compiles it'
    )
