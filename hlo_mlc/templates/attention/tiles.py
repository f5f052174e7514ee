"""Tiles of sums in registers, and loops over rows and columns of what is packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import Accumulate, Stmt, Store
from hlo_mlc.loops.rewrite import Steps, serial, unrolled, vectorized
from hlo_mlc.templates.by_hand import across, bounded, in_parts
from hlo_mlc.templates.product import WRITTEN_ROWS

Element = Callable[[Expr, Expr], Expr]  # of a row and a column
Body = tuple[Stmt, ...]
Statements = Callable[[Expr, Expr], Steps]


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums of `buffer.shape[0]` rows by `width` columns in registers, vectors along the columns."""

    buffer: Buffer
    width: int
    lanes: int

    @staticmethod
    def of(name: str, dtype: DType, height: int, width: int, lanes: int) -> Tile:
        """A tile with registers of its own."""
        padded = -(-width // lanes) * lanes
        return Tile(
            Buffer(f"{name}{height}x{width}", dtype, (height, padded), "register"), width, lanes
        )

    def each(self, prefix: str, body: Statements) -> Body:
        """`body(row, column)` for every element, written out."""
        return (
            unrolled(
                f"{prefix}i",
                self.buffer.shape[0],
                lambda r: across(f"{prefix}j", self.width, self.lanes, lambda c: body(r, c)),
            ),
        )

    def fill(self, prefix: str, value: Element) -> Body:
        """tile[r, c] = value(r, c)"""
        return self.each(prefix, lambda r, c: Store(self.buffer, (r, c), value(r, c)))

    def multiply_add(self, prefix: str, combiner: Combiner, left: Element, right: Element) -> Body:
        """tile[r, c] += left(r, c) * right(r, c), for one step of the depth."""
        return self.each(
            prefix,
            lambda r, c: Accumulate((self.buffer,), (r, c), combiner, (left(r, c) * right(r, c),)),
        )

    def at(self, r: Expr, c: Expr) -> Expr:
        """The sum of a row and a column."""
        return load(self.buffer, (r, c))


def in_squares(name: str, size: Expr, most: int, width: int, lanes: int, body: Statements) -> Body:
    """`body(row, column)` for `size` rows (at most `most`) of `width` columns, in square blocks of
    `lanes` rows, of which a few at a time are written out.

    Where what is read lies along the rows of this, the printer loads a block and transposes it in
    registers, which takes an eighth of the time of gathers.
    """
    blocks, rest = size // lanes, size % lanes
    tall = min(lanes, WRITTEN_ROWS)

    def block(b: Var) -> Body:
        first = b * lanes

        def columns(column: Expr, count: int) -> Body:
            def row(r: Expr) -> Stmt:
                return vectorized(f"{name}l", count, lambda lane: body(first + r, column + lane))

            def rows(g: Expr) -> Stmt:
                return unrolled(f"{name}u", tall, lambda u: row(g * tall + u))

            return (serial(f"{name}g", lanes // tall, rows),)

        return in_parts(f"{name}v", width, lanes, columns)

    done = blocks * lanes
    parts = (
        serial(f"{name}b", blocks, block),
        serial(
            f"{name}t",
            rest,
            lambda t: across(f"{name}r", width, lanes, lambda c: body(bounded(done + t, most), c)),
        ),
    )
    return tuple(part for part in parts if index.bounds(part.extent)[1] > 0)


def over(name: str, axes: Sequence[Var], body: Callable[[Expr, Mapping[Var, Expr]], Body]) -> Body:
    """`body(position, {axis: index})` at every point of some axes."""
    return _over(name, axes, body, index.constant(0), {})


def _over(
    name: str,
    axes: Sequence[Var],
    body: Callable[[Expr, Mapping[Var, Expr]], Body],
    position: Expr,
    at: Mapping[Var, Expr],
) -> Body:
    """The loops inside of those whose variables are in `at`."""
    if len(at) == len(axes):
        return body(position, at)
    axis, scaled = axes[len(at)], position * axes[len(at)].extent
    return (
        serial(
            f"{name}{len(at)}",
            axis.extent,
            lambda i: _over(name, axes, body, scaled + i, {**at, axis: i}),
        ),
    )


def strips(name: str, size: Expr, most: int, tall: int, body: Callable[[Expr, int], Body]) -> Body:
    """`body(start, height)` for strips of `tall` elements; a known rest is one strip."""
    whole, rest = size // tall, size % tall
    done = whole * tall
    result: Body = ()
    if most >= tall:
        result = (serial(name, whole, lambda t: body(t * tall, tall)),)
    if not rest.free and not loads(rest):
        _, known = index.bounds(rest)
        return result + (body(done, int(known)) if known else ())
    return (*result, serial(f"{name}r", rest, lambda t: body(bounded(done + t, most), 1)))


def covering_strips(name: str, size: Expr, tall: int, body: Callable[[Expr, int], Body]) -> Body:
    """The same for what may be computed twice: the last strip begins early enough to be whole.

    There are at least `tall` elements.
    """
    last = size - tall
    count = (size + (tall - 1)) // tall
    return (serial(name, count, lambda t: body(index.minimum(t * tall, last), tall)),)
