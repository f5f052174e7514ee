"""Few long rows: each is cut into runs that are sorted in tasks of their own; then runs are merged,
in tasks that find out by bisection where their share of the result begins."""

from __future__ import annotations

import functools

from hlo_mlc.expr import index
from hlo_mlc.expr.build import as_index, compare, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32
from hlo_mlc.loops.core import If
from hlo_mlc.loops.rewrite import allocated, serial
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import one_of_parts, parallel_tasks, read, store
from hlo_mlc.templates.sorting.digits import Digits
from hlo_mlc.templates.sorting.records import (
    Body,
    Records,
    Room,
    Sorting,
    as_number,
    bisection,
    comes_first,
    length,
)

# Parts of a share that are merged side by side.
CHAINS = 4


def by_runs(sorting: Sorting, runs: int) -> Body:
    """Runs in order, then pairs of them merged until there is one."""
    n = sorting.element.extent
    size = -(-n // (runs * sorting.width)) * sorting.width
    room = (sorting.rows * runs * size,)
    front = sorting.records("front", room, "scratch")
    back = sorting.records("back", room, "scratch", in_results=sorting.comes_back)

    def sort(number: Expr) -> Body:
        run = number % runs
        at = decoded(sorting.outer, number // runs)
        place = functools.partial(_in_run, number, size)
        first = run * size
        digits = Digits(sorting, Room.of(front, place), sorting.room(back, place, at, first), size)
        filled = one_of_parts(
            run, n, size, lambda begin, count: sorting.fill(digits.front, at, begin, count)
        )
        return (*filled, *digits.sorted(length(run, size, n)))

    body = parallel_tasks(f"{sorting.stage.name}_run", sorting.rows * runs, 1, sort)
    source, other = (front, back) if sorting.comes_back else (back, front)
    if runs > 2 and sorting.comes_back:  # results are the last that is merged into
        other = sorting.records("merged", room, "scratch")
    while runs > 2:
        body += _merge(sorting, source, other, runs, size)
        source, other, runs, size = other, source, runs // 2, 2 * size
    return body + _merge(sorting, source, None, runs, size)


def _in_run(number: Expr, size: int, i: Expr) -> tuple[Expr, ...]:
    """Record i of a run, of which each has room for so many."""
    return (number * size + i,)


def _merge(sorting: Sorting, source: Records, into: Records | None, runs: int, size: int) -> Body:
    """Pairs of runs of `size` records merged, the last pair of a row into its results.

    A task writes a share of a pair's records in parts of equal length side by side: each is a
    chain of records that wait for one another.
    """
    n, shares = sorting.element.extent, runs
    part = -(-2 * size // (shares * CHAINS))
    share = part * CHAINS

    def task(number: Expr) -> Body:
        begin = number % shares * share
        pair = number // shares
        merge = _Merge(sorting, source, into, pair, runs, size)
        taken, ours = (
            [
                Buffer(f"{sorting.stage.name}_{name}{q}", dtype, (), "register")
                for q in range(CHAINS)
            ]
            for name, dtype in (("taken", U32), ("ours", BOOL))
        )
        at = [begin + q * part for q in range(CHAINS)]
        whole = length(merge.within, 2 * size, n)

        def left(q: int) -> Expr:
            return index.minimum(part, index.maximum(whole - at[q], 0))

        def step(q: int, o: Var) -> Body:
            return merge.step(taken[q], ours[q], at[q] + o)

        chains = range(CHAINS)
        return allocated(
            (*taken, *ours),
            (
                [merge.share(taken[q], at[q]) for q in chains],
                If(
                    compare("le", begin + share, whole),
                    (serial("merged", part, lambda o: [step(q, o) for q in chains]),),
                    tuple(
                        serial(f"merged{q}", left(q), functools.partial(step, q)) for q in chains
                    ),
                ),
            ),
        )

    return parallel_tasks(f"{sorting.stage.name}_merge", sorting.rows * runs // 2 * shares, 1, task)


class _Merge:
    """Two neighbouring runs of a row, `pair` counted over all rows, and where they are merged."""

    def __init__(
        self,
        sorting: Sorting,
        source: Records,
        into: Records | None,
        pair: Expr,
        runs: int,
        size: int,
    ) -> None:
        self.sorting, self.source, self.into = sorting, source, into
        self.pair, self.size = pair, size
        self.within, self.row = pair % (runs // 2), pair // (runs // 2)
        self.runs = [pair * 2 + k for k in range(2)]
        first = self.within * 2
        self.have = [length(first + k, size, sorting.element.extent) for k in range(2)]

    def _record(self, side: int, position: Expr) -> tuple[Expr, ...]:
        """A record of one run; any, where there is none."""
        inside = index.maximum(index.minimum(position, self.size - 1), 0)
        return tuple(read(b, *_in_run(self.runs[side], self.size, inside)) for b in self.source)

    def _second_first(self, i: Expr, j: Expr) -> Expr:
        """Whether record j of the second run comes before record i of the first."""
        one, other = (self.sorting.keys(self._record(*at)) for at in ((1, j), (0, i)))
        return comes_first(one, other)

    def step(self, taken: Buffer, ours: Buffer, place: Expr) -> Body:
        """The record that takes a place, and whether it came from the first run, of which so many
        were taken before."""
        i = as_index(read(taken))
        j = place - i
        first = compare("lt", i, self.have[0]) & (
            compare("ge", j, self.have[1]) | ~self._second_first(i, j)
        )
        chosen = tuple(
            select(read(ours), x, y)
            for x, y in zip(self._record(0, i), self._record(1, j), strict=True)
        )
        if self.into is None:
            s = self.sorting
            stores = s.results(decoded(s.outer, self.row), place, chosen)
        else:
            stores = tuple(
                store(b, value, *_in_run(self.pair, 2 * self.size, place))
                for b, value in zip(self.into, chosen, strict=True)
            )
        return (store(ours, first), *stores, store(taken, read(taken) + as_number(read(ours))))

    def share(self, taken: Buffer, begin: Expr) -> Body:
        """How many of the first run come before the record that takes place `begin`, found by
        bisection."""

        def holds(taken: Expr) -> Expr:
            i = as_index(taken)
            return ~self._second_first(i, begin - i - 1)

        least = as_number(index.maximum(begin - self.have[1], 0))
        return bisection(taken, least, as_number(index.minimum(begin, self.have[0])), holds)
