"""Which values get a buffer, and which are computed where they are read.

A pointwise value is written into the expressions of its users unless it is wanted outside, or
computing it again would cost more than storing it once.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.ops.indexing import Windows
from hlo_mlc.ops.reduction import scanned_axis
from hlo_mlc.ops.registry import ELEMENTWISE, moves, operation_cost
from hlo_mlc.partition.lower.uses import DEPTH_LIMIT, times_read, users_behind

# All of this is decided before there are stages that the cost model (costs.py) could be asked
# about: it decides which stages there are.  The cases are those of the bench that show a number
# (`python scripts/thresholds.py`).

# Operations per element above which a value with several users is stored rather than computed
# again.  Low, because users in the same nest get the value handed over without a load
# (encoder_block and most others).
RECOMPUTE_LIMIT = 2
# An array of so many bytes goes to memory and back: where it is only read in shifted parts, as
# stencils are, it is computed for each of them as long as that takes no more operations in all.
# What parts have in common is computed once (black_scholes, attention_long).
FAR_BYTES, SHIFTED_LIMIT = 4 << 20, 64
# What it takes to find out in which of two parts of a joined array an element is, and how many
# such operations for an element an array in the caches is stored for: 25 and 49 shifted parts of
# images with mirrored edges took 0.4 and 0.6 of the time so, and 9 of a small one 1.2 (neurons).
FINDING, FOUND_LIMIT = 6, 40
# The same where the data say which elements are read: no loop has those of one part alone, and none
# goes in vectors. Parts of 16 images with mirrored edges took 20 us so, and 120; frames of a signal
# 5.6 and 9.7; of arrays in two parts, rolled by some number, 1.8 times as long (random_crops).
FOUND_ONE_BY_ONE = 20
# Operations per element above which even a value with one user gets a buffer: larger expressions
# run out of registers and take long to compile (black_scholes, normal).
EXPRESSION_LIMIT = 160
# What is looked up one by one is stored if it is read in parts that are so many times as large in
# all: differences of neighbours took 0.6 to 0.75 of the time so, of 16,000 and of 2,000,000
# (slogdet_4x4); and if products of many matrices read each so often, as in finite elements: 0.25 of
# the time with 8 x 8 and 16 x 16, 4 times it with 6 x 6, and 1.3 times with one matrix for all.
FOUND_AGAIN, FOUND_BY_PRODUCT = 1.5, 8
# Joined arrays are put together before they go into a product that reads each element so many
# times, or if they have at most so many bytes: choosing the part each time costs more than a copy
# (looked_up_rows, joined_features).
REUSED, JOINED_LIMIT = 4, 256 * 1024
# Rows and columns that a tile of registers has at least, and operations for an element of a right
# factor that take as long as to store it and read it again: quantised weights, 2048 square, took
# 0.1 to 0.6 of the time where up to 16 rows met them (scaled_weights, encoder_captured).
TILE_ROWS, TILE_COLUMNS, TILE_COST = 8, 32, 8
# Joined arrays of at least this many parts get a buffer that is filled part by part, if the parts
# lie one behind the other, and finding the part of each element costs more: 50 parts of 1,000 took
# 330 us so, and 10 one by one (jacobi2d, rotations_unrolled).
MANY_PARTS = 4
# So do those whose parts are computed, if computing all of them for each element takes so many
# operations more, for an element and for a part in all: a nest takes 50 ns to begin, and each row
# of a part that is shorter than vectors of f32 may be some 10 (lstm_gradient, mirrored_edges).
WASTED, WASTED_FOR_PART, WASTED_FOR_ROW, SHORTEST_PART = 4, 2_000, 1_000, 16
# Rows that are scattered are stored first where fewer neighbours than that lie side by side in what
# they are computed of: gradients of a resized image took 0.6 of the time so (depthwise_signals).
PIECE = 16
# Parts of joined arrays that are read through one another: each part reads its own elsewhere, so
# that a few dozen rotations in a row would be written out for thousands of places (mass_matrix).
PARTS_LIMIT = 32

# What leaves the dimensions of an array in their order.
_KEEPING_ORDER = ("stablehlo.pad", "stablehlo.reverse", "stablehlo.convert")


@dataclass(slots=True)
class Storing:
    """What is known of the values of a graph that are computed where they are read.

    `wanted` and `prologue` are those of the stages.
    """

    wanted: frozenset[Value]
    prologue: int
    positions: Mapping[Node, int]
    costs: dict[Value, int] = field(default_factory=dict)  # operations for an element
    depths: dict[Value, int] = field(default_factory=dict)  # nodes that are read through each other
    parts: dict[Value, int] = field(default_factory=dict)  # of joined arrays
    looked_up: set[Value] = field(default_factory=set)  # where the data says, whenever it is read

    @classmethod
    def of(cls, graph: Graph, wanted: frozenset[Value], prologue: int) -> Storing:
        """Before anything is known."""
        return cls(wanted, prologue, {node: n for n, node in enumerate(graph.nodes)})

    def in_parts(self, node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """Whether each part of a joined array is to be stored at its place."""
        return (
            _has_many_parts(node)
            or self._has_costly_parts(node, uses)
            or (
                (node.results[0] in self.wanted or self._is_searched_where_data_say(node, uses))
                and self._is_searched_in_short_rows(node)
            )
        )

    def as_whole(
        self, node: Node, value: Value, terms: int, uses: Mapping[Value, tuple[Node, ...]]
    ) -> bool:
        """Whether `value`, one result of a pointwise node, gets a buffer; else what is to be known
        of it is remembered. `terms`: so many elements of its operands each element takes."""
        cost = terms * sum(self.costs.get(v, 0) for v in node.operands)
        cost += operation_cost(node) if terms == 1 else terms
        depth = 1 + max((self.depths.get(v, 0) for v in node.operands), default=0)
        inside = [self.parts.get(v, 1) for v in node.operands]
        joins = node.op == "stablehlo.concatenate"
        parts = sum(inside) if joins else max(inside, default=1)
        too_many = joins and parts > PARTS_LIMIT and max(inside) > 1
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
        if _is_scattered_in_pieces(node, uses):
            return True
        if node.op == "stablehlo.concatenate":
            return (
                self._is_multiplied(value, uses)
                or _is_cut_across(node, uses)
                or _is_searched_in_windows(node, uses)
                or self._is_searched_where_data_say(node, uses)
            )
        if node.op == "stablehlo.transpose":
            return self._is_picked_from(value, uses)
        if _is_convolved_with_gaps(node, uses):
            return True
        if self._looks_up(node) and (self._is_spread(value, uses) or _is_found_again(node, uses)):
            return True
        if cost == 0 or moves(node):
            return False  # what was costly in it has been stored before it was moved
        return self._is_reread(value, cost, uses)

    def _is_shifted(self, value: Value, cost: int, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """Whether a large array is only read in shifted parts, or goes, point by point, into one
        that is, and computing it for each of these takes less time than memory does."""
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

    def _has_costly_parts(self, node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """Parts of a joined array that one loop would compute for each element, to pick one."""
        if node.op != "stablehlo.concatenate" or _becomes_short_rows(node, uses):
            return False
        whole = node.results[0].type
        costs = [(self.costs.get(part, 0), part.type.size) for part in node.operands]
        wasted = sum(cost * (whole.size - size) for cost, size in costs)
        return wasted >= max(WASTED * whole.size, _cost_of_parts(node))

    def _is_multiplied(self, value: Value, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """True where a product, looking through data movement, reads each element several times,
        or little is to be copied."""

        def unjoined(user: Node) -> bool:
            return moves(user) and user.op != "stablehlo.concatenate"

        # What is joined again is for the next one to decide.
        return any(
            user.op == "stablehlo.convolution"
            or (
                user.op == "stablehlo.dot_general"
                and (read.type.bytes <= JOINED_LIMIT or times_read(user, read) >= REUSED)
            )
            for user, read in users_behind(value, uses, unjoined)
        )

    def _is_searched_where_data_say(
        self, node: Node, uses: Mapping[Value, tuple[Node, ...]]
    ) -> bool:
        """True where elements of many parts are read at places that the data say: no loop has those
        of one part alone, so that each looks for its own among all, one by one."""
        if node.op != "stablehlo.concatenate":
            return False
        whole = node.results[0]
        found = sum(
            user.results[0].type.size
            for user in uses.get(whole, ())
            if user.op in ("stablehlo.dynamic_slice", "stablehlo.gather")
            and whole is user.operands[0]
        )
        parts = sum(self.parts.get(part, 1) for part in node.operands)
        return found * parts * FINDING >= FOUND_ONE_BY_ONE * whole.type.size

    def _is_searched_in_short_rows(self, node: Node) -> bool:
        """True where a few elements that lie side by side have the same part, which is found for
        them alone, and that takes longer than to begin each part, and each of its rows."""
        if node.op != "stablehlo.concatenate":
            return False
        whole, dimension = node.results[0].type, node.attributes["dimension"]
        if math.prod(whole.shape[dimension + 1 :]) >= SHORTEST_PART:
            return False
        inside = [self.parts.get(part, 1) for part in node.operands]
        return FINDING * (sum(inside) - max(inside)) * whole.size >= _cost_of_parts(node)

    def _is_picked_from(self, value: Value, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """True where windows are searched for an element, which goes in vectors only if those of
        neighbouring windows lie side by side: 40 ms became 13 for 8 x 112 x 112 x 64."""
        return any(
            user.op == "stablehlo.select_and_scatter"
            for user, _ in users_behind(value, uses, lambda user: user.op == "stablehlo.pad")
        )

    def _looks_up(self, node: Node) -> bool:
        return node.op == "stablehlo.gather" or not self.looked_up.isdisjoint(node.operands)

    def _is_spread(self, value: Value, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
        """True where, looking through data movement, vectors of it are read many times: a lookup
        takes many times as long as to load what it found."""

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


def _is_scattered_in_pieces(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where rows are scattered of which only short pieces lie side by side in what they are
    computed of."""
    result = node.results[0]
    shape = result.type.shape
    if node.op == "stablehlo.transpose":
        order = node.attributes["permutation"]
    elif node.op == "stablehlo.dot_general":
        rank = len(node.operands[1].type.shape)
        batch = node.attributes["rhs_batching_dimensions"]
        order = (*batch, *(d for d in range(rank) if d not in batch))
    else:
        return False
    in_place = next((n for n, d in enumerate(reversed(order)) if d != len(order) - 1 - n), None)
    if in_place is None or math.prod(shape[len(shape) - in_place :]) >= PIECE:
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


def _is_cut_across(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where shifted parts of a joined array, each of several of its own, are so many that to
    find each element's part takes longer than to store it."""
    whole, dimension = node.results[0], node.attributes["dimension"]
    ends = list(itertools.accumulate(part.type.shape[dimension] for part in node.operands))
    tests = 0
    for user in uses.get(whole, ()):
        if user.op != "stablehlo.slice":
            continue
        first = user.attributes["start_indices"][dimension]
        limit = user.attributes["limit_indices"][dimension]
        crossed = bisect.bisect_left(ends, limit) - bisect.bisect_right(ends, first)
        tests += crossed * user.results[0].type.size
    most = SHIFTED_LIMIT if whole.type.bytes >= FAR_BYTES else FOUND_LIMIT
    return tests * FINDING >= most * whole.type.size


def _is_searched_in_windows(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where windows look for the part of each of their elements, which takes longer than to
    store what is joined; those of scans are read once."""
    windows = [
        math.prod(user.attributes["window_dimensions"])
        for user, _ in users_behind(node.results[0], uses, moves)
        if user.op == "stablehlo.reduce_window" and scanned_axis(user) is None
    ]
    return max(windows, default=0) * len(node.operands) * FINDING >= FOUND_LIMIT


def _becomes_short_rows(node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """True where all that read a joined array have an element of each part side by side, in rows so
    short that each element is written out: cross products of points."""
    whole, dimension = node.results[0], node.attributes["dimension"]
    users = uses.get(whole, ())
    return (
        whole.type.shape[dimension] <= SHORTEST_PART
        and bool(users)
        and all(
            user.op == "stablehlo.transpose" and user.attributes["permutation"][-1] == dimension
            for user in users
        )
        and dimension < len(whole.type.shape) - 1
    )


def _cost_of_finding(node: Node) -> int:
    """What it takes to find the part of each element that is joined."""
    return FINDING * (len(node.operands) - 1) * node.results[0].type.size


def _cost_of_parts(node: Node) -> int:
    """What it takes to begin each part that is joined, and each short row of one."""
    whole, dimension = node.results[0].type, node.attributes["dimension"]
    lengths = [math.prod(part.type.shape[dimension:]) for part in node.operands]
    short = math.prod(whole.shape[:dimension]) * sum(n < SHORTEST_PART for n in lengths)
    return WASTED_FOR_PART * len(lengths) + WASTED_FOR_ROW * short


def _has_many_parts(node: Node) -> bool:
    """Of an array of so many parts, one behind the other, finding each element's part takes longer
    than to begin each part."""
    if node.op != "stablehlo.concatenate" or len(node.operands) < MANY_PARTS:
        return False
    in_a_row = math.prod(node.results[0].type.shape[: node.attributes["dimension"]]) == 1
    return in_a_row and _cost_of_finding(node) >= _cost_of_parts(node)


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


def _rereads(user: Node, value: Value, cost: int) -> bool:
    """True where `user` reads elements of `value` several times, which makes them worth storing."""
    name = user.op.partition(".")[2]
    if name == "broadcast_in_dim":
        return cost > RECOMPUTE_LIMIT and user.results[0].type.size > value.type.size
    if name == "scatter":
        return value is user.operands[len(user.operands) // 2]  # the indices; all else is read once
    if user.regions and name not in ("reduce", "sort"):  # control flow, windows
        return name != "reduce_window" or scanned_axis(user) is None
    return name in ("dot_general", "convolution", "gather")
