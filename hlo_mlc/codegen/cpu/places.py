"""Where the lanes of an access are, and the addresses of that.

An address is a pointer that was moved along by the outer loops, then by the inner ones, plus a
constant; each part is computed in the scope of its variables.  Lanes are side by side, side by
side backwards, all at one place, or anywhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hlo_mlc.codegen.cpu import indices, types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.function import NO_READS, Lane, Value
from hlo_mlc.codegen.cpu.program import Storage
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Const, Expr, Var
from hlo_mlc.expr.dtypes import DType

# What an address can hold a counter times.  For others the pointer moves: that is one addition an
# iteration, where products take the ports of vectors, and arithmetic on memory at a sum of two
# registers is two operations.
_ADDRESSABLE = frozenset((1, 2, 4, 8))


class Place(NamedTuple):
    """Where the lanes of an access are.

    `uniform`: values with the bytes that each unit of them moves all lanes by; `constant` bytes;
    `stride`: elements from lane to lane; `varying`: vectors with the elements that each unit of
    them moves its lane by; `pattern`: where that follows from the numbers of the lanes alone, the
    elements by which each one that is an iteration lies apart from `constant`; `reach`: elements
    that `varying` can move a lane by, at most; `depth`: the scope where this is known; `reads`: the
    alias classes that where it is was read from, so that it lies elsewhere when they change;
    `where`: the indices.
    """

    buffer: Buffer
    storage: Storage
    uniform: tuple[tuple[Value, int], ...]
    constant: int
    stride: int
    varying: tuple[tuple[Value, int], ...]
    pattern: tuple[int, ...]
    reach: float
    depth: int
    reads: frozenset[int]
    where: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def element(self) -> str:
        return types.memory_type(self.buffer.dtype)

    @property
    def read_from(self) -> frozenset[int]:
        """The alias classes that what is there depends on."""
        own = _only(self.storage.alias_class)
        return own | self.reads if self.reads else own

    @property
    def is_uniform(self) -> bool:
        """All lanes are at the same element."""
        return not self.stride and not self.varying

    @property
    def is_contiguous(self) -> bool:
        return self.stride in (1, -1) and not self.varying

    def alignment_at(self, constant: int) -> int:
        """What is known to divide the address with another constant part, in bytes."""
        return math.gcd(self.storage.alignment, constant, *(c for _, c in self.uniform))

    @property
    def is_own_element(self) -> bool:
        """Whether all lanes are at one element, always the same, in an array of this function."""
        return (
            self.is_uniform
            and not self.uniform
            and 0 <= self.constant <= self.storage.own_bytes - self.dtype.bytes
        )

    def holds_vector(self, width: int) -> bool:
        """Whether `width` elements from here on lie in an array of this function alone, which may
        be read and written back even where lanes are switched off."""
        end = self.constant + width * self.buffer.dtype.bytes
        return (
            end <= self.storage.own_bytes
            and self.stride == 1
            and not self.uniform
            and not self.varying
            and self.constant >= 0
        )


@functools.cache
def _only(alias_class: int) -> frozenset[int]:
    """An alias class, unless its memory never changes."""
    return frozenset((alias_class,)) if alias_class else NO_READS


def resolve(writer: Writer, buffer: Buffer, where: tuple[Expr, ...]) -> Place:
    """The place of `buffer[where]`, with the values that it depends on computed."""
    storage, lane = writer.storage(buffer), writer.function.lane
    terms, offset = writer.module.linear(buffer, where)
    size, constants = buffer.dtype.bytes, writer.function.constants
    scale = storage.private_lanes or 1
    stride = 1 if storage.private_lanes else 0
    uniform: list[tuple[Value, int]] = []
    varying: list[tuple[Value, int]] = []
    reach, depth, reads = 0.0, 0, NO_READS
    moved: list[tuple[Expr, int]] = []
    for atom, coefficient in terms:
        number = constants.get(atom)
        if number is not None:
            offset += coefficient * number
        elif lane is not None and atom is lane.var:
            stride += coefficient * scale
        else:
            value = writer.value(atom)
            if value.depth > depth:
                depth = value.depth
            if value.reads:
                reads = reads | value.reads
            if value.lanes:
                varying.append((value, coefficient * scale))
                moved.append((atom, coefficient))
                reach += abs(coefficient * scale) * max(map(abs, index.bounds(atom)))
            elif types.is_literal(value.text):
                offset += coefficient * int(value.text)
            else:
                uniform.append((value, coefficient * scale * size))
    if len(uniform) > 1:
        uniform.sort(key=lambda term: (term[0].depth, term[0].text))
    pattern = _pattern(lane, stride, moved, constants) if moved and scale == 1 else ()
    return Place(
        buffer,
        storage,
        tuple(uniform),
        offset * scale * size,
        stride,
        tuple(varying),
        pattern,
        reach,
        depth,
        reads,
        where,
    )


def _pattern(
    lane: Lane | None, stride: int, moved: Sequence[tuple[Expr, int]], constants: Mapping[Var, int]
) -> tuple[int, ...]:
    """Where each lane is that is an iteration, in elements, if that follows from its number."""
    if lane is None or not all(
        v is lane.var or v in constants for atom, _ in moved for v in atom.free
    ):
        return ()
    known = {
        v: index.constant(constants[v]) for atom, _ in moved for v in atom.free if v is not lane.var
    }
    total = [stride * number for number in range(lane.live)]
    for atom, coefficient in moved:
        for number in range(lane.live):
            here = substitute(atom, {**known, lane.var: index.constant(number)})
            if not isinstance(here, Const):
                return ()
            total[number] += coefficient * here.value
    return tuple(total)


def pointer(writer: Writer, place: Place) -> Value:
    """The address of lane 0 without its constant part."""
    function = writer.function
    current = Value(place.storage.pointer, "ptr")
    key: tuple = ("pointer", place.storage.pointer)
    for value, scale in place.uniform:
        key = (*key, value.text, scale)
        known = function.memo.get(key)
        if known is None:
            depth = max(current.depth, value.depth)
            text = None
            if scale not in _ADDRESSABLE:
                text = function.moving_pointer(current, value, scale)
            if text is None:
                define, amount = function.at(depth).define, value.text
                if scale < 0:
                    amount, scale = define("mul nsw i64 ", amount, f", {scale}"), 1
                kind = "i8" if scale == 1 else f"[{scale} x i8]"
                text = define(f"getelementptr {kind}, ptr ", current.text, ", i64 ", amount)
            known = function.remember(key, Value(text, "ptr", 0, depth))
        current = known
    return current


def address(writer: Writer, place: Place, block: Block, constant: int | None = None) -> str:
    """That of lane 0, or with another constant part."""
    return displaced(
        block, pointer(writer, place).text, place.constant if constant is None else constant
    )


def displaced(block: Block, base: str, constant: int) -> str:
    return block.define("getelementptr i8, ptr ", base, f", i64 {constant}") if constant else base


def scattered(writer: Writer, place: Place, on: str | None, depth: int) -> str:
    """A vector with the address of each lane; that of the buffer for those that are not `on`."""
    block, width = writer.function.at(depth), writer.function.lane.width
    if on is None:
        base = address(writer, place, block)
        near = place.reach + abs(place.stride) * width < 1 << 31
        element = "i32" if near else "i64"
        offsets = _lane_offsets(writer, place, element, depth)
    else:
        base = place.storage.pointer
        element, offsets = offsets_within(writer, place, on, depth)
    return moved(block, place.element, base, element, offsets, width)


def offsets_within(writer: Writer, place: Place, on: str | None, depth: int) -> tuple[str, str]:
    """A vector with the number of each lane's element in the buffer, 0 for those that are not `on`,
    behind the type of its elements."""
    function, width = writer.function, writer.function.lane.width
    block = function.at(depth)
    # Modulo 2**32 is enough where the buffer is no larger: lanes that count are inside it.
    fits = place.buffer.size * (place.storage.private_lanes or 1) < 1 << 31
    element = "i32" if fits else "i64"
    whole = types.vector(element, width)
    offsets = _lane_offsets(writer, place, element, depth)
    start = function.widen(_uniform_offset(writer, place, element, depth), width)
    offsets = block.define(f"add {whole} ", offsets, ", ", start, lanes=width)
    if on is not None:
        offsets = block.select(whole, on, offsets, "zeroinitializer", width)
    return element, offsets


def moved(block: Block, unit: str, base: str, element: str, offsets: str, width: int) -> str:
    """A vector of addresses, so many units each behind a base."""
    return block.define(
        f"getelementptr {unit}, ptr ",
        base,
        f", {types.vector(element, width)} ",
        offsets,
        lanes=width,
    )


def _lane_offsets(writer: Writer, place: Place, element: str, depth: int) -> str:
    """The part of the offsets that differs from lane to lane, in elements."""
    function, lane = writer.function, writer.function.lane
    block, whole = function.at(depth), types.vector(element, lane.width)
    total = types.iota(element, lane.width, place.stride) if place.stride else None
    for value, coefficient in place.varying:
        text = indices.resize(function, value, element).text
        if coefficient != 1:
            text = block.define(
                f"mul {whole} ",
                text,
                f", {types.spread(str(coefficient), element, lane.width)}",
                lanes=lane.width,
            )
        total = (
            text
            if total is None
            else block.define(f"add {whole} ", total, ", ", text, lanes=lane.width)
        )
    return total or "zeroinitializer"


def _uniform_offset(writer: Writer, place: Place, element: str, depth: int) -> Value:
    """The part of the offsets that is the same in all lanes, in elements."""
    define, size = writer.function.at(depth).define, place.dtype.bytes
    total = str(place.constant // size)
    for value, scale in place.uniform:
        part = define("mul i64 ", value.text, f", {scale // size}") if scale != size else value.text
        total = define("add i64 ", total, ", ", part)
    if element == "i32" and not types.is_literal(total):
        total = define("trunc i64 ", total, " to i32")
    return Value(total, element, 0, depth)
