"""`map`: a body of scalars at every place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Pointwise, Read
from hlo_mlc.ops.regions import inline_scalar_graph, supports_scalar_graph


def _reference(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    elements = tuple(Var(f"x{k}", v.type.dtype) for k, v in enumerate(node.operands))
    (value,) = inline_scalar_graph(node.regions[0], elements)
    found = evaluate(value, dict(zip(elements, operands, strict=True)))
    return (np.broadcast_to(found, node.results[0].type.shape),)


def _lower(node: Node, reads: Sequence[Read]) -> Pointwise:
    def element(indices: Indices) -> Expr:
        (value,) = inline_scalar_graph(node.regions[0], [read(indices) for read in reads])
        return value

    return Pointwise((element,))


def _example(shape: str, element: str, axes: str, *ops: str) -> str:
    tensor, scalar = f"tensor<{shape}x{element}>", f"tensor<{element}>"
    lines = "\n    ".join(ops)
    return f"""
func.func @main(%a: {tensor}, %b: {tensor}) -> {tensor} {{
  %r = "stablehlo.map"(%a, %b) ({{
  ^bb0(%x: {scalar}, %y: {scalar}):
    {lines}
    stablehlo.return %z : {scalar}
  }}) {{dimensions = array<i64: {axes}>}} : ({tensor}, {tensor}) -> {tensor}
  return %r : {tensor}
}}
"""


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.map",
        OpKind.ELEMENTWISE,
        _reference,
        _lower,
        lambda node: supports_scalar_graph(node.regions[0]),
        (
            _example(
                "3x4",
                "f32",
                "0, 1",
                "%c = stablehlo.constant dense<1.5> : tensor<f32>",
                "%m = stablehlo.maximum %x, %c : tensor<f32>",
                "%z = stablehlo.subtract %m, %y : tensor<f32>",
            ),
            _example("5", "i64", "0", "%z = stablehlo.multiply %x, %y : tensor<i64>"),
            _example("7", "i32", "0", "%z = stablehlo.maximum %y, %x : tensor<i32>"),
        ),
        cost=2,
        is_exact=True,
    ),
)
