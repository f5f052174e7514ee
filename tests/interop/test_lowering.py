"""What the lowering of a call gives to the compiler, does with its answer, and refuses."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from hlo_mlc import mlc_jit
from hlo_mlc.backends.base import Backend
from hlo_mlc.compiler import CompiledModule
from hlo_mlc.interop import compiling
from hlo_mlc.report import Report
from hlo_mlc.support.errors import CompilerFault
from hlo_mlc.support.options import Options

X = jnp.arange(8.0)


@jax.jit
def double(x: jax.Array) -> jax.Array:
    return x * 2


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that takes nothing, and the modules it was given."""
    given = []

    def compile_module(
        module: ir.Module, options: Options, *, entry: str, backend: Backend
    ) -> CompiledModule:
        given.append(str(module))
        return CompiledModule(module, Report.untouched("nothing is worth it"))

    monkeypatch.setattr(compiling, "compile_module", compile_module)
    return given


def test_the_compiler_sees_the_function_and_all_that_it_calls(replacing: Any) -> None:
    @mlc_jit(choose="ours")
    def step(x: jax.Array) -> jax.Array:
        return double(x) + double(x + 1)

    jax.jit(lambda x: jnp.tanh(step(x))).lower(X)
    (module,) = replacing.modules
    assert re.findall(r"func.func (\w+) @(\w+)", module) == [
        ("public", replacing.entries[0]),
        ("private", "double"),
    ]
    assert replacing.entries[0].startswith("step")
    assert "tanh" not in module


def test_the_compiler_sees_chlo(replacing: Any) -> None:
    mlc_jit(lambda x: jax.lax.erf_inv(x), choose="ours").lower(X)
    assert "chlo.erf_inv" in replacing.modules[0]


def test_calls_inside_a_call_are_compiled_with_it(replacing: Any) -> None:
    inner = mlc_jit(lambda x: x * x, choose="ours")
    mlc_jit(lambda x: inner(x) + inner(x + 1), choose="ours").lower(X)
    assert len(replacing.modules) == 1
    assert "stablehlo.multiply" in replacing.modules[0]


def test_the_same_call_is_compiled_once(replacing: Any) -> None:
    g = mlc_jit(lambda x: x * x, choose="ours")
    text = jax.jit(lambda x: g(g(x)) + g(x + 1)).lower(X).as_text()
    assert len(replacing.modules) == 1
    assert text.count("stablehlo.multiply") == 1


def test_a_call_outside_is_compiled_though_it_also_occurs_inside(replacing: Any) -> None:
    inner = mlc_jit(lambda x: x * x, choose="ours")
    outer = mlc_jit(lambda x: inner(x) + 1, choose="ours")
    assert jnp.array_equal(jax.jit(lambda x: outer(x) + inner(x))(X), X * X + 1 + X * X)
    assert len(replacing.modules) == 2


def test_nothing_taken_leaves_the_module_as_it_was(leaving: list[str]) -> None:
    left = mlc_jit(lambda x: double(x) + double(x + 1), choose="auto").lower(X)
    untouched = mlc_jit(lambda x: double(x) + double(x + 1), choose="xla").lower(X)
    assert len(leaving) == 1
    assert left.as_text(debug_info=False) == untouched.as_text(debug_info=False)


def test_forward_and_backward_code_are_compiled(replacing: Any) -> None:
    g = mlc_jit(lambda x: jnp.sin(x).sum(), choose="ours")
    jax.jit(jax.value_and_grad(g)).lower(X)
    assert [re.findall(r"stablehlo\.(cosine|sine)", module) for module in replacing.modules] == [
        ["sine", "cosine"],
        [],
    ]


def test_captured_arrays_are_constants(replacing: Any) -> None:
    captured = jnp.linspace(0, 1, 8)
    mlc_jit(lambda x: x * captured, choose="ours").lower(X)
    assert "stablehlo.constant dense<[0.000000e+00, 0.142857" in replacing.modules[0]


def test_xla_gets_zeros_for_constants_that_were_compiled() -> None:
    captured = jnp.arange(8 * 300.0).reshape(8, 300)
    text = mlc_jit(lambda x: x @ captured, choose="ours").lower(X).as_text()
    assert "stablehlo.constant dense<0.000000e+00> : tensor<8x300xf32>" in text


def test_a_function_is_compiled_for_each_set_of_constants() -> None:
    g = mlc_jit(lambda x, w: jnp.tanh(x @ w), choose="ours")
    first, second = jnp.eye(8), 2 * jnp.eye(8)

    def function(x: jax.Array, w: jax.Array) -> list[jax.Array]:
        return [g(x, first), g(x, second), g(x, w), g(x, first)]

    for ours, factor in zip(jax.jit(function)(X, 3 * jnp.eye(8)), (1, 2, 3, 1), strict=True):
        np.testing.assert_allclose(ours, np.tanh(factor * np.asarray(X)), rtol=1e-5)


def test_several_devices_are_compiled_for(replacing: Any) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    g = mlc_jit(lambda x: x * 2, choose="ours")
    x = jax.device_put(X, NamedSharding(mesh, P("i")))
    assert jnp.array_equal(g(x), X * 2)
    assert "tensor<8xf32>" in replacing.modules[0]


def test_several_devices_of_several_meshes_are_left_to_xla(replacing: Any) -> None:
    meshes = [
        jax.make_mesh(shape, ("i", "j"), axis_types=(AxisType.Auto,) * 2)
        for shape in ((8, 1), (2, 4))
    ]
    g = mlc_jit(
        lambda x: x * 2,
        choose="ours",
        in_shardings=NamedSharding(meshes[0], P("i")),
        out_shardings=NamedSharding(meshes[1], P("i")),
    )
    assert jnp.array_equal(g(X), X * 2)
    assert not replacing.modules
    assert "8 devices outside shard_map" in str(g.explain(X))


def test_bodies_of_shard_map_are_compiled(replacing: Any) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    g = mlc_jit(lambda x: x * 2, choose="ours")
    h = jax.jit(jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    assert jnp.array_equal(h(X), X * 2)
    assert "tensor<1xf32>" in replacing.modules[0]


def test_partly_manual_shard_map_is_left_to_xla(replacing: Any) -> None:
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    g = mlc_jit(lambda x: x * 2, choose="ours")
    h = jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    assert jnp.array_equal(jax.jit(h)(X), X * 2)
    assert not replacing.modules
    assert "2 devices outside shard_map" in str(g.explain())


def test_other_platforms_are_left_to_xla(replacing: Any) -> None:
    g = mlc_jit(lambda x: x * 2, choose="ours")
    for platforms in (("tpu",), ("cpu", "cuda")):
        g.trace(X).lower(lowering_platforms=platforms)
        assert "lowered for " + ", ".join(platforms) in str(g.explain())
    assert not replacing.modules


def test_symbolic_shapes_are_left_to_xla(replacing: Any) -> None:
    g = mlc_jit(lambda x: x * 2, choose="ours").for_archive("cpu")
    shape = jax.export.symbolic_shape("n")
    jax.export.export(g)(jax.ShapeDtypeStruct(shape, jnp.float32))
    assert "symbolic shapes" in str(g.explain())
    assert not replacing.modules


def failing(module: ir.Module, options: Options, *, entry: str, backend: Backend) -> CompiledModule:
    raise ZeroDivisionError("a fault in the compiler")


def of_other_type(
    module: ir.Module, options: Options, *, entry: str, backend: Backend
) -> CompiledModule:
    with module.context:
        other = ir.Module.parse(f"func.func @{entry}(%x: tensor<2xf32>) {{ return }}")
    return CompiledModule(other, Report.untouched(""))


@pytest.mark.parametrize(
    ("fault", "named"),
    [(failing, "ZeroDivisionError: a fault in the compiler"), (of_other_type, "tensor<2xf32>")],
)
@pytest.mark.parametrize("choose", ["auto", "measure"])
def test_a_fault_of_the_compiler_leaves_the_program_to_xla(
    fault: Any, named: str, choose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "compile_module", fault)

    @mlc_jit(choose=choose)
    def step(x: jax.Array) -> jax.Array:
        return x * 2

    with pytest.warns(RuntimeWarning, match="leaves step.* to XLA") as warned:
        assert jnp.array_equal(step(X), X * 2)
    assert len(warned) == 1
    assert named in str(warned[0].message)
    assert named in str(step.explain(X))


def test_a_fault_of_the_compiler_is_raised_when_ours_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "compile_module", failing)
    with pytest.raises(CompilerFault, match="ZeroDivisionError: a fault in the compiler"):
        mlc_jit(lambda x: x * 2, choose="ours")(X)
