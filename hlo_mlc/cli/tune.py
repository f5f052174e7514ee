"""`hlo-mlc tune`: finds the fastest schedules of a program's kernels by measuring."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
import jax
from click.core import ParameterSource

from hlo_mlc import compile_stablehlo
from hlo_mlc.cli import parameters
from hlo_mlc.cli.function import (
    by_us,
    given_function,
    is_file,
    parse_argument,
    read_arrays,
    refuse_entry,
    require_one_way,
)
from hlo_mlc.interop.devices import CPU, platform_of
from hlo_mlc.interop.tuning_report import TuningInterrupted
from hlo_mlc.support.errors import UsageError
from hlo_mlc.target import cuda
from hlo_mlc.target.levels import runnable

_INTERRUPTED = 130  # as shells have it


@click.command()
@click.argument("program")
@parameters.argument_types()
@parameters.argument_files
@parameters.entry
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    show_default="until next to nothing is expected of another",
    help="How many schedules to try of each kernel.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    show_default="no limit",
    help="How long the search may take, all kernels together.",
)
@parameters.storage()
@parameters.target
@parameters.x64
@click.pass_context
def tune(
    ctx: click.Context,
    program: str,
    given: tuple[str, ...],
    files: tuple[Path, ...],
    entry: str,
    trials: int | None,
    minutes: float | None,
    storage: str | None,
    target: str,
    x64: bool,
) -> None:
    """Finds the fastest schedules of PROGRAM's kernels and records them for the compiler.

    PROGRAM is a file with a StableHLO module, an ONNX model, MODEL.onnx, or MODULE:FUNCTION, with
    arguments from --arg-file, --arg, the function's attribute `example_args`, or the model. Kernels
    are measured on the arrays that there are. Where there are types only, values are made up:
    normally distributed floats, booleans of both kinds, indices within the bounds of what they
    index, and small non-negative integers else. Where JAX runs on an NVIDIA GPU, the kernels of a
    function for it are tuned there; where there is no GPU, --target sm_90 tunes them by a model,
    without running any, and the records say so.

    Without --trials, each kernel is tuned until next to nothing is expected of another trial, and
    time that one does not need is for the others. Ctrl-C ends the search and records the best so
    far. The same command goes on where it was, also after it was killed.

    With --storage the kernels lie in a database with their studies, and every `hlo-mlc worker` on a
    machine of the same kind takes trials of them.
    """
    modelled = target if target in cuda.names() else None
    if modelled is not None and is_file(program):
        raise UsageError(
            f"--target {target}: StableHLO modules are compiled for CPUs; give a MODULE:FUNCTION"
        )
    if modelled is None and target not in runnable():
        raise UsageError(
            f"--target {target}: kernels are tuned by running them, and those that "
            f"run on this machine's CPU are for {', '.join(runnable())}; for its GPU "
            "they are tuned where JAX runs on it, without --target; for GPUs that are "
            f"not here by a model, for {' or '.join(cuda.names())}"
        )
    is_named = ctx.get_parameter_source("target") is not ParameterSource.DEFAULT
    if is_file(program) and not is_named and platform_of(()) != CPU:
        raise UsageError(
            f"JAX runs on {platform_of(())} here, and StableHLO modules are compiled "
            "for CPUs: --target cpu tunes this one for this machine's CPU"
        )
    on_cpu = is_named or is_file(program)
    require_one_way(given, files)
    try:
        with (
            jax.enable_x64(x64 or jax.config.jax_enable_x64),
            jax.default_device(jax.local_devices(backend=CPU)[0])
            if on_cpu
            else contextlib.nullcontext(),
        ):
            if is_file(program):
                args = read_arrays(files) if files else tuple(map(parse_argument, given))
                function = compile_stablehlo(Path(program), entry=entry, target=target)
                report = function.tune(*args, trials=trials, minutes=minutes, storage=storage)
            else:
                refuse_entry(program, entry)
                function, args = given_function(program, given, files)
                report = by_us(function, target=None if modelled else target).tune(
                    *args, trials=trials, minutes=minutes, storage=storage, target=modelled
                )
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, TuningInterrupted) and interrupt.report.kernels:
            click.echo(str(interrupt.report))
        click.echo(
            "interrupted: what was measured is kept, and the same command goes on; with "
            "--trials 1 it only records the best that is known",
            err=True,
        )
        ctx.exit(_INTERRUPTED)
    click.echo(str(report))
