"""Tensor expressions: what a cluster computes, as index -> scalar functions, without any order.

A `Stage` fills parts of its output buffers from other buffers.  A `Loop` repeats stages over
carried buffers, a `Branch` chooses between them.  A kernel's meaning is a sequence of these.
Whether a stage is elementwise, a reduction, a contraction or an update in place is derived from
its expressions (classify.py).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads_in
from hlo_mlc.expr.procedure import Procedure

Fact = TypeVar("Fact")
UNKNOWN_TRIPS = 16  # of a loop whose trip count nobody knows


def derived(function: Callable[..., Fact]) -> Callable[..., Fact]:
    """Cache `function(stage_or_nest, *given)` on the stage or nest: fusion asks the same question
    of one stage again and again."""
    return _remembered(function, operator.attrgetter("_derived"))


def derived_of_any_names(function: Callable[..., Fact]) -> Callable[..., Fact]:
    """Like `derived`, for results that contain no buffer and no variable: stages or nests that
    differ only in names have one cache, once one of them `shares` the other's."""
    return _remembered(function, operator.attrgetter("_derived_of_any_names"))


def _remembered(
    function: Callable[..., Fact], facts_of: Callable[[Stage | Nest], dict]
) -> Callable[..., Fact]:
    @functools.wraps(function)
    def known(of: Stage | Nest, *given: Hashable) -> Fact:
        found = facts_of(of)
        key = (function, *given) if given else function
        try:
            return found[key]
        except KeyError:
            pass  # what it raises has no other behind it
        fact = found[key] = function(of, *given)
        return fact

    return known


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """`buffer[indices] = value` at every point of the stage's axes where `guard` holds."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr  # over the stage's axes and accumulators
    guard: Expr | None = None


def buffer_of(access: Load | Assign) -> Buffer:
    """The buffer that is read or written."""
    return access.source if isinstance(access, Load) else access.buffer


@dataclass(frozen=True, slots=True)
class ScanAxis:
    """Fold along `axis` and keep every partial result, starting at its low end, or at its high end
    if `reverse`."""

    axis: Var
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Sort:
    """Terms in sorted order, along the axis `place`, which may be shorter than what is sorted.

    `keys` are unsigned integers over the accumulators: the first key that differs decides, and the
    sort is stable. `at` is the rank that each point stores, as an expression over the axes: `place`
    itself where the smallest are wanted.
    """

    place: Var
    keys: tuple[Expr, ...]
    at: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """For every point of `axes`: fold `terms` over `reduce_axes`, then assign.

    Without a combiner there are no reduce axes, terms or accumulators.  With one, accumulator k
    holds the fold of term k, started from `initial` k; `along` is stored at every point of the
    reduce axes too, on the way (the exponentials of a softmax while they are summed).

    With `scan`, whose axis is one of `axes`, there are no reduce axes: at each point accumulator
    k holds the fold of term k over the points before it along that axis, and its own.

    With `sort`, whose place is one of `axes`, there is one reduce axis and no combiner: at each
    point accumulator k is term k of the element that takes the place `at` among those along it.

    With a `procedure`, that is what is done at every point, on arrays that each point has of its
    own; then `along` is stored at every point of the reduce axes.  Its combiner folds nothing.

    What were trips of a loop is folded, or scanned in parts of at most so many `trips`: each goes
    term by term, and rounds as the loop did.

    `overwrites` are operands whose memory its outputs take over: each point reads of them what it
    is about to replace, so that no point may be computed twice.
    """

    name: str
    axes: tuple[Var, ...]
    assigns: tuple[Assign, ...]
    reduce_axes: tuple[Var, ...] = ()
    combiner: Combiner | None = None
    terms: tuple[Expr, ...] = ()  # over axes and reduce_axes
    initial: tuple[Expr, ...] = ()
    accumulators: tuple[Var, ...] = ()
    along: tuple[Assign, ...] = ()
    scan: ScanAxis | None = None
    sort: Sort | None = None
    procedure: Procedure | None = None
    overwrites: tuple[Buffer, ...] = ()
    trips: int = 0
    _derived: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)
    _derived_of_any_names: dict[Hashable, object] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    @derived
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(a.buffer for a in (*self.along, *self.assigns)))

    @property
    @derived
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression that is evaluated."""
        stores = (*self.along, *self.assigns)
        guards = [a.guard for a in stores if a.guard is not None]
        indices = [i for a in stores for i in a.indices]
        order = (*self.sort.keys, self.sort.at) if self.sort is not None else ()
        steps = self.procedure.expressions if self.procedure is not None else ()
        return (
            *steps,
            *self.terms,
            *self.initial,
            *order,
            *(a.value for a in stores),
            *indices,
            *guards,
        )

    @property
    @derived
    def inputs(self) -> tuple[Buffer, ...]:
        """Buffers that are read, in order of first use."""
        return tuple(self.loads_by_buffer)

    @property
    @derived
    def loads_by_buffer(self) -> dict[Buffer, tuple[Load, ...]]:
        """The distinct loads of each buffer, in order of first use; arrays of a procedure are
        none."""
        own = self.procedure.arrays if self.procedure is not None else ()
        found: dict[Buffer, dict[Load, None]] = {}
        for load in loads_in(*self.expressions):
            if load.source not in own:
                found.setdefault(load.source, {})[load] = None
        return {buffer: tuple(group) for buffer, group in found.items()}

    def shares(self, other: Stage) -> None:
        """Use the cache of another stage, which differs from this one only in the names of buffers
        and variables."""
        object.__setattr__(self, "_derived_of_any_names", other._derived_of_any_names)


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Stages that are computed together, point by point of their first `shared` axes.

    Those axes have the same extents in every stage, and a stage reads what an earlier stage of the
    nest wrote only at the same point of the shared axes.  `private` buffers are used nowhere else,
    so that only one point's worth of them needs to exist at a time.
    """

    stages: tuple[Stage, ...]
    shared: int
    private: tuple[Buffer, ...] = ()
    _derived: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)
    _derived_of_any_names: dict[Hashable, object] = field(
        default_factory=dict, init=False, repr=False
    )

    def shares(self, other: Nest) -> None:
        """Use the caches of another nest and of its stages, which differ from these only in
        names."""
        object.__setattr__(self, "_derived_of_any_names", other._derived_of_any_names)
        for own, known in zip(self.stages, other.stages, strict=True):
            own.shares(known)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Repeat `body` while `condition` holds, or `trip_count` times where that is known.

    The body reads and writes carried state in ordinary buffers, in program order.  `counter`
    counts the iterations from 0.  Without a trip count, `test` computes what `condition` loads;
    it runs before the loop and again at the end of every iteration.
    """

    body: tuple[Step, ...]
    counter: Var
    trip_count: int | None = None
    test: tuple[Step, ...] = ()
    condition: Expr | None = None

    @property
    def inner(self) -> tuple[Step, ...]:
        """All steps inside the loop, in the order in which each runs first."""
        return (*self.test, *self.body)

    @property
    def likely_trips(self) -> int:
        """The trip count that cost estimates assume."""
        return UNKNOWN_TRIPS if self.trip_count is None else self.trip_count


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """`then` where `condition` holds, else `otherwise`; it is evaluated before either of them."""

    condition: Expr
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]

    @property
    def inner(self) -> tuple[Step, ...]:
        """All steps of both sides."""
        return (*self.then, *self.otherwise)

    @property
    def likely_trips(self) -> int:
        """How often each side is assumed to run: at most once."""
        return 1


Step = Nest | Loop | Branch


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TensorProgram:
    """A kernel's meaning: buffers in calling order, temporaries, and steps in program order."""

    name: str
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    aliases: tuple[tuple[Buffer, Buffer], ...] = ()
