"""`hlo-mlc export`: a function ahead of time into one file, with its kernels' machine code."""

from __future__ import annotations

from pathlib import Path

import click
import jax

from hlo_mlc import export as export_function
from hlo_mlc import export_c, mlc_jit
from hlo_mlc.cli.function import arguments, check_traceable, resolve
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import CHOICES


@click.command()
@click.argument("program")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jax", "c"]),
    default="jax",
    show_default=True,
    help="A file for hlo_mlc.load, or a static library with a C header (OUTPUT.a, OUTPUT.h).",
)
@click.option(
    "--arg",
    "given",
    multiple=True,
    metavar="TYPE",
    help="Type of an argument of the function, as f32[512,1024]; one --arg for each.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("host",),
    show_default=True,
    help="What to generate code for: host, x86-64-v2, x86-64-v3, x86-64-v4; may be repeated.",
)
@click.option("--vjp-order", type=click.IntRange(0), default=0, help="How often to differentiate.")
@click.option("--choose", type=click.Choice(CHOICES), default="auto", show_default=True)
@click.option("--x64", is_flag=True, help="With 64-bit types enabled in JAX.")
def export(
    program: str,
    output: Path,
    kind: str,
    given: tuple[str, ...],
    targets: tuple[str, ...],
    vjp_order: int,
    choose: str,
    x64: bool,
) -> None:
    """Compiles PROGRAM, a function given as MODULE:FUNCTION, ahead of time into a file.

    Its arguments come from --arg, or from the function's attribute `example_args`. `hlo-mlc inspect
    FILE` shows what is in the file. Load only files whose authors you trust: they hold machine
    code. A C library needs neither Python nor JAX; our kernels have to cover the function.
    """
    with jax.enable_x64(x64 or jax.config.jax_enable_x64):
        function = resolve(program)
        args = arguments(function, given)
        check_traceable(program, function, args)
        if kind == "c":
            if len(targets) != 1 or vjp_order:
                raise UsageError("A C library is for one target, and not for derivatives")
            click.echo(str(export_c(function, *args, path=output, target=targets[0])))
            return
        ours = function.choosing(choose) if hasattr(function, "choosing") else mlc_jit(
            function, choose=choose
        )
        report = export_function(ours, *args, path=output, targets=targets, vjp_order=vjp_order)
    click.echo(str(report))
