"""`hlo-mlc tune`: finds the fastest schedules of a program's kernels by measuring."""

from __future__ import annotations

from pathlib import Path

import click
import jax

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.cli.function import arguments, check_traceable, is_file, resolve

_INTERRUPTED = 130  # as shells have it


@click.command()
@click.argument("program")
@click.option(
    "--arg",
    "given",
    multiple=True,
    metavar="TYPE",
    help="Type of an argument of the function, as f32[512,1024]; one --arg for each.",
)
@click.option("--entry", default="main", show_default=True, help="Which function of a module.")
@click.option("--trials", type=click.IntRange(min=1), help="Until each kernel had so many.")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="For so long; 2 if not given."
)
@click.option("--x64", is_flag=True, help="With 64-bit types enabled in JAX.")
@click.pass_context
def tune(
    ctx: click.Context,
    program: str,
    given: tuple[str, ...],
    entry: str,
    trials: int | None,
    minutes: float | None,
    x64: bool,
) -> None:
    """Finds the fastest schedules of PROGRAM's kernels and records them for the compiler.

    PROGRAM is a file with a StableHLO module, or MODULE:FUNCTION with its arguments from --arg, or
    from the function's attribute `example_args`. After an interrupt the same command goes on where
    it was.
    """
    try:
        with jax.enable_x64(x64 or jax.config.jax_enable_x64):
            if is_file(program):
                function = compile_stablehlo(Path(program), entry=entry)
                report = function.tune(trials=trials, minutes=minutes)
            else:
                function = resolve(program)
                args = arguments(function, given)
                check_traceable(program, function, args)
                tuned = function if hasattr(function, "tune") else mlc_jit(function)
                report = tuned.tune(*args, trials=trials, minutes=minutes)
    except KeyboardInterrupt:
        click.echo("interrupted: what was measured is kept; the same command goes on, and with "
                   "--trials 1 it only records the best that is known", err=True)
        ctx.exit(_INTERRUPTED)
    click.echo(str(report))
