"""The modified Bessel function of the first kind and of order 1, times e**-|x|."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    fma,
    polynomial,
    sqrt,
    two_product,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.exponential import expm1_parts
from hlo_mlc.expr.build import compare, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64


@dataclass(frozen=True, slots=True)
class _Constants:
    far: float
    near: tuple[float, ...]  # I1(x) / x in x**2 below `far`: all are positive, so nothing cancels
    beyond: tuple[float, ...]  # sqrt(x) e**-x I1(x) in 1 / x from `far` on


_CONSTANTS = {
    F32: _Constants(
        far=8.0,
        # errors 2.8e-9, 2.9e-8
        near=(
            0.5, 0.0625, 0.00260416558, 5.42539965e-05, 6.78077470e-07, 5.65916691e-09,
            3.32716805e-11, 1.60244431e-13, 3.64601018e-16, 2.69688259e-18,
        ),
        beyond=(
            0.398942292, -0.149609655, -0.0461842008, -0.0594817847, 0.214729771, -1.90685487,
            3.87039971,
        ),
    ),
    F64: _Constants(
        far=12.0,
        # errors 5.5e-17, 1.4e-16
        near=(
            0.5, 0.06250000000000003, 0.002604166666666627, 5.4253472222241084e-05,
            6.781684027733963e-07, 5.65140335706581e-09, 3.363930564407679e-11,
            1.5017547464258372e-13, 5.214424988720366e-16, 1.4484549270716893e-18,
            3.2918666718884856e-21, 6.235825729607472e-24, 9.978467040667527e-27,
            1.38401945891715e-29, 1.5595552441238596e-32, 2.0380844326856853e-35,
            5.665647375556283e-39, 2.951751778686908e-41,
        ),
        beyond=(
            0.3989422804014327, -0.14960335515071194, -0.046751048281225636, -0.04090726108559752,
            -0.05750299618313368, -0.11407771373324214, 0.0542900850909308, -22.681295222187387,
            1061.1453196526504, -38084.623734008084, 1015673.3943847385, -20281384.363492772,
            301687779.1350615, -3293109426.7983413, 25594109776.58576, -133944213213.57304,
            422517106431.90015, -605965990923.1646,
        ),
    ),
}  # fmt: skip


# How log(I1(x) / x) grows with x**2 where what rounding takes from that counts.
_SLOPE = 0.05


def bessel_i1e(x: Expr, has_fma: bool) -> Expr:
    c = _CONSTANTS[x.dtype]
    a = absolute(x)
    square, square_low = two_product(a, a, has_fma)
    scale, p = expm1_parts(a, -1.0, low=square_low * -_SLOPE)
    function = a * polynomial(square, c.near)
    near = scale * fma(-p, function, function)
    far = polynomial(1.0 / a, c.beyond) / sqrt(a)
    return with_sign_of(select(compare("lt", a, c.far), near, far), x)
