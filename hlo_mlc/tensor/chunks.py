"""Folds, scans and updates cut into chunks along an axis, so that tasks can share one.

    y[i] = fold over k of t[k, i]   ->   part[c, i] = fold over the k of chunk c;
                                         y[i] = fold over c of part[c, i]

A scan has the totals of its chunks scanned, and each chunk begins with what lies before it.  Of
updates each chunk begins with neutral elements, and what comes out updates the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.access import masked
from hlo_mlc.tensor.combine import update_of
from hlo_mlc.tensor.core import Assign, ScanAxis, Stage


def fold_in_chunks(stage: Stage, chunks: int) -> tuple[Stage, Stage, tuple[Buffer, ...]]:
    """Two stages: the partial results of `chunks` equal runs of rows, of which the last may end in
    guarded terms; and the fold of these partial results."""
    long = stage.reduce_axes[0]
    size = -(-long.extent // chunks)
    chunk = Var(f"{long.name}_c", long.dtype, chunks)
    within = Var(f"{long.name}_w", long.dtype, size)
    row = chunk * size + within
    shape = tuple(v.extent for v in stage.axes)
    partial = tuple(
        Buffer(f"{stage.name}_{v.name}_part", v.dtype, (chunks, *shape)) for v in stage.accumulators
    )
    place = {long: row}
    terms = tuple(substitute(t, place) for t in stage.terms)
    if chunks * size > long.extent:
        inside = index.compare("lt", row, long.extent)
        terms = tuple(
            masked(t, inside, neutral)
            for t, neutral in zip(terms, stage.combiner.identity, strict=True)
        )
    first = Stage(
        f"{stage.name}_chunks",
        (chunk, *stage.axes),
        tuple(
            Assign(b, (chunk, *stage.axes), v)
            for b, v in zip(partial, stage.accumulators, strict=True)
        ),
        (within, *stage.reduce_axes[1:]),
        stage.combiner,
        terms,
        stage.combiner.identity,
        stage.accumulators,
    )
    part = Var(f"{long.name}_p", long.dtype, chunks)
    second = Stage(
        f"{stage.name}_combine",
        stage.axes,
        stage.assigns,
        (part,),
        stage.combiner,
        tuple(load(b, (part, *stage.axes)) for b in partial),
        stage.initial,
        stage.accumulators,
    )
    return first, second, partial


@dataclass(frozen=True, slots=True)
class Cut:
    """A scan in chunks: their totals, which `last` stores at the end of each; what comes before
    the first; the scans of totals, of chunks, and of the rest behind the last chunk."""

    totals: Stage
    last: tuple[Assign, ...]
    begin: Stage
    scans: tuple[Stage, ...]
    scratch: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What has something for each part of a scan's axis."""

    stage: Stage

    def axes(self, *replacing: Var) -> tuple[Var, ...]:
        """The stage's axes, with others in the place of the scan's."""
        axis = self.stage.scan.axis
        return tuple(v for own in self.stage.axes for v in (replacing if own is axis else (own,)))

    def place(self, at: Expr) -> tuple[Expr, ...]:
        """The element of a part."""
        return tuple(at if v is self.stage.scan.axis else v for v in self.stage.axes)

    def buffers(self, suffix: str, count: int) -> tuple[Buffer, ...]:
        """Room for so many parts."""
        axis, name = self.stage.scan.axis, self.stage.name
        shape = tuple(count if v is axis else v.extent for v in self.stage.axes)
        return tuple(
            Buffer(f"{name}_{v.name}_{suffix}", v.dtype, shape) for v in self.stage.accumulators
        )

    def loaded(self, what: Sequence[Buffer], at: Expr) -> tuple[Expr, ...]:
        return tuple(load(b, self.place(at)) for b in what)

    def stored(self, to: Sequence[Buffer], at: Expr, values: Sequence[Expr]) -> tuple[Assign, ...]:
        return tuple(Assign(b, self.place(at), value) for b, value in zip(to, values, strict=True))


def scan_in_chunks(stage: Stage, chunks: int, block: int) -> Cut:
    """The stages of a scan whose axis is cut into so many chunks of whole blocks, and a rest."""
    axis, reverse = stage.scan.axis, stage.scan.reverse
    size = axis.extent // chunks // block * block
    rest = axis.extent - chunks * size
    chunk, within, left = (
        Var(f"{axis.name}_{part}", INDEX, extent)
        for part, extent in (("c", chunks), ("w", size), ("r", rest))
    )

    of = _Parts(stage)
    parts, offsets = of.buffers("total", chunks), of.buffers("before", chunks + 1)
    first, end = (index.constant(n) for n in ((chunks, 0) if reverse else (0, chunks)))
    before, after = (chunk + 1, chunk) if reverse else (chunk, chunk + 1)
    start = chunk * size
    if reverse:  # the rest, which comes last, is at the low end
        start = start + rest
    in_chunk = of.axes(chunk, within)
    totals = _scan_of_part(stage, start + within, within, in_chunk, stage.combiner.identity)
    through = Stage(
        f"{stage.name}_through",
        of.axes(chunk),
        of.stored(offsets, after, stage.accumulators),
        (),
        stage.combiner,
        of.loaded(parts, chunk),
        stage.initial,
        stage.accumulators,
        scan=ScanAxis(chunk, reverse),
        trips=stage.trips,
    )
    scans = [
        through,
        _scan_of_part(stage, start + within, within, in_chunk, of.loaded(offsets, before)),
    ]
    if rest:
        at = left if reverse else left + chunks * size
        scans.append(_scan_of_part(stage, at, left, of.axes(left), of.loaded(offsets, end)))
    return Cut(
        replace(totals, name=f"{stage.name}_totals", assigns=()),
        of.stored(parts, chunk, stage.accumulators),
        Stage(f"{stage.name}_begin", of.axes(), of.stored(offsets, first, stage.initial)),
        tuple(scans),
        (*parts, *offsets),
    )


def _scan_of_part(
    stage: Stage, at: Expr, along: Var, axes: tuple[Var, ...], initial: tuple[Expr, ...]
) -> Stage:
    """The scan of a part of its axis, whose elements are `at` places that `along` goes through."""

    def moved(e: Expr) -> Expr:
        return substitute(e, {stage.scan.axis: at})

    return replace(
        stage,
        name=f"{stage.name}_{along.name}",
        axes=axes,
        initial=initial,
        terms=tuple(map(moved, stage.terms)),
        scan=ScanAxis(along, stage.scan.reverse),
        assigns=tuple(
            Assign(a.buffer, tuple(map(moved, a.indices)), moved(a.value)) for a in stage.assigns
        ),
    )


def updates_in_chunks(
    stage: Stage, axis: Var, size: int
) -> tuple[tuple[Stage, ...], Stage, tuple[Stage, ...], tuple[Buffer, ...]]:
    """The stages of updates in any order, of which each run of `size` along an axis has a copy of
    the target: neutral elements; the updates; all copies, one after the other, as updates.

        y[p[k]] = y[p[k]] + t[k]   ->   part[c, i] = 0
                                        part[k // size, p[k]] = part[k // size, p[k]] + t[k]
                                        y[i] = y[i] + part[0, i] + part[1, i] + …
    """
    chunks = -(-axis.extent // size)
    chunk = Var(f"{axis.name}_c", INDEX, chunks)
    number = index.floordiv(axis, size)
    fills, updates, merges, copies = [], [], [], []
    for a in stage.assigns:
        combiner, term = update_of(a.value, Load(a.buffer, a.indices))
        copy = Buffer(
            f"{stage.name}_{a.buffer.name}_part", a.buffer.dtype, (chunks, *a.buffer.shape)
        )
        place = tuple(Var(f"{copy.name}{k}", INDEX, n) for k, n in enumerate(a.buffer.shape))
        own = (number, *a.indices)
        total = load(a.buffer, place)
        for c in range(chunks):
            total = _combined(combiner, total, load(copy, (index.constant(c), *place)))
        fill = Assign(copy, (chunk, *place), combiner.identity[0])
        fills.append(Stage(f"{copy.name}_begin", (chunk, *place), (fill,)))
        updates.append(Assign(copy, own, _combined(combiner, load(copy, own), term), a.guard))
        merges.append(Stage(f"{copy.name}_end", place, (Assign(a.buffer, place, total),)))
        copies.append(copy)
    inside = replace(stage, assigns=tuple(updates), overwrites=())
    return tuple(fills), inside, tuple(merges), tuple(copies)


def _combined(combiner: Combiner, x: Expr, y: Expr) -> Expr:
    """Two values combined into one."""
    return substitute(combiner.results[0], {combiner.lhs[0]: x, combiner.rhs[0]: y})
