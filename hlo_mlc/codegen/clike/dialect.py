"""What languages like C differ in: how types, literals and scalar ops are spelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Const, Expr
from hlo_mlc.expr.dtypes import INDEX, DType

INT_LIMIT = 1 << 31


class Spell(Protocol):
    """How an op is written."""

    def __call__(self, node: Apply, args: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """A language: its functions raise CodegenError for what it has no words for.

    `fused` names the functions of accumulations, x * y + z, by type; `has_fma` says that such a
    function exists on all machines, so that expansions may be made of it.
    """

    element_type: Callable[[DType], str]
    literal: Callable[[Const], str]
    spell: Spell
    fused: Mapping[DType, str]
    has_fma: bool

    def type_of(self, e: Expr) -> str:
        """The type of a value; of an index, `int` where that is certainly wide enough."""
        return index_type(e) if e.dtype is INDEX else self.element_type(e.dtype)


def index_type(e: Expr) -> str:
    """`int` if it holds every value that an index expression can take."""
    low, high = index.bounds(e)
    return "int" if low >= -INT_LIMIT and high < INT_LIMIT else "long long"
