"""Kernels beside calls of LAPACK have matrices column by column in memory, as these do."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.emit import KERNEL_OP
from hlo_mlc.graph.core import Node
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

PLANNED = named("x86-64-v3")

N = 40  # rows of matrices that stay with LAPACK
COLUMNS, ROWS = (0, 1), ()  # layouts, minor to major


def positive(dtype: str = "float64", batch: tuple[int, ...] = (), size: int = N) -> np.ndarray:
    a = np.random.default_rng(size).standard_normal((*batch, size, size))
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * np.random.default_rng(size + 1).standard_normal(a.shape)
    return (a @ a.conj().swapaxes(-1, -2) / size + np.eye(size)).astype(dtype)


def factor(a: jax.Array) -> jax.Array:
    """Without the mean of `a` and its transpose, which `jnp.linalg.cholesky` begins with."""
    return lax.linalg.cholesky(a, symmetrize_input=False)


def copies(function: Callable, *args: object) -> list[str]:
    """What XLA copies or transposes outside of its fusions."""
    lowered = mlc_jit(function, choose="ours").lower(*args)
    compiled = lowered.compile({"xla_backend_optimization_level": 3}).as_text()
    entry = compiled[compiled.index("ENTRY") :]
    return re.findall(r"= \S+ (?:copy|transpose)\(.*", entry)


def kernels(parts: object) -> list[Node]:
    return [node for node in parts.graph.nodes if node.op == KERNEL_OP]


def layouts(parts: object) -> list[tuple[object, object]]:
    """Those of the operands and results of each kernel."""
    return [
        (node.attributes.get("operand_layouts"), node.attributes.get("result_layouts"))
        for node in kernels(parts)
    ]


def both_triangles(a):
    return jnp.linalg.cholesky(a) + jnp.triu(a, 1)


def in_parts(a):
    lower = jnp.linalg.cholesky(a + jnp.eye(a.shape[-1], dtype=a.dtype))
    return jnp.tril(lower, -1) / 2, lower.sum(-1), lower.sum(-2), lower.sum(), lower @ lower


def likelihood(x, y):
    distances = ((x[:, None] - x[None]) ** 2).sum(-1)
    kernel = jnp.exp(-distances / 2) + jnp.eye(len(x), dtype=x.dtype)
    lower = jnp.linalg.cholesky(kernel)
    weights = linalg.cho_solve((lower, True), y)
    return y @ weights / 2 + jnp.log(jnp.diagonal(lower)).sum()


def whitened(x):
    centred = x - x.mean(0)
    values, vectors = jnp.linalg.eigh(centred.T @ centred / len(x))
    return centred @ (vectors / jnp.sqrt(values + 1)) @ vectors.T


def least_squares(a, b):
    q, r = jnp.linalg.qr(a)
    return linalg.solve_triangular(r, q.T @ b), jnp.abs(q).max(0)


def of_low_rank(a):
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return (u[:, :4] * s[:4]) @ v[:4]


def mahalanobis(x, covariance):
    lower = jnp.linalg.cholesky(covariance)
    return (linalg.solve_triangular(lower, jnp.cos(x).T, lower=True) ** 2).sum(0)


def solved(a, b):
    return jnp.linalg.solve(a, jnp.sin(b)) + a[:, :1]


def long_rows(rows: int, columns: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


PROGRAMS: dict[str, tuple[Callable, tuple[np.ndarray, ...]]] = {
    "both_triangles": (both_triangles, (positive(),)),
    "in_parts": (in_parts, (positive(),)),
    "likelihood": (likelihood, (long_rows(N, 3), long_rows(1)[0])),
    "whitened": (whitened, (long_rows(70),)),
    "least_squares": (least_squares, (long_rows(70), long_rows(1, 70)[0])),
    "of_low_rank": (of_low_rank, (long_rows(50),)),
    "mahalanobis": (mahalanobis, (long_rows(60), positive())),
    "solved": (solved, (positive(), long_rows(N, 7))),
}
GRADIENTS = ["both_triangles", "likelihood", "mahalanobis", "solved", "whitened", "least_squares"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_lies_beside_library_calls(check, name, dtype):
    function, args = PROGRAMS[name]
    with jax.enable_x64(dtype == "float64"):
        args = [a.astype(dtype) for a in args]
        check(function, *args, coverage=0.6, ulps=2048)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(check, name):
    function, args = PROGRAMS[name]

    def loss(*args):
        return sum(jnp.sin(jnp.real(r)).sum() for r in jax.tree.leaves(function(*args)))

    with jax.enable_x64(True):
        check(jax.grad(loss, argnums=tuple(range(len(args)))), *args, coverage=0.6, ulps=1 << 14)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(check, dtype):
    with jax.enable_x64(dtype == "complex128"):
        a = positive(dtype)
        check(
            lambda a: (jnp.tril(factor(a), -1) * 2, jnp.abs(factor(a * 3)).sum(0)),
            a,
            coverage=0.6,
            ulps=2048,
        )
        assert not copies(lambda a: factor(a + a) * 2, a)


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("name", ["both_triangles", "in_parts"])
def test_batches(check, name, batch):
    with jax.enable_x64(True):
        a = positive(batch=batch)
        function, _ = PROGRAMS[name]
        if name == "both_triangles":
            assert not copies(function, a)
        check(function, a, coverage=0.6, ulps=2048)
        check(jax.grad(lambda a: jnp.cos(both_triangles(a)).sum()), a, coverage=0.6, ulps=1 << 14)


@pytest.mark.parametrize("name", ["both_triangles", "in_parts", "likelihood", "solved"])
def test_interpreted(take_apart, name):
    """Kernels know how their operands lie; so does who connects them."""
    function, args = PROGRAMS[name]
    with jax.enable_x64(True):
        parts = take_apart(function, *args)
        found = parts.run(
            args, lambda program, given: interpret(schedule_program(program, PLANNED, {})[0], given)
        )
        for one, other in zip(found, jax.tree.leaves(jax.jit(function)(*args)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [N, 300])
def test_nothing_is_transposed_around_a_factorization(size):
    with jax.enable_x64(True):
        a = positive(size=size)
        assert not copies(both_triangles, a)
        assert not copies(lambda a: jnp.tanh(factor(a * 2)).sum(-1), a)
        assert not copies(lambda a: jnp.tanh(factor(a * 2)).sum(-2), a)


def test_kernels_state_how_matrices_lie(take_apart):
    parts = take_apart(both_triangles, positive("float32"))
    assert layouts(parts) == [((ROWS,), (COLUMNS,)), ((ROWS, COLUMNS, ROWS), (ROWS,))]
    before = parts.kernels[kernels(parts)[0].attributes["id"]].program
    (stage,) = before.steps[0].stages
    assert stage.assigns[0].indices == stage.axes  # along the columns, one after the other


def test_a_map_between_two_calls_goes_along_columns(take_apart):
    a = positive("float32")
    parts = take_apart(lambda a: factor(jnp.abs(factor(a + a)) + 1), a)
    between = kernels(parts)[1]
    assert between.attributes["operand_layouts"][-1] == COLUMNS
    assert between.attributes["result_layouts"] == (COLUMNS,)
    (nest,) = parts.kernels[between.attributes["id"]].program.steps
    (stage,) = nest.stages
    assert all(
        access.indices == stage.axes
        for group in stage.loads_by_buffer.values()
        for access in group
        if access.indices
    )


def test_results_and_arguments_of_a_function_lie_in_rows(check, take_apart):
    def given_and_returned(a):
        twice = a + a
        return factor(twice).sum(-1), lax.linalg.cholesky(a, symmetrize_input=False), twice

    a = positive("float32")
    for _, found in layouts(take_apart(given_and_returned, a)):
        assert found is None or COLUMNS not in found
    check(given_and_returned, a, coverage=0.6, ulps=2048)


def test_what_goes_along_rows_gets_rows(check, take_apart):
    """Each element would bring a line of memory."""

    def rows(a):
        return jax.nn.softmax(factor(a), -1)

    a = positive("float32", size=300)
    given, _ = layouts(take_apart(rows, a))[-1] or (None, None)
    assert given is None or COLUMNS not in given
    check(rows, a, coverage=0.6, ulps=2048)


def test_two_results_are_stored_the_same_way(check, take_apart):
    def two(a):
        twice = a + a
        return factor(twice) + 1, twice

    def two_for_calls(a):
        return factor(a + a) + factor(a * a + jnp.eye(N, dtype=a.dtype) * 9)

    a = positive("float32")
    check(two, a, coverage=0.6, ulps=2048)
    check(two_for_calls, a, coverage=0.6, ulps=2048)
    first, *_ = layouts(take_apart(two_for_calls, a))
    assert first == ((ROWS,), (COLUMNS, COLUMNS))


def test_in_loops(check):
    def refined(a):
        def step(k, x):
            return jnp.tanh(factor(x @ x.T / N + (2 + k) * jnp.eye(N, dtype=x.dtype))) + x

        return lax.fori_loop(0, 3, step, a)

    def branched(a):
        return lax.cond(a[0, 0] > 0, lambda a: factor(a * 2) * 3, lambda a: a, a)

    check(refined, positive("float32"), coverage=0.5, ulps=2048)
    check(branched, positive("float32"), coverage=0, ulps=2048, kernels=None)


def test_memory_of_a_call_is_written_again(check, take_apart):
    """What a call has made is overwritten column by column, or not at all."""

    def twice(a):
        return factor(jnp.abs(factor(a * 2)) + 2 * jnp.eye(N, dtype=a.dtype))

    parts = take_apart(twice, positive("float32"))
    between = kernels(parts)[1]
    assert between.attributes["aliases"] == ((0, len(between.operands) - 1),)
    check(twice, positive("float32"), coverage=0.5, ulps=2048)


def test_alone_they_get_what_they_are_given_in_the_function(tmp_path, monkeypatch):
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    a = positive("float32")
    ours = mlc_jit(both_triangles, choose="ours")
    assert ours.verify(a).is_right
    for kernel in ours.report(a).kernels:
        schedule = ours.schedule(kernel.name, a)
        assert schedule.check().is_right
    assert all(kernel.record is not None for kernel in ours.tune(a, trials=2).kernels)
    assert ours.verify(a).is_right


def test_what_only_kernels_read_is_stored_as_what_is_beside_it(check, take_apart):
    def both_used(a):
        lower = jnp.tanh(factor(a))
        return linalg.solve_triangular(lower + 3, (1 + lower) @ a, lower=True)

    a = positive("float32")
    (alone,) = layouts(take_apart(both_used, a))
    assert alone == ((ROWS, COLUMNS, ROWS), (COLUMNS, COLUMNS))
    assert not copies(both_used, a)
    check(both_used, a, coverage=0.5, ulps=2048)
