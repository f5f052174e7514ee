"""Sorts of which little is read: what picks a few places out of rows in order has their elements
put there, and nothing else of the rows is put in order.

    gather(sort(x), [n // 2])   ->   of each row the element that takes place n // 2
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops.registry import SOURCES

# Elements of sorted rows for each that is picked, and how many places of a row are searched for,
# those at one of its ends at once: each takes 0.1 to 0.3 of the time that putting it in order does
# (nearest and middle_pairs of the bench).
FEW, SEARCHED = 4, 4


@dataclass(frozen=True, slots=True)
class Pick:
    """A node that picks elements of a sort's result `position`; `places` says which, and is the
    same for what picks the same of another result."""

    node: Node
    position: int
    places: Hashable


def picks(
    sort: Node, uses: Mapping[Value, tuple[Node, ...]], wanted: frozenset[Value]
) -> tuple[tuple[Pick, ...], tuple[Node, ...]]:
    """What picks a few elements out of a sort's results, and the nodes on the way there; nothing
    where other elements are read as well."""
    shape = sort.results[0].type.shape
    if not sort.results[0].type.size:
        return (), ()
    most = sort.results[0].type.size // FEW
    rows = sort.results[0].type.size // shape[sort.attributes.get("dimension", -1)]
    searched: dict[Hashable, int] = {}
    found: list[Pick] = []
    between: list[Node] = []
    waiting: list[tuple[Value, int, tuple[Hashable, ...]]] = [
        (value, position, ()) for position, value in enumerate(sort.results)
    ]
    for value, position, path in waiting:
        if value in wanted:
            return (), ()
        for user in uses.get(value, ()):
            if (
                SOURCES.get(user.op) != slice(1)
                or user.opaque
                or value in user.operands[1:]
                or not user.results[0].type.is_static
            ):
                return (), ()
            places = (
                *path,
                user.op,
                user.results[0].type.shape,
                user.operands[1:],
                frozenset(user.attributes.items()),
            )
            if user.results[0].type.size <= most:
                found.append(Pick(user, position, places))
                at_end = _is_at_end(user, sort)
                searched[places] = 1 if at_end else -(-user.results[0].type.size // rows)
            else:
                between.append(user)
                waiting.append((user.results[0], position, places))
    return (tuple(found), tuple(between)) if sum(searched.values()) <= SEARCHED else ((), ())


def _is_at_end(pick: Node, sort: Node) -> bool:
    """Whether a slice begins or ends where the rows of a sort do."""
    axis = sort.attributes.get("dimension", -1)
    whole = pick.operands[0].type.shape
    return (
        pick.op == "stablehlo.slice"
        and whole == sort.results[0].type.shape
        and (
            pick.attributes["start_indices"][axis] == 0
            or pick.attributes["limit_indices"][axis] == whole[axis]
        )
    )
