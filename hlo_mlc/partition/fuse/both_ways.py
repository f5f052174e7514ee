"""A matrix that is folded along its rows and along its columns is read once.

    t[i] = sum of a[i, j] * x[j] over j           for each block of rows:
    y[j] = sum of a[i, j] * t[i] over i     ->      t[i] of its rows
                                                    part[block, j] = the sum over its rows
                                                  y[j] = sum of part[block, j] over the blocks

Where it comes from memory, that is what takes the time: a block is still in the second level when
its columns are folded.  Where there are many blocks, a loop goes through chunks of them and folds
the parts of each, which bounds the memory that they take.  What the folds along the rows give may
be a part of the others' terms, as here (a product with the normal matrix), or not (BiCG).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.classify import cost
from hlo_mlc.tensor.core import Assign, Loop, Nest, Stage, Step
from hlo_mlc.tensor.rewrite import map_expressions

# Bytes of a matrix from which on reading it once pays, whatever is folded: caches that all cores
# share hold less.  Of smaller ones reading is most of what simple sums take, and nothing else:
# 128 x 128 to 1900 x 1900 f32 took 0.69 to 0.98 of the time, f64 0.66 to 1.05, held to AVX2 0.74 to
# 1.04; bf16 took 0.8 to 1.4, maxima 0.83 to 1.1, rows of 32 f32 of which each gives a sigmoid 1.2
# to 1.6, other rows of less than 512 bytes 0.7 to 1.2, rows of 20 and 40 KB 0.8 to 1.1
# (logistic_step, spreads and spreads_in_f64 of the bench show all numbers here).
_FROM_MEMORY, _LEAST = 1 << 24, 1 << 16
_SHORTEST_ROW, _LONGEST_ROW = 512, 8192  # in bytes, of those that are smaller
# Bytes of a block of rows, which all second levels hold beside what it is multiplied by; and its
# rows: with fewer, what passes between blocks and their sum is too much of the traffic.
_BLOCK_BYTES = 384 * 1024
_FEWEST, _MOST = 4, 16
# Bytes of what the columns of a chunk of blocks give, so that they are still in a cache when they
# are folded: 153 and 244 MiB took 0.87 to 0.93 of the time that they take without chunks on Zen 5
# (with 6 MiB 0.94 to 0.98, with 1 MiB the same).
_PARTS_BYTES = 3 << 20
_MOST_OPERATIONS = 8  # of a column's terms, which are written out for all rows of a block


def matrices(stage: Stage) -> list[Buffer]:
    """What a stage reads that takes long enough for reading it once to be worth something."""
    return [b for b in stage.inputs if len(b.shape) == 2 and b.bytes >= _LEAST]


def both_ways(
    rows: Stage, columns: Stage, wanted: frozenset[Buffer], fresh: Callable[[str], str]
) -> list[Step] | None:
    """The steps that fold the rows, and then the columns, of the same matrix; None where there are
    no such, or they would not pay.  Of what the rows give, only `wanted` buffers are stored."""
    shared = _shared(rows, columns)
    if not shared:
        return None
    (row,), (column,) = rows.axes, rows.reduce_axes
    handed = tuple(a.buffer for a in rows.assigns if a.buffer in columns.inputs)
    if any(a.guard is not None or a.indices != (row,) for a in rows.assigns) or not all(
        _is_read_at(columns, b, columns.reduce_axes) for b in handed
    ):
        return None
    bytes_of_row = sum(b.bytes for b in shared) // row.extent
    if all(b.bytes < _FROM_MEMORY for b in shared) and not _are_simple(rows, columns, bytes_of_row):
        return None
    size = min(_MOST, _BLOCK_BYTES // bytes_of_row)
    if size < _FEWEST:
        return None
    size = _even_part(row.extent, size, _FEWEST)
    blocks, rest = divmod(row.extent, size)
    number = blocks + (rest > 0)
    dtype = columns.accumulators[0].dtype
    most = max(1, _PARTS_BYTES // (column.extent * dtype.bytes))
    if number > most and not rest:
        most = _even_part(number, most)
    chunks = (number - 1) // most  # and the last one, which may be smaller
    if chunks and not rest and number % most == 0:
        chunks += 1  # of them all, and none is last: it would be written a second time
    parts = Buffer(fresh("b"), dtype, (min(most, number), column.extent))
    folds = _Blocks(rows, columns, size, parts, handed, wanted, fresh)
    done = chunks * most
    last = folds.nests(index.constant(done), blocks - done, rest)
    if not chunks:
        return [*last, folds.total(parts, number)]
    sums = Buffer(fresh("b"), dtype, (chunks + (done < number), column.extent))
    chunk = Var(fresh("i"), INDEX, chunks)
    begin = chunk * most
    steps: list[Step] = [
        Loop((*folds.nests(begin, most, 0), folds.partial(most, sums, chunk)), chunk, chunks)
    ]
    if done < number:
        steps += [*last, folds.partial(number - done, sums, index.constant(chunks))]
    return [*steps, folds.total(sums, chunks + (done < number))]


def _shared(rows: Stage, columns: Stage) -> list[Buffer]:
    """The matrices whose rows the one stage folds and whose columns the other one folds."""
    for stage in (rows, columns):
        if (
            len(stage.axes) != 1
            or len(stage.reduce_axes) != 1
            or stage.along
            or stage.overwrites
            or stage.scan is not None
            or stage.sort is not None
        ):
            return []
    if (
        len(columns.accumulators) != 1
        or columns.combiner.identity is None
        or cost(*columns.terms) > _MOST_OPERATIONS
    ):
        return []
    (row,), (column,) = rows.axes, rows.reduce_axes
    turned = (*columns.reduce_axes, *columns.axes)
    return [
        b
        for b in matrices(rows)
        if b.shape == (row.extent, column.extent)
        and b in columns.inputs
        and _is_read_at(rows, b, (row, column))
        and _is_read_at(columns, b, turned)
    ]


def _even_part(whole: int, most: int, least: int = 1) -> int:
    """The largest part of at most so many, and more than half of that, that divides the whole; as
    many as there may be where there is none."""
    fitting = (n for n in range(max(least, most // 2 + 1), most + 1) if whole % n == 0)
    return max(fitting, default=most)


def _are_simple(rows: Stage, columns: Stage, bytes_of_row: int) -> bool:
    """Whether reading a matrix that stays in a cache is most of what two folds of it take."""
    return (
        _SHORTEST_ROW <= bytes_of_row <= _LONGEST_ROW
        and cost(*rows.terms, *(a.value for a in rows.assigns)) <= _MOST_OPERATIONS
        and all(
            stage.combiner.name == "add"
            and stage.terms[0].dtype.is_float
            and not any(b.dtype.is_narrow_float for b in stage.inputs)
            for stage in (rows, columns)
        )
    )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of `size` rows.

    `parts`: what the columns of each give; `handed`: what passes from rows to columns.
    """

    rows: Stage
    columns: Stage
    size: int
    parts: Buffer
    handed: tuple[Buffer, ...]
    wanted: frozenset[Buffer]
    fresh: Callable[[str], str]

    def nests(self, first: Expr, count: int, rest: int) -> list[Nest]:
        """For `count` blocks from block `first` on, and one more of `rest` rows, if any."""
        found = [self._nest(first, 0, count, self.size)] if count else []
        return [*found, self._nest(first, count, 1, rest)] if rest else found

    def partial(self, count: int, sums: Buffer, place: Expr) -> Nest:
        """The fold of the first `count` parts, as a row of `sums`."""
        columns, (along,) = self.columns, self._along(self.columns.axes)
        folded = tuple(Var(self.fresh("i"), v.dtype) for v in columns.accumulators)
        number = Var(self.fresh("i"), INDEX, count)
        return Nest(
            (
                Stage(
                    self.fresh("s"),
                    (along,),
                    (Assign(sums, (place, along), folded[0]),),
                    (number,),
                    columns.combiner,
                    (load(self.parts, (number, along)),),
                    columns.combiner.identity,
                    folded,
                ),
            ),
            1,
        )

    def total(self, partial: Buffer, count: int) -> Nest:
        """What the columns give, of the first `count` rows of partial results."""
        columns, number = self.columns, Var(self.fresh("i"), INDEX, count)
        return Nest(
            (
                Stage(
                    self.fresh("s"),
                    columns.axes,
                    columns.assigns,
                    (number,),
                    columns.combiner,
                    (load(partial, (number, *columns.axes)),),
                    columns.initial,
                    columns.accumulators,
                ),
            ),
            1,
        )

    def _along(self, axes: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(Var(self.fresh("i"), INDEX, v.extent) for v in axes)

    def _nest(self, first: Expr, done: int, count: int, height: int) -> Nest:
        """`count` blocks of `height` rows, `done` blocks after block `first`."""
        block, within = (Var(self.fresh("i"), INDEX, n) for n in (count, height))
        number = block + done
        start = (first + number) * self.size
        handed = {b: Buffer(self.fresh("b"), b.dtype, (count, height)) for b in self.handed}
        stages = (
            self._rows(block, within, start + within, handed),
            self._columns(block, number, start, height, handed),
        )
        return Nest(stages, 1, tuple(handed.values()))

    def _rows(self, block: Var, within: Var, row: Expr, handed: Mapping[Buffer, Buffer]) -> Stage:
        rows = self.rows
        (along,) = self._along(rows.reduce_axes)
        folded = tuple(Var(self.fresh("i"), v.dtype) for v in rows.accumulators)
        here = {
            rows.axes[0]: row,
            rows.reduce_axes[0]: along,
            **dict(zip(rows.accumulators, folded, strict=True)),
        }
        stage = map_expressions(rows, lambda e: substitute(e, here))
        kept = tuple(a for a in stage.assigns if a.buffer in self.wanted)
        passed = tuple(
            Assign(handed[a.buffer], (block, within), a.value)
            for a in stage.assigns
            if a.buffer in handed
        )
        return replace(
            stage,
            name=self.fresh("s"),
            axes=(block, within),
            assigns=(*kept, *passed),
            reduce_axes=(along,),
            accumulators=folded,
        )

    def _columns(
        self, block: Var, number: Expr, start: Expr, height: int, handed: Mapping[Buffer, Buffer]
    ) -> Stage:
        columns, combiner = self.columns, self.columns.combiner
        (row,), (column,) = columns.reduce_axes, columns.axes
        (along,) = self._along(columns.axes)
        terms = []
        for n in map(index.constant, range(height)):

            def passed(node: Expr, n: Expr = n) -> Expr | None:
                if isinstance(node, Load) and node.source in handed:
                    return load(handed[node.source], (block, n))
                return None

            terms.append(
                substitute(transform(columns.terms[0], passed, {}), {row: start + n, column: along})
            )
        value = terms[0]
        for term in terms[1:]:
            (value,) = combiner.combined((value,), (term,))
        return Stage(self.fresh("s"), (block, along), (Assign(self.parts, (number, along), value),))


def _is_read_at(stage: Stage, buffer: Buffer, indices: tuple[Var, ...]) -> bool:
    return all(
        read.indices == indices and read.guard is None for read in stage.loads_by_buffer[buffer]
    )
