"""Scans: cumulative sums and their kin, along any axis, from either end.

Strips of lanes run side by side (templates/strips.py).  Few long scans are cut into chunks:

    total[chunk] = fold of the chunk
    before[chunk] = initial, combined with the totals of the chunks before it
    each chunk scans from before[chunk]

The cut depends on the shape only, never on the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, Parameters, Scheduled
from hlo_mlc.templates.strips import BLOCK, Layout, strips
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Scan, Stage

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
        written = set(stage.outputs)
        if any(access.source in written for e in stage.expressions for access in loads(e)):
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
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        chunks, vectors = parameters["chunks"], parameters["vectors"]
        if chunks <= 1 or stage.scan.axis.extent < chunks * BLOCK:
            return Scheduled(strips(stage, target, vectors), ())
        cut = in_chunks(stage, chunks)
        body = [*strips(cut.totals, target, vectors, cut.last), *lower_stage(cut.begin)]
        for part in cut.scans:
            body += strips(part, target, vectors)
        return Scheduled(tuple(body), cut.scratch)


def _chunks(stage: Stage, layout: Layout, others: int) -> int:
    """How many chunks to cut the scanned axis into, by the shape alone."""
    steps, count = stage.scan.axis.extent, -(-layout.lane.extent // layout.width)
    if layout.transposes:
        few = layout.lane.extent * others
        if steps < LONG or few >= FEW_LANES or (few >= BLOCK // 2
                                                and few * steps < SERIAL_WORK):
            return 1
        chunks = FEW_LANES if few * BLOCK < FEW_LANES else BLOCK
    else:
        if count * others >= FEW_STRIPS or count * others * steps * layout.width < SERIAL_WORK:
            return 1
        chunks = BLOCK
    return max(chunks, -(-steps // CHUNK // BLOCK) * BLOCK)


# Chunks


@dataclass(frozen=True, slots=True)
class Cut:
    """A scan in chunks: their totals, which `last` stores at the end of each; what comes before
    the first; the scans of totals, of chunks, and of the rest behind the last chunk."""

    totals: Stage
    last: tuple[Assign, ...]
    begin: Stage
    scans: tuple[Stage, ...]
    scratch: tuple[Buffer, ...]


def in_chunks(stage: Stage, chunks: int) -> Cut:
    """The stages of a scan whose axis is cut into so many chunks, and a rest."""
    axis, reverse = stage.scan.axis, stage.scan.reverse
    size = axis.extent // chunks // BLOCK * BLOCK
    rest = axis.extent - chunks * size
    chunk, within, left = (Var(f"{axis.name}_{part}", INDEX, extent) for part, extent in
                           (("c", chunks), ("w", size), ("r", rest)))
    start = index.multiply(chunk, index.constant(size))
    if reverse:  # the rest, which comes last, is at the low end
        start = index.add(start, index.constant(rest))
    position = stage.axes.index(axis)

    def axes(*replacing: Var) -> tuple[Var, ...]:
        return (*stage.axes[:position], *replacing, *stage.axes[position + 1:])

    def place(at: Expr) -> tuple[Expr, ...]:
        return tuple(at if v is axis else v for v in stage.axes)

    def buffers(suffix: str, count: int) -> tuple[Buffer, ...]:
        shape = tuple(count if v is axis else v.extent for v in stage.axes)
        return tuple(Buffer(f"{stage.name}_{v.name}_{suffix}", v.dtype, shape)
                     for v in stage.accumulators)

    def at(k: Expr, initial: tuple[Expr, ...], scanned: Var, own: tuple[Var, ...]) -> Stage:
        def moved(e: Expr) -> Expr:
            return substitute(e, {axis: k})

        return replace(
            stage, name=f"{stage.name}_{scanned.name}", axes=own, initial=initial,
            terms=tuple(map(moved, stage.terms)), scan=Scan(scanned, reverse),
            assigns=tuple(Assign(a.buffer, tuple(map(moved, a.indices)), moved(a.value))
                          for a in stage.assigns))

    parts, offsets = buffers("total", chunks), buffers("before", chunks + 1)
    one, shifted = index.constant(1), index.add(start, within)
    totals = at(shifted, stage.combiner.identity, within, axes(chunk, within))
    last = tuple(Assign(b, place(chunk), v)
                 for b, v in zip(parts, stage.accumulators, strict=True))
    begin = Stage(f"{stage.name}_begin", axes(), tuple(
        Assign(b, place(index.constant(chunks if reverse else 0)), e)
        for b, e in zip(offsets, stage.initial, strict=True)))
    before, after = index.add(chunk, one), chunk
    if not reverse:
        before, after = after, before
    through = Stage(
        f"{stage.name}_through", axes(chunk),
        tuple(Assign(b, place(after), v)
              for b, v in zip(offsets, stage.accumulators, strict=True)),
        (), stage.combiner, tuple(load(b, place(chunk)) for b in parts), stage.initial,
        stage.accumulators, scan=Scan(chunk, reverse))
    scans = [through, at(shifted, tuple(load(b, place(before)) for b in offsets), within,
                         axes(chunk, within))]
    if rest:
        end = index.constant(0 if reverse else chunks)
        shifted = left if reverse else index.add(left, index.constant(chunks * size))
        scans.append(at(shifted, tuple(load(b, place(end)) for b in offsets), left, axes(left)))
    return Cut(replace(totals, name=f"{stage.name}_totals", assigns=()), last, begin,
                tuple(scans), (*parts, *offsets))
