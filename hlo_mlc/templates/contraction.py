"""Matrix products: a register tile of accumulators over panels of packed columns.

    for each row, column:           parallel task -> batch, panel of columns, block of row tiles
      sum = initial                   for each row tile: sums[rows, panel] in registers
      for k: sum += lhs * rhs    ->     for k: sums[r, :] += lhs[r, k] * panel[k, :]
      result                            results[rows, panel]

Where no panel is packed, blocks of rows come before panels: what stands before and after a product
goes along rows as well, so each thread finds them in its own cache (128 x 128 x 128 and a tanh in a
loop: 22 us on one thread, 28 on two that shared columns, 15 on two that share rows).

The first tile packs the panel of rhs beside its multiplications, [summed, panel]; all of them ask
for the next panel.  Multiplications run at the processor's peak once their factors are near: what
is left to win is the time that a panel takes to come.  Where a panel is longer than there is room
for on the stack, all tiles of a block go along a part of the depth before the next part.

Where the processor adds products of pairs of i16 to i32, factors of at most 16 bits are packed as
such, two steps of the depth side by side: [summed / 2, panel, 2], which goes with pairs of a row.

A large left factor whose rows lie across the depth, and one that is computed and read by many
panels, is laid out along the depth first (left_factor.py).

The factors may be any expressions (prologues), the results any expressions of the sums (epilogues).
Sums over k are sums of runs of some 256 terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr.core import Apply, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import I16, I32, holds
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, CpuTarget
from hlo_mlc.templates.base import (
    Parameters,
    Scheduled,
    abreast,
    along_axes,
    epilogue_cost,
    in_blocks_of_tiles,
    in_tasks,
    in_vectors,
    open_stage,
    points,
    unroll_any,
)
from hlo_mlc.templates.left_factor import is_cheap_across, laid_out, pays
from hlo_mlc.templates.product import (
    PARALLEL_WORK,
    RUN,
    STACK_PANEL,
    in_square_blocks,
    is_direct,
    is_plain,
    is_widened,
    product_refusal,
    products_per_task,
    reads_vectors_along,
)
from hlo_mlc.templates.register_tile import register_tile
from hlo_mlc.tensor.classify import Contraction, contraction, cost, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Bytes of the unfinished sums between two blocks of the depth: with STACK_PANEL below the 256 KiB
# that a worker's stack has to spare.
STACK_PARTIAL = 64 * 1024
# Right factors larger than this part of the second level are packed where several tiles read them:
# rows far apart cost more than a copy.  With 2 MiB, products of 384 square and 128 x 256 x 640 ran
# 1.15 to 1.2 times as fast packed, one of 256 square 0.98 times.
PACKED_SHARE = 4
# Steps of the depth by which rows of a large right factor that is not packed are fetched ahead:
# they lie too far apart for a processor to see what comes next (16 x 256 x 1024 ran 1.1 times as
# fast, 4 to 12 rows by matrices of 8 to 16 MB 1.25 to 1.4 times; 16 steps were worse, 4 as good).
AHEAD = 8
# Steps of the depth between two lines of the next panel: to say which one takes 17 instructions,
# where a step of a tile of 6 rows by 2 vectors takes 20.
STEPS_BETWEEN = 8
# Epilogues costlier than this run as a loop over a tile in L1 instead of being written out for
# every register of the tile: code size, for the same speed.
EPILOGUE_INLINE = 4
# Up to this cost the vectors of a row are written out side by side: one alone waits for its own
# results (gelu behind 128 x 768 x 3072: 1.5 times as long in all).
EPILOGUE_ABREAST = 80
# Vectors that printers put into memory in turns (codegen/cpu/strides.py); instructions to store an
# element of a vector alone.
SHUFFLED = 4
STORED_ALONE = 2
# A row of a left factor that is joined along the depth is written out up to this depth: 16 arrays
# of 6000 side by side, times 16 x 3, took 20 times as long with the question which one is read.
WRITTEN_DEPTH = 32
# Products of i16 that an instruction adds up, and rows from which on laying out factors so pays:
# 512 and 1024 square took 0.5 of the time, 12 to 32 x 1024 x 1024 0.55 to 0.75, 8 0.92, 4 1.08.
# By a multiplication and two additions, with AVX2, they took 0.75 to 1.3.
PAIR, PAIRED_ROWS = 2, 8


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Register-tiled matrix product with prologue and epilogue."""

    name: str = "contraction"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a matrix product for this template; empty where it is."""
        return product_refusal(nest)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Tile heights and widths, depth of a block, packing, how finely rows are split, steps by
        which rows of the right factor are fetched ahead, after how many steps a line of the next
        panel is, and whether the left factor is laid out along the depth first."""
        return {
            "rows": (4, 6, 8, 12),
            "vectors": (1, 2, 3, 4),
            "pack": (0, 1),
            "depth": (0, 256, 512, 768),
            "row_blocks": (1, 2, 4, 8),
            "pack_rows": (0, 1),
            "ahead": (0, 4, 8, 16),
            "next_panel": (0, 1, 2, 4, 8),
            "pairs": (0, 1) if adds_pairs(coalesce(nest.stages[0]), target) else (0,),
            "turn": (0, 1) if laid_out(coalesce(nest.stages[0]), target) else (0,),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """The register tile that wastes least, packing where panels are reused."""
        stage = coalesce(nest.stages[0])
        lanes = _lanes(stage, target)
        roles = register_roles(stage, lanes)
        m, n = roles.rows[-1].extent, roles.columns[-1].extent
        depth = math.prod(v.extent for v in roles.summed)
        rows, vectors = register_tile(m, n, lanes, target)
        tiles = -(-m // rows)
        outer = math.prod(v.extent for v in roles.outer)
        panels = -(-n // (lanes * vectors)) * outer
        size = stage.accumulators[0].dtype.bytes
        big = n * depth * size > target.l2_bytes / PACKED_SHARE
        irregular = not is_direct(roles.rhs, roles.columns[-1]) and (
            tiles > 1 or not reads_vectors_along(roles.rhs, roles.columns[-1])
        )
        row_blocks = 1
        if points(stage) > PARALLEL_WORK and panels < 2 * target.cores:
            row_blocks = min(tiles, -(-2 * target.cores // panels))
        elif points(stage) > PARALLEL_WORK and outer < 2 * target.cores and not (big or irregular):
            row_blocks = min(tiles, 2 * target.cores)
        pack = irregular or (tiles // row_blocks >= 3 and big)
        computed = not is_plain(roles.lhs) and not (target.shifts_beside and is_widened(roles.lhs))
        # Of the next panel one line is asked for at a time: 24 by 768 x 3072 ran 1.6 times as fast,
        # 128 rows 1.15 times.
        wide = -(-lanes * vectors * size // CACHE_LINE_BYTES)
        apart = min(tiles // wide, STEPS_BETWEEN) if big and pack else 0
        pairs = adds_pairs(stage, target)
        turn = not pairs and pays(stage, panels, lanes * vectors, computed, target)
        return _fitting(
            stage,
            lanes,
            {
                "rows": rows,
                "vectors": vectors,
                "pack": int(pack),
                "row_blocks": row_blocks,
                "depth": 0,
                "pack_rows": int(
                    computed and not turn and not is_cheap_across(roles.lhs, roles.rows[-1])
                ),
                "pairs": int(pairs),
                "turn": int(turn),
                "ahead": AHEAD if big and not pack and roles.summed[-1].extent > AHEAD else 0,
                "next_panel": 1 << apart.bit_length() >> 1,
            },
        )

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        turn = parameters["turn"] and not parameters.get("pairs")
        if turn and (found := laid_out(stage, target)) is not None:
            template, nest, stage, factor = found
            first = template.apply(nest, target, template.default(nest, target))
            then = self._tiled(stage, target, parameters)
            return Scheduled.of(*first.schedules, then, scratch=(*first.scratch, factor))
        return Scheduled.of(self._tiled(stage, target, parameters))

    def _tiled(self, stage: Stage, target: CpuTarget, parameters: Parameters) -> Schedule:
        lanes = _lanes(stage, target)
        return _Tiling(
            stage, register_roles(stage, lanes), _fitting(stage, lanes, parameters), target
        ).schedule()


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The rewrites that make register tiles of the naive loops of a product."""

    stage: Stage
    roles: Contraction
    parameters: Parameters
    target: CpuTarget

    def schedule(self) -> Schedule:
        """All of them, in their order."""
        schedule = self._in_tiles(open_stage(self.stage))
        if self.in_parts:
            schedule = self._part_by_part(schedule)
        elif self.finishes_apart:  # the sums on the stack, their results in loops of their own
            schedule = self._expanded(schedule, "stack").distribute(self.row, self.depth[0], "e")
            schedule = schedule.promote(self.depth[0])
        elif self.stores_columns:
            schedule = (
                self._expanded(schedule, "register")
                .distribute(self.row, self.depth[0], "e")
                .reorder(f"{self.column}.e", f"{self.row}.e")
            )
        if self.parameters["pack_rows"]:
            schedule = self._with_rows_computed(schedule)
        schedule = self._in_registers(schedule)
        if self.in_pairs:
            schedule = self._packed_in_pairs(schedule)
        elif self.parameters["pack"]:
            schedule = self._packed(schedule)
        schedule = self._with_next_panel_fetched(schedule).cascade(RUN)
        schedule = self._with_rows_fetched(self._in_vectors(schedule))
        return in_tasks(
            schedule,
            len(self.roles.outer) + 2,
            lambda tasks: products_per_task(tasks, points(self.stage), self.target.cores),
        )

    # The loops that there are in the end, by what is done in them

    @property
    def panel(self) -> str:
        """Each panel of columns."""
        return f"{self.roles.columns[-1].name}.o"

    @property
    def tile(self) -> str:
        """Each tile of a block of rows."""
        return f"{self.roles.rows[-1].name}.o.i"

    @property
    def row(self) -> str:
        """Each row of a tile."""
        return f"{self.roles.rows[-1].name}.i"

    @property
    def column(self) -> str:
        """Each column of a panel."""
        return f"{self.roles.columns[-1].name}.i"

    @property
    def depth(self) -> tuple[str, ...]:
        """Each term of the sums of a tile."""
        *others, last = (v.name for v in self.roles.summed)
        return (*others, f"{last}.i" if self.in_parts else last)

    # What follows from the parameters

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return _lanes(self.stage, self.target)

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.parameters["vectors"] * self.lanes

    @property
    def tiles(self) -> int:
        """Tiles of a block of rows."""
        return -(-self._rows_of_block // self.parameters["rows"])

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return -(-self._rows_of_block // self.tiles)

    @property
    def _rows_of_block(self) -> int:
        extent, most = self.roles.rows[-1].extent, self.parameters["rows"]
        return -(-extent // min(self.parameters["row_blocks"], -(-extent // most)))

    @property
    def part(self) -> int:
        """How much of the innermost summed axis all tiles of a block go along at a time."""
        extent = self.roles.summed[-1].extent
        return min(self.parameters["depth"] or extent, extent)

    @property
    def in_parts(self) -> bool:
        """Whether sums wait on the stack between parts of the depth."""
        return self.part < self.roles.summed[-1].extent

    @property
    def in_pairs(self) -> bool:
        """Whether pairs of products are added to a sum at once."""
        return bool(self.parameters.get("pairs"))

    @property
    def _kept(self) -> str:
        """What is kept of a factor that is computed for several tiles."""
        return "i16" if self.in_pairs else "value"

    @property
    def finishes_apart(self) -> bool:
        """Whether the results of a tile are computed from sums on the stack."""
        return epilogue_cost(self.stage) > EPILOGUE_INLINE

    @property
    def stores_columns(self) -> bool:
        """Whether vectors of results are stored one behind the other, not side by side."""
        return not all(stride(a, self.roles.columns[-1]) == 1 for a in self.stage.assigns)

    @property
    def packs_beside(self) -> bool:
        """Whether the first tile packs a panel beside its multiplications, which take as long as
        the panel takes to come; the last, narrow one is not worth the code."""
        columns = self.roles.columns[-1]
        return (
            bool(self.parameters["pack"])
            and self.tiles > 1
            and len(self.roles.summed) == 1
            and columns.extent >= self.width
            and reads_vectors_along(self.roles.rhs, columns)
        )

    # The rewrites

    def _in_tiles(self, schedule: Schedule) -> Schedule:
        """Panels of columns, blocks of tiles of rows; the last panel has loops of its own."""
        rows, columns = self.roles.rows[-1], self.roles.columns[-1]
        schedule = in_blocks_of_tiles(
            schedule.reorder(*(v.name for v in self.roles.outer), rows.name, columns.name)
            .split(columns.name, self.width, "shorten")
            .reorder(self.panel, rows.name),
            self.stage,
            rows,
            self.height,
            self.tiles,
        )
        if not self.parameters["pack"]:  # else neighbouring tasks read the panel that both pack
            schedule = schedule.reorder(f"{rows.name}.o.o", self.panel)
        return schedule.specialize(self.tile, self.panel)

    def _part_by_part(self, schedule: Schedule) -> Schedule:
        """The sums of a block of rows on the stack; for each part of the depth, what each tile adds
        to them; and all results."""
        *others, last = (v.name for v in self.roles.summed)
        schedule = schedule.split(last, self.part, "shorten")
        if others:
            schedule = schedule.reorder(f"{last}.o", *others, f"{last}.i")
        schedule = self._expanded(schedule, "stack").expand(self.tile, "stack")
        return (
            schedule.distribute(self.tile, f"{last}.o", "e")
            .distribute(self.tile, f"{last}.o")
            .reorder(f"{last}.o", self.tile, self.row, self.column)
            .promote(self.depth[0])
        )

    def _with_rows_computed(self, schedule: Schedule) -> Schedule:
        """The rows of a tile on the stack, by vectors where they lie along the depth."""
        last = self.roles.summed[-1]
        # Rows 4 KiB apart would share their places in L1.
        schedule = (
            schedule.reorder(self.column, self.row)
            .hoist(self.column, self.column, self.part + self.lanes, self._kept)
            .reorder(self.row, self.column)
        )
        along = f"{self.column}.h.{self.depth[-1]}"
        if last.extent <= WRITTEN_DEPTH and _is_joined_along(self.roles.lhs, last):
            return schedule.unroll(along)
        if not reads_vectors_along(self.roles.lhs, last, guarded=True, width=self.lanes):
            return schedule
        return in_vectors(schedule, along, self.lanes)

    def _in_registers(self, schedule: Schedule) -> Schedule:
        """The sums of a tile side by side inside of the loops over the depth."""
        if self.in_parts or self.finishes_apart or not self.stores_columns:
            schedule = self._expanded(schedule, "register")
        return along_axes(schedule, self.depth, self.row, self.column)

    def _expanded(self, schedule: Schedule, scope: str) -> Schedule:
        return schedule.expand(self.column, scope, self.lanes).expand(self.row, scope)

    def _packed(self, schedule: Schedule) -> Schedule:
        """A panel of the right factor on the stack; where it has conditions on the column, it may
        be the same for all columns of a panel, or for all of the depth."""
        rhs, last = self.roles.rhs, self.roles.summed[-1]
        schedule = schedule.hoist(self.tile, self.row, self.lanes)
        along, across = (f"{self.tile}.h.{name}" for name in (self.depth[-1], self.column))
        if self.packs_beside and along in schedule.loop_names:
            schedule = schedule.fuse_first(along, self.depth[-1], self.tile, self.width)
        if (narrowest := _lies_along(rhs, last, self.roles.columns[-1])) is not None:
            return in_square_blocks(schedule, along, across, self.lanes, narrowest)
        return abreast(schedule, across, self.lanes) if across in schedule.loop_names else schedule

    def _packed_in_pairs(self, schedule: Schedule) -> Schedule:
        """A panel of the right factor in which each two steps of the depth lie side by side, and
        both at once for all sums of a tile."""
        depth, panel = self.depth[-1], f"{self.tile}.h"
        schedule = schedule.hoist(self.tile, self.row, self.lanes, "i16")
        along, across = f"{panel}.{depth}", f"{panel}.{self.column}"
        if self.part % PAIR:
            schedule = schedule.pad(panel, 1, 0)
        steps = -(-self.part // PAIR)
        schedule = schedule.transform_layout(panel, (steps, PAIR, 0), ("0", "2", "1"))
        schedule = schedule.split(along, PAIR).reorder(across, f"{along}.i")
        schedule = schedule.split(across, self.lanes)
        for part in (f"{across}.i", f"{across}.t"):
            if part in schedule.loop_names:
                schedule = schedule.reorder(f"{along}.i", part).vectorize(part)
        schedule = schedule.unroll(f"{along}.i")
        schedule = schedule.split(depth, PAIR).reorder(self.row, self.column, f"{depth}.i")
        return schedule.unroll(f"{depth}.i")

    def _with_next_panel_fetched(self, schedule: Schedule) -> Schedule:
        """Of the next panel, or of this one's next part, a line asked for now and then."""
        matrix, steps = self._matrix(), self.parameters["next_panel"]
        every = f"{self.depth[-1]}.o" if self.in_pairs else self.depth[-1]
        at = ((self.panel,) if self.roles.columns[-1].extent > self.width else ()) + (
            (f"{self.roles.summed[-1].name}.o",) if self.in_parts else ()
        )
        if matrix is None or not at or not steps:
            return schedule
        if steps > 1:
            schedule, every = schedule.split(every, steps, "shorten"), f"{every}.o"
        return schedule.prefetch_next(matrix.source.name, at, every)

    def _matrix(self) -> Load | None:
        """The matrix in the right factor whose elements lie side by side along the columns or the
        only depth."""
        if len(self.roles.summed) == 1:
            for x in filter(is_plain, loads(self.roles.rhs)):
                strides = [stride(x, v) for v in (self.roles.columns[-1], self.roles.summed[-1])]
                if all(strides) and 1 in strides:
                    return x
        return None

    def _in_vectors(self, schedule: Schedule) -> Schedule:
        """Vectors of columns; the sums of a tile are written out, so that they are registers."""
        schedule = abreast(schedule, self.column, self.lanes).unroll(self.row)
        late = f"{self.column}.e"
        if late not in schedule.loop_names:
            return schedule
        if not self.in_parts and not self.finishes_apart:
            schedule = schedule.split(late, self.lanes).unroll(f"{self.row}.e")
            for part in (f"{late}.i", f"{late}.t"):
                if part in schedule.loop_names:
                    schedule = schedule.reorder(f"{self.row}.e", part).vectorize(part)
            return unroll_any(schedule, f"{late}.o")
        if sum(cost(a.value) for a in self.stage.assigns) <= EPILOGUE_ABREAST:
            return abreast(schedule, late, self.lanes)
        return in_vectors(schedule, late, self.lanes)

    def _with_rows_fetched(self, schedule: Schedule) -> Schedule:
        """Rows of the right factor asked for some steps before they are read where they lie."""
        rhs, ahead = self.roles.rhs, self.parameters["ahead"]
        if (
            not ahead
            or not is_direct(rhs, self.roles.columns[-1])
            or (self.parameters["pack"] and not self.packs_beside)
        ):
            return schedule
        apart = stride(rhs, self.roles.summed[-1])
        return (
            schedule.prefetch(rhs.source.name, self.depth[-1], ahead * apart) if apart else schedule
        )


def _fitting(stage: Stage, lanes: int, parameters: Parameters) -> Parameters:
    """The parameters, with so little of the depth at a time, and then so few rows, that what is put
    aside fits on the stack; nothing is where it never does.  Both factors are for pairs."""
    if parameters.get("pairs"):
        parameters = {**parameters, "pack": 1, "pack_rows": 1}
    roles, size = register_roles(stage, lanes), stage.accumulators[0].dtype.bytes
    kept = I16.bytes if parameters.get("pairs") else size
    *outer, last = (v.extent for v in roles.summed)
    width = lanes * parameters["vectors"]
    aside = width * parameters["pack"] + parameters["rows"] * parameters["pack_rows"]
    least = math.prod(outer) * aside * kept
    if least > STACK_PANEL:
        return _fitting(stage, lanes, {**parameters, "pack": 0, "pack_rows": 0, "pairs": 0})
    spans = max(1, -(-least * last // STACK_PANEL))
    step = min(parameters["depth"] or last, -(-last // spans))
    if step >= last:
        return {**parameters, "depth": 0}
    if parameters.get("pairs") and (step := _even_part(last, step)) is None:
        return _fitting(stage, lanes, {**parameters, "pairs": 0})
    # Unfinished sums of a block of rows stay on the stack between spans.
    most_rows = STACK_PARTIAL // (width * size)
    fewest = -(-roles.rows[-1].extent // most_rows)
    return {**parameters, "depth": step, "row_blocks": max(parameters["row_blocks"], fewest)}


def adds_pairs(stage: Stage, target: CpuTarget) -> bool:
    """Whether products of what i16 holds are added up as i32, of which the target does two at once
    where both factors are laid out for that."""
    roles = register_roles(stage, _lanes(stage, target))
    return (
        target.has_pairs
        and stage.accumulators[0].dtype is I32
        and len(roles.summed) == 1
        and roles.summed[0].extent >= PAIR
        and roles.rows[-1].extent >= PAIRED_ROWS
        and all(
            isinstance(one, Apply)
            and one.op == "convert"
            and one.args[0].dtype.is_integer
            and holds(I16, one.args[0].dtype)
            for one in (roles.lhs, roles.rhs)
        )
    )


def _even_part(extent: int, most: int) -> int | None:
    """The largest even number that divides an extent, of those not far below `most`."""
    return next((n for n in range(most, most // 2, -1) if n % PAIR == 0 == extent % n), None)


def _lies_along(factor: Expr, depth: Var, columns: Var) -> int | None:
    """The bytes of the narrowest element that it is computed of, if all that changes with
    both lies side by side along the depth, and not along the columns; else None.  What is read
    and no more may be rows from anywhere, or with a border."""
    if isinstance(factor, Load):
        read = [factor]
    else:
        read = [one for one in loads(factor) if {depth, columns} <= one.free]
        if not all(map(is_plain, read)):
            return None
    if not read or any(stride(one, depth) != 1 for one in read):
        return None
    return min(one.dtype.bytes for one in read)


def _is_joined_along(factor: Expr, axis: Var) -> bool:
    """Several things of which the place along an axis says which is read: columns put side by
    side, for example. Where the place is a constant, nobody has to ask."""
    return sum(read.guard is not None and axis in read.guard.free for read in loads(factor)) > 1


def register_roles(stage: Stage, lanes: int) -> Contraction:
    """The roles of a product's axes: columns are what goes into vectors.

    As a rule that is the axis along which results lie side by side.  Where they are few, vectors
    along the rows take fewer instructions if the left factor lies along these, though results are
    shuffled then, or stored one by one: a million points times 3 x 3, from three rows of a million,
    took 0.6 of the time.
    """
    roles = contraction(stage)
    rows, columns = roles.rows[-1], roles.columns[-1]
    if not columns.extent < lanes <= rows.extent or not reads_vectors_along(roles.lhs, rows):
        return roles
    depth = math.prod(v.extent for v in roles.summed)
    in_turns = columns.extent <= SHUFFLED and all(
        stride(a, rows) == columns.extent for a in stage.assigns
    )
    stored = columns.extent * (columns.extent if in_turns else STORED_ALONE * lanes)
    if columns.extent * depth + stored >= lanes * (depth + 1):
        return roles
    return replace(roles, rows=roles.columns, columns=roles.rows, lhs=roles.rhs, rhs=roles.lhs)


def _lanes(stage: Stage, target: CpuTarget) -> int:
    return max(1, target.vector_bytes // stage.accumulators[0].dtype.bytes)
