"""What XLA needs for operations that stages have no trace of, or that it hands to a library, by the
nodes of the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.graph.core import Node
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.indexing import Windows
from hlo_mlc.ops.library_calls import DIALECT
from hlo_mlc.ops.registry import moves
from hlo_mlc.partition.choose.surroundings import SHARES, SMALL_LOOP_BYTES
from hlo_mlc.partition.choose.xla_figures import thread_figure
from hlo_mlc.partition.lower.uses import written_out
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates

# Rows of so many elements that are joined out of parts are a loop of their own there, and so are
# the parts; shorter ones, arrays of one axis, and what is joined along others is computed where it
# is read.  Found in the HLO that JAX 0.10.2 compiles for rows of 4 to 1024 elements.
_JOINED_ROW = 128


def written_out_us(nodes: Sequence[Node], rates: Rates) -> float:
    """What XLA needs for the reductions and products among them that stages have no trace of."""
    short = written_out(nodes)
    return sum(_few_terms_ns(node, rates) for node in nodes if node in short) / 1e3


def joined_us(nodes: Sequence[Node], rates: Rates) -> float:
    """What XLA needs to write the rows among them that are joined out of parts, as those that are
    rolled, and of which something is computed then."""
    uses = uses_among(nodes)
    joined = (node.results[0] for node in nodes if _joins_rows(node))
    read = (value for value in joined if not all(map(moves, uses.get(value, ()))))
    return sum(value.type.size for value in read) * thread_figure("joined_ns", rates) / 1e3


def _joins_rows(node: Node) -> bool:
    if node.op != "stablehlo.concatenate":
        return False
    shape = node.results[0].type.shape
    last = len(shape) - 1
    return last > 0 and node.attributes["dimension"] == last and shape[last] >= _JOINED_ROW


def scattered_us(nodes: Sequence[Node], rates: Rates) -> float:
    """What XLA needs for the scatters among them of windows whose elements do not lie side by side:
    one after the other, each in a line of its own, before and after our passes make reads of them.
    """
    return sum(map(_far_updates, nodes)) * thread_figure("scatter_apart_ns", rates) / 1e3


def _far_updates(node: Node) -> int:
    if node.op != "stablehlo.scatter" or len(node.operands) != 3:
        return 0
    sizes = Windows.of_scatter(node).sizes
    is_apart = max(sizes, default=1) > 1 and sizes[-1] == 1
    return node.operands[2].type.size if is_apart else 0


def folds_repeated(reduce: Node, spread: Node) -> bool:
    """Whether a reduction of what is repeated by `spread`, as far as that is a broadcast, is one
    over some of the dimensions along which it is and some of the others: XLA folds once what is
    repeated along all of them."""
    if spread.op != "stablehlo.broadcast_in_dim":
        return False
    shape = spread.operands[0].type.shape
    places = zip(spread.attributes["broadcast_dimensions"], shape, strict=True)
    own = {d for d, extent in places if extent > 1}
    over = set(reduce.attributes["dimensions"])
    return bool(over & own and over - own)


def copying_us(copied_bytes: int, target: CpuTarget) -> float:
    """What one thread of a loop needs to copy so much."""
    us = target.rates.pass_us(2 * copied_bytes)
    return us * min(target.cores, SHARES) if copied_bytes < SMALL_LOOP_BYTES else us


def libraries_us(nodes: Sequence[Node], rates: Rates) -> float:
    """What LAPACK needs for the small matrices that XLA hands to it one by one."""
    calls = (node for node in nodes if node.op.startswith(f"{DIALECT}."))
    return sum(
        math.prod(call.operands[0].type.shape[:-2]) * _library_ns(call, rates) / 1e3
        for call in calls
    )


def _library_ns(call: Node, rates: Rates) -> float:
    """The same for one of them: column by column, each by a few calls of BLAS; eigenvectors are
    rotated by each other."""
    columns = call.operands[0].type.shape[-1]
    if call.op == "lapack.syevd":
        return columns**2 * thread_figure("eigenvector_pair_ns", rates)
    return columns * (
        thread_figure("cholesky_column_ns", rates)
        if call.op == "lapack.potrf"
        else thread_figure("triangular_column_ns", rates)
        if call.op == "lapack.trsm"
        else thread_figure("lu_column_ns", rates)
        if call.op == "lapack.getrf"
        else thread_figure("qr_column_ns", rates)
    )


def _few_terms_ns(node: Node, rates: Rates) -> float:
    taken = node.operands[0].type
    if node.op == "stablehlo.dot_general":
        summed = node.attributes["lhs_contracting_dimensions"]
        terms = math.prod(taken.shape[d] for d in summed)
        return thread_figure("few_products_ns", rates) * node.results[0].type.size * terms
    axes, rank = node.attributes["dimensions"], len(taken.shape)
    each = (
        thread_figure("few_columns_ns", rates)
        if rank - 1 in axes
        else thread_figure("few_rows_ns", rates)
        if 0 in axes
        else thread_figure("few_between_ns", rates)
    )
    return each * taken.size
