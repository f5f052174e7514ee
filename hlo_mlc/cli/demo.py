"""`hlo-mlc demo`: what there is to gain, on real workloads, in less than three minutes."""

from __future__ import annotations

from pathlib import Path

import click

from hlo_mlc.cli import measuring, parameters
from hlo_mlc_bench import cases
from hlo_mlc_bench.results import Results, environment

_ROUNDS = 11
_NEXT = "A function of yours: hlo-mlc bench module:function --arg f32[512,1024]"


@click.command()
@parameters.json_path
@click.pass_context
def demo(ctx: click.Context, json_path: Path | None) -> None:
    """Compares hlo_mlc with jax.jit on parts of models, loops and single operations.

    Each result is checked before anything is timed. Ctrl-C ends it early, with what there is.
    """
    console = measuring.make_console()
    results = Results(environment("auto", _ROUNDS))
    if json_path is not None:
        results.save(json_path)  # a path that cannot be written shows before anything is measured
    results, complete = measuring.measure(
        [cases.BY_NAME[name] for name in cases.DEMO],
        results,
        choose="auto",
        rounds=_ROUNDS,
        console=console,
        after_row=lambda results: results.save(json_path) if json_path is not None else None,
    )
    measuring.show(results, console)
    console.print(_NEXT, highlight=False)
    if not complete:
        done, asked = len(results.rows), len(cases.DEMO)
        click.echo(f"interrupted after {done} of {asked} workloads", err=True)
    ctx.exit(measuring.exit_status(results.rows, complete))
