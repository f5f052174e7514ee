"""The parts of buffers that loops touch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.loops.dependence import Access, accesses, variables
from hlo_mlc.loops.rewrite import Body


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """The part of a buffer that some statements touch: `extents` elements from `base` on.

    A dimension of which they touch one element is not part of the tile's own shape.
    """

    base: tuple[Expr, ...]
    extents: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(e for e in self.extents if e > 1)

    def place(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where in the tile the element at `indices` of the buffer is."""
        return tuple(
            i - b for i, b, e in zip(indices, self.base, self.extents, strict=True) if e > 1
        )

    def origin(self, inside: Iterable[Expr]) -> tuple[Expr, ...]:
        """Where in the buffer an element of the tile is."""
        position = iter(inside)
        return tuple(
            b + next(position) if e > 1 else b for b, e in zip(self.base, self.extents, strict=True)
        )


def tile_around(buffer: Buffer, found: list[Access], statements: Body) -> Tile:
    """The smallest tile around what `statements` touch, placed by what does not change in them;
    `found` are all accesses there."""
    inner, unstable = variables(statements), {a.buffer for a in found if a.writes}
    touched = [a for a in found if a.buffer == buffer]
    spans = [
        _span(buffer.shape[d], [a.indices[d] for a in touched], inner, unstable)
        for d in range(len(buffer.shape))
    ]
    return Tile(tuple(base for base, _ in spans), tuple(extent for _, extent in spans))


def _span(
    size: int, indices: list[Expr], inner: set[Var], unstable: set[Buffer]
) -> tuple[Expr, int]:
    """Start and length of the range of one dimension that `indices` cover."""
    whole = index.constant(0), size
    starts = set()
    low, high = math.inf, -math.inf
    for i in indices:
        terms, offset = index.affine(i)
        outer = {a: c for a, c in terms.items() if a.free.isdisjoint(inner)}
        if any(load.source in unstable for atom in outer for load in loads(atom)):
            return whole
        starts.add(index.from_affine(outer, 0))
        ends = index.bounds(
            index.from_affine({a: c for a, c in terms.items() if a not in outer}, offset)
        )
        low, high = min(low, ends[0]), max(high, ends[1])
    if len(starts) > 1 or high - low + 1 >= size:
        return whole
    return starts.pop() + int(low), int(high - low) + 1


def unstable_in(statements: Body) -> set[Buffer]:
    """The buffers of which a read, here and there, may not give the same value."""
    return {a.buffer for a in accesses(statements) if a.writes}
