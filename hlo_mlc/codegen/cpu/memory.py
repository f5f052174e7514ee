"""Reading and writing memory, in the lanes that are switched on.

What a guard switches off is never touched, not even by speculation: the access goes to a constant
table, to the buffer's first element, to bytes that nobody reads, or is not made.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.checking import check_lanes, check_place, check_span, lane_addresses
from hlo_mlc.codegen.cpu.function import Element, Value
from hlo_mlc.codegen.cpu.permutation import read_permuted
from hlo_mlc.codegen.cpu.places import Place, displaced, pointer, resolve, scattered
from hlo_mlc.codegen.cpu.registers import Form
from hlo_mlc.codegen.cpu.strides import (
    has_masks,
    has_pattern,
    is_apart,
    lanes_where,
    read_apart,
    read_pattern,
    write_apart,
    write_shuffled,
)
from hlo_mlc.codegen.cpu.transposition import read_block
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE
from hlo_mlc.expr.core import Const, Load
from hlo_mlc.expr.dtypes import BOOL, DType
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.tensor.access import is_inside

# LLVM 22.1 makes a store of one lane, if it is narrower than what was truncated to get it, as wide
# as that (llvm-project issue 179489): bf16 at the end of a row, and two bytes behind it.
_LEAST_MASKED_ALONE = 4


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
    text = function.at(depth).define(
        f"select {types.vector('i1', lanes)} ",
        condition,
        f", {whole} ",
        chosen,
        f", {whole} ",
        other,
        lanes=lanes,
    )
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
        known = function.memo.get(_element(place))
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


def _read_own(writer: Writer, place: Place, offset: int, lanes: int, depth: int) -> str:
    """What is at a place of an array that becomes registers."""
    function = writer.function
    return function.registers.load(
        place.storage.array,
        offset,
        _form(place.dtype, lanes),
        function.at(depth),
        function.block_depth(depth),
    )


def _write_own(writer: Writer, place: Place, lanes: int, text: str) -> None:
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
            return _read_own(writer, place, place.constant, 0, depth)
        write_back(writer, place)
    address = displaced(block, pointer(writer, place).text, place.constant)
    condition = switch.text if switch is not None else None
    if mask is not None:
        condition = writer.any_lane(mask, block)
    check_span(writer, place, "load", block, address, place.dtype.bytes, condition)
    if condition is not None:
        table = writer.module.table(element, place.padding(fill), 0)
        address = block.define("select i1 ", condition, ", ptr ", address, ", ptr ", table)
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
        return _read_own(writer, place, first, width, depth)
    write_back(writer, place)
    address = displaced(block, pointer(writer, place).text, first)
    alignment = max(size, math.gcd(place.alignment_at(first), width * size))
    padding, start = place.padding(fill), address
    if mask is not None and not free and _strays(writer, place):
        address = _kept_near(block, place, address, width * size)
    if switch is not None:
        table = writer.module.table(place.element, padding, width)
        address = block.define("select i1 ", switch.text, ", ptr ", address, ", ptr ", table)
        alignment = size
    active = None if free else _active(writer, place, mask, block)
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
            active = _reverse(block, "i1", width, active)
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
    return _reverse(block, place.element, width, text) if backwards else text


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
    here, start = (block.define("ptrtoint ptr ", p, " to i64") for p in (address, base))
    offset = block.define("sub i64 ", here, ", ", start)
    offset = block.define("add i64 ", offset, f", {width}")
    end = place.buffer.size * place.dtype.bytes + width
    near = block.define("icmp ult i64 ", offset, f", {end}")
    return block.define("select i1 ", near, ", ptr ", address, ", ptr ", base)


def _active(writer: Writer, place: Place, mask: Value | None, block: Block) -> str | None:
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


def _reverse(block: Block, element: str, width: int, text: str) -> str:
    whole = types.vector(element, width)
    return block.define(
        f"shufflevector {whole} ",
        text,
        f", {whole} poison, {types.shuffle_mask(tuple(range(width - 1, -1, -1)))}",
        lanes=width,
    )


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
        text = block.define(
            f"select {mask_type} ",
            function.widen(mask, width),
            f", {whole} ",
            text,
            f", {whole} ",
            padding,
            lanes=width,
        )
    return text


# Writing


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
    check_place(writer, place, "store", (mask,), function.depth)
    if place.is_uniform and mask is None:
        text = value.text
        if value.lanes:  # the iterations store in order, so the last one's value stays
            text = block.define(
                f"extractelement {value.type} ", value.text, f", i64 {lane.live - 1}"
            )
        if place.is_own_element:
            _write_own(writer, place, 0, _to_memory(block, place.dtype, text, 0))
        else:
            release(writer, place)
            address = displaced(block, pointer(writer, place).text, place.constant)
            check_span(writer, place, "store", block, address, place.dtype.bytes)
            write_element(block, place, address, text)
    else:
        text = _to_memory(block, place.dtype, function.widen(value, lane.width), lane.width)
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
    element = _element(place)
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
            _to_memory(function.block, place.dtype, function.widen(value, width), width)
            for place, value in zip(places, values, strict=True)
        ],
    )
    function.forget((places[0].storage.writable,))


def _element(place: Place) -> Element | None:
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
    text = _to_memory(block, place.dtype, text, 0)
    block.emit(
        f"store {place.element} ",
        text,
        ", ptr ",
        address,
        f", align {place.dtype.bytes}{place.storage.tags}",
    )


def _to_memory(block: Block, dtype: DType, text: str, lanes: int) -> str:
    if dtype is not BOOL:
        return text
    return block.define(
        f"zext {types.vector('i1', lanes)} ", text, f" to {types.vector('i8', lanes)}", lanes=lanes
    )


def _write_registers(writer: Writer, place: Place, text: str) -> None:
    """A vector of an array that becomes registers; lanes that are off keep what they have."""
    function, width = writer.function, writer.function.lane.width
    block, whole = function.block, types.vector(place.element, width)
    active = _active(writer, place, function.mask, block)
    if active is not None:
        old = _read_own(writer, place, place.constant, width, function.depth)
        text = block.define(
            f"select {types.vector('i1', width)} ",
            active,
            f", {whole} ",
            text,
            f", {whole} ",
            old,
            lanes=width,
        )
    _write_own(writer, place, width, text)


def _write_contiguous(writer: Writer, place: Place, text: str, streaming: bool) -> None:
    function, lane, tags = writer.function, writer.function.lane, place.storage.tags
    block, width, size = function.block, lane.width, place.dtype.bytes
    whole, first = types.vector(place.element, width), place.constant
    active = _active(writer, place, function.mask, block)
    if place.stride < 0:
        first -= (width - 1) * size
        text = _reverse(block, place.element, width, text)
        if active is not None:
            active = _reverse(block, "i1", width, active)
    if (
        active is not None
        and size < _LEAST_MASKED_ALONE
        and (alone := _only_lane(writer)) is not None
    ):
        address = displaced(
            block, pointer(writer, place).text, place.constant + alone * place.stride * size
        )
        check_span(writer, place, "store", block, address, size)
        at = alone if place.stride > 0 else width - 1 - alone
        element = block.define(f"extractelement {whole} ", text, f", i64 {at}")
        block.emit(f"store {place.element} ", element, ", ptr ", address, f", align {size}{tags}")
        return
    address = displaced(block, pointer(writer, place).text, first)
    alignment = max(size, math.gcd(place.alignment_at(first), width * size))
    if active is None:
        check_span(writer, place, "store", block, address, width * size)
    else:
        check_lanes(
            writer, place, "store", block, lane_addresses(writer, place, block, address), active
        )
    if active is not None:
        block.emit(
            f"call void @llvm.masked.store.{types.suffix(place.element, width)}.p0({whole} ",
            text,
            f", ptr align {size} ",
            address,
            f", {types.vector('i1', width)} ",
            active,
            f"){tags}",
        )
    elif streaming and _write_streaming(writer, place, whole, text, address, width * size):
        return
    else:
        block.emit(f"store {whole} ", text, ", ptr ", address, f", align {alignment}{tags}")


def _only_lane(writer: Writer) -> int | None:
    """The lane in which the current statement is executed, if it is known to be a single one."""
    on = lanes_where(writer, writer.function.guard or TRUE)
    return on.index(True) if on is not None and sum(on) == 1 else None


def _write_streaming(
    writer: Writer, place: Place, whole: str, text: str, address: str, size: int
) -> bool:
    """A store past the caches, if the vector is aligned in case the buffer is (asked at run time).

    Says whether it was possible.
    """
    unit = writer.module.target.vector_bytes
    if (
        size % unit
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
            number = outer.define("ptrtoint ptr ", storage.pointer, " to i64")
            low = outer.define("and i64 ", number, f", {unit - 1}")
            known = function.remember(key, Value(outer.define("icmp eq i64 ", low, ", 0"), "i1"))
        past, plain, done = function.label(), function.label(), function.label()
        block.branch(known.text, past, plain)
        block.start(plain)
        block.emit(
            f"store {whole} ", text, ", ptr ", address, f", align {place.dtype.bytes}{storage.tags}"
        )
        block.jump(done)
        block.start(past)
    block.emit(
        f"store {whole} ", text, ", ptr ", address, f", align {unit}, !nontemporal !1{storage.tags}"
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
    active = _active(writer, place, function.mask, block) or lane.mask
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
