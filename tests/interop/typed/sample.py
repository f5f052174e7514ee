# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers make of `mlc_jit`: `tests/interop/test_typing.py` runs them on this file."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp

import hlo_mlc
from hlo_mlc import mlc_jit
from hlo_mlc.explain import Explanation


@mlc_jit
def bare(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return x * scale


@mlc_jit(choose="ours", static_argnums=(1,), donate_argnames="x")
def with_options(x: jax.Array, count: int) -> tuple[jax.Array, int]:
    return x * count, count


class Model:
    @mlc_jit
    def bound(self, x: jax.Array) -> jax.Array:
        return x

    @mlc_jit(static_argnums=0)
    def bound_with_options(self, x: jax.Array, *, scale: float = 1.0) -> jax.Array:
        return x * scale

    @staticmethod
    @mlc_jit
    def static(x: jax.Array) -> jax.Array:
        return x


X = jnp.ones(3)
MODEL = Model()

assert_type(bare(X), jax.Array)
assert_type(bare(X, scale=2.0), jax.Array)
assert_type(with_options(X, 2), tuple[jax.Array, int])
assert_type(mlc_jit(bare)(X), jax.Array)
assert_type(MODEL.bound(X), jax.Array)
assert_type(MODEL.bound_with_options(X, scale=2.0), jax.Array)
assert_type(Model.bound(MODEL, X), jax.Array)
assert_type(Model.static(X), jax.Array)

assert_type(bare.lower(jax.ShapeDtypeStruct((3,), jnp.float32)), jax.stages.Lowered)
assert_type(bare.trace(X), jax.stages.Traced)
assert_type(bare.explain(X, verbose=True), Explanation)
assert_type(bare.explain(X).as_dict(), dict[str, object])
assert_type(hlo_mlc.compare(bare, X).speedup, float)
assert_type(bare.report(X).coverage, float)
assert_type(bare.choose, str)
assert_type(bare.choosing("xla")(X), jax.Array)
assert_type(bare.clear_cache(), None)
assert_type(MODEL.bound.explain(X), Explanation)
assert_type(MODEL.bound.report().coverage, float)
assert_type(MODEL.bound.lower(X), jax.stages.Lowered)

assert_type(hlo_mlc.install(choose="measure"), None)
with hlo_mlc.enabled(choose="ours"):
    assert_type(hlo_mlc.uninstall(), None)
assert_type(hlo_mlc.compile_stablehlo("module {}")(X), tuple[jax.Array, ...])
assert_type(hlo_mlc.load("model.mlc").explain(), str)
loaded: Any = hlo_mlc.load("model.mlc")(X)

# Each of these lines is an error; a checker that does not say so complains of the comment.
bare("x")  # type: ignore[arg-type]
bare(X, 1.0, 2)  # type: ignore[call-arg]
bare.explained(X)  # type: ignore[attr-defined]
MODEL.bound(X, X)  # type: ignore[call-arg]
with_options(X, "2")  # type: ignore[arg-type]
mlc_jit(bare, static_argnum=1)  # type: ignore[call-overload]
mlc_jit(choose=1)  # type: ignore[call-overload]
mlc_jit(3)  # type: ignore[call-overload]
