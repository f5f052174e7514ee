"""Products of few rows, both factors along the depth: every cut of rows, columns and depth."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")

DEEP = 300  # enough for the widest vectors, and no multiple of any

FUNCTIONS = {
    "rows": (lambda x, w: x @ w.T, (5, DEEP), (70, DEEP)),
    "columns": (lambda x, w: x @ w.T, (70, DEEP), (5, DEEP)),
    "result transposed": (lambda x, w: w @ x.T, (5, DEEP), (70, DEEP)),
    "batch": (lambda x, w: jnp.einsum("bik,bjk->bij", x, w), (3, 4, DEEP), (3, 19, DEEP)),
    "two rows of axes": (
        lambda x, w: jnp.einsum("aik,bjk->abij", x, w),
        (2, 3, DEEP),
        (4, 5, DEEP),
    ),
    "summed twice": (
        lambda x, w: jnp.einsum("iak,jka->ij", x, w.transpose(0, 2, 1)),
        (5, 3, DEEP),
        (23, 3, DEEP),
    ),
    "prologue": (lambda x, w: (x * 2) @ (jnp.tanh(w) + 1).T, (5, DEEP), (70, DEEP)),
    "epilogue": (lambda x, w: jax.nn.gelu(x @ w.T + w[:, 0]) * x[:, :1], (5, DEEP), (70, DEEP)),
    "initial": (lambda x, w: (x @ w.T).astype(jnp.int32) + 3, (5, DEEP), (70, DEEP)),
    "reversed rows": (lambda x, w: x[::-1] @ w[::2].T, (5, DEEP), (70, DEEP)),
}


def _templates(parts, target) -> set[str]:
    return {
        decision.template.name
        for program in parts.programs
        for decision in schedule_program(program, target)[1]
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dot_products(check, take_apart, arrays, name):
    function, *shapes = FUNCTIONS[name]
    args = arrays("float32", *shapes)
    assert "dot" in _templates(take_apart(function, *args), TARGET)
    check(function, *args, magnitude=DEEP, ulps=64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint8", "int32"])
def test_types(check, take_apart, arrays, dtype):
    args = arrays(dtype, (3, DEEP), (37, DEEP))

    def function(x, w):
        return jax.lax.dot_general(
            x,
            w,
            (((1,), (1,)), ((), ())),
            preferred_element_type=(jnp.int32 if x.dtype.kind in "iu" else jnp.float32),
        )

    assert "dot" in _templates(take_apart(function, *args), TARGET)
    check(function, *args, magnitude=DEEP)


@pytest.mark.parametrize("m", [2, 7, 9, 12])
@pytest.mark.parametrize("n", [2, 3, 17, 64, 129])
@pytest.mark.parametrize("k", [256, 263, 511])
def test_extents(machine_code, take_apart, arrays, m, n, k):
    """Whole numbers, so that every order of summation is exact."""
    a, b = (np.round(x * 3) for x in arrays("float32", (m, k), (n, k)))
    parts = take_apart(lambda a, b: a @ b.T, a, b)
    assert "dot" in _templates(parts, TARGET)
    (result,) = parts.run((a, b), machine_code.executing(fence_at="end"))
    np.testing.assert_array_equal(result, a @ b.T)


def test_shared_out(check, arrays):
    x, w = arrays("float32", (8, 1100), (517, 1100))
    check(lambda x, w: (x @ w.T, w @ x.T), x, w, magnitude=1100)


def test_special_values(check, arrays):
    """NaN and infinities go where they must, and nowhere else."""
    a, b = arrays("float32", (3, DEEP), (37, DEEP))
    a[1, DEEP - 1], b[5, 3], b[6, 7], a[:, 7] = np.nan, np.inf, -np.inf, 0.0
    check(lambda a, b: a @ b.T, a, b, magnitude=DEEP)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "transposed"),
    [(64, 64, DEEP, True), (4, 64, 24, True), (4, 64, DEEP, False)],
)
def test_others_stay_with_vectors_of_columns(take_apart, arrays, rows, columns, depth, transposed):
    a, b = arrays("float32", (rows, depth), (columns, depth) if transposed else (depth, columns))
    parts = take_apart(lambda a, b: a @ (b.T if transposed else b), a, b)
    assert _templates(parts, named("x86-64-v4")) == {"contraction"}


def test_a_factor_that_is_joined_of_the_same_is_none_of_a_batch(check, arrays):
    """Rows and a batch merge, which only conditions of the other factor tell apart."""
    a, b = arrays("float32", (3, 7), (100, 7))
    check(
        lambda a, b: jnp.einsum("bik,bjk->bij", jnp.stack([a, a * 2]), jnp.stack([b, b]) * 2), a, b
    )
