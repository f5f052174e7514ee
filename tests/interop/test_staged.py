"""What was compiled is found again by the function, as with `jax.jit`, and goes with it."""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import mlc_jit

X = jnp.arange(4.0)

Jit = Callable[..., Any]
Count = Callable[..., Any]


class Scaled:
    """Functions of equal numbers are equal."""

    def __init__(self, count: Count, by: float) -> None:
        self.count, self.by = count, by

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaled) and self.by == other.by

    def __hash__(self) -> int:
        return hash(self.by)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.count(x) * self.by

    method = __call__


def thrice(jit: Jit, function: Callable, **options: Any) -> None:
    for _ in range(3):
        jit(function, **options)(X)


def a_function(jit: Jit, count: Count) -> None:
    thrice(jit, count)


def with_each_option(jit: Jit, count: Count) -> None:
    for options in ({}, {"keep_unused": True}, {"donate_argnums": ()}, {"inline": True}):
        thrice(jit, count, **options)


def static_arguments(jit: Jit, count: Count) -> None:
    for n in (1, 2, 1, 2):
        jit(count, static_argnames="n")(X, n=n)


def a_method(jit: Jit, count: Count) -> None:
    thrice(jit, Scaled(count, 2.0).method)


def methods_given_back(jit: Jit, count: Count) -> None:
    scaled = Scaled(count, 2.0)
    for _ in range(3):
        jit(scaled.method)(X)


def methods_kept(jit: Jit, count: Count) -> None:
    scaled = Scaled(count, 2.0)
    kept = [jit(scaled.method) for _ in range(3)]
    for function in kept:
        function(X)


def one_partial(jit: Jit, count: Count) -> None:
    thrice(jit, functools.partial(count))


def partials_kept(jit: Jit, count: Count) -> None:
    kept = [jit(functools.partial(count)) for _ in range(3)]
    for function in kept:
        function(X)


def equal_ones_given_back(jit: Jit, count: Count) -> None:
    for _ in range(3):
        jit(Scaled(count, 2.0))(X)


def equal_ones_kept(jit: Jit, count: Count) -> None:
    kept = [jit(Scaled(count, by)) for by in (2.0, 2.0, 3.0)]
    for function in kept:
        function(X)


def stages(jit: Jit, count: Count) -> None:
    jit(count).lower(X)
    jit(count).trace(X)
    jit(count)(X)
    jit(count).eval_shape(X)


def forgotten(jit: Jit, count: Count) -> None:
    jit(count)(X)
    jit(count).clear_cache()
    jit(count)(X)


def inside_another(jit: Jit, count: Count) -> None:
    jit(lambda x: jit(count)(x) + jit(count)(x))(X)
    jit(lambda x: jit(count)(x))(X)


@pytest.mark.parametrize(
    "use",
    [
        a_function,
        with_each_option,
        static_arguments,
        a_method,
        methods_given_back,
        methods_kept,
        one_partial,
        partials_kept,
        equal_ones_given_back,
        equal_ones_kept,
        stages,
        forgotten,
        inside_another,
    ],
)
def test_traced_as_often_as_by_jax_jit(use: Callable[[Jit, Count], None]) -> None:
    def traces(jit: Jit) -> int:
        traced = []

        def count(x: jax.Array, n: int = 1) -> jax.Array:
            traced.append(x.shape)
            return x + n

        use(jit, count)
        return len(traced)

    assert traces(mlc_jit) == traces(jax.jit)


def test_compiled_once_for_each_choice(replacing: Any) -> None:
    def function(x: jax.Array) -> jax.Array:
        return x * 2 + 1

    for _ in range(3):
        for choose in ("ours", "auto", "xla"):
            assert jnp.array_equal(mlc_jit(function, choose=choose)(X), X * 2 + 1)
    assert len(replacing.modules) == 2
    assert mlc_jit(function).report(X).stage_seconds is mlc_jit(function).report().stage_seconds
    by_ours = mlc_jit(function).choosing("ours").report(X)
    assert by_ours.stage_seconds is not mlc_jit(function).report(X).stage_seconds
    assert len(replacing.modules) == 2


def test_equal_functions_do_not_need_each_other() -> None:
    first, second = (mlc_jit(Scaled(lambda x: x, 2.0)) for _ in range(2))
    first(X)
    del first
    third = mlc_jit(Scaled(lambda x: x, 2.0))
    for function in (second, third):
        assert jnp.array_equal(function(X[:2]), X[:2] * 2)
        assert function.report(X[:2]).stage_seconds is function.report().stage_seconds


def test_all_is_given_back_with_the_function() -> None:
    def used() -> list[weakref.ref]:
        def function(x: jax.Array) -> jax.Array:
            return x * 2

        jitted = mlc_jit(function)
        jitted(X)
        jitted.choosing("xla")(X)
        ledger = jitted._origin.function.ledger
        return [weakref.ref(it) for it in (function, jitted, jitted.func, ledger)]

    assert [it() for it in used()] == [None] * 4


def test_what_jax_holds_alone_works() -> None:
    inner = mlc_jit(lambda x: x * 2).func  # the object of `jax.jit`, which is handed on
    gc.collect()
    assert jnp.array_equal(inner(X), X * 2)
    assert jnp.array_equal(jax.vmap(inner)(X), X * 2)


class NotHashable(Scaled):
    __hash__ = None


class Incomparable(Scaled):
    def __hash__(self) -> int:
        raise RuntimeError("it has no hash")


class NotReferable:
    __slots__ = ()

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * 2


@pytest.mark.parametrize(
    "function",
    [
        NotHashable(lambda x: x, 2.0),
        Incomparable(lambda x: x, 2.0),
        NotReferable(),
        operator.itemgetter(slice(2)),
    ],
)
def test_what_jax_cannot_know_again_is_compiled_each_time(function: Callable) -> None:
    for _ in range(2):
        assert jnp.array_equal(mlc_jit(function)(X), function(X))


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(lambda a, x: a * x, 2.0),
        functools.partial(Scaled(lambda x: x, 2.0)),
        jax.vmap(lambda x: x),
        Scaled(lambda x: x, 2.0),
        Scaled(lambda x: x, 2.0).method,
    ],
)
def test_it_has_the_name_that_jax_jit_gives_it(function: Callable) -> None:
    def names(jit: Jit) -> tuple[str, ...]:
        jitted = jit(function)
        return jitted.__name__, jitted.lower(X).as_text().split()[1], repr(jitted)

    assert names(mlc_jit) == names(jax.jit)


def test_threads_jit_the_same_function() -> None:
    def function(x: jax.Array) -> jax.Array:
        return x * 2

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: mlc_jit(function)(X + n), range(64)))
    assert all(jnp.array_equal(y, (X + n) * 2) for n, y in enumerate(results))


def test_nothing_looks_for_cycles_in_a_first_call() -> None:
    """Neither in what is traced nor in what is compiled, where there are next to none."""
    begun: list[str] = []

    def look(phase: str, info: dict[str, int]) -> None:
        begun.append(phase)

    def many_objects(x: jax.Array) -> jax.Array:
        gc.callbacks.append(look)
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        gc.callbacks.remove(look)
        return x * len(kept)

    assert gc.isenabled()
    mlc_jit(many_objects)(X)
    assert not begun
    assert gc.isenabled()
