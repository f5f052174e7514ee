"""Building blocks of index -> scalar expressions: where an element is read, and whether it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, as_index, const, load, transform
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, loads
from hlo_mlc.expr.dtypes import BOOL, INDEX, U64


class Pair(NamedTuple):
    """Two adjacent elements, such as the two parts of a complex number; an access states which of
    them it takes."""

    buffer: Buffer
    point: tuple[Expr, ...]

    @classmethod
    def of(cls, buffer: Buffer, indices: Sequence[Expr]) -> Pair | None:
        """The pair that an access takes an element of; None where that is not known."""
        is_one = buffer.shape[-1:] == (2,) and isinstance(indices[-1], Const)
        return cls(buffer, tuple(indices[:-1])) if is_one else None

    @staticmethod
    def element(indices: Sequence[Expr]) -> int:
        """Which element of the pair an access takes."""
        last = indices[-1]
        assert isinstance(last, Const)
        return int(last.value)


def pieces(places: Iterable[int], width: int) -> list[tuple[int, int]]:
    """The smallest set of runs of at most `width` neighbours that contains all of these places: the
    first place of each run, and the one behind its last.

    Source: greedy covering of points by intervals.
    """
    found: list[tuple[int, int]] = []
    for place in sorted(set(places)):
        if found and place < found[-1][0] + width:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found


def conjunction(*conditions: Expr | None) -> Expr:
    """All of `conditions` (None is true), each conjunct once."""
    conjuncts: dict[Expr, None] = {}
    stack = [c for c in reversed(conditions) if c is not None]
    while stack:
        condition = stack.pop()
        if isinstance(condition, Apply) and condition.op == "and" and condition.dtype is BOOL:
            stack.extend(reversed(condition.args))
        else:
            conjuncts.setdefault(condition)
    return all_of(*conjuncts)


def is_inside(access: Load) -> bool:
    """Whether every index stays in the buffer for all values of all variables."""
    bounds = map(index.bounds, access.indices)
    return all(
        low >= 0 and high < extent
        for (low, high), extent in zip(bounds, access.source.shape, strict=True)
    )


def masked(value: Expr, guard: Expr, default: Expr) -> Expr:
    """`value` where `guard` holds, else `default`; then no load inside `value` touches memory.

    What is the same wherever the guard holds or not, and always there, is read all the same: where
    a slice begins must not differ from lane to lane.  So is what the guard itself reads, which a
    place that was looked up has in common with the question whether it is inside.
    """
    if isinstance(guard, Const):
        return value if guard.value else default
    read = frozenset(loads(guard))

    def protect(node: Expr) -> Expr | None:
        if (
            not isinstance(node, Load)
            or node in read
            or (node.free.isdisjoint(guard.free) and is_inside(node))
        ):
            return None
        fallback = const(0, node.dtype) if node.guard is None else node.default
        return load(node.source, node.indices, conjunction(guard, node.guard), fallback)

    memo: dict[Expr, Expr] = {}
    if isinstance(value, Load) and (value.guard is None or value.default is default):
        indices = tuple(transform(i, protect, memo) for i in value.indices)
        inner = None if value.guard is None else transform(value.guard, protect, memo)
        return load(value.source, indices, conjunction(guard, inner), default)
    return apply("select", guard, transform(value, protect, memo), default)


def inside(position: Expr, extent: int) -> Expr:
    """The condition 0 <= position < extent, for an index."""
    low = apply("ge", position, index.constant(0))
    return conjunction(low, apply("lt", position, index.constant(extent)))


def undilated(position: Expr, extent: int, dilation: int) -> tuple[Expr, Expr]:
    """(index, guard): the element of an axis of `extent` that lies at `position` once its elements
    are `dilation` apart; the guard is false between elements and outside."""
    element, exact = position, None
    if dilation > 1:
        exact = index.compare("eq", position % dilation, 0)
        element = position // dilation
    return element, conjunction(exact, inside(element, extent))


def clamped_index(value: Expr, limit: int) -> Expr:
    """An integer of any type as an index clamped to [0, limit]."""
    if value.dtype is U64:  # beyond the range of an index
        value = apply("min", value, const(limit, U64))
    return index.maximum(index.minimum(as_index(value), limit), 0)


def picked(elements: Sequence[Expr], place: Expr) -> Expr:
    """The element at `place`, a valid index into `elements`, as a chain of selections."""
    if isinstance(place, Const):
        return elements[place.value]
    last = len(elements) - 1
    # Where it was clamped to the ends, comparisons with what is before the last come out the same.
    while (
        isinstance(place, Apply)
        and place.op in ("min", "max")
        and isinstance(place.args[1], Const)
        and place.args[1].value == (last if place.op == "min" else 0)
    ):
        place = place.args[0]
    place = as_integer(place)
    result = elements[last]
    for i in reversed(range(last)):
        result = apply("select", apply("le", place, const(i, place.dtype)), elements[i], result)
    return result


def as_integer(place: Expr) -> Expr:
    """The integer that an index was converted from, if it was: a vector holds more elements of the
    narrower type."""
    is_converted = isinstance(place, Apply) and place.op == "convert" and place.dtype is INDEX
    return place.args[0] if is_converted else place


def linearize(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major position of `indices` in `shape`."""
    position: Expr = index.constant(0)
    for i, extent in zip(indices, shape, strict=True):
        position = position * extent + i
    return position


def delinearize(position: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    """The indices in `shape` (no extent 0) of a row-major position: `linearize` undone."""
    indices: list[Expr] = []
    for axis in range(len(shape) - 1, -1, -1):
        # The first axis needs no remainder: the position is within the shape.
        indices.append(position % shape[axis] if axis else position)
        position = position // shape[axis]
    return tuple(reversed(indices))


def reshaped(
    indices: Sequence[Expr], shape: Sequence[int], source: Sequence[int]
) -> tuple[Expr, ...]:
    """Where the element at `indices` of `shape` lies in a tensor of shape `source`, same size.

    Axes are matched in the smallest groups of equal size, so an axis that the reshape leaves
    alone keeps its index as it is, whatever that index is.
    """
    if 0 in shape:
        return tuple(index.constant(0) for _ in source)
    long = [(i, extent) for i, extent in zip(indices, shape, strict=True) if extent != 1]
    long_source = [extent for extent in source if extent != 1]
    found: list[Expr] = []
    for taken, extents in _groups([extent for _, extent in long], long_source):
        group = [long.pop(0) for _ in range(taken)]
        position = linearize(*zip(*group, strict=True)) if taken > 1 else group[0][0]
        found.extend(delinearize(position, extents))
    rest = iter(found)
    return tuple(index.constant(0) if extent == 1 else next(rest) for extent in source)


def _groups(shape: Sequence[int], source: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Split two shapes of equal size, no extent 0 or 1, into the shortest runs of equal size.

    Yields how many axes of `shape` a run takes, and the extents that it takes of `source`.
    """
    at = begin = end = 0
    while at < len(shape):
        start, size, other = at, shape[at], source[end]
        at, begin, end = at + 1, end, end + 1
        while size != other:
            if size < other:
                size *= shape[at]
                at += 1
            else:
                other *= source[end]
                end += 1
        yield at - start, source[begin:end]


def at_axes(
    axes: Sequence[int], values: Sequence[Expr], others: Sequence[Expr]
) -> tuple[Expr, ...]:
    """Indices with `values` at `axes`, and `others` at the remaining axes in order."""
    given = dict(zip(axes, values, strict=True))
    rest = iter(others)
    return tuple(given[d] if d in given else next(rest) for d in range(len(values) + len(others)))
