"""Maps: every element from its own indices; vectors along the last axis, tasks along the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, walk
from hlo_mlc.expr.dtypes import F64
from hlo_mlc.expr.ops import OPS
from hlo_mlc.loops.core import For, LoopKind
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import WIDEST_STEP, CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    abreast,
    in_powers,
    in_vectors,
    lanes,
    may_repeat,
    open_stage,
    points,
    work,
)
from hlo_mlc.templates.borders import between_borders, has_borders
from hlo_mlc.templates.short_axes import MOST_READ, MOST_READ_SHORT, short_axes, width_along
from hlo_mlc.tensor.classify import (
    cost,
    is_map,
    parallelism,
    picks_along,
    reads,
    stride,
    why_not_apart,
)
from hlo_mlc.tensor.coalesce import accesses, coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Vectors of a row up to which processors without AVX-512 do without masks where a vector cannot be
# stored again in part: some take 10 to 20 cycles to store under one.
SHORT_ROW = 4
# Bytes of the elements that processors without AVX-512 read and store under masks.
LEAST_MASKED = 4
# Bodies of fewer operations are bound by memory; of longer ones one fills a processor's window.
SHORT, LONG = 8, 80
# Unless they are a chain of operations that wait for each other, fewer than so many at a time (a
# cipher's rounds): random bits of a million took 0.6 of the time, normal numbers 0.75, with AVX2
# 0.67 and 0.97.
ABREAST = 2
# The work from which on more code pays: vectors whose chains of operations are written side by side
# (codegen/cpu/interleave.py), and such of long bodies.
MUCH, MUCH_OF_LONG = 1 << 20, 1 << 23
# Registers that hold what four copies of a body share, besides what each is at.  With 16 the
# coefficients of exp are read again for every copy: two copies of exp, tanh and the logistic
# function of a million took 0.95 of the time of four, those of gelu 0.99.
ROOMY = 32
# Bytes by which bodies that are not bound by memory fetch ahead, as what they compute keeps the
# processor from seeing the next loads: gelu, tanh, erf and exp of a million ran 1.01 to 1.05 times
# as fast.
AHEAD = 1 << 10
# Bytes of results that are stored past the caches, if they are twice what these hold, too: a line
# that is written need not be read first.  Of 100 MB, maps took 0.78 of the time so, constants 0.8,
# and with a sum of all behind them 0.88; of 50 MB 0.81, 1.15 and 0.99, of 20 MB 1.2, 2 and 1.5.
STREAMED = 64 << 20
# Elements that are only moved, one by one, in an iteration; so many are few: vectors of 4096 that
# lie side by side before took 0.8 of the time, of 64 as long.
AT_ONCE, FEW = 4, 256
# Short rows that are written out where each is computed in a way of its own: code size.
MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class ElementwiseTemplate:
    """Vectorized and unrolled."""

    name: str = "elementwise"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not one independent map; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = nest.stages[0]
        if not stage.axes:
            return "a single element"
        return why_not_apart(stage)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors per iteration, work of one task, stores past the caches, bytes by which is
        fetched ahead, whether vectors go along the axis before a short one, how many of the last
        axes they go along as if these were one, and whether loops are cut where conditions change.
        """
        stage = coalesce(nest.stages[0])
        along = _axes_as_one(stage, target)
        return {
            "unroll": (1, 2, 4, 8),
            "grain": (1, 2, 4, 8),
            "streaming": (0, 1),
            "ahead": (0, AHEAD, 4 * AHEAD),
            "down": (0, 1) if _has_short_rows(stage, target) else (0,),
            "along": (1, along) if along > 1 else (1,),
            "borders": (0, 1) if has_borders(stage, lanes((stage,), target)) else (0,),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Several vectors in flight, fewer for long bodies and where little is to be done: code
        takes time to compile.

        Stores past the caches gained a fifth at 16 and 32 MB, which the next op lost again.
        """
        stage = coalesce(nest.stages[0])
        values = [a.value for a in stage.assigns]
        each, total = sum(map(cost, values)), work(nest)
        if _has_long_function(*values):
            unroll = 1
        elif _is_stored_apart(stage):
            unroll = 1  # each lane is a store: every 16th of 65,536 f32 took 0.77 of the time of 4
        elif each > LONG:
            is_chain = total >= MUCH_OF_LONG and parallelism(*values) < ABREAST
            unroll = 4 if is_chain else 1
        else:
            much = total >= MUCH and target.registers >= ROOMY
            unroll = 4 if each <= SHORT or much else 2
        along = _axes_as_one(stage, target)
        return {
            "unroll": unroll,
            "grain": 1,
            "streaming": int(_leaves_caches(stage, target) and not is_in_place(nest, stage)),
            "ahead": AHEAD if each > SHORT and total >= MUCH else 0,
            "down": int(along == 1 and _has_short_rows(stage, target)),
            "along": along,
            "borders": int(has_borders(stage, lanes((stage,), target))),
        }

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        schedule = open_stage(stage, nest)
        width = lanes((stage,), target)
        early = not target.has_masked_bytes and may_repeat(stage)
        if parameters["along"] > 1:
            axes = stage.axes[-parameters["along"] :]
            schedule = vectorize_along(schedule, axes, width, target, early)
        elif parameters["down"]:
            schedule = _down(schedule, stage.axes[-2].name, stage.axes[-1].name, width)
        else:
            short = not target.has_masked_bytes and stage.axes[-1].extent < SHORT_ROW * width
            names, others = [stage.axes[-1].name], []
            if parameters["borders"]:
                schedule, names, others = between_borders(
                    schedule, stage, all_rows=not _has_masks(stage, target)
                )
            moves_alone = _moves_alone(stage)
            for name in (*names, *others):
                if moves_alone:
                    schedule = _one_by_one(schedule, name)
                    continue
                schedule = vectorize(
                    schedule,
                    name,
                    width,
                    1 if name in others else parameters["unroll"],
                    in_pieces=short or is_in_place(nest, stage),
                    early=early,
                )
            for axis in _conditional_rows(stage, width):
                if axis.name in schedule.loop_names:  # else it was cut where conditions change
                    schedule = schedule.unroll(axis.name)
        if parameters["streaming"]:
            for buffer in stage.outputs:
                schedule = schedule.stream(buffer.name)
        axis = stage.axes[-1]
        if (
            parameters["ahead"]
            and axis.extent > 1
            and not parameters["down"]
            and parameters["along"] == 1
            and not parameters["borders"]
        ):
            for buffer in stage.inputs:
                if any(
                    read.guard is None and stride(read, axis) == 1 for read in reads(stage, buffer)
                ):
                    schedule = schedule.prefetch(
                        buffer.name, axis.name, parameters["ahead"] // buffer.dtype.bytes
                    )
        if work(nest) > SERIAL_WORK:
            schedule = share_out(schedule, work(nest), parameters["grain"])
        return Scheduled.of(schedule)


def _leaves_caches(stage: Stage, target: CpuTarget) -> bool:
    """Whether the results are so large that the next operation finds none of them in a cache."""
    written = sum(min(b.size, points(stage)) * b.dtype.bytes for b in stage.outputs)
    return written > max(STREAMED, 2 * target.l3_bytes)


def _has_long_function(*values: Expr) -> bool:
    """Whether one function alone fills a processor's window, of which copies are not written side
    by side, as they branch around rare arguments: one copy of zeta, lgamma and digamma of a million
    ran as long as two or four, and took half to two thirds of the time to compile."""
    return any(
        isinstance(node, Apply) and (OPS[node.op].operations or (0, 0))[node.dtype is F64] > LONG
        for node in walk(*values)
    )


def _is_stored_apart(stage: Stage) -> bool:
    """Whether lanes are stored one by one: neighbours are far from each other in the result, where
    nothing else lies between them that could be shuffled with them (codegen/cpu/strides.py)."""
    return len(stage.assigns) == 1 and _is_apart(stage, stage.assigns[0])


def _moves_alone(stage: Stage) -> bool:
    """Whether all that is done is to move elements that are read and stored one by one, or to set
    them: of vectors there would be lanes alone, each in code of its own.  So are few that are read
    side by side, which take as long.

    Columns of 4096 that are copied took 0.8 of the time; 256 of 64 that are filled one after the
    other, half of them with zeros, were 26,000 lines of LLVM IR and are 5,000 (bits_decoded)."""
    return _is_stored_apart(stage) and all(
        a.guard is None
        and (
            isinstance(a.value, Const)
            or (
                isinstance(a.value, Load)
                and a.value.guard is None
                and (_is_apart(stage, a.value) or points(stage) <= FEW)
            )
        )
        for a in stage.assigns
    )


def _is_apart(stage: Stage, access: Load | Assign) -> bool:
    """Whether neighbours along the last axis are known to be far from each other."""
    step = stride(access, stage.axes[-1])
    return step is not None and abs(step) > WIDEST_STEP


def _one_by_one(schedule: Schedule, name: str) -> Schedule:
    """A loop over single elements, unrolled a few times."""
    if name not in schedule.loop_names or constant_extent(schedule.loops(name)[0]) <= AT_ONCE:
        return schedule
    return schedule.split(name, AT_ONCE).unroll(f"{name}.i")


def _has_masks(stage: Stage, target: CpuTarget) -> bool:
    """Whether all that a stage reads can be read in some lanes only without a branch for each."""
    return target.has_masked_bytes or (
        target.has_masked_access and all(b.dtype.bytes >= LEAST_MASKED for b in stage.inputs)
    )


def is_in_place(nest: Nest, stage: Stage) -> bool:
    """Whether a stage writes memory that its nest reads, possibly under another name."""
    read = {b for s in nest.stages for b in s.inputs}.difference(nest.private)
    return not read.isdisjoint((*stage.outputs, *stage.overwrites))


def _has_short_rows(stage: Stage, target: CpuTarget) -> bool:
    """Whether vectors along the last axis would be nearly empty, and those along the one before are
    loaded and stored as shuffles of such that lie side by side (codegen/cpu/strides.py).

    Points in two and three dimensions took 0.1 to 0.8 of the time, with sums and products of their
    coordinates 0.1 to 0.3.  Four that lie side by side in everything are a vector by themselves:
    shuffles took 1.1 to 1.5 times as long."""
    if len(stage.axes) < 2:
        return False
    width, (*_, down, last) = lanes((stage,), target), stage.axes
    if (
        not 1 < last.extent <= WIDEST_STEP
        or not 2 * last.extent <= width <= down.extent
        or _are_apart_under_conditions(stage, down)
    ):
        return False
    return (
        last.extent < WIDEST_STEP
        or picks_along(stage, last)
        or any(stride(access, last) not in (0, 1) for access in accesses(stage))
    )


def _axes_as_one(stage: Stage, target: CpuTarget) -> int:
    """How many of the last axes vectors run along as if they were one axis."""
    return short_axes(
        stage, target, MOST_READ_SHORT if _has_short_rows(stage, target) else MOST_READ
    )


def _are_apart_under_conditions(stage: Stage, axis: Var) -> bool:
    """Whether conditions for each lane of a vector along an axis say which elements are read that
    are no neighbours: these are read one by one."""
    return any(
        read.guard is not None and axis in read.guard.free and stride(read, axis) not in (0, 1)
        for group in stage.loads_by_buffer.values()
        for read in group
    )


def _conditional_rows(stage: Stage, width: int) -> list[Var]:
    """The axes around short rows, innermost first, where conditions say which rows are what: each
    row is written out, and what is none of its own is not computed.

    Matrices of 3 x 3 with a column and a row joined to them took 0.3 of the time."""
    found, copies = [], 1
    for axis in reversed(stage.axes[1:-1]):
        copies *= axis.extent
        if stage.axes[-1].extent > width or copies > MOST_ROWS or not picks_along(stage, axis):
            break
        found.append(axis)
    return found


def _down(schedule: Schedule, down: str, last: str, width: int) -> Schedule:
    """Vectors along an axis for each element of the last one, all written out."""
    schedule = schedule.split(down, width)
    for part in (f"{down}.i", f"{down}.t"):
        # Nothing is in a tail none of which is within the array.
        if part in schedule.loop_names and schedule.loops(part)[0].body:
            schedule = schedule.reorder(last, part).vectorize(part)
    return schedule.unroll(last)


def vectorize(
    schedule: Schedule,
    name: str,
    width: int,
    unroll: int,
    in_pieces: bool = False,
    early: bool = False,
) -> Schedule:
    """Cut a loop into whole vectors, `unroll` at a time, and one at the end that begins `early`, if
    the one before it may be done again in part; else one masked vector at the end; or
    `in_pieces` of powers of two, as suits rows that are written where they are read: what a mask
    leaves out the processor takes for stored all the same, and what reads the next row waits for
    it (rows of 5 took 9 times as long)."""
    if name not in schedule.loop_names:  # nothing is written: no point is within the array
        return schedule
    extent = constant_extent(schedule.loops(name)[0])
    if extent == 1:
        return schedule
    if early and _has_tail(schedule, name, width):
        schedule = _early(schedule, name, width)
        if 1 < unroll <= extent // width:
            schedule = schedule.split(f"{name}.o", unroll).unroll(f"{name}.o.i")
        return schedule
    if extent >= width * unroll and unroll > 1:
        schedule = schedule.split(name, width * unroll).split(f"{name}.i", width)
        schedule, name = schedule.unroll(f"{name}.i.o").vectorize(f"{name}.i.i"), f"{name}.t"
        if extent % (width * unroll) == 0:
            return schedule
    return (in_powers if in_pieces else in_vectors)(schedule, name, width)


def vectorize_along(
    schedule: Schedule, axes: Sequence[Var], width: int, target: CpuTarget, early: bool = False
) -> Schedule:
    """Vectors along some axes as if these were one, as many as begin a period side by side."""
    names = [v.name for v in axes]
    schedule, name = schedule.fuse(*names), ".".join(names)
    period = math.prod(v.extent for v in axes[1:])
    width = width_along(period, width, target)
    period = math.lcm(period, width)
    parts = [name]
    if constant_extent(schedule.loops(name)[0]) > period:
        schedule = schedule.split(name, period)
        parts = [part for part in (f"{name}.i", f"{name}.t") if part in schedule.loop_names]
    for part in parts:
        if early and _has_tail(schedule, part, width):
            schedule = _early(schedule, part, width).unroll(f"{part}.o")
        else:
            schedule = abreast(schedule, part, width)
    return schedule


def _has_tail(schedule: Schedule, name: str, width: int) -> bool:
    """Whether the iterations of a loop fill more than one vector, but not a whole number of
    vectors."""
    extent = constant_extent(schedule.loops(name)[0])
    return extent > width and extent % width > 0


def _early(schedule: Schedule, name: str, width: int) -> Schedule:
    """A loop of whole vectors, the last of which begins early and repeats a part of the one
    before."""
    schedule = schedule.split(name, width, "early")
    return schedule.vectorize(f"{name}.i").vectorize(f"{name}.t")


def share_out(schedule: Schedule, total: int, grain: int) -> Schedule:
    """Make the outermost loop parallel, in blocks that are worth a task each; of several, as an
    axis that is cut at its borders has, the one with the most iterations."""
    serial = [s for s in schedule.program.body if isinstance(s, For) and s.kind is LoopKind.SERIAL]
    if not serial:
        return schedule
    longest = max(serial, key=_iterations)
    name, extent = longest.var.name, constant_extent(longest)
    if extent < 2:
        return schedule
    each = max(1, total // extent)
    block = max(1, min(extent // 2, TASK_WORK * grain // each))
    if block == 1:
        return schedule.parallel(name)
    return schedule.split(name, block, "shorten").parallel(f"{name}.o")


def _iterations(loop: For) -> int:
    """The iterations of a loop, times those of all loops inside it."""
    inner = sum(_iterations(s) for s in loop.body if isinstance(s, For))
    return (constant_extent(loop) or 1) * max(1, inner)
