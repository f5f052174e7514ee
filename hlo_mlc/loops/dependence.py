"""Dependence analysis: which instances of statements may touch the same element of memory.

Everything rests on one question (loops/equations.py): if two accesses touch the same element, which
loop variables must have had the same value?
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, loads
from hlo_mlc.expr.core import walk as walk_expressions
from hlo_mlc.loops.accesses import Access, Inside, accesses
from hlo_mlc.loops.core import Accumulate, Call, For, LoopProgram, Stmt, walk
from hlo_mlc.loops.equations import solve
from hlo_mlc.loops.facts import Facts, below, impossible, learned, never_positive, resolved
from hlo_mlc.loops.regions import (
    Points,
    Unknown,
    apart,
    enumerated,
    merged_axes,
    never_equal,
    parted_axes,
)
from hlo_mlc.loops.rewrite import inlined
from hlo_mlc.tensor.combine import merging

__all__ = [
    "Access",
    "Conflict",
    "Memory",
    "accesses",
    "carried",
    "commutes",
    "lane_invariant",
    "meetings",
    "pairs",
    "same_reduction",
    "variables",
]


@dataclass(frozen=True, slots=True, eq=False)
class Conflict:
    """Two accesses, one of them a write, that may touch one element in different iterations."""

    first: Access
    second: Access
    certain: bool  # known to happen, not just not excluded

    def __str__(self) -> str:
        verb = "touch" if self.certain else "may touch"
        name = self.first.buffer.name
        if self.first.stmt is self.second.stmt:
            return f"iterations {verb} the same element of {name} in {self.first}"
        return (
            f"{self.first} and {self.second} {verb} the same element of {name} "
            "in different iterations"
        )


def same_reduction(a: Access, b: Access) -> bool:
    """True where both are updates of one declared reduction, whose order is free."""
    return (
        isinstance(a.stmt, Accumulate)
        and isinstance(b.stmt, Accumulate)
        and a.writes
        and b.writes
        and a.stmt.buffers == b.stmt.buffers
        and a.stmt.combiner == b.stmt.combiner
    )


def commutes(stmt: Accumulate) -> bool:
    """Whether the order of terms does not matter to an update."""
    return merging(stmt.combiner, stmt.terms, ()) is stmt.combiner


@dataclass(frozen=True, slots=True)
class Memory:
    """Which buffers of a program may share bytes."""

    alias: dict[Buffer, Buffer]
    scratch: dict[Buffer, tuple[int, int]]

    @staticmethod
    def of(program: LoopProgram) -> Memory:
        return Memory(
            dict(program.aliases), {b: (offset, offset + b.bytes) for b, offset in program.scratch}
        )

    def block(self, buffer: Buffer) -> Buffer:
        """The buffer that stands for `buffer` and its alias."""
        return self.alias.get(buffer, buffer)

    def may_overlap(self, a: Buffer, b: Buffer) -> bool:
        if self.block(a) == self.block(b):
            return True
        if a in self.scratch and b in self.scratch:
            (a_start, a_end), (b_start, b_end) = self.scratch[a], self.scratch[b]
            return a_start < b_end and b_start < a_end
        return False

    def owners(self, buffers: Iterable[Buffer]) -> dict[Buffer, Buffer]:
        """For each buffer one that stands for all that it may share memory with."""
        owners = {b: self.block(b) for b in buffers}
        first, reach = None, 0
        for b in sorted(owners.keys() & self.scratch.keys(), key=self.scratch.__getitem__):
            start, end = self.scratch[b]
            first = b if first is None or start >= reach else first
            owners[b], reach = first, max(reach, end)
        return owners

    def comparable(self, a: Buffer, b: Buffer) -> bool:
        """True where equal elements have equal indices."""
        return a == b or (
            self.block(a) == self.block(b) and a.shape == b.shape and a.dtype is b.dtype
        )


def pairs(
    memory: Memory, first: Iterable[Access], second: Iterable[Access]
) -> Iterator[tuple[Access, Access]]:
    """Pairs that may touch the same memory, at least one of the two writing."""
    second = list(second)
    for a in first:
        for b in second:
            if (a.writes or b.writes) and memory.may_overlap(a.buffer, b.buffer):
                yield a, b


def meetings(
    memory: Memory, first: Collection[Access], second: Collection[Access], varying: set[Var]
) -> Iterator[tuple[Access, Access, set[Var]]]:
    """Pairs that may touch the same element, whose order matters (that of updates by one declared
    reduction that commutes does not), and those of the `varying` variables that then agree."""
    unstable = {a.buffer for a in (*first, *second) if a.writes}
    for a, b in pairs(memory, first, second):
        if same_reduction(a, b) and commutes(a.stmt):
            continue
        agree = solve(a, b, varying, unstable) if memory.comparable(a.buffer, b.buffer) else set()
        if agree is not None:
            yield a, b, agree


def variables(statements: tuple[Stmt, ...]) -> set[Var]:
    """The variables of all loops in `statements`."""
    found: set[Var] = set()
    for stmt in walk(statements):
        if isinstance(stmt, For):
            found.add(stmt.var)
        elif isinstance(stmt, Call):
            found |= variables(inlined(stmt))
    return found


def lane_invariant(stmt: Accumulate, var: Var) -> bool:
    """Whether all iterations over `var` update the same element."""
    return all(var not in i.free for i in stmt.indices)


def carried(
    loop: For,
    memory: Memory,
    *,
    reductions_are_free: bool = False,
    only: Buffer | None = None,
    inside: Inside | None = None,
) -> Conflict | None:
    """A dependence between different iterations of `loop`, or None if there is provably none.

    With `reductions_are_free`, updates of one element by all iterations, through the same
    combiner, do not count; nor do atomic ones ever.  With `only`, nothing but that buffer counts;
    `inside` is what happens in the loop, if somebody knows it, or as much of it as counts.
    """
    if index.bounds(loop.extent)[1] <= 1:
        return None  # one iteration at most
    inside = Inside.of(loop.body, only) if inside is None else inside
    question = _Question.about(loop, memory, inside, only)
    for first, second in question.open():
        for a, b in ((a, b) for a in first for b in second if a.writes or b.writes):
            if same_reduction(a, b) and (
                (a.stmt.atomic and b.stmt.atomic)
                or (
                    reductions_are_free
                    and lane_invariant(a.stmt, loop.var)
                    and lane_invariant(b.stmt, loop.var)
                )
            ):
                continue
            if not memory.comparable(a.buffer, b.buffer):
                return Conflict(a, b, False)
            if not question.apart(a, b):
                return Conflict(a, b, _certain(a, b, loop, question.varying))
    return None


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether iterations of `loop` may touch the same element, asked of places, not statements:
    what is written out has many statements, but few places."""

    loop: For
    memory: Memory
    groups: tuple[dict[tuple, list[Access]], ...]  # by what may overlap, then by place
    varying: set[Var]
    unstable: Set[Buffer]
    depth: int  # of what is around the loop's body
    circumstances: dict[Access, tuple] = field(default_factory=dict)
    verdicts: dict[tuple, bool] = field(default_factory=dict)

    @classmethod
    def about(cls, loop: For, memory: Memory, inside: Inside, only: Buffer | None) -> _Question:
        touched = [a for a in inside.touched if only is None or a.buffer == only]
        owners = memory.owners({a.buffer: None for a in touched})
        written = {owners[a.buffer] for a in touched if a.writes}
        groups: dict[Buffer, dict[tuple, list[Access]]] = {}
        for a in touched:
            owner = owners[a.buffer]
            if owner in written:
                groups.setdefault(owner, {}).setdefault((a.buffer, a.indices), []).append(a)
        varying = {
            loop.var,
            *(
                s.var
                for path in {a.path for a in touched}
                for s, _ in path[inside.depth :]
                if isinstance(s, For)
            ),
        }
        return cls(loop, memory, tuple(groups.values()), varying, inside.written, inside.depth)

    def open(self) -> Iterator[tuple[list[Access], list[Access]]]:
        """The accesses to two places that the places alone do not keep apart."""
        for group in self.groups:
            if not self._have_parts(group):
                yield from self._open(list(group.values()))

    def _open(self, places: Sequence[list[Access]]) -> Iterator[tuple[list[Access], list[Access]]]:
        """The same of places that may overlap. Where loops are written out, most of them differ in
        constants alone: what settles two of them settles all that are as far apart."""
        forms: dict[tuple, int] = {}
        settled: dict[tuple, bool] = {}
        whole = [
            (place, any(x.writes for x in place), *_numbered(place[0], forms)) for place in places
        ]
        for n, (first, writes, form, offsets) in enumerate(whole):
            for second, also_writes, other, others in whole[n:]:
                a, b = first[0], second[0]
                if not (writes or also_writes) or not self.memory.may_overlap(a.buffer, b.buffer):
                    continue
                if self.memory.comparable(a.buffer, b.buffer):
                    key = form, other, tuple(map(operator.sub, offsets, others))
                    if key not in settled:
                        settled[key] = self._settled(a, b)
                    if settled[key] or self._differ(a, b):
                        continue
                yield first, second

    def _have_parts(self, places: Iterable[tuple[Buffer, tuple[Expr, ...]]]) -> bool:
        """Whether it is seen at a glance that each iteration has its own part of a buffer: some
        index is the same in all places, and nothing but the loop's variable changes it."""
        buffers, indices = zip(*places, strict=True)
        return all(b == buffers[0] for b in buffers[1:]) and any(
            all(i is column[0] for i in column[1:]) and self._counts(column[0])
            for column in zip(*indices, strict=True)
        )

    def _counts(self, i: Expr) -> bool:
        terms, _ = index.affine(i)
        return self.loop.var in terms and all(
            atom is self.loop.var
            or (
                atom.free.isdisjoint(self.varying)
                and not any(load.source in self.unstable for load in loads(atom))
            )
            for atom in terms
        )

    def _settled(
        self,
        a: Access,
        b: Access,
        known: Set[Expr] = frozenset(),
        highest: Mapping[Expr, int] = MappingProxyType({}),
    ) -> bool:
        settled = solve(a, b, self.varying, self.unstable, known, highest)
        return settled is None or self.loop.var in settled

    def _differ(self, a: Access, b: Access) -> bool:
        """Whether the loops around alone, which both are in the same iteration of, tell the places
        apart: rooms that are read and written in turns."""
        return any(
            i is not j and (i.free | j.free).isdisjoint(self.varying) and never_equal(i, j)
            for i, j in zip(a.indices, b.indices, strict=True)
            if not loads(i) and not loads(j)
        )

    def apart(self, a: Access, b: Access) -> bool:
        """Whether the accesses miss each other in different iterations, by all that is known about
        bounds of loops, branches and guards.  Slower than `solve`, so asked last, and once of those
        that differ in their buffers alone, as of arrays that are sorted together."""
        key = self._circumstances(a), self._circumstances(b)
        if key not in self.verdicts:
            self.verdicts[key] = self._apart(a.within(self.depth), b.within(self.depth))
        return self.verdicts[key]

    def _circumstances(self, access: Access) -> tuple:
        """All of an access that its place depends on."""
        found = self.circumstances.get(access)
        if found is None:
            inner = access.within(self.depth)
            extents = tuple([(s.var, s.extent) for s, _ in inner.path if isinstance(s, For)])
            found = access.buffer.shape, access.indices, inner.facts(), extents
            self.circumstances[access] = found
        return found

    def _apart(self, a: Access, b: Access) -> bool:
        loop, varying = self.loop, self.varying
        (outer,) = learned(loop)
        ours, theirs = (*outer, *a.facts()), (*outer, *b.facts())
        a, b = _without_single(a), _without_single(b)
        if self._in_numbers(a, b, ours, theirs):
            return True
        a, b = _resolved(a, ours), _resolved(b, theirs)
        fixed = _fixed(a, ours) & _fixed(b, theirs)
        if self._settled(a, b, fixed):
            return True
        highest = _highest((*a.indices, *b.indices), ours, theirs)
        if highest and self._settled(a, b, fixed, highest):
            return True
        if any(
            load.source in self.unstable
            for i in (*a.indices, *b.indices, *ours, *theirs)
            for load in loads(i)
        ):
            return False
        other = {v: Var(f"{v.name}'", v.dtype, v.extent) for v in varying}
        facts = (*ours, *(build.substitute(f, other) for f in theirs))
        _, merged = merged_axes(a.buffer.shape, (a.indices, b.indices))
        differences = [
            i - build.substitute(j, other)
            for places in ((a.indices, b.indices), merged)
            for i, j in zip(*places, strict=True)
        ]
        here, there = loop.var, other[loop.var]
        return all(
            any(_never_zero(d, (*facts, order)) for d in differences) or impossible((*facts, order))
            for order in (below(here, there), below(there, here))
        )

    def _in_numbers(self, a: Access, b: Access, ours: Facts, theirs: Facts) -> bool:
        """Whether the accesses miss each other, seen by putting in the numbers of the iterations,
        of those of a loop directly inside (the tasks of a group), and of the loops around, which
        both are in the same iteration of."""
        loop, shape = self.loop, a.buffer.shape
        around = {v for i in (*a.indices, *b.indices) for v in i.free} - self.varying
        inner = loop.body[0] if len(loop.body) == 1 else None
        inside = [s.var for s in (loop, inner) if isinstance(s, For) and s.var.extent is not None]
        if loop.var not in inside or any(v.extent is None for v in around):
            return False
        common = tuple(sorted(around, key=lambda v: v.name))
        places = parted_axes(merged_axes(shape, (a.indices, b.indices))[1], (ours, theirs))
        try:
            values = enumerated({v: v.extent for v in (*common, *inside)})
            parts = []
            for access, facts, place in zip((a, b), (ours, theirs), places, strict=True):
                extents = {
                    s.var: s.extent for s, _ in ((loop, 0), *access.path) if isinstance(s, For)
                }
                points = Points(values, extents)
                parts.append(points.boxes((*place, *common), facts, values[loop.var]))
        except Unknown:
            return False
        return apart(parts)


def _numbered(access: Access, forms: dict[tuple, int]) -> tuple[int, tuple[int, ...]]:
    """The number of the form of an access, which is its indices without constants, and these."""
    parts = [index.affine(i) for i in access.indices]
    form = access.buffer.shape, *(frozenset(terms.items()) for terms, _ in parts)
    return forms.setdefault(form, len(forms)), tuple([offset for _, offset in parts])


def _without_single(access: Access) -> Access:
    """The same without the variables of loops of one iteration, which would keep quotients that
    were simplified without them from being joined with remainders."""
    zero = {v: index.constant(0) for i in access.indices for v in i.free if v.extent == 1}
    return access.at(tuple(build.substitute(i, zero) for i in access.indices)) if zero else access


def _resolved(access: Access, facts: Facts) -> Access:
    return access.at(tuple(resolved(i, facts) for i in access.indices))


def _fixed(access: Access, facts: Facts) -> set[Expr]:
    """The quotients, of remainders in the indices, that can only have their largest value."""
    found = set()
    for node in walk_expressions(*access.indices):
        if isinstance(node, Apply) and node.op == "floormod":
            quotient = node.args[0] // node.args[1].value
            _, high = index.bounds(quotient)
            if high < index.INFINITY and never_positive(int(high) - quotient, facts):
                found.add(quotient)
    return found


def _highest(indices: Iterable[Expr], *known: Facts) -> dict[Expr, int]:
    """What the quotients in indices cannot exceed, whichever of the facts hold."""
    found: dict[Expr, int] = {}
    for atom in {atom for i in indices for atom in index.affine(i)[0]}:
        low, high = index.bounds(atom)
        if not isinstance(atom, Apply) or atom.op != "floordiv" or index.INFINITY in (-low, high):
            continue

        def covers(most: int, atom: Expr = atom) -> bool:
            above = atom - most
            return all(never_positive(above, facts) for facts in known)

        # Of all but the highest value by the ranges of variables, which is one in any case.
        found[atom] = int(low) + bisect.bisect_left(range(int(low), int(high)), True, key=covers)
    return found


def _never_zero(e: Expr, facts: Facts) -> bool:
    one = index.constant(1)
    return never_positive(e + one, facts) or never_positive(one - e, facts)


def _certain(a: Access, b: Access, loop: For, varying: set[Var]) -> bool:
    """Whether every iteration of `loop` touches one same element, whatever else happens."""
    _, trips = index.bounds(loop.extent)
    fixed = all(
        i is j and i.free.isdisjoint(varying) and not loads(i)
        for i, j in zip(a.indices, b.indices, strict=True)
    )
    unconditional = loop.body.count(a.stmt) and loop.body.count(b.stmt)
    return bool(fixed and unconditional and trips > 1 and not a.guards and not b.guards)
