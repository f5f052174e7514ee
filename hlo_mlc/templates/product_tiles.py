"""The loops of a matrix product: what makes register tiles of naive ones, rewrite by rewrite
(templates/contraction.py has the picture).
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr.core import Expr, Load, Var, loads
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import PAIR, CpuTarget
from hlo_mlc.templates.base import (
    Parameters,
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
from hlo_mlc.templates.product import (
    RUN,
    in_square_blocks,
    is_direct,
    is_plain,
    products_per_task,
    reads_vectors_along,
)
from hlo_mlc.templates.product_roles import lanes_of
from hlo_mlc.tensor.classify import Contraction, cost, stride
from hlo_mlc.tensor.core import Stage

# Epilogues costlier than this run as a loop over a tile in L1 instead of being written out for
# every register of the tile: code size, for the same speed.
EPILOGUE_INLINE = 4
# Up to this cost the vectors of a row are written out side by side: one alone waits for its own
# results (gelu behind 128 x 768 x 3072: 1.5 times as long in all).
EPILOGUE_ABREAST = 80
# A row of a left factor that is joined along the depth is written out up to this depth: 16 arrays
# of 6000 side by side, times 16 x 3, took 20 times as long with the question which one is read.
WRITTEN_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Tiling:
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
    def block(self) -> str:
        """Each block of columns: as many panels as go along a part of the depth one by one."""
        return f"{self.roles.columns[-1].name}.o.o"

    @property
    def panel(self) -> str:
        """Each panel of columns, of a block where there are any."""
        return f"{self.roles.columns[-1].name}.o{'.i' if self.sweeps else ''}"

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
        return lanes_of(self.stage, self.target)

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
    def sweeps(self) -> bool:
        """Whether all panels of a block go along a part of the depth before the next part."""
        return self.in_parts and not self.parameters["pack"] and self.parameters["panels"] > 1

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
        schedule = schedule.reorder(*(v.name for v in self.roles.outer), rows.name, columns.name)
        if self.sweeps:
            panels = self.parameters["panels"]
            schedule = in_blocks_of_tiles(schedule, self.stage, columns, self.width, panels)
            schedule = schedule.reorder(self.block, self.panel, rows.name)
        else:
            schedule = schedule.split(columns.name, self.width, "shorten")
            schedule = schedule.reorder(self.panel, rows.name)
        schedule = in_blocks_of_tiles(schedule, self.stage, rows, self.height, self.tiles)
        if self.sweeps:
            return schedule.reorder(f"{rows.name}.o.o", self.block, self.panel)
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
        if self.sweeps:
            schedule = schedule.expand(self.panel, "stack")
        around = (self.panel, self.tile) if self.sweeps else (self.tile,)
        return (
            schedule.distribute(around[0], f"{last}.o", "e")
            .distribute(around[0], f"{last}.o")
            .reorder(f"{last}.o", *around, self.row, self.column)
            .promote(self.depth[0], "neutral" if self.sweeps else "there")
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
        """Of the next panel, or of this one's next part, a line asked for now and then; rows that
        panels go along in turns a processor sees coming."""
        matrix, steps = None if self.sweeps else self._matrix(), self.parameters["next_panel"]
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
