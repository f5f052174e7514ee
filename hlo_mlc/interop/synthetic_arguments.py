"""Arguments for programs that come without any: values that they might be called with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import WHILE, Graph, Node, Value
from hlo_mlc.interop.arguments import argument_types
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.ops.definition import FewBits, OpKind
from hlo_mlc.ops.registry import lookup
from hlo_mlc.runtime.measure import made_up

Shape = Sequence[int]
DType = np.typing.DTypeLike

# What hands indices on nearly as they are: jnp.take adds a size to negative ones and selects.
_NEARLY = frozenset(f"stablehlo.{name}" for name in ("add", "subtract", "convert"))
_WITHIN = {OpKind.ELEMENTWISE, OpKind.SORT}


def synthetic_arguments(module: ir.Module) -> list[np.ndarray]:
    """Arguments for the function @main, see `synthetic_values`."""
    graph = import_function(module, MAIN)
    return synthetic_values(
        graph,
        graph.parameters,
        [(given.shape, given.dtype) for given in argument_types(module, MAIN, MAIN)],
    )


def synthetic_values(
    graph: Graph, values: Sequence[Value], types: Sequence[tuple[Shape, DType]]
) -> list[np.ndarray]:
    """Arrays of these types for values of a graph: integers that index something stay within it and
    reach all of it; matrices that loops multiply with are so small that states neither grow nor
    become chaotic; for the rest see `made_up`."""
    extents, terms = index_extents(graph), _terms_in_loops(graph)
    rng = np.random.default_rng(0)
    made = [
        made_up(shape, dtype, rng, below=extents.get(value))
        for (shape, dtype), value in zip(types, values, strict=True)
    ]
    for array, value in zip(made, values, strict=True):
        if value in terms and not np.issubdtype(array.dtype, np.integer):
            array *= np.asarray(terms[value] ** -0.5).astype(array.dtype)
    return made


def _terms_in_loops(graph: Graph, in_loop: bool = False) -> Mapping[Value, int]:
    """For floats that loops multiply with in each trip: how many products are summed."""
    terms: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        known: list[tuple[Value, int]] = []
        if node.op == WHILE:
            body = node.regions[1]
            inside = _terms_in_loops(body, True)
            carried = zip(node.operands, body.parameters, strict=True)
            known = [
                (given, inside[value])
                for given, value in (*carried, *((value, value) for value in body.captures))
                if value in inside
            ]
        elif node.op == "stablehlo.dot_general" and in_loop and not node.opaque:
            dimensions = node.attributes["lhs_contracting_dimensions"]
            count = math.prod(node.operands[0].type.shape[d] for d in dimensions)
            known = [(operand, count) for operand in node.operands]
        elif node.results and node.results[0] in terms:
            known = [(operand, terms[node.results[0]]) for operand in _handed_on(node)]
        terms.update((value, count) for value, count in known if value.type.dtype.is_float)
    return terms


def index_extents(graph: Graph) -> Mapping[Value, int]:
    """For integers that become indices of gathers, scatters and slices, outside of loops and
    branches: below which bound all of them are within the tensor."""
    extents: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        for value, extent in _indexed(node):
            extents[value] = min(extent, extents.get(value, extent))
        bounds = [extents[result] for result in node.results if result in extents]
        for value in _handed_on(node) if bounds else ():
            extents[value] = min(*bounds, extents.get(value, bounds[0]))
    return extents


def _handed_on(node: Node) -> Sequence[Value]:
    """The operands whose numbers are those of the results, or nearly, or bounds of them; none where
    indices choose from them."""
    definition = lookup(node.op)
    if definition is None or node.opaque or any(_indexed(node)):
        return ()
    if definition.sources is not None:
        return node.operands[definition.sources]
    stays = definition.kind in _WITHIN and definition.of_few_bits is FewBits.SAME
    return node.operands if stays or node.op in _NEARLY else ()


def _indexed(node: Node) -> Iterator[tuple[Value, int]]:
    """The indices that a node takes, each with the lowest number of places that it chooses from."""
    if node.opaque:
        return
    a, operands = node.attributes, node.operands
    match node.op:
        case "stablehlo.gather":
            sizes = operands[0].type.shape
            rooms = [sizes[d] - a["slice_sizes"][d] + 1 for d in a["start_index_map"]]
            yield operands[1], min(rooms, default=1)
        case "stablehlo.scatter" if len(operands) == 3:
            sizes = operands[0].type.shape
            rooms = [
                sizes[d] if d in a["inserted_window_dims"] else 1
                for d in a["scatter_dims_to_operand_dims"]
            ]
            yield operands[1], min(rooms, default=1)
        case "stablehlo.dynamic_slice":
            for start, size, length in zip(
                operands[1:], operands[0].type.shape, a["slice_sizes"], strict=True
            ):
                yield start, size - length + 1
        case "stablehlo.dynamic_update_slice":
            for start, size, length in zip(
                operands[2:], operands[0].type.shape, operands[1].type.shape, strict=True
            ):
                yield start, size - length + 1
