"""Operators on signals: Fourier transforms, also of the windows of a signal, and bands by pitch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, integers, known


def _numbers(x: Any) -> Any:
    """[..., 1 or 2] of parts -> [...] of real or complex numbers, of 32 bits at least."""
    parts = jnp.asarray(x, jnp.promote_types(x.dtype, np.float32))
    return parts[..., 0] if x.shape[-1] == 1 else lax.complex(parts[..., 0], parts[..., 1])


def _transformed(z: Any, length: int, axis: int, one_sided: bool) -> Any:
    """[...] -> [..., 2], with the first half of frequencies where that is all."""
    if not one_sided or jnp.iscomplexobj(z):
        found = jnp.fft.fft(z, length, axis)
        if one_sided:
            found = lax.slice_in_dim(found, 0, length // 2 + 1, axis=axis)
    else:
        found = jnp.fft.rfft(z, length, axis)
    return jnp.stack((found.real, found.imag), -1)


def _transform(node: Node, x: Any, length: Any = None, axis: Any = None) -> Any:
    """x [..., 1 or 2]."""
    along = -2 if axis is None else integers(axis, "its input axis")[0]
    along = (node["axis"] if node.version < 20 else along) % x.ndim
    inverse, one_sided = bool(node["inverse"]), bool(node["onesided"])
    size = x.shape[along]
    if length is not None:
        (size,) = integers(length, "its input dft_length")
    elif inverse and one_sided:
        size = 2 * (size - 1)
    z = _numbers(x)
    if not inverse:
        return _transformed(z, size, along, one_sided).astype(x.dtype)
    if one_sided:
        return jnp.fft.irfft(z, size, along)[..., None].astype(x.dtype)
    found = jnp.fft.ifft(z, size, along)
    return jnp.stack((found.real, found.imag), -1).astype(x.dtype)


def _of_windows(node: Node, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    """x [batch, time, 1 or 2] -> [batch, windows, frequencies, 2]."""
    (hop,) = integers(step, "its input frame_step")
    if length is not None:
        (size,) = integers(length, "its input frame_length")
    else:
        size = x.shape[1] if window is None else window.shape[0]
    starts = np.arange(0, x.shape[1] - size + 1, hop)
    read = _numbers(x)[:, starts[:, None] + np.arange(size)]
    if window is not None:
        read = read * window.astype(read.real.dtype)
    return _transformed(read, size, 2, bool(node["onesided"])).astype(x.dtype)


def _bands(node: Node, count: Any, length: Any, rate: Any, low: Any, high: Any) -> np.ndarray:
    """[frequencies, bands]: triangles at equal distances of pitch.

    Source: S. Stevens, J. Volkmann and E. Newman, A scale for the measurement of the psychological
    magnitude pitch (1937), as ONNX has it.
    """
    names = ("num_mel_bins", "dft_length", "sample_rate")
    bands, size, of_second = (
        integers(value, f"its input {name}")[0]
        for name, value in zip(names, (count, length, rate), strict=True)
    )
    edges = [
        2595 * np.log10(1 + known(value, f"its input {name}").astype(np.float64).item() / 700)
        for name, value in (("lower_edge_hertz", low), ("upper_edge_hertz", high))
    ]
    pitches = edges[0] + (edges[1] - edges[0]) / (bands + 2) * np.arange(bands + 2)
    places = ((size + 1) * 700 * (10 ** (pitches / 2595) - 1) // of_second).astype(int)
    first, middle, last = places[:-2], places[1:-1], places[2:]
    at = np.arange(size // 2 + 1)[:, None]
    rising = (at - first) / np.maximum(middle - first, 1)
    falling = (last - at) / np.maximum(last - middle, 1)
    weights = np.where((at >= first) & (at < middle), rising, 0)
    weights = np.where((at >= middle) & (at < last), falling, weights)
    weights = np.where(at == middle, 1, weights)
    return weights.astype(node["output_datatype"])


SIGNALS: Mapping[str, Operator] = {
    "DFT": _transform,
    "MelWeightMatrix": _bands,
    "STFT": _of_windows,
}
