"""Reading memory, in the lanes that are switched on.

What a guard switches off is never touched, not even by speculation: the access goes to a constant
table, to the buffer's first element, to neighbours within the buffer, or is not made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block, Kind
from hlo_mlc.codegen.cpu.checking import check_lanes, check_place, check_row, check_span
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.memory import (
    Reading,
    active_lanes,
    element_of,
    gather,
    live_lanes,
    load_from,
    load_masked,
    read_own,
    reversed_lanes,
    write_back,
)
from hlo_mlc.codegen.cpu.permutation import read_permuted
from hlo_mlc.codegen.cpu.places import Place, address, resolve, scattered
from hlo_mlc.codegen.cpu.strides import (
    has_masks,
    has_pattern,
    is_apart,
    lanes_where,
    read_apart,
    read_pattern,
)
from hlo_mlc.codegen.cpu.transposition import read_block
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.codegen.cpu.words import is_found_in_words, read_in_words
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Const, Load
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.tensor.access import is_inside

# Lanes from which on a vector by way of the stack takes less than one element after the other.
_LEAST_WINDOW = 8


def load(writer: Writer, node: Load) -> Value:
    """The value of a load expression."""
    guard = None
    if node.guard is not None:
        guard = writer.value(node.guard)
        if types.is_literal(guard.text):
            if guard.text == "false":
                return writer.value(node.default)
            guard = None
    shuffled = read_permuted(writer, node)
    if shuffled is not None:
        return shuffled
    place = resolve(writer, node.source, node.indices)
    column = read_block(writer, node, place)
    if column is not None:
        return column
    if _is_safe(writer, node, place):
        value = read(writer, place)
        return value if guard is None else _choose(writer, guard, value, node)
    condition = writer.function.mask
    if guard is not None and guard.lanes and condition is None:
        on = lanes_where(writer, node.guard)
        if on is not None and not any(on):
            return writer.value(node.default)
        if (
            on is not None
            and not (place.is_uniform or place.is_contiguous)
            and has_pattern(writer, place, on)
        ):
            return _choose(writer, guard, read(writer, place, guard, on=on), node)
    if guard is not None:
        condition = guard if condition is None else writer.op("and", BOOL, (guard, condition))
    fill = types.constant(node.default) if isinstance(node.default, Const) else None
    value = read(writer, place, condition, fill)
    if guard is None or (fill is not None and (value.lanes or not condition.lanes)):
        return value
    return _choose(writer, guard, value, node)


def _is_safe(writer: Writer, node: Load, place: Place) -> bool:
    """Whether the access may be made in all lanes whatever the conditions around it are."""
    lane = writer.function.lane
    return (lane is not None and place.holds_vector(lane.width)) or is_inside(node)


def _choose(writer: Writer, guard: Value, value: Value, node: Load) -> Value:
    """The value read or the load's default."""
    function, default = writer.function, writer.value(node.default)
    lanes = max(guard.lanes, value.lanes, default.lanes)
    depth = function.pure_depth((guard, value, default))
    whole = types.vector(value.element, lanes)
    condition, chosen, other = (function.widen(v, lanes) for v in (guard, value, default))
    text = function.at(depth).select(whole, condition, chosen, other, lanes)
    reads = value.reads.union(guard.reads, default.reads)
    return Value(text, value.element, lanes, depth, reads)


def read(
    writer: Writer,
    place: Place,
    condition: Value | None = None,
    fill: str | None = None,
    on: Sequence[bool] = (),
) -> Value:
    """What is at a place where a condition holds; elsewhere the literal `fill`, or just anything.

    `on`: the lanes for which it holds, where that is known and `has_pattern` of the place.
    """
    function, reads, is_uniform = writer.function, place.read_from, place.is_uniform
    depth = max(place.depth, function.load_depth(place.storage.writable))
    if condition is not None:
        depth, reads = max(depth, condition.depth), reads | condition.reads
    elif is_uniform:
        known = function.memo.get(element_of(place))
        if known is not None:
            return known
    check_place(writer, place, "load", (condition,), depth)
    lanes = 0 if is_uniform else function.lane.width
    if condition is None and lanes and place.holds_vector(lanes):
        text = read_own(writer, place, place.constant, lanes, depth)
    else:
        reading = Reading(place, condition, fill, depth, on)
        text = _read_one(writer, reading) if is_uniform else _read_lanes(writer, reading)
    if place.dtype is BOOL:
        whole, zero = types.vector("i8", lanes), types.spread("0", "i8", lanes)
        text = function.at(depth).define(f"icmp ne {whole} ", text, ", ", zero, lanes=lanes)
    return Value(text, types.register_type(place.dtype), lanes, depth, reads)


def _read_one(writer: Writer, reading: Reading) -> str:
    place, condition = reading.place, reading.condition
    block, element = writer.function.at(reading.depth), place.element
    if place.storage.own_bytes:
        if place.is_own_element and condition is None:
            return read_own(writer, place, place.constant, 0, reading.depth)
        write_back(writer, place)
    at = address(writer, place, block)
    there = None if condition is None else writer.any_lane(condition, block)
    check_span(writer, place, "load", block, at, place.dtype.bytes, there)
    if there is not None:
        at = block.select("ptr", there, at, writer.module.table(element, reading.padding, 0))
    return load_from(block, place, at)


def _read_lanes(writer: Writer, reading: Reading) -> str:
    place, mask = reading.place, reading.mask
    if place.is_contiguous and (mask is None or has_masks(writer, place)):
        return _read_contiguous(writer, reading)
    write_back(writer, place)
    if not reading.on and _has_window(writer, place, mask):
        return _read_window(writer, reading)
    if reading.on or (reading.condition is None and has_pattern(writer, place)):
        return read_pattern(writer, reading)
    if is_apart(writer, place, mask):
        return read_apart(writer, reading)
    return _gather(writer, reading)


def _read_contiguous(writer: Writer, reading: Reading) -> str:
    place, switch, mask = reading.place, reading.switch, reading.mask
    block, width = writer.function.at(reading.depth), writer.function.lane.width
    size, backwards = place.dtype.bytes, place.stride < 0
    first = place.constant - (width - 1) * size if backwards else place.constant
    free = place.holds_vector(width) and (mask is None or reading.fill is None)
    if free and switch is None:
        return read_own(writer, place, first, width, reading.depth)
    write_back(writer, place)
    at = start = address(writer, place, block, first)
    alignment = max(size, math.gcd(place.alignment_at(first), width * size))
    if mask is not None and not free and _strays(writer, place):
        at = _kept_near(block, place, at, width * size)
    if switch is not None:
        table = writer.module.table(place.element, reading.padding, width)
        at, alignment = block.select("ptr", switch, at, table), size
    active = None if free else active_lanes(writer, place, mask, block)
    if active is None:
        check_span(writer, place, "load", block, start, width * size, switch)
        text = load_from(block, place, at, width, alignment)
    else:
        if backwards:
            active = reversed_lanes(block, "i1", width, active)
        check_row(writer, place, "load", block, start, active, switch)
        text = load_masked(block, reading, at, active, width)
    return reversed_lanes(block, place.element, width, text) if backwards else text


def _strays(writer: Writer, place: Place) -> bool:
    """Whether vectors of which no lane is on may lie more than their width off the buffer."""
    terms, low = writer.module.linear(place.buffer, place.where)
    high, width = low, writer.function.lane.width
    for atom, coefficient in terms:
        ends = [coefficient * bound for bound in index.bounds(atom)]
        low, high = low + min(ends), high + max(ends)
    return low < -width or high >= place.buffer.size + width


def _kept_near(block: Block, place: Place, at: str, width: int) -> str:
    """The address of a vector of so many bytes; where all of it is off the buffer, the buffer's.

    Where no memory is mapped a processor takes hundreds of cycles to find that no lane asks for
    any: a rotated image, whose vectors are read from both of its ends, took 30 times as long as
    usual where it happened to lie at the end of a heap."""
    base = place.storage.pointer
    here, start = (block.cast("ptrtoint", "ptr", p, "i64") for p in (at, base))
    offset = block.define("sub i64 ", here, ", ", start)
    offset = block.define("add i64 ", offset, f", {width}")
    end = place.buffer.size * place.dtype.bytes + width
    near = block.define("icmp ult i64 ", offset, f", {end}")
    return block.select("ptr", near, at, base)


def _has_window(writer: Writer, place: Place, mask: Value | None) -> bool:
    """Whether `_read_window` is for the lanes of a place."""
    width = writer.function.lane.width
    return (
        place.is_contiguous
        and mask is not None
        and width >= _LEAST_WINDOW
        and place.buffer.size >= width
        and not place.storage.own_bytes
    )


def _read_window(writer: Writer, reading: Reading) -> str:
    """Neighbours of which some may lie off the buffer, where no instruction leaves lanes out.

    The nearest vector that is all within the buffer is moved to where the lanes are by way of the
    stack. Nearly always it is there already, and what was stored is loaded as it is."""
    place, function = reading.place, writer.function
    block, width, size = function.at(reading.depth), function.lane.width, place.dtype.bytes
    whole, bytes_, backwards = types.vector(place.element, width), width * size, place.stride < 0
    first = place.constant - (width - 1) * size if backwards else place.constant
    at = address(writer, place, block, first)
    active = live_lanes(writer, reading.mask, block)
    if backwards:
        active = reversed_lanes(block, "i1", width, active)
    check_row(writer, place, "load", block, at, active, reading.switch)
    base = place.storage.pointer
    here, start = (block.cast("ptrtoint", "ptr", p, "i64") for p in (at, base))
    wanted = block.define("sub i64 ", here, ", ", start)
    last = str(place.buffer.size * size - bytes_)
    near = _at_most(block, _at_least(block, wanted, "0"), last)
    moved = block.define("sub i64 ", wanted, ", ", near)
    # No lane is on where it would be moved by more.
    moved = _at_most(block, _at_least(block, moved, str(-bytes_)), str(bytes_))
    text = load_from(block, place, _behind(block, base, near), width, size)
    stack = function.prepare(f"alloca [{3 * bytes_} x i8], align 64")
    middle = _behind(block, stack, str(bytes_))
    block.emit(f"store {whole} ", text, ", ptr ", middle, f", align {size}")
    text = block.define(
        f"load {whole}, ptr ",
        _behind(block, middle, moved),
        f", align {size}",
        lanes=width,
        kind=Kind.READ,
    )
    padding = types.spread(reading.padding, place.element, width)
    text = block.select(whole, active, text, padding, width)
    return reversed_lanes(block, place.element, width, text) if backwards else text


def _at_least(block: Block, number: str, limit: str) -> str:
    less = block.define("icmp slt i64 ", number, f", {limit}")
    return block.select("i64", less, limit, number)


def _at_most(block: Block, number: str, limit: str) -> str:
    more = block.define("icmp sgt i64 ", number, f", {limit}")
    return block.select("i64", more, limit, number)


def _behind(block: Block, pointer: str, offset: str) -> str:
    return block.define("getelementptr i8, ptr ", pointer, ", i64 ", offset)


def _gather(writer: Writer, reading: Reading) -> str:
    """Lanes read from anywhere; those that are off read the buffer's first element."""
    function, lane, place = writer.function, writer.function.lane, reading.place
    block, width, condition = function.at(reading.depth), lane.width, reading.condition
    on = None if condition is None else function.widen(condition, width)
    whole = types.vector(place.element, width)
    padding = types.spread(reading.padding, place.element, width)
    if is_found_in_words(writer, place):
        text = read_in_words(writer, place, on, reading.depth)
    else:
        addresses = scattered(writer, place, on, reading.depth)
        check_lanes(writer, place, "load", block, addresses, lane.mask)
        text = gather(block, place, addresses, place.element, padding, lane)
    if on is not None and reading.fill is not None:
        text = block.select(whole, on, text, padding, width)
    return text
