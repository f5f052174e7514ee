"""`hlo-mlc records`: the best known schedules, which the compiler reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from hlo_mlc.backends.recorded import unknown_names
from hlo_mlc.cli import parameters
from hlo_mlc.runtime.files import PUBLIC, write_whole
from hlo_mlc.runtime.records import OURS, XLA, Record, Records, open_records, schedules_text
from hlo_mlc.support.errors import CacheError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted, table_lines
from hlo_mlc.target.cpu import host


@click.group()
def records() -> None:
    """Lists, exports or imports what tuning found out (in HLO_MLC_CACHE)."""


@records.command("list")
def list_records() -> None:
    """Shows a line for each record.

    It has the kernel, its time in microseconds, what others take of that, whose code is taken, the
    target, the kernel's id, and the schedule.
    """
    known = _open()
    found = known.all()
    if found:
        click.echo("\n".join(table_lines([_HEADINGS, *map(_row, found)], words=4)))
    click.echo(f"{counted(len(found), 'record')} in {known.folder}")


_HEADINGS = ("kernel", "us", "default / this", "XLA / this", "taken", "target", "id", "schedule")


def _row(record: Record) -> tuple[str, ...]:
    """A line of the list, "-" for what was not measured or is as it would be anyway."""
    best = record.measured
    return (
        record.name or "unnamed",
        f"{best.ours_us:.1f}",
        f"{best.speedup:.2f}" if record.schedules else "-",
        f"{best.xla_ratio:.2f}" if best.xla_ratio else "-",
        "modelled" if best.modelled else {OURS: "ours", XLA: "XLA's"}.get(record.choice, "-"),
        record.target,
        record.kernel,
        "; ".join(schedules_text(record.schedules)) or "default",
    )


@records.command("export")
@click.argument("path", type=parameters.FILE)
def export_records(path: Path) -> None:
    """Writes all records into the file PATH."""
    known = _open()
    try:
        write_whole(path, [known.export_text().encode()], PUBLIC)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}") from error
    click.echo(f"{counted(len(known.all()), 'record')} written to {path}")


@records.command("import")
@click.argument("path", type=parameters.FILE)
def import_records(path: Path) -> None:
    """Adds the records of the file PATH.

    Where there are two of a kernel, the faster one stays, or what was scheduled by hand.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no file of `hlo-mlc records export`: {error}") from error
    known = _open()
    try:
        merged = known.import_text(text, unknown_names)
    except CacheError as error:
        raise CacheError(f"{path}: {error}") from error
    key = _own_target()
    here = sum(record.target == key for record in known.all())
    others = [f"{merged.slower} no better than what is here"] if merged.slower else []
    if merged.unknown:
        others.append(
            f"{merged.unknown} for templates or primitives that this version does not "
            f"have ({', '.join(merged.names)})"
        )
    click.echo(
        f"{merged.kept} of {counted(merged.count, 'record')} kept"
        + (f"; left out: {', '.join(others)}" if others else "")
    )
    click.echo(f"{counted(here, 'record')} for this machine ({key}) by now")


def _own_target() -> str:
    """What records of this machine say that they are for."""
    threads = Options.from_environment().threads
    return (host() if threads is None else replace(host(), cores=threads)).key


def _open() -> Records:
    options = Options.from_environment()
    if options.cache_dir.exists() and not options.cache_dir.is_dir():
        raise CacheError(
            f"The cache folder {options.cache_dir} is a file: set HLO_MLC_CACHE to a folder"
        )
    return open_records(options)
