"""Small tensors of a batch in lanes: tiles whose rows are vectors, a lane for each tensor.

In memory the elements of one tensor lie side by side, those of the next come after them.  A block
of tensors, as many as a vector has lanes, is transposed into a tile; all is computed from tiles
into tiles, and these are transposed back:

    parallel block of tensors
      for each row of 16 elements: tile[16 elements, 16 tensors] = x[16 tensors, 16 elements]
      …
      for each row of 16 elements: y[16 tensors, 16 elements] = tile[16 elements, 16 tensors]

Lanes of the last block that are no tensors compute what the last tensor's does, and store nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import bounded, decoded, lanes, shared_out, work
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.core import Assign, Nest, Stage, buffer_of

# Elements of a tensor from which on squares gain something over element by element.
_SMALLEST = 4

Access = Load | Assign
Tensor = tuple[Buffer, tuple[Expr, ...]]
"""A buffer and the indices that say which tensor in it."""


def begin(access: Access, axis: Var) -> int | None:
    """The first dimension of the tensors that an access is about, which come one after the other
    along `axis`, and of which it meets the same element in each; None where that is not so, or
    where a guard says which of them there are."""
    buffer = buffer_of(access)
    if access.guard is not None or any(loads(i) for i in access.indices):
        return None
    apart, size, position = stride(access, axis), 1, len(buffer.shape)
    while size != apart:
        position -= 1
        if position < 0 or axis in access.indices[position].free:
            return None
        size *= buffer.shape[position]
    return position


def tensor(access: Access, axis: Var) -> Tensor:
    """The tensor of an access that has a `begin`."""
    buffer = buffer_of(access)
    return buffer, access.indices[:begin(access, axis)]


@dataclass(frozen=True, slots=True)
class Tile:
    """The elements of a block of tensors, [elements, lanes], or in the shape that each tensor has.
    """

    buffer: Buffer
    source: Buffer  # in memory
    leading: tuple[Expr, ...]  # the indices that say which tensor

    @property
    def elements(self) -> int:
        """Of each tensor."""
        return math.prod(self.source.shape[len(self.leading):])

    def row(self, access: Access) -> tuple[Expr, ...]:
        """Where the lanes of what an access meets are."""
        inner = access.indices[len(self.leading):]
        if len(self.buffer.shape) != 2:
            return inner
        number, step = index.constant(0), 1
        for i, extent in zip(reversed(inner), reversed(self.source.shape), strict=False):
            number = index.add(number, index.multiply(i, index.constant(step)))
            step *= extent
        return (number,)

    def places(self, element: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Where the element of that number is in the tile, but for its lane, and in memory."""
        inner = self.source.shape[len(self.leading):]
        axes = [Var(f"d{k}", INDEX, extent) for k, extent in enumerate(inner)]
        at = decoded(axes, element)
        point = tuple(bounded(at[v], v.extent) for v in axes)
        return (element,) if len(self.buffer.shape) == 2 else point, (*self.leading, *point)


@dataclass(frozen=True, slots=True)
class LaneBlocks:
    """Blocks of `width` tensors along `axis`, the tiles that are filled first and those that are
    stored in the end, and what is found element by element."""

    axis: Var
    width: int
    read: tuple[Tile, ...]
    written: tuple[Tile, ...]
    single: tuple[tuple[Load, Buffer], ...] = ()

    def blocks(self, nest: Nest, body: Callable[[Expr], tuple[Stmt, ...]],
               private: Iterable[Buffer] = ()) -> tuple[Stmt, ...]:
        """All blocks; `body(first)` is done between filling and storing tiles, with `private`
        buffers that are no tiles."""
        buffers = dict.fromkeys((*(t.buffer for t in (*self.read, *self.written)),
                                 *(b for _, b in self.single), *private))
        whole, rest = divmod(self.axis.extent, self.width)

        def block(number: Expr) -> tuple[Stmt, ...]:
            first = index.multiply(number, index.constant(self.width))
            filled, stored = self._transposed_in(first), self._transposed_out(first)
            if rest:
                last = self._element_by_element(first, rest)
                is_whole = index.compare("lt", number, index.constant(whole))
                filled = (If(is_whole, filled, last[0]),) if whole else last[0]
                stored = (If(is_whole, stored, last[1]),) if whole else last[1]
            return allocated(reversed(buffers), (*filled, *body(first), *stored))

        return shared_out(f"{self.axis.name}_block", whole + (rest > 0), work(nest), block)

    def lanes(self, body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """A vector of what is done in each lane."""
        return (loop(f"{self.axis.name}_lane", self.width, LoopKind.VECTORIZE, body),)

    def near(self, node: Expr, lane: Expr, tiles: Mapping[Tensor, Tile]) -> Expr | None:
        """What is loaded from a tile instead of from memory; None for anything else."""
        if not isinstance(node, Load) or begin(node, self.axis) is None:
            return None
        tile = tiles.get(tensor(node, self.axis))
        return None if tile is None else load(tile.buffer, (*tile.row(node), lane))

    def _at(self, e: Expr, point: Expr) -> Expr:
        return substitute(e, {self.axis: point})

    def _transposed_in(self, first: Expr) -> tuple[Stmt, ...]:
        def one(t: Tile) -> tuple[Stmt, ...]:
            return _rows(t, self.width, lambda e: (
                loop(f"{t.buffer.name}_l", self.width, LoopKind.VECTORIZE, lambda lane: (
                    self._filled(t, e, lane, index.add(first, lane)),)),))

        single = tuple(self._found(node, buffer, first) for node, buffer in self.single)
        return (*(s for t in self.read for s in one(t)), *single)

    def _found(self, node: Load, buffer: Buffer, first: Expr, last: int | None = None) -> Stmt:
        def element(lane: Expr) -> tuple[Stmt, ...]:
            point = index.add(first, lane)
            if last is not None:
                point = index.minimum(point, index.constant(last))
            return (Store(buffer, (lane,), self._at(node, point)),)

        return loop(f"{buffer.name}_l", self.width, LoopKind.VECTORIZE, element)

    def _filled(self, t: Tile, e: Expr, lane: Expr, point: Expr) -> Store:
        row, place = t.places(e)
        return Store(t.buffer, (*row, lane), load(
            t.source, tuple(self._at(i, point) for i in place)))

    def _stored(self, t: Tile, e: Expr, lane: Expr, point: Expr) -> Store:
        row, place = t.places(e)
        return Store(t.source, tuple(self._at(i, point) for i in place),
                     load(t.buffer, (*row, lane)))

    def _transposed_out(self, first: Expr) -> tuple[Stmt, ...]:
        def one(t: Tile) -> tuple[Stmt, ...]:
            name, side = t.buffer.name, min(_side(t.elements), self.width)
            if side < _SMALLEST or self.width % side:
                return (loop(f"{name}_e", t.elements, LoopKind.UNROLL, lambda e: (
                    loop(f"{name}_l", self.width, LoopKind.VECTORIZE, lambda lane: (
                        self._stored(t, e, lane, index.add(first, lane)),)),)),)

            def square(start: Expr) -> tuple[Stmt, ...]:
                def tensors(group: Expr) -> tuple[Stmt, ...]:
                    def one_tensor(r: Expr) -> tuple[Stmt, ...]:
                        lane = index.add(index.multiply(group, index.constant(side)), r)
                        return (loop(f"{name}_c", side, LoopKind.VECTORIZE, lambda c: (
                            self._stored(t, index.add(start, c), lane,
                                         index.add(first, lane)),)),)

                    return (loop(f"{name}_r", side, LoopKind.UNROLL, one_tensor),)

                return (loop(f"{name}_g", self.width // side, LoopKind.SERIAL, tensors),)

            return _starts(name, t.elements, side, square)

        return tuple(s for t in self.written for s in one(t))

    def _element_by_element(self, first: Expr, rest: int
                            ) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """How tiles are filled and stored where fewer tensors than lanes are left."""
        last = index.constant(self.axis.extent - 1)

        def fill(t: Tile) -> Stmt:
            name = t.buffer.name
            return loop(f"{name}_e", t.elements, LoopKind.SERIAL, lambda e: (
                loop(f"{name}_l", self.width, LoopKind.VECTORIZE, lambda lane: (
                    self._filled(t, e, lane, index.minimum(index.add(first, lane), last)),)),))

        def store(t: Tile) -> Stmt:
            name = t.buffer.name
            return loop(f"{name}_e", t.elements, LoopKind.SERIAL, lambda e: (
                loop(f"{name}_l", rest, LoopKind.VECTORIZE, lambda lane: (
                    self._stored(t, e, lane, index.add(first, lane)),)),))

        single = tuple(self._found(n, b, first, self.axis.extent - 1) for n, b in self.single)
        return (*map(fill, self.read), *single), tuple(map(store, self.written))


def width_for(stage: Stage, target: CpuTarget) -> int:
    """How many tensors along its one axis are computed at a time."""
    return min(lanes((stage,), target), 1 << (stage.axes[-1].extent - 1).bit_length())


def tiles_for(stage: Stage, kind: str, accesses: Sequence[Access], width: int) -> tuple[Tile, ...]:
    """A tile for each tensor that some of these meet."""
    found: dict[Tensor, Tile] = {}
    for source, leading in (tensor(access, stage.axes[-1]) for access in accesses):
        shape = (math.prod(source.shape[len(leading):]), width)
        tile = Buffer(f"{stage.name}_{kind}{len(found)}", source.dtype, shape, "stack")
        found.setdefault((source, leading), Tile(tile, source, leading))
    return tuple(found.values())


def _side(elements: int) -> int:
    return 1 << elements.bit_length() - 1


def _starts(name: str, elements: int, side: int, body: Callable[[Expr], tuple[Stmt, ...]]
            ) -> tuple[Stmt, ...]:
    """`body` for the first of each `side` elements; the last ones end with the last element."""
    found = (loop(f"{name}_s", elements // side, LoopKind.SERIAL,
                  lambda s: body(index.multiply(s, index.constant(side)))),)
    return (*found, *body(index.constant(elements - side))) if elements % side else found


def _rows(t: Tile, width: int, body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """`body` for each row of a tile, as many at a time as are transposed together."""
    name, side = t.buffer.name, min(_side(t.elements), width)
    if side < _SMALLEST:
        return (loop(f"{name}_e", t.elements, LoopKind.SERIAL, body),)
    return _starts(name, t.elements, side, lambda start: (
        loop(f"{name}_c", side, LoopKind.UNROLL, lambda c: body(index.add(start, c))),))
