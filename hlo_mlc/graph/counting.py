"""Loops that count: how often a while loop runs, and which of its integers count with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hlo_mlc.graph.core import WHILE, Graph, Node, Value

# The integer that a rank-0 value from outside of a loop is known to be; None where it is not.
Known = Callable[[Value], int | None]


@dataclass(frozen=True, slots=True)
class Progression:
    """An integer that is `start + step * trip` in trip 0, 1, … of a loop."""

    start: int
    step: int

    def at(self, trip: int) -> int:
        """Its value in a trip."""
        return self.start + self.step * trip

    def covers(self, extent: int, trips: int) -> bool:
        """True where it takes each value from 0 to `extent` - 1 in one of `trips` trips."""
        ends = {self.at(0), self.at(trips - 1)} if trips else set()
        return extent == trips and (abs(self.step) == 1 or trips == 1) and ends == {0, extent - 1}


@dataclass(frozen=True, slots=True)
class Counting:
    """What counts in a loop of `trips` trips: parameters of the body and scalars that it computes.

    None of the progressions leaves the range of its type while the loop runs.
    """

    trips: int
    progressions: Mapping[Value, Progression]

    def carried(self, body: Graph) -> dict[int, Progression]:
        """The progressions of what is carried, by position."""
        return {
            k: self.progressions[p] for k, p in enumerate(body.parameters) if p in self.progressions
        }


def counting(loop: Node, known: Known) -> Counting | None:
    """How `while i < limit: …; i = i + step` counts, or with `i <= limit`, where start, limit and
    step are literal; None for other loops."""
    body = loop.regions[1]
    literal = _literals(body, known)
    steps = _steps(body, literal)
    starts = {k: known(loop.operands[k]) for k in steps}
    found = _counter(loop, known, steps, starts)
    if found is None:
        return None
    trips, _ = found
    carried = {
        body.parameters[k]: Progression(starts[k], steps[k]) for k in steps if starts[k] is not None
    }
    carried = {v: p for v, p in carried.items() if _fits(p, trips + 1, v)}
    return Counting(trips, _derived(body, carried, literal, trips))


def overshoots(loop: Node, known: Known) -> bool:
    """Whether a loop that counts ends past its limit, not at it."""
    steps = _steps(loop.regions[1], _literals(loop.regions[1], known))
    starts = {k: known(loop.operands[k]) for k in steps}
    found = _counter(loop, known, steps, starts)
    return found is not None and found[1] > 0


def trips(nodes: Iterable[Node], known: Known, unknown: int) -> dict[Node, int]:
    """How often the loops among these nodes, and in their regions, run each time that they are
    reached: `unknown` times where nobody knows."""
    literals: dict[Value, int] = {}
    found: dict[Node, int] = {}

    def literal(value: Value) -> int | None:
        return literals.get(value, known(value))

    for node in _all(nodes):
        if node.literal is not None and not node.literal.ndim and node.literal.dtype.kind in "iu":
            literals[node.results[0]] = int(node.literal)
        if node.op == WHILE and not node.opaque:
            counted = counting(node, literal)
            found[node] = unknown if counted is None else counted.trips
    return found


def _all(nodes: Iterable[Node]) -> Iterator[Node]:
    """These and those in their regions, each before those in its own."""
    for node in nodes:
        yield node
        for region in node.regions:
            yield from region.walk()


def _counter(
    loop: Node, known: Known, steps: Mapping[int, int], starts: Mapping[int, int | None]
) -> tuple[int, int] | None:
    """How often a loop runs that counts, and by how much its counter is past the limit then."""
    condition = loop.regions[0]
    found = _bounded(condition)
    if found is None:
        return None
    position, bound, more = found
    limit = _literals(condition, known)(bound)
    start, step = starts.get(position), steps.get(position, 0)
    if limit is None or start is None or step <= 0:
        return None
    trips = max(0, -(-(limit + more - start) // step))
    counter = Progression(start, step)
    if not _fits(counter, trips + 1, bound):
        return None
    return trips, counter.at(trips) - (limit + more)


def _bounded(condition: Graph) -> tuple[int, Value, int] | None:
    """(position of i, limit, 0) of the condition `i < limit`, with 1 of `i <= limit`."""
    made = {v: n for n in condition.nodes for v in n.results}
    verdict = made.get(condition.results[0])
    if verdict is None or verdict.op != "stablehlo.compare":
        return None
    left, right = verdict.operands
    more = _MORE.get(verdict.attributes.get("comparison_direction"))
    if left not in condition.parameters or left.type is None or more is None:
        return None
    return condition.parameters.index(left), right, more


def _literals(graph: Graph, known: Known) -> Known:
    """`known`, and the constants of a region."""
    literals = {n.results[0]: n.literal for n in graph.nodes if n.literal is not None}

    def literal(value: Value) -> int | None:
        array = literals.get(value)
        if array is None:
            return known(value)
        return int(array) if not array.ndim and array.dtype.kind in "iu" else None

    return literal


def _steps(body: Graph, literal: Known) -> dict[int, int]:
    """By position, what each trip adds to a carried integer."""
    made = {v: n for n in body.nodes for v in n.results}
    steps = {}
    for position, (parameter, result) in enumerate(zip(body.parameters, body.results, strict=True)):
        update = made.get(result)
        if update is None or update.op != "stablehlo.add" or parameter not in update.operands:
            continue
        old, step = update.operands
        amount = literal(step if old is parameter else old)
        if amount is not None:
            steps[position] = amount
    return steps


def _derived(
    body: Graph, carried: Mapping[Value, Progression], literal: Known, trips: int
) -> dict[Value, Progression]:
    """`carried`, and what the body computes from them by adding, subtracting and converting."""
    found = dict(carried)

    def of(value: Value) -> Progression | None:
        number = literal(value)
        return found.get(value) if number is None else Progression(number, 0)

    for node in body.nodes:
        if (
            node.op not in _SIGNS
            or node.results[0].type is None
            or node.results[0].type.shape
            or not node.results[0].type.dtype.is_integer
        ):
            continue
        parts = [of(v) for v in node.operands]
        if None in parts:
            continue
        signs = _SIGNS[node.op]
        result = Progression(
            sum(s * p.start for s, p in zip(signs, parts, strict=True)),
            sum(s * p.step for s, p in zip(signs, parts, strict=True)),
        )
        if _fits(result, trips, node.results[0]):
            found[node.results[0]] = result
    return found


_MORE = {"LT": 0, "LE": 1}

_SIGNS = {
    "stablehlo.add": (1, 1),
    "stablehlo.subtract": (1, -1),
    "stablehlo.negate": (-1,),
    "stablehlo.convert": (1,),
}


def _fits(progression: Progression, trips: int, value: Value) -> bool:
    """Whether the type of `value` holds the first `trips` numbers."""
    bounds = np.iinfo(value.type.dtype.numpy)
    return all(bounds.min <= progression.at(t) <= bounds.max for t in (0, max(0, trips - 1)))
