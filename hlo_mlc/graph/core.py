"""The graph: typed values and nodes in single-assignment form, with nested graphs for regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hlo_mlc.expr.dtypes import TensorType, from_numpy

WHILE = "stablehlo.while"
BRANCHES = ("stablehlo.if", "stablehlo.case")
CONTROL_FLOW = frozenset((WHILE, *BRANCHES))
"""What runs its regions as parts of the program, with the values around them."""

# What a node's attribute may hold: everything prints, compares and hashes.  Large constants are
# arrays (`Node.literal`), never attributes.
Attribute = bool | int | float | str | tuple["Attribute", ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One result of a node or one parameter of a graph; identity is equality.

    `type` is None where the type is not modelled (token, tuple, f8, …).
    """

    type: TensorType | None
    name: str = ""

    def __repr__(self) -> str:
        return f"%{self.name or hex(id(self))[-5:]}: {self.type}"


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Keeps the MLIR operation that a node came from, so that it can be written back whole.

    `operation` is an `ir.Operation` and `module` the `ir.Module` that owns its memory; only
    frontend/ looks inside them.  `attributes` and `regions` say what the operation holds: while
    the node has the same ones, the operation is cloned; else it is built anew.
    A rewrite that changes result types or the literal drops the origin.
    """

    operation: object
    module: object
    attributes: Mapping[str, Attribute]
    regions: tuple[Graph, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation: `results = op(operands) {attributes} (regions)`.

    `op` is the StableHLO/CHLO name with its dialect prefix ("stablehlo.add").  An *opaque* node
    is one of another dialect, or whose types or attributes are not modelled: it can only be
    written back through its `origin`.  Where a region of an opaque node could not be read,
    `regions` is empty and the values that the region uses follow the op's own operands.
    """

    op: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    regions: tuple[Graph, ...] = ()
    literal: np.ndarray | None = None  # the payload of stablehlo.constant
    location: str = ""  # the user's file:line and op name, for messages
    origin: Origin | None = None
    opaque: str = ""  # why the node is opaque; empty for a modelled node

    @property
    def used(self) -> tuple[Value, ...]:
        """The operands, and what the regions take from outside."""
        return (*self.operands, *(v for region in self.regions for v in region.captures))


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Parameters, nodes in topological order, and results.

    The graph of a region may use values of the graphs around it; they are its `captures`.
    """

    parameters: tuple[Value, ...]
    nodes: tuple[Node, ...]
    results: tuple[Value, ...]
    _captures: tuple[Value, ...] | None = field(default=None, init=False, repr=False)
    _ops: frozenset[str] | None = field(default=None, init=False, repr=False)

    def walk(self) -> Iterator[Node]:
        """All nodes, those of nested regions included, outer before inner."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    @property
    def ops(self) -> frozenset[str]:
        """The ops of all nodes, those of nested regions included."""
        if self._ops is None:  # found once: most passes are for programs that have some op
            inner = (region.ops for node in self.nodes for region in node.regions)
            found = frozenset([node.op for node in self.nodes]).union(*inner)
            object.__setattr__(self, "_ops", found)
        return self._ops

    @property
    def captures(self) -> tuple[Value, ...]:
        """Values used here that are defined outside, in order of first use."""
        if self._captures is None:  # found once: in deep nests everybody asks for them
            object.__setattr__(self, "_captures", self._from_outside())
        return self._captures

    def _from_outside(self) -> tuple[Value, ...]:
        defined: set[Value] = set(self.parameters)
        found: dict[Value, None] = {}
        for node in self.nodes:
            for value in node.used:
                if value not in defined:
                    found.setdefault(value)
            defined.update(node.results)
        for value in self.results:
            if value not in defined:
                found.setdefault(value)
        return tuple(found)


def constant_node(literal: np.ndarray, location: str = "") -> Node:
    """A stablehlo.constant of the array's own type."""
    value = Value(TensorType(literal.shape, from_numpy(literal.dtype)))
    return Node("stablehlo.constant", (), (value,), literal=literal, location=location)
