"""Products of narrow integers, two at a time: one instruction multiplies pairs of i16 and adds.

    for lane in 0..16 vectorize:
      for k in 0..2 unroll:
        s[lane] <- add i32(x[k]) * i32(y[lane, k])    ->    s += pmaddwd(the pair x, pairs of y)

Pairs lie side by side in memory, and what multiplies them is the same pair in all lanes.  LLVM
knows products of vectors of i16 that are widened, and of which neighbours are added, as PMADDWD,
and with a sum as VPDPWSSD where a processor has that.  Both wrap as sums of i32 do.
"""

from __future__ import annotations

from typing import NamedTuple

from hlo_mlc.codegen.cpu import reading, types, writing
from hlo_mlc.codegen.cpu.checking import check_span
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.memory import load_from
from hlo_mlc.codegen.cpu.places import Place, address, resolve
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.core import Apply, Expr, Load
from hlo_mlc.expr.dtypes import I16, I32
from hlo_mlc.loops.core import Accumulate, For
from hlo_mlc.target.cpu import PAIR


class _Pairs(NamedTuple):
    """What an unrolled loop over a pair adds up, of each lane in a place of its own: `one` pair for
    all lanes times those of `each`."""

    sums: Place
    one: Place
    each: Place


def accumulate_pairs(writer: Writer, loop: For, count: int) -> bool:
    """Write an unrolled loop of a vector, if it adds up products of pairs; else say that it does
    not."""
    found = _pairs(writer, loop, count)
    if found is None:
        return False
    function, width = writer.function, writer.function.lane.width
    block, wide, both = function.block, PAIR * width, types.vector("i32", PAIR * width)
    factors = [
        block.cast("sext", types.vector("i16", wide), _read(writer, place), both, wide)
        for place in (found.one, found.each)
    ]
    products = block.define(f"mul {both} ", factors[0], ", ", factors[1], lanes=wide)
    even, odd = (
        block.shuffle("i32", wide, products, "poison", range(first, wide, PAIR))
        for first in range(PAIR)
    )
    whole = types.vector("i32", width)
    term = block.define(f"add {whole} ", even, ", ", odd, lanes=width)
    sums = (reading.read(writer, found.sums), Value(term, "i32", width, function.depth))
    writing.write(writer, found.sums, writer.op("add", I32, sums))
    return True


def _pairs(writer: Writer, loop: For, count: int) -> _Pairs | None:
    function, lane = writer.function, writer.function.lane
    if lane is None or not lane.is_full or count != PAIR or function.mask is not None:
        return None
    update = loop.body[0] if len(loop.body) == 1 else None
    if (
        not isinstance(update, Accumulate)
        or update.combiner.name != "add"
        or update.guard is not None
        or update.atomic
        or any(loop.var in i.free for i in update.indices)
    ):
        return None
    (term,) = update.terms
    if not isinstance(term, Apply) or term.op != "mul" or term.dtype is not I32:
        return None
    loads = [_narrow(factor) for factor in term.args]
    if None in loads:
        return None
    for one in loads:
        terms = dict(writer.module.linear(one.source, one.indices)[0])
        if terms.pop(loop.var, 0) != 1 or any(loop.var in atom.free for atom in terms):
            return None
    function.constants[loop.var] = 0
    one, each = sorted(
        (resolve(writer, x.source, x.indices) for x in loads), key=lambda p: p.stride
    )
    del function.constants[loop.var]
    sums = resolve(writer, update.buffers[0], update.indices)
    is_apart = not sums.is_uniform and not any(p.varying for p in (sums, one, each))
    return _Pairs(sums, one, each) if is_apart and (one.stride, each.stride) == (0, PAIR) else None


def _narrow(factor: Expr) -> Load | None:
    """What is read as i16, to be multiplied as i32."""
    if not isinstance(factor, Apply) or factor.op != "convert":
        return None
    (read,) = factor.args
    is_read = isinstance(read, Load) and read.dtype is I16 and read.guard is None
    return read if is_read and read.source.scope != "register" else None


def _read(writer: Writer, place: Place) -> str:
    """Pairs for all lanes, from a place on: the same one in all, or those that lie side by side."""
    function, storage, width = writer.function, place.storage, writer.function.lane.width
    known = function.memo.get(key := (PAIR, width, place.buffer, place.where, place.constant))
    if known is not None:
        return known.text
    depth = max(place.depth, function.load_depth(storage.writable))
    block, count = function.at(depth), PAIR * width if place.stride else PAIR
    at = address(writer, place, block)
    check_span(writer, place, "load", block, at, count * I16.bytes)
    text = load_from(block, place, at, count)
    if not place.stride:
        pair = block.cast("bitcast", types.vector("i16", PAIR), text, "i32")
        spread = block.spread("i32", pair, width)
        text = block.cast(
            "bitcast", types.vector("i32", width), spread, types.vector("i16", PAIR * width)
        )
    return function.remember(key, Value(text, "i16", PAIR * width, depth, place.read_from)).text
