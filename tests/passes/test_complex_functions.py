"""Functions of complex numbers: to the last places against twice the digits, at zeros, infinities
and on branch cuts as C has them, and near the ends of the range."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.passes.complex_functions import FUNCTIONS

# By op: NumPy's function, and units in the last place of each part, or of the number where its
# parts may cancel.
PART, NUMBER = "part", "number"
KNOWN: dict[str, tuple[Callable, str, float]] = {
    "stablehlo.exponential": (np.exp, PART, 4),
    "stablehlo.exponential_minus_one": (np.expm1, NUMBER, 4),
    "stablehlo.log": (np.log, PART, 4),
    "stablehlo.log_plus_one": (np.log1p, PART, 4),
    "stablehlo.sqrt": (np.sqrt, PART, 4),
    "stablehlo.rsqrt": (lambda z: 1 / np.sqrt(z), PART, 7),
    "stablehlo.sign": (lambda z: np.where(z == 0, z, z / np.abs(z)), PART, 4),
    "stablehlo.logistic": (lambda z: 1 / (1 + np.exp(-z)), NUMBER, 8),
    "stablehlo.sine": (np.sin, PART, 4),
    "stablehlo.cosine": (np.cos, PART, 4),
    "stablehlo.tan": (np.tan, PART, 8),
    "stablehlo.tanh": (np.tanh, PART, 8),
    "chlo.tan": (np.tan, PART, 8),
    "chlo.sinh": (np.sinh, PART, 4),
    "chlo.cosh": (np.cosh, PART, 4),
    "chlo.asin": (np.arcsin, PART, 6),
    "chlo.acos": (np.arccos, PART, 6),
    "chlo.atan": (np.arctan, PART, 5),
    "chlo.asinh": (np.arcsinh, PART, 6),
    "chlo.acosh": (np.arccosh, PART, 6),
    "chlo.atanh": (np.arctanh, PART, 5),
}
# These are more exact here than in NumPy's complex128.
BY_MPMATH = {"stablehlo.log": "log", "stablehlo.log_plus_one": "log1p"}
PARTS = {"complex64": "f32", "complex128": "f64"}


def test_every_function_is_here() -> None:
    assert KNOWN.keys() == FUNCTIONS.keys()


def compiled(op: str, z: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """One op in a kernel, and nothing with XLA."""
    tensor = f"tensor<{z.size}xcomplex<{PARTS[z.dtype.name]}>>"
    operands = [f"%a{k}" for k in range(1 + len(more))]
    function = compile_stablehlo(
        f"func.func @main({', '.join(f'{a}: {tensor}' for a in operands)}) -> {tensor} {{\n"
        f'  %r = "{op}"({", ".join(operands)}) : ({", ".join([tensor] * len(operands))})'
        f" -> {tensor}\n  return %r : {tensor}\n}}\n",
        choose="ours",
    )
    (result,) = function(z, *more)
    assert function.report().coverage == 1
    return np.asarray(result)


def points(dtype: str) -> np.ndarray:
    """All over the plane, near its special places, and far from and near to zero."""
    rng, count = np.random.default_rng(7), 500
    turn = np.exp(1j * rng.uniform(-np.pi, np.pi, count))
    small = turn * 10.0 ** rng.uniform(-6, 0, count)
    far = 30 if dtype == "complex64" else 200
    apart = np.exp(rng.uniform(-far, far, (2, count))) * rng.choice([-1, 1], (2, count))
    numbers = np.exp(rng.uniform(-far, far, count)) * turn
    return np.concatenate(
        [
            rng.standard_normal(count) + 1j * rng.standard_normal(count),
            numbers,
            apart[0] + 1j * apart[1],
            turn * (1 + small.real),
            small,
            1 + small,
            small - 1,
            small + 1j,
            turn - 1,
        ]
    ).astype(dtype)


def away_from_poles(z: np.ndarray) -> np.ndarray:
    """Without numbers near odd multiples of i pi: there 1 + exp(-z) is a small difference."""
    with np.errstate(all="ignore"):
        return z[np.abs(1 + np.exp(-z.astype(np.complex128))) > 0.1]


def exactly(op: str, z: np.ndarray) -> np.ndarray:
    """The function in more digits than `z` has."""
    if z.dtype == np.complex64 and op not in BY_MPMATH:
        with np.errstate(all="ignore"):
            return KNOWN[op][0](z.astype(np.complex128))
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        function = getattr(mpmath, BY_MPMATH[op])
        return np.array([complex(function(mpmath.mpc(complex(n)))) for n in z])


def errors(found: np.ndarray, right: np.ndarray, relative_to: str) -> np.ndarray:
    """In units in the last place, where the right number is in the range of normal ones."""
    part = found.real.dtype
    limits, parts = np.finfo(part), []
    for one, exact in ((found.real, right.real), (found.imag, right.imag)):
        size = np.abs(exact) if relative_to == PART else np.abs(right)
        normal = (np.abs(right) < limits.max / 2) & (size > limits.tiny)
        unit = np.spacing(np.where(normal, size, 1).astype(part)).astype(np.float64)
        with np.errstate(invalid="ignore"):
            distance = np.where(normal, np.abs(one - exact), 0) / unit
        parts.append(np.where(np.isnan(distance), np.inf, distance))
    return np.maximum(*parts)


@pytest.mark.parametrize("op", KNOWN)
def test_single_numbers_are_right_to_the_last_places(op: str) -> None:
    z = points("complex64")
    if op == "stablehlo.exponential":
        z = z[np.abs(z.imag) < 1e6]
    if op == "stablehlo.logistic":
        z = away_from_poles(z)
    _, relative_to, bound = KNOWN[op]
    found = errors(compiled(op, z), exactly(op, z), relative_to)
    worst = int(np.argmax(found))
    assert found[worst] <= bound, (found[worst], z[worst])


@pytest.mark.parametrize("op", BY_MPMATH)
def test_double_logarithms_are_right_near_their_zeros(op: str) -> None:
    z = points("complex128")[::3]
    with jax.enable_x64(True):
        found = errors(compiled(op, z), exactly(op, z), PART)
    worst = int(np.argmax(found))
    assert found[worst] <= KNOWN[op][2], (found[worst], z[worst])


@pytest.mark.parametrize("op", [op for op in KNOWN if op not in BY_MPMATH])
def test_double_numbers_agree_with_numpy(op: str) -> None:
    """To a few units more: NumPy's have errors too."""
    z = points("complex128")
    z = z[(np.abs(z) < 1e5) & (np.abs(z) > 1e-5)]
    if op == "stablehlo.logistic":
        z = away_from_poles(z)
    function, _, bound = KNOWN[op]
    with np.errstate(all="ignore"), jax.enable_x64(True):
        assert np.max(errors(compiled(op, z), function(z), NUMBER)) <= bound + 8


SPECIAL = np.array([0, -0.0, 1, -2.5, 200, -200, np.inf, -np.inf, np.nan])
# What C leaves open, or JAX has otherwise: NaN of these are not compared with those of NumPy.
OTHERWISE = {
    "stablehlo.exponential_minus_one": "NumPy has NaN at infinity on the real axis",
    "stablehlo.rsqrt": "NumPy divides by an infinite number",
    "stablehlo.sign": "NumPy has a direction of infinity",
    "stablehlo.logistic": "NumPy divides by an infinite number",
}


def special(dtype: str) -> np.ndarray:
    re, im = np.meshgrid(SPECIAL, SPECIAL)
    z = np.empty(re.size, dtype)
    z.real, z.imag = re.ravel(), im.ravel()
    return z


@pytest.mark.parametrize("dtype", PARTS)
@pytest.mark.parametrize("op", [op for op in KNOWN if op not in OTHERWISE])
def test_zeros_infinities_and_branch_cuts(op: str, dtype: str) -> None:
    """As in C, also the signs of zeros; where a part is NaN, some part is."""
    z = special(dtype)
    with np.errstate(all="ignore"), jax.enable_x64(dtype == "complex128"):
        ours, right = compiled(op, z), KNOWN[op][0](z)
    no_number = np.isnan(right)
    np.testing.assert_array_equal(np.isnan(ours), no_number, err_msg=str(z))
    # C leaves the signs of zeros open that have no direction.
    signed = ~no_number & (np.isfinite(z.real) | np.isfinite(z.imag))
    for one, other in ((ours.real, right.real), (ours.imag, right.imag)):
        np.testing.assert_allclose(one[~no_number], other[~no_number], rtol=1e-6)
        np.testing.assert_array_equal(np.signbit(one[signed]), np.signbit(other[signed]))


def test_infinite_numbers_have_a_small_inverse_root_and_no_direction() -> None:
    z = np.array([np.inf, -np.inf, 1j * np.inf, np.inf + 1j * np.inf, 0, 4], np.complex64)
    found = compiled("stablehlo.rsqrt", z)
    np.testing.assert_array_equal(found[[0, 1, 2, 3, 5]], [0, 0, 0, 0, 0.5])
    assert found[4].real == np.inf
    signs = compiled("stablehlo.sign", z)
    assert np.isnan(signs[:4]).all()
    np.testing.assert_array_equal(signs[4:], [0, 1])


def test_there_is_no_angle_at_infinity() -> None:
    """Nor does a number that is too small to be one hide that, as XLA has it."""
    z = np.array([complex(a, b) for a in (200, 1e20) for b in (np.inf, -np.inf, np.nan)])
    for op, of in (("exponential", -z), ("logistic", z), ("logistic", -z), ("tanh", z)):
        assert np.isnan(compiled(f"stablehlo.{op}", of.astype(np.complex64)).real).all()


@pytest.mark.parametrize(
    ("op", "z"),
    [
        ("stablehlo.exponential", 88.85 + 0.8j),
        ("chlo.cosh", 89.3 + 0.8j),
        ("chlo.sinh", -89.3 + 0.8j),
        ("stablehlo.sqrt", 3e38 + 3e38j),
        ("stablehlo.rsqrt", 3e38 + 3e38j),
        ("chlo.acosh", 3e38 + 2e38j),
        ("chlo.atanh", 3e30 + 2e30j),
        ("chlo.atanh", 1 + 1e-30j),
        ("chlo.asin", 0.5 + 1e-30j),
        ("stablehlo.log", 1e-30 + 1e-31j),
        ("stablehlo.sign", 3e38 + 3e38j),
    ],
    ids=str,
)
def test_no_step_leaves_the_range(op: str, z: complex) -> None:
    whole = np.array([z], np.complex64)
    (found,), (right,) = compiled(op, whole), KNOWN[op][0](whole.astype(np.complex128))
    np.testing.assert_allclose([found.real, found.imag], [right.real, right.imag], rtol=1e-6)


@pytest.mark.parametrize("dtype", PARTS)
def test_powers(dtype: str) -> None:
    rng = np.random.default_rng(3)
    z, w = ((rng.standard_normal(999) + 1j * rng.standard_normal(999)) * 3 for _ in range(2))
    z, w = z.astype(dtype), w.astype(dtype)
    with jax.enable_x64(dtype == "complex128"):
        found = compiled("stablehlo.power", z, w)
    bound = 2 if dtype == "complex64" else 64  # NumPy's errors grow with the exponent as well
    assert np.max(errors(found, np.power(z.astype("complex128"), w), NUMBER)) <= bound
    zero, one = np.zeros(4, np.complex64), np.array([0, 2, 0.5, 1], np.complex64)
    np.testing.assert_array_equal(compiled("stablehlo.power", zero, one), [1, 0, 0, 0])


@pytest.mark.parametrize("dtype", PARTS)
def test_angles(dtype: str) -> None:
    rng = np.random.default_rng(4)
    y, x = ((rng.standard_normal(999) + 1j * rng.standard_normal(999)) * 3 for _ in range(2))
    y, x = y.astype(dtype), x.astype(dtype)
    wide_y, wide_x = y.astype(np.clongdouble), x.astype(np.clongdouble)
    exact = -1j * np.log((wide_x + 1j * wide_y) / np.sqrt(wide_x**2 + wide_y**2))
    with jax.enable_x64(dtype == "complex128"):
        found = compiled("stablehlo.atan2", y, x)
    np.testing.assert_allclose(found, exact, rtol=64 * np.finfo(dtype).eps)
    quarters = np.array([0, 1, 0, -1], np.complex64), np.array([1, 0, -1, 0], np.complex64)
    expected = np.array([0, 0.5, 1, -0.5]) * np.pi
    np.testing.assert_allclose(compiled("stablehlo.atan2", *quarters), expected, rtol=1e-6)


def test_the_larger_and_the_smaller_one_by_both_parts() -> None:
    z = np.array([1 + 2j, 1 + 3j, 2 - 1j, np.nan + 1j, 1 + 1j], np.complex64)
    w = np.array([1 + 3j, 1 + 2j, 1 + 9j, 5 + 1j, np.nan + 1j], np.complex64)
    large, small = (compiled(f"stablehlo.{op}", z, w) for op in ("maximum", "minimum"))
    np.testing.assert_array_equal(large, [1 + 3j, 1 + 3j, 2 - 1j, np.nan + 1j, np.nan + 1j])
    np.testing.assert_array_equal(small, [1 + 2j, 1 + 2j, 1 + 9j, np.nan + 1j, np.nan + 1j])


@pytest.mark.parametrize("dtype", PARTS)
def test_whole_lengths_of_whole_numbers_are_exact(dtype: str) -> None:
    """Times any power of two, as long as all of them are normal numbers."""
    info = np.finfo(dtype)
    powers = 2.0 ** np.arange(info.minexp, info.maxexp - 9, dtype=info.dtype)
    triples = np.array(
        [
            [5, 12, 13],
            [84, 13, 85],
            [-8, 15, 17],
            [3, 0, 3],
            [0, -7, 7],
            [312, 0, 312],
            [0, 0, 0],
            [180, -299, 349],
        ],
        info.dtype,
    )
    re, im, length = (triples * powers[:, None, None]).reshape(-1, 3).T
    z = np.stack([re, im], -1).copy().view(dtype)[:, 0]
    kernels = mlc_jit(jnp.abs, choose="ours")
    with jax.enable_x64(dtype == "complex128"):
        np.testing.assert_array_equal(np.asarray(kernels(z)), length)
        assert kernels.report(z).coverage == 1


Z = points("complex64")[:480].reshape(20, 24)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: jnp.prod(z, 1),
        lambda z: jnp.cumprod(z / 2, 0),
        lambda z: jnp.max(z, 1),
        lambda z: jnp.min(z),
        lambda z: jnp.sort(z, 1),
        lambda z: lax.sort((z, z.real), dimension=1, num_keys=1),
        lambda z: lax.bitcast_convert_type(z * 2, "complex64"),
        lambda z: lax.reduce(z, jnp.complex64(1), lambda a, b: a * b + 1j, (0,)),
    ],
    ids=["product", "products", "largest", "smallest", "sort", "two operands", "bits", "any body"],
)
def test_what_combines_and_compares_numbers(function: Callable) -> None:
    kernels, plain = mlc_jit(function, choose="ours"), jax.jit(function)
    z = np.round(Z * 4) / 4  # with equal real parts
    found, right = jax.tree.leaves(kernels(z)), jax.tree.leaves(plain(z))
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=3e-4, atol=1e-5)
    assert kernels.report(z).coverage == 1
