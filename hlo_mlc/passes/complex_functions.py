"""Functions of complex numbers a + b i, on arrays of their real and imaginary parts.

Each part is right to a few units in its own last place or, of `exponential_minus_one`, `logistic`,
`power` and `atan2`, in that of the number; no step but of `atan2` leaves the range of numbers where
the result does not.  On branch cuts the sign of a zero says which side it is of.
Sources: Kahan, Branch cuts for complex elementary functions, 1987 (square root, tanh); Hull,
Fairgrieve and Tang, Implementing the complex arcsine and arccosine functions using exception
handling, TOMS 23, 1997; Ogita, Rump and Oishi, Accurate sum and dot product, SIAM J. Sci.
Comput. 26, 2005 (sums near a logarithm's zero); Smith, Algorithm 116, 1962 (division);
C11, annex G, for infinities and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hlo_mlc.expr.dtypes import F64
from hlo_mlc.passes.real_parts import Real

Complex = tuple[Real, Real]


def length(z: Complex) -> Real:
    """sqrt(a^2 + b^2) of numbers times a power of two, by which no square leaves the range: so
    whole numbers with a whole length have exactly that."""
    a, b = map(abs, z)
    large, limits = a.larger(b), a.range
    up, down = limits.scales
    is_huge, is_tiny = large > limits.squares_below, large < limits.sums_of_squares_above
    scale = is_huge.choose(a.like(down), is_tiny.choose(a.like(up), 1.0))
    back = is_huge.choose(a.like(1.0 / down), is_tiny.choose(a.like(1.0 / up), 1.0))
    a, b = a * scale, b * scale
    found = (a * a + b * b).sqrt() * back
    return _is_infinite(z).choose(found.like(math.inf), found)


def _is_infinite(z: Complex) -> Real:
    a, b = map(abs, z)
    return a.equals(math.inf) | b.equals(math.inf)


def divide(z: Complex, w: Complex) -> Complex:
    """Smith's division of finite numbers.  Of an infinite one only the direction counts, each part
    as one or zero: by a finite number it stays infinite, a finite number by it is zero.  By zero
    both parts are infinite times the sign of its real part, or NaN."""
    (a, b), (c, d) = z, w
    zero = c.equals(0.0) & d.equals(0.0)
    unbounded, vanishes = _is_infinite(z) & _is_finite(w), _is_finite(z) & _is_infinite(w)
    c, d = (vanishes.choose(_direction(part), part) for part in w)
    wide = abs(c) >= abs(d)
    large, small = wide.choose(c, d), wide.choose(d, c)
    ratio = small / large
    below = large + small * ratio
    # (a + b r) / q and (b - a r) / q where c is the larger, (a r + b) / q and (b r - a) / q else.
    ar, br = a * ratio, b * ratio
    over = wide.choose(a + br, ar + b), wide.choose(b - ar, br - a)
    # Undivided, so that the sign of what is very small is not lost.
    u, v = map(_direction, z)
    towards = u * c + v * d, v * c - u * d
    infinite, pole = a.like(math.inf), c.like(math.inf).with_sign_of(c)

    def part(own: Real, sign: Real, quotient: Real) -> Real:
        bounded = vanishes.choose(own.like(0.0).with_sign_of(quotient), quotient)
        return zero.choose(own * pole, unbounded.choose(sign * infinite, bounded))

    re, im = (part(own, sign, top / below) for own, sign, top in zip(z, towards, over, strict=True))
    return re, im


def _is_finite(z: Complex) -> Real:
    a, b = z
    return a.is_finite() & b.is_finite()


def _direction(part: Real) -> Real:
    """One where it is infinite, else zero, with its sign."""
    size = abs(part).equals(math.inf).choose(part.like(1.0), 0.0)
    return size.with_sign_of(part)


def exponential(z: Complex) -> Complex:
    a, b = z
    size = a.exp()
    on_axis, vanishes = b.equals(0.0), a.equals(-math.inf)
    turn = vanishes.choose(_finite(b), b)  # nothing, whatever the angle is
    re, im = _times_exp(turn.cos(), a), _times_exp(turn.sin(), a)
    return on_axis.choose(size, re), on_axis.choose(b, im)


def _finite(x: Real) -> Real:
    """Zero in the place of infinities and NaN."""
    return x.is_finite().choose(x, 0.0)


def _times_exp(factor: Real, exponent: Real) -> Real:
    """A product that may be in the range of numbers where its second factor is not."""
    half = (exponent * 0.5).exp()
    return (exponent > exponent.range.largest_exponent).choose(
        factor * half * half, factor * exponent.exp()
    )


def exponential_minus_one(z: Complex) -> Complex:
    """expm1(a) cos b - 2 sin(b / 2)^2, exp(a) sin b."""
    a, b = z
    half = (b * 0.5).sin()
    on_axis = b.equals(0.0)
    less_one = a.apply("exponential_minus_one")
    above = a > a.range.largest_exponent  # where one is nothing to what it is taken from
    re = above.choose(_times_exp(b.cos(), a), less_one * b.cos() - 2.0 * (half * half))
    return on_axis.choose(less_one, re), on_axis.choose(b, _times_exp(b.sin(), a))


def log(z: Complex) -> Complex:
    a, b = z
    return _log_length(a, b), b.apply("atan2", a)


def log_plus_one(z: Complex) -> Complex:
    a, b = z
    shifted = 1.0 + a
    near = _is_near_one(shifted, b)
    half_log = 0.5 * _precise_sum(2.0 * a, a, b).log1p()
    return near.choose(half_log, _log_far_length(shifted, b)), b.apply("atan2", shifted)


def _log_length(a: Real, b: Real) -> Real:
    """log |a + b i|: near a length of one it is what the square of that has more or less than one
    that counts."""
    half_log = 0.5 * _precise_sum(a.like(-1.0), a, b).log1p()
    return _is_near_one(a, b).choose(half_log, _log_far_length(a, b))


def _is_near_one(a: Real, b: Real) -> Real:
    """Whether |a + b i| is between a half and a little more than two."""
    large = abs(a).larger(abs(b))
    return (large >= 0.5) & (large <= 1.5)


def _log_far_length(a: Real, b: Real) -> Real:
    """log |a + b i| where that is not near zero."""
    large, small = abs(a).larger(abs(b)), abs(a).smaller(abs(b))
    ratio = small.equals(0.0).choose(small, small / large)
    found = large.log() + 0.5 * (ratio * ratio).log1p()
    return _is_infinite((a, b)).choose(found.like(math.inf), found)


def _precise_sum(first: Real, a: Real, b: Real) -> Real:
    """first + a^2 + b^2 as if computed with three times as many digits, of numbers of moderate
    size."""
    total, lost, rest = first, first.like(0.0), first.like(0.0)
    for high, low in (a.halves(), b.halves()):
        for term in (high * high, 2.0 * (high * low), low * low):
            total, error = _two_sum(total, term)
            lost, error = _two_sum(lost, error)
            rest = rest + error
    total, lost = _two_sum(total, lost)
    return total + (lost + rest)


def _two_sum(x: Real, y: Real) -> Complex:
    """The sum, and what rounding it has lost."""
    total = x + y
    shadow = total - x
    return total, (x - (total - shadow)) + (y - shadow)


def sqrt(z: Complex) -> Complex:
    """t = sqrt((|a| + |z|) / 2) and |b| / 2t, in the order that the sign of `a` says."""
    a, b = z
    x, y = map(abs, z)
    large, small = x.larger(y), x.smaller(y)
    ratio = small.equals(0.0).choose(small, small / large)
    hypotenuse = (1.0 + ratio * ratio).sqrt()
    more = (x >= y).choose(1.0 + hypotenuse, ratio + hypotenuse)
    root = x.equals(math.inf).choose(x, large.sqrt() * (0.5 * more).sqrt())
    other = y / (2.0 * root)
    right = a >= 0.0
    re, im = right.choose(root, other), right.choose(other, root)
    is_zero, up = large.equals(0.0), y.equals(math.inf)
    re = up.choose(y, is_zero.choose(re.like(0.0), re))
    im = up.choose(y, is_zero.choose(im.like(0.0), im))
    return re, im.with_sign_of(b)


def rsqrt(z: Complex) -> Complex:
    """The conjugate of the root, divided by |z|; of zero infinite, with no direction."""
    re, im = sqrt(z)
    scale = _scale(z)
    size, end = length((z[0] * scale, z[1] * scale)), _is_infinite(z)

    def part(of_root: Real) -> Real:
        return end.choose(of_root.like(0.0).with_sign_of(of_root), of_root * scale / size)

    return size.equals(0.0).choose(re.like(math.inf), part(re)), part(-im)


def _scale(z: Complex) -> Real:
    """A power of two by which the length of z is in the range of numbers."""
    return (abs(z[0]).larger(abs(z[1])) > 1.0).choose(z[0].like(0.25), 1.0)


def _times_cosh(factor: Real, x: Real) -> Real:
    """A product that may be in the range of numbers where its second factor is not."""
    half = (abs(x) * 0.5).exp()
    return (abs(x) > x.range.largest_exponent).choose(
        factor * (0.5 * half) * half, factor * x.apply_chlo("cosh")
    )


def _times_sinh(factor: Real, x: Real) -> Real:
    half = (abs(x) * 0.5).exp()
    return (abs(x) > x.range.largest_exponent).choose(
        factor * (0.5 * half).with_sign_of(x) * half, factor * x.apply_chlo("sinh")
    )


def sinh(z: Complex) -> Complex:
    """sinh a cos b, cosh a sin b."""
    a, b = z
    re = a.equals(0.0).choose(a * _finite(b).cos(), _times_sinh(b.cos(), a))
    return re, b.equals(0.0).choose(b, _times_cosh(b.sin(), a))


def cosh(z: Complex) -> Complex:
    """cosh a cos b, sinh a sin b."""
    a, b = z
    im = a.equals(0.0).choose(a * b.sin(), _times_sinh(b.sin(), a))
    on_axis = b.equals(0.0).choose(b * b.like(1.0).with_sign_of(a), im)
    return _times_cosh(b.cos(), a), on_axis


def tanh(z: Complex) -> Complex:
    """With t = tan b and s = sinh a: (1 + t^2) cosh(a) s and t, over 1 + (1 + t^2) s^2."""
    a, b = z
    flat = abs(a) > _FLAT
    near = flat.choose(a.like(1.0), a)
    t, s = b.apply_chlo("tan"), near.apply_chlo("sinh")
    more = 1.0 + t * t
    below = 1.0 + more * s * s
    re, im = more * near.apply_chlo("cosh") * s / below, t / below
    # Far out 4 sin(b) cos(b) exp(-2 |a|) is left, which is zero whatever b is in the end.
    far = b.sin() * b.cos() * 4.0 * (-2.0 * abs(a)).exp()
    end = abs(a).equals(math.inf)
    far = end.choose(b.like(0.0).with_sign_of(b.is_finite().choose(far, b)), far)
    re = (flat & (end | b.is_finite())).choose(re.like(1.0).with_sign_of(a), re)
    on_axis = b.equals(0.0)
    re = on_axis.choose(a.apply("tanh"), a.equals(0.0).choose(a, re))
    return re, on_axis.choose(b, flat.choose(far, im))


# From here on tanh is 1 in f64 as well: exp(-2 * 20) is 4e-18.
_FLAT = 20.0


def _turned(function: Callable[[Complex], Complex]) -> Callable[[Complex], Complex]:
    """-i f(i z)."""

    def turned(z: Complex) -> Complex:
        a, b = z
        re, im = function((-b, a))
        return im, -re

    return turned


def cos(z: Complex) -> Complex:
    """cosh(i z)."""
    a, b = z
    return cosh((-b, a))


def power(z: Complex, w: Complex) -> Complex:
    """|z|^c exp(-d arg z), at the angle d log |z| + c arg z; 0^w is 0 for real w > 0, z^0 is 1.

    What rounding does to logarithm and angle, the exponent multiplies: f32 goes through f64.
    """
    narrow = z[0].value.type.dtype
    (a, b), (c, d) = ((x.converted(F64), y.converted(F64)) for x, y in (z, w))
    angle, real = b.apply("atan2", a), d.equals(0.0)
    size = length((a, b)).apply("power", c) * real.choose(d.like(1.0), (-(d * angle)).exp())
    turn = c * angle + real.choose(d, d * _log_length(a, b))
    zero = a.equals(0.0) & b.equals(0.0)
    vanishes, is_one = zero & real & (c > 0.0), real & c.equals(0.0)
    re, im = size * turn.cos(), size * turn.sin()
    re = vanishes.choose(re.like(0.0), is_one.choose(re.like(1.0), re))
    im = (vanishes | is_one).choose(im.like(0.0), im)
    return re.converted(narrow), im.converted(narrow)


def atan2(y: Complex, x: Complex) -> Complex:
    """-i log((x + i y) / sqrt(x^2 + y^2)), as XLA has it; f32 goes through f64."""
    narrow = x[0].value.type.dtype
    (a, b), (c, d) = ((part.converted(F64) for part in z) for z in (x, y))
    squares = a * a - b * b + (c * c - d * d), 2.0 * (a * b + c * d)
    size, angle = log(divide((a - d, b + c), sqrt(squares)))
    return angle.converted(narrow), (-size).converted(narrow)


def sign(z: Complex) -> Complex:
    """z / |z|, and zeros as they are."""
    scale = _scale(z)
    a, b = z[0] * scale, z[1] * scale
    size = length((a, b))
    zero = size.equals(0.0)
    return zero.choose(a, a / size), zero.choose(b, b / size)


def logistic(z: Complex) -> Complex:
    """1 / (1 + e) with e = exp(-z), or 1 / e over that where e is large."""
    a, b = z
    left = a < 0.0
    size, turn = exponential((-abs(a), left.choose(b, -b)))
    over = left.choose(size, 1.0), left.choose(turn, 0.0)
    return divide(over, (1.0 + size, turn))


def _arc(x: Real, y: Real) -> Complex:
    """Of x + y i in the first quadrant: tan of its arcsine's real part is x over the first result,
    and the second is the imaginary part."""
    bounds = x.range
    big = (x >= bounds.squares_below) | (y >= bounds.squares_below)
    inner, low = x < 1.0, y < bounds.squares_above
    right, left = x + 1.0, x - 1.0
    to_right, to_left = length((right, y)), length((left, y))
    mean = 0.5 * (to_right + to_left)
    square = 0.5 * (y * y)
    beyond, within = to_left + left, to_left - left  # two forms of the same, each exact on its side
    half, sum_right = 0.5 * (mean + x), to_right + right
    across = (x <= 1.0).choose(
        (half * (2.0 * square / sum_right + within)).sqrt(),
        y * (half / sum_right + half / beyond).sqrt(),
    )
    more = inner.choose(
        (mean <= 1.5).choose(square / sum_right + square / within, mean - 1.0),
        square / sum_right + 0.5 * beyond,
    )
    height = (inner & low).choose(
        y / (-(right * left)).sqrt(), (more + (more * (mean + 1.0)).sqrt()).log1p()
    )
    far = math.log(2.0) + _log_far_length(x, y)
    return big.choose(y, across), big.choose(far, height)


def asin(z: Complex) -> Complex:
    a, b = z
    x = abs(a)
    across, height = _arc(x, abs(b))
    return x.apply("atan2", across).with_sign_of(a), height.with_sign_of(b)


def acos(z: Complex) -> Complex:
    a, b = z
    across, height = _arc(abs(a), abs(b))
    return across.apply("atan2", a), height.with_sign_of(-b)


def acosh(z: Complex) -> Complex:
    a, b = z
    across, height = _arc(abs(a), abs(b))
    return height, across.apply("atan2", a).with_sign_of(b)


def atanh(z: Complex) -> Complex:
    """log1p(4 x / ((1 - x)^2 + y^2)) / 4, and half the angle of (1 - x) (1 + x) - y^2 and 2 y."""
    a, b = z
    x, y = map(abs, z)
    bounds = x.range
    big = (x >= bounds.squares_below) | (y >= bounds.squares_below)
    left, right = 1.0 - x, 1.0 + x
    re = 0.25 * (4.0 * x / (left * left + y * y)).log1p()
    at_pole = x.equals(1.0) & (y < bounds.squares_above)
    re = at_pole.choose(0.5 * (math.log(2.0) - y.log()), re)
    im = 0.5 * (2.0 * y).apply("atan2", left * right - y * y)
    large, small = x.larger(y), x.smaller(y)
    ratio = small / large
    far = x / large / large / (1.0 + ratio * ratio)
    far = _is_infinite(z).choose(far.like(0.0), far)
    quarter = y.compare("NE", y).choose(y, math.pi / 2)
    return big.choose(far, re).with_sign_of(a), big.choose(quarter, im).with_sign_of(b)


FUNCTIONS: Mapping[str, Callable[[Complex], Complex]] = {
    "stablehlo.exponential": exponential,
    "stablehlo.exponential_minus_one": exponential_minus_one,
    "stablehlo.log": log,
    "stablehlo.log_plus_one": log_plus_one,
    "stablehlo.sqrt": sqrt,
    "stablehlo.rsqrt": rsqrt,
    "stablehlo.sign": sign,
    "stablehlo.logistic": logistic,
    "stablehlo.sine": _turned(sinh),
    "stablehlo.cosine": cos,
    "stablehlo.tan": _turned(tanh),
    "stablehlo.tanh": tanh,
    "chlo.tan": _turned(tanh),
    "chlo.sinh": sinh,
    "chlo.cosh": cosh,
    "chlo.asin": asin,
    "chlo.acos": acos,
    "chlo.atan": _turned(atanh),
    "chlo.asinh": _turned(asin),
    "chlo.acosh": acosh,
    "chlo.atanh": atanh,
}
"""Those of one number, by the op that stands for them."""
FUNCTIONS_OF_TWO: Mapping[str, Callable[[Complex, Complex], Complex]] = {
    "stablehlo.power": power,
    "stablehlo.atan2": atan2,
}
"""Those of two numbers that are no arithmetic."""
