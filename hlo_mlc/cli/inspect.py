"""`hlo-mlc inspect`: what we make of a program, and why the rest stays with XLA."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import jax

from hlo_mlc.cli import parameters
from hlo_mlc.cli.function import explained, refuse_arguments, refuse_entry
from hlo_mlc.interop.load import describe
from hlo_mlc.runtime.archive import is_archive
from hlo_mlc.support.errors import UsageError

_DUMP = "HLO_MLC_DUMP"


@click.command()
@click.argument("program")
@parameters.argument_types()
@parameters.argument_files
@parameters.entry
@parameters.choose
@parameters.target
@parameters.x64
@click.option("--verbose", is_flag=True, help="All that is known of each kernel, and why.")
@click.option("--json", "as_json", is_flag=True, help="The same for machines.")
@click.option(
    "--dump",
    type=click.Path(file_okay=False, path_type=Path),
    help="Writes what every stage produces into this folder.",
)
def inspect(
    program: str,
    given: tuple[str, ...],
    files: tuple[Path, ...],
    entry: str,
    choose: str,
    target: str,
    x64: bool,
    verbose: bool,
    as_json: bool,
    dump: Path | None,
) -> None:
    """Explains what of PROGRAM runs in our kernels, and why the rest does not.

    PROGRAM is a file with a StableHLO module (text, bytecode or portable artifact), an ONNX model,
    MODEL.onnx, or MODULE:FUNCTION, a function in a Python module. Its arguments come from --arg,
    --arg-file, the function's attribute `example_args`, or the model. Of a file that
    `hlo-mlc export` wrote it shows what is in it, without running any of it.
    """
    if is_archive(Path(program)):
        refuse_arguments(given, files)
        refuse_entry(program, entry)
        if as_json or dump is not None:
            raise UsageError(f"--json and --dump are for what is compiled here, not for {program}")
        click.echo(describe(program))
        return
    with _dumping_into(dump), jax.enable_x64(x64 or jax.config.jax_enable_x64):
        found = explained(program, given, files, entry, choose, target, verbose)
    click.echo(json.dumps(found.as_dict(), indent=1) if as_json else str(found))
    if dump is not None:
        click.echo(f"stages: {dump}", err=as_json)


@contextlib.contextmanager
def _dumping_into(folder: Path | None) -> Iterator[None]:
    """Within it, what is compiled leaves its stages in `folder`, unless that is None."""
    previous = os.environ.get(_DUMP)
    if folder is not None:
        os.environ[_DUMP] = str(folder)
    try:
        yield
    finally:
        if previous is None:
            os.environ.pop(_DUMP, None)
        else:
            os.environ[_DUMP] = previous
