"""Functions compiled for GPUs: what code is generated for, and which kernels XLA may call."""

from __future__ import annotations

from jaxlib.mlir import ir

from hlo_mlc.compiler import CompiledModule
from hlo_mlc.gpu import GpuKernel, compile_for_gpu, gpu_kernel
from hlo_mlc.interop.devices import target_here
from hlo_mlc.report import Report
from hlo_mlc.runtime import cuda
from hlo_mlc.support.options import Options
from hlo_mlc.target.cuda import CudaTarget, named, names


def gpu_target(options: Options) -> CudaTarget:
    """The architecture that is asked for, or that of the GPUs here, or without one the newest that
    we know.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on.
    """
    if options.target in names():
        return named(options.target)
    return target_here() or named(names()[-1])


def compile_here(module: ir.Module, options: Options, entry: str) -> CompiledModule:
    """Compiles a function, and makes its kernels known to XLA unless another architecture than that
    of the GPUs here was asked for.

    Raises: MlcError subclasses of the stage that fails, UnknownTargetError as above.
    """
    target = gpu_target(options)
    compiled = compile_for_gpu(module, options, target, entry=entry)
    if options.target not in names():
        for kernel in _kernels(compiled.report, target):
            if not cuda.exists(kernel.kernel.fingerprint):
                source = kernel.source
                cuda.publish(kernel.kernel.fingerprint, kernel.compiled.cubin, source.functions,
                             source.plan)
    return compiled


def gpu_kernels(report: Report, options: Options) -> tuple[GpuKernel, ...]:
    """The kernels that a report on a program for GPUs speaks of.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on.
    """
    return _kernels(report, gpu_target(options))


def _kernels(report: Report, target: CudaTarget) -> tuple[GpuKernel, ...]:
    found = (gpu_kernel(kernel.id, target) for kernel in report.kernels)
    return tuple(kernel for kernel in found if kernel is not None)
