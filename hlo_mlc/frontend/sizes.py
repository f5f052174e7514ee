"""Numbers that follow from the shapes of a function's arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.expr.dtypes import DType
from hlo_mlc.frontend.importer import find_function, import_function
from hlo_mlc.frontend.types import write_literal
from hlo_mlc.graph.core import Graph, Value
from hlo_mlc.ops.registry import DEFINITIONS, supports

_CONVERT = "stablehlo.convert"
# Shapes have few dimensions; weights, and what is computed of them, are not looked at.
_MOST_NUMBERS = 64


def numbers_from_shapes(graph: Graph, shapes: Sequence[Sequence[int]]) -> dict[Value, np.ndarray]:
    """The few numbers that follow from the shapes of a graph's parameters."""
    sizes = dict(zip(graph.parameters, shapes, strict=True))
    known: dict[Value, np.ndarray] = {}
    for node in graph.nodes:
        if node.op == "stablehlo.get_dimension_size" and node.operands[0] in sizes:
            size = sizes[node.operands[0]][node.attributes["dimension"]]
            known[node.results[0]] = np.asarray(size, np.int32)
        elif (
            all(value in known for value in node.operands)
            and not supports(node)
            and all(value.type.size <= _MOST_NUMBERS for value in node.results)
        ):
            operands = [known[value] for value in node.operands]
            found = DEFINITIONS[node.op].reference(node, operands)
            known.update(zip(node.results, map(np.asarray, found), strict=True))
    return known


def write_rounded_sizes(module: ir.Module, entry: str, shapes: Sequence[Sequence[int]]) -> None:
    """Writes integers that floating-point numbers are converted to, where they follow from the
    shapes of the arguments of @entry, as constants: MLIR's passes follow integers only, and
    PyTorch's exporter rounds up the length of a range."""
    graph = import_function(module, entry)
    body = find_function(module, entry).regions[0].blocks[0]
    rounded = [
        node
        for node in graph.nodes
        if node.op == _CONVERT
        and not node.opaque
        and node.origin is not None
        and _dtype(node.operands[0]).is_float
        and _dtype(node.results[0]).is_integer
    ]
    known = numbers_from_shapes(graph, shapes) if rounded else {}
    for node in rounded:
        operation, found = node.origin.operation, known.get(node.results[0])
        if found is None or operation.block != body:
            continue
        with module.context, operation.location, ir.InsertionPoint(operation):
            constant = ir.Operation.create(
                "stablehlo.constant",
                [operation.results[0].type],
                attributes={"value": write_literal(found, _dtype(node.results[0]))},
            )
        operation.results[0].replace_all_uses_with(constant.result)


def _dtype(value: Value) -> DType:
    return value.type.dtype
