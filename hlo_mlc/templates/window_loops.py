"""The rewrites that make a fold over windows of naive loops: tiles of results in registers, with
branches around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Var
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    Parameters,
    abreast,
    epilogue_cost,
    in_tasks,
    in_vectors,
    lanes,
    open_stage,
    unroll_any,
    work,
    worth_a_task,
)
from hlo_mlc.templates.product import RUN
from hlo_mlc.templates.window_roles import (
    Order,
    Roles,
    begins_early,
    order_of,
    product_roles,
    roles_of,
)
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.core import Nest, Stage
from hlo_mlc.tensor.guards import guards

# Positions of a window that are written out inside of the results, not around them.
SLIDES_INSIDE = 4
# With at least this many tiles along each axis, those at its ends are few enough for short code:
# the benchmarks' depthwise and single_channel run no slower with it.
FEW_EDGES = 5
# Conditions of a tile of a matrix product that are asked before its loops: of a window, that its
# first column lies inside, and its last one.  A result alone would wait for its own sums.
ENDS = 2
# Epilogues costlier than this run as a loop over a tile in L1 instead of being written out, and so
# do stores of lanes that lie apart: a quarter to two thirds of the code, for the same speed.
EPILOGUE_INLINE = 4


@dataclass(frozen=True, slots=True)
class WindowLoops:
    """Rewrites the loops of one stage.

    `given` is the axis of panels that it has already, the last of which begins early.
    """

    stage: Stage
    target: CpuTarget
    roles: Roles
    order: Order
    lanes: int
    vectors: int
    unroll: int
    given: str
    is_product: bool

    @staticmethod
    def of(stage: Stage, target: CpuTarget, parameters: Parameters, given: str = "") -> WindowLoops:
        """The rewrites for given parameters."""
        width = lanes((stage,), target)
        roles = roles_of(stage, width, parameters["tile"])
        unroll = parameters["unroll"]
        if roles.unrolled is not None:
            unroll = min(unroll, roles.unrolled.extent)
        panels = -(-roles.lane.extent // (width * parameters["vectors"]))
        order = order_of(stage, roles, panels, target.cores)
        return WindowLoops(
            stage,
            target,
            roles,
            order,
            width,
            parameters["vectors"],
            unroll,
            given,
            product_roles(stage, width) is not None,
        )

    def schedule(self) -> Schedule:
        """All of them, in their order."""
        total = work(Nest((self.stage,), 0))
        schedule = open_stage(self.stage)
        for step in (
            self._in_panels,
            self._in_tiles,
            self._in_registers,
            self._around_tiles,
            self._in_vectors,
            self._stored,
        ):
            schedule = step(schedule)
        schedule = in_tasks(schedule, len(self._axes), lambda tasks: worth_a_task(tasks, total))
        return self._written_out(schedule).cascade(RUN)

    # The loops that there are in the end, by what is done in them

    @property
    def panel(self) -> str:
        """Each panel of lanes."""
        return f"{self.roles.lane.name}.o"

    @property
    def column(self) -> tuple[str, ...]:
        """Each lane of a panel, if results have them, not terms."""
        return () if self.reduces_lanes else (f"{self.roles.lane.name}.i",)

    @property
    def tile(self) -> tuple[str, ...]:
        """Each result of a tile, along its axes."""
        return tuple(f"{v.name}.i" for v, _ in self.roles.tile)

    @property
    def position(self) -> tuple[str, ...]:
        """Each position of a window that is written out."""
        return () if self.roles.unrolled is None else (f"{self.roles.unrolled.name}.i",)

    @property
    def points(self) -> tuple[str, ...]:
        """What is written out, each result with each position."""
        # Long windows slide outermost: then fewer of their elements wait in registers.
        if self.unroll > SLIDES_INSIDE:
            return (*self.position, *self.tile)
        return (*self.tile, *self.position)

    @property
    def inner(self) -> tuple[str, ...]:
        """Each term inside of all conditions."""
        return tuple(v.name for v in self.roles.inner)

    @property
    def around(self) -> tuple[str, ...]:
        """Each term, or piece of a window, that a tile of results meets as one."""
        pieces = () if self.roles.unrolled is None else (f"{self.roles.unrolled.name}.o",)
        return (*(v.name for v in self.roles.serial), *pieces)

    # What follows from the parameters

    @property
    def reduces_lanes(self) -> bool:
        """Whether lanes are terms, which are combined at the end."""
        return self.roles.lane in self.stage.reduce_axes

    @property
    def width(self) -> int:
        """Lanes of a panel."""
        return self.lanes * self.vectors

    @property
    def begins_early(self) -> bool:
        """Whether the last panel is as wide as the others, with lanes that the one before it
        stores: so all panels share their code."""
        return not self.reduces_lanes and begins_early(
            self.roles.lane.extent, self.width, self.lanes
        )

    @property
    def finishes_apart(self) -> bool:
        """Whether results are computed from what is folded in a loop over a tile on the stack."""
        return not self.reduces_lanes and (
            self.lanes_lie_apart or epilogue_cost(self.stage) > EPILOGUE_INLINE
        )

    @property
    def lanes_lie_apart(self) -> bool:
        """Whether each lane of a result is stored by itself, as where channels come first: written
        out, that is most of the code. (Whole vectors are: 28 x 28 by 96 channels with silu took 1.1
        times as long in a loop, on AVX2.)"""
        return any(stride(a, self.roles.lane) != 1 for a in self.stage.assigns)

    @property
    def edges_are_rare(self) -> bool:
        """Whether few tiles have results whose windows leave the operand, or do not exist."""
        asked = {v for t in self.stage.terms for g in guards(t) for v in g.free}
        return (
            self.roles.unrolled is not None
            and self.unroll > 1
            and all(
                -(-v.extent // count) >= FEW_EDGES
                for v, count in self.roles.tile
                if v in asked or self._is_ragged(v, count)
            )
        )

    def _is_ragged(self, axis: Var, count: int) -> bool:
        """Whether the last `count` along an axis are fewer."""
        return axis.extent % count > 0 and axis is not self.order.repeated

    @property
    def _axes(self) -> tuple[Var, ...]:
        """Those of tasks."""
        lane = self.roles.lane
        return tuple(
            lane if axis is None else axis
            for axis, _, _ in self.order.axes
            if axis is not None or not self.reduces_lanes
        )

    # The rewrites

    def _in_panels(self, schedule: Schedule) -> Schedule:
        """Axes in the order of tasks, with lanes innermost."""
        row = () if self.order.row is None else (self.order.row[0],)
        axes = [v.name for v in (*self._axes, *row)]
        roles = self.roles
        terms = [
            v.name
            for v in (
                *roles.serial,
                *filter(None, (roles.unrolled,)),
                *((roles.lane,) if self.reduces_lanes else ()),
                *roles.inner,
            )
        ]
        for wanted, there in ((axes, self.stage.axes), (terms, self.stage.reduce_axes)):
            schedule = _in_order(schedule, wanted, [v.name for v in there])
        if self.reduces_lanes:
            return schedule
        schedule = schedule.split(
            roles.lane.name, self.width, "shift" if self.begins_early else "shorten"
        )
        later = axes[axes.index(roles.lane.name) + 1 :]
        return _in_order(schedule, [*later, *self.column], [*self.column, *later])

    def _in_tiles(self, schedule: Schedule) -> Schedule:
        """Tiles of results, of which the last along a row begins early, or has fewer; pieces of
        windows; vectors of terms, if lanes are those."""
        roles, rows = self.roles, [f"{v.name}.o" for v, _ in reversed(self.roles.tile)]
        for axis, count in roles.tile:
            tail = (
                "repeat"
                if axis is self.order.repeated
                else "mask"
                if axis.extent % count
                else "peel"
            )
            schedule = schedule.split(axis.name, count, tail)
        apart = [f"{v.name}.{part}" for v, _ in reversed(roles.tile) for part in "oi"]
        schedule = _in_order(schedule, [*rows, *self.tile], apart)
        if roles.unrolled is not None:
            schedule = schedule.split(
                roles.unrolled.name,
                self.unroll,
                "mask" if roles.unrolled.extent % self.unroll else "peel",
            )
        if self.reduces_lanes:
            return schedule.rfactor(roles.lane.name, self.lanes, self.vectors)
        if self.begins_early or not 0 < roles.lane.extent % self.width < roles.lane.extent:
            return schedule
        task = (f"{self.order.row[0].name}.o",) if self.order.row is not None else ()
        return schedule.specialize((*task, *self.tile, *self.column)[0], self.panel)

    def _in_registers(self, schedule: Schedule) -> Schedule:
        """What is folded for a tile side by side."""
        if not self.finishes_apart:
            return self._expanded(schedule, "register")
        schedule = (
            self._expanded(schedule, "stack")
            .distribute((*self.tile, *self.column)[0], self.around[0], "s")
            .promote(self.around[0])
        )
        return self._expanded(schedule, "register")

    def _expanded(self, schedule: Schedule, scope: str) -> Schedule:
        for name in self.column:
            schedule = schedule.expand(name, scope, self.lanes)
        for name in reversed(self.tile):
            schedule = schedule.expand(name, scope)
        return schedule

    def _around_tiles(self, schedule: Schedule) -> Schedule:
        """The loops over terms around all results of a tile, which are stored in loops `.s`."""
        results = (*self.tile, *self.column)
        vectors = (self.panel,) if self.reduces_lanes and self.panel in schedule.loop_names else ()
        loops = (*self.around, *vectors)
        if not results or not loops:
            return schedule
        if not self.finishes_apart:
            schedule = schedule.distribute(results[0], loops[0], "s")
        for name in self.around:
            schedule = schedule.distribute(results[0], name).reorder(name, *results)
        for name in vectors:
            inside = (*results, *self.position)
            schedule = schedule.distribute(inside[0], name).reorder(name, *inside)
        return _in_order(
            schedule,
            [*self.points, *self.inner, *self.column],
            [*self.tile, *self.column, *self.position, *self.inner],
        )

    def _in_vectors(self, schedule: Schedule) -> Schedule:
        """Vectors of lanes side by side; results that take long to compute, one after the other."""
        stored = tuple(f"{name}.s" for name in self.tile)
        for name in self.column:
            late = f"{name}.s"
            schedule = abreast(schedule, name, self.lanes)
            if self.finishes_apart:
                schedule = _in_order(schedule, [late, *stored], [*stored, late])
                schedule = in_vectors(schedule, late, self.lanes)
            else:
                schedule = abreast(schedule, late, self.lanes)
        return schedule

    def _stored(self, schedule: Schedule) -> Schedule:
        """Results that do not exist left out, and lanes of the last panel that are not its own:
        under a mask where that costs nothing, as with AVX-512, else in code of its own."""
        stored = tuple(
            name for name in (f"{name}.s" for name in self.tile) if name in schedule.loop_names
        )
        ragged = any(self._is_ragged(v, count) for v, count in self.roles.tile)
        if ragged and stored and not self.finishes_apart:
            schedule = schedule.branch(stored[0])
        if self.reduces_lanes and stored:  # lanes of several results are combined at once
            return schedule.jam(stored)
        if not self.lanes_lie_apart:
            schedule = unroll_any(schedule, *stored)
        panels = self.panel if self.begins_early else self.given
        if not panels or self.target.has_masked_bytes:
            return schedule
        vectors = tuple(f"{name}.s.o" for name in self.column)
        first = next(
            (
                n
                for n in ((*vectors, *stored) if self.finishes_apart else (*stored, *vectors))
                if n in schedule.loop_names
            ),
            None,
        )
        return schedule if first is None else schedule.specialize(first, panels)

    def _written_out(self, schedule: Schedule) -> Schedule:
        """All terms of a tile at one position of the loops around it.

        if what all terms ask for:
          if the rest holds everywhere in the tile:   every term without conditions
          else:                                       groups of terms that ask for the same
        """
        if self.around:
            schedule = schedule.branch(self.around[-1])
        lane = self.roles.lane.name
        vectors = (
            tuple(f"{lane}.{part}" for part in "utv")
            if self.reduces_lanes
            else tuple(f"{name}{part}" for name in self.column for part in ("", ".o", ".i", ".t"))
        )
        for name in (*self.points, *self.inner)[:1] or vectors:
            if name in schedule.loop_names:
                schedule = schedule.version(name)
        edges = tuple(f"{name}.e" for name in self.points)
        if edges and edges[0] in schedule.loop_names:
            if self.tile and self.edges_are_rare:
                # Code that rarely runs is short: positions take turns.
                each, *_ = (f"{name}.e" for name in self.position)
                others = tuple(name for name in edges if name != each)
                schedule = _in_order(schedule, [each, *others], edges)
                edges = others
            schedule = schedule.jam(
                edges,
                self._side_by_side(edges, ".e"),
                ENDS if self.is_product and self.inner else 0,
            )
        if self.points:
            schedule = schedule.jam(self.points, self._side_by_side(self.points, ""))
        return unroll_any(schedule, *self.tile)

    def _side_by_side(self, written: Sequence[str], suffix: str) -> str:
        """The innermost loop that all points that are written out share: each term has a factor for
        all vectors of a product, of which few registers hold one at a time."""
        if not self.is_product:
            return ""
        return f"{self.inner[-1]}{suffix}" if self.inner else written[-1]


def _in_order(schedule: Schedule, wanted: Sequence[str], there: Sequence[str]) -> Schedule:
    """Loops in another order than there is."""
    return schedule if [*wanted] == [*there] else schedule.reorder(*wanted)
