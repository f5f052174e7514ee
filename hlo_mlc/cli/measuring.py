"""What `demo` and `bench` share: the loop over cases, its progress bar, the table of results."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import hlo_mlc_bench.runner as runner
from hlo_mlc import mlc_jit
from hlo_mlc.backends.cpu import target_of
from hlo_mlc.interop.calibration import calibrated
from hlo_mlc.runtime.busyness import disturbed_since, read_clocks
from hlo_mlc.runtime.rates import others_share, remember_rates
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import three_digits
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.results import Results, Row

_PLAIN_WIDTH = 150  # of a table that goes to a file or a pipe
_UNLIMITED = 1000


def make_console() -> Console:
    """A console on stdout that does not fold tables where there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


@contextlib.contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar; what it gives is told of each case that begins."""
    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("warming up", total=total)
        begun = itertools.count()

        def begin(name: str) -> None:
            bar.update(task, description=name, completed=next(begun))

        yield begin


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
    complete, before = True, read_clocks()
    try:
        with progress(console, len(cases)) as begin:
            options = Options.from_environment()
            rates = calibrated(options)
            results = results.measured_on(dataclasses.replace(target_of(options), rates=rates))
            with runner.measuring(compile_ours):
                if options.calibrate:  # the cache is empty there, but the machine is the same
                    here = Options.from_environment()
                    share = others_share(options.cache_dir, target_of(options))
                    remember_rates(here.cache_dir, target_of(here), rates, share)
                for case in cases:
                    begin(case.name)
                    results = results.with_row(runner.run_case(case, compile_ours, rounds))
                    after_row(results)
    except KeyboardInterrupt:
        complete = False
    if cases and results.rows and (line := disturbed_since(before)):
        click.echo(f"warning: {line}", err=True)
    return results, complete


def show(results: Results, console: Console) -> None:
    """Prints the table of results and where they were measured; on stderr, what is wrong."""
    here = results.environment
    console.print(_fitting_table(results.rows, console))
    console.print()
    ratios = [row.ratio for row in results.rows if row.ratio is not None]
    if len(ratios) > 1:
        console.print(
            f"Geometric mean of the {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}).",
            highlight=False,
        )
    console.print(
        f"{here['cpu']}, {here['cores']} cores, Python {here['python']}, "
        f"JAX {here['packages']['jax']}, choose={here['choose']}.",
        highlight=False,
    )
    console.print(
        "The ratio is jax.jit / hlo_mlc; errors are the largest, relative to an evaluation in 64 "
        "bits.",
        highlight=False,
    )
    for row in results.rows:
        if row.status != "right":
            click.echo(f"error: {row.name}: {row.status}: {row.message}", err=True)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table of results; the higher its `rank`, the wider a console it needs."""

    title: str
    cell: Callable[[Row], str | Text]
    rank: int = 0


_COLUMNS = (
    _Column("jax.jit\nms", lambda row: three_digits(row.jax_ms)),
    _Column("hlo_mlc\nms", lambda row: three_digits(row.ours_ms)),
    _Column("ratio", lambda row: Text(f"{row.ratio:.2f}", style=_ratio_style(row))),
    _Column("error\nhlo_mlc", lambda row: f"{row.ours_error:.1e}"),
    _Column("error\njax.jit", lambda row: f"{row.jax_error:.1e}", 4),
    _Column("clusters", lambda row: str(row.clusters), 3),
    _Column("coverage", lambda row: f"{row.coverage:.0%}", 2),
    _Column("share of\nrun time", lambda row: f"{row.share:.0%}", 5),
    _Column("first call\njax.jit s", lambda row: f"{row.jax_first_call_s:.2f}", 1),
    _Column(
        "first call\nhlo_mlc s",
        lambda row: Text(
            f"{row.ours_first_call_s:.2f}", style="yellow" if row.misses_first_call else ""
        ),
    ),
)


def _fitting_table(rows: Sequence[Row], console: Console) -> Table:
    """The table with as many columns as the console has room for."""
    for rank in sorted({column.rank for column in _COLUMNS}, reverse=True):
        table = _table(rows, [column for column in _COLUMNS if column.rank <= rank])
        if (
            console.measure(table, options=console.options.update(width=_UNLIMITED)).maximum
            <= console.width
        ):
            break
    return table


def of_workloads(title: str) -> Table:
    """A table whose lines begin with the name of a workload."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("workload", no_wrap=True)
    return table


def _table(rows: Sequence[Row], columns: Sequence[_Column]) -> Table:
    """One line for each workload, by groups; what misses its figure or its limit is marked."""
    table = of_workloads("jax.jit and hlo_mlc in turns, times of one call")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    groups = dict.fromkeys(row.group for row in rows)
    for group in groups:
        if len(groups) > 1:
            table.add_row(Text(group, style="bold"))
        for row in rows:
            if row.group != group:
                continue
            if row.status == "right":
                table.add_row(f"  {row.name}", *(column.cell(row) for column in columns))
            else:
                table.add_row(f"  {row.name}", "", "", Text(row.status.upper(), style="bold red"))
    return table


def misses(rows: Sequence[Row]) -> list[str]:
    """A line for every figure, and limit of first calls and of memory, that was not reached."""
    lines = []
    for row in rows:
        if row.misses_figure:
            lines.append(f"{row.name}: ratio {row.ratio:.2f}, its goal is {row.figure:.2f}")
        if row.misses_first_call:
            lines.append(
                f"{row.name}: first call {row.ours_first_call_s:.2f} s, "
                f"of jax.jit {row.jax_first_call_s:.2f} s"
            )
        if row.misses_memory:
            lines.append(
                f"{row.name}: needs {row.ours_memory_bytes / (1 << 20):.1f} MiB, "
                f"jax.jit {row.jax_memory_bytes / (1 << 20):.1f} MiB"
            )
    return lines


def exit_status(rows: Sequence[Row], complete: bool) -> int:
    """0 if every row is right; 1 if not; 130, as shells have it, after an interrupt."""
    if any(row.status != "right" for row in rows):
        return 1
    return 0 if complete else 130


def _ratio_style(row: Row) -> str:
    if row.misses_figure:
        return "yellow"
    return "green" if row.ratio is not None and row.ratio > 1 else ""
