"""A schedule: a loop program and the replayable trace of rewrites that led to it."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

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

# Every primitive by the name under which traces record it, and those that can be told not to ask
# whether iterations depend on each other: `_method` fills both.
PRIMITIVES: dict[str, Callable[..., LoopProgram]] = {}
UNCHECKED: dict[str, Callable[..., LoopProgram]] = {}
_P = ParamSpec("_P")


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


def _method(
    primitive: Callable[Concatenate[LoopProgram, _P], LoopProgram],
) -> Callable[Concatenate[Schedule, _P], Schedule]:
    """A primitive as a method of schedules. It records the arguments, without the last ones that
    are what they are where nobody says them."""
    name = primitive.__name__
    PRIMITIVES[name] = primitive
    program, *parameters = inspect.signature(primitive).parameters.values()
    if parameters[-1].name == "checked":
        UNCHECKED[name] = functools.partial(primitive, checked=False)
        del parameters[-1]
    signature = inspect.Signature(parameters)
    names = [p.name for p in parameters]
    defaults = {p.name: p.default for p in parameters}

    def bound(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """All arguments in their order: what `inspect` says, which takes three times as long."""
        rest = names[len(args) :]
        given = [*args, *[kwargs.get(name, defaults[name]) for name in rest]]
        if (
            len(given) == len(names)
            and kwargs.keys() <= {*rest}
            and not any([argument is inspect.Parameter.empty for argument in given])
        ):
            return given
        try:
            found = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}{signature}: {error}") from None
        found.apply_defaults()
        return list(found.arguments.values())

    @functools.wraps(primitive)
    def method(schedule: Schedule, /, *args: Any, **kwargs: Any) -> Schedule:
        given = bound(args, kwargs)
        while given and given[-1] == parameters[len(given) - 1].default:
            del given[-1]
        return schedule.apply(Step(name, tuple(given)))

    this = program.replace(name="self", annotation=inspect.Parameter.empty)
    method.__signature__ = inspect.Signature([this, *parameters], return_annotation="Schedule")
    return method


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """`program`, reached from `naive` (None: from itself) by `trace`; every primitive is a method,
    which gives a new one.

    Where a template knows that its rewrites keep what is computed, as tests show that replay its
    traces, they need not be `checked` one by one: the loops that come of them are proved anyway.

    Raises: ScheduleError, from every method, for unknown names and rewrites that would change
    what the program computes.
    """

    program: LoopProgram
    trace: Trace = ()
    naive: LoopProgram | None = None
    checked: bool = True

    split = _method(splitting.split)
    specialize = _method(splitting.specialize)
    cut = _method(ranges.cut)
    set_apart = _method(ranges.set_apart)
    _fuse = _method(loops.fuse)
    _reorder = _method(loops.reorder)
    unswitch = _method(loops.unswitch)
    rename = _method(loops.rename)
    add_unit_loop = _method(statements.add_unit_loop)
    add_loops = _method(statements.add_loops)
    begin_inside = _method(statements.begin_inside)
    inline = _method(statements.inline)
    replicate = _method(statements.replicate)
    branch = _method(branching.branch)
    version = _method(branching.version)
    jam = _method(jamming.jam)
    unroll = _method(kinds.unroll)
    write_out = _method(kinds.write_out)
    vectorize = _method(kinds.vectorize)
    parallel = _method(kinds.parallel)
    bind = _method(kinds.bind)
    tensorize = _method(kinds.tensorize)
    atomic = _method(kinds.atomic)
    rfactor = _method(reduction.rfactor)
    privatize = _method(privatizing.privatize)
    fold_apart = _method(privatizing.fold_apart)
    cascade = _method(cascade.cascade)
    fuse_loops = _method(fusion.fuse_loops)
    fuse_first = _method(fusion.fuse_first)
    fuse_last = _method(fusion.fuse_last)
    distribute = _method(fission.distribute)
    sink = _method(fission.sink)
    contract = _method(storage.contract)
    expand = _method(storage.expand)
    promote = _method(storage.promote)
    hoist = _method(storage.hoist)
    cache_read = _method(caching.cache_read)
    cache_write = _method(caching.cache_write)
    coalesce = _method(coalescing.coalesce)
    pad = _method(layouts.pad)
    transform_layout = _method(layouts.transform_layout)
    stream = _method(caching.stream)
    prefetch = _method(prefetching.prefetch)
    prefetch_next = _method(prefetching.prefetch_next)
    persist = _method(pipelining.persist)
    double_buffer = _method(pipelining.double_buffer)

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

    def fuse(self, outer: str, *inner: str) -> Schedule:
        """Nested loops -> one called `outer.inner`, and so on."""
        schedule = self
        for name in inner:
            schedule, outer = schedule._fuse(outer, name), f"{outer}.{name}"
        return schedule

    def reorder(self, *names: str) -> Schedule:
        """Nested loops in another order, outermost first."""
        return self._reorder(names)


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
