"""A report in words: every kernel is run alone to see how near it comes to the machine's limits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hlo_mlc.building import BuiltKernel, built_kernel
from hlo_mlc.compiler import target_of
from hlo_mlc.limits import Limits, best_us, machine_limits
from hlo_mlc.report import KernelReport, KernelTime, Report
from hlo_mlc.runtime.measure import bind_kernel, made_up
from hlo_mlc.support.options import Options

_SECONDS_EACH = 0.02
_LARGEST_BYTES = 1 << 30  # of operands and results that are made up for a kernel
_LEAST_GAIN_US = 10.0  # what a call of a program costs (`hlo-mlc doctor`): less is hardly seen
_OUTDATED_SHARE = 1.25  # of limits that were measured while something else ran


def explain(report: Report, options: Options) -> str:
    """The report as text, with what may help below it; kernels whose time does not depend on their
    operands' values are timed.

    The first one on a machine also measures the machine, for a second.
    """
    times = measure_kernels(report, options)
    advice = [f"  {line}" for line in advice_on(report, times, options)]
    lines = [report.explain(times), *(["", "what may help:"] if advice else []), *advice]
    if options.deterministic:
        lines.insert(0, "deterministic: our kernels give the same bits on any number of threads")
    return "\n".join(lines)


def advice_on(report: Report, times: Mapping[str, KernelTime], options: Options) -> list[str]:
    """What the user may try next, a line for each."""
    lines = []
    gains = {kernel.name: times[kernel.id].us * (1 - times[kernel.id].share) * kernel.uses
             for kernel in report.kernels if kernel.id in times and kernel.tuned is None}
    name = max(gains, key=gains.__getitem__, default="")
    can_change = not options.deterministic
    if can_change and name and gains[name] >= _LEAST_GAIN_US:
        lines.append(f"tune(...) may find faster schedules, above all for {name}")
    if can_change and options.choose == "auto" and report.predicted is not None and report.left:
        lines.append('choose="measure" runs both sides, where a prediction may be wrong')
    if any(time.share > _OUTDATED_SHARE for time in times.values()):
        lines.append("kernels are faster than what was measured of this machine, while it was "
                     "busy: `hlo-mlc doctor --refresh` measures it again")
    return lines


def measure_kernels(report: Report, options: Options) -> dict[str, KernelTime]:
    """The time of each kernel of the report, by its id, as far as it can be measured here."""
    times: dict[str, KernelTime] = {}
    limits: Limits | None = None
    for kernel in report.kernels:
        built = built_kernel(kernel.id, target_of(options), options.check)
        if built is not None and _is_measurable(kernel):
            limits = limits or machine_limits(options)  # once: a busy machine is measured again
            times[kernel.id] = _measure(kernel, built, options, limits)
    return times


def _is_measurable(kernel: KernelReport) -> bool:
    size = sum(t.bytes for t in (*kernel.operands, *kernel.results))
    on_gpu = bool(kernel.resources)
    return not on_gpu and not kernel.data_dependent and size <= _LARGEST_BYTES


def _measure(kernel: KernelReport, built: BuiltKernel, options: Options, limits: Limits
             ) -> KernelTime:
    rng = np.random.default_rng(0)
    operands, results = ([made_up(t.shape, t.dtype.numpy, rng) for t in types]
                         for types in (kernel.operands, kernel.results))
    threads = target_of(options).cores
    us = best_us(bind_kernel(built.code, operands, results, threads=threads), _SECONDS_EACH)
    least = limits.least_us(kernel.bytes, kernel.contraction_flops)
    return KernelTime(us, least / us)
