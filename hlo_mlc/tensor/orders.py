"""Programs whose buffers are stored with permuted dimensions.

y[i, j] = x[i, j] + 1   ->   m[j, i] = x[i, j] + 1   with m the memory of y, (1, 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hlo_mlc.expr.build import load, transform
from hlo_mlc.expr.core import Buffer, Expr, Load
from hlo_mlc.tensor.classify import contraction, is_map, stride, walks_columns
from hlo_mlc.tensor.coalesce import in_memory_order
from hlo_mlc.tensor.combine import commutes
from hlo_mlc.tensor.core import Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.rewrite import map_expressions, with_parts

Order = tuple[int, ...]
"""The dimensions of an array, the outermost in memory first."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Steps, the buffers in the place of others, and the orders of those that these replace."""

    steps: Sequence[Step]
    made: Mapping[Buffer, Buffer] = field(default_factory=dict)
    orders: Mapping[Buffer, Order] = field(default_factory=dict)


def in_orders(program: TensorProgram, orders: Mapping[Buffer, Order]) -> TensorProgram:
    """The program with the named buffers stored in these orders."""
    if not orders:
        return program
    laid = with_orders(program.steps, orders)

    def made(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
        return tuple(laid.made.get(b, b) for b in buffers)

    return replace(
        program,
        operands=made(program.operands),
        results=made(program.results),
        temporaries=made(program.temporaries),
        steps=tuple(laid.steps),
        aliases=tuple((laid.made.get(r, r), laid.made.get(o, o)) for r, o in program.aliases),
    )


def with_orders(steps: Sequence[Step], orders: Mapping[Buffer, Order]) -> LaidOut:
    """The steps with buffers in these orders; nests of one stage go along memory then."""
    # The parts of complex numbers, which only buffers have a dimension for, stay side by side.
    full = {b: (*order, *range(len(order), len(b.shape))) for b, order in orders.items()}
    made = {
        b: replace(b, name=f"{b.name}_laid_out", shape=tuple(b.shape[d] for d in order))
        for b, order in full.items()
    }
    memo: dict[Expr, Expr] = {}

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source not in made:
            return None
        place = tuple(node.indices[d] for d in full[node.source])
        return load(made[node.source], place, node.guard, node.default)

    def rewrite(e: Expr) -> Expr:
        return transform(e, rule, memo)

    def renamed(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(made.get(b, b) for b in buffers)

    def in_stage(stage: Stage) -> Stage:
        stage = map_expressions(stage, rewrite)
        assigns, along = (
            tuple(
                replace(
                    a, buffer=made[a.buffer], indices=tuple(a.indices[d] for d in full[a.buffer])
                )
                if a.buffer in made
                else a
                for a in group
            )
            for group in (stage.assigns, stage.along)
        )
        return replace(stage, assigns=assigns, along=along, overwrites=renamed(stage.overwrites))

    def in_step(step: Step) -> Step:
        if not isinstance(step, Nest):
            return with_parts(step, lambda steps: map(in_step, steps), rewrite)
        if all(made.keys().isdisjoint((*s.inputs, *s.outputs)) for s in step.stages):
            return step
        if is_alone(step):
            return replace(step, stages=(_in_order(in_stage(step.stages[0])),))
        return replace(
            step, stages=tuple(map(in_stage, step.stages)), private=renamed(step.private)
        )

    return LaidOut([in_step(step) for step in steps], made, orders)


def _in_order(stage: Stage) -> Stage:
    """The stage going along memory: a map along its first result, a fold along what it reads."""
    if not is_simple(stage) or contraction(stage) is not None:
        return stage
    if is_map(stage):
        steps = [stride(stage.assigns[0], v) or 0 for v in stage.axes]
        if not all(steps):
            return stage
        apart = dict(zip(stage.axes, map(abs, steps), strict=True))
        return replace(stage, axes=tuple(sorted(stage.axes, key=lambda v: -apart[v])))
    if not commutes(stage.combiner):
        return stage
    stage = replace(stage, reduce_axes=in_memory_order(stage.reduce_axes, stage.terms))
    turned = replace(stage, axes=in_memory_order(stage.axes, stage.terms)) if stage.axes else stage
    return turned if walks_columns(turned) and not walks_columns(stage) else stage


def is_alone(nest: Nest) -> bool:
    return len(nest.stages) == 1 and nest.shared == len(nest.stages[0].axes)


def is_simple(stage: Stage) -> bool:
    return not stage.along and stage.scan is None and stage.sort is None and stage.procedure is None
