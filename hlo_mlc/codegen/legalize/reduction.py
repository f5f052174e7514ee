"""Reduction by multiples of pi/2, and that of huge arguments in integer arithmetic (Payne, Hanek).

With magnitude = m 2**e, m an integer, the digits of 2/pi of weight above 2**(1-e) contribute
multiples of 4 to magnitude / (pi/2), so they do not matter.  The product of m with the digits that
follow, modulo 4, has n in its upper bits (two, or one of half turns) and the fraction below; it is
cut off so far down that the fraction is right however near to a multiple of pi/2 the argument is:
the nearest f32 is 2**-30 away, the nearest f64 2**-61 (both known from the continued fraction of
pi).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import unsigned
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import apply, compare, const, convert, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, I64, U64

# The first 1216 binary digits of 2/pi after the point; as a table, after one word of zeros for
# arguments that need digits before the point.
_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046fc7b6bab",
    16,
)
_DIGITS = 1216
_WORD = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """What to subtract from arguments: (n + shift) * spacing * pi/2."""

    bits: int  # of n in a whole turn
    shift: float = 0.0

    @property
    def spacing(self) -> int:
        return 4 >> self.bits

    @property
    def per_radian(self) -> float:
        return 2 / math.pi / self.spacing


QUARTER_TURNS, HALF_TURNS, BETWEEN_HALF_TURNS = Grid(2), Grid(1), Grid(1, 0.5)


def by_digits(magnitude: Expr, grid: Grid) -> tuple[Expr, Expr]:
    """(n, r) with magnitude = (n + shift) spacing pi/2 + r, n modulo a whole turn and as wide as r,
    for finite magnitude >= 2**10."""
    form = format_of(magnitude)
    raw = unsigned(magnitude)
    field = raw >> form.fraction_bits
    mantissa = (raw & (form.hidden_bit - 1)) | form.hidden_bit
    # The first digit that matters has weight 2**(1-e) with e = field - bias - fraction_bits.
    place = field - (form.bias + form.fraction_bits + 2 - _WORD)
    n, r = (_from_f32 if magnitude.dtype is F32 else _from_f64)(convert(mantissa, U64), place, grid)
    return convert(n, form.signed), convert(r, magnitude.dtype)


def _window(place: Expr, largest_place: int, count: int) -> list[Expr]:
    """`count` words of digits from `place` of the table on, as u64."""
    offset = convert(place & (_WORD - 1), U64)
    index = place >> 6
    words = [_word(i) for i in range(count + 1)]
    for first in range(1, largest_place // _WORD + 1):
        chosen = compare("eq", index, first)
        words = [select(chosen, _word(first + i), word) for i, word in enumerate(words)]
    rest = const(_WORD, U64) - offset  # shifts by a whole word give 0
    return [(word << offset) | (following >> rest) for word, following in itertools.pairwise(words)]


@functools.cache
def _word(number: int) -> Expr:
    """A word of the table."""
    digits = _TWO_OVER_PI >> (_DIGITS - _WORD * number) if number else 0
    return const(digits % (1 << _WORD), U64)


def _counted_from_shift(product: Expr, grid: Grid) -> Expr:
    """Of a product whose 2**64 are a whole turn: how far it is above what n = 0 stands for."""
    return product - int(grid.shift * 2.0 ** (_WORD - grid.bits)) if grid.shift else product


def _rounded(product: Expr, grid: Grid) -> Expr:
    """n, the fraction being rounded to the nearest integer."""
    return (product + (1 << (_WORD - 1 - grid.bits))) >> (_WORD - grid.bits)


def _radians(fraction: Expr, grid: Grid) -> Expr:
    """Of a fraction of the spacing in units of 2**-64."""
    return fraction * (2.0**-_WORD / grid.per_radian)


def _from_f32(mantissa: Expr, place: Expr, grid: Grid) -> tuple[Expr, Expr]:
    """96 digits times 24: the upper 64 bits of the product modulo 2**96."""
    first, second = _window(place, 254 - 88, count=2)
    below = (mantissa * (second >> 32)) >> 32
    product = _counted_from_shift(mantissa * first + below, grid)
    fraction = apply("bitcast", product << grid.bits, dtype=I64)
    return _rounded(product, grid), _radians(convert(fraction, F64), grid)


def _from_f64(mantissa: Expr, place: Expr, grid: Grid) -> tuple[Expr, Expr]:
    """192 digits times 53: the upper 128 bits of the product modulo 2**192."""
    first, second, third = _window(place, 2046 - 1013, count=3)
    carried = apply("mul_high", mantissa, third)
    low = mantissa * second + carried
    carry = convert(compare("lt", low, carried), U64)
    high = mantissa * first + apply("mul_high", mantissa, second) + carry
    high = _counted_from_shift(high, grid)
    # Both words are shifted to the left by the bits of n.
    upper = (high << grid.bits) | (low >> (_WORD - grid.bits))
    upper = convert(apply("bitcast", upper, dtype=I64), F64)
    lower = convert(low << grid.bits, F64) * 2.0**-64
    return _rounded(high, grid), _radians(upper + lower, grid)
