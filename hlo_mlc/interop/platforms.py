"""What compiles a function for each of JAX's platforms, and which kernels it made for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hlo_mlc.backends.base import Backend
from hlo_mlc.backends.cpu import (
    all_rows_cpu_backend,
    cpu_backend,
    rows_cpu_backend,
    sharded_cpu_backend,
)
from hlo_mlc.backends.recorded import pinned
from hlo_mlc.interop.devices import ALL_ROWS, ANY_ROWS, CPU, CUDA, SHARDED, target_here
from hlo_mlc.report import Report
from hlo_mlc.runtime.records import require_target
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.target.cuda import named, names

with lazy_imports():
    from hlo_mlc.backends import cuda

if TYPE_CHECKING:
    from hlo_mlc.backends.cuda import CudaBackend, GpuKernel


def gpu_backend(options: Options) -> CudaBackend:
    """The architecture that is asked for, or that of the GPUs here, or without one the newest that
    we know.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on; ConfigurationError
    where kernels are to be built by records for other GPUs.
    """
    is_named = options.target in names()
    target = named(options.target) if is_named else target_here() or named(names()[-1])
    if options.records is not None:
        require_target(options.records, target.key)
    return cuda.CudaBackend(target, not is_named, pinned(options), options.deterministic)


BACKENDS: Mapping[str, Callable[[Options], Backend]] = {
    CPU: cpu_backend,
    SHARDED: sharded_cpu_backend,
    ANY_ROWS: rows_cpu_backend,
    ALL_ROWS: all_rows_cpu_backend,
    CUDA: gpu_backend,
}


def gpu_kernels(report: Report) -> tuple[GpuKernel, ...]:
    """The kernels that a report on a program for GPUs speaks of."""
    return tuple(k.kept for k in report.kernels if isinstance(k.kept, cuda.GpuKernel))
