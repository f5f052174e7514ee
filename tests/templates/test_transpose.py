"""Transposes of every element type and rank, at the edges of squares; stores past the caches."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.program import schedule_program

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")

LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]


@pytest.fixture
def templates(take_apart):
    """`templates(function, *args)`: the templates that compute it, by name."""

    def templates(function, *args):
        return [
            decision.template.name
            for program in take_apart(function, *args).programs
            for decision in schedule_program(program, TARGET)[1]
        ]

    return templates


@pytest.mark.parametrize(
    "shape", [(1, 9), (3, 5), (40, 3), (4, 4), (5, 40), (16, 16), (17, 33), (64, 31), (130, 67)]
)
def test_two_axes(check, arrays, shape):
    (x,) = arrays("float32", shape)
    y = x.T.copy()
    check(lambda x, y: (x.T * 2 + y, x.T[::-1] + 1, jnp.exp(x.T)), x, y)


@pytest.mark.parametrize("shape", [(16, 16), (17, 33), (3, 64, 31), (70, 9, 40)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_several_arrays_that_lie_alike(check, arrays, shape, dtype):
    (x, y), (row,) = arrays(dtype, shape, shape), arrays(dtype, shape[-2:-1])
    turned = lambda x: jnp.swapaxes(x, -1, -2)  # noqa: E731
    check(lambda x, y, row: (turned(x) + turned(y) * row, turned(x) - turned(y[::-1])), x, y, row)


def test_one_square_is_transposed_of_several_arrays(take_apart, arrays):
    def shuffles(count):
        arguments = arrays("float32", *[(64, 48)] * count)
        (program,) = take_apart(lambda *x: sum(y.T for y in x), *arguments).programs
        loops, _ = prove(schedule_program(program, TARGET)[0])
        return print_program(loops, TARGET).count("shufflevector")

    assert shuffles(5) == shuffles(2) == shuffles(1) > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "int32", "bool"])
def test_element_types(check, arrays, templates, dtype):
    with jax.enable_x64(dtype == "float64"):
        (x,) = arrays(dtype, (83, 45))
        assert templates(lambda x: x.T, x) == ["transpose"]
        check(lambda x: x.T, x)


def test_three_axes(check, arrays):
    (x,) = arrays("float32", (6, 19, 34))
    check(lambda x: [x.transpose(p) * 2 for p in itertools.permutations(range(3))], x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("step", [2, 3, -1, -2])
def test_elements_that_lie_apart(check, arrays, templates, dtype, step):
    """They share lines of memory, which are read once."""
    (x,) = arrays(dtype, (83, 90))
    assert templates(lambda x: x[:, ::step].T, x) == ["transpose"]
    check(lambda x: (x[:, ::step].T, x[::2, ::step].T + x[:42, ::step].T), x)


def test_elements_on_lines_of_their_own(arrays, templates):
    (x,) = arrays("float32", (40, 320))
    assert templates(lambda x: x[:, ::8].T, x) == ["transpose"]
    assert templates(lambda x: x[:, ::16].T, x) == ["elementwise"]


def test_images(check, arrays, templates):
    """Between channels first and channels last, many and few of them."""
    x, y = arrays("float32", (2, 7, 9, 20), (2, 3, 9, 20))
    check(lambda x, y: [a.transpose(p) for a in (x, y) for p in ((0, 3, 1, 2), (0, 2, 3, 1))], x, y)
    assert templates(lambda x: x.transpose(0, 3, 1, 2), x) == ["transpose"]
    assert templates(lambda y: y.transpose(0, 2, 3, 1), y.transpose(0, 2, 3, 1)) == ["transpose"]


def test_with_others(check, arrays):
    """Broadcasts, slices, padding and reversal around a transpose."""
    x, b = arrays("float32", (40, 50), (40,))
    check(
        lambda x, b: (
            x.T + b,
            x[:, 1:33].T * 2,
            x[::2].T + 1,
            jnp.pad(x.T, ((1, 2), (3, 0))),
            lax.rev(x.T, (1,)) * 2,
            x.T.reshape(25, 80) + 1,
            jnp.concatenate([x.T, x[:30].T], 1) * 2,
        ),
        x,
        b,
    )


def test_what_reads_its_own_result_is_no_transpose(check, arrays):
    (x,) = arrays("float32", (24, 24))
    check(lambda x: lax.fori_loop(0, 3, lambda i, c: c + c.T * 0.5, x), x, ulps=64)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("square", "panel", "streaming"), [(4, 16, 0), (8, 16, 1), (16, 64, 1)])
def test_machine_code_does_what_the_loops_say(
    take_apart, machine_code, arrays, level, square, panel, streaming
):
    """Buffers border on memory without access, and are not aligned."""
    target = named(level)
    tuned = {0: ("transpose", {"square": square, "panel": panel, "streaming": streaming})}
    for shape in ((37, 70), (64, 48), (5, 18)):
        (x,) = arrays("float32", shape)
        (program,) = take_apart(lambda x: x.T * 2, x).programs
        loops, (decision,) = schedule_program(program, target, tuned)
        assert decision.template.name == "transpose"
        verify(loops)
        np.testing.assert_array_equal(interpret(loops, [x])[0], x.T * 2)
        for place in ("start", "end"):
            (result,) = machine_code.executing(
                tuned=tuned, target=target, threads=2, fence_at=place
            )(program, [x])
            np.testing.assert_array_equal(result, x.T * 2)


def test_large_results_go_past_the_caches(take_apart, arrays):
    """Those that the caches of the cores do not hold; every task ends with a fence."""
    target = dataclasses.replace(named("x86-64-v4"), l2_bytes=1 << 20, cores=2)

    def code(rows, columns):
        x = np.zeros((rows, columns), np.float32)
        (program,) = take_apart(lambda x: x.T, x).programs
        return print_program(schedule_program(program, target)[0], target)

    for text in (code(512, 512), code(4096, 4096)):
        assert "nontemporal" not in text
    large = code(1024, 1024)
    tasks = [part for part in large.split("define ") if "nontemporal" in part]
    assert tasks
    for task in tasks:
        assert (
            task.rstrip().split("}")[0].splitlines()[-2].strip()
            == "call void @llvm.x86.sse.sfence()"
        )


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("dtype", "square", "streams"), [("float32", 16, 1), ("float16", 32, 1), ("int8", 64, 1)]
)
def test_only_whole_lines_go_past_the_caches(take_apart, level, dtype, square, streams):
    """However many vectors a line takes; squares in the caches are as wide as one.  Where rows of
    the result are no whole lines, bands are stored, of few rows by what registers hold."""
    target = dataclasses.replace(named(level), l2_bytes=1 << 20, cores=2)

    def parameters(side, columns=0):
        (program,) = take_apart(lambda x: x.T, np.zeros((side, columns or side), dtype)).programs
        _, (decision,) = schedule_program(program, target)
        return decision.parameters

    large, odd, small = parameters(4096, 2048), parameters(4097, 2048), parameters(256)
    assert (large["square"], large["streaming"]) == (square, streams)
    high, width = (
        {"float32": 4, "float16": 4, "int8": 8}[dtype],
        target.lanes(1 if dtype == "int8" else 4),
    )
    assert (odd["high"], odd["streaming"]) == (high, 0)
    assert odd["square"] == width * max(1, target.registers // (2 * high))
    assert small["square"] == target.lanes(1 if dtype == "int8" else 4)
    assert not small["streaming"]


def test_results_past_the_caches(check, arrays):
    (x,) = arrays("float32", (1100, 1041))
    tripled = np.concatenate([x, x, x])
    check(lambda x: x.T, tripled)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_large_ones_are_proved_for_every_level(take_apart, arrays, level):
    """The narrower the vectors, the more squares there are."""
    (x,) = arrays("float32", (3300, 1041))
    (program,) = take_apart(lambda x: x.T + 1, x).programs
    loops, _ = schedule_program(program, named(level))
    _, proof = prove(loops)
    assert not proof.guarded
