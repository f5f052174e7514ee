"""The GPUs of this machine, as JAX knows them."""

from __future__ import annotations

import jax

from hlo_mlc.target.cuda import CudaTarget, for_device

CUDA = "cuda"
"""What JAX calls the platform."""


def first_gpu() -> jax.Device | None:
    """The first of this machine's GPUs; None where JAX has none."""
    try:
        return jax.local_devices(backend=CUDA)[0]
    except RuntimeError:
        return None


def target_here() -> CudaTarget | None:
    """The architecture of the GPUs here; None where JAX has none.

    Raises: UnknownTargetError for GPUs that none of our architectures runs on.
    """
    device = first_gpu()
    return None if device is None else for_device(device.compute_capability, device.device_kind)
