"""What became of a function, at a glance: where a call's time goes, and what may be done about it.

Every kernel is run alone to see how near it comes to the machine's limits.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from hlo_mlc.backends.cpu import CpuKernel, cpu_backend, target_of
from hlo_mlc.building import built_kernel
from hlo_mlc.limits import MachineLimits, best_us, machine_limits
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.registry import DEFINITIONS, MOVEMENT, SUMMING
from hlo_mlc.page import page_html
from hlo_mlc.report import (
    KernelReport,
    KernelTime,
    LeftReport,
    Report,
    lines_of,
    op_counts,
    time_share,
)
from hlo_mlc.runtime.files import JOURNAL, writable, write_for_others
from hlo_mlc.runtime.measure import bind_kernel, made_up
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import WIDTH, counted, duration, wrapped

_SECONDS_EACH = 0.02
_LARGEST_BYTES = 1 << 30  # of operands and results that are made up for a kernel
_LEAST_GAIN_US = 10.0  # what a call of a program costs (`hlo-mlc doctor`): less is hardly seen
_NEAR_LIMIT = 0.9  # from this share of it on, no schedule is much faster
_OUTDATED_SHARE = 1.25  # of limits that were measured while something else ran
_MOST_LINES = 30  # that a terminal shows at once, with the prompt
_MOST_KERNELS = 10
_ENOUGH = 6  # lines for the kernels: an empty one, the head, three, and what is not shown
# What of the rest is shown, so that there is room for kernels: parts that are left to XLA, and
# lines of reasons and of advice.
_MOST_LEFT, _MOST_REASON, _MOST_ADVICE = 3, 3, 5
LEFT = "left to XLA, the costliest first, with the least time that it can take:"
_LEAST_WHAT = 8  # characters of a kernel's name that say what it computes
_LONGEST_NAME = 32  # of a function, where what is said of it has to fit a line
_EVEN = 0.02  # of a ratio: less is the same time


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a function: `print` shows it in 30 lines at most, or with all there is to say
    if it is `verbose`; `as_dict()` has the same as data.

    `times` are those of kernels that were run alone, by their ids, and `limits` what they were
    compared with. `compile_again` compiles the
    same with other options, for who wants to watch.
    """

    name: str
    report: Report
    times: Mapping[str, KernelTime]
    options: Options
    verbose: bool = False
    compile_again: Callable[[Options], Report] | None = field(
        default=None, repr=False, compare=False
    )
    limits: MachineLimits | None = None

    def __str__(self) -> str:
        return "\n".join(self._long() if self.verbose else self._short())

    __repr__ = __str__  # what a person sees who asks for it at a prompt

    @property
    def kernels(self) -> list[KernelReport]:
        """The kernels, those that take the largest share of a call first."""
        return sorted(self.report.kernels, key=lambda kernel: -self.us(kernel))

    def us(self, kernel: KernelReport) -> float:
        """What a kernel takes of one call of the function: as measured, else as predicted."""
        time = self.times.get(kernel.id)
        return kernel.calls * (kernel.ours_us if time is None else time.us)

    @property
    def ours_us(self) -> float:
        """What our kernels take of one call."""
        return sum(map(self.us, self.report.kernels))

    @property
    def advice(self) -> list[str]:
        """What may be done next, the most promising first."""
        found = advice_on(self.report, self.times, self.options)
        if self.report.kernels and not self.report.is_measured and self.name.isidentifier():
            name = self.name if len(self.name) <= _LONGEST_NAME else "function"
            found.append(f"hlo_mlc.compare({name}, ...) times both sides on your arguments")
        return found

    def as_dict(self) -> dict[str, object]:
        """The same for machines: of what JSON knows only."""
        report = self.report
        found = report.as_dict()
        share = time_share(self.ours_us, report.left_us, bool(report.kernels))
        return {
            "function": self.name,
            **found,
            "time": {**found["time"], "ours_us": self.ours_us, "ours_share": share},
            "kernels": [
                {
                    **kernel.as_dict(),
                    "us": self.us(kernel),
                    "measured": asdict(self.times[kernel.id]) if kernel.id in self.times else None,
                }
                for kernel in self.kernels
            ],
            "advice": self.advice,
        }

    def html(self, path: str | os.PathLike[str]) -> Path:
        """Writes all of it as a page for a browser, with the user's lines, loops, LLVM IR and
        assembly of each kernel and every stage of the compilation, which is done once more to see
        them; it needs no network.

        Raises: UsageError where the page cannot be written, or it is not known of what.
        """
        if self.compile_again is None:
            raise UsageError(
                "A page shows how the function is compiled: give explain(...) the "
                "arguments that it is called with"
            )
        file = writable(path, "a page")
        with tempfile.TemporaryDirectory(prefix="hlo_mlc_page_") as folder:
            self.compile_again(self.options.replace(dump_dir=Path(folder), settle=False))
            page = page_html(
                self.as_dict(),
                self.report,
                Path(folder),
                target_of(self.options),
                self.limits,
                self.options.cache_dir / JOURNAL,
            )
        write_for_others(file, page.encode(), "a page")
        return file

    def _short(self) -> list[str]:
        """At most `_MOST_LINES`: the head and what follows are never cut, kernels are."""
        head, advice = self._head(), self._advice_lines()
        most = _MOST_LINES - len(head) - len(advice)
        # Reasons are whole where each kernel still has its line, or that of the costliest part is.
        one_for_each = 2 + len(self.report.kernels)
        for whole, enough in ((_MOST_LEFT, one_for_each), (1, _ENOUGH), (0, 0)):
            left = self._left_lines(whole)
            if most - len(left) >= enough:
                break
        return [*head, *self._kernel_lines(most - len(left)), *left, *advice]

    def _long(self) -> list[str]:
        lines = [*self._head(), "", self.report.explain(self.times)]
        return [*lines, *self._advice_lines()]

    def _head(self) -> list[str]:
        report, name = self.report, shortened(self.name, _LONGEST_NAME)
        if not report.kernels:
            lines = [f"{name}: XLA runs all of it"]
            if not report.reasons and not report.left:
                lines += wrapped("there is nothing in it that a kernel could do")
        else:
            share = time_share(self.ours_us, report.left_us, True)
            kernels = counted(len(report.kernels), "kernel")
            known = sum(kernel.id in self.times for kernel in report.kernels)
            how = (
                "measured"
                if known == len(report.kernels)
                else "predicted"
                if not known
                else f"{known} of {len(report.kernels)} measured"
            )
            rest = f"{duration(report.left_us)} or more" if report.left_us else "nothing"
            level = f", compiled for {report.level}" if report.level else ""
            lines = [
                f"{name}: {self._gain()}{level}",
                f"coverage: {share:.0%} of the time and {report.coverage:.0%} of the "
                f"operations, in {kernels} of ours",
                *wrapped(
                    f"time of a call: {duration(self.ours_us)} in our kernels ({how}), "
                    f"{rest} in XLA's",
                    "",
                ),
            ]
        reasons = [line for reason in report.reasons for line in wrapped(reason)]
        lines += reasons if len(reasons) <= _MOST_REASON else [*reasons[: _MOST_REASON - 1], "  …"]
        lines += [f"  {comparison}" for comparison in report.comparisons]
        if report.background:
            lines += wrapped(f"tuning in the background: {report.background}")
        if self.options.deterministic:
            lines += wrapped(
                "deterministic: our kernels give the same bits on any number of threads"
            )
        return list(map(_cut, lines))

    def _gain(self) -> str:
        """How much faster a call is than by XLA alone, and how that is known."""
        how = "measured" if self.report.is_measured else "predicted"
        speedup = self.report.speedup
        if abs(speedup - 1) <= _EVEN:
            return f"as fast as by XLA alone ({how})"
        return f"{speedup:.2f}x as fast as by XLA alone ({how})"

    def _kernel_lines(self, room: int) -> list[str]:
        """The kernels with the largest shares in a table of at most `room` lines: an empty one, its
        head, and one for all that are not shown."""
        if not self.report.kernels:
            return []
        total = self.ours_us + self.report.left_us
        most = min(_MOST_KERNELS, room - 3)
        shown, more = self.kernels[:most], self.kernels[most:]
        lines = [f"{'share':>6} {'time':>9} {'XLA/ours':>9} {'of limit':>9}  kernel"]
        rows = [self._row(kernel, total) for kernel in shown]
        after = []
        if more:
            us = sum(map(self.us, more))
            after = [
                f"{_percent(us, total):>6} {duration(us):>9} {'':19}  "
                f"and {counted(len(more), 'kernel')} more (verbose=True)"
            ]
        spare = room - 1 - len(lines) - len(rows) - len(after)
        for number, (kernel, row) in enumerate(zip(shown, rows, strict=True)):
            lines.append(row)
            if number < spare:
                lines.append(_cut(f"{'':8}{kernel.fault or _contents(kernel)}"))
        return ["", *lines, *after]

    def _row(self, kernel: KernelReport, total: float) -> str:
        time, us = self.times.get(kernel.id), self.us(kernel)
        limit = f"{min(time.share, 1.0):.0%}" if time is not None else "-"
        tuned = kernel.tuned.xla_ratio if kernel.tuned is not None else 0.0
        ratio = tuned or kernel.xla_us / max(kernel.ours_us, 1e-9)
        about = "" if tuned else "~"
        calls = f" x{kernel.calls}" if kernel.calls > 1 else ""
        figures = (
            f"{_percent(us, total):>6} {duration(us):>9} {about + f'{ratio:.2f}x':>9} {limit:>9}  "
        )
        return f"{figures}{_fitting(kernel.name, WIDTH - len(figures) - len(calls))}{calls}"

    def _left_lines(self, whole: int) -> list[str]:
        """What stays with XLA, the costliest of it, and why, in two lines for the first so many, if
        there is room for their `whole` reasons; parts that differ in nothing but their numbers are
        one."""
        parts: dict[tuple[str, str], list[LeftReport]] = {}
        for left in self.report.left:
            parts.setdefault((_NUMBER.sub("", left.part), left.reason), []).append(left)
        groups = sorted(parts.items(), key=lambda part: -sum(one.us for one in part[1]))
        if not groups:
            return []
        lines = ["", LEFT]
        for place, ((name, reason), group) in enumerate(groups[:_MOST_LEFT]):
            us, count = sum(one.us for one in group), len({one.part for one in group})
            what = name or op_counts(one.op for one in group)
            what += f" x{count}" if count > 1 else ""
            about = f"{duration(us):>9}" if us else f"{'':9}"
            line = f"{about}  {what}: {reason}"
            lines += (
                [line]
                if len(line) <= WIDTH
                else [
                    _cut(f"{about}  {what}:"),
                    *(_two_lines(reason) if place < whole else [_cut(f"{'':13}{reason}")]),
                ]
            )
        if more := groups[_MOST_LEFT:]:
            us = sum(one.us for _, group in more for one in group)
            count = sum(len({one.part for one in group}) for _, group in more)
            lines.append(f"{duration(us):>9}  {count} more (verbose=True)")
        return lines

    def _advice_lines(self) -> list[str]:
        lines = []
        for advice in self.advice:
            mark = "next: " if not lines else "      "
            lines += wrapped(advice, mark, " " * len(mark))
        return ["", *lines[:_MOST_ADVICE]] if lines else []


def explain(
    report: Report,
    options: Options,
    name: str,
    verbose: bool = False,
    compile_again: Callable[[Options], Report] | None = None,
) -> Explanation:
    """What there is to say of a function; kernels whose time does not depend on their operands'
    values are timed.

    The first one on a machine also measures the machine, for a second.
    """
    times, limits = measure_kernels(report, options)
    return Explanation(name, report, times, options, verbose, compile_again, limits)


def _percent(part: float, whole: float) -> str:
    if not whole:
        return "-"
    return "<1%" if 0 < part < 0.005 * whole else f"{part / whole:.0%}"


def _contents(kernel: KernelReport) -> str:
    """The ops of a kernel and the user's lines that it computes, in one line; who scheduled it."""
    where = lines_of(kernel.locations)
    named = kernel.name.partition("@")[2]
    where = "" if where == named else f" at {where}"
    by_hand = f"{kernel.by_hand}; " if kernel.by_hand else ""
    ops = op_counts(
        sorted((op for op in kernel.ops if op not in MOVEMENT), key=_renown) or kernel.ops
    )
    room = max(WIDTH - 8 - len(where), _LEAST_OPS) - len(by_hand)
    if len(ops) > room:
        ops = f"{ops[: room - 3].rpartition(',')[0]}, …"
    return f"{by_hand}{ops}{where}"


_LEAST_OPS = 40  # columns: the lines are cut before the ops have less


def _renown(op: str) -> int:
    """What a kernel is known by comes first: folds, products, then functions, arithmetic last."""
    if op not in DEFINITIONS or op in SUMMING:
        return 0
    return (
        1
        if DEFINITIONS[op].kind is not OpKind.ELEMENTWISE
        else 2
        if DEFINITIONS[op].cost > 1
        else 3
    )


_NUMBER = re.compile(r"#\d+(?=@|$)")  # of kernels with the same name


def _two_lines(reason: str) -> list[str]:
    """A reason, indented, of which a second line may be cut."""
    first, *more = wrapped(reason, " " * 13)
    return [first, _cut(f"{'':13}{' '.join(map(str.strip, more))}")] if more else [first]


def _fitting(name: str, room: int) -> str:
    """A kernel's name in so much room: what it computes is cut, rather than the line."""
    what, at, line = name.partition("@")
    room_for_what = room - len(at) - len(line)
    return (
        f"{shortened(what, room_for_what)}{at}{line}"
        if room_for_what >= _LEAST_WHAT
        else shortened(name, room)
    )


def is_shown_as(name: str, shown: str) -> bool:
    """Whether what is shown, by a table that has no room for all of it, is this kernel's name."""
    begin, cut, end = shown.partition("…")
    return name.startswith(begin) and name.endswith(end) if cut else name == shown


def _cut(line: str) -> str:
    """A line that a terminal does not fold."""
    return shortened(line, WIDTH)


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, and a dot in place of the rest."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def advice_on(report: Report, times: Mapping[str, KernelTime], options: Options) -> list[str]:
    """What the user may try next, a line for each."""
    lines = [report.advice] if report.advice else []
    if not report.kernels and report.left and report.rejected is None:
        lines.append("nothing: there are no kernels of ours for this so far")
    gains = {
        kernel.name: kernel.calls * times[kernel.id].us * (1 - times[kernel.id].share)
        for kernel in report.kernels
        if kernel.id in times and kernel.tuned is None and times[kernel.id].share < _NEAR_LIMIT
    }
    name = max(gains, key=gains.__getitem__, default="")
    can_change = not options.deterministic
    if can_change and name and gains[name] >= _LEAST_GAIN_US:
        lines.append(f"tune(...) may find faster schedules, above all for {name}")
    if (
        can_change
        and options.choose == "auto"
        and report.predicted is not None
        and report.left_us >= _LEAST_GAIN_US
    ):
        lines.append('choose="measure" runs both sides, where a prediction may be wrong')
    if any(time.share > _OUTDATED_SHARE for time in times.values()):
        lines.append(
            "kernels are faster than what was measured of this machine, while it was "
            "busy: `hlo-mlc doctor --refresh` measures it again"
        )
    return lines


def measure_kernels(
    report: Report, options: Options
) -> tuple[dict[str, KernelTime], MachineLimits | None]:
    """The time of each kernel of the report, by its id, as far as it can be measured here, and the
    limits that the times were compared with, if there are any."""
    times: dict[str, KernelTime] = {}
    limits: MachineLimits | None = None
    for kernel in report.kernels:
        backend = cpu_backend(options)
        built = built_kernel(kernel.id, backend, options.check)
        if isinstance(built, CpuKernel) and _is_measurable(kernel):
            limits = limits or machine_limits(options)  # once: a busy machine is measured again
            times[kernel.id] = _measure(kernel, built, backend.target.cores, limits)
    return times, limits


def _is_measurable(kernel: KernelReport) -> bool:
    size = sum(t.bytes for t in (*kernel.operands, *kernel.results))
    on_gpu = bool(kernel.resources)
    return not on_gpu and not kernel.data_dependent and size <= _LARGEST_BYTES


def _measure(
    kernel: KernelReport, built: CpuKernel, threads: int, limits: MachineLimits
) -> KernelTime:
    rng = np.random.default_rng(0)
    operands, results = (
        [made_up(t.shape, t.dtype.numpy, rng) for t in types]
        for types in (kernel.operands, kernel.results)
    )
    us = best_us(bind_kernel(built.code, operands, results, threads=threads), _SECONDS_EACH)
    least = limits.least_us(kernel.bytes, kernel.contraction_flops)
    return KernelTime(us, least / us)
