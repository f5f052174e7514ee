"""Writing memory, in the lanes that are switched on.

What a guard switches off is never touched, not even by speculation: the access goes to bytes that
nobody reads, or is not made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.checking import check_lanes, check_place, check_row, check_span
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.memory import (
    active_lanes,
    element_of,
    read_own,
    release,
    reversed_lanes,
    store_to,
    to_memory,
    write_element,
    write_own,
)
from hlo_mlc.codegen.cpu.places import Place, address, scattered
from hlo_mlc.codegen.cpu.strides import is_apart, lanes_where, write_apart, write_shuffled
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.build import TRUE
from hlo_mlc.support.errors import CodegenError

# LLVM 22.1 makes a store of one lane, if it is narrower than what was truncated to get it, as wide
# as that (llvm-project issue 179489): bf16 at the end of a row, and two bytes behind it.
_LEAST_MASKED_ALONE = 4


def write(writer: Writer, place: Place, value: Value, streaming: bool = False) -> None:
    """Put a value at a place, in the lanes in which the current statement is executed.

    Raises: CodegenError for an operand that is not declared to share memory with a result.
    """
    function, storage = writer.function, place.storage
    if storage.writable is None:
        raise CodegenError(
            f"Kernel {writer.module.program.name!r} stores to operand {place.buffer!r}; only "
            f"results, scratch and allocated buffers can be written"
        )
    lane, mask = function.lane, function.mask
    block = function.block
    is_uniform = place.is_uniform
    check_place(writer, place, "store", (mask,), function.depth)
    if is_uniform and mask is None:
        text = value.text
        if value.lanes:  # the iterations store in order, so the last one's value stays
            text = block.define(
                f"extractelement {value.type} ", value.text, f", i64 {lane.live - 1}"
            )
        if place.is_own_element:
            write_own(writer, place, 0, to_memory(block, place.dtype, text, 0))
        else:
            release(writer, place)
            at = address(writer, place, block)
            check_span(writer, place, "store", block, at, place.dtype.bytes)
            write_element(block, place, at, text)
    else:
        text = to_memory(block, place.dtype, function.widen(value, lane.width), lane.width)
        if place.holds_vector(lane.width):
            _write_registers(writer, place, text)
        elif place.is_contiguous:
            release(writer, place)
            _write_contiguous(writer, place, text, streaming)
        else:
            release(writer, place)
            if is_apart(writer, place, mask):
                write_apart(writer, place, mask, text)
            else:
                _scatter(writer, place, text)
    element = element_of(place) if is_uniform else None
    function.forget((storage.writable,), beside=element)
    if element is not None and lane is None and mask is None:
        function.remember(
            element, value._replace(depth=function.depth, reads=frozenset((storage.writable,)))
        )


def write_between(writer: Writer, places: Sequence[Place], values: Sequence[Value]) -> None:
    """Store vectors whose lanes are as far apart as there are vectors, each an element behind the
    one before, in all lanes; the places are checked."""
    function, width = writer.function, writer.function.lane.width
    release(writer, places[0])
    write_shuffled(
        writer,
        places[0],
        [
            to_memory(function.block, place.dtype, function.widen(value, width), width)
            for place, value in zip(places, values, strict=True)
        ],
    )
    function.forget((places[0].storage.writable,))


def _write_registers(writer: Writer, place: Place, text: str) -> None:
    """A vector of an array that becomes registers; lanes that are off keep what they have."""
    function, width = writer.function, writer.function.lane.width
    block, whole = function.block, types.vector(place.element, width)
    active = active_lanes(writer, place, function.mask, block)
    if active is not None:
        old = read_own(writer, place, place.constant, width, function.depth)
        text = block.select(whole, active, text, old, width)
    write_own(writer, place, width, text)


def _write_contiguous(writer: Writer, place: Place, text: str, streaming: bool) -> None:
    block, width = writer.function.block, writer.function.lane.width
    size, first = place.dtype.bytes, place.constant
    whole = types.vector(place.element, width)
    active = active_lanes(writer, place, writer.function.mask, block)
    if place.stride < 0:
        first -= (width - 1) * size
        text = reversed_lanes(block, place.element, width, text)
        if active is not None:
            active = reversed_lanes(block, "i1", width, active)
    if (
        active is not None
        and size < _LEAST_MASKED_ALONE
        and (alone := _only_lane(writer)) is not None
    ):
        at = address(writer, place, block, place.constant + alone * place.stride * size)
        check_span(writer, place, "store", block, at, size)
        number = alone if place.stride > 0 else width - 1 - alone
        element = block.define(f"extractelement {whole} ", text, f", i64 {number}")
        store_to(block, place, at, element)
        return
    at = address(writer, place, block, first)
    if active is not None:
        check_row(writer, place, "store", block, at, active)
        block.emit(
            f"call void @llvm.masked.store.{types.suffix(place.element, width)}.p0({whole} ",
            text,
            f", ptr align {size} ",
            at,
            f", {types.vector('i1', width)} ",
            active,
            f"){place.storage.tags}",
        )
        return
    check_span(writer, place, "store", block, at, width * size)
    if not (streaming and _write_streaming(writer, place, text, at)):
        alignment = max(size, math.gcd(place.alignment_at(first), width * size))
        store_to(block, place, at, text, width, alignment)


def _only_lane(writer: Writer) -> int | None:
    """The lane in which the current statement is executed, if it is known to be a single one."""
    on = lanes_where(writer, writer.function.guard or TRUE)
    return on.index(True) if on is not None and sum(on) == 1 else None


def _write_streaming(writer: Writer, place: Place, text: str, at: str) -> bool:
    """A store past the caches, if the vector is aligned in case the buffer is (asked at run time).

    Says whether it was possible.
    """
    unit, width = writer.module.target.vector_bytes, writer.function.lane.width
    if (
        width * place.dtype.bytes % unit
        or place.stride < 0
        or math.gcd(unit, place.constant, *(c for _, c in place.uniform)) != unit
    ):
        return False
    function, block, storage = writer.function, writer.function.block, place.storage
    if storage.alignment < unit:
        key = ("aligned", storage.pointer)
        known = function.memo.get(key)
        if known is None:
            outer = function.at(0)
            number = outer.cast("ptrtoint", "ptr", storage.pointer, "i64")
            low = outer.define("and i64 ", number, f", {unit - 1}")
            known = function.remember(key, Value(outer.define("icmp eq i64 ", low, ", 0"), "i1"))
        names = function.names
        past, plain, done = names.label(), names.label(), names.label()
        block.branch(known.text, past, plain)
        block.start(plain)
        store_to(block, place, at, text, width)
        block.jump(done)
        block.start(past)
    block.emit(
        f"store {types.vector(place.element, width)} ",
        text,
        ", ptr ",
        at,
        f", align {unit}, !nontemporal !1{storage.tags}",
    )
    if storage.alignment < unit:
        block.jump(done)
        block.start(done)
    writer.streams = True
    return True


def _scatter(writer: Writer, place: Place, text: str) -> None:
    """Lanes written anywhere, in order."""
    function, lane = writer.function, writer.function.lane
    block, width = function.block, lane.width
    addresses = scattered(writer, place, None, function.depth)
    active = active_lanes(writer, place, function.mask, block) or lane.mask
    check_lanes(writer, place, "store", block, addresses, active)
    block.emit(
        f"call void @llvm.masked.scatter.{types.suffix(place.element, width)}.v{width}p0("
        f"{types.vector(place.element, width)} ",
        text,
        f", {types.vector('ptr', width)} align {place.dtype.bytes} ",
        addresses,
        f", {types.vector('i1', width)} ",
        active,
        f"){place.storage.tags}",
    )
