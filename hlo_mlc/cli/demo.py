"""`hlo-mlc demo`: what there is to gain, on real workloads, in less than three minutes."""

from __future__ import annotations

import click

from hlo_mlc.cli import measuring
from hlo_mlc_bench import cases
from hlo_mlc_bench.results import Results, environment

_ROUNDS = 11


@click.command()
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Compares hlo_mlc with jax.jit on parts of models, loops and single operations."""
    console = measuring.make_console()
    results, complete = measuring.measure(
        [cases.BY_NAME[name] for name in cases.DEMO],
        Results(environment("auto", _ROUNDS)),
        choose="auto",
        rounds=_ROUNDS,
        console=console,
    )
    measuring.show(results, console)
    ctx.exit(measuring.exit_status(results.rows, complete))
