"""Folds for all pairs of rows and columns, in register tiles: every cut, and every rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.tiled import DerivedTemplate, TiledTemplate

TARGET = named("x86-64-v4")

# Of x: [m, k] and y: [n, k]: what becomes tiles by default.
PAIRS: dict[str, Callable[..., Any]] = {
    "manhattan": lambda x, y: jnp.abs(x[:, None] - y).sum(-1),
    "chebyshev": lambda x, y: jnp.abs(x[:, None] - y).max(-1) * 2 + x[:, :1],
    "itself": lambda x, y: ((x[:, None] - x) ** 2).sum(-1),
    "nearest": lambda x, y: jnp.argmin(x[:, None] + y, -1),
    "two results": lambda x, y: ((x[:, None] * y + x[:, None]).sum(-1), (x[:, None] < y).sum(-1)),
    "nearest of all": lambda x, y: jnp.argmin(jnp.abs(x[:, None] - y).sum(-1), -1),
    "normalized": lambda x, y: jax.nn.softmax(-jnp.abs(x[:, None] - y).max(-1)),
    "columns": lambda x, y: jnp.minimum(x[:, :, None], y.T).sum(1),
    "columns in a batch": lambda x, y: (jnp.stack([x, x + 1])[..., None] + y.T).max(2) + x[0, 0],
    "weighted": lambda x, y: (jnp.maximum(x[:, None] - y, 0) * y[0]).sum(-1),
    "computed": lambda x, y: jnp.abs(x[:, None] - jnp.roll(y, 1, 0) * 2).min(-1),
    "batch": lambda x, y: jnp.minimum(jnp.stack([x, x + 1])[:, :, None], y).sum(-1),
    "two axes": lambda x, y: jnp.abs(
        jnp.stack([x, x * 2], 1)[:, None] - jnp.stack([y, y + 1], 1)
    ).sum((-1, -2)),
}


def _templates(parts, target) -> set[str]:
    return {
        decision.template.name
        for program in parts.programs
        for decision in schedule_program(program, target)[1]
    }


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(check, take_apart, arrays, name):
    args = arrays("float32", (37, 70), (83, 70))
    assert "tiled" in _templates(take_apart(PAIRS[name], *args), TARGET)
    check(PAIRS[name], *args, magnitude=300, ulps=64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint8", "uint32", "float64"])
def test_types(check, take_apart, arrays, dtype):
    with jax.enable_x64(True):
        x, y = arrays(dtype, (20, 90), (70, 90))

        def function(x, y):
            return jnp.maximum(x[:, None], y).min(-1)

        assert "tiled" in _templates(take_apart(function, x, y), TARGET)
        check(function, x, y, magnitude=90)


@pytest.mark.parametrize("m", [8, 9, 31])
@pytest.mark.parametrize("n", [16, 17, 64, 131])
@pytest.mark.parametrize("k", [17, 64, 101])
def test_extents(machine_code, take_apart, arrays, m, n, k):
    """Whole numbers, so that every order of summation is exact."""
    a, b = (np.round(x * 3) for x in arrays("float32", (m, k), (n, k)))
    parts = take_apart(lambda a, b: jnp.abs(a[:, None] - b).sum(-1), a, b)
    assert "tiled" in _templates(parts, TARGET)
    (result,) = parts.run((a, b), machine_code.executing(fence_at="end"))
    np.testing.assert_array_equal(result, np.abs(a[:, None] - b).sum(-1))


@pytest.mark.parametrize("fold", ["sum", "max", "argmax"])
def test_special_values(machine_code, take_apart, arrays, fold):
    """NaN and infinities go where they must, and nowhere else."""
    a, b = arrays("float32", (9, 70), (37, 70))
    a[1, 69], b[5, 3], b[6, 7], a[:, 8] = np.nan, np.inf, -np.inf, 0.0
    parts = take_apart(lambda a, b: getattr(jnp, fold)(a[:, None] * 2 - b, -1), a, b)
    (result,) = parts.run((a, b), machine_code.executing(fence_at="end"))
    expected = getattr(np, fold)(a[:, None] * 2 - b, -1)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_shared_out(check, arrays):
    x, y = arrays("float32", (517, 128), (300, 128))
    check(PAIRS["manhattan"], x, y, magnitude=300)


def test_results_in_place(check, arrays):
    x, y = arrays("float32", (40, 64), (64, 64))
    check(
        lambda x, y: lax.fori_loop(
            0, 3, lambda i, s: s + jnp.abs(x[:, None] - y).max(-1), jnp.ones((40, 64))
        ),
        x,
        y,
        magnitude=10,
    )


@pytest.mark.parametrize(
    ("shapes", "along"),
    [
        (((4, 40), (83, 40)), 0),
        (((4, 300), (83, 300)), 1),
        (((2, 70), (83, 70)), 1),
        (((40, 300), (11, 300)), 1),
        (((40, 3000), (83, 3000)), 1),
        (((40, 300), (83, 300)), 0),
    ],
)
def test_vectors_go_along_the_depth_where_rows_are_few(check, take_apart, arrays, shapes, along):
    """Or columns, or where there is no room for a panel."""
    args = arrays("float32", *shapes)
    (program,) = take_apart(PAIRS["manhattan"], *args).programs
    _, (decision,) = schedule_program(program, TARGET)
    assert (decision.template.name, decision.parameters["along"]) == ("tiled", along)
    for fold in ("manhattan", "nearest"):
        check(PAIRS[fold], *args, magnitude=3000, ulps=64)


@pytest.mark.parametrize(
    ("shapes", "rows", "vectors"),
    [
        (((2000, 256), (600, 256)), 4, 2),
        (((6, 512), (900, 512)), 2, 4),
        (((3, 256), (2000, 256)), 3, 2),  # the second of two tiles would compute a row again
        (((40, 300), (2, 300)), 4, 2),  # a row has no more
    ],
)
def test_tiles_compute_little_again(take_apart, arrays, shapes, rows, vectors):
    (program,) = take_apart(PAIRS["manhattan"], *arrays("float32", *shapes)).programs
    _, (decision,) = schedule_program(program, TARGET)
    assert decision.template.name == "tiled"
    assert (decision.parameters["rows"], decision.parameters["vectors"]) == (rows, vectors)


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (PAIRS["manhattan"], ((3, 40), (83, 40)), "too few rows"),
        (PAIRS["manhattan"], ((40, 40), (11, 40)), "too few rows"),
        (lambda x, y: x @ y.T, ((40, 70), (83, 70)), "a product of matrices"),
        (lambda x, y: jnp.abs(x[:, None] - y.T).sum(-1), ((40, 70), (70, 1)), "not along rows"),
        (lambda x, y: jnp.abs(x[:, :, None] - y).sum(1), ((3, 70), (70, 83)), "not along rows"),
        (
            lambda x, y: jnp.maximum(x.reshape(8, 40, 83), y).sum(1),
            ((320, 83), (1, 83)),
            "not along rows",
        ),
        (PAIRS["manhattan"], ((4, 100_000), (16, 100_000)), "too few rows"),
        (lambda x, y: x.sum(1), ((40, 70), (83, 70)), "not along rows"),
    ],
)
def test_others_are_not_tiled(take_apart, arrays, function, shapes, reason):
    for program in take_apart(function, *arrays("float32", *shapes)).programs:
        for nest in program.steps:
            assert reason in TiledTemplate().refusal(nest, TARGET)


@pytest.mark.parametrize("rows", [5, 7, 11])
def test_joined_rows(check, arrays, rows):
    """Of which a tile has some, so that nothing is copied of others."""
    x, y = arrays("float32", (rows, 16), (rows, 16))

    def joined(x, y):
        every = jnp.concatenate([x, x, y])
        return jnp.abs(every[:, None] - every).sum(-1)

    check(joined, x, y, magnitude=100)


def test_columns_that_are_read_elsewhere_too(check, arrays):
    """Their first elements once more, at the end, which is no panel."""
    x, y = arrays("float32", (37, 70), (83, 70))
    check(lambda x, y: jnp.abs(x[:, None] - y).max(-1) + y[:, 0], x, y, magnitude=10)


def test_rules_apply_to_folds_that_have_templates_of_their_own(take_apart, arrays):
    x, y = arrays("float32", (40, 70), (70, 83))
    (nest,) = (
        step
        for p in take_apart(lambda x, y: (x[:, :, None] + y).min(1), x, y).programs
        for step in p.steps
    )
    assert not DerivedTemplate().refusal(nest, TARGET)
    assert DerivedTemplate().space(nest, TARGET)["roles"] == (0, 1)
