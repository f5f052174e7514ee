"""What a cluster costs on a GPU, in our kernels and in XLA's: the numbers behind `choose="auto"`
there, as those of cost.py are on CPUs.

This is a model: data sheets, and how XLA is known to run a program.  Of ten cases
of the benchmark on one H200 it took three, all faster, and left two that are as well
(bench/results/gpu); its figures are not fitted to that.  Whatever XLA should be as good at is left
to it, and the rest has to look much faster to be taken:

    loops with small bodies   one kernel for all rounds, where XLA launches kernels in each
    scans other than sums     one pass, where XLA computes a tree of windows
    chains along a row        one pass, where XLA's fusions take several
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.registry import lookup
from hlo_mlc.partition.choose.cost import border_bytes
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Verdict
from hlo_mlc.partition.work import Work, contraction_flops
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import points
from hlo_mlc.templates.cuda.program import by_launches, choose_template
from hlo_mlc.tensor.classify import contraction, is_map, walks_columns
from hlo_mlc.tensor.core import Loop, Nest, Stage, Step

# From the launch of a small kernel until the next one may begin; two are about a round of a loop.
KERNEL_US = 4.0
# A round of a loop with a small body, by XLA: ten million took 82 s on a GPU.
# Source: github.com/QuantEcon/lecture-python-programming, issue 440.
ROUND_US = 8.0
# A stage of a round inside of one block, besides its work: the latency of its loads, which come
# from the second cache (260 cycles), and a barrier.
STAGE_US = 0.5
# What one block computes and moves in a microsecond: half of what 128 lanes, and two thirds of what
# the path to the second cache (64 bytes a cycle), can do at 1.7 GHz.
BLOCK_OPERATIONS, BLOCK_BYTES = 100_000, 64_000
# For each point of a stage whose points wait for each other: loads from the second cache.
POINT_US = 0.2
# Multiply-adds of a multiprocessor in a microsecond: half of what its tensor cores can do in bf16.
# Whether ours come near cuBLAS is unknown, so they count as half as fast.
PRODUCTS, PRODUCTS_BEHIND = 1_000_000, 2.0
# XLA computes windows that reach from the start of a row as windows of so many elements, windows of
# their results, and so on.  Source: xla/service/gpu/gpu_compiler.cc, ReduceWindowRewriter.
WINDOW = 16
# So much faster a cluster has to look: what the model leaves out should not turn the answer round.
MARGIN = 1.5
# FLOPs of matrix products that our kernels take even if nothing else is computed with them: those
# of 128 x 128 matrices.
LARGE_PRODUCT = 2 * 128**3
# What makes no elements, and leaves none out.
_ON_THE_WAY = frozenset(
    f"stablehlo.{name}" for name in ("convert", "transpose", "reshape", "broadcast_in_dim")
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A step's times on both sides, in microseconds, and what it is."""

    kind: str
    ours_us: float
    xla_us: float


def choose_all(cluster: Cluster, target: CudaTarget) -> Verdict:
    """choose="ours": take whatever can be compiled, but for what cuBLAS and cuDNN are made for."""
    predicted = estimate(cluster.kernel, target)
    plain = predicted.contraction_flops > LARGE_PRODUCT and all(map(_adds_nothing, cluster.nodes))
    reason = (
        "large matrix products with nothing around are left to cuBLAS and cuDNN"
        if plain
        else 'choose="ours"'
    )
    return Verdict(not plain, reason, predicted, predicted.ours_us, predicted.xla_us)


def _adds_nothing(node: Node) -> bool:
    """Whether it is a product, or what libraries do with its factors on the way."""
    definition = lookup(node.op)
    is_product = definition is not None and definition.kind is OpKind.PRODUCT
    return is_product or node.op in _ON_THE_WAY


def choose_predicted(cluster: Cluster, target: CudaTarget) -> Verdict:
    """choose="auto": take what the model says is much faster, its border included."""
    predicted = estimate(cluster.kernel, target)
    # Written and read, where XLA's fusions might have kept it in registers.
    passed = 2 * (cluster.border_bytes + cluster.copied_bytes) / target.memory_bytes_per_us
    ours, xla = predicted.ours_us + passed, predicted.xla_us
    take = MARGIN * ours < xla
    expected = (
        "ours is expected to be much faster" if take else "XLA is expected to be about as fast"
    )
    reason = f"{predicted.kind}: {expected}, by a model"
    return Verdict(take, reason, predicted, ours, xla)


def estimate(kernel: Kernel, target: CudaTarget) -> Estimate:
    """Predict both sides from the kernel's steps."""
    program = kernel.program
    parts = [_top(step, target) for step in program.steps]
    gain = max(parts, key=lambda part: part.xla_us - part.ours_us, default=None)
    stages = [found for step in program.steps for found in _stages(step, 1)]
    return Estimate(
        sum(part.ours_us for part in parts),
        sum(part.xla_us for part in parts),
        sum(trips * Work.of(stage).operations for trips, stage in stages),
        border_bytes(program),
        sum(trips * contraction_flops(stage) for trips, stage in stages),
        gain.kind if gain is not None else "nothing",
    )


def _stages(step: Step, trips: int) -> list[tuple[int, Stage]]:
    """The stages of a step, and how often each runs."""
    if isinstance(step, Nest):
        return [(trips, stage) for stage in step.stages]
    return [
        found
        for inner in (*step.body, *step.test)
        for found in _stages(inner, trips * step.likely_trips)
    ]


def _top(step: Step, target: CudaTarget) -> _Part:
    """A step that the whole GPU works at."""
    if isinstance(step, Nest):
        return _nest(step, target)
    xla = _rounds_by_xla(step, target)
    if not by_launches(step):
        return _Part("a loop in one kernel", KERNEL_US + _in_block(step, target), xla)
    ours = step.likely_trips * sum(_top(inner, target).ours_us for inner in step.body)
    return _Part("a loop of large bodies", ours, xla)


def _rounds_by_xla(loop: Loop, target: CudaTarget) -> float:
    """XLA's time for a loop; that it launches several kernels in a round is not held against it."""
    round_us = 0.0
    for inner in (*loop.body, *loop.test):
        round_us += (
            _rounds_by_xla(inner, target)
            if isinstance(inner, Loop)
            else _nest(inner, target).xla_us - KERNEL_US
        )
    return loop.likely_trips * max(ROUND_US, round_us)


def _in_block(step: Step, target: CudaTarget) -> float:
    """A step inside of a kernel of one block."""
    if isinstance(step, Loop):
        return step.likely_trips * sum(
            _in_block(inner, target) for inner in (*step.body, *step.test)
        )
    total = 0.0
    for stage in step.stages:
        work = Work.of(stage)
        total += (
            STAGE_US
            + (work.operations + work.products) / BLOCK_OPERATIONS
            + work.moved_bytes / BLOCK_BYTES
        )
        if _is_serial(step, target):
            total += points(stage) * POINT_US
    return total


def _nest(nest: Nest, target: CudaTarget) -> _Part:
    """A nest that the whole GPU works at: XLA's time is ours, but for what is named here."""
    moved = sum(size for buffer, size in _moved(nest).items() if buffer not in nest.private)
    rate = target.memory_bytes_per_us
    products = sum(Work.of(stage).products for stage in nest.stages)
    common = KERNEL_US + max(moved / rate, products / (PRODUCTS * target.multiprocessors))
    if any(stage.trips for stage in nest.stages):
        return _Part(
            "a recurrence",
            KERNEL_US + common + _serial_us(nest, target),
            sum(points(stage) * ROUND_US for stage in nest.stages),
        )
    if any(stage.scan is not None for stage in nest.stages):
        # In chunks, ours are two kernels.
        return _Part(
            "a scan", KERNEL_US + common + _serial_us(nest, target), _scan_by_xla(nest, target)
        )
    if any(contraction(stage) is not None for stage in nest.stages):
        return _Part("a product", PRODUCTS_BEHIND * common, common)
    passes = _passes(nest)
    if passes > 1:
        read = sum(
            size
            for buffer, size in _moved(nest).items()
            if not any(buffer in stage.outputs for stage in nest.stages)
        )
        return _Part(
            "a chain along rows",
            common + _serial_us(nest, target),
            common + (passes - 1) * (KERNEL_US + read / rate),
        )
    kind = (
        "a map"
        if all(map(is_map, nest.stages))
        else "a reduction"
        if len(nest.stages) == 1
        else "a chain along rows"
    )
    return _Part(kind, common + _serial_us(nest, target), common)


def _moved(nest: Nest) -> dict[Buffer, int]:
    """Bytes read and written of each buffer, once for all stages."""
    moved: dict[Buffer, int] = {}
    for stage in nest.stages:
        for buffer, size in Work.of(stage).moved.items():
            moved[buffer] = max(moved.get(buffer, 0), size)
    return moved


def _serial_us(nest: Nest, target: CudaTarget) -> float:
    """What is added where points wait for each other."""
    is_serial = _is_serial(nest, target)
    return sum(points(stage) * POINT_US for stage in nest.stages) if is_serial else 0.0


def _is_serial(nest: Nest, target: CudaTarget) -> bool:
    """Nothing is known of which of its points are independent."""
    template, _ = choose_template(nest, target)
    return template is not None and template.name == "plain"


def _scan_by_xla(nest: Nest, target: CudaTarget) -> float:
    """Sums go to a library that is as good as can be; all else is a tree of windows."""
    total = 0.0
    for stage in nest.stages:
        memory = Work.of(stage).moved_bytes / target.memory_bytes_per_us
        levels = 1
        if stage.scan is not None and stage.combiner.name != "add":
            levels = max(1, math.ceil(math.log(max(2, stage.scan.axis.extent), WINDOW)))
        # Each level folds windows and, but for the last, joins what the next one made of them; the
        # first one has most of the elements.
        total += (2 * levels - 1) * KERNEL_US + (2 if levels > 1 else 1) * memory
    return total


def _passes(nest: Nest) -> int:
    """The kernels that XLA's fusions need for a nest.

    It hands chains along the last axis to Triton, which has such a row in registers.  All else is
    a kernel for each fold that waits for another.
    """
    folds = [stage for stage in nest.stages if not is_map(stage)]
    if all(len(fold.accumulators) == 1 and not walks_columns(fold) for fold in folds):
        return 1
    depth: dict[Buffer, int] = {}
    passes = 1
    for stage in nest.stages:
        waits = max((depth.get(buffer, 0) for buffer in stage.inputs), default=0)
        passes = max(passes, waits + 1)
        depth.update(dict.fromkeys(stage.outputs, waits + (not is_map(stage))))
    return passes
