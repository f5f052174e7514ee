"""From clusters to callable kernels: scheduled, printed, assembled, or fetched from the cache.

Scheduling and printing are Python's work, assembling is LLVM's: while some kernels are assembled on
threads of their own, the next one is printed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from hlo_mlc.codegen.cpu.assemble import assembly, compile_ir, warm_up
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.prove import Proof, prove
from hlo_mlc.loops.text import program_text as loops_text
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.report import NestReport
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.runtime.proofs import add_proofs, proof_counts
from hlo_mlc.runtime.records import Schedules, open_records, target_key
from hlo_mlc.runtime.variants import KernelCode
from hlo_mlc.support.dumps import Recorder, file_name
from hlo_mlc.support.errors import CodeLimitError, VerifyError
from hlo_mlc.support.faults import Contained, Fault
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version
from hlo_mlc.target.cpu import HOST, CpuTarget
from hlo_mlc.templates.program import Decision, decisions_text
from hlo_mlc.tensor.core import Nest
from hlo_mlc.tensor.text import program_text
from hlo_mlc.tuning.replay import schedule_as_recorded

# What turns a kernel's meaning into code: a change in any of these makes other objects.
_GENERATORS = ("target", "expr", "tensor", "loops", "schedule", "templates", "codegen")
# Threads that assemble: LLVM takes up to twice as long for a kernel as scheduling and printing it.
_ASSEMBLERS = 2
# Seconds after which the printing thread lets an assembling one go on, which asks for the
# interpreter between two calls of LLVM; Python's own 5 ms took away most of the gain.
_SWITCH_INTERVAL = 1e-4
# Kernels that turn out too long, scheduled and printed in vain, before no other is tried.
_MISFITS = 3
_TAG = b"kernel for CPUs: "
_LENGTH = struct.Struct("<Q")  # of the description in front of an object


@dataclass(frozen=True, slots=True)
class KernelObject:
    """A compiled kernel as it is kept on disk: machine code, and how it was made.

    `name` is what people called it where it was first compiled.
    """

    name: str
    symbol: str
    scratch_bytes: int
    lines: int  # of the LLVM IR that it was made from
    nests: tuple[NestReport, ...]
    proof: Proof
    code: bytes  # a relocatable object file

    def pack(self) -> bytes:
        """The object as bytes."""
        about = json.dumps({"symbol": self.symbol, "scratch_bytes": self.scratch_bytes,
                            "lines": self.lines,
                            "nests": [asdict(nest) for nest in self.nests],
                            "guarded": self.proof.guarded}).encode()
        return b"".join((_TAG, self.name.encode(), b"\n", _LENGTH.pack(len(about)), about,
                         self.code))

    @classmethod
    def unpack(cls, data: bytes) -> KernelObject:
        """The object from its bytes, whose integrity the cache has checked."""
        named = data.index(b"\n", len(_TAG)) + 1
        (length,) = _LENGTH.unpack_from(data, named)
        begin, end = named + _LENGTH.size, named + _LENGTH.size + length
        about = json.loads(data[begin:end])
        nests = tuple(NestReport(n["template"], n["parameters"],
                                 tuple(map(tuple, n["refused"])), n["text"])
                      for n in about["nests"])
        return cls(object_name(data), about["symbol"], about["scratch_bytes"], about["lines"],
                   nests, Proof(tuple(about["guarded"])), data[end:])


def object_name(packed: bytes) -> str:
    """What people call the kernel whose object begins so; "" for what is no object of a kernel for
    CPUs."""
    if not packed.startswith(_TAG):
        return ""
    return packed[len(_TAG):].partition(b"\n")[0].decode()


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as LLVM IR."""

    symbol: str
    scratch_bytes: int
    text: str


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class BuiltKernel:
    """A kernel that can be called, and how it was made.  It can be called as long as somebody has
    this, or a loaded program calls it."""

    kernel: Kernel
    nests: tuple[NestReport, ...]
    lines: int  # of LLVM IR
    proof: Proof
    code: KernelCode
    lease: variants.Lease


@dataclass(frozen=True, slots=True)
class Building:
    """The kernels that can be called, why others could not be built, and why others were not, as
    they would take too long, by fingerprint."""

    built: Mapping[str, BuiltKernel]
    failed: Mapping[str, Fault]
    too_long: Mapping[str, str]


_Callable = tuple[KernelObject, KernelCode]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A kernel that is being assembled, or will be."""

    kernel: Kernel
    source: str
    future: Future[_Callable]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A kernel's source, empty if it is not needed, how long it is, and what makes it callable."""

    source: str
    lines: int
    work: Callable[[], _Callable]


_Key = tuple[str, CpuTarget, bool]  # a fingerprint, for what, and whether it has checks
_built: weakref.WeakValueDictionary[_Key, BuiltKernel] = weakref.WeakValueDictionary()
_building = process_lock()
_keepers: list[list[BuiltKernel]] = []


def variant_of(target: CpuTarget) -> str:
    """What the ids of kernels for a target end in: programs for this machine and for levels below
    it may be in one process, and each calls its own code."""
    level = "" if target.name == HOST else f"-{target.name}"
    return f"{level}-deterministic" if target.deterministic else level


def built_kernel(fingerprint: str, target: CpuTarget, checked: bool) -> BuiltKernel | None:
    """The kernel with this fingerprint, if this process has compiled it for this target, with
    checks or without, and needs it."""
    return _built.get((fingerprint, target, checked))


def kernel_with_id(kernel_id: str) -> Kernel | None:
    """The kernel with this id, if this process has compiled it for any target and needs it."""
    return next((b.kernel for (known, *_), b in _built.items() if known == kernel_id), None)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """All kernels that are built in here can be called until the end."""
    kept: list[BuiltKernel] = []
    _keepers.append(kept)
    try:
        yield
    finally:
        _keepers.remove(kept)


def scheduled(kernel: Kernel, options: Options, target: CpuTarget
              ) -> tuple[LoopProgram, tuple[Decision, ...]]:
    """The loops of a kernel, and the template chosen for each of its nests: as recorded."""
    return schedule_as_recorded(kernel.program, target, _schedules(kernel, options, target))


def _schedules(kernel: Kernel, options: Options, target: CpuTarget) -> Schedules:
    """What tuning has found for the kernel; nothing where it was not tuned."""
    known = open_records(options).get(kernel.fingerprint, target_key(target))
    return {} if known is None else known.schedules


def rebuild_kernel(kernel: Kernel, options: Options, target: CpuTarget) -> BuiltKernel:
    """The kernel as it is recorded by now, also for programs that have it already.

    Raises: MlcError for a fault of the compiler.
    """
    with _building:
        _built.pop((kernel.fingerprint, target, options.check), None)
    wanted = options.replace(choose="ours")
    return build_kernels([kernel], wanted, target, Recorder(None)).built[kernel.fingerprint]


def kernel_object(kernel: Kernel, options: Options, target: CpuTarget) -> KernelObject:
    """The code of a kernel for any target, which need not run here.

    Raises: MlcError for a fault of the compiler.
    """
    schedules = _schedules(kernel, options, target)
    cache, key = object_cache(options), object_key(kernel, target, schedules, options.check)
    packed = cache.get(key)
    if packed is not None:
        return KernelObject.unpack(packed)
    loops, decisions = schedule_as_recorded(kernel.program, target, schedules)
    with _counted(options) as tally:
        loops, proof = _proved(loops, tally)
    source = print_program(loops, target, options.check)
    return _assembled(kernel, loops, decisions, proof, source, target, cache, key)


def kernel_source(kernel: Kernel, options: Options, target: CpuTarget) -> KernelSource:
    """A kernel for any target, to be assembled together with others.

    Raises: MlcError for a fault of the compiler.
    """
    loops, _ = scheduled(kernel, options, target)
    with _counted(options) as tally:
        loops, _ = _proved(loops, tally)
    return KernelSource(loops.name, loops.scratch_bytes, print_program(loops, target))


def build_kernels(kernels: Iterable[Kernel], options: Options, target: CpuTarget,
                  record: Recorder, most_lines: int = sys.maxsize) -> Building:
    """Generate, or fetch from the cache, every kernel, and make it callable by its fingerprint.

    A fault of the compiler costs only the kernel that shows it.  A kernel that would make it more
    than `most_lines` of LLVM IR is not built, nor are those after the `_MISFITS`th such one; what
    is in the cache counts the same, so that a program always gets the same kernels.

    Raises: MlcError for the fault if `options.choose` is "ours".
    """
    wanted = {kernel.fingerprint: kernel for kernel in kernels}
    if not wanted:
        return Building({}, {}, {})
    cache = object_cache(options)
    built: dict[str, BuiltKernel] = {}
    failed: dict[str, Fault] = {}
    too_long: dict[str, str] = {}
    remaining = most_lines
    variants.release_unused()
    with _building, _eager_switching(), _counted(options) as tally, \
            ThreadPoolExecutor(_ASSEMBLERS, "hlo_mlc") as assembler:
        pending: list[_Pending] = []
        announce = functools.cache(lambda: assembler.submit(warm_up, target))  # once
        for kernel in wanted.values():
            known = _built.get((kernel.fingerprint, target, options.check))
            if len(too_long) >= _MISFITS:
                too_long[kernel.fingerprint] = _too_long(most_lines)
                continue
            if known is not None and record.folder is None and known.lines <= remaining:
                # Others may have come since.
                variants.publish(kernel.fingerprint + variant_of(target), known.code)
                built[kernel.fingerprint] = known
                remaining -= known.lines
                continue  # a dump shows all stages every time
            with _noted(failed, kernel, options):
                try:
                    begun = _begin(kernel, options, target, cache, record, tally, remaining,
                                   announce)
                except CodeLimitError:
                    too_long[kernel.fingerprint] = _too_long(most_lines)
                    continue
                remaining -= begun.lines
                pending.append(_Pending(kernel, begun.source, assembler.submit(begun.work)))
        for one in pending:
            kernel, name = one.kernel, one.kernel.name
            with _noted(failed, kernel, options):
                stored, code = one.future.result()
                record.stage(f"assemble {name}", f"90-{file_name(name)}.s",
                             lambda source=one.source: assembly(source, target))
                kernel_id = kernel.fingerprint + variant_of(target)
                lease = variants.lease(kernel_id)
                variants.publish(kernel_id, code)
                fresh = BuiltKernel(kernel, stored.nests, stored.lines, stored.proof, code, lease)
                built[kernel.fingerprint] = fresh
                _built[kernel.fingerprint, target, options.check] = fresh
    for kept in tuple(_keepers):
        kept += built.values()
    return Building(built, failed, too_long)


def _too_long(most_lines: int) -> str:
    return (f"with those that save more, it would be more than {most_lines:,} lines of LLVM IR, "
            "which take longer to compile than XLA may need for a program of this size; "
            'choose="ours" compiles it')


def _noted(failed: dict[str, Fault], kernel: Kernel, options: Options) -> Contained:
    """What fails in here is noted as the kernel's fault, unless the user wants ours only."""
    return Contained(options.choose, functools.partial(failed.__setitem__, kernel.fingerprint))


@contextlib.contextmanager
def _eager_switching() -> Iterator[None]:
    """Threads of this process take turns more often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, _SWITCH_INTERVAL))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _begin(kernel: Kernel, options: Options, target: CpuTarget, cache: ObjectCache,
           record: Recorder, tally: Counter[str], most_lines: int,
           announce: Callable[[], object]) -> _Begun:
    """The work on a kernel that is to be done here, and what is left to the assembler, which is
    told by `announce` that there will be something."""
    schedules = _schedules(kernel, options, target)
    key = object_key(kernel, target, schedules, options.check)
    packed = cache.get(key)
    stored = None if packed is None else KernelObject.unpack(packed)
    name, file = kernel.name, file_name(kernel.name)
    if stored is not None and stored.lines > most_lines:
        raise CodeLimitError(name, most_lines)
    if stored is not None and record.folder is None:
        return _Begun("", stored.lines, functools.partial(_load, stored))
    announce()
    record.stage(f"tensors {name}", f"40-{file}.tensors.txt", lambda: program_text(kernel.program))
    loops, decisions = schedule_as_recorded(kernel.program, target, schedules)
    record.attach(f"50-{file}.schedule.txt", lambda: decisions_text(decisions))
    record.stage(f"schedule {name}", f"60-{file}.loops.txt", lambda: loops_text(loops))
    loops, proof = _proved(loops, tally)
    record.stage(f"prove {name}", f"70-{file}.proof.txt", lambda: f"{proof}\n{loops_text(loops)}")
    source = print_program(loops, target, options.check, most_lines)
    record.stage(f"print {name}", f"80-{file}.ll", lambda: source)
    work = functools.partial(_load, stored) if stored is not None else \
        lambda: _load(_assembled(kernel, loops, decisions, proof, source, target, cache, key))
    return _Begun(source, source.count("\n"), work)


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
        add_proofs(options.cache_dir, _generators(), tally)


def proofs_here(options: Options) -> Counter[str]:
    """How many kernels the present compiler proved, guarded and refused with this cache."""
    return proof_counts(options.cache_dir, _generators())


def _assembled(kernel: Kernel, loops: LoopProgram, decisions: Sequence[Decision], proof: Proof,
               source: str, target: CpuTarget, cache: ObjectCache, key: str) -> KernelObject:
    """The object of a kernel, which is also put into the cache."""
    fresh = KernelObject(kernel.name, loops.name, loops.scratch_bytes, source.count("\n"),
                         tuple(map(nest_report, decisions)), proof, compile_ir(source, target))
    cache.put(key, fresh.pack())
    return fresh


def _load(stored: KernelObject) -> _Callable:
    return stored, variants.load_object(stored.code, stored.symbol, stored.scratch_bytes)


def object_key(kernel: Kernel, target: CpuTarget, schedules: Schedules, checked: bool) -> str:
    """Under which a kernel's object is kept: its meaning, the target, what tuning found, whether it
    has checks, and all that makes code."""
    tuned = sorted((n, name, sorted(p.items())) for n, (name, p) in schedules.items())
    described = KernelObject.__match_args__
    identity = f"{kernel.fingerprint}\n{target}\n{tuned}\n{checked}\n{described}\n{_generators()}"
    return hashlib.sha256(identity.encode()).hexdigest()


@functools.cache
def _generators() -> str:
    """The hash of the sources that make code."""
    package = str(Path(__file__).parent)
    digest = hashlib.sha256(version("llvmlite").encode())
    # Without Path, which takes twice as long for each of 160 files as reading them.
    for folder in _GENERATORS:
        for where, folders, names in os.walk(os.path.join(package, folder)):
            folders.sort()
            for name in sorted(name for name in names if name.endswith(".py")):
                path = os.path.join(where, name)
                digest.update(f"\0{path[len(package):]}\0".encode())
                with open(path, "rb", buffering=0) as source:
                    digest.update(source.read())
    return digest.hexdigest()


def nest_report(decision: Decision) -> NestReport:
    """How one nest is computed, for people."""
    return NestReport(decision.template.name, dict(decision.parameters), decision.refused,
                      _nest_text(decision.nest))


def _nest_text(nest: Nest) -> str:
    parts = []
    for stage in nest.stages:
        axes = "x".join(str(v.extent) for v in stage.axes) or "scalar"
        reduced = "x".join(str(v.extent) for v in stage.reduce_axes)
        parts.append(f"{axes} over {reduced}" if reduced else axes)
    return ", ".join(parts)
