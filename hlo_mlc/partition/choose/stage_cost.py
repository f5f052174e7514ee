"""What the stages of a kernel take, by us and by XLA, in all trips of the loops around them.

Both follow from what a stage does (work.py), from the rates of the machine (target/rates.py), and
from how XLA compares with us by kind of stage (xla_time.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.partition.choose.surroundings import SHARES, OurTime, Surroundings
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.choose.xla_time import xla_time
from hlo_mlc.partition.costs import APART_NS, threads_for, vector_us
from hlo_mlc.partition.work import Work, contraction_flops
from hlo_mlc.target.cpu import PAIR, WIDEST_STEP, CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.templates.base import SERIAL_WORK, lanes, points
from hlo_mlc.templates.points_outside import threads_of_blocks
from hlo_mlc.templates.pointwise_loop import pointwise
from hlo_mlc.templates.product_roles import adds_pairs
from hlo_mlc.templates.program import choose_template, is_short
from hlo_mlc.templates.sorting import sorting_tasks, sorting_us
from hlo_mlc.templates.stepwise import blocks
from hlo_mlc.templates.update import chunks, is_in_rows, shared_axis
from hlo_mlc.tensor.classify import is_map, stride
from hlo_mlc.tensor.coalesce import coalesce, with_counted_apart
from hlo_mlc.tensor.core import Branch, Loop, Nest, Stage, Step, TensorProgram, derived_of_any_names
from hlo_mlc.tensor.liveness import step_writes
from hlo_mlc.tensor.phases import in_phases
from hlo_mlc.tensor.points_apart import PointsApart, loops_apart

# Operations and accesses per microsecond where nothing is vectorized (scatters, recurrences), two
# to three a cycle: wider vectors do not help.  Eigenvectors and LU of 16 square took as long
# of one matrix as of a vector of them (Zen 5, f32 to complex128): 9,000 to 10,000.
_SCALAR_OPERATIONS = 10_000
# Updates of elements that may meet, of which some are written out, take less where what is updated
# is in the first cache: 30,000 into 2,000 elements 0.45 ns each, into 60,000 1.0 to 1.3.
_NEAR_UPDATES, _FAR_UPDATES = 0.5, 0.9
_SERIAL_STAGE_US = 0.002  # the latency of a few operations that wait for each other

# A loop of which a trip touches fewer bytes becomes one function there, in which a scalar costs
# next to nothing; in others each has a call of its own.  Source: small_while_loop_hoisting_pass.cc
# and cpu_options.cc in xla/service/cpu.
_ONE_FUNCTION_BYTES = 1024

# So many operations, or any on buffers of so many bytes, it runs in order without asking which are
# ready.
_IN_ORDER, _IN_ORDER_BYTES = 8, 512

# Templates whose lanes are results, where others, and XLA, have the terms of a fold.
_BESIDE = ("side_by_side", "tiled")

# What reads a tensor against its rows gets so much less from memory, which brings rows: 2048 square
# took 1.7 (f32) to 4 times (bf16) as long as a copy, images with three channels 1.8 to 2.7.
_AGAINST_ROWS = 2

_TRIPS_ASKED = 4096  # of a loop, whether a condition holds


@dataclass(frozen=True, slots=True)
class Part:
    """What one stage adds."""

    kind: str
    ours_us: float
    xla_us: float
    operations: int
    contraction_flops: int
    forks: bool  # several threads of ours share it
    xla_forks: bool  # several threads of XLA's do


def parts_of(program: TensorProgram, target: CpuTarget, around: Surroundings) -> list[Part]:
    """What the stages of a program add, XLA having them in such surroundings."""
    apart = loops_apart(program)
    return [part for step in program.steps for part in _parts(step, target, 1, around, apart=apart)]


def _parts(
    step: Step,
    target: CpuTarget,
    trips: int,
    around: Surroundings,
    cached: Set[Buffer] = frozenset(),
    alone: bool = False,
    loop: Loop | None = None,
    apart: Mapping[Loop, PointsApart] = MappingProxyType({}),
) -> Sequence[Part]:
    """`cached`: what our code finds in the first cache from the trip before; `alone`: it runs on
    one thread; `loop`: that whose body it is in; `apart`: loops whose points may end one by one."""
    if isinstance(step, Branch):
        around, chosen = replace(around, in_loop=True), _chosen(step.condition, loop)
        return [
            replace(part, ours_us=share * part.ours_us, xla_us=share * part.xla_us)
            for side, share in ((step.then, chosen), (step.otherwise, 1 - chosen))
            for s in side
            for part in _parts(s, target, trips, around, cached, alone, loop, apart)
        ]
    if isinstance(step, Loop):
        inner, in_blocks = trips * step.likely_trips, pointwise(step, target)
        cached = frozenset() if in_blocks is None else in_blocks.kept
        threads = threads_of_blocks(apart[step], target) if step in apart else None
        if threads is not None:  # each has all trips of a block, which stays in the first cache
            cached, alone, apart = step_writes(step), True, {}
        around = replace(
            around,
            in_loop=True,
            in_function=_touched_bytes(step) < _ONE_FUNCTION_BYTES,
            queued=_is_queued(step),
        )
        alone = alone or is_short(step, target)
        parts = [
            part
            for s in step.inner
            for part in _parts(s, target, inner, around, cached, alone, step, apart)
        ]
        if threads is None:
            return parts
        return [replace(p, ours_us=p.ours_us / threads, forks=threads > 1) for p in parts]
    buffers = _touched(step)
    places = tuple([(b in cached, b in around.given) for b in buffers])
    return _nest_parts(step, (target, target.rates), trips, around, places, alone)


@derived_of_any_names  # all that names buffers is said by their places
def _nest_parts(
    nest: Nest,
    machine: tuple[CpuTarget, Rates],
    trips: int,
    around: Surroundings,
    places: tuple[tuple[bool, bool], ...],
    alone: bool,
) -> tuple[Part, ...]:
    """`places`: whether each of the buffers that it touches is `cached`, and given.  Targets are
    equal whatever their rates are, which are named beside them."""
    target, _ = machine
    cached = {b for b, (is_cached, _) in zip(_touched(nest), places, strict=True) if is_cached}
    template = choose_template(nest, target)[0].name
    phases = in_phases(nest)
    if len(phases) > 1:  # XLA computes all terms, also those that are nothing
        ours = [
            part for one in phases for part in _parts(one, target, trips, around, cached, alone)
        ]
        whole = _part(nest.stages[0], template, target, trips, around, cached, alone)
        return (replace(whole, ours_us=sum(part.ours_us for part in ours)),)
    parts = []
    near = {*nest.private, *cached}  # and what an earlier stage of the nest has touched
    for stage in nest.stages:
        parts.append(_part(stage, template, target, trips, around, near, alone))
        near |= {*stage.inputs, *stage.outputs}
    return tuple(parts)


def _touched(nest: Nest) -> tuple[Buffer, ...]:
    """What the stages of a nest write or read."""
    return tuple(dict.fromkeys(b for s in nest.stages for b in (*s.outputs, *s.inputs)))


def _chosen(condition: Expr, loop: Loop | None) -> float:
    """The share of a loop's trips in which a condition holds, if all that it depends on is their
    number; nobody knows that of others."""
    if loop is None or not loop.trip_count:
        return 0.5
    scalars = {
        a.buffer: a.value
        for step in loop.body
        if isinstance(step, Nest)
        for stage in step.stages
        if not stage.axes and is_map(stage)
        for a in stage.assigns
        if not a.indices and a.guard is None
    }
    trips = np.arange(min(loop.trip_count, _TRIPS_ASKED))

    def value(expression: Expr) -> np.ndarray:
        return evaluate(expression, {loop.counter: trips}, lambda buffer, _: value(scalars[buffer]))

    try:
        return float(np.mean(np.broadcast_to(value(condition), trips.shape)))
    except (KeyError, RecursionError):  # it depends on more
        return 0.5


def _is_queued(loop: Loop) -> bool:
    """Whether XLA puts what the body of a loop does into a queue, from which threads take it: more
    than a few operations, not all on next to nothing.

    Source: ThunkExecutor::Options in xla/backends/cpu/runtime/thunk_executor.h.
    """
    nests = [step for step in loop.inner if isinstance(step, Nest)]
    return sum(len(nest.stages) for nest in nests) > _IN_ORDER and any(
        buffer.bytes > _IN_ORDER_BYTES
        for nest in nests
        for stage in nest.stages
        for buffer in (*stage.inputs, *stage.outputs)
    )


def _scanned_apart(stage: Stage) -> int:
    """Elements that a scan reads far from those of the next lanes, which lie along the last axis
    unless it goes along that itself."""
    if stage.scan is None or stage.scan.axis is stage.axes[-1]:
        return 0
    read = [load for group in stage.loads_by_buffer.values() for load in group]
    far = (abs(stride(load, stage.axes[-1]) or 0) > WIDEST_STEP for load in read)
    return points(stage) * sum(far)


def _touched_bytes(step: Step) -> int:
    """Read and written, loops gone through once."""
    if isinstance(step, Nest):
        return sum(Work.of(stage).moved_bytes for stage in step.stages)
    return sum(_touched_bytes(inner) for inner in step.inner)


def _part(
    stage: Stage,
    template: str,
    target: CpuTarget,
    trips: int,
    around: Surroundings,
    near: Set[Buffer],
    alone: bool,
) -> Part:
    """`near`: what our code finds in the first cache."""
    rates, work = target.rates, Work.of(stage)
    cores = 1 if template == "plain" or alone else target.cores
    if template == "update" and not shared_axis(coalesce(stage)):
        cores = min(cores, chunks(Nest((stage,), len(stage.axes))))
    rows = _our_time(stage, template, target, cores, alone)
    ours = rows
    if template in _BESIDE and stage.sort is None:
        ours = replace(rows, alone_us=vector_us(work, lanes((stage,), target), rates))
    elif (
        not rows.is_serial and is_map(stage) and (counted := with_counted_apart(stage)) is not stage
    ):
        # Rows of different elements, each of which is computed for its own place alone.
        alone_us = vector_us(Work.of(counted), lanes((stage,), target), rates)
        ours = replace(rows, alone_us=min(rows.alone_us, alone_us))
    elif template == "contraction" and adds_pairs(coalesce(stage), target):
        ours = replace(rows, alone_us=rows.alone_us / PAIR)
    there = xla_time(stage, rows, target, around)
    far = {b: size for b, size in work.moved.items() if b not in near}
    memory = rates.pass_us(sum(far.values()), around.held(far))
    if template == "transpose":
        memory *= _AGAINST_ROWS
    if template == "update" and cores == 1:
        memory *= min(target.cores, SHARES)
    thunk_us = rates.loop_thunk_us * (figure("queued") if around.queued else 1)
    started = there.us + (thunk_us if around.in_loop else rates.thunk_us)
    # In a function of many, a loop of its own costs no more than its elements one after the other.
    xla = min(started, max(there.us, rows.scalar_us)) if around.in_function else started
    return Part(
        there.kind,
        trips * max(ours.computing_us, memory),
        trips * xla,
        trips * work.operations,
        trips * contraction_flops(stage),
        cores > 1 and (rows.threads > 1 or work.moved_bytes // 4 > SERIAL_WORK),
        there.forks,
    )


def _our_time(stage: Stage, template: str, target: CpuTarget, cores: int, alone: bool) -> OurTime:
    """What computing it takes us, where lanes that rows side by side leave empty are empty."""
    rates, work, vector = target.rates, Work.of(stage), lanes((stage,), target)
    steps = work.operations + points(stage) * (1 + len(stage.inputs))
    scalar_us = steps * (rates.one_by_one / _SCALAR_OPERATIONS)
    apart_ns = APART_NS * rates.one_by_one
    if template == "plain" or (template == "update" and not is_in_rows(coalesce(stage))):
        share = _share_of_steps(stage, target) if template == "update" else 1.0
        threads = max(1, min(cores, steps // SERIAL_WORK))
        alone_us = max(share * scalar_us, _SERIAL_STAGE_US * rates.one_by_one)
        return OurTime(work, True, alone_us, threads, scalar_us)
    threads = threads_for(work, cores)
    if template == "stepwise":  # a vector of matrices takes as long as one, their elements do not
        vectors = blocks(stage, target)
        apart_us = apart_ns * sum(buffer.size for buffer in work.moved) / 1e3
        alone_us = scalar_us * vectors / points(stage) + apart_us
        threads = min(threads, vectors)
    elif stage.sort is not None:
        alone_us = vector_us(work, vector, rates) + sorting_us(stage, target) * rates.one_by_one
        threads = 1 if alone else min(target.cores, sorting_tasks(stage, target))
    else:
        if template in (*_BESIDE, "reduction") and not is_map(stage):  # lanes stay empty
            vector = min(vector, stage.reduce_axes[-1].extent)
        alone_us = vector_us(work, vector, rates) + apart_ns * _scanned_apart(stage) / 1e3
    return OurTime(work, False, alone_us, threads, scalar_us)


def _share_of_steps(update: Stage, target: CpuTarget) -> float:
    """What updates one by one take of as many steps."""
    is_near = sum(buffer.bytes for buffer in update.outputs) <= target.l1_bytes
    return _NEAR_UPDATES if is_near else _FAR_UPDATES
