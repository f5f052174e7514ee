"""What is folded in the lanes of a vector first, and then of all lanes."""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import Stmt
from hlo_mlc.loops.rewrite import Body, vectorized
from hlo_mlc.templates.by_hand import across, fold, read, store
from hlo_mlc.tensor.combine import named_combiner


class Lanes:
    """The op of what each of some lanes has taken."""

    def __init__(self, name: str, op: str, dtype: DType, width: int) -> None:
        self.op, self.width = op, width
        self.buffer = Buffer(name, dtype, (width,), "register")
        self.neutral = named_combiner(op, dtype).identity[0]

    def start(self) -> Stmt:
        """Nothing was taken."""
        return vectorized("lane", self.width, lambda i: store(self.buffer, self.neutral, i))

    def take(self, value: Expr, lane: Expr) -> Stmt:
        """One more in a lane."""
        return fold(self.op, self.buffer, value, lane)

    def take_all(self, count: int, value: Callable[[Expr], Expr]) -> Body:
        """`value(i)` for each i below `count`, in vectors that are written out."""
        return across("taken", count, self.width, lambda i: self.take(value(i), i % self.width))

    def whole(self, into: Buffer, start: Expr | None = None) -> Body:
        """`into`: what all lanes have taken."""
        begin = self.neutral if start is None else start
        return (
            store(into, begin),
            vectorized("lane", self.width, lambda i: fold(self.op, into, read(self.buffer, i))),
        )
