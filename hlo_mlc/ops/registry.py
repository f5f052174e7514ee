"""The ops that are known, and the meaning of whole graphs through their references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from hlo_mlc.expr.dtypes import F8E8M0FNU, FLOATS_OF_A_BYTE, Kind
from hlo_mlc.graph.core import BRANCHES, CONTROL_FLOW, WHILE, Graph, Node, Value
from hlo_mlc.ops import (
    complex_numbers,
    contraction,
    elementwise,
    fourier,
    indexing,
    linear_algebra,
    mapping,
    random_bits,
    reduction,
    selection,
    shape,
    sorting,
)
from hlo_mlc.ops.definition import OpDef, OpKind
from hlo_mlc.support.errors import UnsupportedOpError

DEFINITIONS: Mapping[str, OpDef] = {
    definition.name: definition
    for family in (
        elementwise,
        shape,
        reduction,
        contraction,
        selection,
        indexing,
        sorting,
        linear_algebra,
        complex_numbers,
        fourier,
        mapping,
        random_bits,
    )
    for definition in family.DEFINITIONS
}

ELEMENTWISE, MOVEMENT, UPDATES, SUMMING, SOLVES = (
    frozenset(n for n, d in DEFINITIONS.items() if d.kind in kinds)
    for kinds in (
        {OpKind.ELEMENTWISE},
        {OpKind.MOVEMENT},
        {OpKind.UPDATE},
        {OpKind.FOLD, OpKind.PRODUCT},
        {OpKind.SOLVE},
    )
)
"""Names of the ops of these kinds."""

SOURCES: Mapping[str, slice] = {
    n: d.sources for n, d in DEFINITIONS.items() if d.sources is not None
}
"""Of ops that compute nothing: the operands that all elements of their results come from."""

Reference = Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, ...]]
references: Mapping[str, Reference] = {n: d.reference for n, d in DEFINITIONS.items()}

_DYNAMIC = "shapes that are known only at run time are for no kernel, nor for XLA on CPUs"
_COMPLEX = "complex arithmetic of this kind stays with XLA"
_COMPLEX_PRODUCT = "complex matrix products of this size stay with XLA's library"
_PACKED = "this is not known of integers of less than a byte"
_COLLECTIVE = "communication between devices stays with XLA"
LEFT_TO_XLA: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "stablehlo.dynamic_broadcast_in_dim",
            "stablehlo.dynamic_conv",
            "stablehlo.dynamic_gather",
            "stablehlo.dynamic_iota",
            "stablehlo.dynamic_pad",
            "stablehlo.dynamic_reshape",
            "stablehlo.real_dynamic_slice",
            "stablehlo.set_dimension_size",
        ),
        _DYNAMIC,
    ),
    **dict.fromkeys(
        (
            "stablehlo.all_gather",
            "stablehlo.all_reduce",
            "stablehlo.all_to_all",
            "stablehlo.collective_broadcast",
            "stablehlo.collective_permute",
            "stablehlo.reduce_scatter",
            "stablehlo.partition_id",
            "stablehlo.replica_id",
        ),
        _COLLECTIVE,
    ),
    "stablehlo.rng": "XLA keeps the state of its own generator",
    **dict.fromkeys(
        BRANCHES, "XLA chooses between branches that are more than a few simple operations"
    ),
}
"""Ops of the specification without a definition, and why."""
# What looks into the bits of floats: in some forms of a byte the zero with a sign is NaN.
_BY_BITS = frozenset(("stablehlo.reduce_precision", "chlo.next_after"))
# What powers of two without a zero are computed with: no fold of them has anything to begin with.
_OF_POWERS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "bitcast_convert",
        "compare",
        "convert",
        "divide",
        "dynamic_update_slice",
        "is_finite",
        "maximum",
        "minimum",
        "multiply",
        "select",
    )
)
# A while loop that runs longer than this is taken for one that does not end.
_MAX_TRIPS = 1_000_000


def lookup(op: str) -> OpDef | None:
    """The definition of an op, given with its dialect's prefix."""
    return DEFINITIONS.get(op)


def moves(node: Node) -> bool:
    """Its results are elements of its operands, or known: nothing is computed."""
    return node.op in MOVEMENT


def operation_cost(node: Node) -> int:
    """Rough cost of one result element of a pointwise op, or of a fold of one term, in simple
    operations."""
    return 0 if moves(node) else max(1, DEFINITIONS[node.op].cost)


def supports(node: Node) -> str:
    """Why `lower` cannot handle `node`; "" where it can."""
    if node.opaque:
        return node.opaque
    definition = DEFINITIONS.get(node.op)
    if definition is None:
        return (
            _COMPLEX
            if node.op == "chlo.conj"
            else LEFT_TO_XLA.get(node.op, f"{node.op} has no definition here")
        )
    for value in (*node.operands, *node.results):
        if value.type is None:
            return "an operand or result has a type that is not modelled"
        if not value.type.is_static:
            return _DYNAMIC
        if value.type.dtype in FLOATS_OF_A_BYTE and node.op in _BY_BITS:
            return f"the bits of {value.type.dtype} are not in the order that {node.op} needs"
        if value.type.dtype is F8E8M0FNU and not (moves(node) or node.op in _OF_POWERS):
            return f"{value.type.dtype} has neither zero nor sign, which {node.op} needs"
        if (
            value.type.dtype.kind is Kind.COMPLEX
            and node.op not in complex_numbers.NAMES
            and definition.kind is not OpKind.SOLVE
        ):
            return _COMPLEX_PRODUCT if node.op == "stablehlo.dot_general" else _COMPLEX
        if value.type.dtype.is_packed and node.op != "stablehlo.convert":
            return _PACKED
    return definition.supports(node)


def evaluate_graph(
    graph: Graph,
    arrays: Sequence[np.ndarray],
    outer: Mapping[Value, np.ndarray] | None = None,
    instead: Mapping[str, Reference] = MappingProxyType({}),
) -> tuple[np.ndarray, ...]:
    """The results of a graph, op by op through the references; loops and branches are run.

    `outer`: the values of the graphs around it; `instead`: what computes ops where it is not the
    reference that does, such as calls of kernels.
    Raises: UnsupportedOpError for a node without a reference.
    """
    known: dict[Value, np.ndarray] = dict(outer or {})
    known.update(zip(graph.parameters, arrays, strict=True))
    for node in graph.nodes:
        operands = [known[v] for v in node.operands]
        if node.op in instead:
            results = instead[node.op](node, operands)
        elif node.op in CONTROL_FLOW and not node.opaque:
            results = _run(node, operands, known, instead)
        elif node.literal is None and (reason := supports(node)):
            raise UnsupportedOpError(node.op, reason, location=node.location or None)
        else:
            results = DEFINITIONS[node.op].reference(node, operands)
        known.update(zip(node.results, map(np.asarray, results), strict=True))
    return tuple(known[v] for v in graph.results)


def _run(
    node: Node,
    operands: Sequence[np.ndarray],
    known: Mapping[Value, np.ndarray],
    instead: Mapping[str, Reference],
) -> tuple[np.ndarray, ...]:
    if node.op == WHILE:
        condition, body = node.regions
        state = tuple(operands)
        for _ in range(_MAX_TRIPS):
            if not evaluate_graph(condition, state, known, instead)[0]:
                return state
            state = evaluate_graph(body, state, known, instead)
        raise UnsupportedOpError(
            node.op, f"it did not end after {_MAX_TRIPS} trips", location=node.location or None
        )
    choice = int(operands[0])
    if node.op == "stablehlo.if":
        branch = 0 if choice else 1
    else:  # an index out of range means the last branch
        last = len(node.regions) - 1
        branch = choice if 0 <= choice <= last else last
    return evaluate_graph(node.regions[branch], (), known, instead)
