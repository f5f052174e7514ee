"""Products that share a factor become one kernel, unless one waits for another or all are large."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc.frontend.emit import KERNEL_OP
from hlo_mlc.partition.costs import Costs
from hlo_mlc.target.cpu import named


@pytest.fixture
def kernels_of(take_apart, arrays):
    """`kernels_of(function, *shapes)`: for each kernel call, the number of its nests."""

    def kernels(function, *shapes):
        parts = take_apart(function, *arrays("float32", *shapes))
        return [
            len(parts.kernels[n.attributes["id"]].program.steps)
            for n in parts.graph.nodes
            if n.op == KERNEL_OP
        ]

    return kernels


def projections(x, a, b, c, bias):
    return jnp.tanh(x @ a + bias), x @ b, (x @ c).astype(jnp.bfloat16)


def gates(x, a, b):
    return jax.nn.sigmoid(a @ x) * 0.5, jnp.tanh(b @ x)


@pytest.mark.parametrize(
    "function, shapes, nests",
    [
        (projections, ((64, 60), (60, 64), (60, 70), (60, 50), (64,)), [3]),
        (gates, ((60, 64), (64, 60), (70, 60)), [2]),
        (lambda x, a, b: (x @ a, b @ x.T), ((64, 60), (60, 64), (70, 60)), [2]),  # x twice
        (lambda x, y, a: (x @ a, y @ a), ((64, 60), (70, 60), (60, 64)), [2]),
        (lambda x, y, a, b: (x @ a, y @ b), ((64, 60), (70, 60), (60, 64), (60, 65)), [1, 1]),
        (lambda x, a: x @ a @ a, ((64, 64), (64, 64)), [1, 1]),  # the second waits for the first
    ],
)
def test_products_that_share_a_factor_are_one_kernel(
    kernels_of, check, arrays, function, shapes, nests
):
    assert sorted(kernels_of(function, *shapes)) == nests
    check(function, *arrays("float32", *shapes), ulps=32)  # where nothing is fused, too


def test_scores_of_several_heads_share_their_queries(kernels_of, check, arrays):
    def function(q, k, v):
        return jnp.einsum("hsd,htd->hst", q, k), jnp.einsum("hsd,htd->hst", q, v)

    shapes = ((4, 40, 33), (4, 41, 33), (4, 20, 33))
    assert kernels_of(function, *shapes) == [2]
    check(function, *arrays("float32", *shapes))


def test_two_groups_that_wait_for_each_other_stay_apart(kernels_of, check, arrays):
    """x @ a is before y @ f(x @ a), and y @ c before x @ g(y @ c): one of both pairs may join."""

    def function(x, y, a, c):
        first, second = x @ a, y @ c
        return y @ jnp.cumsum(first, 0), x @ jnp.cumsum(second, 0)

    shapes = ((64, 64),) * 4
    counts = kernels_of(function, *shapes)
    assert sum(counts) >= 4
    assert counts.count(2) <= 2
    check(function, *arrays("float32", *shapes))


def test_large_products_are_kernels_of_their_own(take_apart, arrays):
    parts = take_apart(lambda x, a, b: (x @ a, x @ b), *arrays("float32", *((512, 512),) * 3))
    assert [n.op for n in parts.graph.nodes] == [KERNEL_OP] * 2


@pytest.mark.parametrize("size, gains", [(16, True), (128, True), (512, False), (1024, False)])
def test_company_is_worth_what_waking_threads_takes_of_a_product(take_apart, arrays, size, gains):
    (program,) = take_apart(lambda x, a: x @ a, *arrays("float32", *((size, size),) * 2)).programs
    (stage,) = program.steps[0].stages
    target = replace(named("x86-64-v4"), cores=2)
    assert Costs(target).gains_from_company(stage) is gains
    many = replace(target, cores=256)
    assert Costs(many).gains_from_company(stage), "on many cores each has little to do"


def test_the_report_says_why_large_products_are_apart(check, monkeypatch):
    monkeypatch.setenv("HLO_MLC_THREADS", "2")
    x = jnp.ones((512, 512), jnp.float32)
    report = check(lambda x, a, b: (x @ a, jnp.sin(x @ b)), x, x, x + 1)
    assert "gains nothing from company" in report.explain()


@pytest.mark.parametrize("count", [2, 5, 9])
def test_many_siblings_are_one_kernel(kernels_of, check, arrays, count):
    def function(x, *weights):
        return tuple(x @ w for w in weights)

    shapes = ((64, 64), *((64, 60 + n) for n in range(count)))
    assert kernels_of(function, *shapes) == [count]
    check(function, *arrays("float32", *shapes))
