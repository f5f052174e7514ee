"""The devices of this machine, as JAX knows them."""

from __future__ import annotations

from collections.abc import Iterable

import jax

from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cuda import CudaTarget, for_device

CPU = "cpu"
CUDA = "cuda"
"""What JAX calls the platforms."""

SHARDED = "cpu, sharded"
"""CPUs over which JAX partitions what is compiled."""

ANY_ROWS = "cpu, any rows"
"""CPUs for a program that is compiled for one number of rows after the other."""

ALL_ROWS = "cpu, all rows"
"""The same, with all kernels that other numbers of rows need."""


def compiled_for(platform: str, options: Options) -> str:
    """For which of these a program that runs on a platform of JAX's is compiled, by the options."""
    return ANY_ROWS if platform == CPU and options.any_rows else platform


def first_gpu() -> jax.Device | None:
    """The first of this machine's GPUs; None where JAX has none."""
    try:
        return jax.local_devices(backend=CUDA)[0]
    except RuntimeError:
        return None


def platform_of(leaves: Iterable[object]) -> str:
    """Where JAX runs a function of such arguments, as it calls the platform: where they were put
    on purpose, else where it runs everything."""
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.committed:
            return next(iter(leaf.devices())).platform
    default = jax.config.jax_default_device
    if default is None:
        return jax.default_backend()
    return default if isinstance(default, str) else default.platform


def require_cpu(leaves: Iterable[object], what: str) -> None:
    """Raises: UsageError where JAX does not run a function of such arguments on the CPU, for whose
    kernels are to be `what`."""
    platform = platform_of(leaves)
    if platform != CPU:
        raise UsageError(
            f"The function runs on {platform} here, and kernels can be {what} for CPUs only so "
            "far: JAX_PLATFORMS=cpu, or arrays that jax.device_put has put on a CPU, do it"
        )


def target_here() -> CudaTarget | None:
    """The architecture of the GPUs here; None where JAX has none.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on.
    """
    device = first_gpu()
    return None if device is None else for_device(device.compute_capability, device.device_kind)
