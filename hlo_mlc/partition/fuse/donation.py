"""Results in the memory of operands, where every element is read before it is replaced.

XLA keeps the promise that a donated argument's memory is used again by copying into it.  A kernel
that writes there itself saves the copy.  What an operation before it made for it alone is its own
likewise: memory that a call takes anew costs a page fault for every 4 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.tensor.classify import is_map, is_plain, reads
from hlo_mlc.tensor.core import Assign, Nest, Stage, Step
from hlo_mlc.tensor.liveness import step_reads, step_writes

Aliases = tuple[tuple[Buffer, Buffer], ...]
"""(result, operand) pairs that are to be the same memory."""


def in_place(
    steps: Sequence[Step], wanted: Sequence[tuple[Buffer, Buffer]]
) -> tuple[list[Step], Aliases]:
    """The steps in which results may share the memory of operands, and the pairs that do.

    A pair is granted where one elementwise stage writes the result, each point of it reads the
    operand at that point only, and nothing reads the operand later; the point's other results are
    stored before.  A buffer is in one pair at most, the first of them.
    """
    steps = list(steps)
    last_read = {b: n for n, step in enumerate(steps) for b in step_reads(step)}
    writers: dict[Buffer, list[int]] = {}
    for n, step in enumerate(steps):
        for buffer in step_writes(step):
            writers.setdefault(buffer, []).append(n)
    granted: dict[Buffer, Buffer] = {}
    for result, operand in wanted:
        first, *more = writers[result]
        stage = _elementwise(steps[first])
        if result in granted or operand in granted.values():
            continue
        if more or stage is None or last_read.get(operand, first) > first or result in stage.inputs:
            continue
        own = [a for a in stage.assigns if a.buffer == result]
        if (
            len(own) > 1
            or not is_plain(own[0], stage.axes)
            or not _reads_own_point(stage, operand, own[0])
        ):
            continue
        ordered = _ordered(stage, {**granted, result: operand})
        if ordered is not None:
            ordered = replace(ordered, overwrites=(*ordered.overwrites, operand))
            steps[first] = replace(steps[first], stages=(ordered,))
            granted[result] = operand
    return steps, tuple(granted.items())


def _elementwise(step: Step) -> Stage | None:
    """The stage of a nest that is nothing but one without a fold."""
    alone = isinstance(step, Nest) and len(step.stages) == 1 and is_map(step.stages[0])
    return step.stages[0] if alone else None


def _reads_own_point(stage: Stage, operand: Buffer, own: Assign) -> bool:
    return all(load.guard is None and load.indices == own.indices for load in reads(stage, operand))


def _ordered(stage: Stage, operands: dict[Buffer, Buffer]) -> Stage | None:
    """The stage with its assignments in such an order that no one reads what one before it has
    overwritten; None if there is no such order.  `operands` of results are overwritten by them."""
    waiting, ordered = list(stage.assigns), []
    used = {a: _uses(a) & set(operands.values()) for a in waiting}
    while waiting:
        free = next(
            (
                a
                for a in waiting
                if not any(operands.get(a.buffer) in used[b] for b in waiting if b is not a)
            ),
            None,
        )
        if free is None:
            return None
        waiting.remove(free)
        ordered.append(free)
    return replace(stage, assigns=tuple(ordered))


def _uses(assign: Assign) -> set[Buffer]:
    parts = (assign.value, *assign.indices, *(() if assign.guard is None else (assign.guard,)))
    return {load.source for part in parts for load in loads(part)}
