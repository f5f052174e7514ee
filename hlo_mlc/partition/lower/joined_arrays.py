"""Joined arrays: whether they are put together, as a whole or part by part, or the part of each
element is found where it is read."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops.reduction import scanned_axis
from hlo_mlc.ops.registry import moves
from hlo_mlc.partition.lower.uses import FAR_BYTES, REUSED, SHIFTED_LIMIT, times_read, users_behind

# Decided before there are stages that the cost model (costs.py) could be asked about; the cases are
# those of the bench that show a number (`python scripts/thresholds.py`).

# What it takes to find out in which of two parts of a joined array an element is, and how many
# such operations for an element an array in the caches is stored for: 25 and 49 shifted parts of
# images with mirrored edges took 0.4 and 0.6 of the time so, and 9 of a small one 1.2 (neurons).
FINDING, FOUND_LIMIT = 6, 40
# The same where the data say which elements are read: no loop has those of one part alone, and none
# goes in vectors. Parts of 16 images with mirrored edges took 20 us so, and 120; frames of a signal
# 5.6 and 9.7; of arrays in two parts, rolled by some number, 1.8 times as long (random_crops).
FOUND_ONE_BY_ONE = 20
# Joined arrays are put together before they go into a product that reads each element REUSED times,
# or if they have at most so many bytes: choosing the part each time costs more than a copy
# (joined_features).
JOINED_LIMIT = 256 * 1024
# Joined arrays of at least this many parts get a buffer that is filled part by part, if the parts
# lie one behind the other, and finding the part of each element costs more: 50 parts of 1,000 took
# 330 us so, and 10 one by one (jacobi2d, rotations_unrolled).
MANY_PARTS = 4
# So do those whose parts are computed, if computing all of them for each element takes so many
# operations more, for an element and for a part in all: a nest takes 50 ns to begin, and each row
# of a part that is shorter than vectors of f32 may be some 10 (lstm_gradient, mirrored_edges).
WASTED, WASTED_FOR_PART, WASTED_FOR_ROW, SHORTEST_PART = 4, 2_000, 1_000, 16
# The same for each row of parts in which a few elements lie side by side: no loop along a row goes
# through the parts one after the other. Images between columns of their own took 0.25 of the time
# with AVX2 (mirrored_columns).
WASTED_FOR_COLUMNS = 250


def is_put_together(
    node: Node, parts: Mapping[Value, int], uses: Mapping[Value, tuple[Node, ...]]
) -> bool:
    """Whether a joined array is stored because of what reads it; `parts`: how many there are in
    what it joins."""
    return (
        _is_multiplied(node.results[0], uses)
        or _is_cut_across(node, uses)
        or _is_searched_in_windows(node, uses)
        or is_searched_where_data_say(node, parts, uses)
    )


def has_costly_parts(
    node: Node, costs: Mapping[Value, int], uses: Mapping[Value, tuple[Node, ...]]
) -> bool:
    """Parts of a joined array that one loop would compute for each element, to pick one."""
    if node.op != "stablehlo.concatenate" or _becomes_short_rows(node, uses):
        return False
    whole = node.results[0].type
    each = [(costs.get(part, 0), part.type.size) for part in node.operands]
    wasted = sum(cost * (whole.size - size) for cost, size in each)
    return wasted >= max(WASTED * whole.size, _cost_of_parts(node))


def _is_multiplied(value: Value, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
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


def is_searched_where_data_say(
    node: Node, parts: Mapping[Value, int], uses: Mapping[Value, tuple[Node, ...]]
) -> bool:
    """True where elements of many parts are read at places that the data say: no loop has those of
    one part alone, so that each looks for its own among all, one by one."""
    if node.op != "stablehlo.concatenate":
        return False
    whole = node.results[0]
    found = sum(
        user.results[0].type.size
        for user in uses.get(whole, ())
        if user.op in ("stablehlo.dynamic_slice", "stablehlo.gather") and user.operands[0] is whole
    )
    searched = sum(parts.get(part, 1) for part in node.operands)
    return found * searched * FINDING >= FOUND_ONE_BY_ONE * whole.type.size


def is_searched_in_short_rows(node: Node, parts: Mapping[Value, int]) -> bool:
    """True where a few elements that lie side by side have the same part, which is found for them
    alone, and that takes longer than to begin each part, and each of its rows."""
    if node.op != "stablehlo.concatenate":
        return False
    whole, dimension = node.results[0].type, node.attributes["dimension"]
    if math.prod(whole.shape[dimension + 1 :]) >= SHORTEST_PART:
        return False
    inside = [parts.get(part, 1) for part in node.operands]
    return FINDING * (sum(inside) - max(inside)) * whole.size >= _cost_of_parts(node)


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
    in_columns = math.prod(whole.shape[dimension + 1 :]) > 1
    return WASTED_FOR_PART * len(lengths) + short * (
        WASTED_FOR_COLUMNS if in_columns else WASTED_FOR_ROW
    )


def has_many_parts(node: Node) -> bool:
    """Of an array of so many parts, one behind the other, finding each element's part takes longer
    than to begin each part."""
    if node.op != "stablehlo.concatenate" or len(node.operands) < MANY_PARTS:
        return False
    in_a_row = math.prod(node.results[0].type.shape[: node.attributes["dimension"]]) == 1
    return in_a_row and _cost_of_finding(node) >= _cost_of_parts(node)
