"""What every nest does to buffers, and which hold what is needed after it, loops included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.tensor.core import Branch, Loop, Nest, Step, derived
from hlo_mlc.tensor.covering import Box, always_stored, left_over, stored_box, whole
from hlo_mlc.tensor.rewrite import with_parts

Buffers = frozenset[Buffer]


@dataclass(frozen=True, slots=True)
class Effects:
    """`needs` are buffers whose previous contents a nest reads or keeps in part; `fills` are those
    that it overwrites as a whole."""

    needs: Buffers
    writes: Buffers
    fills: Buffers


def step_reads(step: Step) -> set[Buffer]:
    """Every buffer that a step loads from."""
    if isinstance(step, Nest):
        return {b for stage in step.stages for b in stage.inputs}
    return set().union(*map(step_reads, step.inner), condition_reads(step))


def condition_reads(step: Loop | Branch) -> list[Buffer]:
    """What the condition of a loop, if it has one, or of a branch loads from."""
    return [access.source for access in loads(step.condition)] if step.condition else []


def step_writes(step: Step) -> set[Buffer]:
    """Every buffer that a step stores to."""
    if isinstance(step, Nest):
        return {b for stage in step.stages for b in stage.outputs}
    return set().union(*map(step_writes, step.inner))


@derived
def effects(nest: Nest) -> Effects:
    """The combined effects of the stages of a nest, in order."""
    needs: set[Buffer] = set()
    writes: set[Buffer] = set()
    missing: dict[Buffer, tuple[Box, ...]] = {}
    for stage in nest.stages:
        needs.update(b for b in stage.inputs if missing.get(b) != ())
        writes.update(stage.outputs)
        everywhere = (*stage.axes, *stage.reduce_axes)
        stores = [(a, everywhere) for a in stage.along]
        stores += [
            (a, stage.axes if stage.procedure is None else everywhere) for a in stage.assigns
        ]
        for assign, axes in stores:
            box = stored_box(assign, axes)
            if box is not None:
                before = missing.get(assign.buffer, whole(assign.buffer.shape))
                missing[assign.buffer] = left_over(before, box)
    fills = {b for b, boxes in missing.items() if not boxes}
    return Effects(frozenset(needs | (writes - fills)), frozenset(writes), frozenset(fills))


def without_dead(steps: Sequence[Step], results: Iterable[Buffer]) -> list[Step]:
    """The steps without nests that write nothing that is needed later.

    y = 0; repeat n times: y[n] = …   ->   repeat n times: y[n] = …
    """
    return list(_kept(steps, live_after(steps, results)))


def _kept(steps: Iterable[Step], after: Mapping[Nest, Buffers]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Nest):
            if effects(step).writes & after[step]:
                yield step
        elif (rest := with_parts(step, lambda inner: _kept(inner, after))).inner:
            yield rest


def live_after(steps: Sequence[Step], needed: Iterable[Buffer]) -> dict[Nest, Buffers]:
    """For every nest, the buffers whose contents after it somebody needs; `needed` at the end."""
    liveness = _Liveness()
    liveness.before(steps, frozenset(needed))
    return liveness.after


@dataclass(slots=True)
class _Liveness:
    """`entering`: what is needed where an iteration of a loop begins, as far as is known;
    `stored`: what all of its trips together store."""

    after: dict[Nest, Buffers] = field(default_factory=dict)
    entering: dict[Loop, Buffers] = field(default_factory=dict)
    stored: dict[Loop, Buffers] = field(default_factory=dict)

    def before(self, steps: Sequence[Step], live: Buffers) -> Buffers:
        """The buffers that are live before the steps, given those that are `live` after them."""
        for step in reversed(steps):
            if isinstance(step, Nest):
                live = self._nest(step, live)
            elif isinstance(step, Loop):
                live = self._loop(step, live)
            else:
                live = self._branch(step, live)
        return live

    def _nest(self, nest: Nest, live: Buffers) -> Buffers:
        self.after[nest] = self.after.get(nest, frozenset()) | live
        found = effects(nest)
        return live - found.fills | found.needs

    def _branch(self, branch: Branch, live: Buffers) -> Buffers:
        either = self.before(branch.then, live) | self.before(branch.otherwise, live)
        return either.union(condition_reads(branch))

    def _loop(self, loop: Loop, live: Buffers) -> Buffers:
        """Until nothing is added: what one iteration needs, those before it keep."""
        live = live.union(condition_reads(loop))
        while True:
            known = self.entering.get(loop, frozenset())
            tested = self.before(loop.test, live | known)
            begin = self.before(loop.body, tested)
            if begin <= known:
                return begin - self._stored(loop) if loop.trip_count else tested
            self.entering[loop] = known | begin

    def _stored(self, loop: Loop) -> Buffers:
        """Found once: a loop inside of others is come to as often as something is added to them."""
        if loop not in self.stored:
            self.stored[loop] = _stored_by_all(loop)
        return self.stored[loop]


def _stored_by_all(loop: Loop) -> Buffers:
    """What nothing in a loop reads, and all of its trips together store as a whole."""
    missing = {}
    for assign, axes in always_stored(loop):
        box = stored_box(assign, axes)
        if box is not None:
            before = missing.get(assign.buffer, whole(assign.buffer.shape))
            missing[assign.buffer] = left_over(before, box)
    return frozenset(b for b, boxes in missing.items() if not boxes) - step_reads(loop)
