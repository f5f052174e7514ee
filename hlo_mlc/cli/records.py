"""`hlo-mlc records`: the best known schedules, which the compiler reads."""

from __future__ import annotations

from pathlib import Path

import click

from hlo_mlc.runtime.records import Records, open_records
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def records() -> None:
    """Lists, exports or imports what tuning found out (in HLO_MLC_CACHE)."""


@records.command("list")
def list_records() -> None:
    """Shows a line for each record: kernel, target, times, schedule."""
    known = _open()
    found = known.all()
    for record in found:
        click.echo(str(record))
    click.echo(f"{len(found)} records in {known.folder}")


@records.command("export")
@click.argument("path", type=_FILE)
def export_records(path: Path) -> None:
    """Writes all records into the file PATH."""
    known = _open()
    try:
        path.write_text(known.export_text())
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}") from error
    click.echo(f"{len(known.all())} records written to {path}")


@records.command("import")
@click.argument("path", type=_FILE)
def import_records(path: Path) -> None:
    """Adds the records of the file PATH; where there are two of a kernel, the faster one stays."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {path}: {error}") from error
    count, kept = _open().import_text(text)
    click.echo(f"{kept} of {count} records are kept; of the others there are faster ones")


def _open() -> Records:
    return open_records(Options.from_environment())
