"""What is known of an f32 where it is NaN, so that rounding to bf16 need not look for such.

Rounding adds to the lower half of the bits: a NaN with something there might become another number,
and one that signals would stay so.  What is widened from bf16 has nothing there; of such numbers,
arithmetic gives quiet NaNs with nothing there either: an operand's, or the processor's own.

Source: Intel SDM, volume 1, 4.8.3.5, rules for handling NaNs; Arm Architecture Reference Manual,
FPProcessNaN and FPDefaultNaN.
"""

from __future__ import annotations

import math
from enum import IntEnum

from hlo_mlc.expr.core import Apply, Const, Expr, walk
from hlo_mlc.expr.dtypes import BF16, F32

_HALF = 16  # bits


class Nans(IntEnum):
    """Which NaNs a number may be, from most to least."""

    ANY = 0
    SHORT = 1  # those with an empty lower half
    QUIET = 2  # of those the ones that do not signal


_ARITHMETIC = frozenset(("add", "sub", "mul", "div", "fma", "sqrt", "ldexp"))
_CHOICES = frozenset(("select", "select_unlikely"))
# Instructions, or choices between their results and what is rounded.
_PASSING_ON = frozenset(("neg", "abs", "floor", "ceil", "trunc", "round_even"))


class NansOf(dict[Expr, Nans]):
    """Those of legalized expressions."""

    def __missing__(self, node: Expr) -> Nans:
        for one in walk(node, into=lambda operand: operand.dtype is F32 and operand not in self):
            self[one] = self._of(one)
        return self[node]

    def _of(self, node: Expr) -> Nans:
        if isinstance(node, Const):
            return Nans.ANY if math.isnan(node.value) else Nans.QUIET
        if not isinstance(node, Apply) or node.dtype is not F32:
            return Nans.ANY
        op, args = node.op, node.args
        if op in _ARITHMETIC:
            return Nans.QUIET if all(self[x] for x in args) else Nans.ANY
        if op in _PASSING_ON:
            return self[args[0]]
        if op in _CHOICES:
            return min(self[args[1]], self[args[2]])
        if op in ("max", "min") and isinstance(args[1], Const):  # one of the two operands
            return min(self[args[0]], self[args[1]])
        if op == "convert":
            if args[0].dtype is BF16:
                return Nans.QUIET if _is_rounded(args[0]) else Nans.SHORT
            return Nans.ANY if args[0].dtype.is_float else Nans.QUIET
        if op == "bitcast" and _has_empty_half(args[0]):
            return Nans.SHORT
        return Nans.ANY


def _is_rounded(node: Expr) -> bool:
    """Whether a bf16 is what rounding gives, whose NaNs are quiet."""
    return isinstance(node, Apply) and node.op == "convert" and node.args[0].dtype is F32


def _has_empty_half(word: Expr) -> bool:
    """Whether the lower half of 32 bits is empty: exponents that were put in their place."""
    return (
        isinstance(word, Apply)
        and word.op == "shl"
        and isinstance(word.args[1], Const)
        and word.args[1].value >= _HALF
    )
