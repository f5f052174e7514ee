"""Where the codes of long rows lie while runs of them are merged: in one of two rooms, from which
they go into the other at each level.

Both rooms are memory of the kernel's own where that is little: rows of one buffer, so that levels
differ in numbers alone.  Of many codes, the second room is the memory of a result whose elements
are as long as codes, which has nothing to hold until the last of them is in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, compare, const, select, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.loops.core import If, Stmt, Store
from hlo_mlc.loops.rewrite import serial, vectorized
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import read, store
from hlo_mlc.templates.sorting.codes import Coded
from hlo_mlc.templates.sorting.records import Body, Place, Sorting
from hlo_mlc.tensor.classify import is_plain, stride
from hlo_mlc.tensor.core import Assign

# Bytes of a room beyond which the second is a result's: XLA sorts in place, and of larger rooms two
# would be more than what a call may need besides (8 MiB).  Merging from the one and from the other
# are loops of their own then, which took 20 to 100 ms longer to compile.
MANY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Codes:
    """Codes by their places: how one is read, and written."""

    read: Callable[[Expr], Expr]
    write: Callable[[Expr, Expr], Store]

    @staticmethod
    def of(buffer: Buffer, place: Place) -> Codes:
        """Those of a buffer."""
        return Codes(
            lambda i: read(buffer, *place(i)), lambda i, code: store(buffer, code, *place(i))
        )

    def behind(self, first: Expr) -> Codes:
        """Those from a place on."""
        return Codes(lambda i: self.read(first + i), lambda i, code: self.write(first + i, code))


Room = Callable[[Expr], Codes]
"""The codes of a row, by its number."""


class Rooms:
    """Two rooms for rows of `size` codes, of which as many as there are elements are of these and
    the others, behind them, the largest; all of them are merged at so many `levels`."""

    def __init__(self, coded: Coded, sorting: Sorting, size: int, levels: int) -> None:
        self.sorting, self.size, self.levels, self.dtype = sorting, size, levels, coded.dtype
        self.name, self.lanes = coded.stage.name, sorting.width
        total, needs_two = sorting.rows * size, levels > 0 or bool(coded.ties)
        is_large = total * coded.dtype.bytes > MANY_BYTES
        self.result = _like_codes(coded) if needs_two and is_large else None
        self.scratch = Buffer(
            f"{self.name}_rooms",
            coded.dtype,
            (1 if self.result is not None or not needs_two else 2, total + self.lanes),
            "scratch",
        )

    @property
    def first(self) -> Room:
        """Where codes are before they are merged."""
        return self._turn(0) if self.result is None else self._turn(self.levels)

    @property
    def ordered(self) -> Room:
        """Where they are in the end."""
        return self._turn(self.levels) if self.result is None else self._turn(0)

    @property
    def spare(self) -> Room:
        """The other room."""
        return self._turn(self.levels + 1) if self.result is None else self._turn(1)

    def behind(self) -> Stmt:
        """The largest codes behind the last of each room, which are read and not looked at."""
        return behind(self.scratch, self.lanes)

    def each_level(self, merge: Callable[[Expr, Room, Room], Body]) -> Body:
        """`merge(level, source, into)` for all levels."""
        name = f"{self.name}_level"
        if not self.levels:
            return ()
        if self.result is None:
            return (
                serial(
                    name, self.levels, lambda k: merge(k, self._in_turn(k), self._in_turn(k + 1))
                ),
            )
        odd = self.levels % 2

        def two(k: Var) -> Body:
            """From the scratch into the result, and back; an odd level begins on its way back."""
            there = merge(index.maximum(k * 2 - odd, 0), self._turn(0), self._turn(1))
            back = merge(k * 2 + (1 - odd), self._turn(1), self._turn(0))
            return (*((If(compare("lt", 0, k), there),) if odd else there), *back)

        return (serial(name, (self.levels + odd) // 2, two),)

    def _turn(self, number: int) -> Room:
        if self.result is not None and number % 2:
            return self._of_result
        return self._in_turn(index.constant(number % 2))

    def _in_turn(self, number: Expr) -> Room:
        """One of the rooms in scratch, or the other."""

        def room(row: Expr) -> Codes:
            return Codes.of(self.scratch, lambda i: (number % 2, i)).behind(row * self.size)

        return room

    def _of_result(self, row: Expr) -> Codes:
        """The room that is a result's: bits of codes in place of its elements."""
        n, result = self.sorting.element.extent, self.result
        at = decoded(self.sorting.outer, row)

        def there(i: Expr) -> tuple[Expr, ...]:
            point = {**at, self.sorting.stage.sort.place: i}
            return tuple(substitute(e, point) for e in result.indices)

        def read(i: Expr) -> Expr:
            inside = compare("lt", i, n)
            bits = Load(result.buffer, there(i), inside, const(0, result.buffer.dtype))
            code = apply("bitcast", bits, dtype=self.dtype)
            return select(inside, code, -1)

        def write(i: Expr, code: Expr) -> Store:
            inside = compare("lt", i, n) if n < self.size else None
            bits = apply("bitcast", code, dtype=result.buffer.dtype)
            return store(result.buffer, bits, *there(i), guard=inside)

        return Codes(read, write)


def behind(rooms: Buffer, lanes: int) -> Stmt:
    """A vector of the largest codes behind the last of each row of a buffer."""
    count, size = rooms.shape

    def room(k: Var) -> Stmt:
        return vectorized("behind", lanes, lambda lane: store(rooms, -1, k, size - lanes + lane))

    return serial("room", count, room)


def _like_codes(coded: Coded) -> Assign | None:
    """Where results are stored whose elements are as long as codes, and lie as these do."""
    stage = coded.stage
    stored = Counter(a.buffer for a in stage.assigns)
    return next(
        (
            a
            for a in stage.assigns
            if stage.sort.at is stage.sort.place
            and a.buffer.dtype is not BOOL
            and a.buffer.dtype.bits == coded.dtype.bits
            and stored[a.buffer] == 1
            and a.buffer not in stage.inputs
            and is_plain(a, stage.axes)
            and stride(a, stage.sort.place) == 1
        ),
        None,
    )
