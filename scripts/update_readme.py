"""Writes the benchmark table of README.md and draws docs/speedup.svg, both with the cases of the
demo, from a result file of `hlo-mlc bench --json`.

Usage: python scripts/update_readme.py [RESULTS.json]  (default: the newest in bench/results/)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from hlo_mlc.support.wording import three_digits
from hlo_mlc_bench.cases import DEMO
from hlo_mlc_bench.results import Results, Row, load
from hlo_mlc_bench.script import arguments, errors_in_one_line
from hlo_mlc_bench.svg import FAINT, LINE, OURS, XLA, document, text

_ROOT = Path(__file__).resolve().parent.parent
_README = _ROOT / "README.md"
_PICTURE = _ROOT / "docs" / "speedup.svg"
_BEGIN = "<!-- benchmarks: written by scripts/update_readme.py -->\n"
_END = "<!-- end of benchmarks -->\n"
_HEADER = "| workload | jax.jit ms | hlo_mlc ms | ratio | max error | clusters | coverage |\n"
_RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"

# The picture in pixels: where bars begin, how long the longest is, room for its ratio and times.
_LEFT, _LONGEST, _RIGHT, _TOP, _PITCH, _BAR = 150, 420, 190, 84, 22, 14
_END_OF_TIMES = _LEFT + _LONGEST + _RIGHT - 10
_TIMES = "jax.jit → hlo_mlc"
_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def main(arguments: list[str]) -> None:
    """Replaces what stands between the two markers."""
    path = Path(arguments[0]) if arguments else newest()
    results = load(path)
    before, begin, rest = _README.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{_README} lacks the markers {_BEGIN.strip()} … {_END.strip()}")
    _README.write_text(before + begin + section(results) + end + after)
    _PICTURE.write_text(picture(results))
    print(f"{_README.name} and {_PICTURE.name}: benchmarks of {path}")


def newest() -> Path:
    """The result file that was measured last with all instructions of the machine."""
    known = {path: load(path).environment for path in (_ROOT / "bench" / "results").glob("*.json")}
    paths = [path for path, where in known.items() if where.get("target", "cpu") == "cpu"]
    if not paths:
        raise SystemExit("There is no file in bench/results/: run hlo-mlc bench --json first")
    return max(paths, key=lambda path: known[path]["date"])


def section(results: Results) -> str:
    """The table in Markdown, and the line that says where it was measured."""
    lines = [_line(row) for row in results.rows if row.name in DEMO]
    return (
        f"\n{_HEADER}{_RULE}{''.join(lines)}\n{_where(results)}. "
        "Times are medians of one call, the ratio is jax.jit / hlo_mlc (median of pairs), errors "
        "are relative to an evaluation in 64 bits.\n\n"
    )


def _where(results: Results) -> str:
    """On what the results were measured, and when."""
    here = results.environment
    return (
        f"{here['cpu']}, {here['cores']} cores, {here['system']}, Python {here['python']}, "
        f"JAX {here['packages']['jax']}, choose={here['choose']}, {here['date'][:10]}"
    )


def _line(row: Row) -> str:
    if row.status != "right":
        return f"| {row.name} | | | {row.status} | | | |\n"
    return (
        f"| {row.name} | {three_digits(row.jax_ms)} | {three_digits(row.ours_ms)} "
        f"| {row.ratio:.2f} "
        f"| {row.ours_error:.1e} | {row.clusters} | {row.coverage:.0%} |\n"
    )


def picture(results: Results) -> str:
    """A bar for each case, as long as the logarithm of its ratio, the fastest on top."""
    rows = sorted(
        (row for row in results.rows if row.name in DEMO and row.status == "right"),
        key=lambda row: -row.ratio,
    )
    ends = [1.0, *(row.ratio for row in rows)]
    low = 0.9 * min(ends)
    scale = _LONGEST / math.log(max(*ends, 2.0) / low)
    bottom = _TOP + _PITCH * len(rows)

    def across(ratio: float) -> float:
        return _LEFT + scale * math.log(ratio / low)

    return document(
        _LEFT + _LONGEST + _RIGHT,
        bottom + 12,
        [
            text(10, 24, "How many times as fast as jax.jit", size=16),
            text(10, 44, _where(results), size=11, colour=FAINT),
            text(_END_OF_TIMES, _TOP - 12, _TIMES, size=11, anchor="end", colour=FAINT),
            *(
                part
                for ratio in _TICKS
                if low <= ratio <= max(ends)
                for part in _tick(ratio, across(ratio), bottom)
            ),
            *(
                part
                for place, row in enumerate(rows)
                for part in _bar(row, _TOP + _PITCH * place, across(1), across(row.ratio))
            ),
        ],
    )


def _tick(ratio: float, x: float, bottom: float) -> Iterable[str]:
    """A line that bars are held against: the one at 1 is what they begin at."""
    title = "jax.jit" if ratio == 1 else f"{ratio:g}x"
    yield text(x, _TOP - 12, title, size=11, anchor="middle", colour=FAINT)
    yield (
        f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" '
        f'stroke="{FAINT if ratio == 1 else LINE}" stroke-width="{1 if ratio == 1 else 0.5}"/>'
    )


def _bar(row: Row, y: float, even: float, end: float) -> Iterable[str]:
    """From a ratio of 1 to that of the row, its name in front, its figures behind."""
    left, right = min(even, end), max(even, end)
    baseline = y + _BAR - 3
    yield text(_LEFT - 8, baseline, row.name, anchor="end")
    yield (
        f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{_BAR}" rx="2" '
        f'fill="{OURS if row.ratio >= 1 else XLA}"/>'
    )
    yield text(right + 6, baseline, f"{three_digits(row.ratio)}x")
    times = f"{three_digits(row.jax_ms)} → {three_digits(row.ours_ms)} ms"
    yield text(_END_OF_TIMES, baseline, times, size=11, anchor="end", colour=FAINT)


if __name__ == "__main__":
    with errors_in_one_line():
        main(arguments(__doc__, most=1))
