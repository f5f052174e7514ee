"""Functions with effects: kernels around them, and the effects in their order."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback

from hlo_mlc import mlc_jit

X = jnp.linspace(-1.0, 1.0, 48, dtype=jnp.float32).reshape(6, 8)


class Said:
    """What a function under test has said, in order."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def say(self, *values: Any) -> None:
        self.lines.append(tuple(np.asarray(value).tolist() for value in values))

    def doubled(self, value: Any) -> np.ndarray:
        self.say(value)
        return np.asarray(value) * 2


def both(function: Callable[..., Any], said: Said, *args: Any) -> tuple[Any, Any]:
    """The report of ours; results and what is said are those of JAX."""
    expected = jax.jit(function)(*args)
    jax.effects_barrier()
    theirs, said.lines = said.lines, []
    ours = mlc_jit(function, choose="ours")
    got = ours(*args)
    jax.effects_barrier()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-5), got, expected)
    assert len(said.lines) == len(theirs)
    for mine, other in zip(said.lines, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=3e-6, atol=1e-5)
    return ours.report(*args), got


def test_one_call_where_nothing_waits_for_an_effect() -> None:
    said = Said()

    def function(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x) * 3
        jax.debug.callback(said.say, y[0], ordered=True)
        z = jnp.exp(y) + x
        jax.debug.callback(said.say, z.sum(), ordered=True)
        return jnp.sin(z)

    report, _ = both(function, said, X)
    assert len(said.lines) == 2
    assert [left.op for left in report.left] == ["jax.debug_callback"] * 2
    assert all("test_effects.py" in left.location for left in report.left)
    assert {"stablehlo.tanh", "stablehlo.exponential", "stablehlo.sine"} <= {
        op for kernel in report.kernels for op in kernel.ops
    }


def test_what_waits_for_an_effect_comes_after_it() -> None:
    said = Said()

    def function(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x)
        first = io_callback(said.doubled, jax.ShapeDtypeStruct(y.shape, y.dtype), y, ordered=True)
        second = io_callback(
            said.doubled, jax.ShapeDtypeStruct((), y.dtype), jnp.cos(first).sum(), ordered=True
        )
        return jnp.sin(first) * second + jnp.exp(x)

    report, _ = both(function, said, X)
    assert len(said.lines) == 2
    assert {"stablehlo.tanh", "stablehlo.cosine", "stablehlo.sine"} <= {
        op for kernel in report.kernels for op in kernel.ops
    }


def _loop(said: Said) -> Callable[[jax.Array], Any]:
    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = jnp.tanh(carry + row)
        jax.debug.callback(said.say, new[0], ordered=True)
        return new, jnp.exp(new)

    return lambda x: jax.lax.scan(step, jnp.cos(x[0]), x)


def _while(said: Said) -> Callable[[jax.Array], Any]:
    def body(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        jax.debug.callback(said.say, state[0], ordered=True)
        return state[0] + 1, jnp.sin(state[1]) + 0.5

    return lambda x: jax.lax.while_loop(lambda s: s[0] < 5, body, (0, x))


def _branch(said: Said) -> Callable[[jax.Array], Any]:
    def speaking(x: jax.Array) -> jax.Array:
        jax.debug.callback(said.say, x.sum(), ordered=True)
        return jnp.tanh(x) * 2

    return lambda x: jax.lax.cond(x[0, 0] < 0, speaking, jnp.exp, jnp.sin(x) - 0.3)


def _inner_jit(said: Said) -> Callable[[jax.Array], Any]:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        jax.debug.callback(said.say, x[0, 0], ordered=True)
        return jnp.tanh(x)

    return lambda x: inner(jnp.exp(inner(jnp.sin(x))))


def _inner_ours(said: Said) -> Callable[[jax.Array], Any]:
    inner = mlc_jit(_branch(said), choose="ours")
    return lambda x: jnp.exp(inner(jnp.sin(x))) + inner(x)


def _rematerialized(said: Said) -> Callable[[jax.Array], Any]:
    return jax.checkpoint(_inner_jit(said))


@pytest.mark.parametrize(
    "write",
    [_loop, _while, _branch, _inner_jit, _inner_ours, _rematerialized],
    ids=lambda write: write.__name__.strip("_"),
)
def test_bodies_are_taken_apart(write: Callable[[Said], Callable[..., Any]]) -> None:
    said = Said()
    report, _ = both(write(said), said, X)
    assert said.lines
    assert report.kernels and 0 < report.coverage < 1
    assert {"stablehlo.tanh", "stablehlo.sine"} & {op for k in report.kernels for op in k.ops}


def test_references() -> None:
    """One that a function makes is no effect of it; one that it is given is."""

    def function(x: jax.Array) -> jax.Array:
        total = jax.new_ref(jnp.sin(x))
        total[...] += jnp.tanh(x)
        total[0] = jnp.exp(total[1])
        return total[...] * 2

    report, _ = both(function, Said(), X)
    assert report.coverage == 1
    given, alike = jax.new_ref(X), jax.new_ref(X)

    def adding(ref: Any, x: jax.Array) -> jax.Array:
        ref[...] += jnp.tanh(x)
        return jnp.sin(ref[0])

    ours = mlc_jit(adding, choose="ours")
    assert jnp.allclose(ours(given, X), jax.jit(adding)(alike, X), rtol=1e-5)
    assert jnp.allclose(given[...], alike[...], rtol=1e-5)


def test_calls_inside_of_one_are_one_program() -> None:
    """An inner function with effects is written out: what it computes joins what is around it."""
    said = Said()

    @jax.jit
    def speaking(x: jax.Array) -> jax.Array:
        jax.debug.callback(said.say, x[0, 0], ordered=True)
        return jnp.tanh(x)

    report, _ = both(lambda x: jnp.sin(speaking(jnp.exp(x))), said, X)
    assert any(
        {"stablehlo.tanh", "stablehlo.sine", "stablehlo.exponential"} <= set(kernel.ops)
        for kernel in report.kernels
    )


def test_gradients_and_batches() -> None:
    said = Said()
    function = _loop(said)

    def loss(x: jax.Array) -> jax.Array:
        final, rows = function(x)
        return (final * rows).sum()

    both(jax.value_and_grad(loss), said, X)
    unordered = mlc_jit(
        lambda x: (jax.debug.callback(said.say, x[0]), jnp.tanh(x))[1], choose="ours"
    )
    said.lines = []
    assert jnp.allclose(jax.vmap(unordered)(X), jnp.tanh(X), rtol=1e-6)
    jax.effects_barrier()
    assert sorted(said.lines) == sorted((float(row[0]),) for row in X)
    assert jnp.allclose(
        jax.grad(lambda x: mlc_jit(loss, choose="ours")(x))(X),
        jax.grad(loss)(X),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_second_call_in_the_same_program() -> None:
    said = Said()
    ours = mlc_jit(_branch(said), choose="ours")
    program = jax.jit(lambda x: ours(x) + ours(x + 1))
    expected = _branch(Said())
    assert jnp.allclose(program(X), expected(X) + expected(X + 1), rtol=1e-5)
    jax.effects_barrier()
    assert len(said.lines) == 1
    assert ours.report().kernels


def test_a_function_without_results_still_acts() -> None:
    said = Said()

    @mlc_jit(choose="ours")
    def function(x: jax.Array) -> None:
        jax.debug.callback(said.say, jnp.tanh(x).sum())

    assert function(X) is None
    jax.effects_barrier()
    np.testing.assert_allclose(said.lines[0][0], jnp.tanh(X).sum(), atol=1e-5)
    assert function.report(X).kernels


def test_an_exception_in_a_callback_is_the_user_s() -> None:
    def raises(_: Any) -> np.ndarray:
        raise ZeroDivisionError("mine")

    @mlc_jit(choose="ours")
    def function(x: jax.Array) -> jax.Array:
        return io_callback(raises, jax.ShapeDtypeStruct((), jnp.float32), jnp.tanh(x).sum())

    with pytest.raises(Exception, match="mine"):
        function(X).block_until_ready()


def test_checkify() -> None:
    @mlc_jit(choose="ours")
    def function(x: jax.Array) -> jax.Array:
        checkify.check(x[0, 0] < 0, "positive: {}", x[0, 0])
        return jnp.tanh(x)

    checked = checkify.checkify(function)
    error, result = checked(X)
    assert error.get() is None and jnp.allclose(result, jnp.tanh(X), rtol=1e-6)
    assert "positive" in checked(-X)[0].get()


def test_breakpoints() -> None:
    """A debugger that is fed shows what it does in a function of JAX; what is around it is ours."""
    asked = "p y.round(4)\nx.shape\nup\np count\nbt\nmissing\nc\n"

    def looked_at(jit: Callable[..., Any]) -> tuple[Any, str, Any]:
        shown = io.StringIO()

        def activated(x: jax.Array) -> jax.Array:
            y = jnp.tanh(x) * 3
            jax.debug.breakpoint(
                backend="cli", num_frames=2, stdin=io.StringIO(asked), stdout=shown
            )
            return jnp.exp(y) + x

        def function(x: jax.Array) -> jax.Array:
            count = jnp.sin(x).astype(jnp.int32).sum()
            return activated(jnp.cos(x)) * count

        called = jit(function)
        found = called(X)
        jax.effects_barrier()
        return found, shown.getvalue(), called

    expected, theirs, _ = looked_at(jax.jit)
    got, ours, called = looked_at(lambda function: mlc_jit(function, choose="ours"))
    np.testing.assert_allclose(got, expected, rtol=3e-6)
    assert ours == theirs
    assert "Entering jdb:" in ours and "(6, 8)" in ours and "NameError" in ours
    report = called.report(X)
    assert [left.op for left in report.left] == ["jax.debug_callback"]
    assert {"stablehlo.tanh", "stablehlo.exponential", "stablehlo.sine"} <= {
        op for kernel in report.kernels for op in kernel.ops
    }


def test_breakpoints_in_loops_and_branches() -> None:
    def looked_at(jit: Callable[..., Any]) -> tuple[Any, str, Any]:
        shown = io.StringIO()

        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            new = jnp.tanh(carry + row)

            def stop(value: jax.Array) -> jax.Array:
                jax.debug.breakpoint(
                    backend="cli",
                    num_frames=1,
                    ordered=True,
                    stdout=shown,
                    stdin=io.StringIO("p value.round(4)\nc\n" * 6),
                )
                return jnp.sin(value)

            return jax.lax.cond(new[0] > 0, stop, jnp.cos, new), jnp.exp(new)

        called = jit(lambda x: jax.lax.scan(step, x[0], x))
        found = called(X)
        jax.effects_barrier()
        return found, shown.getvalue(), called

    expected, theirs, _ = looked_at(jax.jit)
    got, ours, called = looked_at(lambda function: mlc_jit(function, choose="ours"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-6), got, expected)
    assert ours == theirs and ours.count("Entering jdb:") > 1
    assert called.report(X).kernels


@pytest.mark.parametrize("choose", ["auto", "measure"])
def test_choices(choose: str) -> None:
    said = Said()
    function = _loop(said)
    x = jnp.tile(X, (1, 500))
    got = mlc_jit(function, choose=choose)(x)
    jax.effects_barrier()
    expected = jax.jit(function)(x)
    jax.effects_barrier()
    assert len(said.lines) == 12 and np.allclose(said.lines[:6], said.lines[6:], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-5), got, expected)


def test_tuning_takes_the_parts() -> None:
    said = Said()
    ours = mlc_jit(
        lambda x: (jax.debug.callback(said.say, x[0, 0]), jnp.tanh(x) * x)[1], choose="ours"
    )
    assert "tanh" in str(ours.tune(X, trials=1))
    assert not said.lines
    pure = mlc_jit(
        lambda x: jnp.tanh(jax.pure_callback(said.doubled, x, jnp.sin(x))), choose="ours"
    )
    text = str(pure.tune(X, trials=1))
    assert "tanh" in text and "sin" in text and "made-up operands" in text
