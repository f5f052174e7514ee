"""Parts of models as users write them: a transformer block, recurrent networks, a training step."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload

Parameters = dict[str, jax.Array]


def _layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def encoder_block(
    inputs: Inputs, *, batch: int, length: int, width: int, heads: int, hidden: int
) -> Workload:
    """A transformer encoder block that normalizes first: attention, then a two-layer network."""

    def attention(parameters: Parameters, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        qkv = x @ parameters["qkv"] + parameters["qkv_bias"]
        q, k, v = jnp.split(qkv.reshape(batch, length, 3 * heads, width // heads), 3, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
        return mixed.reshape(batch, length, width) @ parameters["out"] + parameters["out_bias"]

    def function(x: jax.Array, parameters: Parameters) -> jax.Array:
        normed = _layer_norm(x, parameters["scale_1"], parameters["bias_1"])
        x = x + attention(parameters, normed)
        normed = _layer_norm(x, parameters["scale_2"], parameters["bias_2"])
        inner = jax.nn.gelu(normed @ parameters["up"] + parameters["up_bias"])
        return x + inner @ parameters["down"] + parameters["down_bias"]

    parameters = {
        "scale_1": inputs.ones(width),
        "bias_1": inputs.zeros(width),
        "qkv": inputs.weight(width, 3 * width),
        "qkv_bias": inputs.normal(3 * width, scale=0.1),
        "out": inputs.weight(width, width),
        "out_bias": inputs.normal(width, scale=0.1),
        "scale_2": inputs.ones(width),
        "bias_2": inputs.zeros(width),
        "up": inputs.weight(width, hidden),
        "up_bias": inputs.normal(hidden, scale=0.1),
        "down": inputs.weight(hidden, width),
        "down_bias": inputs.normal(width, scale=0.1),
    }
    return function, (inputs.normal(batch, length, width), parameters)


def decode(inputs: Inputs, *, length: int, width: int, heads: int, hidden: int) -> Workload:
    """One token through such a block: its key and its value join those of the tokens before."""
    parameters = encoder_block(inputs, batch=1, length=1, width=width, heads=heads, hidden=hidden)[
        1
    ][1]

    def function(
        x: jax.Array, keys: jax.Array, values: jax.Array, at: jax.Array, p: Parameters
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        normed = _layer_norm(x, p["scale_1"], p["bias_1"])
        q, k, v = (normed @ p["qkv"] + p["qkv_bias"]).reshape(3, heads, width // heads)
        keys = jax.lax.dynamic_update_index_in_dim(keys, k, at, 1)
        values = jax.lax.dynamic_update_index_in_dim(values, v, at, 1)
        scores = jnp.einsum("hd,hkd->hk", q, keys) / math.sqrt(width // heads)
        weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores, -jnp.inf))
        mixed = jnp.einsum("hk,hkd->hd", weights, values).reshape(width)
        x = x + mixed @ p["out"] + p["out_bias"]
        normed = _layer_norm(x, p["scale_2"], p["bias_2"])
        x = x + jax.nn.gelu(normed @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]
        return x, keys, values

    cache = (heads, length, width // heads)
    return function, (
        inputs.normal(width),
        inputs.normal(*cache),
        inputs.normal(*cache),
        jnp.int32(3 * length // 4),
        parameters,
    )


def encoder_captured(inputs: Inputs, **sizes: int) -> Workload:
    """The same for a few rows, by a function that has closed over its weights."""
    function, (x, parameters) = encoder_block(inputs, **sizes)
    return lambda x: function(x, parameters), (x,)


def lstm_scan(inputs: Inputs, *, length: int, batch: int, hidden: int) -> Workload:
    """A long short-term memory layer over a sequence [length, batch, hidden]."""

    def function(xs: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        def step(
            state: tuple[jax.Array, jax.Array], x: jax.Array
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = state
            gates = jnp.concatenate([x, h], axis=-1) @ weight + bias
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(xs.shape[1:], xs.dtype)
        return jax.lax.scan(step, (zeros, zeros), xs)[1]

    return function, (
        inputs.normal(length, batch, hidden),
        inputs.weight(2 * hidden, 4 * hidden),
        inputs.normal(4 * hidden, scale=0.1),
    )


def lstm_gradient(inputs: Inputs, *, length: int, batch: int, hidden: int) -> Workload:
    """The gradient of that layer: two loops, with what the second needs of the first stacked."""
    layer, arguments = lstm_scan(inputs, length=length, batch=batch, hidden=hidden)
    return jax.grad(lambda *args: jnp.sum(layer(*args) ** 2), argnums=(0, 1, 2)), arguments


def gru_scan(inputs: Inputs, *, length: int, batch: int, hidden: int) -> Workload:
    """A layer of gated recurrent units over a sequence [length, batch, hidden]."""

    def function(
        xs: jax.Array, w: jax.Array, u: jax.Array, b: jax.Array, candidate_bias: jax.Array
    ) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            x_reset, x_update, x_candidate = jnp.split(x @ w + b, 3, axis=-1)
            h_reset, h_update, h_candidate = jnp.split(h @ u, 3, axis=-1)
            reset = jax.nn.sigmoid(x_reset + h_reset)
            update = jax.nn.sigmoid(x_update + h_update)
            candidate = jnp.tanh(x_candidate + reset * (h_candidate + candidate_bias))
            h = (1 - update) * candidate + update * h
            return h, h

        return jax.lax.scan(step, jnp.zeros(xs.shape[1:], xs.dtype), xs)[1]

    return function, (
        inputs.normal(length, batch, hidden),
        inputs.weight(hidden, 3 * hidden),
        inputs.weight(hidden, 3 * hidden),
        inputs.normal(3 * hidden, scale=0.1),
        inputs.normal(hidden, scale=0.1),
    )


def rnn_scan(inputs: Inputs, *, length: int, batch: int, hidden: int) -> Workload:
    """A plain recurrent layer: h = tanh(x W + h U + b)."""

    def function(xs: jax.Array, w: jax.Array, u: jax.Array, b: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(x @ w + h @ u + b)
            return h, h

        return jax.lax.scan(step, jnp.zeros(xs.shape[1:], xs.dtype), xs)[1]

    return function, (
        inputs.normal(length, batch, hidden),
        inputs.weight(hidden, hidden),
        inputs.weight(hidden, hidden),
        inputs.normal(hidden, scale=0.1),
    )


def mlp_train_step(
    inputs: Inputs, *, batch: int, features: int, hidden: int, classes: int
) -> Workload:
    """Loss, gradient and one step of plain gradient descent for a two-layer classifier."""

    def loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
        inner = jax.nn.relu(x @ parameters["up"] + parameters["up_bias"])
        logits = inner @ parameters["down"] + parameters["down_bias"]
        log_probabilities = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.sum(labels * log_probabilities, axis=-1))

    def function(
        parameters: Parameters, x: jax.Array, labels: jax.Array
    ) -> tuple[Parameters, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(parameters, x, labels)
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient), value

    parameters = {
        "up": inputs.weight(features, hidden),
        "up_bias": inputs.zeros(hidden),
        "down": inputs.weight(hidden, classes),
        "down_bias": inputs.zeros(classes),
    }
    labels = jax.nn.one_hot(jnp.arange(batch) % classes, classes, dtype=inputs.dtype)
    return function, (parameters, inputs.normal(batch, features), labels)


def adam_update(inputs: Inputs, *, features: int, hidden: int, classes: int) -> Workload:
    """One step of Adam for the parameters of a classifier of three layers."""

    def function(
        parameters: Parameters, gradient: Parameters, mean: Parameters, square: Parameters
    ) -> tuple[Parameters, Parameters, Parameters]:
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradient)
        step = jax.tree.map(lambda m, s: m / (jnp.sqrt(s) + 1e-8), mean, square)
        return jax.tree.map(lambda p, d: p - 1e-3 * d, parameters, step), mean, square

    shapes = {
        "first": (features, hidden),
        "first_bias": (hidden,),
        "second": (hidden, hidden),
        "second_bias": (hidden,),
        "last": (hidden, classes),
        "last_bias": (classes,),
    }
    parameters, gradient, mean = (
        {name: inputs.normal(*shape) for name, shape in shapes.items()} for _ in range(3)
    )
    square = {name: inputs.uniform(*shape) for name, shape in shapes.items()}
    return function, (parameters, gradient, mean, square)


def selective_scan(inputs: Inputs, *, batch: int, length: int, width: int, states: int) -> Workload:
    """A state-space layer whose steps depend on the input, as an associative scan."""

    def function(x: jax.Array, decay: jax.Array, into: jax.Array, out: jax.Array) -> jax.Array:
        step = jax.nn.softplus(x)
        kept = jnp.exp(-step[..., None] * decay)
        added = (step * x)[..., None] * (x @ into)[:, :, None]

        def after(
            first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            return first[0] * second[0], second[0] * first[1] + second[1]

        state = jax.lax.associative_scan(after, (kept, added), axis=1)[1]
        return jnp.einsum("btdn,btn->btd", state, x @ out) + x

    return function, (
        inputs.normal(batch, length, width),
        inputs.uniform(width, states, low=0.5, high=2.0),
        inputs.weight(width, states),
        inputs.weight(width, states),
    )


_case = functools.partial(Case, group="models")
_SEQUENCE = {"length": 128, "batch": 1, "hidden": 256}
_TINY_SEQUENCE = {"length": 3, "batch": 1, "hidden": 5}

_BLOCK = {"batch": 1, "length": 128, "width": 768, "heads": 12, "hidden": 3072}
_TINY_BLOCK = {"batch": 1, "length": 5, "width": 12, "heads": 3, "hidden": 14}

CASES = (
    _case(
        "encoder_block", encoder_block, _BLOCK, tiny=_TINY_BLOCK, tolerance=16, figure=1.0
    ).with_neighbours(odd={"length": 127}, dtype="bfloat16", view="transposed"),
    _case(
        "encoder_captured",
        encoder_captured,
        {**_BLOCK, "length": 8},
        tiny=_TINY_BLOCK,
        tolerance=16,
        figure=1.3,
    ).with_neighbours(odd={"length": 7, "hidden": 3071}, dtype="bfloat16", view="transposed"),
    _case(
        "decode",
        decode,
        {"length": 512, "width": 768, "heads": 12, "hidden": 3072},
        tiny={"length": 5, "width": 12, "heads": 3, "hidden": 14},
        tolerance=16,
    ),
    _case(
        "lstm_scan", lstm_scan, _SEQUENCE, tiny=_TINY_SEQUENCE, tolerance=32, figure=2.5
    ).with_neighbours(odd={"hidden": 255}, dtype="float64", view="strided"),
    _case(
        "lstm_batch",
        lstm_scan,
        {**_SEQUENCE, "batch": 16},
        tiny={**_TINY_SEQUENCE, "batch": 2},
        tolerance=32,
    ),
    _case("lstm_gradient", lstm_gradient, _SEQUENCE, tiny=_TINY_SEQUENCE, tolerance=128),
    _case("gru_scan", gru_scan, _SEQUENCE, tiny=_TINY_SEQUENCE, tolerance=32),
    _case("rnn_scan", rnn_scan, {**_SEQUENCE, "hidden": 128}, tiny=_TINY_SEQUENCE, tolerance=64),
    _case(
        "mlp_train_step",
        mlp_train_step,
        {"batch": 128, "features": 784, "hidden": 512, "classes": 10},
        tiny={"batch": 6, "features": 7, "hidden": 5, "classes": 3},
        tolerance=16,
    ),
    _case(
        "selective_scan",
        selective_scan,
        {"batch": 2, "length": 128, "width": 64, "states": 16},
        tiny={"batch": 2, "length": 7, "width": 5, "states": 3},
        tolerance=32,
    ),
    _case(
        "adam_update",
        adam_update,
        {"features": 784, "hidden": 512, "classes": 10},
        tiny={"features": 7, "hidden": 5, "classes": 3},
        tolerance=8,
    ),
)
