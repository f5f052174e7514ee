"""`hlo-mlc bench --peers`: ours beside other ways to do the same work, in one table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

import hlo_mlc_bench.runner as runner
from hlo_mlc import mlc_jit
from hlo_mlc.cli import measuring
from hlo_mlc.runtime.files import write_for_others
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.wording import three_digits
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.peers import JAX, OURS, TIED, PeerRow, compared, installed, run_case


def compare(
    cases: Sequence[Case],
    *,
    environment: Mapping[str, Any],
    choose: str,
    rounds: int,
    console: Console,
    path: Path | None,
) -> int:
    """Measures the cases that peers have programs for, shows and keeps the results; the exit
    status: 1 where ours was wrong or failed.

    Raises: UsageError where there is no such case, or no peer.
    """
    known, versions = compared(), installed()
    chosen = [case for case in cases if case in known]
    if not chosen:
        raise UsageError(
            "no peer has a program for these cases; those that have one are: "
            + ", ".join(case.name for case in known)
        )
    rows: list[PeerRow] = []

    def keep() -> None:
        if path is not None:
            named = {peer.name: version for peer, version in versions.items()}
            found = {
                "environment": dict(environment),
                "peers": named,
                "rows": [asdict(row) for row in rows],
            }
            write_for_others(path, f"{json.dumps(found, indent=1)}\n".encode(), "the results")

    keep()  # a path that cannot be written shows before minutes of measuring
    compile_ours = partial(mlc_jit, choose=choose)
    with measuring.progress(console, len(chosen)) as advance, runner.measuring(compile_ours):
        for case in chosen:
            advance(case.name)
            rows.append(run_case(case, compile_ours, list(versions), rounds))
            keep()
    _show(rows, [peer.name for peer in versions], console)
    console.print(
        ", ".join(f"{peer.name} {version}" for peer, version in versions.items()), highlight=False
    )
    return int(any(OURS in row.failed for row in rows))


def _show(rows: Sequence[PeerRow], peers: Sequence[str], console: Console) -> None:
    table = measuring.of_workloads("milliseconds of a call, many in a row, all in turns")
    for title in (OURS, JAX, *peers, "best peer\n/ hlo_mlc", "the same\nafter a pause"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            *(_cell(row, name) for name in (OURS, JAX, *peers)),
            *map(_shown, (row.ratio, row.ratio_after_pause)),
        )
    console.print(table)
    for pace, found in (
        ("in a row", [row.ratio for row in rows]),
        ("after a pause", [row.ratio_after_pause for row in rows]),
    ):
        ratios = [ratio for ratio in found if ratio is not None]
        if len(ratios) > 1:
            console.print(
                f"Geometric mean of best peer / hlo_mlc, {pace}: "
                f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to "
                f"{max(ratios):.2f}); {sum(r >= TIED for r in ratios)} of {len(ratios)} "
                "best or tied.",
                highlight=False,
            )
    for row in rows:
        for name, reason in row.failed.items():
            click.echo(f"{row.name}: {name}: {reason}", err=True)


def _shown(ratio: float | None) -> Text:
    if ratio is None:
        return Text("")
    return Text(f"{ratio:.2f}", style="green" if ratio >= TIED else "yellow")


def _cell(row: PeerRow, name: str) -> Text:
    if name not in row.ms:
        return Text("-", style="dim")
    return Text(three_digits(row.ms[name]), style="bold" if name == row.best else "")
