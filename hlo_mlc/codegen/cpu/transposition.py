"""Square blocks read against the grain: rows are loaded as vectors and transposed in registers.

    for c in 0..16 unroll:                     rows 0 … 15 = 16 vector loads
      for l in 0..16 vectorize:       ->       columns 0 … 15 = 4 x 16 shuffles
        … x[l * stride + c] …

A gather of 16 lanes takes as long as 16 loads; here each of the 16 gathers becomes one load.  The
first one writes the whole block, and the others find their columns among the values known.
"""

from __future__ import annotations

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.function import Block, Value
from hlo_mlc.codegen.cpu.places import Place, displaced, is_inside, pointer
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.core import Load, Var
from hlo_mlc.expr.dtypes import BOOL

# Shorter blocks gain nothing over gathers.
_SMALLEST = 4


def read_block(writer: Writer, node: Load, place: Place) -> Value | None:
    """The value of a load that walks down a column of a block; None where that is not so."""
    function, lane = writer.function, writer.function.lane
    if lane is None or not lane.is_full or lane.width < _SMALLEST or function.mask is not None \
            or node.guard is not None or place.varying or abs(place.stride) < 2 \
            or place.dtype is BOOL or not is_inside(node):
        return None
    found = _unrolled_across(writer, node, lane.width)
    if found is None:
        return None
    across, backwards = found
    constants, storage, width = function.constants, place.storage, lane.width
    column = width - 1 - constants[across] if backwards else constants[across]
    depth = max(place.depth, function.load_depth(storage.writable))
    block, whole = function.at(depth), types.vector(place.element, width)
    if storage.own_bytes:
        function.registers.settle(storage.array, function.block)
    base, size = pointer(writer, place).text, place.dtype.bytes
    invariant = ", !invariant.load !0" if storage.writable is None else ""
    rows = []
    for row in range(width):
        address = displaced(block, base, place.constant + (row * place.stride - column) * size)
        rows.append(block.define(f"load {whole}, ptr {address}, align {size}"
                                 f"{storage.tags}{invariant}"))
    reads = place.reads if storage.writable is None else place.reads | {storage.writable}
    register = types.register_type(place.dtype)
    values = [Value(text, register, width, depth, reads)
              for text in _transposed(block, whole, width, rows)]
    before = constants[across]
    for number, value in enumerate(reversed(values) if backwards else values):
        constants[across] = number
        function.remember(writer.key(node), value)
    constants[across] = before
    return values[column]


def _unrolled_across(writer: Writer, node: Load, width: int) -> tuple[Var, bool] | None:
    """The unrolled variable along which the block is `width` neighbours wide, and whether it
    walks through them from the last to the first."""
    terms, _ = writer.module.linear(node.source, node.indices)
    for atom, coefficient in terms:
        if coefficient in (1, -1) and isinstance(atom, Var) and atom.extent == width \
                and atom in writer.function.constants:
            return atom, coefficient < 0
    return None


def _transposed(block: Block, whole: str, width: int, rows: list[str]) -> list[str]:
    """Columns of a square block: swap off-diagonal halves of 2x2 blocks, of 4x4 blocks, …"""
    step = 1
    while step < width:
        lower = [(j & ~step) + (width if j & step else 0) for j in range(width)]
        upper = [(j | step) + (width if j & step else 0) for j in range(width)]
        result = list(rows)
        for i in range(width):
            if not i & step:
                pair = f"{whole} {rows[i]}, {whole} {rows[i + step]}"
                result[i] = _shuffled(block, pair, lower)
                result[i + step] = _shuffled(block, pair, upper)
        rows, step = result, 2 * step
    return rows


def _shuffled(block: Block, pair: str, lanes: list[int]) -> str:
    return block.define(f"shufflevector {pair}, {types.shuffle_mask(tuple(lanes))}")
