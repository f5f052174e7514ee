"""`hlo-mlc bench`: the registry of benchmarks, or parts of it; or a function of the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import jax
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

import hlo_mlc_bench.results as results_file
from hlo_mlc.cli import measuring, parameters
from hlo_mlc.cli.function import by_us, given_function, is_function
from hlo_mlc.cli.peers import compare
from hlo_mlc.interop.comparing import compare as compare_function
from hlo_mlc.runtime.files import writable, write_for_others
from hlo_mlc.support.errors import UsageError, did_you_mean
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.cases import BY_NAME, CASES, GROUPS
from hlo_mlc_bench.runner import DEFAULT_ROUNDS


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(GROUPS),
    help="Only the cases of this group; may be repeated.",
)
@click.option("--neighbours", is_flag=True, help="Also other sizes, dtypes and layouts of a case.")
@click.option("--list", "list_only", is_flag=True, help="Shows the cases and runs none.")
@parameters.choose
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=DEFAULT_ROUNDS,
    show_default=True,
    help="How often both sides are timed in turns; a function of yours as often as two seconds "
    "allow, unless it is said.",
)
@parameters.json_path
@parameters.argument_types()
@parameters.argument_files
@parameters.x64
@click.option(
    "--peers",
    is_flag=True,
    help="Against NumPy, PyTorch, ONNX Runtime and IREE, those that are installed "
    "(pip install 'hlo-mlc[peers]').",
)
@click.option(
    "--resume",
    type=parameters.FILE,
    help="Measures only what is missing in these results, and adds it.",
)
@click.pass_context
def bench(
    ctx: click.Context,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    neighbours: bool,
    list_only: bool,
    choose: str,
    rounds: int,
    json_path: Path | None,
    given: tuple[str, ...],
    files: tuple[Path, ...],
    x64: bool,
    peers: bool,
    resume: Path | None,
) -> None:
    """Runs benchmarks, all or those of the given NAMES, against jax.jit.

    Results are checked before anything is timed; a wrong one gives exit status 1. A name like
    MODULE:FUNCTION, or MODEL.onnx, is a function of yours: it is timed with our kernels and by
    jax.jit in turns, and both are held against f64. Its arguments come from --arg-file, --arg, the
    function's attribute `example_args`, or the model; where there are types only, values are made
    up.
    """
    if functions := [name for name in names if is_function(name)]:
        if len(names) > 1 or groups or neighbours or list_only or peers or resume:
            raise UsageError(
                f"{functions[0]} is a function, which is measured by itself: it takes "
                "--arg, --arg-file, --choose, --rounds, --x64 and --json"
            )
        chosen = ctx.get_parameter_source("rounds") is not ParameterSource.DEFAULT
        _bench_function(
            functions[0], choose, given, files, x64, rounds if chosen else None, json_path
        )
        return
    cases = select(names, groups, neighbours)
    if given or files or x64:
        raise UsageError(
            "--arg, --arg-file and --x64 are for MODULE:FUNCTION: a case of the "
            "registry has its own arguments"
        )
    if peers and resume is not None:
        raise UsageError("--peers measures anew: it takes --json, not --resume")
    console = measuring.make_console()
    if list_only:
        console.print(_listing(cases))
    elif peers:
        ctx.exit(
            compare(
                cases,
                environment=results_file.environment(choose, rounds),
                choose=choose,
                rounds=rounds,
                console=console,
                path=json_path,
            )
        )
    else:
        ctx.exit(_bench_cases(cases, choose, rounds, console, json_path, resume))


def _bench_function(
    program: str,
    choose: str,
    given: Sequence[str],
    files: Sequence[Path],
    x64: bool,
    rounds: int | None,
    json_path: Path | None,
) -> None:
    """Measures a function of the user's by both sides, shows and keeps what came of it.

    Raises: UsageError for what is no function, or arguments that it does not take.
    """
    if json_path is not None:
        writable(json_path, "the results")  # before anything is measured
    with jax.enable_x64(x64 or jax.config.jax_enable_x64):
        function, args = given_function(program, given, files)
        found = compare_function(by_us(function, choose), *args, rounds=rounds)
    click.echo(str(found))
    if json_path is not None:
        write_for_others(json_path, json.dumps(found.as_dict(), indent=1).encode(), "the results")


def _bench_cases(
    cases: Sequence[Case],
    choose: str,
    rounds: int,
    console: Console,
    json_path: Path | None,
    resume: Path | None,
) -> int:
    """Measures cases, shows and keeps the results, with those that there are; the exit status.

    Raises: UsageError for results that cannot be read, or were measured elsewhere.
    """
    results = results_file.Results(results_file.environment(choose, rounds))
    if resume is not None:
        earlier = results_file.load(resume)
        results_file.check_comparable(earlier.environment, results.environment)
        results = earlier
        cases = [case for case in cases if case.name not in earlier.right()]
    path = json_path or resume
    if path is not None:
        results.save(path)  # a path that cannot be written shows before hours of measuring
    results, complete = measuring.measure(
        cases,
        results,
        choose=choose,
        rounds=rounds,
        console=console,
        after_row=lambda results: results.save(path) if path is not None else None,
    )
    measuring.show(results, console)
    for line in measuring.misses(results.rows):
        console.print(f"missed: {line}", highlight=False)
    if not complete:
        click.echo("interrupted: the rows above are kept", err=True)
    return measuring.exit_status(results.rows, complete)


def select(names: Sequence[str], groups: Sequence[str], neighbours: bool) -> list[Case]:
    """The cases that are asked for, in the order of the registry; all if nothing is.

    Raises: UsageError for a name that is not in the registry.
    """
    for name in names:
        if name not in BY_NAME:
            raise UsageError(
                f"There is no case {name!r}{did_you_mean(name, BY_NAME)}; "
                "`hlo-mlc bench --list` shows all, and a function of yours is "
                "MODULE:FUNCTION"
            )
    asked_for_all = not names and not groups
    selected = []
    for case in CASES:
        whole = asked_for_all or case.name in names or case.group in groups
        if whole:
            selected.append(case)
        selected += [one for one in case.neighbours if one.name in names or (whole and neighbours)]
    return selected


def _listing(cases: Sequence[Case]) -> Table:
    table = Table(box=None)
    for title in ("name", "group", "dtype", "goal", "sizes"):
        table.add_column(title, no_wrap=True)
    for case in cases:
        sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
        goal = f"{case.figure:.2f}" if case.figure is not None else ""
        table.add_row(case.name, case.group, case.dtype, goal, sizes)
    return table
