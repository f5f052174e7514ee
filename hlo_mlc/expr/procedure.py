"""Procedures: what is done step by step on a few arrays, where no element follows from others at
once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer, Expr, Var


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

    def total(self, cost: Callable[[Expr], int]) -> int:
        """The sum of the costs of all values as often as they are computed; inner loops that run
        less and less often do half of their most."""
        return _total(self.body, cost)


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
        else Count(move.var, rewrite(move.extent), _mapped(move.body, rewrite)) for move in body)


def _total(body: Sequence[Move], cost: Callable[[Expr], int]) -> int:
    total = 0
    for move in body:
        if isinstance(move, Put):
            total += cost(move.value)
        else:
            most = move.var.extent
            total += (-(-most // 2) if move.extent.free else most) * _total(move.body, cost)
    return total
