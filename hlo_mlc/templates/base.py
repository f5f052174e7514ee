"""A template: a way to compute a class of nests, with its tunable parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, walk
from hlo_mlc.expr.dtypes import BF16, INDEX
from hlo_mlc.loops.core import LoopProgram, Stmt
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.loops.signature import aligned
from hlo_mlc.schedule.core import Schedule, Trace
from hlo_mlc.schedule.ordered_bits import OF_ONE_SIGN, TURNS
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.access import delinearize
from hlo_mlc.tensor.classify import cost
from hlo_mlc.tensor.core import Nest, Stage, derived_of_any_names

Parameters = Mapping[str, int]

Way = tuple[str, Parameters | Trace]
"""How to compute a nest: a template and its parameters or, where a person has scheduled it, the
template whose naive loops these steps rewrite."""

# Simple operations (about 0.25 ns each when vectorized) that one task should have.  Fork-join takes
# 0.6 us while the other threads are awake; softmax and argmax of a million elements ran 15 and 25 %
# faster with tasks of 60 us than with tasks of 15 us.
TASK_WORK = 240_000
# Work below which a nest stays on one thread.
SERIAL_WORK = 120_000
# Instructions that rounding to bf16 takes (codegen/cpu/conversions.py), besides the operation.
ROUNDING = 9


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The loops of one nest, and the scratch buffers that they need besides the nest's own.

    `schedules` are the rewrites that made these loops out of naive ones, for templates that work
    so.
    """

    body: tuple[Stmt, ...]
    scratch: tuple[Buffer, ...]
    schedules: tuple[Schedule, ...] = ()

    @staticmethod
    def of(*schedules: Schedule, scratch: tuple[Buffer, ...] = ()) -> Scheduled:
        """The loops that some schedules lead to, one after the other."""
        return Scheduled(
            tuple(stmt for s in schedules for stmt in s.program.body), scratch, schedules
        )


class Named(Protocol):
    """A template of any backend."""

    name: str


Machine = TypeVar("Machine", contravariant=True)


class Template(Named, Protocol[Machine]):
    """A class of kernels on a kind of machine."""

    def refusal(self, nest: Nest, target: Machine) -> str:
        """Why this template cannot compute the nest; empty where it can."""

    def space(self, nest: Nest, target: Machine) -> Mapping[str, tuple[int, ...]]:
        """The values that each tunable parameter may take."""

    def default(self, nest: Nest, target: Machine) -> Parameters:
        """Good parameters by analysis, without measuring."""

    def apply(self, nest: Nest, target: Machine, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""


class Fixed:
    """A template without parameters."""

    __slots__ = ()

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """No parameters."""
        return {}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """No parameters."""
        return {}


T = TypeVar("T", bound=Named, covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """The template chosen for one nest, its parameters, and why others were refused; `schedules`
    are its rewrites of naive loops, which a person wrote if `by_hand`."""

    nest: Nest
    template: T
    parameters: Parameters
    refused: tuple[tuple[str, str], ...]
    schedules: tuple[Schedule, ...] = ()
    by_hand: bool = False


def first_taking(
    templates: Iterable[T], wanted: str, why_not: Callable[[T], str]
) -> tuple[T | None, tuple[tuple[str, str], ...]]:
    """The wanted template if it accepts a nest, else the first that does, with the reasons of those
    refused before it; None where none accepts."""
    refused = []
    for template in sorted(templates, key=lambda template: template.name != wanted):
        reason = why_not(template)
        if not reason:
            return template, tuple(refused)
        refused.append((template.name, reason))
    return None, tuple(refused)


def points(stage: Stage) -> int:
    """How often the innermost expressions of a stage are evaluated."""
    if stage.procedure is not None:
        return math.prod(v.extent for v in stage.axes)
    place = stage.sort.place if stage.sort is not None else None
    return math.prod(v.extent for v in (*stage.axes, *stage.reduce_axes) if v is not place)


def work(nest: Nest) -> int:
    """Rough number of simple operations of the whole nest, a load or store counting as one."""
    return sum(points(s) * (_operations(s) + 1 + len(s.inputs)) for s in nest.stages)


@derived_of_any_names
def _operations(stage: Stage) -> int:
    """The operations of one point."""
    return cost(*stage.expressions) if stage.procedure is None else stage.procedure.total(cost)


def epilogue_cost(stage: Stage) -> int:
    """Rough number of instructions between one result's fold and its stores."""
    rounded = sum(
        node.dtype is BF16
        for node in walk(*(a.value for a in stage.assigns))
        if isinstance(node, Apply)
    )
    return sum(cost(a.value) for a in stage.assigns) + ROUNDING * rounded


def why_empty(nest: Nest) -> str:
    """Which axis has no elements; empty where every axis has some."""
    empty = any(v.extent == 0 for s in nest.stages for v in (*s.axes, *s.reduce_axes))
    return "an axis without elements" if empty else ""


def may_repeat(stage: Stage) -> bool:
    """Whether results may be computed and stored twice: the stage reads nothing that it writes, not
    even under another name."""
    return set(stage.inputs).isdisjoint((*stage.outputs, *stage.overwrites))


def lanes(stages: tuple[Stage, ...], target: CpuTarget) -> int:
    """Elements of one vector register, of the widest type that the stages compute with."""
    return max(1, target.vector_bytes // max(map(_widest, stages), default=1))


@derived_of_any_names
def _widest(stage: Stage) -> int:
    """Bytes of the widest value that a stage computes or stores."""
    dtypes = {node.dtype for node in walk(*stage.expressions) if node.dtype is not INDEX}
    narrow = 2 if _looks_for_one(stage) else 4
    computed = (narrow if dtype.is_narrow_float else dtype.bytes for dtype in dtypes)
    return max(1, *computed, *(buffer.dtype.bytes for buffer in stage.outputs))


def _looks_for_one(stage: Stage) -> bool:
    """Whether the only thing done with bf16 or f16 values is a search for the largest or smallest
    (schedule/ordered_bits.py)."""
    return (
        stage.combiner is not None
        and stage.combiner.name in TURNS
        and all(v.dtype in OF_ONE_SIGN for v in stage.accumulators)
        and not any(
            isinstance(node, Apply)
            and node.op not in ("abs", "neg")
            and any(x.dtype.is_narrow_float for x in (node, *node.args))
            for node in walk(*stage.expressions)
        )
    )


def short_width(extent: int, most: int) -> int:
    """The lanes, at most so many, of the shortest vector that holds a short row."""
    return min(most, 1 << (extent - 1).bit_length())


def open_schedule(nest: Nest, body: tuple[Stmt, ...], checked: bool = True) -> Schedule:
    """A schedule of naive loops, to be rewritten by primitives."""
    reads = dict.fromkeys(b for s in nest.stages for b in s.inputs)
    writes = dict.fromkeys(b for s in nest.stages for b in s.outputs)
    operands = tuple(b for b in reads if b not in writes)
    results = tuple(b for b in writes if b not in nest.private)
    scratch, offset = [], 0
    for buffer in nest.private:
        scratch.append((buffer, offset))
        offset += aligned(buffer.bytes)
    return Schedule(LoopProgram("nest", operands, results, body, tuple(scratch)), checked=checked)


def open_stage(stage: Stage, nest: Nest | None = None) -> Schedule:
    """The naive loops of a stage, alone or in a nest, as a schedule that does not check its
    rewrites: tests have."""
    return open_schedule(nest or Nest((stage,), len(stage.axes)), lower_stage(stage), checked=False)


def in_vectors(schedule: Schedule, name: str, width: int) -> Schedule:
    """A loop as whole vectors, and the rest as one shorter vector, or as single iterations where
    its length is unknown."""
    if all(
        constant_extent(s) is not None and constant_extent(s) <= width for s in schedule.loops(name)
    ):
        return schedule.vectorize(name)
    schedule = schedule.split(name, width)
    for part in (f"{name}.i", f"{name}.t"):
        found = schedule.loops(part)
        if found and all(constant_extent(s) is not None for s in found):
            schedule = schedule.vectorize(part)
    return schedule


def in_powers(schedule: Schedule, name: str, most: int) -> Schedule:
    """A loop as vectors whose lengths are powers of two, of at most so many lanes, without
    masks."""
    extent = constant_extent(schedule.loops(name)[0])
    while extent > 1:
        size = min(most, 1 << extent.bit_length() - 1)
        if size == extent:
            return schedule.vectorize(name)
        schedule = schedule.split(name, size).vectorize(f"{name}.i")
        name, extent = f"{name}.t", extent % size
    return schedule


def abreast(schedule: Schedule, name: str, width: int) -> Schedule:
    """A loop as vectors, unrolled side by side."""
    return unroll_any(in_vectors(schedule, name, width), f"{name}.o")


def unroll_any(schedule: Schedule, *names: str) -> Schedule:
    """The schedule with those of the named loops that exist unrolled."""
    for name in names:
        if name in schedule.loop_names:
            schedule = schedule.unroll(name)
    return schedule


def in_tasks(schedule: Schedule, depth: int, group: Callable[[int], int]) -> Schedule:
    """The outermost `depth` loops fused and split into parallel tasks of equal size, at most
    `group(iterations)` iterations each; serial where that is 0 or all of them."""
    names = schedule.loop_names[:depth]
    schedule, name = schedule.fuse(*names), ".".join(names)
    count = constant_extent(schedule.loops(name)[0])
    most = group(count)
    if not 0 < most < count:
        return schedule
    size = even_groups(count, most)
    if size == 1:
        return schedule.parallel(name)
    return schedule.split(name, size, "shorten").parallel(f"{name}.o")


def in_blocks_of_tiles(
    schedule: Schedule, stage: Stage, axis: Var, height: int, tiles: int
) -> Schedule:
    """An axis split into blocks of so many tiles of `height`.

    The last tile begins early; it repeats what it shares with the tile before if both are in one
    block.
    """
    before = (axis.extent - 1) // height
    repeats = may_repeat(stage) and (before % tiles > 0 or before == 0 or axis.extent % height == 0)
    return schedule.split(axis.name, height, "repeat" if repeats else "shift").split(
        f"{axis.name}.o", tiles, "shorten"
    )


def along_axes(schedule: Schedule, axes: Sequence[str], row: str, column: str) -> Schedule:
    """The sums of a register tile of rows by columns, with the loops over these axes outside of the
    tile."""
    for axis in axes:
        schedule = schedule.distribute(row, axis).reorder(axis, row, column)
    return schedule


def naive_loops(template: Template[CpuTarget], nest: Nest, target: CpuTarget) -> LoopProgram | None:
    """The naive loops that a template rewrites step by step; None where it builds loops in another
    way."""
    made = template.apply(nest, target, template.default(nest, target))
    if len(made.schedules) != 1 or made.scratch:
        return None
    (schedule,) = made.schedules
    return schedule.naive or schedule.program


def even_groups(tasks: int, most: int) -> int:
    """The size of nearly equal groups of at most `most` tasks."""
    return -(-tasks // -(-tasks // most))


def worth_a_task(iterations: int, total: int) -> int:
    """How many of so many iterations, with `total` work in all, make a task; 0 if all of them
    together do not."""
    return max(1, TASK_WORK * iterations // total) if total > SERIAL_WORK else 0


def decoded(axes: Sequence[Var], number: Expr) -> dict[Var, Expr]:
    """The coordinates of the point with this row-major number."""
    return dict(zip(axes, delinearize(number, [v.extent for v in axes]), strict=True))
