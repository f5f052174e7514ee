"""What came of tuning a function, for people."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.report import Comparison, op_counts
from hlo_mlc.runtime.records import OURS, XLA, Record, schedule_text
from hlo_mlc.support.wording import counted, table_lines

_HEADINGS = ("kernel", "default us", "best us", "default / best", "XLA / best", "of limit", "taken")
BUSY = 1.5
"""What tells a busy machine: median time / shortest. Idle ones show 1.02 to 1.2."""


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """What came of one kernel: its record, or the reason why there is none."""

    name: str
    ops: tuple[str, ...]
    uses: int
    record: Record | None
    reason: str = ""
    tried: int = 0
    failed: int = 0
    noise: float = 1.0
    given: bool = False  # measured on what the call gives it, not on made-up operands
    interrupted: bool = False  # before its budget was spent
    id: str = ""  # the kernel's fingerprint
    of_limit: float = 0.0  # share of what the machine can do at most; 0 if it is not known

    def __str__(self) -> str:
        uses = f", called at {self.uses} places" if self.uses > 1 else ""
        what = f"{self.name}{uses}: {op_counts(self.ops)}"
        if self.record is None:
            return f"{what}\n  not tuned: {self.reason}"
        tried = f"{counted(self.tried, 'configuration')} known, {self.failed} of them failed"
        lines = [what, f"  {tried if self.tried else 'nothing was tried: there was no time left'}"]
        if self.interrupted:
            lines.append("  interrupted: this is the winner so far")
        if self.noise > BUSY:
            lines.append(
                f"  the machine was busy: the same code took {self.noise:.1f} times its "
                "shortest time; tune again when it is not"
            )
        if self.record.measured.modelled:
            lines.append(f"  by a model of {self.record.target}: nothing was run")
        lines += [
            f"  nest {position}: {schedule_text(way)}"
            for position, way in sorted(self.record.schedules.items())
        ]
        if not self.record.schedules and self.tried:
            lines.append("  none is faster than the default schedule")
        return "\n".join(lines)

    @property
    def row(self) -> tuple[str, ...]:
        """What `TuningReport` tabulates of it."""
        if self.record is None:
            return (self.name, *["-"] * 5, "not tuned")
        best = self.record.measured
        ratio = f"{best.xla_ratio:.2f}" if best.xla_ratio else "-"
        taken = {OURS: "ours", XLA: "XLA's", "": "as predicted"}[self.record.choice]
        limit = f"{min(self.of_limit, 1.0):.0%}" if self.of_limit else "-"
        return (
            self.name,
            f"{best.default_us:.1f}",
            f"{best.ours_us:.1f}",
            f"{best.speedup:.2f}",
            ratio,
            limit,
            taken,
        )


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What came of a function's kernels, and of the function as a whole against XLA's."""

    kernels: tuple[TunedKernel, ...]
    whole: Comparison | None

    def __str__(self) -> str:
        if not self.kernels:
            return "there is nothing to tune in it"
        lines = [
            *map(str, self.kernels),
            "",
            *table_lines([_HEADINGS, *(k.row for k in self.kernels)], words=1),
        ]
        if self.whole is not None:
            lines.append(f"the whole function, {self.whole}")
            if self.whole.speedup < 1:
                lines.append('XLA is faster on the whole: choose="measure" keeps the faster one')
        recorded = [k for k in self.kernels if k.record is not None]
        modelled = sum(k.record.measured.modelled for k in recorded)
        if modelled:
            lines.append(
                f"{counted(modelled, 'kernel')} by a model: nothing was run, tune where "
                "there is such a GPU to measure"
            )
        invented = sum(not (k.given or k.record.measured.modelled) for k in recorded)
        if invented:
            lines.append(
                f"{counted(invented, 'kernel')} measured on made-up operands: without "
                "arrays in the call, and in loops of XLA's, there are no others"
            )
        return "\n".join(lines)


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C while tuning. `report` says what was found until then, which is kept."""

    def __init__(self, report: TuningReport) -> None:
        super().__init__(
            "tuning was interrupted; what was found until then is kept, and tuning "
            "again goes on from there"
        )
        self.report = report
