"""Whether a stage may be computed together with others, and what comes out if it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.tensor.classify import contraction, cost, is_map, is_plain, reads, walks_columns
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.rewrite import map_expressions, rename_axes, replace_loads

# Elements of one row that may be kept between the passes over it: with f32 about half of a
# typical 32-48 KiB L1 cache per buffer, the measured knee for softmax and layernorm.
ROW_LIMIT = 8192
# Simple operations in one fused expression tree; beyond it registers spill.
COST_LIMIT = 400
# Distinct buffers of one nest; each takes an address register in the inner loop.
BUFFER_LIMIT = 24
# A map cheaper than this is computed again by each of its readers in the nest.
CHEAP = 2


@dataclass(frozen=True, slots=True)
class Joined:
    """The stages of a nest after a successful join."""

    stages: tuple[Stage, ...]
    shared: int


def join(nest: Joined, stage: Stage) -> Joined | str:
    """Compute `stage` in the same nest, after the others; or the reason why not."""
    stage = _follow(nest, stage)
    shared = _shared_axes(nest, stage)
    if shared == 0:
        return "no common leading axes on which the data match point by point"
    reason = _refusal(nest, stage, shared)
    if reason:
        return reason
    leader = nest.stages[0]
    stage = rename_axes(stage, dict(zip(stage.axes[:shared], leader.axes[:shared], strict=True)))
    stages = _append(nest.stages, stage, shared)
    if sum(cost(*s.expressions) for s in stages) > COST_LIMIT:
        return "the fused expressions would need more registers than there are"
    buffers = {b for s in stages for b in (*s.inputs, *s.outputs)}
    if len(buffers) > BUFFER_LIMIT:
        return "the fused loop would walk through too many buffers at once"
    return Joined(stages, shared)


def _follow(nest: Joined, stage: Stage) -> Stage:
    """Let the consumer of a matrix product walk in the order in which the product is computed.

        y[h, s] = f(z[s, h])   after   z[s, h] = sum ...   ->   for s, h: y[h, s] = f(z[s, h])

    Heads split off or axes swapped behind a product become a way of storing its result.
    """
    producer = nest.stages[0]
    if len(nest.stages) > 1 or not is_map(stage) or contraction(producer) is None:
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
    for written, read in zip(assign.indices, load.indices, strict=True):
        if not isinstance(written, Var):
            continue
        terms, offset = index.affine(read)
        step = 1
        for axis, coefficient in sorted(terms.items(), key=lambda term: term[1]):
            if axis not in axes or axis in result or coefficient != step:
                return None
            result[axis] = index.floormod(index.floordiv(written, step), axis.extent)
            step *= axis.extent
        if offset or step != written.extent:
            return None
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


def _refusal(nest: Joined, stage: Stage, shared: int) -> str:
    """Why joining on this many axes would not pay; empty where it does."""
    everything = (*nest.stages, stage)
    if all(is_map(s) and len(s.axes) == shared for s in everything):
        return ""
    if contraction(stage) is not None:
        return "a matrix product starts its own kernel"
    first = nest.stages[0]
    pointwise = is_map(stage) and len(stage.axes) == shared
    if contraction(first) is not None or walks_columns(first):
        if pointwise and shared == len(first.axes) and len(nest.stages) == 1:
            return ""
        return "only elementwise consumers join a matrix product or a reduction over leading axes"
    if walks_columns(stage):
        return "it reduces over a leading axis"
    if any(_row_elements(s, shared) > ROW_LIMIT for s in everything):
        return f"a row has more than {ROW_LIMIT} elements"
    if not any(not is_map(s) for s in everything) and not pointwise:
        return "elementwise stages of different shapes"
    return ""


def _row_elements(stage: Stage, shared: int) -> int:
    return math.prod(v.extent for v in (*stage.axes[shared:], *stage.reduce_axes))


def _append(stages: tuple[Stage, ...], stage: Stage, shared: int) -> tuple[Stage, ...]:
    """Add `stage`, taking over values that are at hand instead of loading them."""
    stage = _inline_cheap(stages, stage)
    last = stages[-1]
    if is_map(stage) and stage.axes == last.axes:
        forwarded = stage
        for assign in last.assigns:
            forwarded = replace_loads(forwarded, assign.buffer,
                                      lambda load, a=assign: _forward(a, load))
        return (*stages[:-1], replace(last, assigns=(*last.assigns, *forwarded.assigns)))
    if not is_map(stage) and is_map(last) and not stage.along:
        merged = _store_along(last, stage)
        if merged is not None:
            return (*stages[:-1], merged)
    return (*stages, stage)


def _forward(assign: Assign, load: Load) -> Expr | None:
    if load.indices != assign.indices:
        return None
    return assign.value if load.guard is None else \
        apply("select", load.guard, assign.value, load.default)


def _inline_cheap(stages: Sequence[Stage], stage: Stage) -> Stage:
    """Compute cheap elementwise values of the nest again rather than load them."""
    for writer in reversed(stages):
        if not is_map(writer):
            continue
        for assign in writer.assigns:
            if cost(assign.value) <= CHEAP and is_plain(assign, writer.axes):
                stage = replace_loads(stage, assign.buffer,
                                      lambda load, a=assign: _value_at(a, load))
    return stage


def _value_at(assign: Assign, load: Load) -> Expr | None:
    at = {i: j for i, j in zip(assign.indices, load.indices, strict=True) if isinstance(i, Var)}
    return substitute(assign.value, at) if load.guard is None else None


def _store_along(writer: Stage, fold: Stage) -> Stage | None:
    """for j: e[j] = f(j);  s = sum over k of g(e[k])   ->   for k: e[k] = f(k), s += g(f(k))"""
    points = (*fold.axes, *fold.reduce_axes)
    if len(writer.axes) != len(points):
        return None
    mapping: dict[Var, Var] | None = None
    for assign in writer.assigns:
        for load in reads(fold, assign.buffer):
            at = dict(zip(assign.indices, load.indices, strict=True))
            found = {v: at.get(v) for v in writer.axes}
            if set(found.values()) != set(points) or (mapping is not None and found != mapping):
                return None
            mapping = found
    if mapping is None:
        return None
    moved = rename_axes(writer, mapping)
    for assign in moved.assigns:
        fold = replace_loads(fold, assign.buffer,
                             lambda load, a=assign: _forward(a, load))
    return replace(fold, along=moved.assigns)


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
        stage = replace(stage, assigns=assigns, along=along)
        live.update(stage.inputs)
        kept.append(stage)
    kept.reverse()
    written = dict.fromkeys(b for s in kept for b in s.outputs)
    private = tuple(b for b in written if b not in needed)
    return Nest(tuple(kept), joined.shared, private)
