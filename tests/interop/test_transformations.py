"""Every transformation over `mlc_jit` gives what it gives over `jax.jit`.

A case is a function of the decorator alone; what it returns with ours is compared with what it
returns with JAX's, for all ways to choose. A second test lets a stand-in replace every module by a
copy of it, so that no case passes only because its program is left to XLA.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import KeyReuseError
from jax.experimental import hijax

from hlo_mlc import mlc_jit
from hlo_mlc.runtime.library import TARGET_NAME
from making import transformed_programs  # noqa: F401 for its cases
from making.transformed import CASES, Jit, W, X, array, f, loss

# A compiler that fails leaves the program to XLA, with a warning: no pass for these tests.
pytestmark = pytest.mark.filterwarnings("error:hlo_mlc leaves")


@pytest.fixture(params=["xla", "auto", "ours"])
def jit(request: pytest.FixtureRequest) -> Jit:
    return functools.partial(mlc_jit, choose=request.param)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    """A thousand programs are compiled here, and each runs once or twice."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(jnp.result_type(theirs), jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if np.issubdtype(theirs.dtype, np.inexact):
            magnitude = np.max(np.abs(theirs), initial=1e-6)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * magnitude)
        else:
            np.testing.assert_array_equal(ours, theirs)


@functools.cache
def expected_result(name: str) -> Any:
    return CASES[name](jax.jit)


# One of each way in which a module comes to be lowered.
REPLACED = (
    "value",
    "nested",
    "called_inside_and_outside",
    "value_and_grad",
    "jvp",
    "linear_transpose",
    "hessian",
    "vmap",
    "vmap_with_axis_name",
    "grad_of_scan_around",
    "jvp_of_while",
    "cond_around",
    "checkpoint_with_policy",
    "checkpoint_in_scan",
    "shard_map_grad",
    "shard_map_without_vma",
    "new_checkpoint",
    "values_of_other_types",
    "shard_map_with_collective",
    "captured_tracer",
    "typed_keys",
    "zero_size_and_rank_zero",
    "x64",
    "pure_callback",
    "references",
    "library_calls_inside",
)


@pytest.mark.parametrize("name", CASES)
def test_same_as_jax_jit(name: str, jit: Jit) -> None:
    assert_same(CASES[name](jit), expected_result(name))


@pytest.mark.parametrize("name", REPLACED)
def test_same_with_every_module_replaced(name: str, replacing: Any) -> None:
    assert_same(CASES[name](functools.partial(mlc_jit, choose="ours")), expected_result(name))
    assert replacing.modules


# --- what is more than a result -----------------------------------------------------------------


def test_donation(jit: Jit) -> None:
    expected = f(X, W)
    for decorated in (
        jit(f, donate_argnums=0),
        jit(f, donate_argnames="x"),
        jax.jit(lambda x, w: jit(f)(x, w), donate_argnums=0),
    ):
        given = X + 0
        address = given.unsafe_buffer_pointer()
        out = decorated(given, W)
        assert given.is_deleted()
        assert out.unsafe_buffer_pointer() == address
        assert_same(out, expected)


def test_donation_in_a_loop(jit: Jit) -> None:
    step = jit(lambda x: x * 0.5 + 1, donate_argnums=0)
    x = X + 0
    for _ in range(5):
        x = step(x)
    assert_same(x, X * 0.5**5 + sum(0.5**i for i in range(5)))


@pytest.mark.parametrize("ordered", [False, True])
def test_debug_print(jit: Jit, ordered: bool, capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def g(x: jax.Array) -> jax.Array:
        jax.debug.print("first {}", x[0], ordered=ordered)
        y = x * 2
        jax.debug.print("second {}", y[0], ordered=ordered)
        return y + x

    assert_same(jax.block_until_ready(g(jnp.arange(3.0))), jnp.arange(3.0) * 3)
    assert_same(jax.grad(lambda x: g(x).sum())(jnp.arange(3.0)), jnp.full(3, 3.0))
    jax.effects_barrier()
    lines = capsys.readouterr().out.split("\n")[:-1]
    expected = ["first 0.0", "second 0.0"] * 2
    assert lines == expected if ordered else sorted(lines) == sorted(expected)


def test_keys_are_used_once(jit: Jit) -> None:
    key = jax.random.key(3)
    with jax.debug_key_reuse(True):
        jit(jax.random.normal)(key)
        with pytest.raises(KeyReuseError):
            jit(lambda key: jax.random.normal(key) + jax.random.uniform(key))(key)


def test_disable_jit(jit: Jit) -> None:
    seen = []
    g = jit(lambda x, scale: (seen.append(x), x * scale)[1], static_argnums=1)
    with jax.disable_jit():
        assert_same(g(X, 2), X * 2)
    assert not isinstance(seen[0], jax.core.Tracer)


def test_eight_threads(jit: Jit) -> None:
    g = jit(f)
    inputs = [array(seed, 8, 8) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: g(x, W), inputs))
    for x, result in zip(inputs, results, strict=True):
        assert_same(result, jax.jit(f)(x, W))


@pytest.mark.skipif(not hasattr(hijax, "MutableHiType"), reason="this JAX has no such values")
def test_values_that_a_function_changes(jit: Jit) -> None:
    box = importlib.import_module("jax._src.hijax").Box(X)

    def double(box: Any) -> None:
        box.set(box.get() * 2)

    jit(double)(box)
    jit(lambda: double(box))()
    assert_same(box.get(), X * 4)


def test_traces_once_for_each_signature(jit: Jit) -> None:
    calls = []
    g = jit(lambda x: (calls.append(x.shape), x + 1)[1])
    for x in (X, W, X[0], X):
        g(x)
    assert calls == [(8, 8), (8,)]


def test_jax_counts_and_explains_each_trace_once(
    jit: Jit, caplog: pytest.LogCaptureFixture
) -> None:
    g, theirs = jit(lambda x: x * 2 - x), jax.jit(lambda x: x * 2 - x)

    def told(function: Any, x: jax.Array) -> int:
        caplog.clear()
        with jax.explain_cache_misses(True), caplog.at_level("WARNING", "jax"):
            function(x)
        return caplog.text.count("TRACING CACHE MISS")

    assert (
        [told(g, x) for x in (X, X, X[0])] == [told(theirs, x) for x in (X, X, X[0])] == [1, 0, 1]
    )


@jax.tree_util.register_pytree_node_class
class Settings:
    """A static argument that is a tree of arrays as well."""

    def __init__(self, *offsets: Any) -> None:
        self.offsets = offsets

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.offsets, None

    @classmethod
    def tree_unflatten(cls, _: None, offsets: tuple[Any, ...]) -> Settings:
        return cls(*offsets)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(np.float32(2)),
        Settings(np.ones(8, np.float32)),
        Settings(jnp.ones(8)),
        Settings(),
        (),
        None,
        "text",
        X.shape,
    ],
)
def test_static_arguments_are_the_very_same_objects(jit: Jit, settings: Any) -> None:
    seen = []
    g = jit(
        lambda settings, x, *, named: (seen.append((settings, named)), x + 1)[1],
        static_argnums=0,
        static_argnames="named",
    )
    assert_same(g(settings, X, named=settings), X + 1)
    assert all(one is settings for one in seen[0])
    assert_same(jax.grad(lambda x: g(settings, x, named=settings).sum())(X), jnp.ones_like(X))


@pytest.mark.parametrize(
    "transformed", [lambda g: g, jax.vmap, lambda g: jax.grad(lambda x: g(x).sum())]
)
def test_debug_nans_finds_the_operation(jit: Jit, transformed: Callable) -> None:
    with jax.debug_nans(True):
        assert_same(
            transformed(jit(lambda x: jnp.sqrt(x) * 2))(jnp.ones(4)),
            transformed(lambda x: jnp.sqrt(x) * 2)(jnp.ones(4)),
        )
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in sqrt"):
            transformed(jit(lambda x: jnp.sqrt(x) * 2))(-jnp.ones(4))


@pytest.mark.parametrize(
    "wrong", [lambda x: "text", lambda x: {"a": [x, object]}, lambda x: (x, np.array(["text"]))]
)
def test_results_that_are_no_arrays_are_told_as_by_jax(jit: Jit, wrong: Callable) -> None:
    with pytest.raises(TypeError) as theirs:
        jax.jit(wrong)(X)
    with pytest.raises(TypeError) as ours:
        jit(wrong)(X)
    assert str(ours.value) == str(theirs.value)


def test_stages(jit: Jit) -> None:
    g = jit(f)
    spec = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert isinstance(g, jax.stages.Wrapped)
    assert g.eval_shape(spec, spec) == jax.eval_shape(g, spec, spec) == spec
    assert g.trace(spec, spec).out_info == spec
    assert "func.func public @main" in g.lower(spec, spec).as_text()
    assert_same(g.lower(spec, spec).compile()(X, W), jax.jit(f)(X, W))
    g(X, W)
    g.clear_cache()
    assert_same(g(X, W), jax.jit(f)(X, W))


def test_keeps_name_and_documentation(jit: Jit) -> None:
    @jit
    def documented(x: jax.Array) -> jax.Array:
        """What it does."""
        return x + 1

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "What it does."
    assert documented.__wrapped__(X).shape == X.shape
    assert "module @jit_documented" in documented.lower(X).as_text()


def test_methods_and_callables(jit: Jit) -> None:
    class Model:
        scale = 2.0

        @functools.partial(jit, static_argnums=0)
        def apply(self, x: jax.Array) -> jax.Array:
            return x * self.scale

        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.scale + 1

    assert_same(Model().apply(X), X * 2)
    assert_same(jit(Model())(X), X * 2 + 1)
    assert_same(jit(functools.partial(f, w=W))(X), jax.jit(f)(X, W))


def test_errors_of_the_users_function_come_through(jit: Jit) -> None:
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions"):
        jit(lambda x: x @ x[:3])(X)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jit(lambda x: x if x[0, 0] > 0 else -x)(X)
    with pytest.raises(ValueError, match=r"[Nn]on-hashable static"):
        jit(lambda x, n: x, static_argnums=1)(X, [1])


def test_export(jit: Jit) -> None:
    spec = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    exported = jax.export.export(jit(f))(spec, spec)
    assert TARGET_NAME not in exported.mlir_module()
    loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    assert_same(loaded.call(X, W), jax.jit(f)(X, W))
    assert_same(jax.grad(loss(loaded.call))(X, W), jax.grad(loss(f))(X, W))


def test_export_with_symbolic_shapes(jit: Jit) -> None:
    shape = jax.export.symbolic_shape("b, 8")
    exported = jax.export.export(jit(lambda x: x * x + x))(jax.ShapeDtypeStruct(shape, jnp.float32))
    assert_same(exported.call(X), X * X + X)
