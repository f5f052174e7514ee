"""What `demo` and `bench` share: the loop over cases, its progress bar, the table of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import hlo_mlc_bench.runner as runner
from hlo_mlc import mlc_jit
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.results import Results, Row

_PLAIN_WIDTH = 150  # of a table that goes to a file or a pipe


def make_console() -> Console:
    """A console on stdout that does not fold tables where there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


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


def show(results: Results, console: Console) -> None:
    """Prints the table of results and where they were measured; on stderr, what is wrong."""
    here = results.environment
    console.print(_table(results.rows))
    console.print(
        f"{here['cpu']}, {here['cores']} cores, Python {here['python']}, "
        f"JAX {here['packages']['jax']}, choose={here['choose']}. "
        "The ratio is jax.jit / hlo_mlc; errors are relative to an evaluation in 64 bits.",
        highlight=False,
    )
    for row in results.rows:
        if row.status != "right":
            click.echo(f"error: {row.name}: {row.status}: {row.message}", err=True)


def _table(rows: Sequence[Row]) -> Table:
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


def misses(rows: Sequence[Row]) -> list[str]:
    """A line for every figure and first-call limit that was not reached."""
    lines = []
    for row in rows:
        if row.misses_figure:
            lines.append(f"{row.name}: ratio {row.ratio:.2f}, its figure is {row.figure:.2f}")
        if row.misses_first_call:
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
    slow_start = "yellow" if row.misses_first_call else ""
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
    if row.misses_figure:
        return "yellow"
    return "green" if row.ratio is not None and row.ratio > 1 else ""
