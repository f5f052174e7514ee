"""Python's `//` and `%` of integers by powers of two, as JAX writes them, are one operation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Graph
from hlo_mlc.ops.registry import references
from hlo_mlc.passes.simplify import simplify

DTYPES = [jnp.int8, jnp.int16, jnp.int32, jnp.uint8, jnp.uint16, jnp.uint32]


def simplified(function, dtype) -> Graph:
    argument = jax.ShapeDtypeStruct((4,), dtype)
    graph, _ = simplify(
        import_function(jax.jit(function).lower(argument).compiler_ir()), references
    )
    return graph


def operations(graph: Graph) -> list[str]:
    return [node.op.removeprefix("stablehlo.") for node in graph.nodes if node.literal is None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", [2, 8, 64])
def test_is_one_operation(dtype, by: int) -> None:
    shift = "logical" if jnp.issubdtype(dtype, jnp.unsignedinteger) else "arithmetic"
    assert operations(simplified(lambda x: x % by, dtype)) == ["and"]
    assert operations(simplified(lambda x: x // by, dtype)) == [f"shift_right_{shift}"]


@pytest.mark.parametrize("by", [3, -4])
def test_others_stay(by: int) -> None:
    assert {"remainder", "select"} <= {*operations(simplified(lambda x: x % by, jnp.int32))}
    assert {"divide", "select"} <= {*operations(simplified(lambda x: x // by, jnp.int32))}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", [1, 2, 3, 8, 64, -1, -8])
def test_means_what_numpy_means(dtype, by: int) -> None:
    if by < 0 and jnp.issubdtype(dtype, jnp.unsignedinteger):
        pytest.skip("there is no such divisor")
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, 1001, dtype, endpoint=True)
    x[:3] = limits.min, limits.max, 0
    compiled = mlc_jit(lambda x: (x % by, x // by), choose="ours")
    with np.errstate(over="ignore"):
        for ours, expected in zip(compiled(x), (x % dtype(by), x // dtype(by)), strict=True):
            np.testing.assert_array_equal(ours, expected)
    assert compiled.report(x).coverage == 1
