"""Results in the memory of operands, where every element is read before it is replaced.

XLA keeps the promise that a donated argument's memory is used again by copying into it.  A kernel
that writes there itself saves the copy.  What an operation before it made for it alone is its own
likewise: memory that a call takes anew costs a page fault for every 4 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.tensor.classify import is_map, is_plain, meets, reads
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
    stored before.  Earlier stages of its nest read of the operand what belongs to the same point of
    the axes that they share.  A buffer is in one pair at most, the first of them.
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
        stage = _elementwise(steps[first], result)
        if result in granted or operand in granted.values():
            continue
        if more or stage is None or last_read.get(operand, first) > first or result in stage.inputs:
            continue
        own = [a for a in stage.assigns if a.buffer == result]
        if (
            len(own) > 1
            or not is_plain(own[0], stage.axes)
            or not _reads_own_points(steps[first], stage, operand, own[0])
        ):
            continue
        ordered = _ordered(stage, {**granted, result: operand})
        if ordered is not None:
            ordered = replace(ordered, overwrites=(*ordered.overwrites, operand))
            stages = steps[first].stages
            steps[first] = replace(
                steps[first], stages=tuple(ordered if s is stage else s for s in stages)
            )
            granted[result] = operand
    return steps, tuple(granted.items())


def _elementwise(step: Step, result: Buffer) -> Stage | None:
    """The only stage of a nest that writes a result, if it is one without a fold."""
    if not isinstance(step, Nest):
        return None
    stage, *more = [s for s in step.stages if result in s.outputs]
    return stage if not more and is_map(stage) else None


def _reads_own_points(nest: Nest, stage: Stage, operand: Buffer, own: Assign) -> bool:
    """Whether nobody reads an element of the operand that the stage, by its `own` assignment, may
    have replaced."""
    at = nest.stages.index(stage)
    return (
        all(load.guard is None and load.indices == own.indices for load in reads(stage, operand))
        and all(
            meets(load, earlier, own, stage, nest.shared)
            for earlier in nest.stages[:at]
            for load in reads(earlier, operand)
        )
        and not any(reads(later, operand) for later in nest.stages[at + 1 :])
    )


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
