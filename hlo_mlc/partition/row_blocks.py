"""Kernels that serve any number of rows.

    r[i] = tanh(x[i, :] @ w) for i<150     ->    2 blocks of 64 rows, 1 of 16, 1 of 4 and 2 of 1

What rows have nothing to do with each other is computed in blocks, by kernels that are the same
for every number of rows: so a program that is called with 50 of them has a few kernels, not 50.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.tensor.sharding import Factor, factors, resized

MOST_ROWS = 64
"""Of a block: no tile of a product has more, and who has fewer rows calls fewer blocks."""
_FEWER = 4
"""How many times as many rows as the next smaller block each has."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """`rows` in all; `kernels`, by the rows that each computes, most first, and how many blocks
    there are of it; `row_bytes` of each operand and then each result, 0 where it has no rows."""

    rows: int
    kernels: dict[int, tuple[int, Kernel]]
    row_bytes: tuple[int, ...]


def row_blocks(kernel: Kernel, block_bytes: int) -> RowBlocks | None:
    """The kernel in blocks of `block_bytes` at most, if there is more than one row to that; None
    where its results have no rows that are computed each by itself."""
    program = kernel.program
    rows = next((f for f in factors(program) if _leads(f, len(program.results))), None)
    if rows is None or not _is_everywhere(rows, kernel):
        return None
    row_bytes = sum(buffer.bytes for buffer, _ in rows.dimensions) // rows.extent
    most = min(MOST_ROWS, max(1, block_bytes // max(1, row_bytes)))
    kernels = {size: (count, _of_rows(kernel, rows, size))
               for size, count in _counts(rows.extent, most)}
    cut = {buffer for buffer, _ in rows.dimensions}
    return RowBlocks(rows.extent, kernels, tuple(
        buffer.bytes // rows.extent if buffer in cut else 0
        for buffer in (*program.operands, *program.results)))


def _leads(factor: Factor, results: int) -> bool:
    """Whether a factor is the first dimension of every result, and of each operand that has it."""
    return not factor.folds and factor.results == tuple((n, 0) for n in range(results)) \
        and all(dimension == 0 for _, dimension in factor.operands)


def _is_everywhere(factor: Factor, kernel: Kernel) -> bool:
    """Whether nothing is computed that all rows need: each block would compute it again."""
    return {*kernel.program.temporaries} <= {buffer for buffer, _ in factor.dimensions}


def _counts(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """The sizes of blocks and how many of each, most rows first."""
    size = MOST_ROWS
    while rows:
        if size <= most and size <= rows:
            yield size, rows // size
            rows %= size
        size //= _FEWER


def _of_rows(kernel: Kernel, rows: Factor, count: int) -> Kernel:
    part = resized(kernel.program, {rows: count})
    made = make_kernel(part.steps, part.operands, part.results, part.aliases)
    what, at, line = kernel.name.partition("@")
    return replace(made, name=f"{what}, {count} row{'s' * (count > 1)}{at}{line}")
