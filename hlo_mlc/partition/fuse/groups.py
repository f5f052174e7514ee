"""Fusion groups and their order: which has to run before which, without ever creating a cycle.

A group is one future kernel, or one operation that stays with XLA.  Two groups may become one when
no path leads from one to the other through a third.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hlo_mlc.expr.core import Buffer
from hlo_mlc.graph.core import Node
from hlo_mlc.partition.fuse.nests import Joined, finish
from hlo_mlc.tensor.classify import contraction
from hlo_mlc.tensor.core import Nest, Stage, Step

# Groups of one kernel.  A kernel is compiled or left as a whole: with more, too much time is lost
# on one that turns out too long (`most_lines` of building.py; many_leaves, rotations_unrolled).
MOST_TOGETHER = 256


@dataclass(slots=True)
class Group:
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
    ancestors: int = 0  # a bit for each group that must run before
    parents: set[int] = field(default_factory=set)  # the nearest of them
    children: set[int] = field(default_factory=set)  # those that it is a parent of
    members: int = 0  # a bit for itself and for each group that has become a part of it

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
        """The matrix product that this group is."""
        alone = self.joined is not None and len(self.joined.stages) == 1
        return self.joined.stages[0] if alone and contraction(self.joined.stages[0]) else None

    @property
    def fold(self) -> Stage | None:
        """The fold of a matrix that this group is, to a vector."""
        alone = self.joined is not None and len(self.joined.stages) == 1 and not self.beside
        stage = self.joined.stages[0] if alone else None
        return (
            stage if stage is not None and len(stage.axes) == len(stage.reduce_axes) == 1 else None
        )

    @property
    def is_outside(self) -> bool:
        return self.joined is None and not self.steps


@dataclass(slots=True)
class Groups:
    """The groups of a graph, in program order, and which of them have become part of others."""

    groups: list[Group] = field(default_factory=list, init=False)
    _producer: dict[Buffer, Group] = field(default_factory=dict, init=False)
    # By number, the group that one is a part of now.
    _merged: dict[int, int] = field(default_factory=dict, init=False)
    # By number, the latest one last.
    _readers: dict[Buffer, dict[int, Group]] = field(default_factory=dict, init=False)

    @property
    def whole(self) -> list[Group]:
        """The groups that have not become part of others."""
        return [g for g in self.groups if g.number not in self._merged]

    def _would_cycle(self, group: Group, reads: set[Buffer]) -> bool:
        bit = 1 << group.number
        producers = (self._producer.get(b) for b in reads)
        return any(p is not None and p is not group and p.ancestors & bit for p in producers)

    def _new(self, group: Group, reads: set[Buffer], writes: set[Buffer]) -> None:
        self.groups.append(group)
        self._merge(group, reads, writes)

    def _merge(self, group: Group, reads: set[Buffer], writes: set[Buffer]) -> None:
        self._come_after(group, reads)
        for buffer in reads:
            if self._producer.get(buffer) is not group:
                known = self._readers.setdefault(buffer, {})
                known.pop(group.number, None)
                known[group.number] = group
        group.reads |= reads
        group.writes |= writes
        for buffer in writes:
            self._producer[buffer] = group

    def _come_after(self, group: Group, buffers: Iterable[Buffer]) -> None:
        """Let a group run after those that compute buffers."""
        before = group.ancestors
        for buffer in buffers:
            producer = self._producer.get(buffer)
            if producer is not None and producer is not group:
                group.ancestors |= producer.ancestors | 1 << producer.number
                group.parents.add(producer.number)
                producer.children.add(group.number)
        if group.ancestors != before:
            self._pass_on(group)

    def _pass_on(self, group: Group) -> None:
        """Let all that runs after a group run after its ancestors and all its members too."""
        waiting = [group]
        while waiting:
            parent = waiting.pop()
            parent.children = {self._at(n).number for n in parent.children} - {parent.number}
            for child in map(self.groups.__getitem__, parent.children):
                before = child.ancestors
                child.ancestors |= parent.ancestors | parent.members
                if child.ancestors != before:
                    waiting.append(child)

    def _at(self, number: int) -> Group:
        """The group of that number, or the one that it has become a part of."""
        while number in self._merged:
            number = self._merged[number]
        return self.groups[number]

    def _absorb(self, group: Group, parts: Iterable[Group]) -> None:
        """Make `parts` a part of `group`, whose nests are up to the caller."""
        for part in parts:
            self._merged[part.number] = group.number
            group.reads |= part.reads
            group.writes |= part.writes
            group.parents |= part.parents
            group.children |= part.children
            group.members |= part.members
            group.ancestors |= part.ancestors
        group.ancestors &= ~group.members
        group.nodes = [n for part in (*parts, group) for n in part.nodes]
        self._pass_on(group)

    def compact(self) -> None:
        """Take out groups that have become part of others, which take their place in the order."""
        gone = sum(1 << number for number in self._merged)
        for group in self.groups:
            group.parents = {self._at(n).number for n in group.parents} - {group.number}
            group.ancestors &= ~gone
        self.groups = self.whole


def readers(groups: Iterable[Group]) -> dict[Buffer, set[int]]:
    """The numbers of the groups that read each buffer."""
    result: dict[Buffer, set[int]] = {}
    for group in groups:
        for buffer in group.reads:
            result.setdefault(buffer, set()).add(group.number)
    return result


def finished(
    group: Group, read_by: Mapping[Buffer, set[int]], needed: frozenset[Buffer]
) -> list[Step]:
    """The group's steps without stores that neither another group nor `needed` reads."""
    if group.joined is None:
        return group.steps
    own = {group.number}
    wanted = frozenset(b for b in group.writes if b in needed or not read_by.get(b, own) <= own)
    return [nest for joined in group.nests if (nest := finish(joined, wanted)).stages]


def in_order(groups: list[Group]) -> list[Group]:
    """The groups sorted so that each comes after its ancestors, otherwise as they were added."""
    done, result, waiting = 0, [], list(groups)
    while waiting:
        rest = []
        for group in waiting:
            if group.ancestors & ~done == 0:
                result.append(group)
                done |= 1 << group.number
            else:
                rest.append(group)
        assert len(rest) < len(waiting), "groups depend on each other in a circle"
        waiting = rest
    return result


def merge_runs(groups: list[Group], mergeable: dict[int, bool]) -> list[list[Group]]:
    """Gather groups, given in dependency order, into runs of mergeable ones, in such an order.

    A run is a sequence of at most `MOST_TOGETHER` mergeable groups with no other group in between,
    so it may become one kernel.  Groups that are not mergeable come as runs of one.
    """
    # Levels of one kind alternate: groups that stay alone are on even ones, the others on odd ones.
    level: dict[int, int] = {}
    for group in groups:
        odd = int(mergeable[group.number])
        reached = max((level[p] for p in group.parents), default=0)
        level[group.number] = reached + (reached % 2 != odd)
    levels: dict[int, list[Group]] = {}
    for group in groups:
        levels.setdefault(level[group.number], []).append(group)
    runs: list[list[Group]] = []
    for number in sorted(levels):
        run, most = levels[number], MOST_TOGETHER if number % 2 else 1
        while len(run) > most:
            runs.append(run[:most])
            run = run[most:]
        runs.append(run)
    return runs
