"""From clusters to callable kernels: scheduled, printed, assembled, or fetched from the cache.

This is the path of a kernel, whatever it is for.  Scheduling and printing are Python's work,
assembling is a compiler's: while some kernels are assembled on threads of their own, the next one
is printed.  What is proved and printed can be promised (`choose="auto"`): XLA compiles the program
meanwhile, whose executions wait for the kernels.  A promise is always kept: where a kernel cannot
be assembled after all, its loops are interpreted, and it is not promised again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from hlo_mlc.backends.base import Backend, BuiltKernel, KernelObject, PromisedKernel, Source
from hlo_mlc.codegen.cpu.assemble import LATER
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.prove import Proof, prove
from hlo_mlc.loops.text import program_text as loops_text
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.report import NestReport
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.runtime.generators import generators_digest
from hlo_mlc.runtime.proofs import add_proofs, proof_counts
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.dumps import Recorder, file_name
from hlo_mlc.support.errors import CodeLimitError, VerifyError
from hlo_mlc.support.faults import Contained, Fault
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.support.turns import short_turns
from hlo_mlc.support.warning import users_line, warn, work_for
from hlo_mlc.templates.base import Decision, Named
from hlo_mlc.templates.program import decisions_text, is_longer
from hlo_mlc.tensor.core import Nest
from hlo_mlc.tensor.text import program_text

# Threads that assemble: LLVM takes up to twice as long for a kernel as scheduling and printing it.
_ASSEMBLERS = 2
# Seconds after which the printing thread lets an assembling one go on, which asks for the
# interpreter between two calls of LLVM; Python's own 5 ms took away most of the gain.
_TURN_S = 1e-4
# Kernels that turn out too long, scheduled and printed in vain, before no other is tried.
_MISFITS = 3


_Key = tuple[str, Backend, bool]  # a fingerprint, for what, and whether it has checks


@dataclass(frozen=True, slots=True)
class Building:
    """The kernels that can be called, why others could not be built, and why others are not to be,
    by fingerprint."""

    built: Mapping[str, BuiltKernel]
    failed: Mapping[str, Fault]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A kernel as it was found under its key, or before it is assembled.

    `draft` is its object, without code until then; `source`, and the `loops` that it was printed
    from, are None if they are not needed.
    """

    key: Callable[[], str]
    draft: KernelObject
    source: Source | None = None
    loops: LoopProgram | None = None

    def assembled(self) -> KernelObject:
        """The object with its code."""
        if self.draft.code or self.source is None:
            return self.draft
        return replace(self.draft, code=self.source.assemble())

    def store(self, made: KernelObject, cache: ObjectCache, backend: Backend) -> None:
        """Keep what was assembled."""
        if not self.draft.code:
            cache.put(self.key(), made.pack(backend.machines))


@dataclass(frozen=True, slots=True)
class _Pending:
    """A kernel that is being assembled, or will be."""

    kernel: Kernel
    key: _Key
    source: Source | None
    future: Future[tuple[KernelObject, BuiltKernel]]


_built: weakref.WeakValueDictionary[_Key, BuiltKernel] = weakref.WeakValueDictionary()
_building = process_lock()
_broken: dict[_Key, str] = {}  # promised once and not assembled, and why
_supplied: dict[tuple[str, Backend], KernelObject] = {}  # by fingerprint, and for what
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


def scheduled(
    kernel: Kernel, options: Options, backend: Backend
) -> tuple[LoopProgram, tuple[Decision[Named], ...]]:
    """The loops of a kernel, and the template chosen for each of its nests: as recorded."""
    return backend.schedule(kernel.program, backend.schedules(kernel, options))


def rebuild_kernel(kernel: Kernel, options: Options, backend: Backend) -> BuiltKernel:
    """The kernel as it is recorded by now, also for programs that have it already.

    Raises: MlcError for a fault of the compiler.
    """
    with _building:
        _forget((kernel.fingerprint, backend, options.check))
    wanted = options.replace(choose="ours")
    return build_kernels([kernel], wanted, backend, Recorder(None)).built[kernel.fingerprint]


def adopt_recorded(kernel: Kernel, options: Options, backend: Backend) -> BuiltKernel | None:
    """The kernel as another process has recorded and assembled it, from now on in the place of that
    which programs have; None where its code is not in the cache. Nothing is compiled here."""
    checked = _checked(options, backend)
    key = object_key(
        kernel,
        backend,
        backend.schedules(kernel, options),
        checked,
        generators_digest(options.cache_dir),
    )
    packed = object_cache(options).get(key)
    if packed is None:
        return None
    fresh = backend.load(kernel, KernelObject.unpack(packed))
    with _building:  # behind whoever builds it as it was recorded before
        _forget((kernel.fingerprint, backend, checked))
        fresh.publish()
        _built[kernel.fingerprint, backend, checked] = fresh
    return fresh


def supply(fingerprint: str, backend: Backend, made: KernelObject) -> None:
    """Has a kernel taken for this backend as it came in a file, where neither the cache has one
    that was made here nor tuning has found a better schedule."""
    _supplied[fingerprint, backend] = made


def kernel_object(kernel: Kernel, options: Options, backend: Backend) -> KernelObject:
    """The code of a kernel for any target, which need not be here.

    Raises: MlcError for a fault of the compiler, CodegenError where there is no assembler.
    """
    cache = object_cache(options)
    with _counted(options) as tally:
        begun = _begin(kernel, options, backend, cache, Recorder(None), tally)
    made = begun.assembled()
    begun.store(made, cache, backend)
    return made


def kernel_source(kernel: Kernel, options: Options, backend: Backend) -> Source:
    """A kernel for any target, to be assembled together with others.

    Raises: MlcError for a fault of the compiler.
    """
    return backend.print(proved_loops(kernel, options, backend), False, sys.maxsize)


def proved_loops(kernel: Kernel, options: Options, backend: Backend) -> LoopProgram:
    """The loops of a kernel as they are printed.

    Raises: MlcError for a fault of the compiler.
    """
    loops, _ = scheduled(kernel, options, backend)
    with _counted(options) as tally:
        return _proved(loops, tally)[0]


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
    cache, checked = object_cache(options), _checked(options, backend)
    variants.release_unused()
    # Others want to see what fails, or what comes out, before the program is compiled.
    may_promise = options.choose == "auto" and not checked and record.folder is None
    with _building, short_turns(_TURN_S), _assemblers(wait=not may_promise) as assembler:
        batch = _Batch(
            options, backend, cache, record, assembler, may_promise, most_lines, most_lines
        )
        try:
            for kernel in wanted.values():
                batch.begin(kernel)
            for pending in batch.pending:
                batch.finish(pending)
        finally:
            batch.end()
    for kept in tuple(_keepers):
        kept += batch.built.values()
    return Building(batch.built, batch.failed, batch.refused)


@dataclass(slots=True)
class _Batch:
    """Kernels that are built one after the other, of which no more than `remaining` lines of source
    are to be left."""

    options: Options
    backend: Backend
    cache: ObjectCache
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
    kept: list[tuple[_Begun, Future[KernelObject]]] = field(default_factory=list)

    def begin(self, kernel: Kernel) -> None:
        """Takes a kernel that there is, or prints one and has it assembled."""
        fingerprint = kernel.fingerprint
        key = fingerprint, self.backend, _checked(self.options, self.backend)
        known = _built.get(key)
        if self.misfits >= _MISFITS:
            self.refused[fingerprint] = _too_long(self.most_lines)
        elif (
            known is not None
            and self.record.folder is None
            and known.lines <= self.remaining
            and key not in _broken
        ):  # a dump shows all stages every time
            known.publish()  # others may have come since
            self.built[fingerprint] = known
            self.remaining -= known.lines
        else:
            with self._contained(kernel):
                self._print(kernel, key)

    def finish(self, one: _Pending) -> None:
        """Publishes a kernel when it is assembled."""
        kernel, name = one.kernel, one.kernel.name
        with self._contained(kernel):
            try:
                made, fresh = one.future.result()
            except self.backend.refusals as error:
                self.refused[kernel.fingerprint] = _why_refused(error, self.most_lines)
                return
            self.record.stage(
                f"assemble {name}",
                f"90-{file_name(name)}.{self.backend.suffixes[1]}",
                functools.partial(self.backend.listing, made, one.source),
            )
            fresh.publish()
            self.built[kernel.fingerprint] = _built[one.key] = fresh

    def end(self) -> None:
        """Has what is promised kept for other processes, and counted, when nothing is printed any
        longer: both are Python's work."""

        def store() -> None:
            for begun, made in self.kept:
                if made.exception() is not None:
                    continue
                try:
                    begun.store(made.result(), self.cache, self.backend)
                except Exception as error:
                    warn(
                        f"hlo_mlc will compile {begun.draft.name} again in each process: "
                        f"{Fault(error).reason}"
                    )
            _count(self.tally, self.options)

        if self.kept:
            _later(self.assembler, store)
        else:
            _count(self.tally, self.options)

    def _contained(self, kernel: Kernel) -> Contained:
        """What fails in here is the kernel's fault alone, unless the user wants ours only."""
        return Contained(
            self.options.choose, functools.partial(self.failed.__setitem__, kernel.fingerprint)
        )

    def _print(self, kernel: Kernel, key: _Key) -> None:
        try:
            begun = _begin(
                kernel,
                self.options,
                self.backend,
                self.cache,
                self.record,
                self.tally,
                self.remaining,
                self._announce,
            )
        except self.backend.refusals as error:
            self.misfits += isinstance(error, CodeLimitError)
            self.refused[kernel.fingerprint] = _why_refused(error, self.most_lines)
            return
        self.remaining -= begun.draft.lines
        promised = None
        if self.may_promise and begun.loops is not None and key not in _broken:
            promised = self.backend.promise(kernel, begun.draft)
        if promised is not None:
            self.kept.append((begun, _keep_later(promised, key, begun, self.assembler)))
            self.built[kernel.fingerprint] = _built[key] = promised
        else:
            self.pending.append(
                _Pending(
                    kernel,
                    key,
                    begun.source,
                    self.assembler.submit(_loaded, self.backend, kernel, begun, self.cache),
                )
            )

    def _announce(self) -> None:
        """Has an assembler warmed up before the first kernel is printed."""
        if not self.is_announced:
            self.assembler.submit(self.backend.warm_up)
            self.is_announced = True


@contextlib.contextmanager
def _assemblers(wait: bool) -> Iterator[ThreadPoolExecutor]:
    """Threads that assemble; they end when they are done, which is waited for or not."""
    assembler = ThreadPoolExecutor(_ASSEMBLERS, "hlo_mlc", work_for, (users_line(),))
    try:
        yield assembler
    finally:
        assembler.shutdown(wait)


def _loaded(
    backend: Backend, kernel: Kernel, begun: _Begun, cache: ObjectCache
) -> tuple[KernelObject, BuiltKernel]:
    made = begun.assembled()
    begun.store(made, cache, backend)
    return made, backend.load(kernel, made)


def _later(assembler: ThreadPoolExecutor, work: Callable[[], None]) -> None:
    """Has the assembler do what nobody waits for, or does it here where it has no thread."""
    first = threading.Lock()

    def once() -> None:
        if first.acquire(blocking=False):
            try:
                work()
            finally:
                LATER.__exit__()

    LATER.__enter__()
    try:
        assembler.submit(once)
    except BaseException as error:  # maybe a thread that there is does it all the same
        once()
        if not isinstance(error, RuntimeError):  # which says that none can be started
            raise


def _keep_later(
    promised: PromisedKernel, key: _Key, begun: _Begun, assembler: ThreadPoolExecutor
) -> Future[KernelObject]:
    """Has a kernel that was promised assembled; whatever fails, nobody waits for it for ever."""
    loops = begun.loops
    _, backend, _ = key
    object_: Future[KernelObject] = Future()
    assert loops is not None

    def keep() -> None:
        try:
            with short_turns(_TURN_S):
                made = begun.assembled()
                promised.keep(backend.load(promised.kernel, made))
            object_.set_result(made)
        except BaseException as error:
            object_.set_exception(error)
            _broken[key] = ""
            promised.give_up(loops)
            fault = Fault(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            is_known = fault.reason in list(_broken.values())
            _broken[key] = fault.reason
            if not is_known:
                warn(
                    f"hlo_mlc interprets {promised.kernel.name}, which is very slow: "
                    f"{fault.reason}. Where that lasts, what is compiled from now on leaves it to "
                    "XLA, as the next call does; within other functions, jax.clear_caches() has "
                    "them compiled anew"
                )
            if not isinstance(error, Exception):
                raise

    _later(assembler, keep)
    return object_


def _forget(key: _Key) -> None:
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


def _begin(
    kernel: Kernel,
    options: Options,
    backend: Backend,
    cache: ObjectCache,
    record: Recorder,
    tally: Counter[str],
    most_lines: int = sys.maxsize,
    announce: Callable[[], object] = lambda: None,
) -> _Begun:
    """The work on a kernel that is to be done here, and what is left to the assembler, which is
    told by `announce` that there will be something."""
    schedules, checked = backend.schedules(kernel, options), _checked(options, backend)

    def key() -> str:
        # Not before it is needed: the sources of the generators, which it names, are 200 files.
        digest = generators_digest(options.cache_dir)
        return object_key(kernel, backend, schedules, checked, digest)

    packed = None if cache.is_empty() else cache.get(key())
    stored = (
        KernelObject.unpack(packed)
        if packed is not None
        else None
        if checked or schedules
        else _supplied.get((kernel.fingerprint, backend))
    )
    name, file = kernel.name, file_name(kernel.name)
    if stored is not None and stored.lines > most_lines:
        raise CodeLimitError(name, most_lines)
    if stored is not None and record.folder is None:
        return _Begun(key, stored)
    if most_lines < sys.maxsize and is_longer(kernel.program, most_lines):
        raise CodeLimitError(name, most_lines)
    announce()
    record.stage(f"tensors {name}", f"40-{file}.tensors.txt", lambda: program_text(kernel.program))
    loops, decisions = backend.schedule(kernel.program, schedules)
    record.attach(f"50-{file}.schedule.txt", lambda: decisions_text(decisions))
    record.stage(f"schedule {name}", f"60-{file}.loops.txt", lambda: loops_text(loops))
    loops, proof = _proved(loops, tally)
    record.stage(f"prove {name}", f"70-{file}.proof.txt", lambda: f"{proof}\n{loops_text(loops)}")
    source = backend.print(loops, checked, most_lines)
    record.stage(f"print {name}", f"80-{file}.{backend.suffixes[0]}", lambda: source.text)
    draft = KernelObject(
        name,
        source.symbol,
        source.scratch_bytes,
        source.text.count("\n"),
        tuple(map(nest_report, decisions)),
        proof,
        b"",
    )
    return _Begun(key, stored or draft, source, loops)


def _checked(options: Options, backend: Backend) -> bool:
    return options.check and backend.has_checks


def _proved(loops: LoopProgram, tally: Counter[str]) -> tuple[LoopProgram, Proof]:
    """`prove`, and what came of it counted."""
    try:
        loops, proof = prove(loops)
    except VerifyError:
        tally["refused"] += 1
        raise
    tally["guarded" if proof.guarded else "proved"] += 1
    return loops, proof


@contextlib.contextmanager
def _counted(options: Options) -> Iterator[Counter[str]]:
    """What is counted in here is added to what is kept."""
    tally: Counter[str] = Counter()
    try:
        yield tally
    finally:
        _count(tally, options)


def _count(tally: Counter[str], options: Options) -> None:
    if tally:
        add_proofs(options.cache_dir, generators_digest(options.cache_dir), tally)


def proofs_here(options: Options) -> Counter[str]:
    """How many kernels the present compiler proved, guarded and refused with this cache."""
    return proof_counts(options.cache_dir, generators_digest(options.cache_dir))


def object_key(
    kernel: Kernel, backend: Backend, schedules: Schedules, checked: bool, generators: str
) -> str:
    """Under which a kernel's object is kept: its meaning, the target, what tuning found, whether it
    has checks, and all that makes code."""
    tuned = sorted(
        (n, name, how if isinstance(how, tuple) else sorted(how.items()))
        for n, (name, how) in schedules.items()
    )
    described = KernelObject.__match_args__
    identity = "\n".join(
        (kernel.fingerprint, backend.identity, str(tuned), str(checked), str(described), generators)
    )
    return hashlib.sha256(identity.encode()).hexdigest()


def nest_report(decision: Decision[Named]) -> NestReport:
    """How one nest is computed, for people."""
    steps = tuple(str(step) for schedule in decision.schedules for step in schedule.trace)
    return NestReport(
        decision.template.name,
        dict(decision.parameters),
        decision.refused,
        _nest_text(decision.nest),
        steps if decision.by_hand else None,
    )


def _nest_text(nest: Nest) -> str:
    parts = []
    for stage in nest.stages:
        axes = "x".join(str(v.extent) for v in stage.axes) or "scalar"
        reduced = "x".join(str(v.extent) for v in stage.reduce_axes)
        parts.append(f"{axes} over {reduced}" if reduced else axes)
    return ", ".join(parts)
