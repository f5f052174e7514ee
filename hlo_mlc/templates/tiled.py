"""Folds of whatever two arrays have in common, for all pairs of their rows: distances, counts.

    for each row, column:                     parallel panel of columns, block of rows
      accumulator = initial                     panel[k, column] = y[column, k], of neighbours
      for k: combine f(x[row, k],        ->     for each tile of rows: accumulators[rows, panel]
                       y[column, k])              for k: combine f(x[row, k], panel[k, :])
      result                                      results[rows, panel]

What products of matrices are computed by (contraction.py), for any term and combiner: with vectors
of columns there are no lanes to be combined at the end, and what is read serves a whole tile.  With
few rows, or a depth for which there is no room, vectors go along it (dot.py).

`DerivedTemplate` makes such schedules, and those with vectors along the depth, by rule of any fold:
tuning finds there what nobody has written a template for.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from hlo_mlc.expr.core import Buffer
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    Parameters,
    Scheduled,
    abreast,
    along_axes,
    even_groups,
    in_blocks_of_tiles,
    in_tasks,
    in_vectors,
    lanes,
    open_stage,
    work,
    worth_a_task,
)
from hlo_mlc.templates.elementwise import ElementwiseTemplate
from hlo_mlc.templates.product import STACK_PANEL, in_square_blocks, reads_vectors_along
from hlo_mlc.tensor.classify import cost, is_map, reads, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Nest, Stage
from hlo_mlc.tensor.pairs import (
    FEWEST_ROWS,
    Roles,
    all_roles,
    is_pairwise,
    meets_columns,
    natural_roles,
    repeated_reads,
    terms_refusal,
)

# Accumulators of a tile, in vectors: their chains hide each other's latency, and beside them the
# registers hold what the terms need.
ACCUMULATORS = 8
# Instructions that begin while one that combines is under way: 4 cycles, 2 per cycle.
CHAIN = 8
# Vectors of terms from which on tiles of their folds pay: with 4 they took 0.9 of the time, with 32
# 0.6.
SHORTEST = 4
# Operations of a term up to which it matters how often what it takes is loaded.
LIGHT = 8
# Columns of a tile whose vectors go along the depth.
WIDEST = 4
# Instructions to put an element of a panel in its place, in squares.
PACKING = 0.6


@dataclass(frozen=True, slots=True)
class TiledTemplate:
    """Register tiles of folds with vectors of columns, from packed panels."""

    name: str = "tiled"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why this is not the way to compute the nest; empty where it is."""
        if reason := _refusal(nest):
            return reason
        stage = coalesce(nest.stages[0])
        roles = natural_roles(stage)
        if roles is None or not (roles.packed or meets_columns(stage)):
            return "not along rows that each meet many others"
        if not _ways(nest, target):
            return "too few rows and columns for the depth"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """The tile, blocks of rows, and whether vectors go along the depth."""
        return {
            "rows": (1, 2, 3, 4, 6, 8),
            "vectors": (1, 2, 3, 4),
            "blocks": (1, 2, 4),
            "along": _ways(nest, target),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Chains enough, and tasks enough."""
        stage, ways = coalesce(nest.stages[0]), _ways(nest, target)
        roles, width = natural_roles(stage), lanes((stage,), target)
        along = ways == (1,) or (
            len(ways) > 1 and _along(stage, width) < _beside(stage, roles, width)
        )
        return _usual(stage, roles, target, work(nest), along)

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        return _Tiling(stage, natural_roles(stage), parameters, lanes((stage,), target)).scheduled(
            work(nest)
        )


@dataclass(frozen=True, slots=True)
class DerivedTemplate:
    """Register tiles of any fold or map, by rule: for tuning, where analysis takes another
    template."""

    name: str = "derived"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why no rule applies to the nest; empty where one does."""
        if len(nest.stages) == 1 and is_map(nest.stages[0]):
            reason = ElementwiseTemplate().refusal(nest, target)
        else:
            reason = _refusal(nest)
        return reason or (
            "" if next(all_roles(coalesce(nest.stages[0])), None) else "fewer than two axes"
        )

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Which axes are rows and columns, the tile, blocks of rows, whether vectors go along the
        depth, whether panels are packed, and which summed axis is the innermost."""
        stage = coalesce(nest.stages[0])
        return {
            "roles": tuple(range(len(list(all_roles(stage))))),
            "rows": (1, 2, 3, 4, 6, 8, 12),
            "vectors": (1, 2, 3, 4),
            "blocks": (1, 2, 4, 8),
            "along": (0, 1) if stage.reduce_axes else (0,),
            "pack": (0, 1),
            "inner": tuple(range(len(stage.reduce_axes))) or (0,),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """What analysis would say if there were nothing else."""
        stage = coalesce(nest.stages[0])
        every = list(all_roles(stage))
        roles = natural_roles(stage)
        number = every.index(roles) if roles is not None else 0
        usual = _usual(stage, every[number], target, work(nest), along=False)
        fits = every[number].panel_bytes(lanes((stage,), target)) <= STACK_PANEL
        return {
            **usual,
            "roles": number,
            "pack": int(fits),
            "inner": max(0, len(stage.reduce_axes) - 1),
        }

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage, width = coalesce(nest.stages[0]), lanes(nest.stages, target)
        roles = next(itertools.islice(all_roles(stage), parameters["roles"], None))
        if roles.summed:
            inner = roles.summed[parameters["inner"]]
            roles = replace(roles, summed=(*(v for v in roles.summed if v is not inner), inner))
        return _Tiling(stage, roles, parameters, width).scheduled(work(nest))


def _refusal(nest: Nest) -> str:
    return "several stages" if len(nest.stages) > 1 else terms_refusal(nest.stages[0])


def _ways(nest: Nest, target: CpuTarget) -> tuple[int, ...]:
    """Whether vectors may go along columns, 0, and along the depth, 1."""
    stage = coalesce(nest.stages[0])
    roles, width = natural_roles(stage), lanes((stage,), target)
    last, total = stage.reduce_axes[-1], work(nest)
    # There are enough rows for a panel, and columns for a vector, and the panel fits.
    light = cost(*stage.terms) <= LIGHT
    columns = (
        (is_pairwise(stage) or (light and meets_columns(stage)))
        and roles.column.extent >= width
        and roles.panel_bytes(width) <= STACK_PANEL
        and _are_shared_out(roles, width, total, target)
        and all(_is_read_alike(stage, roles, buffer) for buffer in roles.packed)
    )
    # All is read along the innermost summed axis, which is long enough.
    depth = (
        last.extent >= SHORTEST * width
        and min(roles.row.extent, roles.column.extent) > 1
        and all(reads_vectors_along(term, last) for term in stage.terms)
        and merging(stage.combiner, stage.terms, stage.reduce_axes) is not None
        and _are_shared_out(roles, WIDEST, total, target)
    )
    return (0,) * columns + (1,) * depth


def _is_read_alike(stage: Stage, roles: Roles, buffer: Buffer) -> bool:
    """Whether all that is read of a buffer for all rows changes along the same axes, so that it is
    copied by loops of one kind."""
    axes = [{v for i in x.indices for v in i.free} for x in reads(stage, buffer)]
    return len({frozenset(found) for found in axes if roles.row not in found}) == 1


def _are_shared_out(roles: Roles, wide: int, total: int, target: CpuTarget) -> bool:
    """Whether panels of so many columns and blocks of rows are tasks enough for all threads."""
    panels = _panels(roles, wide)
    return (
        not worth_a_task(panels, total)
        or panels * max(1, roles.row.extent // FEWEST_ROWS) >= 2 * target.cores
    )


def _panels(roles: Roles, wide: int) -> int:
    return math.prod(v.extent for v in roles.outer) * -(-roles.column.extent // wide)


def _beside(stage: Stage, roles: Roles, width: int) -> float:
    """Rough number of instructions for a vector of results, columns side by side."""
    depth = math.prod(v.extent for v in stage.reduce_axes)
    packed = sum(x.source in roles.packed for x in roles.shared)
    every = repeated_reads(stage)
    apart = sum(stride(x, roles.column) not in (0, 1) for x in every if x not in roles.shared)
    read = len(every) / 2 + width * apart
    return depth * (
        cost(*stage.terms) + _combining(stage) + read + PACKING * packed * width / roles.row.extent
    )


def _along(stage: Stage, width: int) -> float:
    """The same with the terms of each fold side by side."""
    *others, last = (v.extent for v in stage.reduce_axes)
    vectors = math.prod(others) * -(-last // width)
    each = cost(*stage.terms) + _combining(stage) + len(repeated_reads(stage))
    return width * (vectors * each + 2 * (width - 1).bit_length() * _combining(stage))


def _combining(stage: Stage) -> int:
    return 0 if stage.combiner is None else cost(*stage.combiner.results)


def _usual(
    stage: Stage, roles: Roles, target: CpuTarget, total: int, along: bool
) -> dict[str, int]:
    """A tile whose chains hide each other's latency, and as many blocks of rows as it takes to have
    tasks for all threads."""
    width = lanes((stage,), target)
    most = ACCUMULATORS if target.registers >= 32 else ACCUMULATORS // 2
    most = max(1, most // max(1, len(stage.accumulators)))
    if along:
        widest = min(WIDEST, roles.column.extent)
    else:
        widest = (
            2
            if roles.column.extent > width
            and roles.panel_bytes(2 * width) <= STACK_PANEL
            and _are_shared_out(roles, 2 * width, total, target)
            else 1
        )
    rows, vectors = _tile(stage, roles, most, widest)
    wide = vectors if along else width * vectors
    panels, blocks = _panels(roles, wide), 1
    if worth_a_task(panels, total):
        blocks = max(1, min(-(-4 * target.cores // panels), roles.row.extent // FEWEST_ROWS))
    return {"rows": rows, "vectors": vectors, "blocks": blocks, "along": int(along)}


def _tile(stage: Stage, roles: Roles, most: int, widest: int) -> tuple[int, int]:
    """The tile of at most so many accumulators, and so many of a row, with the fewest instructions
    for each result: what it loads serves all of it, and the last one does again what it shares with
    the one before."""
    every, rows = repeated_reads(stage), roles.row.extent
    of_rows = sum(not any(roles.column in i.free for i in x.indices) for x in every)
    of_columns = len(roles.shared)
    each = (
        cost(*(stage.terms or (a.value for a in stage.assigns)))
        + _combining(stage)
        + len(every)
        - of_rows
        - of_columns
    )

    def instructions(tile: tuple[int, int]) -> float:
        height, wide = even_groups(rows, tile[0]), tile[1]
        one = height * wide * each + height * of_rows + wide * of_columns
        return -(-rows // height) * max(one, CHAIN) / wide

    tiles = [
        (high, wide)
        for wide in range(min(most, widest), 0, -1)
        for high in range(min(most // wide, rows), 0, -1)
    ]
    return min(tiles, key=instructions)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The rewrites that make register tiles of the naive loops of a fold."""

    stage: Stage
    roles: Roles
    parameters: Parameters
    lanes: int

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return even_groups(self.roles.row.extent, self.parameters["rows"])

    @property
    def tiles(self) -> int:
        """Tiles of a block of rows."""
        every = -(-self.roles.row.extent // self.height)
        return -(-every // min(self.parameters["blocks"], every))

    @property
    def row(self) -> str:
        """Each row of a tile."""
        return f"{self.roles.row.name}.i"

    @property
    def tile(self) -> str:
        """Each tile of a block of rows."""
        return f"{self.roles.row.name}.o.i"

    @property
    def block(self) -> str:
        """Each block of rows."""
        return f"{self.roles.row.name}.o.o"

    @property
    def column(self) -> str:
        """Each column of a panel."""
        return f"{self.roles.column.name}.i"

    @property
    def panel(self) -> str:
        """Each panel of columns."""
        return f"{self.roles.column.name}.o"

    def scheduled(self, total: int) -> Scheduled:
        """The loops for a nest of so much work."""
        along = self.parameters["along"] and merging(
            self.stage.combiner, self.stage.terms, self.stage.reduce_axes
        )
        return Scheduled.of(
            self.with_terms_beside(total) if along else self.with_columns_beside(total)
        )

    def with_columns_beside(self, total: int) -> Schedule:
        """Vectors of columns."""
        schedule = self._in_tiles(self.parameters["vectors"] * self.lanes)
        if self.roles.summed:
            schedule = schedule.expand(self.column, "register", self.lanes).expand(
                self.row, "register"
            )
        schedule = along_axes(schedule, [v.name for v in self.roles.summed], self.row, self.column)
        copies = []
        if self.parameters.get("pack", 1):
            for buffer in self.roles.packed:
                if not _is_read_alike(self.stage, self.roles, buffer):
                    continue
                before = set(schedule.loop_names)
                schedule = schedule.cache_read(buffer.name, self.block, "loops", self.row)
                copies.append([n for n in schedule.loop_names if n not in before])
        schedule = schedule.specialize(self.tile, self.panel)
        for names in copies:
            schedule = self._copied(schedule, names)
        schedule = abreast(schedule, self.column, self.lanes).unroll(self.row)
        return self._finished(schedule, total)

    def with_terms_beside(self, total: int) -> Schedule:
        """Vectors along the depth, whose lanes are combined at the end."""
        *others, last = (v.name for v in self.roles.summed)
        schedule = (
            self._in_tiles(self.parameters["vectors"])
            .rfactor(last, self.lanes)
            .expand(self.column, "register")
            .expand(self.row, "register")
        )
        depth = [name for name in (*others, f"{last}.o") if name in schedule.loop_names]
        schedule = along_axes(schedule, depth, self.row, self.column).specialize(
            self.tile, self.panel
        )
        return self._finished(schedule.unroll(self.row).unroll(self.column), total)

    def _in_tiles(self, width: int) -> Schedule:
        """Panels of columns, blocks of tiles of rows."""
        row, column = self.roles.row, self.roles.column
        naive = open_stage(self.stage)
        if len(self.roles.summed) > 1:
            naive = naive.reorder(*(v.name for v in self.roles.summed))
        panels = (
            naive.reorder(*(v.name for v in (*self.roles.outer, row, column)))
            .split(column.name, min(width, column.extent), "shorten")
            .reorder(self.panel, row.name)
        )
        return in_blocks_of_tiles(panels, self.stage, row, self.height, self.tiles)

    def _copied(self, schedule: Schedule, names: list[str]) -> Schedule:
        """A panel filled in squares, where it lies along the depth."""
        across = next(n for n in names if n.endswith(f".{self.column}"))
        schedule = schedule.specialize(names[0], self.panel)
        rows = [n for n in names if n is not across]
        if not rows:
            return in_vectors(schedule, across, self.lanes)
        return in_square_blocks(schedule, rows[-1], across, self.lanes)

    def _finished(self, schedule: Schedule, total: int) -> Schedule:
        depth = len(self.roles.outer) + 2
        return in_tasks(schedule, depth, lambda tasks: worth_a_task(tasks, total)).cascade()
