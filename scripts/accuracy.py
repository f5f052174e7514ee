"""Measures the error of every scalar function and writes docs/accuracy.md.

Usage: python scripts/accuracy.py  (a few minutes; needs mpmath for the references of f64)

What is measured are the expansions of codegen/legalize as the evaluator computes them, which is to
the bit what kernels compute (tests/codegen/test_legalize_native.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from rich.progress import track

from hlo_mlc.codegen.legalize import legalize
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Var
from hlo_mlc.expr.dtypes import BF16, F16, F32, F64, DType
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import OPS, compute
from hlo_mlc_bench.script import arguments

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
FORMATS = (F16, BF16, F32, F64)
# Sampled bit patterns of f32 and f64, and of each as many numbers of ordinary magnitude.
COUNTS = {F32: 400_000, F64: 2_000}
MPMATH_BITS = 160
# Ops on floats that are exact or rounded once on every target.
EXACT = frozenset(
    (
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "max",
        "min",
        "larger",
        "fma",
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round_even",
        "round_away",
        "trunc",
        "sqrt",
        "is_finite",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "select",
        "select_unlikely",
        "convert",
        "bitcast",
        "convert_in_range",
        "ldexp",
        "pick",
    )
)
NO_FLOATS = frozenset(
    (
        "and",
        "or",
        "xor",
        "not",
        "shl",
        "shr_logical",
        "shr_arithmetic",
        "popcnt",
        "clz",
        "mul_high",
        "floordiv",
        "floormod",
    )
)
SPECIAL = (-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan)

Arrays = tuple[np.ndarray, ...]


def everywhere(dtype: DType, arity: int) -> Arrays:
    """Every f16 or bf16; of the others bit patterns at even distances, and ordinary numbers."""
    random = np.random.default_rng(0)
    if dtype.bits == 16:
        values = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
        return tuple(random.permutation(values) if k else values for k in range(arity))
    count = COUNTS[dtype]
    patterns = np.arange(7, 1 << dtype.bits, (1 << dtype.bits) // count | 1, dtype=np.uint64)
    values = patterns.astype(f"u{dtype.bytes}").view(dtype.numpy)
    ordinary = np.exp2(random.uniform(-12, 8, count)) * random.choice([-1, 1], count)
    together = random.permutation(np.concatenate([values, ordinary.astype(dtype.numpy)]))
    return tuple(random.permutation(together) if k else together for k in range(arity))


def positive(dtype: DType, arity: int) -> Arrays:
    return tuple(np.abs(values) for values in everywhere(dtype, arity))


def negative(dtype: DType, arity: int) -> Arrays:
    """Between poles; far out the references themselves take too long."""
    (values,) = everywhere(dtype, arity)
    return (values[(values < 0) & (values > -100)],)


def between_ones(dtype: DType, arity: int) -> Arrays:
    """Numbers of size up to 1, half of them near it."""
    (values,) = everywhere(dtype, arity)
    near = (1 - np.abs(values.astype(np.float64)) % 1 / 16).astype(dtype.numpy)
    small = values[np.abs(values) <= 1]
    return (np.concatenate([small, near]),)


def zeta_arguments(dtype: DType, arity: int) -> Arrays:
    """Whole s, and q whose powers with them are numbers of the format."""
    orders, q = polygamma_arguments(dtype, arity)
    return orders + dtype.numpy.type(1), q


def polygamma_arguments(dtype: DType, arity: int) -> Arrays:
    random = np.random.default_rng(3)
    count = COUNTS.get(dtype, 1 << 16) // 4
    limit = min(12, -ml_dtypes.finfo(dtype.numpy).minexp // 6)
    orders = random.integers(1, 6, count).astype(dtype.numpy)
    return orders, np.exp2(random.uniform(-limit, limit, count)).astype(dtype.numpy)


def up_to_hundreds(dtype: DType, arity: int) -> Arrays:
    (values,) = everywhere(dtype, arity)
    return (values[np.abs(values.astype(np.float64)) < 256],)


def powers(dtype: DType, arity: int) -> Arrays:
    """Bases whose powers fill the range of the exponent, many of them near 1."""
    count = COUNTS.get(dtype, 1 << 16)
    random = np.random.default_rng(1)
    info = ml_dtypes.finfo(dtype.numpy)
    base = np.exp2(random.uniform(info.minexp + 1, info.maxexp, count))
    near_one = 1 + random.uniform(-1, 1, count) * np.exp2(-random.uniform(1, info.nmant - 1, count))
    x = np.concatenate([base, near_one]).astype(dtype.numpy)
    x = x[(x != 1) & np.isfinite(x.astype(np.float64))]
    limit = info.maxexp + 1
    y = random.uniform(-limit, limit, x.size) / np.log2(x.astype(np.float64))
    return x, y.astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class Function:
    """One row: an op, the function of mpmath that it is, and the arguments to try."""

    op: str
    exactly: Callable  # (mpmath, *arguments) -> the result
    arguments: Callable[[DType, int], Arrays] = everywhere
    among: str = ""  # which arguments, in words
    against_one: bool = False  # the unit is that of the result, or of 1 where that is larger


def _named(name: str) -> Callable:
    return lambda mp, *args: getattr(mp, name)(*args)


FUNCTIONS = (
    *(Function(op, _named(op)) for op in ("exp", "expm1")),
    Function("log", _named("log"), positive),
    Function("log1p", _named("log1p")),
    Function("logistic", lambda mp, x: 1 / (1 + mp.exp(-x))),
    *(Function(op, _named(op)) for op in ("sin", "cos", "tan", "tanh", "sinh", "cosh")),
    *(Function(op, _named(op), between_ones) for op in ("asin", "acos")),
    Function("atan", _named("atan")),
    Function("atan2", _named("atan2")),
    Function("asinh", _named("asinh")),
    Function("acosh", _named("acosh"), positive),
    Function("atanh", _named("atanh"), between_ones),
    Function("rsqrt", lambda mp, x: 1 / mp.sqrt(x), positive),
    Function("cbrt", lambda mp, x: mp.sign(x) * mp.cbrt(abs(x))),
    Function("pow", _named("power"), powers),
    Function("erf", _named("erf")),
    # mpmath does not get there for huge arguments.
    Function("erfc", lambda mp, x: mp.erfc(max(min(x, 40), -40))),
    Function("erf_inv", _named("erfinv"), between_ones),
    Function("lgamma", _named("loggamma"), positive, "x > 0"),
    Function("lgamma", lambda mp, x: mp.log(abs(mp.gamma(x))), negative, "x < 0", True),
    Function("digamma", _named("digamma"), positive, "x > 0"),
    Function("digamma", _named("digamma"), negative, "x < 0", True),
    Function(
        "zeta",
        lambda mp, s, q: (-1) ** s / mp.factorial(s - 1) * mp.psi(s - 1, q),
        zeta_arguments,
        "s = 2 to 6, q > 0",
    ),
    Function("polygamma", lambda mp, n, x: mp.psi(n, x), polygamma_arguments, "n = 1 to 5, x > 0"),
    Function(
        "bessel_i1e",
        lambda mp, x: mp.besseli(1, x) * mp.exp(-abs(x)),
        up_to_hundreds,
        "-256 < x < 256",
    ),
    Function("div_common", lambda mp, x, y: x / y),
)


@dataclass(frozen=True, slots=True)
class Error:
    """The largest error, in units in the last place of the exact result, and where it is."""

    ulps: float
    at: tuple[float, ...]


@np.errstate(all="ignore")
def measure(function: Function, dtype: DType, every: int = 1) -> Error:
    """The largest error over the arguments, or over every so-manieth of them."""
    arguments = function.arguments(dtype, OPS[function.op].arity)
    smallest = float(ml_dtypes.finfo(dtype.numpy).tiny)
    wide = [a.astype(np.float64) for a in arguments]
    # Subnormal f32 and bf16 count as 0 in kernels; what f16 has below are normal f32.
    usable = np.logical_and.reduce(
        [np.isfinite(w) & ((np.abs(w) >= smallest) | (dtype is F16)) for w in wide]
    )
    arguments = tuple(a[usable][::every] for a in arguments)
    expected = _reference(function, dtype, arguments)
    errors = _in_units(_ours(function.op, dtype, arguments), expected, dtype, function.against_one)
    worst = int(np.argmax(errors))
    return Error(float(errors[worst]), tuple(float(a[worst]) for a in arguments))


def _ours(op: str, dtype: DType, arguments: Sequence[np.ndarray]) -> np.ndarray:
    variables = [Var(f"x{k}", dtype) for k in range(len(arguments))]
    return evaluate(legalize(apply(op, *variables)), dict(zip(variables, arguments, strict=True)))


def _reference(function: Function, dtype: DType, arguments: Arrays) -> np.ndarray:
    """Exact results in extended precision: of f64 by mpmath, of the others by f64."""
    if dtype is not F64:
        wide = [a.astype(np.float64) for a in arguments]
        return compute(function.op, wide, F64).astype(np.longdouble)
    import mpmath

    far = mpmath.mpf(2) ** 2000  # beyond f64, within extended precision

    def exact(*values: float) -> np.longdouble:
        result = function.exactly(mpmath, *map(mpmath.mpf, values))
        if result.imag or mpmath.isnan(result):
            return np.longdouble(math.nan)
        if not 1 / far < abs(result) < far:
            return np.longdouble(math.copysign(math.inf if abs(result) > 1 else 0, result.real))
        return np.longdouble(mpmath.nstr(result.real, 30))

    with mpmath.workprec(MPMATH_BITS):
        return np.array([exact(*map(float, row)) for row in zip(*arguments, strict=True)])


def _in_units(
    actual: np.ndarray, expected: np.ndarray, dtype: DType, against_one: bool
) -> np.ndarray:
    """Distances in units in the last place; infinity where only one is special."""
    info = ml_dtypes.finfo(dtype.numpy)
    rounded = expected.astype(np.float64).astype(dtype.numpy).astype(np.longdouble)
    values = actual.astype(np.longdouble)
    exponent = np.frexp(np.where(np.isfinite(expected), expected, 0))[1] - 1
    lowest = 0 if against_one else info.minexp
    unit = np.ldexp(np.longdouble(1), np.maximum(exponent, lowest) - info.nmant)
    error = np.abs(values - expected) / unit
    same = (values == rounded) | (np.isnan(values) & np.isnan(expected))
    flushed = (np.abs(expected) < info.tiny) & (np.abs(values) <= info.tiny) & (dtype is not F16)
    error = np.where((same & ~np.isfinite(error)) | flushed, 0.0, error)
    return np.where(np.isnan(error), np.inf, error).astype(float)


@np.errstate(all="ignore")
def specials(op: str) -> list[str]:
    """What f32 gives at the special arguments."""
    values = _ours(op, F32, (np.array(SPECIAL, np.float32),))
    return [f"{value:.7g}".replace("inf", "∞") for value in values]


def page(rows: Sequence[tuple[Function, Sequence[Error]]]) -> str:
    """The whole of docs/accuracy.md."""
    lines = [
        _INTRODUCTION,
        "| function | " + " | ".join(map(str, FORMATS)) + " |",
        "| --- |" + " ---: |" * len(FORMATS),
    ]
    for function, errors in rows:
        cells = " | ".join(
            _cell(error, dtype) for error, dtype in zip(errors, FORMATS, strict=True)
        )
        lines.append(f"| {label(function)} | {cells} |")
    lines += [
        "",
        _SUMS,
        _SPECIAL_VALUES,
        "| function | " + " | ".join(f"{value:g}".replace("inf", "∞") for value in SPECIAL) + " |",
        "| --- |" + " ---: |" * len(SPECIAL),
    ]
    unary = dict.fromkeys(f.op for f, _ in rows if OPS[f.op].arity == 1)
    lines += [f"| {op} | {' | '.join(specials(op))} |" for op in unary]
    return "\n".join(lines) + "\n"


def label(function: Function) -> str:
    """How the page names a row."""
    unit = " ¹" if function.against_one else ""
    return f"{function.op} ({function.among}){unit}" if function.among else function.op


def _cell(error: Error, dtype: DType) -> str:
    digits = 9 if dtype is F32 else 17 if dtype is F64 else 5
    where = ", ".join(f"{value:.{digits}g}" for value in error.at)
    return f"{math.ceil(error.ulps * 100) / 100:.2f} at {where}"


_INTRODUCTION = """\
# Accuracy of the scalar functions

Written by `scripts/accuracy.py`; a test holds it to what the compiler does.

The largest error found, in units in the last place (ULP) of the exact result, and the argument
where it is.  0.50 is rounded correctly.  f16 and bf16: all values, against f64; they are computed
in f32 and rounded once.  f32: 800,000 arguments, half of them bit patterns at even distances (so
all exponents), half of magnitudes from 2⁻¹² to 2⁸, against f64.  f64: 4,000 such arguments,
against mpmath.  Subnormal f32, f64 and bf16 count as 0, as they do in XLA.  Sums, differences,
products, quotients, square roots, remainders and roundings are not in the table: they are exact or
rounded once.  With AVX-512, exp and erf in f32 pick from tables and are off by at most 1.0 instead;
with AVX2 or SSE4.2, erf in f32 is a quotient and off by up to 3.9 (XLA's: 6.7); outside of vectors,
pow in f32 is computed in f64 and off by at most 0.7 instead; without fused multiply-adds
(x86-64-v2) all may be off by 0.5 more (tests/codegen/test_legalize_accuracy.py).
div_common is a quotient by a divisor that many share: as subnormal numbers count as 0, one below
2⁻¹⁰² (f64: 2⁻⁹⁶⁹) is off by up to 2.5 (tests/codegen/test_legalize_division.py).

¹ in units of the result, or of 1 where that is larger: between the negative integers the function
has zeros, near which nothing is known of the result's own digits.
"""

_SUMS = """\
## Sums

Reductions and products add up floats in vectors of partial sums, each in runs of some 32 terms
(products: 256), the sums of runs in runs again, and so on (`schedule/cascade.py`): the error grows
with the logarithm of the number of terms, whatever the terms are.  The sum of 65,536 equal numbers
is off by 3 units in the last place at most; one after the other it would be by several hundred
(tests/templates/test_sums.py).  The order depends on the shape and the schedule, never on the
number of threads.
"""

_SPECIAL_VALUES = """\
## Special values

Of f32; other types have the same.  The cases of `pow` and `atan2` are those of C's Annex F.  The
sign and the payload of a NaN that was computed are unspecified, as they are in XLA.
"""


def main() -> None:
    rows = []
    for function in track(FUNCTIONS, description="functions"):
        rows.append((function, [measure(function, dtype) for dtype in FORMATS]))
    PAGE.write_text(page(rows))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    arguments(__doc__, most=0)
    main()
