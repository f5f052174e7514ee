"""erf and erfc for f32.

Coefficients: minimax fits by Remez exchange, rounded in turn as in exponential.py.
"""

from __future__ import annotations

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute, add, at_most, compare, div, fma, mul, neg, polynomial, select, sub, two_product,
    with_sign_of)
from hlo_mlc.codegen.legalize.exponential import exp, expm1_parts
from hlo_mlc.expr.core import Expr

# -log(1 - erf(a)) / a on [0, 3.93], so that erf has relative error 2**-27.9 (weight
# a erfc(a) / erf(a)); the first coefficient in two parts, for its rounding would show.
_FIRST = 1.128379225730896
_REST = (-5.40815144e-08, 0.636619389, 0.102777757, -0.0191527903, -0.00016088839, 0.0016675035,
         -0.000633088523, 0.000117709496, -9.26365283e-06)

# e**(a**2) erfc(a) in t = (a - 4) / (a + 4) for a on [0, 10.1]: error 1.3e-8.
_SCALED_ERFC = (0.136999458, -0.259068072, 0.218719706, -0.164256603, 0.108962215, -0.0631253645,
                0.0312994085, -0.0127441417, 0.00413180608, -0.000985551742, -0.000292313838)


def erf(x: Expr) -> Expr:
    """1 - e**-u with a polynomial for u, by way of e**-u - 1 so that small results are right."""
    a = at_most(absolute(x), 3.93)  # ±1 beyond
    u = fma(a, _FIRST, mul(a, polynomial(a, _REST)))
    scale, p = expm1_parts(u, -1.0)
    # p is that of e**-u = scale (1 - p).
    return with_sign_of(fma(scale, p, sub(1.0, scale)), x)


def erfc(x: Expr, has_fma: bool) -> Expr:
    """1 - erf(x): e**-a**2 times a function of a = |x| for x >= 0, 2 minus that for the others.

    The roundings of a**2 and t are put right to first order: the logarithm of the function has
    slope -2.2 in t to within a tenth.
    """
    a = at_most(absolute(x), 10.1)  # 0 or 2 beyond
    reciprocal = div(1.0, add(a, 4.0))
    t = mul(sub(a, 4.0), reciprocal)
    t_low = mul(fma(neg(t), a, fma(add(t, 1.0), -4.0, a)), reciprocal)
    square, square_low = two_product(a, a, has_fma)
    factor = polynomial(t, _SCALED_ERFC)
    factor = fma(factor, fma(t_low, -2.2, neg(square_low)), factor)
    tail = mul(exp(square, -1.0), factor)
    return select(compare("lt", x, 0.0), sub(2.0, tail), tail)
