"""Canonical form: names by position, so that equal computations are equal text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hlo_mlc.expr.core import Buffer
from hlo_mlc.tensor.alike import share_alike
from hlo_mlc.tensor.core import Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.rewrite import refined, renamed

# Prefixes of the names of operands, results and temporaries: of a kernel, and of a program that
# kernels call, whose names must differ from theirs.
KERNEL_NAMES = ("a", "r", "t")
CALLED_NAMES = ("x", "y", "z")


def canonical(
    name: str,
    steps: Sequence[Step],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    prefixes: tuple[str, str, str] = KERNEL_NAMES,
    aliases: Sequence[tuple[Buffer, Buffer]] = (),
) -> TensorProgram:
    """The steps as a program whose buffers and variables are named by position.

    `aliases` are (result, operand) pairs that may be the same memory.
    """
    operand, result, temporary = prefixes
    mapping: dict[Buffer, Buffer] = {}
    for position, buffer in enumerate(inputs):
        mapping[buffer] = replace(buffer, name=f"{operand}{position}", scope="operand")
    for position, buffer in enumerate(outputs):
        mapping[buffer] = replace(buffer, name=f"{result}{position}", scope="result")
    temporaries = []
    for buffer in written(steps):
        if buffer not in mapping:
            new = replace(buffer, name=f"{temporary}{len(temporaries)}", scope="scratch")
            mapping[buffer] = new
            temporaries.append(new)
    counters: dict[str, int] = {}

    def fresh(prefix: str) -> str:
        counters[prefix] = counters.get(prefix, -1) + 1
        return f"{prefix}{counters[prefix]}"

    canonical_steps = tuple([_canonical(step, mapping, fresh) for step in steps])
    share_alike(canonical_steps)
    return TensorProgram(
        name,
        tuple(mapping[b] for b in inputs),
        tuple(mapping[b] for b in outputs),
        tuple(temporaries),
        canonical_steps,
        tuple((mapping[r], mapping[o]) for r, o in aliases),
    )


def _canonical(step: Step, mapping: Mapping[Buffer, Buffer], fresh: Callable[[str], str]) -> Step:
    """The step with renamed buffers and variables, and with its expressions simplified."""
    same = renamed(step, mapping, fresh)
    better = refined(same)
    for known, plain, final in zip(stages(step), stages(same), stages(better), strict=True):
        if plain is final:
            final.shares(known)
    return better


def written(steps: Sequence[Step]) -> tuple[Buffer, ...]:
    """Buffers that the steps write, in order."""
    return tuple(dict.fromkeys(b for step in steps for s in stages(step) for b in s.outputs))


def stages(step: Step) -> tuple[Stage, ...]:
    """All stages of a step, those of loops and branches included."""
    if isinstance(step, Nest):
        return step.stages
    return tuple(s for inner in step.inner for s in stages(inner))
