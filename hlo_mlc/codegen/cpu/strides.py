"""Lanes that lie apart, each as far from the one before: vectors shuffled where they are close,
else element by element.

    for lane in 0..4 vectorize:           the elements at x + 4 * i, x + 4 * i + 148,
      y[lane] = x[37 * lane + i]    ->    x + 4 * i + 296 and x + 4 * i + 444, put side by side

The places differ by constants, which become parts of instructions.  A gather or scatter is told
them by a vector of addresses instead, which targets below AVX-512 compute only to take it apart
again.  Of two, four or eight neighbours that are known by number, pairs of vectors are halved until
one is left.  Stores that complete each other, to x[3 * lane], x[3 * lane + 1] and x[3 * lane + 2],
are shuffled to vectors.  Lanes that are off read a constant, unless vectors under a mask are fewer,
and write where nobody reads, which takes 0.25 to 0.7 of the time of masked gathers with AVX-512 on
Zen 4, and 0.45 to 0.8 of that of scatters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.checking import check_row, check_span
from hlo_mlc.codegen.cpu.function import Function, Value
from hlo_mlc.codegen.cpu.memory import (
    Reading,
    live_lanes,
    load_at,
    load_from,
    load_masked,
    store_to,
)
from hlo_mlc.codegen.cpu.places import Place, address, displaced, pointer
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Const, Expr
from hlo_mlc.target.cpu import MOST_PIECES, WIDEST_STEP
from hlo_mlc.tensor.access import pieces

# Bytes of the smallest elements that instructions gather and scatter.
_SMALLEST_GATHERED = 4


def is_apart(writer: Writer, place: Place, mask: Value | None) -> bool:
    """Whether `read_apart` and `write_apart` are for the lanes of a place."""
    if place.varying:
        return False
    return (
        _is_close(writer, place, mask)
        or place.dtype.bytes < _SMALLEST_GATHERED
        or not writer.module.target.has_fast_gather
    )


def _is_close(writer: Writer, place: Place, mask: Value | None) -> bool:
    lane, step = writer.function.lane, abs(place.stride)
    if mask is None and lane.is_full:
        return step <= WIDEST_STEP
    # As many vectors are read under a mask as lanes are apart: half of the loads, or less.
    return step <= WIDEST_STEP and 2 * step < lane.width and has_masks(writer, place)


def has_masks(writer: Writer, place: Place) -> bool:
    """Whether vectors of a place's elements are accessed under a mask by one instruction."""
    target = writer.module.target
    return target.has_masked_access if place.dtype.bytes >= 4 else target.has_masked_bytes


def read_apart(writer: Writer, reading: Reading) -> str:
    """What is in memory at the lanes of a place."""
    place, mask = reading.place, reading.mask
    phase = _phase(writer, place) if reading.condition is None else None
    if phase is not None:
        return _read_phase(writer, reading, phase)
    if _is_close(writer, place, mask):
        return _read_shuffled(writer, reading)
    function, lane = writer.function, writer.function.lane
    block, element = function.at(reading.depth), place.element
    whole = types.vector(element, lane.width)
    table = writer.module.table(element, reading.padding, 0)
    first = _first(writer, place, "load", block, mask, reading.switch)
    if reading.switch is None:
        addresses = _addresses(writer, place, block, first)
    else:
        addresses = _switched(writer, place, block, first, reading.switch, table)
    if mask is not None:
        addresses = _masked(function, block, addresses, mask, table)
    # Lanes that are no iterations get a number, too: not all operations may get just anything.
    text = "poison" if lane.is_full else types.spread(reading.padding, element, lane.width)
    for number, at in enumerate(addresses):
        one = load_from(block, place, at)
        text = block.define(
            f"insertelement {whole} ",
            text,
            f", {element} ",
            one,
            f", i64 {number}",
            lanes=lane.width,
        )
    return text


def lanes_where(writer: Writer, condition: Expr) -> tuple[bool, ...] | None:
    """The lanes that are iterations for which a condition holds, if that follows from their
    numbers."""
    lane = writer.function.lane
    outer = {var: writer.variable(var) for var in condition.free if var is not lane.var}
    point = {
        var: index.constant(int(value.text))
        for var, value in outer.items()
        if types.is_literal(value.text)
    }
    found = []
    for number in range(lane.live):
        here = substitute(condition, {**point, lane.var: index.constant(number)})
        if not isinstance(here, Const):
            return None
        found.append(bool(here.value))
    return tuple(found)


def has_pattern(writer: Writer, place: Place, on: Sequence[bool] = ()) -> bool:
    """Whether `read_pattern` is for the lanes of a place: a few vectors hold them all, or all that
    are on, where that is known."""
    if place.varying and not place.pattern:
        return False
    places = _wanted(writer, place, on)
    return (
        bool(place.pattern or on)
        and len(pieces((at for at in places if at is not None), writer.function.lane.width))
        <= MOST_PIECES
    )


def read_pattern(writer: Writer, reading: Reading) -> str:
    """What lanes read whose places follow from their numbers: vectors from where some of them are
    on, shuffled; any number in those that are not.

        y[lane] = x[lane // 2 + i]   ->   the elements from x + i on, each of them twice
    """
    place, lane, block = reading.place, writer.function.lane, writer.function.at(reading.depth)
    lanes = _wanted(writer, place, reading.on)
    known = [at for at in lanes if at is not None]
    # Lanes that are no iterations get a number, too: not all operations may get just anything.
    lanes += known[-1:] * (lane.width - lane.live)
    low, behind = min(known), max(known) + 1
    found = []
    for start, end in pieces(known, lane.width):
        for first, count in _loaded(start, end, low, behind):
            at = place.constant + first * place.dtype.bytes
            found.append((first, count, load_at(writer, place, block, at, count)))
    return _picked(block, place.element, lanes, found)


def _wanted(writer: Writer, place: Place, on: Sequence[bool]) -> list[int | None]:
    """How many elements behind the constant part of a place each lane is that is an iteration, as
    far as it is on."""
    live = writer.function.lane.live
    places = place.pattern or [place.stride * number for number in range(live)]
    return [at if not on or on[number] else None for number, at in enumerate(places)]


def _loaded(start: int, end: int, low: int, behind: int) -> list[tuple[int, int]]:
    """The first element and the length of the vectors to be loaded for a piece between the first
    and the last element that is read: as long as processors have them."""
    count = end - start
    whole = 1 << (count - 1).bit_length()
    if whole <= behind - low:
        return [(min(start, behind - whole), whole)]
    half = whole // 2
    return [(start, half), (end - half, half)] if count < whole else [(start, whole)]


def _picked(
    block: Block, element: str, lanes: Sequence[int | None], found: Sequence[tuple[int, int, str]]
) -> str:
    """A vector of elements by their places, out of vectors of neighbours: these are put side by
    side as far as a vector holds them, and what it is to be of them is shuffled."""

    shuffled = functools.partial(block.shuffle, element)
    width, longest = len(lanes), max(count for _, count, _ in found)
    texts, at = [], {}
    for number, (first, count, text) in enumerate(found):
        at.update({first + n: number * longest + n for n in range(count)})
        texts.append(
            text
            if count == longest
            else shuffled(count, text, "poison", (*range(count), *[None] * (longest - count)))
        )
    while len(texts) > 1 and 2 * longest <= width:
        texts += texts[-1:] * (len(texts) % 2)
        texts = [
            shuffled(longest, a, b, range(2 * longest))
            for a, b in zip(texts[::2], texts[1::2], strict=True)
        ]
        longest *= 2
    places = [None if place is None else at[place] for place in lanes]
    here = [place if place is not None and place < 2 * longest else None for place in places]
    whole = (
        shuffled(longest, texts[0], texts[1] if len(texts) > 1 else "poison", here)
        if len(texts) > 1 or here != [*range(longest)]
        else texts[0]
    )
    for number, text in enumerate(texts[2:], 2):
        start = number * longest
        whole = shuffled(
            width,
            whole,
            text,
            [
                None
                if place is None
                else n
                if place < start
                else width + place - start
                if place < start + longest
                else None
                for n, place in enumerate(places)
            ],
        )
    return whole


def write_apart(writer: Writer, place: Place, mask: Value | None, text: str) -> None:
    """Put a vector into memory at the lanes of a place that are on."""
    function, whole = writer.function, types.vector(place.element, writer.function.lane.width)
    block = function.block
    addresses = _addresses(writer, place, block, _first(writer, place, "store", block, mask))
    if mask is not None:
        addresses = _masked(function, block, addresses, mask, _sink(function))
    for number, at in enumerate(addresses):
        one = block.define(f"extractelement {whole} ", text, f", i64 {number}")
        store_to(block, place, at, one)


def write_shuffled(writer: Writer, place: Place, texts: Sequence[str]) -> None:
    """Put vectors into memory whose lanes are as far apart as there are vectors, the first at a
    place, the others an element behind the one before: shuffled to what lies side by side."""
    block, width = writer.function.block, writer.function.lane.width
    size, step = place.dtype.bytes, len(texts)
    base = address(writer, place, block)
    check_span(writer, place, "store", block, base, step * width * size)
    for first in range(0, step * width, width):
        origins = [divmod(element, step) for element in range(first, first + width)]
        text = texts[0]
        for number in range(1, step):
            picks = (
                (at if number > 1 else lane)
                if source < number
                else width + lane
                if source == number
                else None
                for at, (lane, source) in enumerate(origins)
            )
            text = block.shuffle(place.element, width, text, texts[number], picks)
        store_to(block, place, displaced(block, base, first * size), text, width)


# Addresses of the lanes that are iterations


def _first(
    writer: Writer,
    place: Place,
    what: str,
    block: Block,
    mask: Value | None,
    switch: str | None = None,
) -> str:
    """That of the first lane, of lanes that are checked."""
    first = address(writer, place, block)
    if writer.module.checked:
        active = live_lanes(writer, mask, block) or writer.function.lane.mask
        check_row(writer, place, what, block, first, active, switch, place.stride)
    return first


def _addresses(writer: Writer, place: Place, block: Block, first: str) -> list[str]:
    step = place.stride * place.dtype.bytes
    return [displaced(block, first, number * step) for number in range(writer.function.lane.live)]


def _switched(
    writer: Writer, place: Place, block: Block, first: str, switch: str, table: str
) -> list[str]:
    """The same if `switch` holds; else that of the table for all, in steps of no bytes."""
    found = [block.select("ptr", switch, first, table)]
    step = block.define("select i1 ", switch, f", i64 {place.stride * place.dtype.bytes}, i64 0")
    for _ in range(1, writer.function.lane.live):
        found.append(block.define("getelementptr i8, ptr ", found[-1], ", i64 ", step))
    return found


def _masked(
    function: Function, block: Block, addresses: list[str], mask: Value, elsewhere: str
) -> list[str]:
    """The addresses of the lanes that are on; those that are off go elsewhere."""
    width, found = function.lane.width, []
    bits, kind = function.widen(mask, width), types.vector("i1", width)
    for number, at in enumerate(addresses):
        bit = block.define(f"extractelement {kind} ", bits, f", i64 {number}")
        found.append(block.select("ptr", bit, at, elsewhere))
    return found


def _sink(function: Function) -> str:
    """Bytes of the function's own for what lanes write that are off; nobody reads them."""
    known = function.memo.get(_sink)
    if known is None:
        known = function.remember(_sink, Value(function.prepare("alloca i64, align 8"), "ptr"))
    return known.text


# Lanes a few elements apart


def _phase(writer: Writer, place: Place) -> int | None:
    """The remainder by the step of where all lanes are, if it is known, and whole groups of so many
    elements, a power of two that vectors hold some of, are read and never written."""
    lane, step, shape = writer.function.lane, place.stride, place.buffer.shape
    most = max(WIDEST_STEP, min(2 * WIDEST_STEP, lane.width // 2))
    if (
        not 1 < step <= most
        or step & (step - 1)
        or not lane.is_full
        or place.varying
        or place.storage.writable is not None
        or math.prod(shape) % step
    ):
        return None
    terms, phase = writer.module.linear(place.buffer, place.where)
    for atom, coefficient in terms:
        if atom in writer.function.constants:
            phase += coefficient * writer.function.constants[atom]
        elif coefficient % step:
            return None
    return phase % step


def _read_phase(writer: Writer, reading: Reading, phase: int) -> str:
    """One of each group of elements: of pairs of vectors the even lanes or the odd ones, and so on.

    Others of the groups go part of that way as well, each step of which is taken once.
    """
    function, width, place = writer.function, writer.function.lane.width, reading.place
    block, size, step = function.at(reading.depth), place.dtype.bytes, place.stride
    base, first = pointer(writer, place).text, place.constant - phase * size

    def once(key: tuple[int, ...], make: Callable[[], str]) -> str:
        name = ("phase", base, first, step, width, *key)
        known = function.memo.get(name) or function.remember(
            name, Value(make(), place.element, width, reading.depth, place.reads)
        )
        return known.text

    def loaded(number: int) -> str:
        return load_at(writer, place, block, first + number * width * size, width)

    def halved(pair: list[str], odd: int) -> str:
        return block.shuffle(place.element, width, *pair, range(odd, 2 * width, 2))

    texts = [once((n,), functools.partial(loaded, n)) for n in range(step)]
    for level in range(step.bit_length() - 1):
        odd, taken = phase >> level & 1, phase % (2 << level)
        texts = [
            once((level, taken, n), functools.partial(halved, texts[n : n + 2], odd))
            for n in range(0, len(texts), 2)
        ]
    return texts[0]


def _read_shuffled(writer: Writer, reading: Reading) -> str:
    """Lanes a few elements apart: the vectors from the first to the last of them, shuffled.

    The last vector ends with the last lane, so nothing beyond it is read; nothing but lanes that
    are on is where some are off.
    """
    place, width = reading.place, writer.function.lane.width
    block, size, step = writer.function.at(reading.depth), place.dtype.bytes, abs(place.stride)
    active = live_lanes(writer, reading.mask, block)
    lanes = [n * step for n in range(width)]
    lowest = place.constant
    if place.stride < 0:
        lanes.reverse()
        lowest -= max(lanes) * size
    base = address(writer, place, block, lowest)
    if active is None:
        check_span(writer, place, "load", block, base, (max(lanes) + 1) * size, reading.switch)
    else:
        start = displaced(block, base, lanes[0] * size)
        check_row(writer, place, "load", block, start, active, reading.switch, place.stride)
    if reading.switch is not None:
        table = writer.module.table(place.element, reading.padding, max(lanes) + 1)
        base = block.select("ptr", reading.switch, base, table)
    text = ""
    found: dict[int, int] = {}  # the position in `text` of each lane that is there
    for number in range(step):
        first = min(number * width, max(lanes) + 1 - width)
        at, within = displaced(block, base, first * size), range(first, first + width)
        if active is None:
            part = load_from(block, place, at, width)
        else:
            spread = (lanes.index(element) if element in lanes else width for element in within)
            on = block.shuffle("i1", width, active, "zeroinitializer", spread)
            part = load_masked(block, reading, at, on, width)
        here = {
            number: element - first
            for number, element in enumerate(lanes)
            if number not in found and element in within
        }
        if not text:
            text, found = part, here
            continue
        picks = (
            found[n] if n in found else width + here[n] if n in here else None for n in range(width)
        )
        text = block.shuffle(place.element, width, text, part, picks)
        found = {n: n for n in (*found, *here)}
    return text
