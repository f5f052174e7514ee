"""Elements of a byte or two that are looked up, read in words of four bytes, which is the least
that instructions gather.

    for lane in 0..16 vectorize:          first = min(i[lane], n - 4), words at x + first gathered
      y[lane] = x[i[lane]] : u8     ->    and moved right by 8 * (i[lane] - first) bits

The last words begin early, so that all of them are of the buffer.  308,000 bytes out of a table of
256 took 134 us lane by lane, and take 50 so, on two cores of Emerald Rapids.
"""

from __future__ import annotations

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.checking import check_lanes
from hlo_mlc.codegen.cpu.memory import gather
from hlo_mlc.codegen.cpu.places import Place, moved, offsets_within
from hlo_mlc.codegen.cpu.values import Writer

_WORD = 4  # bytes


def is_found_in_words(writer: Writer, place: Place) -> bool:
    """Whether `read_in_words` is for the lanes of a place: those of an operand, which nobody writes
    beside what is read."""
    storage = place.storage
    return (
        writer.module.target.has_fast_lookup
        and place.dtype.bytes < _WORD <= storage.bytes < 1 << 31
        and storage.writable is None
    )


def read_in_words(writer: Writer, place: Place, on: str | None, depth: int) -> str:
    """What is at each lane of a place; those that are not `on` have the first element."""
    function, lane = writer.function, writer.function.lane
    block, width, size = function.at(depth), lane.width, place.dtype.bytes
    whole, bits = types.vector("i32", width), types.vector(f"i{size * 8}", width)

    def each(operation: str, value: str, other: str | int) -> str:
        operand = types.spread(str(other), "i32", width) if isinstance(other, int) else other
        return block.define(f"{operation} {whole} ", value, ", ", operand, lanes=width)

    element, numbers = offsets_within(writer, place, on, depth)
    addresses = moved(block, place.element, place.storage.pointer, element, numbers, width)
    check_lanes(writer, place, "load", block, addresses, lane.mask)
    offsets = each("shl", numbers, size.bit_length() - 1)
    last = types.spread(str(place.storage.bytes - _WORD), "i32", width)
    first = block.define(
        f"call {whole} @llvm.umin.v{width}i32({whole} ", offsets, f", {whole} {last})", lanes=width
    )
    starts = moved(block, "i8", place.storage.pointer, "i32", first, width)
    words = gather(block, place, starts, "i32", types.spread("0", "i32", width), lane)
    behind = each("shl", each("sub", offsets, first), 3)
    text = block.cast("trunc", whole, each("lshr", words, behind), bits, width)
    own = types.vector(place.element, width)
    return text if own == bits else block.cast("bitcast", bits, text, own, width)
