"""Whichever kernels are taken, each runs after what it needs; also after what is needed in the
program and no longer in an expression, such as what padding with less than nothing cuts off."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.expr.dtypes import F32, TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.partition.calls import with_calls
from hlo_mlc.partition.plan import Chooser
from hlo_mlc.support.errors import VerifyError
from making.left import by_xla

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def cut_off(x: jax.Array) -> tuple[jax.Array, ...]:
    """Nothing is left of the sums, so the loop's kernel does not read them."""
    joined = jnp.concatenate([x, x], 0).ravel()
    sums = jax.ops.segment_sum(joined, joined.astype(jnp.int32), 1)
    none = lax.pad(sums, np.float32(0), ((3, -1, 0),))
    loop = lax.scan(lambda c, v: (c * 3 + 1, jnp.where(v > c, v - 1, c)), jnp.float32(1), none)[1]
    return by_xla(joined), jnp.reshape(joined, (4, 6)) + 1, loop + 1


def not_taken(x: jax.Array) -> tuple[jax.Array, ...]:
    """A part that is joined and sliced away."""
    doubled = jnp.tanh(x) * 2
    joined = jnp.concatenate([by_xla(doubled), jnp.exp(x)], 0)[3:]
    return doubled, joined + 1, jnp.cumsum(joined, 1), x - 1


def known(x: jax.Array) -> tuple[jax.Array, ...]:
    """A side of a choice that is never chosen."""
    doubled = x * 2
    rows = lax.iota(jnp.int32, 3)[:, None]
    chosen = jnp.where(rows < 3, x + 1, by_xla(doubled))
    return doubled + 3, jnp.exp(chosen), chosen.T @ chosen, doubled.sum()


@pytest.mark.parametrize("function", [cut_off, not_taken, known])
def test_any_of_the_kernels(monkeypatch: pytest.MonkeyPatch, function: Callable) -> None:
    given = CpuBackend.chooser
    expected = jax.tree.leaves(function(X))
    for pattern in itertools.product([False, True], repeat=4):
        taken, left = {}, iter(pattern)

        def chooser(*args: object, taken=taken, left=left) -> Chooser:
            rule = given(*args)
            return lambda cluster: replace(
                rule(cluster), take=taken.setdefault(cluster.kernel.fingerprint, next(left, True))
            )

        monkeypatch.setattr(CpuBackend, "chooser", chooser)
        results = jax.tree.leaves(mlc_jit(lambda x: function(x), choose="ours")(X))
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_kernels_that_wait_for_each_other_are_an_error() -> None:
    """And no loop without an end."""
    first, second = (Value(TensorType((3,), F32), name) for name in ("first", "second"))
    graph = Graph(
        (),
        (
            Node("stablehlo.negate", (second,), (first,)),
            Node("stablehlo.negate", (first,), (second,)),
        ),
        (first,),
    )
    with pytest.raises(VerifyError, match="waits for"):
        with_calls(graph, {})


X3 = np.arange(24 * 40 * 70, dtype=np.float32).reshape(24, 40, 70) % 31


@pytest.mark.parametrize(
    "fold",
    [
        lambda x: jnp.sum(jnp.swapaxes(x, 1, 2), 0),
        lambda x: jnp.max(x.T * 2, 2) + 1,
        lambda x: jnp.mean(jnp.transpose(x, (0, 2, 1)), 0) / 3,
        lambda x: jnp.argmax(x.T, 1),
    ],
)
def test_rows_of_terms_are_folded_whatever_the_order_of_the_results(fold: Callable) -> None:
    """One by one, each from another line of memory, they took 10 to 40 times as long."""
    compiled = mlc_jit(lambda x: fold(x), choose="ours", target="cpu")
    np.testing.assert_allclose(compiled(X3), fold(X3), rtol=1e-6)
    report = compiled.report(X3)
    assert report.coverage == 1 and {n.template for k in report.kernels for n in k.nests} == {
        "columns"
    }


def test_a_loop_of_which_a_kernel_needs_what_it_is_not_given() -> None:
    """The state is written nowhere, as both places are outside: the kernel is given the other
    result and, for what it is predicted to save, has the loop among its operations."""

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return lax.cumsum(row - state), lax.cumsum(row - state)[0]

        state, firsts = lax.scan(step, jnp.zeros(4), x)
        outside = np.array([[-9], [-9]])
        numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        turned = (firsts + 1)[::-1]
        return turned, lax.scatter_min(firsts, outside, state[:2], numbers, mode="fill")

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # which tells of faults
        results = mlc_jit(function)(X)
    for result, expected in zip(results, function(X), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
