"""Dependence analysis: which instances of statements may touch the same element of memory.

Everything rests on one question: if two accesses touch the same element, which loop variables
must have had the same value?  Indices are affine forms over variables and other terms (quotients,
remainders, loads); a variable is settled when its coefficient outweighs everything else in some
index, as in `i * 16 + j` with j < 16.  "Not settled" means unknown, never independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, loads
from hlo_mlc.expr.core import walk as walk_expressions
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    LoopProgram,
    Stmt,
    Store,
    bodies,
    walk,
)
from hlo_mlc.loops.facts import (
    Facts,
    below,
    impossible,
    learned,
    never_positive,
    of_condition,
    resolved,
)
from hlo_mlc.loops.rewrite import expressions, inlined
from hlo_mlc.loops.text import headline

Interval = tuple[float, float]
# The statements around something, and in which of their bodies it is.
Path = tuple[tuple[Stmt, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One place in a program where `buffer[indices]` is touched."""

    stmt: Stmt
    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    guards: tuple[Expr, ...] = ()
    path: Path = ()

    def __str__(self) -> str:
        return f"`{headline(self.stmt)}`"

    def facts(self) -> Facts:
        """What is known where the access happens, about the loops and branches of its path."""
        around = [fact for stmt, branch in self.path for fact in learned(stmt)[branch]]
        return (*around, *(fact for guard in self.guards for fact in of_condition(guard)))


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
        return (f"{self.first} and {self.second} {verb} the same element of {name} "
                "in different iterations")


def accesses(statements: tuple[Stmt, ...], only: Buffer | None = None) -> list[Access]:
    """The accesses to buffers that exist outside `statements`, or to just one of these, in
    program order."""
    found: list[Access] = []
    private: set[Buffer] = set()
    _collect(statements, (), only, found, private)
    return [a for a in found if a.buffer not in private] if private else found


def _collect(statements: tuple[Stmt, ...], path: Path, only: Buffer | None, found: list[Access],
             private: set[Buffer]) -> None:
    for stmt in statements:
        if isinstance(stmt, Call):
            _collect(inlined(stmt), path, only, found, private)
            continue
        if isinstance(stmt, Allocate):
            private.add(stmt.buffer)
        _own(stmt, path, only, found)
        for branch, body in enumerate(bodies(stmt)):
            _collect(body, (*path, (stmt, branch)), only, found, private)


def _own(stmt: Stmt, path: Path, only: Buffer | None, found: list[Access]) -> None:
    written: tuple[Buffer, ...] = ()
    guard = None
    if isinstance(stmt, Store):
        written, guard = (stmt.buffer,), stmt.guard
    elif isinstance(stmt, Accumulate):
        written, guard = stmt.buffers, stmt.guard
    guards = () if guard is None else (guard,)
    seen = set()
    for e in expressions(stmt):
        for load in loads(e):
            if load not in seen and (only is None or load.source == only):
                seen.add(load)
                own = () if load.guard is None else (load.guard,)
                outer = () if e is guard else guards
                found.append(Access(stmt, load.source, load.indices, False, (*outer, *own), path))
    for buffer in written:
        if only is None or buffer == only:
            found.append(Access(stmt, buffer, stmt.indices, True, guards, path))


def same_reduction(a: Access, b: Access) -> bool:
    """True where both are updates of one declared reduction, whose order is free."""
    return (isinstance(a.stmt, Accumulate) and isinstance(b.stmt, Accumulate) and a.writes
            and b.writes and a.stmt.buffers == b.stmt.buffers
            and a.stmt.combiner == b.stmt.combiner)


@dataclass(frozen=True, slots=True)
class Memory:
    """Which buffers of a program may share bytes."""

    alias: dict[Buffer, Buffer]
    scratch: dict[Buffer, tuple[int, int]]

    @staticmethod
    def of(program: LoopProgram) -> Memory:
        return Memory(dict(program.aliases),
                      {b: (offset, offset + b.bytes) for b, offset in program.scratch})

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

    def comparable(self, a: Buffer, b: Buffer) -> bool:
        """True where equal elements have equal indices."""
        return a == b or (self.block(a) == self.block(b) and a.shape == b.shape
                          and a.dtype is b.dtype and a.strides == b.strides)


def pairs(memory: Memory, first: Iterable[Access],
          second: Iterable[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs that may touch the same memory, at least one of the two writing."""
    second = list(second)
    for a in first:
        for b in second:
            if (a.writes or b.writes) and memory.may_overlap(a.buffer, b.buffer):
                yield a, b


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


def carried(loop: For, memory: Memory, *, reductions_are_free: bool = False,
            only: Buffer | None = None) -> Conflict | None:
    """A dependence between different iterations of `loop`, or None if there is provably none.

    With `reductions_are_free`, updates of one element by all iterations, through the same
    combiner, do not count; nor do atomic ones ever.  With `only`, nothing but that buffer counts.
    """
    if index.bounds(loop.extent)[1] <= 1:
        return None  # one iteration at most
    touched = accesses(loop.body, only)
    written = [a for a in touched if a.writes]
    varying = variables((loop,))
    unstable = {a.buffer for a in written}
    independent: set[tuple] = set()  # many accesses have the same indices: ask once
    for a, b in pairs(memory, written, touched):
        if same_reduction(a, b) and a.stmt.atomic and b.stmt.atomic:
            continue
        if reductions_are_free and same_reduction(a, b) and lane_invariant(a.stmt, loop.var) \
                and lane_invariant(b.stmt, loop.var):
            continue
        if not memory.comparable(a.buffer, b.buffer):
            return Conflict(a, b, False)
        question = a.indices, b.indices, a.buffer.shape
        if question in independent:
            continue
        settled = settle(a, b, varying, unstable)
        if settled is None or loop.var in settled:
            independent |= {question, (b.indices, a.indices, a.buffer.shape)}
        elif not _apart(a, b, loop, varying, unstable):
            return Conflict(a, b, _certain(a, b, loop, varying))
    return None


def _apart(a: Access, b: Access, loop: For, varying: set[Var], unstable: set[Buffer]) -> bool:
    """Whether the accesses miss each other in different iterations, by all that is known about
    bounds of loops, branches and guards.  Slower than `settle`, so asked last."""
    outer, = learned(loop)
    ours, theirs = (*outer, *a.facts()), (*outer, *b.facts())
    a, b = _resolved(a, ours), _resolved(b, theirs)
    settled = settle(a, b, varying, unstable, _fixed(a, ours) & _fixed(b, theirs))
    if settled is None or loop.var in settled:
        return True
    if any(load.source in unstable for i in (*a.indices, *b.indices, *ours, *theirs)
           for load in loads(i)):
        return False
    other = {v: Var(f"{v.name}'", v.dtype, v.extent) for v in varying}
    facts = (*ours, *(build.substitute(f, other) for f in theirs))
    differences = [index.subtract(i, build.substitute(j, other))
                   for i, j in zip(a.indices, b.indices, strict=True)]
    here, there = loop.var, other[loop.var]
    return all(any(_never_zero(d, (*facts, order)) for d in differences)
               or impossible((*facts, order))
               for order in (below(here, there), below(there, here)))


def _resolved(access: Access, facts: Facts) -> Access:
    indices = tuple(resolved(i, facts) for i in access.indices)
    return Access(access.stmt, access.buffer, indices, access.writes, access.guards, access.path)


def _fixed(access: Access, facts: Facts) -> set[Expr]:
    """The quotients, of remainders in the indices, that can only have their largest value."""
    found = set()
    for node in walk_expressions(*access.indices):
        if isinstance(node, Apply) and node.op == "floormod":
            quotient = index.floordiv(node.args[0], node.args[1].value)
            _, high = index.bounds(quotient)
            if high < index.INFINITY and never_positive(
                    index.subtract(index.constant(int(high)), quotient), facts):
                found.add(quotient)
    return found


def _never_zero(e: Expr, facts: Facts) -> bool:
    one = index.constant(1)
    return never_positive(index.add(e, one), facts) \
        or never_positive(index.subtract(one, e), facts)


def _certain(a: Access, b: Access, loop: For, varying: set[Var]) -> bool:
    """Whether every iteration of `loop` touches one same element, whatever else happens."""
    _, trips = index.bounds(loop.extent)
    fixed = all(i is j and i.free.isdisjoint(varying) and not loads(i)
                for i, j in zip(a.indices, b.indices, strict=True))
    unconditional = loop.body.count(a.stmt) and loop.body.count(b.stmt)
    return bool(fixed and unconditional and trips > 1 and not a.guards and not b.guards)


def settle(a: Access, b: Access, varying: set[Var], unstable: set[Buffer],
           known: Set[Expr] = frozenset()) -> set[Var] | None:
    """The variables that are equal whenever an instance of `a` and one of `b` touch the same
    element; None where they never do.

    `varying` are the variables that may differ between the two instances; all others are the
    same.  Loads from `unstable` buffers are never assumed to give the same value twice.  `known`
    are terms that have one value in both instances.
    """
    return _Equation(a, b, varying, unstable, known).solve()


class _Equation:
    """The difference of two index tuples, term by term, being solved for equal variables."""

    def __init__(self, a: Access, b: Access, varying: set[Var], unstable: set[Buffer],
                 known: Set[Expr]) -> None:
        self.open = set(varying)
        self.unstable = unstable
        self.equal: set[Expr] = set(known)
        self.a, self.b = a, b
        self.forms = [_paired(i, j) for i, j in zip(a.indices, b.indices, strict=True)]

    def solve(self) -> set[Var] | None:
        """The variables that are equal; None where the difference is never zero."""
        varying = frozenset(self.open)
        if not self._advance():
            return None
        shape, indices = self.a.buffer.shape, (*self.a.indices, *self.b.indices)
        if len(shape) > 1 and all(isinstance(d, int) for d in shape) \
                and any(not i.free.isdisjoint(self.open) for i in indices):
            # Row-major addresses join what a fused loop took apart: (f // n) * n + f % n is f.
            self.forms.append(_paired(_address(self.a), _address(self.b)))
            if not self._advance():
                return None
        return set(varying - self.open)

    def _advance(self) -> bool:
        """Settle what can be settled; False where some form can never be zero."""
        progress = True
        while progress:
            progress = False
            for form in list(self.forms):
                verdict = self._step(form)
                if verdict is None:
                    return False
                progress = progress or verdict
        return True

    def _step(self, form: tuple[dict[Expr, tuple[int, int]], int]) -> bool | None:
        """Settle what this form settles; None if it can never be zero."""
        terms, offset = form
        ranges = {atom: self._range(atom, *both) for atom, both in terms.items()}
        low = offset + sum(r[0] for r in ranges.values())
        high = offset + sum(r[1] for r in ranges.values())
        if low > 0 or high < 0:
            return None
        progress = False
        for atom, (in_a, in_b) in terms.items():
            if in_a != in_b or atom in self.equal or not self._is_open(atom):
                continue
            rest = [r for other, r in ranges.items() if other is not atom]
            low, high = offset + sum(r[0] for r in rest), offset + sum(r[1] for r in rest)
            if -abs(in_a) < low and high < abs(in_a):
                self._settle(atom)
                progress = True
        return progress

    def _settle(self, atom: Expr) -> None:
        self.equal.add(atom)
        if isinstance(atom, Var):
            self.open.discard(atom)
        elif isinstance(atom, Apply) and atom.op in ("floordiv", "floormod"):
            # x // c and x % c both equal: x is.
            x, divisor = atom.args
            quotient, _ = index.affine(index.floordiv(x, divisor.value))
            remainder, _ = index.affine(index.floormod(x, divisor.value))
            if all(part in self.equal or not self._is_open(part)
                   for part in (*quotient, *remainder)):
                self.forms.append(_paired(x, x))

    def _is_open(self, atom: Expr) -> bool:
        """Whether `atom` may have two values in the two instances."""
        if atom in self.equal:
            return False
        return not atom.free.isdisjoint(self.open) or self._reads_unstable(atom)

    def _reads_unstable(self, atom: Expr) -> bool:
        return any(load.source in self.unstable for load in loads(atom))

    def _range(self, atom: Expr, in_a: int, in_b: int) -> Interval:
        low, high = index.bounds(atom)
        if not self._is_open(atom):
            return _scaled(low, high, in_a - in_b)
        a_low, a_high = _scaled(low, high, in_a)
        b_low, b_high = _scaled(low, high, -in_b)
        return a_low + b_low, a_high + b_high


def _scaled(low: float, high: float, factor: int) -> Interval:
    if factor == 0:
        return 0, 0
    return (low * factor, high * factor) if factor > 0 else (high * factor, low * factor)


def _paired(i: Expr, j: Expr) -> tuple[dict[Expr, tuple[int, int]], int]:
    """i - j' as {atom: (coefficient in i, coefficient in j)} and a constant."""
    (left, left_offset), (right, right_offset) = index.affine(i), index.affine(j)
    terms = {atom: (c, right.get(atom, 0)) for atom, c in left.items()}
    terms.update({atom: (0, c) for atom, c in right.items() if atom not in left})
    return terms, left_offset - right_offset


def _address(access: Access) -> Expr:
    result, step = index.constant(0), 1
    for extent, i in zip(reversed(access.buffer.shape), reversed(access.indices), strict=True):
        result = index.add(result, index.multiply(i, index.constant(step)))
        step *= extent
    return result
