"""Equations of index tuples: if two accesses touch the same element, which loop variables must have
had the same value?

Indices are affine forms over variables and other terms (quotients, remainders, loads); a variable
is settled when its coefficient outweighs everything else in some index, as in `i * 16 + j` with
j < 16.  "Not settled" means unknown, never independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Protocol

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Var, loads
from hlo_mlc.tensor.access import linearize

Interval = tuple[float, float]
# {atom: (coefficient in one index, coefficient in the other)} and a constant: their difference.
Form = tuple[dict[Expr, tuple[int, int]], int]


class Place(Protocol):
    """An element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]


def solve(
    a: Place,
    b: Place,
    varying: set[Var],
    unstable: Set[Buffer],
    known: Set[Expr] = frozenset(),
    highest: Mapping[Expr, int] = MappingProxyType({}),
) -> set[Var] | None:
    """The variables that are equal whenever an instance of `a` and one of `b` touch the same
    element; None where they never do.

    `varying` are the variables that may differ between the two instances; all others are the
    same.  Loads from `unstable` buffers are never assumed to give the same value twice.  `known`
    are terms that have one value in both instances; some are never more than their `highest`
    value, whatever their variables' ranges say.
    """
    return _Equation(a, b, varying, unstable, known, highest).solve()


class _Equation:
    """The difference of two index tuples, term by term, being solved for equal variables."""

    def __init__(
        self,
        a: Place,
        b: Place,
        varying: set[Var],
        unstable: Set[Buffer],
        known: Set[Expr],
        highest: Mapping[Expr, int],
    ) -> None:
        self.highest = highest
        self.open = set(varying)
        self.unstable = unstable
        self.equal: set[Expr] = set(known)
        self.parts: list[Apply] = []  # equal quotients and remainders
        self.a, self.b = a, b
        self.forms = [_paired(i, j) for i, j in zip(a.indices, b.indices, strict=True)]

    def solve(self) -> set[Var] | None:
        """The variables that are equal; None where the difference is never zero."""
        varying = frozenset(self.open)
        if not self._advance():
            return None
        # Row-major addresses join what a fused loop took apart: (f // n) * n + f % n is f, also
        # where there is a dimension between the two, in which both are at the same place.
        open_places = [
            (d, i, j)
            for d, i, j in zip(self.a.buffer.shape, self.a.indices, self.b.indices, strict=True)
            if i is not j or any(map(self._is_open, index.affine(i)[0]))
        ]
        if len(open_places) > 1 and any(
            not e.free.isdisjoint(self.open) for _, *both in open_places for e in both
        ):
            shape, first, second = zip(*open_places, strict=True)
            self.forms.append(_paired(linearize(first, shape), linearize(second, shape)))
            if not self._advance():
                return None
        return set(varying - self.open)

    def _advance(self) -> bool:
        """Settle what can be settled; False where some form can never be zero."""
        progress = True
        while progress:
            progress = False
            forms, self.forms = self.forms, []
            for form in forms:
                verdict = self._step(form)
                if verdict is None:
                    return False
                digits = () if verdict else self._split(form)
                if verdict or (not digits and any(map(self._is_open, form[0]))):
                    self.forms.append(form)  # others have nothing more to say
                self.forms += digits
                progress = progress or verdict or bool(digits)
            progress = self._join() or progress
        return True

    def _step(self, form: Form) -> bool | None:
        """Settle what this form settles; None if it can never be zero."""
        terms, offset = form
        ranges = [self._range(atom, *both) for atom, both in terms.items()]
        low, high = _total(offset, ranges)
        if low > 0 or high < 0:
            return None
        progress = False
        for n, (atom, (in_a, in_b)) in enumerate(terms.items()):
            if in_a != in_b or not self._is_open(atom):
                continue
            low, high = _total(offset, (*ranges[:n], *ranges[n + 1 :]))
            if -abs(in_a) < low and high < abs(in_a):
                self._settle(atom)
                progress = True
        return progress

    def _split(self, form: Form) -> tuple[Form, ...]:
        """Two forms that are zero where this one is: terms that are multiples of a number, and
        others that stay below it, as in `(i + j) * 16 + k` with k < 16; () where there are none."""
        terms, offset = form
        if len(terms) < 2:
            return ()
        for unit in sorted({abs(c) for both in terms.values() for c in both} - {0}, reverse=True):
            large = {
                atom: both for atom, both in terms.items() if both[0] % unit == both[1] % unit == 0
            }
            small = {atom: both for atom, both in terms.items() if atom not in large}
            if not (large and small):
                continue
            low, high = _total(offset, [self._range(atom, *both) for atom, both in small.items()])
            if -unit < low and high < unit:
                return (large, 0), (small, offset)
        return ()

    def _settle(self, atom: Expr) -> None:
        self.equal.add(atom)
        if isinstance(atom, Var):
            self.open.discard(atom)
        elif isinstance(atom, Apply) and atom.op in ("floordiv", "floormod"):
            self.parts.append(atom)
        elif isinstance(atom, Apply) and atom.op == "min":
            self.forms += _groups(atom)

    def _join(self) -> bool:
        """x // c and x % c both equal: x is."""
        for atom in self.parts:
            x, divisor = atom.args
            quotient, _ = index.affine(x // divisor.value)
            remainder, _ = index.affine(x % divisor.value)
            if all(
                part in self.equal or not self._is_open(part) for part in (*quotient, *remainder)
            ):
                self.parts.remove(atom)
                self.forms.append(_paired(x, x))
                return True
        return False

    def _is_open(self, atom: Expr) -> bool:
        """Whether `atom` may have two values in the two instances."""
        if atom in self.equal:
            return False
        if not atom.free.isdisjoint(self.open):
            return True
        return any([load.source in self.unstable for load in loads(atom)])

    def _range(self, atom: Expr, in_a: int, in_b: int) -> Interval:
        low, high = index.bounds(atom)
        high = min(high, self.highest.get(atom, high))
        if not self._is_open(atom):
            return _scaled(low, high, in_a - in_b)
        a_low, a_high = _scaled(low, high, in_a)
        b_low, b_high = _scaled(low, high, -in_b)
        return a_low + b_low, a_high + b_high


def _total(offset: int, ranges: Sequence[Interval]) -> Interval:
    """Between what an offset and terms in such ranges are, all together."""
    return offset + sum([low for low, _ in ranges]), offset + sum([high for _, high in ranges])


def _scaled(low: float, high: float, factor: int) -> Interval:
    if factor == 0:
        return 0, 0
    return (low * factor, high * factor) if factor > 0 else (high * factor, low * factor)


def _paired(i: Expr, j: Expr) -> Form:
    """i - j' as {atom: (coefficient in i, coefficient in j)} and a constant."""
    (left, left_offset), (right, right_offset) = index.affine(i), index.affine(j)
    terms = {atom: (c, right.get(atom, 0)) for atom, c in left.items()}
    terms.update({atom: (0, c) for atom, c in right.items() if atom not in left})
    return terms, left_offset - right_offset


def _groups(least: Apply) -> Iterator[Form]:
    """What is equal where min(a * s + b, c) is: a, if b < s and no a * s is above c, as in groups
    of tasks of which the last one is done again."""
    inner, limit = sorted(least.args, key=lambda arg: isinstance(arg, Const))
    if not isinstance(limit, Const):
        return
    terms, offset = index.affine(inner)
    for size in sorted(set(map(abs, terms.values())), reverse=True):
        large = {atom: c // size for atom, c in terms.items() if c % size == 0}
        small = [_scaled(*index.bounds(atom), c) for atom, c in terms.items() if atom not in large]
        most = sum(_scaled(*index.bounds(atom), c)[1] for atom, c in large.items())
        if (
            offset + sum(r[0] for r in small) >= 0
            and offset + sum(r[1] for r in small) < size
            and most * size <= limit.value
        ):
            yield {atom: (c, c) for atom, c in large.items()}, 0
