"""Reductions along rows, and row-wise chains: softmax, norms, argmax, sums of everything.

Some threads share a row, each taking every so manyth vector of it.  What passes between stages is
a register where it is an element of the row, and where it is one value of the row it is combined
across the threads and then known to all.  Few long rows are cut into chunks that are combined at
the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.target.cuda import KIB, WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, why_empty
from hlo_mlc.templates.cuda.base import THREADS, power_of_two, product, told_apart, why_not_in_parts
from hlo_mlc.templates.cuda.row_loops import (
    MOST_THREADS,
    most_kept,
    row_length,
    row_schedule,
    row_width,
    shared_axes,
)
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import is_map
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest

# Bytes of shared memory left for folding across warps: of 32 warps a value of 8 bytes each.
FOLDING = 4096
# Rows and elements from which on rows are cut, and the blocks that they are cut into then: twice
# as many as any GPU has multiprocessors.  Results must not depend on the GPU at hand.
FEW_ROWS, LONG_ROW, BLOCKS = 64, 32_768, 256


@dataclass(frozen=True, slots=True)
class RowsTemplate:
    """A part of a warp, a warp, or a block for each row."""

    name: str = "rows"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not a row-wise chain; empty where it is."""
        if all(is_map(s) for s in nest.stages):
            return "no reduction in it"
        if reason := why_empty(nest):
            return reason
        shared = shared_axes(nest)
        for stage in nest.stages:
            if is_map(stage):
                continue
            if stage.scan is not None:
                return "a scan stores all results on the way"
            if len(stage.axes) != shared:
                return "several results in a row"
            if reason := why_not_in_parts(stage, stage.reduce_axes):
                return reason
        return ""

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Threads that share a row, rows of a block, chunks that rows are cut into, KiB of shared
        memory for what is kept of rows besides registers."""
        return {
            "team": (8, 32, 128, 512),
            "rows": (1, 4, 8),
            "chunks": (1, 16, 64),
            "kept": (0, 40, min(160, kept_bytes(target) // KIB)),
        }

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """A warp for rows whose vectors fit into its registers, else a block."""
        longest = max(row_length(s, shared_axes(nest)) for s in nest.stages)
        rows = product(nest.stages[0].axes[: shared_axes(nest)])
        chunks = 1
        if _can_be_cut(nest) and rows <= FEW_ROWS and longest >= LONG_ROW:
            chunks = _even(min(-(-BLOCKS // rows), longest // 4096), nest)
            longest = -(-longest // chunks)
            rows *= chunks
        width = row_width(nest)
        vectors, most = -(-longest // width), most_kept(nest) // width
        if vectors <= most * WARP:
            team = min(WARP, power_of_two(vectors))
        else:
            team = min(MOST_THREADS, power_of_two(-(-vectors // most)))
        return {
            "team": team,
            "rows": max(1, min(THREADS // team, power_of_two(rows))),
            "chunks": chunks,
            "kept": kept_bytes(target) // KIB,
        }

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage, chunks = coalesce(nest.stages[0]), parameters["chunks"]
        if chunks <= 1 or not _can_be_cut(nest) or chunks > stage.reduce_axes[0].extent:
            return Scheduled.of(row_schedule(nest, parameters, target))
        first, second, partial = fold_in_chunks(told_apart(stage), chunks)
        begin, end = (Nest((s,), len(s.axes)) for s in (first, second))
        few = {"team": min(WARP, power_of_two(chunks)), "rows": 1, "kept": 0}
        return Scheduled.of(
            row_schedule(begin, parameters, target), row_schedule(end, few, target), scratch=partial
        )


def kept_bytes(target: CudaTarget) -> int:
    """Bytes of rows that the shared memory of a block holds."""
    return target.shared_bytes - FOLDING


def _even(most: int, nest: Nest) -> int:
    """At most so many chunks: if there are such, about as many of whole vectors."""
    extent, width = coalesce(nest.stages[0]).reduce_axes[0].extent, row_width(nest)
    even = (n for n in range(most, most // 2, -1) if extent % (n * width) == 0)
    return next(even, most)


def _can_be_cut(nest: Nest) -> bool:
    """True for one reduction and nothing else, whose terms may be folded in runs."""
    return len(nest.stages) == 1 and not nest.stages[0].along
