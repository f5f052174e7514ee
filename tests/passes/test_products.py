"""Products in another type, and of factors that are splats."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.graph.rewrite import apply_rules
from hlo_mlc.passes.products import PRODUCT_RULES

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "spec", ["ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "i,i->", "ij,j->i", "bij,jb->ib"]
)
@pytest.mark.parametrize(
    "extents", [(1, 1, 1, 1), (3, 17, 5, 2), (16, 33, 31, 3), (4, 0, 5, 2)], ids=str
)
def test_products_of_bools(
    spec: str, extents: tuple, traced: Callable, same: Callable, ops_of: Callable, check: Callable
) -> None:
    sizes = dict(zip("ijkb", extents, strict=True))
    args = [
        RNG.random([sizes[c] for c in side]) < 0.2 for side in spec.partition("->")[0].split(",")
    ]

    def function(x, y):
        return jnp.einsum(spec, x, y, preferred_element_type=bool)

    graph = traced(function, *args)
    assert graph.nodes[0].results[0].type.dtype.name == "i1"
    counted = apply_rules(graph, PRODUCT_RULES)
    assert "compare" in ops_of(counted)
    same(counted, graph, args)
    check(function, *args, kernels=None)


@pytest.mark.parametrize(
    ("x", "y", "wide", "is_narrow"),
    [
        ("int8", "int8", "int32", True),
        ("uint8", "uint8", "int32", True),
        ("int16", "int16", "int32", True),  # of which sums wrap
        ("int8", "uint8", "int32", False),
        ("int32", "int32", "int16", False),
        ("int8", "int8", "float32", False),
    ],
)
def test_products_of_widened_integers(
    x: str, y: str, wide: str, is_narrow: bool, traced: Callable, same: Callable, check: Callable
) -> None:
    args = [
        RNG.integers(np.iinfo(d).min, np.iinfo(d).max, shape, d, endpoint=True)
        for d, shape in ((x, (9, 70)), (y, (70, 20)))
    ]

    def function(x, y):
        return jnp.matmul(x.astype(wide), y.astype(wide))

    graph = traced(function, *args)
    product = apply_rules(graph, PRODUCT_RULES).nodes[-1]
    assert (product.operands[0].type.dtype.numpy == np.dtype(x)) == is_narrow
    same(apply_rules(graph, PRODUCT_RULES), graph, args)
    check(function, *args, kernels=None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("spec", ["ij,jk->ik", "jk,ij->ik", "bji,jbk->bik", "i,ij->ij"])
@pytest.mark.parametrize("number", [0, 3])
def test_products_with_a_splat(
    spec: str, dtype: str, number: int, traced: Callable, same: Callable, ops_of: Callable, check
) -> None:
    """Sums, or multiples, of the other factor: of none that were not numbers where it has such."""
    sizes = {"i": 17, "j": 5, "k": 4, "b": 3}
    first = spec in ("jk,ij->ik", "i,ij->ij")
    splat, other = spec.partition("->")[0].split(",")[:: 1 if first else -1]
    x = np.array(jnp.asarray(RNG.integers(-9, 9, [sizes[c] for c in other]), dtype))
    if dtype != "int32":
        x[..., 1] = np.inf

    def function(x):
        equal = jnp.full([sizes[c] for c in splat], number, x.dtype)
        return jnp.einsum(spec, *((equal, x) if first else (x, equal)))

    graph = traced(function, x)
    summed = apply_rules(graph, PRODUCT_RULES)
    assert "dot_general" in ops_of(graph)
    assert "dot_general" not in ops_of(summed)
    same(summed, graph, [x])
    check(function, x, kernels=None)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int32])
def test_others_stay(dtype: type, traced: Callable) -> None:
    graph = traced(jnp.matmul, *(np.ones((4, 4), dtype) for _ in range(2)))
    assert apply_rules(graph, PRODUCT_RULES) is graph
