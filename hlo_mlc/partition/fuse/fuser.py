"""Which stages become one group: a stage joins an earlier group where that pays, and groups that
gain by it are merged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.graph.core import Node
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.fuse.both_ways import both_ways, matrices
from hlo_mlc.partition.fuse.chains import chained
from hlo_mlc.partition.fuse.groups import Group, Groups, readers
from hlo_mlc.partition.fuse.horizontal import factors
from hlo_mlc.partition.fuse.limits import ROW_LIMIT
from hlo_mlc.partition.fuse.nests import Joined, handed_over, join
from hlo_mlc.tensor.copy_coalescing import copies
from hlo_mlc.tensor.core import Nest, Stage, Step
from hlo_mlc.tensor.liveness import step_reads, step_writes

# These bound a search, or the size of a kernel; what pays is asked of costs.py.

# Candidate nests that a stage is tried against; more never changed a result on the demo models
# (encoder_block).
CANDIDATE_LIMIT = 8
# Groups looked at on the way back from a product to the one whose rows it sums over: a softmax is
# one to three (attention).
CHAIN_LIMIT = 8
# Steps of a group that update what those before them have made (written_in_turn).
MOST_STEPS = 64


@dataclass(slots=True)
class Fuser(Groups):
    """Collects groups in program order, joining each stage to an earlier group where that pays."""

    costs: Costs
    row_limit: int = ROW_LIMIT  # elements of a row that are kept between passes over it
    refusals: dict[Node, str] = field(default_factory=dict)  # why an operation joined nothing

    def add_outside(self, node: Node, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> None:
        """An operation that stays as it is."""
        self._new(Group(len(self.groups), [node]), set(reads), set(writes))

    def add_steps(
        self, node: Node, steps: list[Step], before: Iterable[Buffer] = (), after_all: bool = False
    ) -> None:
        """Steps that are a group of their own: a loop, an update with the copy before it. They come
        after what computes the buffers `before`, whether they read those or not."""
        group = Group(len(self.groups), [node], steps=steps)
        if after_all:
            group.ancestors = (1 << group.number) - 1
            for earlier in self.groups:
                earlier.children.add(group.number)
        reads = {b for step in steps for b in step_reads(step)}
        writes = {b for step in steps for b in step_writes(step)}
        self._new(group, reads - writes, writes)
        self._come_after(group, before)

    def add_stage(self, node: Node, stage: Stage, before: Iterable[Buffer] = ()) -> None:
        """A stage, joined to the first candidate that takes it. It comes after what computes the
        buffers `before`, whether it reads those or not."""
        reads, writes = set(stage.inputs), set(stage.outputs)
        reason = ""
        for group in self._candidates(stage):
            if self._would_cycle(group, reads.union(before)):
                reason = "another operation has to run in between"
                continue
            result = join(group.joined, stage, self.row_limit)
            if isinstance(result, str):
                reason = reason or result
                continue
            group.joined = result
            group.nodes.append(node)
            self._merge(group, reads, writes)
            self._come_after(group, before)
            return
        if reason:
            self.refusals[node] = reason
        fresh = Group(len(self.groups), [node], Joined((stage,), len(stage.axes)))
        self._new(fresh, reads, writes)
        self._come_after(fresh, before)

    def _candidates(self, stage: Stage) -> list[Group]:
        """Producers of its inputs, latest first, then other readers of its inputs."""
        producers = {g.number: g for b in stage.inputs if (g := self._producer.get(b))}
        latest = (producers[number] for number in sorted(producers, reverse=True))
        others = (
            group
            for buffer in stage.inputs
            for group in reversed(self._readers.get(buffer, {}).values())
        )
        found: dict[int, Group] = {}
        for group in itertools.chain(latest, others):
            if len(found) == CANDIDATE_LIMIT:
                break
            if group.joined is not None:
                found.setdefault(group.number, group)
        return list(found.values())

    def join_chains(self, needed: frozenset[Buffer]) -> None:
        """Make one group of a matrix product, of what is computed row by row from its results, and
        of the product that sums over these rows, where nothing else reads what is in between."""
        read_by = readers(self.groups)
        for last in self.groups:
            if last.product is None:
                continue
            reasons = []
            for first in self._leaders(last):
                if all(map(self.costs.adds_pairs, (first.product, last.product))):
                    reasons.append("two products that are added up in pairs, each by itself")
                    continue
                parts = self._between(first, last, read_by, needed)
                result = (
                    parts
                    if isinstance(parts, str)
                    else chained(
                        first.joined, [part.joined for part in parts], last.joined, self.costs.rows
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
        """Make one group of two of which one computes values for the other and nobody else, however
        large it becomes, as long as it is worth what that saves."""
        read_by = readers(self.whole)
        for last in self.groups:
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

    def _maker(self, last: Group, refused: set[int]) -> Group | None:
        """A group with a nest that another group reads from, directly and not through a third
        one."""
        parents = {n: self._at(n) for n in last.parents}
        for parent in sorted({p.number for p in parents.values()} - refused, reverse=True):
            group = self.groups[parent]
            if (
                group.joined is not None
                and not group.beside
                and group is not last
                and not any(
                    p is not group and p is not last and p.ancestors & group.members
                    for p in parents.values()
                )
            ):
                return group
        return None

    def join_siblings(self) -> None:
        """Make one group of products that share a factor and do not wait for each other, where each
        gains by that."""
        gains = self.costs.gains_from_company
        known: dict[Expr, dict[int, Group]] = {}  # by factor, the latest last
        for group in self.groups:
            product = None if group.number in self._merged else group.product
            if product is None:
                continue
            found = (
                g for factor in factors(product) for g in reversed(known.get(factor, {}).values())
            )
            leader = group
            for other in itertools.islice(found, CANDIDATE_LIMIT):
                if other.ancestors & group.members or group.ancestors & other.members:
                    continue
                if not gains(product) or not gains(other.joined.stages[0]):
                    self.refusals[group.nodes[0]] = "so large a product gains nothing from company"
                    continue
                leader = other
                self.refusals.pop(group.nodes[0], None)
                leader.beside.append(group.joined)
                self._absorb(leader, (group,))
                break
            for factor in factors(product):
                known.setdefault(factor, {})[leader.number] = leader

    def join_both_ways(self, needed: frozenset[Buffer], fresh: Callable[[str], str]) -> None:
        """Make one group of what folds a matrix along its rows and what folds it along its columns,
        where the rows do not wait for the columns.  `fresh` gives names."""
        read_by = readers(self.whole)
        known: dict[Buffer, list[Group]] = {}  # by the matrix
        for group in self.groups:
            fold = None if group.number in self._merged else group.fold
            if fold is None:
                continue
            large = matrices(fold)
            for other in itertools.chain.from_iterable(known.get(b, ()) for b in large):
                if self._fold_both(other, group, read_by, needed, fresh) or self._fold_both(
                    group, other, read_by, needed, fresh
                ):
                    break
            else:
                for matrix in large:
                    known.setdefault(matrix, []).append(group)

    def _fold_both(
        self,
        rows: Group,
        columns: Group,
        read_by: Mapping[Buffer, set[int]],
        needed: frozenset[Buffer],
        fresh: Callable[[str], str],
    ) -> bool:
        """Make one group of the two, if that can be: says whether it is."""
        waits = (
            p
            for group, other in ((rows, columns), (columns, rows))
            for n in group.parents
            if (p := self._at(n)) is not other and p.ancestors & other.members
        )
        if rows.steps or columns.steps or rows.ancestors & columns.members or any(waits):
            return False
        own = {rows.number, columns.number}
        wanted = frozenset(b for b in rows.writes if b in needed or not read_by.get(b, own) <= own)
        nests = both_ways(rows.fold, columns.fold, wanted, fresh)
        if nests is None:
            return False
        first, last = sorted((rows, columns), key=lambda g: g.number)
        last.joined, last.steps = None, list(nests)
        self._absorb(last, (first,))
        return True

    def join_updates(self, needed: frozenset[Buffer]) -> None:
        """Make one group of steps that begin with a copy of what other steps have made for nobody
        else: in one kernel, the copy goes away (tensor/copy_coalescing.py)."""
        read_by = readers(self.whole)
        for last in self.groups:
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

    def _leaders(self, last: Group) -> list[Group]:
        """The products whose results `last` sums over, as far as only row-wise groups are between;
        those with the most results first."""
        found: dict[int, Group] = {}
        seen = {last.number}
        waiting = [last]
        while waiting and len(seen) < CHAIN_LIMIT:
            group = waiting.pop(0)
            for number in sorted(group.parents - seen, reverse=True):
                seen.add(number)
                parent = self.groups[number]
                if parent.product is not None:
                    found[number] = parent
                elif parent.joined is not None:
                    waiting.append(parent)
        return sorted(found.values(), key=lambda g: -max(b.size for b in g.writes))

    def _between(
        self,
        first: Group,
        last: Group,
        read_by: Mapping[Buffer, set[int]],
        needed: frozenset[Buffer],
    ) -> list[Group] | str:
        """The groups that run after `first` and before `last`, or why they cannot become one."""
        bit = 1 << first.number
        numbers: set[int] = set()
        waiting = [last]
        while waiting:
            for number in waiting.pop().parents - numbers:
                if self.groups[number].ancestors & bit:
                    numbers.add(number)
                    waiting.append(self.groups[number])
            if len(numbers) > CHAIN_LIMIT:
                return "too much is computed between the two products"
        parts = [self.groups[n] for n in sorted(numbers)]
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
