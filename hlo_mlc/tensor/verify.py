"""The rules of tensor programs, checked before anything is scheduled.

    bounds    every load and every store, where its guard holds, stays inside of its buffer
    scopes    expressions depend on their stage's axes, its accumulators and the loops around it
    nests     their stages agree about the axes that they share, and hand values over point by point
    order     a buffer is filled before it is read, every element of it; all results are
    aliases   what a result overwrites is read before, at the same point, and by nobody later

What cannot be proved is refused like what is wrong: it costs a kernel, not a user's memory.
Expressions are interned, so whether an access stays inside is found out once for all kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, all_of
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.facts import of_condition, within
from hlo_mlc.expr.procedure import Count, Move
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.classify import is_apart, is_map, is_plain, meets, reads
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Sort, Stage, Step, TensorProgram
from hlo_mlc.tensor.covering import Box, always_stored, left_over, stored_box, whole
from hlo_mlc.tensor.guards import where_guarded


def verify(program: TensorProgram) -> None:
    """Check every rule of tensor programs.

    Raises: VerifyError for the first access that breaks one, or cannot be shown to keep it.
    """
    checker = _Checker(program)
    checker.signature()
    checker.steps(program.steps, frozenset())
    for result in program.results:
        if checker.missing[result]:
            raise checker.error(
                f"not every element of {result!r} is stored: "
                f"{_spelled(checker.missing[result][0])} is missing"
            )
    for result, operand in program.aliases:
        _Alias(checker, result, operand).check()


# Remembered for the schedules of one kernel that tuning tries, and for kernels that are alike; a
# kernel has some hundred accesses, most of which stay inside by the ranges of variables alone.
@functools.lru_cache(maxsize=1 << 12)
def outside(buffer: Buffer, indices: tuple[Expr, ...], *guards: Expr | None) -> Expr | None:
    """The first index that may leave the buffer where all guards hold; None if none does."""
    facts = None
    conditions = [g for g in guards if g is not None]
    for i, extent in zip(indices, buffer.shape, strict=True):
        low, high = index.bounds(i)
        if low >= 0 and high < extent:
            continue
        if facts is None:
            facts = tuple(f for g in conditions for f in of_condition(g))
        if not within(i, extent, facts):
            seen, more = where_guarded(i, conditions)
            if not within(seen, extent, more):
                return i
    return None


@dataclass(slots=True)
class _Checker:
    """`missing`: what is not stored yet of each buffer; `stages`: those there have been, with their
    nests, and whether in a loop; `writers` and `readers`: which of them use a buffer."""

    program: TensorProgram
    missing: dict[Buffer, tuple[Box, ...]] = field(default_factory=dict)
    stages: list[tuple[Stage, Nest, bool]] = field(default_factory=list)
    writers: dict[Buffer, list[int]] = field(default_factory=dict)
    readers: dict[Buffer, list[int]] = field(default_factory=dict)

    def error(self, reason: str, stage: Stage | None = None) -> VerifyError:
        """An error about this program."""
        where = (
            ""
            if stage is None
            else f", stage {stage.name} for "
            f"{', '.join(f'{v.name}<{v.extent}' for v in stage.axes) or '()'}"
        )
        return VerifyError(f"kernel {self.program.name}{where}: {reason}")

    def signature(self) -> None:
        """Names and scopes of the buffers, and of what overwrites what."""
        program = self.program
        groups = (
            (program.operands, "operand"),
            (program.results, "result"),
            (program.temporaries, "scratch"),
        )
        names = [b.name for buffers, _ in groups for b in buffers]
        if len(set(names)) < len(names):
            raise self.error(f"two of its buffers have one name: {', '.join(names)}")
        for buffers, scope in groups:
            for buffer in buffers:
                if buffer.scope != scope:
                    raise self.error(f"expected scope {scope}, got {buffer!r}")
                self.missing[buffer] = () if scope == "operand" else whole(buffer.shape)

    def steps(self, steps: Iterable[Step], counters: frozenset[Var]) -> None:
        """All steps, in the order in which they run."""
        for step in steps:
            if isinstance(step, Nest):
                self._nest(step, counters)
            elif isinstance(step, Loop):
                self._loop(step, counters)
            else:
                self._branch(step, counters)

    def _branch(self, branch: Branch, counters: frozenset[Var]) -> None:
        self._known(branch.condition, counters)
        self._loads(branch.condition, None, None)
        before = dict(self.missing)
        self.steps(branch.then, counters)
        after_then, self.missing = self.missing, before
        self.steps(branch.otherwise, counters)
        # What only one of them stores may be missing.
        self.missing = {
            b: boxes if boxes == after_then[b] else (*boxes, *after_then[b])
            for b, boxes in self.missing.items()
        }

    def _loop(self, loop: Loop, counters: frozenset[Var]) -> None:
        self.steps(loop.test, counters)
        if loop.condition is not None:
            self._loads(loop.condition, None, None)
        if loop.counter.extent != loop.trip_count:
            raise self.error(
                f"expected {loop.counter.name} to count {loop.trip_count} rounds, got "
                f"a variable of {loop.counter.extent}"
            )
        before = dict(self.missing)
        self.steps(loop.body, counters | {loop.counter})
        if not loop.trip_count:
            self.missing = before  # there may be no iteration at all
            return
        for assign, axes in always_stored(loop):
            self._stored(assign, axes)

    def _stored(self, assign: Assign, axes: Sequence[Var]) -> None:
        """An assignment has run at every point of the axes."""
        box = stored_box(assign, axes) if self.missing.get(assign.buffer) else None
        if box is not None:
            self.missing[assign.buffer] = left_over(self.missing[assign.buffer], box)

    def _nest(self, nest: Nest, counters: frozenset[Var]) -> None:
        shared = [v.extent for v in nest.stages[0].axes[: nest.shared]]
        writers: dict[Buffer, tuple[Stage, Assign]] = {}
        for stage in nest.stages:
            if [v.extent for v in stage.axes[: nest.shared]] != shared:
                raise self.error(
                    f"expected its first axes to have the extents {shared} of the "
                    "nest that it is in",
                    stage,
                )
            if any(v.extent == 0 for v in stage.axes):
                continue  # it has no point
            self._scopes(stage, counters)
            if any(a.guard is not None for a in (*stage.along, *stage.assigns)) and not (
                is_map(stage) and len(nest.stages) == 1
            ):
                raise self.error(
                    "only an elementwise stage of its own may store under a guard: "
                    "loops that are built as a whole know of none",
                    stage,
                )
            self._handed_over(stage, nest, writers)
            self._own_elements(stage)
            if stage.sort is not None:
                self._places(stage, stage.sort)
            for e in stage.initial if stage.sort is None else (stage.sort.at,):
                self._loads(e, None, stage)
            if stage.procedure is not None:
                self._steps(stage, stage.procedure.body, counters.union(stage.axes))
            if all(v.extent for v in stage.reduce_axes):
                for e in stage.terms:
                    self._loads(e, None, stage)
                self._stores(stage, stage.along, (*stage.axes, *stage.reduce_axes))
            self._stores(stage, stage.assigns, stage.axes)
            for users, buffers in ((self.writers, stage.outputs), (self.readers, stage.inputs)):
                for buffer in buffers:
                    users.setdefault(buffer, []).append(len(self.stages))
            self.stages.append((stage, nest, bool(counters)))
            writers |= {a.buffer: (stage, a) for a in (*stage.along, *stage.assigns)}

    def _steps(
        self, stage: Stage, body: Sequence[Move], known: frozenset[Var], counted: Expr = TRUE
    ) -> None:
        """Steps of a procedure use what they may, where what is `counted` is within its limits;
        where in its arrays is checked of the loops."""
        for move in body:
            if isinstance(move, Count):
                self._known(move.extent, known, stage)
                self._steps(
                    stage,
                    move.body,
                    known | {move.var},
                    all_of(counted, index.compare("lt", move.var, move.extent)),
                )
                continue
            if move.array not in stage.procedure.arrays or move.value.dtype is not move.array.dtype:
                raise self.error(
                    f"{move.array!r} is no array for values of {move.value.dtype}", stage
                )
            for e in (*move.indices, move.value):
                self._known(e, known, stage)
                self._loads(e, counted, stage)

    def _scopes(self, stage: Stage, counters: frozenset[Var]) -> None:
        """Expressions are over what exists where they are evaluated, and of the right types."""
        axes = counters.union(stage.axes)
        everywhere = axes.union(stage.reduce_axes) - ({stage.sort.place} if stage.sort else set())
        for group, known in (
            (stage.initial, axes),
            (stage.terms, everywhere),
            (_parts(stage.along), everywhere),
            (_parts(stage.assigns), axes.union(stage.accumulators)),
            (stage.sort.keys if stage.sort else (), frozenset(stage.accumulators)),
            ((stage.sort.at,) if stage.sort else (), axes),
        ):
            for e in group:
                self._known(e, known, stage)
        folded = zip(stage.accumulators, stage.terms, stage.initial or stage.terms, strict=True)
        wrong = [a for a, term, first in folded if not a.dtype is term.dtype is first.dtype]
        wrong += [
            a.buffer for a in (*stage.along, *stage.assigns) if a.value.dtype is not a.buffer.dtype
        ]
        if wrong:
            raise self.error(f"expected values of the type of {wrong[0]!r}", stage)

    def _known(self, e: Expr, known: frozenset[Var], stage: Stage | None = None) -> None:
        if not e.free <= known:
            names = ", ".join(sorted(v.name for v in e.free - known))
            raise self.error(f"no axis or loop defines {names} in {e}", stage)

    def _handed_over(
        self, stage: Stage, nest: Nest, writers: dict[Buffer, tuple[Stage, Assign]]
    ) -> None:
        """What earlier stages of the nest wrote is read at the same point of the shared axes."""
        for buffer in stage.inputs:
            if buffer not in writers:
                continue
            writer, assign = writers[buffer]
            for load in reads(stage, buffer):
                if not meets(load, stage, assign, writer, nest.shared):
                    raise self.error(
                        f"it reads {load}, but the nest computes {buffer!r} point by "
                        f"point of its first {nest.shared} axes",
                        stage,
                    )
        for earlier in nest.stages[: nest.stages.index(stage)]:
            for buffer in stage.outputs:
                if buffer in earlier.inputs:
                    raise self.error(
                        f"it overwrites {buffer!r}, which stage {earlier.name} of its nest reads",
                        stage,
                    )

    def _own_elements(self, stage: Stage) -> None:
        """Of the buffers that a stage writes, a point reads only what no other point writes."""
        if (
            is_map(stage)
            and len(stage.assigns) == 1
            and math.prod(v.extent for v in stage.axes) == 1
        ):
            return  # there is no other point, and it stores when it has read
        for buffer in stage.outputs:
            stores = [a for a in (*stage.along, *stage.assigns) if a.buffer == buffer]
            for load in reads(stage, buffer):
                if (
                    all(load.indices != a.indices for a in stores)
                    and not all(is_apart(load, a, stage) for a in stores)
                    and not _is_folded(stage, buffer)
                ):
                    raise self.error(f"it reads {load}, which another of its points writes", stage)

    def _places(self, stage: Stage, sort: Sort) -> None:
        """Every place is one that some element takes."""
        low, high = index.bounds(sort.at)
        if low < 0 or high >= stage.reduce_axes[0].extent:
            raise self.error(
                f"place {sort.at}, from {low} to {high}, is not known to be one of "
                f"{stage.reduce_axes[0].extent}",
                stage,
            )

    def _stores(self, stage: Stage, assigns: Sequence[Assign], axes: Sequence[Var]) -> None:
        for assign in assigns:
            for e in _parts((assign,)):
                self._loads(e, None if e is assign.guard else assign.guard, stage)
            buffer = assign.buffer
            if buffer not in self.missing or buffer.scope == "operand":
                raise self.error(f"{buffer!r} is nothing that it may write", stage)
            self._inside(buffer, assign.indices, (assign.guard,), stage)
        for assign in assigns:
            self._stored(assign, axes)

    def _loads(self, e: Expr, guard: Expr | None, stage: Stage | None) -> None:
        own = stage.procedure.arrays if stage is not None and stage.procedure is not None else ()
        for load in loads(e):
            buffer = load.source
            if buffer in own:
                continue
            if buffer not in self.missing:
                raise self.error(f"{buffer!r} does not exist", stage)
            if self.missing[buffer]:
                raise self.error(
                    f"{load} is read before {_spelled(self.missing[buffer][0])} of "
                    f"{buffer!r} is stored",
                    stage,
                )
            self._inside(buffer, load.indices, (load.guard, guard), stage)

    def _inside(
        self,
        buffer: Buffer,
        indices: tuple[Expr, ...],
        guards: Iterable[Expr | None],
        stage: Stage | None,
    ) -> None:
        if len(indices) != len(buffer.shape) or any(i.dtype is not INDEX for i in indices):
            raise self.error(
                f"expected {len(buffer.shape)} indices of type index for {buffer!r}, "
                f"got {', '.join(f'{i}: {i.dtype}' for i in indices)}",
                stage,
            )
        i = outside(buffer, indices, *guards)
        if i is not None:
            low, high = index.bounds(i)
            under = " and ".join(str(g) for g in guards if g is not None)
            raise self.error(
                f"index {i}, from {low} to {high}, is not known to stay inside of {buffer!r}"
                + (f" where {under}" if under else ""),
                stage,
            )


def _parts(assigns: Iterable[Assign]) -> list[Expr]:
    """The expressions of some assignments."""
    return [e for a in assigns for e in (*a.indices, a.value, a.guard) if e is not None]


def _is_folded(stage: Stage, buffer: Buffer) -> bool:
    """Whether a stage stores a buffer on the way, and reads it only when the fold is done: at any
    of the elements that the same point of its axes has stored."""
    along = [a for a in stage.along if a.buffer == buffer]
    on_the_way = (*stage.terms, *stage.initial, *_parts(stage.along))
    if len(along) != 1 or any(load.source == buffer for e in on_the_way for load in loads(e)):
        return False
    axes = [i for i in along[0].indices if i in stage.axes]
    return len(axes) == len(stage.axes) and all(
        i is j
        for load in reads(stage, buffer)
        for i, j in zip(along[0].indices, load.indices, strict=True)
        if i in stage.axes
    )


def _spelled(box: Box) -> str:
    return (
        "["
        + ", ".join(f"{first}" if first == last else f"{first}…{last}" for first, last in box)
        + "]"
    )


@dataclass(frozen=True, slots=True)
class _Alias:
    """A result in the memory of an operand: one elementwise stage replaces each element once, in
    place of what the same point has read, and nothing reads the operand later.  Earlier stages of
    its nest read what the same point of the shared axes replaces."""

    checker: _Checker
    result: Buffer
    operand: Buffer

    def check(self) -> None:
        """Raises: VerifyError where an element may be lost before it is read."""
        program, (result, operand) = self.checker.program, (self.result, self.operand)
        if (
            result not in program.results
            or operand not in program.operands
            or (result.shape, result.dtype) != (operand.shape, operand.dtype)
        ):
            raise self.checker.error(
                f"expected a result in the memory of an operand like it, got "
                f"{result!r} and {operand!r}"
            )
        writers, readers = (
            users.get(b, ())
            for users, b in ((self.checker.writers, result), (self.checker.readers, operand))
        )
        if not writers:  # it has no elements
            return
        stage, nest, in_loop = self.checker.stages[writers[0]]
        if len(writers) > 1 or in_loop or not is_map(stage):
            raise self._error("is not stored by one elementwise stage", stage)
        if readers and readers[-1] > writers[0]:
            raise self._error(
                "is stored before the operand is read by stage "
                f"{self.checker.stages[readers[-1]][0].name}",
                stage,
            )
        own = [n for n, a in enumerate(stage.assigns) if a.buffer == result]
        store = stage.assigns[own[0]]
        if len(own) > 1 or not is_plain(store, stage.axes) or result in stage.inputs:
            raise self._error("is not stored once", stage)
        for other in nest.stages:
            for load in reads(other, operand):
                if (
                    load.indices != store.indices
                    if other is stage
                    else not meets(load, other, store, stage, nest.shared)
                ):
                    raise self._error(f"is stored while another point reads {load}", stage)
        if any(_reads(a, operand) for a in stage.assigns[own[0] + 1 :]):
            raise self._error("is stored before its point has read it", stage)
        if operand not in stage.overwrites:
            raise self._error("is stored by a stage that does not say so", stage)

    def _error(self, reason: str, stage: Stage) -> VerifyError:
        return self.checker.error(
            f"{self.result!r}, in the memory of {self.operand!r}, {reason}", stage
        )


def _reads(assign: Assign, buffer: Buffer) -> bool:
    return any(load.source == buffer for e in _parts((assign,)) for load in loads(e))
