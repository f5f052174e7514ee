"""What became of a program: which parts run in our kernels, how, and why the rest does not."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NestReport:
    """How one nest of a kernel is computed."""

    template: str
    parameters: dict[str, int]
    refused: tuple[tuple[str, str], ...]  # (template, why it was not taken)
    text: str  # the stages in one line


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel: what it computes and what it is expected to cost."""

    id: str
    name: str
    ops: tuple[str, ...]
    locations: tuple[str, ...]
    nests: tuple[NestReport, ...]
    bytes: int  # read and written at the border
    flops: int  # rough number of simple operations
    ours_us: float  # predicted
    xla_us: float
    reason: str
    uses: int = 1


@dataclass(frozen=True, slots=True)
class LeftReport:
    """An op that stays with XLA."""

    op: str
    location: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was compiled and what stays with XLA, and why.

    `coverage` is the share of the module's non-trivial operations that run in our kernels, 0 to 1,
    counted in the module that is handed to XLA.
    """

    coverage: float
    reasons: tuple[str, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    left: tuple[LeftReport, ...] = ()
    seconds: float = 0.0  # spent in our compiler
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def untouched(cls, reason: str) -> Report:
        """The report on a program that stays with XLA as a whole."""
        return cls(coverage=0.0, reasons=(reason,))

    def explain(self) -> str:
        """The report as text for a person."""
        lines = [f"coverage: {self.coverage:.0%} of the operations in {len(self.kernels)} kernels; "
                 f"compiled in {self.seconds * 1e3:.0f} ms", *self.reasons]
        for kernel in self.kernels:
            lines += ["", *_kernel_lines(kernel)]
        if self.left:
            lines += ["", "left to XLA:"]
            grouped: dict[tuple[str, str], list[str]] = {}
            for item in self.left:
                grouped.setdefault((item.op, item.reason), []).append(item.location)
            for (op, reason), places in grouped.items():
                where = f" at {places[0]}" if places[0] else ""
                more = f" and {len(places) - 1} more" if len(places) > 1 else ""
                lines.append(f"  {op}{where}{more}: {reason}")
        return "\n".join(lines)


def _kernel_lines(kernel: KernelReport) -> list[str]:
    uses = f", called {kernel.uses} times" if kernel.uses > 1 else ""
    lines = [f"{kernel.name}{uses}: {_summary(kernel.ops)}"]
    if kernel.locations:
        lines.append(f"  from {', '.join(kernel.locations[:4])}")
    lines.append(f"  {_size(kernel.bytes)} at the border, {kernel.flops:,} simple operations; "
                 f"predicted {kernel.ours_us:.1f} us, XLA {kernel.xla_us:.1f} us ({kernel.reason})")
    for nest in kernel.nests:
        parameters = ", ".join(f"{k}={v}" for k, v in nest.parameters.items())
        lines.append(f"  {nest.template}({parameters}): {nest.text}")
        lines += [f"    not {template}: {why}" for template, why in nest.refused]
    return lines


def _summary(ops: tuple[str, ...]) -> str:
    counts: dict[str, int] = {}
    for op in ops:
        name = op.partition(".")[2]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts.items())


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
