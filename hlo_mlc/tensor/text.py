"""Canonical readable text of tensor programs: what is computed, without any order in a stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import LONG, spell_shared, text
from hlo_mlc.expr.procedure import Move, Put
from hlo_mlc.tensor.core import Assign, Branch, Loop, Stage, Step, TensorProgram

# From so many assignments on, what they share is written once for all of them.
MANY_ASSIGNS = 8


def program_text(program: TensorProgram) -> str:
    """The whole program: its buffers, then its steps in program order."""
    lines = [f"operand {b!r}" for b in program.operands]
    lines += [f"result {b!r}" for b in program.results]
    lines += [f"temporary {b!r}" for b in program.temporaries]
    lines += [f"alias {result.name} = {operand.name}" for result, operand in program.aliases]
    for step in program.steps:
        lines += _step_lines(step, "")
    return "\n".join(lines) + "\n"


def _step_lines(step: Step, indent: str) -> list[str]:
    if isinstance(step, Loop):
        head = (
            f"{step.trip_count} times"
            if step.trip_count is not None
            else f"while {text(step.condition)}"
        )
        lines = [f"{indent}repeat {step.counter.name}: {head}"]
        for inner in step.test:
            lines += [f"{indent}  test:", *_step_lines(inner, indent + "    ")]
        for inner in step.body:
            lines += _step_lines(inner, indent + "  ")
        return lines
    if isinstance(step, Branch):
        lines = [f"{indent}if {text(step.condition)}:"]
        for inner in step.then:
            lines += _step_lines(inner, indent + "  ")
        lines.append(f"{indent}else:")
        for inner in step.otherwise:
            lines += _step_lines(inner, indent + "  ")
        return lines
    private = f" private {', '.join(b.name for b in step.private)}" if step.private else ""
    lines = [f"{indent}nest shared={step.shared}{private}"]
    for stage in step.stages:
        lines += _stage_lines(stage, indent + "  ")
    return lines


def _stage_lines(stage: Stage, indent: str) -> list[str]:
    axes = ", ".join(f"{v.name}<{v.extent}" for v in stage.axes)
    lines = [f"{indent}for {axes or '()'}:"]
    if stage.procedure is not None:
        return [*lines, *(f"{indent}  {line}" for line in _procedure_lines(stage))]
    if stage.combiner is not None:
        over = "over " + ", ".join(f"{v.name}<{v.extent}" for v in stage.reduce_axes)
        if stage.scan is not None:
            over = f"along {stage.scan.axis.name}{' from its end' * stage.scan.reverse}"
        if stage.trips:
            over = f"in parts of {stage.trips} trips {over}"
        for accumulator, term, initial in zip(
            stage.accumulators, stage.terms, stage.initial, strict=True
        ):
            lines.append(
                f"{indent}  {accumulator.name}:{accumulator.dtype} = "
                f"fold[{combiner_text(stage.combiner)}] {over} from "
                f"{text(initial)} of {text(term)}"
            )
        lines += [f"{indent}  along {_assign_text(a)}" for a in stage.along]
    if stage.sort is not None:
        keys = ", ".join(map(text, stage.sort.keys))
        over = ", ".join(f"{v.name}<{v.extent}" for v in stage.reduce_axes)
        for accumulator, term in zip(stage.accumulators, stage.terms, strict=True):
            lines.append(
                f"{indent}  {accumulator.name}:{accumulator.dtype} = sorted over {over} "
                f"at {text(stage.sort.at)} by {keys} of {text(term)}"
            )
    if len(stage.assigns) < MANY_ASSIGNS:
        return lines + [f"{indent}  {_assign_text(a)}" for a in stage.assigns]
    lets, values = spell_shared(tuple(a.value for a in stage.assigns), LONG, LONG)
    lines += [f"{indent}  {let}" for let in lets]
    return lines + [
        f"{indent}  {_place_text(a)} = {value}{_guard_text(a)}"
        for a, value in zip(stage.assigns, values, strict=True)
    ]


def _procedure_lines(stage: Stage) -> list[str]:
    """The arrays of a procedure, its steps, and what is stored at the end."""
    over = ", ".join(f"{v.name}<{v.extent}" for v in stage.reduce_axes)
    return [
        *(f"array {b!r}" for b in stage.procedure.arrays),
        *_move_lines(stage.procedure.body, ""),
        f"then over {over or '()'}:",
        *(f"  {_assign_text(a)}" for a in stage.along),
    ]


def _move_lines(body: Sequence[Move], indent: str) -> Iterator[str]:
    for move in body:
        if isinstance(move, Put):
            yield (
                f"{indent}{move.array.name}[{', '.join(map(text, move.indices))}] = "
                f"{text(move.value)}"
            )
        else:
            yield f"{indent}for {move.var.name} below {text(move.extent)}:"
            yield from _move_lines(move.body, indent + "  ")


def _assign_text(assign: Assign) -> str:
    return f"{_place_text(assign)} = {text(assign.value)}{_guard_text(assign)}"


def _place_text(assign: Assign) -> str:
    return f"{assign.buffer.name}[{', '.join(map(text, assign.indices))}]"


def _guard_text(assign: Assign) -> str:
    return f" if {text(assign.guard)}" if assign.guard is not None else ""


def combiner_text(combiner: Combiner) -> str:
    """Canonical text of a combiner."""
    return combiner.name or "; ".join(map(repr, combiner.results))
