"""`hlo-mlc cache`: a look into the folder of compiled kernels."""

from __future__ import annotations

import datetime

import click

from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.support.options import Options

_MIB = 1 << 20


@click.group()
def cache() -> None:
    """Lists, checks or empties the folder of compiled kernels (HLO_MLC_CACHE)."""


@cache.command("list")
def list_entries() -> None:
    """Shows every compiled kernel, the least recently used first."""
    objects = _open()
    entries = objects.entries()
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used_at).isoformat(" ", timespec="seconds")
        click.echo(f"{entry.key}  {entry.size_bytes:9d} bytes  used {used}")
    size = sum(entry.size_bytes for entry in entries) / _MIB
    click.echo(f"{len(entries)} kernels, {size:.1f} MiB in {objects.folder}")


@cache.command()
def clear() -> None:
    """Removes every compiled kernel; they are compiled again when they are needed."""
    objects = _open()
    click.echo(f"removed {objects.clear()} kernels from {objects.folder}")


@cache.command()
def verify() -> None:
    """Checks every compiled kernel, and removes those that are damaged."""
    objects = _open()
    damaged = objects.verify()
    for key in damaged:
        click.echo(f"{key} was damaged and is removed")
    click.echo(f"{len(objects.entries())} kernels are whole, {len(damaged)} were not")


def _open() -> ObjectCache:
    return object_cache(Options.from_environment())
