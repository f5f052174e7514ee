"""The loops around an access, by whole numbers: loops over parts of a number count
as one over all of it, and digits that indices ask for have loops of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Const, Expr, Var, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.accesses import Access
from hlo_mlc.loops.core import For
from hlo_mlc.loops.facts import below, least


@dataclass(frozen=True, slots=True)
class LoopNest:
    """The loops around an access: its indices, facts about it, the extents of variables."""

    indices: Sequence[Expr]
    facts: Sequence[Expr]
    extents: Mapping[Var, Expr]

    @classmethod
    def around(cls, access: Access, facts: Sequence[Expr] = ()) -> LoopNest:
        """The loops of an access, where those over parts of a number, such as groups of tasks or
        threads of blocks, count as one loop over all of it."""
        extents = {s.var: s.extent for s, _ in access.path if isinstance(s, For)}
        nest = cls(access.indices, facts, extents)._numbered()._taken_apart()._numbered()
        return nest._narrowed()

    def renumbered(self) -> LoopNest:
        """The same with loops over parts of a number in one, as the indices are now."""
        return self._numbered()._narrowed()

    def _numbered(self) -> LoopNest:
        """The same with one loop over `high * size + low` for two, as often as that takes no
        division that there was not."""
        pairs = self._pairs()
        most = len(self._divisions()) if pairs else 0
        merged = (self._in_one(high, low) for high, low in pairs)
        found = next((nest for nest in merged if len(nest._divisions()) <= most), None)
        return self if found is None else found._numbered()

    def _pairs(self) -> Mapping[tuple[Var, Var], None]:
        """The variables of loops that conditions or divisions have as `high * size + low`."""
        sums = (*self.facts, *self._limits(), *(d.args[0] for d in self._divisions()))
        return {
            (high, low): None
            for terms, _ in map(index.affine, sums)
            for low, high in itertools.permutations(terms, 2)
            if low in self.extents
            and high in self.extents
            and isinstance(self.extents[high], Const)
            and terms[high] == terms[low] * (self._size(low) or 0)
        }

    def _in_one(self, high: Var, low: Var) -> LoopNest:
        """The same with one loop for two, which a condition on its variable alone cuts short."""
        size, facts = self._size(low), (*self.facts, *self._limits(low))
        count = size * self.extents[high].value
        left = []
        for fact in facts:
            terms, offset = index.affine(fact)
            if terms.keys() == {high, low} and terms[high] == terms[low] * size > 0:
                count = min(count, -offset // terms[low] + 1)
            else:
                left.append(fact)
        count = max(0, count)
        number = Var(f"{high.name}+{low.name}", INDEX, count)
        place = {high: index.floordiv(number, size), low: index.floormod(number, size)}
        return replace(self, facts=left)._in_terms_of([number], place)

    def _in_terms_of(self, new: Iterable[Var], place: Mapping[Var, Expr]) -> LoopNest:
        """The same with loops over other variables, in terms of which those are that go."""
        extents = {v: build.substitute(e, place) for v, e in self.extents.items() if v not in place}
        return LoopNest(
            [build.substitute(i, place) for i in self.indices],
            [build.substitute(f, place) for f in self.facts],
            extents | {v: index.constant(v.extent) for v in new},
        )

    def _narrowed(self) -> LoopNest:
        """The same where loops begin and end where conditions on their variable alone say, and what
        cuts others short is a condition."""
        extents, left = dict(self.extents), []
        cut_short = [v for v, e in extents.items() if v.extent and not isinstance(e, Const)]
        limits = self._limits(*cut_short) if cut_short else []
        extents.update((v, index.constant(v.extent)) for v in cut_short)
        first: dict[Var, int] = {}
        for fact in (*self.facts, *limits):
            terms, offset = index.affine(fact)
            (v, *more) = terms or (None,)
            if v not in extents or more or not isinstance(extents[v], Const):
                left.append(fact)
            elif terms[v] > 0:
                count = min(extents[v].value, -offset // terms[v] + 1)
                extents[v] = index.constant(max(0, count))
            else:
                first[v] = max(first.get(v, 0), -(offset // terms[v]))
        place, later = {}, []
        for v, begin in first.items():
            if begin > 0:
                count = max(0, extents[v].value - begin)
                later.append(Var(f"{v.name}-{begin}", INDEX, count))
                place[v] = later[-1] + begin
        nest = LoopNest(self.indices, left, extents)
        return nest._in_terms_of(later, place) if place else nest

    def _size(self, v: Var) -> int | None:
        """How many values a variable has at most, if that is known."""
        extent = self.extents[v]
        return max(0, extent.value) if isinstance(extent, Const) else v.extent

    def _limits(self, *of: Var) -> list[Expr]:
        """What extents that are no numbers say of the variables, or of some of them."""
        return [
            below(v, bound)
            for v in of or self.extents
            if not isinstance(self.extents[v], Const)
            for bound in least(self.extents[v])
            if not isinstance(bound, Const) or v.extent is None or bound.value < v.extent
        ]

    def _divisions(self) -> list[Apply]:
        return [
            e
            for e in walk(*self.indices, *self.facts, *self.extents.values())
            if isinstance(e, Apply) and e.op in ("floordiv", "floormod")
        ]

    def _taken_apart(self) -> LoopNest:
        """The same with loops of their own for the digits of a loop's variable, where that saves
        divisions: `f // 8 % 4`, `f % 8` and `f // 32` of one that ends at 64 are below 4, 8 and 2,
        each with all values of the others, in whatever they are asked for."""
        nest, divisions = self, self._divisions()
        for v in self.extents if divisions else ():
            nest = nest._in_digits(v, divisions) or nest
        return nest

    def _in_digits(self, v: Var, divisions: Iterable[Apply]) -> LoopNest | None:
        """The same with loops for the digits of a variable that divisions ask for, if it has such,
        they save any, and no condition is about all of it."""
        found = [digit for e in divisions if (digit := _digit(e, v)) is not None]
        extent = self.extents[v]
        if not found or not isinstance(extent, Const):
            return None
        if any(v in index.affine(fact)[0] for fact in (*self.facts, *self._limits())):
            return None
        ends = sorted({1, extent.value}.union(*((step, step * count) for step, count in found)))
        if ends[-1] > extent.value or any(end % step for step, end in itertools.pairwise(ends)):
            return None
        digits = {
            Var(f"{v.name}<{v.extent}/{step}", INDEX, end // step): step
            for step, end in itertools.pairwise(ends)
        }
        nest = self._in_terms_of(digits, {v: index.from_affine(digits, 0)})
        return nest if len(nest._divisions()) < len(self._divisions()) else None


def _digit(division: Apply, v: Var) -> tuple[int, int] | None:
    """Of `v // step % count`, the step and how many values there are; None for what is no digit."""
    low, high = index.bounds(division)
    step, inner = 1, division
    if inner.op == "floormod":
        if high + 1 != inner.args[1].value:
            return None
        inner = inner.args[0]
    if isinstance(inner, Apply) and inner.op == "floordiv":
        inner, step = inner.args[0], inner.args[1].value
    return (step, int(high) + 1) if inner is v and low == 0 else None
