"""Programs as StableHLO modules of their own, which came from elsewhere as it were.

Printed at the head of a program of the mode `module`: it needs JAX and hlo_mlc alone.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import hlo_mlc


def through_module(kernel: Callable, function: Callable) -> Callable:
    """The function, compiled from its module where `kernel` is `mlc_jit` with its choice; called
    for other extents before where they are open, by whose kernels it may run then."""
    if getattr(kernel, "func", None) is not hlo_mlc.mlc_jit:
        return kernel(function)
    compiled: list[Callable] = []

    def call(*args: jax.Array) -> object:
        if not compiled:
            module = exported(function, args)
            compiled.append(hlo_mlc.compile_stablehlo(module, **kernel.keywords))
            if is_open(module):
                compiled[0](*_of_other_extents(args))
        return compiled[0](*args)

    return call


def exported(function: Callable, args: Sequence[jax.Array]) -> export.Exported:
    """With extents that are open, each with a letter of its own, where JAX can trace that."""
    extents = sorted({e for a in args for e in np.shape(a) if e > 1})
    letters = dict(zip(extents, string.ascii_lowercase, strict=False))
    scope = export.SymbolicScope()
    types = [
        jax.ShapeDtypeStruct(
            export.symbolic_shape(", ".join(letters.get(e, str(e)) for e in a.shape), scope=scope),
            a.dtype,
        )
        for a in args
    ]
    traced = export.export(jax.jit(function, keep_unused=True))
    try:
        return traced(*types)
    except Exception:  # whatever JAX says of extents that it cannot compare
        return traced(*args)


def is_open(module: export.Exported) -> bool:
    return any(not isinstance(e, int) for t in module.in_avals for e in t.shape)


def _of_other_extents(args: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.ones([e + (e > 1) for e in a.shape], a.dtype) for a in args]
