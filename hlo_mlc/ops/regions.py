"""Regions of scalars: the bodies of reductions and scatters, as expressions and combiners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import Kind
from hlo_mlc.graph.core import Graph, Value
from hlo_mlc.ops import elementwise, shape
from hlo_mlc.ops.definition import OpDef, Pointwise
from hlo_mlc.tensor.combine import combiner_from, combiner_variables

# What a body of scalars can be made of; everything here is Pointwise.
_SCALAR_OPS: Mapping[str, OpDef] = {
    d.name: d for d in (*elementwise.DEFINITIONS, *shape.DEFINITIONS)
}


def supports_scalar_graph(graph: Graph) -> str:
    """Why `inline_scalar_graph` cannot inline `graph`; "" where it can."""
    if graph.captures:
        return "the body uses values from outside"
    for node in graph.nodes:
        definition = _SCALAR_OPS.get(node.op)
        if node.opaque or definition is None:
            return f"the body holds {node.op}, which is no scalar operation known here"
        for value in (*node.operands, *node.results):
            if value.type is None or value.type.shape:
                return f"the body holds {node.op} on something other than scalars"
            if value.type.dtype.kind is Kind.COMPLEX:
                return "complex arithmetic of this kind stays with XLA"
        if reason := definition.supports(node):
            return f"in the body: {reason}"
    return ""


def inline_scalar_graph(graph: Graph, arguments: Sequence[Expr]) -> tuple[Expr, ...]:
    """The results of a graph of scalars, as expressions over `arguments`."""
    known: dict[Value, Expr] = dict(zip(graph.parameters, arguments, strict=True))
    for node in graph.nodes:
        reads = [lambda indices, value=known[v]: value for v in node.operands]
        lowered = _SCALAR_OPS[node.op].lower(node, reads)
        assert isinstance(lowered, Pointwise)
        for value, element in zip(node.results, lowered.elements, strict=True):
            known[value] = element(())
    return tuple(known[v] for v in graph.results)


def combiner_of(region: Graph) -> Combiner | str:
    """The combiner that a body (accumulated..., next...) -> results... stands for, or a reason."""
    if reason := supports_scalar_graph(region):
        return reason
    if any(v.type is None or v.type.shape for v in (*region.parameters, *region.results)):
        return "the body works on something other than scalars"
    half = len(region.parameters) // 2
    dtypes = [v.type.dtype for v in region.parameters[:half]]
    if any(d.kind is Kind.COMPLEX for d in dtypes):
        return "complex arithmetic of this kind stays with XLA"
    if dtypes != [v.type.dtype for v in region.parameters[half:]] or dtypes != [
        v.type.dtype for v in region.results
    ]:
        return "the body's results have other types than its parameters"
    lhs, rhs = combiner_variables(dtypes)
    return combiner_from(lhs, rhs, inline_scalar_graph(region, (*lhs, *rhs)))
