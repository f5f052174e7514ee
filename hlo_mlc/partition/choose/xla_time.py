"""What XLA needs for a stage: what its code for it does, where that is another thing than ours.

It computes some of it one by one, on one thread, or by a library, and pays for every loop that it
runs on several threads; else its time is a ratio to ours, by kind of stage.  The figures come from
paired runs (bench/results; single operations at sizes from 1k to 4M elements); those that differ
most between machines are measured on each (target/rates.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr, loads, walk
from hlo_mlc.expr.dtypes import BF16, F32, F64, I8, I32, INDEX
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.graph.core import Node
from hlo_mlc.partition.lower.uses import written_out
from hlo_mlc.partition.work import Work, multiplies, rotates, window
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.classify import (
    contraction,
    cost,
    cost_of_node,
    divides_integers,
    is_injective,
    is_map,
    is_part,
    is_plain,
    is_written_out,
    slides,
    stride,
    walks_columns,
)
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import is_several
from hlo_mlc.tensor.core import Stage

# What each thread of an elementwise loop gets at least: bytes, where the loop does no more
# operations than that, else operations, a byte counting as ten.  Functions count as none.  Source:
# xla/service/cpu/parallel_task_assignment.cc; with JAX 0.12, loops of 32 KB to 4 MB had the threads
# that this says.
_SHARE_BYTES = 256 << 10
_SHARE_OPERATIONS = 100_000
_BYTE_OPERATIONS = 10
# Other stages have several from about so many operations on: 64 KB ran on one, 96 to 256 on two.
_PARALLEL_OPERATIONS = 1_000_000
# What it takes to begin and end on several threads that are awake: chains of 16 to 32 such loops
# took 3 to 5 us each more than they computed on Zen 5, single ones 6 to 10.
FORK_US = 4.0
# In loops it stays on one thread below this: 128 KB a trip took 0.6 us, what one computes.
_SMALL_LOOP_BYTES = 1 << 20

# One thread gets at least so large a share of what all get from memory: a few are enough for it.
_SHARES = 4

# Nanoseconds of one thread for a rotation of an integer, of which random numbers are made: a
# million took XLA 2.5 to 7 times as long as us; a million random numbers, of 10 rotations each, 2.6
# to 4.8 ms on two threads.
_ROTATION_NS = 0.25

# XLA's time / ours, where nobody measures it on the machine itself.
# Integers divided one by one, by bytes: 16k to 1M took 3 to 8, 3.5 to 17, 2.4 to 4, and 2.4 to 4.5.
_INTEGER_DIVISION = {1: 6.0, 2: 7.0, 4: 2.5, 8: 2.5}
_MOVE = 1.0
_ACROSS = 1.5  # transposes: 1.3 for those in a cache, 2 to 4 for 12 to 32 MB
_FAR = 8  # elements between what neighbours read, so that it counts as one
# Of single elements and rows of 256 1.0 to 1.2, of 64 and 251 2 to 3.9, of 256 in bf16 2.4 to 2.9.
_LOOKED_UP = 1.2
_SHORT_ROW = 32  # elements: rows of 16 that are added to one took 0.4 ns each, 0.1 in one piece
# Multiply-adds per microsecond of one thread in sums of products that were written as such, for
# which no library is called (convolutions in loops of NPBench: 20 per nanosecond on two).
_SCALAR_PRODUCTS = 10_000
# Reductions of few terms, which we write out: nanoseconds of XLA per element on all threads, over
# leading axes (2.6 to 7.7, of 2 to 4 rows of 300,000), last ones (0.36 to 3.9) and others (0.12 to
# 1.0); sums, sums of what is computed, maxima.
_FEW_ROWS_NS, _FEW_COLUMNS_NS, _FEW_BETWEEN_NS = 2.5, 0.4, 0.12
_FOLD = 2.0  # what a reduction computes, where that and not memory takes the time
# Scatters: both sides go element by element, or add vectors, one row after the other.  Sums, maxima
# and counts of 1,000 to 200,000 elements took XLA 0.76 to 1.3 times as long as us where they were
# many, rows of 8 to 64 elements 1.0 to 4.0; what few take is starting them.
_SCATTER, _SCATTER_ROWS = 0.9, 1.5
_SERIAL = 0.95
_MEDIUM, _LARGE = 1 << 23, 1 << 26  # multiply-adds: two and four times 2^7 square, cubed
# Large products of no more rows or columns are like medium ones: 128 x 768 x 3072 took XLA 1.10 to
# 1.15 times as long as us, 1024 cubed 1.01 to 1.05.
_FEW_ROWS = 256
# Products of many small matrices: 12 of 128 x 64 x 128 took 1.7 times as long as one by one, and
# one of 512 of 8 x 8 x 8 a tenth of a microsecond.
_BATCHED, _EACH_PRODUCT_US = 1.7, 0.1
# Products of i8 that are summed in i32 have instructions of their own there: 64 x 512 x 256 and 256
# cubed, either side transposed or not, took XLA 0.19 to 0.33 times as long as us, a batch of 64
# cubed 0.7.  All others of integers go one by one: 2.4 to 10.
_PRODUCT_OF_BYTES, _PRODUCT_OF_INTEGERS = 0.3, 2.4
# Reductions with several results (argmax) run scalar and on one thread there: nanoseconds per
# element, which are more where each is widened first.
_SEVERAL_NS, _SEVERAL_NARROW_NS = 2.2, 3.9
# Convolutions: the multiple of our time with many channels (1.15 to 3.5, ResNet's layers and their
# gradients); nanoseconds per term, on one thread, of depthwise and single-channel ones (2.5 to 9).
_CONVOLUTION, _DEPTHWISE_NS = 1.5, 2.5
# Windows: nanoseconds of XLA per element of the window, where they overlap (pooling of 3 x 3, in
# both layouts: 0.5 to 0.75) and where they lie side by side, and then at most per result.
_OVERLAP_NS, _WINDOW_NS, _LONGEST_WINDOW_NS = 0.5, 0.15, 2.2
# Small matrices: nanoseconds of LAPACK for each call, and for each simple operation of ours.  On
# Zen 5, 10,000 Cholesky and triangular factors, LUs and QRs of 2 to 8 square took 72 to 1,500 each.
_MATRIX_NS, _MATRIX_OPERATION_NS = 60, 0.7
# Scans: nanoseconds of XLA per result and operation of the combiner.  It took 1.5 to 15 for sums
# and maxima of any layout (the least with JAX 0.12), 480 for cumulative logsumexp; two to five
# times as long where each is widened.
_SCAN_NS, _SCAN_NARROW_NS = 3.0, 8.0
# Sorts: nanoseconds of XLA per element and doubling of the row, on one thread: of integers alone
# (1.8 to 5.8), of floats, and of several operands (7 with JAX 0.12, 10 to 45 before).  The first
# few of f32 have code of their own: per element (1.4 to 1.8), and per result and doubling (10 to
# 20).
_SORT_INTEGERS_NS, _SORT_NS, _SORT_MORE_NS = 2.0, 10.0, 2.0
_FIRST_NS, _FIRST_RESULT_NS = 1.5, 12.0


@dataclass(frozen=True, slots=True)
class OurTime:
    """What our kernel does for a stage, and what computing it takes.

    `scalar_us` is what its operations and accesses would take one after the other.
    """

    work: Work
    is_serial: bool  # nothing is vectorized
    alone_us: float  # on one thread
    threads: int
    scalar_us: float

    @property
    def computing_us(self) -> float:
        """On all threads."""
        return self.alone_us / self.threads


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where XLA computes a stage: in the body of a loop of its own or of ours, and, if there is a
    sum of products among its operations, by a library that is made for them; `in_pieces`: each
    operation of the loop has a call of its own."""

    in_loop: bool = False
    by_library: bool = True
    in_pieces: bool = False


def xla_threads(stage: Stage, target: CpuTarget) -> int:
    """How many threads XLA has for a stage that is in no loop."""
    work = Work.of(stage)
    if not is_map(stage):
        operations = work.operations + 2 * work.products
        several = operations + _BYTE_OPERATIONS * work.moved_bytes >= _PARALLEL_OPERATIONS
        return target.cores if several else 1
    operations = points(stage) * sum(map(_counted, walk(*stage.expressions)))
    if operations <= work.moved_bytes:
        shares, most = work.moved_bytes // _SHARE_BYTES, math.ceil(math.sqrt(target.cores))
    else:
        shares = (operations + _BYTE_OPERATIONS * work.moved_bytes) // _SHARE_OPERATIONS
        most = target.cores
    return max(1, min(shares, most))


def _counted(node: Expr) -> int:
    """How many operations XLA takes a part of an expression for."""
    if not isinstance(node, Apply) or node.dtype is INDEX \
            or OPS[node.op].accuracy is Accuracy.APPROXIMATE or node.op == "sqrt":
        return 0
    return 2 if node.op == "fma" else 1


def _threads(stage: Stage, target: CpuTarget, around: Surroundings) -> int:
    if around.in_loop and Work.of(stage).moved_bytes < _SMALL_LOOP_BYTES:
        return 1
    return xla_threads(stage, target)


def xla_us(stage: Stage, ours: OurTime, target: CpuTarget, around: Surroundings
           ) -> tuple[str, float]:
    """The kind of a stage, and what XLA needs for it."""
    rates = target.rates
    memory = rates.pass_us(ours.work.moved_bytes, ours.work.held_bytes)
    if is_written_out(stage, 3):  # two may be the parts of a complex number
        each = _MATRIX_NS + _MATRIX_OPERATION_NS * cost(*stage.expressions)
        return "small matrices", max(points(stage) * each / 1e3, memory)
    if stage.scan is not None:
        narrow = any(b.dtype.is_narrow_float for b in stage.inputs)
        each = (_SCAN_NARROW_NS if narrow else _SCAN_NS) * max(1, cost(*stage.combiner.results))
        return "scan", max(points(stage) * each / 1e3, memory)
    if stage.sort is not None:
        return "sort", max(_sort_us(stage), memory)
    if is_map(stage) and not all(is_injective(a, stage.axes) for a in stage.assigns):
        work = ours.alone_us
        return "scatter", work * _SCATTER if ours.is_serial else max(work, memory) * _SCATTER_ROWS
    if ours.is_serial:
        return "serial", ours.alone_us * _SERIAL
    if stage.combiner is not None and len(stage.accumulators) > 1 \
            and not is_several(stage.combiner):
        narrow = any(b.dtype.is_narrow_float for b in stage.inputs)
        each = _SEVERAL_NARROW_NS if narrow else _SEVERAL_NS
        return "reduction with several results", max(points(stage) * each / 1e3, memory)
    threads = _threads(stage, target, around)
    if around.in_loop:
        memory *= min(target.cores / threads, _SHARES)
    kind, us = _loop_us(stage, ours, memory, threads, rates, around)
    return kind, us + (FORK_US if threads > 1 else 0)


def _loop_us(stage: Stage, ours: OurTime, memory: float, threads: int, rates: Rates,
             around: Surroundings) -> tuple[str, float]:
    """The same of what it computes in loops over all points, on so many threads."""
    work = ours.alone_us / threads
    if multiplies(stage) and slides(stage) and around.by_library:
        return "convolution", _convolution_us(stage, work, memory)
    if contraction(stage) is not None:
        us = _product_us(stage, work, memory, rates)
        if not around.by_library:
            us = max(us, points(stage) / _SCALAR_PRODUCTS / threads)
        return "product", us
    if is_map(stage):
        return _map_us(stage, ours, work, memory, threads, rates)
    if terms := window(stage):
        results = math.prod(v.extent for v in stage.axes)
        each = terms * _OVERLAP_NS if slides(stage) else min(
            terms * _WINDOW_NS, _LONGEST_WINDOW_NS)
        return "window", max(results * each / 1e3, memory)
    memory *= max(1, len(stage.accumulators))  # a pass each
    if multiplies(stage):  # by a vector: on one thread there
        return "reduction", max(ours.alone_us, memory * rates.xla_reduction)
    us = max(work * _computing_ratio(stage, rates) * _FOLD, memory * rates.xla_reduction)
    if _is_scalar(stage):
        us = max(us, ours.scalar_us / threads)
    return "reduction", us + _calls_us(stage) / threads


def _sort_us(stage: Stage) -> float:
    n, kept = stage.reduce_axes[0].extent, stage.sort.place.extent
    doublings = max(1.0, math.log2(max(1, n)))
    moved = stage.accumulators
    key = stage.sort.keys[0]
    is_top_k = stage.sort.at is stage.sort.place and len(moved) == 2 \
        and isinstance(key, Apply) and key.op == "not"  # XLA finds it in sorts, too
    if kept < n and moved[0].dtype is F32 and is_top_k:
        return points(stage) * (_FIRST_NS + _FIRST_RESULT_NS * kept / n * doublings) / 1e3
    alone = len(moved) == 1 and not moved[0].dtype.is_float
    each = _SORT_INTEGERS_NS if alone else _SORT_NS + _SORT_MORE_NS * (len(moved) - 1)
    return points(stage) * each * doublings / 1e3


def written_out_us(nodes: Sequence[Node]) -> float:
    """What XLA needs for the reductions among them that stages have no trace of."""
    short = written_out(nodes)
    return sum(_few_terms_ns(node) * node.operands[0].type.size
               for node in nodes if node in short) / 1e3


def convolutions_us(nodes: Sequence[Node]) -> float:
    """What XLA needs for convolutions with a channel for each group among them, of which stages
    may have no trace either: their constant factors become part of expressions."""
    total = 0.0
    for node in nodes:
        if node.op == "stablehlo.convolution":
            kernel, a = node.operands[1].type.shape, node.attributes
            groups = a.get("feature_group_count", 1)
            if kernel[a["kernel_input_feature_dimension"]] == 1 \
                    and kernel[a["kernel_output_feature_dimension"]] == groups:
                terms = math.prod(kernel) // kernel[a["kernel_output_feature_dimension"]]
                total += node.results[0].type.size * terms * _DEPTHWISE_NS / 1e3
    return total


def _few_terms_ns(node: Node) -> float:
    axes, rank = node.attributes["dimensions"], len(node.operands[0].type.shape)
    return _FEW_COLUMNS_NS if rank - 1 in axes else _FEW_ROWS_NS if 0 in axes else _FEW_BETWEEN_NS


def _product_us(stage: Stage, work: float, memory: float, rates: Rates) -> float:
    roles = contraction(stage)
    batch, rows, columns = (math.prod(v.extent for v in axes)
                            for axes in (roles.batch, roles.rows, roles.columns))
    size = points(stage) // max(batch, 1)
    is_large = size > _LARGE and min(rows, columns) > _FEW_ROWS
    ratio = rates.xla_large_product if is_large else rates.xla_medium_product \
        if size > _MEDIUM else rates.xla_small_product
    if size > _LARGE and any(b.dtype is BF16 for b in stage.inputs):
        ratio = rates.xla_narrow_product
    if stage.terms[0].dtype.is_integer:
        of_bytes = stage.terms[0].dtype is I32 and all(
            load.dtype is I8 for load in loads(stage.terms[0]))
        ratio = _PRODUCT_OF_BYTES if of_bytes else _PRODUCT_OF_INTEGERS
    if batch > 1:
        ratio *= _BATCHED
    return max(work * ratio, memory * ratio, batch * _EACH_PRODUCT_US)


def _map_us(stage: Stage, ours: OurTime, work: float, memory: float, threads: int, rates: Rates
            ) -> tuple[str, float]:
    moves = not ours.work.operations
    ratio = _ACROSS if _walks_across(stage) else rates.xla_pass(ours.work.moved_bytes) \
        if not moves else _LOOKED_UP if _looks_up(stage) else _MOVE
    us = max(work * (ratio if moves else _computing_ratio(stage, rates)), memory * ratio)
    us += _calls_us(stage) / threads
    if _is_scalar(stage):
        us = max(us, ours.scalar_us / threads)
    if not all(is_plain(a, stage.axes) or is_part(a, stage.axes) for a in stage.assigns):
        us = max(us, ours.scalar_us)  # what overwrites a part of a value is computed by one thread
    return "move" if moves else "map", us


def _is_scalar(stage: Stage) -> bool:
    """XLA has no vectors for it: it looks places up, or its rows are short."""
    along = coalesce(stage)
    row = along.axes if is_map(stage) or walks_columns(stage) else along.reduce_axes
    return _looks_up(stage) or (bool(row) and row[-1].extent < _SHORT_ROW)


def _walks_across(stage: Stage) -> bool:
    """Some of what neighbours read lies far apart, or side by side along another axis."""
    read = {load for e in stage.expressions for load in loads(e)}
    if not stage.axes:
        return False
    last = stage.axes[-1]
    apart = {load: abs(stride(load, last) or 0) for load in read}
    return any(step >= _FAR or (step > 1 and any(stride(load, v) == 1 for v in stage.axes))
               for load, step in apart.items())


def _looks_up(stage: Stage) -> bool:
    """Where it reads is itself read, for each point anew."""
    places = {i for e in stage.expressions for load in loads(e) for i in load.indices}
    return any(not found.free.isdisjoint(stage.axes) for i in places for found in loads(i))


def _computing_ratio(stage: Stage, rates: Rates) -> float:
    """XLA's time / ours for what a stage computes."""
    each = cost(*stage.expressions)
    ours = theirs = 0  # for functions that XLA computes in another way
    division = division_there = 0.0
    for node in walk(*stage.expressions):
        if not isinstance(node, Apply):
            continue
        op = OPS[node.op]
        if node.dtype.is_float and called_ns(node):
            ours += cost_of_node(node)
        elif node.dtype.is_float and op.xla_extra:
            ours += op.cost
            theirs += op.cost + op.xla_extra
        elif divides_integers(node):
            division += cost_of_node(node)
            division_there += cost_of_node(node) * _INTEGER_DIVISION[node.dtype.bytes]
    if not each:
        return rates.xla_arithmetic
    exp = OPS["exp"]
    special = theirs * rates.xla_exp * exp.cost / (exp.cost + exp.xla_extra)
    plain = (each - ours - division) * rates.xla_arithmetic
    return (plain + special + division_there) / each


def called_ns(node: Apply) -> float:
    """Nanoseconds of one thread of XLA's for what it computes one by one; else 0."""
    if rotates(node):
        return _ROTATION_NS
    return OPS[node.op].xla_ns[node.dtype is F64] if node.dtype.is_float else 0.0


def _calls_us(stage: Stage) -> float:
    """What such operations take on one thread."""
    each = sum(called_ns(node) for node in walk(*stage.expressions) if isinstance(node, Apply))
    return points(stage) * each / 1e3


def _convolution_us(stage: Stage, work: float, memory: float) -> float:
    """Of many channels, as a matrix product; else term by term."""
    read = {load for term in stage.terms for load in loads(term)}
    grouped = any(isinstance(atom, Apply) and atom.op == "floordiv" and atom.args[0] in stage.axes
                  for load in read for i in load.indices for atom in index.affine(i)[0])
    if contraction(stage) is not None or grouped:
        return max(work, memory) * _CONVOLUTION
    return max(points(stage) * _DEPTHWISE_NS / 1e3, memory)
