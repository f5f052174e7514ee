"""choose="measure": a program with our kernels and without, timed in turns, and the faster kept."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.compiler import CompiledModule
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.frontend.walking import operations
from hlo_mlc.graph.core import WHILE
from hlo_mlc.interop import compat, devices
from hlo_mlc.interop.arguments import argument_types
from hlo_mlc.interop.call_arguments import arguments_at_hand
from hlo_mlc.interop.choices import CANDIDATES, Choice, choice_path, recorded, remember, remembered
from hlo_mlc.interop.extraction import MAIN, standalone
from hlo_mlc.interop.referee import as_near, disagreement, exact_results
from hlo_mlc.report import Comparison, Report
from hlo_mlc.runtime import cuda, library
from hlo_mlc.runtime.measure import PairedTimes, Timing, repeated, time_paired
from hlo_mlc.support.debug import Level, say
from hlo_mlc.support.errors import UnsupportedOpError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import warn

with lazy_imports():
    from hlo_mlc.interop import synthetic_arguments

_WORTH_IT = 1.02  # ours has to be so much faster, which is what pairs of runs can tell apart
_BUDGET_S = 1.0  # for timing one function, compiling excluded
_ONE_SIDE_S = 5e-4  # the clock and the scheduler show in anything shorter
_MOST_ROUNDS = 101
_LARGEST_BYTES = 1 << 30  # of made-up arguments
_TF32_STEP = 2.0**-11  # of the factors of products of f32, by XLA on GPUs

_MODELLED = ("builtin", "func", "stablehlo", "chlo")
_REFUSED = {
    WHILE: "how often a loop runs may depend on the arguments",
    **dict.fromkeys(
        (
            "all_gather",
            "all_reduce",
            "all_to_all",
            "collective_broadcast",
            "collective_permute",
            "cross-replica-sum",
            "partition_id",
            "reduce_scatter",
            "replica_id",
        ),
        "it takes other devices to run",
    ),
    **dict.fromkeys(("infeed", "outfeed", "recv", "send"), "it talks to the host"),
}

Compile = Callable[[ir.Module, Options, str, str], CompiledModule]

_one_at_a_time = process_lock()


def choose_fastest(
    module: ir.Module, options: Options, entry: str, platform: str, compile_function: Compile
) -> CompiledModule:
    """The fastest of the candidates, or `module` itself if none beats it; remembered on disk.

    `compile_function` makes a candidate. It is run on the arguments of the call that has it
    compiled, or on made-up ones where there is none, such as inside of `jax.jit`. What may not be
    run, is for GPUs that are not here, or would be held against XLA where that is known to be
    wrong, is decided by prediction.
    """
    if platform == devices.CUDA and devices.first_gpu() is None:
        predicted = compile_function(module, options.replace(choose="auto"), entry, platform)
        return _chosen(
            predicted, Choice("auto", reasons=("predicted, not measured: there is no GPU here",))
        )
    original = standalone(module, entry)
    path = choice_path(str(original), options, platform)
    known = remembered(path, options, platform)
    if known is not None and known.choose == "xla":
        return _chosen(CompiledModule(module, Report(coverage=0.0)), known)
    if known is not None:
        return _chosen(
            compile_function(module, options.replace(choose=known.choose), entry, platform), known
        )
    compiled = {
        choose: compile_function(module, options.replace(choose=choose), entry, platform)
        for choose in CANDIDATES
    }
    everything, predicted = compiled["ours"], compiled["auto"]
    if everything.module is module:
        return everything
    arguments = _arguments_at_hand(original)
    reason = _fault_of_xla(predicted) or _why_not(everything, original, arguments is not None)
    if reason:
        return _chosen(predicted, Choice("auto", reasons=(f"predicted, not measured: {reason}",)))
    programs = {
        choose: standalone(candidate.module, entry)
        for choose, candidate in compiled.items()
        if candidate.module is not module
    }
    choice = _measure(original, programs, platform, arguments)
    kernels = {k.id for c in compiled.values() for k in c.report.kernels}
    remember(path, choice, recorded(kernels, options, platform))
    compiled["xla"] = CompiledModule(
        module, dataclasses.replace(everything.report, coverage=0.0, kernels=(), left=())
    )
    say(
        Level.FUNCTIONS,
        options.debug,
        [f"{entry}: {line}" for line in (*choice.comparisons, *choice.reasons)],
    )
    return _chosen(compiled[choice.choose], choice)


def _chosen(compiled: CompiledModule, choice: Choice) -> CompiledModule:
    report = dataclasses.replace(
        compiled.report, comparisons=choice.comparisons, reasons=choice.reasons
    )
    return dataclasses.replace(compiled, report=report)


def _fault_of_xla(predicted: CompiledModule) -> str:
    """Why XLA is better not asked to compute the program as it came; "" if it may."""
    return next((kernel.fault for kernel in predicted.report.kernels if kernel.fault), "")


def _arguments_at_hand(original: ir.Module) -> Sequence[jax.Array] | None:
    """Those of the call that the program is compiled for, if there is one."""
    try:
        types = argument_types(original, MAIN, MAIN)
    except UnsupportedOpError:
        return None
    with jax.ensure_compile_time_eval():
        return arguments_at_hand(types)


def _why_not(candidate: CompiledModule, original: ir.Module, are_real: bool) -> str:
    """Why the program may not be run on arguments, real or made-up ones; "" if it may.

    What our kernels have taken over needs no look: it has no effects, and its loops end.
    """
    if not are_real and (reason := _why_not_made_up(candidate, original)):
        return reason
    for operation in operations(candidate.module):
        if reason := _refusal(operation, are_real):
            return f"{operation.name} stays with XLA, and {reason}"
    return ""


def _why_not_made_up(candidate: CompiledModule, original: ir.Module) -> str:
    for kernel in candidate.report.kernels:
        if kernel.data_dependent:
            return f"how often {kernel.name} repeats itself depends on the arguments"
    try:
        arguments = argument_types(original, MAIN, MAIN)
    except UnsupportedOpError as error:
        return error.reason
    size = sum(int(np.prod(a.shape)) * a.dtype.itemsize for a in arguments)
    return f"its arguments take {size >> 20} MiB" if size > _LARGEST_BYTES else ""


def _refusal(operation: ir.Operation, are_real: bool) -> str:
    if are_real and operation.name == WHILE:
        return ""
    dialect, _, name = operation.name.partition(".")
    if dialect not in _MODELLED:
        return "what it does is unknown"
    if operation.name == "stablehlo.custom_call":
        target = operation.attributes["call_target_name"].value
        return "" if target == KERNEL_TARGET else f"what {target} does is unknown"
    return _REFUSED.get(operation.name, _REFUSED.get(name, ""))


def register_handler(platform: str) -> None:
    """Makes our custom call known to XLA's backend for a platform."""
    (cuda if platform == devices.CUDA else library).register_with_jax()


def _measure(
    original: ir.Module,
    programs: Mapping[str, ir.Module],
    platform: str,
    given: Sequence[jax.Array] | None,
) -> Choice:
    """Runs the programs on the same arguments as the original, made-up ones if none are given, and
    picks the fastest."""
    register_handler(platform)
    texts: dict[str, str] = {}
    comparisons, remarks = [], []
    with _one_at_a_time, jax.ensure_compile_time_eval():
        known = given or synthetic_arguments.synthetic_arguments(original)
        arguments = [compat.place_on(a, platform) for a in known]
        run_original = _bind(original, arguments, platform)
        expected = run_original()
        exact = functools.cache(lambda: exact_results(original, arguments, platform))
        for choose, program in programs.items():
            text = str(program)
            if text in texts.values():
                continue
            texts[choose] = text
            run = _bind(program, arguments, platform)
            step = _TF32_STEP if platform == devices.CUDA else 0.0
            difference = disagreement(results := run(), expected, step)
            if difference and as_near(results, expected, exact()):
                remarks.append(
                    f'choose="{choose}" and XLA differ ({difference}); both are as near '
                    "to what f64 gives"
                )
            elif difference:
                remark = f'choose="{choose}" does not compute what XLA does: {difference}'
                warn(f"hlo_mlc: {remark}; not taken")
                remarks.append(remark)
                continue
            times = _time(run_original, run, _BUDGET_S / len(programs))
            comparisons.append(
                Comparison(choose, times.b.median_us, times.a.median_us, times.speedup)
            )
    best = max(comparisons, key=lambda c: c.speedup, default=None)
    if best is None or best.speedup < _WORTH_IT:
        remarks.append(f"XLA's is kept: none of ours is {_WORTH_IT - 1:.0%} faster")
        return Choice("xla", tuple(comparisons), tuple(remarks))
    return Choice(best.candidate, tuple(comparisons), tuple(remarks))


def _bind(
    module: ir.Module, arguments: Sequence[jax.Array], platform: str
) -> Callable[[], Sequence[jax.Array]]:
    execute = compat.compile_for(module, platform)
    return lambda: jax.block_until_ready(execute(arguments))


def _time(run_a: Callable[[], Any], run_b: Callable[[], Any], seconds: float) -> PairedTimes:
    """Times one call of each, both run before, in as many rounds as fit into `seconds`; where not
    even one does, that one is all."""
    began = time.perf_counter()
    run_a()
    between = time.perf_counter()
    run_b()
    ended = time.perf_counter()
    pair_s = ended - began
    calls = max(1, round(2 * _ONE_SIDE_S / pair_s))
    rounds = min(int(seconds / (calls * pair_s)), _MOST_ROUNDS)
    if rounds < 1:
        a_s, b_s = between - began, ended - between
        return PairedTimes(Timing(a_s * 1e6, 0.0), Timing(b_s * 1e6, 0.0), a_s / b_s, 0.0)
    sides = repeated(run_a, calls), repeated(run_b, calls)
    return time_paired(*sides, rounds, warmup=0).per_call(calls)
