"""erf and erfc."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    add,
    at_most,
    compare,
    div,
    fma,
    mul,
    neg,
    polynomial,
    select,
    sub,
    two_product,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.exponential import exp, expm1_parts
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64


@dataclass(frozen=True, slots=True)
class _Constants:
    erf_is_one: float  # above this
    erfc_is_zero: float  # above this
    # -log(1 - erf(a)) / a = first + polynomial(rest), fitted with the weight a erfc(a) / erf(a),
    # so for the relative error of erf; the rounding of `first` alone would show in f32
    first: float
    rest: tuple[float, ...]
    # (1 + 1.125 a) e**(a**2) erfc(a) in t = (a - 3) / (a + 3); the factor keeps it near 1
    scaled_erfc: tuple[float, ...]


_CONSTANTS = {
    F32: _Constants(
        erf_is_one=3.93, erfc_is_zero=10.1,
        # errors 4.0e-9, 1.7e-8
        first=1.128379225730896,
        rest=(-5.40815144e-08, 0.636619389, 0.102777757, -0.0191527903, -0.00016088839,
              0.0016675035, -0.000633088523, 0.000117709496, -9.26365283e-06),
        scaled_erfc=(0.78313005, -0.219014034, 0.0806966275, 0.00724876486, -0.0357193872,
                     0.0277673136, -0.0115907229, 0.00163438567, 0.000936566445, -0.000216627392,
                     -3.33142598e-05)),
    F64: _Constants(
        erf_is_one=5.95, erfc_is_zero=27.3,
        # errors 9.9e-17, 2.3e-18
        first=1.1283791670955126,
        rest=(1.533545961316588e-17, 0.6366197723676014, 0.10277260330042708,
              -0.01912844696912696, -0.00020919517371220466, 0.0016962101953438263,
              -0.0005901454669655687, 2.5951340828131054e-05, 6.429820952444411e-05,
              -2.9336683805317632e-05, 2.812063749965566e-06, 3.5491728828939174e-06,
              -2.41818755075897e-06, 8.469130286423107e-07, -1.7098288654088578e-07,
              7.2694527448509934e-09, 8.080338027282654e-09, -3.213128215113023e-09,
              6.897450006037312e-10, -9.63122258659554e-11, 8.766283276978369e-12,
              -4.762379455106615e-13, 1.1771735193388325e-14),
        scaled_erfc=(0.783130036418581, -0.2190140547139057, 0.0806978726753286,
                     0.007249679551212055, -0.03573763189698478, 0.027751546929119887,
                     -0.011503167496466323, 0.0017324219623762946, 0.0008011737295270476,
                     -0.00041885644601236555, -3.112768243902094e-05, 6.474182350216317e-05,
                     -7.061781664926152e-07, -1.0378668505560016e-05, 1.3603865989563845e-07,
                     1.8235800870350338e-06, 9.87832016591322e-08, -3.326204247111098e-07,
                     -5.97382091838697e-08, 5.5908340003270384e-08, 1.974840576320499e-08,
                     -6.910439154902809e-09, -3.99961518786157e-09, 3.487207733303645e-10,
                     3.4224770456321575e-10)),
}


def erf(x: Expr) -> Expr:
    """1 - e**-u with a polynomial for u, by way of e**-u - 1 so that small results are right."""
    c = _CONSTANTS[x.dtype]
    a = at_most(absolute(x), c.erf_is_one)
    u = fma(a, c.first, mul(a, polynomial(a, c.rest)))
    scale, p = expm1_parts(u, -1.0)  # e**-u = scale * (1 - p)
    return with_sign_of(fma(scale, p, sub(1.0, scale)), x)


def erfc(x: Expr, has_fma: bool) -> Expr:
    """1 - erf(x): e**-a**2 times a function of a = |x| for x >= 0, 2 minus that for the others."""
    c = _CONSTANTS[x.dtype]
    a = at_most(absolute(x), c.erfc_is_zero)
    function = polynomial(div(sub(a, 3.0), add(a, 3.0)), c.scaled_erfc)
    square, square_low = two_product(a, a, has_fma)
    function = fma(function, neg(square_low), function)  # e**-low, to first order
    tail = div(mul(exp(square, -1.0), function), fma(a, 1.125, 1.0))
    return select(compare("lt", x, 0.0), sub(2.0, tail), tail)
