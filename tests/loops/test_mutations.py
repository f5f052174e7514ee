"""Faults planted in kernels: where the interpreter sees that one matters, it is refused or guarded.

A fault matters if the program then leaves a buffer, or computes something else when memory held
something else before, when tasks come in another order, or when results have memory of their own.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import Call, LoopProgram, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.loops.rewrite import inline_calls, with_body
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.target import cpu, cuda
from hlo_mlc.templates.cuda.program import schedule_program as schedule_for_gpu
from hlo_mlc.templates.program import schedule_program

F32 = jnp.float32
PROGRAMS: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: jax.nn.softmax(x), ((5, 19),)),
    "product": (lambda x, y: jnp.tanh(x @ y), ((7, 9), (9, 18))),
    "transpose": (lambda x, y: x.T + y, ((21, 18), (18, 21))),
    "sum of columns": (lambda x: (x * x).sum(0), ((9, 21),)),
    "scan": (lambda x: jnp.cumsum(x, 1), ((3, 37),)),
    "padded": (lambda x: jnp.pad(jnp.exp(x), ((1, 2), (0, 3))), ((5, 17),)),
    "window": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), "SAME"),
        ((4, 23),),
    ),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        ((1, 5, 5, 3), (3, 3, 3, 9)),
    ),
    "two steps": (lambda x, y: (jnp.exp(x @ y) @ y.T).sum(1), ((6, 5), (5, 17))),
    "map": (lambda x, y: jnp.where(x > y, x * y, x - y), ((7, 19), (7, 19))),
}
LEVELS = ("x86-64-v3", "x86-64-v4")
TARGETS = (*LEVELS, "sm_90")
LARGEST = 6  # mutants of one program by one mutator
LEAST = 200  # mutants in all


@functools.cache
def programs(take_apart: Callable, name: str, target: str) -> tuple[LoopProgram, ...]:
    function, shapes = PROGRAMS[name]
    kernels = take_apart(function, *(jax.ShapeDtypeStruct(s, F32) for s in shapes)).programs
    if target == "sm_90":
        return tuple(schedule_for_gpu(program, cuda.named(target))[0] for program in kernels)
    return tuple(schedule_program(program, cpu.named(target))[0] for program in kernels)


def outcomes(program: LoopProgram, operands: Sequence[np.ndarray]) -> set[bytes]:
    """What the program may come to."""
    ways = ({"seed": 0}, {"seed": 1, "blank": 0x3F}, {"seed": 2, "aliased": False})
    return {b"".join(r.tobytes() for r in interpret(program, operands, **way)) for way in ways}


def matters(program: LoopProgram, operands: Sequence[np.ndarray]) -> str:
    """Why a program is wrong whatever it should compute; empty if nothing shows that it is."""
    try:
        return "its results depend on memory or order" * (len(outcomes(program, operands)) > 1)
    except VerifyError as error:
        return str(error)


def refused(program: LoopProgram) -> bool:
    """Whether the program is refused, or guarded."""
    try:
        return bool(prove(program)[1].guarded)
    except VerifyError:
        return True


def planted(
    take_apart: Callable, target: str, name: str, mutators: Sequence[Callable]
) -> Iterator[tuple[str, LoopProgram, LoopProgram]]:
    for loops in programs(take_apart, name, target):
        if any(isinstance(s, Call) for s in walk(loops.body)):
            loops = with_body(loops, inline_calls(loops.body))
        for mutator in mutators:
            found = list(mutator(loops))
            step = max(1, len(found) // LARGEST)
            for mutant in found[::step][:LARGEST]:
                yield mutator.__name__, loops, mutant


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_faults_that_matter_are_refused(target: str, name: str, take_apart, mutators) -> None:
    rng = np.random.default_rng(7)
    missed = []
    for kind, loops, mutant in planted(take_apart, target, name, mutators):
        operands = [rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in loops.operands]
        if not refused(mutant) and (reason := matters(mutant, operands)):
            missed.append(f"{kind}: {reason}\n{mutant}")
    assert not missed, f"{len(missed)} missed, such as {missed[0]}"


def test_faults_of_every_kind_are_planted(take_apart, mutators) -> None:
    kinds = Counter(
        kind
        for target in TARGETS
        for name in PROGRAMS
        for kind, _, _ in planted(take_apart, target, name, mutators)
    )
    assert kinds.keys() == {mutator.__name__ for mutator in mutators}
    assert kinds.total() >= LEAST, kinds


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_programs_without_faults_are_proved(target: str, name: str, take_apart) -> None:
    for loops in programs(take_apart, name, target):
        assert prove(loops)[1].guarded == ()
