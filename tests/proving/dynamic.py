"""Ops whose operands say shapes: what the static ones do, as operands say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from hlo_mlc.expr.dtypes import F32, TensorType
from proving.inputs import every, unit_vectors
from proving.meanings import DYNAMIC
from proving.moving import SHAPES, moves
from proving.program import Builder, Program
from proving.written import written


def dynamic(op: str) -> Iterator[Program]:
    """What the static op does to arrays, as operands say; of some ops what is written here."""
    static, _, names = DYNAMIC[op]
    for shape in SHAPES:
        for move in moves(static, shape):
            b, more = Builder(), dict(move.attributes)
            operands = [b.named("a", shape), *(b.named(*o) for o in move.others)]
            said = [more.pop(name) for name in names] or [move.shape]
            operands += [b.constant(np.array(n, np.int64)) for n in said]
            yield Program(b.graph(b.add(op, operands, TensorType(move.shape, F32), more)), every)
    if op == "stablehlo.dynamic_iota":
        for shape in ((3,), (2, 3)):
            for axis in range(len(shape)):
                b = Builder()
                yield Program(
                    b.graph(
                        b.add(
                            op,
                            (b.constant(np.array(shape)),),
                            TensorType(shape, F32),
                            {"iota_dimension": axis},
                        )
                    ),
                    every,
                )
    if op == "stablehlo.dynamic_gather":
        for rows, columns in itertools.product((1, 2), repeat=2):
            yield Program(
                written(
                    "%a: tensor<2x4xf32>, %i: tensor<2xi64>",
                    f"tensor<2x{rows}x{columns}xf32>",
                    f"""
                %n = stablehlo.constant dense<[{rows}, {columns}]> : tensor<2xi64>
                %r = "stablehlo.dynamic_gather"(%a, %i, %n) {{dimension_numbers =
                  #stablehlo.gather<offset_dims = [1, 2], start_index_map = [1],
                  index_vector_dim = 1>}} : (tensor<2x4xf32>, tensor<2xi64>, tensor<2xi64>)
                  -> tensor<2x{rows}x{columns}xf32>""",
                ),
                every,
            )
    if op == "stablehlo.dynamic_conv":
        for before, after in ((0, 0), (2, 1), (-1, 1)):
            result = f"tensor<1x{before + after + 3}x1xf32>"
            yield Program(
                written(
                    "%a: tensor<1x4x1xf32>, %k: tensor<2x1x1xf32>",
                    result,
                    f"""
                %p = stablehlo.constant dense<[[{before}, {after}]]> : tensor<1x2xi64>
                %r = "stablehlo.dynamic_conv"(%a, %k, %p) {{
                  dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
                  feature_group_count = 1 : i64, batch_group_count = 1 : i64}}
                  : (tensor<1x4x1xf32>, tensor<2x1x1xf32>, tensor<1x2xi64>) -> {result}""",
                ),
                unit_vectors,
            )
