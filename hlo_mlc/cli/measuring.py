"""What `demo` and `bench` share: the loop over cases, its progress bar, the table of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import hlo_mlc_bench.runner as runner
from hlo_mlc import mlc_jit
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.results import Results, Row

FIRST_CALL_FACTOR = 2.0
FIRST_CALL_EXTRA_S = 0.06
"""A first call may take the factor times that of jax.jit, or so much more, whichever is longer."""

_PLAIN_WIDTH = 150  # of a table that goes to a file or a pipe


def make_console(*, error: bool = False) -> Console:
    """A console on stdout or stderr that does not fold tables where there is no terminal."""
    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH)


def measure(
    cases: Sequence[Case],
    results: Results,
    *,
    choose: str,
    rounds: int,
    console: Console,
    after_row: Callable[[Results], None] = lambda results: None,
) -> tuple[Results, bool]:
    """Runs the cases, adding a row for each to `results`; says whether it came to the end.

    An interrupt (Ctrl-C) ends it early and keeps the rows that are complete.
    """
    compile_ours = partial(mlc_jit, choose=choose)
    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("warming up", total=len(cases))
            with runner.measuring(compile_ours):
                for case in cases:
                    progress.update(task, description=case.name)
                    results = results.with_row(runner.run_case(case, compile_ours, rounds))
                    after_row(results)
                    progress.advance(task)
    except KeyboardInterrupt:
        return results, False
    return results, True


def render(rows: Sequence[Row]) -> Table:
    """One line for each workload; what misses its figure or its limit is marked."""
    table = Table(title="jax.jit and hlo_mlc in turns, times of one call", title_justify="left")
    table.add_column("workload", no_wrap=True)
    for title in (
        "jax.jit\nms",
        "hlo_mlc\nms",
        "ratio",
        "max error\nhlo_mlc",
        "max error\njax.jit",
        "clusters",
        "coverage",
        "share of\nrun time",
        "first call s\njax.jit",
        "first call s\nhlo_mlc",
    ):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def render_problems(rows: Sequence[Row]) -> list[str]:
    """A line for every row that has no right result."""
    return [f"{row.name}: {row.status}: {row.message}" for row in rows if row.status != "right"]


def render_misses(rows: Sequence[Row]) -> list[str]:
    """A line for every figure and first-call limit that was not reached."""
    lines = []
    for row in rows:
        if _below_figure(row):
            lines.append(f"{row.name}: ratio {row.ratio:.2f}, its figure is {row.figure:.2f}")
        if _slow_first_call(row):
            lines.append(
                f"{row.name}: first call {row.ours_first_call_s:.2f} s, "
                f"of jax.jit {row.jax_first_call_s:.2f} s"
            )
    return lines


def exit_status(rows: Sequence[Row], complete: bool) -> int:
    """0 if every row is right; 1 if not; 130, as shells have it, after an interrupt."""
    if any(row.status != "right" for row in rows):
        return 1
    return 0 if complete else 130


def _cells(row: Row) -> tuple[str | Text, ...]:
    if row.status != "right":
        return (row.name, *[Text("")] * 2, Text(row.status.upper(), style="bold red"))
    slow_start = "yellow" if _slow_first_call(row) else ""
    return (
        row.name,
        f"{row.jax_ms:.4g}",
        f"{row.ours_ms:.4g}",
        Text(f"{row.ratio:.2f}", style=_ratio_style(row)),
        f"{row.ours_error:.1e}",
        f"{row.jax_error:.1e}",
        str(row.clusters),
        f"{row.coverage:.0%}",
        f"{row.share:.0%}",
        f"{row.jax_first_call_s:.2f}",
        Text(f"{row.ours_first_call_s:.2f}", style=slow_start),
    )


def _ratio_style(row: Row) -> str:
    if _below_figure(row):
        return "yellow"
    return "green" if row.ratio is not None and row.ratio > 1 else ""


def _below_figure(row: Row) -> bool:
    return row.ratio is not None and row.figure is not None and row.ratio < row.figure


def _slow_first_call(row: Row) -> bool:
    if row.ours_first_call_s is None or row.jax_first_call_s is None:
        return False
    by_jax = row.jax_first_call_s
    return row.ours_first_call_s > max(FIRST_CALL_FACTOR * by_jax, by_jax + FIRST_CALL_EXTRA_S)
