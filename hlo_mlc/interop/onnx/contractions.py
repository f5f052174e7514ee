"""Operators that fold elements: reductions, normalization, products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, along, integers, is_floating, known


def _reduction(function: Callable[..., Any]) -> Operator:
    """In the type of its input: means of integers are rounded to zero."""

    def operator(node: Node, x: Any, axes: Any = None) -> Any:
        given = (node["axes"] if axes is None else integers(axes, "its input axes")) or None
        if given is None and node["noop_with_empty_axes"]:
            given = ()
        return function(x, axis=given, keepdims=bool(node["keepdims"])).astype(x.dtype)

    return operator


def _extreme(function: Callable[..., Any], least: Callable[[Any], Any]) -> Operator:
    def folded(x: Any, **axes: Any) -> Any:
        if x.size:
            return function(x, **axes)
        ends = (
            (-np.inf, np.inf)
            if is_floating(x)
            else (False, True)
            if x.dtype == bool
            else (jnp.iinfo(x.dtype).min, jnp.iinfo(x.dtype).max)
        )
        return function(x, initial=np.array(least(ends), x.dtype), **axes)

    return _reduction(folded)


def _first(function: Callable[..., Any]) -> Operator:
    """Of equal elements the first, or the last."""

    def operator(node: Node, x: Any) -> Any:
        axis, keep = node["axis"], bool(node["keepdims"])
        at = function(jnp.flip(x, axis) if node["select_last_index"] else x, axis, keepdims=keep)
        return (x.shape[axis] - 1 - at if node["select_last_index"] else at).astype(
            jax.dtypes.canonicalize_dtype(np.int64)
        )

    return operator


def _softmax(function: Callable[..., Any]) -> Operator:
    """Before set 13 over all axes from the given one on."""

    def operator(node: Node, x: Any) -> Any:
        axis = node["axis"]
        return function(x, axis if node.version >= 13 else tuple(range(axis % x.ndim, x.ndim)))

    return operator


def _hard_max(node: Node, x: Any) -> Any:
    axis = node["axis"] % x.ndim
    rows = x if node.version >= 13 else x.reshape(*x.shape[:axis], -1)
    at = jnp.argmax(rows, axis, keepdims=True)
    places = along(np.arange(rows.shape[axis]), axis, rows.ndim)
    return (at == places).astype(x.dtype).reshape(x.shape)


def _cumulative(function: Callable[..., Any], unit: int) -> Operator:
    def operator(node: Node, x: Any, axis: Any) -> Any:
        (axis,) = integers(axis, "its input axis")
        axis, reverse = axis % x.ndim, bool(node["reverse"])
        if node["exclusive"]:
            sides = [(0, 0, 0)] * x.ndim
            sides[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
            x = lax.pad(jnp.asarray(x), jnp.asarray(unit, x.dtype), sides)
        return function(x, axis, reverse=reverse)

    return operator


def _standard(x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    """With mean 0 and variance 1, and the mean and the inverse of the deviation that it had."""
    mean = x.mean(axes, keepdims=True)
    scale = lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * scale, mean, scale


def _wide(node: Node, x: Any) -> Any:
    """In the type that a normalization computes in."""
    return x.astype(np.float32) if node["stash_type"] == 1 and x.dtype.itemsize == 2 else x


def _layer_normalization(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    axes = tuple(range(node["axis"] % x.ndim, x.ndim))
    normal, mean, deviation = _standard(_wide(node, x), axes, node["epsilon"])
    out = normal.astype(x.dtype) * scale
    return out if bias is None else out + bias, mean, deviation


def _rms_normalization(node: Node, x: Any, scale: Any) -> Any:
    axes = tuple(range(node["axis"] % x.ndim, x.ndim))
    wide = _wide(node, x)
    normal = wide * lax.rsqrt(jnp.square(wide).mean(axes, keepdims=True) + node["epsilon"])
    return (normal.astype(x.dtype) * scale).astype(scale.dtype)


def _instance_normalization(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    normal, *_ = _standard(x, tuple(range(2, x.ndim)), node["epsilon"])
    return normal * along(scale, 1, x.ndim) + along(bias, 1, x.ndim)


def _group_normalization(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    """Before set 21 a group has one scale and bias."""
    groups = node["num_groups"]
    rows = _wide(node, x).reshape(x.shape[0], groups, -1)
    normal, *_ = _standard(rows, (2,), node["epsilon"])
    of_groups = node.version < 21
    shape = (*x.shape[:1], groups, -1) if of_groups else x.shape
    normal = normal.astype(x.dtype).reshape(shape)
    return (normal * along(scale, 1, len(shape)) + along(bias, 1, len(shape))).reshape(x.shape)


def _batch_normalization(
    node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any
) -> Any:
    if node["spatial"] == 0:
        raise NotImplementedError("statistics of each element")
    of_batch = node["training_mode"] or (node.version < 14 and node.results > 1)
    running = mean, variance
    if of_batch:
        axes = (0, *range(2, x.ndim))
        mean, variance = x.mean(axes), x.var(axes)
        running = tuple(
            old * node["momentum"] + new * (1 - node["momentum"])
            for old, new in zip(running, (mean, variance), strict=True)
        )
    factor = scale * lax.rsqrt(variance + node["epsilon"])
    mean, factor, bias = (along(v, 1, x.ndim) for v in (mean, factor, bias))
    out = ((x - mean) * factor + bias).astype(x.dtype)
    return (out, *running) if of_batch else out


def _mean_variance_normalization(node: Node, x: Any) -> Any:
    """Source: its function, with 1e-9 beside the deviation."""
    axes = tuple(node["axes"])
    deviation = jnp.sqrt(
        jnp.square(x).mean(axes, keepdims=True) - jnp.square(x.mean(axes, keepdims=True))
    )
    return (x - x.mean(axes, keepdims=True)) / (deviation + 1e-9)


def _norm(x: Any, order: int, axes: Any) -> Any:
    total = (jnp.abs(x) ** order).sum(axes, keepdims=True)
    return total if order == 1 else jnp.sqrt(total) if order == 2 else total ** (1 / order)


def _norm_normalization(node: Node, x: Any) -> Any:
    norm = _norm(x, node["p"], node["axis"])
    return jnp.where(norm == 0, jnp.zeros_like(x), x / jnp.where(norm == 0, 1, norm))


def _spatial(x: Any) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    out = (a.T if node["transA"] else a) @ (b.T if node["transB"] else b)
    out = out if node["alpha"] == 1 else (node["alpha"] * out).astype(a.dtype)
    if c is None or node["beta"] == 0:
        return out
    return out + (c if node["beta"] == 1 else (node["beta"] * c).astype(a.dtype))


def _dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    if (
        training is not None
        and known(training, "its input training_mode").any()
        and (ratio is None or known(ratio, "its input ratio").any())
    ):
        raise NotImplementedError("training, which draws random numbers")
    return x, np.ones(x.shape, np.bool_ if node.version >= 10 else x.dtype)


CONTRACTIONS: Mapping[str, Operator] = {
    "ArgMax": _first(jnp.argmax),
    "ArgMin": _first(jnp.argmin),
    "BatchNormalization": _batch_normalization,
    "CumProd": _cumulative(lax.cumprod, 1),
    "CumSum": _cumulative(lax.cumsum, 0),
    "Det": lambda node, x: jnp.linalg.det(x),
    "Dropout": _dropout,
    "Einsum": lambda node, *xs: jnp.einsum(node["equation"], *xs),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda node, x: x.mean(_spatial(x), keepdims=True),
    "GlobalLpPool": lambda node, x: _norm(x, node["p"], _spatial(x)),
    "GlobalMaxPool": lambda node, x: x.max(_spatial(x), keepdims=True),
    "GroupNormalization": _group_normalization,
    "Hardmax": _hard_max,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _softmax(jax.nn.log_softmax),
    "LpNormalization": _norm_normalization,
    "MatMul": lambda node, a, b: node.numpy.matmul(a, b),
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _rms_normalization,
    "ReduceL1": _reduction(lambda x, **axes: jnp.abs(x).sum(**axes)),
    "ReduceL2": _reduction(lambda x, **axes: jnp.sqrt(jnp.square(x).sum(**axes))),
    "ReduceLogSum": _reduction(lambda x, **axes: jnp.log(x.sum(**axes))),
    "ReduceLogSumExp": _reduction(jax.nn.logsumexp),
    "ReduceMax": _extreme(jnp.max, min),
    "ReduceMean": _reduction(jnp.mean),
    "ReduceMin": _extreme(jnp.min, max),
    "ReduceProd": _reduction(jnp.prod),
    "ReduceSum": _reduction(jnp.sum),
    "ReduceSumSquare": _reduction(lambda x, **axes: jnp.square(x).sum(**axes)),
    "Softmax": _softmax(jax.nn.softmax),
}
