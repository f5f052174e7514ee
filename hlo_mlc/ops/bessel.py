"""Bessel functions as sums of Chebyshev polynomials.

The coefficients are those of the interpolant at 80 points, computed with 40 digits; what is below
the last place of the type is left out.  Source of the two intervals: Moshier, Cephes, i1.c.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F64
from hlo_mlc.expr.ops import compute_dtype

# exp(-x) I1(x) / x for x from 0 to 8, as a function of x / 4 - 1.
_NEAR = (
    0.25258718644363365, -0.17641651835783406, 0.1026436586898471, -0.052945981208094991,
    0.024726449030626517, -0.010564084894626198, 0.0041564229443128882, -0.0015135724506312531,
    0.00051228595616857577, -0.00016176081582589675, 4.7815651075500542e-5, -1.3273163656039436e-5,
    3.4702513081376785e-6, -8.5687202646954547e-7, 2.0032947535521353e-7, -4.4450591287963281e-8,
    9.3815373864957718e-9, -1.8872497517228293e-9, 3.625590281552117e-10, -6.6634897235020277e-11,
    1.1736186298890902e-11, -1.9839743977649437e-12, 3.2237933659455747e-13,
    -5.0421855047279117e-14, 7.6006842947354069e-15, -1.1055969477353863e-15,
    1.5536319577362005e-16, -2.1114212143581661e-17, 2.7779141127610464e-18,
)
# exp(-x) I1(x) sqrt(x) for x from 8 on, as a function of 16 / x - 1.
_FAR = (
    0.77857623501828012, -0.0097610974913614684, -0.00011058893876262372, -3.8825648088776904e-6,
    -2.5122362378702089e-7, -2.6314688468895195e-8, -3.835380385964237e-9, -5.5897434621965838e-10,
    -1.8974958123505412e-11, 3.2526035830154882e-11, 1.4125807436613781e-11,
    2.0356285441470895e-12, -7.1985517762459085e-13, -4.0835511110921973e-13,
    -2.1015418427726643e-14, 4.2724400167119514e-14, 1.0420276984128803e-14,
    -3.8144030724370078e-15, -1.8803547755107824e-15, 3.3082023109209283e-16,
    2.9626289976459501e-16, -3.209525921993424e-17, -4.6503053684893583e-17,
    4.4143483230717079e-18, 7.5172963108421048e-18, -1.242193275194891e-18,
)
# Below these a coefficient changes nothing in the last place of the sums, which are 0.03 at least.
_NEGLIGIBLE_F32, _NEGLIGIBLE_F64 = 1e-10, 1e-19


def i1e(x: Expr) -> Expr:
    """exp(-|x|) I1(x), the modified Bessel function of order one, scaled."""
    dtype = compute_dtype(x.dtype)
    wide = apply("convert", x, dtype=dtype)
    size = apply("abs", wide)

    def number(value: float) -> Expr:
        return const(value, dtype)

    near = apply("mul", wide, _chebyshev(
        apply("sub", apply("mul", size, number(0.5)), number(2.0)), _NEAR))
    far = apply("div", _chebyshev(
        apply("sub", apply("div", number(32.0), size), number(2.0)), _FAR), apply("sqrt", size))
    far = apply("select", apply("lt", wide, number(0.0)), apply("neg", far), far)
    found = apply("select", apply("le", size, number(8.0)), near, far)
    return apply("convert", found, dtype=x.dtype)


def _chebyshev(twice: Expr, coefficients: Sequence[float]) -> Expr:
    """coefficients[0] / 2 + the sum of coefficients[k] times the k-th polynomial of twice / 2.

    Source: Clenshaw's recurrence.
    """
    dtype = twice.dtype
    negligible = _NEGLIGIBLE_F64 if dtype is F64 else _NEGLIGIBLE_F32
    before: Expr = const(0.0, dtype)
    last: Expr = before
    *higher, constant = reversed([c for c in coefficients if abs(c) > negligible])
    for coefficient in higher:
        last, before = apply("add", apply("sub", apply("mul", twice, last), before),
                             const(coefficient, dtype)), last
    half = apply("mul", twice, const(0.5, dtype))
    return apply("add", apply("sub", apply("mul", half, last), before),
                 const(constant / 2, dtype))
