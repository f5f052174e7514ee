"""Draws docs/cost_model.svg: times that the cost model predicted against those measured.

    python scripts/cost_model.py [results.json]     # by default the newest in bench/results/
    python scripts/cost_model.py --anew [results.json]   # what is predicted by the model as it is

The results are those of `hlo-mlc bench --json`; every row has both, unless a part of the case is
something that the model does not know.  Predicting anew times nothing, so it says on any machine,
and a busy one, what a change of the model is worth; it counts with the rates of the machine that
was measured, if the results say which, and says all that is off by more than two instead of
drawing.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

import jax
import numpy as np

from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.partition.choose.predictions import predict
from hlo_mlc.support.options import Options
from hlo_mlc_bench.cases import CASES
from hlo_mlc_bench.results import Results, load
from hlo_mlc_bench.script import errors_in_one_line
from hlo_mlc_bench.svg import FAINT, LINE, OURS, XLA, document, text

_ROOT = Path(__file__).parents[1]
_PICTURE = _ROOT / "docs" / "cost_model.svg"

_SIDE, _MARGIN, _GAP = 400, 64, 72  # of a panel, around them, between them; in pixels
_FAR = 3.0  # a prediction that is off by more is named in the picture


@dataclass(frozen=True, slots=True)
class Point:
    """Something measured, and what was predicted for it."""

    name: str
    measured: float
    predicted: float
    colour: str

    @property
    def off(self) -> float:
        """The larger of both / the smaller."""
        return math.exp(abs(math.log(self.predicted / self.measured)))


def main(arguments: list[str]) -> None:
    """Draws the picture and prints how well the model ranks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--anew", action="store_true", help="predict by the model as it is now")
    given = parser.parse_args(arguments)
    results = load(given.results or newest())
    if given.anew:
        results = anew(results)
        ours, xla, ratios = points(results)
        print(f"{caption(ours, xla, ratios)}; {off(results)}")
        for point in sorted((p for p in (*ours, *xla) if p.off > 2), key=lambda p: -p.off):
            print(f"  {point.name}: measured {point.measured:.4g}, predicted {point.predicted:.4g}")
        return
    ours, xla, ratios = points(results)
    _PICTURE.parent.mkdir(exist_ok=True)
    _PICTURE.write_text(picture(results, ours, xla, ratios))
    print(f"{_PICTURE.relative_to(_ROOT)}: {caption(ours, xla, ratios)}; {off(results)}")
    for point in sorted((*ours, *xla, *ratios), key=lambda p: -p.off)[:8]:
        print(f"  {point.name}: measured {point.measured:.4g}, predicted {point.predicted:.4g}")


def newest() -> Path:
    """The result file with predictions measured last with all instructions of a machine."""
    known = {path: load(path) for path in (_ROOT / "bench" / "results").glob("*.json")}
    paths = [
        path
        for path, results in known.items()
        if points(results)[0] and results.environment.get("target", "cpu") == "cpu"
    ]
    if not paths:
        raise SystemExit("There are no results with predictions: run hlo-mlc bench --json first")
    return max(paths, key=lambda path: known[path].environment["date"])


def anew(results: Results) -> Results:
    """The results with what is predicted of their cases now, nothing of which is built or run."""
    options = Options.from_environment(target=results.environment.get("target", "cpu"))
    backend = cpu_backend(options)
    if results.machine is not None:
        backend = replace(backend, target=results.machine)
    cases = {case.name: case for one in CASES for case in (one, *one.neighbours)}
    rows = []
    for row in results.rows:
        if row.name in cases and row.predicted_ours_ms is not None:
            with cases[row.name].in_its_mode():
                function, args = cases[row.name].make()
                module = jax.jit(function).lower(*args).compiler_ir()
            graph, plan = clusters_of(module, options, backend=backend)
            found = predict(backend.weighed(plan, graph, {}), backend.target)
            row = replace(
                row,
                predicted_ours_ms=None if found is None else found.ours_us / 1e3,
                predicted_jax_ms=None if found is None else found.xla_us / 1e3,
            )
        rows.append(row)
    return replace(results, rows=tuple(rows))


def points(results: Results) -> tuple[list[Point], list[Point], list[Point]]:
    """Times of our side and of XLA's, in microseconds, and ratios of XLA's to ours."""
    ours, xla, ratios = [], [], []
    for row in results.rows:
        if row.status != "right" or row.predicted_ours_ms is None:
            continue
        ours.append(
            Point(f"{row.name}, hlo_mlc", row.ours_ms * 1e3, row.predicted_ours_ms * 1e3, OURS)
        )
        xla.append(Point(f"{row.name}, jax.jit", row.jax_ms * 1e3, row.predicted_jax_ms * 1e3, XLA))
        ratios.append(
            Point(row.name, row.ratio, row.predicted_jax_ms / row.predicted_ours_ms, OURS)
        )
    return ours, xla, ratios


def rank_correlation(points: Sequence[Point]) -> float:
    """Spearman's: 1 where predictions have the order of what was measured."""
    first, second = (
        _ranks(values) for values in ([p.measured for p in points], [p.predicted for p in points])
    )
    return float(np.corrcoef(first, second)[0, 1])


def within(points: Sequence[Point], factor: float = 2.0) -> float:
    """The share of predictions that are off by no more than a factor."""
    return sum(point.off <= factor for point in points) / len(points)


def _ranks(values: Sequence[float]) -> np.ndarray:
    """The place of each value, from 0; equal ones share the mean of theirs."""
    array = np.asarray(values)
    below = (array[:, None] > array).sum(1)
    equal = (array[:, None] == array).sum(1)
    return below + (equal - 1) / 2


def caption(ours: Sequence[Point], xla: Sequence[Point], ratios: Sequence[Point]) -> str:
    """The figures in words."""
    kinds = ("all times", [*ours, *xla]), ("hlo_mlc", ours), ("jax.jit", xla), ("ratios", ratios)
    figures = [f"{name} {rank_correlation(points):.2f}" for name, points in kinds]
    near = [f"{name} {within(points):.0%}" for name, points in kinds[1:]]
    return f"rank correlation of {len(ours)} cases: {', '.join(figures)}; within 2x: " + ", ".join(
        near
    )


def off(results: Results) -> str:
    """How far ratios are off, by which settling knows what is clear-cut, in words."""
    return f"logarithms of ratios are off by {results.log_ratio_error:.2f} (one standard deviation)"


def picture(
    results: Results, ours: Sequence[Point], xla: Sequence[Point], ratios: Sequence[Point]
) -> str:
    """The picture as SVG: times on the left, ratios on the right."""
    here = results.environment
    width = 2 * _MARGIN + 2 * _SIDE + _GAP
    height = 2 * _MARGIN + _SIDE + 24
    second = _MARGIN + _SIDE + _GAP
    where = (
        f"{here['cpu']}, {here['cores']} cores, JAX {here['packages']['jax']}, "
        f"choose={here['choose']}, {here['date'][:10]}"
    )
    return document(
        width,
        height,
        [
            text(_MARGIN, 20, f"Cost model: {caption(ours, xla, ratios)}", size=14),
            text(_MARGIN, 40, where, colour=FAINT),
            *_panel(_MARGIN, [*xla, *ours], "time of a call, us"),
            *_panel(second, ratios, "ratio jax.jit / hlo_mlc"),
            text(_MARGIN + 10, _MARGIN + 18, "● hlo_mlc", colour=OURS),
            text(_MARGIN + 10, _MARGIN + 34, "● jax.jit", colour=XLA),
        ],
    )


def _panel(left: float, points: Sequence[Point], title: str) -> Iterable[str]:
    """Measured to the right, predicted upwards, both logarithmic and over the same range."""
    values = [v for p in points for v in (p.measured, p.predicted)]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    bottom = _MARGIN + _SIDE

    def x(value: float) -> float:
        return left + _SIDE * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return bottom - _SIDE * (math.log10(value) - low) / (high - low)

    yield (
        f'<rect x="{left}" y="{_MARGIN}" width="{_SIDE}" height="{_SIDE}" fill="none" '
        f'stroke="{LINE}"/>'
    )
    yield (
        f'<line x1="{left}" y1="{bottom}" x2="{left + _SIDE}" y2="{_MARGIN}" '
        f'stroke="{LINE}" stroke-dasharray="4 3"/>'
    )
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = 10.0**power
        yield text(x(at), bottom + 16, f"{at:g}", anchor="middle", colour=FAINT)
        yield text(left - 6, y(at) + 4, f"{at:g}", anchor="end", colour=FAINT)
    yield text(left + _SIDE / 2, bottom + 36, f"measured {title}", anchor="middle")
    yield (
        f'<text transform="translate({left - 44} {_MARGIN + _SIDE / 2}) rotate(-90)" '
        f'text-anchor="middle" font-size="12">predicted</text>'
    )
    named: set[str] = set()
    for point in points:
        yield (
            f'<circle cx="{x(point.measured):.1f}" cy="{y(point.predicted):.1f}" r="3.5" '
            f'fill="{point.colour}" fill-opacity="0.65"><title>{escape(point.name)}: measured '
            f"{point.measured:.4g}, predicted {point.predicted:.4g}</title></circle>"
        )
        name = point.name.partition(",")[0].partition("/")[0]
        if point.off > _FAR and name not in named:  # a case and its neighbours lie side by side
            named.add(name)
            at, inwards = x(point.measured), point.measured < 10 ** ((low + high) / 2)
            yield text(
                at + 6 if inwards else at - 6,
                y(point.predicted) + 3,
                name,
                size=9,
                anchor="start" if inwards else "end",
                colour=FAINT,
            )


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1:])
