"""Whether a stage may be computed together with others, and what comes out if it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, all_of, apply, substitute
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads
from hlo_mlc.partition.fuse.scalar_replacement import with_written_out
from hlo_mlc.target.rates import NEAR_BYTES
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.access import masked
from hlo_mlc.tensor.chain import chain, linked
from hlo_mlc.tensor.classify import (
    contraction,
    cost,
    crosses,
    is_map,
    is_plain,
    reads,
    slides,
    stage_cost,
    walks_columns,
)
from hlo_mlc.tensor.combine import side_by_side
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.pairs import is_pairwise
from hlo_mlc.tensor.rewrite import map_expressions, rename_axes, replace_loads
from hlo_mlc.tensor.strictness import without_nans

# What is decided here by numbers of its own is nothing that the cost model (costs.py) knows of: it
# counts what a stage computes and reads, not how many registers and near caches that takes.  The
# cases are those of the bench that show a number (`python scripts/thresholds.py`).

# Elements of one row that may be kept between the passes over it: with f32 about half of a
# typical 32-48 KiB L1 cache per buffer, the measured knee for softmax and layernorm
# (selective_scan).
ROW_LIMIT = 8192
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
# Depth of the first product of a chain, and columns of the second, that leave room in L1 for a
# block of rows; longer ones gain nothing from being computed row by row (encoder_block).
HEAD_LIMIT = 256
# Rows of a chain from which on vectors across them are not mostly empty (small_carry).
ROWS_LEAST = 8
# Folds that share a pass: each has up to eight vectors of partial results in registers (moments).
FOLDS_LIMIT = 3
# Elements that they may have more together than each, and the bytes that both read from which on
# asking which of them count pays: two folds of columns took 0.6 of the time where these were 49 MB,
# 0.7 to 1.2 of 2 MB (small_volume, roughness).
SLACK, FAR = 1 / 16, 1 << 22
# A map cheaper than this is computed again by each of its readers in the nest (adam_update).
CHEAP = 2
# But what is looked up is not, by readers that take each element so often: small matrices by what
# stands at places that are read, as in finite elements, took 0.25 of the time where it was kept, of
# 8 x 8 and of 16 x 16, but 4 times as long of 6 x 6 (elements).
LOOKED_UP_AGAIN = 8


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """What a target computes where it is needed: rows of so many elements are kept between the
    passes over them, factors of products that take so many simple operations are computed whenever
    a tile of them is read, constant factors are laid out as tiles of registers read them, and
    matrices are read once that are folded both ways (both_ways.py), and arrays are read and written
    in the layouts of the calls beside kernels (layouts.py).  Where kernels are to serve any number
    of rows, what is along the first dimension of an array counts as so many `rows`, however many
    there are here.  The ops in `left` stay with XLA there, for these reasons."""

    row_elements: int = ROW_LIMIT
    prologue: int = 0
    packs_constants: bool = True
    folds_both_ways: bool = True
    takes_layouts: bool = True
    rows: int | None = None
    left: Mapping[str, str] = field(default_factory=dict)


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
    """As `join`; `limit` says why what it comes to is too large."""
    if any(s.procedure is not None for s in (*nest.stages, stage)):
        return "a procedure has its own loops"
    stage = _follow(nest, stage)
    if len(nest.stages) == 1:
        one = with_written_out(nest.stages[0], stage)
        if one is not None:
            handed = nest.handed | set(stage.inputs) - set(one.inputs)
            return Joined((one,), len(one.axes), handed)
    both = _side_by_side(nest, stage)
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
    stages = _append(nest.stages, stage)
    handed = nest.handed | (wanted - {b for s in stages for b in s.inputs})
    joined = Joined(stages, shared, handed)
    return limit(joined) or joined


def _side_by_side(nest: Joined, stage: Stage) -> Stage | None:
    """sum over k of f(k), max over k of g(k)   ->   sum, max over k of f(k), g(k)

    Several folds of one tensor take one pass over it.  Folds along rows need no such thing: they
    share a row in L1.
    """
    first, count = nest.stages[0], len(nest.stages[0].accumulators) + len(stage.accumulators)
    for fold in (first, stage):
        if (
            fold.combiner is None
            or fold.combiner.identity is None
            or fold.along
            or fold.scan
            or contraction(fold) is not None
            or (fold.axes and not walks_columns(fold))
        ):
            return None
    shared = {*first.inputs} & {*stage.inputs}
    if (
        len(nest.stages) > 1
        or count > FOLDS_LIMIT
        or [v.extent for v in first.axes] != [v.extent for v in stage.axes]
        or {*first.outputs} & {*stage.inputs}
        or not shared
    ):
        return None
    extents = [[v.extent for v in s.reduce_axes] for s in (first, stage)]
    if extents[0] != extents[1]:
        common = _common_box(*extents)
        if common is None or sum(b.bytes for b in shared) < FAR:
            return None
        first, stage = (_within(s, common) for s in (first, stage))
    stage = rename_axes(
        stage,
        dict(
            zip((*stage.axes, *stage.reduce_axes), (*first.axes, *first.reduce_axes), strict=True)
        ),
    )
    return replace(
        first,
        assigns=first.assigns + stage.assigns,
        terms=first.terms + stage.terms,
        combiner=side_by_side(first.combiner, stage.combiner),
        initial=first.initial + stage.initial,
        accumulators=first.accumulators + stage.accumulators,
    )


def _common_box(one: Sequence[int], other: Sequence[int]) -> list[int] | None:
    """The smallest box that holds both, where it is hardly larger than each."""
    if len(one) != len(other):
        return None
    common = list(map(max, one, other))
    least = min(math.prod(one), math.prod(other))
    return common if math.prod(common) <= least * (1 + SLACK) else None


def _within(fold: Stage, extents: Sequence[int]) -> Stage:
    """sum over k < 7 of f(k)   ->   sum over k < 8 of (f(k) if k < 7 else 0)"""
    axes = [
        Var(v.name, v.dtype, extent) for v, extent in zip(fold.reduce_axes, extents, strict=True)
    ]
    inside = all_of(
        *(
            index.compare("lt", wide, index.constant(v.extent))
            for v, wide in zip(fold.reduce_axes, axes, strict=True)
            if v.extent < wide.extent
        )
    )
    if inside is TRUE:
        return fold
    wider = dict(zip(fold.reduce_axes, axes, strict=True))
    terms = tuple(
        masked(substitute(term, wider), inside, neutral)
        for term, neutral in zip(fold.terms, fold.combiner.identity, strict=True)
    )
    return replace(fold, reduce_axes=tuple(axes), terms=terms)


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
            result[axis] = index.floormod(index.floordiv(written, step), axis.extent)
            step *= axis.extent
        if offset or step != written.extent:
            return None
    for quotient, high in halves.items():
        axis, by = quotient.args
        if quotient.op == "floormod":
            continue
        low = halves.get(index.floormod(axis, by.value))
        if (
            low is None
            or axis not in axes
            or axis in result
            or (low.extent, high.extent * by.value) != (by.value, axis.extent)
        ):
            return None
        result[axis] = index.add(index.multiply(high, by), low)
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


def _append(stages: tuple[Stage, ...], stage: Stage) -> tuple[Stage, ...]:
    """Add `stage`, taking over values that are at hand instead of loading them."""
    stage = _inline_cheap(stages, stage)
    last = stages[-1]
    if is_map(stage) and stage.axes == last.axes:
        forwarded = _forwarded(stage, last.assigns)
        return (*stages[:-1], replace(last, assigns=(*last.assigns, *forwarded.assigns)))
    if not is_map(stage) and is_map(last) and not stage.along:
        merged = _store_along(last, stage)
        if merged is not None:
            return (*stages[:-1], merged)
    return (*stages, stage)


def _forwarded(stage: Stage, assigns: tuple[Assign, ...]) -> Stage:
    """The stage reading what is stored at the same point before that is stored. At once: values are
    large where many stages came before, and hold nothing more to replace."""
    stored: dict[Buffer, list[Assign]] = {}
    for assign in assigns:
        stored.setdefault(assign.buffer, []).append(assign)

    def value(load: Load) -> Expr | None:
        found = (_forward(assign, load) for assign in stored[load.source])
        return next((one for one in found if one is not None), None)

    return replace_loads(stage, dict.fromkeys(stored.keys() & set(stage.inputs), value))


def _forward(assign: Assign, load: Load) -> Expr | None:
    """What `load` reads of the element that is stored at the same point; None at other points.

    The value needs no guard, since it is computed at every point all the same.
    """
    if load.indices != assign.indices:
        return None
    return (
        assign.value
        if load.guard is None
        else apply("select", load.guard, assign.value, load.default)
    )


def _inline_cheap(stages: Sequence[Stage], stage: Stage) -> Stage:
    """Compute cheap elementwise values of the nest again rather than load them."""
    for writer in reversed(stages):
        if not is_map(writer):
            continue
        wanted = set(stage.inputs)
        for assign in writer.assigns:
            if (
                assign.buffer in wanted
                and cost(assign.value) <= CHEAP
                and not _is_looked_up_again(assign, writer, stage)
                and is_plain(assign, writer.axes)
            ):
                stage = replace_loads(stage, {assign.buffer: partial(_value_at, assign)})
    return stage


def _is_looked_up_again(assign: Assign, writer: Stage, reader: Stage) -> bool:
    """Whether places are read to compute a value, and its reader takes each many times."""
    places = (i for load in loads(assign.value) for i in load.indices)
    return any(map(loads, places)) and points(reader) >= LOOKED_UP_AGAIN * points(writer)


def _value_at(assign: Assign, load: Load) -> Expr | None:
    at = {i: j for i, j in zip(assign.indices, load.indices, strict=True) if isinstance(i, Var)}
    return substitute(assign.value, at) if load.guard is None else None


def _store_along(writer: Stage, fold: Stage) -> Stage | None:
    """for j: e[j] = f(j);  s = sum over k of g(e[k])   ->   for k: e[k] = f(k), s += g(f(k))

    Only where the fold comes to every j and no other point: what was padded, joined or cut has
    longer or shorter rows than what the fold goes over.
    """
    points = (*fold.axes, *fold.reduce_axes)
    if len(writer.axes) != len(points):
        return None
    mapping: dict[Var, Var] | None = None
    for assign in writer.assigns:
        for load in reads(fold, assign.buffer):
            at = dict(zip(assign.indices, load.indices, strict=True))
            found = {v: at.get(v) for v in writer.axes}
            if (
                set(found.values()) != set(points)
                or (mapping is not None and found != mapping)
                or any(theirs.extent != ours.extent for ours, theirs in found.items())
            ):
                return None
            mapping = found
    if mapping is None:
        return None
    moved = rename_axes(writer, mapping)
    return replace(_forwarded(fold, moved.assigns), along=moved.assigns)


def chained(
    first: Joined, between: Sequence[Joined], last: Joined, leading: int | None = None
) -> Joined | str:
    """One nest of a matrix product, what is computed row by row from it, and the product that sums
    over the rows; or the reason why not.  What is in between exists for a few rows at a time.  The
    first dimension of what the product gives counts as `leading` rows, if that is not None."""
    if len(first.stages) > 1 or len(last.stages) > 1:
        return "a product with other stages in its nest"
    (result,) = last.stages
    stages = linked(first.stages[0], [s for j in between for s in j.stages], result)
    if isinstance(stages, str):
        return stages
    joined = Joined(stages, len(stages[0].axes) - 1)
    found = chain(finish(joined, frozenset(result.outputs)))
    if isinstance(found, str):
        return found
    if (
        math.prod(v.extent for v in found.first.reduce_axes) > HEAD_LIMIT
        or found.column.extent > HEAD_LIMIT
    ):
        return f"more than {HEAD_LIMIT} terms or columns in a product"
    axis = found.first.axes[0]
    rows = found.row.extent if leading is None or found.row is not axis else leading
    if rows < ROWS_LEAST:
        return f"fewer than {ROWS_LEAST} rows with the same keys"
    folds = any(s.combiner is not None for s in found.between)
    sizes = (
        b.bytes if leading is None else leading * b.bytes // max(1, b.shape[0])
        for b in first.stages[0].outputs
    )
    if not folds and all(size <= NEAR_BYTES for size in sizes):
        return "two products whose rows stay in the caches"
    if sum(map(stage_cost, stages)) > COST_LIMIT:
        return "the fused expressions would need more registers than there are"
    return joined


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
    return without_nans(Nest(tuple(kept), joined.shared, private))
