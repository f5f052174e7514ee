"""What XLA needs for convolutions that no library does for it, by the nodes of the graph.

Its library has those of f32 and f16 whose channels are the last axis and whose windows are not
reversed; groups and single channels take that long, too.  Others are loops, each of whose elements
asks at every place of its window whether there is something.
Source: PotentiallyImplementedAsEigenConvolution in xla/service/cpu/ir_emission_utils.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.expr.dtypes import F64
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.contraction import Convolution, Window
from hlo_mlc.partition.choose.xla_figures import thread_figure
from hlo_mlc.target.rates import Rates


def convolutions_us(nodes: Sequence[Node], is_entry: bool, rates: Rates) -> float:
    """What XLA needs for such convolutions among them, of which stages may have no trace: their
    constant factors become part of expressions.  `is_entry`: they stand in no loop and no branch.
    """
    convolutions = (
        node for node in nodes if node.op == "stablehlo.convolution" and node.results[0].type.size
    )
    return sum(_convolution_ns(node, is_entry, rates) for node in convolutions) / 1e3


def _convolution_ns(node: Node, is_entry: bool, rates: Rates) -> float:
    """The same of one of them, 0 if it is a product of matrices there.  Groups of a batch and of
    features are all convolved with each other there where no library does it, zeros as well; nor
    does it where channels are not the last axis, which only those of the entry are laid out for.
    Source: ConvCanonicalization in xla/service/cpu/conv_canonicalization.cc, and
    xla/hlo/transforms/expanders/convolution_group_converter.cc."""
    kernel, a = node.operands[1].type.shape, node.attributes
    wide = node.results[0].type.dtype is F64
    terms = math.prod(kernel) // kernel[a["kernel_output_feature_dimension"]]
    terms *= node.results[0].type.size
    convolution = Convolution.of(node)
    if _is_swapped(convolution):
        return _swapped_ns(node, convolution, rates)
    if not (is_entry or _is_channels_last(convolution)):
        holes = math.prod(w.input_dilation for w in convolution.windows)
        return terms / holes * thread_figure("channels_first_ns", rates)
    batches, groups = a.get("batch_group_count", 1), a.get("feature_group_count", 1)
    features = [kernel[a[f"kernel_{side}_feature_dimension"]] for side in ("input", "output")]
    is_volume = len(kernel) - len(features) > 2 and not wide
    if groups > 1 and wide:
        return terms * groups * thread_figure("groups_wide_ns", rates)
    if groups > 1 or (is_volume and min(features) == 1):
        return terms * thread_figure("depthwise_ns", rates)
    if batches > 1 and wide:
        return terms * batches * thread_figure("convolution_wide_ns", rates)
    return terms * thread_figure("single_channel_ns", rates) if max(features) == 1 else 0.0


def _is_channels_last(c: Convolution) -> bool:
    spatial = range(len(c.windows))
    last = (0, len(spatial) + 1, *(d + 1 for d in spatial))
    kernel = (len(spatial) + 1, len(spatial), *spatial)
    return (c.input_axes, c.kernel_axes, c.output_axes) == (last, kernel, last)


def _is_swapped(c: Convolution) -> bool:
    """Whether XLA takes the input for the window, and what was the window for the input, because
    that has more places: then windows are reversed.

    Source: AlgebraicSimplifierVisitor::SwapConvOperands in
    xla/hlo/transforms/simplifiers/algebraic_simplifier.cc.
    """
    if c.feature_groups > 1 or c.batch_groups > 1:
        return False
    moved = [w for w in c.windows if not _is_contracted(w)]
    return math.prod(w.size for w in moved) > math.prod(map(_size_if_swapped, moved))


def _is_contracted(w: Window) -> bool:
    """Whether an axis has one place of the window, or one for each group."""
    if w.reversed or (w.before, w.after, w.kernel_dilation) != (0, 0, 1):
        return False
    is_group = (w.input_dilation, w.stride) == (w.size, w.size - 1)
    return is_group or (w.size == w.input_size and (w.input_dilation, w.stride) == (1, 1))


def _size_if_swapped(w: Window) -> int:
    is_spread = w.input_size == 1 and (w.stride, w.kernel_dilation) == (1, 1)
    return w.size if is_spread and w.before == w.after == w.size - 1 else w.input_size


def _swapped_ns(node: Node, c: Convolution, rates: Rates) -> float:
    """What such a convolution takes: its results look at each place of what was the input, where
    most have nothing."""
    results = node.results[0].type
    channels = node.operands[1].type.shape[c.kernel_axes[1]]
    asked = results.size * math.prod(w.input_size for w in c.windows)
    others = results.size // math.prod(results.shape[d] for d in c.output_axes[2:])
    met = math.prod(w.size * w.input_size / w.stride for w in c.windows)
    terms = min(others * met, asked) * channels
    return asked * thread_figure("window_place_ns", rates) + terms * thread_figure(
        "window_term_ns", rates
    )
