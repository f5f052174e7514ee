"""The object of a kernel: fetched, or made from its schedule to the text that is assembled.

Scheduling and printing are Python's work, which is done here; assembling is a compiler's, which
`building.py` does meanwhile and `promises.py` behind the call.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hlo_mlc.backends.base import Backend, KernelObject, Source
from hlo_mlc.report import NestReport
from hlo_mlc.runtime.cache import object_cache
from hlo_mlc.runtime.proofs import add_proofs, proof_counts
from hlo_mlc.runtime.sources import generators_digest
from hlo_mlc.support.dumps import Recorder, file_name
from hlo_mlc.support.errors import CodeLimitError, VerifyError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options

with lazy_imports():
    from hlo_mlc.loops import prove
    from hlo_mlc.loops import text as loops_text
    from hlo_mlc.templates import program as templates
    from hlo_mlc.tensor import text as tensor_text
    from hlo_mlc.tuning import replay

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hlo_mlc.loops.core import LoopProgram
    from hlo_mlc.loops.proof import Proof
    from hlo_mlc.partition.kernel import Kernel
    from hlo_mlc.runtime.records import Schedules
    from hlo_mlc.templates.base import Decision, Named
    from hlo_mlc.tensor.core import Nest

_supplied: dict[tuple[str, Backend], KernelObject] = {}  # by fingerprint, and for what


@dataclass(frozen=True, slots=True)
class BegunObject:
    """The object of a kernel as it was fetched, or before it is assembled.

    `draft` is without code until then; `source`, and the `loops` that it was printed from, are None
    if they are not needed.  `code` is being assembled from the source already.
    """

    kernel: Kernel
    options: Options
    backend: Backend
    schedules: Schedules
    draft: KernelObject
    source: Source | None = None
    loops: LoopProgram | None = None
    code: Future[bytes] | None = None

    def assembled(self) -> KernelObject:
        """The object with its code."""
        if self.draft.code or self.source is None:
            return self.draft
        code = self.source.assemble() if self.code is None else self.code.result()
        return replace(self.draft, code=code)

    def store(self, made: KernelObject) -> None:
        """Keep what was assembled."""
        if not self.draft.code:
            key = object_key(self.kernel, self.options, self.backend, self.schedules)
            object_cache(self.options).put(key, made.pack(self.backend.machines))


def begin_object(
    kernel: Kernel,
    options: Options,
    backend: Backend,
    record: Recorder,
    tally: Counter[str],
    most_lines: int = sys.maxsize,
    announce: Callable[[], object] = lambda: None,
    ahead: Callable[[Callable[[], bytes]], Future[bytes]] | None = None,
) -> BegunObject:
    """What is to be done here of the object of a kernel.

    Proofs are counted in `tally`; `announce` is called before anything is that will be assembled.
    With `ahead`, which has it assembled, that begins before the proof, for which nothing but the
    interpreter is needed: code comes of it only if the loops are proved as they are.

    Raises: CodeLimitError for more than `most_lines` of source; MlcError for a fault of the
    compiler.
    """
    schedules = backend.schedules(kernel, options)
    stored = _fetched(kernel, options, backend, schedules)
    name, file = kernel.name, file_name(kernel.name)
    if stored is not None and stored.lines > most_lines:
        raise CodeLimitError(name, most_lines)
    if stored is not None and record.folder is None:
        return BegunObject(kernel, options, backend, schedules, stored)
    if most_lines < sys.maxsize and templates.is_longer(kernel.program, most_lines):
        raise CodeLimitError(name, most_lines)
    announce()
    record.stage(
        f"tensors {name}",
        f"40-{file}.tensors.txt",
        lambda: tensor_text.program_text(kernel.program),
    )
    loops, decisions = _scheduled(kernel, backend, schedules)
    record.attach(f"50-{file}.schedule.txt", lambda: templates.decisions_text(decisions))
    record.stage(f"schedule {name}", f"60-{file}.loops.txt", lambda: loops_text.program_text(loops))

    def printed(loops: LoopProgram) -> Source:
        source = backend.print(loops, has_checks(options, backend), most_lines)
        record.stage(f"print {name}", f"80-{file}.{backend.suffixes[0]}", lambda: source.text)
        return source

    source = code = None
    if ahead is not None:
        source = printed(loops)
        code = ahead(source.assemble)
    unproved = loops
    loops, proof = _proved(loops, tally)
    record.stage(
        f"prove {name}",
        f"70-{file}.proof.txt",
        lambda: f"{proof}\n{loops_text.program_text(loops)}",
    )
    if source is None or loops is not unproved:  # there are guards now
        source, code = printed(loops), None
    draft = KernelObject(
        name,
        source.symbol,
        source.scratch_bytes,
        source.text.count("\n"),
        tuple(map(_nest_report, decisions)),
        proof,
        b"",
    )
    return BegunObject(kernel, options, backend, schedules, stored or draft, source, loops, code)


def supply(fingerprint: str, backend: Backend, made: KernelObject) -> None:
    """Has a kernel taken for this backend as it came in a file, where neither the cache has one
    that was made here nor tuning has found a better schedule."""
    _supplied[fingerprint, backend] = made


def recorded_object(kernel: Kernel, options: Options, backend: Backend) -> KernelObject | None:
    """The object of a kernel as it is recorded by now, if the cache has it."""
    return _cached(kernel, options, backend, backend.schedules(kernel, options))


def kernel_object(kernel: Kernel, options: Options, backend: Backend) -> KernelObject:
    """The code of a kernel for any target, which need not be here.

    Raises: MlcError for a fault of the compiler, CodegenError where there is no assembler.
    """
    with _counted(options) as tally:
        begun = begin_object(kernel, options, backend, Recorder(None), tally)
    made = begun.assembled()
    begun.store(made)
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


def scheduled(
    kernel: Kernel, options: Options, backend: Backend
) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
    """The loops of a kernel, and the template chosen for each of its nests: as recorded."""
    return _scheduled(kernel, backend, backend.schedules(kernel, options))


def has_checks(options: Options, backend: Backend) -> bool:
    """Whether kernels check every access."""
    return options.check and backend.has_checks


def object_key(kernel: Kernel, options: Options, backend: Backend, schedules: Schedules) -> str:
    """Under which a kernel's object is kept: its meaning, the target, what tuning found, whether it
    has checks, and all that makes code."""
    tuned = sorted(
        (n, name, how if isinstance(how, tuple) else sorted(how.items()))
        for n, (name, how) in schedules.items()
    )
    described = KernelObject.__match_args__
    identity = "\n".join(
        (
            kernel.fingerprint,
            backend.identity,
            str(tuned),
            str(has_checks(options, backend)),
            str(described),
            generators_digest(options.cache_dir),
        )
    )
    return hashlib.sha256(identity.encode()).hexdigest()


def count_proofs(tally: Counter[str], options: Options) -> None:
    """Adds to how many kernels were proved, guarded and refused."""
    if tally:
        add_proofs(options.cache_dir, generators_digest(options.cache_dir), tally)


def proofs_here(options: Options) -> Counter[str]:
    """How many kernels the present compiler proved, guarded and refused with this cache."""
    return proof_counts(options.cache_dir, generators_digest(options.cache_dir))


def _fetched(
    kernel: Kernel, options: Options, backend: Backend, schedules: Schedules
) -> KernelObject | None:
    """The object from the cache, or as it was supplied."""
    found = _cached(kernel, options, backend, schedules)
    if found is not None or schedules or has_checks(options, backend):
        return found
    return _supplied.get((kernel.fingerprint, backend))


def _cached(
    kernel: Kernel, options: Options, backend: Backend, schedules: Schedules
) -> KernelObject | None:
    cache = object_cache(options)
    # The key is not made before it is needed: the generators' sources, which it names, are 200
    # files.
    packed = (
        None if cache.is_empty() else cache.get(object_key(kernel, options, backend, schedules))
    )
    return None if packed is None else KernelObject.unpack(packed)


def _scheduled(
    kernel: Kernel, backend: Backend, schedules: Schedules
) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
    return replay.schedule_as_recorded(kernel.program, backend.target, schedules, backend.generator)


def _proved(loops: LoopProgram, tally: Counter[str]) -> tuple[LoopProgram, Proof]:
    """`prove`, and what came of it counted."""
    try:
        loops, proof = prove.prove(loops)
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
        count_proofs(tally, options)


def _nest_report(decision: Decision[Named]) -> NestReport:
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
