"""`hlo-mlc cache`: a look into the folder of what was compiled and measured."""

from __future__ import annotations

import datetime

import click

from hlo_mlc.backends.base import object_name
from hlo_mlc.interop.choices import choices_folder
from hlo_mlc.kept_programs import program_name
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.runtime.notes import forget_notes, note_paths
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted, table_lines

_MIB = 1 << 20
_NAME_BYTES = 512  # with which an object of a kernel begins
_HEADINGS = ("kernel or program", "bytes", "used last", "key")
_MACHINE_NOTES = ("limits-", "rates-")


@click.group()
def cache() -> None:
    """Lists, checks or empties the folder of compiled kernels and programs (HLO_MLC_CACHE)."""


@cache.command("list")
def list_entries() -> None:
    """Shows every compiled kernel and program, and what was measured.

    The least recently used come first.
    """
    options = Options.from_environment()
    objects = _open(options)
    entries = objects.entries()
    rows = []
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used_at).isoformat(" ", timespec="seconds")
        begins = objects.beginning(entry.key, _NAME_BYTES)
        program = program_name(begins)
        name = f"{program} (a program)" if program else object_name(begins) or "(no name)"
        rows.append((name, f"{entry.size_bytes:,}", used, entry.key))
    if rows:
        click.echo("\n".join(table_lines([_HEADINGS, *rows], words=2)))
    size = sum(entry.size_bytes for entry in entries) / _MIB
    click.echo(
        f"{_contents(objects)}, {size:.1f} of {options.cache_limit_mib} MiB in {objects.folder}"
    )
    folder = choices_folder(options)
    click.echo(f"{counted(len(note_paths(folder)), 'choice')} between ours and XLA's in {folder}")
    for kind in _MACHINE_NOTES:
        for path in note_paths(options.cache_dir, kind):
            click.echo(f"measured of a machine: {path}")


@cache.command()
@click.option("--machine", is_flag=True, help="Also what was measured of the machine.")
def clear(machine: bool) -> None:
    """Removes compiled kernels and programs, and measured choices.

    They are compiled again, and choices made again, when they are needed. Tuning records stay.
    """
    options = Options.from_environment()
    objects = _open(options)
    contents = _contents(objects)
    objects.clear()
    choices = forget_notes(note_paths(choices_folder(options)))
    click.echo(f"removed {contents} and {counted(choices, 'choice')} from {options.cache_dir}")
    if machine:
        paths = [path for kind in _MACHINE_NOTES for path in note_paths(options.cache_dir, kind)]
        click.echo(f"removed {counted(forget_notes(paths), 'measurement')} of machines")


@cache.command()
def verify() -> None:
    """Checks compiled kernels and programs and removes damaged ones."""
    objects = _open(Options.from_environment())
    damaged = objects.verify()
    for key in damaged:
        click.echo(f"{key} was damaged and is removed")
    click.echo(f"{_contents(objects)} whole, {len(damaged)} damaged")


def _contents(objects: ObjectCache) -> str:
    """`2 kernels, 1 program`."""
    begin = [objects.beginning(entry.key, _NAME_BYTES) for entry in objects.entries()]
    programs = sum(bool(program_name(one)) for one in begin)
    kernels = counted(len(begin) - programs, "kernel")
    return f"{kernels}, {counted(programs, 'program')}" if programs else kernels


def _open(options: Options) -> ObjectCache:
    objects = object_cache(options)
    objects.check_writable()
    return objects
