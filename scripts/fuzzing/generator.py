"""Writes random programs: the same for the same seed, and versions of JAX that agree on types."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from typing import TypeVar

import jax
import jax.numpy as jnp

from fuzzing.data import KINDS
from fuzzing.draws import MOST_ELEMENTS, Random
from fuzzing.families import CONTROL, FAMILIES, OF_THE_LARGEST, text_of
from fuzzing.modes import MODES
from fuzzing.program import Operand, Program, Step, UnfitError, identity, load, source, types_of

T = TypeVar("T")
# Ones, primes, powers of two and of what vectors hold, with their neighbours.
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65)
LARGE_EXTENTS = (127, 129, 255, 257, 300, 500, 1023, 1025)
MOST_ELEMENTS_LARGE = 400_000
DTYPES = {
    "float32": 50,
    "bfloat16": 8,
    "float16": 6,
    "int32": 10,
    "int8": 3,
    "uint8": 4,
    "int16": 2,
    "uint16": 2,
    "uint32": 4,
    "bool": 3,
    "complex64": 3,
}
WIDE_DTYPES = {"float64": 40, "int64": 12, "uint64": 4, "complex128": 4}
RANKS = {0: 1, 1: 20, 2: 50, 3: 22, 4: 7}
MOST_STEPS = 40
DATA = dict(zip(KINDS, (40, 25, 20, 8, 7), strict=True))
LARGEST_SHAPES = ((1_000_003,), (1009, 1013), (3, 350_003), (350_003, 3), (101, 103, 107))
"""What has more elements than compilers look at one by one, none of them a multiple of a vector."""
MOST_ELEMENTS_LARGEST, MOST_STEPS_LARGEST = 1_200_000, 3
PERCENT_X64, PERCENT_LARGE, PERCENT_LARGEST, PERCENT_EMPTY = 12, 4, 1, 3
ATTEMPTS = 6  # to find a step that fits, times its number


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    x64 = rng.randrange(100) < PERCENT_X64
    with jax.enable_x64(x64):
        return _generate(rng, seed, x64)


def _generate(rng: random.Random, seed: int, x64: bool) -> Program:
    inputs, most_elements = _inputs(rng, x64)
    values = {i.name: i for i in inputs}
    steps: list[Step] = []
    is_largest = most_elements == MOST_ELEMENTS_LARGEST
    wanted = min(MOST_STEPS_LARGEST if is_largest else MOST_STEPS, 1 + int(rng.expovariate(1 / 7)))
    for _ in range(ATTEMPTS * wanted):
        if len(steps) == wanted:
            break
        _add_step(rng, steps, values, most_elements, x64)
    outputs = _outputs(rng, steps, values)
    mode = _drawn(rng, MODES)
    floats = any(i.kind == "f" for i in inputs)
    if (
        (mode in ("grad", "jvp") and not (floats and any(values[o].kind == "f" for o in outputs)))
        or (mode == "around" and not any(s.family in CONTROL for s in steps))
        or is_largest
        or not steps
    ):
        mode = "plain"
    numbers = tuple(rng.randrange(30) for _ in range(3))
    data = _drawn(rng, DATA)
    if mode in ("grad", "jvp") and data in ("special", "large"):
        data = "normal"  # derivatives of such values are mostly NaN
    program = Program(seed, inputs, tuple(steps), outputs, mode, numbers, data, x64)
    if mode in ("grad", "jvp") and not _has_derivative(program):
        return program.replace(mode="plain")
    return program


def _has_derivative(program: Program) -> bool:
    """Whether JAX knows it: not of loops that end when the data says so, say."""
    types = [jax.ShapeDtypeStruct(i.shape, jnp.dtype(i.dtype)) for i in program.inputs]
    try:
        jax.eval_shape(load(source(program, text_of(program)), identity), *types)
    except Exception:  # whatever JAX says of it
        return False
    return True


def _drawn(rng: random.Random, weights: dict[T, int]) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]


def _inputs(rng: random.Random, x64: bool) -> tuple[tuple[Operand, ...], int]:
    """Arrays that have extents in common, so that they go together."""
    drawn = rng.randrange(100)
    if drawn >= 100 - PERCENT_LARGEST:
        main, shape = _drawn(rng, DTYPES), rng.choice(LARGEST_SHAPES)
        return (
            Operand("a", main, shape),
            Operand("b", main, shape[rng.randrange(len(shape)) :]),
        ), MOST_ELEMENTS_LARGEST
    large = drawn < PERCENT_LARGE
    most = MOST_ELEMENTS_LARGE if large else MOST_ELEMENTS
    extents = [rng.choice(EXTENTS) for _ in range(_drawn(rng, RANKS))]
    for axis in rng.sample(range(len(extents)), min(2 * large, len(extents))):
        extents[axis] = rng.choice(LARGE_EXTENTS)
    while math.prod(extents) > most:
        axis = rng.choice([a for a, e in enumerate(extents) if e > 1])
        extents[axis] = rng.choice(EXTENTS[: bisect_left(EXTENTS, extents[axis])])
    if extents and rng.randrange(100) < PERCENT_EMPTY:
        extents[rng.randrange(len(extents))] = 0
    shape = tuple(extents)
    dtypes = DTYPES | WIDE_DTYPES if x64 else DTYPES
    main = _drawn(rng, dtypes)
    inputs = [Operand("a", main, shape)]
    for name in "bcde"[: rng.randrange(4)]:
        dtype = main if rng.random() < 0.7 else _drawn(rng, dtypes)
        kept = (
            shape
            if rng.random() < 0.6
            else tuple(e for e in shape if rng.random() < 0.6)
            if rng.random() < 0.7
            else shape[::-1]
        )
        inputs.append(Operand(name, dtype, kept))
    if rng.random() < 0.35:
        inputs.append(Operand("k", "int32", rng.choice(((), (3,), (shape or (4,))[:1]))))
    return tuple(inputs), most


def _add_step(
    rng: random.Random, steps: list[Step], values: dict[str, Operand], most_elements: int, x64: bool
) -> None:
    """One more step, unless what is drawn does not fit."""
    names = OF_THE_LARGEST if most_elements == MOST_ELEMENTS_LARGEST else FAMILIES
    weights = {name: family.weight for name, family in FAMILIES.items() if name in names}
    name = _drawn(rng, weights)
    draw = Random(rng, values, most_elements, x64)
    first = len(values)
    results = tuple(f"v{first + k}" for k in range(FAMILIES[name].results))
    try:
        expression = FAMILIES[name].write(draw)
        operands = [values[n] for n in dict.fromkeys(draw.operands)]
        made = types_of(expression, operands, results)
    except UnfitError:
        return
    if any(m.size > most_elements or m.rank > 5 for m in made):
        return
    values.update((m.name, m) for m in made)
    steps.append(Step(name, tuple(draw.operands), tuple(draw.numbers), results))


def _outputs(rng: random.Random, steps: list[Step], values: dict[str, Operand]) -> tuple[str, ...]:
    """The last value; all that nothing reads, or some others, as often as not."""
    if not steps:
        return (next(iter(values)),)
    made = [r for step in steps for r in step.results]
    read = {o for step in steps for o in step.operands}
    outputs = {steps[-1].results[0]}
    if rng.random() < 0.7:
        outputs |= {m for m in made if m not in read}
    if rng.random() < 0.6:
        outputs |= set(rng.sample(made, min(len(made), rng.randrange(1, 4))))
    if rng.random() < 0.05:
        outputs.add(rng.choice(list(values)))
    ordered = sorted(outputs, key=list(values).index)
    if rng.random() < 0.3:
        rng.shuffle(ordered)
    if rng.random() < 0.05:
        ordered.append(rng.choice(ordered))
    return tuple(ordered)
