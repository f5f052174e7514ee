"""What a cluster costs, in our kernels and in XLA's: the numbers behind `choose="auto"`.

Both follow from what the stages of a kernel do: operations, products, bytes.  What differs is
recorded here, by kind of stage, from paired runs on one machine (bench/results; single operations
at sizes from 1k to 4M elements).  Absolute times are rough; the ratios between both sides decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Expr, loads, walk
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Cluster, Verdict
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, lanes, points
from hlo_mlc.templates.program import choose_template
from hlo_mlc.tensor.classify import contraction, cost, is_map, stride
from hlo_mlc.tensor.core import Loop, Stage, Step, TensorProgram

# Rates of our kernels on one core, per microsecond.
VECTOR_OPERATIONS = 2_500  # on one vector each: exp, tanh, log, 256k to 1M elements
VECTOR_PRODUCTS = 3_500  # fused multiply-adds of one vector: products of 256 and 512 square
SCALAR_OPERATIONS = 10_000  # where nothing is vectorized: scatters, recurrences
# Bytes read and written per microsecond, all cores (`hlo-mlc doctor`).
CACHE_BYTES = 90_000
MEMORY_BYTES = 30_000

# A call of ours in an XLA program costs a little more than one of XLA's own thunks, and those cost
# less in loops with small bodies, which XLA compiles as one, and nothing for scalars there.
CALL_US = 0.17
THUNK_US = 0.1
LOOP_THUNK_US = 0.04
SERIAL_STAGE_US = 0.002  # the latency of a few operations that wait for each other

# XLA hands a program of so many operations to another thread; one that is all ours it runs at once.
# Source: 64 x 64 and 1,000 elements of anything: 12 to 30 us against 6.
START_OPERATIONS = 1_000
START_US = 5.0

# What passes between a cluster and the rest might have stayed in registers in one of XLA's
# fusions; mostly it would not have, so this is more than memory gives.  In bytes per microsecond.
BORDER_BYTES = 200_000

UNKNOWN_TRIPS = 16  # of a loop whose trip count nobody knows
SMALL_US = 2.0  # what takes less does not deserve a custom call of its own


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted cost of a kernel, and the kind of stage that takes most of our time."""

    ours_us: float
    xla_us: float
    operations: int
    bytes: int
    contraction_flops: int  # two for each multiply-add, four where it is in 64 bits
    kind: str


def estimate(kernel: Kernel, target: CpuTarget) -> Estimate:
    """Predict both sides from the kernel's stages."""
    parts = [part for step in kernel.program.steps for part in _parts(step, target, 1, THUNK_US)]
    largest = max(parts, key=lambda part: part.ours_us, default=None)
    return Estimate(
        sum(part.ours_us for part in parts) + CALL_US,
        sum(part.xla_us for part in parts),
        sum(part.operations for part in parts),
        _border_bytes(kernel.program),
        sum(part.contraction_flops for part in parts),
        largest.kind if largest is not None else "nothing")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one stage adds, in all trips of the loops around it."""

    kind: str
    ours_us: float
    xla_us: float
    operations: int
    contraction_flops: int


def _parts(step: Step, target: CpuTarget, trips: int, thunk_us: float) -> list[_Part]:
    if isinstance(step, Loop):
        inner = trips * _trips(step)
        return [part for s in (*step.body, *step.test)
                for part in _parts(s, target, inner, LOOP_THUNK_US)]
    template = choose_template(step, target)[0].name
    return [_part(stage, template, target, trips, thunk_us) for stage in step.stages]


def _trips(loop: Loop) -> int:
    return UNKNOWN_TRIPS if loop.trip_count is None else loop.trip_count


def _part(stage: Stage, template: str, target: CpuTarget, trips: int, thunk_us: float) -> _Part:
    serial = template == "plain"
    operations = _operations(stage)
    products = points(stage) if _multiplies(stage) else 0
    vector = lanes((stage,), target)
    if serial:
        accesses = points(stage) * (1 + len(stage.inputs))
        work = max((operations + accesses) / SCALAR_OPERATIONS, SERIAL_STAGE_US)
    else:
        work = operations / (vector * VECTOR_OPERATIONS) + products / (vector * VECTOR_PRODUCTS)
        work /= max(1, min(target.cores, 2 * (operations + products) // SERIAL_WORK))
    memory = _memory_us(stage, target)
    kind, xla = _compare(stage, serial, work, memory, target)
    if thunk_us == THUNK_US or points(stage) > 1:
        xla += thunk_us
    if template == "reduction" and not is_map(stage):
        work *= max(1.0, vector / stage.reduce_axes[-1].extent)  # lanes that stay empty
    flops = 2 * products * max(1, stage.terms[0].dtype.bytes // 4) if products else 0
    return _Part(kind, trips * max(work, memory), trips * xla, trips * operations, trips * flops)


def _multiplies(stage: Stage) -> bool:
    """A sum of products, be there several rows and columns or not."""
    return stage.combiner is not None and stage.combiner.name == "add" and \
        isinstance(stage.terms[0], Apply) and stage.terms[0].op == "mul"


def _operations(stage: Stage) -> int:
    """Simple operations besides the multiply-adds of a product; none where values only move."""
    outer = math.prod(v.extent for v in stage.axes)
    values = [a.value for a in (*stage.along, *stage.assigns)]
    guards = [a.guard for a in (*stage.along, *stage.assigns) if a.guard is not None]
    folded = cost(*stage.terms)
    if stage.combiner is not None:
        folded += -1 if _multiplies(stage) else cost(*stage.combiner.results)
    return points(stage) * folded + outer * cost(*values, *guards)


def _memory_us(stage: Stage, target: CpuTarget) -> float:
    moved = _moved_bytes(stage)
    return moved / (CACHE_BYTES if moved <= _cache_bytes(target) else MEMORY_BYTES)


def _moved_bytes(stage: Stage) -> int:
    count = points(stage)
    return sum(min(b.bytes, count * b.dtype.bytes) for b in {*stage.inputs, *stage.outputs})


def _cache_bytes(target: CpuTarget) -> int:
    return max(target.l3_bytes * 3 // 4, target.l2_bytes)  # others use the last level, too


# What one op costs more in XLA's code than in ours, in the unit of `cost`; floats only.
_EXTRA_OF_OP = {
    "exp": 9, "log": 17, "logistic": 8, "tanh": 3, "erf": -6, "expm1": 36, "log1p": 27, "sin": 54,
    "cos": 54, "tan": 54, "sinh": 45, "cosh": 45, "rsqrt": 31, "pow": 90, "rem": 350, "atan": 130,
    "atan2": 840, "asin": 410, "acos": 410, "asinh": 200, "acosh": 200, "atanh": 60, "cbrt": 450,
    "erfc": 10,
}

# XLA's time / ours, by what limits a stage.
_ARITHMETIC = 1.1
_MAP_IN_CACHE = 1.2
_MAP_IN_MEMORY = 0.95  # it writes more than the caches hold, and both wait for the same pages
_MOVE = 1.0
_ACROSS = 1.3  # neighbours are far from each other in memory: transposes
_FAR = 8  # elements
_REDUCTION = 1.3
_FOLD = 2.0  # what a reduction computes, where that and not memory takes the time
_SEVERAL = 15.0  # reductions with several results (argmax) run scalar there
_SCATTER = 0.3  # ours go element by element; XLA's rows are vectors
_SERIAL = 0.95
_SMALL_PRODUCT = 2.0
_MEDIUM_PRODUCT = 1.2
_LARGE_PRODUCT = 1.02
_MEDIUM, _LARGE = 1 << 23, 1 << 26  # multiply-adds: two and four times 2^7 square, cubed
# Convolutions: the multiple of the time that their products would take at our rate, and the terms
# of one result from which on XLA is that fast (depthwise ones are not).
_CONVOLUTION, _CONVOLUTION_TERMS = 2.5, 64
# Windows that overlap: nanoseconds of XLA per element of the window, and at most per result, which
# is what its cumulative sums take, however long.
_WINDOW_NS, _LONGEST_WINDOW_NS = 0.15, 2.2


def _compare(stage: Stage, serial: bool, work: float, memory: float,
             target: CpuTarget) -> tuple[str, float]:
    """The kind of a stage, and what XLA needs where we compute for `work` us or wait for memory
    for `memory` us."""
    if serial:
        scatters = any(loads(i) for a in stage.assigns for i in a.indices)
        return ("scatter", work * _SCATTER) if scatters else ("serial", work * _SERIAL)
    if stage.combiner is not None and len(stage.accumulators) > 1:
        return "reduction with several results", max(work, memory) * _SEVERAL
    if contraction(stage) is not None:
        size = points(stage)
        ratio = _LARGE_PRODUCT if size > _LARGE else _MEDIUM_PRODUCT if size > _MEDIUM \
            else _SMALL_PRODUCT
        return "product", max(work * ratio, memory * ratio)
    if _is_convolution(stage):
        vectors = points(stage) / lanes((stage,), target)
        return "convolution", max(vectors / VECTOR_PRODUCTS / target.cores * _CONVOLUTION, memory)
    work *= _extra(stage) * _ARITHMETIC
    if not is_map(stage):
        if window := _window(stage):
            results = math.prod(v.extent for v in stage.axes)
            each = min(window * _WINDOW_NS, _LONGEST_WINDOW_NS)
            return "window", max(results * each / 1e3, memory)
        return "reduction", max(work * _FOLD, memory * _REDUCTION)
    return ("map" if _operations(stage) else "move"), max(work, memory * _map_ratio(stage, target))


def _map_ratio(stage: Stage, target: CpuTarget) -> float:
    last = stage.axes[-1]
    for load in {load for e in stage.expressions for load in loads(e)}:
        if abs(stride(load, last) or 0) >= _FAR:
            return _ACROSS
    written = sum(b.bytes for b in stage.outputs)
    if max(2 * written, _moved_bytes(stage)) > _cache_bytes(target):
        return _MAP_IN_MEMORY
    return _MAP_IN_CACHE if _operations(stage) else _MOVE


def _extra(stage: Stage) -> float:
    """XLA's operations / ours."""
    each = cost(*stage.expressions)
    more = sum(_EXTRA_OF_OP.get(node.op, 0) for node in walk(*stage.expressions)
               if isinstance(node, Apply) and node.dtype.is_float)
    return (each + more) / each if each else 1.0


def _is_convolution(stage: Stage) -> bool:
    """A sum over windows of products, of enough terms that XLA makes a matrix product of it."""
    if stage.combiner is None or stage.combiner.name != "add":
        return False
    term = stage.terms[0]
    return isinstance(term, Apply) and term.op == "mul" and _window(stage) >= _CONVOLUTION_TERMS


def _window(stage: Stage) -> int:
    """How many neighbours a result folds, where neighbouring results share them; else 0."""
    return math.prod(v.extent for v in stage.reduce_axes) if any(
        _mixes(i, stage) for term in stage.terms for load in loads(term) for i in load.indices
    ) else 0


def _mixes(index: Expr, stage: Stage) -> bool:
    return any(v in index.free for v in stage.axes) and \
        any(v in index.free for v in stage.reduce_axes)


def _border_bytes(program: TensorProgram) -> int:
    """Bytes of operands and results that a kernel touches."""
    touched = dict.fromkeys((*program.operands, *program.results), 0)

    def visit(step: Step, trips: int) -> None:
        if isinstance(step, Loop):
            for inner in (*step.body, *step.test):
                visit(inner, trips * _trips(step))
            return
        for stage in step.stages:
            for buffer in touched.keys() & {*stage.inputs, *stage.outputs}:
                touched[buffer] += trips * points(stage) * buffer.dtype.bytes

    for step in program.steps:
        visit(step, 1)
    return sum(min(buffer.bytes, count) for buffer, count in touched.items())


def choose_all(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="ours": take whatever can be compiled."""
    predicted = estimate(cluster.kernel, target)
    return Verdict(True, 'choose="ours"', predicted.ours_us, predicted.xla_us)


def choose_predicted(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="auto": take what is predicted to be faster, its border included."""
    predicted = estimate(cluster.kernel, target)
    ours, xla = predicted.ours_us, predicted.xla_us
    if cluster.is_whole and _starts_a_thread(cluster, predicted):
        xla += START_US
    border = cluster.border_bytes / BORDER_BYTES
    take = ours + border < xla
    reason = f"{predicted.kind}: predicted {'faster' if take else 'no faster than by XLA'}"
    if ours < xla and not take:
        reason += f" with {border:.1f} us for passing values to and from it"
    return Verdict(take, reason, ours, xla)


def _starts_a_thread(cluster: Cluster, predicted: Estimate) -> bool:
    loops = any(isinstance(step, Loop) for step in cluster.kernel.program.steps)
    # XLA counts the body of a loop once, and does not expect more of it.
    return not loops and predicted.operations + predicted.contraction_flops >= START_OPERATIONS


def is_small(step: Step, target: CpuTarget) -> bool:
    """Too short to deserve a custom call of its own, so that runs of such become one kernel."""
    if isinstance(step, Loop):
        return False
    us = sum(max(_operations(stage) / (lanes((stage,), target) * VECTOR_OPERATIONS),
                 points(stage) / (lanes((stage,), target) * VECTOR_PRODUCTS),
                 _memory_us(stage, target)) for stage in step.stages)
    return us < SMALL_US
