"""ONNX operators that jaxonnxruntime has not, as functions of JAX, by ONNX's specification.

Each takes the attributes of its node and its inputs, as they come when the model is imported:
`where` constants are needed, they are known then.  Source: onnx/docs/Operators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Attributes = Mapping[str, Any]
Operator = Callable[..., Any]
Prepared = Callable[[Attributes, Sequence[Any]], Operator]
"""Attributes, and inputs of which those that say how are constants -> a function of the inputs."""


def _plain(function: Callable[..., Any]) -> Prepared:
    """An operator without attributes."""
    return lambda attributes, inputs: function


def _reduction(function: Callable[..., Any]) -> Prepared:
    def prepared(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
        given = inputs[1] if len(inputs) > 1 else attributes.get("axes")
        axes = None if given is None or not len(given) else tuple(int(axis) for axis in given)
        keep = bool(attributes.get("keepdims", 1))
        if axes is None and attributes.get("noop_with_empty_axes", 0):
            return lambda x, *_: x
        return lambda x, *_: function(x, axis=axes, keepdims=keep)
    return prepared


def _elu(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    return lambda x: jax.nn.elu(x, attributes.get("alpha", 1.0))


def _hard_sigmoid(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    return lambda x: jnp.clip(alpha * x + beta, 0, 1).astype(x.dtype)


def _gelu(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    kind = attributes.get("approximate", "none")
    return lambda x: jax.nn.gelu(x, approximate=kind in ("tanh", b"tanh"))


def _mod(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    return lax.rem if attributes.get("fmod", 0) else jnp.mod


def _normalized(x: jax.Array, axes: tuple[int, ...], epsilon: float) -> tuple[jax.Array, ...]:
    mean = x.mean(axes, keepdims=True)
    scale = lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * scale, mean, scale


def _layer_normalization(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    axis, epsilon = attributes.get("axis", -1), attributes.get("epsilon", 1e-5)

    def function(x: jax.Array, scale: jax.Array, bias: jax.Array | float = 0.0
                 ) -> tuple[jax.Array, ...]:
        normal, mean, deviation = _normalized(x, tuple(range(axis % x.ndim, x.ndim)), epsilon)
        return normal * scale + bias, mean, deviation

    return function


def _instance_normalization(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    def function(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        normal, *_ = _normalized(x, tuple(range(2, x.ndim)), attributes.get("epsilon", 1e-5))
        shape = (-1, *(1,) * (x.ndim - 2))
        return normal * scale.reshape(shape) + bias.reshape(shape)

    return function


def _tile(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    repeats = tuple(int(n) for n in inputs[1])
    return lambda x, _: jnp.tile(x, repeats)


def _cumulative_sum(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    axis = int(np.asarray(inputs[1]).reshape(()))
    reverse, exclusive = bool(attributes.get("reverse", 0)), attributes.get("exclusive", 0)

    def function(x: jax.Array, _: Any) -> jax.Array:
        total = lax.cumsum(x, axis % x.ndim, reverse=reverse)
        return total - x if exclusive else total

    return function


def _depth_to_space(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    size, by_column = attributes["blocksize"], attributes.get("mode", "DCR") in ("CRD", b"CRD")

    def function(x: jax.Array) -> jax.Array:
        n, c, h, w = x.shape
        if by_column:
            parts = x.reshape(n, -1, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
        else:
            parts = x.reshape(n, size, size, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
        return parts.reshape(n, c // size**2, h * size, w * size)

    return function


def _space_to_depth(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    size = attributes["blocksize"]

    def function(x: jax.Array) -> jax.Array:
        n, c, h, w = x.shape
        parts = x.reshape(n, c, h // size, size, w // size, size).transpose(0, 3, 5, 1, 2, 4)
        return parts.reshape(n, c * size**2, h // size, w // size)

    return function


def _gather_nd(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    batch = attributes.get("batch_dims", 0)

    def gathered(x: jax.Array, indices: jax.Array) -> jax.Array:
        return jnp.asarray(x)[tuple(jnp.moveaxis(indices, -1, 0))]

    for _ in range(batch):
        gathered = jax.vmap(gathered)
    return gathered


def _scatter_nd(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    kind = attributes.get("reduction", "none")
    name = {"none": "set", "mul": "multiply"}.get(kind, kind)

    def function(x: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
        return getattr(jnp.asarray(x).at[tuple(jnp.moveaxis(indices, -1, 0))], name)(updates)

    return function


def _conv_transpose(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    spatial = np.ndim(inputs[0]) - 2
    strides = attributes.get("strides", (1,) * spatial)
    dilations = attributes.get("dilations", (1,) * spatial)
    pads = attributes.get("pads", (0,) * 2 * spatial)
    extra = attributes.get("output_padding", (0,) * spatial)
    groups, kind = attributes.get("group", 1), attributes.get("auto_pad", "NOTSET")
    if kind not in ("NOTSET", b"NOTSET", "VALID", b"VALID") or "output_shape" in attributes:
        raise NotImplementedError("ConvTranspose with auto_pad or output_shape")

    def function(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        reach = [(size - 1) * dilation for size, dilation in
                 zip(w.shape[2:], dilations, strict=True)]
        padding = [(r - pads[n], r - pads[spatial + n] + extra[n]) for n, r in enumerate(reach)]
        # (in, out / groups, …) -> (out, in / groups, …), and the taps from the other end.
        taps = jnp.flip(w, tuple(range(2, 2 + spatial))).reshape(
            groups, -1, w.shape[1], *w.shape[2:]).swapaxes(1, 2)
        out = lax.conv_general_dilated(
            x, taps.reshape(-1, *taps.shape[2:]), (1,) * spatial, padding, lhs_dilation=strides,
            rhs_dilation=dilations, feature_group_count=groups)
        return out if bias is None else out + bias.reshape(-1, *(1,) * spatial)

    return function


_PLACES: Mapping[str, Callable[[np.ndarray, int, int, float], np.ndarray]] = {
    "half_pixel": lambda at, old, new, scale: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, old, new, scale: (at + 0.5) / scale - 0.5 if new > 1
    else at * 0,
    "asymmetric": lambda at, old, new, scale: at / scale,
    "align_corners": lambda at, old, new, scale: at * (old - 1) / max(new - 1, 1),
}
_NEAREST: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}


def _resize(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    """Axis by axis: which elements lie next to each new one, and how near."""
    def named(name: str, default: str) -> str:
        value = attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    place = named("coordinate_transformation_mode", "half_pixel")
    mode, rounding = named("mode", "nearest"), named("nearest_mode", "round_prefer_floor")
    usual = (None, 0, "stretch", b"stretch")
    unusual = [name for name in ("axes", "antialias", "exclude_outside", "keep_aspect_ratio_policy")
               if attributes.get(name) not in usual]
    if mode not in ("nearest", "linear") or place not in _PLACES or unusual:
        what = ", ".join(unusual) or f"mode {mode}, {place}"
        raise NotImplementedError(f"Resize with {what}")
    shape = np.shape(inputs[0])
    if len(inputs) > 3 and inputs[3] is not None:
        sizes = tuple(int(size) for size in inputs[3])
        scales = tuple(new / old for new, old in zip(sizes, shape, strict=True))
    else:
        scales = tuple(float(scale) for scale in inputs[2])
        sizes = tuple(int(old * scale) for old, scale in zip(shape, scales, strict=True))

    def function(x: jax.Array, *_: Any) -> jax.Array:
        for axis, (old, new, scale) in enumerate(zip(shape, sizes, scales, strict=True)):
            if scale == 1:
                continue
            at = _PLACES[place](np.arange(new), old, new, scale)
            if mode == "nearest":
                index = np.clip(_NEAREST[rounding](at), 0, old - 1).astype(np.int32)
                x = jnp.take(x, index, axis)
                continue
            low = np.floor(at)
            share = (at - low).astype(x.dtype).reshape(-1, *(1,) * (len(shape) - axis - 1))
            before, after = (np.clip(low + step, 0, old - 1).astype(np.int32) for step in (0, 1))
            x = jnp.take(x, before, axis) * (1 - share) + jnp.take(x, after, axis) * share
        return x

    return function


def _lstm(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    """Gates in the order i, o, f, c; without peepholes and lengths of their own."""
    both = _directions(attributes, inputs, most=6)
    size = attributes["hidden_size"]

    def step(w: jax.Array, r: jax.Array, b: jax.Array, state: Any, x: jax.Array) -> Any:
        h, c = state
        i, o, f, new = jnp.split(x @ w.T + h @ r.T + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(new)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def function(x: jax.Array, w: jax.Array, r: jax.Array, b: jax.Array | None = None,
                 lengths: None = None, h: jax.Array | None = None, c: jax.Array | None = None
                 ) -> tuple[jax.Array, ...]:
        outs, (h, c) = both(step, x, w, r, b, (h, c), 4 * size)
        return outs, h, c

    return function


def _gru(attributes: Attributes, inputs: Sequence[Any]) -> Operator:
    """Gates in the order z, r, h."""
    both = _directions(attributes, inputs, most=6)
    size, linear = attributes["hidden_size"], attributes.get("linear_before_reset", 0)

    def step(w: jax.Array, r: jax.Array, b: Any, state: Any, x: jax.Array) -> Any:
        (h,) = state
        of_x, of_h = b
        xz, xr, xh = jnp.split(x @ w.T + of_x, 3, -1)
        rz, rr, rh = jnp.split(r, 3)
        bz, br, bh = jnp.split(of_h, 3)
        z, reset = jax.nn.sigmoid(xz + h @ rz.T + bz), jax.nn.sigmoid(xr + h @ rr.T + br)
        new = jnp.tanh(xh + (reset * (h @ rh.T + bh) if linear else (reset * h) @ rh.T + bh))
        h = (1 - z) * new + z * h
        return (h,), h

    def function(x: jax.Array, w: jax.Array, r: jax.Array, b: jax.Array | None = None,
                 lengths: None = None, h: jax.Array | None = None) -> tuple[jax.Array, ...]:
        outs, (h,) = both(step, x, w, r, b, (h,), 3 * size, apart=True)
        return outs, h

    return function


def _directions(attributes: Attributes, inputs: Sequence[Any], most: int) -> Callable[..., Any]:
    """Runs a step along the first axis, in each direction that the node has."""
    unusual = {"clip", "input_forget", "layout", "activations"} & {
        name for name, value in attributes.items() if value}
    if unusual or (len(inputs) > 4 and inputs[4] is not None) or len(inputs) > most + 1:
        what = ", ".join(sorted(unusual)) or "lengths or peepholes"
        raise NotImplementedError(f"recurrent layers with {what}")
    kind = attributes.get("direction", "forward")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[kind]

    def run(step: Any, x: jax.Array, w: jax.Array, r: jax.Array, b: jax.Array | None,
            state: tuple[jax.Array | None, ...], gates: int, apart: bool = False) -> Any:
        size = r.shape[-1]
        b = jnp.zeros((len(reverse), 2 * gates), x.dtype) if b is None else b
        state = tuple(jnp.zeros((len(reverse), x.shape[1], size), x.dtype) if s is None else s
                      for s in state)
        outs, finals = [], []
        for d, backwards in enumerate(reverse):
            halves = b[d, :gates], b[d, gates:]
            bias = halves if apart else halves[0] + halves[1]
            final, out = lax.scan(
                lambda s, row, d=d, bias=bias: step(w[d], r[d], bias, s, row),
                tuple(s[d] for s in state), x, reverse=backwards)
            outs.append(out)
            finals.append(final)
        return jnp.stack(outs, 1), tuple(map(jnp.stack, zip(*finals, strict=True)))

    return run


OPERATORS: Mapping[str, Prepared] = {
    "ConvTranspose": _conv_transpose,
    "CumSum": _cumulative_sum,
    "DepthToSpace": _depth_to_space,
    "Elu": _elu,
    "Floor": _plain(jnp.floor),
    "GRU": _gru,
    "GatherND": _gather_nd,
    "Gelu": _gelu,
    "GlobalMaxPool": _plain(lambda x: x.max(tuple(range(2, x.ndim)), keepdims=True)),
    "Greater": _plain(jnp.greater),
    "GreaterOrEqual": _plain(jnp.greater_equal),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(jax.nn.hard_swish),
    "InstanceNormalization": _instance_normalization,
    "IsNaN": _plain(jnp.isnan),
    "LSTM": _lstm,
    "LayerNormalization": _layer_normalization,
    "Mean": _plain(lambda *xs: sum(xs) / len(xs)),
    "Mish": _plain(lambda x: x * jnp.tanh(jax.nn.softplus(x))),
    "Mod": _mod,
    "ReduceL1": _reduction(lambda x, **axes: jnp.abs(x).sum(**axes)),
    "ReduceL2": _reduction(lambda x, **axes: jnp.sqrt(jnp.square(x).sum(**axes))),
    "ReduceLogSumExp": _reduction(jax.nn.logsumexp),
    "ReduceMin": _reduction(jnp.min),
    "ReduceProd": _reduction(jnp.prod),
    "ReduceSumSquare": _reduction(lambda x, **axes: jnp.square(x).sum(**axes)),
    "Resize": _resize,
    "Round": _plain(jnp.round),
    "ScatterND": _scatter_nd,
    "Sign": _plain(jnp.sign),
    "Softsign": _plain(jax.nn.soft_sign),
    "SpaceToDepth": _space_to_depth,
    "Tile": _tile,
    "Xor": _plain(jnp.logical_xor),
}
