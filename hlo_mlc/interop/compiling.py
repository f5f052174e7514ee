"""A function as XLA is to run it: compiled by prediction or by measuring, or left as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from jaxlib.mlir import ir

from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import CompiledModule, compile_module
from hlo_mlc.interop.choices import Choice, remembered, settled_path
from hlo_mlc.interop.devices import CPU, CUDA
from hlo_mlc.interop.extraction import function_named
from hlo_mlc.interop.faults import Faults, Subject
from hlo_mlc.interop.measuring import choose_fastest, register_handler
from hlo_mlc.interop.platforms import BACKENDS
from hlo_mlc.report import FAULT_ADVICE, Report
from hlo_mlc.support.errors import FrontendError
from hlo_mlc.support.options import Options


def compile_extracted(
    module: ir.Module,
    options: Options,
    *,
    entry: str,
    platform: str,
    faults: Faults | None = None,
    row_axes: Mapping[int, int] | None = None,
) -> tuple[ir.Module | None, Report]:
    """The compiled module and the report on it; None if XLA is to get the original.

    A fault of the compiler is a warning, and the program stays with XLA, unless `choose="ours"`
    asks for our kernels: then it is raised. `faults` are those that the function has met before.
    `row_axes` are those along which arguments have rows, of which there may be any number.

    Raises: ConfigurationError for settings that cannot be followed, such as a dump folder that
    cannot be written.
    """
    faults = faults or Faults()
    subject = Subject(entry, options, lambda: module)
    answer: list[tuple[ir.Module | None, Report]] = []
    with faults.contained(
        subject, lambda reason: answer.append((None, Report.untouched(reason, FAULT_ADVICE)))
    ):
        answer.append(
            compile_function(
                module, subject, faults, entry=entry, platform=platform, row_axes=row_axes
            )
        )
    return answer[0]


def compile_function(
    module: ir.Module,
    subject: Subject,
    faults: Faults,
    *,
    entry: str,
    platform: str,
    settled: Mapping[Path, str] | None = None,
    row_axes: Mapping[int, int] | None = None,
) -> tuple[ir.Module | None, Report]:
    """What `compile_extracted` gives, but for faults that leave nothing of it: these are raised.

    Where calls may settle it, what they have shown to be faster is done, now (`settled` has it by
    where that is remembered) or before; not so where `settled` is None.

    Raises: any exception that a fault of the compiler may show itself as.
    """
    options = subject.options
    if not options.settles or settled is None or platform != CPU:
        return _compile_chosen(module, subject, faults, entry, platform, row_axes)
    path = settled_path(module, options, entry)
    known = Choice(settled[path]) if path in settled else remembered(path, options)
    if known is not None and known.choose == "xla":
        compiled, report = (
            None,
            Report.untouched(
                "calls have shown that XLA is faster",
                "tune(...) may make ours faster; `hlo-mlc cache clear` forgets what calls "
                "have shown",
            ),
        )
    else:
        if known is not None:
            subject = dataclasses.replace(subject, options=options.replace(choose=known.choose))
        compiled, report = _compile_chosen(module, subject, faults, entry, platform)
    comparisons = () if known is None else known.comparisons
    return compiled, dataclasses.replace(report, settled_at=path, comparisons=comparisons)


def _compile_chosen(
    module: ir.Module,
    subject: Subject,
    faults: Faults,
    entry: str,
    platform: str,
    row_axes: Mapping[int, int] | None = None,
) -> tuple[ir.Module | None, Report]:
    options = subject.options
    if options.choose == "xla":
        return None, Report.untouched(
            'choose="xla" asks for it', 'leave out choose="xla" (and HLO_MLC_CHOOSE)'
        )
    compiled = _compile(module, options, entry, platform, row_axes)
    if compiled.module is not module:
        register_handler(platform)
    for fault in compiled.faults:
        faults.tell(fault, subject)
    return compiled.module if compiled.module is not module else None, compiled.report


def _compile(
    module: ir.Module,
    options: Options,
    entry: str,
    platform: str,
    row_axes: Mapping[int, int] | None = None,
) -> CompiledModule:
    if options.choose == "measure" and platform in (CPU, CUDA):
        return choose_fastest(module, options, entry, platform, _compile)
    backend = BACKENDS[platform](options)
    if row_axes and isinstance(backend, CpuBackend):
        backend = dataclasses.replace(backend, row_axes=row_axes)
    compiled = compile_module(module, options, entry=entry, backend=backend)
    return _checked(module, compiled, entry)


def _checked(module: ir.Module, compiled: CompiledModule, entry: str) -> CompiledModule:
    """What was compiled, which must still be a function of the same type."""
    expected = function_named(module, entry).type
    if compiled.module is not module:
        got = function_named(compiled.module, entry).type
        if got != expected:
            raise FrontendError(f"compilation made @{entry} a {got}, expected {expected}")
        compiled.module.operation.verify()
    return compiled
