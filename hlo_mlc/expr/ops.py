"""The scalar operations: one table with arity, result type, meaning, accuracy and cost.

The meaning is a NumPy function over arrays of the operands' element type; it is what constant
folding, the loop interpreter and the graph evaluator use, so it is the definition, and the
printers are tested against it.  Semantics follow the StableHLO specification (integer division
by zero, over-long shifts, NaN-propagating min/max, saturating float-to-int conversion).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np

from hlo_mlc.expr.dtypes import BOOL, F32, DType, Kind
from hlo_mlc.expr.special import bessel_i1e, digamma, erf, erf_inv, erfc, lgamma, polygamma, zeta

Array = np.ndarray


class Accuracy(enum.Enum):
    """How near to the exact result an op is, of floats; of integers all are exact."""

    EXACT = "the result is a number of the operands' type: there is nothing to round"
    ROUNDED = "the exact result, rounded once"
    APPROXIMATE = "to a few units in the last place"


@dataclass(frozen=True, slots=True, eq=False)
class ScalarOp:
    """`name(args) -> result`; all args have one type unless `meaning` says otherwise.

    `cost` is how many simple operations it takes, of floats where that makes a difference;
    `xla_extra` so many more in XLA's code than in ours where that has vectors, measured on Zen 4
    and Emerald Rapids with 128k and 256k normally distributed values in f32. `xla_ns` are
    nanoseconds of one thread for each f32 and each f64 where it calls a function for every element
    (geometric means of Zen 4, Zen 5 and Emerald Rapids, which takes twice as long as Zen 5; mostly
    normally distributed values), no matter how wide the machine's vectors are; else 0.
    `xla_unmasked`: whether XLA has vectors of f32 and of f64 for it, but none under a mask (it
    calls a function of its own, as the code that its option xla_dump_to shows).
    `more_in_f64`: percent that it takes more in f64 than in f32, besides that a vector holds half
    as many.  `in_f64`: whether all floats are computed in f64.  `strict`: whether it is NaN if one
    of the args is.
    """

    name: str
    arity: int
    meaning: Callable[..., Array]
    result: str = "same"  # "same": the last argument's type; "bool"; "given": named by the node
    commutative: bool = False
    infix: str = ""  # how text and printers of C-like languages spell it
    accuracy: Accuracy = Accuracy.EXACT
    cost: int = 1
    xla_extra: int = 0
    xla_ns: tuple[float, float] = (0.0, 0.0)
    xla_unmasked: tuple[bool, bool] = (False, False)
    more_in_f64: int = 70
    in_f64: bool = False
    strict: bool = False


def _wrap(function: Callable[..., Array]) -> Callable[..., Array]:
    """Silence NumPy's warnings: overflow and invalid operands have defined results here."""

    def quiet(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(*args)

    return quiet


def _pick(x: Array, *entries: Array) -> Array:
    """The entry whose number the last four bits of an f32 are."""
    return np.choose(x.view(np.int32) & 15, entries)


def _through_f32(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute narrow floats in f32, and round once after the op."""

    def widened(*args: Array) -> Array:
        if args[0].dtype.kind in "fV" and args[0].dtype.itemsize <= 2:
            narrow = args[0].dtype
            wide = function(*(a.astype(np.float32) if a.dtype == narrow else a for a in args))
            return wide.astype(args[0].dtype) if wide.dtype == np.float32 else wide
        return function(*args)

    return _wrap(widened)


def _is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def _divide(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return x / y
    minus_one = np.array(-1).astype(x.dtype)  # all ones when unsigned
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = _truncated_quotient(x, safe)
    return np.where(y == 0, minus_one, quotient).astype(x.dtype)


def _truncated_quotient(x: Array, y: Array) -> Array:
    if x.dtype.kind == "u":
        return x // y
    quotient = x // np.where(y == -1, np.ones_like(y), y)
    remainder = x - quotient * y
    toward_zero = quotient + ((remainder != 0) & ((x < 0) != (y < 0))).astype(x.dtype)
    return np.where(y == -1, -x, toward_zero)


def _remainder(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return np.fmod(x, y)
    safe = np.where(y == 0, np.ones_like(y), y)
    safe = (
        np.where(safe == np.array(-1).astype(x.dtype), np.ones_like(y), safe)
        if x.dtype.kind == "i"
        else safe
    )
    return np.where(y == 0, x, np.fmod(x, safe)).astype(x.dtype)


def _power(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return np.power(x, y)
    result, base = np.ones_like(x), x.copy()
    exponent = np.where(y < 0, np.zeros_like(y), y).astype(np.uint64)
    while np.any(exponent):
        result = np.where(exponent & np.uint64(1), result * base, result).astype(x.dtype)
        base = (base * base).astype(x.dtype)
        exponent = exponent >> np.uint64(1)
    if x.dtype.kind == "i":
        odd = (y & np.array(1, y.dtype)) != 0
        inverse = np.where(x == 1, 1, np.where(x == -1, np.where(odd, -1, 1), 0))
        result = np.where(y < 0, inverse, result)
    return result.astype(x.dtype)


def _bits(x: Array) -> int:
    return x.dtype.itemsize * 8


def _shift_left(x: Array, y: Array) -> Array:
    width = _bits(x)
    amount = y.astype(f"u{x.dtype.itemsize}")
    safe = np.minimum(amount, width - 1).astype(x.dtype)
    return np.where(amount >= width, np.zeros_like(x), x << safe).astype(x.dtype)


def _shift_right_logical(x: Array, y: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    width, amount = _bits(x), y.astype(unsigned)
    shifted = x.astype(unsigned) >> np.minimum(amount, width - 1).astype(unsigned)
    return np.where(amount >= width, np.zeros_like(shifted), shifted).astype(x.dtype)


def _shift_right_arithmetic(x: Array, y: Array) -> Array:
    signed = np.dtype(f"i{x.dtype.itemsize}")
    amount = np.minimum(y.astype(f"u{x.dtype.itemsize}"), _bits(x) - 1).astype(signed)
    return (x.astype(signed) >> amount).astype(x.dtype)


def _maximum(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iub":
        return np.maximum(x, y)
    larger = np.where((x > y) | ((x == y) & ~np.signbit(x)), x, y)
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, larger)).astype(x.dtype)


def _minimum(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iub":
        return np.minimum(x, y)
    smaller = np.where((x < y) | ((x == y) & np.signbit(x)), x, y)
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, smaller)).astype(x.dtype)


def _ldexp(x: Array, exponent: Array) -> Array:
    # What is not a number, or further out than any exponent, ends up where these limits do.
    limited = np.nan_to_num(np.clip(exponent, -5000, 5000))
    whole = np.floor(limited).astype(np.int32)
    return np.where(np.isnan(exponent), exponent, np.ldexp(x, whole))


def _sign(x: Array) -> Array:
    if _is_integer(x):
        return np.sign(x)
    return np.where(x == 0, x, np.where(np.isnan(x), x, np.sign(x))).astype(x.dtype)


def _round_away(x: Array) -> Array:
    truncated = np.trunc(x)
    return np.copysign(
        np.where(np.abs(x - truncated) >= 0.5, np.abs(truncated) + 1, np.abs(truncated)), x
    ).astype(x.dtype)


def _logistic(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _popcount(x: Array) -> Array:
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}")).astype(x.dtype)


def _leading_zeros(x: Array) -> Array:
    unsigned = x.astype(f"u{x.dtype.itemsize}")
    count = np.full(x.shape, _bits(x), np.int64)
    for bit in range(_bits(x)):
        count = np.where((unsigned >> unsigned.dtype.type(bit)) & 1, _bits(x) - 1 - bit, count)
    return count.astype(x.dtype)


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == np.bool_ else np.bitwise_not(x)


def _add(x: Array, y: Array) -> Array:
    return np.logical_or(x, y) if x.dtype == np.bool_ else x + y


def _subtract(x: Array, y: Array) -> Array:
    return np.logical_xor(x, y) if x.dtype == np.bool_ else x - y


def _fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once; for f32 an f64 product is exact, and rounding the sum to odd keeps
    the second rounding from doing harm."""
    if x.dtype == np.float64:
        return _fma_f64(*np.broadcast_arrays(x, y, z))
    return _add_to_odd(x.astype(np.float64) * y, z.astype(np.float64)).astype(x.dtype)


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The f64 sum and its rounding error."""
    total = x + y
    shadow = total - x
    return total, (x - (total - shadow)) + (y - shadow)


def _add_to_odd(x: Array, y: Array) -> Array:
    """x + y in f64; where that is inexact, the neighbour whose last bit is set."""
    total, error = (np.asarray(a) for a in _two_sum(x, y))
    raw = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & ((raw & 1) == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, raw + step, raw).view(np.float64)


def _fma_f64(x: Array, y: Array, z: Array) -> Array:
    """Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008)."""
    product = x * y
    split = 134217729.0  # 2**27 + 1: halves of 26 bits, whose products are exact
    x_high = x * split - (x * split - x)
    y_high = y * split - (y * split - y)
    x_low, y_low = x - x_high, y - y_high
    low = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    upper, lower = _two_sum(z, low)
    total, rest = _two_sum(product, upper)
    zero = (x == 0) | (y == 0)
    result = np.where(zero, product + z, total + _add_to_odd(rest, lower))
    # Beyond these bounds a step may overflow or lose bits to underflow; also covers inf and NaN.
    factors = np.maximum(np.abs(x), np.abs(y))
    safe = (factors < 2.0**400) & (np.abs(z) < 2.0**900) & (np.abs(product) > 2.0**-800)
    rare = ~safe & ~zero
    result[rare] = [_fma_exact(*each) for each in zip(x[rare], y[rare], z[rare], strict=True)]
    return result


def _fma_exact(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def convert(x: Array, to: DType) -> Array:
    """StableHLO `convert`: integers wrap, float-to-integer saturates with NaN -> 0, any -> i1 is
    `!= 0`."""
    with np.errstate(all="ignore"):
        if to is BOOL:
            return x != 0
        if to.is_integer and x.dtype.kind not in "iub":
            info = np.iinfo(to.numpy)
            wide = x.astype(np.float64)
            clipped = np.where(np.isnan(wide), 0.0, wide)
            inside = np.clip(clipped, float(info.min), float(info.max))
            lowest, highest, zero = (to.numpy.type(v) for v in (info.min, info.max, 0))
            result = np.where(
                clipped >= float(info.max),
                highest,
                np.where(clipped <= float(info.min), lowest, zero),
            )
            small = (clipped < float(info.max)) & (clipped > float(info.min))
            return np.where(small, np.where(small, inside, 0.0).astype(to.numpy), result)
        if to.is_narrow_float and x.dtype == np.float64:  # rounded twice, as XLA does
            return x.astype(np.float32).astype(to.numpy)
        return x.astype(to.numpy)


def _arithmetic(
    name: str,
    meaning: Callable[[Array, Array], Array],
    *,
    cost: int = 1,
    xla_ns: tuple[float, float] = (0.0, 0.0),
    commutative: bool = False,
    infix: str = "",
) -> ScalarOp:
    """An op of two operands whose result is rounded once."""
    return ScalarOp(
        name,
        2,
        _through_f32(meaning),
        commutative=commutative,
        infix=infix,
        accuracy=Accuracy.ROUNDED,
        cost=cost,
        xla_ns=xla_ns,
        strict=True,
    )


def _exact(*names_and_functions: tuple[str, int, Callable[..., Array]]) -> list[ScalarOp]:
    return [
        ScalarOp(name, arity, _through_f32(f), strict=True)
        for name, arity, f in names_and_functions
    ]


def _function(
    name: str,
    meaning: Callable[..., Array],
    *,
    arity: int = 1,
    cost: int = 12,
    xla_extra: int = 0,
    xla_ns: tuple[float, float] = (0.0, 0.0),
    xla_unmasked: tuple[bool, bool] = (False, False),
    more_in_f64: int = 70,
    in_f64: bool = False,
    strict: bool = True,
) -> ScalarOp:
    """An op that is composed of simple ones."""
    return ScalarOp(
        name,
        arity,
        _through_f32(meaning),
        accuracy=Accuracy.APPROXIMATE,
        cost=cost,
        xla_extra=xla_extra,
        xla_ns=xla_ns,
        xla_unmasked=xla_unmasked,
        more_in_f64=more_in_f64,
        in_f64=in_f64,
        strict=strict,
    )


_TABLE = [
    # arithmetic
    _arithmetic("add", _add, commutative=True, infix="+"),
    _arithmetic("sub", _subtract, infix="-"),
    _arithmetic(
        "mul", lambda x, y: x & y if x.dtype == np.bool_ else x * y, commutative=True, infix="*"
    ),
    _arithmetic("div", _divide, infix="/", cost=4),
    _arithmetic("div_common", _divide, cost=2),  # by a divisor that many quotients share
    _arithmetic("rem", _remainder, infix="%", cost=8, xla_ns=(14, 14)),
    ScalarOp("max", 2, _through_f32(_maximum), commutative=True, strict=True),
    ScalarOp("min", 2, _through_f32(_minimum), commutative=True, strict=True),
    # the second float if it is larger, else the first: what maxps does, of numbers their maximum
    ScalarOp("larger", 2, lambda x, y: np.where(y > x, y, x)),
    ScalarOp("fma", 3, _through_f32(_fma), accuracy=Accuracy.ROUNDED, strict=True),
    ScalarOp("pick", 17, _pick),
    # the exponent is a float, rounded down
    ScalarOp("ldexp", 2, _wrap(_ldexp), accuracy=Accuracy.ROUNDED),
    *_exact(
        ("neg", 1, np.negative),
        ("abs", 1, np.abs),
        ("sign", 1, _sign),
        ("floor", 1, np.floor),
        ("ceil", 1, np.ceil),
        ("round_even", 1, np.rint),
        ("round_away", 1, _round_away),
        ("trunc", 1, np.trunc),
    ),
    ScalarOp("sqrt", 1, _through_f32(np.sqrt), accuracy=Accuracy.ROUNDED, cost=4, strict=True),
    # functions
    _function(
        "rsqrt",
        lambda x: (1 / np.sqrt(x)).astype(x.dtype),
        cost=6,
        xla_extra=45,
        xla_unmasked=(True, True),
    ),
    _function("cbrt", np.cbrt, xla_ns=(18, 18)),
    _function("pow", _power, arity=2, cost=75, xla_ns=(5.2, 13), strict=False),
    _function("exp", np.exp, xla_extra=9, xla_unmasked=(False, True)),
    _function("expm1", np.expm1, xla_extra=15, xla_unmasked=(True, True)),
    _function("log", np.log, xla_extra=17, xla_ns=(0, 3.3)),
    _function("log1p", np.log1p, xla_extra=30, xla_ns=(0, 3.4), xla_unmasked=(True, True)),
    _function("logistic", _logistic, xla_extra=30, xla_ns=(0, 2.3), xla_unmasked=(False, True)),
    _function("sin", np.sin, xla_ns=(9.5, 19)),
    _function("cos", np.cos, xla_ns=(9.5, 19)),
    _function("tan", np.tan, xla_ns=(11, 15)),
    _function("asin", np.arcsin, xla_ns=(17, 14)),
    _function("acos", np.arccos, xla_ns=(17, 13)),
    _function("atan", np.arctan, xla_extra=180),
    _function("atan2", np.arctan2, arity=2, cost=30, xla_ns=(29, 23)),
    _function("sinh", np.sinh, xla_extra=60, xla_ns=(0, 4), xla_unmasked=(True, True)),
    _function("cosh", np.cosh, xla_extra=40, xla_ns=(0, 3), xla_unmasked=(False, True)),
    _function("tanh", np.tanh, xla_extra=4, xla_unmasked=(True, True)),
    _function("asinh", np.arcsinh, xla_ns=(5, 9)),
    _function("acosh", np.arccosh, xla_ns=(3, 7)),
    _function("atanh", np.arctanh, xla_ns=(3.5, 7.5)),
    _function("erf", erf, cost=14, xla_extra=6, xla_ns=(0, 12.5), more_in_f64=270),
    _function("erfc", erfc, cost=45, xla_extra=40, xla_ns=(0, 4.6), xla_unmasked=(False, True)),
    _function("erf_inv", erf_inv, cost=25, xla_ns=(3, 19), xla_unmasked=(True, True)),
    _function("lgamma", lgamma, cost=55, xla_ns=(12.5, 30), xla_unmasked=(True, True), in_f64=True),
    _function("digamma", digamma, cost=60, xla_ns=(18, 34), xla_unmasked=(True, True), in_f64=True),
    _function("bessel_i1e", bessel_i1e, cost=50, xla_extra=60, xla_unmasked=(True, False)),
    _function("zeta", zeta, arity=2, cost=250, xla_ns=(52, 190), in_f64=True),
    _function("polygamma", polygamma, arity=2, cost=250, xla_ns=(60, 210), in_f64=True),
    # bits and logic
    ScalarOp("and", 2, _wrap(np.bitwise_and), commutative=True, infix="&"),
    ScalarOp("or", 2, _wrap(np.bitwise_or), commutative=True, infix="|"),
    ScalarOp("xor", 2, _wrap(np.bitwise_xor), commutative=True, infix="^"),
    ScalarOp("not", 1, _wrap(_not)),
    ScalarOp("shl", 2, _wrap(_shift_left)),
    ScalarOp("shr_logical", 2, _wrap(_shift_right_logical)),
    ScalarOp("shr_arithmetic", 2, _wrap(_shift_right_arithmetic)),
    ScalarOp("popcnt", 1, _wrap(_popcount)),
    ScalarOp("clz", 1, _wrap(_leading_zeros)),
    # comparison (ordered: false where an operand is NaN, but `ne`)
    ScalarOp("eq", 2, _wrap(np.equal), "bool", True, "=="),
    ScalarOp("ne", 2, _wrap(np.not_equal), "bool", True, "!="),
    ScalarOp("lt", 2, _wrap(np.less), "bool", infix="<"),
    ScalarOp("le", 2, _wrap(np.less_equal), "bool", infix="<="),
    ScalarOp("gt", 2, _wrap(np.greater), "bool", infix=">"),
    ScalarOp("ge", 2, _wrap(np.greater_equal), "bool", infix=">="),
    ScalarOp("is_finite", 1, _wrap(lambda x: np.isfinite(x.astype(np.float64))), "bool"),
    # choice: select(predicate, on_true, on_false); select_unlikely promises that the predicate
    # is almost never true, so a printer may branch around computing on_true
    ScalarOp("select", 3, lambda p, t, f: np.where(p, t, f)),
    ScalarOp("select_unlikely", 3, lambda p, t, f: np.where(p, t, f)),
    # change of type: the node's own type says to what
    ScalarOp("convert", 1, _wrap(lambda x: x), "given", accuracy=Accuracy.ROUNDED),
    ScalarOp("bitcast", 1, _wrap(lambda x: x), "given"),
    # float to integer by truncation, for values known to fit (others: unspecified)
    ScalarOp("convert_in_range", 1, _wrap(lambda x: x), "given"),
    # high half of the double-width product of two unsigned integers
    ScalarOp("mul_high", 2, _wrap(lambda x, y: _multiply_high(x, y)), commutative=True),
    # index arithmetic only: rounded toward minus infinity, divisor positive
    ScalarOp("floordiv", 2, _wrap(np.floor_divide)),
    ScalarOp("floormod", 2, _wrap(np.mod)),
]


def _multiply_high(x: Array, y: Array) -> Array:
    product = x.astype(object) * y.astype(object)
    return np.asarray(product // (1 << _bits(x))).astype(x.dtype)


OPS: dict[str, ScalarOp] = {op.name: op for op in _TABLE}


def result_type(op: str, arguments: tuple[DType, ...]) -> DType:
    """The result's type of an op whose rule needs no node ("given" ops name theirs)."""
    return BOOL if OPS[op].result == "bool" else arguments[-1]


def compute(op: str, arguments: list[Array], to: DType) -> Array:
    """Evaluate one op on arrays; `to` is the node's type."""
    if op in ("convert", "convert_in_range"):
        return convert(arguments[0], to)
    if op == "bitcast":
        return np.asarray(arguments[0]).view(to.numpy)
    return np.asarray(OPS[op].meaning(*arguments)).astype(to.numpy, copy=False)


def compute_dtype(dtype: DType) -> DType:
    """The type in which arithmetic on `dtype` is done: narrow floats in f32, others as they are."""
    return F32 if dtype.is_narrow_float else dtype


def identity(op: str, dtype: DType) -> int | float | bool | None:
    """The neutral element of a combining op, or None if it has none.

    Source: the monoids of StableHLO `reduce`; -0 is the true identity of float addition.
    """
    if op == "add":
        return -0.0 if dtype.is_float else (False if dtype.kind is Kind.BOOL else 0)
    if op == "mul":
        return 1.0 if dtype.is_float else 1
    if op in ("max", "min", "larger"):
        if dtype.is_float:
            limits = ml_dtypes.finfo(dtype.numpy)  # some floats of a byte have no infinity
            infinite = np.isinf(np.array(math.inf).astype(dtype.numpy).astype(np.float32))
            if op != "min":
                return -math.inf if infinite else float(limits.min)
            return math.inf if infinite else float(limits.max)
        if dtype is BOOL:
            return op == "min"
        info = np.iinfo(dtype.numpy)
        return int(info.min if op == "max" else info.max)
    if op in ("or", "xor"):
        return False if dtype is BOOL else 0
    if op == "and":
        if dtype is BOOL:
            return True
        return -1 if dtype.is_signed else int(np.iinfo(dtype.numpy).max)
    return None
