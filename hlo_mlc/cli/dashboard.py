"""`hlo-mlc dashboard`: what was tuned, and is being tuned, in a browser."""

from __future__ import annotations

import contextlib

import click

from hlo_mlc.cli import parameters
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options

with lazy_imports():
    from hlo_mlc.tuning import dashboard as serving
    from hlo_mlc.tuning import storage as storages


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="The port to listen on; 0 takes any free one.",
)
@parameters.storage()
def dashboard(host: str, port: int, storage: str | None) -> None:
    """Serves what was tuned with HLO_MLC_CACHE, or by a team, until an interrupt.

    It opens on an overview of all kernels: how much faster each is than by its default schedule and
    than XLA's code, what was recorded, the trials, and what is being tuned now. Each leads to its
    study in optuna-dashboard.

    There is no authentication: on another address than the loopback,
    everybody who can reach it can change the studies.
    """
    studies = storage or storages.journal_path(Options.from_environment())
    with serving.make_dashboard(studies, host, port) as server:
        click.echo(f"http://{host}:{server.server_port}/  (studies in {storages.shown(studies)})")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
