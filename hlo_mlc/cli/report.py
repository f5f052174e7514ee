"""`hlo-mlc report`: all that is known of a program as one page for a browser."""

from __future__ import annotations

from pathlib import Path

import click
import jax

from hlo_mlc.cli import parameters
from hlo_mlc.cli.function import explained, require_one_way
from hlo_mlc.runtime.files import writable
from hlo_mlc.support.wording import counted


@click.command()
@click.argument("program")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page to write.",
)
@parameters.argument_types()
@parameters.argument_files
@parameters.entry
@parameters.choose
@parameters.target
@parameters.x64
def report(
    program: str,
    output: Path,
    given: tuple[str, ...],
    files: tuple[Path, ...],
    entry: str,
    choose: str,
    target: str,
    x64: bool,
) -> None:
    """Writes a page that shows what of PROGRAM runs in our kernels, how fast, and how it came so.

    PROGRAM is MODULE:FUNCTION or an ONNX model, MODEL.onnx, with its arguments from --arg,
    --arg-file, the function's attribute `example_args` or the model, or a file with a StableHLO
    module. The page is one file that needs no
    network: kernels with their share of a call's time, the lines of yours that they compute, their
    loops, LLVM IR and assembly, every stage of the compilation, and the graph.
    """
    require_one_way(given, files)
    writable(output, "a page")  # shows before anything is compiled
    with jax.enable_x64(x64 or jax.config.jax_enable_x64):
        found = explained(program, given, files, entry, choose, target)
        path = found.html(output)
    click.echo(f"{path}: {counted(len(found.kernels), 'kernel')} of ours, open it in a browser")
