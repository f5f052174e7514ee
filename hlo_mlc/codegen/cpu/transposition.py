"""Blocks read against the grain: rows are loaded as vectors and transposed in registers.

    for c in 0..16 unroll:                     rows 0 … 15 = 16 vector loads
      for l in 0..16 vectorize:       ->       columns 0 … 15 = 4 x 16 shuffles
        … x[l * stride + c] …

A gather of 16 lanes takes as long as 16 loads; here each of the 16 gathers becomes one load.  The
first one writes the whole block, and the others find their columns among the values known.

Blocks of fewer columns are read in short pieces, 16 bytes of each row at most, which are put side
by side: a quarter of the lines for LLVM, whose shuffles take it 0.1 ms each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.checking import check_place
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.memory import load_at, write_back
from hlo_mlc.codegen.cpu.places import Place
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.core import Load, Var
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.tensor.access import is_inside

# Shorter blocks gain nothing over gathers.
_SMALLEST = 4
# Longer rows than these, or than a vector, have more columns than there are registers.
_LONGEST = 16
# Bytes within which processors interleave: wider vectors are pieces of that length side by side.
_PIECE_BYTES = 16


def read_block(writer: Writer, node: Load, place: Place) -> Value | None:
    """The value of a load that walks down a column of a block; None where that is not so."""
    function, lane = writer.function, writer.function.lane
    if (
        lane is None
        or lane.width < _SMALLEST
        or function.mask is not None
        or node.guard is not None
        or place.varying
        or abs(place.stride) < 2
        or place.dtype is BOOL
    ):
        return None
    found = _unrolled_across(writer, node, lane.width)
    if found is None:
        return None
    across, backwards = found
    # Behind a branch not every iteration may read its column.
    if function.scopes[-1].floor >= function.unrolled_in.get(across, 0) and not is_inside(node):
        return None
    count, constants, storage = across.extent, function.constants, place.storage
    column = count - 1 - constants[across] if backwards else constants[across]
    depth = max(place.depth, function.load_depth(storage.writable))
    block, element, size = function.at(depth), place.element, place.dtype.bytes
    write_back(writer, place)
    before = constants[across]
    for corner in (0, count - 1):
        constants[across] = corner
        check_place(writer, place, "load", (), depth)
    constants[across] = before

    def read(row: int, first: int, elements: int) -> str:
        at = place.constant + (row * place.stride + first - column) * size
        return load_at(writer, place, block, at, elements)

    def rows(first: int, elements: int) -> list[str]:
        found = [read(row, first, elements) for row in range(lane.live)]
        return found + found[:1] * (lane.width - lane.live)  # any values: nobody looks at them

    network = _Network(
        block, element, lane.width, _power_of_two(min(count, lane.width, _PIECE_BYTES // size))
    )
    if count == lane.width:
        columns = network.square(rows(0, count))
    else:
        columns = []
        for first in range(0, count, network.piece):
            begin = min(first, count - network.piece)  # the last piece ends with the row
            columns += network.strip(rows(begin, network.piece))[first - begin :]
    register = types.register_type(place.dtype)
    values = [Value(text, register, lane.width, depth, place.read_from) for text in columns]
    for number, value in enumerate(reversed(values) if backwards else values):
        constants[across] = number
        function.remember(writer.key(node), value)
    constants[across] = before
    return values[column]


def _unrolled_across(writer: Writer, node: Load, width: int) -> tuple[Var, bool] | None:
    """The unrolled variable along which the block has neighbours, and whether it walks through them
    from the last to the first."""
    terms, _ = writer.module.linear(node.source, node.indices)
    for atom, coefficient in terms:
        if (
            coefficient in (1, -1)
            and isinstance(atom, Var)
            and atom.extent >= _SMALLEST
            and atom.extent <= max(width, _LONGEST)
            and atom in writer.function.constants
        ):
            return atom, coefficient < 0
    return None


def _power_of_two(most: int) -> int:
    return 1 << most.bit_length() - 1


class _Network(NamedTuple):
    """Shuffles that transpose blocks of `width` rows, by pieces of `piece` neighbours.

    The masks are those of instructions that every processor has: interleaving within pieces, and
    picking every other one of them.
    """

    block: Block
    element: str
    width: int
    piece: int

    def strip(self, rows: Sequence[str]) -> list[str]:
        """The columns of rows that are one piece long."""
        return self._interleaved([self._joined(rows[p :: self.piece]) for p in range(self.piece)])

    def square(self, rows: Sequence[str]) -> list[str]:
        """The columns of rows that are as long as there are rows."""
        apart = [self._picked(rows[p :: self.piece]) for p in range(self.piece)]
        return [one for pieces in zip(*apart, strict=True) for one in self._interleaved(pieces)]

    def _joined(self, pieces: Sequence[str]) -> str:
        """All pieces in one vector."""
        length = self.piece
        while len(pieces) > 1:
            both = range(2 * length)
            pieces = [
                self.block.shuffle(self.element, length, a, b, both)
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
            length *= 2
        return pieces[0]

    def _picked(self, rows: Sequence[str]) -> list[str]:
        """The first pieces of all rows in one vector, the second ones in the next, …"""
        pieces = range(0, 2 * self.width, self.piece)
        even, odd = (
            [start + lane for start in pieces[first::2] for lane in range(self.piece)]
            for first in (0, 1)
        )
        for _ in range(len(rows).bit_length() - 1):
            rows = [
                self.block.shuffle(self.element, self.width, a, b, lanes)
                for lanes in (even, odd)
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        return list(rows)

    def _interleaved(self, rows: Sequence[str]) -> list[str]:
        """The columns of the square blocks that lie side by side in as many rows as a piece has
        elements."""
        half = self.piece // 2
        starts = range(0, self.width, self.piece)
        low, high = (
            [
                lane
                for start in starts
                for n in range(first, first + half)
                for lane in (start + n, self.width + start + n)
            ]
            for first in (0, half)
        )
        for _ in range(self.piece.bit_length() - 1):
            rows = [
                self.block.shuffle(self.element, self.width, a, b, lanes)
                for a, b in zip(rows[:half], rows[half:], strict=True)
                for lanes in (low, high)
            ]
        return list(rows)
