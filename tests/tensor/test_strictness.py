"""Maxima ignore NaNs where all that depends on them is NaN anyway, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.expr.ops import OPS, compute

Function = Callable[[jax.Array], object]


def exponentials(x: jax.Array, axes: object = -1) -> jax.Array:
    return jnp.exp(x - jnp.max(x, axes, keepdims=True))


def over_two_axes(x: jax.Array) -> jax.Array:
    e = exponentials(x.reshape(-1, 3, 10), (1, 2))
    return e / e.sum((1, 2), keepdims=True)


def attention(x: jax.Array) -> jax.Array:
    q = x[None, :, None, :]
    return jax.nn.dot_product_attention(q, q, q)


HIDDEN: dict[str, Function] = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
    "gradient": jax.grad(lambda x: (jax.nn.log_softmax(x) * x).sum()),
    "of what is computed": lambda x: jax.nn.softmax(x * 2 + 1),
    "over two axes": over_two_axes,
    "attention": attention,
    "sum of differences": lambda x: (x - jnp.max(x, 1, keepdims=True)).sum(1),
    "product": lambda x: jnp.prod(x - jnp.max(x, 1, keepdims=True), 1),
}
SEEN: dict[str, Function] = {
    "alone": lambda x: jnp.max(x, 1),
    "beside": lambda x: (jax.nn.softmax(x), jnp.max(x, 1)),
    "difference": lambda x: x - jnp.max(x, 1, keepdims=True),
    "exponentials": exponentials,
    "power": lambda x: ((x - jnp.max(x, 1, keepdims=True)) ** x).sum(1),
    "chosen": lambda x: jnp.where(exponentials(x) > 0.5, x, 0).sum(1),
    "of half": lambda x: exponentials(x)[:, :15].sum(1),
    "of other values": lambda x: jnp.exp(x[:, ::-1] - jnp.max(x * 2, 1, keepdims=True)).sum(1),
    "where some count": lambda x: jax.nn.softmax(x, where=x > 0),
    "columns": lambda x: (x[:30] - jnp.max(x[:30], 1, keepdims=True)).sum(0),
}


def maxima(take_apart: Callable, function: Function, x: np.ndarray) -> set[str]:
    programs = take_apart(function, x).programs
    return {
        stage.combiner.name
        for p in programs
        for nest in p.steps
        for stage in nest.stages
        if stage.combiner is not None
    } & {"max", "larger"}


@pytest.mark.parametrize("name", [*HIDDEN, *SEEN])
def test_who_sees_a_difference(take_apart, name):
    x = np.ones((33, 30), np.float32)
    expected = "larger" if name in HIDDEN else "max"
    assert maxima(take_apart, {**HIDDEN, **SEEN}[name], x) == {expected}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", [*HIDDEN, *SEEN])
def test_nans_are_where_they_should_be(monkeypatch, name, dtype):
    """Against an evaluation op by op."""
    function = {**HIDDEN, **SEEN}[name]
    rng = np.random.default_rng(len(name))
    with jax.enable_x64(dtype == "float64"):
        x = rng.standard_normal((33, 30)) * 2
        x[3, 7], x[5, 29], x[8] = np.nan, -np.nan, np.nan
        x[11, 4], x[12, 5], x[13] = np.inf, -np.inf, -np.inf
        x[14], x[15, ::2] = 0.0, -0.0
        x = jnp.asarray(x, dtype)
        ours = mlc_jit(function, choose="ours")
        results = jax.tree.leaves(ours(x))
        assert ours.report(x).coverage == 1.0
        monkeypatch.setattr(jnp, "max", with_nans)
        with jax.disable_jit():
            exact = jax.tree.leaves(function(x))
        for found, wanted in zip(results, exact, strict=True):
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def with_nans(
    x: jax.Array, axis: object = None, *, keepdims: bool = False, **more: object
) -> jax.Array:
    """A maximum that is NaN where an element is: XLA's may be the largest of the others."""
    largest = jax.lax.reduce_max(
        x, axes=(np.arange(x.ndim) if axis is None else np.atleast_1d(axis)) % x.ndim
    )
    if keepdims:
        largest = jnp.expand_dims(largest, axis)
    return jnp.where(jnp.isnan(x).any(axis, keepdims=keepdims), jnp.nan, largest).astype(x.dtype)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.strict])
def test_strict_ops_keep_nans(name):
    values = np.array([0, 1, -1, 2, np.inf, -np.inf, np.nan], np.float32)
    for position in range(OPS[name].arity):
        args = [values] * OPS[name].arity
        args[position] = np.full_like(values, np.nan)
        assert np.isnan(compute(name, args, F32)).all()


def test_the_larger_of_two():
    x = np.array([1, 2, 0.0, -0.0, 1, np.nan, -np.inf, np.nan], np.float32)
    y = np.array([2, 1, -0.0, 0.0, np.nan, 1, -np.inf, np.nan], np.float32)
    expected = np.array([2, 2, 0.0, -0.0, 1, np.nan, -np.inf, np.nan], np.float32)
    result = compute("larger", [x, y], F32)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.signbit(result[2:4]), [False, True])
