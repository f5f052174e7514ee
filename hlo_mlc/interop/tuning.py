"""What `fn.tune` and `hlo-mlc tune` do: a session (tuning_session.py) for each module of a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.building import keeping
from hlo_mlc.interop.devices import CPU, CUDA, first_gpu, platform_of
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.interop.measuring import register_handler
from hlo_mlc.interop.operands import parts_of_call
from hlo_mlc.interop.staged import forget
from hlo_mlc.interop.tuning_report import TunedKernel, TuningInterrupted, TuningReport
from hlo_mlc.interop.tuning_session import Session
from hlo_mlc.runtime.records import require_say
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cuda import names as gpu_names
from hlo_mlc.tuning.progress import TuningProgress


def tune_call(
    jitted: Any,
    options: Options,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    trials: int | None,
    minutes: float | None,
    storage: str | None,
    target: str | None,
) -> TuningReport:
    """Tunes what `mlc_jit` made of a function, for arguments of these types; for a GPU
    architecture (`target`) by a model, here where there need be none.

    A derivative that is taken of it afterwards has kernels of its own: what is to be tuned with
    them is `mlc_jit(jax.grad(f))`.

    Raises: UsageError for a budget that is none, for a call that leaves nothing to compile, and
    where it runs on other devices than CPUs and NVIDIA GPUs, or `target` names no GPU.
    """
    _require_budget(trials, minutes)
    modelled = target is not None
    if modelled:
        _require_modelled(target, storage)
        options = options.replace(target=target)
    platform = (
        CUDA if modelled else _tunable(platform_of(jax.tree.leaves((jitted.args, args, kwargs))))
    )
    types = jax.tree.map(_type_of, (args, kwargs)) if modelled else (args, kwargs)
    parts = parts_of_call(jitted, *types, platform)
    if not parts:
        raise UsageError("There is nothing to tune: the function computes nothing")
    reports = [
        tune_module(
            part.module,
            options,
            entry=part.entry,
            trials=trials,
            minutes=minutes and minutes / len(parts),
            given=part.given,
            storage=storage,
            platform=platform,
            modelled=modelled,
        )
        for part in parts
    ]
    jitted.clear_cache()  # what is compiled from now on follows the records
    return (
        reports[0]
        if len(reports) == 1
        else TuningReport(tuple(kernel for report in reports for kernel in report.kernels), None)
    )


def tune_module(
    module: ir.Module,
    options: Options,
    *,
    entry: str = MAIN,
    trials: int | None = None,
    minutes: float | None = None,
    given: Sequence[np.ndarray] | None = None,
    storage: str | None = None,
    platform: str = CPU,
    modelled: bool = False,
) -> TuningReport:
    """Tunes the kernels of a module's function @entry: until each study has so many trials, or
    for so many minutes altogether at most; without `trials`, each kernel until next to nothing is
    expected of another one. `given` are arguments to measure with; made-up ones if they are None.
    `storage` is the URL of a database that a team shares, where the kernels are put for others to
    take trials of; else studies lie in the cache. The kernels are those for the `platform`; if they
    are to be `modelled`, for a GPU that the options name, and nothing runs.

    An interrupt (Ctrl-C) ends the search in a kernel, whose winner so far is then recorded, and all
    that would come after; a second one ends it at once. The next time it goes on.

    Raises: UsageError for a budget that is none; CacheError when the cache folder cannot be used;
    TuningInterrupted with the report on what was done by then.
    """
    _require_budget(trials, minutes)
    require_say(options, "tune")
    if not modelled:
        register_handler(platform)
    session = Session(
        module,
        entry,
        options,
        trials,
        minutes,
        given,
        storage=storage,
        platform=platform,
        modelled=modelled,
    )
    kernels: list[TunedKernel] = []
    with TuningProgress() as progress, jax.ensure_compile_time_eval(), keeping():
        try:
            for kernel in session.kernels(progress):
                kernels.append(kernel)
                if kernel.interrupted:
                    raise KeyboardInterrupt
            return TuningReport(tuple(kernels), session.whole() if kernels else None)
        except KeyboardInterrupt as interrupt:
            report = TuningReport((*kernels, *session.unfinished()), None)
            raise TuningInterrupted(report) from interrupt
        finally:
            forget()  # what is jitted from now on follows the records


def _require_budget(trials: object, minutes: object) -> None:
    """Raises: UsageError for a budget that is none."""
    if not (_is_at_least(trials, int, 1) and _is_at_least(minutes, (int, float), math.ulp(0.0))):
        raise UsageError(
            "Tuning takes at least one trial, and some time, or neither: expected "
            "trials of 1, 2, … and finite minutes above 0, got "
            f"trials={trials!r}, minutes={minutes!r}"
        )


def _require_modelled(target: str, storage: str | None) -> None:
    """Raises: UsageError where no model tunes for a target, or not for a team."""
    if target not in gpu_names():
        raise UsageError(
            f"target={target!r}: a model tunes kernels for GPUs that are not here, "
            f"for {' or '.join(gpu_names())}; all others are tuned by running them, "
            "where they run"
        )
    if storage is not None:
        raise UsageError(
            "A team measures, and by a model there is nothing to share: leave out "
            "storage, or target"
        )


def _type_of(leaf: Any) -> Any:
    """The type of an argument, which is all that a model takes of it."""
    is_array = isinstance(leaf, jax.Array | np.ndarray)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array else leaf


def _is_at_least(given: object, kind: type | tuple[type, ...], least: float) -> bool:
    """Whether a budget is one, if there is any."""
    return given is None or (
        isinstance(given, kind) and not isinstance(given, bool) and least <= given < math.inf
    )


def _tunable(platform: str) -> str:
    """The platform as we know it, of those that kernels can be tuned for.

    Raises: UsageError for any other.
    """
    if platform == CPU:
        return CPU
    if platform in (CUDA, "gpu") and first_gpu() is not None:  # JAX has both names
        return CUDA
    raise UsageError(
        f"The function runs on {platform} here, and kernels can be tuned for CPUs and "
        "NVIDIA GPUs: JAX_PLATFORMS=cpu, or arrays that jax.device_put has put on a "
        "CPU, do it"
    )
