"""What XLA needs for a stage: what its code for it does, where that is another thing than ours.

It computes some of it one by one, on one thread, or by a library, and pays for every loop that it
runs on several threads; else its time is a ratio to ours, by kind of stage.  The figures are in
xla_figures.json; those that differ most between machines are measured on each (target/rates.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jaxlib

from hlo_mlc.expr.core import Apply, Expr, Load, Var, loads, walk
from hlo_mlc.expr.dtypes import F32, F64, INDEX
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.expr.procedure import Count, Procedure
from hlo_mlc.ops.registry import lookup
from hlo_mlc.partition.choose.materialized import LIBRARY_ELEMENTS
from hlo_mlc.partition.choose.surroundings import SHARES, SMALL_LOOP_BYTES, OurTime, Surroundings
from hlo_mlc.partition.choose.xla_faults import OLD_LIBRARY
from hlo_mlc.partition.choose.xla_figures import figure, thread_figure
from hlo_mlc.partition.choose.xla_functions import called_ns, computing_ratio, each_called_ns
from hlo_mlc.partition.choose.xla_products import convolution_us, factors_us, product_us
from hlo_mlc.partition.work import KEPT_BYTES, Work, multiplies, rotates, term_operations, window
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.classify import (
    contraction,
    cost,
    is_map,
    is_part,
    is_plain,
    is_written_out,
    slides,
    stride,
    walks_columns,
    writes_once,
)
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import is_several
from hlo_mlc.tensor.core import Assign, Stage

# What each thread of an elementwise loop gets at least: bytes, where the loop does no more
# operations than that, else operations, a byte counting as ten.  Functions count as none.  Source:
# xla/service/cpu/parallel_task_assignment.cc; with JAX 0.12, loops of 32 KB to 4 MB had the threads
# that this says.
_SHARE_BYTES = 256 << 10
_SHARE_OPERATIONS = 100_000
_BYTE_OPERATIONS = 10
# Other stages have several from about so many operations on: 64 KB ran on one, 96 to 256 on two.
_PARALLEL_OPERATIONS = 1_000_000

_FAR = 8  # elements between what neighbours read, so that it counts as one
_SHORT_ROW, _UNROLLED = 64, 8  # elements of rows that have no vectors, and that are written out
# Sums over rows of more bytes took it 20 to 400 times as long as of a few less, all of 16 KB to
# 512 KB and of f32, f64 and bf16; with later libraries no longer.
_LONGEST_ROW_BYTES = 64 << 10
_ROWS_KEPT = 64  # of which the lines of a column are still there for its neighbour
_WIDEST_WINDOW = 64  # elements of windows side by side; of more these are rows, however they lie


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
    if (
        not isinstance(node, Apply)
        or node.dtype is INDEX
        or OPS[node.op].accuracy is Accuracy.APPROXIMATE
        or node.op == "sqrt"
    ):
        return 0
    return 2 if node.op == "fma" else 1


def _is_polynomial(stage: Stage) -> bool:
    """Whether its results are sums of products, as those of Fourier transforms are: there is
    nothing to choose, to divide, or to take a root of."""
    return not any(
        isinstance(node, Apply) and node.op in ("div", "rsqrt", "select", "sqrt")
        for node in walk(*stage.expressions)
    )


def _threads(stage: Stage, target: CpuTarget, around: Surroundings) -> int:
    if around.in_loop and Work.of(stage).moved_bytes < SMALL_LOOP_BYTES:
        return 1
    return xla_threads(stage, target)


@dataclass(frozen=True, slots=True)
class XlaTime:
    """The kind of a stage, and what XLA needs for it; `forks`: several threads share it."""

    kind: str
    us: float
    forks: bool = False


def xla_time(stage: Stage, ours: OurTime, target: CpuTarget, around: Surroundings) -> XlaTime:
    """What XLA needs for a stage."""
    rates = target.rates
    memory = rates.pass_us(ours.work.walked_bytes, around.held(ours.work.moved))
    narrow = any(b.dtype.is_narrow_float for b in stage.inputs)
    if stage.procedure is not None or is_written_out(stage, 3):  # two may be a complex number's
        kind, us, forks = _matrices_us(stage, target, around)
        return XlaTime(kind, max(us, memory), forks)
    if stage.trips:
        us = points(stage) * thread_figure("recurrence_ns", rates) / 1e3
        return XlaTime("recurrence", us + _terms_us(stage, ours, target, around))
    if stage.scan is not None:
        each = thread_figure("scan_narrow_ns" if narrow else "scan_ns", rates)
        each *= max(1, cost(*stage.combiner.results))
        us = points(stage) * each / 1e3 + _terms_us(stage, ours, target, around)
        return XlaTime("scan", max(us, memory))
    if stage.sort is not None:
        us = _sort_us(stage, rates) + _terms_us(stage, ours, target, around)
        return XlaTime("sort", max(us, memory))
    if is_map(stage) and not writes_once(stage):
        work, memory = ours.alone_us, memory * min(target.cores, SHARES)  # by one thread
        if ours.is_serial:
            joined = points(stage) * _joined_places(stage)
            joined_us = joined * thread_figure("scatter_place_ns", rates) / 1e3
            return XlaTime("scatter", ours.scalar_us * figure("scatter") + joined_us)
        return XlaTime("scatter", max(work, memory) * figure("scatter_rows"))
    if ours.is_serial:
        return XlaTime("serial", ours.alone_us * figure("serial"))
    if len(stage.accumulators) > 1 and not is_several(stage.combiner):
        each = thread_figure("several_narrow_ns" if narrow else "several_ns", rates)
        us = points(stage) * each / 1e3 + _terms_us(stage, ours, target, around)
        return XlaTime("reduction with several results", max(us, memory))
    threads = _threads(stage, target, around)
    if around.in_loop:
        memory *= min(target.cores / threads, SHARES)
    kind, us = _loop_us(stage, ours, memory, threads, rates, around)
    return XlaTime(kind, us + (figure("fork_us") if threads > 1 else 0), threads > 1)


def _matrices_us(stage: Stage, target: CpuTarget, around: Surroundings) -> tuple[str, float, bool]:
    """The kind of what is done with each matrix, or row, of a batch, what computing it takes, and
    whether several threads share it."""
    rates, procedure, count = target.rates, stage.procedure, points(stage)
    if procedure is not None and procedure.is_side_by_side:
        # Rows of transforms are shared out among the threads, one is not.
        wide = any(b.dtype is F64 for b in procedure.arrays)
        each = thread_figure(
            "row_transform_wide_operation_ns" if wide else "row_transform_operation_ns", rates
        )
        each = thread_figure("transform_ns", rates) + procedure.total(cost) * each
        return "transforms", (count + count % 2) * each / 1e3, target.cores > 1 and count > 1
    if around.by_lapack:
        return "small matrices", 0.0, False  # besides what the library takes
    if procedure is not None:
        each = thread_figure("matrix_step_ns", rates) * procedure.total(cost)
        if _goes_round(procedure):
            each = thread_figure("eigenvector_ns", rates) * max(b.size for b in procedure.arrays)
        each += thread_figure("matrix_ns", rates)
        return "small matrices", count * each / 1e3, False
    is_transform, operations = _is_polynomial(stage), cost(*stage.expressions)
    each = thread_figure("transform_operation_ns" if is_transform else "matrix_operation_ns", rates)
    once = thread_figure("transform_ns" if is_transform else "matrix_ns", rates)
    us = math.prod(v.extent for v in stage.axes) * (once + each * operations) / 1e3
    return ("transforms", us, target.cores > 1) if is_transform else ("small matrices", us, False)


def _joined_places(stage: Stage) -> int:
    """The numbers of a place that XLA first writes side by side, where it takes several to say
    where an element of a scatter goes: those that are read, and what they are read along."""
    return max(map(_place_numbers, stage.assigns))


def _place_numbers(assign: Assign) -> int:
    looked_up = [i for i in assign.indices if loads(i)]
    along = {i for i in assign.indices if any(i in place.free for place in looked_up)}
    count = len(looked_up) + len(along)
    return count if count > 1 else 0


def _goes_round(procedure: Procedure) -> bool:
    """Whether it works on all of a matrix more often than that has rows, as rotations do: LAPACK
    first reduces such a matrix to three diagonals."""
    longest = max(max(array.shape, default=1) for array in procedure.arrays)
    return any(isinstance(move, Count) and move.var.extent > longest for move in procedure.body)


def _terms_us(stage: Stage, ours: OurTime, target: CpuTarget, around: Surroundings) -> float:
    """What it computes of the elements that it goes through one by one: positions of the largest of
    2000 x 8 random numbers took 100 us in a loop, of numbers in memory 35."""
    if not ours.work.operations:
        return 0.0
    share = min(1.0, term_operations(stage) / ours.work.operations)
    vectors = share * ours.alone_us * computing_ratio(stage, target.rates)
    called = points(stage) * each_called_ns(stage.terms, target.rates) / 1e3
    return (vectors + called) / _threads(stage, target, around)


def _loop_us(
    stage: Stage, ours: OurTime, memory: float, threads: int, rates: Rates, around: Surroundings
) -> tuple[str, float]:
    """The same of what it computes in loops over all points, on so many threads."""
    work = ours.alone_us / threads
    if multiplies(stage) and slides(stage) and around.by_library:
        return "convolution", convolution_us(stage, work, memory, rates)
    if contraction(stage) is not None:
        us = product_us(stage, work, memory, rates, around)
        if around.in_function or not around.by_library:
            us = max(us, points(stage) * rates.one_by_one / figure("scalar_products") / threads)
        return "product", us
    if is_map(stage):
        return _map_us(stage, ours, work, memory, threads, rates, around)
    terms = window(stage)
    if terms and (slides(stage) or terms <= _WIDEST_WINDOW):
        results = math.prod(v.extent for v in stage.axes)
        each = terms * thread_figure("overlap_ns" if slides(stage) else "window_ns", rates)
        if not slides(stage):
            each = min(each, thread_figure("longest_window_ns", rates))
        return "window", max(results * each / 1e3, memory)
    memory *= max(1, len(stage.accumulators))  # a pass each
    if multiplies(stage):  # by a vector: on one thread there
        factors = factors_us(stage, stage.terms[0].args, rates) if around.by_library else 0.0
        return "reduction", max(ours.alone_us, memory * rates.xla_reduction) + factors
    us = max(work * computing_ratio(stage, rates) * figure("fold"), memory * rates.xla_reduction)
    by_library = points(stage) >= LIBRARY_ELEMENTS and stage.terms[0].dtype.is_float
    if walks_columns(stage):
        us = max(us, memory * rates.xla_reduction * figure("fold_columns"))
        if by_library and _goes_column_by_column(stage):
            rows = math.prod(v.extent for v in stage.reduce_axes)
            lost = max(1.0, rows / _ROWS_KEPT)
            us = max(us, points(stage) * lost * thread_figure("column_ns", rates) / 1e3)
    elif not by_library and stage.terms[0].dtype.is_float:  # each waits for the one before
        us = max(us, points(stage) * thread_figure("fold_ns", rates) / 1e3)
    return "reduction", us + _one_by_one_us(stage, rates) / threads


def _goes_column_by_column(stage: Stage) -> bool:
    """Whether its library folds one column after the other, each of whose elements is in another
    line, because a row of the results is too long."""
    row = coalesce(stage).axes[-1].extent * stage.terms[0].dtype.bytes
    return jaxlib.__version__ in OLD_LIBRARY and row > _LONGEST_ROW_BYTES


def _sort_us(stage: Stage, rates: Rates) -> float:
    n, kept = stage.reduce_axes[0].extent, stage.sort.place.extent
    doublings = max(1.0, math.log2(max(1, n)))
    moved = stage.accumulators
    key = stage.sort.keys[0]
    is_top_k = (
        stage.sort.at is stage.sort.place
        and len(moved) == 2
        and isinstance(key, Apply)
        and key.op == "not"
    )  # XLA finds it in sorts, too
    if kept < n and moved[0].dtype is F32 and is_top_k:
        each = thread_figure("first_result_ns", rates) * kept / n * doublings
        return points(stage) * (thread_figure("first_ns", rates) + each) / 1e3
    alone = len(moved) == 1 and not moved[0].dtype.is_float
    each = thread_figure("sort_integers_ns" if alone else "sort_ns", rates)
    each += thread_figure("sort_more_ns", rates) * (len(moved) - 1)
    return points(stage) * each * doublings / 1e3


def _map_us(
    stage: Stage,
    ours: OurTime,
    work: float,
    memory: float,
    threads: int,
    rates: Rates,
    around: Surroundings,
) -> tuple[str, float]:
    moves = ours.work.only_moves
    ratio = (
        figure("across")
        if _walks_across(stage)
        else rates.xla_pass(ours.work.moved_bytes)
        if not moves
        else figure("looked_up")
        if _looked_up(stage, stage.axes)
        else figure("move")
    )
    computing = work * (ratio if moves else computing_ratio(stage, rates))
    if _walks_across(stage):
        across = points(stage) * thread_figure("across_ns", rates)
        computing = max(computing, across / threads / 1e3)
    one_by_one = _one_by_one_us(stage, rates) / threads
    if threads == 2 and _is_masked(stage):
        computing *= figure("masked")
        one_by_one *= figure("masked_called")
    if ours.work.held_bytes <= KEPT_BYTES and _walks_across(stage):
        ratio = 1.0  # all of it stays near
    us = max(computing, memory * ratio) + one_by_one
    if around.updates and not all(
        is_plain(a, stage.axes) or is_part(a, stage.axes) for a in stage.assigns
    ):
        us = max(us, ours.scalar_us)  # what overwrites a part of a value is computed by one thread
        if any((stride(a, stage.axes[-1]) or 1) > 1 for a in stage.assigns if stage.axes):
            us = max(us, points(stage) * thread_figure("apart_set_ns", rates) / 1e3)
    return "move" if moves else "map", us


def _is_masked(stage: Stage) -> bool:
    """Whether two threads of XLA's ask for every element whether there is one, and compute one at a
    time for that: it has no vectors of some functions then.

    So it is with one axis that they cannot share evenly; not where one operation is all, as no
    function of CHLO is, nor with more threads.
    """
    if len(stage.axes) != 1 or stage.axes[0].extent % 2 == 0:
        return False
    applied = [
        node
        for node in walk(*stage.expressions)
        if isinstance(node, Apply) and node.dtype is not INDEX
    ]
    is_one = len(applied) == 1 and lookup(f"chlo.{applied[0].op}") is None
    if is_one and not called_ns(applied[0]):
        return False
    return any(
        rotates(node) or OPS[_there(node)].xla_unmasked[node.dtype is F64] for node in applied
    )


def _there(node: Apply) -> str:
    """The op that XLA has for one of ours: passes make the logistic function of twice a value of
    hyperbolic tangents."""
    if node.op == "logistic":
        (twice,) = node.args
        if isinstance(twice, Apply) and twice.op == "add" and twice.args[0] == twice.args[1]:
            return "tanh"
    return node.op


def _one_by_one_us(stage: Stage, rates: Rates) -> float:
    """What XLA computes of a loop one element after the other, on one thread: functions that it
    calls, places that are looked up, and rows that are short."""
    each = each_called_ns(stage.expressions, rates)
    each += len(_looked_up(stage, stage.axes[-1:])) * thread_figure("looked_up_ns", rates)
    along = coalesce(stage)
    row = along.axes if is_map(stage) or walks_columns(stage) else along.reduce_axes
    if row and 0 < row[-1].extent < _SHORT_ROW:
        is_unrolled = row[-1].extent <= _UNROLLED
        each += thread_figure("unrolled_row_ns" if is_unrolled else "short_row_ns", rates)
    return points(stage) * each / 1e3


def _walks_across(stage: Stage) -> bool:
    """Some of what neighbours read lies far apart, or side by side along another axis."""
    read = {load for e in stage.expressions for load in loads(e)}
    if not stage.axes:
        return False
    last = stage.axes[-1]
    apart = {load: abs(stride(load, last) or 0) for load in read}
    return any(
        step >= _FAR or (step > 1 and any(stride(load, v) == 1 for v in stage.axes))
        for load, step in apart.items()
    )


def _looked_up(stage: Stage, axes: Sequence[Var]) -> set[Load]:
    """What is read at places that are themselves read, for each point along these axes anew."""
    return {
        load
        for e in stage.expressions
        for load in loads(e)
        if any(not found.free.isdisjoint(axes) for i in load.indices for found in loads(i))
    }
