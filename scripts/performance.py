"""Writes docs/performance.md: cost against size over three decades, all cases on a roofline, the
same work through other packages, and programs that users reported slow or wrong.

    python scripts/performance.py              # measures for two minutes, on an idle machine
    python scripts/performance.py --draw       # draws again what was measured

What is measured is kept in docs/performance.json; what others need for the same work, and what
users reported, is measured by

    hlo-mlc bench --peers --json docs/peers.json
    hlo-mlc bench --group issues --neighbours --json docs/issues.json

and how near short searches for schedules come to long ones by scripts/tuning_goal.py, whether
derived schedules beat templates by scripts/derived.py.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import jax
from rich.progress import track

from hlo_mlc import mlc_jit
from hlo_mlc.limits import MachineLimits, machine_limits
from hlo_mlc.report import Report
from hlo_mlc.support.options import Options
from hlo_mlc_bench import peers as others
from hlo_mlc_bench import runner, timing
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.cases import BY_NAME, CASES
from hlo_mlc_bench.results import Results, Row, environment, load
from hlo_mlc_bench.script import arguments, errors_in_one_line
from hlo_mlc_bench.searches import SHORT, Derived, Found, known
from hlo_mlc_bench.svg import FAINT, LINE, OURS, XLA, document, text

_ROOT = Path(__file__).parents[1]
DOCS = _ROOT / "docs"
MEASURED, PEERS = DOCS / "performance.json", DOCS / "peers.json"
ISSUES = DOCS / "issues.json"
TUNED = _ROOT / "bench" / "results" / "tuning_goal.jsonl"
DERIVED = _ROOT / "bench" / "results" / "derived.jsonl"
HELD = _ROOT / "bench" / "results" / "zen5-2core-avx2.json"
_TRACKERS = {
    "jax": "jax-ml/jax",
    "xla": "openxla/xla",
    "tensorflow": "tensorflow/tensorflow",
    "Reactant.jl": "EnzymeAD/Reactant.jl",
    "sgkit": "sgkit-dev/sgkit",
}

AHEAD = 1.02  # so much faster is what two searches tell apart

_ROUNDS = 15
_WIDTH, _HEIGHT, _MARGIN, _GAP = 280, 220, 56, 64  # of a panel, around it, between two; pixels


def _square(size: int) -> dict[str, int]:
    return {"rows": size, "columns": size}


SCALED: Mapping[str, Sequence[Mapping[str, int]]] = {
    "exp": [{"size": round(10 ** (k / 2))} for k in range(6, 14)],
    "softmax": [_square(2**k) for k in range(5, 12)],
    "cumsum": [_square(2**k) for k in range(5, 12)],
    "matmul": [{"m": n, "k": n, "n": n} for n in (16, 32, 64, 128, 256, 512, 1024)],
    "attention": [{"batch": 1, "heads": 4, "length": 2**k, "width": 64} for k in range(5, 12)],
    "jacobi2d": [{**_square(2**k), "steps": 10} for k in range(5, 12)],
}
"""Cases by name, and the sizes that they are measured at: three decades of work at least."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A case at a size: elements of its arguments, and the milliseconds of a call."""

    name: str
    elements: int
    ours_ms: float
    jax_ms: float


@dataclass(frozen=True, slots=True)
class Work:
    """A case whose work is all in our kernels: what these move and compute in a call, and how long
    that takes."""

    name: str
    bytes: int
    operations: int
    ours_ms: float

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.operations / max(self.bytes, 1)

    @property
    def gops(self) -> float:
        """Billions of operations in a second."""
        return self.operations / self.ours_ms / 1e6


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the page shows."""

    environment: Mapping[str, Any]
    limits: Mapping[str, float]  # gflops, memory_gb_s, cache_gb_s (of the innermost one)
    costs: Sequence[Cost]
    works: Sequence[Work]

    @classmethod
    def read(cls, path: Path) -> Measured:
        found = json.loads(path.read_text())
        return cls(
            found["environment"],
            found["limits"],
            [Cost(**c) for c in found["costs"]],
            [Work(**w) for w in found["works"]],
        )


def cost_of(case: Case, compile_ours: Callable) -> Cost:
    """Both sides of a case in turns."""
    with case.in_its_mode():
        args = case.make()[1]
        runs = {
            "ours": _run(compile_ours(case.make()[0]), args),
            "jax": _run(jax.jit(case.make()[0]), args),
        }
        paces = timing.in_turns(runs, _ROUNDS)
    elements = sum(leaf.size for leaf in jax.tree.leaves(args))
    return Cost(
        case.name, elements, *(statistics.median(paces[name].in_a_row) * 1e3 for name in runs)
    )


def work_of(case: Case, compile_ours: Callable) -> Work | None:
    """What our kernels do in a call, where there is nothing else."""
    with case.in_its_mode():
        function, args = case.make()
        compiled = compile_ours(function)
        run = _run(compiled, args)
        seconds = timing.in_turns({"ours": run}, _ROUNDS)["ours"].in_a_row
        report: Report = compiled.report(*args)
    if report.coverage < 1 or not report.kernels:
        return None
    operations = sum(k.uses * (k.operations + k.contraction_flops) for k in report.kernels)
    if not operations:  # what only moves elements has no place among powers of ten
        return None
    return Work(
        case.name,
        sum(k.uses * k.bytes for k in report.kernels),
        operations,
        statistics.median(seconds) * 1e3,
    )


def _run(compiled: Callable, args: Sequence[Any]) -> Callable[[], Any]:
    jax.block_until_ready(compiled(*args))
    return lambda: jax.block_until_ready(compiled(*args))


def measure(limits: MachineLimits) -> Measured:
    """Everything, for two minutes."""
    compile_ours = partial(mlc_jit, choose="auto")
    scaled = [
        replace(BY_NAME[name], sizes=sizes)
        for name, all_sizes in SCALED.items()
        for sizes in all_sizes
    ]
    with runner.measuring(compile_ours):
        costs = [cost_of(case, compile_ours) for case in track(scaled, "cost against size")]
        works = [work_of(case, compile_ours) for case in track(CASES, "roofline")]
    return Measured(
        environment("auto", _ROUNDS),
        {
            "gflops": limits.gflops,
            "memory_gb_s": limits.memory_gb_s,
            "cache_gb_s": limits.caches[0].gb_s if limits.caches else limits.memory_gb_s,
        },
        costs,
        [work for work in works if work is not None],
    )


@dataclass(frozen=True, slots=True)
class _Axes:
    """A panel with logarithmic axes."""

    left: float
    top: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies on the page."""
        across, up = (
            (math.log10(v) - math.log10(low)) / (math.log10(high) - math.log10(low))
            for v, (low, high) in ((x, self.x), (y, self.y))
        )
        return self.left + across * _WIDTH, self.top + (1 - up) * _HEIGHT

    def frame(self, title: str, across: str, up: str) -> Iterable[str]:
        yield (
            f'<rect x="{self.left}" y="{self.top}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'fill="none" stroke="{LINE}"/>'
        )
        yield text(self.left, self.top - 8, title, size=13)
        for power in _powers(self.x):
            yield text(
                self.at(power, self.y[0])[0],
                self.top + _HEIGHT + 14,
                f"{power:g}",
                size=10,
                anchor="middle",
                colour=FAINT,
            )
        for power in _powers(self.y):
            yield text(
                self.left - 5,
                self.at(self.x[0], power)[1] + 4,
                f"{power:g}",
                size=10,
                anchor="end",
                colour=FAINT,
            )
        yield text(
            self.left + _WIDTH / 2, self.top + _HEIGHT + 30, across, size=11, anchor="middle"
        )
        yield text(self.left + 6, self.top + 16, up, size=11, colour=FAINT)

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> str:
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*p) for p in points))
        return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def dot(self, x: float, y: float, colour: str, title: str) -> str:
        across, up = self.at(x, y)
        return (
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}" '
            f'fill-opacity="0.7"><title>{escape(title)}</title></circle>'
        )


def _powers(limits: tuple[float, float]) -> list[float]:
    low, high = (math.log10(v) for v in limits)
    return [10.0**k for k in range(math.ceil(low), math.floor(high) + 1)]


def _around(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    return min(values) / 1.5, max(values) * 1.5


def scaling(measured: Measured) -> str:
    """Milliseconds against elements, a panel for each case."""
    names = list(dict.fromkeys(cost.name for cost in measured.costs))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    parts: list[str] = []
    for number, name in enumerate(names):
        costs = [cost for cost in measured.costs if cost.name == name]
        axes = _Axes(
            _MARGIN + number % columns * (_WIDTH + _GAP),
            _MARGIN + number // columns * (_HEIGHT + _GAP),
            _around(c.elements for c in costs),
            _around(v for c in costs for v in (c.ours_ms, c.jax_ms)),
        )
        parts += axes.frame(name, "elements of the arguments", "ms of a call")
        for colour, of, who in (
            (XLA, lambda c: c.jax_ms, "jax.jit"),
            (OURS, lambda c: c.ours_ms, "hlo_mlc"),
        ):
            parts.append(axes.line([(c.elements, of(c)) for c in costs], colour))
            parts += [
                axes.dot(
                    c.elements, of(c), colour, f"{who}, {c.elements:,} elements: {of(c):.4g} ms"
                )
                for c in costs
            ]
    parts += _key(measured)
    return document(
        2 * _MARGIN + columns * _WIDTH + (columns - 1) * _GAP,
        2 * _MARGIN + rows * _HEIGHT + (rows - 1) * _GAP + 20,
        parts,
    )


def roofline(measured: Measured) -> str:
    """Operations in a second against operations for each byte, below what the machine can do."""
    works, limits = measured.works, measured.limits
    x = _around(w.intensity for w in works)
    y = _around([*(w.gops for w in works), limits["gflops"]])
    axes = _Axes(_MARGIN, _MARGIN, x, y)
    parts = [*axes.frame("all cases that are ours alone", "operations for each byte", "Gop/s")]
    for name, colour in (("cache_gb_s", LINE), ("memory_gb_s", FAINT)):
        parts.append(axes.line(list(_roof(limits[name], limits["gflops"], x, y)), colour))
    parts += [
        axes.dot(
            w.intensity,
            w.gops,
            OURS,
            f"{w.name}: {w.gops:.3g} Gop/s, {w.intensity:.3g} operations for each byte",
        )
        for w in works
    ]
    parts += _key(measured)[:-1]
    return document(2 * _MARGIN + _WIDTH + 240, 2 * _MARGIN + _HEIGHT + 20, parts)


def _roof(
    gb_s: float, gflops: float, x: tuple[float, float], y: tuple[float, float]
) -> Iterable[tuple[float, float]]:
    begin, bend = max(x[0], y[0] / gb_s), gflops / gb_s
    yield begin, min(begin * gb_s, gflops)
    if begin < bend < x[1]:
        yield bend, gflops
    yield x[1], min(x[1] * gb_s, gflops)


def _key(measured: Measured) -> list[str]:
    here = measured.environment
    where = (
        f"{here['cpu']}, {here['cores']} cores, JAX {here['packages']['jax']}, {here['date'][:10]}"
    )
    return [
        text(_MARGIN, 18, where, colour=FAINT),
        text(_MARGIN, 34, "● hlo_mlc", colour=OURS),
        text(_MARGIN + 80, 34, "● jax.jit", colour=XLA),
    ]


def page(
    measured: Measured,
    peers: Mapping[str, Any],
    tuned: Sequence[Found],
    derived: Sequence[Derived],
    issues: Results,
    held: Results,
) -> str:
    """docs/performance.md."""
    limits = measured.limits
    lines = [
        "# Performance",
        "",
        "Written by `scripts/performance.py`.",
        "",
        "## Cost against size",
        "",
        "![Milliseconds of a call against elements](scaling.svg)",
        "",
        "| case | elements | hlo_mlc ms | jax.jit ms | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {c.name} | {c.elements:,} | {c.ours_ms:.3g} | {c.jax_ms:.3g} | "
            f"{c.jax_ms / c.ours_ms:.2f} |"
            for c in measured.costs
        ),
        "",
        "## Roofline",
        "",
        f"Measured with our own kernels, this machine does {limits['gflops']:.0f} GFLOP/s in f32 "
        f"and moves {limits['memory_gb_s']:.0f} GB/s from memory, {limits['cache_gb_s']:.0f} from "
        "the innermost cache (the two lines). Operations are counted roughly, one for each simple "
        "one, so that functions such as exp show less than they do; bytes are those at the "
        "borders of kernels. Cases that only move elements, or of which a part stays with XLA, are "
        "left out.",
        "",
        "![Operations in a second against operations for each byte](roofline.svg)",
        "",
        *_beside_others(peers),
        *_searched(tuned),
        *_by_rule(derived),
        *_reported(issues),
        *_held(held),
    ]
    return "\n".join(lines)


def _beside_others(peers: Mapping[str, Any]) -> list[str]:
    """A table of milliseconds, and how often we are the fastest."""
    rows = [others.PeerRow(**row) for row in peers["rows"]]
    names = (others.OURS, others.JAX, *peers["peers"])
    versions = ", ".join(f"{name} {version}" for name, version in peers["peers"].items())
    return [
        "## Beside others",
        "",
        f"The same work, in turns, milliseconds of a call among many in a row ({versions}; "
        f"{peers['environment']['cpu']}, {peers['environment']['cores']} cores, "
        f"{peers['environment']['date'][:10]}). Each result is checked; what a package cannot do, "
        "gets wrong or does not compile in a minute is left empty. Ratios are the time of the "
        f"fastest of the others but jax.jit over ours: {_summary([r.ratio for r in rows])}. The "
        "last two columns are of the first call after a pause of 10 ms and of what others did: "
        "threads sleep then, and little is in the caches; "
        f"{_summary([r.ratio_after_pause for r in rows])}.",
        "",
        f"| case | {' | '.join(names)} | ratio | {others.OURS} after a pause | ratio |",
        f"| --- |{' ---: |' * (len(names) + 3)}",
        *(
            f"| {row.name} | {' | '.join(_ms(row.ms, name) for name in names)} | "
            f"{_ratio(row.ratio)} | {_ms(row.after_pause_ms, others.OURS)} | "
            f"{_ratio(row.ratio_after_pause)} |"
            for row in rows
        ),
        "",
    ]


def _summary(ratios: Sequence[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return "nobody was there to compare with"
    return (
        f"their geometric mean is {statistics.geometric_mean(known):.2f}, and "
        f"{sum(r >= others.TIED for r in known)} of {len(known)} are at least {others.TIED}"
    )


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _searched(tuned: Sequence[Found]) -> list[str]:
    """A table of how near short searches come to the fastest schedule there is."""
    median = statistics.median(statistics.median(one.reached) for one in tuned)
    seconds = statistics.median(taken for one in tuned for _, _, taken in one.short)
    gain = statistics.geometric_mean(one.best for one in tuned)
    times = min(len(one.short) for one in tuned)
    return [
        "## Tuned in seconds",
        "",
        f"Kernels were tuned {times} times each as `hlo-mlc tune` does, by at most {SHORT} trials "
        "and without a trained model, and their schedules then timed by up to "
        f"{max(one.trials for one in tuned):,}, all of them where there are no more "
        f"(`scripts/tuning_goal.py`; {', '.join(sorted({one.target for one in tuned}))}). Half of "
        f"the kernels come to {median:.1%} of the best speed that was found, or nearer, in "
        f"{seconds:.1f} s. The best are {gain:.2f} times as fast as what is built without tuning "
        "(geometric mean). Measured while searches ended after 16 trials at least, with one look "
        "at the finalists; now they end after 24, and the winner is found in rounds.",
        "",
        "| kernel | us | schedules | timed | best / default | reached | least | trials | seconds |",
        f"| --- |{' ---: |' * 8}",
        *map(_search, tuned),
        "",
    ]


def _search(one: Found) -> str:
    trials = statistics.median(count for _, count, _ in one.short)
    seconds = statistics.median(taken for _, _, taken in one.short)
    return (
        f"| {one.case} | {one.default_us:.3g} | {one.size:,} | {one.trials:,} | "
        f"{one.best:.2f} | {statistics.median(one.reached):.1%} | {min(one.reached):.1%} | "
        f"{trials:.0f} | {seconds:.1f} |"
    )


def _by_rule(found: Sequence[Derived]) -> list[str]:
    """A table of nests for which schedules were derived by rule."""
    ahead = sum(one.derived > AHEAD * max(one.templates, 1.0) for one in found)
    return [
        "## Schedules by rule",
        "",
        f"Two searches of up to {min(one.trials for one in found)} trials for each nest "
        "(`scripts/derived.py`; in turns with the default schedule, on a machine that others used; "
        f"{', '.join(sorted({one.target for one in found}))}): among schedules of templates, and "
        "among those that a rule derives from naive loops, for which nobody has written a "
        "template. How many times as fast as the default schedule the best of either is; in "
        f"{ahead} of {len(found)} the derived one is more than {AHEAD - 1:.0%} ahead.",
        "",
        "| nest | analysis takes | of templates | by rule | by rule / of templates |",
        "| --- | --- | ---: | ---: | ---: |",
        *(
            f"| {one.case} | {one.usual} | {one.templates:.2f} | {one.derived:.2f} | "
            f"{one.derived / max(one.templates, 1.0):.2f} |"
            for one in found
        ),
        "",
    ]


def _held(held: Results) -> list[str]:
    """A table of the groups of the bench where both sides were held to AVX2."""
    here = held.environment
    ratios: dict[str, dict[str, float]] = {}
    for row in held.rows:
        if row.ratio is not None:
            ratios.setdefault(row.group, {})[row.name] = row.ratio
    every = [ratio for group in ratios.values() for ratio in group.values()]
    return [
        "## Held to AVX2",
        "",
        "All cases of the bench and their neighbours, both sides held to AVX2, XLA's libraries as "
        f"well (CONTRIBUTING.md has the variables; {here['cpu']}, {here['cores']} cores, JAX "
        f"{here['packages']['jax']}, {here['date'][:10]}, on a machine that others used now and "
        f"then): {len(every)} ratios of the time of jax.jit over ours, their geometric mean "
        f"{statistics.geometric_mean(every):.2f}.",
        "",
        "| group | ratios | geometric mean | least |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {group} | {len(found)} | {statistics.geometric_mean(found.values()):.2f} | "
            f"{min(found.values()):.2f} ({min(found, key=found.__getitem__)}) |"
            for group, found in ratios.items()
        ),
        "",
    ]


def _ms(ms: Mapping[str, float], name: str) -> str:
    return f"{ms[name]:.3g}" if name in ms else ""


def _reported(issues: Results) -> list[str]:
    """A table of the programs that were rebuilt from reports."""
    here = issues.environment
    rows = {row.name: row for row in issues.rows}
    reported = [rows[case.name] for case in CASES if case.name in rows]
    wrong = [
        row.name
        for row in reported
        if row.jax_error is not None and row.jax_error > row.allowed_error
    ]
    return [
        "## What users reported",
        "",
        "Programs that were reported slow or wrong on CPUs, rebuilt from the threads "
        f"(`hlo-mlc bench --group issues`; {here['cpu']}, {here['cores']} cores, JAX "
        f"{here['packages']['jax']}, {here['date'][:10]}). Times are milliseconds of a call; each "
        "result is checked against an evaluation in 64 bits. Neighbours are the same programs of "
        "an odd size, another dtype and another layout; the lowest of the ratios measured is "
        f"shown. Wrong results of jax.jit, as reported: {', '.join(wrong) or 'none'}. {_ELSEWHERE}",
        "",
        "| program | reported | hlo_mlc | jax.jit | ratio | neighbours | first call | by jax.jit |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_report(row, rows) for row in reported),
        "",
    ]


# Measured by hand: bench runs with one version of JAX (python 3.13, AMD EPYC, 2 cores, 2026-11-29).
_ELSEWHERE = (
    "What was reported of single versions is seen there: element_by_element takes jax.jit 236 ms "
    "with JAX 0.11.1, 10,000 times as long as hlo_mlc, and 0.083 with 0.12.0.1. Its steps wait for "
    "each other, 1 ns each, the latency of a multiplication and an addition; hlo_mlc has parts of "
    "them side by side, each beginning with what those before it come to."
)


def _report(row: Row, rows: Mapping[str, Row]) -> str:
    case = BY_NAME[row.name]
    threads = ", ".join(_link(thread) for thread in case.threads)
    near = [
        found.ratio
        for one in case.neighbours
        if (found := rows.get(one.name)) is not None and found.ratio is not None
    ]
    lowest = f"{min(near):.2f}" if near else ""
    if row.ratio is None:
        return f"| {row.name} | {threads} | {row.status} | | | {lowest} | | |"
    first = f"{row.ours_first_call_s * 1e3:.0f} | {row.jax_first_call_s * 1e3:.0f}"
    return (
        f"| {row.name} | {threads} | {row.ours_ms:.3g} | {row.jax_ms:.3g} | {row.ratio:.2f} | "
        f"{lowest} | {first} |"
    )


def _link(thread: str) -> str:
    tracker, _, number = thread.partition(" #")
    return f"[{thread}](https://github.com/{_TRACKERS[tracker]}/issues/{number})"


def draw(
    measured: Measured,
    peers: Mapping[str, Any],
    tuned: Sequence[Found],
    derived: Sequence[Derived],
    issues: Results,
    held: Results,
    folder: Path = DOCS,
) -> None:
    """Writes the page and its pictures."""
    (folder / "performance.md").write_text(page(measured, peers, tuned, derived, issues, held))
    (folder / "scaling.svg").write_text(scaling(measured))
    (folder / "roofline.svg").write_text(roofline(measured))


def main(arguments: Sequence[str]) -> None:
    """Measures, unless it is only to draw."""
    if "--draw" not in arguments:
        measured = measure(machine_limits(Options.from_environment()))
        MEASURED.write_text(json.dumps(asdict(measured), indent=1) + "\n")
    draw(
        Measured.read(MEASURED),
        json.loads(PEERS.read_text()),
        known(TUNED, Found),
        known(DERIVED, Derived),
        load(ISSUES),
        load(HELD),
    )
    print(f"wrote {DOCS / 'performance.md'}")


if __name__ == "__main__":
    with errors_in_one_line():
        main(arguments(__doc__, most=1))
