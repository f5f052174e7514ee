"""Division of integers: x / 0 is -1 (all ones), the smallest integer / -1 is itself.

Processors divide vectors of floats only.  A float with more than twice as many bits of precision as
the integers have gives their quotient exactly: unless it is an integer n itself, it differs from n
by at least 1 / divisor, which is more than the rounding of a quotient near n.
"""

from __future__ import annotations

from hlo_mlc.codegen.cpu import conversions, types
from hlo_mlc.codegen.cpu.site import Site
from hlo_mlc.expr.dtypes import F32, F64, I32, U64, DType

# A factor for reciprocals of 64-bit divisors in f64: quotients, each of four roundings by up to
# 2**-53 of itself, come out too small, by up to 2**-49 of themselves, and never too large.
_BELOW_ONE = 1 - 2.0**-50
# Quotients by these and larger ones have at most 49 bits: the first one is short by at most 1.
_ENOUGH_FOR_ONE_STEP = 1 << 15


def divide(site: Site, x: str, y: str) -> str:
    """x / y, rounded toward zero."""
    if types.is_literal(y):
        return _divide_by_literal(site, x, y)
    zero = site.op("icmp eq", y, site.literal(0))
    if not site.lanes or not _has_floats(site):
        divisor = _safe_divisor(site, x, y, zero)
        quotient = site.op("sdiv" if site.dtype.is_signed else "udiv", x, divisor)
    elif site.dtype.bits == 64:
        quotient, _ = _divide_in_steps(site, x, y, 2)
    else:
        quotient = _divide_as_floats(site, x, y)
    return site.select(zero, site.literal(-1), quotient)


def remainder(site: Site, x: str, y: str) -> str:
    """x - y * (x / y): x rem 0 is x, and the smallest integer rem -1 is 0."""
    if not types.is_literal(y):
        return site.op("sub", x, site.op("mul", divide(site, x, y), y))
    if y == site.literal(0):
        return x
    if y == site.literal(-1) and site.dtype.is_signed:
        return site.literal(0)
    if steps := _steps_of_literal(site, y):
        _, rest = _divide_in_steps(site, x, y, steps)
        return rest
    return site.op("srem" if site.dtype.is_signed else "urem", x, y)


def _divide_by_literal(site: Site, x: str, y: str) -> str:
    if y == site.literal(0):
        return site.literal(-1)
    if y == site.literal(-1) and site.dtype.is_signed:
        return site.op("sub", site.literal(0), x)
    if steps := _steps_of_literal(site, y):
        quotient, _ = _divide_in_steps(site, x, y, steps)
        return quotient
    return site.op("sdiv" if site.dtype.is_signed else "udiv", x, y)


def _steps_of_literal(site: Site, y: str) -> int:
    """How many steps of floats divide by a literal: none where LLVM multiplies and shifts vectors.

    Of 64 bits it does so lane by lane, as no vector has the upper halves of their products, but
    where it only shifts.
    """
    if not site.lanes or site.dtype.bits < 64 or not _has_floats(site):
        return 0
    if (value := types.value_of_splat(y)) is None or abs(value).bit_count() == 1:
        return 0
    return 1 if abs(value) >= _ENOUGH_FOR_ONE_STEP else 2


def _safe_divisor(site: Site, x: str, y: str, zero: str) -> str:
    """1 where a division would trap: dividing by 1 gives what -1 is defined to give there."""
    traps = zero
    if site.dtype.is_signed:
        mask = types.vector("i1", site.lanes)
        lowest = site.op("icmp eq", x, site.literal(-(1 << (site.dtype.bits - 1))))
        minus_one = site.op("icmp eq", y, site.literal(-1))
        overflow = site.block.define(f"and {mask} ", lowest, ", ", minus_one, lanes=site.lanes)
        traps = site.block.define(f"or {mask} ", zero, ", ", overflow, lanes=site.lanes)
    return site.select(traps, site.literal(1), y)


def _has_floats(site: Site) -> bool:
    """Whether vectors of such integers become floats and back by instructions of their own.

    Source: Intel SDM: those of 64 bits came with AVX-512, those of 32 bits and a sign with SSE2.
    """
    return site.dtype.bits < 64 or (site.target.is_x86 and site.target.vector_bytes == 64)


def _divide_as_floats(site: Site, x: str, y: str) -> str:
    """Any number where y is 0."""
    dtype = site.dtype
    if dtype.bits == 32:
        floats, wide = site._replace(dtype=F64), dtype
    else:  # f32 hold them, and i32 what they give
        floats, wide = site._replace(dtype=F32), I32
    quotient = _truncate(
        floats, floats.op("fdiv", *(_convert(site, v, floats.dtype) for v in (x, y))), wide
    )
    if wide is not dtype:
        return _convert(site._replace(dtype=wide), quotient, dtype)
    if not dtype.is_signed:
        return quotient
    minus_one = site.op("icmp eq", y, site.literal(-1))  # whose quotient may be one too large
    return site.select(minus_one, site.op("sub", site.literal(0), x), quotient)


def _divide_in_steps(site: Site, x: str, y: str, steps: int) -> tuple[str, str]:
    """The quotient and what it leaves; any numbers where y is 0.

    The first quotient is short by less than 2**15, what that leaves divides into a second one that
    is short by at most 1, and then the remainder tells.
    """
    if site.dtype.is_signed:
        unsigned = site._replace(dtype=U64)
        quotient, rest = _divide_in_steps(unsigned, *map(site.magnitude, (x, y)), steps)
        return _signed(site, quotient, site.op("xor", x, y)), _signed(site, rest, x)
    floats = site._replace(dtype=F64)
    inverse = floats.op("fdiv", floats.literal(_BELOW_ONE), _convert(site, y, F64))
    quotient, rest = site.literal(0), x
    for _ in range(steps):
        step = _truncate(floats, floats.op("fmul", _convert(site, rest, F64), inverse), U64)
        rest = site.op("sub", rest, site.op("mul", step, y))
        quotient = site.op("add", quotient, step)
    short = site.op("icmp uge", rest, y)
    return (
        site.select(short, site.op("add", quotient, site.literal(1)), quotient),
        site.select(short, site.op("sub", rest, y), rest),
    )


def _signed(site: Site, magnitude: str, like: str) -> str:
    """A number of 64 bits with the sign of another one."""
    sign = site.op("ashr", like, site.literal(63))
    return site.op("sub", site.op("xor", magnitude, sign), sign)


def _convert(site: Site, x: str, to: DType) -> str:
    return conversions.convert(site.block, site.target, x, site.dtype, to, site.lanes)


def _truncate(site: Site, x: str, to: DType) -> str:
    return conversions.truncate_in_range(site.block, x, site.dtype, to, site.lanes)
