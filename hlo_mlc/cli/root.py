"""The root of the command line: its subcommands, and how it reports our own errors."""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import click

from hlo_mlc import __version__
from hlo_mlc.support.errors import MlcError, UsageError, did_you_mean
from hlo_mlc.support.options import Options

_FAILURE = 1
_MISUSE = 2  # as click's own usage errors
_INTERRUPTED = 130  # as shells have it

_OURS = "hlo_mlc"  # how the text of every warning of ours begins

# Each is a module of its own, imported when it is called: JAX takes a second, which lists of
# records and texts of help should not.
_COMMANDS = {
    "demo": "Compares us with jax.jit on parts of models, loops and single operations.",
    "bench": "Runs benchmarks against jax.jit.",
    "inspect": "Explains what of a program runs in our kernels, and why the rest does not.",
    "report": "Writes all that is known of a program as a page for a browser.",
    "tune": "Finds the fastest schedules of a program's kernels and records them.",
    "model": "Trains the model that orders the trials of tuning.",
    "worker": "Takes trials of kernels that others tune, out of a database.",
    "dashboard": "Serves the studies of tuning in a browser.",
    "records": "Lists, exports or imports what tuning found out.",
    "export": "Compiles functions ahead of time into a file, or a C library.",
    "doctor": "Shows versions, the target, the cache, and limits of the machine.",
    "cache": "Lists, checks or empties the folder of compiled kernels.",
}


# What people type who know a command by its function in Python.
_BY_FUNCTION = {"explain": "inspect", "compare": "bench"}


@contextlib.contextmanager
def _interrupts_end_the_process() -> Iterator[None]:
    """While JAX is imported, whose extensions take a KeyboardInterrupt for a module that fails, or
    lose it, so that the command would run on. There is nothing to keep yet."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or another's
        yield
        return
    try:
        given = signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # interrupts go to the main thread, which is another one
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, given)


class _Commands(click.Group):
    """The commands. They may raise our errors: the user sees one line, not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        with _interrupts_end_the_process():
            module = importlib.import_module(f"hlo_mlc.cli.{cmd_name}")
        return getattr(module, cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:
            meant = _BY_FUNCTION.get(args[0], args[0])
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(meant, _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_INTERRUPTED)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # no errors of a command
        except MlcError as error:
            click.echo(f"error: {_one_line(error)}", err=True)
            ctx.exit(_MISUSE if isinstance(error, UsageError) else _FAILURE)
        except click.UsageError as error:
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                raise  # it is no error, but the help
            command = error.ctx.command_path if error.ctx is not None else ctx.command_path
            click.echo(
                f"error: {error.format_message().rstrip('.')} (`{command} --help` says more)",
                err=True,
            )
            ctx.exit(_MISUSE)
        except click.ClickException:
            raise  # in one line as well
        except Exception as error:  # whatever JAX, XLA or the user's own code may raise
            if _is_debugging():
                raise
            click.echo(
                f"error: {type(error).__name__}: {' '.join(str(error).split())} "
                "(HLO_MLC_DEBUG=1 shows where it was raised)",
                err=True,
            )
            ctx.exit(_FAILURE)


def _is_debugging() -> bool:
    with contextlib.suppress(MlcError):
        return Options.from_environment().debug > 0
    return False


def _show_warning(
    usual: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any
) -> None:
    """Ours in one line, without the place in our code that they come from."""
    text = str(message)
    if text.startswith(_OURS):
        click.echo(f"warning: {text.removeprefix(_OURS).lstrip(' :')}", err=True)
    else:
        usual(message, category, *where)


def _one_line(error: MlcError) -> str:
    lines = str(error).splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith("  | "))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hlo-mlc")
def main() -> None:
    """Makes JAX programs faster by compiling parts of them into kernels of their own.

    A program is MODULE:FUNCTION or FILE.py:FUNCTION, a file with a StableHLO module, or
    MODEL.onnx. A function's arguments come from --arg f32[512,1024], once for each, or from its
    attribute `example_args`: they, or a function that makes them.

    \b
      hlo-mlc demo                                        what there is to gain
      hlo-mlc inspect model.py:predict --arg f32[32,64]   what becomes of a function
      hlo-mlc bench model.py:predict --arg f32[32,64]     how much faster it is
    """
