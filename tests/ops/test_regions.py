"""Bodies of reductions and scatters as combiners, and why some are refused."""

from __future__ import annotations

import math

import pytest

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Load
from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.ops.definition import Fold
from hlo_mlc.ops.regions import combiner_of
from hlo_mlc.ops.registry import DEFINITIONS, supports


def reduction(body: str, element: str = "f32", before: str = "") -> str:
    t = f"tensor<{element}>"
    return f"""
func.func @main(%a: tensor<4x{element}>, %i: {t}) -> {t} {{
  {before}
  %r = "stablehlo.reduce"(%a, %i) ({{
  ^bb0(%x: {t}, %y: {t}):
    {body}
    stablehlo.return %z : {t}
  }}) {{dimensions = array<i64: 0>}} : (tensor<4x{element}>, {t}) -> {t}
  return %r : {t}
}}
"""


def _reduce_node(graph):
    return next(n for n in graph.nodes if n.op == "stablehlo.reduce")


def test_body_of_several_ops_and_constants(examples) -> None:
    graph = examples.graph(
        reduction(
            "%c = stablehlo.constant dense<2.0> : tensor<f32>\n"
            "%d = stablehlo.multiply %y, %c : tensor<f32>\n"
            "%z = stablehlo.add %x, %d : tensor<f32>"
        )
    )
    combiner = combiner_of(_reduce_node(graph).regions[0])
    assert isinstance(combiner, Combiner)
    doubled = apply("mul", combiner.rhs[0], const(2.0, F32))
    assert combiner.results == (apply("add", combiner.lhs[0], doubled),)
    assert combiner.identity is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("stablehlo.add %x, %y", "add"),
        ("stablehlo.maximum %y, %x", "max"),
        ("stablehlo.minimum %x, %y", "min"),
        ("stablehlo.multiply %x, %y", "mul"),
        ("stablehlo.subtract %x, %y", ""),
    ],
)
def test_names(body: str, name: str, examples) -> None:
    graph = examples.graph(reduction(f"%z = {body} : tensor<f32>"))
    assert combiner_of(_reduce_node(graph).regions[0]).name == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            reduction(
                "%z = stablehlo.add %x, %k : tensor<f32>",
                before="%k = stablehlo.constant dense<1.0> : tensor<f32>",
            ),
            "the body uses values from outside",
        ),
        (
            reduction(
                "%k = stablehlo.constant dense<1.0> : tensor<3xf32>\n"
                "%l = stablehlo.slice %k [0:1] : (tensor<3xf32>) -> tensor<1xf32>\n"
                "%m = stablehlo.reshape %l : (tensor<1xf32>) -> tensor<f32>\n"
                "%z = stablehlo.add %x, %m : tensor<f32>"
            ),
            "the body holds stablehlo.constant on something other than scalars",
        ),
        (
            reduction(
                "%p = stablehlo.partition_id : tensor<ui32>\n"
                "%q = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>\n"
                "%z = stablehlo.add %x, %q : tensor<f32>"
            ),
            "the body holds stablehlo.partition_id, which is no scalar operation known here",
        ),
        (
            reduction("%z = stablehlo.add %x, %y : tensor<complex<f32>>", "complex<f32>"),
            "complex arithmetic of this kind stays with XLA",
        ),
    ],
)
def test_reasons(text: str, reason: str, examples) -> None:
    assert supports(_reduce_node(examples.graph(text))) == reason


def test_argmax_takes_its_initial_values_for_identity(examples) -> None:
    text = next(t for t in DEFINITIONS["stablehlo.reduce"].examples if "compare GT" in t)
    node = _reduce_node(examples.graph(text))
    values, positions = Buffer("v", F32, (4, 9)), Buffer("p", I32, (4, 9))
    constants = [
        DEFINITIONS["stablehlo.constant"].lower(n, ()).elements[0]
        for n in examples.graph(text).nodes
        if n.op == "stablehlo.constant"
    ]
    fold = DEFINITIONS["stablehlo.reduce"].lower(
        node, [lambda i: Load(values, i), lambda i: Load(positions, i), *constants]
    )
    assert isinstance(fold, Fold)
    assert [c.value for c in fold.combiner.identity] == [-math.inf, 0]


def test_narrow_sums_are_rounded_once(examples) -> None:
    graph = examples.graph(reduction("%z = stablehlo.add %x, %y : tensor<bf16>", "bf16"))
    buffer = Buffer("a", graph.parameters[0].type.dtype, (4,))
    start = Buffer("i", buffer.dtype, ())
    fold = DEFINITIONS["stablehlo.reduce"].lower(
        _reduce_node(graph), [lambda i: Load(buffer, i), lambda i: Load(start, i)]
    )
    assert fold.combiner.lhs[0].dtype is F32
    assert fold.finish(fold.combiner.lhs) == (
        apply("convert", fold.combiner.lhs[0], dtype=buffer.dtype),
    )
