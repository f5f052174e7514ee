"""`mlc_jit` as a decorator: its forms, its options, its reports."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.support.errors import ConfigurationError, UnknownTargetError, UsageError

X = jnp.arange(4.0)


def test_takes_all_that_jax_jit_takes() -> None:
    theirs = inspect.signature(jax.jit).parameters
    ours = inspect.signature(mlc_jit).parameters
    assert set(ours) - set(theirs) == {"choose", "target"}
    assert not set(theirs) - set(ours)
    assert all(ours[name].kind == theirs[name].kind for name in theirs)
    assert all(ours[name].default == theirs[name].default for name in set(theirs) - {"fun"})


def test_decorator_forms() -> None:
    @mlc_jit
    def bare(x: jax.Array) -> jax.Array:
        return x + 1

    @mlc_jit(choose="ours", static_argnums=1)
    def called(x: jax.Array, n: int) -> jax.Array:
        return x + n

    assert jnp.array_equal(bare(X), X + 1)
    assert jnp.array_equal(called(X, 1), X + 1)
    assert jnp.array_equal(mlc_jit(lambda x: x + 1)(X), X + 1)


def test_options_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, replacing: Any
) -> None:
    monkeypatch.setenv("HLO_MLC_CHOOSE", "xla")
    mlc_jit(lambda x: x + 1)(X)
    assert not replacing.modules
    mlc_jit(lambda x: x + 1, choose="ours")(X)
    assert replacing.modules


def test_unknown_options_are_refused_when_decorating(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"choose='our'.*did you mean 'ours'"):
        mlc_jit(choose="our")
    with pytest.raises(UnknownTargetError, match=r"'tpu'.*cpu"):
        mlc_jit(target="tpu")
    with pytest.raises(UsageError, match="expects a function, got 3"):
        mlc_jit(3)
    with pytest.raises(TypeError, match="static_argnum"):
        mlc_jit(static_argnum=1)
    monkeypatch.setenv("HLO_MLC_CHOOSE", "never")
    with pytest.raises(ConfigurationError, match="HLO_MLC_CHOOSE='never'"):
        mlc_jit()


def test_report_of_arguments(replacing: Any) -> None:
    g = mlc_jit(lambda x, n: x + n, choose="ours", static_argnums=1)
    assert g.report(X, 1).reasons == ("it was copied",)
    g(X, 1)
    g.report(X, 1)
    assert len(replacing.modules) == 1
    assert "it was copied" in g.explain(X, 2)
    assert len(replacing.modules) == 2


def test_report_after_a_call_compiles_nothing_again(replacing: Any) -> None:
    g = mlc_jit(lambda x: x + 1, choose="ours")
    g(X)
    g(X[:2])
    latest = g.report()
    assert g.report(X[:2]) is latest
    assert g.report(X) is not latest
    assert len(replacing.modules) == 2


def test_report_of_what_computes_nothing() -> None:
    g = mlc_jit(lambda x: ())
    assert g.report(X).coverage == 0
    assert "computes nothing" in g.explain(X)


def test_report_without_arguments_needs_a_compilation() -> None:
    with pytest.raises(UsageError, match="call it, or give the report the arguments"):
        mlc_jit(lambda x: x).report()


def test_choosing_xla_says_so() -> None:
    assert 'choose="xla"' in mlc_jit(lambda x: x + 1, choose="xla").explain(X)
