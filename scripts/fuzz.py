"""Random programs, compiled and judged; programs that go wrong are made small and kept.

Usage: python scripts/fuzz.py --minutes 10 --seed 1 [--choose ours] [--jobs 2] [--resume]

What is right is decided in f64 by NumPy and the interpreter of StableHLO, with the conditioning of
every element measured; what only moves values, or is made of integers, must be equal.  Counts add
up in a folder over runs, faults lie there as scripts.  Ends with status 1 when a fault was found.

`--show SEED:NUMBER` prints a program, `--summary` the counts of all runs, `--ops COUNT` in how many
of so many programs each op stands that is compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
from fuzzing.generator import generate
from fuzzing.ledger import Entry, Ledger, Setting
from fuzzing.runner import Limits, Runner, program_seed
from fuzzing.script import script
from fuzzing.vocabulary import programs_with
from fuzzing.worker import FAULTS, Outcome
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hlo_mlc.ops.registry import DEFINITIONS
from hlo_mlc.support.options import Options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if nothing is open."""
    options = _parser().parse_args(arguments)
    if options.minutes is None and options.programs is None:
        options.programs = 100
    version = ".".join(platform.python_version_tuple()[:2])
    setting = Setting(options.kernel, options.choose, options.target, version, jax.__version__)
    ledger = Ledger(options.folder)
    console = Console()
    if options.summary:
        console.print(_table(ledger))
        return 0
    if options.ops is not None:
        console.print(_ops(options.ops))
        return 0
    if options.show is not None:
        seed, _, number = options.show.partition(":")
        sys.stdout.write(script(generate(program_seed(int(seed), int(number or 0))), None, setting))
        return 0
    seed = options.seed if options.seed_from is None else seed_of(options.seed_from)
    entries = _run(options, setting, ledger, seed, console)
    console.print(_table(ledger))
    faults = sum(e.kind in FAULTS for e in entries)
    unknown = sum(e.undetermined for e in entries) / max(1, sum(e.elements for e in entries))
    console.print(
        f"{len(entries)} programs of seed {seed} ({setting}): {faults} open; nothing is "
        f"known of {unknown:.1%} of all elements"
        + (f"; what is open is in {ledger.folder}" if faults else "")
    )
    return 1 if faults else 0


def seed_of(text: str) -> int:
    """A seed from any text, such as a commit's id."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _run(
    options: argparse.Namespace, setting: Setting, ledger: Ledger, seed: int, console: Console
) -> list[Entry]:
    entries: list[Entry] = []
    began = time.monotonic()
    total = options.programs if options.minutes is None else options.minutes * 60

    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        task = progress.add_task("programs", total=total)

        def told(entry: Entry, outcome: Outcome, path: Path | None) -> None:
            entries.append(entry)
            counts = Counter(e.kind for e in entries)
            said = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
            done = len(entries) if options.minutes is None else time.monotonic() - began
            progress.update(task, completed=done, description=said)
            if outcome.is_fault:
                console.print(
                    f"{seed}:{entry.number} {entry.kind}: {outcome.detail}\n  {path}",
                    markup=False,
                    highlight=False,
                )

        def is_over(begun: int) -> bool:
            late = options.minutes is not None and time.monotonic() - began > options.minutes * 60
            return late or (options.programs is not None and begun >= options.programs)

        limits = Limits(options.limit, options.shrink)
        Runner(setting, ledger, limits, told).run(seed, options.jobs, is_over, options.resume)
    return entries


def _ops(count: int) -> Table:
    """Ops with a definition, those that no program has first, and then those without one."""
    found = programs_with(map(partial(program_seed, 0), range(count)))
    table = Table("op", "programs")
    for op in sorted(DEFINITIONS, key=lambda op: (found[op], op)):
        table.add_row(op, str(found[op]))
    for op in sorted(found.keys() - DEFINITIONS.keys()):
        table.add_row(f"{op}, which has no definition", str(found[op]))
    return table


def _table(ledger: Ledger) -> Table:
    totals = ledger.totals()
    kinds = [
        kind
        for kind in ("right", "shared", "void", *FAULTS)
        if kind == "right" or any(counts[kind] for counts in totals.values())
    ]
    table = Table("setting", *kinds)
    for setting, counts in totals.items():
        table.add_row(str(setting), *(str(counts[kind]) for kind in kinds))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="how long to go on")
    parser.add_argument(
        "--programs",
        type=int,
        help="how many programs at most (default 100 where no minutes are given)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seed-from", metavar="TEXT", help="a seed from a text")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what was judged before under this setting"
    )
    parser.add_argument("--choose", choices=("auto", "ours", "measure"), default="auto")
    parser.add_argument("--target", default="cpu", help="cpu, a level such as x86-64-v2, or gpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for a program")
    parser.add_argument(
        "--shrink", type=float, default=120.0, help="seconds to make a faulty program small"
    )
    parser.add_argument("--kernel", default="hlo_mlc:mlc_jit", help="module:function to judge")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Options.from_environment().cache_dir / "fuzz",
        help="where counts and faults are kept",
    )
    parser.add_argument("--show", metavar="SEED:NUMBER", help="print a program and end")
    parser.add_argument("--ops", metavar="COUNT", type=int, help="count ops of programs and end")
    parser.add_argument("--summary", action="store_true", help="print all counts and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
