"""What `load` returns is a function of JAX: under its transformations, and to look at."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import load, mlc_jit
from hlo_mlc.interop import bundle_reader
from hlo_mlc.support.errors import UsageError

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
X = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)
XS = np.stack([X, X + 1, X * 2])


def layer(parameters: dict, x: jax.Array, *, scale: float = 1.0) -> dict:
    """One layer."""
    return {"y": jnp.tanh(x @ parameters["w"]) * scale, "rows": jnp.argmax(x, 1)}


def plain(x: jax.Array) -> jax.Array:
    return layer({"w": W}, x, scale=2.0)["y"]


@pytest.fixture(params=[False, True], ids=["arguments", "embedded"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """`exported(vjp_order)`: the layer out of a file, and it as a function of x alone."""

    def export(vjp_order: int = 0) -> Any:
        path = tmp_path / "layer.mlc"
        hlo_mlc.export(
            mlc_jit(layer, choose="ours"),
            {"w": W},
            X,
            scale=2.0,
            path=path,
            embed=0 if request.param else (),
            vjp_order=vjp_order,
        )
        function = load(path)
        given = () if request.param else ({"w": W},)
        return function, lambda x: function(*given, x, scale=2.0)["y"]

    return export


def same(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_jit_and_vmap(exported: Any) -> None:
    _, apply = exported()
    same(apply(X), plain(X))
    same(jax.jit(apply)(X), plain(X))
    same(mlc_jit(lambda x: apply(x) + 1)(X), plain(X) + 1)
    for function in (jax.vmap(apply), jax.jit(jax.vmap(apply))):
        same(function(XS), jax.vmap(plain)(XS))
    same(jax.vmap(jax.vmap(apply))(XS[None]), jax.vmap(jax.vmap(plain))(XS[None]))


def test_gradients(exported: Any) -> None:
    _, apply = exported(vjp_order=1)

    def of(function: Any) -> list[Any]:
        def loss(x: jax.Array) -> jax.Array:
            return (function(x) ** 2).sum()

        return [
            jax.grad(loss)(X),
            jax.jit(jax.grad(loss))(X),
            jax.vmap(jax.grad(loss))(XS),
            jax.grad(lambda xs: jax.vmap(loss)(xs).sum())(XS),
        ]

    for ours, theirs in zip(of(apply), of(plain), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(
    "order, can", [(0, "cannot be differentiated"), (1, "can be differentiated once only")]
)
def test_a_derivative_that_the_file_has_not(exported: Any, order: int, can: str) -> None:
    _, apply = exported(order)

    def derived(x: jax.Array, times: int) -> jax.Array:
        return apply(x).sum() if times == 0 else jax.grad(lambda x: derived(x, times - 1).sum())(x)

    assert derived(X, order).size
    with pytest.raises(UsageError, match=rf"layer of .*layer\.mlc {can}.*vjp_order={order + 1}"):
        derived(X, order + 1)


def test_it_reads_well(exported: Any) -> None:
    function, _ = exported()
    embedded = "parameters" not in inspect.signature(function).parameters
    assert list(inspect.signature(function).parameters) == [
        *([] if embedded else ["parameters"]),
        "x",
        "scale",
    ]
    assert inspect.signature(function).parameters["x"].annotation == "float32[5,4]"
    assert (function.__name__, inspect.getdoc(function)) == ("layer", "One layer.")
    assert repr(function).startswith("<LoadedFunction layer of ")
    assert isinstance(function, jax.stages.Wrapped)
    report = function.report()
    assert (report.coverage, report.target, len(report.nests)) == (1, "host", 1)
    assert "100% of the operations in 1 kernel, compiled for host" in function.explain()
    given = ({"w": W}, X)[embedded:]
    assert "custom_call" in function.lower(*given, scale=2.0).as_text()
    assert function.eval_shape(*given, scale=2.0)["y"].shape == (5, 3)


def test_keywords_that_are_no_names(tmp_path: Path) -> None:
    path = tmp_path / "f.mlc"
    keywords = {"a b": X}
    hlo_mlc.export(functools.partial(lambda y, **k: k["a b"] + y, y=1.0), path=path, **keywords)
    function = load(path)
    assert str(inspect.signature(function)) == "(*args, **kwargs)"
    assert function.__doc__ is None
    same(function(**keywords), X + 1)


def test_without_names_or_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.mlc"
    hlo_mlc.export(lambda *arrays: sum(arrays), X, X, path=path)
    assert list(inspect.signature(load(path)).parameters) == ["arg0", "arg1"]
    hlo_mlc.export(mlc_jit(lambda x: jnp.tanh(x), choose="ours"), X, path=path)
    monkeypatch.setattr(bundle_reader, "present_features", frozenset)
    with pytest.warns(RuntimeWarning, match="which this machine cannot run"):
        function = load(path)
    assert function.report().target is None
    assert "XLA compiles all of it" in function.explain()
    same(function(X), np.tanh(X))
