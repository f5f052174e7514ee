"""The memory that loops touch, by boxes of buffers: what features.py knows of caches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var
from hlo_mlc.target.cpu import CACHE_LINE_BYTES

UNKNOWN_TRIPS = 16  # of a loop that ends when its values say so


@dataclass(slots=True)
class Reach:
    """The box of a buffer that an access touches in the loops that it was taken out of so far."""

    buffer: Buffer
    indices: Sequence[Expr]
    extents: list[float]
    trips: dict[Var, float]

    @staticmethod
    def at(buffer: Buffer, indices: Sequence[Expr]) -> Reach:
        """What is touched at one point."""
        return Reach(buffer, indices, [1.0] * len(indices), {})

    def grow(self, var: Var, trips: float) -> None:
        """Takes it out of a loop."""
        self.trips[var] = trips
        for axis, i in enumerate(self.indices):
            if var in i.free:
                self.extents[axis] = min(self.buffer.shape[axis], 1 + _moves(i, self.trips))

    def step(self, lanes: Var) -> int | None:
        """The elements between those of neighbouring lanes; None where that varies."""
        total = 0
        for i, stride in zip(self.indices, self.buffer.element_strides, strict=True):
            for atom, step in index.affine(i)[0].items():
                if atom is lanes:
                    total += stride * step
                elif lanes in atom.free:
                    return None
        return total

    @property
    def bytes(self) -> float:
        """Those of the cache lines."""
        axes = sorted(
            (stride, extent)
            for stride, extent, length in zip(
                self.buffer.element_strides, self.extents, self.buffer.shape, strict=True
            )
            if length > 1
        )
        first, *others = [extent for _, extent in axes] or [1.0]
        lines = max(first * self.buffer.dtype.bytes, CACHE_LINE_BYTES) * math.prod(others)
        return min(lines, max(self.buffer.bytes, CACHE_LINE_BYTES))


def _moves(i: Expr, trips: Mapping[Var, float]) -> float:
    """How far an index goes while these variables run, the others standing still."""
    return sum(abs(step) * _goes(atom, trips) for atom, step in index.affine(i)[0].items())


def _goes(atom: Expr, trips: Mapping[Var, float]) -> float:
    if isinstance(atom, Var):
        return max(0.0, trips.get(atom, 1.0) - 1)
    if trips.keys().isdisjoint(atom.free):
        return 0.0
    low, high = index.bounds(atom)
    if isinstance(atom, Apply) and atom.op in ("floordiv", "floormod", "min", "max"):
        inner, other = (_moves(arg, trips) for arg in atom.args)
        divisor = atom.args[1].value if atom.op == "floordiv" else 1
        return min(high - low, max(inner / divisor, other))
    return high - low if math.isfinite(high - low) else UNKNOWN_TRIPS


def held(reaches: Iterable[Reach]) -> float:
    """The bytes of several boxes, those of one buffer lying inside of the largest."""
    most: dict[str, float] = {}
    for reach in reaches:
        most[reach.buffer.name] = max(most.get(reach.buffer.name, 0.0), reach.bytes)
    return sum(most.values())


@dataclass(frozen=True, slots=True)
class Region:
    """A statement that is executed so many times and touches so many bytes each time."""

    times: float
    speed: float
    bytes: float
    parts: Sequence[Region]
    reaches: Sequence[Reach]

    @staticmethod
    def around(parts: Sequence[Region], times: float, speed: float) -> Region:
        """A statement that is made of others."""
        reaches = [reach for part in parts for reach in part.reaches]
        return Region(times, speed, held(reaches), parts, reaches)

    def traffic(self, capacity: float, shared: bool) -> float:
        """The bytes that come into a cache, where what fits is read once and nothing stays from
        one execution to the next."""
        if self.bytes <= capacity or not self.parts:
            return self.times * self.bytes / (1.0 if shared else self.speed)
        return sum(part.traffic(capacity, shared) for part in self.parts)
