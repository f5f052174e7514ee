"""Constant folding, through the ops' own reference semantics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import Kind, TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.ops.registry import DEFINITIONS, ELEMENTWISE, SOURCES
from hlo_mlc.passes.splat import splat
from hlo_mlc.support.errors import PassError

# What an op computes on arrays: OpDef.reference.
Reference = Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, ...]]

# Larger results would grow the program (and what XLA has to hash) for nothing.
MAX_FOLDED_BYTES = 64 * 1024

# Broadcasts are not folded: the constant would be larger than what it is made of.
_MOVEMENT = SOURCES.keys() - {"stablehlo.broadcast_in_dim"}


def constant_folding(references: Mapping[str, Reference]) -> Rule:
    """The rule `op(constants)` -> `constant` for ops that have a reference and whose result is
    exact or rounded once, so that nothing depends on whose library computed it."""
    elementwise = {op for op in ELEMENTWISE & references.keys() if DEFINITIONS[op].is_exact}
    foldable = elementwise | (_MOVEMENT & references.keys())

    def fold(node: Node, context: Rewriter) -> Value | None:
        """`op(constants)` -> `constant`"""
        if (
            node.op not in foldable
            or not _may_be_constant(node, context)
            or _is_modulus(node)
            or DEFINITIONS[node.op].supports(node)
            or node.results[0].type.dtype.is_packed
        ):
            return None
        reference = references[node.op]
        shape = node.results[0].type.shape
        if node.op in elementwise and all(v.type.shape in (shape, ()) for v in node.operands):
            elements = [splat(value, context) for value in node.operands]
            if all(element is not None for element in elements):
                one = _evaluate(reference, _on_scalars(node), [np.asarray(e) for e in elements])
                return context.array(np.broadcast_to(one, shape))
        if node.results[0].type.bytes > MAX_FOLDED_BYTES:
            return None
        literals = [context.literal(value) for value in node.operands]
        if any(literal is None for literal in literals):
            return None
        return context.array(_compact(_evaluate(reference, node, literals)))

    return fold


def _may_be_constant(node: Node, context: Rewriter) -> bool:
    """Whether nothing is known of the first operand that shows that it is none: of most nodes this
    is all that is asked."""
    if not node.operands:
        return True
    value = node.operands[0]
    return context.literal(value) is not None or splat(value, context) is not None


def _is_modulus(node: Node) -> bool:
    """Whether it is the absolute value of complex numbers: a square root, which is not exact."""
    return node.op == "stablehlo.abs" and node.operands[0].type.dtype.kind is Kind.COMPLEX


def _evaluate(reference: Reference, node: Node, operands: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        (result,) = reference(node, operands)
    expected = node.results[0].type
    if (result.shape, result.dtype) != (expected.shape, expected.dtype.numpy):
        raise PassError(
            f"expected the reference of {node.op} to give {expected}, "
            f"got {result.dtype}{list(result.shape)}",
            location=node.location or None,
        )
    return result


def _on_scalars(node: Node) -> Node:
    """The elementwise node for one element."""

    def scalar(value: Value) -> Value:
        return Value(TensorType((), value.type.dtype))

    return dataclasses.replace(
        node, operands=tuple(map(scalar, node.operands)), results=tuple(map(scalar, node.results))
    )


def _compact(array: np.ndarray) -> np.ndarray:
    """A splat of one element where all are equal bit by bit, else an array of its own memory."""
    data = array.tobytes()
    if array.size > 1 and data == data[: array.itemsize] * array.size:
        return np.broadcast_to(array[(0,) * array.ndim], array.shape)
    return np.array(array, order="C")
