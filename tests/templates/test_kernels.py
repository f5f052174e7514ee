"""Kernels by themselves: their memory, their parameters, the interpreter, and threads."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.program import schedule_program

# Levels with and without masks, with 16 and with 32 registers, of 16, 32 and 64 bytes.
LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]
SEEDS = (0, 1)
# Math functions, and sums of products, which machines with FMA round once.
ROUNDED_DIFFERENTLY = frozenset(
    (
        "softmax",
        "layer norm",
        "gelu",
        "product",
        "product, transposed",
        "product, both by rows",
        "batch",
        "vectors",
    )
)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_outside_of_buffers_is_touched(sample, machine_code, name, seed):
    """Every buffer borders on memory without access, at its end and at its start."""
    subject = sample(name, seed)
    for position, place in enumerate(("end", "start")):
        level = LEVELS[(seed + position) % len(LEVELS)]
        subject.check(machine_code.executing(fence_at=place, target=named(level)))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_choice_of_parameters_is_right(sample, machine_code, name, seed):
    subject = sample(name, seed)
    for level in LEVELS:
        target = named(level)
        rng = np.random.default_rng([seed, *level.encode()])

        def execute(program, operands, target=target, rng=rng):
            tuned = {}
            for number, decision in enumerate(schedule_program(program, target)[1]):
                space = decision.template.space(decision.nest, target)
                drawn = {key: int(rng.choice(values)) for key, values in space.items()}
                tuned[number] = decision.template.name, drawn
            return machine_code.executing(tuned=tuned, target=target)(program, operands)

        subject.check(execute)


def test_machine_code_does_what_the_loops_say(sample, machine_code, name):
    """Equal to the interpreter, bit by bit where nothing but basic arithmetic is used; and the
    loops pass the verifier."""
    subject = sample(name, 2, largest=5)
    loops = []

    def interpreted(program, operands):
        scheduled, _ = schedule_program(program, machine_code.target)
        verify(scheduled)
        loops.append(scheduled)
        return interpret(scheduled, operands, seed=len(loops))

    expected = subject.parts.run(subject.args, interpreted)
    actual = subject.parts.run(subject.args, machine_code.executing())
    rounding = 1e-6 if name in ROUNDED_DIFFERENTLY else 0
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rounding, rounding
        )


def test_results_do_not_depend_on_threads_or_on_the_compilation(sample, machine_code, name):
    subject = sample(name, 0)
    once, *others = [
        subject.parts.run(subject.args, machine_code.executing(threads=threads))
        for threads in (1, 2, 8)
    ]
    for other in others:
        assert [r.tobytes() for r in once] == [r.tobytes() for r in other]


@pytest.mark.parametrize("shape", [(700, 1031), (2, 150_001), (150_001, 3)])
def test_large_results_do_not_depend_on_threads(take_apart, machine_code, arrays, shape):
    """Work that is shared out: the order of every sum is a matter of the shape alone."""
    (x,) = arrays("float32", shape)

    def function(x):
        return x.sum(), x.sum(0), x.sum(1), x.max(0), x * x.mean(), x[:, :3].T @ x

    parts = take_apart(function, x)
    results = [parts.run([x], machine_code.executing(threads=threads)) for threads in (1, 2, 8, 8)]
    for other in results[1:]:
        assert [r.tobytes() for r in results[0]] == [r.tobytes() for r in other]
    np.testing.assert_allclose(results[0][1], x.sum(0, dtype=np.float64), 1e-3, 1e-2)


@pytest.mark.parametrize("depth", [255, 257, 770])
def test_blocks_of_the_depth(take_apart, machine_code, arrays, depth):
    """Unfinished sums wait between blocks; whole numbers make every order exact."""
    x, w = (np.round(a * 2) for a in arrays("float32", (33, depth), (depth, 65)))
    parts = take_apart(lambda x, w: (x * 2 + 1) @ w + 3, x, w)
    rng = np.random.default_rng(depth)
    for level in LEVELS:
        target = named(level)
        for pack in (0, 1):
            tuned = {
                0: (
                    "contraction",
                    {
                        "depth": int(rng.choice((8, 256))),
                        "panels": int(rng.choice((1, 2, 8))),
                        "pack": pack,
                        "rows": int(rng.choice((4, 6, 8))),
                        "row_blocks": int(rng.choice((1, 4))),
                        "pack_rows": int(rng.integers(2)),
                    },
                )
            }
            (result,) = parts.run(
                [x, w],
                machine_code.executing(tuned=tuned, target=target, threads=2, fence_at="end"),
            )
            np.testing.assert_array_equal(result, (x * 2 + 1) @ w + 3)
