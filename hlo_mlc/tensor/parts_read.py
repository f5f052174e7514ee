"""Operands of which a nest reads one part only: nests that differ in which are one on these parts.

y[i] = exp(w[3, i])     ->     y[i] = exp(v[i])     with v = w[3]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hlo_mlc.expr.build import load
from hlo_mlc.expr.core import Buffer, Const, Expr, Load
from hlo_mlc.tensor.core import Nest
from hlo_mlc.tensor.rewrite import replace_loads

Place = tuple[int, ...]  # the first indices of a part


def parts_read(nest: Nest, operands: Iterable[Buffer]) -> dict[Buffer, Place]:
    """The largest part of each operand that has all that is read of it; a whole one has no first
    indices."""
    kept = {b for stage in nest.stages for b in stage.overwrites}
    return {b: () if b in kept else _read_of(b, nest) for b in operands}


def _read_of(buffer: Buffer, nest: Nest) -> Place:
    reads = (s.loads_by_buffer.get(buffer, ()) for s in nest.stages)
    together = zip(*(one.indices for group in reads for one in group), strict=True)
    place = []
    for indices, extent in zip(together, buffer.shape, strict=False):
        if not isinstance(indices[0], Const) or any(i is not indices[0] for i in indices):
            break
        if not 0 <= indices[0].value < extent:  # what a guard keeps from being read
            break
        place.append(int(indices[0].value))
    return tuple(place)


def on_parts(nest: Nest, places: Mapping[Buffer, Place]) -> tuple[Nest, tuple[Buffer, ...]]:
    """The nest that reads parts of operands as buffers of their own, and these."""
    parts = {
        b: replace(b, shape=b.shape[len(place) :]) if place else b for b, place in places.items()
    }
    if not any(places.values()):
        return nest, tuple(parts.values())

    def read(one: Load) -> Expr:
        indices = one.indices[len(places[one.source]) :]
        return load(parts[one.source], indices, one.guard, one.default)

    values = {b: read for b, place in places.items() if place}
    stages = tuple(replace_loads(stage, values) for stage in nest.stages)
    return replace(nest, stages=stages), tuple(parts.values())
