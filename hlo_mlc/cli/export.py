"""`hlo-mlc export`: functions ahead of time into one file, with their kernels' machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import jax

from hlo_mlc import entry, export_c
from hlo_mlc import export as export_functions
from hlo_mlc.cli import parameters
from hlo_mlc.cli.function import by_us, entry_name, given_function, is_file
from hlo_mlc.runtime.files import writable
from hlo_mlc.support.errors import UsageError


@click.command()
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write, or the folder of c-source.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jax", "c", "c-source"]),
    default="jax",
    show_default=True,
    help="A file for hlo_mlc.load, or a C library with its header: static (OUTPUT ends in .a, "
    "which is added if nothing is) or shared (.so); or its source: a folder with OUTPUT's name and "
    "two files in it.",
)
@parameters.argument_types(
    f"{parameters.ARGUMENT_HELP} With names for sizes, as f32[batch,1024], the file is for all of "
    "them."
)
@click.option(
    "--embed",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help="The value of argument N, from `example_args`, goes into the file; may be repeated.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("host",),
    show_default=True,
    help="What to generate code for: host, x86-64-v2, x86-64-v3, x86-64-v4, aarch64, or for GPUs "
    "sm_80, sm_90; may be repeated.",
)
@click.option(
    "--vjp-order",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How often jax.grad may be taken of what is loaded.",
)
@parameters.choose
@parameters.x64
def export(
    programs: tuple[str, ...],
    output: Path,
    kind: str,
    given: tuple[str, ...],
    embed: tuple[int, ...],
    targets: tuple[str, ...],
    vjp_order: int,
    choose: str,
    x64: bool,
) -> None:
    """Compiles each PROGRAM, a function given as MODULE:FUNCTION or an ONNX model, MODEL.onnx,
    ahead of time into one file.

    Its arguments come from --arg, from the function's attribute `example_args`, or from the model.
    `hlo-mlc inspect FILE` shows what is in the file. Load only files whose authors you trust: they
    hold machine code. A C library needs neither Python nor JAX; our kernels have to cover the
    function.
    """
    if len(programs) > 1 and given:
        raise UsageError("The arguments of several functions come from their `example_args`")
    if kind != "c-source":
        writable(output, "the export")  # shows before anything is traced
    with jax.enable_x64(x64 or jax.config.jax_enable_x64):
        functions = [_function(program, given) for program in programs]
        if kind != "jax":
            if len(functions) != 1 or len(targets) != 1 or vjp_order:
                raise UsageError(
                    "A C library is for one function and one target, and not for derivatives"
                )
            ((function, args),) = functions
            if kind == "c-source":
                output = _folder(output) / f"{output.name}.c"
            report = export_c(function, *args, path=output, target=targets[0], embed=embed)
        else:
            report = export_functions(
                _entries(programs, functions, choose, embed, vjp_order),
                path=output,
                targets=targets,
            )
    click.echo(str(report))


def _folder(path: Path) -> Path:
    """The folder, which is made if there is none.

    Raises: UsageError where that cannot be.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot make the folder {str(path)!r}: {error.strerror or error}"
        ) from error
    return path


def _function(program: str, given: tuple[str, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The function and what to call it with."""
    if is_file(program):
        raise UsageError(
            f"{program} is a file: what is exported is a function of JAX, given as MODULE:FUNCTION"
        )
    return given_function(program, given, symbols=jax.export.SymbolicScope())


def _entries(
    programs: tuple[str, ...],
    functions: list[tuple[Any, tuple[Any, ...]]],
    choose: str,
    embed: tuple[int, ...],
    vjp_order: int,
) -> dict[str, Any]:
    """The functions by the last part of their names.

    Raises: UsageError for two with the same.
    """
    entries = {}
    for program, (function, args) in zip(programs, functions, strict=True):
        ours = by_us(function, choose)
        name = entry_name(program)
        if name in entries:
            raise UsageError(
                f"Two functions are called {name!r}: hlo_mlc.export takes a name for each"
            )
        entries[name] = entry(ours, *args, embed=embed, vjp_order=vjp_order)
    return entries
