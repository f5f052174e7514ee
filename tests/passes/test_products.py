"""Products in another type."""

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


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int32])
def test_others_stay(dtype: type, traced: Callable) -> None:
    graph = traced(jnp.matmul, *(np.ones((4, 4), dtype) for _ in range(2)))
    assert apply_rules(graph, PRODUCT_RULES) is graph
