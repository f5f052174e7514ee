"""Graph -> `ir.Module`: the only writer of StableHLO."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.expr.dtypes import U8, TensorType
from hlo_mlc.frontend.attributes import NotModelled, write_attributes
from hlo_mlc.frontend.captures import captured_uses
from hlo_mlc.frontend.importer import find_function
from hlo_mlc.frontend.types import write_literal, write_type
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.support.errors import FrontendError

# A node of our own: a kernel that runs as one custom call.  Attributes: `id` (str, its logical
# id), `aliases` (pairs (result, operand) that share a buffer), `dims` (ints, none here),
# `scratch_bytes` (int, 0 where it is missing), memory that the caller has to give it, and
# `operand_layouts` and `result_layouts`, as custom calls state them, () for row by row.  Or several
# kernels that compute it in blocks of rows: `blocks` in the place of `id`, ids by the rows of each,
# and `dims` are what custom_calls/ffi_handler.cc says.
#
# XLA moves, copies and merges calls by what it is told of them and by where they stand.  What its
# passes take for granted, and how a call of ours is written so that it holds (names are those of
# XLA's files in xla/service and xla/hlo):
#
# roots      A computation's root with operands is taken for a tuple of them:
#            WhileUtil::GetInvariantGTEsForWhileBody (while_util.cc), on which
#            while_loop_invariant_code_motion.cc and while_loop_constant_sinking.cc build, compares
#            operand i with carried value i; so do while_loop_simplifier.cc, hlo_module_dce.cc and
#            while_loop_analysis.cc, which even looks for counters behind a custom call.  JAX's
#            root is a tuple, but TupleSimplifier::RemoveWholeTuple (tuple_simplifier.cc) puts a
#            call in its place whose results, all and in order, are the tuple: carried values then
#            count as unchanged, and the loop never ends.  It asks whether the shapes are the same.
#            Hence a call with several results has one more, of no bytes, that nothing reads: no
#            tuple is all of its results.  One result alone is no tuple, and stays inside of one.
# purity     `has_side_effect` is false: calls may be merged (hlo_cse.cc), dropped (hlo_dce.cc),
#            and moved out of loops that make no trip (while_loop_invariant_code_motion.cc).  So a
#            kernel is a function of its operands, keeps nothing, and never traps.
# aliases    An aliased operand is one of an update in place (GetInPlaceInputOutputPairs in
#            hlo_dataflow_analysis.cc): copy_insertion.cc copies what is read later, constants and
#            arguments that were not donated.  hlo_verifier.cc (HandleCustomCall) only compares
#            shapes: that no operand or result is in two pairs is seen to here.
# layouts    Those that are stated are kept, by copies where it takes such (layout_assignment.cc);
#            without, XLA may choose others.
KERNEL_OP = "hlo_mlc.kernel"
KERNEL_TARGET = "hlo_mlc_kernel"

# Version of the custom-call interface: 4 passes attributes typed (XLA FFI).
_TYPED_FFI = 4


def emit_module(
    graph: Graph, source: ir.Module, entry: str = "main", *, variant: str = ""
) -> ir.Module:
    """A copy of `source` whose function `entry` has the body `graph`; `variant` is what the ids of
    its kernels end in.

    Private functions that are not called any more are left out; argument and result attributes
    (donation, sharding, names) stay with the function.  `source` stays as it was: nodes are
    cloned from the operations that they came from, which it owns.
    Raises: FrontendError if the graph does not fit the function or cannot be written.
    """
    with source.context, source.operation.location:
        module = ir.Module.create()
        for name in source.operation.attributes:
            module.operation.attributes[name] = source.operation.attributes[name]
        end = ir.InsertionPoint(module.body)
        replaced = find_function(source, entry)
        for op in source.body.operations:
            if op.operation == replaced:
                _emit_function(graph, replaced, end, variant)
            else:
                op.operation.clone(end)
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            raise FrontendError(f"the emitted module is malformed: {error}") from error
        # With ops of unregistered dialects MLIR cannot tell what is unused, and leaves all.
        with contextlib.suppress(ir.MLIRError):
            passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
    return module


def _emit_function(
    graph: Graph, source: ir.Operation, end: ir.InsertionPoint, variant: str
) -> None:
    attributes = {name: source.attributes[name] for name in source.attributes}
    function = ir.Operation.create(
        source.name, attributes=attributes, regions=1, loc=source.location, ip=end
    )
    _Emitter(variant).region(graph, function.regions[0], source.regions[0])


class _Emitter:
    """What each value and type was written as."""

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self._values: dict[Value, ir.Value] = {}
        self._types: dict[TensorType, ir.Type] = {}

    def region(self, graph: Graph, target: ir.Region, source: ir.Region | None) -> None:
        """Writes `graph` as the one block of `target`.

        `source` is the region that the graph was read from, for its types, locations and
        terminator; a region of a node that a pass made has none.
        """
        arguments = source.blocks[0].arguments if source is not None else ()
        if len(arguments) == len(graph.parameters):
            types = [argument.type for argument in arguments]
            locations = [argument.location for argument in arguments]
        else:
            types = [self._type(parameter) for parameter in graph.parameters]
            locations = [ir.Location.unknown()] * len(types)
        block = target.blocks.append(*types, arg_locs=locations)
        self._values.update(zip(graph.parameters, block.arguments, strict=True))
        end = ir.InsertionPoint(block)
        for node in graph.nodes:
            operation = self._node(node, end)
            written = list(operation.results)[: len(node.results)]  # a call has one that is unread
            self._values.update(zip(node.results, written, strict=True))
        name, location = "stablehlo.return", ir.Location.unknown()
        if source is not None:
            *_, terminator = source.blocks[0].operations
            name, location = terminator.operation.name, terminator.location
        operands = [self._values[value] for value in graph.results]
        ir.Operation.create(name, operands=operands, loc=location, ip=end)

    def _node(self, node: Node, end: ir.InsertionPoint) -> ir.Operation:
        if node.op == KERNEL_OP:
            return self._kernel(node, end)
        origin = node.origin
        if origin is None or node.attributes != origin.attributes:
            return self._anew(node, end)
        if node.regions != origin.regions or any(region.captures for region in node.regions):
            attributes = origin.operation.attributes
            return self._create(node, {n: attributes[n] for n in attributes}, end)
        clone = origin.operation.clone(end)
        operands = [self._values[value] for value in node.operands]
        for i in range(len(clone.operands)):
            clone.operands[i] = operands[i]
        # Where regions could not be read, the values that they use follow the op's own operands.
        if captured := operands[len(clone.operands) :]:
            _replace_captures(clone, captured)
        return clone

    def _anew(self, node: Node, end: ir.InsertionPoint) -> ir.Operation:
        """Builds the op of a node that a pass made or changed."""
        if node.opaque:
            raise FrontendError(
                f"expected {node.op} to be written back as it came, because it is opaque "
                f"({node.opaque}), but a pass changed it",
                location=node.location or None,
            )
        if node.literal is not None:
            dtype = node.results[0].type.dtype
            return self._create(node, {"value": write_literal(node.literal, dtype)}, end)
        try:
            attributes = write_attributes(node.op, node.attributes)
        except NotModelled as error:
            raise FrontendError(str(error), location=node.location or None) from error
        return self._create(node, attributes, end)

    def _kernel(self, node: Node, end: ir.InsertionPoint) -> ir.Operation:
        config = {
            "id": ir.StringAttr.get(self._called(node)),
            "dims": ir.DenseI64ArrayAttr.get(node.attributes["dims"]),
        }
        unread = _unread(node)
        several = len(node.results) + len(unread) > 1
        aliases = [
            stablehlo.OutputOperandAlias.get([result] if several else [], operand, [])
            for result, operand in _one_to_one(node)
        ]
        attributes = {
            "call_target_name": ir.StringAttr.get(KERNEL_TARGET),
            "has_side_effect": ir.BoolAttr.get(False),
            "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED_FFI),
            "backend_config": ir.DictAttr.get(config),
            "operand_layouts": _layouts(node.operands, node.attributes.get("operand_layouts", ())),
            "result_layouts": _layouts(
                (*node.results, *unread), node.attributes.get("result_layouts", ())
            ),
            "output_operand_aliases": ir.ArrayAttr.get(aliases),
        }
        call = replace(
            node,
            op="stablehlo.custom_call",
            results=(*node.results, *unread),
            location=node.location.replace("@", " at "),
        )  # XLA cuts names at an @
        return self._create(call, attributes, end)

    def _called(self, node: Node) -> str:
        """The kernels of a call, as custom_calls/ffi_handler.cc reads them."""
        blocks = node.attributes.get("blocks")
        if blocks is None:
            return node.attributes["id"] + self._variant
        return ",".join(f"{name}{self._variant}@{rows}" for rows, name in blocks.items())

    def _create(
        self, node: Node, attributes: dict[str, ir.Attribute], end: ir.InsertionPoint
    ) -> ir.Operation:
        if node.origin is None:
            location = ir.Location.name(node.location) if node.location else ir.Location.unknown()
            came: list[ir.Value] = []
            sources: list[ir.Region | None] = [None] * len(node.regions)
        else:
            location = node.origin.operation.location
            came = list(node.origin.operation.results)
            sources = list(node.origin.operation.regions)
        types = [
            came[i].type if value.type is None and came else self._type(value)
            for i, value in enumerate(node.results)
        ]
        operation = ir.Operation.create(
            node.op,
            results=types,
            operands=[self._values[value] for value in node.operands],
            attributes=attributes,
            regions=len(node.regions),
            loc=location,
            ip=end,
        )
        for graph, target, source in zip(node.regions, operation.regions, sources, strict=True):
            self.region(graph, target, source)
        return operation

    def _type(self, value: Value) -> ir.Type:
        if value.type is None:
            raise FrontendError(f"{value} has a type that is not modelled, so it cannot be written")
        if value.type not in self._types:
            self._types[value.type] = write_type(value.type)
        return self._types[value.type]


def _unread(node: Node) -> tuple[Value, ...]:
    """What a kernel's call has as its last result beside those that are read: its scratch, also one
    of no bytes where the call is a tuple without."""
    size = node.attributes.get("scratch_bytes", 0)
    return (Value(TensorType((size,), U8)),) if size or len(node.results) > 1 else ()


def _one_to_one(node: Node) -> tuple[tuple[int, int], ...]:
    """The aliases of a kernel, each of which has a result and an operand of its own."""
    aliases = node.attributes["aliases"]
    for name, numbers in zip(("result", "operand"), zip(*aliases, strict=True), strict=False):
        if len(set(numbers)) < len(numbers):
            raise FrontendError(
                f"expected each {name} of a kernel in one alias at most, got "
                f"(result, operand) {aliases}",
                location=node.location or None,
            )
    return aliases


def _replace_captures(operation: ir.Operation, values: list[ir.Value]) -> None:
    """Lets the regions of `operation` use `values`, in the place of the outer ones they use."""
    uses = captured_uses(operation)
    distinct = dict.fromkeys(use.value for use in uses)
    replaced = dict(zip(distinct, values, strict=True))
    for use in uses:
        use.operation.operands[use.index] = replaced[use.value]


def _layouts(values: tuple[Value, ...], stated: Sequence[tuple[int, ...]]) -> ir.ArrayAttr:
    """Minor-to-major layouts, as custom calls state them: row by row where nothing is stated."""
    index, written = ir.IndexType.get(), []
    for value, layout in itertools.zip_longest(values, stated, fillvalue=()):
        order = layout or range(len(value.type.shape))[::-1]
        written.append(ir.DenseIntElementsAttr.get(np.array(order, np.int64), type=index))
    return ir.ArrayAttr.get(written)
