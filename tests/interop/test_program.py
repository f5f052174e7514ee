"""Functions out of StableHLO modules inside of functions that JAX traces."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.support.errors import UsageError


def g(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x) @ y, x.sum()


X = np.arange(12, dtype=np.float32).reshape(3, 4) / 12
Y = np.ones((4, 2), np.float32)
TEXT = jax.jit(g).lower(X, Y).as_text()


def traceable() -> Any:
    return compile_stablehlo(TEXT, choose="ours")


def assert_equal_results(actual: Any, expected: Any) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_inside_of_jit_and_of_ours() -> None:
    h = traceable()

    def outside(function: Any) -> Any:
        return lambda x, y: function(x * 2, y)[0] + function(x, y)[0]

    expected = outside(g)(X, Y)
    np.testing.assert_allclose(jax.jit(outside(h))(X, Y), expected, rtol=1e-6)
    assert jax.jit(outside(h)).lower(X, Y).as_text().count(KERNEL_TARGET) == 1
    whole = mlc_jit(outside(h), choose="ours")
    np.testing.assert_allclose(whole(X, Y), expected, rtol=1e-6)
    assert len(whole.report().kernels) == 1 and whole.report().coverage == 1
    assert_equal_results(h.lower(X, Y).compile()(X, Y), g(X, Y))
    assert h.eval_shape(X, Y) == jax.eval_shape(g, X, Y)
    exported = jax.export.export(jax.jit(h))(X, Y)
    assert_equal_results(exported.call(X, Y), g(X, Y))


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0)])
def test_vmap(axes: Any) -> None:
    given = [
        a if axis is None else np.stack([a, a + 1, a * 2], axis)
        for a, axis in zip((X, Y), axes, strict=True)
    ]
    expected = jax.vmap(g, axes)(*given)
    assert_equal_results(jax.vmap(traceable(), axes)(*given), expected)
    assert_equal_results(jax.jit(jax.vmap(traceable(), axes))(*given), expected)
    nested = jax.vmap(jax.vmap(traceable(), axes))(*(np.stack([a, a]) for a in given))
    assert_equal_results(nested, [np.stack([e, e]) for e in expected])


def test_there_is_no_derivative() -> None:
    h = traceable()
    for derive in (
        jax.grad(lambda x: h(x, Y)[1]),
        jax.jit(jax.grad(lambda x: h(x, Y)[1])),
        jax.jacfwd(lambda x: h(x, Y)[1]),
    ):
        with pytest.raises(UsageError, match=r"@main is a StableHLO program.*no derivative"):
            derive(X)
    # What it gives may be a constant of what is differentiated.
    assert jax.grad(lambda z: z * h(X, Y)[1])(2.0) == X.sum()


def test_dynamic_shapes_inside_of_jit() -> None:
    text = TEXT.replace("3x", "?x")
    h = compile_stablehlo(text, choose="ours")
    for rows in (2, 5):
        x = np.ones((rows, 4), np.float32)
        assert_equal_results(jax.jit(h)(x, Y), g(x, Y))


def test_64_bit_types_inside_of_jit() -> None:
    h = compile_stablehlo(TEXT.replace("f32", "f64"))
    wide = X.astype(np.float64), Y.astype(np.float64)
    with pytest.raises(UsageError, match=r"Argument 0 of @main.*jax_enable_x64"):
        jax.jit(h)(*wide)
    with jax.enable_x64(True):
        assert jax.jit(h)(*wide)[0].dtype == np.float64
    assert h.eval_shape(*wide)[0].dtype == np.float64
    widening = jax.jit(lambda x: x.astype(jnp.bfloat16)).lower(X).as_text().replace("bf16", "f64")
    with pytest.raises(UsageError, match=r"returns float64\[3,4\].*jax_enable_x64"):
        jax.jit(compile_stablehlo(widening))(X)


def test_it_reads_well() -> None:
    h = traceable()
    assert h.__name__ == "main"
    assert str(inspect.signature(h)) == "(arg0: 'float32[3,4]', arg1: 'float32[4,2]', /)"
    types = "(float32[3,4], float32[4,2]) -> (float32[3,2], float32[])"
    assert types in repr(h) and types in inspect.getdoc(h)
    assert f"program=@{h.__name__}" in str(jax.make_jaxpr(h)(X, Y))
    assert h.report(X, Y).stage_seconds is h.report().stage_seconds
    assert "coverage: 100%" in str(h.explain(jax.ShapeDtypeStruct((3, 4), np.float32), Y))
