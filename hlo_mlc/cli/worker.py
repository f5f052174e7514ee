"""`hlo-mlc worker`: takes trials of the kernels that others tune."""

from __future__ import annotations

import time

import click

from hlo_mlc.cli import parameters
from hlo_mlc.cli.cluster import run_everywhere
from hlo_mlc.interop.team import take_trials
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.progress import TuningProgress
from hlo_mlc.tuning.storage import shown

_LOOK_S = 5.0
_INTERRUPTED = 130  # as shells have it


@click.command()
@parameters.storage(required=True)
@click.option("--until-done", is_flag=True, help="Ends when nothing is left to do.")
@click.option(
    "--engine",
    type=click.Choice(["dask"]),
    help="Runs a worker on each machine of a cluster instead of here.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="The cluster's scheduler, as tcp://HOST:8786; else what Dask is configured for "
    "(DASK_SCHEDULER_ADDRESS).",
)
@parameters.target
@click.pass_context
def worker(
    ctx: click.Context,
    storage: str,
    until_done: bool,
    engine: str | None,
    scheduler: str | None,
    target: str,
) -> None:
    """Takes trials of the kernels that `hlo-mlc tune --storage` has put into a database, as far as
    they are for this kind of machine, and records here what was found; until an interrupt.

    Any number of workers may run, one on each machine: several on one would disturb each other. The
    trial of one that is killed is taken by another within a minute. With --engine dask one runs on
    each machine of a cluster, where hlo_mlc has to be installed, and records there.
    """
    if scheduler is not None and engine is None:
        raise UsageError("--scheduler is for --engine dask")
    if engine is not None:
        command = [
            "worker",
            "--storage",
            storage,
            "--target",
            target,
            *["--until-done"] * until_done,
        ]
        ctx.exit(_everywhere(command, scheduler))
    options = Options.from_environment(target=target)
    with TuningProgress() as progress:
        trials = take_trials(storage, options, progress)
        if not until_done:
            click.echo(f"taking trials from {shown(storage)}, until Ctrl-C", err=True)
        while True:
            count = 0
            for kernel in trials:
                click.echo(str(kernel))
                count += 1
            if until_done:
                if not count:
                    click.echo("nothing is left to do for this kind of machine")
                return
            time.sleep(_LOOK_S)
            trials = take_trials(storage, options, progress)


def _everywhere(command: list[str], scheduler: str | None) -> int:
    """Runs a command on all machines of a cluster, and shows what they say; the first status that
    is none of success."""
    status = 0
    try:
        for ended in run_everywhere(command, scheduler):
            click.echo(f"{ended.machine}: ended with status {ended.status}")
            click.echo(ended.output.rstrip())
            status = status or ended.status
    except KeyboardInterrupt:
        click.echo("interrupted: the workers have ended, and what they measured is kept", err=True)
        return _INTERRUPTED
    return status
