"""What XLA needs for operations that stages have no trace of, or that it hands to a library, by the
nodes of the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.expr.dtypes import F64
from hlo_mlc.graph.core import Node
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.contraction import Convolution
from hlo_mlc.ops.library_calls import DIALECT
from hlo_mlc.ops.registry import moves
from hlo_mlc.partition.choose.surroundings import SHARES, SMALL_LOOP_BYTES
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.lower.uses import written_out
from hlo_mlc.target.cpu import CpuTarget

# Rows of so many elements that are joined out of parts are a loop of their own there, and so are
# the parts; shorter ones, arrays of one axis, and what is joined along others is computed where it
# is read.  Found in the HLO that JAX 0.10.2 compiles for rows of 4 to 1024 elements.
_JOINED_ROW = 128


def written_out_us(nodes: Sequence[Node]) -> float:
    """What XLA needs for the reductions and products among them that stages have no trace of."""
    short = written_out(nodes)
    return sum(map(_few_terms_ns, (node for node in nodes if node in short))) / 1e3


def convolutions_us(nodes: Sequence[Node], is_entry: bool) -> float:
    """What XLA needs for convolutions of groups and of single channels among them, of which stages
    may have no trace either: their constant factors become part of expressions.  `is_entry`: they
    stand in no loop and no branch."""
    convolutions = (node for node in nodes if node.op == "stablehlo.convolution")
    return sum(_convolution_ns(node, is_entry) for node in convolutions) / 1e3


def _convolution_ns(node: Node, is_entry: bool) -> float:
    """The same of one of them, 0 if it is a product of matrices there.  A batch in groups has each
    of them convolved with all there, which takes long where no library does it; nor does it where
    channels are not the last axis, which only those of the entry are laid out for.  Source:
    ConvCanonicalization in xla/service/cpu/conv_canonicalization.cc."""
    kernel, a = node.operands[1].type.shape, node.attributes
    wide = node.results[0].type.dtype is F64
    terms = math.prod(kernel) // kernel[a["kernel_output_feature_dimension"]]
    terms *= node.results[0].type.size
    convolution = Convolution.of(node)
    if not (is_entry or _is_channels_last(convolution)):
        holes = math.prod(w.input_dilation for w in convolution.windows)
        return terms / holes * figure("channels_first_ns")
    batches = a.get("batch_group_count", 1)
    features = [kernel[a[f"kernel_{side}_feature_dimension"]] for side in ("input", "output")]
    is_volume = len(kernel) - len(features) > 2 and not wide
    if a.get("feature_group_count", 1) > 1 or (is_volume and min(features) == 1):
        return terms * figure("depthwise_ns")
    if batches > 1 and wide:
        return terms * batches * figure("convolution_wide_ns")
    return terms * figure("single_channel_ns") if max(features) == 1 else 0.0


def _is_channels_last(c: Convolution) -> bool:
    spatial = range(len(c.windows))
    last = (0, len(spatial) + 1, *(d + 1 for d in spatial))
    kernel = (len(spatial) + 1, len(spatial), *spatial)
    return (c.input_axes, c.kernel_axes, c.output_axes) == (last, kernel, last)


def joined_us(nodes: Sequence[Node]) -> float:
    """What XLA needs to write the rows among them that are joined out of parts, as those that are
    rolled, and of which something is computed then."""
    uses = uses_among(nodes)
    joined = (node.results[0] for node in nodes if _joins_rows(node))
    read = (value for value in joined if not all(map(moves, uses.get(value, ()))))
    return sum(value.type.size for value in read) * figure("joined_ns") / 1e3


def _joins_rows(node: Node) -> bool:
    if node.op != "stablehlo.concatenate":
        return False
    shape = node.results[0].type.shape
    last = len(shape) - 1
    return last > 0 and node.attributes["dimension"] == last and shape[last] >= _JOINED_ROW


def copying_us(copied_bytes: int, target: CpuTarget) -> float:
    """What one thread of a loop needs to copy so much."""
    us = target.rates.pass_us(2 * copied_bytes)
    return us * min(target.cores, SHARES) if copied_bytes < SMALL_LOOP_BYTES else us


def libraries_us(nodes: Sequence[Node]) -> float:
    """What LAPACK needs for the small matrices that XLA hands to it one by one."""
    calls = (node for node in nodes if node.op.startswith(f"{DIALECT}."))
    return sum(
        math.prod(call.operands[0].type.shape[:-2]) * _library_ns(call) / 1e3 for call in calls
    )


def _library_ns(call: Node) -> float:
    """The same for one of them: column by column, each by a few calls of BLAS; eigenvectors are
    rotated by each other."""
    columns = call.operands[0].type.shape[-1]
    if call.op == "lapack.syevd":
        return columns**2 * figure("eigenvector_pair_ns")
    return columns * (
        figure("cholesky_column_ns")
        if call.op == "lapack.potrf"
        else figure("triangular_column_ns")
        if call.op == "lapack.trsm"
        else figure("lu_column_ns")
        if call.op == "lapack.getrf"
        else figure("qr_column_ns")
    )


def _few_terms_ns(node: Node) -> float:
    taken = node.operands[0].type
    if node.op == "stablehlo.dot_general":
        summed = node.attributes["lhs_contracting_dimensions"]
        terms = math.prod(taken.shape[d] for d in summed)
        return figure("few_products_ns") * node.results[0].type.size * terms
    axes, rank = node.attributes["dimensions"], len(taken.shape)
    each = (
        figure("few_columns_ns")
        if rank - 1 in axes
        else figure("few_rows_ns")
        if 0 in axes
        else figure("few_between_ns")
    )
    return each * taken.size
