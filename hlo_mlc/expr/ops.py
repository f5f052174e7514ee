"""The scalar operations: one table with arity, result type, meaning, accuracy and cost.

The meaning (meanings.py, special.py) is what constant folding, the loop interpreter and the graph
evaluator use, so it is the definition, and the printers are tested against it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hlo_mlc.expr import meanings
from hlo_mlc.expr.dtypes import BOOL, F32, DType, Kind
from hlo_mlc.expr.meanings import Array, quiet, through_f32
from hlo_mlc.expr.special import bessel_i1e, digamma, erf, erf_inv, erfc, lgamma, polygamma, zeta


class Accuracy(enum.Enum):
    """How near to the exact result an op is, of floats; of integers all are exact."""

    EXACT = "the result is a number of the operands' type: there is nothing to round"
    ROUNDED = "the exact result, rounded once"
    APPROXIMATE = "to a few units in the last place"


@dataclass(frozen=True, slots=True, eq=False)
class ScalarOp:
    """`name(args) -> result`; all args have one type unless `meaning` says otherwise.

    `cost` is about how many simple operations it takes, of floats where that makes a difference,
    `xla_extra` so many more in XLA's code than in ours where that has vectors, measured on Zen 4
    and Emerald Rapids with 128k and 256k normally distributed values in f32. `xla_ns` are
    nanoseconds of one thread for each f32 and each f64 where it calls a function for every element
    (geometric means of Zen 4, Zen 5 and Emerald Rapids, which takes twice as long as Zen 5; mostly
    normally distributed values), no matter how wide the machine's vectors are; else 0.
    `xla_unmasked`: whether XLA has vectors of f32 and of f64 for it, but none under a mask (it
    calls a function of its own, as the code that its option xla_dump_to shows).
    `operations`: how many there are in the code for a vector of f32 and of f64 without AVX-512, of
    functions, whose `cost` only says what is worth computing again; one that is computed in f64
    takes two vectors for one of f32.  `strict`: whether it is NaN if one of the args is.
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
    operations: tuple[int, int] | None = None
    strict: bool = False


def _arithmetic(name: str, meaning: Callable[[Array, Array], Array], **more: Any) -> ScalarOp:
    """An op of two operands whose result is rounded once; `more` are fields of it."""
    wide = through_f32(meaning)
    return ScalarOp(name, 2, wide, accuracy=Accuracy.ROUNDED, strict=True, **more)


def _exact(*names_and_functions: tuple[str, int, Callable[..., Array]]) -> list[ScalarOp]:
    return [
        ScalarOp(name, arity, through_f32(f), strict=True) for name, arity, f in names_and_functions
    ]


def _function(
    name: str,
    meaning: Callable[..., Array],
    *,
    arity: int = 1,
    cost: int = 12,
    strict: bool = True,
    **more: Any,
) -> ScalarOp:
    """An op that is composed of simple ones; `more` are other fields of it."""
    accuracy, wide = Accuracy.APPROXIMATE, through_f32(meaning)
    return ScalarOp(name, arity, wide, accuracy=accuracy, cost=cost, strict=strict, **more)


_TABLE = [
    # arithmetic
    _arithmetic("add", meanings.add, commutative=True, infix="+"),
    _arithmetic("sub", meanings.subtract, infix="-"),
    _arithmetic(
        "mul", lambda x, y: x & y if x.dtype == np.bool_ else x * y, commutative=True, infix="*"
    ),
    _arithmetic("div", meanings.divide, infix="/", cost=4),
    _arithmetic("div_common", meanings.divide, cost=2),  # by a divisor that many quotients share
    _arithmetic("rem", meanings.remainder, infix="%", cost=8, xla_ns=(14, 14)),
    ScalarOp("max", 2, through_f32(meanings.maximum), commutative=True, strict=True),
    ScalarOp("min", 2, through_f32(meanings.minimum), commutative=True, strict=True),
    # the second float if it is larger, else the first: what maxps does, of numbers their maximum
    ScalarOp("larger", 2, lambda x, y: np.where(y > x, y, x)),
    ScalarOp("fma", 3, through_f32(meanings.fma), accuracy=Accuracy.ROUNDED, strict=True),
    ScalarOp("pick", 17, meanings.pick),
    # the exponent is a float, rounded down
    ScalarOp("ldexp", 2, quiet(meanings.ldexp), accuracy=Accuracy.ROUNDED),
    *_exact(
        ("neg", 1, np.negative),
        ("abs", 1, np.abs),
        ("sign", 1, meanings.sign),
        ("floor", 1, np.floor),
        ("ceil", 1, np.ceil),
        ("round_even", 1, np.rint),
        ("round_away", 1, meanings.round_away),
        ("trunc", 1, np.trunc),
    ),
    ScalarOp("sqrt", 1, through_f32(np.sqrt), accuracy=Accuracy.ROUNDED, cost=4, strict=True),
    # functions
    _function(
        "rsqrt",
        lambda x: (1 / np.sqrt(x)).astype(x.dtype),
        operations=(6, 10),
        cost=6,
        xla_extra=45,
        xla_unmasked=(True, True),
    ),
    _function("cbrt", np.cbrt, operations=(35, 43), xla_ns=(18, 18)),
    _function(
        "pow", meanings.power, operations=(74, 82), arity=2, cost=75, xla_ns=(5.2, 13), strict=False
    ),
    _function("exp", np.exp, operations=(17, 22), xla_extra=9, xla_unmasked=(False, True)),
    _function("expm1", np.expm1, operations=(20, 25), xla_extra=15, xla_unmasked=(True, True)),
    _function("log", np.log, operations=(19, 25), xla_extra=17, xla_ns=(0, 3.3)),
    _function(
        "log1p",
        np.log1p,
        operations=(25, 31),
        xla_extra=30,
        xla_ns=(0, 3.4),
        xla_unmasked=(True, True),
    ),
    _function(
        "logistic",
        meanings.logistic,
        operations=(17, 22),
        xla_extra=30,
        xla_ns=(0, 2.3),
        xla_unmasked=(False, True),
    ),
    _function("sin", np.sin, operations=(18, 30), xla_ns=(9.5, 19)),
    _function("cos", np.cos, operations=(20, 30), xla_ns=(9.5, 19)),
    _function("tan", np.tan, operations=(26, 32), xla_ns=(11, 15)),
    _function("asin", np.arcsin, operations=(16, 24), xla_ns=(17, 14)),
    _function("acos", np.arccos, operations=(21, 29), xla_ns=(17, 13)),
    _function("atan", np.arctan, operations=(19, 31), xla_extra=180),
    _function("atan2", np.arctan2, operations=(28, 40), arity=2, cost=30, xla_ns=(29, 23)),
    _function(
        "sinh", np.sinh, operations=(27, 36), xla_extra=60, xla_ns=(0, 4), xla_unmasked=(True, True)
    ),
    _function(
        "cosh",
        np.cosh,
        operations=(18, 23),
        xla_extra=40,
        xla_ns=(0, 3),
        xla_unmasked=(False, True),
    ),
    _function("tanh", np.tanh, operations=(21, 26), xla_extra=4, xla_unmasked=(True, True)),
    _function("asinh", np.arcsinh, operations=(38, 44), xla_ns=(5, 9)),
    _function("acosh", np.arccosh, operations=(36, 42), xla_ns=(3, 7)),
    _function("atanh", np.arctanh, operations=(32, 38), xla_ns=(3.5, 7.5)),
    _function("erf", erf, operations=(19, 47), cost=14, xla_extra=6, xla_ns=(0, 12.5)),
    _function(
        "erfc",
        erfc,
        operations=(47, 56),
        cost=45,
        xla_extra=40,
        xla_ns=(0, 4.6),
        xla_unmasked=(False, True),
    ),
    _function(
        "erf_inv", erf_inv, operations=(37, 55), cost=25, xla_ns=(3, 19), xla_unmasked=(True, True)
    ),
    _function(
        "lgamma",
        lgamma,
        operations=(204, 100),
        cost=55,
        xla_ns=(12.5, 30),
        xla_unmasked=(True, True),
    ),
    _function(
        "digamma",
        digamma,
        operations=(238, 117),
        cost=60,
        xla_ns=(18, 34),
        xla_unmasked=(True, True),
    ),
    _function(
        "bessel_i1e",
        bessel_i1e,
        operations=(43, 67),
        cost=50,
        xla_extra=60,
        xla_unmasked=(True, False),
    ),
    _function("zeta", zeta, operations=(710, 668), arity=2, cost=250, xla_ns=(52, 190)),
    _function("polygamma", polygamma, operations=(984, 805), arity=2, cost=250, xla_ns=(60, 210)),
    # bits and logic
    ScalarOp("and", 2, quiet(np.bitwise_and), commutative=True, infix="&"),
    ScalarOp("or", 2, quiet(np.bitwise_or), commutative=True, infix="|"),
    ScalarOp("xor", 2, quiet(np.bitwise_xor), commutative=True, infix="^"),
    ScalarOp("not", 1, quiet(meanings.invert)),
    ScalarOp("shl", 2, quiet(meanings.shift_left)),
    ScalarOp("shr_logical", 2, quiet(meanings.shift_right_logical)),
    ScalarOp("shr_arithmetic", 2, quiet(meanings.shift_right_arithmetic)),
    ScalarOp("popcnt", 1, quiet(meanings.popcount)),
    ScalarOp("clz", 1, quiet(meanings.leading_zeros)),
    # comparison (ordered: false where an operand is NaN, but `ne`)
    ScalarOp("eq", 2, quiet(np.equal), "bool", True, "=="),
    ScalarOp("ne", 2, quiet(np.not_equal), "bool", True, "!="),
    ScalarOp("lt", 2, quiet(np.less), "bool", infix="<"),
    ScalarOp("le", 2, quiet(np.less_equal), "bool", infix="<="),
    ScalarOp("gt", 2, quiet(np.greater), "bool", infix=">"),
    ScalarOp("ge", 2, quiet(np.greater_equal), "bool", infix=">="),
    ScalarOp("is_finite", 1, quiet(lambda x: np.isfinite(x.astype(np.float64))), "bool"),
    # choice: select(predicate, on_true, on_false); select_unlikely promises that the predicate
    # is almost never true, so a printer may branch around computing on_true
    ScalarOp("select", 3, lambda p, t, f: np.where(p, t, f)),
    ScalarOp("select_unlikely", 3, lambda p, t, f: np.where(p, t, f)),
    # change of type: the node's own type says to what
    ScalarOp("convert", 1, quiet(lambda x: x), "given", accuracy=Accuracy.ROUNDED),
    ScalarOp("bitcast", 1, quiet(lambda x: x), "given"),
    # float to integer by truncation, for values known to fit (others: unspecified)
    ScalarOp("convert_in_range", 1, quiet(lambda x: x), "given"),
    # high half of the double-width product of two unsigned integers
    ScalarOp("mul_high", 2, quiet(meanings.multiply_high), commutative=True),
    # index arithmetic only: rounded toward minus infinity, divisor positive
    ScalarOp("floordiv", 2, quiet(np.floor_divide)),
    ScalarOp("floormod", 2, quiet(np.mod)),
]


OPS: dict[str, ScalarOp] = {op.name: op for op in _TABLE}


def result_type(op: str, arguments: tuple[DType, ...]) -> DType:
    """The result's type of an op whose rule needs no node ("given" ops name theirs)."""
    return BOOL if OPS[op].result == "bool" else arguments[-1]


def compute(op: str, arguments: list[Array], to: DType) -> Array:
    """Evaluate one op on arrays; `to` is the node's type."""
    if op in ("convert", "convert_in_range"):
        return meanings.convert(arguments[0], to)
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
