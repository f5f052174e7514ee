"""The root of the command line: its subcommands, and how it reports our own errors."""

from __future__ import annotations

import importlib
from typing import Any

import click

from hlo_mlc import __version__
from hlo_mlc.support.errors import MlcError, UsageError

_FAILURE = 1
_MISUSE = 2  # as click's own usage errors

# Each is a module of its own, imported when it is called: JAX takes a second, which lists of
# records and texts of help should not.
_COMMANDS = {
    "demo": "Compares us with jax.jit on parts of models, loops and single operations.",
    "bench": "Runs benchmarks against jax.jit.",
    "inspect": "Explains what of a program runs in our kernels, and why the rest does not.",
    "tune": "Finds the fastest schedules of a program's kernels and records them.",
    "dashboard": "Serves the studies of tuning in a browser.",
    "records": "Lists, exports or imports what tuning found out.",
    "export": "Compiles functions ahead of time into a file, or a C library.",
    "doctor": "Shows versions, the target, the cache, and limits of the machine.",
    "cache": "Lists, checks or empties the folder of compiled kernels.",
}


class _Commands(click.Group):
    """The commands. They may raise our errors: the user sees one line, not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return getattr(importlib.import_module(f"hlo_mlc.cli.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MlcError as error:
            click.echo(f"error: {_one_line(error)}", err=True)
            ctx.exit(_MISUSE if isinstance(error, UsageError) else _FAILURE)


def _one_line(error: MlcError) -> str:
    lines = str(error).splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith("  | "))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hlo-mlc")
def main() -> None:
    """Makes JAX programs faster by compiling parts of them into kernels of their own."""
