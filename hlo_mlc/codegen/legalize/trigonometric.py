"""sin, cos and tan: reduction by pi/2, then polynomials on [-pi/4, pi/4].

Up to a limit the reduction subtracts n times pi/2 in three parts (Cody and Waite).  Larger
arguments multiply by the bits of 2/pi that matter, in integers (Payne and Hanek); they are rare,
so that path stands under `unlikely`.

Coefficients: minimax fits of the relative error as in exponential.py, on [0, pi/4 + 0.03].
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hlo_mlc.codegen.legalize.arithmetic import (
    ROUNDING, absolute, add, bits, both, compare, convert, div, either, fma, from_bits, mul,
    polynomial, select, shift_left, shift_right, sub, unlikely, xor)
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, I32, I64, U32, U64

# pi/2 = 1.57079637 - 4.37113883e-08 - 1.71512451e-15, each part rounded to f32.
_HALF_PI_F32 = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
# The same in f64: 33 bits, whose product with an integer of 20 bits is exact, and the rest.
_HALF_PI_F64 = (1.5707963267341256, 6.077100506506192e-11)

# (sin(r) - r) / r**3 in r**2: the whole has error 5.3e-9.
_SIN = (-0.166666523, 0.00833200011, -0.000194928318)
# cos(r) in r**2: error 1.9e-10.
_COS = (1.0, -0.5, 0.0416666418, -0.00138871151, 2.44093189e-05)

# Beyond this the error of 2/pi in f32 times n would leave the interval of the polynomials.
_LIMIT = 2.0**17

# 32 zeros and the first 224 binary digits of 2/pi after the point, as words of 32 bits.
_TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041,
                0xFE5163AB)


Finish = Callable[[Expr, Expr], Expr]


def sin(x: Expr, has_fma: bool) -> Expr:
    def finish(n: Expr, r: Expr) -> Expr:
        sine, cosine = _sine_and_cosine(r)
        return _with_sign(select(_is_odd(n), cosine, sine), xor(shift_left(n, 30), bits(x)))

    return _reduced(absolute(x), finish, has_fma)


def cos(x: Expr, has_fma: bool) -> Expr:
    def finish(n: Expr, r: Expr) -> Expr:
        sine, cosine = _sine_and_cosine(r)
        return _with_sign(select(_is_odd(n), sine, cosine), shift_left(add(n, 1), 30))

    return _reduced(absolute(x), finish, has_fma)


def tan(x: Expr, has_fma: bool) -> Expr:
    def finish(n: Expr, r: Expr) -> Expr:
        """tan(r), or -1 / tan(r) for odd n."""
        sine, cosine = _sine_and_cosine(r)
        odd = _is_odd(n)
        quotient = div(select(odd, cosine, sine), select(odd, sine, cosine))
        return _with_sign(quotient, xor(shift_left(n, 31), bits(x)))

    return _reduced(absolute(x), finish, has_fma)


def _with_sign(value: Expr, sign: Expr) -> Expr:
    """`value` negated where the uppermost bit of `sign` is set."""
    return from_bits(xor(bits(value), both(sign, -1 << (value.dtype.bits - 1))))


def _is_odd(n: Expr) -> Expr:
    return compare("ne", both(n, 1), 0)


def _sine_and_cosine(r: Expr) -> tuple[Expr, Expr]:
    square = mul(r, r)
    return fma(mul(r, square), polynomial(square, _SIN), r), polynomial(square, _COS)


def _reduced(magnitude: Expr, finish: Finish, has_fma: bool) -> Expr:
    """finish(n: i32, r: f32) with magnitude = n pi/2 + r, n modulo 4 and |r| little over pi/4.

    `finish` is expanded in both branches, so that one branch is all the usual case pays for.
    """
    fast = finish(*(_cody_waite if has_fma else _cody_waite_f64)(magnitude))
    slow = finish(*_payne_hanek(magnitude))
    return unlikely(compare("gt", magnitude, _LIMIT), slow, fast)


def _cody_waite(magnitude: Expr) -> tuple[Expr, Expr]:
    """The first fma is exact: both of its terms are multiples of 2**-24, and the sum is below 1."""
    shifted = fma(magnitude, 2 / math.pi, ROUNDING)
    n = sub(shifted, ROUNDING)
    r = magnitude
    for part in _HALF_PI_F32:
        r = fma(n, -part, r)
    return bits(shifted), r


def _cody_waite_f64(magnitude: Expr) -> tuple[Expr, Expr]:
    """For targets without fma: double precision makes up for the products' roundings."""
    wide = convert(magnitude, F64)
    n = apply("round_even", mul(wide, 2 / math.pi))
    high, low = _HALF_PI_F64
    r = sub(sub(wide, mul(n, high)), mul(n, low))
    return apply("convert_in_range", n, dtype=I32), convert(r, F32)


def _payne_hanek(magnitude: Expr) -> tuple[Expr, Expr]:
    """The reduction for magnitude in [2**0, infinity].

    With magnitude = m 2**(e - 23), m of 24 bits, the digits of 2/pi up to place e - 25 contribute
    multiples of 4 to n.  The product of m with the 96 digits behind them, modulo 2**96, has n on
    top and the fraction below it; its upper 64 bits hold the fraction to 2**-61, and no f32 is
    nearer than 2**-30 to a multiple of pi/2.
    """
    raw = apply("bitcast", magnitude, dtype=U32)
    mantissa = convert(either(both(raw, 0x7FFFFF), 0x800000), U64)
    place = sub(shift_right(raw, 23), 120)  # of the first digit that matters, in _TWO_OVER_PI
    offset = convert(both(place, 31), U64)
    upper, lower = _digits_from_word(shift_right(place, 5))
    window = either(shift_left(upper, offset),
                    apply("shr_logical", lower, sub(const(64, U64), offset)))
    below = shift_right(shift_left(lower, offset), 32)
    product = add(mul(mantissa, window), shift_right(mul(mantissa, below), 32))
    n = shift_right(add(product, 1 << 61), 62)
    fraction = apply("bitcast", shift_left(product, 2), dtype=I64)  # in units of 2**-64, rounded
    r = convert(mul(convert(fraction, F64), math.pi / 2 * 2.0**-64), F32)
    return convert(n, I32), add(r, sub(magnitude, magnitude))  # infinity - infinity is NaN


def _digits_from_word(index: Expr) -> tuple[Expr, Expr]:
    """Four words of digits from word `index` in 0..4 on, as two u64."""
    def pair(first: int) -> Expr:
        return const(_TWO_OVER_PI[first] << 32 | _TWO_OVER_PI[first + 1], U64)

    upper, lower = pair(0), pair(2)
    for i in range(1, len(_TWO_OVER_PI) - 3):
        chosen = compare("eq", index, i)
        upper, lower = select(chosen, pair(i), upper), select(chosen, pair(i + 2), lower)
    return upper, lower
