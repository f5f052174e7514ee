"""Legalised functions against references of higher precision: errors and special values."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.legalize import Abilities, legalize
from hlo_mlc.codegen.legalize.reduction import (
    BETWEEN_HALF_TURNS,
    HALF_TURNS,
    QUARTER_TURNS,
    by_digits,
)
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Apply, Expr, Var, walk
from hlo_mlc.expr.dtypes import F32, F64, DType
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import OPS, ScalarOp

# The largest errors in units in the last place that each function may have in f32 and f64 (the
# reference of erfc is off by up to 2 there: from mpmath's values the largest was 4.5).
BOUNDS = {
    "exp": (1.6, 1.6),
    "expm1": (1.7, 2.1),
    "tanh": (2.6, 2.6),
    "logistic": (2.5, 2.5),
    "sinh": (1.8, 1.8),
    "cosh": (1.8, 1.8),
    "log": (1.2, 1.2),
    "log1p": (1.8, 1.8),
    "sin": (1.9, 2.3),
    "cos": (1.9, 2.3),
    "tan": (3.1, 3.6),
    "erf": (1.8, 2.5),
    "erfc": (4.0, 5.1),
    "erf_inv": (2.5, 4.0),
    "asin": (2.5, 2.5),
    "acos": (1.4, 1.4),
    "atan": (1.9, 1.9),
    "asinh": (2.0, 2.0),
    "acosh": (2.2, 2.2),
    "atanh": (2.3, 2.3),
    "rsqrt": (1.6, 1.6),
    "cbrt": (0.6, 0.6),
    "bessel_i1e": (2.6, 4.0),
}
# erf in f32 by one division instead: 3.85 near 0.108, of all numbers; of XLA's 6.7.
ERF_BY_DIVISION = 3.9
# What computing products and sums separately may add.
WITHOUT_FMA = 0.5
# The functions that are more exact with fma by design.
BOUNDS_WITHOUT_FMA = {**BOUNDS, "cbrt": (1.9, 1.9)}

FORMATS = [F32, F64]


def variables(dtype: DType) -> tuple[Var, Var]:
    return Var("x", dtype), Var("y", dtype)


def bound(op: str, dtype: DType, has_fma: bool, divides: bool = False) -> float:
    """`divides`: by an instruction; without fused multiply-adds that is always so."""
    if (op, dtype) == ("erf", F32) and (divides or not has_fma):
        return ERF_BY_DIVISION + (0 if has_fma else WITHOUT_FMA)
    if has_fma:
        return BOUNDS[op][FORMATS.index(dtype)]
    return BOUNDS_WITHOUT_FMA[op][FORMATS.index(dtype)] + WITHOUT_FMA


def special(dtype: DType) -> np.ndarray:
    info = np.finfo(dtype.numpy)
    values = [
        0.0,
        1.0,
        0.5,
        2.0,
        np.inf,
        np.nan,
        info.tiny,
        1e-30,
        1 + info.eps,
        1 - info.epsneg,
        131072.0,
        131073.0,
        1e22,
        16777215.0,
        16777216.0,
        info.max,
        104.0,
        800.0,
    ]
    # about where exp, cosh and expm1 leave the range
    top, bottom = np.log(np.array([info.max, info.tiny], np.longdouble))
    for edge in (top, top + np.log(np.longdouble(2)), -bottom):
        near = dtype.numpy.type(edge)
        values += [
            np.nextafter(near, dtype.numpy.type(0)),
            near,
            np.nextafter(near, dtype.numpy.type(np.inf)),
        ]
    both_signs = np.array(values, dtype.numpy)
    return np.concatenate([both_signs, -both_signs])


def sweep(dtype: DType) -> np.ndarray:
    """Bit patterns at even distances, and as many numbers of magnitudes from 2**-12 to 2**8."""
    count = 100_000 if dtype is F32 else 20_000
    step = (1 << dtype.bits) // count | 1
    patterns = np.arange(7, 1 << dtype.bits, step, dtype=np.uint64)
    values = patterns.astype(f"u{dtype.bytes}").view(dtype.numpy)
    normal = values[np.isfinite(values) & (np.abs(values) >= np.finfo(dtype.numpy).tiny)]
    middle = np.exp2(np.random.default_rng(0).uniform(-12, 8, count // 2)).astype(dtype.numpy)
    return np.concatenate([special(dtype), normal, middle, -middle])


def between(first: float, last: float) -> np.ndarray:
    """All numbers of f32 from one positive number to another."""
    edges = np.array([first, last], np.float32).view(np.int32)
    return np.arange(*edges, dtype=np.int32).view(np.float32)


def reference(op: str, *values: np.ndarray) -> np.ndarray:
    """The table's function in extended precision (erf and erfc: in f64)."""
    with np.errstate(all="ignore"):
        return OPS[op].meaning(*(v.astype(np.longdouble) for v in values)).astype(np.longdouble)


def ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distances in units in the last place that a number of actual's type has at `expected`.

    0 where both are NaN or the same infinity, and where a subnormal result has become 0;
    infinity where only one is special or has the wrong sign of zero.
    """
    info = np.finfo(actual.dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(actual.dtype)
        exponent = np.frexp(np.where(np.isfinite(expected), expected, 0))[1] - 1
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent, info.minexp) - info.nmant)
        error = np.abs(actual.astype(np.longdouble) - expected) / unit
        tiny = (np.abs(expected) < info.tiny) & (np.abs(actual) <= info.tiny)
        same = (actual == rounded) | (np.isnan(actual) & np.isnan(expected))
        error = np.where(same & ~np.isfinite(error) | tiny, 0.0, error)
        both_zero = (actual == 0) & (expected == 0)
        wrong_zero = both_zero & (np.signbit(actual) != np.signbit(expected))
    return np.where(np.isnan(error) | wrong_zero, np.inf, error).astype(float)


def assert_close(actual: np.ndarray, expected: np.ndarray, limit: float, *inputs: np.ndarray):
    error = ulps(actual, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= limit, (
        f"{error[worst]} ulp at {[float(i[worst]) for i in inputs]}: "
        f"{actual[worst]!r}, expected {expected[worst]!r}"
    )


@pytest.fixture(params=[True, False], ids=["fma", "no_fma"])
def has_fma(request, monkeypatch) -> bool:
    """Without it, `fma` is computed as the printers write it for targets that lack it."""
    if not request.param:
        monkeypatch.setitem(OPS, "fma", ScalarOp("fma", 3, lambda x, y, z: x * y + z))
    return request.param


def run(expr: Expr, *inputs: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return evaluate(expr, dict(zip(variables(expr.dtype), inputs, strict=False)))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("op", BOUNDS)
def test_error_is_bounded_over_all_magnitudes(op, dtype, has_fma):
    values = sweep(dtype)
    actual = run(legalize(apply(op, variables(dtype)[0]), Abilities(has_fma=has_fma)), values)
    assert_close(actual, reference(op, values), bound(op, dtype, has_fma), values)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("op", BOUNDS)
def test_error_is_bounded_where_subnormal_numbers_are_zero(op, dtype, target, flushed, elementwise):
    """As the threads of XLA compute, whatever the processor has; most of all where results, or what
    they are made from, are hardly normal."""
    lowest = np.exp2(np.random.default_rng(4).uniform(0, 60, 1000)) * np.finfo(dtype.numpy).tiny
    values = np.concatenate([lowest, -lowest, special(dtype), sweep(dtype)[::7]])
    values = values[: values.size // 16 * 16].astype(dtype.numpy)
    (actual,) = flushed(elementwise(op, dtype, values.size, 16), [values], target)
    divides = target.has_fast_division and not target.has_pick
    most = bound(op, dtype, target.has_fma, divides)
    assert_close(actual, reference(op, values), most, values)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_error_of_exp_where_scaling_is_one_instruction(dtype):
    values = sweep(dtype)
    expr = legalize(apply("exp", variables(dtype)[0]), Abilities(has_ldexp=True))
    assert any(isinstance(node, Apply) and node.op == "ldexp" for node in walk(expr))
    assert_close(run(expr, values), reference("exp", values), bound("exp", dtype, True), values)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("op", ["tanh", "logistic"])
def test_error_where_division_is_fast(op, dtype):
    values = sweep(dtype)
    expr = legalize(apply(op, variables(dtype)[0]), Abilities(has_fast_division=True))
    assert any(isinstance(node, Apply) and node.op == "div" for node in walk(expr))
    assert_close(run(expr, values), reference(op, values), bound(op, dtype, True), values)


@pytest.mark.parametrize("has_fma", [True, False])
def test_error_of_erf_by_a_division(has_fma):
    values = sweep(F32)
    by_division = Abilities(has_fma=has_fma, has_fast_division=True)
    expr = legalize(apply("erf", variables(F32)[0]), by_division)
    assert any(isinstance(node, Apply) and node.op == "div" for node in walk(expr))
    most = bound("erf", F32, has_fma, divides=True)
    for some in (values, between(0.107, 0.109)):
        assert_close(run(expr, some), reference("erf", some), most, some)
    assert run(expr, between(3.4, 4.2)).max() == 1


def test_error_of_exp_by_a_table():
    values = sweep(F32)
    expr = legalize(apply("exp", variables(F32)[0]), Abilities(has_ldexp=True, has_pick=True))
    assert any(isinstance(node, Apply) and node.op == "pick" for node in walk(expr))
    assert_close(run(expr, values), reference("exp", values), bound("exp", F32, True), values)
    assert run(expr, np.zeros(1, np.float32)) == 1


def test_error_of_erf_by_tables():
    values = sweep(F32)
    expr = legalize(apply("erf", variables(F32)[0]), Abilities(has_pick=True))
    assert any(isinstance(node, Apply) and node.op == "pick" for node in walk(expr))
    assert_close(run(expr, values), reference("erf", values), 1.0, values)
    edges = np.array([3.4, 4.2], np.float32).view(np.int32)
    assert run(expr, np.arange(*edges, dtype=np.int32).view(np.float32)).max() == 1


@pytest.mark.parametrize("op", ["tanh", "logistic"])
def test_no_result_beyond_one(op, has_fma):
    """Where the result is about to be rounded to 1, every number of f32."""
    edges = np.array([7.0, 20.0], np.float32).view(np.int32)
    values = np.arange(*edges, dtype=np.int32).view(np.float32)
    actual = run(legalize(apply(op, variables(F32)[0]), Abilities(has_fma=has_fma)), values)
    assert actual.max() == 1


@pytest.mark.parametrize("op", ["lgamma", "digamma"])
def test_gamma_functions_are_rounded_once_in_f32_and_near_that_in_f64(op, has_fma):
    """Against f64 functions, whose error near zeros of the result is small against 1 only."""
    random = np.random.default_rng(3)
    values = np.concatenate(
        [
            special(F64),
            random.uniform(-30, 40, 20_000),
            np.arange(-20.0, 20.0),
            np.exp2(random.uniform(-400, 400, 5_000)),
        ]
    )
    narrow = values[np.abs(values) < 3e38].astype(np.float32)
    narrow = narrow[(narrow == 0) | (np.abs(narrow) >= np.finfo(np.float32).tiny)]
    actual = run(legalize(apply(op, variables(F32)[0]), Abilities(has_fma=has_fma)), narrow)
    assert_close(actual, reference(op, narrow.astype(np.float64)), 0.51, narrow)
    actual = run(legalize(apply(op, variables(F64)[0]), Abilities(has_fma=has_fma)), values)
    np.testing.assert_allclose(actual, OPS[op].meaning(values), rtol=3e-15, atol=3e-15)


@pytest.mark.parametrize(
    "op, at, value",
    [
        ("lgamma", -4.987638620729466, -0.37298603258996005),
        ("lgamma", -0.29527609222193446, 1.4749799310804144),
        ("lgamma", -7.785581507073522, -8.531704151820053),
        ("digamma", -30.80153804566623, -0.9245532071688937),
        ("digamma", -78.82412610393764, -0.7216122720851047),
        ("digamma", -60.8416419249896, -1.6685515256674608),
        ("digamma", -10.760424037378066, -0.9327775779667538),
    ],
)
def test_reflected_gamma_functions_where_their_parts_cancel(op, at, value, has_fma):
    """Against mpmath: 4 units of the result, or of 1 where that is larger."""
    (actual,) = run(
        legalize(apply(op, variables(F64)[0]), Abilities(has_fma=has_fma)), np.array([at])
    )
    assert abs(actual - value) <= 4 * np.spacing(max(1.0, abs(value)))


def orders_and_arguments(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Of polygamma, on both sides of 0; half of them far out."""
    random = np.random.default_rng(5)
    x = np.where(
        random.random(size) < 0.5,
        random.uniform(-40, 40, size),
        np.exp2(random.uniform(-20, 20, size)),
    )
    return random.integers(1, 6, size).astype(float), x


def test_zeta_and_polygamma_are_rounded_once_in_f32(has_fma):
    """Near zeros of the result the error is small against the largest term only."""
    orders, x = (v.astype(np.float32) for v in orders_and_arguments(20_000))
    distance = np.abs(x - np.minimum(np.rint(x), 0))
    for op, order, term in (("polygamma", orders, orders + 1), ("zeta", orders + 1, orders + 1)):
        actual = run(legalize(apply(op, *variables(F32)), Abilities(has_fma=has_fma)), order, x)
        expected = OPS[op].meaning(order.astype(np.float64), x.astype(np.float64))
        sized = np.abs(expected) > 1e-6 * distance.astype(np.float64) ** -term
        assert sized.mean() > 0.99
        assert_close(actual[sized], expected[sized].astype(np.longdouble), 0.55, x[sized])
    s = 1 + np.exp2(np.random.default_rng(6).uniform(-8, 6, x.size)).astype(np.float32)
    actual = run(legalize(apply("zeta", *variables(F32)), Abilities(has_fma=has_fma)), s, np.abs(x))
    expected = OPS["zeta"].meaning(s.astype(np.float64), np.abs(x).astype(np.float64))
    assert_close(actual, expected.astype(np.longdouble), 0.55, s)


@pytest.mark.parametrize(
    "op, order, at, value",
    [
        ("zeta", 1.00390625, 0.3, 259.51810639381001),
        ("zeta", 54.5, 63.25, 1.2190312202107697e-98),
        ("zeta", 3.0, -7.75, 62.019872794113882),
        ("zeta", 4.0, -2.125, 4098.4831542180897),
        ("polygamma", 1.0, 0.25, 17.197329154507111),
        ("polygamma", 1.0, 34.71875, 0.02922166509071348),
        ("polygamma", 1.0, -15.5, 9.8071247184113896),
        ("polygamma", 2.0, -9.375, 30.08330848255797),
        ("polygamma", 3.0, 1e-3, 6000000000006.4686),
        ("polygamma", 5.0, 59.5, 3.3557938737614938e-08),
    ],
)
@pytest.mark.parametrize("fixed", [False, True], ids=["orders as data", "one order"])
def test_zeta_and_polygamma_in_f64(op, order, at, value, fixed, has_fma):
    """Against mpmath."""
    first, second = variables(F64)
    expr = legalize(
        apply(op, const(order, F64) if fixed else first, second), Abilities(has_fma=has_fma)
    )
    values = {first: np.array([order]), second: np.array([at])}
    (actual,) = evaluate(expr, values)
    assert abs(actual - value) <= (5 + order / 2) * np.spacing(abs(value))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    "op, order, at, value",
    [
        ("zeta", 1.0, 2.0, np.inf),
        ("zeta", 0.5, 2.0, np.nan),
        ("zeta", 2.0, 0.0, np.inf),
        ("zeta", 3.0, -4.0, np.nan),
        ("zeta", 2.5, -0.5, np.nan),
        ("zeta", np.inf, 1.0, 1.0),
        ("zeta", np.inf, 2.0, 0.0),
        ("zeta", 1.5, np.inf, 0.0),
        ("zeta", np.nan, 2.0, np.nan),
        ("zeta", 1.0, np.nan, np.nan),
        ("zeta", 2.0, -np.inf, np.inf),
        ("zeta", 2.0, 1e20, 1e-20),
        ("polygamma", 0.0, 0.0, np.nan),
        ("polygamma", 1.0, 0.0, np.inf),
        ("polygamma", 2.0, -3.0, np.nan),
        ("polygamma", 0.5, 1.0, np.nan),
        ("polygamma", -1.0, 1.0, np.nan),
        ("polygamma", 1.0, np.inf, 0.0),
        ("polygamma", 1.0, np.nan, np.nan),
        ("polygamma", np.nan, 1.0, np.nan),
    ],
)
def test_zeta_and_polygamma_at_their_ends(op, order, at, value, dtype, has_fma):
    """The poles of even orders as XLA has them; far out XLA has 0 or NaN."""
    arguments = [np.array([v], dtype.numpy) for v in (order, at)]
    actual = run(legalize(apply(op, *variables(dtype)), Abilities(has_fma=has_fma)), *arguments)
    np.testing.assert_allclose(actual, np.array([value], dtype.numpy), rtol=1e-6)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    "op, at, value",
    [
        ("exp", 0.0, 1.0),
        ("exp", -np.inf, 0.0),
        ("exp", -1e30, 0.0),
        ("exp", 1000.0, np.inf),
        ("expm1", -np.inf, -1.0),
        ("tanh", 20.0, 1.0),
        ("tanh", -np.inf, -1.0),
        ("logistic", -np.inf, 0.0),
        ("logistic", 0.0, 0.5),
        ("log", 1.0, 0.0),
        ("log", 0.0, -np.inf),
        ("log", -0.0, -np.inf),
        ("log1p", -1.0, -np.inf),
        ("erf", 7.0, 1.0),
        ("erf", -np.inf, -1.0),
        ("erfc", np.inf, 0.0),
        ("erfc", -np.inf, 2.0),
        ("sin", 0.0, 0.0),
        ("cos", 0.0, 1.0),
        ("acos", 1.0, 0.0),
        ("acosh", 1.0, 0.0),
        ("atanh", 1.0, np.inf),
        ("rsqrt", 0.0, np.inf),
        ("erf_inv", 1.0, np.inf),
        ("erf_inv", -1.0, -np.inf),
        ("erf_inv", 1.5, np.nan),
        ("lgamma", 0.0, np.inf),
        ("lgamma", -0.0, np.inf),
        ("lgamma", 1.0, 0.0),
        ("lgamma", 2.0, 0.0),
        ("lgamma", -3.0, np.inf),
        ("lgamma", -np.inf, np.inf),
        ("lgamma", np.inf, np.inf),
        ("digamma", 0.0, np.nan),
        ("digamma", -2.0, np.nan),
        ("digamma", -np.inf, np.nan),
        ("digamma", np.inf, np.inf),
        ("rsqrt", -0.0, -np.inf),
        ("rsqrt", 4.0, 0.5),
        ("cbrt", 27.0, 3.0),
        ("cosh", -np.inf, np.inf),
        ("bessel_i1e", 0.0, 0.0),
        ("bessel_i1e", np.inf, 0.0),
        ("bessel_i1e", np.nan, np.nan),
    ],
)
def test_exact_values(op, at, value, dtype, has_fma):
    actual = run(
        legalize(apply(op, variables(dtype)[0]), Abilities(has_fma=has_fma)),
        np.array([at], dtype.numpy),
    )
    subnormal = np.abs(actual) < np.finfo(dtype.numpy).tiny  # kernels make these 0
    np.testing.assert_array_equal(np.where(subnormal, 0, actual), np.array([value], dtype.numpy))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_cubes_have_their_roots(dtype):
    """As others' libraries do: a result that is exact leaves nothing to choose."""
    digits = np.finfo(dtype.numpy).nmant // 3
    mantissas = np.arange(1, 1 << min(digits, 12)) / (1 << 6)
    roots = np.concatenate([mantissas * scale for scale in (1.0, 2.0**-20, 2.0**19, -1.0)])
    roots = roots.astype(dtype.numpy)
    actual = run(legalize(apply("cbrt", variables(dtype)[0]), Abilities(has_fma=True)), roots**3)
    np.testing.assert_array_equal(actual, roots)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("op", "at"),
    [
        ("sin", (np.inf,)),
        ("sin", (-np.inf,)),
        ("cos", (np.inf,)),
        ("cos", (-np.inf,)),
        ("tan", (np.inf,)),
        ("tan", (-np.inf,)),
        ("log", (-1.0,)),
        ("log", (-np.inf,)),
        ("log1p", (-2.0,)),
        ("acosh", (0.5,)),
        ("pow", (-2.0, 0.5)),
        ("rem", (1.0, 0.0)),
        ("rem", (np.inf, 1.0)),
    ],
)
def test_invalid_operations_give_what_x86_gives(op, at, dtype, has_fma):
    """A NaN whose sign is set, as XLA's instructions and functions do: `top_k` orders by it."""
    values = [np.array([x], dtype.numpy) for x in at]
    actual = run(
        legalize(apply(op, *variables(dtype)[: len(at)]), Abilities(has_fma=has_fma)), *values
    )
    assert np.isnan(actual).all() and np.signbit(actual).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_arguments_nearest_to_multiples_of_half_pi(op, dtype, has_fma):
    """The numbers whose reduction cancels most, in the fast range and beyond."""
    near = (np.arange(1, 80_000) * (np.longdouble(np.pi) / 2)).astype(dtype.numpy)
    distance = np.abs(np.sin(near.astype(np.longdouble) * 2))
    worst = near[np.argsort(distance)[:1000]]
    # Of all f32 and f64 numbers these are the nearest to multiples of pi/2.
    nearest = {F32: 16367173.0 * 2.0**72, F64: 6381956970095103.0 * 2.0**797}[dtype]
    values = np.concatenate([worst, np.array([nearest, -nearest], dtype.numpy)])
    actual = run(legalize(apply(op, variables(dtype)[0]), Abilities(has_fma=has_fma)), values)
    assert_close(actual, reference(op, values), bound(op, dtype, has_fma), values)


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_no_rounding_leads_beyond_one(op, has_fma):
    """Every f32 that the reduction leaves where a sine is near 1."""
    near = np.linspace(-6e-4, 6e-4, 40_001) + (np.pi / 2 if op == "sin" else 0)
    actual = run(
        legalize(apply(op, variables(F32)[0]), Abilities(has_fma=has_fma)), near.astype(np.float32)
    )
    assert actual.max() == 1


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("grid", [QUARTER_TURNS, HALF_TURNS, BETWEEN_HALF_TURNS], ids=str)
def test_reduction_by_digits(grid, dtype):
    magnitudes = sweep(dtype)
    magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes >= 1 << 10)]
    x = variables(dtype)[0]
    with np.errstate(all="ignore"):
        n, r = (evaluate(part, {x: magnitudes}) for part in by_digits(x, grid))
    assert np.abs(r).max() <= grid.spacing * np.pi / 4
    turned = (n % (1 << grid.bits) + grid.shift) * grid.spacing * (np.longdouble(np.pi) / 2) + r
    np.testing.assert_allclose(
        np.sin(turned),
        np.sin(magnitudes.astype(np.longdouble)),
        rtol=0,
        atol=2 * np.finfo(dtype.numpy).eps,
    )


def test_sine_and_cosine_of_one_argument(has_fma):
    """They share what both need, also where their sum is the argument of others."""
    x, values = variables(F32)[0], sweep(F32)
    both = [apply("sin", x), apply("cos", x)]
    inner, memo = apply("add", *both), {}
    legal = legalize(inner, Abilities(has_fma=has_fma), memo=memo)
    alone = [legalize(one, Abilities(has_fma=has_fma)) for one in both]
    assert sum(1 for _ in walk(legal)) < sum(1 for _ in walk(*alone))
    for op, one in zip(("sin", "cos"), both, strict=True):
        assert_close(run(memo[one], values), reference(op, values), bound(op, F32, has_fma), values)
    outer = legalize(
        apply("sub", apply("sin", inner), apply("cos", inner)), Abilities(has_fma=has_fma)
    )
    few = values[np.abs(values) < 100]
    total = run(legal, few).astype(np.float64)
    np.testing.assert_allclose(run(outer, few), np.sin(total) - np.cos(total), rtol=0, atol=3e-7)


def power_operands(dtype: DType, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands whose powers fill the range of the exponent and end just beyond it."""
    random = np.random.default_rng(1)
    limit = np.finfo(dtype.numpy).maxexp
    base = np.exp2(random.uniform(2 - limit, limit, count))
    near_one = 1 + random.uniform(-1, 1, count) * np.exp2(-random.uniform(1, 22, count))
    x = np.concatenate([base, near_one]).astype(dtype.numpy)
    x = x[(x != 1) & (x < np.inf)]
    y = random.uniform(-limit - 2, limit + 2, x.size) / np.log2(x.astype(np.float64))
    return x, y.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("has_fast_f64", [False, True])
def test_pow_error_is_bounded_up_to_overflow(dtype, has_fma, has_fast_f64):
    x, y = power_operands(dtype, 40_000 if dtype is F32 else 10_000)
    actual = run(
        legalize(
            apply("pow", *variables(dtype)), Abilities(has_fma=has_fma, has_fast_f64=has_fast_f64)
        ),
        x,
        y,
    )
    # The exponent of an f64 multiplies the logarithm's error by eight times as much.
    most = 2.4 if dtype is not F32 else 0.7 if has_fast_f64 else 1.6
    assert_close(actual, reference("pow", x, y), most, x, y)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("has_fast_f64", [False, True])
def test_pow_special_values(dtype, has_fma, has_fast_f64):
    more = np.array([3, -3, 7, -7, 1.5, -1.5, 16777217, 1e30, -1e30], dtype.numpy)
    values = np.concatenate([special(dtype), more])
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    actual = run(
        legalize(
            apply("pow", *variables(dtype)), Abilities(has_fma=has_fma, has_fast_f64=has_fast_f64)
        ),
        x,
        y,
    )
    assert_close(actual, reference("pow", x, y), 1.6, x, y)


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_small_constant_powers_are_products(exponent):
    expr = legalize(apply("pow", Var("x", F32), const(exponent, F32)))
    assert {node.op for node in walk(expr) if isinstance(node, Apply)} == {"mul"}
    values = sweep(F32)
    assert_close(run(expr, values), reference("pow", values, np.float32([exponent])), 1.5, values)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_atan2_error_is_bounded(dtype):
    random = np.random.default_rng(2)
    y, x = (
        (np.exp2(random.uniform(-20, 20, 40_000)) * random.choice([-1, 1], 40_000)).astype(
            dtype.numpy
        )
        for _ in range(2)
    )
    actual = run(legalize(apply("atan2", *variables(dtype))), y, x)
    assert_close(actual, reference("atan2", y, x), 3.0, y, x)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_atan2_special_values(dtype):
    y, x = (a.ravel() for a in np.meshgrid(special(dtype), special(dtype)))
    actual = run(legalize(apply("atan2", *variables(dtype))), y, x)
    assert_close(actual, reference("atan2", y, x), 3.0, y, x)
