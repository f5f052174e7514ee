"""Small tensors of a batch, written out: what is computed of each of them stands in one lane.

In memory the elements of one tensor lie side by side, those of the next come after them.  A block
of tensors, as many as a vector has lanes, is transposed into a tile whose rows are vectors; all is
computed from tiles into tiles, and these are transposed back:

    parallel block of tensors
      for each row of 16 elements: tile[16 elements, 16 tensors] = x[16 tensors, 16 elements]
      for lane: written out, from the rows of tiles to the rows of others
      for each row of 16 elements: y[16 tensors, 16 elements] = tile[16 elements, 16 tensors]

What is written out is there once: lanes of the last block that are no tensors compute what the last
tensor's does, and store nothing.

Where each tensor has a loop of its own, what is carried from trip to trip is a vector for each
value, too:

      for lane: carried[16 tensors] = written out, from the rows of tiles
      for trip: for lane: carried[16 tensors] = written out, from what is carried
      for lane: written out, from both to the rows of others
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    Fixed,
    Parameters,
    Scheduled,
    bounded,
    decoded,
    lanes,
    shared_out,
    work,
)
from hlo_mlc.tensor.classify import is_in_order, is_injective, is_map, is_written_out, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Elements of a tensor from which on squares gain something over element by element.
_SMALLEST = 4


@dataclass(frozen=True, slots=True)
class UnrolledTemplate(Fixed):
    """Blocks of tensors, transposed so that each has a lane."""

    name: str = "unrolled"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not written out for each point of one axis; empty where it is."""
        if len(nest.stages) != 1 or not nest.stages[0].axes \
                or not (is_map(nest.stages[0]) or is_in_order(nest.stages[0])):
            return "not a single elementwise stage"
        stage = coalesce(nest.stages[0])
        axis = stage.axes[-1]
        if len(stage.axes) > 1 or any(_begin(a, axis) is None for a in stage.assigns) \
                or not is_written_out(stage):
            return "no tensors one after the other, written out"
        if len({_tensor(a, axis) for a in stage.assigns}) > len(stage.outputs):
            return "elements that lie apart, each beside those of the next tensor"
        stored = {(a.buffer, tuple(a.indices)) for a in stage.assigns}
        if len(stored) < len(stage.assigns) \
                or len(stored) * axis.extent != sum(b.size for b in stage.outputs) \
                or not all(is_injective(a, stage.axes) for a in stage.assigns):
            return "not every element is written once"
        if any(load.guard is not None for group in stage.loads_by_buffer.values()
               for load in group) or any(a.guard is not None for a in stage.assigns):
            return "some elements do not exist"
        if set(stage.inputs) & {*stage.outputs, *stage.overwrites}:
            return "it reads what it overwrites"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops."""
        stage = coalesce(nest.stages[0])
        extent = stage.axes[-1].extent
        width = min(lanes((stage,), target), 1 << (extent - 1).bit_length())
        blocks = -(-extent // width)
        return Scheduled(shared_out(f"{stage.axes[-1].name}_block", blocks, work(nest),
                                    _Blocks.of(stage, width).block), ())


def _begin(access: Load | Assign, axis: Var) -> int | None:
    """The first dimension of the tensors that an access is about, which come one after the other
    along `axis`, and of which it meets an element that is known; None where that is not so."""
    buffer = access.source if isinstance(access, Load) else access.buffer
    if any(loads(i) for i in access.indices):
        return None
    apart, size, position = stride(access, axis), 1, len(buffer.shape)
    while size != apart:
        position -= 1
        if position < 0 or not isinstance(access.indices[position], Const):
            return None
        size *= buffer.shape[position]
    return position


def _tensor(access: Load | Assign, axis: Var) -> tuple[Buffer, tuple[Expr, ...]]:
    """The buffer of an access that has a `_begin`, and the indices that say which tensor it is."""
    buffer = access.source if isinstance(access, Load) else access.buffer
    return buffer, access.indices[:_begin(access, axis)]


@dataclass(frozen=True, slots=True)
class _Tile:
    """The elements of a block of tensors, [elements, lanes], and one access to them in memory."""

    tile: Buffer
    buffer: Buffer
    leading: tuple[Expr, ...]  # the indices that say which tensor

    @property
    def elements(self) -> int:
        return self.tile.shape[0]

    def place(self, element: Expr) -> tuple[Expr, ...]:
        """Where an element of a tensor lies in memory."""
        inner = self.buffer.shape[len(self.leading):]
        axes = [Var(f"d{k}", INDEX, extent) for k, extent in enumerate(inner)]
        at = decoded(axes, element)
        return (*self.leading, *(bounded(at[v], v.extent) for v in axes))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The loops of a block of tensors."""

    stage: Stage
    width: int
    read: tuple[_Tile, ...]
    single: tuple[tuple[Load, Buffer], ...]  # what is found elsewhere, element by element
    written: tuple[_Tile, ...]
    carried: tuple[Buffer, ...]  # by a loop, the accumulators, [lanes]

    @staticmethod
    def of(stage: Stage, width: int) -> _Blocks:
        """The tiles of a stage over one axis."""
        (axis,) = stage.axes

        def tiles(kind: str, accesses: Sequence[Load | Assign]) -> tuple[_Tile, ...]:
            found: dict[tuple[Buffer, tuple[Expr, ...]], _Tile] = {}
            for buffer, leading in (_tensor(access, axis) for access in accesses):
                shape = (math.prod(buffer.shape[len(leading):]), width)
                tile = Buffer(f"{stage.name}_{kind}{len(found)}", buffer.dtype, shape, "stack")
                found.setdefault((buffer, leading), _Tile(tile, buffer, leading))
            return tuple(found.values())

        every = [one for group in stage.loads_by_buffer.values() for one in group
                 if any(axis in i.free for i in one.indices)]
        nested = {inner for one in every for i in one.indices for inner in loads(i)}
        known = {one for one in every if _begin(one, axis) is not None}
        alone = [one for one in every if one not in known and one not in nested]
        read = tiles("in", [one for one in every if one in known])
        single = tuple((one, Buffer(f"{stage.name}_one{k}", one.dtype, (width,), "stack"))
                       for k, one in enumerate(alone))
        carried = tuple(Buffer(f"{stage.name}_{v.name}", v.dtype, (width,), "stack")
                        for v in stage.accumulators)
        return _Blocks(stage, width, read, single, tiles("out", stage.assigns), carried)

    def block(self, number: Expr) -> tuple[Stmt, ...]:
        """What is done for one block."""
        extent = self.stage.axes[-1].extent
        whole, rest = divmod(extent, self.width)
        first = index.multiply(number, index.constant(self.width))
        begin, end = self._transposed_in(first), self._transposed_out(first)
        if rest:
            last = self._element_by_element(first, extent, rest)
            is_whole = index.compare("lt", number, index.constant(whole))
            begin = (If(is_whole, begin, last[0]),) if whole else last[0]
            end = (If(is_whole, end, last[1]),) if whole else last[1]
        body = (*begin, *self._computed(first), *end)
        tiles = [t.tile for t in (*self.read, *self.written)]
        for buffer in (*tiles, *(b for _, b in self.single), *self.carried):
            body = (Allocate(buffer, body),)
        return body

    def _at(self, e: Expr, point: Expr) -> Expr:
        return substitute(e, {self.stage.axes[-1]: point})

    def _computed(self, first: Expr) -> tuple[Stmt, ...]:
        stage, rows = self.stage, {t.buffer: t for t in self.written}

        def start(lane: Expr) -> tuple[Stmt, ...]:
            return tuple(Store(b, (lane,), value) for b, value in zip(
                self.carried, self._near(stage.initial, first, lane), strict=True))

        def results(lane: Expr) -> tuple[Stmt, ...]:
            values = self._near([a.value for a in stage.assigns], first, lane)
            return tuple(Store(rows[a.buffer].tile, (_row(a), lane), value)
                         for a, value in zip(stage.assigns, values, strict=True))

        if not self.carried:
            return self._lanes(results)
        (trip,) = stage.reduce_axes
        step = self._lanes(lambda lane: (
            Accumulate(self.carried, (lane,), stage.combiner, stage.terms),))
        trips = For(trip, index.constant(trip.extent), LoopKind.SERIAL, step)
        return (*self._lanes(start), trips, *self._lanes(results))

    def _lanes(self, body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        (axis,) = self.stage.axes
        return (loop(f"{axis.name}_lane", self.width, LoopKind.VECTORIZE, body),)

    def _near(self, values: Sequence[Expr], first: Expr, lane: Expr) -> list[Expr]:
        """The values of a lane, of what is in tiles and of what is carried."""
        (axis,) = self.stage.axes
        tiles = {(t.buffer, t.leading): t.tile for t in self.read}
        known: dict[Expr, Expr] = {node: load(buffer, (lane,)) for node, buffer in self.single}
        known |= {v: load(buffer, (lane,)) for v, buffer in zip(
            self.stage.accumulators, self.carried, strict=True)}

        def near(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or _begin(node, axis) is None:
                return None
            tile = tiles.get(_tensor(node, axis))
            return None if tile is None else load(tile, (_row(node), lane))

        here, done = {axis: index.add(first, lane)}, {}
        return [substitute(transform(value, near, known), here, done) for value in values]

    def _transposed_in(self, first: Expr) -> tuple[Stmt, ...]:
        def one(t: _Tile) -> tuple[Stmt, ...]:
            return _rows(t, self.width, lambda e: (
                loop(f"{t.tile.name}_l", self.width, LoopKind.VECTORIZE, lambda lane: (
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

    def _filled(self, t: _Tile, e: Expr, lane: Expr, point: Expr) -> Store:
        at = tuple(self._at(i, point) for i in t.place(e))
        return Store(t.tile, (e, lane), load(t.buffer, at))

    def _stored(self, t: _Tile, e: Expr, lane: Expr, point: Expr) -> Store:
        at = tuple(self._at(i, point) for i in t.place(e))
        return Store(t.buffer, at, load(t.tile, (e, lane)))

    def _transposed_out(self, first: Expr) -> tuple[Stmt, ...]:
        def one(t: _Tile) -> tuple[Stmt, ...]:
            name, side = t.tile.name, min(_side(t.elements), self.width)
            if side < _SMALLEST or self.width % side:
                return (loop(f"{name}_e", t.elements, LoopKind.UNROLL, lambda e: (
                    loop(f"{name}_l", self.width, LoopKind.VECTORIZE, lambda lane: (
                        self._stored(t, e, lane, index.add(first, lane)),)),)),)

            def square(start: Expr) -> tuple[Stmt, ...]:
                def tensors(group: Expr) -> tuple[Stmt, ...]:
                    def tensor(r: Expr) -> tuple[Stmt, ...]:
                        lane = index.add(index.multiply(group, index.constant(side)), r)
                        return (loop(f"{name}_c", side, LoopKind.VECTORIZE, lambda c: (
                            self._stored(t, index.add(start, c), lane,
                                         index.add(first, lane)),)),)

                    return (loop(f"{name}_r", side, LoopKind.UNROLL, tensor),)

                return (loop(f"{name}_g", self.width // side, LoopKind.SERIAL, tensors),)

            return _starts(name, t.elements, side, square)

        return tuple(s for t in self.written for s in one(t))

    def _element_by_element(self, first: Expr, extent: int, rest: int
                            ) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """How tiles are filled and stored where fewer tensors than lanes are left."""
        last = index.constant(extent - 1)

        def fill(t: _Tile) -> Stmt:
            return loop(f"{t.tile.name}_e", t.elements, LoopKind.SERIAL, lambda e: (
                loop(f"{t.tile.name}_l", self.width, LoopKind.VECTORIZE, lambda lane: (
                    self._filled(t, e, lane, index.minimum(index.add(first, lane), last)),)),))

        def store(t: _Tile) -> Stmt:
            return loop(f"{t.tile.name}_e", t.elements, LoopKind.SERIAL, lambda e: (
                loop(f"{t.tile.name}_l", rest, LoopKind.VECTORIZE, lambda lane: (
                    self._stored(t, e, lane, index.add(first, lane)),)),))

        single = tuple(self._found(n, b, first, extent - 1) for n, b in self.single)
        return (*map(fill, self.read), *single), tuple(map(store, self.written))


def _row(access: Load | Assign) -> Expr:
    """The number of an element in its tensor."""
    buffer = access.source if isinstance(access, Load) else access.buffer
    number, step = 0, 1
    for i, extent in zip(reversed(access.indices), reversed(buffer.shape), strict=True):
        if not isinstance(i, Const):
            break
        number, step = number + step * i.value, step * extent
    return index.constant(number)


def _side(elements: int) -> int:
    return 1 << elements.bit_length() - 1


def _starts(name: str, elements: int, side: int, body: Callable[[Expr], tuple[Stmt, ...]]
            ) -> tuple[Stmt, ...]:
    """`body` for the first of each `side` elements; the last ones end with the last element."""
    found = (loop(f"{name}_s", elements // side, LoopKind.SERIAL,
                  lambda s: body(index.multiply(s, index.constant(side)))),)
    return (*found, *body(index.constant(elements - side))) if elements % side else found


def _rows(t: _Tile, width: int, body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """`body` for each row of a tile, as many at a time as are transposed together."""
    name, side = t.tile.name, min(_side(t.elements), width)
    if side < _SMALLEST:
        return (loop(f"{name}_e", t.elements, LoopKind.SERIAL, body),)
    return _starts(name, t.elements, side, lambda start: (
        loop(f"{name}_c", side, LoopKind.UNROLL, lambda c: body(index.add(start, c))),))
