"""Ordered passes over a graph: what each promises, and what each did."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.text import format_graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.support.errors import PassError


@dataclass(frozen=True, slots=True)
class Property:
    """Something that a graph has or lacks; `holds` is slow and only asked when verifying."""

    name: str
    holds: Callable[[Graph], bool]


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of whole graphs: needs the properties `requires`, leaves the ones in `ensures`.

    `run` returns the very graph that it was given where it changed nothing.
    """

    name: str
    run: Callable[[Graph], Graph]
    requires: tuple[Property, ...] = ()
    ensures: tuple[Property, ...] = ()


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one run of a pass did: its time and the number of nodes after it."""

    name: str
    time_ms: float
    changed: bool
    nodes: int

    def __str__(self) -> str:
        change = f"{self.nodes} nodes" if self.changed else "unchanged"
        return f"{self.name}: {change}, {self.time_ms:.2f} ms"


def run_passes(
    graph: Graph, passes: Sequence[Pass], *, rounds: int = 1, verify: bool = False
) -> tuple[Graph, tuple[PassRecord, ...]]:
    """Runs `passes` in order, in so many rounds at most: none runs again on a graph that all of
    them have left as it is.  With `verify`, checks the graph and the promises around each.

    Raises: PassError for a promise that is not kept, VerifyError for a malformed graph.
    """
    records = []
    unchanged = 0  # passes in a row that changed nothing
    for step in itertools.chain.from_iterable(itertools.repeat(passes, rounds)):
        if unchanged == len(passes):
            break
        if verify:
            _check(graph, step.requires, f"{step.name} requires")
        start = time.perf_counter()
        result = step.run(graph)
        time_ms = (time.perf_counter() - start) * 1e3
        if verify:
            verify_graph(result)
            _check(result, step.ensures, f"{step.name} ensures")
        records.append(PassRecord(step.name, time_ms, result is not graph, len(result.nodes)))
        unchanged = unchanged + 1 if result is graph else 0
        graph = result
    return graph, tuple(records)


def _check(graph: Graph, properties: tuple[Property, ...], who: str) -> None:
    for wanted in properties:
        if not wanted.holds(graph):
            raise PassError(
                f"{who} a graph with {wanted.name}, but it is not so", context=format_graph(graph)
            )
