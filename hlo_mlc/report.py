"""What became of a program: which parts run in our kernels, how, and why the rest does not."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.partition.estimate import Prediction
from hlo_mlc.runtime.records import Measured
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.wording import WIDTH, byte_size, counted, duration, short_line, wrapped


@dataclass(frozen=True, slots=True)
class NestReport:
    """How one nest of a kernel is computed."""

    template: str
    parameters: dict[str, int]
    refused: tuple[tuple[str, str], ...]  # (template, why it was not taken)
    text: str  # the stages in one line
    steps: tuple[str, ...] | None = None  # from the template's naive loops, if a person took them


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel: what it computes and what it is expected to cost.

    `id` is its identity, the hash of what it computes; `name` is for people. `calls` is how often
    one call of the program runs it, in all its places, as far as that is known.
    `data_dependent` says that its time depends on the values of its operands: it may not be run on
    made-up ones.  `kept` is what keeps it callable as long as somebody has the report.
    """

    id: str
    name: str
    ops: tuple[str, ...]
    locations: tuple[str, ...]
    nests: tuple[NestReport, ...]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    bytes: int  # read and written at the border
    operations: int  # rough number of simple ones
    contraction_flops: int  # exact: two for each multiply-add, four where it is in 64 bits
    data_dependent: bool
    ours_us: float  # predicted
    xla_us: float
    reason: str
    fault: str = ""  # why XLA is better not asked to compute it
    uses: int = 1
    calls: int = 1
    proof: str = ""  # what was shown of its loops, and what is checked at run time
    resources: tuple[str, ...] = ()  # on a GPU: what each of its functions needs
    tuned: Measured | None = None  # when its schedule was found, if it was
    kept: object = field(default=None, repr=False, compare=False)

    @property
    def by_hand(self) -> str:
        """`scheduled by hand: 5 steps`; "" where nobody did."""
        taken = [nest.steps for nest in self.nests if nest.steps is not None]
        return f"scheduled by hand: {counted(sum(map(len, taken)), 'step')}" if taken else ""

    def as_dict(self) -> dict[str, object]:
        """The same for machines: of what JSON knows only."""
        return {
            "name": self.name,
            "id": self.id,
            "ops": list(self.ops),
            "locations": list(self.locations),
            "uses": self.uses,
            "calls": self.calls,
            "operands": list(map(str, self.operands)),
            "results": list(map(str, self.results)),
            "bytes": self.bytes,
            "operations": self.operations,
            "contraction_flops": self.contraction_flops,
            "data_dependent": self.data_dependent,
            "predicted": {"ours_us": self.ours_us, "xla_us": self.xla_us, "reason": self.reason},
            "fault": self.fault,
            "nests": [asdict(nest) for nest in self.nests],
            "tuned": None if self.tuned is None else asdict(self.tuned),
            "proof": self.proof,
            "resources": list(self.resources),
        }


@dataclass(frozen=True, slots=True)
class LeftReport:
    """An op that stays with XLA, or begins a kernel, and why.

    What XLA might have fused is one `part`, whose predicted time the ops of it share: `us` is what
    one call of the program needs for this one, at least.
    """

    op: str
    location: str
    reason: str
    part: str = ""
    us: float = 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole program with our kernels timed in turns with the untouched one, on made-up
    arguments (choose="measure") or the caller's; `speedup` is the median over the pairs of XLA's
    time / ours.  Where it was timed in turns with what was predicted to be faster, `against` is
    "auto", and `xla_us` and `speedup` are of that."""

    candidate: str  # "ours" (all that can be compiled) or "auto" (what is predicted to be faster)
    ours_us: float
    xla_us: float
    speedup: float
    against: str = "xla"

    def __str__(self) -> str:
        other = "XLA" if self.against == "xla" else f'"{self.against}"'
        return (
            f'measured: choose="{self.candidate}" {duration(self.ours_us)}, '
            f"{other} {duration(self.xla_us)} ({other} / ours {self.speedup:.2f})"
        )


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one call of a kernel takes, alone and with its operands in the caches where they fit.

    `share` is the least time that the machine's limits allow / the time taken.
    """

    us: float
    share: float


Page = Callable[[str | os.PathLike[str]], Path]
"""Writes a page for a browser at a path."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was compiled and what stays with XLA, and why.

    `coverage` is the share of the module's non-trivial operations that run in our kernels, 0 to 1,
    counted in the module that is handed to XLA.
    """

    coverage: float
    reasons: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # what was measured of the whole
    kernels: tuple[KernelReport, ...] = ()
    left: tuple[LeftReport, ...] = ()
    apart: tuple[LeftReport, ...] = ()  # ops in kernels that did not join those before them
    predicted: Prediction | None = None  # unless a part of it is not modelled
    taken: Prediction | None = None  # of what our kernels compute
    rejected: Prediction | None = None  # of what is left to XLA and could be compiled
    settled_at: Path | None = None  # where it is kept what calls settle, if they are to
    level: str = ""  # of CPUs that it was compiled for, if not for this machine
    background: str = ""  # what has come of tuning in the background, if it is asked for
    advice: str = ""  # what its author may do about the reasons
    seconds: float = 0.0  # spent in our compiler
    stage_seconds: dict[str, float] = field(default_factory=dict)
    page: Page | None = field(default=None, repr=False, compare=False)  # what writes one on it
    # Kernels that other numbers of rows need: callable as long as somebody has the report.
    for_other_rows: tuple[object, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def untouched(cls, reason: str, advice: str = "") -> Report:
        """The report on a program that stays with XLA as a whole."""
        return cls(coverage=0.0, reasons=(reason,), advice=advice)

    @classmethod
    def of_parts(cls, parts: Sequence[Report], left: Sequence[LeftReport]) -> Report:
        """The report on a program that is compiled in parts, with what is in none of them."""
        kernels: dict[str, KernelReport] = {}
        for kernel in (kernel for part in parts for kernel in part.kernels):
            known = kernels.get(kernel.id)
            kernels[kernel.id] = (
                kernel
                if known is None
                else replace(known, uses=known.uses + kernel.uses, calls=known.calls + kernel.calls)
            )
        everything = (*left, *(item for part in parts for item in part.left))
        taken = sum(len(kernel.ops) * kernel.uses for kernel in kernels.values())
        stages = Counter[str]()
        for part in parts:
            stages.update(part.stage_seconds)
        return cls(
            taken / (taken + len(everything)) if taken else 0.0,
            tuple(dict.fromkeys(reason for part in parts for reason in part.reasons)),
            kernels=tuple(kernels.values()),
            left=everything,
            apart=tuple(item for part in parts for item in part.apart),
            level=next((part.level for part in parts if part.level), ""),
            advice=next((part.advice for part in parts if part.advice), ""),
            seconds=sum(part.seconds for part in parts),
            stage_seconds=dict(stages),
        )

    @property
    def ours_us(self) -> float:
        """What our kernels are predicted to take of one call."""
        return sum(kernel.calls * kernel.ours_us for kernel in self.kernels)

    @property
    def left_us(self) -> float:
        """What is left to XLA is predicted to take at least."""
        return sum(left.us for left in self.left)

    @property
    def time_coverage(self) -> float:
        """The share of a call's predicted time that our kernels take, 0 to 1."""
        return time_share(self.ours_us, self.left_us, bool(self.kernels))

    @property
    def is_measured(self) -> bool:
        """Whether the whole was timed in turns with XLA's own program."""
        return any(one.against == "xla" for one in self.comparisons)

    @property
    def speedup(self) -> float:
        """How many times as fast as by XLA alone a call is: as measured, else as predicted."""
        if self.is_measured:
            best = max(one.speedup for one in self.comparisons if one.against == "xla")
            return best if self.kernels else 1.0
        if self.predicted is not None:
            return self.predicted.xla_us / self.predicted.ours_us
        by_xla = sum(kernel.calls * kernel.xla_us for kernel in self.kernels)
        total = self.ours_us + self.left_us
        return (by_xla + self.left_us) / total if total else 1.0

    def __str__(self) -> str:
        """What is shown at a prompt; `explain()` has all."""
        kernels = [
            f"  {kernel.name}: predicted {kernel.ours_us:.1f} us, XLA {kernel.xla_us:.1f} us"
            for kernel in self.kernels
        ]
        left = [line for reason in self.left_lines() for line in wrapped(reason)]
        return "\n".join(
            [
                self.headline,
                *map(str, self.comparisons),
                *self.reasons,
                *kernels,
                *(["left to XLA:", *left] if left else []),
            ]
        )

    __repr__ = __str__

    @property
    def headline(self) -> str:
        """The report in one line."""
        count, calls = len(self.kernels), sum(kernel.uses for kernel in self.kernels)
        kernels = counted(count, "kernel")
        called = f" ({calls} calls)" if calls > count else ""
        level = f" for {self.level}" if self.level else ""
        return (
            f"coverage: {self.time_coverage:.0%} of the time and {self.coverage:.0%} of the "
            f"operations in {kernels}{called}; compiled{level} in {self.seconds * 1e3:.0f} ms"
        )

    def explain(self, measured: Mapping[str, KernelTime] | None = None) -> str:
        """The report as text for a person, with the kernels' times (by id) that were measured."""
        lines = [*wrapped(self.headline, ""), *map(str, self.comparisons), *self.reasons]
        if self.predicted is not None:
            lines.append(str(self.predicted))
        if self.stage_seconds:
            stages = [
                f"{stage} {seconds * 1e3:.1f}" for stage, seconds in self.stage_seconds.items()
            ]
            lines += wrapped(f"milliseconds: {', '.join(stages)}")
        for kernel in self.kernels:
            lines += ["", *_kernel_lines(kernel, (measured or {}).get(kernel.id))]
        for title, items in (
            ("left to XLA:", self.left),
            ("not joined to what comes before them:", self.apart),
        ):
            if items:
                lines += ["", title]
                for reason, what in _by_reason(items):
                    lines += [*wrapped(reason), *wrapped(what, "    ")]
        refusals = _refusals(self.kernels)
        if refusals:
            lines += ["", "templates that do not apply:", *refusals]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The report for machines: of what JSON knows only."""
        return {
            "coverage": {"time": self.time_coverage, "operations": self.coverage},
            "time": {
                "ours_us": self.ours_us,
                "left_us": self.left_us,
                "ours_share": self.time_coverage,
                "speedup": self.speedup,
                "speedup_is_measured": self.is_measured,
            },
            "kernels": [kernel.as_dict() for kernel in self.kernels],
            "left": [asdict(left) for left in self.left],
            "apart": [asdict(apart) for apart in self.apart],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "predicted": None if self.predicted is None else asdict(self.predicted),
            "reasons": list(self.reasons),
            "advice": [self.advice] if self.advice else [],
            "level": self.level,
            "background": self.background,
            "compile_seconds": self.seconds,
            "stage_seconds": dict(self.stage_seconds),
        }

    def html(self, path: str | os.PathLike[str]) -> Path:
        """Measures the kernels and writes all of it as a page for a browser, as
        `explain(...).html` does.

        Raises: UsageError where the page cannot be written, or it is not known of what.
        """
        if self.page is None:
            raise UsageError(
                "A page shows how the function is compiled: give report(...) the "
                "arguments that it is called with"
            )
        return self.page(path)

    def left_lines(self) -> list[str]:
        """Why ops stay with XLA, a line for each reason."""
        return [f"{reason}: {what}" for reason, what in _by_reason(self.left)]


FAULT_ADVICE = (
    "that is a fault of ours: the warning at your line names a folder with what shows "
    "it again, which we would like to see"
)


def time_share(ours_us: float, left_us: float, any_kernel: bool) -> float:
    """The share of both that is ours; of a program that does nothing, whether there is anything."""
    total = ours_us + left_us
    return ours_us / total if total else float(any_kernel)


def _by_reason(items: Iterable[LeftReport]) -> list[tuple[str, str]]:
    """Each reason with the ops that it is about and the lines that they come from."""
    grouped: dict[str, list[LeftReport]] = {}
    for item in items:
        grouped.setdefault(item.reason, []).append(item)
    return [
        (
            reason,
            " ".join(
                (op_counts(item.op for item in group), *places(item.location for item in group))
            ),
        )
        for reason, group in grouped.items()
    ]


def places(locations: Iterable[str]) -> list[str]:
    """`at model.py:12, model.py:15`: the user's lines; where none is known, what JAX names."""
    found = [_LOCATION.fullmatch(location) for location in locations if location]
    here = str(Path.cwd()) + os.sep
    lines = dict.fromkeys(place["line"].removeprefix(here) for place in found if place["line"])
    word, shown = (
        ("at", list(lines))
        if lines
        else ("in", list(dict.fromkeys(place["name"] for place in found)))
    )
    more = f" and {len(shown) - _PLACES} more" if len(shown) > _PLACES else ""
    return [f"{word} {', '.join(shown[:_PLACES])}{more}"] if shown else []


def lines_of(locations: Iterable[str]) -> str:
    """`model.py:7, 12-15`: the user's lines in order, each file named once; "" for none."""
    numbers: dict[str, set[int]] = {}
    for location in locations:
        if line := short_line(location):
            file, _, number = line.rpartition(":")
            numbers.setdefault(file, set()).add(int(number))
    return ", ".join(
        f"{file}:{', '.join(_ranges(sorted(lines)))}" for file, lines in numbers.items()
    )


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """`7`, `12-15`: runs of numbers."""
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        first, *rest = (number for _, number in run)
        yield f"{first}-{rest[-1]}" if rest else str(first)


_LOCATION = re.compile(r"(?:(?P<line>\S.*?:\d+)(?: |$))?(?P<name>.*)")
_PLACES = 6  # of one kernel or reason, to be shown


def _kernel_lines(kernel: KernelReport, time: KernelTime | None) -> list[str]:
    uses = f", called at {kernel.uses} places" if kernel.uses > 1 else ""
    operands, results = (", ".join(map(str, types)) for types in (kernel.operands, kernel.results))
    lines = [
        f"{kernel.name}{uses} ({kernel.id})",
        *wrapped(op_counts(kernel.ops)),
        *(line for where in places(kernel.locations) for line in wrapped(where)),
        *wrapped(f"({operands}) -> ({results})"),
        f"  {_work(kernel)}",
        *wrapped(
            f"predicted {kernel.ours_us:.1f} us, XLA {kernel.xla_us:.1f} us ({kernel.reason})"
        ),
    ]
    if kernel.tuned is not None:
        lines += wrapped(_gain(kernel))
    if time is not None:
        lines.append(f"  measured {time.us:.1f} us, {time.share:.0%} of what this machine can do")
    elif kernel.data_dependent:
        lines.append("  not measured: its time depends on the values of its operands")
    for line, nests in itertools.groupby(map(nest_line, kernel.nests)):
        count = len(list(nests))
        lines += _folded(line if count == 1 else f"{count} times {line}")
    if kernel.proof:
        lines += wrapped(kernel.proof)
    return [*lines, *(f"  {line}" for line in kernel.resources)]


def _work(kernel: KernelReport) -> str:
    """What a kernel has to do."""
    work = [f"{byte_size(kernel.bytes)} read and written"]
    if kernel.contraction_flops:
        work.append(f"{kernel.contraction_flops:,} flops of products")
    if kernel.operations:
        work.append(f"{kernel.operations:,} simple operations")
    return ", ".join(work)


def _folded(nest: str) -> list[str]:
    """The line of a nest as two, template and text, if it is too long for one."""
    if len(nest) + len("  ") <= WIDTH:
        return [f"  {nest}"]
    template, _, text = nest.partition("): ")
    return [f"  {template}):", f"    {text}"]


def _refusals(kernels: Iterable[KernelReport]) -> list[str]:
    """Which templates were not taken and why, of all nests together: most have the same reasons."""
    counts: dict[str, dict[str, int]] = {}
    for template, reason in (
        refusal for kernel in kernels for nest in kernel.nests for refusal in nest.refused
    ):
        reasons = counts.setdefault(template, {})
        reasons[reason] = reasons.get(reason, 0) + 1
    lines: list[str] = []
    for template, reasons in counts.items():
        listed = ", ".join(
            reason if count == 1 else f"{reason} ({count} nests)"
            for reason, count in reasons.items()
        )
        lines += wrapped(f"not {template}: {listed}")
    return lines


def _gain(kernel: KernelReport) -> str:
    """What tuning gained, or a person."""
    tuned = kernel.tuned
    if kernel.by_hand:
        return f"{kernel.by_hand}, {tuned}"
    if tuned.speedup <= 1:
        return f"tuned: no schedule was faster than the default, {tuned.default_us:.1f} us"
    return f"tuned: {tuned}"


def nest_line(nest: NestReport) -> str:
    """The template, its parameters, and what is computed: `reduction(rows=4): 64 over 128`; of what
    a person scheduled the steps."""
    if nest.steps is not None:
        return f"by hand({'; '.join(nest.steps)}): {nest.text}"
    parameters = ", ".join(f"{name}={value}" for name, value in nest.parameters.items())
    return f"{nest.template}({parameters}): {nest.text}"


def op_counts(ops: Iterable[str]) -> str:
    """How many of each op, in order of first occurrence: `exponential, 2 add`."""
    counts: dict[str, int] = {}
    for op in ops:
        name = op.partition(".")[2]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts.items())
