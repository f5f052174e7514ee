"""Makes a program with a fault small: fewer steps, outputs and elements, plainer data and modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax

from fuzzing.families import text_of
from fuzzing.program import Program, Step, UnfitError

SMALLER = (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 33)
"""Extents to try instead of a larger one."""


def shrink(program: Program, is_faulty: Callable[[Program], bool], seconds: float) -> Program:
    """The smallest program found in this time for which the fault remains."""
    end = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for candidate in candidates(program):
            if time.monotonic() > end:
                return program
            if candidate != program and fits(candidate) and is_faulty(candidate):
                program, progress = candidate, True
                break
    return program


def fits(program: Program) -> bool:
    """Whether its steps still apply to their operands."""
    try:
        with jax.enable_x64(program.x64):
            values = text_of(program).values
    except UnfitError:
        return False
    return all(name in values for name in program.outputs)


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are simpler by one thing, those that are simpler by much first."""
    yield from _halved(program)
    if program.mode != "plain":
        yield program.replace(mode="plain")
    different = tuple(dict.fromkeys(program.outputs))
    if different != program.outputs:
        yield program.replace(outputs=different)
    for output in different:
        if len(different) > 1:
            yield without_unread(
                program.replace(outputs=tuple(o for o in program.outputs if o != output))
            )
    for step in reversed(program.steps):
        yield from _without(program, step)
    yield without_unread(program)
    yield from _smaller_extents(program)
    if program.data != "whole":
        yield program.replace(data="whole")
    if program.data not in ("whole", "normal"):
        yield program.replace(data="normal")
    yield from _fewer_inputs(program)
    for place, number in enumerate(program.mode_numbers):
        if number:
            numbers = list(program.mode_numbers)
            numbers[place] = 0
            yield program.replace(mode_numbers=tuple(numbers))
    yield from _simpler_numbers(program)


def without_unread(program: Program) -> Program:
    """Without the steps and inputs that no output needs; one input stays."""
    needed = set(program.outputs)
    steps = []
    for step in reversed(program.steps):
        if needed.intersection(step.results):
            needed.update(step.operands)
            steps.append(step)
    inputs = tuple(i for i in program.inputs if i.name in needed) or program.inputs[:1]
    return program.replace(steps=tuple(reversed(steps)), inputs=inputs)


def _halved(program: Program) -> Iterator[Program]:
    """Outputs in the middle instead of at the end."""
    if len(program.steps) > 2:
        for part in (2, 4):
            step = program.steps[len(program.steps) // part]
            yield without_unread(program.replace(outputs=step.results))
        yield without_unread(program.replace(outputs=program.steps[-1].results))


def _without(program: Program, step: Step) -> Iterator[Program]:
    """The step's results are one of its operands, or inputs."""
    with jax.enable_x64(program.x64):
        values = text_of(program).values
    rest = tuple(s for s in program.steps if s is not step)
    if len(step.results) == 1:
        result = values[step.results[0]]
        for name in dict.fromkeys((*step.operands, *(i.name for i in program.inputs))):
            if (values[name].dtype, values[name].shape) == (result.dtype, result.shape):
                yield without_unread(_renamed(program.replace(steps=rest), result.name, name))
                break
    given = tuple(values[r] for r in step.results)
    yield without_unread(program.replace(steps=rest, inputs=(*program.inputs, *given)))


def _renamed(program: Program, old: str, new: str) -> Program:
    def name(value: str) -> str:
        return new if value == old else value

    steps = tuple(replace(s, operands=tuple(map(name, s.operands))) for s in program.steps)
    outputs = tuple(dict.fromkeys(map(name, program.outputs)))
    return program.replace(steps=steps, outputs=outputs)


def _smaller_extents(program: Program) -> Iterator[Program]:
    """One extent becomes smaller, wherever inputs have it."""
    for extent in sorted({e for i in program.inputs for e in i.shape}, reverse=True):
        options = [e for e in SMALLER if e < extent]
        options += [extent // 2] if extent > 2 * SMALLER[-1] else []
        for smaller in options:
            inputs = tuple(
                replace(i, shape=tuple(smaller if e == extent else e for e in i.shape))
                for i in program.inputs
            )
            yield program.replace(inputs=inputs)


def _fewer_inputs(program: Program) -> Iterator[Program]:
    """An input takes the place of another of its type."""
    for kept in program.inputs:
        for gone in program.inputs:
            if kept is not gone and (kept.dtype, kept.shape) == (gone.dtype, gone.shape):
                fewer = _renamed(program, gone.name, kept.name)
                yield fewer.replace(inputs=tuple(i for i in program.inputs if i is not gone))


def _simpler_numbers(program: Program) -> Iterator[Program]:
    """What a step drew becomes what it would draw first."""
    for place, step in enumerate(program.steps):
        for at, number in enumerate(step.numbers):
            for simpler in {0, number // 2} - {number}:
                numbers = (*step.numbers[:at], simpler, *step.numbers[at + 1 :])
                steps = list(program.steps)
                steps[place] = replace(step, numbers=numbers)
                yield program.replace(steps=tuple(steps))
