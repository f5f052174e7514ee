"""Recurrent layers: cells, and the loop along a sequence that all have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator

Function = Callable[[Any], Any]
Cell = Callable[
    [Node, Sequence[Function], Mapping[str, Any], Any, tuple[Any, ...]], tuple[Any, ...]
]

# What an activation does, and the usual alpha and beta, of those that it has; None: it has to say.
_ACTIVATIONS: Mapping[str, tuple[Callable[..., Any], tuple[float | None, ...]]] = {
    "relu": (jax.nn.relu, ()),
    "tanh": (jnp.tanh, ()),
    "sigmoid": (jax.nn.sigmoid, ()),
    "softsign": (jax.nn.soft_sign, ()),
    "softplus": (jax.nn.softplus, ()),
    "elu": (jax.nn.elu, (1.0,)),
    "leakyrelu": (lambda x, a: jnp.where(x < 0, a * x, x), (0.01,)),
    "thresholdedrelu": (lambda x, a: jnp.where(x > a, x, 0), (1.0,)),
    "affine": (lambda x, a, b: a * x + b, (None, None)),
    "scaledtanh": (lambda x, a, b: a * jnp.tanh(b * x), (None, None)),
    "hardsigmoid": (lambda x, a, b: jnp.clip(a * x + b, 0, 1), (0.2, 0.5)),
}


def _activations(node: Node, usual: Sequence[str], directions: int) -> Iterator[list[Function]]:
    """Of each direction those of its gates."""
    given = [iter(node[name] or ()) for name in ("activation_alpha", "activation_beta")]

    def function(name: str) -> Function:
        of, defaults = _ACTIVATIONS[name.lower()]
        values = [next(more, value) for more, value in zip(given, defaults, strict=False)]
        if None in values:
            raise NotImplementedError(f"{name} without alpha and beta")
        bound = node["clip"]
        return lambda x: of(x if bound is None else jnp.clip(x, -bound, bound), *values)

    names = list(node["activations"] or [*usual] * directions)
    for first in range(0, len(usual) * directions, len(usual)):
        yield [function(name) for name in names[first : first + len(usual)]]


def _simple(
    node: Node, of: Sequence[Function], p: Mapping[str, Any], x: Any, state: tuple[Any, ...]
) -> tuple[Any, ...]:
    return (of[0](x @ p["w"].T + state[0] @ p["r"].T + p["wb"] + p["rb"]),)


def _gated(
    node: Node, of: Sequence[Function], p: Mapping[str, Any], x: Any, state: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gates in the order z, r, h."""
    (h,), (f, g) = state, of
    xz, xr, xh = jnp.split(x @ p["w"].T + p["wb"], 3, -1)
    rz, rr, rh = jnp.split(p["r"], 3)
    bz, br, bh = jnp.split(p["rb"], 3)
    z, reset = f(xz + h @ rz.T + bz), f(xr + h @ rr.T + br)
    new = g(
        xh + (reset * (h @ rh.T + bh) if node["linear_before_reset"] else (reset * h) @ rh.T + bh)
    )
    return ((1 - z) * new + z * h,)


def _long_short(
    node: Node, of: Sequence[Function], p: Mapping[str, Any], x: Any, state: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gates in the order i, o, f, c; peepholes in the order i, o, f."""
    (h, c), (f, g, last) = state, of
    i, o, forget, new = jnp.split(x @ p["w"].T + h @ p["r"].T + p["wb"] + p["rb"], 4, -1)
    pi, po, pf = (0, 0, 0) if p["peepholes"] is None else jnp.split(p["peepholes"], 3)
    i = f(i + pi * c)
    forget = 1 - i if node["input_forget"] else f(forget + pf * c)
    c = forget * c + i * g(new)
    return f(o + po * c) * last(c), c


def _layer(cell: Cell, gates: int, usual: Sequence[str]) -> Operator:
    """x [t, n, in], w [directions, gates size, in], r [directions, gates size, size]."""

    def operator(
        node: Node,
        x: Any,
        w: Any,
        r: Any,
        b: Any = None,
        lengths: Any = None,
        h: Any = None,
        c: Any = None,
        peepholes: Any = None,
    ) -> tuple[Any, ...]:
        backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
            node["direction"]
        ]
        if node["clip"] is not None and cell is _long_short:
            raise NotImplementedError("clip: runtimes disagree on whether the cell is cut, too")
        size, count = r.shape[-1], len(backwards)
        states: tuple[Any, ...] = (h, c) if cell is _long_short else (h,)
        if node["layout"]:
            x = x.swapaxes(0, 1)
            states = tuple(None if s is None else s.swapaxes(0, 1) for s in states)
        zeros = np.zeros((count, x.shape[1], size), x.dtype)
        states = tuple(zeros if s is None else s for s in states)
        b = np.zeros((count, 2 * gates * size), x.dtype) if b is None else b
        functions = list(_activations(node, usual, count))
        rows, finals = [], []
        for d, reverse in enumerate(backwards):
            p: dict[str, Any] = {"w": w[d], "r": r[d]}
            p["wb"], p["rb"] = jnp.split(b[d], 2)
            p["peepholes"] = None if peepholes is None else peepholes[d]
            step = partial(cell, node, functions[d], p)
            final, out = _along(step, x, [jnp.asarray(s[d]) for s in states], lengths, reverse)
            rows.append(out)
            finals.append(final)
        y, *last = jnp.stack(rows, 1), *map(jnp.stack, zip(*finals, strict=True))
        if node["layout"]:
            return y.transpose(2, 0, 1, 3), *(part.swapaxes(0, 1) for part in last)
        return y, *last

    return operator


def _along(
    step: Callable[[Any, Any], tuple[Any, ...]],
    x: Any,
    states: Sequence[Any],
    lengths: Any,
    reverse: bool,
) -> tuple[Any, Any]:
    """The last states of a cell, and what it gives out in each row of x, forwards or backwards."""

    def at(state: Any, given: Any) -> Any:
        number, row = given
        new = step(row, state)
        out = new[0]
        if lengths is not None:  # rows behind the end of a sequence leave the state
            within = (number < lengths)[:, None]
            new = tuple(jnp.where(within, a, b) for a, b in zip(new, state, strict=True))
            out = jnp.where(within, out, 0)
        return new, out

    numbers = np.arange(x.shape[0], dtype=np.int32)
    return lax.scan(at, tuple(states), (numbers, x), reverse=reverse)


RECURRENT: Mapping[str, Operator] = {
    "GRU": _layer(_gated, 3, ("Sigmoid", "Tanh")),
    "LSTM": _layer(_long_short, 4, ("Sigmoid", "Tanh", "Tanh")),
    "RNN": _layer(_simple, 1, ("Tanh",)),
}
