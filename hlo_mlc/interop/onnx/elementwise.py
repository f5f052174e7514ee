"""Operators that compute each element by itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, is_floating, is_known


def _named(name: str) -> Operator:
    """A function of NumPy and of JAX."""

    def operator(node: Node, *xs: Any) -> Any:
        if node["broadcast"] and node["axis"] is not None:  # before set 7
            x, y = xs
            xs = x, y.reshape(*y.shape, *(1,) * (x.ndim - node["axis"] % x.ndim - y.ndim))
        return getattr(node.numpy, name)(*xs)

    return operator


def _plain(function: Operator) -> Operator:
    """An operator without attributes."""
    return lambda node, *xs: function(*xs)


def _variadic(name: str) -> Operator:
    return lambda node, *xs: functools.reduce(getattr(node.numpy, name), xs)


def _divide(node: Node, x: Any, y: Any) -> Any:
    """Integers are rounded to zero."""
    return _named("divide")(node, x, y) if is_floating(x) else lax.div(*jnp.broadcast_arrays(x, y))


def _modulo(node: Node, x: Any, y: Any) -> Any:
    return lax.rem(*jnp.broadcast_arrays(x, y)) if node["fmod"] else node.numpy.mod(x, y)


def _power(node: Node, x: Any, y: Any) -> Any:
    if (
        is_known(y)
        and y.size == 1
        and y.ndim <= x.ndim
        and abs(y) <= 8
        and y == int(y.item())
        and (is_floating(x) or y >= 0)
    ):
        return lax.integer_pow(x, int(y.item()))
    power = _named("power")(node, x, y)
    if not is_floating(x) and is_floating(y):  # powers of integers are none only by rounding
        power = node.numpy.where(y == node.numpy.floor(y), node.numpy.round(power), power)
    return power.astype(x.dtype)


def _clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = (node["min"] if low is None else low), (node["max"] if high is None else high)
    x = x if low is None else node.numpy.maximum(x, low)
    return x if high is None else node.numpy.minimum(x, high)


def _shift(node: Node, x: Any, y: Any) -> Any:
    left = node["direction"] == "LEFT"
    bits = x.dtype.itemsize * 8
    shifted = (node.numpy.left_shift if left else node.numpy.right_shift)(x, y % bits)
    rest = node.numpy.where(x < 0, -1, 0).astype(x.dtype) if not left else x * 0
    return node.numpy.where((y < 0) | (y >= bits), rest, shifted)


def cast(node: Node, x: Any, dtype: Any) -> Any:
    """Saturates where the node says so: floats of a byte have no infinity, or no use for it."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OUS" or getattr(x, "dtype", dtype).kind in "OUS":
        raise NotImplementedError("strings")
    if dtype == jnp.float8_e8m0fnu:
        raise NotImplementedError(f"a cast to {dtype}, by its own rounding")
    if jnp.issubdtype(dtype, np.integer) and jnp.iinfo(dtype).bits < 8 and is_floating(x):
        x = x.astype(np.int32)  # the lowest bits remain
    if dtype.itemsize == 1 and jnp.issubdtype(dtype, np.floating) and node["saturate"]:
        most = float(jnp.finfo(dtype).max)
        x = node.numpy.clip(x, -most, most)
    return x.astype(dtype)


def _is_infinite(node: Node, x: Any) -> Any:
    return (x == np.inf) & bool(node["detect_positive"]) | (x == -np.inf) & bool(
        node["detect_negative"]
    )


def _selu(node: Node, x: Any) -> Any:
    return node["gamma"] * jnp.where(x > 0, x, node["alpha"] * jnp.expm1(x))


def _shrink(node: Node, x: Any) -> Any:
    zero = jnp.zeros_like(x)
    return jnp.where(
        x < -node["lambd"], x + node["bias"], jnp.where(x > node["lambd"], x - node["bias"], zero)
    )


def _hard_sigmoid(node: Node, x: Any) -> Any:
    return jnp.clip(node["alpha"] * x + node["beta"], 0, 1)


def _parametric_relu(node: Node, x: Any, slope: Any) -> Any:
    if node.version < 7 and slope.ndim == 1 and slope.size > 1:  # one of each channel
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return jnp.where(x < 0, slope * x, x)


ELEMENTWISE: Mapping[str, Operator] = {
    "Abs": _named("abs"),
    "Acos": _named("arccos"),
    "Acosh": _named("arccosh"),
    "Add": _named("add"),
    "And": _named("logical_and"),
    "Asin": _named("arcsin"),
    "Asinh": _named("arcsinh"),
    "Atan": _named("arctan"),
    "Atanh": _named("arctanh"),
    "BitShift": _shift,
    "BitwiseAnd": _named("bitwise_and"),
    "BitwiseNot": _named("invert"),
    "BitwiseOr": _named("bitwise_or"),
    "BitwiseXor": _named("bitwise_xor"),
    "BitCast": lambda node, x: x.view(node["to"]),
    "Cast": lambda node, x: cast(node, x, node["to"]),
    "CastLike": lambda node, x, like: cast(node, x, like.dtype),
    "Ceil": _named("ceil"),
    "Celu": lambda node, x: jax.nn.celu(x, node["alpha"]),
    "Clip": _clip,
    "Cos": _named("cos"),
    "Cosh": _named("cosh"),
    "Div": _divide,
    "Elu": lambda node, x: jax.nn.elu(x, node["alpha"]),
    "Equal": _named("equal"),
    "Erf": _plain(lax.erf),
    "Exp": _named("exp"),
    "Floor": _named("floor"),
    "Gelu": lambda node, x: jax.nn.gelu(x, approximate=node["approximate"] == "tanh"),
    "Greater": _named("greater"),
    "GreaterOrEqual": _named("greater_equal"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(jax.nn.hard_swish),
    "Identity": _plain(lambda x: x),
    "IsInf": _is_infinite,
    "IsNaN": _named("isnan"),
    "LeakyRelu": lambda node, x: jnp.where(x < 0, node["alpha"] * x, x),
    "Less": _named("less"),
    "LessOrEqual": _named("less_equal"),
    "Log": _named("log"),
    "Max": _variadic("maximum"),
    "Mean": lambda node, *xs: functools.reduce(node.numpy.add, xs) / len(xs),
    "Min": _variadic("minimum"),
    "Mish": _plain(lambda x: x * jnp.tanh(jax.nn.softplus(x))),
    "Mod": _modulo,
    "Mul": _named("multiply"),
    "Neg": _named("negative"),
    "Not": _named("logical_not"),
    "Or": _named("logical_or"),
    "PRelu": _parametric_relu,
    "Pow": _power,
    "Reciprocal": _named("reciprocal"),
    "Relu": lambda node, x: node.numpy.maximum(x, 0),
    "Round": _named("round"),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _plain(jax.nn.sigmoid),
    "Sign": _named("sign"),
    "Sin": _named("sin"),
    "Sinh": _named("sinh"),
    "Softplus": _plain(jax.nn.softplus),
    "Softsign": _plain(jax.nn.soft_sign),
    "Sqrt": _named("sqrt"),
    "Sub": _named("subtract"),
    "Sum": _variadic("add"),
    "Swish": lambda node, x: x * jax.nn.sigmoid(node["alpha"] * x),
    "Tan": _named("tan"),
    "Tanh": _named("tanh"),
    "ThresholdedRelu": lambda node, x: jnp.where(x > node["alpha"], x, jnp.zeros_like(x)),
    "Where": _named("where"),
    "Xor": _named("logical_xor"),
}
