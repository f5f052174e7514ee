"""The logarithm of |gamma|, and its derivative digamma, computed in f64.

f32 goes through f64, which takes no more operations than the compensated sums in f32 that would
keep its digits where the parts of the result cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    fma,
    polynomial,
    two_product,
    unlikely,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.logarithm import log
from hlo_mlc.codegen.legalize.trigonometric import sine_and_cosine_in_parts
from hlo_mlc.expr.build import apply, compare, const, convert, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F64

# From here on the asymptotic series hold.
_LARGE = 8.0
# lgamma(2 + r) / r on [-1/2, 1/2]: error 2.5e-17.
_LOG_GAMMA = (
    0.42278433509846713, 0.3224670334241132, -0.0673523010531981, 0.020580808427784546,
    -0.0073855510286739735, 0.002890510330741683, -0.001192753911704019, 0.0005096695247353363,
    -0.00022315475842805122, 9.945751298780145e-05, -4.4926237244933236e-05, 2.0507209420095816e-05,
    -9.439481912966781e-06, 4.374901785843007e-06, -2.0392680929494574e-06, 9.549029845435e-07,
    -4.4896181352191754e-07, 2.1312206496518882e-07, -1.0144575217592417e-07,
    4.4827969678169884e-08, -2.047461543288431e-08, 1.5170870671245502e-08, -7.88835467035295e-09,
)  # fmt: skip
# x (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2) in x**-2 from 8 on: error 5.6e-17.
_STIRLING = (
    0.08333333333333333, -0.002777777777774098, 0.0007936507898344653, -0.000595236606878136,
    0.0008414728426229649, -0.0018905396656613497, 0.005069244379136893,
)  # fmt: skip
_HALF_LOG_TWO_PI = 0.9189385332046728
_PI_LOW = 1.2246467991473532e-16  # what math.pi leaves of pi
# digamma(y) / (y - ROOT) in y - 1.5 on [1, 2], ROOT in two parts: error 4.8e-17.
_ROOT, _ROOT_LOW = 1.4616321449683622, 9.549995429965697e-17
_DIGAMMA = (
    0.9510558760318328, -0.4236274212814606, 0.24054248424078722, -0.14840492305388026,
    0.09498872445285071, -0.061922133275545695, 0.04076083394333477, -0.026975796657530374,
    0.017907248237320723, -0.011908220154815881, 0.007927023295699442, -0.00527993661909373,
    0.003518089065958596, -0.002345499939884625, 0.0015635007582755545, -0.0010364316390709311,
    0.0006902945733220178, -0.00048603537783348136, 0.0003258443437277251, -0.00014465579489868663,
    9.33554500644844e-05, -0.0001783333176258905, 0.00012113005629696855,
)  # fmt: skip
# x**2 (log(x) - 1 / (2 x) - digamma(x)) in x**-2 from 8 on: error 5.6e-17.
_DIGAMMA_SERIES = (
    0.08333333333333333, -0.008333333333331732, 0.003968253966068557, -0.004166665527945045,
    0.0075754647499166735, -0.02105151397112626, 0.08004445181602926, -0.29981061579674995,
)  # fmt: skip


_Parts = tuple[Expr, Expr]  # a number as a sum of two, the second small


def _in_f64(function: Callable[[Expr, bool], Expr]) -> Callable[..., Expr]:
    def widened(x: Expr, *, has_fma: bool) -> Expr:
        return convert(function(convert(x, F64), has_fma), x.dtype)

    return widened


@_in_f64
def lgamma(x: Expr, has_fma: bool) -> Expr:
    """log|gamma(x)|: by the recurrence from [1.5, 2.5], Stirling's series, or reflection.

    Near the zeros between negative integers the error is small against 1, not against the result;
    beside the poles beyond -8 it is up to 16 units of that.
    """
    a = absolute(x)
    large = compare("ge", a, _LARGE)
    nearest = apply("round_even", a)
    r = a - nearest  # lgamma(a) = lgamma(2 + r) + log(product), or - log(product) below 1.5
    product: Expr = const(1.0, F64)
    for i in range(1, int(_LARGE) - 1):
        product = select(compare("ge", nearest, i + 2.0), product * (a - float(i)), product)
    below = compare("lt", nearest, 2.0)
    small = select(compare("lt", nearest, 1.0), a * (a + 1.0), a)
    logarithm = log(select(large, a, select(below, small, product)))
    signed = select(below, -logarithm, logarithm)
    near = fma(r, polynomial(r, _LOG_GAMMA), signed)
    inverse = 1.0 / a
    series = polynomial(inverse * inverse, _STIRLING) * inverse
    stirling = fma(a - 0.5, logarithm - 1.0, series + (_HALF_LOG_TWO_PI - 0.5))
    positive = select(large, stirling, near)
    # |gamma(-a)| = pi / (|sin(pi a)| a gamma(a)), with all that has a logarithm in one: those of
    # the factors are larger than that of their product.
    (sine, _), _ = _sine_and_cosine_of_turn(a, has_fma)
    factor = select(
        compare("lt", nearest, 1.0), 1.0 / (a + 1.0), select(below, const(1.0, F64), a * product)
    )
    factor = select(large, a, factor) * (absolute(sine) * (1 / math.pi))
    rest = select(large, stirling, r * polynomial(r, _LOG_GAMMA))
    reflected = -(log(factor) + rest)
    # From 2**52 on all are integers, or infinite.
    at_pole = compare("eq", sine, 0.0) | compare("ge", a, 2.0**52)
    reflected = select(at_pole, math.inf, reflected)
    return unlikely(compare("lt", x, 0.0), reflected, positive)


@_in_f64
def digamma(x: Expr, has_fma: bool) -> Expr:
    """The derivative of lgamma; NaN at 0 and the negative integers, as in XLA.

    Near the zeros between negative integers the error is small against 1, not against the result.
    """
    a = absolute(x)
    large = compare("ge", a, _LARGE)
    # digamma(a) = digamma(y) + the sum of 1 / (a - i), y in [1, 2), as one fraction.
    y, top, bottom = a, const(0.0, F64), const(1.0, F64)
    for i in range(1, int(_LARGE) - 1):
        more = compare("ge", a, i + 1.0)
        factor = a - float(i)
        y = select(more, factor, y)
        top = select(more, fma(top, factor, bottom), top)
        bottom = select(more, bottom * factor, bottom)
    below = compare("lt", a, 1.0)
    y = select(below, a + 1.0, y)
    top = select(large, 1.0, select(below, -1.0, top))
    bottom = select(large | below, a, bottom)
    fraction = top / bottom
    centred = y - _ROOT - _ROOT_LOW
    near = fma(centred, polynomial(y - 1.5, _DIGAMMA), fraction)
    square = fraction * fraction
    series = fma(square, polynomial(square, _DIGAMMA_SERIES), fraction * 0.5)
    logarithm = log(a)
    positive = select(large, logarithm - series, near)
    # Between the poles there are zeros: what may cancel is added first, and what is small last.
    (sine, sine_low), cosine = _sine_and_cosine_of_turn(a, has_fma)
    cotangent, rest = _cotangent((sine, sine_low), cosine, has_fma)
    rest = rest + 1.0 / a
    reflected = select(large, logarithm, near) + cotangent + select(large, rest - series, rest)
    reflected = select(compare("eq", sine, 0.0), math.nan, reflected)
    return unlikely(~compare("gt", x, 0.0), reflected, positive)


def _sine_and_cosine_of_turn(a: Expr, has_fma: bool) -> tuple[_Parts, _Parts]:
    """(sin(pi f), cos(pi f)) with f what `a` differs from the nearest integer by."""
    f = a - apply("round_even", a)
    size = absolute(f)
    steep = compare("gt", size, 0.25)
    turn = select(steep, 0.5 - size, size)
    angle, rest = two_product(turn, math.pi, has_fma)
    sine, cosine = sine_and_cosine_in_parts(angle, fma(turn, _PI_LOW, rest))
    return (
        tuple(with_sign_of(select(steep, c, s), f) for s, c in zip(sine, cosine, strict=True)),
        tuple(select(steep, s, c) for s, c in zip(sine, cosine, strict=True)),
    )


def _cotangent(sine: _Parts, cosine: _Parts, has_fma: bool) -> _Parts:
    """pi cosine / sine."""
    (below, below_low), (above, above_low) = sine, cosine
    top, top_low = two_product(above, math.pi, has_fma)
    top_low = top_low + fma(above, _PI_LOW, above_low * math.pi)
    quotient = top / below
    product, product_low = two_product(quotient, below, has_fma)
    excess = top - product - product_low - quotient * below_low
    return quotient, (excess + top_low) / below
