"""`ir.Module` -> Graph: every op becomes a node, modelled or opaque."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.frontend.attributes import NotModelled, read_attributes
from hlo_mlc.frontend.captures import captured_uses
from hlo_mlc.frontend.locations import LocationReader
from hlo_mlc.frontend.types import read_literal, read_type
from hlo_mlc.graph.core import Attribute, Graph, Node, Origin, Value
from hlo_mlc.ops.library_calls import DIALECT, approximate_top_k, library_op
from hlo_mlc.support.errors import FrontendError

_DIALECTS = ("stablehlo", "chlo", DIALECT)
# On a parameter: the number of the result that may have its memory.  JAX's spelling.
DONATED = "tf.aliasing_output"
# Ops that stand for the body of a function, and the attribute that names it.
_CALLEE = {"func.call": "callee", "stablehlo.composite": "decomposition"}
# Attributes of a function that say nothing about how its body is to be compiled.
_PLAIN_FUNCTION_ATTRIBUTES = {
    "sym_name",
    "function_type",
    "sym_visibility",
    "arg_attrs",
    "res_attrs",
}


def import_function(module: ir.Module, entry: str = "main") -> Graph:
    """The body of one function as a graph, with the functions that it calls inlined.

    A call that carries attributes of its own (compute_on, metadata), or to a function that does,
    becomes an opaque node.  (MLIR's own inliner is of no use here: jaxlib does not register the
    interface that lets it inline func.call.)
    The graph keeps `module` alive; `module` must not change as long as the graph is used.
    Raises: FrontendError if there is no such function or its body has branches.
    """
    return _Importer(module).function(find_function(module, entry))


def read_donations(module: ir.Module, entry: str) -> tuple[tuple[int, int], ...]:
    """The numbers of the parameters of a function that are donated, and of the results that JAX
    promises to put into their memory."""
    function = find_function(module, entry)
    if "arg_attrs" not in function.attributes:
        return ()
    return tuple(
        (number, attributes[DONATED].value)
        for number, attributes in enumerate(function.attributes["arg_attrs"])
        if DONATED in attributes
    )


def find_function(module: ir.Module, name: str) -> ir.Operation:
    """The func.func called `name`.

    Raises: FrontendError, which lists the functions there are.
    """
    names = []
    for op in module.body.operations:
        operation = op.operation
        if operation.name == "func.func":
            names.append(operation.attributes["sym_name"].value)
            if names[-1] == name:
                return operation
    raise FrontendError(f"expected a function @{name}, the module has only {names}")


class _Importer:
    """The tables of one import: what each MLIR value, type and attribute was read as."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._functions = {
            op.operation.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self._calls: list[str] = []  # the functions being inlined, to find recursion
        self._inlined = 0
        self._values: dict[ir.Value, Value] = {}
        self._types: dict[ir.Type, TensorType | None] = {}
        self._attributes: dict[ir.Attribute, Attribute] = {}
        self._locations = LocationReader()
        self._around = ""  # the line that calls what is being inlined

    def function(self, function: ir.Operation) -> Graph:
        graph = self._region(function.regions[0])
        if graph is None:
            raise FrontendError(
                f"expected @{function.attributes['sym_name'].value} to have a body of one block "
                "that ends in a return",
                location=self._locations.read(function.location),
            )
        return graph

    def _region(self, region: ir.Region) -> Graph | None:
        """The graph of a region of one block ended by a return op, else None."""
        operations = _one_block(region)
        if operations is None:
            return None
        parameters = tuple([self._define(argument) for argument in region.blocks[0].arguments])
        nodes = tuple(self._nodes(operations[:-1]))
        return Graph(parameters, nodes, self._read(operations[-1].operands))

    def _nodes(self, operations: list[ir.Operation]) -> list[Node]:
        nodes = []
        for operation in operations:
            if operation.name in _CALLEE and (callee := self._inlinable(operation)):
                nodes += self._inline(operation, callee)
            elif operation.name == "stablehlo.custom_call" and (
                sort := self._approximate_top_k(operation)
            ):
                nodes += sort
            else:
                nodes.append(self._operation(operation))
        return nodes

    def _inlinable(self, call: ir.Operation) -> str | None:
        """The name of the function that `call` calls, if its body can take the call's place.

        A composite says what it is in a function of its own, and in words that are not read here.
        """
        callee = call.attributes[_CALLEE[call.name]].value
        function = self._functions.get(callee)
        if (
            function is None
            or (call.name == "func.call" and len(call.attributes) > 1)
            or callee in self._calls
            or not _PLAIN_FUNCTION_ATTRIBUTES.issuperset(function.attributes)
            or _one_block(function.regions[0]) is None
        ):
            return None
        return callee

    def _inline(self, call: ir.Operation, callee: str) -> list[Node]:
        region = self._functions[callee].regions[0]
        operations = _one_block(region)
        arguments = self._read(call.operands)
        self._values.update(zip(region.blocks[0].arguments, arguments, strict=True))
        self._calls.append(callee)
        around, self._around = self._around, self._locations.line(call.location, self._around)
        nodes = self._nodes(operations[:-1])
        self._calls.pop()
        self._around = around
        results = self._read(operations[-1].operands)
        self._values.update(zip(call.results, results, strict=True))
        self._inlined += 1
        return nodes

    def _approximate_top_k(self, call: ir.Operation) -> list[Node] | None:
        """The sort and the slices that XLA makes of a call of `ApproxTopK` where it has no better;
        None for any other call."""
        if call.attributes["call_target_name"].value != "ApproxTopK":
            return None
        found = approximate_top_k(read_attributes(call, self._attributes))
        operands = self._read(call.operands)[: len(call.results)]
        if found is None or any(
            value.type is None or not value.type.is_static for value in operands
        ):
            return None
        comparator, dimension = found
        before = self._region(self._functions[comparator].regions[0])
        location = self._locations.read(call.location, self._around)
        ordered = tuple(Value(value.type) for value in operands)
        sort = Node(
            "stablehlo.sort",
            operands,
            ordered,
            {"dimension": dimension, "is_stable": False},
            (before,),
            location=location,
        )
        return [
            sort,
            *(
                self._first(whole, self._define(result), location)
                for whole, result in zip(ordered, call.results, strict=True)
            ),
        ]

    @staticmethod
    def _first(whole: Value, part: Value, location: str) -> Node:
        """`part` is where all of `whole` begins."""
        zeros, ones = ((number,) * len(part.type.shape) for number in (0, 1))
        return Node(
            "stablehlo.slice",
            (whole,),
            (part,),
            {"start_indices": zeros, "limit_indices": part.type.shape, "strides": ones},
            location=location,
        )

    def _read(self, operands: Iterable[ir.Value]) -> tuple[Value, ...]:
        values = self._values
        return tuple([values[operand] for operand in operands])

    def _define(self, mlir_value: ir.Value) -> Value:
        mlir_type = mlir_value.type
        try:
            value = Value(self._types[mlir_type])
        except KeyError:
            # Each dynamic dimension gets a name of its own: that two are equal is not known here.
            value = Value(read_type(mlir_type, f"d{len(self._values)}_"))
            if value.type is None or value.type.is_static:
                self._types[mlir_type] = value.type
        self._values[mlir_value] = value
        return value

    def _operation(self, operation: ir.Operation) -> Node:
        op = operation.name
        operands = self._read(operation.operands)
        opaque = ""
        attributes: Mapping[str, Attribute] = {}
        try:
            attributes = read_attributes(operation, self._attributes)
        except NotModelled as error:
            opaque = str(error)
        if op == "stablehlo.custom_call" and not opaque:
            op = library_op(attributes) or op
        regions: tuple[Graph, ...] = ()
        inlined = self._inlined
        if len(operation.regions):
            read = [self._region(region) for region in operation.regions]
            if None in read:
                opaque = "a region is not one block ended by a return"
                operands += self._captures(operation)
            else:
                regions = tuple(read)
        results = tuple([self._define(result) for result in operation.results])
        opaque = _reason_opaque(op, operation, attributes, operands, results) or opaque
        literal: np.ndarray | None = None
        if op == "stablehlo.constant" and not opaque:
            try:
                literal = read_literal(operation, results[0].type)
            except ValueError as error:
                opaque = str(error)
        return Node(
            op,
            operands,
            results,
            attributes,
            regions,
            literal,
            self._locations.read(operation.location, self._around),
            # Regions with inlined calls differ from those of the operation.
            Origin(
                operation, self._module, attributes, regions if inlined == self._inlined else ()
            ),
            opaque,
        )

    def _captures(self, operation: ir.Operation) -> tuple[Value, ...]:
        """What the regions of `operation` use from outside: one for each MLIR value, in order of
        first use.  emit.py relies on this order.
        """
        uses = captured_uses(operation)
        return self._read(dict.fromkeys(use.value for use in uses))


def _one_block(region: ir.Region) -> list[ir.Operation] | None:
    """The operations of a region that is one block ended by a return op."""
    blocks = list(region.blocks)
    if len(blocks) != 1:
        return None
    operations = [op.operation for op in blocks[0].operations]
    return operations if operations and operations[-1].name.endswith(".return") else None


def _reason_opaque(
    op: str,
    operation: ir.Operation,
    attributes: Mapping[str, Attribute],
    operands: tuple[Value, ...],
    results: tuple[Value, ...],
) -> str:
    dialect, _, name = op.partition(".")
    if dialect not in _DIALECTS:
        return f"dialect {dialect} is not modelled"
    if name == "custom_call":
        return f"custom call to {attributes.get('call_target_name', 'an unknown target')}"
    for i, value in enumerate(operands):
        if value.type is None:
            return f"type {operation.operands[i].type} is not modelled"
    for i, value in enumerate(results):
        if value.type is None:
            return f"type {operation.results[i].type} is not modelled"
    return ""
