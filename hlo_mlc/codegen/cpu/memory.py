"""What reading and writing memory have in common: arrays that become registers, the lanes that are
switched on, single elements."""

from __future__ import annotations

import functools

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.function import Element, Value
from hlo_mlc.codegen.cpu.places import Place
from hlo_mlc.codegen.cpu.registers import Form
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.dtypes import BOOL, DType


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
    lane = writer.function.lane
    whole = lane.is_full or place.storage.private_lanes or place.storage.spare_lanes
    if mask is None:
        return None if whole else lane.mask
    text = writer.function.widen(mask, lane.width)
    if whole:
        return text
    return block.define(
        f"and {types.vector('i1', lane.width)} ", text, ", ", lane.mask, lanes=lane.width
    )


def reversed_lanes(block: Block, element: str, width: int, text: str) -> str:
    """A vector, the last lane first."""
    whole = types.vector(element, width)
    return block.define(
        f"shufflevector {whole} ",
        text,
        f", {whole} poison, {types.shuffle_mask(tuple(range(width - 1, -1, -1)))}",
        lanes=width,
    )


def element_of(place: Place) -> Element | None:
    """The element that a place always is, whose value is known to the end of the scope, or until it
    changes, once it was stored: to read it back at once would take a loop whose trips wait for each
    other 5 to 7 cycles."""
    if place.storage.own_bytes or place.uniform or not place.is_uniform:
        return None
    return Element(place.buffer, place.constant)


def read_element(block: Block, place: Place, address: str) -> str:
    """One element of a place's buffer, in the form that registers have."""
    text = block.define(
        f"load {place.element}, ptr ",
        address,
        f", align {place.dtype.bytes}{place.storage.load_tags}",
        kind=place.storage.load_kind,
    )
    return block.define("icmp ne i8 ", text, ", 0") if place.dtype is BOOL else text


def write_element(block: Block, place: Place, address: str, text: str) -> None:
    """Store one element of a place's buffer."""
    text = to_memory(block, place.dtype, text, 0)
    block.emit(
        f"store {place.element} ",
        text,
        ", ptr ",
        address,
        f", align {place.dtype.bytes}{place.storage.tags}",
    )


def to_memory(block: Block, dtype: DType, text: str, lanes: int) -> str:
    """A value in the form that memory has: conditions are bytes there."""
    if dtype is not BOOL:
        return text
    return block.cast("zext", types.vector("i1", lanes), text, types.vector("i8", lanes), lanes)
