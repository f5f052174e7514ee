"""What a block of rows reads, in the order in which it is multiplied: copies chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Expr, Load, Var
from hlo_mlc.loops.core import Stmt, Store
from hlo_mlc.loops.rewrite import Body, serial
from hlo_mlc.templates.attention.passes import Places
from hlo_mlc.templates.attention.tiles import Statements, in_squares, over
from hlo_mlc.templates.attention.workspace import Workspace, lies_along
from hlo_mlc.templates.by_hand import across, bounded
from hlo_mlc.tensor.chain import Chain


@dataclass(frozen=True, slots=True)
class Chunk:
    """`size` keys from `first`; at most `most`."""

    first: Expr
    size: Expr
    most: int
    extent: int  # of all keys

    def key(self, near: Expr) -> Expr:
        return bounded(self.first + near, self.extent)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a block is: the point `outer` of the outer axes, and its first row."""

    chain: Chain
    places: Places
    outer: Mapping[Var, Expr]
    start: Expr

    def point(
        self,
        row: Expr,
        *,
        column: Expr | None = None,
        key: Expr | None = None,
        near: Expr | None = None,
    ) -> dict[Var, Expr]:
        """A row of the block, and a column or a key."""
        chain, places = self.chain, self.places
        where = {**self.outer, chain.row: self.start + row, places.here: row}
        given = ((chain.column, column), (chain.key, key), (places.near, near))
        return where | {var: value for var, value in given if value is not None}

    def at(self, e: Expr, row: Expr, **where: Expr | None) -> Expr:
        """An expression there."""
        return substitute(e, self.point(row, **where))

    def place(self, place: Load, row: Expr, **where: Expr | None) -> tuple[Expr, ...]:
        """The indices of a load there."""
        return tuple(self.at(i, row, **where) for i in place.indices)


class Packing:
    """The copies of a block of `height` rows; transposed in registers where what is read lies
    across."""

    def __init__(self, frame: Frame, space: Workspace, lanes: int, height: int) -> None:
        self.frame, self.chain, self.space = frame, frame.chain, space
        self.lanes, self.height, self.name = lanes, height, frame.chain.row.name
        place = (frame.places.near, frame.places.here)
        self.nearby = {read: load(b, place) for read, b in space.crossing}

    def queries(self) -> Body:
        """The queries with their rows side by side."""
        axes, name = self.chain.first.reduce_axes, f"{self.name}_q"

        def element(d: Expr, r: Expr, depth: Mapping[Var, Expr]) -> Stmt:
            value = substitute(self.frame.at(self.chain.query, r), depth)
            return Store(self.space.queries, (d, r), value)

        if lies_along(self.chain.query, axes):
            (axis,) = axes
            return self._in_squares(
                name,
                index.constant(axis.extent),
                axis.extent,
                lambda d, r: element(d, r, {axis: d}),
            )
        return over(
            name,
            axes,
            lambda d, depth: across(
                f"{name}r", self.height, self.lanes, lambda r: element(d, r, depth)
            ),
        )

    def keys(self, chunk: Chunk) -> Body:
        """The keys of a chunk, one after the other."""
        if self.space.keys is None:
            return ()
        (*outer, inner), name = self.chain.first.reduce_axes, f"{self.name}_k"

        def of_key(near: Expr) -> Body:
            key = {**self.frame.outer, self.chain.key: chunk.key(near)}
            value = substitute(self.chain.keys, key)

            def element(d: Expr, c: Expr, depth: Mapping[Var, Expr]) -> Stmt:
                place = (near, d * inner.extent + c)
                return Store(self.space.keys, place, substitute(value, {**depth, inner: c}))

            return over(
                f"{name}d",
                outer,
                lambda d, depth: across(
                    f"{name}p", inner.extent, self.lanes, lambda c: element(d, c, depth)
                ),
            )

        return (serial(f"{name}n", chunk.size, of_key),)

    def values(self, chunk: Chunk) -> Body:
        """The values of a chunk, their columns side by side."""
        if self.space.values is None:
            return ()
        chain, name, extent = self.chain, f"{self.name}_v", self.chain.column.extent

        def element(near: Expr, c: Expr) -> Stmt:
            where = {**self.frame.outer, chain.key: chunk.key(near), chain.column: c}
            return Store(self.space.values, (near, c), substitute(chain.values, where))

        if lies_along(chain.values, (chain.key,)):
            return in_squares(name, chunk.size, chunk.most, extent, self.lanes, element)
        return (
            serial(
                f"{name}n",
                chunk.size,
                lambda near: across(f"{name}c", extent, self.lanes, lambda c: element(near, c)),
            ),
        )

    def crossing(self, name: str, needed: Set[Load], chunk: Chunk) -> Body:
        """What lies along the keys, with the rows side by side."""

        def one(number: int, read: Load) -> Body:
            return self._in_squares(
                f"{name}x{number}",
                chunk.size,
                chunk.most,
                lambda near, r: Store(
                    buffers[read], (near, r), self.frame.at(read, r, key=chunk.key(near))
                ),
            )

        buffers = dict(self.space.crossing)
        return tuple(
            s for number, read in enumerate(buffers) if read in needed for s in one(number, read)
        )

    def _in_squares(self, name: str, size: Expr, most: int, body: Statements) -> Body:
        return in_squares(name, size, most, self.height, self.lanes, body)
