"""Loops that are linear recurrences of single numbers, as scans over their trips.

    repeat n: s = 0.9 * s + x[n]; y[n] = s * s     ->     for k: acc = scan of (0.9, x[k]) from s;
                                                                  y[k] = acc * acc; kept[k] = acc
                                                          s = kept[last]

A loop takes what a multiply-add takes to be done for each of its trips; scans have 16 parts of them
side by side in the lanes of a vector, and threads.  All else that a trip does is done for all trips
at once.  States may be read by others, of the same trip or of the one before.  A sum or an extreme
of which nobody reads more than what is left of it is a fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, load, substitute, transform
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads, loads_in, walk
from hlo_mlc.expr.dtypes import BOOL, DType
from hlo_mlc.partition.fuse.limits import FusionLimits
from hlo_mlc.templates.scan import LONG
from hlo_mlc.tensor.classify import cost, is_injective, is_map, stride
from hlo_mlc.tensor.coalesce import accesses
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, ScanAxis, Stage, Step
from hlo_mlc.tensor.liveness import step_reads, step_writes
from hlo_mlc.tensor.recurrence import LEAST_PART, keeps_to, lasting, step_of
from hlo_mlc.tensor.rewrite import map_expressions, with_parts

# Simple operations of a term that are done twice, in lanes that are far apart, rather than once and
# kept.
_CHEAP = 2


def as_scans(steps: Sequence[Step], needed: Iterable[Buffer], limits: FusionLimits) -> list[Step]:
    """The steps with scans instead of loops where all that these carry is recurrences; `needed`
    buffers are read after them."""
    live, found = set(needed), []
    for step in reversed(steps):
        found[:0] = _rewritten(step, live, limits)
        live |= step_reads(step)
    return found


def _rewritten(step: Step, live: set[Buffer], limits: FusionLimits) -> Sequence[Step]:
    if isinstance(step, Nest):
        return (step,)
    if isinstance(step, Branch):
        return (with_parts(step, lambda inner: as_scans(inner, live, limits)),)
    scans = _Trips.of(step, live, limits)
    if scans is not None:
        return scans
    around = live | step_reads(step)  # what a trip reads, the one before has to leave
    return (with_parts(step, lambda inner: as_scans(inner, around, limits)),)


class _Refused(Exception):
    """The loop is no loop of recurrences."""


@dataclass(frozen=True, slots=True)
class _State:
    """A buffer that every trip makes from what the trip before has left of it: at the same place,
    or one place further on.  Without a combiner, it only hands on a value of its term."""

    assign: Assign
    position: int  # in the order of the body
    old: Load
    combiner: Combiner | None
    terms: tuple[Expr, ...]
    initial: tuple[Expr, ...]

    @property
    def moves(self) -> bool:
        """Whether all values that it takes stay where they were written."""
        return self.old.indices != self.assign.indices


@dataclass(slots=True)
class _Trips:
    """All trips of a loop at once: scans, and maps over the trips. `kept` has, by state, where its
    values before and after a trip are found then."""

    loop: Loop
    live: set[Buffer]
    states: dict[Buffer, _State]
    others: list[tuple[int, Assign]]
    kept: dict[Buffer, tuple[Load | None, Load]] = field(default_factory=dict)
    begin: list[Step] = field(default_factory=list)

    @staticmethod
    def of(loop: Loop, live: set[Buffer], limits: FusionLimits) -> list[Step] | None:
        """The steps that do what a loop does; None where it is not known to be one of recurrences,
        or has too few trips for a scan to have parts, or scans there have them too long."""
        if loop.trip_count is None or loop.trip_count < LONG:
            return None
        try:
            states, others = _parted(_inlined(_assigns(loop), loop.counter), loop.counter)
            if not (limits.keeps_factors or all(map(_lasts, states.values()))):
                return None
            trips = _Trips(loop, live, states, others)
            return trips.asked(trips.steps())
        except _Refused:
            return None

    def steps(self) -> list[Step]:
        """Scans in an order in which they find what they read, then what is computed from them."""
        beside: dict[Buffer, list[Assign]] = {}
        apart: list[tuple[int, Assign]] = []
        for position, assign in self.others:
            state = self._sole_state(position, assign)
            if state is None:
                apart.append((position, assign))
            else:
                beside.setdefault(state.assign.buffer, []).append(assign)
        stores = {
            buffer: self._stores(state, beside.get(buffer, []), apart)
            for buffer, state in self.states.items()
        }
        scans: list[Step] = []
        waiting = dict(self.states)
        while waiting:
            ready = [b for b, s in waiting.items() if waiting.keys().isdisjoint(_sources(*s.terms))]
            if not ready:
                raise _Refused
            for buffer in ready:
                scans += self._scan(waiting.pop(buffer), stores[buffer])
        return [*self.begin, *scans, *(self._apart(*one) for one in apart), *self._last()]

    def asked(self, steps: list[Step]) -> list[Step]:
        """The steps, or the loop where the data are not such that these are as exact."""
        scans = [s for s in self.states.values() if s.combiner is not None]
        unknown = [s.terms[0] for s in scans if lasting(s.terms) == 0]
        if not unknown:
            return steps
        if not self.states.keys().isdisjoint(_sources(*unknown)):
            raise _Refused
        (buffer, *_), every = self.states, named_combiner("and", BOOL)
        verdict, found = Buffer(f"{buffer.name}_asked", BOOL, ()), Var("asked", BOOL)
        stage = Stage(
            verdict.name,
            (),
            (Assign(verdict, (), found),),
            (self.loop.counter,),
            every,
            (all_of(*map(keeps_to, unknown)),),
            every.identity,
            (found,),
        )
        return [Nest((stage,), 0), Branch(load(verdict, ()), tuple(steps), (self.loop,))]

    def _sole_state(self, position: int, assign: Assign) -> _State | None:
        """The state of the same trip, if it is all of what the loop carries that is stored."""
        read = [r for r in loads(assign.value) if r.source in self.states]
        if not read or self.loop.counter not in _free(assign.indices):
            return None
        state = self.states[read[0].source]
        if state.combiner is None:
            return None
        same = all(r.indices == state.assign.indices for r in read) and position > state.position
        return state if same and {r.source for r in read} == {read[0].source} else None

    def _stores(
        self, state: _State, beside: list[Assign], apart: list[tuple[int, Assign]]
    ) -> list[Assign]:
        """What the scan of a state stores; notes where others find its values."""
        buffer, trip = state.assign.buffer, self.loop.counter
        now = load(buffer, state.assign.indices)
        value = {now: state.terms[0] if state.combiner is None else _accumulators(state)[-1]}
        stores = [replace(a, value=_with(a.value, value)) for a in beside]
        if state.moves:
            self.kept[buffer] = state.old, now
            return [replace(state.assign, value=value[now]), *stores]
        readers = [(s.position, e) for s in self.states.values() for e in s.terms]
        readers += [(place, a.value) for place, a in apart]
        read = [place for place, e in readers if buffer in _sources(e)]
        plain = next((a for a in beside if a.value is now), None)
        if any(place < state.position for place in read):
            kept = self._of_trips(f"{buffer.name}_kept", buffer.dtype, 1)
            self.begin.append(_alone(Assign(kept, (index.constant(0),), now)))
            self.kept[buffer] = load(kept, (trip,)), load(kept, (trip + 1,))
            return [Assign(kept, (trip + 1,), value[now]), *stores]
        if plain is not None:
            self.kept[buffer] = None, load(plain.buffer, plain.indices)
        elif read or (buffer in self.live and (stores or not _is_fold(state))):
            kept = self._of_trips(f"{buffer.name}_kept", buffer.dtype)
            self.kept[buffer] = None, load(kept, (trip,))
            stores.append(Assign(kept, (trip,), value[now]))
        return stores

    def _scan(self, state: _State, stores: list[Assign]) -> list[Step]:
        """The scan of a state, and what it begins with where it writes what that is read from."""
        if not stores:
            return self._fold(state) if state.assign.buffer in self.live else []
        if state.combiner is None:
            return [self._apart(state.position, store) for store in stores]
        trip, buffer, before = self.loop.counter, state.assign.buffer, []
        initial = state.initial
        if state.moves:
            first = Buffer(f"{buffer.name}_first", buffer.dtype, ())
            old = substitute(state.old, {trip: index.constant(0)})
            before.append(_alone(Assign(first, (), old)))
            initial = tuple(_with(e, {state.old: load(first, ())}) for e in initial)
        stage = Stage(
            f"{buffer.name}_scan",
            (trip,),
            tuple(stores),
            (),
            state.combiner,
            tuple(self._read(e, state.position) for e in state.terms),
            initial,
            _accumulators(state),
            scan=ScanAxis(trip),
            trips=self._in_a_part(state),
        )
        stage = self._in_order(stage)
        terms = []
        for number, e in enumerate(stage.terms):
            if not _is_at_hand(e, trip):
                term = self._of_trips(f"{buffer.name}_term{number}", e.dtype)
                before.append(Nest((_map(Assign(term, stage.axes, e), *stage.axes),), 1))
                e = load(term, stage.axes)
            terms.append(e)
        return [*before, Nest((replace(stage, terms=tuple(terms)),), 1)]

    def _fold(self, state: _State) -> list[Step]:
        """The last value of a state of which nothing else is read."""
        buffer = state.assign.buffer
        first = Buffer(f"{buffer.name}_first", buffer.dtype, ())
        (found,) = _accumulators(state)
        stage = Stage(
            f"{buffer.name}_fold",
            (),
            (replace(state.assign, value=found),),
            (self.loop.counter,),
            state.combiner,
            tuple(self._read(e, state.position) for e in state.terms),
            (load(first, ()),),
            (found,),
            trips=self.loop.trip_count,
        )
        return [_alone(Assign(first, (), state.old)), Nest((stage,), 0)]

    def _of_trips(self, name: str, dtype: DType, more: int = 0) -> Buffer:
        """A buffer for a value of every trip.

        Raises: _Refused where the loop itself has nothing so large.
        """
        trips = self.loop.trip_count
        if all(b.size < trips for b in (*step_reads(self.loop), *step_writes(self.loop))):
            raise _Refused
        return Buffer(name, dtype, (trips + more,))

    def _in_a_part(self, state: _State) -> int:
        """How many trips a part of a scan may have."""
        steps = lasting(state.terms)
        return self.loop.trip_count if steps is None else steps or LEAST_PART

    def _in_order(self, stage: Stage) -> Stage:
        """The stage along its memory, which is against the order of the trips where most of it
        is."""
        trip = self.loop.counter
        strides = [stride(access, trip) or 0 for access in accesses(stage)]
        if sum((s > 0) - (s < 0) for s in strides) >= 0:
            return stage
        turned = map_expressions(stage, lambda e: substitute(e, {trip: trip.extent - 1 - trip}))
        return replace(turned, scan=stage.scan and ScanAxis(trip, reverse=True))

    def _apart(self, position: int, assign: Assign) -> Step:
        """What a trip stores, of every trip or, where it is at the same place, of the last one."""
        assign = replace(assign, value=self._read(assign.value, position))
        if self.loop.counter in _free(assign.indices):
            return Nest((self._in_order(_map(assign, self.loop.counter)),), 1)
        return _alone(replace(assign, value=self._in_last(assign.value)))

    def _last(self) -> list[Step]:
        """What is left of the states."""
        return [
            _alone(replace(state.assign, value=self._in_last(self.kept[buffer][1])))
            for buffer, state in self.states.items()
            if not state.moves and buffer in self.live and buffer in self.kept
        ]

    def _in_last(self, e: Expr) -> Expr:
        return substitute(e, {self.loop.counter: index.constant(self.loop.trip_count - 1)})

    def _read(self, e: Expr, position: int) -> Expr:
        """An expression of the body, at its place there, of values of all trips."""
        found: dict[Expr, Expr] = {}
        for access in loads(e):
            state = self.states.get(access.source)
            if state is None:
                continue
            before, after = self.kept[access.source]
            if state.moves and access.indices == state.old.indices:
                continue
            found[access] = after if position > state.position else before
        return _with(e, found)


def _is_at_hand(term: Expr, trip: Var) -> bool:
    """Whether a term takes next to nothing where lanes have trips that are far apart: they are
    transposed in registers."""
    read = loads(term)
    return cost(term) <= _CHEAP and all(
        len(read) == 1 and stride(r, trip) in (1, -1) and r.source.dtype is term.dtype for r in read
    )


def _is_fold(state: _State) -> bool:
    """Whether its combiner may take values in any order."""
    return state.combiner is not None and len(state.terms) == 1


def _lasts(state: _State) -> bool:
    """Whether the product of any number of its factors neither underflows nor overflows."""
    return state.combiner is None or lasting(state.terms) is None


def _accumulators(state: _State) -> tuple[Var, ...]:
    return tuple(Var(f"{state.assign.buffer.name}_{v.name}", v.dtype) for v in state.combiner.lhs)


def _with(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    return transform(e, values.get)


def _free(expressions: Iterable[Expr]) -> frozenset[Var]:
    return frozenset().union(*(e.free for e in expressions))


def _sources(*expressions: Expr) -> set[Buffer]:
    return {r.source for r in loads_in(*expressions)}


def _map(assign: Assign, *axes: Var) -> Stage:
    return Stage(f"{assign.buffer.name}_map", axes, (assign,))


def _alone(assign: Assign) -> Nest:
    return Nest((_map(assign),), 0)


def _assigns(loop: Loop) -> list[Assign]:
    """What one trip stores, one after the other.

    Raises: _Refused unless these are single numbers.
    """
    found: list[Assign] = []
    for step in loop.body:
        if not isinstance(step, Nest) or step.private:
            raise _Refused
        for stage in step.stages:
            if (
                not is_map(stage)
                or stage.procedure is not None
                or stage.overwrites
                or any(v.extent != 1 for v in stage.axes)
                or any(a.guard is not None for a in stage.assigns)
                or (len(stage.assigns) > 1 and not set(stage.inputs).isdisjoint(stage.outputs))
            ):
                raise _Refused
            point = dict.fromkeys(stage.axes, index.constant(0))
            found += map_expressions(stage, lambda e, at=point: substitute(e, at)).assigns
    return found


def _inlined(body: list[Assign], trip: Var) -> list[Assign]:
    """The body with what a trip computes for itself, of what comes from outside, where it is read:
    only there it shows what a factor may be."""
    written, read = {a.buffer for a in body}, set[Buffer]()
    values: dict[Expr, Expr] = {}
    found: list[Assign] = []
    for assign in body:
        value = _with(assign.value, values)
        found.append(replace(assign, value=value))
        outside = written.isdisjoint(_sources(value)) and assign.buffer not in read
        if outside and trip not in _free(assign.indices):
            values[load(assign.buffer, assign.indices)] = value
        read |= _sources(value)
    return found


def _parted(body: list[Assign], trip: Var) -> tuple[dict[Buffer, _State], list[tuple[int, Assign]]]:
    """The recurrences of a body, and what else it stores, with its places there.

    Raises: _Refused unless all that a trip reads of what trips write are states of the same trip
    or of the one before, and each trip stores at a place of its own, or all at one.
    """
    written = {a.buffer for a in body}
    read = _sources(*(a.value for a in body))
    if len(written) < len(body):
        raise _Refused
    states: dict[Buffer, _State] = {}
    others = []
    for position, assign in enumerate(body):
        if any(loads(i) for i in assign.indices) or not (
            trip not in _free(assign.indices) or is_injective(assign, (trip,))
        ):
            raise _Refused
        if assign.buffer in _sources(assign.value):
            states[assign.buffer] = _state(assign, position, trip)
        elif assign.buffer in read and trip not in _free(assign.indices):
            old = load(assign.buffer, assign.indices)
            states[assign.buffer] = _State(assign, position, old, None, (assign.value,), ())
        else:
            others.append((position, assign))
    for position, assign in enumerate(body):
        for access in loads(assign.value):
            if access.source in written and not _is_known(access, position, states):
                raise _Refused
    if any(_is_computed_again(state, body) for state in states.values()):
        raise _Refused
    if all(state.combiner is None for state in states.values()):
        raise _Refused
    return states, others


def _is_computed_again(state: _State, body: list[Assign]) -> bool:
    """Whether others make something of what the loop would have rounded: the error of that, which
    compensated sums add up, is none of the scan."""
    value, combiner = state.assign.value, state.combiner
    rounds = value.dtype.is_float and combiner is not None and combiner.name not in ("max", "min")
    return rounds and any(value in walk(*a.value.args) for a in body if isinstance(a.value, Apply))


def _state(assign: Assign, position: int, trip: Var) -> _State:
    old, *more = [r for r in loads(assign.value) if r.source == assign.buffer]
    before = tuple(substitute(i, {trip: trip - 1}) for i in assign.indices)
    if more or old.guard is not None or old.indices != before:
        raise _Refused
    found = step_of(assign.value, old)
    if found is None:
        raise _Refused
    return _State(assign, position, old, *found)


def _is_known(access: Load, position: int, states: Mapping[Buffer, _State]) -> bool:
    """Whether a value that the loop computes is that of a state, of this trip or of the last."""
    state = states.get(access.source)
    if state is None or access.guard is not None:
        return False
    if state.moves and access.indices == state.old.indices:
        return True
    return access.indices == state.assign.indices and (not state.moves or position > state.position)
