"""Operators on quantized values: (value - zero point) * scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.elementwise import cast
from hlo_mlc.interop.onnx.node import Node, Operator, along, is_floating
from hlo_mlc.interop.onnx.windows import convolution


def _spread(node: Node, value: Any, x: Any) -> Any:
    """A scale or zero point, one or one of each index or block along the axis, for all of x."""
    if value is None:
        return None
    if block := node["block_size"]:
        return lax.slice_in_dim(
            jnp.repeat(value, block, node["axis"]), 0, x.shape[node["axis"]], axis=node["axis"]
        )
    return along(value, 1 if node["axis"] is None else node["axis"], x.ndim)


def _rounded(node: Node, x: Any, zero: Any, dtype: Any) -> Any:
    """To the nearest of a type, saturated."""
    if jnp.issubdtype(dtype, np.floating):
        return cast(node, x, dtype)
    info = jnp.iinfo(dtype)
    x = jnp.round(x) if zero is None else jnp.round(x) + zero.astype(x.dtype)
    return jnp.clip(x, int(info.min), int(info.max)).astype(dtype)


def _quantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = zero.dtype if zero is not None else node["output_dtype"] or np.dtype(np.uint8)
    kind = node["precision"] or scale.dtype
    ratio = x.astype(kind) / _spread(node, scale, x).astype(kind)
    return _rounded(node, ratio, _spread(node, zero, x), dtype)


def _dequantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    kind = node["output_dtype"] or scale.dtype
    wide = scale.dtype if is_floating(x) else np.int32
    values = (
        x.astype(wide) if zero is None else x.astype(wide) - _spread(node, zero, x).astype(wide)
    )
    return (values.astype(scale.dtype) * _spread(node, scale, x)).astype(kind)


def _centred(x: Any, zero: Any, axis: int) -> Any:
    x = x.astype(np.int32)
    if zero is None:
        return x
    zero = zero.astype(np.int32)
    return x - (along(zero, axis, x.ndim) if zero.ndim < 2 else zero)


def _product(node: Node, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return jnp.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


def _convolution(
    node: Node, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, bias: Any = None
) -> Any:
    return convolution(node, _centred(x, x_zero, 0), _centred(w, w_zero, 0), bias)


def _quantized_product(
    node: Node,
    a: Any,
    a_scale: Any,
    a_zero: Any,
    b: Any,
    b_scale: Any,
    b_zero: Any,
    scale: Any,
    zero: Any,
) -> Any:
    out = _product(node, a, b, a_zero, b_zero)
    factor = _of_rows(a_scale, -2) * _of_rows(b_scale, -1) / _of_rows(scale, -2)
    return _rounded(node, out.astype(np.float32) * factor, _of_rows(zero, -2), zero.dtype)


def _of_rows(value: Any, axis: int) -> Any:
    return along(value, axis, 2) if value.ndim < 2 else value


def _quantized_convolution(
    node: Node,
    x: Any,
    x_scale: Any,
    x_zero: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    scale: Any,
    zero: Any,
    bias: Any = None,
) -> Any:
    out = _convolution(node, x, w, x_zero, w_zero, bias)
    factor = along(x_scale, 1, x.ndim) * along(w_scale, 1, x.ndim) / along(scale, 1, x.ndim)
    return _rounded(node, out.astype(np.float32) * factor, along(zero, 1, x.ndim), zero.dtype)


QUANTIZED: Mapping[str, Operator] = {
    "ConvInteger": _convolution,
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _product,
    "QLinearConv": _quantized_convolution,
    "QLinearMatMul": _quantized_product,
    "QuantizeLinear": _quantize,
}
