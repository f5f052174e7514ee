"""What kills the process when XLA runs it, or comes out wrong, is ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Node
from hlo_mlc.interop.compat import compile_for
from hlo_mlc.interop.settling import other_side
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose.xla_faults import fault
from hlo_mlc.passes.simplify import simplify

FAULTY = "0.10.2"
SEEN = jnp.linspace(-1.0, 1.0, 10 * 4 * 6).reshape(10, 4, 6)
TABLE = jnp.linspace(0.0, 2.0, 10 * 4 * 6 * 81).reshape(10, 4, 6, 3, 3, 3, 3)


def likelihood(o: jax.Array, a: jax.Array) -> jax.Array:
    return jnp.log(jnp.maximum(jnp.sum(o[..., None, None, None, None] * a, axis=2), 1e-16))


def in_a_loop(o: jax.Array, a: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(
        0, 3, lambda _, sums: sums + likelihood(o, a), jnp.zeros_like(a[:, :, 0])
    )


def nodes_of(function: Callable, *args: jax.Array) -> Sequence[Node]:
    graph = import_function(jax.jit(function).lower(*args).compiler_ir())
    return simplify(graph, references)[0].nodes


@pytest.mark.parametrize("function", [likelihood, in_a_loop])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sums_of_products(function: Callable, dtype: jnp.dtype) -> None:
    nodes = nodes_of(function, SEEN.astype(dtype), TABLE.astype(dtype))
    assert FAULTY in fault(nodes, FAULTY)
    assert fault(nodes, "0.11.1") == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda o, a: jnp.sum(o[..., None, None, None] * a[..., 0], axis=2),  # of six dimensions
        lambda o, a: jnp.max(o[..., None, None, None, None] * a, axis=2),
        lambda o, a: jnp.sum(o[..., None, None, None, None] + a, axis=2),
        lambda o, a: jnp.sum(o[..., None, None, None, None] * a, axis=(2, 3)),
        lambda o, a: jnp.sum(a, axis=2),
    ],
)
def test_others_are_right(function: Callable) -> None:
    assert fault(nodes_of(function, SEEN, TABLE), FAULTY) == ""


@pytest.mark.parametrize("beside", [lambda o: o[0, 0], lambda o: jnp.linalg.svd(o[0])[1]])
def test_programs_run_all_the_same(beside: Callable) -> None:
    function = mlc_jit(lambda o, a: (likelihood(o, a), beside(o)))  # with something of XLA's
    sums = np.einsum("abc,abcdefg->abdefg", np.float64(SEEN), np.float64(TABLE))
    expected = np.log(np.maximum(sums, 1e-16))
    for _ in range(5):
        np.testing.assert_allclose(function(SEEN, TABLE)[0], expected, rtol=1e-4, atol=1e-4)
    assert "XLA" in str(function.explain(SEEN, TABLE))  # which runs XLA's program, in another way
    if jaxlib.__version__ == FAULTY:
        report = function.report(SEEN, TABLE)
        assert report.kernels and other_side(report) is None
        assert "may crash" in report.kernels[0].reason


def shifted(r: jax.Array) -> jax.Array:
    return r.at[1:].set(r[:-1] * 2)


def shifted_by(r: jax.Array) -> jax.Array:
    begin = jax.lax.dynamic_slice(r, (jnp.int32(0),), (r.shape[0] - 1,))
    return jax.lax.dynamic_update_slice(r, begin, (jnp.int32(1),))


def larger(r: jax.Array, of: Callable) -> jax.Array:
    other = of(r)
    return jnp.where(other > r, other, r)


@pytest.mark.parametrize("of", [shifted, shifted_by])
def test_rows_that_are_set_to_parts_of_themselves_in_loops(of: Callable) -> None:
    """By jax.jit all that follow are the first element."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32))
    expected = np.stack([larger(row, of) for row in x])

    def function(x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda row: larger(row, of), x)

    assert "overwrite" in fault(nodes_of(function, x))
    ours = mlc_jit(function)
    np.testing.assert_array_equal(ours(x), expected)
    assert ours.report(x).coverage == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.stack([shifted(row) for row in x]),  # in no loop
        lambda x: jax.lax.scan(lambda r, y: (r.at[1:].set(r[:-1]) + y, r), x[0], x),
        lambda x: jax.lax.map(lambda row: row.at[1:].set(1.0), x),
        lambda x: jax.lax.map(lambda row: row.at[1:].add(row[:-1]), x),
    ],
)
def test_others_are_set_as_they_should_be(function: Callable) -> None:
    assert fault(nodes_of(function, jnp.ones((5, 8)))) == ""


def turned(q: jax.Array, by: jax.Array) -> jax.Array:
    """Quaternions after a step: their products with others, and of length 1 again."""
    (a, b, c, d), (e, f, g, h) = jnp.moveaxis(q, -1, 0), jnp.moveaxis(by, -1, 0)
    product = jnp.stack(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ],
        -1,
    )
    q = q + 0.05 * product
    return q / jnp.sqrt((q * q).sum(-1, keepdims=True))


def turning(q: jax.Array, by: jax.Array) -> Any:
    def step(q: jax.Array, _: None) -> Any:
        new = turned(q, by)
        return new, (tuple(jnp.moveaxis(q, -1, 0)), new, (new * new).sum(-1))

    return jax.lax.scan(step, q, None, length=3)


@pytest.mark.parametrize("count", [4, 64])
def test_rows_of_numbers_that_are_taken_apart_in_loops(count: int) -> None:
    """By jax.jit of jaxlib 0.10.2 the third quaternions are off by hundredths."""
    q, by = np.random.default_rng(0).standard_normal((2, count, 4)).astype(np.float32)
    assert "takes apart" in fault(nodes_of(turning, q, by), FAULTY)
    assert fault(nodes_of(turning, q, by), "0.11.1") == ""
    expected = q
    for _ in range(3):
        expected = np.asarray(turned(jnp.asarray(expected), jnp.asarray(by)))
    ours = mlc_jit(turning)
    np.testing.assert_allclose(ours(q, by)[0], expected, atol=1e-6)
    if jaxlib.__version__ == FAULTY:
        assert ours.report(q, by).coverage == 1
    by_xla = compile_for(jax.jit(turning).lower(q, by).compiler_ir())
    np.testing.assert_allclose(by_xla([q, by])[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda q: turned(q, q),  # in no loop
        lambda q: jax.lax.fori_loop(0, 3, lambda _, q: q + q.T[:1].T, q),
        lambda q: jax.lax.fori_loop(0, 3, lambda _, q: jnp.stack(tuple(q.T)[::-1], -1), q),
        lambda q: jax.lax.fori_loop(0, 3, lambda _, q: q + q.T @ q, q),
    ],
)
def test_others_are_taken_apart_as_they_should_be(function: Callable) -> None:
    assert fault(nodes_of(function, jnp.ones((4, 4))), FAULTY) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.abs(x * x),
        lambda x: jnp.abs((x * x)[None]),
        lambda x: jnp.where(x**2 < 0, 1, 2),
        lambda x: x**2 >= 0,
        lambda x: x * x < 0,
        lambda x: jax.lax.rem(x * x, jnp.full_like(x, 8)),
        lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.abs(x * x), x),
        lambda x: jnp.abs(x) // 8,
        lambda x: jnp.where(x == 0, 1, jnp.abs(x)) < 0,
    ],
)
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8])
def test_integers_that_overflow(function: Callable, dtype: jnp.dtype) -> None:
    """Some of the squares and magnitudes are negative, which XLA does not expect."""
    x = jnp.asarray([50000, 46341, 3, 12, 15, 200, -128, -(1 << 31)], jnp.int32).astype(dtype)
    assert "overflow" in fault(nodes_of(function, x))
    with jax.disable_jit():
        expected = function(x)
    ours = mlc_jit(function)
    np.testing.assert_array_equal(ours(x), expected)
    assert ours.report(x).coverage == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.abs(x * (x + 1)),
        lambda x: jnp.maximum(x * x, 0),
        lambda x: x * x < 5,
        lambda x: jax.lax.rem(x * x, jnp.full_like(x, 7)),
        lambda x: jnp.abs(x.astype(jnp.uint32) * x.astype(jnp.uint32)),
        lambda x: jnp.abs(x.astype(jnp.float32) ** 2),
        lambda x: jnp.abs(x) % 7,
    ],
)
def test_others_have_their_sign(function: Callable) -> None:
    assert fault(nodes_of(function, jnp.arange(7, dtype=jnp.int32))) == ""


def sum_of_the_same(x: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    return jnp.sum(jnp.broadcast_to(x, (2, 1024, 512)), axis)


@pytest.mark.parametrize(("given", "axis"), [((1024, 1), None), ((512,), (0, 2))])
def test_sums_of_what_is_the_same_along_dimensions(given: tuple[int, ...], axis: Any) -> None:
    """Our passes leave nothing wrong of them, but XLA would get what came."""
    x = jnp.ones(given)
    function = partial(sum_of_the_same, axis=axis)
    came = import_function(jax.jit(function).lower(x).compiler_ir()).nodes
    assert "sum wrongly" in fault(came, FAULTY)
    assert fault(came, "0.12.0") == fault(nodes_of(function, x), FAULTY) == ""
    ours = mlc_jit(function)
    (found,) = np.unique([ours(x) for _ in range(5)])
    assert found == 2 * 1024 * 512 / ours(x).size
    report = ours.report(x)
    assert report.coverage == 1
    if jaxlib.__version__ == FAULTY and axis is None:  # the other is predicted to be faster
        assert other_side(report) is None


def test_sums_of_the_same_beside_what_xla_does() -> None:
    """Which would get all as it came, as little is saved."""
    function = mlc_jit(lambda x, y: (sum_of_the_same(x), jnp.linalg.svd(y)[1]))
    given = jnp.ones((1024, 1)), jnp.ones((300, 300))
    (found,) = np.unique([function(*given)[0] for _ in range(5)])
    assert found == 2 * 1024 * 512
    if jaxlib.__version__ == FAULTY:
        assert "may sum wrongly" in str(function.explain(*given))


@pytest.mark.parametrize("choose", ["auto", "ours"])
@pytest.mark.parametrize(("start", "limit", "step"), [(0, 1, 2), (0, 1, 3), (-3, 0, 2), (-3, 2, 3)])
def test_loops_that_end_past_their_limit(start: int, limit: int, step: int, choose: str) -> None:
    """By jax.jit there is a trip less."""

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.while_loop(
            lambda state: state[0] < limit,
            lambda state: (state[0] + step, state[1] * 2),
            (jnp.int32(start), x),
        )

    nodes = import_function(jax.jit(function).lower(jnp.float32(1)).compiler_ir()).nodes
    assert "miscount" in fault(nodes, FAULTY) and fault(nodes, "0.11.1") == ""
    count, product = mlc_jit(function, choose=choose)(jnp.float32(1))
    trips = len(range(start, limit, step))
    assert (count, product) == (start + trips * step, 2.0**trips)


def test_signs_are_asked_of_each_value_once() -> None:
    def clamped(x: jax.Array, y: jax.Array) -> jax.Array:
        for k in range(64):
            x = jnp.where(y > k, x, jnp.maximum(x, y + k))
        return x < 0

    assert fault(nodes_of(clamped, *[jnp.arange(7, dtype=jnp.int32)] * 2)) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: sum_of_the_same(x, (0, 2)),
        lambda x: jnp.broadcast_to(x, (1024, 512)).sum(),
        lambda x: jnp.broadcast_to(x, (2, 1024, 512)).max(),
        lambda x: jnp.broadcast_to(x.astype(jnp.int32), (2, 1024, 512)).sum(),
    ],
)
def test_other_sums_are_right(function: Callable) -> None:
    came = import_function(jax.jit(function).lower(jnp.ones((1024, 1))).compiler_ir())
    assert fault(came.nodes, FAULTY) == ""


@pytest.mark.parametrize("pick", [jax.lax.max, jax.lax.add])
def test_windows_that_step_over_holes(pick: Callable) -> None:
    """By jax.jit each second of them is left out."""
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)

    def function(x: jax.Array) -> jax.Array:
        first = jnp.float32(0 if pick is jax.lax.add else -jnp.inf)
        return jax.lax.reduce_window(
            x, first, pick, (2, 1), (2, 1), ((0, 0), (0, 0)), base_dilation=(1, 2)
        )

    assert "holes" in fault(nodes_of(function, x))
    ours = mlc_jit(function)
    np.testing.assert_allclose(ours(x)[:, ::2], pick(x[::2], x[1::2]))
    assert np.unique(ours(x)[:, 1::2]) == (0 if pick is jax.lax.add else -np.inf)
    assert ours.report(x).coverage == 1


@pytest.mark.parametrize("dtype", [jnp.int2, jnp.uint2])
@pytest.mark.parametrize(
    "function",
    [
        jnp.sort,
        jnp.argsort,
        lambda x: jnp.sort(x + x),
        lambda x: jnp.sort(x[None] + 1, descending=True),
    ],
)
def test_sorts_of_two_bits(function: Callable, dtype: jnp.dtype) -> None:
    """With jax.jit the process ends, or XLA refuses to compile them."""
    x = jnp.asarray(np.random.default_rng(0).integers(0, 4, 1000), jnp.int8).astype(dtype)
    assert "2 bits" in fault(nodes_of(function, x))
    ours = mlc_jit(function)
    result = ours(x)
    if result.dtype == dtype:
        before = result.astype(jnp.int8).ravel()
        assert (np.sort(before) == (before[::-1] if before[0] > before[-1] else before)).all()
    else:
        np.testing.assert_array_equal(result, np.argsort(np.asarray(x, np.int8), kind="stable"))
    assert ours.report(x).coverage == 1


def test_what_is_not_modelled_is_not_asked() -> None:
    came = jax.jit(lambda x: jnp.sort(x.astype(jnp.float4_e2m1fn).astype(x.dtype)))
    assert fault(import_function(came.lower(jnp.ones(8)).compiler_ir()).nodes) == ""


def test_sorts_of_four_bits_are_right() -> None:
    assert fault(nodes_of(jnp.sort, jnp.arange(7).astype(jnp.int4))) == ""
