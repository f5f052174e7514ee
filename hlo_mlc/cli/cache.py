"""`hlo-mlc cache`: a look into the folder of compiled kernels and of what was measured."""

from __future__ import annotations

import datetime

import click

from hlo_mlc.backends.base import object_name
from hlo_mlc.interop.choices import choices_folder
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.runtime.notes import forget_notes, note_paths
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted

_MIB = 1 << 20
_NAME_BYTES = 512  # with which an object of a kernel begins
_MACHINE_NOTES = ("limits-", "rates-")


@click.group()
def cache() -> None:
    """Lists, checks or empties the folder of compiled kernels (HLO_MLC_CACHE)."""


@cache.command("list")
def list_entries() -> None:
    """Shows every compiled kernel and what was measured.

    The least recently used come first.
    """
    options = Options.from_environment()
    objects = _open(options)
    entries = objects.entries()
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used_at).isoformat(" ", timespec="seconds")
        name = object_name(objects.beginning(entry.key, _NAME_BYTES)) or "(no name)"
        click.echo(f"{name}  {entry.size_bytes} bytes  used {used}  {entry.key}")
    size = sum(entry.size_bytes for entry in entries) / _MIB
    click.echo(
        f"{counted(len(entries), 'kernel')}, {size:.1f} of {options.cache_limit_mib} MiB "
        f"in {objects.folder}"
    )
    folder = choices_folder(options)
    click.echo(f"{counted(len(note_paths(folder)), 'choice')} between ours and XLA's in {folder}")
    for kind in _MACHINE_NOTES:
        for path in note_paths(options.cache_dir, kind):
            click.echo(f"measured of a machine: {path}")


@cache.command()
@click.option("--machine", is_flag=True, help="Also what was measured of the machine.")
def clear(machine: bool) -> None:
    """Removes compiled kernels and measured choices.

    Kernels are compiled again, and choices made again, when they are needed. Tuning records stay.
    """
    options = Options.from_environment()
    objects = _open(options)
    kernels = objects.clear()
    choices = forget_notes(note_paths(choices_folder(options)))
    click.echo(
        f"removed {counted(kernels, 'kernel')} and {counted(choices, 'choice')} from "
        f"{options.cache_dir}"
    )
    if machine:
        paths = [path for kind in _MACHINE_NOTES for path in note_paths(options.cache_dir, kind)]
        click.echo(f"removed {counted(forget_notes(paths), 'measurement')} of machines")


@cache.command()
def verify() -> None:
    """Checks compiled kernels and removes damaged ones."""
    objects = _open(Options.from_environment())
    damaged = objects.verify()
    for key in damaged:
        click.echo(f"{key} was damaged and is removed")
    click.echo(f"{counted(len(objects.entries()), 'kernel')} whole, {len(damaged)} damaged")


def _open(options: Options) -> ObjectCache:
    objects = object_cache(options)
    objects.check_writable()
    return objects
