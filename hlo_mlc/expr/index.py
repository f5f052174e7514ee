"""Index arithmetic: affine normal form, bounds, and exact division.

Index values never overflow, so sums of multiples of atoms have one normal form.  That is what
turns `(f // n) * n + f % n` back into `f` after loops are fused, and tells which loop variable
walks through memory with which stride.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping

from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, text
from hlo_mlc.expr.dtypes import BOOL, INDEX

Terms = dict[Expr, int]
INFINITY = math.inf

# What was computed lately is remembered: of the sums that are asked for while a kernel is written,
# nineteen in twenty have been asked for before. Entries are small (a tuple and an expression).
_remembered = functools.lru_cache(maxsize=1 << 15)


@_remembered
def constant(value: int) -> Const:
    """An index literal."""
    return Const(int(value), INDEX)


def affine(e: Expr) -> tuple[Terms, int]:
    """`e` as sum(coefficient * atom) + constant; atoms are variables and non-affine terms."""
    if e._affine is None:
        e._affine = _affine(e)
    return e._affine


def _affine(e: Expr) -> tuple[Terms, int]:
    if isinstance(e, Const):
        return {}, e.value
    if isinstance(e, Apply) and e.op == "add":
        left, right = affine(e.args[0]), affine(e.args[1])
        return _sum(left, right, 1)
    if isinstance(e, Apply) and e.op == "mul" and isinstance(e.args[1], Const):
        terms, offset = affine(e.args[0])
        factor = e.args[1].value
        return {a: c * factor for a, c in terms.items()}, offset * factor
    return {e: 1}, 0


def _sum(left: tuple[Terms, int], right: tuple[Terms, int], factor: int) -> tuple[Terms, int]:
    """left + factor * right"""
    terms = dict(left[0])
    for atom, coefficient in right[0].items():
        total = terms.get(atom, 0) + factor * coefficient
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)
    return terms, left[1] + factor * right[1]


def from_affine(terms: Terms, offset: int) -> Expr:
    """The one expression with this normal form."""
    terms, offset = _rejoin(terms, offset)
    result: Expr | None = None
    for atom in sorted(terms, key=_place) if len(terms) > 1 else terms:
        coefficient = terms[atom]
        term = atom if coefficient == 1 else Apply("mul", (atom, constant(coefficient)), INDEX)
        result = term if result is None else Apply("add", (result, term), INDEX)
    if result is None:
        return constant(offset)
    return result if offset == 0 else Apply("add", (result, constant(offset)), INDEX)


def atoms(e: Expr) -> Collection[Expr]:
    """What a sum is a sum of multiples of; the children of anything else."""
    if not isinstance(e, Apply) or e.op not in ("add", "mul"):
        return e.children
    terms, _ = affine(e)
    return e.children if e in terms else terms


def with_atoms(e: Expr, new: Mapping[Expr, Expr]) -> Expr:
    """A sum of multiples of atoms, some of which are something new."""
    terms, offset = affine(e)
    total: Terms = {}
    for atom, coefficient in terms.items():
        inner, more = affine(new.get(atom, atom))
        offset += coefficient * more
        for part, factor in inner.items():
            count = total.get(part, 0) + coefficient * factor
            if count:
                total[part] = count
            else:
                total.pop(part, None)
    return from_affine(total, offset)


def _place(atom: Expr) -> tuple[bool, str]:
    """Where a multiple of an atom stands in a sum."""
    return type(atom) is not Var, atom._text or text(atom)


def weighted_sum(parts: Iterable[tuple[Expr, int]]) -> tuple[Terms, int]:
    """The normal form of sum(coefficient * expression)."""
    total: tuple[Terms, int] = {}, 0
    for part, coefficient in parts:
        total = _sum(total, affine(part), coefficient)
    return _rejoin(*total)


def _rejoin(terms: Terms, offset: int) -> tuple[Terms, int]:
    """k*c*(x // c) + k*(x % c)  ->  k*x"""
    for atom, coefficient in terms.items():
        if type(atom) is not Apply or atom.op not in ("floordiv", "floormod"):
            continue
        x, c = atom.args[0], atom.args[1].value
        k = coefficient
        if atom.op == "floordiv":
            k, inexact = divmod(coefficient, c)
            if inexact:
                continue
        # Either part may itself be a sum, or have become simpler; mostly, one of them is missing.
        quotient, remainder = floordiv(x, c), floormod(x, c)
        other = remainder if atom is quotient else quotient if atom is remainder else None
        if other is not None and any(a is not atom and a not in terms for a in affine(other)[0]):
            continue
        parts, shift = _sum(_sum(({}, 0), affine(quotient), k * c), affine(remainder), k)
        if all(terms.get(a) == v for a, v in parts.items()):
            rest = {a: v for a, v in terms.items() if a not in parts}
            return _rejoin(*_sum((rest, offset - shift), affine(x), k))
    return terms, offset


def _scaled(x: Expr, factor: int) -> Expr:
    terms, offset = affine(x)
    return from_affine({a: c * factor for a, c in terms.items()}, offset * factor)


def _index(x: Expr | int) -> Expr:
    return x if isinstance(x, Expr) else constant(x)


@_remembered
def add(x: Expr | int, y: Expr | int) -> Expr:
    return from_affine(*_sum(affine(_index(x)), affine(_index(y)), 1))


@_remembered
def subtract(x: Expr | int, y: Expr | int) -> Expr:
    return from_affine(*_sum(affine(_index(x)), affine(_index(y)), -1))


@_remembered
def multiply(x: Expr | int, y: Expr | int) -> Expr:
    x, y = _index(x), _index(y)
    if isinstance(y, Const):
        return _scaled(x, y.value) if y.value else constant(0)
    if isinstance(x, Const):
        return multiply(y, x)
    return Apply("mul", (x, y) if text(x) <= text(y) else (y, x), INDEX)


def _divide_terms(x: Expr, divisor: int) -> tuple[Terms, int, Terms, int]:
    """x == divisor * (whole) + rest, with as much as possible in `whole`."""
    terms, offset = affine(x)
    whole = {a: c // divisor for a, c in terms.items() if c % divisor == 0}
    rest = {a: c for a, c in terms.items() if c % divisor}
    return whole, offset // divisor, rest, offset % divisor


def _coarse(terms: Terms, offset: int, divisor: int) -> tuple[int, Expr, Expr] | None:
    """terms + offset == unit * coarse + fine with 0 <= fine < unit and `unit` dividing `divisor`.

    Then x // divisor is coarse // (divisor // unit): the position in a vector or tile does not
    matter to the division where tiles do not straddle.  None where nothing is gained.
    """
    for unit in sorted({math.gcd(c, divisor) for c in terms.values()}, reverse=True):
        if unit == 1:
            break
        fine = from_affine({a: c for a, c in terms.items() if c % unit}, offset % unit)
        low, high = bounds(fine)
        if low >= 0 and high < unit:
            coarse = {a: c // unit for a, c in terms.items() if c % unit == 0}
            return unit, from_affine(coarse, offset // unit), fine
    return None


@_remembered
def floordiv(x: Expr, divisor: int) -> Expr:
    """x // divisor, rounded toward minus infinity; divisor > 0."""
    if divisor == 1:
        return x
    whole, whole_offset, rest, rest_offset = _divide_terms(x, divisor)
    found = _coarse(rest, rest_offset, divisor)
    if found is not None:
        unit, coarse, _ = found
        quotient = floordiv(coarse, divisor // unit)
        terms, offset = _sum((whole, whole_offset), affine(quotient), 1)
        return from_affine(terms, offset)
    remainder = from_affine(rest, rest_offset)
    low, high = bounds(remainder)
    if low >= 0 and high < divisor:
        return from_affine(whole, whole_offset)
    terms, offset = _sum((whole, whole_offset), affine(_quotient(remainder, divisor)), 1)
    return from_affine(terms, offset)


def _quotient(x: Expr, divisor: int) -> Expr:
    """x // divisor with one division, the outermost op a remainder if there is one in x.

    So nested quotients and remainders of one value come out the same whatever their order:
    (a + x // c) // d == (a*c + x) // (c*d)   and   (x % (c*d)) // d == (x // d) % c
    """
    if isinstance(x, Apply) and x.op == "floormod" and x.args[1].value % divisor == 0:
        return floormod(floordiv(x.args[0], divisor), x.args[1].value // divisor)
    terms, offset = affine(x)
    for atom, factor in terms.items():
        if isinstance(atom, Apply) and atom.op == "floordiv" and factor == 1:
            inner, by = atom.args
            rest = {a: c * by.value for a, c in terms.items() if a is not atom}
            joined = _sum((rest, offset * by.value), affine(inner), 1)
            return floordiv(from_affine(*joined), divisor * by.value)
    return Apply("floordiv", (x, constant(divisor)), INDEX)


@_remembered
def floormod(x: Expr, divisor: int) -> Expr:
    """x - divisor * (x // divisor); divisor > 0."""
    if divisor == 1:
        return constant(0)
    _, _, rest, rest_offset = _divide_terms(x, divisor)
    remainder = from_affine(rest, rest_offset)
    low, high = bounds(remainder)
    if low >= 0 and high < divisor:
        return remainder
    found = _coarse(rest, rest_offset, divisor)
    if found is not None:
        unit, coarse, fine = found
        return add(multiply(floormod(coarse, divisor // unit), constant(unit)), fine)
    if (
        isinstance(remainder, Apply)
        and remainder.op == "floormod"
        and remainder.args[1].value % divisor == 0
    ):
        return floormod(remainder.args[0], divisor)
    return Apply("floormod", (remainder, constant(divisor)), INDEX)


@_remembered
def minimum(x: Expr | int, y: Expr | int) -> Expr:
    x, y = _index(x), _index(y)
    low, high = bounds(subtract(x, y))
    if high <= 0:
        return x
    if low >= 0:
        return y
    if isinstance(x, Apply) and x.op == "min" and isinstance(y, Const):
        inner, most = x.args
        if isinstance(most, Const):  # the larger number never counts
            return minimum(inner, y)
    return Apply("min", (x, y), INDEX)


@_remembered
def maximum(x: Expr | int, y: Expr | int) -> Expr:
    x, y = _index(x), _index(y)
    low, high = bounds(subtract(x, y))
    if low >= 0:
        return x
    if high <= 0:
        return y
    if isinstance(x, Apply) and x.op == "max" and isinstance(y, Const):
        inner, least = x.args
        if isinstance(least, Const):
            return maximum(inner, y)
    return Apply("max", (x, y), INDEX)


@_remembered
def compare(op: str, x: Expr | int, y: Expr | int) -> Expr:
    """x op y for index values, decided where the bounds decide it; without the position in a vector
    or tile where it cannot matter: 16 * i + j < 64 is i < 4 for j < 16; and without a division that
    is all there is: k // 3 < 2 is k < 6."""
    x, y = _index(x), _index(y)
    difference = subtract(x, y)
    low, high = bounds(difference)
    verdict = _verdict(op, low, high)
    if verdict is not None:
        return Const(verdict, BOOL)
    if op in ("lt", "ge"):
        terms, offset = affine(difference)
        if len(terms) == 1:
            ((atom, coefficient),) = terms.items()
            if coefficient == 1 and isinstance(atom, Apply) and atom.op == "floordiv":
                whole, divisor = atom.args
                return compare(op, whole, constant(-offset * divisor.value))
        found = _coarse(*affine(difference), 0)
        if found is not None and found[2].free:
            terms, offset = affine(found[1])
            return Apply(op, (from_affine(terms, 0), constant(-offset)), BOOL)
    return Apply(op, (x, y), BOOL)


def _verdict(op: str, low: float, high: float) -> bool | None:
    """Whether `difference op 0` for all differences from `low` to `high`, or for none of them."""
    match op:
        case "lt":
            always, never = high < 0, low >= 0
        case "le":
            always, never = high <= 0, low > 0
        case "gt":
            always, never = low > 0, high <= 0
        case "ge":
            always, never = low >= 0, high < 0
        case "eq":
            always, never = low == high == 0, low > 0 or high < 0
        case "ne":
            always, never = low > 0 or high < 0, low == high == 0
        case _:
            raise KeyError(op)
    return True if always else False if never else None


def bounds(e: Expr) -> tuple[float, float]:
    """Smallest and largest value that an index expression can take (±inf where unknown)."""
    if e._bounds is None:
        e._bounds = _bounds(e)
    return e._bounds


def _bounds(e: Expr) -> tuple[float, float]:
    if isinstance(e, Const):
        return e.value, e.value
    if isinstance(e, Var):
        return (0, e.extent - 1) if e.extent is not None else (-INFINITY, INFINITY)
    if isinstance(e, Load):
        return -INFINITY, INFINITY
    if e.op in ("add", "mul") and (e.op == "add" or isinstance(e.args[1], Const)):
        terms, low = affine(e)
        high = low
        for atom, coefficient in terms.items():
            ends = [coefficient * b for b in bounds(atom)]
            low, high = low + min(ends), high + max(ends)
        return low, high
    if e.op == "floordiv":
        low, high = bounds(e.args[0])
        divisor = e.args[1].value
        return (
            low // divisor if abs(low) != INFINITY else low,
            high // divisor if abs(high) != INFINITY else high,
        )
    if e.op == "floormod":
        low, high = bounds(e.args[0])
        divisor = e.args[1].value
        return 0, min(divisor - 1, high) if low >= 0 else divisor - 1
    if e.op in ("min", "max"):
        (a, b), (c, d) = bounds(e.args[0]), bounds(e.args[1])
        return (min(a, c), min(b, d)) if e.op == "min" else (max(a, c), max(b, d))
    if e.op in ("select", "select_unlikely"):
        (a, b), (c, d) = bounds(e.args[1]), bounds(e.args[2])
        return min(a, c), max(b, d)
    return _bounds_of_integer(e.args[0]) if e.op == "convert" else (-INFINITY, INFINITY)


def _bounds_of_integer(e: Expr) -> tuple[float, float]:
    """Those of an integer of another type, as far as its bits say."""
    dtype = e.dtype
    if (
        isinstance(e, Apply)
        and e.op == "and"
        and isinstance(e.args[1], Const)
        and e.args[1].value >= 0
    ):
        return 0, int(e.args[1].value)
    if not dtype.is_integer or dtype.bits >= INDEX.bits:
        return -INFINITY, INFINITY
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return low, low + (1 << dtype.bits) - 1


def coefficient(e: Expr, variable: Var) -> int | None:
    """How much `e` grows when `variable` grows by one; None where that is not constant."""
    terms, _ = affine(e)
    result = 0
    for atom, c in terms.items():
        if atom is variable:
            result += c
        elif variable in atom.free:
            return None
    return result
