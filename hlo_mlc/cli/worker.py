"""`hlo-mlc worker`: takes trials of the kernels that others tune."""

from __future__ import annotations

import time

import click

from hlo_mlc.cli import parameters
from hlo_mlc.interop.team import take_trials
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.progress import TuningProgress

_LOOK_S = 5.0


@click.command()
@parameters.storage(required=True)
@click.option("--until-done", is_flag=True, help="Ends when nothing is left to do.")
@parameters.target
def worker(storage: str, until_done: bool, target: str) -> None:
    """Takes trials of the kernels that `hlo-mlc tune --storage` has put into a database, as far as
    they are for this kind of machine, and records here what was found; until an interrupt.

    Any number of workers may run, one on each machine: several on one would disturb each other. The
    trial of one that is killed is taken by another within a minute.
    """
    options = Options.from_environment(target=target)
    with TuningProgress() as progress:
        while True:
            for kernel in take_trials(storage, options, progress):
                click.echo(str(kernel))
            if until_done:
                return
            time.sleep(_LOOK_S)
