"""Complex numbers as kernels see them: two parts side by side, along an axis behind all others.

What is computed with them is computed with their parts (passes/complex_parts.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import Kind
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Pointwise, Read

Arrays = Sequence[np.ndarray]


def _part(name: str, number: int) -> OpDef:
    def reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
        return (getattr(operands[0], name).copy(),)

    def lower(node: Node, reads: Sequence[Read]) -> Pointwise:
        tensor = node.operands[0].type
        if tensor.dtype.kind is Kind.COMPLEX:
            return Pointwise((lambda indices: reads[0]((*indices, index.constant(number))),))
        zero = const(0.0, tensor.dtype)  # a real number is its own real part
        return Pointwise((reads[0] if number == 0 else lambda indices: zero,))

    return OpDef(
        f"stablehlo.{name}",
        OpKind.MOVEMENT,
        reference,
        lower,
        lambda node: "",
        (
            *(
                f"""func.func @main(%a: tensor<3x4xcomplex<{t}>>) -> tensor<3x4x{t}> {{
          %0 = stablehlo.{name} %a : (tensor<3x4xcomplex<{t}>>) -> tensor<3x4x{t}>
          return %0 : tensor<3x4x{t}>
        }}"""
                for t in ("f32", "f64")
            ),
            f"""func.func @main(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {{
          %0 = stablehlo.{name} %a : tensor<3x4xf32>
          return %0 : tensor<3x4xf32>
        }}""",
        ),
    )


def _join(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    result = np.empty(operands[0].shape, node.results[0].type.dtype.numpy)
    result.real, result.imag = operands
    return (result,)


def _lower_complex(node: Node, reads: Sequence[Read]) -> Pointwise:
    def element(indices: Indices) -> Expr:
        *point, part = indices
        real, imaginary = (read(tuple(point)) for read in reads)
        return apply("select", index.compare("eq", part, 0), real, imaginary)

    return Pointwise((element,))


DEFINITIONS: tuple[OpDef, ...] = (
    _part("real", 0),
    _part("imag", 1),
    OpDef(
        "stablehlo.complex",
        OpKind.MOVEMENT,
        _join,
        _lower_complex,
        lambda node: "",
        tuple(
            f"""func.func @main(%a: tensor<5x{t}>, %b: tensor<5x{t}>) -> tensor<5xcomplex<{t}>> {{
          %0 = stablehlo.complex %a, %b : tensor<5xcomplex<{t}>>
          return %0 : tensor<5xcomplex<{t}>>
        }}"""
            for t in ("f32", "f64")
        ),
    ),
)
NAMES = frozenset(definition.name for definition in DEFINITIONS)
