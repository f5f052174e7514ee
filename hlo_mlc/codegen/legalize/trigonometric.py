"""sin, cos and tan: reduction by multiples of pi, then polynomials.

In f32, sin and cos alone subtract the multiple of pi, or the odd one of pi/2, that is nearest: what
is left of both is a sine on [-pi/2, pi/2].  Where one argument has both, for tan, in f64, whose
roundings would lead beyond 1, and for cos without fma, the nearest multiple of pi/2 leaves a sine
and a cosine on [-pi/4, pi/4].

Up to a limit the reduction subtracts n times pi in three parts (Cody and Waite).  Larger arguments
multiply by the digits of 2/pi that matter (reduction.py); they are rare, so that path stands under
`unlikely`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.codegen.legalize import reduction
from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    bits,
    fma,
    from_bits,
    polynomial,
    two_sum,
    unlikely,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.codegen.legalize.reduction import BETWEEN_HALF_TURNS, HALF_TURNS, QUARTER_TURNS, Grid
from hlo_mlc.expr.build import apply, compare, const, convert, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, I32


@dataclass(frozen=True, slots=True)
class _Constants:
    half_pi: tuple[float, float, float]  # pi/2 as a sum of numbers of the format
    limit: float  # beyond it `reduction` takes over
    sin: tuple[float, ...]  # (sin(r) - r) / r**3 in r**2 on [0, pi/4] and a little beyond
    cos: tuple[float, ...]  # cos(r) in r**2 there


_CONSTANTS = {
    F32: _Constants(
        half_pi=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
        # Here n times the error of 2/pi in f32 is still small against the interval's margin.
        limit=2.0**17,
        # errors 5.3e-9, 1.9e-10
        sin=(-0.166666523, 0.00833200011, -0.000194928318),
        cos=(1.0, -0.5, 0.0416666418, -0.00138871151, 2.44093189e-05),
    ),
    F64: _Constants(
        half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
        limit=2.0**20,
        # errors 3.7e-18, 5.7e-20
        sin=(
            -0.1666666666666663, 0.00833333333332184, -0.00019841269829358476,
            2.7557313538479374e-06, -2.5050734381381357e-08, 1.5895432703154084e-10,
        ),
        cos=(
            1.0, -0.5, 0.041666666666666595, -0.0013888888888873342, 2.4801587289002103e-05,
            -2.755731421705314e-07, 2.0875705398861324e-09, -1.1358749424646485e-11,
        ),
    ),
}  # fmt: skip
# (sin(r) - r) / r**3 in r**2 for f32 on [0, pi/2] and a little beyond; error 1.8e-8.  Chosen among
# their neighbours: with them, no f32 has a sine above 1, with fma and without.
_WIDE_SIN = (-0.16666657, 0.008333025, -0.00019806885, 2.5995046e-06)
# pi/2 for targets without fma: 33 bits twice, whose products with an integer of 20 bits are
# exact in f64, and the rest.
_SHORT_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)

Finish = Callable[[Expr, Expr], tuple[Expr, ...]]


def sin(x: Expr, has_fma: bool) -> Expr:
    if x.dtype is F64:
        return sin_and_cos(x, has_fma)[0]

    def finish(n: Expr, r: Expr) -> tuple[Expr]:
        return (_with_sign(_wide_sine(r), _to_sign(n, bit=0) ^ bits(x)),)

    return _reduced(absolute(x), HALF_TURNS, finish, has_fma)[0]


def cos(x: Expr, has_fma: bool) -> Expr:
    if x.dtype is F64 or not has_fma:  # two roundings a step lead beyond 1, or below it at 0
        return sin_and_cos(x, has_fma)[1]

    def finish(n: Expr, r: Expr) -> tuple[Expr]:
        """-sin(r) for n = 0, as x is r more than an odd multiple of pi/2."""
        return (_with_sign(_wide_sine(r), ~_to_sign(n, bit=0)),)

    return _reduced(absolute(x), BETWEEN_HALF_TURNS, finish, has_fma)[0]


@functools.lru_cache(maxsize=2)  # who asks for one of them mostly asks for the other next
def sin_and_cos(x: Expr, has_fma: bool) -> tuple[Expr, Expr]:
    """Both of one argument: they share its reduction and the polynomials."""

    def finish(n: Expr, r: Expr) -> tuple[Expr, Expr]:
        (sine, cosine), odd = sine_and_cosine(r), _is_odd(n)
        return (
            _with_sign(select(odd, cosine, sine), _to_sign(n, bit=1) ^ bits(x)),
            _with_sign(select(odd, sine, cosine), _to_sign(n + 1, bit=1)),
        )

    sine, cosine = _reduced(absolute(x), QUARTER_TURNS, finish, has_fma)
    return sine, cosine


def tan(x: Expr, has_fma: bool) -> Expr:
    def finish(n: Expr, r: Expr) -> tuple[Expr]:
        """tan(r), or -1 / tan(r) for odd n."""
        sine, cosine = sine_and_cosine(r)
        odd = _is_odd(n)
        quotient = select(odd, cosine, sine) / select(odd, sine, cosine)
        return (_with_sign(quotient, _to_sign(n, bit=0) ^ bits(x)),)

    return _reduced(absolute(x), QUARTER_TURNS, finish, has_fma)[0]


def _to_sign(n: Expr, bit: int) -> Expr:
    """One bit of an integer in the place of the sign."""
    return n << (n.dtype.bits - 1 - bit)


def _with_sign(value: Expr, sign: Expr) -> Expr:
    """`value` negated where the uppermost bit of `sign` is set."""
    return from_bits(bits(value) ^ (sign & format_of(value).sign_bit))


def _is_odd(n: Expr) -> Expr:
    return compare("ne", n & 1, 0)


def _wide_sine(r: Expr) -> Expr:
    """In f32, for |r| at most a little over pi/2."""
    square = r * r
    return fma(r * square, polynomial(square, _WIDE_SIN), r)


def sine_and_cosine(r: Expr) -> tuple[Expr, Expr]:
    """Both, for |r| at most a little over pi/4."""
    c = _CONSTANTS[r.dtype]
    square = r * r
    return fma(r * square, polynomial(square, c.sin), r), polynomial(square, c.cos)


def sine_and_cosine_in_parts(r: Expr, rest: Expr) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
    """Both of r + rest, each as a number and what its rounding leaves."""
    c = _CONSTANTS[r.dtype]
    square = r * r
    sine, sine_low = two_sum(r, r * square * polynomial(square, c.sin))
    cosine, cosine_low = two_sum(const(c.cos[0], r.dtype), square * polynomial(square, c.cos[1:]))
    return (sine, fma(rest, cosine, sine_low)), (cosine, fma(-rest, sine, cosine_low))


def _reduced(magnitude: Expr, grid: Grid, finish: Finish, has_fma: bool) -> tuple[Expr, ...]:
    """finish(n, r) with magnitude = (n + shift) spacing pi/2 + r; n an integer as wide as r, right
    modulo a whole turn, and |r| at most a little over half of the spacing.

    `finish` is expanded in both branches, so that one branch is all the usual case pays for.
    """
    fast = finish(*(_cody_waite if has_fma else _cody_waite_in_f64)(magnitude, grid))
    slow = finish(*reduction.by_digits(magnitude, grid))
    invalid = magnitude - magnitude  # an invalid operation for infinity, else 0
    is_huge = compare("gt", magnitude, _CONSTANTS[magnitude.dtype].limit)
    return tuple(
        [unlikely(is_huge, rare + invalid, usual) for rare, usual in zip(slow, fast, strict=True)]
    )


def _cody_waite(magnitude: Expr, grid: Grid) -> tuple[Expr, Expr]:
    """The first fma of r cancels without an error where n is not 0: its terms are multiples of the
    last place that the difference has."""
    rounding = format_of(magnitude).rounding
    if grid.shift:
        shifted = fma(magnitude, grid.per_radian, -grid.shift) + rounding
        n = shifted - rounding + grid.shift
    else:
        shifted = fma(magnitude, grid.per_radian, rounding)
        n = shifted - rounding
    r = magnitude
    for part in _CONSTANTS[magnitude.dtype].half_pi:
        r = fma(n, -part * grid.spacing, r)
    return bits(shifted), r


def _cody_waite_in_f64(magnitude: Expr, grid: Grid) -> tuple[Expr, Expr]:
    """Without fma: products that f64 holds exactly."""
    wide = convert(magnitude, F64)
    n = apply("round_even", wide * grid.per_radian - grid.shift)
    r = wide
    for part in _SHORT_HALF_PI:
        r = r - (n + grid.shift) * (part * grid.spacing)
    whole = apply("convert_in_range", n, dtype=I32)
    return convert(whole, format_of(magnitude).signed), convert(r, magnitude.dtype)
