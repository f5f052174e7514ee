"""Units of work and their order: fusing stages without ever creating a cycle.

A unit is one future kernel, or one operation that stays with XLA.  Two units may be merged when no
path leads from one to the other through a third.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.graph.core import Node
from hlo_mlc.partition.fuse.both_ways import both_ways, matrices
from hlo_mlc.partition.fuse.horizontal import factors
from hlo_mlc.partition.fuse.nests import ROW_LIMIT, Joined, chained, finish, handed_over, join
from hlo_mlc.tensor.classify import contraction
from hlo_mlc.tensor.core import Nest, Stage, Step
from hlo_mlc.tensor.liveness import step_reads, step_writes
from hlo_mlc.tensor.merging import copies

# These bound a search, or the size of a kernel; what pays is asked of costs.py.

# Candidate nests that a stage is tried against; more never changed a result on the demo models
# (encoder_block).
CANDIDATE_LIMIT = 8
# Units looked at on the way back from a product to the one whose rows it sums over: a softmax is
# one to three (attention).
CHAIN_LIMIT = 8
# Units of one kernel.  A kernel is compiled or left as a whole: with more, too much time is lost on
# one that turns out too long (`most_lines` of building.py; many_leaves, rotations_unrolled).
MOST_TOGETHER = 256
# Steps of a unit that update what those before them have made (written_in_turn).
MOST_STEPS = 64


@dataclass(slots=True)
class Unit:
    """`joined` is an open nest, `steps` finished ones; both are empty for an outside operation.

    `beside` are nests that run with `joined` in one kernel, and do not depend on it.
    """

    number: int
    nodes: list[Node]
    joined: Joined | None = None
    beside: list[Joined] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)
    ancestors: int = 0  # a bit for each unit that must run before
    parents: set[int] = field(default_factory=set)  # the nearest of them
    children: set[int] = field(default_factory=set)  # those that it is a parent of
    members: int = 0  # a bit for itself and for each unit that has become a part of it

    def __post_init__(self) -> None:
        self.members = 1 << self.number

    @property
    def nests(self) -> tuple[Joined, ...]:
        """The open nests, in order."""
        return () if self.joined is None else (self.joined, *self.beside)

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """Its steps, and its open nests as they are."""
        return (*self.steps, *(Nest(joined.stages, joined.shared) for joined in self.nests))

    @property
    def product(self) -> Stage | None:
        """The matrix product that this unit is."""
        alone = self.joined is not None and len(self.joined.stages) == 1
        return self.joined.stages[0] if alone and contraction(self.joined.stages[0]) else None

    @property
    def fold(self) -> Stage | None:
        """The fold of a matrix that this unit is, to a vector."""
        alone = self.joined is not None and len(self.joined.stages) == 1 and not self.beside
        stage = self.joined.stages[0] if alone else None
        return (
            stage if stage is not None and len(stage.axes) == len(stage.reduce_axes) == 1 else None
        )

    @property
    def is_outside(self) -> bool:
        return self.joined is None and not self.steps


@dataclass(slots=True)
class Fuser:
    """Collects units in program order, joining each stage to an earlier unit where that pays."""

    row_limit: int = ROW_LIMIT  # elements of a row that are kept between passes over it
    rows: int | None = None  # what counts as so many (FusionLimits)
    units: list[Unit] = field(default_factory=list)
    refusals: dict[Node, str] = field(default_factory=dict)  # why an operation joined nothing
    _producer: dict[Buffer, Unit] = field(default_factory=dict)
    _merged: dict[int, int] = field(default_factory=dict)  # units that are part of another one now
    _readers: dict[Buffer, dict[int, Unit]] = field(default_factory=dict)  # the latest one last

    def add_outside(self, node: Node, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> None:
        """An operation that stays as it is."""
        self._new(Unit(len(self.units), [node]), set(reads), set(writes))

    def add_steps(
        self, node: Node, steps: list[Step], before: Iterable[Buffer] = (), after_all: bool = False
    ) -> None:
        """Steps that are a unit of their own: a loop, an update with the copy before it. They come
        after what computes the buffers `before`, whether they read those or not."""
        unit = Unit(len(self.units), [node], steps=steps)
        if after_all:
            unit.ancestors = (1 << unit.number) - 1
            for earlier in self.units:
                earlier.children.add(unit.number)
        reads = {b for step in steps for b in step_reads(step)}
        writes = {b for step in steps for b in step_writes(step)}
        self._new(unit, reads - writes, writes)
        self._come_after(unit, before)

    def add_stage(self, node: Node, stage: Stage, before: Iterable[Buffer] = ()) -> None:
        """A stage, joined to the first candidate that takes it. It comes after what computes the
        buffers `before`, whether it reads those or not."""
        reads, writes = set(stage.inputs), set(stage.outputs)
        reason = ""
        for unit in self._candidates(stage):
            if self._would_cycle(unit, reads.union(before)):
                reason = "another operation has to run in between"
                continue
            result = join(unit.joined, stage, self.row_limit)
            if isinstance(result, str):
                reason = reason or result
                continue
            unit.joined = result
            unit.nodes.append(node)
            self._merge(unit, reads, writes)
            self._come_after(unit, before)
            return
        if reason:
            self.refusals[node] = reason
        fresh = Unit(len(self.units), [node], Joined((stage,), len(stage.axes)))
        self._new(fresh, reads, writes)
        self._come_after(fresh, before)

    def _candidates(self, stage: Stage) -> list[Unit]:
        """Producers of its inputs, latest first, then other readers of its inputs."""
        producers = {u.number: u for b in stage.inputs if (u := self._producer.get(b))}
        latest = (producers[number] for number in sorted(producers, reverse=True))
        others = (
            unit
            for buffer in stage.inputs
            for unit in reversed(self._readers.get(buffer, {}).values())
        )
        found: dict[int, Unit] = {}
        for unit in itertools.chain(latest, others):
            if len(found) == CANDIDATE_LIMIT:
                break
            if unit.joined is not None:
                found.setdefault(unit.number, unit)
        return list(found.values())

    def _would_cycle(self, unit: Unit, reads: set[Buffer]) -> bool:
        bit = 1 << unit.number
        producers = (self._producer.get(b) for b in reads)
        return any(p is not None and p is not unit and p.ancestors & bit for p in producers)

    def _new(self, unit: Unit, reads: set[Buffer], writes: set[Buffer]) -> None:
        self.units.append(unit)
        self._merge(unit, reads, writes)

    def _merge(self, unit: Unit, reads: set[Buffer], writes: set[Buffer]) -> None:
        self._come_after(unit, reads)
        for buffer in reads:
            if self._producer.get(buffer) is not unit:
                known = self._readers.setdefault(buffer, {})
                known.pop(unit.number, None)
                known[unit.number] = unit
        unit.reads |= reads
        unit.writes |= writes
        for buffer in writes:
            self._producer[buffer] = unit

    def _come_after(self, unit: Unit, buffers: Iterable[Buffer]) -> None:
        """Let a unit run after those that compute buffers."""
        before = unit.ancestors
        for buffer in buffers:
            producer = self._producer.get(buffer)
            if producer is not None and producer is not unit:
                unit.ancestors |= producer.ancestors | 1 << producer.number
                unit.parents.add(producer.number)
                producer.children.add(unit.number)
        if unit.ancestors != before:
            self._pass_on(unit)

    def _pass_on(self, unit: Unit) -> None:
        """Let all that runs after a unit run after its ancestors and all its members too."""
        waiting = [unit]
        while waiting:
            parent = waiting.pop()
            parent.children = {self._at(n).number for n in parent.children} - {parent.number}
            for child in map(self.units.__getitem__, parent.children):
                before = child.ancestors
                child.ancestors |= parent.ancestors | parent.members
                if child.ancestors != before:
                    waiting.append(child)

    def _at(self, number: int) -> Unit:
        """The unit of that number, or the one that it has become a part of."""
        while number in self._merged:
            number = self._merged[number]
        return self.units[number]

    def _absorb(self, unit: Unit, parts: Iterable[Unit]) -> None:
        """Make `parts` a part of `unit`, whose nests are up to the caller."""
        for part in parts:
            self._merged[part.number] = unit.number
            unit.reads |= part.reads
            unit.writes |= part.writes
            unit.parents |= part.parents
            unit.children |= part.children
            unit.members |= part.members
            unit.ancestors |= part.ancestors
        unit.ancestors &= ~unit.members
        unit.nodes = [n for part in (*parts, unit) for n in part.nodes]
        self._pass_on(unit)

    def join_chains(self, needed: frozenset[Buffer]) -> None:
        """Make one unit of a matrix product, of what is computed row by row from its results, and
        of the product that sums over these rows, where nothing else reads what is in between."""
        read_by = readers(self.units)
        for last in self.units:
            if last.product is None:
                continue
            reasons = []
            for first in self._leaders(last):
                parts = self._between(first, last, read_by, needed)
                result = (
                    parts
                    if isinstance(parts, str)
                    else chained(
                        first.joined, [part.joined for part in parts], last.joined, self.rows
                    )
                )
                if isinstance(result, str):
                    reasons.append(result)
                    continue
                last.joined = result
                self._absorb(last, (first, *parts))
                for node in last.nodes:
                    self.refusals.pop(node, None)
                break
            else:
                self.refusals.update((last.nodes[0], reason) for reason in reasons[:1])

    def join_handed(self, needed: frozenset[Buffer]) -> None:
        """Make one unit of two of which one computes values for the other and nobody else, however
        large it becomes, as long as it is worth what that saves."""
        read_by = readers(u for u in self.units if u.number not in self._merged)
        for last in self.units:
            if last.joined is None or last.beside or last.number in self._merged:
                continue
            refused: set[int] = set()
            while (first := self._maker(last, refused)) is not None:
                own = {first.number, last.number}
                saved = [
                    b for b in first.writes & last.reads if b not in needed and read_by[b] <= own
                ]
                result = (
                    handed_over(first.joined, last.joined, self.row_limit, len(saved))
                    if saved
                    else ""
                )
                if isinstance(result, str):
                    refused.add(first.number)
                    continue
                last.joined = result
                self._absorb(last, (first,))
                for buffer in first.reads:
                    read_by[buffer] = read_by[buffer] - {first.number} | {last.number}

    def _maker(self, last: Unit, refused: set[int]) -> Unit | None:
        """A unit with a nest that another one reads from, and through no third one."""
        parents = {n: self._at(n) for n in last.parents}
        for parent in sorted({p.number for p in parents.values()} - refused, reverse=True):
            unit = self.units[parent]
            if (
                unit.joined is not None
                and not unit.beside
                and unit is not last
                and not any(
                    p is not unit and p is not last and p.ancestors & unit.members
                    for p in parents.values()
                )
            ):
                return unit
        return None

    def join_siblings(self, gains: Callable[[Stage], bool]) -> None:
        """Make one unit of products that share a factor and do not wait for each other, where each
        `gains` by that."""
        known: dict[Expr, dict[int, Unit]] = {}  # by factor, the latest last
        for unit in self.units:
            product = None if unit.number in self._merged else unit.product
            if product is None:
                continue
            found = (
                u for factor in factors(product) for u in reversed(known.get(factor, {}).values())
            )
            leader = unit
            for other in itertools.islice(found, CANDIDATE_LIMIT):
                if other.ancestors & unit.members or unit.ancestors & other.members:
                    continue
                if not gains(product) or not gains(other.joined.stages[0]):
                    self.refusals[unit.nodes[0]] = "so large a product gains nothing from company"
                    continue
                leader = other
                self.refusals.pop(unit.nodes[0], None)
                leader.beside.append(unit.joined)
                self._absorb(leader, (unit,))
                break
            for factor in factors(product):
                known.setdefault(factor, {})[leader.number] = leader

    def join_both_ways(self, needed: frozenset[Buffer], fresh: Callable[[str], str]) -> None:
        """Make one unit of what folds a matrix along its rows and what folds it along its columns,
        where the rows do not wait for the columns.  `fresh` gives names."""
        read_by = readers(u for u in self.units if u.number not in self._merged)
        known: dict[Buffer, list[Unit]] = {}  # by the matrix
        for unit in self.units:
            fold = None if unit.number in self._merged else unit.fold
            if fold is None:
                continue
            large = matrices(fold)
            for other in itertools.chain.from_iterable(known.get(b, ()) for b in large):
                if self._fold_both(other, unit, read_by, needed, fresh) or self._fold_both(
                    unit, other, read_by, needed, fresh
                ):
                    break
            else:
                for matrix in large:
                    known.setdefault(matrix, []).append(unit)

    def _fold_both(
        self,
        rows: Unit,
        columns: Unit,
        read_by: Mapping[Buffer, set[int]],
        needed: frozenset[Buffer],
        fresh: Callable[[str], str],
    ) -> bool:
        """Make one unit of the two, if that can be: says whether it is."""
        waits = (
            p
            for unit, other in ((rows, columns), (columns, rows))
            for n in unit.parents
            if (p := self._at(n)) is not other and p.ancestors & other.members
        )
        if rows.steps or columns.steps or rows.ancestors & columns.members or any(waits):
            return False
        own = {rows.number, columns.number}
        wanted = frozenset(b for b in rows.writes if b in needed or not read_by.get(b, own) <= own)
        nests = both_ways(rows.fold, columns.fold, wanted, fresh)
        if nests is None:
            return False
        first, last = sorted((rows, columns), key=lambda u: u.number)
        last.joined, last.steps = None, list(nests)
        self._absorb(last, (first,))
        return True

    def join_updates(self, needed: frozenset[Buffer]) -> None:
        """Make one unit of steps that begin with a copy of what other steps have made for nobody
        else: in one kernel, the copy goes away (tensor/merging.py)."""
        read_by = readers(u for u in self.units if u.number not in self._merged)
        for last in self.units:
            copied = (
                {
                    source
                    for step in last.steps
                    if isinstance(step, Nest)
                    for _, source in copies(step)
                }
                - last.writes
                - needed
            )
            for source in sorted(copied, key=lambda b: b.name):
                maker = self._producer.get(source)
                if maker is None:
                    continue
                first = self._at(maker.number)
                others = (self._at(n) for n in last.parents)
                if (
                    first is not last
                    and first.steps
                    and read_by[source] == {last.number}
                    and len(first.steps) + len(last.steps) <= MOST_STEPS
                    and not any(p is not first and p.ancestors & first.members for p in others)
                ):
                    last.steps = [*first.steps, *last.steps]
                    self._absorb(last, (first,))

    def compact(self) -> None:
        """Take out units that have become part of others, which take their place in the order."""
        gone = sum(1 << number for number in self._merged)
        for unit in self.units:
            unit.parents = {self._at(n).number for n in unit.parents} - {unit.number}
            unit.ancestors &= ~gone
        self.units = [u for u in self.units if u.number not in self._merged]

    def _leaders(self, last: Unit) -> list[Unit]:
        """The products whose results `last` sums over, as far as only row-wise units are between;
        those with the most results first."""
        found: dict[int, Unit] = {}
        seen = {last.number}
        waiting = [last]
        while waiting and len(seen) < CHAIN_LIMIT:
            unit = waiting.pop(0)
            for number in sorted(unit.parents - seen, reverse=True):
                seen.add(number)
                parent = self.units[number]
                if parent.product is not None:
                    found[number] = parent
                elif parent.joined is not None:
                    waiting.append(parent)
        return sorted(found.values(), key=lambda u: -max(b.size for b in u.writes))

    def _between(
        self, first: Unit, last: Unit, read_by: Mapping[Buffer, set[int]], needed: frozenset[Buffer]
    ) -> list[Unit] | str:
        """The units that run after `first` and before `last`, or why they cannot become one."""
        bit = 1 << first.number
        numbers: set[int] = set()
        waiting = [last]
        while waiting:
            for number in waiting.pop().parents - numbers:
                if self.units[number].ancestors & bit:
                    numbers.add(number)
                    waiting.append(self.units[number])
            if len(numbers) > CHAIN_LIMIT:
                return "too much is computed between the two products"
        parts = [self.units[n] for n in sorted(numbers)]
        inside = {first.number, *numbers, last.number}
        if any(part.joined is None for part in parts):
            return "another operation runs between the two products"
        if any(number in self._merged for number in inside):
            return "a part of it belongs to another chain of products"
        if any(
            b in needed or not read_by.get(b, inside) <= inside
            for part in (first, *parts)
            for b in part.writes
        ):
            return "what is between the two products is needed elsewhere"
        return parts


def readers(units: Iterable[Unit]) -> dict[Buffer, set[int]]:
    """The numbers of the units that read each buffer."""
    result: dict[Buffer, set[int]] = {}
    for unit in units:
        for buffer in unit.reads:
            result.setdefault(buffer, set()).add(unit.number)
    return result


def finished(
    unit: Unit, read_by: Mapping[Buffer, set[int]], needed: frozenset[Buffer]
) -> list[Step]:
    """The unit's steps without stores that neither another unit nor `needed` reads."""
    if unit.joined is None:
        return unit.steps
    own = {unit.number}
    wanted = frozenset(b for b in unit.writes if b in needed or not read_by.get(b, own) <= own)
    return [nest for joined in unit.nests if (nest := finish(joined, wanted)).stages]


def in_order(units: list[Unit]) -> list[Unit]:
    """The units sorted so that each comes after its ancestors, otherwise as they were added."""
    done, result, waiting = 0, [], list(units)
    while waiting:
        rest = []
        for unit in waiting:
            if unit.ancestors & ~done == 0:
                result.append(unit)
                done |= 1 << unit.number
            else:
                rest.append(unit)
        assert len(rest) < len(waiting), "units depend on each other in a circle"
        waiting = rest
    return result


def merge_runs(units: list[Unit], mergeable: dict[int, bool]) -> list[list[Unit]]:
    """Group units, given in dependency order, into runs of mergeable ones, in such an order.

    A run is a sequence of at most `MOST_TOGETHER` mergeable units with no other unit in between, so
    it may become one kernel.  Units that are not mergeable come as runs of one.
    """
    # Levels of one kind alternate: units that stay alone are on even ones, the others on odd ones.
    level: dict[int, int] = {}
    for unit in units:
        odd = int(mergeable[unit.number])
        reached = max((level[p] for p in unit.parents), default=0)
        level[unit.number] = reached + (reached % 2 != odd)
    levels: dict[int, list[Unit]] = {}
    for unit in units:
        levels.setdefault(level[unit.number], []).append(unit)
    runs: list[list[Unit]] = []
    for number in sorted(levels):
        run, most = levels[number], MOST_TOGETHER if number % 2 else 1
        while len(run) > most:
            runs.append(run[:most])
            run = run[most:]
        runs.append(run)
    return runs
