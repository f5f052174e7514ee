"""What reading and writing memory share: arrays kept in registers, active lanes, single
elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.checking import check_span
from hlo_mlc.codegen.cpu.function import Element, Lane, Value
from hlo_mlc.codegen.cpu.places import Place, address
from hlo_mlc.codegen.cpu.registers import Form
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.dtypes import BOOL, DType


class Reading(NamedTuple):
    """A read of a place where a condition holds, if there is one; elsewhere it gives a literal.

    `condition`: of all lanes at once, or of each one; `fill`: the literal, arbitrary without one;
    `depth`: the scope that the read is made in; `on`: the lanes for which the condition holds,
    where that is known, and vectors hold them (`strides.has_pattern`).
    """

    place: Place
    condition: Value | None
    fill: str | None
    depth: int
    on: Sequence[bool] = ()

    @property
    def switch(self) -> str | None:
        """The condition, if it is one of all lanes."""
        return None if self.condition is None or self.condition.lanes else self.condition.text

    @property
    def mask(self) -> Value | None:
        """The condition, if it is one of each lane."""
        return None if self.condition is None or not self.condition.lanes else self.condition

    @property
    def padding(self) -> str:
        """What memory holds for lanes in which the condition fails."""
        if self.place.dtype is BOOL:
            return "1" if self.fill == "true" else "0"
        return types.literal(0, self.place.dtype) if self.fill is None else self.fill


def load_from(block: Block, place: Place, address: str, lanes: int = 0, alignment: int = 0) -> str:
    """An element of a place's buffer, or so many neighbours, from an address on."""
    return block.define(
        f"load {types.vector(place.element, lanes)}, ptr ",
        address,
        f", align {alignment or place.dtype.bytes}{place.storage.load_tags}",
        lanes=lanes,
        kind=place.storage.load_kind,
    )


def load_at(writer: Writer, place: Place, block: Block, constant: int, lanes: int) -> str:
    """Neighbours in a place's buffer, which lies as the place does but for the constant part."""
    at = address(writer, place, block, constant)
    check_span(writer, place, "load", block, at, lanes * place.dtype.bytes)
    return load_from(block, place, at, lanes)


def load_masked(block: Block, reading: Reading, address: str, active: str, lanes: int) -> str:
    """The neighbours from an address on of which lanes are active; the others are padding."""
    place, element = reading.place, reading.place.element
    whole, storage = types.vector(element, lanes), place.storage
    return block.define(
        f"call {whole} @llvm.masked.load.{types.suffix(element, lanes)}.p0("
        f"ptr align {place.dtype.bytes} ",
        address,
        f", {types.vector('i1', lanes)} ",
        active,
        f", {whole} {types.spread(reading.padding, element, lanes)}){storage.load_tags}",
        lanes=lanes,
        kind=storage.load_kind,
    )


def gather(
    block: Block, place: Place, addresses: str, element: str, padding: str, lane: Lane
) -> str:
    """What is at the address of each lane in a place's buffer, elements of its own or of four
    bytes; in lanes that are no iterations it is padding."""
    width, storage = lane.width, place.storage
    whole = types.vector(element, width)
    alignment = place.dtype.bytes
    return block.define(
        f"call {whole} @llvm.masked.gather.{types.suffix(element, width)}.v{width}p0("
        f"{types.vector('ptr', width)} align {alignment} ",
        addresses,
        f", {types.vector('i1', width)} {lane.mask}, {whole} {padding}){storage.load_tags}",
        lanes=width,
        kind=storage.load_kind,
    )


def store_to(
    block: Block, place: Place, address: str, text: str, lanes: int = 0, alignment: int = 0
) -> None:
    """Put one element, or a vector of neighbours, into a place's buffer from an address on."""
    block.emit(
        f"store {types.vector(place.element, lanes)} ",
        text,
        ", ptr ",
        address,
        f", align {alignment or place.dtype.bytes}{place.storage.tags}",
    )


def read_own(writer: Writer, place: Place, offset: int, lanes: int, depth: int) -> str:
    """What is at a place of an array that becomes registers."""
    function = writer.function
    return function.registers.load(
        place.storage.array,
        offset,
        _form(place.dtype, lanes),
        function.at(depth),
        function.block_depth(depth),
    )


def write_own(writer: Writer, place: Place, lanes: int, text: str) -> None:
    """Let `text` be at a place of an array that becomes registers."""
    function = writer.function
    function.registers.store(
        place.storage.array,
        place.constant,
        _form(place.dtype, lanes),
        text,
        function.block,
        function.block_depth(function.depth),
    )


@functools.cache
def _form(dtype: DType, lanes: int) -> Form:
    return Form(types.vector(types.memory_type(dtype), lanes), lanes, (lanes or 1) * dtype.bytes)


def write_back(writer: Writer, place: Place) -> None:
    """Have in memory what is read there by other ways than as one of an array's registers."""
    if place.storage.own_bytes:
        writer.function.registers.write_back(place.storage.array, writer.function.block)


def release(writer: Writer, place: Place) -> None:
    """Have in memory what is written there by other ways than as one of an array's registers."""
    if place.storage.own_bytes:
        writer.function.registers.release(place.storage.array, writer.function.block)


def active_lanes(writer: Writer, place: Place, mask: Value | None, block: Block) -> str | None:
    """The lanes to access; None for all of them."""
    if place.storage.private_lanes or place.storage.spare_lanes:
        return None if mask is None else mask.text
    return live_lanes(writer, mask, block)


def live_lanes(writer: Writer, mask: Value | None, block: Block) -> str | None:
    """The lanes that are iterations, and on; None for all of them."""
    lane = writer.function.lane
    if mask is None:
        return None if lane.is_full else lane.mask
    if lane.is_full:
        return mask.text
    return block.define(f"and {mask.type} ", mask.text, ", ", lane.mask, lanes=lane.width)


def reversed_lanes(block: Block, element: str, width: int, text: str) -> str:
    """A vector with its lanes in reverse order."""
    return block.shuffle(element, width, text, "poison", range(width - 1, -1, -1))


def element_of(place: Place) -> Element | None:
    """The element that a place always is, whose value is known to the end of the scope, or until it
    changes, once it was stored: to read it back at once would take a loop whose trips wait for each
    other 5 to 7 cycles."""
    if place.storage.own_bytes or place.uniform or not place.is_uniform:
        return None
    return Element(place.buffer, place.constant)


def read_element(block: Block, place: Place, address: str) -> str:
    """One element of a place's buffer, in the form that registers have."""
    text = load_from(block, place, address)
    return block.define("icmp ne i8 ", text, ", 0") if place.dtype is BOOL else text


def write_element(block: Block, place: Place, address: str, text: str) -> None:
    """Store one element of a place's buffer."""
    store_to(block, place, address, to_memory(block, place.dtype, text, 0))


def to_memory(block: Block, dtype: DType, text: str, lanes: int) -> str:
    """A value in its memory representation: conditions are bytes there."""
    if dtype is not BOOL:
        return text
    return block.cast("zext", types.vector("i1", lanes), text, types.vector("i8", lanes), lanes)
