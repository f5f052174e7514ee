"""Compilers with a fault each, which random programs are to find: `--kernel planted:NAME`."""

from __future__ import annotations

import ctypes
import os
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

RunOptions = object


def _compiled(function: Callable, damage: Callable, options: dict) -> Callable:
    """XLA's version of a function, with `damage` done to each of its results."""
    for ours in ("choose", "any_rows", "deterministic"):
        options.pop(ours, None)
    return jax.jit(lambda *args: jax.tree.map(damage, function(*args)), **options)


def honest(function: Callable, **options: RunOptions) -> Callable:
    return _compiled(function, lambda r: r, options)


def last_element(function: Callable, **options: RunOptions) -> Callable:
    """The tail of long rows is not written."""

    def damage(r: jax.Array) -> jax.Array:
        long = r.ndim and r.shape[-1] > 8 and r.shape[-1] % 8
        return r.at[..., -1].set(0) if long else r

    return _compiled(function, damage, options)


def inaccurate(function: Callable, **options: RunOptions) -> Callable:
    """Floats are off by 200 units in the last place."""

    def damage(r: jax.Array) -> jax.Array:
        floats = jnp.issubdtype(r.dtype, jnp.floating)
        return (r * (1 + 200 * jnp.finfo(r.dtype).eps)).astype(r.dtype) if floats else r

    return _compiled(function, damage, options)


def without_nan(function: Callable, **options: RunOptions) -> Callable:
    """What is NaN becomes a number, as in XLA's own maxima."""

    def damage(r: jax.Array) -> jax.Array:
        floats = jnp.issubdtype(r.dtype, jnp.floating)
        return jnp.where(jnp.isnan(r), 0, r) if floats else r

    return _compiled(function, damage, options)


def bit_lost(function: Callable, **options: RunOptions) -> Callable:
    """Integers lose their lowest bit."""

    def damage(r: jax.Array) -> jax.Array:
        return r & ~jnp.ones((), r.dtype) if jnp.issubdtype(r.dtype, jnp.integer) else r

    return _compiled(function, damage, options)


def wrong_type(function: Callable, **options: RunOptions) -> Callable:
    return _compiled(function, lambda r: r[None], options)


def raises(function: Callable, **options: RunOptions) -> Callable:
    def fail(*args: jax.Array) -> None:
        raise KeyError("planted")

    return fail


def warns(function: Callable, **options: RunOptions) -> Callable:
    warnings.warn("hlo_mlc leaves main to XLA: planted", RuntimeWarning, stacklevel=2)
    return honest(function, **options)


def hangs(function: Callable, **options: RunOptions) -> Callable:
    return lambda *args: time.sleep(1000)


def dies(function: Callable, **options: RunOptions) -> Callable:
    return lambda *args: os.abort()


def unsteady(function: Callable, **options: RunOptions) -> Callable:
    """Every call gives something else."""
    compiled, calls = honest(function, **options), [0]

    def call(*args: jax.Array) -> object:
        calls[0] += 1
        return jax.tree.map(
            lambda r: (
                r ^ True if calls[0] % 2 == 0 and r.dtype == bool else r + (calls[0] % 2 == 0)
            ),
            compiled(*args),
        )

    return call


def overruns(function: Callable, **options: RunOptions) -> Callable:
    """A block of the heap is written beyond its end, and freed."""
    compiled = honest(function, **options)
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    def call(*args: jax.Array) -> object:
        block = libc.malloc(5000)
        ctypes.memset(block, 7, 5064)
        libc.free(block)
        return compiled(*args)

    return call


def overwrites(function: Callable, **options: RunOptions) -> Callable:
    """An argument is written to."""
    compiled = honest(function, **options)

    def call(*args: jax.Array) -> object:
        results = jax.block_until_ready(compiled(*args))
        for array in args:
            if not isinstance(array, jax.core.Tracer) and array.nbytes:
                is_numpys = isinstance(array, np.ndarray)
                place = array.ctypes.data if is_numpys else array.unsafe_buffer_pointer()
                ctypes.memset(place, 0x55, array.nbytes)
        return results

    return call
