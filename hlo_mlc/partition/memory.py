"""A static memory plan for a graph of kernels: where every value lies, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr.layout import stored
from hlo_mlc.frontend.emit import KERNEL_OP
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.loops.signature import aligned
from hlo_mlc.ops.registry import lookup
from hlo_mlc.support.errors import UnsupportedOpError

_RESHAPE = "stablehlo.reshape"
_CONSTANTS = ("stablehlo.constant", "stablehlo.iota")


@dataclass(frozen=True, slots=True)
class Place:
    """A block of memory: number `index` of the program's operands, results or constants, or so many
    bytes from the start of its workspace."""

    kind: str  # "operand" | "result" | "constant" | "workspace"
    index: int


@dataclass(frozen=True, slots=True)
class Invocation:
    """A kernel's call: where its operands and results lie, and its scratch in the workspace."""

    kernel: str
    buffers: tuple[Place, ...]
    scratch: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A result that is an operand, a constant, or a result twice."""

    source: Place
    target: Place
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """A program as calls in order, and the copies after them. `total_bytes` is what the buffers
    in the workspace would take side by side."""

    invocations: tuple[Invocation, ...]
    copies: tuple[Copy, ...]
    constants: tuple[np.ndarray, ...]
    workspace_bytes: int
    total_bytes: int


@dataclass(slots=True)
class _Lifetime:
    """From the call that writes a buffer to the last one that reads it."""

    bytes: int
    first: int
    last: int
    offset: int = 0


def plan_memory(graph: Graph, scratch_bytes: Mapping[str, int]) -> MemoryPlan:
    """The plan for a graph that consists of kernels; `scratch_bytes` is what each of them needs.

    Raises: UnsupportedOpError for an operation that is none.
    """
    roots = _roots(graph)
    constants: list[np.ndarray] = []
    places: dict[Value, Place] = {v: Place("operand", n) for n, v in enumerate(graph.parameters)}
    made: dict[Value, int] = {}  # by which call
    calls = [node for node in graph.nodes if node.op == KERNEL_OP]
    for node in graph.nodes:
        if node.op in _CONSTANTS:
            places[node.results[0]] = Place("constant", len(constants))
            (literal,) = lookup(node.op).reference(node, [])
            constants.append(np.ascontiguousarray(stored(literal)))
    for number, node in enumerate(calls):
        made.update(dict.fromkeys(node.results, number))
    for number, value in enumerate(graph.results):
        if roots[value] in made:
            places.setdefault(roots[value], Place("result", number))
    copies = tuple(
        Copy(places[roots[value]], Place("result", number), value.type.bytes)
        for number, value in enumerate(graph.results)
        if places[roots[value]] != Place("result", number) and value.type.bytes
    )

    lifetimes = {
        value: _Lifetime(value.type.bytes, number, number)
        for value, number in made.items()
        if value not in places
    }
    for number, node in enumerate(calls):
        for value in node.operands:
            if roots[value] in lifetimes:
                lifetimes[roots[value]].last = number
    scratch = [
        _Lifetime(scratch_bytes[node.attributes["id"]], number, number)
        for number, node in enumerate(calls)
    ]
    whole = [*lifetimes.values(), *scratch]
    size = _place(whole)
    places.update({v: Place("workspace", life.offset) for v, life in lifetimes.items()})
    invocations = tuple(
        Invocation(
            node.attributes["id"],
            tuple(places[roots[v]] for v in (*node.operands, *node.results)),
            life.offset,
        )
        for node, life in zip(calls, scratch, strict=True)
    )
    return MemoryPlan(
        invocations, copies, tuple(constants), size, sum(aligned(life.bytes) for life in whole)
    )


def _roots(graph: Graph) -> dict[Value, Value]:
    """The value whose memory each value is: reshapes only look at it in another way."""
    roots = {value: value for value in graph.parameters}
    for node in graph.nodes:
        if node.op == _RESHAPE:
            roots[node.results[0]] = roots[node.operands[0]]
        elif node.op in (KERNEL_OP, *_CONSTANTS):
            roots.update({value: value for value in node.results})
        else:
            raise _not_a_kernel(node)
    return roots


def _not_a_kernel(node: Node) -> UnsupportedOpError:
    return UnsupportedOpError(
        node.op,
        "it is not computed by a kernel of ours, and there is nobody else to compute it",
        location=node.location or None,
    )


def _place(lifetimes: Sequence[_Lifetime]) -> int:
    """Gives every buffer the lowest offset where no other is at the same time, large ones first;
    returns how many bytes that takes."""
    placed: list[_Lifetime] = []
    for life in sorted(lifetimes, key=lambda life: (-life.bytes, life.first)):
        offset = 0
        for other in sorted(placed, key=lambda other: other.offset):
            apart = other.last < life.first or life.last < other.first
            if not apart and other.offset < offset + aligned(life.bytes):
                offset = max(offset, other.offset + aligned(other.bytes))
        life.offset = offset
        placed.append(life)
    return max((life.offset + aligned(life.bytes) for life in placed), default=0)
