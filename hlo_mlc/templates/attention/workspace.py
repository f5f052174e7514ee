"""The buffers of one task of a chain of two products."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.templates.product import is_direct, is_plain
from hlo_mlc.tensor.chain import Chain
from hlo_mlc.tensor.classify import stride

# Masks or biases that are transposed chunk by chunk; more of them are gathered.
MOST_CROSSING = 2


@dataclass(frozen=True, slots=True)
class Workspace:
    """Buffers of one task: [depth, rows] for queries, [keys, depth] for packed keys, [keys, rows]
    for weights, [keys, columns] for packed values, [rows, columns] for sums."""

    queries: Buffer
    keys: Buffer | None
    weights: Buffer
    values: Buffer | None
    sums: Buffer
    crossing: tuple[tuple[Load, Buffer], ...]  # [keys, rows], of what lies along the keys

    @staticmethod
    def of(chain: Chain, rows: int, keys: int, columns: int) -> Workspace:
        """For blocks of `rows` (whole vectors, like `columns`) and chunks of `keys`."""

        def stack(name: str, like: Expr, *shape: int) -> Buffer:
            return Buffer(f"{chain.row.name}_{name}", like.dtype, shape, "stack")

        depth = math.prod(v.extent for v in chain.first.reduce_axes)
        return Workspace(
            stack("queries", chain.query, depth, rows),
            None if is_plain(chain.keys) else stack("keys", chain.keys, keys, depth),
            stack("weights", chain.weights, keys, rows),
            None
            if is_direct(chain.values, chain.column)
            else stack("values", chain.values, keys, columns),
            stack("sums", chain.last.accumulators[0], rows, columns),
            tuple(
                (read, stack(f"across{n}", read, keys, rows))
                for n, read in enumerate(_crossing(chain)[:MOST_CROSSING])
            ),
        )

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Those that are needed."""
        every = (
            self.queries,
            self.keys,
            self.weights,
            self.values,
            self.sums,
            *(b for _, b in self.crossing),
        )
        return tuple(b for b in every if b is not None)


def _crossing(chain: Chain) -> list[Load]:
    """What is read for every row and key, and lies along the keys: masks, biases."""
    values = [a.value for s in (chain.first, *chain.between) for a in (*s.along, *s.assigns)]
    terms = [t for s in chain.between for t in s.terms]
    found = dict.fromkeys(read for e in (*values, *terms, chain.weights) for read in loads(e))
    return [
        read
        for read in found
        if read.guard is None
        and read.source not in chain.private
        and read.dtype is not BOOL
        and stride(read, chain.key) == 1
        and stride(read, chain.row) not in (0, 1, None)
    ]


def lies_along(factor: Expr, axes: tuple[Var, ...]) -> bool:
    """Whether some part of a factor walks through memory one by one along the one axis."""
    return len(axes) == 1 and any(stride(read, axes[0]) == 1 for read in loads(factor))
