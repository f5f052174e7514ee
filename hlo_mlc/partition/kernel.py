"""Kernels: the unit of scheduling, tuning and caching, with names that depend on nothing outside."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr.core import Buffer, text
from hlo_mlc.tensor.core import Assign, Loop, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.rewrite import combiner_text, rename_variables, replace_buffers


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A tensor program in canonical form, and the buffers of the graph that it stands on."""

    program: TensorProgram
    fingerprint: str  # hash of the canonical text; equal kernels have equal fingerprints
    inputs: tuple[Buffer, ...]  # the graph's buffers, in calling order
    outputs: tuple[Buffer, ...]


def make_kernel(steps: Sequence[Step], inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Kernel:
    """Rename buffers and variables by position, so that equal computations give equal text."""
    mapping: dict[Buffer, Buffer] = {}
    for position, buffer in enumerate(inputs):
        mapping[buffer] = replace(buffer, name=f"a{position}", scope="operand")
    for position, buffer in enumerate(outputs):
        mapping[buffer] = replace(buffer, name=f"r{position}", scope="result")
    temporaries = []
    for buffer in written(steps):
        if buffer not in mapping:
            mapping[buffer] = replace(buffer, name=f"t{len(temporaries)}", scope="scratch")
            temporaries.append(mapping[buffer])
    counters: dict[str, int] = {}

    def fresh(prefix: str) -> str:
        counters[prefix] = counters.get(prefix, -1) + 1
        return f"{prefix}{counters[prefix]}"

    canonical = tuple(rename_variables(replace_buffers(s, mapping), fresh) for s in steps)
    program = TensorProgram("kernel", tuple(mapping[b] for b in inputs),
                            tuple(mapping[b] for b in outputs), tuple(temporaries), canonical)
    digest = hashlib.sha256(program_text(program).encode()).hexdigest()[:24]
    return Kernel(replace(program, name=f"k_{digest}"), digest, tuple(inputs), tuple(outputs))


def written(steps: Sequence[Step]) -> tuple[Buffer, ...]:
    """Buffers that the steps write, in order."""
    found: dict[Buffer, None] = {}
    for step in steps:
        for stage in stages(step):
            found.update(dict.fromkeys(stage.outputs))
    return tuple(found)


def stages(step: Step) -> tuple[Stage, ...]:
    """All stages of a step, those of nested loops included."""
    if isinstance(step, Nest):
        return step.stages
    return tuple(s for inner in (*step.test, *step.body) for s in stages(inner))


def program_text(program: TensorProgram) -> str:
    """Readable canonical text: what the kernel computes, without any order within a stage."""
    lines = [f"operand {b!r}" for b in program.operands]
    lines += [f"result {b!r}" for b in program.results]
    lines += [f"temporary {b!r}" for b in program.temporaries]
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
    private = f" private {', '.join(b.name for b in step.private)}" if step.private else ""
    lines = [f"{indent}nest shared={step.shared}{private}"]
    for stage in step.stages:
        lines += _stage_lines(stage, indent + "  ")
    return lines


def _stage_lines(stage: Stage, indent: str) -> list[str]:
    axes = ", ".join(f"{v.name}<{v.extent}" for v in stage.axes)
    lines = [f"{indent}for {axes or '()'}:"]
    if stage.combiner is not None:
        reduced = ", ".join(f"{v.name}<{v.extent}" for v in stage.reduce_axes)
        for accumulator, term, initial in zip(stage.accumulators, stage.terms, stage.initial):
            lines.append(f"{indent}  {accumulator.name}:{accumulator.dtype} = "
                         f"fold[{combiner_text(stage.combiner)}] over {reduced} from "
                         f"{text(initial)} of {text(term)}")
        lines += [f"{indent}  along {_assign_text(a)}" for a in stage.along]
    lines += [f"{indent}  {_assign_text(a)}" for a in stage.assigns]
    return lines


def _assign_text(assign: Assign) -> str:
    place = f"{assign.buffer.name}[{', '.join(map(text, assign.indices))}]"
    guard = f" if {text(assign.guard)}" if assign.guard is not None else ""
    return f"{place} = {text(assign.value)}{guard}"
