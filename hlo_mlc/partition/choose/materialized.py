"""What XLA has in memory between its loops, and what it takes at least to write and to read that.

It computes a value anew in each loop that uses it, if that costs no more than to read it: where
elements are only moved, or computed of one array by simple operations.  Others are written once,
and so is what goes into an operation that has code of its own, or comes out of it.  Kernels of ours
may have none of this in memory.

Source: InstructionFusion::ComputeGloballyUnfusible in xla/service/instruction_fusion.cc,
CpuInstructionFusion in xla/service/cpu, and LibraryRewriter in xla/backends/cpu/transforms.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.registry import ELEMENTWISE, MOVEMENT, UPDATES, operation_cost
from hlo_mlc.partition.calls import HOLDING
from hlo_mlc.target.rates import Rates

# Buffers that are larger than malloc ever keeps for the next one come as fresh pages, which the
# kernel fills with zeros first: 0.16 to 0.7 us each (embedding_gradient, pixelwise/float64).
# Source: DEFAULT_MMAP_THRESHOLD_MAX, malloc/malloc.c in glibc.
_LARGEST_KEPT_BYTES, _PAGE_BYTES, _PAGE_US = 32 << 20, 4096, 0.35

_RESHAPE, _TRANSPOSE = "stablehlo.reshape", "stablehlo.transpose"
_BROADCAST = "stablehlo.broadcast_in_dim"
_REDUCE, _PRODUCT = "stablehlo.reduce", "stablehlo.dot_general"
_KNOWN = frozenset(("stablehlo.constant", "stablehlo.iota"))
_IN_LOOPS = ELEMENTWISE | MOVEMENT  # which loops for others compute as well
_SIMPLE = 2  # operations for an element, up to which it is computed again
# Its library folds so many elements or more, and computes them, as long as that takes one or two of
# others each, which are floats.  Source: ynn_support.cc in xla/backends/cpu.
LIBRARY_ELEMENTS = 4096


def fresh_us(size: float) -> float:
    """What one waits for the pages of a buffer that is too large for malloc to keep."""
    return _PAGE_US * size / _PAGE_BYTES if size > _LARGEST_KEPT_BYTES else 0.0


def least_us(
    nodes: Sequence[Node],
    results: Collection[Value],
    rates: Rates,
    known_us: float = 0.0,
    *,
    repeated: bool = False,
) -> float:
    """What XLA needs at least to read what operations use and to write what they leave in memory,
    `results` among it; any less where that is less than what is known by other means.  What is
    `repeated` has its memory from the first time on."""
    every = (value for node in nodes for value in (*node.operands, *node.results))
    most = sum(value.type.bytes for value in every if value.type is not None)
    if rates.pass_us(most) + fresh_us(most) < known_us:  # as if all of it were in memory
        return 0.0
    results = frozenset(results)
    makers = {value: node for node in nodes for value in node.results}
    written = in_memory(nodes, results)
    between = _held_bytes(nodes, results, written)
    whole = between + sum(v.type.bytes for v in {*_taken(nodes, makers), *results} if v.type)
    moved = (
        _read_bytes(node, makers, written) + _written_bytes(node)
        for node in nodes
        if node in written and node.op not in HOLDING
    )
    passes = sum(rates.pass_us(size, whole) for size in moved)
    return passes * min(1.0, rates.xla_pass(whole)) + (0.0 if repeated else fresh_us(between))


def _taken(nodes: Sequence[Node], makers: Mapping[Value, Node]) -> set[Value]:
    """What comes from elsewhere."""
    return {value for node in nodes for value in node.used if value not in makers}


def in_memory(nodes: Sequence[Node], results: Collection[Value]) -> Mapping[Node, int]:
    """The operations whose results XLA has in memory, each with the place of the last one that
    reads them."""
    uses = uses_among(nodes)
    places = {node: place for place, node in enumerate(nodes)}
    written: set[Node] = set()
    needed = set(results)
    last: dict[Node, int] = {}
    loops_of: dict[Node, Sequence[Node]] = {}  # that compute it, or read it; two stand for more
    for node in reversed(nodes):
        users = [user for value in node.results for user in uses.get(value, ())]
        found = (one for u in users for one in ((u,) if u in written else loops_of[u]))
        loops = tuple(dict.fromkeys(found))
        last[node] = max((places[loop] for loop in loops), default=len(nodes))
        loops_of[node] = loops[:2]
        is_needed = not all(_computes(user, node) for user in users)
        is_needed |= not users or any(value in needed for value in node.results)
        if node.op == _RESHAPE:  # another look at what it is of
            needed.update(node.operands if is_needed else ())
        elif node.op not in _KNOWN and (
            node.op not in _IN_LOOPS
            or is_needed
            or (any(map(_folds_by_library, loops)) and not _is_for_library(node))
            or (len(loops) > 1 and not _is_computed_again(node, users))
        ):
            written.add(node)
    return {node: last[node] for node in written}


def _computes(user: Node, node: Node) -> bool:
    """Whether the loop for a user computes, or reads in another order, what it uses."""
    return (
        user.op in _IN_LOOPS or user.op == _REDUCE or (user.op, node.op) == (_PRODUCT, _TRANSPOSE)
    )


def _folds_by_library(loop: Node) -> bool:
    if loop.op != _REDUCE or len(loop.results) > 1:
        return False
    folded = loop.operands[0].type
    return folded.dtype.is_float and folded.size >= LIBRARY_ELEMENTS


def _is_for_library(node: Node) -> bool:
    """Whether the library that folds its elements computes them as well."""
    values = (*node.operands, *node.results)
    return node.op == _BROADCAST or (
        node.op in ELEMENTWISE
        and len(node.operands) <= 2
        and all(value.type is not None and value.type.dtype.is_float for value in values)
    )


def _is_computed_again(node: Node, users: Sequence[Node]) -> bool:
    """Whether each of several loops computes it."""
    result, *others = node.results
    if others or result.type is None or any(user.op == _REDUCE for user in users):
        return False
    arrays = [v for v in dict.fromkeys(node.operands) if v.type and v.type.size >= result.type.size]
    return len(arrays) <= 1 and operation_cost(node) <= _SIMPLE


def _read_bytes(loop: Node, makers: Mapping[Value, Node], written: Container[Node]) -> int:
    """Of what is in memory, where the loop for an operation computes what is not."""
    found: dict[Value, int] = {}
    own = loop.results[0].type if loop.op in _IN_LOOPS else None
    waiting = [(v, own.size if own else v.type.size) for v in loop.operands if v.type]
    if loop.op in UPDATES:
        waiting = waiting[1:]  # changed where it is
    seen = set(waiting)
    while waiting:
        value, size = waiting.pop()
        size = min(size, value.type.size)
        maker = makers.get(value)
        if maker is None or maker in written:
            found[value] = max(found.get(value, 0), size * value.type.dtype.bytes)
        elif maker.op not in _KNOWN:
            more = {(operand, size) for operand in maker.operands if operand.type} - seen
            seen |= more
            waiting += more
    return sum(found.values())


def _written_bytes(loop: Node) -> int:
    if loop.op in UPDATES:  # as much as is the largest that it writes, or the places that are told
        return max(value.type.bytes for value in loop.operands[1:] if value.type)
    return sum(value.type.bytes for value in loop.results if value.type)


def _held_bytes(
    nodes: Sequence[Node], results: frozenset[Value], written: Mapping[Node, int]
) -> int:
    """The most that there is in memory at once between the first operation and the results."""
    change = [0] * (len(nodes) + 2)
    for place, node in enumerate(nodes):
        if written.get(node, len(nodes)) < len(nodes) and results.isdisjoint(node.results):
            size = sum(value.type.bytes for value in node.results if value.type)
            change[place] += size
            change[written[node] + 1] -= size
    held = most = 0
    for by in change:
        held += by
        most = max(most, held)
    return most
