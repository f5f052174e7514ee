"""Canonical readable text of tensor programs: what is computed, without any order in a stage."""

from __future__ import annotations

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import LONG, spell_shared, text
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
        head = f"{step.trip_count} times" if step.trip_count is not None else \
            f"while {text(step.condition)}"
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
    if stage.combiner is not None:
        over = "over " + ", ".join(f"{v.name}<{v.extent}" for v in stage.reduce_axes)
        if stage.scan is not None:
            over = f"along {stage.scan.axis.name}{' from its end' * stage.scan.reverse}"
        if stage.combiner.in_order:
            lines += [f"{indent}  {line}" for line in _loop_lines(stage, over)]
        for accumulator, term, initial in () if stage.combiner.in_order else zip(
                stage.accumulators, stage.terms, stage.initial, strict=True):
            lines.append(f"{indent}  {accumulator.name}:{accumulator.dtype} = "
                         f"fold[{combiner_text(stage.combiner)}] {over} from "
                         f"{text(initial)} of {text(term)}")
        lines += [f"{indent}  along {_assign_text(a)}" for a in stage.along]
    if stage.sort is not None:
        keys = ", ".join(map(text, stage.sort.keys))
        over = ", ".join(f"{v.name}<{v.extent}" for v in stage.reduce_axes)
        for accumulator, term in zip(stage.accumulators, stage.terms, strict=True):
            lines.append(f"{indent}  {accumulator.name}:{accumulator.dtype} = sorted over {over} "
                         f"at {text(stage.sort.at)} by {keys} of {text(term)}")
    if len(stage.assigns) < MANY_ASSIGNS:
        return lines + [f"{indent}  {_assign_text(a)}" for a in stage.assigns]
    lets, values = spell_shared(tuple(a.value for a in stage.assigns), LONG, LONG)
    lines += [f"{indent}  {let}" for let in lets]
    return lines + [f"{indent}  {_place_text(a)} = {value}{_guard_text(a)}"
                    for a, value in zip(stage.assigns, values, strict=True)]


def _loop_lines(stage: Stage, over: str) -> list[str]:
    """What a fold in order begins with, and its step; what they share is written once."""
    lets, values = spell_shared((*stage.initial, *stage.terms), LONG, LONG)
    count, step = len(stage.accumulators), stage.combiner
    names = ", ".join(f"{v.name}:{v.dtype}" for v in stage.accumulators)
    inner, results = spell_shared(step.results, LONG, LONG)
    variables = ", ".join(v.name for v in (*step.lhs, *step.rhs))
    return [*lets, f"{names} = {', '.join(values[:count])}", f"in order {over}, told "
            f"{', '.join(values[count:])}: step({variables})", *(f"  {let}" for let in inner),
            f"  {', '.join(results)}"]


def _assign_text(assign: Assign) -> str:
    return f"{_place_text(assign)} = {text(assign.value)}{_guard_text(assign)}"


def _place_text(assign: Assign) -> str:
    return f"{assign.buffer.name}[{', '.join(map(text, assign.indices))}]"


def _guard_text(assign: Assign) -> str:
    return f" if {text(assign.guard)}" if assign.guard is not None else ""


def combiner_text(combiner: Combiner) -> str:
    """Canonical text of a combiner."""
    return combiner.name or "; ".join(map(repr, combiner.results))
