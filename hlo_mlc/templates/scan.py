"""Scans: cumulative sums and their kin, along any axis, from either end.

Strips of lanes run side by side (templates/scan_loops.py).  Few long scans are cut into chunks:

    total[chunk] = fold of the chunk
    before[chunk] = initial, combined with the totals of the chunks before it
    each chunk scans from before[chunk]

The cut depends on the shape only, never on the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, Parameters, Scheduled
from hlo_mlc.templates.scan_loops import BLOCK, Layout, strips
from hlo_mlc.tensor.chunks import scan_in_chunks
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Vectors of lanes that keep two cores busy; with fewer, scans this long are cut into chunks.
FEW_STRIPS = 4
FEW_LANES = FEW_STRIPS * BLOCK
LONG = 1024
# Steps of one chunk: 64 KiB of f32, which leaves room in a level-2 cache for what is read again.
CHUNK = 16_384
# Vectors of a strip along a leading axis: 4 KiB of every row, a page.
WIDEST_STRIP = 64


@dataclass(frozen=True, slots=True)
class ScanTemplate:
    """Lanes across the scanned axis, blocks along it."""

    name: str = "scan"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not one scan; empty where it is."""
        if len(nest.stages) != 1 or nest.stages[0].scan is None:
            return "not a single scan"
        stage = nest.stages[0]
        if any(a.guard is not None for a in stage.assigns):
            return "it stores under a condition"
        if not set(stage.inputs).isdisjoint(stage.outputs):
            return "it reads what it overwrites"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors of one strip along a leading axis, and chunks of the scanned axis."""
        return {"vectors": (1, 4, 16, 64), "chunks": (1, 4, 16, 64)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Strips for all cores; chunks where there are few lanes."""
        stage = coalesce(nest.stages[0])
        layout = Layout.of(stage, target)
        others = math.prod(v.extent for v in layout.outer)
        vectors = 1
        if not layout.transposes:
            wanted = max(1, target.cores // others)
            vectors = max(4, min(WIDEST_STRIP, -(-layout.lane.extent // layout.width) // wanted))
        return {"vectors": vectors, "chunks": _chunks(stage, layout, others)}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        chunks, vectors = parameters["chunks"], parameters["vectors"]
        if chunks > 1:
            chunks = max(chunks, _fewest(stage))
        if chunks <= 1 or stage.scan.axis.extent < chunks * BLOCK:
            return Scheduled(strips(stage, target, vectors), ())
        cut = scan_in_chunks(stage, chunks, BLOCK)
        body = [*strips(cut.totals, target, vectors, cut.last), *lower_stage(cut.begin)]
        for part in cut.scans:
            body += strips(part, target, vectors)
        return Scheduled(tuple(body), cut.scratch)


def _chunks(stage: Stage, layout: Layout, others: int) -> int:
    """How many chunks to cut the scanned axis into, by the shape alone."""
    steps, count = stage.scan.axis.extent, -(-layout.lane.extent // layout.width)
    if layout.transposes:
        few = layout.lane.extent * others
        if steps < LONG or few >= FEW_LANES or (few >= BLOCK // 2 and few * steps < SERIAL_WORK):
            return 1
        chunks = FEW_LANES if few * BLOCK < FEW_LANES else BLOCK
    else:
        if count * others >= FEW_STRIPS or count * others * steps * layout.width < SERIAL_WORK:
            return 1
        chunks = BLOCK
    chunks = max(chunks, -(-steps // CHUNK // BLOCK) * BLOCK, _fewest(stage))
    more = chunks + max(BLOCK, chunks // FEW_LANES * FEW_LANES // 2)
    return min(chunks, more, key=lambda count: _one_by_one(steps, count))


def _one_by_one(steps: int, chunks: int) -> int:
    """Steps that are not shared by lanes: one for each chunk, and those behind the last chunk."""
    return chunks + steps - chunks * (steps // chunks // BLOCK * BLOCK)


def _fewest(stage: Stage) -> int:
    """The least number of chunks, none of which is longer than `Stage.trips` allows."""
    longest, extent = stage.trips // BLOCK * BLOCK, stage.scan.axis.extent
    return min(-(-extent // longest), extent // BLOCK) if longest else 1
