"""Programs as they were compiled, on disk: a later process neither imports, simplifies, partitions
nor schedules what another one has.

A program is known again by its bytecode and by all else that decides: the target and how fast it
is, the settings, all files of ours and the packages that they compute with. What is kept is what
XLA got, the report, and where the cache has the objects of its kernels. It counts as long as
records say the same of every kernel that was thought of, and the objects are there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from hlo_mlc.backends.base import Backend, BuiltKernel
from hlo_mlc.building import assemblers, recalled_kernels
from hlo_mlc.frontend.types import listed_elements, literal_identity, read_type
from hlo_mlc.frontend.walking import operations
from hlo_mlc.kernel_objects import has_checks, object_key
from hlo_mlc.partition.kernel import Kernel, RecalledKernel
from hlo_mlc.preloading import remember_command
from hlo_mlc.promises import do_later
from hlo_mlc.report import Report
from hlo_mlc.runtime.cache import object_cache
from hlo_mlc.runtime.records import recorded_digests
from hlo_mlc.runtime.sources import package_digest
from hlo_mlc.support.faults import Fault
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version
from hlo_mlc.support.warning import warn

if TYPE_CHECKING:
    from hlo_mlc.partition.cluster import Cluster
    from hlo_mlc.partition.plan import Chooser, Verdict

_LARGEST_BYTES = 4 << 20  # of a program with its constants, which is kept in memory, too
_PACKAGES = ("jax", "jaxlib", "llvmlite", "ml_dtypes", "numpy")
_TAG = b"program: "
_DECIDE_NOTHING = {"cache_dir", "cache_limit_mib", "dump_dir", "debug", "settle", "tune", "enable"}


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is on disk: `module` is bytecode, None where XLA got what came; by their fingerprints,
    the keys of the kernels' objects, and what was recorded of these and others."""

    module: bytes | None
    report: Report
    objects: Mapping[str, str]
    records: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recalled:
    """A program that was compiled before: what XLA gets, None for what came, and the report."""

    module: ir.Module | None
    report: Report
    built: Mapping[str, BuiltKernel]


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """The place on disk of a program that is being compiled, and what records said of the kernels
    that were thought of, when they were."""

    bytecode: bytes
    entry: str
    options: Options
    backend: Backend
    records: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, module: ir.Module, options: Options, entry: str, backend: Backend
    ) -> KeptProgram | None:
        """None for what is not kept: where somebody wants to see the compiler at work, or errors
        are told the user's lines, and for programs with large constants."""
        is_watched = options.dump_dir is not None or has_checks(options, backend)
        if is_watched or backend.decides is None or _constant_bytes(module) > _LARGEST_BYTES:
            return None
        bytecode = _bytecode(module)
        return cls(bytecode, entry, options, backend) if len(bytecode) <= _LARGEST_BYTES else None

    def recall(
        self, module: ir.Module, again: Callable[[], Mapping[str, Kernel]]
    ) -> Recalled | None:
        """The program as it was compiled before, in the context of `module`, and its kernels, which
        can be called; None where that is not known, or holds no longer. `again` makes the kernels'
        tensor programs, should somebody ask for them."""
        objects = object_cache(self.options)
        packed = None if objects.is_empty() else objects.get(self._key())
        if packed is None:
            return None
        kept: _Kept = pickle.loads(memoryview(packed)[packed.index(b"\n") + 1 :])
        if self._recorded(kept.records) != kept.records:
            return None
        wanted = {
            kernel.id: (
                RecalledKernel(kernel.id, kernel.name, lambda id_=kernel.id: again()[id_]),
                kept.objects[kernel.id],
            )
            for kernel in kept.report.kernels
        }
        built = recalled_kernels(wanted, self.options, self.backend)
        if built is None:
            return None
        kernels = (
            replace(k, kept=built[k.id], nests=built[k.id].nests) for k in kept.report.kernels
        )
        report = replace(kept.report, kernels=tuple(kernels))
        with module.context:
            found = None if kept.module is None else ir.Module.parse(kept.module)
        remember_command(self.options.cache_dir)
        return Recalled(found, report, built)

    def keep(self, module: ir.Module | None, report: Report, kernels: Iterable[Kernel]) -> None:
        """Has kept what the program was compiled into, None for what came, behind the call, which
        need not wait for it; not so where what records say has changed meanwhile.  It counts from
        when the objects of its kernels are there, too."""
        bytecode = None if module is None else _bytecode(module)

        def write() -> None:
            keys = {
                kernel.fingerprint: object_key(
                    kernel, self.options, self.backend, self.backend.schedules(kernel, self.options)
                )
                for kernel in kernels
            }
            if self._recorded(self.records) != self.records:
                return
            short = (replace(kernel, kept=None, nests=()) for kernel in report.kernels)
            kept = _Kept(bytecode, replace(report, kernels=tuple(short)), keys, self.records)
            packed = pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)
            object_cache(self.options).put(self._key(), _TAG + f"{self.entry}\n".encode() + packed)
            remember_command(self.options.cache_dir)

        def write_if_possible() -> None:
            try:
                write()
            except Exception as error:
                warn(
                    f"hlo_mlc will compile {self.entry} again in each process: "
                    f"{Fault(error).reason}"
                )

        with assemblers(wait=self.options.choose != "auto") as thread:
            do_later(write_if_possible, thread)

    def noting(self, chooser: Chooser) -> Chooser:
        """The same choice, and what is recorded of all kernels that it is made for is noted."""

        def choose(cluster: Cluster) -> Verdict:
            self.note([cluster.kernel])
            return chooser(cluster)

        return choose

    def note(self, kernels: Iterable[Kernel]) -> None:
        """Notes what is recorded of kernels that are about to be looked at."""
        new = (k.fingerprint for k in kernels if k.fingerprint not in self.records)
        self.records.update(self._recorded(new))

    def _key(self) -> str:
        """By which it is known again."""
        settings = [
            (one.name, getattr(self.options, one.name))
            for one in dataclasses.fields(self.options)
            if one.name not in _DECIDE_NOTHING
        ]
        versions = [version(package) for package in _PACKAGES]
        sources = package_digest(self.options.cache_dir)
        identity = (self.entry, self.backend.decides, settings, versions, sources)
        digest = hashlib.sha256(repr(identity).encode() + b"\0")
        digest.update(self.bytecode)
        return digest.hexdigest()

    def _recorded(self, kernels: Iterable[str]) -> dict[str, str]:
        return recorded_digests(kernels, self.backend.target.key, self.options)


def program_name(packed: bytes) -> str:
    """The name of the function whose program begins so; "" for what is no program."""
    return packed.removeprefix(_TAG).partition(b"\n")[0].decode() * packed.startswith(_TAG)


def _constant_bytes(module: ir.Module) -> int:
    """Those of its constants, of which equal ones are written once.  28 MB of weights took 35 ms
    to be written, and 83 MB of memory, only to learn that a program with them is too large."""
    found = {
        literal_identity(constant): read_type(constant.results[0].type, "")
        for constant in operations(module, "stablehlo.constant")
        if listed_elements(constant)
    }
    return sum(tensor.bytes for tensor in found.values() if tensor is not None)


def _bytecode(module: ir.Module) -> bytes:
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()
