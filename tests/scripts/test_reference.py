"""What random programs are compared with computes what XLA does."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzzing.foreign import foreign
from fuzzing.generator import generate
from fuzzing.judge import judge
from fuzzing.primitives import RULES
from fuzzing.program import identity
from fuzzing.reference import Oracle
from fuzzing.seldom import OF_COMPLEX, OF_OTHERS, OF_OTHERS_MATRICES
from fuzzing.worker import outcome_of
from jax import lax

INTEGERS = np.array([0, 1, -1, 7, -8, 127, -128, 33], np.int8)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in RULES
        if n
        in (
            "div",
            "rem",
            "shift_left",
            "shift_right_logical",
            "shift_right_arithmetic",
            "max",
            "min",
            "add",
            "mul",
            "mulhi",
            "population_count",
            "clz",
            "sign",
            "neg",
            "abs",
        )
    ],
)
def test_integers_are_those_of_xla(name: str) -> None:
    function = {"population_count": lax.population_count, "clz": lax.clz}.get(name) or getattr(
        lax, name
    )
    binary = name not in ("population_count", "clz", "sign", "neg", "abs")
    args = np.meshgrid(INTEGERS, INTEGERS) if binary else [INTEGERS]
    expected = np.asarray(jax.jit(function)(*args))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(RULES[name]({}, *args), expected)


@pytest.mark.parametrize(
    "terms, is_known",
    [((1.7e308, -np.inf), False), ((1.7e308, -1.7e308), False), ((np.inf, -np.inf), True)],
)
def test_terms_beyond_f64_need_not_be_rounded_alone(terms: tuple, is_known: bool) -> None:
    """A fused multiply-add adds -inf to what would be +inf if it were rounded."""
    x = np.array(terms)
    with jax.enable_x64(True):
        oracle = Oracle(lambda x: (jnp.dot(x, jnp.full(2, 2.0)),), [x], True, False)
        samples = oracle.run(30, 0).samples
    assert any(np.isnan(s[0]) for s in samples)
    assert all(np.isnan(s[0]) for s in samples) == is_known


def test_products_that_leave_their_range_on_the_way_may_be_anything() -> None:
    """As sort keys, say: 0, infinity and the exact product have other places than NaN."""
    x = np.array([3e38, -10, 1e-38, 0.5], np.float32)
    oracle = Oracle(lambda x: (lax.cumprod(x),), [x], False, False)
    reference = oracle.run(60, 0)
    seen = {float(s[0][2]) for s in reference.samples}
    assert {0.0, -np.inf} <= seen and any(map(np.isnan, seen))
    assert any(abs(v - -30) < 1 for v in seen)
    assert all(abs(s[0][0] / x[0] - 1) < 1e-5 for s in reference.samples)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_strides": (2, 3), "padding": [(2, -1), (0, 4)]},
        {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "feature_group_count": 2},
        {"batch_group_count": 2, "padding": [(9, 9), (-5, 0)]},
    ],
)
def test_convolutions_are_those_of_xla(options: dict) -> None:
    """Of numbers that are finite."""
    options = {"window_strides": (1, 1), "padding": [(0, 1), (1, 1)], **options}
    rng = np.random.default_rng(0)
    groups = options.get("feature_group_count", 1)
    x, w = rng.random((4, 7, 8, 2 * groups)), rng.random((3, 2, 2, 4))

    def convolved(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        return (
            lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options),
        )

    with jax.enable_x64(True):
        (exact,) = Oracle(convolved, [x, w], True, False).run(0, 0).exact
        np.testing.assert_allclose(exact, convolved(x, w)[0], rtol=1e-13)


def test_groups_of_a_convolution_have_nothing_to_do_with_each_other() -> None:
    x = np.zeros((1, 2, 5), np.float32)
    x[0, 1] = np.inf
    oracle = Oracle(
        lambda x: (
            lax.conv_general_dilated(x, jnp.ones((2, 1, 2)), (1,), "VALID", feature_group_count=2),
        ),
        [x],
        False,
        False,
    )
    (exact,) = oracle.run(0, 0).exact
    assert exact.tolist() == [[[0] * 4, [np.inf] * 4]]


def test_the_first_few_are_those_along_the_axis() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3) % 5
    oracle = Oracle(jax.vmap(lambda x: lax.top_k(x, 2), in_axes=1), [x], False, False)
    values, places = oracle.run(0, 0).exact
    assert values.tolist() == [[4, 3], [4, 2], [3, 2]]
    assert places.tolist() == [[3, 1], [1, 2], [2, 0]]


def test_large_unsigned_numbers_are_no_negative_places() -> None:
    """Under vmap an index is an operand of a gather, whatever its type."""
    x, n = np.arange(12.0).reshape(3, 4), np.array([0, 130, 255], np.uint8)
    oracle = Oracle(
        jax.vmap(lambda row, n: (row[n], row.at[n].set(7, mode="clip"))), [x, n], True, False
    )
    taken, put = oracle.run(0, 0).exact
    assert taken.tolist() == [0, 7, 11]
    assert np.argwhere(put == 7).tolist() == [[0, 0], [1, 3], [2, 3]]


def test_searches_compare_nan_too() -> None:
    x, y = (
        np.array(v, np.float32) for v in ([1, np.nan, 2, np.nan], [np.nan, 1, 3, -np.nan, -0.0])
    )
    for side in ("left", "right"):

        def search(x: jax.Array, y: jax.Array, side: str = side) -> tuple[jax.Array]:
            return (jnp.searchsorted(jnp.sort(x), y, side=side),)

        (exact,) = Oracle(search, [x, y], False, False).run(0, 0).exact
        assert exact.tolist() == search(x, y)[0].tolist()


def test_reshapes_may_transpose_before() -> None:
    x = np.arange(6.0).reshape(2, 3)
    oracle = Oracle(lambda x: (lax.reshape(x, (2, 3), (1, 0)),), [x], True, False)
    (exact,) = oracle.run(0, 0).exact
    assert exact.tolist() == [[0, 3, 1], [4, 2, 5]]


@pytest.mark.parametrize("dtype", ["uint64", "int64", "uint8", "int32"])
def test_conversions_to_integers_saturate(dtype: str) -> None:
    x = np.array([-1e30, -2.5, 0, 3.7, 200, 1e30, np.nan])
    with jax.enable_x64(True):
        oracle = Oracle(lambda x: (x.astype(dtype),), [x], True, False)
        right = np.clip(np.nan_to_num(np.trunc(x[1:5])), np.iinfo(dtype).min, None).astype(dtype)
        (exact,) = oracle.run(3, 0).exact
    assert exact.dtype == dtype
    assert exact[1:5].tolist() == right.tolist()
    info = np.iinfo(dtype)
    assert exact[[0, 5, 6]].tolist() == [info.min, info.max, 0]


def test_a_fault_of_the_reference_is_none_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hide what the program does."""
    program = next(p for p in map(generate, range(50)) if p.mode == "plain" and not p.x64)
    assert outcome_of(program, identity, lambda _: None).kind == "right"
    monkeypatch.setattr("fuzzing.reference.Wide", None)
    outcome = outcome_of(program, identity, lambda _: None)
    assert outcome.kind == "error" and "the reference" in outcome.detail


def test_a_single_number_has_noise_too() -> None:
    oracle = Oracle(lambda x: (jnp.sin(x), x.sum()), [np.float32(0.3)], False, False)
    samples = oracle.run(24, 0).samples
    assert len({float(sample[0]) for sample in samples}) > 12


def test_what_is_computed_twice_may_be_rounded_alike() -> None:
    x = np.array([[1e8, 1.25, -1e8]] * 3, np.float32)
    oracle = Oracle(lambda x: (x.sum(1),), [x], False, False)
    samples = [s[0] for s in oracle.run(24, 0).samples]
    alike = [len(set(sample)) == 1 for sample in samples]
    assert any(alike) and not all(alike)
    assert all(np.abs(sample - 1.25).max() > 1 for sample in samples)


@pytest.mark.parametrize("initial", [1.0, 2.0])
def test_windows_fold_an_initial_value_once(initial: float) -> None:
    """As XLA does, also where borders cut elements off and windows have holes."""
    x = np.random.default_rng(0).standard_normal((3, 6, 6)).astype(np.float32)

    def program(x: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            lax.reduce_window(
                x,
                np.float32(initial),
                op,
                (1, 2, 3),
                (1, 2, 1),
                [(0, 0), (-1, 2), (1, 0)],
                base_dilation=(1, 2, 1),
                window_dilation=(1, 1, 2),
            )
            for op in (lax.add, lax.mul)
        )

    oracle = Oracle(program, [x], False, False)
    found = [np.asarray(r) for r in jax.jit(program)(x)]
    assert not judge(found, oracle.types, oracle.run(3, 0)).differences
    assert len(judge([r * 2 for r in found], oracle.types, oracle.run(3, 0)).differences) == 2


def test_sorts_by_several_keys_are_those_of_xla() -> None:
    x = np.random.default_rng(0).integers(-2, 3, (5, 40)).astype(np.float32)
    x[0, ::3], x[1, ::4] = np.nan, -0.0

    def program(x: jax.Array) -> tuple[jax.Array, ...]:
        place = lax.broadcasted_iota(np.int32, x.shape, 1)
        return *lax.sort((x > 0, x, x[::-1], place), dimension=1, num_keys=3), jnp.sort(
            lax.complex(x, x[::-1])
        )

    oracle = Oracle(program, [x], False, False)
    found = [np.asarray(r) for r in jax.jit(program)(x)]
    assert not judge(found, oracle.types, oracle.run(0, 0)).differences


def test_floats_without_infinity_have_nan_beyond_their_range() -> None:
    x = np.array([1e3, 400, np.inf, 2.0], np.float32)
    oracle = Oracle(
        lambda x: [x.astype(t).astype("float32") for t in ("float8_e4m3fn", "float8_e5m2")],
        [x],
        False,
        False,
    )
    without, with_infinity = oracle.run(3, 0).exact
    assert np.isnan(without[[0, 2]]).all() and np.isfinite(without[[1, 3]]).all()
    assert np.isinf(with_infinity).tolist() == [False, False, True, False]


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_integers_of_half_a_byte_are_those_of_xla(dtype: str) -> None:
    x = np.arange(-8, 8, dtype=np.int32)

    def program(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        p, q = x.astype(dtype), y.astype(dtype)
        found = (p + q, -p, ~q, p << 1, jnp.sort(q), p.max(), q[::-1])
        looped = lax.scan(lambda c, r: (c + r, c), p[:1], q[:, None])[0]
        return [v.astype("int32") for v in (*found, p.argmin(), p > q, looped)]

    oracle = Oracle(program, [x, x * 5], False, False)
    exact = oracle.run(0, 0).exact
    for ours, theirs in zip(exact, jax.jit(program)(x, x * 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_windows_that_stick_out_are_dropped_as_a_whole() -> None:
    """As XLA does, and the specification does not."""
    dims = lax.ScatterDimensionNumbers((1,), (), (0,))

    def program(x: jax.Array, n: jax.Array) -> tuple[jax.Array]:
        return (lax.scatter_add(x, n, jnp.ones((2, 3)), dims, mode="fill"),)

    args = [np.zeros(5, np.float32), np.array([[1], [3]], np.int32)]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    assert exact.tolist() == [0, 1, 1, 1, 0]


PLACES = lax.ScatterDimensionNumbers((1,), (0,), (0,))


@pytest.mark.parametrize(
    ("apply", "dtype"),
    [(lax.neg, "float32"), (lax.bitwise_not, "int8"), (lambda q: q * 3, "int32")],
)
def test_what_scatters_apply_is_known(apply: Callable, dtype: str) -> None:
    """Twice where two places are equal, not at all beyond the end."""

    def program(x: jax.Array, n: jax.Array) -> tuple[jax.Array]:
        return (lax.scatter_apply(x, n, apply, PLACES, update_shape=(4, 3), mode="fill"),)

    args = [np.arange(9).reshape(3, 3).astype(dtype), np.array([[1], [2], [2], [3]], np.int32)]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    np.testing.assert_array_equal(exact, jax.jit(program)(*args)[0])


def test_what_scatters_subtract_is_as_uncertain_as_a_sum() -> None:
    """Of what is subtracted from its equal something may be left, of the size of either."""

    def program(x: jax.Array, n: jax.Array) -> tuple[jax.Array]:
        return (lax.scatter_sub(x, n, jnp.full((2, 3), 0.1), PLACES),)

    args = [np.full((3, 3), 0.2, np.float32), np.array([[1], [1]], np.int32)]
    oracle = Oracle(program, args, False, False)
    found = np.full((3, 3), 0.2, np.float32)
    found[1] = 2e-8
    reference = oracle.run(24, 0)
    assert not judge([found], oracle.types, reference).differences
    found[1] = 1e-6
    assert judge([found], oracle.types, reference).differences


def test_the_logarithm_of_one_is_zero() -> None:
    """As a factorial, where XLA has 9e-16."""
    (exact,) = Oracle(lambda x: (lax.lgamma(x),), [np.array([1.0, 2])], True, False).run(0, 0).exact
    assert not exact.any()


@pytest.mark.parametrize("text", OF_COMPLEX)
def test_functions_of_complex_numbers_are_known(text: str) -> None:
    program = eval(f"lambda x, y: {text.format(x='x', y='y', a=0)}", {"lax": lax})
    rng = np.random.default_rng(0)
    args = [(rng.normal(size=7) + 1j * rng.normal(size=7)).astype("complex64") for _ in "xy"]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    np.testing.assert_allclose(jax.jit(program)(*args), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", (*OF_OTHERS, *OF_OTHERS_MATRICES))
@pytest.mark.parametrize("is_mapped", [False, True], ids=["alone", "mapped"])
def test_ops_that_jax_has_no_function_for_are_known(text: str, is_mapped: bool) -> None:
    program = eval(
        f"lambda x, y: {text.format(x='x', y='y', m='x')}", {"foreign": foreign, "jnp": jnp}
    )
    if is_mapped:
        program = jax.vmap(program)
    x = np.random.default_rng(0).normal(size=(3, 4, 4)).astype("float32") + 8 * np.eye(
        4, dtype="f4"
    )
    args = [(x + x.mT) / 2, np.where(x > 0, x, 0)]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    np.testing.assert_allclose(jax.jit(program)(*args), exact, rtol=1e-4, atol=1e-5)
