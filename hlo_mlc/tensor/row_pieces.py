"""Programs in pieces that are computed one after the other: row by row, or without any rows.

    m[j] = (sum over i<150 of x[i, j]) / 150    ->   rows: w[j] = b[j] + sum over i of x[i, j]
    y[i, j] = x[i, j] - m[j]                         m[j] = w[j] / 150
                                                     rows: y[i, j] = x[i, j] - m[j]

What is folded over rows is folded block by block: each begins with what those before it came to.
Where there are many blocks, groups of them do so, and a piece of its own folds their folds: no
other one says how many groups there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Const, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.canonical import stages, written
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.liveness import step_reads
from hlo_mlc.tensor.pieces import in_two, part_of_nest
from hlo_mlc.tensor.rewrite import replace_buffers
from hlo_mlc.tensor.sharding import Factor, all_stages, fills


@dataclass(frozen=True, slots=True)
class RowFold:
    """What rows are folded to. A block reads `before`, which is `initial` for the first, and writes
    `after`; the folds of groups are the rows of `of_groups`, where there are several."""

    before: Buffer
    after: Buffer
    initial: Const
    op: str
    of_groups: Buffer | None = None


@dataclass(frozen=True, slots=True)
class RowPiece:
    """A piece; the befores and afters of its folds are the last operands and results of its
    program."""

    program: TensorProgram
    has_rows: bool
    folds: tuple[RowFold, ...] = ()
    groups: int = 0  # of blocks, whose folds are apart


def is_in_pieces(program: TensorProgram) -> bool:
    """Whether its stages may be computed one after the other, each by a kernel of its own, as far
    as that does not depend on the rows: who is first to write a buffer fills it."""
    made: set[Buffer] = set()
    for stage in all_stages(program):
        if not (fills(stage) or made.issuperset(stage.outputs)):
            return False
        made.update(stage.outputs)
    return all(isinstance(step, Nest) for step in program.steps)


def row_pieces(
    program: TensorProgram,
    rows: Factor,
    groups_of: Callable[[TensorProgram, Sequence[RowFold]], int],
) -> list[RowPiece] | None:
    """The pieces of such a program, in order; how many groups of blocks there are to be in one that
    folds rows is `groups_of` it. None where a piece would change what one before it wrote."""
    placed, levels, folds = _levels(program, rows)
    if not _is_in_order(placed):
        return None
    pieces = []
    for level in range(max(levels) + 1):
        steps = levels.get(level, [])
        own = folds.get(level, [])
        wanted = {*program.results}.union(
            *(step_reads(step) for n in levels if n > level for step in levels[n])
        )
        groups = groups_of(_program(program, steps, own, wanted), own) if own else 0
        if groups > 1:
            steps, own = _in_groups(steps, own, groups)
        if steps:
            pieces.append(
                RowPiece(_program(program, steps, own, wanted), level % 2 == 1, tuple(own), groups)
            )
        if groups > 1:
            pieces.append(joining(folds[level], groups))
    return pieces


def joining(folds: Sequence[RowFold], groups: int) -> RowPiece:
    """The piece that folds what so many groups of blocks came to."""
    parts = [_of_groups(f, groups) for f in folds]
    steps = tuple(map(_joined, folds, parts))
    return RowPiece(
        TensorProgram("joined", tuple(parts), tuple(f.after for f in folds), (), steps),
        has_rows=False,
    )


def _of_groups(fold: RowFold, groups: int) -> Buffer:
    """What the groups have come to, one after the other."""
    return Buffer(f"p{fold.before.name}", fold.after.dtype, (groups, *fold.after.shape))


def _is_in_order(placed: Sequence[tuple[int, Stage]]) -> bool:
    """Whether every buffer that several stages write is complete within one piece before other
    pieces read it."""
    writers: dict[Buffer, list[int]] = {}
    for n, (_, stage) in enumerate(placed):
        for buffer in stage.outputs:
            writers.setdefault(buffer, []).append(n)
    return all(
        level == placed[numbers[0]][0]
        for buffer, numbers in writers.items()
        if len(numbers) > 1
        for level, stage in placed[: numbers[-1] + 1]
        if buffer in stage.inputs or buffer in stage.outputs
    )


def _levels(
    program: TensorProgram, rows: Factor
) -> tuple[list[tuple[int, Stage]], dict[int, list[Step]], dict[int, list[RowFold]]]:
    """The number of the piece of each stage, odd where it has rows; the steps of each piece, and
    what is folded there."""
    ready: dict[Buffer, int] = {}  # which piece is the first that can read a buffer
    levels: dict[int, list[Step]] = {}
    folds: dict[int, list[RowFold]] = {}
    in_order: list[tuple[int, Stage]] = []
    numbers = iter(range(1 << 30))
    for step in program.steps:
        assert isinstance(step, Nest)
        placed: dict[int, list[Stage]] = {}
        for whole in step.stages:
            for stage in _fold_and_rest(whole, rows, numbers):
                walks = not rows.axes.isdisjoint((*stage.axes, *stage.reduce_axes))
                at = max((ready.get(b, 0) for b in stage.inputs), default=0)
                at += walks != at % 2
                if not rows.axes.isdisjoint(stage.reduce_axes):
                    stage, own = _continued(stage, numbers)
                    folds.setdefault(at, []).extend(own)
                    ready.update((f.after, at + 1) for f in own)
                    ready.update((store.buffer, at) for store in stage.along)
                else:
                    ready.update(dict.fromkeys(stage.outputs, at))
                placed.setdefault(at, []).append(stage)
                in_order.append((at, stage))
        for at, group in placed.items():
            levels.setdefault(at, []).append(part_of_nest(step, group))
    return in_order, levels, folds


def _fold_and_rest(stage: Stage, rows: Factor, numbers: Iterator[int]) -> tuple[Stage, ...]:
    """A stage; its folds and what it makes of them where it folds rows."""
    if rows.axes.isdisjoint(stage.reduce_axes) or all(
        store.guard is None and store.indices == stage.axes and store.value in stage.accumulators
        for store in stage.assigns
    ):
        return (stage,)
    first = next(numbers)
    for _ in stage.accumulators[1:]:
        next(numbers)
    return in_two(stage, first)


def _continued(stage: Stage, numbers: Iterator[int]) -> tuple[Stage, list[RowFold]]:
    """A stage that continues folds begun by earlier blocks, and what it folds."""
    combiner, assigns, folds = stage.combiner, [], []
    for store in stage.assigns:
        k = stage.accumulators.index(store.value)
        before = Buffer(f"b{next(numbers)}", store.buffer.dtype, store.buffer.shape)
        result = combiner.results[k]
        value = substitute(
            result, {combiner.lhs[k]: load(before, store.indices), combiner.rhs[k]: store.value}
        )
        assigns.append(Assign(store.buffer, store.indices, value))
        folds.append(RowFold(before, store.buffer, stage.initial[k], result.op))
    return replace(stage, assigns=tuple(assigns)), folds


def _in_groups(
    steps: Sequence[Step], folds: Sequence[RowFold], groups: int
) -> tuple[list[Step], list[RowFold]]:
    """Steps that write the folds of one group of blocks."""
    own = [
        replace(
            f, after=replace(f.after, name=f"g{f.before.name}"), of_groups=_of_groups(f, groups)
        )
        for f in folds
    ]
    names = {f.after: one.after for f, one in zip(folds, own, strict=True)}
    return [replace_buffers(step, names) for step in steps], own


def _joined(fold: RowFold, of_groups: Buffer) -> Nest:
    """The fold of the folds of groups."""
    whole, (groups, *shape) = fold.after, of_groups.shape
    axes = tuple(Var(f"j{d}", INDEX, extent) for d, extent in enumerate(shape))
    group, total = Var("g", INDEX, groups), Var("t", whole.dtype)
    stage = Stage(
        "joined",
        axes,
        (Assign(whole, axes, total),),
        (group,),
        named_combiner(fold.op, whole.dtype),
        (load(of_groups, (group, *axes)),),
        (fold.initial,),
        (total,),
    )
    return Nest((stage,), len(axes))


def _program(
    program: TensorProgram, steps: Sequence[Step], folds: Sequence[RowFold], wanted: set[Buffer]
) -> TensorProgram:
    """The steps of a piece that others want some results of."""
    made = written(steps)
    last = {b for f in folds for b in (f.before, f.after)}
    read = dict.fromkeys(
        b
        for step in steps
        for s in stages(step)
        for b in s.inputs
        if b not in made and b not in last
    )
    results = [b for b in made if b in wanted and b not in last]
    operands = (*read, *(f.before for f in folds))
    aliases = tuple((r, o) for r, o in program.aliases if r in results and o in read)
    return TensorProgram(
        program.name,
        operands,
        (*results, *(f.after for f in folds)),
        tuple(b for b in made if b not in wanted and b not in last),
        tuple(steps),
        aliases,
    )
