"""`hlo-mlc doctor`: whether everything that we need is here, and what this machine can do."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

import click
import jax
from rich.console import Console
from rich.table import Table

from hlo_mlc import MlcError, __version__
from hlo_mlc.backends.cpu import target_of
from hlo_mlc.interop.calibration import calibrated
from hlo_mlc.kernel_objects import proofs_here
from hlo_mlc.limits import machine_limits, note_path
from hlo_mlc.limits import others_share as limits_share
from hlo_mlc.runtime import library
from hlo_mlc.runtime.busyness import busy_line
from hlo_mlc.runtime.cache import object_cache
from hlo_mlc.runtime.proofs import OUTCOMES
from hlo_mlc.runtime.rates import others_share, rates_path
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version
from hlo_mlc.support.wording import byte_size
from hlo_mlc.target import cpu
from hlo_mlc.target.levels import runnable
from hlo_mlc.target.rates import DISTANT_BYTES, FAR_BYTES, NEAR_BYTES, Rates

_PACKAGES = ("jax", "jaxlib", "numpy", "llvmlite", "optuna", "rich", "click")

Facts = Iterator[tuple[str, str]]


@click.command()
@click.option("--quick", is_flag=True, help="Without what has to be measured.")
@click.option("--refresh", is_flag=True, help="Measures the machine again.")
@click.pass_context
def doctor(ctx: click.Context, quick: bool, refresh: bool) -> None:
    """Shows versions, the target, the cache, the runtime library, and what was measured here.

    The machine is measured the first time, in three seconds, and remembered. Its limits are what
    `explain` compares with; its rates are what choose="auto" predicts with.

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
        sections.append(("measured limits", lambda: _limits(options, refresh)))
        sections.append(("measured rates", lambda: _rates(options, refresh)))
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
        yield package, version(package)


def _target(options: Options) -> Facts:
    target = target_of(options)
    yield "processor", cpu.model_name()
    yield "code for", f"{target.name} ({target.cpu}), {target.triple}"
    yield "vectors", f"{target.registers} of {8 * target.vector_bytes} bits"
    sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
    yield "caches", ", ".join(map(byte_size, sizes))
    yield "cores", str(target.cores)
    yield "HLO_MLC_TARGET", f"{options.target}, of {', '.join(runnable())}"
    yield "devices of JAX", ", ".join(str(device) for device in jax.devices())


def _runtime_library() -> Facts:
    loaded = library.load()
    yield "file", str(loaded._name)
    yield "ABI version", str(library.ABI_VERSION)


def _cache(options: Options) -> Facts:
    objects = object_cache(options)
    objects.check_writable()
    entries = objects.entries()
    yield "folder", str(objects.folder)
    yield "kernels and programs", str(len(entries))
    size = sum(entry.size_bytes for entry in entries)
    yield "size", f"{size / (1 << 20):.1f} of {options.cache_limit_mib} MiB"
    proofs = proofs_here(options)
    yield "proofs", ", ".join(f"{proofs[outcome]} {outcome}" for outcome in OUTCOMES)


def _limits(options: Options, refresh: bool) -> Facts:
    """What our own kernels reach on all cores."""
    limits = machine_limits(options, refresh)
    yield "f32 multiply-add", f"{limits.gflops:.0f} GFLOP/s"
    for cache in limits.caches:
        yield f"up to {byte_size(cache.capacity)}", f"{cache.gb_s:.0f} GB/s read and written"
    yield "memory", f"{limits.memory_gb_s:.0f} GB/s read and written"
    path = note_path(options.cache_dir, cpu.host())
    if line := busy_line(limits_share(path)):
        yield "measured", line
    yield "remembered in", str(path)


def _rates(options: Options, refresh: bool) -> Facts:
    """What the cost model counts with."""
    rates = calibrated(options, refresh=refresh)
    each_ns = f"{rates.vector_operations / 1e3:.2f} simple, {rates.vector_products / 1e3:.2f} fma"
    yield "vector operations", f"{each_ns} per ns and core"
    yield (
        "one by one",
        f"{rates.one_by_one:.2f} times as long as where XLA's figures were measured",
    )
    yield (
        "passes",
        ", ".join(
            f"{byte_size(size)} at {speed / 1e3:.0f} GB/s"
            for size, speed in (
                (NEAR_BYTES, rates.near_bytes),
                (FAR_BYTES, rates.far_bytes),
                (DISTANT_BYTES, rates.distant_bytes),
            )
        ),
    )
    yield (
        "calls",
        (
            f"{rates.call_us:.2f} us for a kernel in a program, {rates.dispatch_us:.1f} us "
            f"for a program, {rates.fork_us:.1f} us for waking threads, {rates.sleeping_us:.1f} us "
            f"until the one runs that XLA hands a program to"
        ),
    )
    yield (
        "XLA / ours",
        (
            f"arithmetic {rates.xla_arithmetic:.2f}, exp {rates.xla_exp:.2f}, passes "
            f"{rates.xla_near:.2f} {rates.xla_far:.2f} {rates.xla_distant:.2f}, sums of rows "
            f"{rates.xla_reduction:.2f}, products {rates.xla_small_product:.2f} "
            f"{rates.xla_medium_product:.2f} {rates.xla_large_product:.2f}, of bf16 "
            f"{rates.xla_narrow_product:.2f}"
        ),
    )
    if rates == Rates():
        yield "remembered in", "nowhere: these are typical figures, not measured ones"
    else:
        if line := busy_line(others_share(options.cache_dir, target_of(options))):
            yield "measured", line
        yield "remembered in", str(rates_path(options.cache_dir, target_of(options)))
