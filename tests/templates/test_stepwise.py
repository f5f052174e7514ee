"""Procedures for blocks of small tensors: a lane for each, interpreted and compiled alike."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import Allocate, For, LoopKind, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from making.verified import unproven

TARGET = named("x86-64-v4")


def positive(count: int, size: int = 9) -> np.ndarray:
    a = np.random.default_rng(count).standard_normal((count, size, size)).astype(np.float32)
    return a @ a.swapaxes(1, 2) + np.eye(size, dtype=np.float32)


def decisions(take_apart, function, *args):
    """How procedures are scheduled."""
    return [
        d
        for program in take_apart(function, *args).programs
        for d in schedule_program(program, TARGET)[1]
        if d.nest.stages[0].procedure is not None
    ]


@pytest.mark.parametrize(("count", "template"), [(1, "plain"), (2, "stepwise"), (300, "stepwise")])
def test_several_tensors_have_a_lane_each(take_apart, count, template):
    found = decisions(take_apart, lambda a: lax.linalg.lu(a)[:2], positive(count))
    assert [d.template.name for d in found] == [template]


def test_many_right_hand_sides_have_the_lanes(take_apart):
    """Columns lie side by side, rows one after the other: these are transposed in squares."""
    h, tau = jnp.linalg.qr(positive(3, 16), mode="raw")
    for left in (True, False):
        c = np.ones((3, 16, 40) if left else (3, 40, 16), np.float32)
        (program,) = take_apart(
            lambda h, tau, c, left=left: lax.linalg.ormqr(h, tau, c, left=left), h.mT, tau, c
        ).programs
        loops, (decision,) = schedule_program(program, TARGET)
        assert decision.template.name == "stepwise"
        assert not unproven(loops)
        shapes = [s.buffer.shape for s in walk(loops.body) if isinstance(s, Allocate)]
        assert ((16, 1, 16) if left else (1, 17, 16)) in shapes
        assert all(math.prod(shape) <= 17 * 16 for shape in shapes)


def test_what_is_read_worked_on_and_stored_is_one_array(take_apart):
    program = take_apart(lambda a: lax.linalg.lu(a)[0], positive(32)).programs[0]
    loops, _ = schedule_program(program, TARGET)
    assert [
        s.buffer.shape
        for s in walk(loops.body)
        if isinstance(s, Allocate) and len(s.buffer.shape) == 3
    ] == [(9, 9, 16)]
    assert all(
        s.buffer.size < 9 * 9 * 16
        for s in walk(loops.body)
        if isinstance(s, Allocate) and len(s.buffer.shape) < 3
    )


def test_loops_of_a_few_vectors_are_written_out(take_apart):
    """Those that are always as long, as what puts a chosen row in its place."""
    (program,) = take_apart(lambda a: lax.linalg.lu(a)[0], positive(32)).programs[:1]
    loops, _ = schedule_program(program, named("x86-64-v3"))
    kinds = {(s.var.name, s.kind) for s in walk(loops.body) if isinstance(s, For)}
    assert ("column", LoopKind.UNROLL) in kinds
    assert {("k", LoopKind.SERIAL), ("i", LoopKind.SERIAL), ("j", LoopKind.SERIAL)} <= kinds
    long, _ = schedule_program(
        take_apart(lambda a: lax.linalg.lu(a)[0], positive(32, 17)).programs[0], TARGET
    )
    assert all(
        s.kind is LoopKind.SERIAL
        for s in walk(long.body)
        if isinstance(s, For) and s.var.name == "column"
    )


def test_rows_of_arrays_lie_apart(take_apart):
    """A load of a row does not seem to meet what was stored four rows before."""
    program = take_apart(jnp.linalg.cholesky, positive(32, 16)).programs[0]
    loops, _ = schedule_program(program, TARGET)
    assert (16, 17, 16) in {s.buffer.shape for s in walk(loops.body) if isinstance(s, Allocate)}


def test_vectors_of_tensors_are_side_by_side_where_all_cores_have_some(take_apart):
    """Also in squares that reach from row to row: no element is gathered alone."""
    for count, size, target, shape in (
        (64, 8, TARGET, (8, 8, 48)),
        (63, 8, TARGET, (8, 8, 16)),
        (63, 8, replace(TARGET, cores=1), (8, 8, 48)),
        (64, 9, TARGET, (9, 9, 32)),
        (999, 16, TARGET, (16, 17, 16)),
    ):
        target = replace(target, l1_bytes=48 << 10, cores=min(target.cores, 2))
        factorize = functools.partial(jnp.linalg.qr, mode="raw")
        for program in take_apart(factorize, positive(count, size)).programs:
            loops, (decision,) = schedule_program(program, target)
            if decision.template.name != "stepwise":
                continue
            assert not unproven(loops)
            assert shape in {s.buffer.shape for s in walk(loops.body) if isinstance(s, Allocate)}
            assert "gather" not in print_program(loops, target)


@pytest.mark.parametrize("count", [2, 16, 21, 77])
@pytest.mark.parametrize(
    "function",
    [
        lambda a: lax.linalg.lu(a)[:2],
        lambda a: jnp.linalg.qr(a)[0],
        lambda a: jax.scipy.linalg.solve_triangular(a, a[:, ::-1], lower=True),
        lambda a: lax.linalg.eigh(a[:, :5, :5])[1],
        lambda a: lax.linalg.ormqr(a, a[:, 0], jnp.concatenate([a] * 4, 2)),
        lambda a: lax.linalg.ormqr(a[:1], a[:1, 0], a.reshape(1, -1, 9), left=False),
    ],
)
def test_loops_are_proved_and_compute_what_kernels_do(take_apart, function, count):
    a = positive(count)
    parts = take_apart(function, a)
    for program in parts.programs:
        assert not unproven(schedule_program(program, TARGET)[0])
    interpreted = parts.run(
        [a], lambda program, arrays: interpret(schedule_program(program, TARGET)[0], arrays)
    )
    ours = mlc_jit(function, choose="ours")(a)
    for one, other in zip(jax.tree.leaves(ours), interpreted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
