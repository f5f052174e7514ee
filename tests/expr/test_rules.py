"""Simplification keeps every bit, and happens where it should."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, variable
from hlo_mlc.expr.core import Apply, Const, Expr, Var, walk
from hlo_mlc.expr.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, U8, U32, U64, DType
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.refine import refine
from making.operations import BIT_OPS

TYPES = (F32, F64, BF16, F16, I8, I32, U8, U32, BOOL)
FLOAT_OPS = ("add", "sub", "mul", "div", "max", "min", "neg", "abs", "floor", "sign")
INTEGER_OPS = ("add", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", *BIT_OPS)
BOOL_OPS = ("and", "or", "xor", "not", "add", "mul", "max", "min")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY = frozenset(("neg", "abs", "floor", "sign", "not", "popcnt", "clz"))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 8.0, -4.0, math.inf, -math.inf, math.nan, 3.0, 1e-3)


class Generator:
    """Random expressions as they were asked for, and as `apply` builds them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.variables = {t: [Var(f"{t.name}_{n}", t) for n in range(2)] for t in TYPES}

    def pick(self, options: Sequence):
        return options[int(self.rng.integers(len(options)))]

    def constant(self, dtype: DType) -> Const:
        if dtype is BOOL:
            return const(bool(self.rng.integers(2)), dtype)
        if dtype.is_float:
            return const(self.pick(SPECIAL), dtype)
        return const(self.pick((0, 1, -1, 2, 7, 31, 32, 127, -128, 255)), dtype)

    def pair(self, dtype: DType, depth: int) -> tuple[Expr, Expr]:
        """(never simplified, built by `apply`)"""
        if depth == 0 or self.rng.random() < 0.15:
            leaf = (
                self.constant(dtype)
                if self.rng.random() < 0.4
                else self.pick(self.variables[dtype])
            )
            return leaf, leaf
        choice = self.rng.random()
        if choice < 0.12:
            other = self.pick([t for t in TYPES if t is not dtype])
            return self.node("convert", [self.pair(other, depth - 1)], dtype)
        if choice < 0.25:
            parts = [self.pair(BOOL, depth - 1), *(self.pair(dtype, depth - 1) for _ in range(2))]
            return self.node("select", parts, dtype)
        if dtype is BOOL and choice < 0.5:
            other = self.pick(TYPES)
            parts = [self.pair(other, depth - 1) for _ in range(2)]
            return self.node(self.pick(COMPARISONS), parts, BOOL)
        op = self.pick(FLOAT_OPS if dtype.is_float else BOOL_OPS if dtype is BOOL else INTEGER_OPS)
        parts = [self.pair(dtype, depth - 1) for _ in range(1 if op in UNARY else 2)]
        if len(parts) == 2 and self.rng.random() < 0.15:
            parts[1] = parts[0]
        return self.node(op, parts, dtype)

    def node(self, op: str, parts: list[tuple[Expr, Expr]], dtype: DType) -> tuple[Expr, Expr]:
        raw, built = zip(*parts, strict=True)
        return Apply(op, raw, dtype), apply(op, *built, dtype=dtype)

    def values(self, count: int) -> dict[Var, np.ndarray]:
        result = {}
        for dtype, variables in self.variables.items():
            for v in variables:
                if dtype is BOOL:
                    result[v] = self.rng.integers(0, 2, count).astype(np.bool_)
                elif dtype.is_float:
                    plain = self.rng.standard_normal(count) * 3
                    chosen = self.rng.choice(SPECIAL, count)
                    mixed = np.where(self.rng.random(count) < 0.6, chosen, plain)
                    result[v] = mixed.astype(dtype.numpy)
                else:
                    info = np.iinfo(dtype.numpy)
                    edges = np.array([info.min, info.max, 0, 1, info.min + 1, 2], dtype.numpy)
                    small = self.rng.integers(0, 9, count).astype(dtype.numpy)
                    result[v] = np.where(
                        self.rng.random(count) < 0.5, self.rng.choice(edges, count), small
                    )
        return result


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, note: str) -> None:
    """Equal with the signs of zeros; NaNs may differ in sign and payload."""
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected, note)
        return
    one, other = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_array_equal(one, other, note)
    numbers = ~np.isnan(other)
    np.testing.assert_array_equal(np.signbit(one)[numbers], np.signbit(other)[numbers], note)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_simplified_expressions_mean_what_they_did(dtype):
    generator = Generator(TYPES.index(dtype))
    values = generator.values(200)
    for _ in range(250):
        raw, built = generator.pair(dtype, int(generator.rng.integers(1, 5)))
        with np.errstate(all="ignore"):
            expected = np.broadcast_to(evaluate(raw, values), 200)
            actual = np.broadcast_to(evaluate(built, values), 200)
        assert built.dtype is dtype
        assert_same_bits(actual, expected, f"{raw!r}  ->  {built!r}")


X, Y, N, P = Var("x", F32), Var("y", F32), Var("n", I32), Var("p", BOOL)
ONE, ZERO, MINUS_ZERO = const(1.0, F32), const(0.0, F32), const(-0.0, F32)


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("add", (X, MINUS_ZERO), X),
        ("sub", (X, ZERO), X),
        ("mul", (ONE, X), X),
        ("div", (X, ONE), X),
        ("add", (N, const(0, I32)), N),
        ("mul", (N, const(0, I32)), const(0, I32)),
        ("sub", (N, N), const(0, I32)),
        ("max", (X, X), X),
        ("min", (X, const(math.inf, F32)), X),
        ("max", (const(-math.inf, F32), X), X),
        ("div", (X, const(8.0, F32)), apply("mul", X, const(0.125, F32))),
        ("neg", (apply("neg", X),), X),
        ("not", (apply("not", P),), P),
        ("select", (const(True, BOOL), X, ONE), X),
        ("select", (P, X, X), X),
        ("select", (P, const(True, BOOL), const(False, BOOL)), P),
        ("ne", (P, const(False, BOOL)), P),
        ("and", (P, const(False, BOOL)), const(False, BOOL)),
        ("or", (P, P), P),
        ("add", (const(2.0, F32), const(3.0, F32)), const(5.0, F32)),
        ("shl", (N, const(0, I32)), N),
        ("xor", (N, const(0, I32)), N),
        ("add", (X, apply("neg", Y)), apply("sub", X, Y)),
        ("add", (apply("neg", X), Y), apply("sub", Y, X)),
        ("sub", (X, apply("neg", Y)), apply("add", X, Y)),
        ("mul", (apply("neg", X), Y), apply("neg", apply("mul", X, Y))),
        ("div", (apply("neg", X), apply("neg", Y)), apply("div", X, Y)),
        ("erf", (apply("neg", X),), apply("neg", apply("erf", X))),
        ("cos", (apply("neg", X),), apply("cos", X)),
        ("cosh", (apply("abs", X),), apply("cosh", X)),
        ("abs", (apply("neg", X),), apply("abs", X)),
        ("abs", (apply("abs", X),), apply("abs", X)),
    ],
)
def test_rules_apply(op, args, expected):
    assert apply(op, *args) is expected


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("add", (X, ZERO)),
        ("sub", (X, MINUS_ZERO)),
        ("mul", (X, ZERO)),
        ("sub", (X, X)),
        ("div", (X, X)),
        ("div", (X, const(3.0, F32))),
        ("max", (X, const(math.inf, F32))),
        ("div", (X, const(2.0**-127, F32))),
        ("mul", (X, const(-1.0, F32))),
        ("exp", (apply("neg", X),)),
        ("tanh", (apply("neg", X),)),
        ("abs", (apply("neg", N),)),
        ("div", (apply("neg", N), N)),
        ("erfc", (apply("neg", X),)),
        ("xor", (apply("neg", N), N)),
    ],
)
def test_rules_do_not_apply_where_a_bit_would_change(op, args):
    node = apply(op, *args)
    assert isinstance(node, Apply)
    assert node.op == op


@pytest.mark.parametrize("dtype", [I32, U32, U64], ids=str)
def test_integers_that_count_are_index_arithmetic(dtype):
    """The counters of random bits are products and sums of 64 bits, of which the upper are 0."""
    i, j = variable("i", 1000), variable("j", 128)
    row, column = (apply("convert", v, dtype=dtype) for v in (i, j))
    flat = apply("add", apply("mul", row, const(128, dtype)), column)
    assert flat is apply(
        "convert", index.add(index.multiply(i, index.constant(128)), j), dtype=dtype
    )
    assert apply("shr_logical", flat, const(17, dtype)) is const(0, dtype)
    upper = apply("shr_logical", flat, const(7, dtype))
    assert upper is row
    with_sign = apply("sub", column, const(1, dtype))
    assert with_sign.op == ("convert" if dtype.is_signed else "sub")


@pytest.mark.parametrize("dtype", [I32, U32, U64], ids=str)
def test_what_is_known_of_integers_that_count_is_decided(dtype):
    """Programs that wrap negative indices and clamp them ask such things in each trip of a loop."""
    i = variable("i", 1000)
    number = apply("convert", index.add(i, index.constant(2)), dtype=dtype)
    for op, other, expected in (
        ("lt", 2, False),
        ("lt", 1002, True),
        ("ge", 2, True),
        ("eq", 1, False),
        ("ne", 1002, True),
        ("gt", 1001, False),
        ("le", 1001, True),
        ("le", 1000, None),
        ("eq", 2, None),
    ):
        asked = apply(op, number, const(other, dtype))
        assert (asked.value if isinstance(asked, Const) else None) is expected, (op, other)
    assert apply("max", number, const(2, dtype)) is number
    assert apply("min", number, const(1001, dtype)) is number
    assert apply("max", number, const(1001, dtype)) is const(1001, dtype)
    assert apply("min", number, const(1000, dtype)).op == "min"
    wrapped = apply(
        "select",
        apply("lt", number, const(0, dtype)),
        apply("add", number, const(1002, dtype)),
        number,
    )
    assert wrapped is number


def test_the_highest_bit_of_a_counter_fills_up():
    byte = apply("convert", variable("i", 256), dtype=U8)
    assert apply("shr_arithmetic", byte, const(1, U8)).op == "shr_arithmetic"
    assert apply("shr_arithmetic", byte, const(0, U8)) is byte
    assert apply("shr_logical", byte, const(1, U8)).op == "convert"


def test_what_may_wrap_is_not_decided():
    byte = apply("convert", variable("i", 300), dtype=U8)  # 255 and then 0
    assert apply("lt", byte, const(255, U8)).op == "lt"
    assert apply("max", byte, const(0, U8)).op == "max"


def test_integers_that_may_wrap_stay_as_they_are():
    i, byte = variable("i", 1000), variable("b", 100)
    large, small = apply("convert", i, dtype=U32), apply("convert", byte, dtype=U8)
    assert apply("mul", large, const(1 << 23, U32)).op == "mul"
    assert apply("add", small, const(200, U8)).op == "add"
    assert apply("add", apply("convert", i, dtype=U8), const(1, U8)).op == "add"
    assert (
        apply(
            "shr_arithmetic",
            apply("sub", apply("convert", i, dtype=I32), const(5, I32)),
            const(1, I32),
        ).op
        == "shr_arithmetic"
    )


def test_round_trips_of_conversions_disappear_only_without_loss():
    wide, narrow = apply("convert", X, dtype=F64), apply("convert", X, dtype=BF16)
    assert apply("convert", wide, dtype=F32) is X
    assert apply("convert", narrow, dtype=F32) is not X
    assert apply("convert", apply("convert", N, dtype=U32), dtype=I32) is N
    assert apply("convert", apply("convert", N, dtype=I8), dtype=I32) is not N


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_a_nan_are_that_nan(op):
    nan = const(math.nan, F32)
    for args in ((X, nan), (nan, X)):
        built = apply(op, *args)
        assert isinstance(built, Const)
        assert math.isnan(built.value)


def test_a_nan_stays_visible_through_bitcast():
    """Its sign and payload are a matter of the machine, so it is not folded."""
    assert isinstance(apply("bitcast", const(math.nan, F32), dtype=U32), Apply)
    assert apply("bitcast", const(1.0, F32), dtype=U32) is const(0x3F800000, U32)
    negative = apply("bitcast", const(0xFFC00000, U32), dtype=F32)
    assert isinstance(negative, Apply) and np.signbit(evaluate(negative, {}))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_refined_expressions_round_less_and_mean_the_same(dtype):
    """Within a rounding of each op, and NaN and infinities at the same places."""
    generator = Generator(7)
    values = {v: a for v, a in generator.values(300).items() if v.dtype is dtype}
    for n, v in enumerate(values):
        values[v] = np.random.default_rng(n).standard_normal(300).astype(dtype.numpy)
    x, y = generator.variables[dtype]
    one, half = const(1.0, dtype), const(0.5, dtype)
    roots = [
        apply("add", apply("mul", x, y), y),
        apply("sub", apply("mul", x, y), y),
        apply("sub", y, apply("mul", x, x)),
        apply("add", y, apply("mul", x, const(3.0, dtype))),
        apply("mul", apply("add", apply("tanh", x), one), half),
        apply("div", one, apply("add", apply("exp", apply("neg", x)), one)),
    ]
    refined = [refine([root])[0] for root in roots]
    assert [e.op for e in refined] == ["fma"] * 4 + ["logistic"] * 2
    for before, after in zip(roots, refined, strict=True):
        np.testing.assert_allclose(
            evaluate(after, values),
            evaluate(before, values),
            rtol=0,
            atol=32 * np.finfo(dtype.numpy).eps,
        )


def test_products_that_are_used_twice_are_not_fused():
    y = Var("y", F32)
    product = apply("mul", X, y)
    total = apply("add", product, y)
    assert refine([total, product]) == [total, product]
    assert all(e.op != "fma" for e in walk(*refine([total, product])) if isinstance(e, Apply))


def test_narrow_floats_are_never_fused():
    x, y = Var("x", BF16), Var("y", BF16)
    total = apply("add", apply("mul", x, y), y)
    assert refine([total]) == [total]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_normal_distribution_is_one_function(dtype, sign):
    """What jax.scipy.special.ndtr selects between, for an argument and for its negative."""
    v = Var("v", dtype)
    x = v if sign > 0 else apply("neg", v)
    size, zero, one, two = apply("abs", x), *(const(c, dtype) for c in (0.0, 1.0, 2.0))
    tail = apply("erfc", size)
    outer = apply("select", apply("gt", x, zero), apply("sub", two, tail), tail)
    near = apply("add", one, apply("erf", x))
    root = apply("select", apply("lt", size, const(0.7, dtype)), near, outer)
    (refined,) = refine([root])
    assert refined is apply("erfc", apply("neg", v) if sign > 0 else v)
    values = {v: np.linspace(-6, 6, 1001).astype(dtype.numpy)}
    np.testing.assert_allclose(
        evaluate(refined, values), evaluate(root, values), rtol=4 * float(np.finfo(dtype.numpy).eps)
    )
    other = apply("select", apply("lt", size, const(0.7, dtype)), near, apply("add", outer, one))
    assert refine([other]) == [other]
