"""Measures what hlo_mlc/partition/choose/xla_figures.json holds: what XLA takes, figure by figure.

    python scripts/xla_figures.py                   # says what each would be; a minute
    python scripts/xla_figures.py --write           # and writes it
    python scripts/xla_figures.py --results bench/results/{A,B}.json   # measured before, elsewhere

A figure is what makes the prediction for jax.jit of its bench case what was measured; with results
of several machines, their geometric mean, so that no machine is far from it.  Where that
is about what it was, it stays and is as good as new, so that choices do not change with noise.
Two are how far predicted ratios were off (`off`), which results tell that have predictions.
It stays as old as it is where there is no such case, where the case hardly depends on it, or where
it would change by more than a factor: then something else of the prediction is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.compiler import clusters_of
from hlo_mlc.interop.calibration import calibrated
from hlo_mlc.partition.choose import xla_figures
from hlo_mlc.partition.choose.predictions import predict
from hlo_mlc.partition.choose.xla_figures import PATH, SCHEMA, Figure, Figures, Run
from hlo_mlc.support.options import Options
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.cases import CASES
from hlo_mlc_bench.results import Results, environment, load
from hlo_mlc_bench.script import errors_in_one_line
from hlo_mlc_bench.timing import compare

_ABOUT, _FARTHEST = 1.33, 4.0
_LEAST_SHARE = 0.2  # of a case's time that depends on its figure
_ROUNDS = 5


def main() -> None:
    """Prints a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        default=[],
        help="times that hlo-mlc bench measured, on one machine or several",
    )
    given = parser.parse_args()
    if not given.results:
        calibrated(Options.from_environment())
    cases = {case.name: case for one in CASES for case in (one, *one.neighbours)}
    results = {path.stem: load(path) for path in given.results}
    measured = means(results.values())
    run = run_of(
        {name: one.environment for name, one in results.items()}
        or {"": environment("auto", _ROUNDS)}
    )
    label = f"{run.cpu}, {run.date}"
    known, spreads = xla_figures.read(), deviations(results.values())
    found = {}
    for name, figure in known.by_name.items():
        value, why = None, "no case"
        if name in spreads:
            times = spreads[name] / figure.value
            value = 1.0 if 1 / _ABOUT <= times <= _ABOUT else times
            why = f"ratios were off by {spreads[name]:.2f}"
        elif figure.case:
            value, why = solved(
                measured.get(figure.case) or measured_us(cases[figure.case]),
                lambda times, name=name, case=figure.case: predicted_us(
                    cases[case], _with(known, name, times)
                ),
            )
        if value is not None:
            found[name] = dataclasses.replace(
                figure, value=float(f"{figure.value * value:.3g}"), run=label
            )
        print(
            f"{name:22} {figure.value:8.4g} {found.setdefault(name, figure).value:8.4g}  "
            f"{figure.case}: {why}"
        )
    if given.write:
        write(Figures({**known.runs, label: run}, found))


def means(results: Iterable[Results]) -> dict[str, float]:
    """What jax.jit took for each case, in us: the geometric mean of all who measured it."""
    times: dict[str, list[float]] = {}
    for row in (row for one in results for row in one.rows if row.jax_ms):
        times.setdefault(row.name, []).append(row.jax_ms * 1e3)
    return {name: statistics.geometric_mean(each) for name, each in times.items()}


def deviations(results: Iterable[Results]) -> dict[str, float]:
    """How far ratios were off that were predicted with rates measured there, and without, by the
    names of these figures; the largest of those who tell."""
    found: dict[str, float] = {}
    for one in results:
        name = "off" if one.environment.get("target", "cpu") == "cpu" else "off_unmeasured"
        if not math.isnan(one.log_ratio_error):
            found[name] = max(found.get(name, 0.0), one.log_ratio_error)
    return found


def run_of(environments: Mapping[str, Mapping]) -> Run:
    """Where and when something was measured, by the names of the results if there are any."""
    newest = max(environments.values(), key=lambda one: one["date"])
    names = [name or one["cpu"] for name, one in environments.items()]
    return Run(", ".join(names), newest["cores"], newest["packages"]["jaxlib"], newest["date"][:10])


def write(figures: Figures, path: Path = PATH) -> None:
    """As text, with the runs that figures are from."""
    used = {one.run for one in figures.by_name.values()}
    path.write_text(
        json.dumps(
            {
                "schema": SCHEMA,
                "runs": {
                    name: dataclasses.asdict(run)
                    for name, run in figures.runs.items()
                    if name in used
                },
                "figures": {
                    name: {k: v for k, v in dataclasses.asdict(one).items() if v != ""}
                    for name, one in figures.by_name.items()
                },
            },
            indent=1,
        )
        + "\n"
    )


def measured_us(case: Case) -> float:
    """What jax.jit takes."""
    with case.in_its_mode():
        function, args = case.make()
        by_jax = jax.jit(function)
        return compare(by_jax, by_jax, args, _ROUNDS).a.median_us


def predicted_us(case: Case, figures: Figures) -> float:
    """What jax.jit is predicted to take with these figures; nan if a part is not modelled."""
    options = Options.from_environment()
    before, xla_figures._FIGURES = xla_figures._FIGURES, figures
    try:
        with case.in_its_mode():
            function, args = case.make()
            _, plan = clusters_of(jax.jit(function).lower(*args).compiler_ir(), options)
            predicted = predict(plan, target_of(options))
    finally:
        xla_figures._FIGURES = before
    return math.nan if predicted is None else predicted.xla_us


def solved(measured: float, predicted: Callable[[float], float]) -> tuple[float | None, str]:
    """How many times as large a figure should be, and why; None where its case does not tell.

    `predicted` is what the case is predicted to take with so many times the figure: a straight
    line, or one over the figure where that is a rate.
    """
    at, beyond = predicted(1.0), predicted(2.0)
    share = (beyond - at) / at
    if not abs(share) >= _LEAST_SHARE:
        return None, f"of its time, {share:.0%} would double with it"
    times = 1 + (measured - at) / (beyond - at) if share > 0 else at / measured
    if not 1 / _FARTHEST <= times <= _FARTHEST:
        return None, f"{times:.3g} times as much would fit"
    close = 1 / _ABOUT <= measured / at <= _ABOUT
    return 1.0 if close else times, f"took {measured:.0f} us, predicted {at:.0f}"


def _with(figures: Figures, name: str, times: float) -> Figures:
    figure: Figure = figures.by_name[name]
    changed = dataclasses.replace(figure, value=figure.value * times)
    return dataclasses.replace(figures, by_name={**figures.by_name, name: changed})


if __name__ == "__main__":
    with errors_in_one_line():
        main()
