"""Copy coalescing: one buffer for values that are only copied from one to the other.

    c = copy a; repeat: (d = copy c; repeat: (d[i] = f(d[i - 1])); c = copy d)
 -> c = copy a; repeat: (repeat: (t = f(c[i - 1]); c[i] = t))

Functional loops say what comes next by whole new values, and every loop inside of another begins
and ends with a copy of what it carries.  Two buffers may be one where, whenever one of them is
written, nobody needs the other any more, or has just been given a copy of it.  A nest that read the
one and wrote the other then works in place: point by point, or it computes all that it writes
before it writes any of it, which has to pay.  A point that needs an old value once more, only to
compute again what it has stored, reads that instead.

Requires: steps that keep the rules of `verify`.  Ensures: the same results, no more work.
Source: aggressive coalescing of register allocators; Chaitin et al., 1981.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hlo_mlc.expr.build import const, load, transform
from hlo_mlc.expr.core import Buffer, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.access import masked
from hlo_mlc.tensor.classify import is_apart, is_injective, is_map, is_plain, reads
from hlo_mlc.tensor.core import Assign, Nest, Stage, Step
from hlo_mlc.tensor.liveness import condition_reads, effects, live_after, step_reads, step_writes
from hlo_mlc.tensor.rewrite import reading, rename_axes, replace_buffers, with_parts


def merge_copies(
    steps: Sequence[Step], results: Iterable[Buffer], kept: Iterable[Buffer] = ()
) -> list[Step]:
    """The steps on fewer buffers, with fewer copies; those that are `kept` stay as they are.

    Buffers that no step writes are operands, and stay unwritten.
    """
    excluded = {*kept, *(b for nest, _ in _nests(steps, 1) for b in nest.private)}
    saved: dict[tuple[Buffer, Buffer], int] = defaultdict(int)
    for nest, trips in _nests(steps, 1):
        for target, source in copies(nest):
            if excluded.isdisjoint((target, source)):
                saved[target, source] += trips * target.size
    if not saved:
        return list(steps)
    merger = _Merger(list(steps), frozenset(results))
    merger.find_clashes({b for pair in saved for b in pair})
    for target, source in sorted(saved, key=lambda pair: -saved[pair]):
        merger.merge(target, source)
    return merger.steps


def _nests(steps: Iterable[Step], trips: int) -> Iterator[tuple[Nest, int]]:
    """The nests, with how often they run."""
    for step in steps:
        if isinstance(step, Nest):
            yield step, trips
        else:
            yield from _nests(step.inner, trips * step.likely_trips)


def _copied(assign: Assign, stage: Stage) -> Buffer | None:
    """The buffer of which an assignment copies every element to its own buffer."""
    value = assign.value
    if (
        not isinstance(value, Load)
        or value.guard is not None
        or value.indices != assign.indices
        or not is_map(stage)
        or not is_plain(assign, stage.axes)
    ):
        return None
    return value.source if _alike(value.source, assign.buffer) else None


def _alike(one: Buffer, other: Buffer) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def copies(nest: Nest) -> list[tuple[Buffer, Buffer]]:
    """(target, source) of everything that a nest copies."""
    return [
        (a.buffer, source)
        for stage in nest.stages
        for a in stage.assigns
        if (source := _copied(a, stage)) is not None
    ]


def _made_the_same(nest: Nest) -> dict[Buffer, set[Buffer]]:
    """For every buffer, those that hold the same after the nest, because it does nothing but copy
    the one to the other.  No later stage changes what an earlier one reads (`verify`)."""
    stores = Counter(a.buffer for s in nest.stages for a in (*s.along, *s.assigns))
    found: dict[Buffer, set[Buffer]] = defaultdict(set)
    for stage in nest.stages:
        for assign in stage.assigns:
            source = _copied(assign, stage)
            if source is not None and stores[assign.buffer] == 1 and source not in stage.outputs:
                found[assign.buffer].add(source)
                found[source].add(assign.buffer)
    return found


class _Refused(Exception):
    """Two buffers that cannot become one."""


@dataclass(slots=True)
class _Merger:
    """`clashes`: buffers that hold different values at the same time, both of which are needed;
    `names`: what has become of a buffer; `touched`: what steps read and write."""

    steps: list[Step]
    results: frozenset[Buffer]
    clashes: dict[Buffer, set[Buffer]] = field(default_factory=lambda: defaultdict(set))
    names: dict[Buffer, Buffer] = field(default_factory=dict)
    touched: dict[Step, set[Buffer]] = field(default_factory=dict)
    written: frozenset[Buffer] = frozenset()
    numbers: Iterator[int] = field(default_factory=itertools.count)
    balance: int = 0  # elements that need not be copied, less those that are put aside instead

    def find_clashes(self, concerned: set[Buffer]) -> None:
        """What is written while another buffer is needed, if it is no copy of that one."""
        after = live_after(self.steps, self.results)
        for nest, live in after.items():
            writes = effects(nest).writes
            self.written |= writes
            same = _made_the_same(nest)
            for buffer in writes & concerned:
                others = (live | writes) & concerned - same[buffer] - {buffer}
                self.clashes[buffer] |= others
                for other in others:
                    self.clashes[other].add(buffer)

    def merge(self, target: Buffer, source: Buffer) -> None:
        """Make two buffers one, where that is right and saves more than it costs."""
        target, source = self._now(target), self._now(source)
        if target == source or source in self.clashes[target]:
            return
        keep, gone = (target, source) if target in self.results else (source, target)
        if gone in self.results or gone not in self.written:
            return
        self.balance = 0
        try:
            steps = self._rewritten(self.steps, keep, gone, 1)
        except _Refused:
            return
        if self.balance <= 0:
            return
        self.steps, self.names[gone] = steps, keep
        for other in self.clashes.pop(gone):
            self.clashes[other].add(keep)
            self.clashes[keep].add(other)

    def _now(self, buffer: Buffer) -> Buffer:
        while buffer in self.names:
            buffer = self.names[buffer]
        return buffer

    def _rewritten(
        self, steps: Iterable[Step], keep: Buffer, gone: Buffer, trips: int
    ) -> list[Step]:
        """The steps with one buffer in place of both.

        Raises: _Refused where a nest needs both.
        """
        found: list[Step] = []
        for step in steps:
            if gone not in self._touches(step):
                found.append(step)
            elif not isinstance(step, Nest):
                inner = trips * step.likely_trips
                found.append(
                    with_parts(
                        step,
                        lambda steps, n=inner: self._rewritten(steps, keep, gone, n),
                        lambda e: reading(e, {gone: keep}),
                    )
                )
            else:
                found += self._nest(step, keep, gone, trips)
        return found

    def _touches(self, step: Step) -> set[Buffer]:
        """What a step reads and writes, cached: in a long program one merge changes few steps."""
        found = self.touched.get(step)
        if found is None:
            if isinstance(step, Nest):
                found = step_reads(step) | step_writes(step)
            else:
                inner = map(self._touches, step.inner)
                found = set().union(*inner, condition_reads(step))
            self.touched[step] = found
        return found

    def _nest(self, nest: Nest, keep: Buffer, gone: Buffer, trips: int) -> list[Nest]:
        rest = _without_copies(nest, {keep, gone})
        self.balance += trips * keep.size * (len(copies(nest)) - len(copies(rest)))
        if not rest.stages:
            return []
        renaming = {gone: keep}
        written = {b for s in rest.stages for b in s.outputs} & {keep, gone}
        if gone in written and keep not in self.written:
            raise _Refused  # operands are not for writing
        for own in written:
            other = keep if own == gone else gone
            if any(reads(s, other) for s in rest.stages):
                once = _reading_what_is_stored(rest, own, other)
                if not _is_in_place(once, own, other):
                    parts = self._put_aside(rest, own, other, trips)
                    return [replace_buffers(part, renaming) for part in parts]
                rest = once
        return [replace_buffers(rest, renaming)]

    def _put_aside(
        self, nest: Nest, target: Buffer, other: Buffer, trips: int
    ) -> tuple[Nest, Nest]:
        """The nest that computes what is to be written to `target`, and one that writes it: what
        `other` holds has been read then."""
        stage, *more = [s for s in nest.stages if target in s.outputs]
        own = [n for n, a in enumerate(stage.assigns) if a.buffer == target]
        readers = [s for s in nest.stages if s is not stage and reads(s, target)]
        if more or len(own) != 1 or readers or any(a.buffer == target for a in stage.along):
            raise _Refused
        assign, later = stage.assigns[own[0]], stage.assigns[own[0] + 1 :]
        place = [e for e in (*assign.indices, assign.guard) if e is not None]
        changing = {target, other, *(b for s in nest.stages for b in s.outputs)}
        if (
            any(_reads(a, target) for a in later)
            or any(access.source in changing for e in place for access in loads(e))
            or (reads(stage, target) and not is_injective(assign, stage.axes))
        ):
            raise _Refused
        extents = tuple(v.extent for v in stage.axes)
        aside = Buffer(f"{target.name}_{next(self.numbers)}", target.dtype, extents)
        self.balance -= trips * aside.size
        value = assign.value
        if assign.guard is not None:
            value = masked(value, assign.guard, const(0, value.dtype))
        compute = replace(
            stage,
            assigns=tuple(
                Assign(aside, stage.axes, value) if a is assign else a for a in stage.assigns
            ),
        )
        write = Stage(
            f"{stage.name}_{aside.name}",
            stage.axes,
            (replace(assign, value=load(aside, stage.axes)),),
        )
        axes = {v: Var(f"{v.name}_{aside.name}", INDEX, v.extent) for v in stage.axes}
        return replace(nest, stages=tuple(compute if s is stage else s for s in nest.stages)), Nest(
            (rename_axes(write, axes),), len(stage.axes)
        )


def _without_copies(nest: Nest, pair: set[Buffer]) -> Nest:
    """The nest without what copies one of the pair to the other, or to itself."""
    stages = []
    for stage in nest.stages:
        assigns = tuple(
            a for a in stage.assigns if not (a.buffer in pair and _copied(a, stage) in pair)
        )
        if assigns or stage.along:
            stages.append(replace(stage, assigns=assigns))
    shared = len(stages[0].axes) if len(stages) == 1 else nest.shared
    return Nest(tuple(stages), shared, nest.private)


def _reading_what_is_stored(nest: Nest, target: Buffer, other: Buffer) -> Nest:
    """The nest with the value that a point stores to `target` loaded from there, where the point
    would compute it from `other` once more.

        t[i] = f(c[i]); d[i] = g(f(c[i]))    ->    t[i] = f(c[i]); d[i] = g(t[i])
    """
    stage, *more = nest.stages
    own = [n for n, a in enumerate(stage.assigns) if a.buffer == target]
    if more or not is_map(stage) or len(own) != 1:
        return nest
    store, later = stage.assigns[own[0]], stage.assigns[own[0] + 1 :]
    needed = {access.source for e in (store.value, *store.indices) for access in loads(e)}
    if (
        store.guard is not None
        or other not in needed
        or not needed.isdisjoint(a.buffer for a in stage.assigns[own[0] : -1])
    ):
        return nest
    # Places are computed as before: their bounds are proved by how.
    known = {access: access for a in later for access in loads(a.value)}
    known[store.value] = load(target, store.indices)
    rewritten = (replace(a, value=transform(a.value, lambda _: None, known)) for a in later)
    stage = replace(stage, assigns=(*stage.assigns[: own[0] + 1], *rewritten))
    return replace(nest, stages=(stage,))


def _is_in_place(nest: Nest, target: Buffer, other: Buffer) -> bool:
    """Whether every point reads of `other` what it is about to overwrite, once `target` is the same
    buffer, and nothing else."""
    stage, *more = nest.stages
    if more or not is_map(stage):
        return False
    own = [n for n, a in enumerate(stage.assigns) if a.buffer in (target, other)]
    if len(own) > 1 or any(_reads(a, other) for a in stage.assigns[own[0] + 1 :]):
        return False
    if math.prod(v.extent for v in stage.axes) == 1:
        return len(stage.assigns) == 1
    store = stage.assigns[own[0]]
    return is_injective(store, stage.axes) and all(
        access.indices == store.indices or is_apart(access, store, stage)
        for buffer in (target, other)
        for access in reads(stage, buffer)
    )


def _reads(assign: Assign, buffer: Buffer) -> bool:
    parts = [e for e in (*assign.indices, assign.value, assign.guard) if e is not None]
    return any(access.source == buffer for e in parts for access in loads(e))
