"""Sliding windows: a register tile of neighbouring results, over the elements that they share.

    parallel task -> outer axes, panel of lanes, tile of results
      sums[tile, panel] in registers
      for the reduced axes, but those that are written out:
        if the tile's windows lie inside:    sums[t, :] = combine(sums[t, :], term)
        else:                                the same with every guard
      results

Depthwise convolutions and those with few channels, their gradients, and pooling.  Lanes lie along
whatever axis the loads walk through one by one: channels, space, or a reduced axis, whose lanes
are combined at the end.

Convolutions of many channels are matrix products of the same form, without a copy of the image:
lanes are features, a tile is a part of an image row, and channels are summed inside of all
conditions.  Only filters that lie otherwise, or whose rows are no whole lines or far apart, are
copied, once, into panels of features, and images of narrower numbers widened, once for all windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, all_of, convert, load, substitute
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BF16, INDEX
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, WIDEST_STEP, CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, TASK_WORK, Parameters, Scheduled, lanes, work
from hlo_mlc.templates.columns import FEW_BLOCKS
from hlo_mlc.templates.elementwise import ElementwiseTemplate
from hlo_mlc.templates.product import is_direct, is_plain
from hlo_mlc.templates.register_tile import MOST_ROWS, register_tile
from hlo_mlc.templates.side_by_side import SideBySideTemplate
from hlo_mlc.templates.window_loops import SLIDES_INSIDE, WindowLoops
from hlo_mlc.templates.window_roles import (
    begins_early,
    even,
    in_groups,
    lane_of,
    product_roles,
    roles_of,
    windowed_product,
    windows_along,
)
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import (
    Contraction,
    contraction,
    is_map,
    sliding,
    stride,
    why_not_folded,
)
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.rewrite import map_expressions

# Neighbouring results of one tile, and vectors of each: enough sums to hide the latency of a
# multiply-add (4 cycles, 2 per cycle), and three quarters of the registers.
TILE = 9
VECTORS = 4
# Vectors of each result where lanes are channels: memory is then read in longer pieces.  What the
# caches had lost, depthwise of 56 x 56 x 128 found again in 0.75 of the time with 8 than with 2.
CHANNEL_VECTORS = 8
# Vectors of terms that may be written out for one tile: code size.
WRITTEN_OUT = 216
# This many results hide the latency with one vector of each.  More vectors are worth their code
# while windows are shorter than this: those of 9 x 9 and 7 x 7 ran 1.04 to 1.13 times as fast with
# one vector as with two.
ENOUGH_RESULTS, LONG_WINDOW = 8, 7
# Windows up to this long are written out along one axis, others in pieces of SLIDES_INSIDE.
WRITTEN_WINDOW = 12
# Rows of a matrix product that are too few for a tile by themselves.
FEW_ROWS = 6
# Rows of results, and bytes between terms, from which on filters are packed into panels: where they
# lie in long rows, a panel of them would take a page for every few terms, and a few sets of a cache
# (a stride of 1 KiB made the convolution of 14 x 14 x 256 by 256 filters 1.02 to 1.9 times as slow;
# 28 x 28 x 128 by 128, whose rows are half as long, took 0.97 to 1.01 of the time as they were).
REUSED, LONG_ROW = 32, 1 << 10
# Where a panel takes no more than a line, as with AVX2, each of its rows lies in two lines if rows
# do not begin with one, and rows of some panels leave it only a share of the first level: 8 x 8 to
# 56 x 56 x 61 took 0.75 to 0.8 of the time packed, 7 x 7 x 250 0.86, 56 x 56 x 64 0.9 to 0.97,
# 28 x 28 x 128 0.97 to 0.99, 14 x 14 x 128 by 64 1.02, 8 x 8 x 64 1.06.  With AVX-512, in panels of
# four lines, none gained.
PANELS_APART, REUSED_MUCH = 4, 512
# Bytes of an image that is widened at most.
LARGEST_WIDENED = 64 << 20


@dataclass(frozen=True, slots=True)
class WindowTemplate:
    """Register-tiled reduction over windows that overlap."""

    name: str = "window"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a reduction over sliding windows; empty where it is."""
        if len(nest.stages) != 1 or is_map(nest.stages[0]):
            return "not a single reduction"
        stage = nest.stages[0]
        if reason := why_not_folded(stage):
            return reason
        if not stage.combiner.name:
            return "its terms are not folded by one associative and commutative operation"
        stage = _stage(nest, target)
        if contraction(stage) is not None and windowed_product(stage) is None:
            return "a matrix product"
        if not any(windows_along(stage, axis) for axis in stage.axes):
            return "no two results share the elements of a window"
        lane = lane_of(stage, lanes((stage,), target))
        if lane is None:
            return "no axis along which elements are neighbours in memory"
        short = _are_rows(stage, lane) or _are_apart(stage, lane)
        if short and not SideBySideTemplate().refusal(nest, target):
            return "short rows side by side, each of which has a lane"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Results side by side, vectors of each, positions written out, chunks of terms, and
        whether the filters of a matrix product are packed and its image widened first."""
        return {
            "tile": (1, 3, 4, 6, 8, 9, 12, 14),
            "vectors": (1, 2, 3, 4),
            "unroll": (1, 2, 3, 4, 9),
            "chunks": (1, 4, 16),
            "pack": (0, 1),
            "widen": (0, 1) if _has_widened_image(nest, target) else (0,),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """The tile that fills the registers, of a size that divides the results."""
        stage = _stage(nest, target)
        width = lanes((stage,), target)
        if product_roles(stage, width) is not None:
            return _product_parameters(stage, width, target)
        budget = target.accumulators
        lane = lane_of(stage, width)
        needed, tile, most = -(-lane.extent // width), min(TILE, budget), VECTORS
        slides = bool(windows_along(stage, lane))
        if lane in stage.axes and not slides:
            most = CHANNEL_VECTORS
            tile = max(1, min(tile, budget // even(needed, most)))
        roles = roles_of(stage, width, tile)
        results = math.prod(count for _, count in roles.tile)
        if (
            lane in stage.axes
            and slides
            and results >= ENOUGH_RESULTS
            and roles.unrolled is not None
            and LONG_WINDOW <= roles.unrolled.extent <= WRITTEN_WINDOW
        ):
            most = 1
        vectors = even(needed, min(most, max(1, budget // results)))
        unroll = 1
        if roles.unrolled is not None:
            extent, most = roles.unrolled.extent, max(1, WRITTEN_OUT // (results * vectors))
            unroll = extent if extent <= min(WRITTEN_WINDOW, most) else min(SLIDES_INSIDE, most)
        chunks, total = 1, work(nest)
        panels = -(-roles.lane.extent // (width * vectors)) if roles.lane in stage.axes else 1
        tasks = panels * math.prod(v.extent for v in roles.outer)
        tasks *= math.prod(-(-v.extent // count) for v, count in roles.tile)
        if total > SERIAL_WORK and tasks < FEW_BLOCKS:
            long = stage.reduce_axes[0].extent
            chunks = max(1, min(16, total // TASK_WORK, long // 2))
        return {
            "tile": tile,
            "vectors": vectors,
            "unroll": unroll,
            "chunks": chunks,
            "pack": 0,
            "widen": 0,
        }

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = _stage(nest, target)
        chunks = parameters["chunks"]
        if chunks <= 1 or chunks > stage.reduce_axes[0].extent:
            return _scheduled(stage, target, parameters)
        first, second, partial = fold_in_chunks(stage, chunks)
        one, other = (_scheduled(s, target, parameters) for s in (first, second))
        return Scheduled.of(
            *one.schedules, *other.schedules, scratch=(*partial, *one.scratch, *other.scratch)
        )


def _are_rows(stage: Stage, lane: Var) -> bool:
    """Whether windows do not overlap, and lanes would read elements that are too far apart for
    shuffles: bits that are packed took 3 times as long as when rows were transposed."""
    for one in {one for term in stage.terms for one in loads(term)}:
        step, *inside = (stride(one, v) for v in (lane, *stage.reduce_axes))
        if step is None or None in inside:
            return False
        reach = sum(
            abs(n) * (v.extent - 1)
            for n, v in zip(inside, stage.reduce_axes, strict=True)
            if abs(n) < abs(step)
        )
        if step and not max(WIDEST_STEP, reach) < abs(step):
            return False
    return any(stride(one, lane) for term in stage.terms for one in loads(term))


def _are_apart(stage: Stage, lane: Var) -> bool:
    """Whether lanes would be the terms of a result, and no results are known to share any: small
    matrices by what stands at places that are read, as in finite elements.  For 3 x 3 and 6 x 6
    that took 6 and 8 times as long as rows side by side."""
    return lane in stage.reduce_axes and not any(
        sliding(stage, axis, surely=True) for axis in stage.axes
    )


def _stage(nest: Nest, target: CpuTarget) -> Stage:
    """The nest's one stage, over the axes that suit vectors."""
    stage = coalesce(nest.stages[0])
    return in_groups(stage, lanes((stage,), target))


def _scheduled(stage: Stage, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """The loops of a stage whose terms are not cut into chunks.

    Of a matrix product, the left factor is widened first, and the right one brought into the order
    of the loops.
    """
    width = lanes((stage,), target)
    product = product_roles(stage, width)
    moves, made, early = [], [], ""
    if product is not None and parameters["widen"] and _is_widened(product.lhs):
        move, stage, image = _widened(stage, product)
        moves, made = [move], [image]
        product = product_roles(stage, width)
    if product is not None and parameters["pack"]:
        move, stage, packed, early = _packed(stage, product, parameters["vectors"] * width, width)
        moves, made = [*moves, move], [*made, packed]
    template, schedules = ElementwiseTemplate(), []
    for move in moves:
        nest = Nest((move,), len(move.axes))
        schedules += template.apply(nest, target, template.default(nest, target)).schedules
    then = WindowLoops.of(stage, target, parameters, early).schedule()
    return Scheduled.of(*schedules, then, scratch=tuple(made))


def _product_parameters(stage: Stage, width: int, target: CpuTarget) -> Parameters:
    """For a convolution of many channels: the register tile of a matrix product."""
    roles = product_roles(stage, width)
    lane, last = roles.columns[-1], roles.rows[-1].extent
    rows = last if last >= FEW_ROWS else math.prod(v.extent for v in roles.rows[-2:])
    tile, vectors = register_tile(rows, lane.extent, width, target)
    tile = -(-rows // -(-rows // tile))
    if last < rows <= MOST_ROWS:
        tile, vectors = rows, min(vectors, max(1, target.accumulators // rows))
    reused = math.prod(v.extent for v in roles.rows if v not in roles.rhs.free)
    apart = abs(stride(roles.rhs, stage.reduce_axes[-1]) or 0) if is_plain(roles.rhs) else 0
    is_far = _is_far_apart(
        apart * roles.rhs.dtype.bytes, vectors * width * roles.rhs.dtype.bytes, reused
    )
    # What one tile reads: a panel, and what its windows reach of the other factor.
    depth = math.prod(v.extent for v in stage.reduce_axes)
    along = {roles.rows[-1]: tile} | {v: v.extent for v in stage.reduce_axes}
    touched = depth * vectors * target.vector_bytes + _reached_bytes(roles.lhs, along)
    chunks = (
        _divisor(stage.reduce_axes[0].extent, -(-2 * touched // target.l2_bytes))
        if touched > target.l2_bytes * 3 // 4
        else 1
    )
    return {
        "tile": tile,
        "vectors": vectors,
        "unroll": SLIDES_INSIDE,
        "chunks": chunks,
        "pack": int((lane.extent > vectors * width and is_far) or not is_direct(roles.rhs, lane)),
        "widen": int(_is_read_again(stage, roles, vectors * width, target)),
    }


def _is_far_apart(row: int, panel: int, reused: int) -> bool:
    """Whether rows of filters are so many bytes apart that panels of so many are faster packed."""
    if row >= LONG_ROW:
        return reused >= REUSED
    if panel > CACHE_LINE_BYTES:
        return False
    if row % CACHE_LINE_BYTES:
        return reused >= REUSED
    return row >= PANELS_APART * panel and reused >= REUSED_MUCH


def _has_widened_image(nest: Nest, target: CpuTarget) -> bool:
    """Whether a nest is a matrix product whose left factor is an array of narrower numbers."""
    stage = _stage(nest, target)
    product = product_roles(stage, lanes((stage,), target))
    return product is not None and _is_widened(product.lhs)


def _is_widened(factor: Expr) -> bool:
    """Whether a factor is read from an array of narrower numbers."""
    return (
        isinstance(factor, Apply)
        and factor.op == "convert"
        and isinstance(factor.args[0], Load)
        and factor.args[0].dtype.bytes < factor.dtype.bytes
    )


def _is_read_again(stage: Stage, roles: Contraction, width: int, target: CpuTarget) -> bool:
    """Whether panels of so many columns and windows read each number of a narrower image more than
    once, which would be widened as often.  With AVX2, 3 x 3 of 14 x 14 x 256 to 56 x 56 x 64, with
    odd sizes and strides of 2 as well, took 0.6 to 0.75 of the time in bf16, in f16 0.35 to 0.45.
    """
    if not _is_widened(roles.lhs):
        return False
    image, (*others, last) = roles.lhs.args[0].source, roles.columns
    panels = math.prod(v.extent for v in others) * -(-last.extent // width)
    times = math.prod(v.extent for v in (*stage.axes, *stage.reduce_axes) if v in roles.lhs.free)
    return (
        image.size < panels * times
        and image.size * roles.lhs.dtype.bytes <= LARGEST_WIDENED
        and not (target.shifts_beside and image.dtype is BF16)
    )


def _reached_bytes(factor: Expr, counts: Mapping[Var, int]) -> int:
    """Bytes of the lines that a factor reads while so many values of some axes pass."""
    total = 0
    for read in loads(factor):
        spans = [
            1 + sum(abs(c) * (counts.get(v, 1) - 1) for v, c in index.affine(i)[0].items())
            for i in read.indices
        ]
        *outer, last = spans or [1]
        lines = -(-last * read.dtype.bytes // CACHE_LINE_BYTES)
        total += math.prod(outer) * lines * CACHE_LINE_BYTES
    return total


def _divisor(extent: int, least: int) -> int:
    """The smallest divisor of `extent` that is not below `least`, or `extent` itself."""
    return next((n for n in range(max(1, least), extent) if extent % n == 0), extent)


def _widened(stage: Stage, roles: Contraction) -> tuple[Stage, Stage, Buffer]:
    """What widens the array that the left factor is read from; the stage that reads it so; and
    where it is:

        f32(x[o + w, c]) * k[w, c]   ->   z[i, c] = f32(x[i, c]);   z[o + w, c] * k[w, c]
    """
    read, dtype = roles.lhs.args[0], roles.lhs.dtype
    axes = tuple(
        Var(f"{stage.name}_wide{n}", INDEX, extent) for n, extent in enumerate(read.source.shape)
    )
    image = Buffer(f"{stage.name}_image", dtype, read.source.shape)
    move = Stage(
        f"{stage.name}_widen", axes, (Assign(image, axes, convert(load(read.source, axes), dtype)),)
    )
    default = None if read.default is None else convert(read.default, dtype)
    factor = load(image, read.indices, read.guard, default)
    return move, replace(stage, terms=(factor * roles.rhs,)), image


def _packed(
    stage: Stage, roles: Contraction, width: int, lanes: int
) -> tuple[Stage, Stage, Buffer, str]:
    """What copies the right factor into panels of `width` lanes; the stage that reads them; and the
    axis that it has for panels if the last one begins early, with lanes of the one before it:

        for f<60: y[f]   ->   for p<2: for c<32: y[min(p * 32, 28) + c], if that is one of p's own
    """
    lane, rhs = roles.columns[-1], roles.rhs
    width = min(width, lane.extent)
    panel = Var(f"{lane.name}_panel", lane.dtype, -(-lane.extent // width))
    column = Var(f"{lane.name}_column", lane.dtype, width)
    others = tuple(v for v in (*stage.axes, *stage.reduce_axes) if v in rhs.free and v is not lane)
    packed = Buffer(
        f"{stage.name}_filters", rhs.dtype, (panel.extent, *(v.extent for v in others), width)
    )
    start = panel * width
    early = begins_early(lane.extent, width, lanes)
    source = column + (index.minimum(start, lane.extent - width) if early else start)
    exists = index.compare("lt", source, lane.extent)
    move = Stage(
        f"{stage.name}_pack",
        (*others, panel, column),
        (
            Assign(
                packed,
                (panel, *others, column),
                substitute(rhs, {lane: source}),
                None if exists is TRUE else exists,
            ),
        ),
    )
    if not early:
        factor = load(packed, (lane // width, *others, lane % width))
        return move, replace(stage, terms=(roles.lhs * factor,)), packed, ""
    factor = load(packed, (panel, *others, column))
    own = index.compare("ge", source, start)
    apart = map_expressions(
        replace(stage, terms=(roles.lhs * factor,)), lambda e: substitute(e, {lane: source})
    )
    return (
        move,
        replace(
            apart,
            axes=tuple(
                v for old in stage.axes for v in ((panel, column) if old is lane else (old,))
            ),
            assigns=tuple(
                replace(a, guard=own if a.guard is None else all_of(a.guard, own))
                for a in apart.assigns
            ),
        ),
        packed,
        panel.name,
    )
