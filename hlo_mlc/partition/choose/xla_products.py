"""What XLA needs for products of matrices and for convolutions: a library's time, mostly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr, loads
from hlo_mlc.expr.dtypes import BF16, F64, I8, I32
from hlo_mlc.partition.choose.surroundings import Surroundings
from hlo_mlc.partition.choose.xla_figures import figure, thread_figure
from hlo_mlc.target.rates import Rates
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.classify import Contraction, contraction, cost, stride
from hlo_mlc.tensor.core import Stage

_MEDIUM, _LARGE = 1 << 23, 1 << 26  # multiply-adds: two and four times 2^7 square, cubed
# Large products of no more rows or columns are like medium ones: 128 x 768 x 3072 took XLA 1.10 to
# 1.15 times as long as us, 1024 cubed 1.01 to 1.05.
_FEW_ROWS = 256
_FEW = 3  # vectors of a matrix that XLA multiplies by itself


def product_us(
    stage: Stage, work: float, memory: float, rates: Rates, around: Surroundings
) -> float:
    roles = contraction(stage)
    batch, rows, columns = (
        math.prod(v.extent for v in axes) for axes in (roles.batch, roles.rows, roles.columns)
    )
    size = points(stage) // max(batch, 1)
    is_large = size > _LARGE and min(rows, columns) > _FEW_ROWS
    ratio = (
        rates.xla_large_product
        if is_large
        else rates.xla_medium_product
        if size > _MEDIUM
        else rates.xla_small_product
    )
    if size > _LARGE and any(b.dtype is BF16 for b in stage.inputs):
        ratio = rates.xla_narrow_product
    if stage.terms[0].dtype.is_integer:
        of_bytes = stage.terms[0].dtype is I32 and all(
            load.dtype is I8 for load in loads(stage.terms[0])
        )
        ratio = figure("product_of_bytes") if of_bytes else figure("product_of_integers")
    elif _is_across(roles) and stage.terms[0].dtype is F64:
        ratio *= figure("product_across_wide")
    us = max(work * ratio, memory * ratio)
    depth = size // max(rows * columns, 1)
    if _is_naive(rows, depth, columns) and (batch > 1 or max(rows, columns) <= _FEW):
        return max(us, points(stage) * thread_figure("naive_product_ns", rates) / 1e3)
    called = 0.0 if around.in_function else batch * thread_figure("each_product_us", rates)
    if around.by_library and not around.in_function:
        us = max(us, batch * _rows_us(stage, rows, depth, rates)) + factors_us(
            stage, (roles.lhs, roles.rhs), rates
        )
    return max(us, called)


def _is_naive(rows: int, depth: int, columns: int) -> bool:
    """Whether XLA has loops of its own for the product of two matrices, none of which is more than
    a few vectors.  Source: GetDotImplementationStrategy in xla/service/cpu/dot_op_emitter.cc."""
    return min(rows, depth) <= _FEW and min(depth, columns) <= _FEW


def factors_us(stage: Stage, factors: Sequence[Expr], rates: Rates) -> float:
    """What it takes to write what the factors of a product are computed as, and to read it."""
    axes = (*stage.axes, *stage.reduce_axes)  # and not loops around it
    return sum(
        rates.pass_us(2 * one.dtype.bytes * math.prod(v.extent for v in axes if v in one.free))
        for one in factors
        if cost(one)
    )


def _rows_us(stage: Stage, rows: int, depth: int, rates: Rates) -> float:
    """What its library needs at least for a left factor, however few columns the other has: it goes
    through this row by row of memory, and packs rows that are no multiple of four long."""
    count, length = (depth, rows) if _is_across(contraction(stage)) else (rows, depth)
    each = (
        thread_figure("packed_row_ns", rates)
        if length % 4
        else thread_figure("product_row_ns", rates)
    )
    return count * each / 1e3


def _is_across(roles: Contraction) -> bool:
    """Whether the left factor lies in memory row by row of what is summed."""
    return any(stride(load, roles.summed[-1]) not in (0, 1) for load in loads(roles.lhs))


def convolution_us(stage: Stage, work: float, memory: float, rates: Rates) -> float:
    """Of many channels, as a matrix product; else term by term."""
    read = {load for term in stage.terms for load in loads(term)}
    grouped = any(
        isinstance(atom, Apply) and atom.op == "floordiv" and atom.args[0] in stage.axes
        for load in read
        for i in load.indices
        for atom in index.affine(i)[0]
    )
    if contraction(stage) is not None or grouped:
        return max(work, memory) * figure("convolution")
    of_one = any(load.free.isdisjoint(stage.axes) for load in read)
    each = (
        thread_figure("single_channel_ns", rates)
        if of_one
        else thread_figure("depthwise_ns", rates)
    )
    return max(points(stage) * each / 1e3, memory)
