"""What cases compute, written for NumPy and for PyTorch by their own idioms.

A program for PyTorch is given the module and the arguments, so that none of it is imported here and
that layers are set up once, as their users do it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Torch = Any  # the module; its tensors
Tensor = Any


@dataclass(frozen=True, slots=True)
class Program:
    """`numpy`: a function of arrays; `torch(torch, *arguments)`: makes a function of tensors, which
    takes gradients where it `trains`."""

    numpy: Callable[..., Any] | None = None
    torch: Callable[..., Callable[..., Any]] | None = None
    trains: bool = False


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _layernorm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + bias


def _rmsnorm(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _torch_rmsnorm(torch: Torch, *_: Tensor) -> Callable[..., Tensor]:
    return lambda x, scale: torch.nn.functional.rms_norm(x, x.shape[-1:], scale, 1e-6)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _attention(q: Array, k: Array, v: Array) -> Array:
    return _softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v


def _encoder(heads: int, torch: Torch, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    functional, (batch, length, width) = torch.nn.functional, x.shape
    normed = functional.layer_norm(x, (width,), p["scale_1"], p["bias_1"])
    qkv = normed @ p["qkv"] + p["qkv_bias"]
    q, k, v = qkv.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(q, k, v)
    mixed = mixed.transpose(1, 2).reshape(batch, length, width)
    x = x + mixed @ p["out"] + p["out_bias"]
    normed = functional.layer_norm(x, (width,), p["scale_2"], p["bias_2"])
    inner = functional.gelu(normed @ p["up"] + p["up_bias"], approximate="tanh")
    return x + inner @ p["down"] + p["down_bias"]


def _decode(heads: int) -> Callable[..., tuple[Tensor, ...]]:
    def function(
        torch: Torch, x: Tensor, keys: Tensor, values: Tensor, at: Tensor, p: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        functional, width, length = torch.nn.functional, x.shape[-1], keys.shape[1]
        normed = functional.layer_norm(x, (width,), p["scale_1"], p["bias_1"])
        q, k, v = (normed @ p["qkv"] + p["qkv_bias"]).view(3, heads, 1, width // heads)
        places = torch.arange(length)
        here, mask = (places == at).view(1, length, 1), places <= at
        keys, values = torch.where(here, k, keys), torch.where(here, v, values)
        mixed = functional.scaled_dot_product_attention(
            q[None], keys[None], values[None], mask.view(1, 1, 1, length)
        )
        x = x + mixed.reshape(width) @ p["out"] + p["out_bias"]
        normed = functional.layer_norm(x, (width,), p["scale_2"], p["bias_2"])
        inner = functional.gelu(normed @ p["up"] + p["up_bias"], approximate="tanh")
        return x + inner @ p["down"] + p["down_bias"], keys, values

    return function


def _torch_rmsnorm_rope(
    torch: Torch, x: Tensor, scale: Tensor, frequency: Tensor
) -> Callable[..., Tensor]:
    """Angles are a table that is made once, as models have it."""
    angle = torch.arange(x.shape[0], dtype=x.dtype)[:, None, None] * frequency
    cos, sin = torch.cos(angle), torch.sin(angle)

    def function(x: Tensor, scale: Tensor, frequency: Tensor) -> Tensor:
        normed = torch.nn.functional.rms_norm(x, x.shape[-1:], scale, 1e-6)
        first, second = normed.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    return function


def _same_padded(torch: Torch, x: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """A convolution whose result is as large as its input, or half of it."""
    total = max(weight.shape[-1] - (stride if x.shape[-1] % stride == 0 else 1), 0)
    low, high = total // 2, total - total // 2
    if low != high:
        x, low = torch.nn.functional.pad(x, (low, high, low, high)), 0
    return torch.nn.functional.conv2d(x, weight, None, stride, low, 1, groups)


def _filters(kernel: Tensor) -> Tensor:
    """[height, width, channels, features] as PyTorch has them, laid out as for its images."""
    return kernel.permute(3, 2, 0, 1).clone()


def _images(x: Tensor) -> Tensor:
    """Channels come second; in memory they stay last."""
    return x.permute(0, 3, 1, 2)


def _torch_depthwise(torch: Torch, x: Tensor, kernel: Tensor) -> Callable[..., Tensor]:
    weight = _filters(kernel)
    return lambda x, kernel: _same_padded(torch, _images(x), weight, 1, x.shape[-1]).permute(
        0, 2, 3, 1
    )


def _torch_mobilenet(
    torch: Torch, x: Tensor, layers: list[dict[str, Tensor]]
) -> Callable[..., Tensor]:
    held = [
        (
            _filters(layer["depthwise"]),
            layer["depthwise_bias"][:, None, None],
            _filters(layer["pointwise"]),
            layer["pointwise_bias"][:, None, None],
        )
        for layer in layers
    ]

    def function(x: Tensor, layers: list[dict[str, Tensor]]) -> Tensor:
        x = _images(x)
        for number, (depthwise, bias, pointwise, last_bias) in enumerate(held):
            x = _same_padded(torch, x, depthwise, 1 + number % 2, x.shape[1])
            x = torch.nn.functional.relu6(x + bias)
            x = torch.nn.functional.relu6(torch.nn.functional.conv2d(x, pointwise) + last_bias)
        return x.mean((2, 3))

    return function


def _torch_resnet(torch: Torch, x: Tensor, parameters: dict[str, Any]) -> Callable[..., Tensor]:
    *pairs, last = [[_filters(kernel) for kernel in kernels] for kernels in parameters["kernels"]]
    held = [bias[:, None, None] for bias in parameters["biases"]]
    relu, convolve = torch.nn.functional.relu, functools.partial(_same_padded, torch)

    def function(x: Tensor, parameters: dict[str, Any]) -> Tensor:
        x, biases = _images(x), iter(held)
        for first, second in pairs:
            inner = relu(convolve(x, first, 1, 1) + next(biases))
            x = relu(x + convolve(inner, second, 1, 1) + next(biases))
        down, up, across = last
        inner = relu(convolve(x, down, 2, 1) + next(biases))
        x = relu(convolve(inner, up, 1, 1) + convolve(x, across, 2, 1) + next(biases))
        return x.permute(0, 2, 3, 1)

    return function


def _torch_mlp_train_step(torch: Torch, *_: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    def function(parameters: dict[str, Tensor], x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        held = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        inner = torch.relu(x @ held["up"] + held["up_bias"])
        logits = inner @ held["down"] + held["down_bias"]
        loss = torch.nn.functional.cross_entropy(logits, labels)
        gradients = torch.autograd.grad(loss, list(held.values()))
        step = {
            name: p - 0.1 * g for (name, p), g in zip(parameters.items(), gradients, strict=True)
        }
        return *(step[name] for name in sorted(step)), loss.detach()

    return function


def _torch_attention_gradients(torch: Torch, *_: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    def function(q: Tensor, k: Tensor, v: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        held = [x.detach().requires_grad_() for x in (q, k, v)]
        result = torch.nn.functional.scaled_dot_product_attention(*held)
        return torch.autograd.grad(result, held, given)

    return function


def _torch_lstm(torch: Torch, xs: Tensor, weight: Tensor, bias: Tensor) -> Callable[..., Tensor]:
    """The library's own layer; its gates are in the same order."""
    hidden = xs.shape[-1]
    layer = torch.nn.LSTM(hidden, hidden, bias=True).to(xs.dtype)
    forget = torch.zeros_like(bias)
    forget[hidden : 2 * hidden] = 1  # what is added to the forget gate
    with torch.no_grad():
        layer.weight_ih_l0.copy_(weight[:hidden].T)
        layer.weight_hh_l0.copy_(weight[hidden:].T)
        layer.bias_ih_l0.copy_(bias + forget)
        layer.bias_hh_l0.zero_()
    return lambda xs, weight, bias: layer(xs)[0]


def _segment_sum(segments: int) -> Callable[[Array, Array], Array]:
    def function(x: Array, places: Array) -> Array:
        sums = np.zeros((segments, x.shape[1]), x.dtype)
        np.add.at(sums, places, x)
        return sums

    return function


def _torch_segment_sum(segments: int) -> Callable[..., Callable[..., Tensor]]:
    return lambda torch, *_: (
        lambda x, places: torch.zeros((segments, x.shape[1]), dtype=x.dtype).index_add(0, places, x)
    )


def _jacobi(steps: int, copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        x = copy(x)
        for _ in range(steps):
            neighbours = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
            x[1:-1, 1:-1] = 0.2 * (x[1:-1, 1:-1] + neighbours)
        return x

    return function


def _nbody(steps: int) -> Callable[..., tuple[Any, Any]]:
    def function(position: Any, velocity: Any, mass: Any) -> tuple[Any, Any]:
        for _ in range(steps):
            between = position[None] - position[:, None]
            distance = (between * between).sum(-1) + 1e-2
            pull = mass[None] * distance**-1.5
            velocity = velocity + 1e-3 * (between * pull[:, :, None]).sum(1)
            position = position + 1e-3 * velocity
        return position, velocity

    return function


def _mandelbrot(steps: int, library: Any) -> Callable[..., tuple[Any, ...]]:
    def function(real: Any, imaginary: Any) -> tuple[Any, ...]:
        x, y = library.zeros_like(real), library.zeros_like(real)
        count = library.zeros_like(real, dtype=library.int32)
        for _ in range(steps):
            inside = x * x + y * y <= 4
            new = x * x - y * y + real, 2 * x * y + imaginary
            x, y = library.where(inside, new[0], x), library.where(inside, new[1], y)
            count = count + inside
        return x, y, count

    return function


def _torch_black_scholes(torch: Torch, *_: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    def function(
        spot: Tensor, strike: Tensor, years: Tensor, rate: Tensor, spread: Tensor
    ) -> tuple[Tensor, Tensor]:
        deviation = spread * torch.sqrt(years)
        first = (torch.log(spot / strike) + (rate + 0.5 * spread * spread) * years) / deviation
        second = first - deviation
        discounted = strike * torch.exp(-rate * years)
        cdf = torch.special.ndtr
        return (
            spot * cdf(first) - discounted * cdf(second),
            discounted * cdf(-second) - spot * cdf(-first),
        )

    return function


def _of_torch(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """What makes a function of tensors that needs the module and nothing else."""
    return lambda torch, *_: lambda *args: function(torch, *args)


_PRODUCT = Program(lambda x, y: x @ y, _of_torch(lambda torch, x, y: x @ y))
_ATTENTION = Program(
    _attention,
    _of_torch(lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v)),
)
_LSTM = Program(torch=_torch_lstm)


def programs(sizes: dict[str, int]) -> dict[str, Program]:
    """By name of the case, for its sizes."""
    heads, steps, segments = (sizes.get(name, 0) for name in ("heads", "steps", "segments"))
    return _networks(heads) | _rows() | _products() | _simulations(steps) | _places(segments)


def _networks(heads: int) -> dict[str, Program]:
    """Parts of models."""
    return {
        "encoder_block": Program(torch=_of_torch(functools.partial(_encoder, heads))),
        "decode": Program(torch=_of_torch(_decode(heads))),
        "mlp_train_step": Program(torch=_torch_mlp_train_step, trains=True),
        "lstm_scan": _LSTM,
        "lstm_batch": _LSTM,
        "attention": _ATTENTION,
        "attention_short": _ATTENTION,
        "attention_long": _ATTENTION,
        "attention_gradients": Program(torch=_torch_attention_gradients, trains=True),
        "depthwise": Program(torch=_torch_depthwise),
        "mobilenet_stack": Program(torch=_torch_mobilenet),
        "resnet_stage": Program(torch=_torch_resnet),
    }


def _rows() -> dict[str, Program]:
    """Elements, and rows each by itself."""
    return {
        "gelu": Program(
            _gelu, _of_torch(lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"))
        ),
        "exp": Program(np.exp, _of_torch(lambda torch, x: torch.exp(x))),
        "sin": Program(np.sin, _of_torch(lambda torch, x: torch.sin(x))),
        "tanh": Program(np.tanh, _of_torch(lambda torch, x: torch.tanh(x))),
        "log": Program(np.log, _of_torch(lambda torch, x: torch.log(x))),
        "black_scholes": Program(torch=_torch_black_scholes),
        "softmax": Program(_softmax, _of_torch(lambda torch, x: torch.softmax(x, -1))),
        "argmax": Program(lambda x: x.argmax(-1), _of_torch(lambda torch, x: x.argmax(-1))),
        "layernorm": Program(
            _layernorm,
            _of_torch(
                lambda torch, x, scale, bias: torch.nn.functional.layer_norm(
                    x, x.shape[-1:], scale, bias
                )
            ),
        ),
        "rmsnorm": Program(_rmsnorm, _torch_rmsnorm),
        "rmsnorm_rope": Program(torch=_torch_rmsnorm_rope),
        "moments": Program(
            lambda x: (x.sum(), (x * x).sum()), _of_torch(lambda torch, x: (x.sum(), (x * x).sum()))
        ),
    }


def _products() -> dict[str, Program]:
    """Matrices, with what is done to their products."""
    return {
        "matmul": _PRODUCT,
        "large_matmul": _PRODUCT,
        "attention_scores": _PRODUCT,
        "tiny_matmuls": _PRODUCT,
        "gelu_layer": Program(
            lambda x, w, b: _gelu(x @ w + b),
            _of_torch(
                lambda torch, x, w, b: torch.nn.functional.gelu(x @ w + b, approximate="tanh")
            ),
        ),
        "three_products": Program(
            lambda x, *weights: tuple(x @ w for w in weights),
            _of_torch(lambda torch, x, *weights: tuple(x @ w for w in weights)),
        ),
    }


def _simulations(steps: int) -> dict[str, Program]:
    """So many steps of something."""
    return {
        "jacobi2d": Program(_jacobi(steps, np.copy), lambda torch, *_: _jacobi(steps, torch.clone)),
        "nbody": Program(_nbody(steps), lambda torch, *_: _nbody(steps)),
        "mandelbrot": Program(_mandelbrot(steps, np), lambda torch, *_: _mandelbrot(steps, torch)),
    }


def _places(segments: int) -> dict[str, Program]:
    """Where elements go, and what lies before them."""
    return {
        "cumsum": Program(lambda x: x.cumsum(-1), _of_torch(lambda torch, x: x.cumsum(-1))),
        "cumsum_flat": Program(np.cumsum, _of_torch(lambda torch, x: x.cumsum(0))),
        "cummax": Program(
            lambda x: np.maximum.accumulate(x, 1),
            _of_torch(lambda torch, x: torch.cummax(x, 1).values),
        ),
        "transpose": Program(
            lambda x: np.ascontiguousarray(x.T), _of_torch(lambda torch, x: x.T.contiguous())
        ),
        "take": Program(
            lambda table, places: table[places],
            _of_torch(lambda torch, table, places: torch.nn.functional.embedding(places, table)),
        ),
        "segment_sum": Program(_segment_sum(segments), _torch_segment_sum(segments)),
    }
