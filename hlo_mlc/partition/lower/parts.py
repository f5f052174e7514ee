"""Joined arrays that are filled part by part: the stages that do so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Buffer, Expr, Var, loads_in
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops.definition import Indices
from hlo_mlc.partition.lower.storing import EXPRESSION_LIMIT
from hlo_mlc.tensor.classify import cost
from hlo_mlc.tensor.core import Assign, Stage

# Parts of what is joined that one loop may store: as many lines at equal distances as the first
# cache has ways.  Up to so many, each part more took less time than a loop of its own (8 of 64 x
# 4096 f32 0.5 of it); 64 of 4096 in one loop took 3 to 7 times as long as apart, 16 of 2^18 1.4
# times (frequencies).
PARTS_ABREAST = 8


def axes_of(shape: tuple[int, ...], fresh: Callable[[str], str]) -> tuple[tuple[Var, ...], Indices]:
    """One variable for each axis longer than one, and the index of every axis."""
    indices = tuple(
        index.constant(0) if extent == 1 else variable(fresh("i"), extent) for extent in shape
    )
    return tuple(i for i in indices if isinstance(i, Var)), indices


def stages_of_parts(
    node: Node, buffer: Buffer, read: Callable[[Value, Indices], Expr], fresh: Callable[[str], str]
) -> list[Stage]:
    """For each operand that is joined a stage that fills its part of `buffer`; neighbours that read
    the same elements at the same points have one in common.

        join(x * c - y * s, y * c + x * s)
            ->   for k: z[k] = x[k] * c[k] - y[k] * s[k];  z[k + n] = y[k] * c[k] + x[k] * s[k]
    """
    axis, start = node.attributes["dimension"], 0
    stages: list[Stage] = []
    axes, point = (), ()
    for number, part in enumerate(node.operands):
        if not number or part.type.shape != node.operands[number - 1].type.shape:
            axes, point = axes_of(part.type.shape, fresh)
        place = (*point[:axis], point[axis] + start, *point[axis + 1 :])
        stage = Stage(fresh("s"), axes, (Assign(buffer, place, read(part, point)),))
        if stages and len(stages[-1].assigns) < PARTS_ABREAST and _read_the_same(stages[-1], stage):
            stages[-1] = replace(stages[-1], assigns=stages[-1].assigns + stage.assigns)
        else:
            stages.append(stage)
        start += part.type.shape[axis]
    return stages


def _read_the_same(one: Stage, other: Stage) -> bool:
    """Whether two maps that go through the same points read some element of each of them both, and
    are not too much for one loop."""
    if one.axes != other.axes:
        return False
    read, again = ({*loads_in(*stage.expressions)} for stage in (one, other))
    last = set(one.axes[-1:])
    return any(last <= node.free for node in read & again) and (
        cost(*one.expressions, *other.expressions) <= EXPRESSION_LIMIT
    )
