"""Machine code for a file: of kernels that this process has compiled, for each of its targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hlo_mlc.backends.base import Backend, KernelObject
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.backends.cuda import CudaBackend, CudaCode
from hlo_mlc.backends.recorded import pinned
from hlo_mlc.building import kernel_with_id
from hlo_mlc.interop.devices import CUDA
from hlo_mlc.kernel_objects import kernel_object
from hlo_mlc.report import nest_line
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.target.levels import architecture, required_features


@dataclass(frozen=True, slots=True)
class CpuTargets:
    """Levels of CPUs.  Programs are the same for all of them."""

    targets: tuple[CpuTarget, ...]
    platform: str = "cpu"
    lowered_for: str = "cpu"

    def described(self, target: CpuTarget) -> dict[str, Any]:
        """What loading a file has to know of a target."""
        return {
            "cpu": target.cpu,
            "architecture": architecture(target),
            "features": sorted(required_features(target)),
        }

    def code(
        self, kernel_id: str, target: CpuTarget, options: Options
    ) -> tuple[bytes, dict[str, Any]]:
        """The code of a kernel for a target, and how it is called.

        Raises: UsageError for a kernel of another process.
        """
        made = _made(
            kernel_id,
            options,
            CpuBackend(replace(target, deterministic=options.deterministic), pinned(options)),
        )
        return made.code, {
            "name": made.name,
            "symbol": made.symbol,
            "scratch_bytes": made.scratch_bytes,
            "about": made.about,
            "nests": list(map(nest_line, made.nests)),
        }


@dataclass(frozen=True, slots=True)
class GpuTargets:
    """Architectures of GPUs.

    Programs hold the scratch memory of their kernels.  They are lowered for the architecture with
    the least shared memory, whose kernels keep the most in scratch.
    """

    targets: tuple[CudaTarget, ...]
    platform: str = CUDA

    @property
    def lowered_for(self) -> str:
        return self._least.name

    @property
    def _least(self) -> CudaTarget:
        return min(self.targets, key=lambda target: target.shared_bytes)

    def described(self, target: CudaTarget) -> dict[str, Any]:
        """What loading a file has to know of a target."""
        return {"shared_bytes": target.shared_bytes}

    def code(
        self, kernel_id: str, target: CudaTarget, options: Options
    ) -> tuple[bytes, dict[str, Any]]:
        """The code of a kernel for a target, and how it is called.

        Raises: UsageError for a kernel of another process, or one that takes more scratch memory
        for this target than the program has.
        """
        made, lowered = (
            _made(
                kernel_id,
                options,
                CudaBackend(which, pin=pinned(options), deterministic=options.deterministic),
            )
            for which in (target, self._least)
        )
        if made.scratch_bytes > lowered.scratch_bytes:
            raise UsageError(
                f"Kernel {kernel_id} takes more scratch memory on {target.name} than "
                f"on {self._least.name}: export a file for each"
            )
        code = CudaCode.unpack(made.code)
        return code.compiled.cubin, {
            "name": made.name,
            "functions": list(code.source.functions),
            "plan": list(code.source.plan),
            "scratch_bytes": made.scratch_bytes,
            "nests": list(map(nest_line, made.nests)),
            "resources": list(code.resources),
        }


def _made(kernel_id: str, options: Options, backend: Backend) -> KernelObject:
    """The code of a kernel as it is to be used, without checks."""
    kernel = kernel_with_id(kernel_id.partition("-")[0])  # behind it stands by what it was built
    if kernel is None:
        raise UsageError(
            f"The program calls kernel {kernel_id}, which this process did not "
            "compile: was the function itself loaded from a file?"
        )
    made = kernel_object(kernel, options.replace(check=False), backend)
    return replace(made, name=kernel.name)  # what people call it here
