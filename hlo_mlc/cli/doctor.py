"""`hlo-mlc doctor`: whether everything that we need is here, and what this machine can do."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import click
import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from hlo_mlc import MlcError, __version__
from hlo_mlc.runtime import library
from hlo_mlc.runtime.cache import object_cache
from hlo_mlc.support.options import Options
from hlo_mlc.target import cpu
from hlo_mlc_bench.results import cpu_model

_PACKAGES = ("jax", "jaxlib", "numpy", "llvmlite", "optuna", "rich", "click")
_MATRIX = 1536  # large enough that a matrix product runs at the peak, 7 GFLOP
_STREAM_BYTES = 256 << 20  # far more than any cache holds
_REPEATS = 5

Facts = Iterator[tuple[str, str]]


@click.command()
@click.option("--quick", is_flag=True, help="Without the measurements.")
@click.pass_context
def doctor(ctx: click.Context, quick: bool) -> None:
    """Shows versions, the target, its measured limits, the cache and the runtime library.

    Exit status 1 says that something that we need is missing or broken.
    """
    options = Options.from_environment()
    console = Console()
    healthy = True
    sections: list[tuple[str, Callable[[], Facts]]] = [
        ("versions", _versions),
        ("target", lambda: _target(options)),
        ("runtime library", _runtime_library),
        ("cache", lambda: _cache(options)),
    ]
    if not quick:
        sections.append(("measured limits", _limits))
    for title, facts in sections:
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        try:
            for name, value in facts():
                table.add_row(f"  {name}", value)
        except MlcError as error:
            healthy = False
            table.add_row("  [bold red]problem[/]", str(error))
        console.print(table)
    ctx.exit(0 if healthy else 1)


def _versions() -> Facts:
    yield "hlo_mlc", __version__
    yield "python", platform.python_version()
    for package in _PACKAGES:
        yield package, importlib.metadata.version(package)


def _target(options: Options) -> Facts:
    target = cpu.host() if options.target == "cpu" else cpu.named(options.target)
    yield "processor", cpu_model()
    yield "code for", f"{target.name} ({target.cpu}), {target.triple}"
    yield "vectors", f"{target.registers} of {8 * target.vector_bytes} bits"
    sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
    yield "caches", ", ".join(f"{size >> 10} KiB" for size in sizes)
    yield "cores", str(target.cores)
    yield "devices of JAX", ", ".join(str(device) for device in jax.devices())


def _runtime_library() -> Facts:
    loaded = library.load()
    yield "file", str(loaded._name)
    yield "ABI version", str(library.ABI_VERSION)


def _cache(options: Options) -> Facts:
    objects = object_cache(options)
    entries = objects.entries()
    yield "folder", str(objects.folder)
    yield "kernels", str(len(entries))
    size = sum(entry.size_bytes for entry in entries)
    yield "size", f"{size / (1 << 20):.1f} of {options.cache_limit_mib} MiB"


def _limits() -> Facts:
    """What XLA's own kernels reach, on all cores: a lower bound of what the machine can do."""
    square = jnp.ones((_MATRIX, _MATRIX), jnp.float32)
    seconds = _call_seconds(jax.jit(lambda x: x @ x), square)
    yield "f32 multiply-add", f"{2 * _MATRIX**3 / seconds / 1e9:.0f} GFLOP/s"
    stream = jnp.ones(_STREAM_BYTES // 4, jnp.float32)
    seconds = _call_seconds(jax.jit(jnp.sum), stream)
    yield "memory read", f"{_STREAM_BYTES / seconds / 1e9:.0f} GB/s"
    seconds = _call_seconds(jax.jit(jnp.negative, donate_argnums=0), stream, donated=True)
    yield "memory read and write", f"{2 * _STREAM_BYTES / seconds / 1e9:.0f} GB/s"


def _call_seconds(function: Callable[..., jax.Array], x: jax.Array, donated: bool = False) -> float:
    """Seconds of one call, the median of several."""
    samples = []
    result = jax.block_until_ready(function(x))
    for _ in range(_REPEATS):
        argument = result if donated else x
        start = time.perf_counter()
        result = jax.block_until_ready(function(argument))
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)
