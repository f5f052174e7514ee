"""Floats of eight bits in kernels: every number, every pair of numbers, and what NumPy makes of
them, computed in f32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.codegen.legalize import legalize
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Var
from hlo_mlc.expr.dtypes import BF16, F8E8M0FNU, F16, F32, FLOATS_OF_A_BYTE, DType
from hlo_mlc.expr.evaluate import evaluate

EVERY = np.arange(256, dtype=np.uint8)
ALL = pytest.mark.parametrize("dtype", FLOATS_OF_A_BYTE, ids=str)
EACH = pytest.mark.parametrize(
    "dtype", [d for d in FLOATS_OF_A_BYTE if d is not F8E8M0FNU], ids=str
)
"""Those that have a zero."""


def every(dtype: DType) -> np.ndarray:
    return EVERY.view(dtype.numpy)


def assert_same(found: np.ndarray, right: np.ndarray) -> None:
    """To the bit, of NaN only that they are."""
    assert found.dtype == right.dtype
    bits = f"u{right.dtype.itemsize}"
    nan = np.isnan(right.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(bits)[~nan], right.view(bits)[~nan])


def rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """To the nearest number of a type. To powers of two by their exponents, as ml_dtypes rounds
    subnormal numbers to the nearest of these from 0.7 on only."""
    if dtype is not F8E8M0FNU:
        return x.astype(dtype.numpy)
    fraction, exponent = np.frexp(x.astype(np.float64))  # of 0.5 and more, below 1
    biased = exponent - 1 + (fraction >= 0.75) + 127
    has_one = np.isfinite(x) & (x > 0) & (biased < 255)
    return np.where(has_one, biased.clip(0), 255).astype(np.uint8).view(dtype.numpy)


def run(text: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """All of it in kernels."""
    function = compile_stablehlo(text, choose="ours")
    results = function(*arrays)
    assert function.report().coverage == 1
    return tuple(np.asarray(r) for r in results)


def op(name: str, *types: str, attributes: str = "") -> str:
    """A function of one op, the last type is that of its result."""
    *operands, result = (f"tensor<{t}>" for t in types)
    names = [f"%a{k}" for k in range(len(operands))]
    return (
        f"func.func @main({', '.join(map(': '.join, zip(names, operands, strict=True)))})"
        f' -> {result} {{\n  %r = "stablehlo.{name}"({", ".join(names)}) {{{attributes}}}'
        f" : ({', '.join(operands)}) -> {result}\n  return %r : {result}\n}}\n"
    )


def near_all(dtype: DType) -> np.ndarray:
    """Every number, what is half way between two and next to that, and f32 of all magnitudes."""
    with np.errstate(all="ignore"):
        numbers = np.unique(every(dtype).astype(np.float32))
        middle = numbers[:-1] / 2 + numbers[1:] / 2
        sides = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    patterns = np.arange(0, 1 << 32, 1_000_003, dtype=np.uint64).astype(np.uint32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30], np.float32)
    return np.concatenate([numbers, middle, *sides, patterns.view(np.float32), special])


@ALL
def test_expansions_of_conversions(dtype: DType) -> None:
    x, y = Var("x", dtype), Var("y", F32)
    wide = evaluate(legalize(apply("convert", x, dtype=F32)), {x: every(dtype)})
    assert_same(wide, every(dtype).astype(np.float32))
    with np.errstate(all="ignore"):
        narrow = evaluate(legalize(apply("convert", y, dtype=dtype)), {y: near_all(dtype)})
        assert_same(narrow, rounded(near_all(dtype), dtype))


@ALL
def test_conversions_in_kernels(dtype: DType) -> None:
    a, wide = every(dtype), near_all(dtype)
    with np.errstate(all="ignore"):
        for other in (F32, F16, BF16):
            (found,) = run(op("convert", f"256x{dtype}", f"256x{other}"), a)
            assert_same(found, a.astype(np.float32).astype(other.numpy))
        (found,) = run(op("convert", f"{wide.size}xf32", f"{wide.size}x{dtype}"), wide)
        normal = ~(np.abs(wide) < np.finfo(np.float32).tiny)  # kernels flush the others
        assert_same(found[normal], wide.astype(dtype.numpy)[normal])
        numbers = np.nan_to_num(a.astype(np.float32), posinf=9, neginf=-9).clip(-99, 99)
        whole = np.trunc(numbers).astype(np.int32)
        assert_same(
            run(op("convert", "256xi32", f"256x{dtype}"), whole)[0],
            whole.astype(np.float32).astype(dtype.numpy),
        )
        narrow = numbers.astype(dtype.numpy)
        (found,) = run(op("convert", f"256x{dtype}", "256xi32"), narrow)
        np.testing.assert_array_equal(found, np.trunc(np.nan_to_num(narrow.astype(np.float32))))


BINARY: dict[str, Callable] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@pytest.mark.parametrize("name", BINARY)
@EACH
def test_every_pair(dtype: DType, name: str) -> None:
    x, y = (np.ascontiguousarray(a).ravel() for a in np.meshgrid(every(dtype), every(dtype)))
    (found,) = run(op(name, *[f"65536x{dtype}"] * 3), x, y)
    with np.errstate(all="ignore"):
        right = BINARY[name](x.astype(np.float32), y.astype(np.float32)).astype(dtype.numpy)
    if name in ("maximum", "minimum"):  # NumPy takes either of two zeros
        zero = right.astype(np.float32) == 0
        assert not found[zero].astype(np.float32).any()
        found, right = found[~zero], right[~zero]
    assert_same(found, right)


@EACH
def test_signs_comparisons_and_functions(dtype: DType) -> None:
    a = every(dtype)
    wide = a.astype(np.float32)
    tensor = f"256x{dtype}"
    with np.errstate(all="ignore"):
        for name, right in (
            ("negate", -wide),
            ("abs", np.abs(wide)),
            ("floor", np.floor(wide)),
            ("sqrt", np.sqrt(wide)),
        ):
            assert_same(run(op(name, tensor, tensor), a)[0], right.astype(dtype.numpy))
        np.testing.assert_array_equal(
            run(op("is_finite", tensor, "256xi1"), a)[0], np.isfinite(wide)
        )
        (found,) = run(op("exponential", tensor, tensor), a)
        right = np.exp(wide).astype(dtype.numpy)
        apart = np.abs(found.view(np.uint8).astype(int) - right.view(np.uint8))
        assert np.max(np.where(np.isnan(right.astype(np.float32)), 0, apart)) <= 1
    reversed_ = np.ascontiguousarray(a[::-1])
    for direction, compare in (("LT", np.less), ("EQ", np.equal), ("GE", np.greater_equal)):
        (found,) = run(
            op(
                "compare",
                tensor,
                tensor,
                "256xi1",
                attributes=(f"comparison_direction = #stablehlo<comparison_direction {direction}>"),
            ),
            a,
            reversed_,
        )
        np.testing.assert_array_equal(found, compare(wide, wide[::-1]))


@EACH
def test_sums_and_products_are_rounded_once(dtype: DType) -> None:
    """They are accumulated in f32."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (9, 16)).astype(np.float32).astype(dtype.numpy)
    b = rng.integers(-2, 3, (16, 7)).astype(np.float32).astype(dtype.numpy)
    attributes = (
        "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], "
        "rhs_contracting_dimensions = [0]>"
    )
    exact = a.astype(np.float32) @ b.astype(np.float32)
    (wide,) = run(
        op("dot_general", f"9x16x{dtype}", f"16x7x{dtype}", "9x7xf32", attributes=attributes), a, b
    )
    np.testing.assert_array_equal(wide, exact)
    (narrow,) = run(
        op("dot_general", f"9x16x{dtype}", f"16x7x{dtype}", f"9x7x{dtype}", attributes=attributes),
        a,
        b,
    )
    assert_same(narrow, exact.astype(dtype.numpy))
    scalar = f"tensor<{dtype}>"
    for name, start, right in (
        ("add", 0, a.astype(np.float32).sum(1)),
        ("maximum", -9, a.astype(np.float32).max(1)),
    ):
        text = f"""func.func @main(%a: tensor<9x16x{dtype}>) -> tensor<9x{dtype}> {{
          %i = stablehlo.constant dense<{start}.0> : {scalar}
          %r = stablehlo.reduce(%a init: %i) applies stablehlo.{name} across dimensions = [1]
            : (tensor<9x16x{dtype}>, {scalar}) -> tensor<9x{dtype}>
          return %r : tensor<9x{dtype}>
        }}"""
        assert_same(run(text, a)[0], right.astype(dtype.numpy))


@EACH
def test_constants_and_movements(dtype: DType) -> None:
    tensor = f"tensor<2x3x{dtype}>"
    text = f"""func.func @main(%a: {tensor}) -> tensor<3x4x{dtype}> {{
      %c = stablehlo.constant dense<[[1.0, 2.5, -0.5], [0.25, 8.0, 0.0]]> : {tensor}
      %s = stablehlo.constant dense<2.0> : {tensor}
      %m = stablehlo.multiply %c, %s : {tensor}
      %j = stablehlo.concatenate %a, %m, dim = 0 : ({tensor}, {tensor}) -> tensor<4x3x{dtype}>
      %t = stablehlo.transpose %j, dims = [1, 0] : (tensor<4x3x{dtype}>) -> tensor<3x4x{dtype}>
      return %t : tensor<3x4x{dtype}>
    }}"""
    a = np.arange(6).reshape(2, 3).astype(np.float32).astype(dtype.numpy)
    c = np.array([[2, 5, -1], [0.5, 15 if dtype.name == "f8E3M4" else 16, 0]], np.float32)
    if dtype.name == "f8E3M4":
        c[1, 1] = np.inf  # 16 is beyond its largest number
    (found,) = run(text, a)
    assert_same(found, np.concatenate([a, c.astype(dtype.numpy)]).T.copy())


PROGRAMS: dict[str, Callable] = {
    "window": lambda x: lax.reduce_window(
        x, jnp.array(-9, x.dtype), lax.max, (2, 2), (1, 1), "VALID"
    ),
    "cumulative": lambda x: jnp.cumsum(x.astype(jnp.float32), 1).astype(x.dtype),
    "scatter": lambda x: x.at[jnp.array([0, 2, 2, 5])].add(x[:4]),
    "update": lambda x: x.at[jnp.array([0, 2, 5]), 1].set(jnp.array(2, x.dtype)),
    "gather": lambda x: x[jnp.array([0, 2, 2, 5])],
    "pad": lambda x: jnp.pad(x, 1),
    "scaled": lambda x: (x.astype(jnp.bfloat16) * 0.5 + 1).astype(x.dtype),
    "argmax": lambda x: jnp.argmax(x, 1),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, s: s * s, x),
    "there and back": lambda x: (x.astype(jnp.float16).astype(x.dtype) * 2).astype(jnp.int8),
    "product": lambda x: lax.dot(x, x.T, preferred_element_type=jnp.float32),
    "convolution": lambda x: lax.conv(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@EACH
def test_programs_are_those_of_xla(dtype: DType, name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (6, 8)).astype(np.float32).astype(dtype.numpy)
    kernels = mlc_jit(PROGRAMS[name], choose="ours")
    found, right = np.asarray(kernels(x)), np.asarray(jax.jit(PROGRAMS[name])(x))
    assert found.dtype == right.dtype
    np.testing.assert_array_equal(found.astype(np.float32), right.astype(np.float32))
    assert kernels.report(x).coverage == 1


def test_what_looks_into_bits_is_left_to_xla() -> None:
    function = mlc_jit(lambda x: lax.reduce_precision(x, 3, 1), choose="ours")
    x = np.array([2, -1, 0, 3], np.float32).astype(ml_dtypes.float8_e4m3fnuz)
    np.testing.assert_array_equal(np.asarray(function(x)).astype(np.float32), [2, -1, 0, 3])
    assert "are not in the order" in str(function.explain(x, verbose=True))


def test_types_are_those_of_jax() -> None:
    assert {d.numpy.name for d in FLOATS_OF_A_BYTE} == {
        name for name in dir(jnp) if name.startswith("float8")
    }


@pytest.mark.parametrize("name", ["multiply", "divide", "maximum", "minimum"])
def test_every_pair_of_powers(name: str) -> None:
    x, y = (np.ascontiguousarray(a).ravel() for a in np.meshgrid(*[every(F8E8M0FNU)] * 2))
    (found,) = run(op(name, *["65536xf8E8M0FNU"] * 3), x, y)
    with np.errstate(all="ignore"):
        wide = BINARY[name](x.astype(np.float32), y.astype(np.float32))
    assert_same(found, wide.astype(F8E8M0FNU.numpy))  # also the least, as f32 a subnormal number


def test_the_least_power_is_no_zero_in_f64() -> None:
    x = every(F8E8M0FNU)
    (wide,) = run(op("convert", "256xf8E8M0FNU", "256xf64"), x)
    np.testing.assert_array_equal(wide, x.astype(np.float64))
    near = np.array([2.0**-127, 2.0**-126, 1.4 * 2.0**-127, 1.5 * 2.0**-127, 2.0**-140, 2.0**-149])
    near = np.concatenate([near, [0, -1, np.inf, np.nan, 3, 2.0**127, 2.0**128]])
    (found,) = run(op("convert", "13xf64", "13xf8E8M0FNU"), near)
    with np.errstate(over="ignore"):
        assert_same(found, rounded(near.astype(np.float32), F8E8M0FNU))


POWERS: dict[str, Callable] = {
    "scaled": lambda x: (
        jnp.full((6, 8, 4), 3, jnp.float8_e4m3fn).astype("float32") * x[..., None].astype("float32")
    ),
    "exponents": lambda x: jnp.abs(x.astype("float32") * 3).astype(x.dtype),
    "compared": lambda x: jnp.where(x > x[::-1], x, x[::-1]),
    "moved": lambda x: jnp.concatenate([x.T.reshape(6, 8), x[::-1, ::2].repeat(2, 1)], 1),
    "padded": lambda x: jnp.pad(x, 1, constant_values=np.array(2, x.dtype)),
    "picked": lambda x: x[jnp.array([5, 0, 2])],
    "written": lambda x: lax.dynamic_update_slice(x, x[:2, :3], (3, 4)),
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.uint8) + 1,
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, s: jnp.roll(s, 1, 0) * s, x),
    "finite": lambda x: jnp.isfinite(x),
    "truth": lambda x: (x > 1).astype(x.dtype).astype("float32"),
    "beyond f16": lambda x: x.astype("float16").astype(x.dtype),
}


@pytest.mark.parametrize("name", POWERS)
def test_programs_of_powers_are_those_of_xla(name: str) -> None:
    x = np.arange(110, 158, dtype=np.uint8).reshape(6, 8)
    x[2, 3] = 255
    x = x.view(F8E8M0FNU.numpy)
    kernels = mlc_jit(POWERS[name], choose="ours")
    found, right = np.asarray(kernels(x)), np.asarray(jax.jit(POWERS[name])(x))
    assert found.dtype == right.dtype
    np.testing.assert_array_equal(found.astype(np.float32), right.astype(np.float32))
    assert kernels.report(x).coverage == 1


def test_what_needs_a_zero_is_left_to_xla() -> None:
    function = mlc_jit(lambda x: x.max(), choose="ours")
    x = np.array([2, 8, 0.5], np.float32).astype(F8E8M0FNU.numpy)
    right = jax.jit(lambda x: x.max())(x)
    np.testing.assert_array_equal(*(np.asarray(r).astype(np.float32) for r in (function(x), right)))
    assert "has neither zero nor sign" in str(function.explain(x, verbose=True))
