"""Loops of a few trips over short vectors, written out: no trip goes through memory.

    p = [0, 1, 2]                                    the elements of p after three exchanges, as
    for k in 0..3: swap p[k] and p[pivots[k]]   ->   selections among 0, 1 and 2

What is carried has one short axis, and a batch that every trip reads and writes at its own point.
An element at a place that is known at run time only is selected from all of them.  JAX turns the
pivots of a factorization into a permutation so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, transform
from hlo_mlc.expr.core import Const, Expr
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.counting import Progression, counting
from hlo_mlc.ops.definition import Indices, Pointwise, Read, Unrolled, Update
from hlo_mlc.ops.registry import lookup
from hlo_mlc.partition.lower.stages import StageLowering
from hlo_mlc.tensor.access import as_integer, picked
from hlo_mlc.tensor.classify import cost

# Trips, elements of the short axis, operations of all trips before they are simplified, and of
# what is left of them: they bound what compiling takes, which no prediction of a call counts
# (solve_8x8, solve_16x16 and random_walk of the bench).
_MOST_TRIPS, _LONGEST, _MOST_NODES, _MOST_OPERATIONS = 16, 16, 1024, 4096


class _Refused(Exception):
    """Something in the body is not about its own point of the batch."""


def write_out(node: Node, outer: StageLowering, literal: Callable[[Value], int | None]) -> bool:
    """Lower a while loop to one stage if it is short; False where it is not.

    `literal`: the integer that a scalar is known to be.
    """
    body = node.regions[1]
    found = counting(node, literal)
    if (
        found is None
        or not 0 < found.trips <= _MOST_TRIPS
        or found.trips * len(body.nodes) > _MOST_NODES
        or not any(
            "scatter" in inner.op or inner.op == "stablehlo.dynamic_update_slice"
            for inner in body.nodes
        )
    ):
        return False
    counters = found.carried(body)
    same = [k for k, v in enumerate(body.results) if v is body.parameters[k]]
    vectors = [k for k in range(len(body.results)) if k not in counters and k not in same]
    shapes = {node.results[k].type.shape for k in vectors}
    if (
        not shapes
        or any(not shape or not 0 < shape[-1] <= _LONGEST for shape in shapes)
        or len({shape[:-1] for shape in shapes}) > 1
    ):
        return False
    batch = next(iter(shapes))[:-1]
    loop = _ShortLoop(node, outer, counters, vectors, found.trips, batch)
    try:
        outer.unrolled(node, Unrolled(batch, loop.elements), [node.results[k] for k in vectors])
    except _Refused:
        return False
    for k in same:
        outer.alias(node, node.results[k], node.operands[k])
    for k, progression in counters.items():
        end, dtype = progression.at(found.trips), node.results[k].type.dtype
        outer.compute(node, node.results[k], lambda _, end=end, dtype=dtype: const(end, dtype))
    return True


@dataclass(frozen=True, slots=True)
class _ShortLoop:
    """The trips of a loop, at one point of the batch."""

    node: Node
    outer: StageLowering
    counters: Mapping[int, Progression]
    vectors: list[int]
    trips: int
    batch: tuple[int, ...]

    def elements(self, point: Indices) -> tuple[tuple[tuple[Indices, Expr], ...], ...]:
        """The vectors after the last trip, with their places.

        Raises: _Refused.
        """
        body = self.node.regions[1]
        state = {
            k: _elements(self.outer.reader(self.node.operands[k]), point, self.node.operands[k])
            for k in self.vectors
        }
        for trip in range(self.trips):
            known = {
                p: self.outer.reader(self.node.operands[k]) for k, p in enumerate(body.parameters)
            }
            for k, progression in self.counters.items():
                known[body.parameters[k]] = _constant(progression.at(trip), body.parameters[k])
            for k in self.vectors:
                known[body.parameters[k]] = _selected(state[k], point)
            self._run(body, known, point)
            after = ((k, body.results[k]) for k in self.vectors)
            state = {k: _elements(self._reader(v, known), point, v) for k, v in after}
            if cost(*(e for k in self.vectors for e in state[k])) > _MOST_OPERATIONS:
                raise _Refused
        return tuple(
            tuple(((*point, index.constant(i)), e) for i, e in enumerate(state[k]))
            for k in self.vectors
        )

    def _reader(self, value: Value, known: Mapping[Value, Read]) -> Read:
        """What a trip knows of a value, or what is known around the loop."""
        return known.get(value) or self.outer.reader(value)

    def _run(self, body: Graph, known: dict[Value, Read], point: Indices) -> None:
        """Adds what the nodes of the body compute in one trip."""
        for node in body.nodes:
            reads = [self._reader(v, known) for v in node.operands]
            definition = lookup(node.op)
            lowered = None if definition is None else definition.lower(node, reads)
            if isinstance(lowered, Pointwise):
                for value, element in zip(node.results, lowered.elements, strict=True):
                    known[value] = _remembered(element)
            elif isinstance(lowered, Update) and lowered.combiner is None:
                target = node.operands[lowered.target]
                old = _elements(reads[lowered.target], point, target)
                extents = lowered.extents
                if extents[: len(point)] != self.batch[: len(extents)] or any(
                    n != 1 for n in extents[len(point) :]
                ):
                    raise _Refused
                known[node.results[0]] = _selected(_updated(lowered, old, point), point)
            else:
                raise _Refused


def _constant(number: int, value: Value) -> Read:
    return lambda _: const(number, value.type.dtype)


def _remembered(element: Read) -> Read:
    known: dict[Indices, Expr] = {}

    def read(indices: Indices) -> Expr:
        if indices not in known:
            known[indices] = element(indices)
        return known[indices]

    return read


def _elements(read: Read, point: Indices, value: Value) -> list[Expr]:
    if len(value.type.shape) != len(point) + 1 or value.type.shape[-1] > _LONGEST:
        raise _Refused
    return [read((*point, index.constant(i))) for i in range(value.type.shape[-1])]


def _selected(elements: list[Expr], point: Indices) -> Read:
    """A vector by its elements: one of them at a place that is known, else selected.  What is read
    of a part that the place is not in is not used."""

    def read(indices: Indices) -> Expr:
        *batch, place = indices
        if tuple(batch) != point:
            raise _Refused
        if isinstance(place, Const):
            return elements[min(max(place.value, 0), len(elements) - 1)]
        return picked(elements, place)

    return read


def _updated(update: Update, old: list[Expr], point: Indices) -> list[Expr]:
    """The vector in which the element at the update's place is another one."""
    where = point[: len(update.extents)]
    where += (index.constant(0),) * (len(update.extents) - len(where))
    *batch, place = update.place(where)
    if tuple(batch) != point:
        raise _Refused
    element = update.element(where)
    new = []
    for i, before in enumerate(old):
        at = index.constant(i)
        number = as_integer(place)
        here = apply("eq", number, const(i, number.dtype))
        if update.guard is not None:
            exists = transform(update.guard(where), lambda _: None, {place: at})
            here = all_of(here, exists)
        new.append(apply("select", here, element, before))
    return new
