"""What programs with symbolic sizes assert of them, as `jax.export` writes it.

A call of `shape_assertion` has whether it holds, a message, and the integers in it. They follow
from the shapes of the arguments: here, before anything is compiled. XLA knows no such call.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.sizes import numbers_from_shapes
from hlo_mlc.frontend.walking import operations
from hlo_mlc.graph.core import Node
from hlo_mlc.interop.extraction import MAIN

_CALL, _NAME = "stablehlo.custom_call", "shape_assertion"


def failed_assertion(module: ir.Module, shapes: Sequence[Sequence[int]]) -> str:
    """What a program says against arguments of these shapes; "" where it says nothing."""
    graph = import_function(module, MAIN)
    known = numbers_from_shapes(graph, shapes)
    for node in filter(_is_assertion, graph.nodes):
        operands = [known.get(value) for value in node.operands]
        if any(operand is None for operand in operands):
            continue
        if not operands[0]:
            integers = (int(operand) for operand in operands[1:])
            return " ".join(str(node.attributes["error_message"]).format(*integers).split())
    return ""


def _is_assertion(node: Node) -> bool:
    return node.op == _CALL and node.attributes.get("call_target_name") == _NAME


def without_assertions(module: ir.Module) -> None:
    """Takes them out of a module, in all of its functions."""
    for call in operations(module, _CALL):
        if ir.StringAttr(call.attributes["call_target_name"]).value == _NAME:
            call.erase()
