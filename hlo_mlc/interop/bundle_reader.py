"""Machine code out of a file, for CPUs and for GPUs: which of it runs here, and making it callable.

Nothing of the compiler is needed for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hlo_mlc.interop.devices import CUDA, target_here
from hlo_mlc.runtime import cuda, library, variants
from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.target import cpu
from hlo_mlc.target.cuda import KIB
from hlo_mlc.target.levels import architecture, present_features

Described = Mapping[str, Any]  # a target or a kernel, as the file describes it


class Platform(Protocol):
    """What a file is for."""

    def missing(self, targets: Sequence[Described]) -> str:
        """Why not even the original program can run here; empty where it can."""

    def fitting(self, targets: Sequence[Described]) -> list[Described]:
        """The targets whose code runs here, the best first."""

    def publish(self, kernel_id: str, kernel: Described, code: bytes) -> None:
        """Makes the code of a kernel callable, unless there is some already."""


class Cpus:
    """This machine's CPU."""

    def missing(self, targets: Sequence[Described]) -> str:
        there = sorted({target["architecture"] for target in targets})
        here = architecture(cpu.host())
        return (
            ""
            if here in there
            else (
                f"is for {', '.join(there)}, this machine is {here}: "
                "export it for a target of that kind"
            )
        )

    def fitting(self, targets: Sequence[Described]) -> list[Described]:
        here = architecture(cpu.host())
        fitting = [
            target
            for target in targets
            if target["architecture"] == here and present_features() >= {*target["features"]}
        ]
        return sorted(fitting, key=lambda target: -len(target["features"]))

    def publish(self, kernel_id: str, kernel: Described, code: bytes) -> None:
        library.register_with_jax()
        variants.keep(kernel_id)
        if not variants.exists(kernel_id):
            variants.publish(
                kernel_id, variants.load_object(code, kernel["symbol"], kernel["scratch_bytes"])
            )


class Gpus:
    """This machine's NVIDIA GPUs."""

    def missing(self, targets: Sequence[Described]) -> str:
        try:
            return "" if target_here() is not None else "is for NVIDIA GPUs, and JAX has none here"
        except UnknownTargetError:
            return ""  # XLA may know more of them than we do

    def fitting(self, targets: Sequence[Described]) -> list[Described]:
        try:
            here = target_here()
        except UnknownTargetError:
            return []
        return [
            target
            for target in targets
            if here is not None
            and target["name"] == here.name
            and target["shared_bytes"] <= here.shared_bytes
        ]

    def publish(self, kernel_id: str, kernel: Described, code: bytes) -> None:
        cuda.register_with_jax()
        if not cuda.exists(kernel_id):
            cuda.publish(
                kernel_id, code, kernel["functions"], kernel["plan"], kernel["scratch_bytes"]
            )


PLATFORMS: Mapping[str, Platform] = {"cpu": Cpus(), CUDA: Gpus()}


def target_line(target: Described) -> str:
    """What a target is, in words."""
    if "shared_bytes" in target:
        return (
            f"{target['name']} (NVIDIA GPUs, up to {target['shared_bytes'] // KIB} KiB of "
            "shared memory)"
        )
    return f"{target['name']} ({target['architecture']}, {target['cpu']})"
