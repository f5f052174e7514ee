"""Procedures: what is done step by step on a few arrays, where no element follows from others at
once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer, Expr, Var, loads


@dataclass(frozen=True, slots=True)
class Put:
    """`array[indices] = value`."""

    array: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Count:
    """`body` for each `var` from 0 to `extent`, one after the other."""

    var: Var
    extent: Expr
    body: tuple[Move, ...]


Move = Put | Count


@dataclass(frozen=True, slots=True)
class Procedure:
    """What is done in order on `arrays`, of scope "stack", which begin with nothing in them."""

    arrays: tuple[Buffer, ...]
    body: tuple[Move, ...]

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression that is evaluated."""
        return tuple(_expressions(self.body))

    def mapped(self, rewrite: Callable[[Expr], Expr]) -> Procedure:
        """With every expression rewritten; variables and arrays stay."""
        return Procedure(self.arrays, _mapped(self.body, rewrite))

    @property
    def is_side_by_side(self) -> bool:
        """Whether no trip of an innermost loop reads what another one puts."""
        return any(isinstance(move, Count) for move in self.body) and _is_side_by_side(self.body)

    def total(self, cost: Callable[..., int]) -> int:
        """The sum of the costs of all values as often as they are computed; inner loops that run
        less and less often do half of their most."""
        return _total(self.body, cost)


def moves(body: Sequence[Move]) -> Iterator[Move]:
    """All that is done, loops before what they do."""
    for move in body:
        yield move
        if isinstance(move, Count):
            yield from moves(move.body)


def _expressions(body: Sequence[Move]) -> Iterator[Expr]:
    for move in body:
        if isinstance(move, Put):
            yield from (*move.indices, move.value)
        else:
            yield move.extent
            yield from _expressions(move.body)


def _mapped(body: Sequence[Move], rewrite: Callable[[Expr], Expr]) -> tuple[Move, ...]:
    return tuple(
        Put(move.array, tuple(map(rewrite, move.indices)), rewrite(move.value))
        if isinstance(move, Put)
        else Count(move.var, rewrite(move.extent), _mapped(move.body, rewrite))
        for move in body
    )


def _total(body: Sequence[Move], cost: Callable[..., int]) -> int:
    total = 0
    for kind, moves in itertools.groupby(body, type):
        if kind is Put:  # what they share is computed once
            total += cost(*(put.value for put in moves))
            continue
        for count in moves:
            most = count.var.extent
            total += (-(-most // 2) if count.extent.free else most) * _total(count.body, cost)
    return total


def _is_side_by_side(body: Sequence[Move]) -> bool:
    for move in body:
        if isinstance(move, Put):
            continue
        if move.extent.free:
            return False
        puts = [inner for inner in move.body if isinstance(inner, Put)]
        if not puts:
            if not _is_side_by_side(move.body):
                return False
        elif len(puts) < len(move.body) or {put.array for put in puts} & {
            one.source for put in puts for one in loads(put.value)
        }:
            return False
    return True
