"""What an op definition is: its meaning on arrays, and as tensor expressions."""

from __future__ import annotations

import enum
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.procedure import Procedure
from hlo_mlc.graph.core import Node

Indices = tuple[Expr, ...]
Read = Callable[[Indices], Expr]  # the element of a tensor at the given index expressions


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Each result element is an expression of its own indices: elementwise and injective ops."""

    elements: tuple[Read, ...]  # one per result


@dataclass(frozen=True, slots=True)
class Fold:
    """result k[i] = finish(fold over r of terms(i, r), from `initial`)[k].

    `finish` turns the accumulators into results, where they differ: narrow floats are accumulated
    in f32 and rounded once.
    """

    extents: tuple[int, ...]  # of the reduced axes
    combiner: Combiner
    terms: Callable[[Indices, Indices], tuple[Expr, ...]]
    initial: tuple[Expr, ...]
    finish: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None = None

    def finished(self, accumulators: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The results, which may be fewer than the accumulators."""
        return self.finish(accumulators) if self.finish else accumulators

    def as_terms(self) -> Pointwise:
        """A fold of few terms as one expression: `((initial + term 0) + term 1) + …`."""

        def element(position: int, indices: Indices) -> Expr:
            values = self.initial
            for point in itertools.product(*map(range, self.extents)):
                terms = self.terms(indices, tuple(map(index.constant, point)))
                values = self.combiner.combined(values, terms)
            return self.finished(values)[position]

        results = len(self.finished(self.initial))
        return Pointwise(tuple(functools.partial(element, k) for k in range(results)))


@dataclass(frozen=True, slots=True)
class Scan:
    """result k[i] = finish(fold of terms(j) over j up to i along `axis`, from `initial`)[k].

    With `reverse` over j from the axis' end down to i; the combiner's lhs is what was accumulated
    so far.  The initial values are neutral.
    """

    axis: int
    reverse: bool
    combiner: Combiner
    terms: Callable[[Indices], tuple[Expr, ...]]
    initial: tuple[Expr, ...]
    finish: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Sorted:
    """result k[i] = term k of the element that takes place i[axis] among the `extent` along it.

    `keys(terms)` are unsigned integers; the first that differ decide, and what has the same keys
    stays as it comes.  The results may be shorter along the axis than what is sorted.
    """

    axis: int
    extent: int
    terms: Callable[[Indices], tuple[Expr, ...]]  # at the indices of an element
    keys: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class Update:
    """A copy of operand `target` in which the elements place(p) become element(p), p in `extents`.

    Points whose guard is false write nothing.  With a combiner the new element is
    combiner(old, element(p)), applied in order of p; without one the last p wins.
    """

    target: int
    extents: tuple[int, ...]
    place: Callable[[Indices], Indices]
    element: Callable[[Indices], Expr]
    guard: Callable[[Indices], Expr] | None = None
    combiner: Combiner | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """A tensor of `shape` that `first` gives, and the results, which read it."""

    shape: tuple[int, ...]
    first: Fold
    then: Callable[[Read], Fold]


@dataclass(frozen=True, slots=True)
class Unrolled:
    """At every point of `extents` some elements of each result, written out: `elements(point)[k]`
    are places in result k and what stands there.  All points together give every element once."""

    extents: tuple[int, ...]
    elements: Callable[[Indices], tuple[tuple[tuple[Indices, Expr], ...], ...]]


@dataclass(frozen=True, slots=True)
class Stepwise:
    """At every point of `extents` a procedure; array k of `results` becomes result k there.

    `place(point, indices)` is where in a result an element of such an array is, behind the point if
    nothing else is said.  `tables` are constants of its own, whose elements it reads by the
    functions that it is given.
    """

    extents: tuple[int, ...]
    procedure: Callable[[Indices, tuple[Read, ...]], Procedure]
    results: tuple[Buffer, ...]
    tables: tuple[np.ndarray, ...] = ()
    place: Callable[[Indices, Indices], Indices] = operator.add


Lowered = Pointwise | Fold | Scan | Sorted | Update | Staged | Unrolled | Stepwise


class OpKind(enum.Enum):
    """What the elements of an op's results have to do with those of its operands."""

    ELEMENTWISE = "each is computed from those at the same place"
    MOVEMENT = "they are elements of the operands, or known"
    FOLD = "many become one"
    PRODUCT = "they are sums of products"
    UPDATE = "the first operand, with some of them changed"
    SORT = "rows in an order"
    SOLVE = "each may depend on all"


class FewBits(enum.Enum):
    """How an op of integers of less than a byte is one of bytes."""

    SAME = "the same of bytes, whose numbers stay within the limits"
    LAST = "the last bits of what it is of bytes"
    LAST_IF_SIGNED = "the same, of signed ones"
    UNSIGNED = "it is said of bits: of those in an unsigned byte"
    NONE = "none that is known"


_FEW_BITS = {
    OpKind.MOVEMENT: FewBits.SAME,
    OpKind.FOLD: FewBits.SAME,
    OpKind.UPDATE: FewBits.SAME,
    OpKind.SORT: FewBits.SAME,
    OpKind.PRODUCT: FewBits.LAST,
}


@dataclass(frozen=True, slots=True)
class OpDef:
    """One op: everything the compiler knows about it.

    cost: how many simple operations an element of an elementwise op takes, roughly.
    is_exact: whether a result is exact or rounded once, so that any library computes the same.
    few_bits: what it is of integers of less than a byte; None is what ops of its kind are.
    sources: the operands of which all elements of the results are some, if they are.
    supports(node): "" where `lower` handles this node, else the reason why not (for a person).
    reference(node, operands): the results as NumPy arrays; the definition that tests compare with.
    lower(node, reads): tensor expressions; only called where supports(node) == "".
    examples: StableHLO functions (text) that exercise it, found by the tests.
    """

    name: str
    kind: OpKind
    reference: Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, ...]]
    lower: Callable[[Node, Sequence[Read]], Lowered]
    supports: Callable[[Node], str]
    examples: tuple[str, ...]
    cost: int = 0
    is_exact: bool = False
    few_bits: FewBits | None = None
    sources: slice | None = None

    @property
    def of_few_bits(self) -> FewBits:
        return self.few_bits or _FEW_BITS.get(self.kind, FewBits.NONE)
