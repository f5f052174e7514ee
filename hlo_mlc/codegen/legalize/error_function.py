"""erf, its complement and its inverse."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    at_most,
    fma,
    pick,
    polynomial,
    sqrt,
    two_product,
    unlikely,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.exponential import expm1_parts
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.codegen.legalize.logarithm import log
from hlo_mlc.expr.build import compare, const, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64

# erf in f32: (1 - (1 - erf(a))**(1/4)) / a = SLOPE + polynomial(REST) on [0, 4], from where on erf
# is 1; the rounding of SLOPE alone would show.  The fit is of the relative error of erf, with six
# times the weight below 0.6, where roundings add up, and four times at the end, so that erf
# reaches 1: errors 4.5e-9, 2.7e-8.
_ERF_IS_ONE_F32 = 4.0
_ERF_SLOPE = 0.282094806
_ERF_REST_F32 = (
    -1.58997651e-08, 0.119366318, -0.0154637601, -0.0186189581, 0.00120609114, 0.00195982354,
    -0.000215425331, -0.000131941473, 3.63271865e-05, -2.76882065e-06,
)  # fmt: skip

# (1 - (1 - erf(a))**(1/4)) * 4 / a in f32 on [0, 4], a quotient of polynomials by Remez exchange
# with the weight that the relative error of erf has: 1.2e-8.  Both are scaled so that the first
# coefficients lose little to rounding.
_ERF_ABOVE = (1.81167042, 0.608898878, 0.113776416, -0.0164478943, 0.00630250992)
_ERF_BELOW = (1.60555112, -0.139754832, 0.247979, -0.0211578514, 0.0118616086)

# erf(a) / a in f32, piece by piece: in a - n * WIDTH for the nearest n from 0 to 15.  VALUES are
# those at n * WIDTH but for what columns of POLYNOMIALS add.  Errors up to 4.5e-9.
_ERF_WIDTH, _ERF_LIMIT = 0.2578125, 3.99
_ERF_VALUES = (
    1.1283792, 1.1038698, 1.035875, 0.9386147, 0.82935447, 0.7227718, 0.62791246, 0.5481813,
    0.48313394, 0.4305313, 0.38777548, 0.35259572, 0.3232284, 0.29836765, 0.2770562, 0.25858584,
)  # fmt: skip
_ERF_POLYNOMIALS = (
    (
        -6.246889e-08, -1.2859974e-08, 1.3456702e-08, 2.0217337e-08, 2.0216685e-08, 1.6845368e-08,
        3.1865308e-09, -1.2040115e-08, -2.637455e-09, -4.148248e-09, 1.7129141e-09, 8.948971e-09,
        1.31465665e-08, 1.0853553e-08, -2.2461248e-09, 6.4316543e-09,
    ),
    (
        0.0, -0.18638624, -0.33149645, -0.4114552, -0.42645112, -0.39453757, -0.33927163,
        -0.2796772, -0.22647332, -0.18331665, -0.14984167, -0.12420336, -0.104452446, -0.08901899,
        -0.076759465, -0.06686655,
    ),
    (
        -0.37612224, -0.3328616, -0.22204512, -0.08839972, 0.023949008, 0.09187588, 0.11622546,
        0.111521974, 0.09377315, 0.07382613, 0.056655616, 0.043433487, 0.03368374, 0.026545495,
        0.021264194, 0.017290372,
    ),
    (
        0.0, 0.10748064, 0.1687988, 0.1668051, 0.11868486, 0.057408344, 0.008971274, -0.017543545,
        -0.026011735, -0.024549505, -0.019647105, -0.0146722095, -0.010733948, -0.007888467,
        -0.0058856388, -0.0044701463,
    ),
    (
        0.112170696, 0.08717112, 0.028478459, -0.02880133, -0.05798897, -0.055861186, -0.036477607,
        -0.015822703, -0.0022044126, 0.003815969, 0.0050843656, 0.0043785125, 0.0032605345,
        0.0023087098, 0.001623841, 0.0011561478,
    ),
    (
        0.0, -0.036557317, -0.049750157, -0.035606857, -0.009389251, 0.010719384, 0.017247124,
        0.013783337, 0.0073431833, 0.002396505, -7.2613846e-05, -0.0008344583, -0.0008357939,
        -0.00063263136, -0.00043761637, -0.00029667412,
    ),
)  # fmt: skip

# erf in f64: -log(1 - erf(a)) / a = FIRST + polynomial(REST), fitted with the weight
# a erfc(a) / erf(a), so for the relative error of erf: 9.9e-17.
_ERF_IS_ONE_F64 = 5.95
_ERF_FIRST = 1.1283791670955126
_ERF_REST_F64 = (
    1.533545961316588e-17, 0.6366197723676014, 0.10277260330042708, -0.01912844696912696,
    -0.00020919517371220466, 0.0016962101953438263, -0.0005901454669655687, 2.5951340828131054e-05,
    6.429820952444411e-05, -2.9336683805317632e-05, 2.812063749965566e-06, 3.5491728828939174e-06,
    -2.41818755075897e-06, 8.469130286423107e-07, -1.7098288654088578e-07, 7.2694527448509934e-09,
    8.080338027282654e-09, -3.213128215113023e-09, 6.897450006037312e-10, -9.63122258659554e-11,
    8.766283276978369e-12, -4.762379455106615e-13, 1.1771735193388325e-14,
)  # fmt: skip

# erfc is 0 from here on: e**(-a**2) has the lowest exponent there is, -127 or -1023.
_ERFC_IS_ZERO = {F32: 9.38, F64: 26.63}
# In f32 e**(a**2) erfc(a) / t in 2 t - 1 with t = 1 / (1 + a) from a = 0.49 on, and erf(x) / x in
# x**2 on [0, 0.5].  Errors 5.7e-9, 5.4e-8.
_SCALED_ERFC = (
    0.85516715, 0.237680927, -0.0955565199, -0.0139109306, 0.0253970083, -0.00950545259,
    -0.00120054162, 0.00339039136, -0.00273188879, 0.00104244135, 0.00181818882,
)  # fmt: skip
_ERF_NEAR = (1.12837911, -0.376118839, 0.112689093, -0.0259015653, 0.00307274284)
# In f64 e**(a**2) erfc(a) = (1 + a ABOVE) / (1 + a BELOW), polynomials in a: Remez exchange for
# rational functions, the two rounded in turns.  Error 6.0e-17.
_ERFC_ABOVE = (
    2.1884941172191623, 2.36964483635818, 1.63008383263996, 0.777372588161899, 0.26542605190681556,
    0.06487661285552722, 0.010983334135454865, 0.0011774584839070665, 6.177769733994011e-05,
)  # fmt: skip
_ERFC_BELOW = (
    3.316873284314666, 5.112335550275, 4.834116256511897, 3.114880255752286, 1.4343088726187914,
    0.4801344088837888, 0.11603429756329486, 0.019522201946479665, 0.0020869908240279764,
    0.0001094981175506314,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Inverse:
    """erf_inv(x) / x: up to w = 6.25 in w - centre, beyond it in sqrt(w) - tail_centre, and from
    w = 16 on, which f32 does not reach, in sqrt(w) - 5."""

    centre: float
    central: tuple[float, ...]
    tail_centre: float
    tail: tuple[float, ...]
    far_tail: tuple[float, ...] = ()


_INVERSE_TAIL = 6.25  # |x| = 0.99903: one vector of 16 in 65 where arguments are uniform
_FAR_TAIL, _FAR_TAIL_CENTRE = 16.0, 5.0
_INVERSE = {
    # errors 1.0e-8, 3.0e-8
    F32: _Inverse(
        centre=3.125,
        central=(
            1.65365458, 0.24015817, -0.00603373116, -0.000740687537, 0.000186799633,
            -1.38913783e-05, -1.39193469e-06, 4.26295315e-07, -2.42127864e-08, -4.63776306e-09,
            6.38017528e-10,
        ),
        tail_centre=3.5,
        tail=(
            3.3354857, 1.00736916, 0.00327976211, -0.00206875824, 0.00106737961, -0.000659596175,
            0.000507129764, -0.000246176263,
        ),
    ),
    # Source: M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2011).
    F64: _Inverse(
        centre=3.125,
        central=(
            1.6536545626831027, 0.24015818242558962, -0.006033670871430149, -0.000740702534166267,
            0.00018673420803405714, -1.3882523362786469e-05, -1.3654692000834679e-06,
            4.2347877827932404e-07, -2.9070369957882005e-08, -4.112633980346984e-09,
            1.0512122733215323e-09, -5.415412054294628e-11, -1.2975133253453532e-11,
            2.6335093153082323e-12, -8.151934197605472e-14, -4.054566272975207e-14,
            6.637638134358324e-15, 2.0972767875968562e-17, -1.333171662854621e-16,
            1.1157877678025181e-17, 1.28584807152564e-18, -1.6850591381820166e-19,
            -3.64441206401782e-21,
        ),
        tail_centre=3.25,
        tail=(
            3.0838856104922208, 1.0052589676941592, 0.005370914553590064, -0.003751208507569241,
            0.002491442096107851, -0.0016882755560235047, 0.0009532893797373805,
            -0.0003550375203628475, 2.4031110387097894e-05, 6.828485145957318e-05,
            -4.7318229009055734e-05, 1.2475304481671779e-05, 2.9234449089955446e-06,
            -4.013867526981546e-06, 1.5027403968909828e-06, 1.8239629214389228e-08,
            -2.7517406297064545e-07, 9.075656193888539e-08, 2.2137376921775787e-09,
        ),
        far_tail=(
            4.849906401408584, 1.0103004648645344, -0.00013871931833623122, -0.00021503011930044477,
            7.599527703001776e-05, -1.968177810553167e-05, 4.526062597223154e-06,
            -9.9298272942317e-07, 2.2900482228026655e-07, -6.771199775845234e-08,
            2.914795345090108e-08, -1.496002662714924e-08, 7.61570120807834e-09,
            -3.789465440126737e-09, 1.5076572693500548e-09, -2.555641816996525e-10,
            -2.7109920616438573e-11,
        ),
    ),
}  # fmt: skip


def erf(x: Expr, divides: bool) -> Expr:
    """f32: 1 - (1 - v)**4, in 22 operations, fewer than anything with an exponential takes, or in
    19 where the target divides; f64: 1 - e**-u."""
    if x.dtype is F32:
        a = at_most(absolute(x), _ERF_IS_ONE_F32)
        if divides:
            # 4 v, then twice 2 v - v**2 as y = 4 v - 2 v**2 and y - y**2 / 4: both are as large
            # as what they become, so that the smallest numbers stay normal.
            v = a * polynomial(a, _ERF_ABOVE) / polynomial(a, _ERF_BELOW)
            y = fma(v * -0.125, v, v)
            return with_sign_of(fma(y * -0.25, y, y), x)
        rest = a * _in_parts((a, a * a), _ERF_REST_F32)
        v = fma(a, _ERF_SLOPE, rest)
        # y = 2 v - v**2, in which what the rounding of v took does not count, and 2 y - y**2;
        # twice y by itself, because y is subnormal for the smallest numbers.
        more = fma(-v, v, rest + rest)
        y, twice = fma(a, 2 * _ERF_SLOPE, more), fma(a, 4 * _ERF_SLOPE, more + more)
        return with_sign_of(fma(-y, y, twice), x)
    a = at_most(absolute(x), _ERF_IS_ONE_F64)
    u = fma(a, _ERF_FIRST, a * polynomial(a, _ERF_REST_F64))
    scale, p = expm1_parts(u, -1.0)  # e**-u = scale * (1 - p), so that small results are right
    return with_sign_of(fma(scale, p, 1.0 - scale), x)


def erf_by_pieces(x: Expr) -> Expr:
    """erf in f32 by tables of 16 numbers: as many operations as by one polynomial, and fewer of
    them round."""
    a = at_most(absolute(x), _ERF_LIMIT)
    rounding = format_of(x).rounding
    shifted = fma(a, 1 / _ERF_WIDTH, rounding)
    distance = fma(shifted - rounding, -_ERF_WIDTH, a)
    rest = polynomial(distance, [pick(shifted, row) for row in _ERF_POLYNOMIALS])
    return with_sign_of(fma(a, pick(shifted, _ERF_VALUES), a * rest), x)


def erfc(x: Expr, has_fma: bool) -> Expr:
    """e**-a**2 times a function of a = |x| for x > 0, 2 minus that for the others."""
    a = at_most(absolute(x), _ERFC_IS_ZERO[x.dtype])
    square, square_low = two_product(a, a, has_fma)
    near = compare("lt", a, 0.5)
    if x.dtype is F32:
        t = 1.0 / (a + 1.0)
        function = t * polynomial(fma(t, 2.0, -1.0), _SCALED_ERFC)
    else:
        powers = a, square, square * square
        above, below = (_in_parts(powers, c) for c in (_ERFC_ABOVE, _ERFC_BELOW))
        # Near 0, where the function is near 1, what it lacks to 1 has more digits.
        dividend = select(near, a * (above - below), fma(a, above, 1.0))
        function = dividend / fma(a, below, 1.0) + select(near, const(1.0, x.dtype), 0.0)
    scale, p = expm1_parts(square, -1.0, low=square_low)
    tail = scale * fma(-p, function, function)
    result = select(compare("lt", x, 0.0), 2.0 - tail, tail)
    if x.dtype is F32:
        return select(near, fma(-x, polynomial(x * x, _ERF_NEAR), 1.0), result)
    return result


def _in_parts(powers: tuple[Expr, ...], coefficients: tuple[float, ...]) -> Expr:
    """The polynomial in x as those of its even and odd powers, and so on down `powers`: x, x**2,
    x**4 and so on, of which the last takes Horner's rule.

    As many operations as that alone takes, but shorter chains of them, and fewer roundings where
    the highest powers are the largest terms.
    """
    x, *others = powers
    if not others:
        return polynomial(x, coefficients)
    even, odd = (_in_parts(tuple(others), coefficients[first::2]) for first in (0, 1))
    return fma(x, odd, even)


def erf_inv(x: Expr) -> Expr:
    """The inverse of erf, by way of w = -log(1 - x**2): infinite at ±1, NaN beyond."""
    c = _INVERSE[x.dtype]
    # As a product, because 1 - x**2 would lose what is right in it near ±1.
    w = -log((1.0 - x) * (x + 1.0))
    root = sqrt(w)
    tail = polynomial(root - c.tail_centre, c.tail)
    if c.far_tail:
        far = polynomial(root - _FAR_TAIL_CENTRE, c.far_tail)
        tail = select(compare("ge", w, _FAR_TAIL), far, tail)
    tail = select(compare("eq", w, math.inf), math.inf, tail)
    central = polynomial(w - c.centre, c.central)
    return x * unlikely(compare("ge", w, _INVERSE_TAIL), tail, central)
