"""Scatters into several arrays at once become scatters into one, where none needs another."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import apply_rules
from hlo_mlc.ops.registry import references, supports
from hlo_mlc.passes.scatters import SCATTER_RULES
from hlo_mlc.passes.simplify import simplify

PLACES = np.array([[3], [0], [3], [9], [-1], [6], [0]], np.int32)
"""Some twice, some outside."""


def module(body: str, result: str = "%r#0, %r#1, %r#2", places: str = "%i") -> str:
    """`body` gives %p, %q and %s of the old %a, %b, %c and the new %x, %y, %z."""
    types = ["tensor<7x3xf32>", "tensor<7x3xi32>", "tensor<7x3xbf16>"]
    given, whole = ", ".join(types), "tensor<7x3xf32>, tensor<7x3xi32>, tensor<7x3xbf16>"
    scalars = "tensor<f32>, tensor<i32>, tensor<bf16>"
    count = result.count("%")
    returned = ", ".join(types[int(part[-1])] for part in result.split(", ")[:count])
    names = ", ".join(f"%{n}: {t}" for n, t in zip("tuv", types, strict=True))
    news = ", ".join(f"%{n}u: {t}" for n, t in zip("tuv", types, strict=True))
    scalar_names = ", ".join(
        f"%{n}: tensor<{t}>" for n, t in zip("abcxyz", ["f32", "i32", "bf16"] * 2, strict=True)
    )
    return f"""func.func @main({names}, %i: tensor<7x1xi32>, {news}) -> ({returned}) {{
  %r:3 = "stablehlo.scatter"(%t, %u, %v, {places}, %tu, %uu, %vu) ({{
  ^bb0({scalar_names}):
    {body}
    stablehlo.return %p, %q, %s : {scalars}
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      indices_are_sorted = false, unique_indices = false}}
    : ({given}, tensor<7x1xi32>, {given}) -> ({whole})
  return {result} : {returned}
}}"""


APART = """%p = stablehlo.add %a, %x : tensor<f32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %twice = stablehlo.multiply %two, %y : tensor<i32>
    %q = stablehlo.subtract %twice, %b : tensor<i32>
    %s = stablehlo.maximum %z, %c : tensor<bf16>"""
SECOND = APART.replace("%q = stablehlo.subtract %twice, %b", "%q = stablehlo.add %y, %two")
TOGETHER = """%first = stablehlo.compare LT, %a, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %p = stablehlo.minimum %a, %x : tensor<f32>
    %q = stablehlo.select %first, %b, %y : tensor<i1>, tensor<i32>
    %s = stablehlo.add %z, %c : tensor<bf16>"""


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)

    def some() -> list[np.ndarray]:
        numbers = rng.integers(-9, 9, (3, 7, 3))
        return [n.astype(t) for n, t in zip(numbers, ("f4", "i4", jnp.bfloat16), strict=True)]

    return [*some(), PLACES, *some()]


def expected(olds: list[np.ndarray], news: list[np.ndarray], second: bool) -> list[np.ndarray]:
    rules = (
        lambda old, new: old + new,
        lambda old, new: new + 2 if second else 2 * new - old,
        np.maximum,
    )
    results = [old.copy() for old in olds]
    for result, new, rule in zip(results, news, rules, strict=True):
        for place, row in zip(PLACES[:, 0], new, strict=True):
            if 0 <= place < len(result):
                result[place] = rule(result[place], row)
    return results


def simplified(text: str) -> Graph:
    return simplify(imported(text), references, verify=True)[0]


def imported(text: str) -> Graph:
    return import_function(parse_module(text))


@pytest.mark.parametrize("body", [APART, SECOND], ids=["operation", "of what is new"])
def test_several_are_updated_one_by_one(body: str) -> None:
    function = hlo_mlc.compile_stablehlo(module(body), choose="ours")
    given = arrays()
    results = function(*given)
    assert function.report().coverage == 1.0
    for result, right in zip(results, expected(given[:3], given[4:], body is SECOND), strict=True):
        assert np.array_equal(result, right)


def test_shardings_of_all_results_are_of_none() -> None:
    """XLA takes no operation of one result whose sharding is that of three."""
    several = "{{replicated}, {replicated}, {replicated}}"
    text = module(APART).replace(
        "unique_indices = false", f'unique_indices = false, mhlo.sharding = "{several}"'
    )
    scatters = [n for n in simplified(text).walk() if "scatter" in n.op]
    assert len(scatters) == 3
    assert all("mhlo.sharding" not in n.attributes for n in scatters)


def test_what_nobody_reads_is_not_updated() -> None:
    (node,) = [n for n in simplified(module(APART, "%r#1")).walk() if "scatter" in n.op]
    assert len(node.operands) == 3


def test_what_is_updated_with_others_stays_together() -> None:
    (node,) = [n for n in simplified(module(TOGETHER)).walk() if "scatter" in n.op]
    assert len(node.results) == 3
    assert "some updated with what is of others" in supports(node)


def test_of_what_stays_together_nothing_is_written_apart() -> None:
    """The first of these would be a scatter of its own, which nobody reads."""
    graph = imported(module(TOGETHER))
    assert apply_rules(graph, SCATTER_RULES) is graph
