"""What programs with symbolic sizes assert of them, as `jax.export` writes it.

A call of `shape_assertion` has whether it holds, a message, and the integers in it. They follow
from the shapes of the arguments: here, before anything is compiled. XLA knows no such call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.ops.registry import DEFINITIONS, supports

_CALL, _NAME = "stablehlo.custom_call", "shape_assertion"


def failed_assertion(module: ir.Module, shapes: Sequence[Sequence[int]]) -> str:
    """What a program says against arguments of these shapes; "" where it says nothing."""
    graph = import_function(module, MAIN)
    sizes = dict(zip(graph.parameters, shapes, strict=True))
    known: dict[Value, np.ndarray] = {}
    for node in graph.nodes:
        operands = [known.get(value) for value in node.operands]
        if node.op == "stablehlo.get_dimension_size" and node.operands[0] in sizes:
            size = sizes[node.operands[0]][node.attributes["dimension"]]
            known[node.results[0]] = np.asarray(size, np.int32)
        elif any(operand is None for operand in operands):
            continue
        elif not _is_assertion(node):
            if not supports(node):
                found = DEFINITIONS[node.op].reference(node, operands)
                known.update(zip(node.results, map(np.asarray, found), strict=True))
        elif not operands[0]:
            integers = (int(operand) for operand in operands[1:])
            return " ".join(str(node.attributes["error_message"]).format(*integers).split())
    return ""


def _is_assertion(node: Node) -> bool:
    return node.op == _CALL and node.attributes.get("call_target_name") == _NAME


def without_assertions(module: ir.Module) -> None:
    """Takes them out of a module, in all of its functions."""
    found: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == _CALL \
                and ir.StringAttr(operation.attributes["call_target_name"]).value == _NAME:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for assertion in found:
        assertion.erase()
