"""A schedule: a loop program and the replayable trace of rewrites that led to it."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hlo_mlc.loops.core import For, LoopProgram
from hlo_mlc.loops.rewrite import loop_names, loops_named
from hlo_mlc.loops.text import program_text
from hlo_mlc.schedule import (
    branching,
    caching,
    cascade,
    coalescing,
    fission,
    fusion,
    jamming,
    kinds,
    layouts,
    loops,
    pipelining,
    prefetching,
    privatizing,
    ranges,
    reduction,
    splitting,
    statements,
    storage,
)
from hlo_mlc.support.errors import ScheduleError

Argument = int | str | tuple[str, ...] | tuple[int, ...]

# Every primitive by the name under which traces record it.
PRIMITIVES: dict[str, Callable[..., LoopProgram]] = {
    function.__name__: function
    for function in (
        splitting.split,
        splitting.specialize,
        ranges.cut,
        ranges.set_apart,
        loops.fuse,
        loops.reorder,
        loops.unswitch,
        loops.rename,
        statements.add_unit_loop,
        statements.add_loops,
        statements.begin_inside,
        statements.inline,
        statements.replicate,
        branching.branch,
        branching.version,
        jamming.jam,
        kinds.unroll,
        kinds.write_out,
        kinds.vectorize,
        kinds.parallel,
        kinds.bind,
        kinds.tensorize,
        kinds.atomic,
        reduction.rfactor,
        privatizing.privatize,
        privatizing.fold_apart,
        cascade.cascade,
        fusion.fuse_loops,
        fusion.fuse_first,
        fusion.fuse_last,
        fission.distribute,
        fission.sink,
        storage.contract,
        storage.expand,
        storage.promote,
        storage.hoist,
        caching.cache_read,
        caching.cache_write,
        coalescing.coalesce,
        layouts.pad,
        layouts.transform_layout,
        caching.stream,
        prefetching.prefetch,
        prefetching.prefetch_next,
        pipelining.persist,
        pipelining.double_buffer,
    )
}
# Those that can be told not to ask whether iterations depend on each other.
UNCHECKED: dict[str, Callable[..., LoopProgram]] = {
    function.__name__: functools.partial(function, checked=False)
    for function in (
        splitting.split,
        loops.reorder,
        kinds.vectorize,
        kinds.parallel,
        kinds.bind,
        jamming.jam,
        reduction.rfactor,
        privatizing.fold_apart,
        fusion.fuse_first,
        fission.distribute,
        fission.sink,
        storage.hoist,
        coalescing.coalesce,
    )
}


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite: a primitive and its arguments."""

    name: str
    arguments: tuple[Argument, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"

    __repr__ = __str__

    def to_json(self) -> list:
        """The step as a list of strings, numbers and lists of strings."""
        return [self.name, *(list(a) if isinstance(a, tuple) else a for a in self.arguments)]

    @staticmethod
    def from_json(fields: Sequence) -> Step:
        """The step that `to_json` wrote."""
        name, *arguments = fields
        return Step(name, tuple(tuple(a) if isinstance(a, list) else a for a in arguments))


Trace = tuple[Step, ...]
"""Rewrites in their order: with the program that they began with, all there is to a schedule."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """`program`, reached from `naive` (None: from itself) by `trace`; every method gives a new one.

    Where a template knows that its rewrites keep what is computed, as tests show that replay its
    traces, they need not be `checked` one by one: the loops that come of them are proved anyway.

    Raises: ScheduleError, from every method, for unknown names and rewrites that would change
    what the program computes.
    """

    program: LoopProgram
    trace: Trace = ()
    naive: LoopProgram | None = None
    checked: bool = True

    def __str__(self) -> str:
        return program_text(self.program)

    @property
    def loop_names(self) -> tuple[str, ...]:
        """The names of all loops, outer before inner, each once."""
        return loop_names(self.program.body)

    def loops(self, name: str) -> tuple[For, ...]:
        """Every loop called `name`; empty where there is none."""
        return loops_named(self.program.body, name)

    def apply(self, step: Step) -> Schedule:
        """One more rewrite."""
        if step.name not in PRIMITIVES:
            raise ScheduleError(
                f"no schedule primitive is called {step.name!r}; there are: {', '.join(PRIMITIVES)}"
            )
        primitive = self._primitive(step)
        if step.name != "bind" and self.trace and self.trace[-1].name == "bind":
            raise ScheduleError(f"{step}: expected all rewrites before the first bind")
        try:
            rewritten = primitive(self.program, *step.arguments)
        except TypeError as error:
            raise _wrong_argument(primitive, step) or error from error
        return Schedule(rewritten, (*self.trace, step), self.naive or self.program, self.checked)

    def history(self) -> Iterator[tuple[Step, LoopProgram]]:
        """Every rewrite in turn, and what it led to."""
        program = self.naive or self.program
        for step in self.trace:
            program = self._primitive(step)(program, *step.arguments)
            yield step, program

    def _primitive(self, step: Step) -> Callable[..., LoopProgram]:
        known = PRIMITIVES[step.name]
        return known if self.checked else UNCHECKED.get(step.name, known)

    def split(self, loop: str, factor: int, tail: str = "peel") -> Schedule:
        """`loop` -> `loop.o` over blocks of `factor` iterations `loop.i`; the rest is `loop.t`,
        "early" as well, or in the last block: "shorten", "lengthen", "guard", "mask", "repeat",
        "shift"."""
        return self.apply(Step("split", (loop, factor, *_said((tail, "peel")))))

    def specialize(self, loop: str, at: str) -> Schedule:
        """`loop` -> one for the last iteration of `at`, and one for the others."""
        return self.apply(Step("specialize", (loop, at)))

    def cut(self, loop: str, at: int) -> Schedule:
        """`loop` -> `loop.a` over its first `at` iterations and `loop.b` over the rest."""
        return self.apply(Step("cut", (loop, at)))

    def set_apart(self, loop: str, low: int, high: int) -> Schedule:
        """`loop` -> one with a body for iterations from `low` up to `high`, and one for others."""
        return self.apply(Step("set_apart", (loop, low, high)))

    def fuse(self, outer: str, *inner: str) -> Schedule:
        """Nested loops -> one called `outer.inner`, and so on."""
        schedule = self
        for name in inner:
            schedule, outer = schedule.apply(Step("fuse", (outer, name))), f"{outer}.{name}"
        return schedule

    def reorder(self, *names: str) -> Schedule:
        """Nested loops in another order, outermost first."""
        return self.apply(Step("reorder", (names,)))

    def unswitch(self, loop: str) -> Schedule:
        """A branch in `loop` that goes one way in all iterations -> around it."""
        return self.apply(Step("unswitch", (loop,)))

    def branch(self, loop: str) -> Schedule:
        """What decides whether something is done in `loop` is asked before, around it at most."""
        return self.apply(Step("branch", (loop,)))

    def version(self, loop: str) -> Schedule:
        """`loop` -> one for where all holds that it asks, and one, of loops `.e`, for elsewhere."""
        return self.apply(Step("version", (loop,)))

    def jam(self, loops: tuple[str, ...], inner: str = "", choices: int = 0) -> Schedule:
        """Iterations of nested `loops` one after the other, those together that ask for the same;
        loops in them, up to `inner`, as one, for each answer to at most so many `choices`."""
        return self.apply(Step("jam", (loops, *_said((inner, ""), (choices, 0)))))

    def add_unit_loop(self, loop: str) -> Schedule:
        """All that is done -> in a loop called `loop`, once."""
        return self.apply(Step("add_unit_loop", (loop,)))

    def add_loops(self, loops: tuple[str, ...], extents: tuple[int, ...], at: str) -> Schedule:
        """What is done in `at` outside of loops -> in the first iteration of new nested loops."""
        return self.apply(Step("add_loops", (loops, extents, at)))

    def begin_inside(self, loop: str) -> Schedule:
        """What folds begin with, right before `loop` -> stored in its first iteration."""
        return self.apply(Step("begin_inside", (loop,)))

    def inline(self, buffer: str) -> Schedule:
        """A private value -> what it is, wherever it is used."""
        return self.apply(Step("inline", (buffer,)))

    def replicate(self, buffer: str, loops: tuple[str, ...]) -> Schedule:
        """A private value, computed in the first iteration of loops -> one for each iteration."""
        return self.apply(Step("replicate", (buffer, loops)))

    def rename(self, loop: str, inner: str, to: str) -> Schedule:
        """A loop that holds the loop `inner`, or all of a name -> one called `to`."""
        return self.apply(Step("rename", (loop, inner, to)))

    def unroll(self, loop: str) -> Schedule:
        """Iterations written out."""
        return self.apply(Step("unroll", (loop,)))

    def write_out(self, loop: str) -> Schedule:
        """Iterations one after the other."""
        return self.apply(Step("write_out", (loop,)))

    def vectorize(self, loop: str) -> Schedule:
        """Iterations as lanes."""
        return self.apply(Step("vectorize", (loop,)))

    def parallel(self, loop: str) -> Schedule:
        """Iterations as tasks."""
        return self.apply(Step("parallel", (loop,)))

    def bind(self, loop: str | tuple[str, ...], to: str) -> Schedule:
        """Iterations as the blocks of a grid or the threads of a block; those of several loops as
        the same threads."""
        return self.apply(Step("bind", (loop, to)))

    def tensorize(self, loop: str) -> Schedule:
        """Iterations and the loop in them, where that is a product -> what a lane has of one."""
        return self.apply(Step("tensorize", (loop,)))

    def atomic(self, buffer: str) -> Schedule:
        """Stores that update elements of a buffer -> updates that nothing comes between."""
        return self.apply(Step("atomic", (buffer,)))

    def rfactor(self, loop: str, lanes: int, count: int = 1) -> Schedule:
        """A reduction in `count` vectors of `lanes` partial results: `loop.o`, `.u`, `.v`, `.t`."""
        return self.apply(Step("rfactor", (loop, lanes, count)))

    def privatize(self, loop: str) -> Schedule:
        """`loop` outside of a fold, of which each iteration has a part; loops `loop.2` and so on
        combine these."""
        return self.apply(Step("privatize", (loop,)))

    def fold_apart(self, loop: str, lanes: str = "") -> Schedule:
        """`loop` outside of a fold, of which each iteration has a part, and each of `lanes` in it;
        another loop of that name combines these."""
        return self.apply(Step("fold_apart", (loop, *_said((lanes, "")))))

    def cascade(self, length: int = cascade.RUN) -> Schedule:
        """Long sums of floats -> sums of sums of `length` terms: loops `loop.r` over runs."""
        return self.apply(Step("cascade", (length,)))

    def fuse_loops(self, first: str, second: str) -> Schedule:
        """Two neighbouring loops -> one called `first`."""
        return self.apply(Step("fuse_loops", (first, second)))

    def fuse_first(self, first: str, second: str, at: str, least: int = 1) -> Schedule:
        """A loop before the loop `at` -> one with `second`, in the first iteration of `at`, where
        loops in it have `least` iterations in all."""
        return self.apply(Step("fuse_first", (first, second, at, *_said((least, 1)))))

    def fuse_last(self, last: str, at: tuple[str, ...]) -> Schedule:
        """A loop behind the nested loops `at` -> one in the last iteration of them."""
        return self.apply(Step("fuse_last", (last, at)))

    def distribute(self, loop: str, inner: str = "", behind: str = "") -> Schedule:
        """A loop -> one around what is before `inner`, one around that, one around the rest; or one
        up to there, and one called `behind`; or one around each statement."""
        return self.apply(Step("distribute", (loop, *_said((inner, ""), (behind, "")))))

    def sink(self, loop: str) -> Schedule:
        """A loop -> one inside of each of those that it holds, and one around what is between."""
        return self.apply(Step("sink", (loop,)))

    def contract(self, buffer: str) -> Schedule:
        """A scratch buffer -> a private one that holds what one iteration needs."""
        return self.apply(Step("contract", (buffer,)))

    def expand(self, loop: str, scope: str, multiple: int = 1, place: str = "first") -> Schedule:
        """The private buffers of an iteration of `loop` -> buffers for all iterations."""
        return self.apply(Step("expand", (loop, scope, multiple, place)))

    def promote(self, loop: str) -> Schedule:
        """What `loop` adds to an element of a private buffer is added up in a register."""
        return self.apply(Step("promote", (loop,)))

    def hoist(self, loop: str, inner: str, multiple: int = 1, kept: str = "value") -> Schedule:
        """What updates in `loop` combine, the same in all iterations of it and of `inner`, or the
        "source" of it that is converted, is computed before it: `loop.h`."""
        return self.apply(Step("hoist", (loop, inner, multiple, *_said((kept, "value")))))

    def cache_read(
        self, buffer: str, loop: str, layout: str = "rows", same: str = "", along: str = ""
    ) -> Schedule:
        """What an iteration of `loop` reads of `buffer`, or what is the `same` in all iterations of
        a loop in it, or nearest to each other `along` one, is copied to a private tile first."""
        said = _said((layout, "rows"), (same, ""), (along, ""))
        return self.apply(Step("cache_read", (buffer, loop, *said)))

    def cache_write(self, buffer: str, loop: str, layout: str = "rows") -> Schedule:
        """What an iteration of `loop` writes of `buffer` is collected in a private tile."""
        return self.apply(Step("cache_write", (buffer, loop, layout)))

    def coalesce(self, buffer: str) -> Schedule:
        """A private buffer -> the part of another one that it is copied to."""
        return self.apply(Step("coalesce", (buffer,)))

    def pad(self, buffer: str, elements: int, dimension: int = -1) -> Schedule:
        """Rows of a private buffer -> rows that are longer by so many elements."""
        return self.apply(Step("pad", (buffer, elements, *_said((dimension, -1)))))

    def transform_layout(
        self, buffer: str, parts: tuple[int, ...], order: tuple[str, ...]
    ) -> Schedule:
        """The dimensions of a private buffer -> their `parts` in another `order`."""
        return self.apply(Step("transform_layout", (buffer, parts, order)))

    def stream(self, buffer: str) -> Schedule:
        """What is stored to a buffer may bypass the caches."""
        return self.apply(Step("stream", (buffer,)))

    def prefetch(self, buffer: str, loop: str, ahead: int) -> Schedule:
        """Where vectors in `loop` read a buffer, what lies `ahead` elements behind is fetched."""
        return self.apply(Step("prefetch", (buffer, loop, ahead)))

    def prefetch_next(self, buffer: str, at: tuple[str, ...], every: str) -> Schedule:
        """In each iteration of `every` a line that the next iteration of `at` reads is fetched."""
        return self.apply(Step("prefetch_next", (buffer, at, every)))

    def persist(self, loop: str, blocks: int) -> Schedule:
        """`loop` over blocks -> `loop.p` over `blocks` blocks, each with rounds `loop.o`."""
        return self.apply(Step("persist", (loop, blocks)))

    def double_buffer(self, loop: str) -> Schedule:
        """What an iteration fills first is filled while the one before is at work: `loop.o`."""
        return self.apply(Step("double_buffer", (loop,)))


def _said(*arguments: tuple[Argument, Argument]) -> tuple[Argument, ...]:
    """Arguments, each beside what it is where nobody says it, without the last ones that are so."""
    count = max((n for n, (given, usual) in enumerate(arguments, 1) if given != usual), default=0)
    return tuple(given for given, _ in arguments[:count])


def _wrong_argument(primitive: Callable[..., LoopProgram], step: Step) -> ScheduleError | None:
    """What is wrong with the kinds of a step's arguments, if that is why it failed."""
    wanted = itertools.islice(inspect.signature(primitive).parameters.values(), 1, None)
    for parameter, given in zip(wanted, step.arguments, strict=False):
        kind = _KINDS.get(str(parameter.annotation))
        if kind is not None and not isinstance(given, kind):
            return ScheduleError(
                f"{step.name}: expected {parameter.name} to be {kind.__name__}, got {given!r}"
            )
    return None


_KINDS = {"str": str, "int": int}  # what annotations of primitives say


def replay(program: LoopProgram, trace: Iterable[Step]) -> Schedule:
    """The schedule that `trace` makes of `program`.

    Raises: ScheduleError where a step does not apply.
    """
    schedule = Schedule(program)
    for step in trace:
        primitive = PRIMITIVES.get(step.name)
        try:
            if primitive is not None:  # by who knows others: a trace may come from another version
                inspect.signature(primitive).bind(program, *step.arguments)
        except TypeError as error:
            raise ScheduleError(f"{step}: {error}") from error
        schedule = schedule.apply(step)
    return schedule
