"""The root of the command line: its subcommands, and how it reports our own errors."""

from __future__ import annotations

from typing import Any

import click

from hlo_mlc import MlcError, __version__
from hlo_mlc.cli.bench import bench
from hlo_mlc.cli.cache import cache
from hlo_mlc.cli.dashboard import dashboard
from hlo_mlc.cli.demo import demo
from hlo_mlc.cli.doctor import doctor
from hlo_mlc.cli.export import export
from hlo_mlc.cli.inspect import inspect
from hlo_mlc.cli.records import records
from hlo_mlc.cli.tune import tune
from hlo_mlc.support.errors import UsageError

_FAILURE = 1
_MISUSE = 2  # as click's own usage errors


class _ReportingGroup(click.Group):
    """A group whose commands may raise our errors: the user sees one line, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MlcError as error:
            click.echo(f"error: {_one_line(error)}", err=True)
            ctx.exit(_MISUSE if isinstance(error, UsageError) else _FAILURE)


def _one_line(error: MlcError) -> str:
    lines = str(error).splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith("  | "))


@click.group(cls=_ReportingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hlo-mlc")
def main() -> None:
    """Makes JAX programs faster by compiling parts of them into kernels of their own."""


for command in (demo, bench, inspect, tune, dashboard, records, export, doctor, cache):
    main.add_command(command)
