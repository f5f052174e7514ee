"""What a cluster costs, in our kernels and in XLA's: the numbers behind `choose="auto"`.

Both follow from what the stages of a kernel do (work.py), from the rates of the machine
(target/rates.py), and from how XLA compares with us by kind of stage (xla_time.py).  Absolute times
are rough; the ratios between both sides decide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.registry import UPDATES
from hlo_mlc.partition.calls import HOLDING
from hlo_mlc.partition.choose.shares import least_arithmetic_us
from hlo_mlc.partition.choose.xla_copies import copied_bytes
from hlo_mlc.partition.choose.xla_dispatch import START_OPERATIONS, counted_operations
from hlo_mlc.partition.choose.xla_faults import fault
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.choose.xla_time import (
    SHARES,
    OurTime,
    Surroundings,
    convolutions_us,
    copying_us,
    libraries_us,
    written_out_us,
    xla_threads,
    xla_us,
)
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.costs import APART_NS, MARGIN, threads_for, vector_us
from hlo_mlc.partition.estimate import Estimate, Prediction
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Plan, Verdict
from hlo_mlc.partition.work import Work, contraction_flops
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, lanes, points
from hlo_mlc.templates.pointwise_loop import pointwise
from hlo_mlc.templates.program import choose_template, is_short
from hlo_mlc.templates.sorting import sorting_tasks, sorting_us
from hlo_mlc.templates.stepwise import blocks
from hlo_mlc.templates.update import is_in_rows, shared_axis
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.classify import is_map, stage_cost
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import UNKNOWN_TRIPS, Branch, Loop, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.phases import in_phases

# Operations and accesses per microsecond where nothing is vectorized (scatters, recurrences), two
# to three a cycle: wider vectors do not help.  Eigenvectors and LU of 16 square took as long
# of one matrix as of a vector of them (Zen 5, f32 to complex128): 9,000 to 10,000.
_SCALAR_OPERATIONS = 10_000
SERIAL_STAGE_US = 0.002  # the latency of a few operations that wait for each other

# A loop of which a trip touches fewer bytes becomes one function there, in which a scalar costs
# next to nothing; in others each has a call of its own.  Source: small_while_loop_hoisting_pass.cc
# and cpu_options.cc in xla/service/cpu.
ONE_FUNCTION_BYTES = 1024

# So many operations, or any on buffers of so many bytes, it runs in order without asking which are
# ready.
_IN_ORDER, _IN_ORDER_BYTES = 8, 512

# What passes between a cluster and the rest might have stayed in registers in one of XLA's
# fusions; mostly it would not have, so this is more than memory gives.  In bytes per microsecond.
BORDER_BYTES = 200_000

# JAX making an array of each result but the first: 4 and 16 of 8 elements took 4 and 19 us more
# than one, with as many operands, by either side.
_RESULT_US = 1.2

# Results that are larger than malloc ever keeps for the next one come as fresh pages, which the
# kernel fills with zeros first: 0.16 to 0.7 us each (embedding_gradient, pixelwise/float64).
# Source: DEFAULT_MMAP_THRESHOLD_MAX, malloc/malloc.c in glibc.
_LARGEST_KEPT_BYTES, _PAGE_BYTES, _PAGE_US = 32 << 20, 4096, 0.35

# Templates whose lanes are results, where others, and XLA, have the terms of a fold.
_BESIDE = ("side_by_side", "tiled")

# What reads a tensor against its rows gets so much less from memory, which brings rows: 2048 square
# took 1.7 (f32) to 4 times (bf16) as long as a copy, images with three channels 1.8 to 2.7.
_AGAINST_ROWS = 2

_TRIPS_ASKED = 4096  # of a loop, whether a condition holds

_WHOLE = Surroundings()


def estimate(kernel: Kernel, target: CpuTarget, around: Surroundings = _WHOLE) -> Estimate:
    """Predict both sides from the kernel's stages, and from what XLA has them in."""
    parts = [part for step in kernel.program.steps for part in _parts(step, target, 1, around)]
    largest = max(parts, key=lambda part: part.ours_us, default=None)
    return Estimate(
        sum(part.ours_us for part in parts) + target.rates.call_us,
        sum(part.xla_us for part in parts),
        sum(part.operations for part in parts),
        border_bytes(kernel.program),
        sum(part.contraction_flops for part in parts),
        largest.kind if largest is not None else "nothing",
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one stage adds, in all trips of the loops around it."""

    kind: str
    ours_us: float
    xla_us: float
    operations: int
    contraction_flops: int


def _parts(
    step: Step,
    target: CpuTarget,
    trips: int,
    around: Surroundings,
    cached: Set[Buffer] = frozenset(),
    alone: bool = False,
    loop: Loop | None = None,
) -> list[_Part]:
    """`cached`: what our code finds in the first cache from the trip before; `alone`: it runs on
    one thread; `loop`: that whose body it is in."""
    if isinstance(step, Branch):
        around, chosen = replace(around, in_loop=True), _chosen(step.condition, loop)
        return [
            replace(part, ours_us=share * part.ours_us, xla_us=share * part.xla_us)
            for side, share in ((step.then, chosen), (step.otherwise, 1 - chosen))
            for s in side
            for part in _parts(s, target, trips, around, cached, alone, loop)
        ]
    if isinstance(step, Loop):
        inner, in_blocks = trips * step.likely_trips, pointwise(step, target)
        cached = frozenset() if in_blocks is None else in_blocks.kept
        around = replace(
            around,
            in_loop=True,
            in_function=_touched_bytes(step) < ONE_FUNCTION_BYTES,
            queued=_is_queued(step),
        )
        alone = alone or is_short(step, target)
        return [
            part
            for s in step.inner
            for part in _parts(s, target, inner, around, cached, alone, step)
        ]
    template = choose_template(step, target)[0].name
    phases = in_phases(step)
    if len(phases) > 1:  # XLA computes all terms, also those that are nothing
        ours = [
            part for one in phases for part in _parts(one, target, trips, around, cached, alone)
        ]
        whole = _part(step.stages[0], template, target, trips, around, cached, alone)
        return [replace(whole, ours_us=sum(part.ours_us for part in ours))]
    parts = []
    near = {*step.private, *cached}  # and what an earlier stage of the nest has touched
    for stage in step.stages:
        parts.append(_part(stage, template, target, trips, around, near, alone))
        near |= {*stage.inputs, *stage.outputs}
    return parts


def _chosen(condition: Expr, loop: Loop | None) -> float:
    """The share of a loop's trips in which a condition holds, if all that it depends on is their
    number; nobody knows that of others."""
    if loop is None or not loop.trip_count:
        return 0.5
    scalars = {
        a.buffer: a.value
        for step in loop.body
        if isinstance(step, Nest)
        for stage in step.stages
        if not stage.axes and is_map(stage)
        for a in stage.assigns
        if not a.indices and a.guard is None
    }
    trips = np.arange(min(loop.trip_count, _TRIPS_ASKED))

    def value(expression: Expr) -> np.ndarray:
        return evaluate(expression, {loop.counter: trips}, lambda buffer, _: value(scalars[buffer]))

    try:
        return float(np.mean(np.broadcast_to(value(condition), trips.shape)))
    except (KeyError, RecursionError):  # it depends on more
        return 0.5


def _is_queued(loop: Loop) -> bool:
    """Whether XLA puts what the body of a loop does into a queue, from which threads take it: more
    than a few operations, not all on next to nothing.

    Source: ThunkExecutor::Options in xla/backends/cpu/runtime/thunk_executor.h.
    """
    nests = [step for step in loop.inner if isinstance(step, Nest)]
    return sum(len(nest.stages) for nest in nests) > _IN_ORDER and any(
        buffer.bytes > _IN_ORDER_BYTES
        for nest in nests
        for stage in nest.stages
        for buffer in (*stage.inputs, *stage.outputs)
    )


def _touched_bytes(step: Step) -> int:
    """Read and written, loops gone through once."""
    if isinstance(step, Nest):
        return sum(Work.of(stage).moved_bytes for stage in step.stages)
    return sum(_touched_bytes(inner) for inner in step.inner)


def _part(
    stage: Stage,
    template: str,
    target: CpuTarget,
    trips: int,
    around: Surroundings,
    near: Set[Buffer],
    alone: bool,
) -> _Part:
    """`near`: what our code finds in the first cache."""
    rates = target.rates
    work = Work.of(stage)
    vector = lanes((stage,), target)
    accesses = points(stage) * (1 + len(stage.inputs))
    scalar_us = (work.operations + accesses) / _SCALAR_OPERATIONS
    one_by_one = template == "plain"
    cores = 1 if one_by_one or alone else target.cores
    if template == "update":
        merged = coalesce(stage)
        one_by_one, cores = not is_in_rows(merged), cores if shared_axis(merged) else 1
    if one_by_one:
        threads = max(1, min(cores, round(scalar_us * _SCALAR_OPERATIONS) // SERIAL_WORK))
        ours = rows = OurTime(work, True, max(scalar_us, SERIAL_STAGE_US), threads, scalar_us)
    elif template == "stepwise":  # a vector of matrices takes as long as one
        vectors = blocks(stage, target)
        threads = min(threads_for(work, cores), vectors)
        alone_us = scalar_us * vectors / points(stage)
        ours = rows = OurTime(work, False, alone_us, threads, scalar_us)
    elif stage.sort is not None:
        alone_us = vector_us(work, vector, rates) + sorting_us(stage, target)
        threads = 1 if alone else min(target.cores, sorting_tasks(stage, target))
        ours = rows = OurTime(work, False, alone_us, threads, scalar_us)
    else:
        threads = threads_for(work, cores)
        along = vector
        if template in (*_BESIDE, "reduction") and not is_map(stage):  # lanes stay empty
            along = min(vector, stage.reduce_axes[-1].extent)
        rows = OurTime(work, False, vector_us(work, along, rates), threads, scalar_us)
        ours = (
            replace(rows, alone_us=vector_us(work, vector, rates)) if template in _BESIDE else rows
        )
    kind, xla = xla_us(stage, rows, target, around)
    far = {b: size for b, size in work.moved.items() if b not in near}
    memory = rates.pass_us(sum(far.values()), sum(b.bytes for b in far))
    if template == "transpose":
        memory *= _AGAINST_ROWS
    if template == "update" and cores == 1:
        memory *= min(target.cores, SHARES)
    thunk_us = rates.loop_thunk_us * (figure("queued") if around.queued else 1)
    started = xla + (thunk_us if around.in_loop else rates.thunk_us)
    # In a function of many, a loop of its own costs no more than its elements one after the other.
    xla = min(started, max(xla, rows.scalar_us)) if around.in_function else started
    return _Part(
        kind,
        trips * max(ours.computing_us, memory),
        trips * xla,
        trips * work.operations,
        trips * contraction_flops(stage),
    )


def border_bytes(program: TensorProgram) -> int:
    """Bytes of operands and results that a kernel touches."""
    touched = dict.fromkeys((*program.operands, *program.results), 0)

    def visit(step: Step, trips: int) -> None:
        if not isinstance(step, Nest):
            for inner in step.inner:
                visit(inner, trips * step.likely_trips)
            return
        for stage in step.stages:
            for buffer in touched.keys() & {*stage.inputs, *stage.outputs}:
                touched[buffer] += trips * points(stage) * buffer.dtype.bytes

    for step in program.steps:
        visit(step, 1)
    return sum(min(buffer.bytes, count) for buffer, count in touched.items())


def choose_all(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="ours": take whatever can be compiled."""
    return replace(choose_predicted(cluster, target), take=True, reason='choose="ours"')


def choose_predicted(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="auto": take what is predicted to be faster, its border included."""
    lapack_us = _of_all(libraries_us, cluster.nodes, cluster.trips)
    predicted = estimate(
        cluster.kernel,
        target,
        Surroundings(
            cluster.in_loop,
            calls_libraries(cluster.nodes),
            lapack_us > 0,
            updates=holds(cluster.nodes, UPDATES),
        ),
    )
    ours = predicted.ours_us
    xla = predicted.xla_us + _of_all(written_out_us, cluster.nodes, cluster.trips) + lapack_us
    copies = _of_all if cluster.in_loop else _of_inner
    xla += copies(
        lambda nodes: copying_us(copied_bytes(nodes), target), cluster.nodes, cluster.trips
    )
    xla = max(xla, _of_all(convolutions_us, cluster.nodes, cluster.trips))
    if cluster.is_whole and not any(isinstance(s, Loop) for s in cluster.kernel.program.steps):
        # XLA counts the body of a loop once, and does not expect more of it.
        starts = counted_operations(cluster.nodes) >= START_OPERATIONS
        forks = any(
            xla_threads(stage, target) > 1
            for step in cluster.kernel.program.steps
            for stage in stages(step)
        )
        alone_ours, alone_xla = _alone(predicted, starts, forks, target)
        ours, xla = ours + alone_ours, xla + alone_xla
    if copied := 2 * cluster.copied_bytes:  # read and written
        ours += target.rates.pass_us(copied)
    ours += sum(_transposed_us(value.type, target) for value in cluster.transposed)
    if failure := fault(cluster.nodes):
        return Verdict(True, failure, predicted, ours, xla, fault=failure)
    border = cluster.border_bytes / BORDER_BYTES
    take = MARGIN * (ours + border) < xla
    reason = f"{predicted.kind}: predicted {'faster' if take else 'no faster than by XLA'}"
    if MARGIN * ours < xla and not take:
        reason += f" with {border:.1f} us for passing values to and from it"
    return Verdict(take, reason, predicted, ours, xla)


def _alone(
    predicted: Estimate, starts: bool, forks: bool, target: CpuTarget
) -> tuple[float, float]:
    """What both sides pay for a program that is nothing else: for threads that sleep till then.

    `starts`: XLA runs all of it in another thread; `forks`: it runs some of it in several.
    """
    rates = target.rates
    work = predicted.operations + predicted.contraction_flops
    several = target.cores > 1
    ours = rates.fork_us if several and work + predicted.bytes // 4 > SERIAL_WORK else 0.0
    xla = rates.start_us if starts else 0.0
    if forks:
        xla += max(0.0, rates.xla_fork_us - figure("fork_us"))  # stages have what awake ones take
    return ours, xla


def _transposed_us(given: TensorType, target: CpuTarget) -> float:
    """What XLA needs to lay out an array otherwise."""
    return figure("across") * max(
        APART_NS * given.size / target.cores / 1e3, target.rates.pass_us(2 * given.bytes)
    )


def _of_all(
    us: Callable[[Sequence[Node]], float], nodes: Sequence[Node], trips: Mapping[Node, int]
) -> float:
    """What operations take, and those in the loops and branches among them as often as they run."""
    return us(nodes) + _of_inner(us, nodes, trips)


def _of_inner(
    us: Callable[[Sequence[Node]], float], nodes: Sequence[Node], trips: Mapping[Node, int]
) -> float:
    return sum(
        trips.get(node, 1)
        / (1 if node in trips else len(node.regions))
        * _of_all(us, region.nodes, trips)
        for node in nodes
        if node.op in HOLDING
        for region in node.regions
    )


def calls_libraries(nodes: Iterable[Node]) -> bool:
    """Whether there are products or convolutions among them, or in their regions."""
    return holds(nodes, ("stablehlo.dot_general", "stablehlo.convolution"))


def holds(nodes: Iterable[Node], ops: Container[str]) -> bool:
    """Whether there are such ops among them, or in their regions."""
    return any(
        node.op in ops or any(holds(region.nodes, ops) for region in node.regions) for node in nodes
    )


def predict(plan: Plan, target: CpuTarget) -> Prediction | None:
    """The time of a whole program; None where a part of it is something that we do not model."""
    if plan.left:
        return None
    clusters = (*plan.taken, *plan.rejected)
    verdicts = [verdict for _, verdict in clusters]
    left = _sorted_once([(c, v) for c, v in clusters if not v.take])
    ours = sum(v.ours_us for v in verdicts if v.take) + sum(v.xla_us for v in left)
    xla = sum(v.xla_us for v in _sorted_once(clusters))
    called = target.rates.dispatch_us + _RESULT_US * max(0, len(plan.graph.results) - 1)
    called += sum(_fresh_us(value.type) for value in plan.graph.results if value.type is not None)
    if len(verdicts) > 1 and target.cores > 1:  # they wake the threads once
        work = sum(
            v.estimate.operations + v.estimate.contraction_flops + v.estimate.bytes // 4
            for v in verdicts
        )
        if work > SERIAL_WORK:
            ours += target.rates.fork_us if plan.taken else target.rates.xla_fork_us
            xla += target.rates.xla_fork_us
    return Prediction(
        called + ours,
        called + xla,
        any(
            _guesses_trips(step)
            for cluster, _ in (*plan.taken, *plan.rejected)
            for step in cluster.kernel.program.steps
        ),
    )


def _sorted_once(clusters: Iterable[tuple[Cluster, Verdict]]) -> list[Verdict]:
    """The verdicts on what XLA computes: it picks several elements out of one sort, for each of
    which we have a kernel of its own."""
    once = {
        (cluster.operands, verdict.xla_us) if verdict.estimate.kind == "sort" else cluster: verdict
        for cluster, verdict in clusters
    }
    return list(once.values())


def _fresh_us(result: TensorType) -> float:
    """What either side waits for the pages of a result that is too large for malloc to keep."""
    return _PAGE_US * result.bytes / _PAGE_BYTES if result.bytes > _LARGEST_KEPT_BYTES else 0.0


def _guesses_trips(step: Step) -> bool:
    if isinstance(step, Nest):
        return False
    return (isinstance(step, Loop) and step.trip_count is None) or any(
        _guesses_trips(inner) for inner in step.inner
    )


def predict_rejected(plan: Plan) -> Prediction | None:
    """The time of what is left to XLA though it could be compiled, its loops running once; None
    where there is no such, or where that was measured."""
    verdicts = [verdict for _, verdict in plan.rejected]
    if not verdicts or any(verdict.recorded for verdict in verdicts):
        return None
    return Prediction(sum(v.ours_us for v in verdicts), sum(v.xla_us for v in verdicts))


def worth_it(plan: Plan, target: CpuTarget) -> Plan:
    """The plan, or one that takes nothing where its kernels save next to nothing of the program.

    They are to be compiled, and XLA is to run what is around them apart from each other.  What is
    not modelled counts with what its arithmetic takes at least, so the share that is saved is no
    larger than it looks here; how often a loop of XLA's repeats its kernels is not known, so those
    count as worth it.
    """
    if any(cluster.in_loop or verdict.recorded or verdict.fault for cluster, verdict in plan.taken):
        return plan
    saved = sum(v.xla_us - v.ours_us for _, v in plan.taken)
    if saved > (1 - 1 / MARGIN) * _total_us(plan, target):
        return plan
    reason = f"what kernels would save, {saved:.1f} us, is next to nothing of the program's time"
    left = [
        (cluster, replace(verdict, take=False, reason=reason)) for cluster, verdict in plan.taken
    ]
    return replace(plan, taken=[], rejected=[*plan.rejected, *left], remaining=plan.nodes)


def _total_us(plan: Plan, target: CpuTarget) -> float:
    """A call of the program as XLA computes it, loops of its own going round once."""
    return (
        target.rates.dispatch_us
        + sum(v.xla_us for _, v in (*plan.taken, *plan.rejected))
        + sum(least_arithmetic_us(node, target) for node in plan.left)
    )


# Operations that a kernel has beyond those of the program that it computes, from which on it has
# to be worth compiling, and the share of a call that is next to nothing.  A transform of 64
# numbers, written out, is 2,000 of them, each of which takes 0.2 ms to compile: a quarter of the
# first call of a spherical transform went into five kernels that saved 0.5 % of each later one.
_MANY_OPERATIONS, _NEXT_TO_NOTHING = 500, 0.01


def not_worth_compiling(plan: Plan, target: CpuTarget) -> dict[str, str]:
    """Kernels, by their fingerprints, that take long to compile and together save next to nothing
    of a call, and what each does; how often a loop of XLA's repeats some is not known, so these are
    not among them."""
    saved: Counter[str] = Counter()
    operations: dict[str, int] = {}
    for cluster, verdict in plan.taken:
        fingerprint = cluster.kernel.fingerprint
        stays = cluster.in_loop or verdict.recorded or verdict.fault
        saved[fingerprint] += math.inf if stays else verdict.xla_us - verdict.ours_us
        operations[fingerprint] = _operations_beyond(cluster)
    spare, left = _NEXT_TO_NOTHING * _total_us(plan, target), dict[str, str]()
    for fingerprint in sorted(operations, key=saved.__getitem__):
        if operations[fingerprint] > _MANY_OPERATIONS:
            spare -= saved[fingerprint]
            if spare < 0:
                break
            left[fingerprint] = (
                f"{operations[fingerprint]:,} operations would be compiled to save "
                f"{saved[fingerprint]:.1f} us, next to nothing of the program's time"
            )
    return left


def _operations_beyond(cluster: Cluster) -> int:
    """The operations of a cluster's stages that are none of the program's."""
    program = cluster.kernel.program
    own = sum(stage_cost(stage) for step in program.steps for stage in stages(step))
    inner = (node for outer in cluster.nodes for region in outer.regions for node in region.walk())
    return own - len(cluster.nodes) - sum(1 for _ in inner)


def completion(plan: Plan, target: CpuTarget, failed: Container[str]) -> tuple[Cluster, ...]:
    """What should be taken as well, though XLA is faster at it, so that it starts no thread.

    Clusters whose kernels `failed` stay with it.
    """
    outside = [node for node in plan.left if node.op not in HOLDING]
    spare, more, clusters = START_OPERATIONS - counted_operations(outside), 0.0, []
    if not plan.taken or any(verdict.recorded for _, verdict in plan.rejected):
        return ()
    for cluster, verdict in sorted(plan.rejected, key=lambda found: -_lost_us(*found)):
        operations = counted_operations(cluster.nodes)
        if operations < spare:
            spare -= operations
        elif cluster.kernel.fingerprint not in failed:
            clusters.append(cluster)
            more += _lost_us(cluster, verdict)
        else:
            return ()
    return tuple(clusters) if spare > 0 and more < target.rates.start_us else ()


def _lost_us(cluster: Cluster, verdict: Verdict) -> float:
    trips = UNKNOWN_TRIPS if cluster.in_loop else 1
    return trips * (verdict.ours_us - verdict.xla_us)


def saved_us(plan: Plan) -> float:
    """What kernels are predicted to save of one call, where that can be known before it."""
    return sum(
        max(0.0, verdict.xla_us - verdict.ours_us)
        for cluster, verdict in plan.taken
        if not any(map(_guesses_trips, cluster.kernel.program.steps))
    )


def by_gain(plan: Plan) -> list[Kernel]:
    """The kernels of what is taken, those that save the most time in all their places first; such
    as save about the same in the order of the program, so that XLA gets what is left in one piece.
    """
    saved: dict[str, float] = {}
    kernels: dict[str, Kernel] = {}
    for cluster, verdict in plan.taken:
        for kernel, count, share in cluster.kernels:
            fingerprint = kernel.fingerprint
            kernels.setdefault(fingerprint, kernel)
            saved[fingerprint] = saved.get(fingerprint, 0.0) - count * share * _lost_us(
                cluster, verdict
            )
    return sorted(
        kernels.values(),  # by powers of two
        key=lambda kernel: -math.frexp(max(saved[kernel.fingerprint], 0.0))[1],
    )
