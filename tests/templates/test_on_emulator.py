"""The functions of conftest.py as CUDA C++ on the emulator, with parameters of all kinds.

All of one choice of parameters is compiled by a single call of g++, whose result is kept.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from emulation.emulator import Emulator
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import COMMON, schedule_program
from hlo_mlc.templates.cuda.registry import TEMPLATES
from hlo_mlc.tensor.core import TensorProgram

SM90 = cuda.named("sm_90")
# What analysis gives, and draws: of parameters, and of templates with theirs in turns.
DRAWS = range(4)


def drawn(program: TensorProgram, draw: int, cuda_source) -> tuple:
    """Templates that take the program's nests, their parameters, and its source; those of analysis
    where what is drawn needs more than the machine has."""
    rng = np.random.default_rng([draw, *program.name.encode()])
    decisions = schedule_program(program, SM90)[1] if draw else ()
    tuned = {}
    for n, decision in enumerate(decisions):
        fitting = [t for t in TEMPLATES if not t.refusal(decision.nest, SM90)]
        template = fitting[rng.integers(len(fitting))] if draw % 2 else decision.template
        space = {**template.space(decision.nest, SM90), **COMMON}
        tuned[n] = template.name, {key: int(rng.choice(values)) for key, values in space.items()}
    try:
        return tuned, cuda_source(program, tuned)
    except CodegenError as error:
        assert "Expected at most" in str(error)
        return {}, cuda_source(program)


@pytest.mark.parametrize("draw", DRAWS)
def test_every_choice_of_parameters_is_right(
    samples, emulator: Emulator, cuda_source, draw: int
) -> None:
    """Every buffer borders on memory that cannot be touched, threads run in several orders."""
    taken = samples(draw % 2)
    chosen = {p: drawn(p, draw, cuda_source) for s in taken.values() for p in s.parts.programs}
    emulator.prepare([source for _, source in chosen.values()], run_once=True)
    wrong = {}
    for number, (name, subject) in enumerate(taken.items()):

        def execute(program, operands, order=(number + draw) % 9):
            return emulator.run(
                chosen[program][1], program, operands, order, "end" if order % 2 else "start"
            )

        try:
            subject.check(execute)
        except (AssertionError, CodegenError) as error:
            parameters = [chosen[p][0] for p in subject.parts.programs]
            wrong[name] = f"{parameters}: {error}"
    assert not wrong, "\n".join(f"{name} {why}" for name, why in wrong.items())


def test_the_loops_mean_the_same_with_every_choice(sample, cuda_source, name: str) -> None:
    """They pass the verifier, and the interpreter gets the results out of them."""
    subject = sample(name, 2, largest=5)

    def execute(program, operands):
        tuned, _ = drawn(program, 1, cuda_source)
        loops, _ = schedule_program(program, SM90, tuned)
        # The elements behind the last vector of a matrix, told apart from the others by a division.
        assert not [
            why for why in verify(loops).open if "independent" in why and "_r + " not in why
        ]
        return interpret(loops, operands)

    subject.check(execute)


def test_rows_made_of_others_of_their_array_are_vectors(
    take_apart, arrays, emulator: Emulator, cuda_source
) -> None:
    def function(cache, rows):
        def step(cache, numbered):
            number, row = numbered
            mixed = 0.5 * (row + cache[number])[None]
            return lax.dynamic_update_slice(cache, mixed, (number + 1, 0)), None

        return lax.scan(step, cache, (jnp.arange(len(rows)), rows))[0]

    args = arrays("float32", (9, 64), (5, 64))
    parts = take_apart(function, *args, platform="cuda")
    (program,) = parts.programs
    assert schedule_program(program, SM90)[1][-1].template.name == "elementwise"
    source = cuda_source(program)
    emulator.prepare([source], run_once=True)
    (result,) = parts.run(
        args, lambda _, operands: emulator.run(source, program, operands, 3, "end")
    )
    np.testing.assert_array_equal(result, function(*args))
