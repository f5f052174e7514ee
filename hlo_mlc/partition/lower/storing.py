"""Which values get a buffer, and which are computed where they are read.

A pointwise value is written into the expressions of its users unless it is wanted outside, or
computing it again would cost more than storing it once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.ops.indexing import Windows
from hlo_mlc.ops.reduction import scanned_axis
from hlo_mlc.ops.registry import ELEMENTWISE, moves, operation_cost
from hlo_mlc.partition.lower.joined_arrays import (
    SHORTEST_PART,
    has_costly_parts,
    has_many_parts,
    is_put_together,
    is_searched_in_short_rows,
    is_searched_where_data_say,
)
from hlo_mlc.partition.lower.uses import (
    DEPTH_LIMIT,
    FAR_BYTES,
    REUSED,
    SHIFTED_LIMIT,
    times_read,
    users_behind,
)

# All of this is decided before there are stages that the cost model (costs.py) could be asked
# about: it decides which stages there are.  The cases are those of the bench that show a number
# (`python scripts/thresholds.py`).

# Operations per element above which a value with several users is stored rather than computed
# again.  Low, because users in the same nest get the value handed over without a load
# (encoder_block and most others).
RECOMPUTE_LIMIT = 2
# Operations per element above which even a value with one user gets a buffer: larger expressions
# run out of registers and take long to compile (black_scholes, normal).
EXPRESSION_LIMIT = 160
# What is looked up one by one is stored if it is read in parts that are so many times as large in
# all: differences of neighbours took 0.6 to 0.75 of the time so, of 16,000 and of 2,000,000
# (slogdet_4x4); and if products of many matrices read each so often, as in finite elements: 0.25 of
# the time with 8 x 8 and 16 x 16, 4 times it with 6 x 6, and 1.3 times with one matrix for all.
FOUND_AGAIN, FOUND_BY_PRODUCT = 1.5, 8
# Rows and columns that a tile of registers has at least, and operations for an element of a right
# factor that take as long as to store it and read it again: quantised weights, 2048 square, took
# 0.1 to 0.6 of the time where up to 16 rows met them (scaled_weights, encoder_captured).  The rates
# of passes over memory say 3 in place of 8 for 512 KiB on AVX2: 1.3 times the time.
TILE_ROWS, TILE_COLUMNS, TILE_COST = 8, 32, 8
# So many elements have to lie side by side in rows that are looked up (gradients_of_updates), and
# in those that scatters add across what they are transposed of.
PIECE = 16
# Parts of joined arrays that are read through one another: each part reads its own elsewhere, so
# that a few dozen rotations in a row would be written out for thousands of places (mass_matrix).
PARTS_LIMIT = 32
# And that may be shorter than vectors, so that each element looks for its own: 66 rolls of 16 x 32
# f32 along both axes took 0.27 s to compile in stages of up to 8 parts, and 1.0 of up to 16
# (scrambled).
FEW_PARTS = 4

# What leaves the dimensions of an array in their order.
_KEEPING_ORDER = ("stablehlo.pad", "stablehlo.reverse", "stablehlo.convert")


@dataclass(slots=True)
class Storing:
    """What is known of the values of a graph that are computed where they are read.

    `wanted` and `prologue` are those of the stages; `in_turn`: what is scattered one by one is
    written by one thread after the other; `counted`: what follows from its place and from single
    elements.
    """

    wanted: frozenset[Value]
    prologue: int
    in_turn: bool
    counted: frozenset[Value]
    positions: Mapping[Node, int]
    costs: dict[Value, int] = field(default_factory=dict)  # operations for an element
    depths: dict[Value, int] = field(default_factory=dict)  # nodes that are read through each other
    parts: dict[Value, int] = field(default_factory=dict)  # of joined arrays
    looked_up: set[Value] = field(default_factory=set)  # where the data says, whenever it is read

    @classmethod
    def of(cls, graph: Graph, wanted: frozenset[Value], prologue: int, in_turn: bool) -> Storing:
        """The initial state, with nothing known yet."""
        positions = {node: n for n, node in enumerate(graph.nodes)}
        return cls(wanted, prologue, in_turn, _counted(graph), positions)

    def in_parts(self, node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """Whether each part of a joined array is to be stored at its place."""
        return (
            has_many_parts(node)
            or has_costly_parts(node, self.costs, uses)
            or (
                (
                    node.results[0] in self.wanted
                    or is_searched_where_data_say(node, self.parts, uses)
                )
                and is_searched_in_short_rows(node, self.parts)
            )
        )

    def as_whole(
        self, node: Node, value: Value, terms: int, uses: Mapping[Value, tuple[Node, ...]]
    ) -> bool:
        """Whether `value`, one result of a pointwise node, gets a buffer; else what is to be known
        of it is remembered. `terms`: so many elements of its operands each element takes."""
        each = node.operands[:1] if _reads_rows(node) else node.operands
        cost = terms * sum(self.costs.get(v, 0) for v in each)
        cost += operation_cost(node) if terms == 1 else terms
        depth = 1 + max((self.depths.get(v, 0) for v in node.operands), default=0)
        inside = [self.parts.get(v, 1) for v in node.operands]
        joins = node.op == "stablehlo.concatenate"
        parts = sum(inside) if joins else max(inside, default=1)
        too_many = joins and max(inside) > 1 and parts > _most_parts(value)
        if depth > DEPTH_LIMIT or too_many or self._is_worth_storing(node, value, cost, uses):
            return True
        if self._looks_up(node):
            self.looked_up.add(value)
        self.costs[value], self.depths[value], self.parts[value] = cost, depth, parts
        return False

    def _is_worth_storing(
        self, node: Node, value: Value, cost: int, uses: Mapping[Value, tuple[Node, ...]]
    ) -> bool:
        if value in self.wanted:
            return True
        users = uses.get(value, ())
        if not users:
            return False
        if cost > EXPRESSION_LIMIT:
            return True
        if len(users) > 1 and cost > RECOMPUTE_LIMIT and not self._is_shifted(value, cost, uses):
            return True
        if self._is_scattered_singly(node, value, cost, uses):
            return True
        if node.op == "stablehlo.concatenate":
            return is_put_together(node, self.parts, uses)
        if node.op == "stablehlo.transpose":
            return _is_scattered_across(node, uses) or self._is_picked_from(value, uses)
        if _is_convolved_with_gaps(node, uses):
            return True
        if self._looks_up(node) and (self._is_spread(value, uses) or _is_found_again(node, uses)):
            return True
        if cost == 0 or moves(node):
            return False  # what was costly in it has been stored before it was moved
        return self._is_reread(value, cost, uses) or _is_put_in_order(value, cost, uses)

    def _is_shifted(self, value: Value, cost: int, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """Whether a large array is only read in shifted parts, or goes, point by point, into one
        that is, and computing it for each of these takes less time than memory does: limited_flux
        takes a third of the time so."""
        if value.type.bytes < FAR_BYTES:
            return False
        waiting = set(uses[value])
        for _ in range(DEPTH_LIMIT):
            first = min(waiting, key=self.positions.__getitem__)
            if first.op not in ELEMENTWISE or first.results[0] in self.wanted:
                break
            waiting.remove(first)
            waiting.update(uses.get(first.results[0], ()))
        return (
            cost * len(waiting) <= SHIFTED_LIMIT
            and all(map(_is_shift, waiting))
            and len({part.operands[0] for part in waiting}) == 1
        )

    def _is_picked_from(self, value: Value, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """True where windows are searched for an element, which goes in vectors only if those of
        neighbouring windows lie side by side: pooling of 112 x 112 x 64 whose last axes are
        swapped takes 0.7 of the time so."""
        return any(
            user.op == "stablehlo.select_and_scatter"
            for user, _ in users_behind(value, uses, lambda user: user.op == "stablehlo.pad")
        )

    def _is_scattered_singly(
        self, node: Node, value: Value, cost: int, uses: Mapping[Value, tuple[Node, ...]]
    ) -> bool:
        """True where elements are scattered one by one, to where the data say, and computed in less
        time as vectors: sums of exp by receiver took 0.5 to 0.65 of the time so, of 10,000 and of
        200,000, and two sums of the same differences 0.67 to 0.8 (edge_sums). To look up takes as
        long as an operation: best senders took 0.78 of the time (shortest_paths), sums of products
        and choices 0.8 to 1.02, of 16,000 and of 300,000."""
        looks_up = self._looks_up(node)
        is_costly = cost + looks_up > RECOMPUTE_LIMIT or (looks_up and len(uses[value]) > 1)
        if not self.in_turn or value.type.size == 1 or not is_costly:
            return False
        return any(
            user.op == "stablehlo.scatter"
            and len(user.operands) == 3
            and read is user.operands[2]
            and user.operands[1] not in self.counted
            and _row_of_windows(user) == 1
            for user, read in users_behind(value, uses, moves)
        )

    def _looks_up(self, node: Node) -> bool:
        return node.op == "stablehlo.gather" or not self.looked_up.isdisjoint(node.operands)

    def _is_spread(self, value: Value, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """True where, looking through data movement, vectors of it are read many times: a lookup
        takes many times as long as to load what it found (found_pairs: a quarter of the time)."""

        def is_along(user: Node, read: Value) -> bool:
            shape, wide = read.type.shape, user.results[0].type
            return (
                wide.size >= REUSED * read.type.size
                and shape
                and shape[-1] > 1
                and user.attributes["broadcast_dimensions"][-1] == len(wide.shape) - 1
            )

        return any(
            user.op == "stablehlo.broadcast_in_dim" and is_along(user, read)
            for user, read in users_behind(value, uses, moves)
        )

    def _is_reread(self, value: Value, cost: int, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """True where some user, looking through data movement, reads elements several times."""
        for user, read in users_behind(value, uses, moves):
            is_factor = user.op == "stablehlo.dot_general" and (
                cost <= self.prologue or _is_read_by_tiles(user, read, cost)
            )
            if not is_factor and _rereads(user, read, cost):
                return True
        return False


def _is_put_in_order(value: Value, cost: int, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where it pays to store keys before they are compared.  Several rows one behind the other
    that are no whole vectors, as those of a beam are, would have each element look for its own: 4
    times 5 x 1000 took 0.55 of the time, 16 times 8 x 5001 0.3.  The first few of a row are looked
    for twice: Gumbel noise was 0.38 of it, up to four operations 1.05 to 1.3, where rows are
    joined 0.6 to 0.7."""
    if not value.type.shape:
        return False
    row = value.type.shape[-1]

    def pays(user: Node, read: Value) -> bool:
        if user.op not in ("stablehlo.sort", "chlo.top_k"):
            return False
        is_joined = read.type.shape[-1] != row
        is_split = is_joined and row % PIECE != 0
        if user.op == "stablehlo.sort":
            return is_split and user.attributes["dimension"] == len(read.type.shape) - 1
        return is_split or cost > (RECOMPUTE_LIMIT if is_joined else TILE_COST)

    return any(
        pays(user, read)
        for user, read in users_behind(value, uses, lambda user: user.op == "stablehlo.reshape")
    )


def _counted(graph: Graph) -> frozenset[Value]:
    """What follows from its place and from single elements alone, as the places of strided updates
    do: kernels walk along such."""
    if not any(node.op == "stablehlo.scatter" for node in graph.nodes):
        return frozenset()
    counted: set[Value] = set()
    for node in graph.nodes:
        known = (v in counted or (v.type is not None and v.type.shape == ()) for v in node.operands)
        if node.op == "stablehlo.iota" or (
            node.operands and (moves(node) or node.op in ELEMENTWISE) and all(known)
        ):
            counted.update(node.results)
    return frozenset(counted)


def _most_parts(joined: Value) -> int:
    """The largest number of parts of joined arrays that are read through one another."""
    return max(FEW_PARTS, min(PARTS_LIMIT, joined.type.shape[-1] // SHORTEST_PART))


def _is_shift(node: Node) -> bool:
    return node.op == "stablehlo.slice" and set(node.attributes["strides"]) <= {1}


def _is_convolved_with_gaps(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where windows slide along rows of which only a part is read, with gaps in between, so
    often that it takes longer to load it in pieces than to store it side by side."""
    if node.op != "stablehlo.slice" or max(node.attributes["strides"][-1:], default=1) == 1:
        return False
    last = len(node.results[0].type.shape) - 1

    def slides(convolution: Node, read: Value) -> bool:
        side = "input" if read is convolution.operands[0] else "kernel"
        return (
            last in convolution.attributes[f"{side}_spatial_dimensions"]
            and times_read(convolution, read) >= REUSED
        )

    return any(
        user.op == "stablehlo.convolution" and slides(user, read)
        for user, read in users_behind(
            node.results[0], uses, lambda user: user.op in _KEEPING_ORDER
        )
    )


def _is_scattered_across(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where rows are scattered no two elements of which lie side by side in what they are
    transposed of: 2,000 rows of 512 f32 took 0.75 of the time so, of 128 x 4 1.2 to 2.5."""
    result, order = node.results[0], node.attributes["permutation"]
    shape = result.type.shape
    in_place = next((n for n, d in enumerate(reversed(order)) if d != len(order) - 1 - n), None)
    if in_place is None or math.prod(shape[len(shape) - in_place :]) > 1:
        return False
    return any(
        user.op == "stablehlo.scatter"
        and len(user.operands) == 3
        and result is user.operands[2]
        and _row_of_windows(user) >= PIECE
        for user in uses.get(result, ())
    )


def _row_of_windows(scatter: Node) -> int:
    """How many neighbours in memory each update of a scatter falls on at least."""
    windows, row = Windows.of_scatter(scatter), 1
    for size, extent in zip(reversed(windows.sizes), reversed(windows.shape), strict=True):
        row *= size
        if size != extent:
            break
    return row


def _is_found_again(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where elements that are looked up one by one are read at several places, or go into
    products of many matrices that read them several times."""
    found = node.results[0]
    if node.op != "stablehlo.gather" or len(found.type.shape) - 1 in node.attributes["offset_dims"]:
        return False
    if any(
        user.op == "stablehlo.dot_general"
        and user.attributes["lhs_batching_dimensions"]
        and int(times_read(user, read)) >= FOUND_BY_PRODUCT
        for user, read in users_behind(found, uses, moves)
    ):
        return True
    parts = {
        user if user.op == "stablehlo.slice" else None: user.results[0].type.size
        for user, _ in users_behind(found, uses, lambda user: user.op == "stablehlo.reshape")
        if user.op != "stablehlo.reshape"
    }
    if None in parts:
        parts[None] = found.type.size
    return sum(parts.values()) >= FOUND_AGAIN * found.type.size


def _is_read_by_tiles(product: Node, factor: Value, cost: int) -> bool:
    """Whether a product reads a factor no more than once, or a right one so few times, by tiles of
    its results, that computing it for each of them takes less time than memory does."""
    times = int(times_read(product, factor))  # which is a whole number, of products
    if times <= 1:
        return True
    summed, batch = (
        set(product.attributes[f"rhs_{kind}_dimensions"]) for kind in ("contracting", "batching")
    )
    columns = [n for d, n in enumerate(factor.type.shape) if d not in summed | batch]
    if factor is not product.operands[1] or math.prod(columns) < TILE_COLUMNS:
        return False
    is_along = len(factor.type.shape) - 1 in summed
    tiles = math.ceil(times / TILE_ROWS)
    return tiles == 1 or (not is_along and cost * (tiles - 1) <= TILE_COST)


def _reads_rows(node: Node) -> bool:
    """Whether what is looked up at each place is read along rows, in front of which the place is
    computed: 30,000 rows of 32 took 0.92 of the time without a pass that stores where they are."""
    if node.op != "stablehlo.gather":
        return False
    rank = len(node.results[0].type.shape)
    sizes = node.attributes["slice_sizes"]
    return rank - 1 in node.attributes["offset_dims"] and sizes[-1] >= PIECE


def _rereads(user: Node, value: Value, cost: int) -> bool:
    """True where `user` reads elements of `value` several times, which makes them worth storing."""
    name = user.op.partition(".")[2]
    if name == "broadcast_in_dim":
        return cost > RECOMPUTE_LIMIT and user.results[0].type.size > value.type.size
    if name == "scatter":
        return value is user.operands[len(user.operands) // 2]  # the indices; all else is read once
    if value in user.operands[1:] and cost <= TILE_COST and _reads_rows(user):
        return False
    if user.regions and name not in ("reduce", "sort"):  # control flow, windows
        return name != "reduce_window" or scanned_axis(user) is None
    return name in ("dot_general", "convolution", "gather")
