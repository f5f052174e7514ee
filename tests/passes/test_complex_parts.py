"""Complex numbers in parts: right to the last places against complex128, and in kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.ops.registry import references
from hlo_mlc.passes.complex_parts import gains_in_parts, has_complex, split_complex
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.report import Report
from making.quotients import quotient


def numbers(*shape: int, seed: int = 0, dtype: str = "complex64") -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


X, Y, SQUARE = numbers(7, 13), numbers(7, 13, seed=1), numbers(9, 9, seed=2)
WIDE = numbers(7, 71)  # of a prime that is not transformed here
REAL, ROWS = X.real.copy(), np.array([0, 3, 6, 9, -2])


def widened(a: object) -> object:
    if isinstance(a, np.ndarray) and a.dtype.kind in "fc":
        return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    return a


def check(function: Callable, *args: object, ulps: int = 32) -> Report:
    """Against the same function of complex128, relative to the largest number in each result."""
    compiled = mlc_jit(function, choose="ours")
    actual = jax.tree.leaves(compiled(*args))
    types = jax.tree.leaves(jax.eval_shape(function, *args))
    with jax.enable_x64(True):
        exact = jax.tree.leaves(jax.jit(function)(*map(widened, args)))
    for ours, right, kind in zip(actual, exact, types, strict=True):
        assert (ours.dtype, ours.shape) == (kind.dtype, kind.shape)
        wide = jnp.issubdtype(kind.dtype, jnp.inexact)
        scale = np.max(np.abs(right), initial=0) if wide else 0
        eps = jnp.finfo(kind.dtype).eps if wide else 0
        np.testing.assert_allclose(
            np.asarray(ours), np.asarray(right), rtol=ulps * eps, atol=ulps * eps * scale
        )
    return compiled.report(*args)


def mandelbrot(c):
    def trip(k, s):
        z, n = s
        inside = jnp.abs(z) < 2
        return jnp.where(inside, z * z + c, z), n + inside

    return lax.fori_loop(0, 9, trip, (jnp.zeros_like(c), jnp.zeros(c.shape, "int32")))[1]


def newton(x):
    return lax.while_loop(
        lambda s: (s[0] < 20) & (jnp.abs(s[1] ** 2 - 2j).max() > 1e-2),
        lambda s: (s[0] + 1, (s[1] + 2j / s[1]) / 2),
        (0, x),
    )[1]


def chosen_in_a_loop(x, k):
    def trip(i, x):
        return lax.cond(k[i] > 2, lambda x: x @ x / 9, lambda x: x.conj().T, x)

    return lax.fori_loop(0, 4, trip, x)


def gradient(x):
    return jax.grad(lambda r: jnp.abs(jnp.exp(1j * r) * x + r).sum())(jnp.real(x))


FUNCTIONS = {
    "sum": (lambda x, y: x + y - 2j, X, Y),
    "product": (lambda x, y: x * y * 1.5, X, Y),
    "quotient": (lambda x, y: x / y, X, Y),
    "by a real number": (lambda x, y: x / 3 - y / 2.5, X, Y),
    "square": (lambda x: jnp.square(x) + x**3, X),
    "length": (lambda x: jnp.abs(x), X),
    "exponential": (lambda x: jnp.exp(x * 2j), X),
    "phase": (lambda r: jnp.exp(1j * r), REAL),
    "parts": (lambda x: (x.real, x.imag, x.conj(), jnp.real(x * x) - x.imag), X),
    "of parts": (lambda r: lax.complex(r, r[::-1]), REAL),
    "conversion": (lambda r: r.astype("complex64") * 2j, REAL),
    "to a real number": (lambda x: lax.convert_element_type(lax.real(x * 2), "float32"), X),
    "comparison": (lambda x, y: (x == y, x != x, jnp.where(x == x, y, x)), X, Y),
    "matrices": (lambda x: x @ x.conj().T, SQUARE),
    "batch": (lambda x, y: jnp.einsum("ij,ik->ijk", x, y), X, Y),
    "reduction": (lambda x: (x.sum(), x.sum(0), x.mean(1)), X),
    "cumulative": (lambda x: jnp.cumsum(x, 1), X),
    "moved": (lambda x: (x.T.reshape(-1)[3:-4:2], jnp.roll(x, 2, 1), jnp.pad(x, 1)[::-1]), X),
    "joined": (lambda x, y: jnp.concatenate([x, y * 2j, x[:2]]), X, Y),
    "looked up": (lambda x, k: x[k] * x[:, 1][k][:, None], X, ROWS),
    "updated": (lambda x, k: x.at[k].set(1j).at[2, 3].add(x[0, 0]).at[k, 1].add(2 + 1j), X, ROWS),
    "slices": (
        lambda x, k: lax.dynamic_update_slice(
            x, lax.dynamic_slice(x, (k[1], k[0]), (2, 3)) * 1j, (k[2], 1)
        ),
        X,
        ROWS,
    ),
    "table": (lambda x: x * jnp.asarray(Y), X),
    "given back": (lambda x, y: (x, x * y, 3j, y), X, Y),
    "rank 0": (lambda x, y: x[0, 0] * y[1, 1], X, Y),
    "empty": (lambda x: (x[:0] * 2j).sum(), X),
    "double": (lambda x: jnp.exp(x) / (x + 3), numbers(5, 6, dtype="complex128")),
    "scan": (lambda x: lax.scan(lambda s, r: (s * r + 1, s.imag), x[0], x), X),
    "gradient": (gradient, X),
    "mandelbrot": (mandelbrot, X),
    "newton": (newton, X),
    "short filter": (lambda x: jnp.fft.ifft(jnp.fft.fft(x) * jnp.exp(1j * jnp.arange(13))).real, X),
    "transforms": (
        lambda x: (
            jnp.fft.fftn(x),
            jnp.fft.ifft2(x),
            jnp.fft.rfftn(x.real),
            jnp.fft.irfftn(x, s=(7, 24)),
            jnp.fft.irfft(x, 25),
        ),
        X,
    ),
    "long filter": (
        lambda x: jnp.fft.ifft(jnp.fft.fft(x, 90) * jnp.exp(1j * jnp.arange(90))).real,
        X,
    ),
    "long transforms": (
        lambda x: (jnp.fft.ifft(x, 98), jnp.fft.rfft(x.real, 120), jnp.fft.irfft(x, 144)),
        X,
    ),
    "axis by axis": (
        lambda x: (
            jnp.fft.fftn(x, (72, 12)),
            jnp.fft.ifft2(x, (6, 66)),
            jnp.fft.rfftn(x.real, (12, 75)),
            jnp.fft.irfftn(x, (72, 20)),
        ),
        X,
    ),
    "loop of long transforms": (
        lambda x: lax.fori_loop(
            0, 3, lambda i, x: jnp.fft.fft(x * 1j) / 9, jnp.concatenate([x] * 6, 1)
        ),
        X,
    ),
    "root": (lambda x: jnp.sqrt(x * x + 1) - x, X),
    "sorted": (lambda x: jnp.sort(x, 1) + 1j, X),
    "root in a branch": (lambda x: lax.cond(x[0, 0].real > 9, jnp.sqrt, lambda x: x * 2j, x), X),
    "chosen in a loop": (chosen_in_a_loop, SQUARE, ROWS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_of_it_is_in_kernels(name: str) -> None:
    function, *args = FUNCTIONS[name]
    with jax.enable_x64(name == "double"):
        assert check(function, *args).coverage == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * jnp.exp(-2j * lax.iota("complex64", 13)),
        lambda x: [v * 2j for v in lax.optimization_barrier((x * x, REAL, x))],
        lambda x: jax.grad(
            lambda r: jnp.abs(jax.checkpoint(lambda z: jnp.exp(z) * z)(r * x)).sum()
        )(REAL),
    ],
    ids=["counted", "barrier", "kept for a gradient"],
)
def test_nothing_is_left_of_what_computes_nothing(function: Callable) -> None:
    assert not check(function, X).left


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.fft.ifft(jnp.fft.fft(x) * jnp.exp(1j * jnp.arange(71))).real,
        lambda x: jnp.abs(jnp.fft.rfft(x.real)) ** 2,
        lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.fft.fft(x * 1j) / 4, x),
        lambda x: lax.cond(x[0, 0].real > 9, jnp.fft.fft, lambda x: x * 2j, x),
    ],
    ids=["filter", "spectrum", "loop", "branch"],
)
def test_what_is_not_known_here_stays_with_xla(function: Callable) -> None:
    report = check(function, WIDE, ulps=128)
    assert report.kernels
    assert 0 < report.coverage < 1


@pytest.mark.parametrize(
    ("x", "accumulated"), [(SQUARE, "float32"), (SQUARE.real.copy(), "complex64")]
)
def test_products_that_are_accumulated_in_another_type_stay_with_xla(
    x: np.ndarray, accumulated: str
) -> None:
    def function(x):
        return abs(lax.dot(x, x, preferred_element_type=accumulated)) + abs(x).sum()

    compiled = mlc_jit(function, choose="ours")
    np.testing.assert_allclose(compiled(x), jax.jit(function)(x), rtol=1e-5)
    (left,) = compiled.report(x).left
    assert left.op == "stablehlo.dot_general"
    assert compiled.report(x).kernels


SPECIAL = np.array([0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan, 1e18, 1e-15], np.float32)


def pairs_of(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    re, im = np.meshgrid(parts, parts)
    whole = np.empty(re.size, np.complex64)
    whole.real, whole.imag = re.ravel(), im.ravel()
    x, y = np.meshgrid(whole, whole)
    return x.ravel(), y.ravel()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: x * y,
        operator.truediv,
        lambda x, y: abs(x),
        lambda x, y: x == y,
        lambda x, y: x != y,
    ],
    ids=["add", "multiply", "divide", "abs", "eq", "ne"],
)
def test_zeros_and_infinities(function: Callable) -> None:
    """As in NumPy: a number where that has one, NaN and infinities in the same parts; quotients as
    in C."""
    x, y = pairs_of(SPECIAL)
    ours = np.asarray(mlc_jit(function, choose="ours")(x, y))
    with np.errstate(all="ignore"):
        expected = quotient(x, y) if function is operator.truediv else function(x, y)
    assert ours.dtype == expected.dtype
    for part in (np.real, np.imag):
        one, other = part(ours), part(expected)
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-36)


def test_quotients_are_those_of_xla() -> None:
    """Finite, infinite and NaN in the same parts, with the same signs; of two numbers without end
    XLA may have one whose other part is NaN."""
    x, y = pairs_of(SPECIAL[:-2])
    compiled = mlc_jit(operator.truediv, choose="ours")
    ours, theirs = np.asarray(compiled(x, y)), np.asarray(jax.jit(operator.truediv)(x, y))
    assert compiled.report(x, y).coverage == 1
    ends = np.isinf(ours) & np.isinf(theirs)
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(theirs))
    for part in (np.real, np.imag):
        one, other = part(ours), part(theirs)
        known = ~(ends & (np.isnan(one) | np.isnan(other)))
        np.testing.assert_array_equal(np.isnan(one)[known], np.isnan(other)[known])
        np.testing.assert_allclose(one[known], other[known], rtol=1e-6, atol=1e-6)


def test_infinite_numbers_have_no_end_by_large_ones_and_these_none_by_them() -> None:
    """No sign is lost where what it belongs to leaves the range of numbers."""
    x = np.array([complex(0, np.inf)] * 3 + [3e38 + 3e38j, 3e38 - 1j], np.complex64)
    y = np.array([1e38 + 1j, 1 + 1e38j, 3e38 + 3e38j] + [complex(np.inf, np.inf)] * 2, np.complex64)
    compiled = mlc_jit(operator.truediv, choose="ours")
    ours = np.asarray(compiled(x, y))
    assert compiled.report(x, y).coverage == 1
    np.testing.assert_array_equal(ours.real, [np.inf, np.inf, np.inf, 0, 0])
    np.testing.assert_array_equal(ours.imag, [np.inf, np.inf, np.inf, 0, 0])
    np.testing.assert_array_equal(np.signbit(ours.imag), [False, False, False, False, True])


def test_the_inverse_of_what_leaves_the_range_is_nothing() -> None:
    x = np.array([-100 + 0.5j, -3e38 + 2j, 100 - 0.5j], np.complex64)
    compiled = mlc_jit(lambda x: 1 / (1 + jnp.exp(-x)), choose="ours")
    np.testing.assert_array_equal(compiled(x), [0, 0, 1])
    assert compiled.report(x).coverage == 1


def test_large_and_small_numbers() -> None:
    """No square leaves the range."""
    x = np.array([1e38 + 1e38j, 1e-30 + 1e-30j, 1e38 + 1e-30j], np.complex64)
    y = np.array([1e38 - 2e38j, 1e-30 - 3e-30j, 1e38 + 1e38j], np.complex64)
    check(lambda x, y: (x / y, jnp.abs(x / 2), jnp.abs(y)), x, y, ulps=4)


def test_large_numbers_have_squares_with_a_direction() -> None:
    z = np.array([1e20 + 1e20j, complex(np.inf, 1e20), complex(-np.inf, 1e20)], np.complex64)
    found = mlc_jit(jnp.square, choose="ours")(z)
    np.testing.assert_array_equal(found.real, [0, np.inf, np.inf])
    np.testing.assert_array_equal(found.imag, [np.inf, np.inf, -np.inf])


def test_donated_numbers() -> None:
    function = mlc_jit(lambda x, y: x * y, choose="ours", donate_argnums=0)
    np.testing.assert_allclose(function(jnp.array(X), Y), X * Y, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "gains"),
    [
        (lambda x: x * 2j + x, False),
        (lambda x: jnp.fft.fft(x) * 2j, False),
        (lambda x: jnp.fft.fft(x[:, :16]) * 2j, True),
        (jnp.exp, True),
        (lambda x: jnp.repeat(x, 2048, 0) * 2j, True),
        (lambda x: lax.fori_loop(0, 20, lambda i, x: x * 1j, x), True),
        (lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.fft.fft(x * 1j), x), False),
    ],
    ids=["little", "fourier", "short fourier", "exponential", "large", "loop", "loop of fourier"],
)
def test_where_kernels_gain(function: Callable, gains: bool, traced: Callable) -> None:
    graph, _ = simplify(traced(function, WIDE), references)
    assert has_complex(graph)
    assert gains_in_parts(graph) is gains


def test_kernels_gain_at_lengths(read: Callable) -> None:
    """Which JAX 0.12 writes as arithmetic of real numbers."""
    graph = read(
        "%a: tensor<7x71xcomplex<f32>>",
        """
        %0 = stablehlo.abs %a : (tensor<7x71xcomplex<f32>>) -> tensor<7x71xf32>
        return %0 : tensor<7x71xf32>""",
    )
    assert has_complex(graph)
    assert gains_in_parts(graph)


def test_graphs_without_complex_numbers_are_left_alone(traced: Callable) -> None:
    graph = traced(lambda x: x * 2, REAL)
    assert split_complex(graph) is graph


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.at[2:5, 3:9].multiply(2j),
        lambda x, y: x.at[1].multiply(y[0]).at[:, 2].add(y[:, 1]).at[-1, 5:].set(1 - 1j),
        lambda x, y: (x * 2).at[3, 4].multiply(y[0, 0]) - y,
        lambda x, y: x.at[0].set(y[1]).at[1].set(x[0]),
        lambda x, y: x.at[5:9].add(y[:4]) if x.shape[0] > 8 else x.at[5:].add(y[:2]),
    ],
)
def test_updates_of_a_part_that_is_known(function: Callable) -> None:
    """They are computed with what is around them."""
    assert check(function, X, Y).coverage == 1


def test_updates_beyond_the_end_are_dropped() -> None:
    function = mlc_jit(lambda x: x.at[7:20, 3].multiply(2j).at[40].set(0), choose="ours")
    np.testing.assert_array_equal(function(X), X)
