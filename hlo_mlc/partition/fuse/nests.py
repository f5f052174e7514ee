"""Whether a stage may join a nest, and the nest that results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var
from hlo_mlc.partition.fuse.at_hand import appended
from hlo_mlc.partition.fuse.limits import ROW_LIMIT
from hlo_mlc.partition.fuse.one_pass import folded_together
from hlo_mlc.partition.fuse.scalar_replacement import with_written_out
from hlo_mlc.tensor.classify import (
    contraction,
    crosses,
    is_map,
    is_plain,
    reads,
    slides,
    stage_cost,
    walks_columns,
)
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.pairs import is_pairwise
from hlo_mlc.tensor.rewrite import map_expressions, rename_axes
from hlo_mlc.tensor.strictness import without_nans

# What is decided here by numbers of its own is nothing that the cost model (costs.py) knows of: it
# counts what a stage computes and reads, not how many registers and near caches that takes.  By it,
# HANDED_COST, the operations that take as long as to store a value and to load it, were 3 to 21,
# with which bilateral takes 1.45 times as long.  The cases are those of the bench that show a
# number (`python scripts/thresholds.py`).

# Simple operations in one fused expression tree; beyond it registers spill (black_scholes).
COST_LIMIT = 400
# What it may have more for each value that is handed over in it and needs no memory: to store and
# load a vector takes as long as these.  Chains of sines are left apart so, of which two nests have
# independent elements enough to hide latencies, and 49 weights of a filter are computed where they
# are used (0.45 of the time: bilateral).
HANDED_COST = 32
# And for each buffer that both parts of it would read (bilateral).
SHARED_COST = 8
# Distinct buffers of one nest; each takes an address register in the inner loop (lstm_gradient).
BUFFER_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Joined:
    """The stages of a nest after a successful join.

    `handed`: what has passed from stage to stage in registers; most of it never gets memory.
    `saved`: how many of these would have got it, had the nest not become larger than others.
    """

    stages: tuple[Stage, ...]
    shared: int
    handed: frozenset[Buffer] = frozenset()
    saved: int = 0


def join(nest: Joined, stage: Stage, row_limit: int = ROW_LIMIT) -> Joined | str:
    """Compute `stage` in the same nest, after the others; or the reason why not.

    `row_limit`: elements of a row that the target keeps between passes.
    """
    return _joined(
        nest, stage, row_limit, lambda joined: _too_large(joined, COST_LIMIT, BUFFER_LIMIT)
    )


def handed_over(first: Joined, last: Joined, row_limit: int, saved: int) -> Joined | str:
    """One nest of two, of which the first computes `saved` values for the second and nobody else;
    or the reason why not."""
    joined: Joined | str = first
    for stage in last.stages:
        joined = _joined(joined, stage, row_limit, lambda joined: "")
        if isinstance(joined, str):
            return joined
    saved += first.saved + last.saved
    joined = replace(joined, handed=joined.handed | last.handed, saved=saved)
    shared = _inputs(first) & _inputs(last)
    widest = max(BUFFER_LIMIT, len(_walked(first)), len(_walked(last)))
    most = COST_LIMIT + saved * HANDED_COST + len(shared) * SHARED_COST
    return _too_large(joined, most, widest) or joined


def _too_large(joined: Joined, most_cost: int, most_buffers: int) -> str:
    """Why a nest had better be two; "" for one that need not."""
    if sum(map(stage_cost, joined.stages)) > most_cost:
        return "the fused expressions would need more registers than there are"
    if len(_walked(joined)) > most_buffers:
        return "the fused loop would walk through too many buffers at once"
    return ""


def _inputs(joined: Joined) -> set[Buffer]:
    return {b for s in joined.stages for b in s.inputs}


def _walked(joined: Joined) -> set[Buffer]:
    """The buffers that the loops of a nest walk through."""
    return {b for s in joined.stages for b in (*s.inputs, *s.outputs)} - joined.handed


def _joined(
    nest: Joined, stage: Stage, row_limit: int, limit: Callable[[Joined], str]
) -> Joined | str:
    """As `join`, with any `limit` on the size of the result: a reason, or "" where it fits."""
    if any(s.procedure is not None for s in (*nest.stages, stage)):
        return "a procedure has its own loops"
    stage = _follow(nest, stage)
    if len(nest.stages) == 1:
        one = with_written_out(nest.stages[0], stage)
        if one is not None:
            handed = nest.handed | set(stage.inputs) - set(one.inputs)
            return Joined((one,), len(one.axes), handed)
    both = folded_together(nest.stages, stage)
    if both is not None:
        return Joined((both,), len(both.axes), nest.handed)
    shared = _shared_axes(nest, stage)
    if shared == 0:
        return "no common leading axes on which the data match point by point"
    reason = _scan_refusal(nest, stage, shared) or _refusal(nest, stage, shared, row_limit)
    if reason:
        return reason
    leader = nest.stages[0]
    stage = rename_axes(stage, dict(zip(stage.axes[:shared], leader.axes[:shared], strict=True)))
    wanted = frozenset(stage.inputs)
    stages = appended(nest.stages, stage)
    handed = nest.handed | (wanted - {b for s in stages for b in s.inputs})
    joined = Joined(stages, shared, handed)
    return limit(joined) or joined


def _follow(nest: Joined, stage: Stage) -> Stage:
    """Let the consumer of a matrix product, or of a fold of rows, walk in the order in which that
    is computed.

        y[h, s] = f(z[s, h])   after   z[s, h] = sum ...   ->   for s, h: y[h, s] = f(z[s, h])

    Heads split off or axes swapped behind a product become a way of storing its result.
    """
    producer = nest.stages[0]
    if (
        len(nest.stages) > 1
        or not is_map(stage)
        or (contraction(producer) is None and not walks_columns(producer))
    ):
        return stage
    for assign in producer.assigns:
        found = reads(stage, assign.buffer)
        if found and is_plain(assign, producer.axes):
            at = _inverted(assign, found[0], stage.axes)
            if at is None or any(load.indices != found[0].indices for load in found):
                return stage
            moved = map_expressions(stage, lambda e, at=at: substitute(e, at))
            return replace(moved, axes=producer.axes)
    return stage


def _inverted(assign: Assign, load: Load, axes: tuple[Var, ...]) -> dict[Var, Expr] | None:
    """The reader's axes as functions of the writer's, where the read is one to one."""
    result: dict[Var, Expr] = {}
    halves: dict[Apply, Var] = {}
    for written, read in zip(assign.indices, load.indices, strict=True):
        if not isinstance(written, Var):
            continue
        if isinstance(read, Apply) and read.op in ("floordiv", "floormod"):
            halves[read] = written
            continue
        terms, offset = index.affine(read)
        step = 1
        for axis, coefficient in sorted(terms.items(), key=lambda term: term[1]):
            if axis not in axes or axis in result or coefficient != step:
                return None
            result[axis] = written // step % axis.extent
            step *= axis.extent
        if offset or step != written.extent:
            return None
    for quotient, high in halves.items():
        axis, by = quotient.args
        if quotient.op == "floormod":
            continue
        low = halves.get(axis % by.value)
        if (
            low is None
            or axis not in axes
            or axis in result
            or (low.extent, high.extent * by.value) != (by.value, axis.extent)
        ):
            return None
        result[axis] = high * by + low
    return result if len(result) == len(axes) and load.guard is None else None


def _shared_axes(nest: Joined, stage: Stage) -> int:
    """How many leading axes agree in extent and in every access to the nest's own buffers."""
    leader = nest.stages[0].axes
    shared = min(nest.shared, len(stage.axes))
    for position in range(shared):
        if leader[position].extent != stage.axes[position].extent:
            shared = position
            break
    written = {a.buffer: (s, a, s.axes) for s in nest.stages for a in s.assigns}
    written |= {a.buffer: (s, a, (*s.axes, *s.reduce_axes)) for s in nest.stages for a in s.along}
    for buffer in stage.inputs:
        if buffer not in written:
            continue
        writer, assign, points = written[buffer]
        if not is_plain(assign, points):
            return 0
        for load in reads(stage, buffer):
            shared = min(shared, _matching(writer, assign, load, stage))
    return shared


def _matching(writer: Stage, assign: Assign, load: Load, stage: Stage) -> int:
    """Leading axes of `writer` that `load` reads at the reader's own point."""
    at = {i: j for i, j in zip(assign.indices, load.indices, strict=True) if isinstance(i, Var)}
    count = 0
    for ours, theirs in zip(writer.axes, stage.axes, strict=False):
        if at.get(ours) is not theirs:
            break
        count += 1
    return count


def _scan_refusal(nest: Joined, stage: Stage, shared: int) -> str:
    """A scan or sort takes in what is computed from its results at the same points, and nothing
    else."""
    first = nest.stages[0]
    if all(s.scan is None and s.sort is None for s in (first, stage)):
        return ""
    leads = first.scan is not None or first.sort is not None
    if not leads or not is_map(stage) or not shared == len(first.axes) == len(stage.axes):
        return "only elementwise consumers join a scan or a sort"
    return ""


def _refusal(nest: Joined, stage: Stage, shared: int, row_limit: int) -> str:
    """Why joining on this many axes would not pay; empty where it does."""
    everything = (*nest.stages, stage)
    if all(is_map(s) and len(s.axes) == shared for s in everything):
        return ""
    if contraction(stage) is not None:
        return "a matrix product starts its own kernel"
    if is_pairwise(stage):
        return "a fold for all pairs of rows starts its own loops"
    first = nest.stages[0]
    pointwise = is_map(stage) and len(stage.axes) == shared
    if (
        contraction(first) is not None
        or walks_columns(first)
        or slides(first)
        or is_pairwise(first)
    ):
        if pointwise and shared == len(first.axes) and len(nest.stages) == 1:
            return ""
        return (
            "only elementwise consumers join a matrix product, windows, a reduction over "
            "leading axes or one for all pairs of rows"
        )
    if not pointwise and any(is_map(s) and crosses(s) for s in nest.stages):
        return "it goes along rows of what is read along columns, which is transposed first"
    if walks_columns(stage) or slides(stage):
        return "it reduces over a leading axis or over windows"
    if any(_row_elements(s, shared) > row_limit for s in everything):
        return f"a row has more than {row_limit} elements"
    if all(map(is_map, everything)):
        return "elementwise stages of different shapes"
    return ""


def _row_elements(stage: Stage, shared: int) -> int:
    return math.prod(v.extent for v in (*stage.axes[shared:], *stage.reduce_axes))


def finish(joined: Joined, needed: frozenset[Buffer]) -> Nest:
    """The nest without stores that nobody reads; `needed` buffers are read outside of it."""
    stages = list(joined.stages)
    live = set(needed)
    kept: list[Stage] = []
    for stage in reversed(stages):
        assigns = tuple(a for a in stage.assigns if a.buffer in live)
        along = tuple(a for a in stage.along if a.buffer in live)
        if not assigns and not along:
            continue
        if (assigns, along) != (stage.assigns, stage.along):  # what is known of it stays with it
            stage = replace(stage, assigns=assigns, along=along)
        live.update(stage.inputs)
        kept.append(stage)
    kept.reverse()
    written = dict.fromkeys(b for s in kept for b in s.outputs)
    private = tuple(b for b in written if b not in needed)
    return without_nans(Nest(tuple(kept), joined.shared, private))
