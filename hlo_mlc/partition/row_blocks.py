"""Kernels that serve any number of rows.

    r[i] = tanh(x[i, :] @ w) for i<150     ->    2 blocks of 64 rows, 1 of 16, 1 of 4 and 2 of 1

A program that is called with 50 numbers of rows has a few kernels, not 50: what computes each row
by itself does so in blocks, by kernels that are the same for every number of rows; so does what
folds rows, each block going on with what those before it came to.  What has no rows is computed by
a kernel of its own (tensor/row_pieces.py), constants are operands (tensor/given_constants.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hlo_mlc.expr.core import Buffer
from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tensor.given_constants import with_constants_given
from hlo_mlc.tensor.orders import Order, in_orders
from hlo_mlc.tensor.row_pieces import RowFold, RowPiece, is_in_pieces, joining, row_pieces
from hlo_mlc.tensor.sharding import Factor, factors, resized

MOST_ROWS = 64
"""Of a block: no tile of a product has more, and who has fewer rows calls fewer blocks."""
_MOST_FOLDED = 256
"""Of a block that folds its rows: a product of matrices is as fast as with more by then."""
_READ_FOR_FOLD = 16
"""How many times as much as its folds a block is to read, at least: they are read and written once
for each block."""
_FEWER = 4
"""How many times as many rows as the next smaller block each has."""
_GROUPS = (1, 4, 16, 64)
"""Of blocks: how many there may be."""
_FEW_NUMBERS = 16
"""That each block computes again."""
_BLOCKS_OF_A_GROUP = 4
"""At least, so that what groups came to is a small part of what they read."""


@dataclass(frozen=True, slots=True, eq=False)
class RowCall:
    """One call of kernels.

    `operands` and `results` are buffers of the kernel's program that is cut, and others between
    calls; `constants` are what those of the operands hold that only this call has.  Kernels are by
    the rows that each computes, most first, with how many blocks there are of it; a call without
    rows has one kernel, of 0 rows.  `row_bytes` are those of each operand and then each result, 0
    where it has no rows.  The last operands and results are those of `folds`, in `groups`.  Other
    numbers of rows need `others`: larger blocks, or smaller ones, and what folds that many groups
    came to.
    """

    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    aliases: tuple[tuple[Buffer, Buffer], ...]
    constants: Mapping[Buffer, np.ndarray]
    kernels: Mapping[int, tuple[int, Kernel]]
    row_bytes: tuple[int, ...] = ()
    folds: tuple[RowFold, ...] = ()
    groups: int = 0
    others: tuple[Kernel, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether it is in blocks."""
        return bool(self.row_bytes)

    @property
    def bytes(self) -> int:
        """Of all that it reads and writes."""
        return sum(b.bytes for b in (*self.operands, *self.results))


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The calls that compute a kernel's `program`, in order; `rows` in all, 0 where it has none.
    Its buffers are those of the kernel, or those with rows in these `orders`, rows first.  Along
    which dimension the kernel's results have them is in `axes`, by their numbers."""

    rows: int
    calls: tuple[RowCall, ...]
    program: TensorProgram
    orders: Mapping[Buffer, Order] = field(default_factory=dict)
    axes: Mapping[int, int] = field(default_factory=dict)

    @property
    def kernels(self) -> list[tuple[Kernel, int, float]]:
        """What is called, how often, and about which share of the whole one call computes."""
        in_all = sum(call.bytes for call in self.calls) or 1
        return [
            (kernel, count, call.bytes / in_all * (size / self.rows if size else 1.0))
            for call in self.calls
            for size, (count, kernel) in call.kernels.items()
        ]

    @property
    def others(self) -> tuple[Kernel, ...]:
        """What other numbers of rows need, and this one does not."""
        own = {kernel.fingerprint for kernel, *_ in self.kernels}
        others = {one.fingerprint: one for call in self.calls for one in call.others}
        return tuple(one for name, one in others.items() if name not in own)


def row_blocks(
    kernel: Kernel, block_bytes: int, axes: Mapping[int, int] | None = None
) -> RowBlocks | None:
    """The kernel in blocks of `block_bytes` at most, if there is more than one row to that; None
    where it is as good as it is: it has no rows, or they need each other for more than a fold, and
    its program has no constants to be given.  `axes`, as far as they are known, are those along
    which operands have rows, by their numbers."""
    found = _rows_first(kernel.program, axes or {})
    for rows in found.candidates:
        program = found.program
        pieces: list[RowPiece] | None = [RowPiece(program, has_rows=True)]
        if not _is_alone(rows, program):
            pieces = row_pieces(
                program,
                rows,
                lambda piece, folds, rows=rows: _groups(piece, rows, folds, block_bytes),
            )
        if pieces is not None:
            return RowBlocks(
                rows.extent,
                tuple(
                    _row_call(kernel, piece, rows, block_bytes)
                    if piece.has_rows
                    else _whole_call(kernel, piece.program)
                    for piece in pieces
                ),
                program,
                found.orders,
                found.axes or dict(rows.results),
            )
    given = _whole_call(kernel, kernel.program)
    return RowBlocks(0, (given,), kernel.program) if given.constants else None


@dataclass(frozen=True, slots=True)
class _RowsFirst:
    """A program in which rows are the first dimension of what has them."""

    program: TensorProgram
    candidates: Sequence[Factor]
    orders: Mapping[Buffer, Order] = field(default_factory=dict)
    axes: Mapping[int, int] = field(default_factory=dict)


def _rows_first(program: TensorProgram, axes: Mapping[int, int]) -> _RowsFirst:
    """The program with the dimension that is known to be of rows outermost, where it may be cut
    along that; else as it is, with what it may be cut along."""
    may_wait = is_in_pieces(program)
    for rows in factors(program, may_wait, may_lead=False):
        if not any(rows_of in rows.operands for rows_of in axes.items()):
            continue
        orders = {
            buffer: (axis, *(d for d in range(len(buffer.shape)) if d != axis))
            for buffer, axis in rows.dimensions
            if axis
        }
        turned = in_orders(program, orders)
        number = next(n for n, axis in axes.items() if (n, axis) in rows.operands)
        candidates = [f for f in _candidates(turned) if (number, 0) in f.operands]
        if candidates:
            return _RowsFirst(turned, candidates, orders, dict(rows.results))
    return _RowsFirst(program, _candidates(program))


def _candidates(program: TensorProgram) -> list[Factor]:
    """The factors that are the first dimension of whatever has them, and by which the program may
    be cut: first what all is computed along, then those of most bytes."""
    may_wait = is_in_pieces(program)
    leading = [
        f
        for f in factors(program, may_wait, may_lead=False)
        if (
            all(d == 0 for _, d in (*f.operands, *f.results))
            if _is_alone(f, program)
            else may_wait and all(d == 0 for _, d in f.dimensions)  # which calls pass on
        )
    ]
    return sorted(
        leading, key=lambda f: (not _is_alone(f, program), -sum(b.bytes for b, _ in f.dimensions))
    )


def _is_alone(factor: Factor, program: TensorProgram) -> bool:
    """Whether nothing is computed but rows, each by itself; and where it could not be computed in a
    piece of its own, a few numbers such as places that a loop reads at."""
    computed = {*program.temporaries, *program.results}
    if not is_in_pieces(program):
        computed -= {b for b in program.temporaries if b.size <= _FEW_NUMBERS}
    return not factor.folds and computed <= {buffer for buffer, _ in factor.dimensions}


def _row_bytes(program: TensorProgram, rows: Factor) -> int:
    """Of one row in all buffers."""
    cut = {buffer for buffer, _ in rows.dimensions}
    return sum(
        b.bytes // rows.extent
        for b in (*program.operands, *program.results, *program.temporaries)
        if b in cut
    )


def _most_rows(
    program: TensorProgram, rows: Factor, folds: Sequence[RowFold], block_bytes: int
) -> int:
    """Of a block."""
    row_bytes = max(1, _row_bytes(program, rows))
    fitting = max(1, block_bytes // row_bytes)
    if not folds:
        return min(MOST_ROWS, fitting)
    return min(
        _MOST_FOLDED, max(fitting, _READ_FOR_FOLD * sum(f.after.bytes for f in folds) // row_bytes)
    )


def _groups(piece: TensorProgram, rows: Factor, folds: Sequence[RowFold], block_bytes: int) -> int:
    """How many groups the blocks of a piece are in: one where their folds are larger than what a
    block reads.  It does not depend on who computes them: it decides in which order is added."""
    most = _most_rows(piece, rows, folds, block_bytes)
    blocks = sum(count for _, count in _counts(rows.extent, most))
    if not _may_be_in_groups(piece, rows, folds, most):
        return 1
    return max(n for n in _GROUPS if n == 1 or n * _BLOCKS_OF_A_GROUP <= blocks)


def _may_be_in_groups(
    piece: TensorProgram, rows: Factor, folds: Sequence[RowFold], most: int
) -> bool:
    """Whether what blocks fold is no larger than what they read."""
    return 0 < sum(f.after.bytes for f in folds) <= most * _row_bytes(piece, rows)


def _sizes(most: int) -> Iterator[int]:
    """Those of blocks of `most` rows at most, most rows first."""
    size = _MOST_FOLDED
    while size:
        if size <= most:
            yield size
        size //= _FEWER


def _counts(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """The sizes of blocks and how many of each, most rows first."""
    for size in _sizes(most):
        if size <= rows:
            yield size, rows // size
            rows %= size


def _row_call(kernel: Kernel, piece: RowPiece, rows: Factor, block_bytes: int) -> RowCall:
    program, constants = with_constants_given(piece.program)
    befores = [f.before for f in piece.folds]
    operands = (*(b for b in program.operands if b not in befores), *befores)
    program = replace(program, operands=operands)
    most = _most_rows(program, rows, piece.folds, block_bytes)
    made = {size: _made(kernel, resized(program, {rows: size}), size) for size in _sizes(most)}
    kernels = {size: (count, made[size]) for size, count in _counts(rows.extent, most)}
    joined = (
        [_made(kernel, joining(piece.folds, groups).program, 0) for groups in _GROUPS[1:]]
        if _may_be_in_groups(piece.program, rows, piece.folds, most)
        else []
    )
    cut = {buffer for buffer, _ in rows.dimensions}
    of_groups = {f.after: f.of_groups for f in piece.folds if f.of_groups is not None}
    return RowCall(
        operands,
        tuple(of_groups.get(b, b) for b in program.results),
        program.aliases,
        constants,
        kernels,
        tuple(b.bytes // rows.extent if b in cut else 0 for b in (*operands, *program.results)),
        piece.folds,
        piece.groups,
        (*(one for size, one in made.items() if size not in kernels), *joined),
    )


def _whole_call(kernel: Kernel, piece: TensorProgram) -> RowCall:
    program, constants = with_constants_given(piece)
    return RowCall(
        program.operands,
        program.results,
        program.aliases,
        constants,
        {0: (1, _made(kernel, program, 0))},
    )


def _made(kernel: Kernel, program: TensorProgram, rows: int) -> Kernel:
    made = make_kernel(program.steps, program.operands, program.results, program.aliases)
    what, at, line = kernel.name.partition("@")
    which = f", {rows} row{'s' * (rows > 1)}" if rows else ""
    return replace(made, name=f"{what}{which}{at}{line}")
