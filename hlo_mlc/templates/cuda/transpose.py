"""Maps with a transposed access: square tiles go through shared memory, so that both what is read
and what is written are neighbours for neighbouring threads.

    for b block:
      for t thread, l thread:  tile[row, l] = x[l, row]     neighbouring l, neighbours in x
      for t thread, l thread:  y[row, l] = … tile[l, row] …  and in y
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hlo_mlc.expr import build, index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import For, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import allocated, loop, map_expressions, substitute, when
from hlo_mlc.target.cuda import WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled
from hlo_mlc.templates.cuda.base import at, below, flat, product, thread_loop
from hlo_mlc.templates.cuda.elementwise import ElementwiseTemplate
from hlo_mlc.tensor.access import Pair
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.coalesce import accesses, coalesce
from hlo_mlc.tensor.core import Nest, Stage

# A tile has WARP x WARP elements; its rows are one longer, so that a column lies in all banks of
# shared memory.  Source: CUDA C++ Best Practices Guide, "Shared Memory in Matrix Multiplication".
PADDED = WARP + 1
# Several tiles may be needed, of 8 bytes an element at most, within 48 KiB.
MOST_TILES = 4


@dataclass(frozen=True, slots=True)
class TransposeTemplate:
    """Tiles of 32 x 32 elements."""

    name: str = "transpose"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest has no use for tiles; empty where it has."""
        reason = ElementwiseTemplate().refusal(nest, target)
        if reason:
            return reason
        stage = coalesce(nest.stages[0])
        axis, loads = _crossing(stage)
        if axis is None:
            return "no access walks along another axis"
        if axis.extent < 2 or stage.axes[-1].extent < 2:
            return "a single row or column"
        if len(loads) > MOST_TILES:
            return "too many transposed accesses"
        if any(load.source in stage.outputs for load in loads):
            return "it is overwritten in place"
        return ""

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Rows of a tile that are done at a time."""
        return {"rows": (4, 8, 16)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """256 threads."""
        return {"rows": 8}

    def apply(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> Scheduled:
        """The loops for the given parameters."""
        return Scheduled(_tiles(coalesce(nest.stages[0]), parameters["rows"], outer), ())


def _crossing(stage: Stage) -> tuple[Var | None, tuple[Load, ...]]:
    """An outer axis along which loads walk one by one while the last axis strides, and those."""
    if not stage.axes:
        return None, ()
    last = stage.axes[-1]
    for axis in reversed(stage.axes[:-1]):
        found = tuple(a for a in accesses(stage) if isinstance(a, Load) and a.guard is None
                      and stride(a, axis) == _step(a)
                      and stride(a, last) not in (None, 0, _step(a), -_step(a)))
        if found:
            return axis, found
    return None, ()


def _step(access: Load) -> int:
    """From an element to its neighbour, which of a complex number's part is another's."""
    return 1 if not access.indices or Pair.of(access.source, access.indices) is None else 2


def _tiles(stage: Stage, rows: int, outer: LoopKind) -> tuple[Stmt, ...]:
    axis, loads = _crossing(stage)
    last, name = stage.axes[-1], stage.name
    others = tuple(v for v in stage.axes if v not in (axis, last))
    down, across = -(-axis.extent // WARP), -(-last.extent // WARP)
    block = Var(f"{name}_b", INDEX, down * across * product(others))
    row, lane = variable(f"{name}_t", rows), variable(f"{name}_l", WARP)
    outermost = at(index.floordiv(block, down * across), others)
    first_row = index.multiply(index.floormod(index.floordiv(block, across), down),
                               index.constant(WARP))
    first_column = index.multiply(index.floormod(block, across), index.constant(WARP))
    tiles = {load: Buffer(f"{name}_tile{n}", load.dtype, (WARP, PADDED), "shared")
             for n, load in enumerate(loads)}

    def threads(body: Callable[[Expr], tuple[Stmt, ...]]) -> For:
        """`body(row of the tile)`, every so manyth by one thread."""
        return thread_loop(row, (thread_loop(lane, (
            loop(f"{name}_k", WARP // rows, LoopKind.UNROLL,
                 lambda k: body(flat((k, 1), (row, rows)))),)),))

    def point(down_tile: Expr, across_tile: Expr) -> tuple[dict[Var, Expr], Expr]:
        """The axes at a place of the tile, and the condition that it is inside."""
        place = {**outermost, axis: index.add(first_row, down_tile),
                 last: index.add(first_column, across_tile)}
        return place, build.all_of(below(place[axis], axis.extent),
                                   below(place[last], last.extent))

    def read(position: Expr) -> tuple[Stmt, ...]:
        place, inside = point(lane, position)
        return when(inside, tuple(
            Store(tile, (position, lane), build.substitute(load, place))
            for load, tile in tiles.items()))

    def write(position: Expr) -> tuple[Stmt, ...]:
        place, inside = point(position, lane)

        def from_tile(node: Expr) -> Expr | None:
            tile = tiles.get(node)
            return None if tile is None else Load(tile, (lane, position))

        memo: dict[Expr, Expr] = {}
        stores = map_expressions(lower_stage(replace(stage, axes=())),
                                 lambda e: build.transform(e, from_tile, memo))
        return when(inside, substitute(stores, place))

    body = allocated(reversed((*tiles.values(),)), (threads(read), threads(write)))
    return (For(block, index.constant(block.extent), outer, body),)
