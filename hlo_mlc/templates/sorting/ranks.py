"""Short rows: the rank of each element is how many come before it, counted in vectors."""

from __future__ import annotations

import functools

from hlo_mlc.expr import index
from hlo_mlc.expr.build import compare
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Stmt
from hlo_mlc.loops.rewrite import allocated, serial
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import across, fold, read, shared_out, store
from hlo_mlc.templates.sorting.records import (
    MOVED,
    Body,
    Records,
    Room,
    Sorting,
    alone,
    as_number,
    comes_first,
    moved,
)


def by_ranks(sorting: Sorting) -> Body:
    """Each element goes to the place that tells how many come before it."""
    n = sorting.element.extent
    asked = len(sorting.kept)  # parts of a record: keys besides were compared before it is moved
    given = Room.of(sorting.records("given", (n,)), alone)
    ordered = Room.of(sorting.records("ordered", (n,))[:asked], alone)
    keys = tuple(
        Buffer(f"{sorting.stage.name}_key{k}", key.dtype, (n,), "stack")
        for k, key in enumerate(sorting.stage.sort.keys)
    )
    rank = Buffer(f"{sorting.stage.name}_rank", U32, (n,), "stack")

    def row(number: Expr) -> Body:
        at = decoded(sorting.outer, number)

        def start(i: Expr) -> Body:
            values = sorting.keys(given.read(i))
            return (
                *(store(b, key, i) for b, key in zip(keys, values, strict=True)),
                store(rank, 0, i),
            )

        def move(i: Expr) -> Body:
            return moved(given.read(i)[:asked], ordered, read(rank, i), index.constant(n))

        return allocated(
            (*given.buffers, *ordered.buffers, *keys, rank),
            (
                sorting.fill(given, at, index.constant(0), n),
                sorting.vectors("start", n, start),
                counted(sorting, keys, rank, n),
                serial("moved", n, move),
                sorting.hand_out(ordered, at),
            ),
        )

    total = sorting.rows * n * (n // sorting.width + MOVED)
    return shared_out(sorting.stage.name, sorting.rows, total, row)


def counted(sorting: Sorting, keys: Records, rank: Buffer, length: Expr | int) -> Stmt:
    """Adds to the rank of each key how many of the first `length` come before it."""
    (most,) = rank.shape

    def compared(j: Expr, i: Expr) -> Stmt:
        mine, theirs = (tuple(read(b, k) for b in keys) for k in (j, i))
        first = comes_first(mine, theirs, compare("lt", j, i))
        return fold("add", rank, as_number(first), i)

    return serial(
        "other",
        length,
        lambda j: across("counted", most, sorting.width, functools.partial(compared, j)),
    )
