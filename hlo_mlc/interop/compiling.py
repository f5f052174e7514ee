"""A function as XLA is to run it: compiled by prediction or by measuring, or left as it was."""

from __future__ import annotations

import warnings

import jax
from jaxlib.mlir import ir

from hlo_mlc.compiler import CompiledModule, compile_module
from hlo_mlc.gpu import GpuKernel, compile_for_gpu, gpu_kernel
from hlo_mlc.interop.extraction import function_named
from hlo_mlc.interop.measuring import choose_fastest
from hlo_mlc.report import Report
from hlo_mlc.runtime import cuda, library
from hlo_mlc.support.errors import ConfigurationError, FrontendError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cuda import CudaTarget, for_capability, named, names


def compile_extracted(
    module: ir.Module, options: Options, *, entry: str, platform: str = "cpu"
) -> tuple[ir.Module | None, Report]:
    """The compiled module and the report on it; None if XLA is to get the original.

    A fault of the compiler is a warning, and the program stays with XLA, unless `choose="ours"`
    asks for our kernels: then it is raised.

    Raises: ConfigurationError for settings that cannot be followed, such as a dump folder that
    cannot be written.
    """
    if options.choose == "xla":
        return None, Report.untouched('choose="xla" asks for it')
    try:
        compile_here = _compile_for_gpu if platform == "cuda" else _compile
        compiled = compile_here(module, options, entry)
        if compiled.module is module:
            return None, compiled.report
        (cuda if platform == "cuda" else library).register_with_jax()
    except ConfigurationError:
        raise
    except Exception as error:
        if options.choose == "ours":
            raise
        reason = f"the compiler failed with {type(error).__name__}: {error}"
        warnings.warn(
            f"hlo_mlc leaves {entry} to XLA: {reason}", RuntimeWarning, stacklevel=2
        )
        return None, Report.untouched(reason)
    return compiled.module, compiled.report


def _compile(module: ir.Module, options: Options, entry: str) -> CompiledModule:
    if options.choose == "measure":
        return choose_fastest(module, options, entry, _compile)
    return _checked(module, compile_module(module, options, entry=entry), entry)


def _compile_for_gpu(module: ir.Module, options: Options, entry: str) -> CompiledModule:
    return _checked(module, compile_for_gpu(module, options, gpu_target(), entry=entry), entry)


def gpu_kernels(report: Report) -> tuple[GpuKernel, ...]:
    """The kernels that a report on a program for GPUs speaks of.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on.
    """
    target = gpu_target()
    return tuple(k for k in (gpu_kernel(r.id, target) for r in report.kernels) if k is not None)


def gpu_target() -> CudaTarget:
    """The architecture of the GPUs here, or without one the newest that we know.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on.
    """
    try:
        capability = jax.local_devices(backend="cuda")[0].compute_capability
    except RuntimeError:
        return named(names()[-1])
    return for_capability(capability)


def _checked(module: ir.Module, compiled: CompiledModule, entry: str) -> CompiledModule:
    """What was compiled, which must still be a function of the same type."""
    expected = function_named(module, entry).type
    if compiled.module is not module:
        got = function_named(compiled.module, entry).type
        if got != expected:
            raise FrontendError(f"compilation made @{entry} a {got}, expected {expected}")
        compiled.module.operation.verify()
    return compiled
