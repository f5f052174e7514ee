"""Operands and results of kernels in the layouts that calls beside them have.

    b = lapack(a), column by column     y[i, j] = b[i, j] + 1   ->   y[i, j] = m[j, i] + 1

Libraries that XLA calls have matrices column by column.  A kernel that had them row by row would
have XLA transpose all of them first; so it reads, or writes, an array with the memory that is
there.  What it reads against the grain in a map is transposed in registers on its way; anywhere
else each element brings a line of memory.  So each array is laid out in the way that costs less,
a copy of XLA's included, which takes each element against the grain as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.partition.work import Work, far_apart
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.classify import Contraction, contraction, is_map, stride, walks_columns
from hlo_mlc.tensor.core import Nest, Stage, Step
from hlo_mlc.tensor.liveness import step_writes
from hlo_mlc.tensor.orders import LaidOut, Order, is_alone, is_simple, with_orders

# Bytes that go by meanwhile where an element is transposed in registers, and where it is not
# (process and turned_at_random of the bench).
_IN_SQUARES, _LINE = 16, 64
# Bytes of a factor of a product that stays near, and columns of a panel of the other one
# (turned_at_random).
_NEAR, _PANEL = 2 << 20, 16


def stated_orders(graph: Graph, left: Collection[Node]) -> dict[Value, Order]:
    """How values lie that calls which are `left` to XLA are given, or give: those that do not lie
    row by row.

    What enters or leaves the graph does, whatever a call has it in: XLA copies it once.
    """
    found: dict[Value, Order] = {}
    for node in left:
        for values, name in ((node.operands, "operand_layouts"), (node.results, "result_layouts")):
            for value, layout in zip(values, node.attributes.get(name, ()), strict=False):
                order = tuple(reversed(layout))
                if (
                    order != tuple(range(len(order)))
                    and value.type is not None
                    and value.type.is_static
                    and len(value.type.shape) == len(order)
                ):
                    found.setdefault(value, order)
    for value in (*graph.parameters, *graph.captures, *graph.results):
        found.pop(value, None)
    return found


def lay_out(
    steps: Sequence[Step],
    wanted: Mapping[Buffer, Order],
    results: Collection[Buffer],
    free: Set[Buffer],
) -> LaidOut:
    """The steps with buffers, some of which are `results`, in the orders that are wanted of them,
    as far as that costs less than copies; `free` results, which only kernels read, may be in any,
    as may temporaries."""
    if not wanted:
        return LaidOut(steps)
    stored = frozenset[Buffer]().union(*map(step_writes, steps))
    free = free | stored.difference(results)
    best = _straight(
        steps,
        {
            b: order
            for b, order in {**wanted, **_beside(steps, wanted, free)}.items()
            if b not in stored or _is_stored_simply(steps, b)
        },
        stored,
    )
    for buffer in tuple(best.orders):
        if buffer not in best.orders:
            continue
        other = _straight(
            steps, {b: order for b, order in best.orders.items() if b is not buffer}, stored
        )
        copies = sum(
            _copy_bytes(b, order)
            for b, order in best.orders.items()
            if b not in other.orders and b not in free
        )
        if _bytes(other.steps) + copies < _bytes(best.steps):
            best = other
    return best


def _straight(
    steps: Sequence[Step], orders: Mapping[Buffer, Order], stored: Set[Buffer]
) -> LaidOut:
    """The steps with buffers in these orders, but for `stored` ones that would be against the
    grain."""
    while orders:
        found = with_orders(steps, orders)
        crossed = {
            b
            for step in found.steps
            for stage in stages(step)
            if is_map(stage) and not _is_straight(stage)
            for b in stage.outputs
        }
        straight = {
            b: order
            for b, order in orders.items()
            if b not in stored or found.made[b] not in crossed
        }
        if len(straight) == len(orders):
            return found
        orders = straight
    return LaidOut(steps)


def _beside(
    steps: Sequence[Step], wanted: Mapping[Buffer, Order], free: Set[Buffer]
) -> dict[Buffer, Order]:
    """The orders in which buffers would have to be that maps store together with others."""
    return {
        other: order
        for step in steps
        if isinstance(step, Nest) and is_alone(step)
        for buffer, order in wanted.items()
        if buffer in step.stages[0].outputs
        for other in step.stages[0].outputs
        if other in free and other.shape == buffer.shape
    }


def _is_stored_simply(steps: Sequence[Step], buffer: Buffer) -> bool:
    """Whether only nests write a buffer that are nothing but a map or a fold."""
    return all(
        isinstance(step, Nest) and is_alone(step) and is_simple(step.stages[0])
        for step in steps
        if buffer in step_writes(step)
    )


def _is_straight(stage: Stage) -> bool:
    """Whether a map's neighbouring points are stored next to each other."""
    axes = [v for v in stage.axes if v.extent > 1]
    steps = ([abs(stride(a, v) or 0) for v in axes] for a in stage.assigns)
    return all(not of or of[-1] == min(of) for of in steps)


def _bytes(steps: Iterable[Step]) -> int:
    """What goes to memory and back while the steps run, and what could meanwhile."""
    total = 0
    for step in steps:
        if isinstance(step, Nest):
            total += sum(
                Work.of(stage).walked_bytes + _apart_bytes(stage, step) for stage in step.stages
            )
        else:
            total += step.likely_trips * _bytes(step.inner)
    return total


def _copy_bytes(buffer: Buffer, order: Order) -> int:
    """The same for XLA to lay out a buffer otherwise; complex numbers are in no squares."""
    is_complex = len(order) < len(buffer.shape)
    return 2 * buffer.bytes + buffer.size * (_LINE if is_complex else _IN_SQUARES)


def _factor_bytes(roles: Contraction) -> int:
    """The same of a product.  The right factor is put side by side anyway; the left one is read for
    each panel of columns anew, and where it stays in no cache near by, not along the depth, each
    element brings a line each time: 1000 x 1000 f64 took 1.2 to 3 times as long, 500 x 500 1."""
    panels, depth = -(-roles.columns[-1].extent // _PANEL), roles.summed[-1]
    return (
        panels
        * _LINE
        * sum(
            read.source.size
            for read in set(loads(roles.lhs))
            if read.source.bytes > _NEAR and stride(read, depth) not in (0, 1, -1, None)
        )
    )


def _apart_bytes(stage: Stage, nest: Nest) -> int:
    """The same of what a stage reads against the grain."""
    if is_alone(nest):
        if is_map(stage):
            return _IN_SQUARES * far_apart(stage)
        if (roles := contraction(stage)) is not None:
            return _factor_bytes(roles)
        own = stage.axes if walks_columns(stage) else stage.reduce_axes
    else:
        own = (*stage.axes[nest.shared :], *stage.reduce_axes)
    lanes = (*stage.axes, *own)[-1:]
    return (
        _LINE
        * points(stage)
        * sum(
            stride(read, axis) not in (0, 1, -1, None)
            for axis in lanes
            for group in stage.loads_by_buffer.values()
            for read in group
        )
    )
