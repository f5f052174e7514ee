"""Shared by the templates of matrix products: factors, square blocks, tasks."""

from __future__ import annotations

from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BF16, F32, INDEX
from hlo_mlc.loops.rewrite import loops_named
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.classify import contraction, is_map, stride, vector_stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest

# Multiply-adds below which waking another thread costs more than it saves (fork-join 0.6 us hot,
# 20-40 us when the worker sleeps; FACTS on thread costs).
PARALLEL_WORK = 200_000
# Rows of a square block that are written out, at least, and bytes of narrower numbers: such
# transpose in the fewest instructions.  All 16 rows of f32 took LLVM 8 ms more, and no kernel was
# faster.
WRITTEN_ROWS, WRITTEN_BYTES = 4, 16
# Terms that a sum of products takes one after the other (schedule/cascade.py): a tile of sums is
# added to another one so often, which costs 1 %.
RUN = 256

# Bytes on the stack that packed panels, with the rows that are computed for a tile, may take.
STACK_PANEL = 176 * 1024


def product_refusal(nest: Nest) -> str:
    """Why a nest is not a sum of products with rows and columns; empty where it is."""
    if len(nest.stages) != 1 or is_map(nest.stages[0]):
        return "not a single reduction"
    if any(v.extent == 0 for v in nest.stages[0].reduce_axes):
        return "an axis without elements"
    (stage,) = nest.stages
    # Axes that are merged may be a batch and rows, which conditions on the batch tell apart.
    if contraction(stage) is None or contraction(coalesce(stage)) is None:
        return "not a sum of products of two tensors"
    return ""


def is_plain(factor: Expr) -> bool:
    """A load and nothing else: the factor needs no computation."""
    return (
        isinstance(factor, Load)
        and factor.guard is None
        and all(isinstance(i, Var | Const) or not loads(i) for i in factor.indices)
    )


def is_widened(factor: Expr) -> bool:
    """A plain load of bf16 as f32, which is a shift."""
    return (
        isinstance(factor, Apply)
        and factor.op == "convert"
        and factor.dtype is F32
        and factor.args[0].dtype is BF16
        and is_plain(factor.args[0])
    )


def is_direct(factor: Expr, along: Var) -> bool:
    """A plain load that walks through memory one by one along the columns."""
    return is_plain(factor) and stride(factor, along) == 1


def reads_vectors_along(factor: Expr, axis: Var, *, guarded: bool = False, width: int = 1) -> bool:
    """All that it reads lies side by side along an axis, or is the same all along it; read without
    conditions, or under such as are the same all along the axis.

    Of vectors of `width` that begin at its multiples, each by itself may do so: 64 numbers of each
    of 12 heads, one head after the other, lie so along all 768 though heads lie apart."""
    if width > 1 and axis.extent % width == 0:
        vector, lane = (
            Var(f"{axis.name}_{part}", INDEX, extent)
            for part, extent in (("vector", axis.extent // width), ("lane", width))
        )
        factor, axis = substitute(factor, {axis: vector * width + lane}), lane
    return all(
        (read.guard is None or (guarded and axis not in read.guard.free))
        and (vector_stride(read, axis) == 1 or not any(axis in i.free for i in read.indices))
        for read in loads(factor)
    )


def in_square_blocks(
    schedule: Schedule, rows: str, columns: str, lanes: int, size: int = 4
) -> Schedule:
    """A copy of what lies along the rows of a tile, in elements of `size` bytes, in square blocks
    of which a few rows at a time are written out: the printer transposes them in registers."""
    schedule, inside = schedule.split(rows, lanes), f"{rows}.i"
    is_square = inside in schedule.loop_names
    if is_square:
        schedule = schedule.reorder(columns, inside)
    schedule = schedule.split(columns, lanes)
    for part in (f"{columns}.i", f"{columns}.t"):
        if part in schedule.loop_names:
            # Of some tiles a guard may leave no such part.
            if any(loops_named(s.body, inside) for s in schedule.loops(part)):
                schedule = schedule.reorder(inside, part)
            schedule = schedule.vectorize(part)
    return (
        schedule.split(inside, min(lanes, max(WRITTEN_ROWS, WRITTEN_BYTES // size))).unroll(
            f"{inside}.i"
        )
        if is_square
        else schedule
    )


def products_per_task(tasks: int, work: int, cores: int) -> int:
    """How many of `tasks`, which have `work` multiply-adds in all, one of the pool should do; 0
    where that is too little to share."""
    return (
        max(1, min(tasks // (2 * cores), -(-PARALLEL_WORK * tasks // (4 * work))))
        if work > PARALLEL_WORK
        else 0
    )
