"""Lanes in another order: a row of an array that becomes registers, read by a shuffle.

    for lane in 0..4 vectorize:
      y[lane] = x[3 - lane]       ->     a vector that is there already, shuffled

The places must follow from the number of the lane alone.  Elsewhere the array would be stored, and
gathered from memory.
"""

from __future__ import annotations

import functools

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.registers import Form
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Const, Expr, Load, Var
from hlo_mlc.expr.dtypes import BOOL


def read_permuted(writer: Writer, node: Load) -> Value | None:
    """The value of a load of a whole row of registers in another order; None where it is not."""
    function, lane, buffer = writer.function, writer.function.lane, node.source
    if (
        buffer.scope != "register"
        or lane is None
        or not lane.is_full
        or lane.width < 2
        or not buffer.shape
        or buffer.shape[-1] != lane.width
        or node.guard is not None
        or buffer.dtype is BOOL
        or function.mask is not None
    ):
        return None
    found = _order(node.indices[-1], lane.var, lane.width)
    storage = writer.storage(buffer)
    if found is None or storage.private_lanes or not storage.own_bytes:
        return None
    row = 0
    for extent, i in zip(buffer.shape[:-1], node.indices[:-1], strict=True):
        number = substitute(
            i, {v: index.constant(function.constants[v]) for v in i.free if v in function.constants}
        )
        if not isinstance(number, Const):
            return None
        row = row * extent + number.value
    depth = function.load_depth(storage.writable)
    block, size = function.at(depth), buffer.dtype.bytes
    whole = types.vector(types.memory_type(buffer.dtype), lane.width)
    text = function.registers.load(
        storage.array,
        row * lane.width * size,
        Form(whole, lane.width, lane.width * size),
        block,
        function.block_depth(depth),
    )
    shuffled = block.shuffle(types.memory_type(buffer.dtype), lane.width, text, "poison", found)
    reads = frozenset() if storage.writable is None else frozenset((storage.writable,))
    return Value(shuffled, types.register_type(buffer.dtype), lane.width, depth, reads)


@functools.lru_cache(maxsize=1 << 10)
def _order(i: Expr, lane: Var, width: int) -> tuple[int, ...] | None:
    """Where each lane is, all of them in a row of as many, if that follows from its number."""
    if i is lane or i.free != {lane}:
        return None
    places = [substitute(i, {lane: index.constant(number)}) for number in range(width)]
    if not all(isinstance(p, Const) and 0 <= p.value < width for p in places):
        return None
    return tuple(p.value for p in places)
