"""Kernels are named by what they compute, whoever computes it and wherever."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.partition.kernel import make_kernel
from hlo_mlc.target.cpu import host
from hlo_mlc.templates.program import choose_template
from hlo_mlc.tensor.core import Assign, Nest, Stage


def fingerprints(parts) -> list[str]:
    return sorted(parts.kernels)


@pytest.fixture
def names(take_apart, arrays):
    """`names(function, *shapes, dtype)`: the fingerprints of a function's kernels."""
    return lambda function, *shapes, dtype="float32": fingerprints(
        take_apart(function, *arrays(dtype, *shapes))
    )


def test_names_and_order_of_the_users_values_do_not_matter(names):
    def other(first, second):
        jnp.tanh(second)  # dead
        moved = first.reshape(20, 9).reshape(9, 20)
        return jnp.exp(moved) * 2 + second

    one = names(lambda x, y: jnp.exp(x) * 2 + y, (9, 20), (9, 20))
    assert one == names(other, (9, 20), (9, 20))
    assert one == names(lambda y, x: jnp.exp(x) * 2 + y, (9, 20), (9, 20))


@pytest.mark.parametrize(
    ("other", "shape", "dtype"),
    [
        (lambda x: jnp.exp(x) * 3, (9, 20), "float32"),
        (lambda x: jnp.exp(x) * 2, (9, 21), "float32"),
        (lambda x: jnp.exp(x) * 2, (9, 20), "bfloat16"),
        (lambda x: jnp.exp(x * 2), (9, 20), "float32"),
        (lambda x: (jnp.exp(x) * 2).T, (9, 20), "float32"),
    ],
)
def test_what_computes_something_else_has_another_name(names, other, shape, dtype):
    assert names(lambda x: jnp.exp(x) * 2, (9, 20)) != names(other, shape, dtype=dtype)


def test_equal_layers_share_one_kernel(take_apart, check, arrays):
    x, *weights = arrays("float32", (600, 300), *[(300, 300)] * 4)

    def function(x, *weights):
        for w in weights:
            x = jnp.tanh(x @ w * 0.05)
        return x

    report = check(function, x, *weights)
    assert sum(k.uses for k in report.kernels) > len(report.kernels)


_SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from hlo_mlc import mlc_jit
def f(x, w):
    y = jax.nn.softmax(x @ w)
    return y.sum(0), jax.lax.fori_loop(0, 3, lambda i, c: jnp.roll(c, 1, 0) * 0.5 + y, y)
g = mlc_jit(f, choose="ours")
r = g(np.ones((9, 20), np.float32), np.ones((20, 30), np.float32))
print(sorted(k.id for k in g.report().kernels))
"""


def test_equal_kernels_are_one_program():
    x, y = (Buffer(name, F32, (8,)) for name in "xy")

    def kernel(name: str):
        i = variable(name, 8)
        stage = Stage("s", (i,), (Assign(y, (i,), apply("neg", load(x, (i,)))),))
        return make_kernel([Nest((stage,), 1)], (x,), (y,))

    first, second = kernel("i"), kernel("j")
    assert first.program is second.program
    (nest,) = first.program.steps
    assert choose_template(nest, host()) is choose_template(nest, host())


def test_names_are_the_same_in_every_process():
    """Sets and hashes of strings have another order in each; nothing may depend on it."""
    answers = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env=environment,
            text=True,
            capture_output=True,
            check=True,
        )
        answers.append(done.stdout)
    assert answers[0] == answers[1]
    assert "[]" not in answers[0]


def test_compiling_twice_gives_the_same_kernels(take_apart, arrays):
    x, w = arrays("float32", (9, 20), (20, 30))

    def function(x, w):
        return jax.nn.softmax(x @ w), x.sum(0)

    first, second = take_apart(function, x, w), take_apart(function, x, w)
    assert fingerprints(first) == fingerprints(second)
