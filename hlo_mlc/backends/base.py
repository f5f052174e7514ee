"""What a backend is: all that the compiler's path asks of a kind of machine, as one value.

`compiler.py` is the path of a program and `kernel_objects.py` that of a kernel, for every backend;
what they ask is `Backend`, what they pass on are the other types here.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hlo_mlc.loops.proof import Proof
from hlo_mlc.report import NestReport, Report
from hlo_mlc.support.described import described, taken_apart
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.support.options import Options
from hlo_mlc.target import Target

if TYPE_CHECKING:
    from hlo_mlc.graph.core import Graph, Node
    from hlo_mlc.loops.core import LoopProgram
    from hlo_mlc.partition.costs import Costs
    from hlo_mlc.partition.fuse.limits import FusionLimits
    from hlo_mlc.partition.kernel import Kernel
    from hlo_mlc.partition.plan import Chooser, Plan
    from hlo_mlc.runtime.records import Schedules
    from hlo_mlc.tuning.generator import ByTemplates

_TAG = re.compile(rb"kernel for (\w+): ")


@dataclass(frozen=True, slots=True)
class KernelObject:
    """A compiled kernel as it is kept on disk: machine code, and how it was made.

    `name` is what people called it where it was first compiled.
    """

    name: str
    symbol: str
    scratch_bytes: int
    lines: int  # of the source that it was made from
    nests: tuple[NestReport, ...]
    proof: Proof
    code: bytes  # as the backend's assembler makes it

    @property
    def about(self) -> dict[str, Any]:
        """All but the name and the code, as JSON can hold it."""
        return {
            "symbol": self.symbol,
            "scratch_bytes": self.scratch_bytes,
            "lines": self.lines,
            "nests": [asdict(nest) for nest in self.nests],
            "guarded": self.proof.guarded,
        }

    @classmethod
    def of(cls, name: str, about: Mapping[str, Any], code: bytes) -> KernelObject:
        """The object with that name and code, by what it was said to be `about`."""
        nests = tuple(
            NestReport(
                n["template"],
                n["parameters"],
                tuple(map(tuple, n["refused"])),
                n["text"],
                None if n["steps"] is None else tuple(n["steps"]),
            )
            for n in about["nests"]
        )
        return cls(
            name,
            about["symbol"],
            about["scratch_bytes"],
            about["lines"],
            nests,
            Proof(tuple(about["guarded"])),
            code,
        )

    def pack(self, machines: str) -> bytes:
        """The object as bytes; `machines`, such as "CPUs", are what it is for."""
        return f"kernel for {machines}: {self.name}\n".encode() + described(self.about, self.code)

    @classmethod
    def unpack(cls, data: bytes) -> KernelObject:
        """The object from its bytes, whose integrity the cache has checked."""
        about, end = taken_apart(data, data.index(b"\n") + 1)
        return cls.of(object_name(data), about, data[end:])


def object_name(packed: bytes) -> str:
    """What people call the kernel whose object begins so; "" for what is no object of a kernel."""
    tag = _TAG.match(packed)
    return "" if tag is None else packed[tag.end() :].partition(b"\n")[0].decode()


class Source(Protocol):
    """A printed kernel: the text that its assembler takes."""

    @property
    def symbol(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def scratch_bytes(self) -> int: ...

    def assemble(self) -> bytes:
        """The machine code, with all that it takes to call it.

        Raises: CodegenError where the assembler rejects it.
        """


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class BuiltKernel:
    """A kernel that can be called, and how it was made.  It can be called as long as somebody has
    this, or a loaded program calls it."""

    kernel: Kernel
    nests: tuple[NestReport, ...]
    lines: int  # of its source
    proof: Proof

    @property
    def resources(self) -> tuple[str, ...]:
        """What else there is to say of its code, a line each."""
        return ()

    @abstractmethod
    def publish(self) -> None:
        """Make it what programs call from now on."""


class PromisedKernel(BuiltKernel):
    """One that programs may call while it is still assembled: what they run waits until then."""

    __slots__ = ()

    @abstractmethod
    def keep(self, loaded: BuiltKernel) -> None:
        """Run the same kernel loaded; either this or `give_up` has to be called, once."""

    @abstractmethod
    def wait(self) -> bool:
        """Until that was done; whether there is machine code."""

    @abstractmethod
    def give_up(self, loops: LoopProgram) -> None:
        """Run the loops without machine code, however slowly; where that cannot be done either,
        executions fail."""


class Backend(Protocol):
    """A kind of machine, and the very one of it that code is generated for.

    Equal backends make the same kernels of the same programs.
    """

    @property
    def machines(self) -> str:
        """What people call them: "CPUs"."""

    @property
    def target(self) -> Target:
        """The machine as code generation sees it."""

    @property
    def generator(self) -> ByTemplates:
        """What makes loops of kernels by templates, and candidates for tuning."""

    @property
    def limits(self) -> FusionLimits:
        """What its kernels may be made of, and what is left to XLA and why."""

    @property
    def refusals(self) -> tuple[type[CodegenError], ...]:
        """Errors that say that a kernel is not to be; all others are faults of ours."""

    @property
    def has_checks(self) -> bool:
        """Whether kernels can check every access (`HLO_MLC_CHECK=1`)."""

    @property
    def is_bounded(self) -> bool:
        """Whether a program may have so many lines of source only (`compiler.most_lines_for`)."""

    @property
    def suffixes(self) -> tuple[str, str]:
        """Of the files of a dump with the source and the listing of a kernel."""

    @property
    def variant(self) -> str:
        """What the ids of its kernels end in."""

    @property
    def identity(self) -> str:
        """All that the machine code of a kernel depends on, but for our own sources."""

    @property
    def decides(self) -> str | None:
        """All that what is decided of a program depends on, but for our own sources, settings and
        records; None where what becomes of programs is not kept for other processes."""

    def require(self) -> None:
        """Raises: CodegenError where what assembles its kernels is missing, with what to do."""

    def warm_up(self) -> None:
        """Do what the first kernel would wait for."""

    # What is decided of a program.

    def in_parts(self, graph: Graph, options: Options) -> Graph:
        """The simplified graph with complex numbers as two real ones each, simplified again; the
        very graph where kernels do not gain by that."""

    def chooser(self, options: Options) -> Chooser:
        """Whether a cluster is taken, by `options.choose`."""

    @property
    def costs(self) -> Costs:
        """What is asked where it is decided what is computed together."""

    def weighed(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        """The plan that `choose="auto"` predicts to be best for the program as a whole, without the
        kernels that are `refused`."""

    def divided(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        """The plan with kernels that serve more than this program, without those `refused`, where
        it is one of a kind."""

    def least_us(self, node: Node) -> float:
        """What an operation that is not modelled takes at least."""

    # What is made of a kernel.

    def schedules(self, kernel: Kernel, options: Options) -> Schedules:
        """What tuning has found for the kernel; nothing where it was not tuned."""

    def print(self, loops: LoopProgram, checked: bool, most_lines: int) -> Source:
        """Proved loops as source of `most_lines` at most.

        Raises: CodegenError for what cannot be printed.
        """

    def listing(self, made: KernelObject, source: Source | None) -> str:
        """What a person may want to see of the machine code; `source` is there unless it was not
        needed."""

    def load(self, kernel: Kernel, made: KernelObject) -> BuiltKernel:
        """The kernel in memory; nobody calls it yet."""

    @property
    def promise(self) -> Callable[[Kernel, KernelObject], PromisedKernel] | None:
        """Makes of a kernel, and its object without code, what programs are loaded with before
        there is code; None where they need the code."""

    # What is handed over.

    def completed(self, graph: Graph, built: Mapping[str, BuiltKernel]) -> Graph:
        """The rewritten graph with what calls of these kernels need besides."""

    def reported(self, report: Report, plan: Plan, options: Options) -> Report:
        """The report with what is known of such machines alone."""
