"""Reading memory, in the lanes that are switched on.

What a guard switches off is never touched, not even by speculation: the access goes to a constant
table, to the buffer's first element, or is not made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.checking import check_lanes, check_place, check_span, lane_addresses
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.memory import (
    active_lanes,
    element_of,
    read_own,
    reversed_lanes,
    write_back,
)
from hlo_mlc.codegen.cpu.permutation import read_permuted
from hlo_mlc.codegen.cpu.places import Place, displaced, pointer, resolve, scattered
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
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Const, Load
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.tensor.access import is_inside


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
        value = read(writer, place, None, None)
        return value if guard is None else _choose(writer, guard, value, node)
    switch, mask = None, writer.function.mask
    if guard is not None and guard.lanes and mask is None:
        on = lanes_where(writer, node.guard)
        if on is not None and not any(on):
            return writer.value(node.default)
        if (
            on is not None
            and not (place.is_uniform or place.is_contiguous)
            and has_pattern(writer, place, on)
        ):
            return _choose(writer, guard, read(writer, place, None, guard, on=on), node)
    if guard is not None:
        if mask is not None:
            mask = writer.op("and", BOOL, (guard, mask))
        elif guard.lanes:
            mask = guard
        else:
            switch = guard
    fill = types.constant(node.default) if isinstance(node.default, Const) else None
    value = read(writer, place, switch, mask, fill)
    is_filled = fill is not None and (value.lanes or not mask)
    return value if guard is None or is_filled else _choose(writer, guard, value, node)


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
    switch: Value | None,
    mask: Value | None,
    fill: str | None = None,
    on: Sequence[bool] = (),
) -> Value:
    """What is at a place.

    `switch` (one for all lanes) and `mask` say where there is something to read; elsewhere the
    result is the literal `fill`, or arbitrary without one.  `on`: the lanes that `mask` switches
    on, where that is known and `has_pattern` of the place.
    """
    function, storage = writer.function, place.storage
    depth = max(place.depth, function.load_depth(storage.writable))
    reads = place.reads if storage.writable is None else place.reads | {storage.writable}
    for condition in (switch, mask):
        if condition is not None:
            depth = max(depth, condition.depth)
            reads |= condition.reads
    if switch is None and mask is None:
        known = function.memo.get(element_of(place))
        if known is not None:
            return known
    check_place(writer, place, "load", (switch, mask), depth)
    if place.is_uniform:
        lanes, text = 0, _read_one(writer, place, switch, mask, fill, depth)
    else:
        lanes = function.lane.width
        if place.is_contiguous and (mask is None or has_masks(writer, place)):
            text = _read_contiguous(writer, place, switch, mask, fill, depth)
        else:
            write_back(writer, place)
            if on or (switch is None and mask is None and has_pattern(writer, place)):
                text = read_pattern(writer, place, depth, on)
            elif is_apart(writer, place, mask):
                text = read_apart(writer, place, switch, mask, fill, depth)
            else:
                text = _gather(writer, place, switch, mask, fill, depth)
    if place.dtype is BOOL:
        whole = types.vector("i8", lanes)
        zero = types.spread("0", "i8", lanes)
        text = function.at(depth).define(f"icmp ne {whole} ", text, ", ", zero, lanes=lanes)
    return Value(text, types.register_type(place.dtype), lanes, depth, reads)


def _read_one(
    writer: Writer,
    place: Place,
    switch: Value | None,
    mask: Value | None,
    fill: str | None,
    depth: int,
) -> str:
    block, element = writer.function.at(depth), place.element
    if place.storage.own_bytes:
        if place.is_own_element and switch is None and mask is None:
            return read_own(writer, place, place.constant, 0, depth)
        write_back(writer, place)
    address = displaced(block, pointer(writer, place).text, place.constant)
    condition = switch.text if switch is not None else None
    if mask is not None:
        condition = writer.any_lane(mask, block)
    check_span(writer, place, "load", block, address, place.dtype.bytes, condition)
    if condition is not None:
        table = writer.module.table(element, place.padding(fill), 0)
        address = block.select("ptr", condition, address, table)
    return block.define(
        f"load {element}, ptr ",
        address,
        f", align {place.dtype.bytes}{place.storage.load_tags}",
        kind=place.storage.load_kind,
    )


def _read_contiguous(
    writer: Writer,
    place: Place,
    switch: Value | None,
    mask: Value | None,
    fill: str | None,
    depth: int,
) -> str:
    function, lane = writer.function, writer.function.lane
    block, width, size = function.at(depth), lane.width, place.dtype.bytes
    whole, backwards = types.vector(place.element, width), place.stride < 0
    first = place.constant - (width - 1) * size if backwards else place.constant
    free = place.holds_vector(width) and (mask is None or fill is None)
    if free and switch is None:
        return read_own(writer, place, first, width, depth)
    write_back(writer, place)
    address = displaced(block, pointer(writer, place).text, first)
    alignment = max(size, math.gcd(place.alignment_at(first), width * size))
    padding, start = place.padding(fill), address
    if mask is not None and not free and _strays(writer, place):
        address = _kept_near(block, place, address, width * size)
    if switch is not None:
        table = writer.module.table(place.element, padding, width)
        address = block.select("ptr", switch.text, address, table)
        alignment = size
    active = None if free else active_lanes(writer, place, mask, block)
    switched = None if switch is None else switch.text
    if active is None:
        check_span(writer, place, "load", block, start, width * size, switched)
        text = block.define(
            f"load {whole}, ptr ",
            address,
            f", align {alignment}{place.storage.load_tags}",
            lanes=width,
            kind=place.storage.load_kind,
        )
    else:
        if backwards:
            active = reversed_lanes(block, "i1", width, active)
        check_lanes(
            writer,
            place,
            "load",
            block,
            lane_addresses(writer, place, block, start),
            active,
            switched,
        )
        text = block.define(
            f"call {whole} @llvm.masked.load.{types.suffix(place.element, width)}.p0("
            f"ptr align {size} ",
            address,
            f", {types.vector('i1', width)} ",
            active,
            f", {whole} {types.spread(padding, place.element, width)}){place.storage.load_tags}",
            lanes=width,
            kind=place.storage.load_kind,
        )
    return reversed_lanes(block, place.element, width, text) if backwards else text


def _strays(writer: Writer, place: Place) -> bool:
    """Whether vectors of which no lane is on may lie more than their width off the buffer; of one
    whose size is not known, nobody asks."""
    if not all(isinstance(extent, int) for extent in place.buffer.shape):
        return False
    terms, low = writer.module.linear(place.buffer, place.where)
    high, width = low, writer.function.lane.width
    for atom, coefficient in terms:
        ends = [coefficient * bound for bound in index.bounds(atom)]
        low, high = low + min(ends), high + max(ends)
    return low < -width or high >= place.buffer.size + width


def _kept_near(block: Block, place: Place, address: str, width: int) -> str:
    """The address of a vector of so many bytes; where all of it is off the buffer, the buffer's.

    Where no memory is mapped a processor takes hundreds of cycles to find that no lane asks for
    any: a rotated image, whose vectors are read from both of its ends, took 30 times as long as
    usual where it happened to lie at the end of a heap."""
    base = place.storage.pointer
    here, start = (block.cast("ptrtoint", "ptr", p, "i64") for p in (address, base))
    offset = block.define("sub i64 ", here, ", ", start)
    offset = block.define("add i64 ", offset, f", {width}")
    end = place.buffer.size * place.dtype.bytes + width
    near = block.define("icmp ult i64 ", offset, f", {end}")
    return block.select("ptr", near, address, base)


def _gather(
    writer: Writer,
    place: Place,
    switch: Value | None,
    mask: Value | None,
    fill: str | None,
    depth: int,
) -> str:
    """Lanes read from anywhere; those that are off read the buffer's first element."""
    function, lane = writer.function, writer.function.lane
    block, width = function.at(depth), lane.width
    if switch is not None:
        mask = Value(function.widen(switch, width), "i1", width, switch.depth)
    whole, mask_type = types.vector(place.element, width), types.vector("i1", width)
    addresses = scattered(writer, place, mask, depth)
    padding = types.spread(place.padding(fill), place.element, width)
    check_lanes(writer, place, "load", block, addresses, lane.mask)
    text = block.define(
        f"call {whole} @llvm.masked.gather.{types.suffix(place.element, width)}.v{width}p0("
        f"{types.vector('ptr', width)} align {place.dtype.bytes} ",
        addresses,
        f", {mask_type} {lane.mask}, {whole} {padding}){place.storage.load_tags}",
        lanes=width,
        kind=place.storage.load_kind,
    )
    if mask is not None and fill is not None:
        text = block.select(whole, function.widen(mask, width), text, padding, width)
    return text
