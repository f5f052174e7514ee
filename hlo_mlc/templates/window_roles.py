"""Which axes of a fold over windows become lanes, tiles of results, and loops."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, loads, loads_in, walk
from hlo_mlc.templates.base import may_repeat
from hlo_mlc.tensor.classify import Contraction, contraction, places_of_terms, sliding, stride
from hlo_mlc.tensor.core import Stage, derived
from hlo_mlc.tensor.guards import guards
from hlo_mlc.tensor.rewrite import map_expressions

# Windows up to this long need not overlap: longer ones are rows of their own.
SIDE_BY_SIDE = 8
# With fewer rows of tiles than this for each core, every tile is a task of its own.  Convolutions
# of 56 x 56 images ran 1.03 times as fast on two cores in tiles as in 56 rows.
ROWS_PER_CORE = 32
# The same where the last tile of a row is short, which a task of all tiles needs no code for.
SHORT_ROWS_PER_CORE = 16
# Windows of a matrix product up to this long are written out where nothing is summed inside.
WRITTEN_ROW = 4


@dataclass(frozen=True, slots=True)
class Roles:
    """What the axes of a stage are for."""

    lane: Var
    tile: tuple[tuple[Var, int], ...]  # axes of results side by side, with how many
    unrolled: Var | None  # the reduced axis that is written out
    serial: tuple[Var, ...]  # the reduced axes around it
    inner: tuple[Var, ...]  # the reduced axes inside of all conditions
    outer: tuple[Var, ...]  # the other axes


@dataclass(frozen=True, slots=True)
class Order:
    """Which tiles a task computes, and in which order tasks are numbered.

    `axes`: of tasks, with how often and how many results of each; None is that of panels.  `row`:
    the axis along which a task computes all tiles, with how many results of each; None for one
    tile.  `repeated`: the axis whose last tile begins early enough to be whole, with results that
    the same task has stored before.
    """

    axes: tuple[tuple[Var | None, int, int], ...]
    row: tuple[Var, int] | None
    repeated: Var | None

    @property
    def tasks(self) -> int:
        return math.prod(times for _, times, _ in self.axes)


def begins_early(extent: int, width: int, lanes: int) -> bool:
    """Whether the last panel of lanes takes as many vectors as the others, and so is as wide."""
    whole, rest = divmod(extent, width)
    return bool(whole) and rest > width - lanes


def windows_along(stage: Stage, axis: Var) -> tuple[Var, ...]:
    """The reduced axes of windows that slide along `axis`, or of short ones side by side."""
    return sliding(stage, axis) or tuple(
        r
        for r in stage.reduce_axes
        if r.extent <= SIDE_BY_SIDE
        and any(axis in i.free and r in i.free for i in places_of_terms(stage))
    )


def is_batch(stage: Stage, axis: Var) -> bool:
    """Whether other elements of everything are read for each value of the axis."""
    return all(axis in one.free for term in stage.terms for one in loads(term))


@derived
def in_groups(stage: Stage, width: int) -> Stage:
    """The stage with the features of a group along an axis of their own, where a vector of `width`
    neighbours might reach into two groups, which read other elements.

        for f<192: … x[…, f // 24 * 16 + c]   ->   for g<8: for f<24: … x[…, g * 16 + c]

    Groups of less than half a vector stay: most lanes would be empty.
    """
    sizes = _group_sizes(stage)
    for axis in stage.axes:
        for size in sizes.get(axis, ()):
            if (
                size < axis.extent
                and axis.extent % size == 0
                and size % width
                and 2 * size >= width
            ):
                group = Var(f"{axis.name}_group", axis.dtype, axis.extent // size)
                inside = Var(axis.name, axis.dtype, size)
                whole = group * size + inside
                apart = map_expressions(
                    stage, lambda e, axis=axis, whole=whole: substitute(e, {axis: whole})
                )
                return replace(
                    apart,
                    axes=tuple(
                        v
                        for old in stage.axes
                        for v in ((group, inside) if old is axis else (old,))
                    ),
                )
    return stage


def _group_sizes(stage: Stage) -> dict[Expr, set[int]]:
    """The divisors of axes in what is loaded."""
    found: dict[Expr, set[int]] = {}
    for node in walk(*(i for one in loads_in(*stage.terms) for i in one.indices)):
        if isinstance(node, Apply) and node.op == "floordiv" and isinstance(node.args[1], Const):
            found.setdefault(node.args[0], set()).add(node.args[1].value)
    return found


def product_roles(stage: Stage, width: int) -> Contraction | None:
    """The roles in a convolution that is computed as a matrix product: one of enough channels for
    half of the lanes of a vector of `width`; None for other stages."""
    roles = windowed_product(stage)
    return None if roles is None or 2 * roles.columns[-1].extent <= width else roles


@derived
def windowed_product(stage: Stage) -> Contraction | None:
    """The roles in a matrix product whose rows, but not columns, lie in windows: a convolution of
    several channels, or its gradients; None for other stages.

    Channels are the columns whatever the layout.  Where results that are neighbours in memory lie
    along a row instead, storing them one by one costs little beside the depth of the product.
    """
    roles = contraction(stage)
    if roles is None:
        return None
    if any(windows_along(stage, axis) for axis in roles.columns):
        roles = replace(roles, rows=roles.columns, columns=roles.rows, lhs=roles.rhs, rhs=roles.lhs)
    rows, columns = (
        any(windows_along(stage, axis) for axis in axes) for axes in (roles.rows, roles.columns)
    )
    return roles if rows and not columns else None


def lane_of(stage: Stage, width: int) -> Var | None:
    """The axis along which most accesses go through memory one by one."""
    scores = {}
    for axis in (*stage.axes, *stage.reduce_axes):
        accesses = {one for term in stage.terms for one in loads(term)}
        if axis in stage.axes:
            accesses.update(stage.assigns)
        scores[axis] = min(axis.extent, width) * sum(
            (step == 1) - (step not in (0, 1)) / 2 if isinstance(a, Load) else step == 1
            for a in accesses
            for step in (stride(a, axis),)
        )
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] > 0 else None


def even(extent: int, most: int) -> int:
    """The size of equal parts of `extent`, at most `most`: large ones that waste little."""
    return max(
        range(1, min(extent, most) + 1),
        default=1,
        key=lambda n: extent / (-(-extent // n) * n) * n / (n + 1),
    )


def roles_of(stage: Stage, width: int, tile: int) -> Roles:
    """The roles for vectors of `width` lanes and up to `tile` results side by side."""
    product = product_roles(stage, width)
    if product is not None:
        return _roles_of_product(stage, product, tile)
    lane = lane_of(stage, width)
    others = [v for v in reversed(stage.axes) if v is not lane]
    others.sort(key=lambda v: not windows_along(stage, v))  # what shares elements comes first
    taken: list[tuple[Var, int]] = []
    room = tile
    for axis in others:
        count = axis.extent if axis.extent <= room else even(axis.extent, room)
        if count > 1:
            taken.append((axis, count))
            room //= count
    in_tile = tuple(taken)
    inner = [r for axis, _ in in_tile for r in windows_along(stage, axis) if r is not lane]
    unrolled = inner[0] if inner else None
    serial = tuple(r for r in stage.reduce_axes if r is not lane and r is not unrolled)
    outer = tuple(v for v in stage.axes if v is not lane and v not in dict(in_tile))
    return Roles(lane, in_tile, unrolled, serial, (), outer)


def order_of(stage: Stage, roles: Roles, panels: int, cores: int) -> Order:
    """In the order of memory, panel by panel, but images last: all tiles of a row in one task,
    where there are enough of them for all cores."""
    # Rows of an image come after its panels: what windows share stays in a small cache.
    early = [v for v in roles.outer if is_batch(stage, v) or not windows_along(stage, v)]
    late = [v for v in roles.outer if v not in early]
    tiles = [(v, -(-v.extent // count), count) for v, count in roles.tile]
    row, others = tiles[:1], tiles[1:]
    once = panels if roles.lane in stage.axes else 1
    axes = [
        *((v, v.extent, 1) for v in early),
        (None, once, 1),
        *((v, v.extent, 1) for v in late),
        *reversed(others),
    ]
    short = bool(row) and roles.tile[0][0].extent % roles.tile[0][1] > 0 and may_repeat(stage)
    few = (SHORT_ROWS_PER_CORE if short else ROWS_PER_CORE) * cores
    if not row or math.prod(times for _, times, _ in axes) < few:
        return Order((*axes, *row), None, None)
    return Order(tuple(axes), roles.tile[0], roles.tile[0][0] if short else None)


def _roles_of_product(stage: Stage, product: Contraction, tile: int) -> Roles:
    """A tile of rows by columns; what no window and no guard depends on is summed inside."""
    lane, room, taken = product.columns[-1], tile, []
    for axis in reversed(product.rows):
        count = min(axis.extent, room)
        if count > 1:
            taken.append((axis, count))
            room //= count
    asked = [c for t in stage.terms for c in guards(t)]
    checked = [
        n
        for n, r in enumerate(stage.reduce_axes)
        if any(r in c.free for c in asked)
        or any(r in windows_along(stage, axis) for axis in stage.axes)
    ]
    inside = stage.reduce_axes[max(checked) + 1 :]
    outer = tuple(v for v in stage.axes if v is not lane and v not in dict(taken))
    serial, unrolled = stage.reduce_axes[: max(checked) + 1], None
    if not inside and serial[-1].extent <= WRITTEN_ROW:
        *serial, unrolled = serial
    return Roles(lane, tuple(taken), unrolled, tuple(serial), inside, outer)
