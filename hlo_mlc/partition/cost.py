"""What a cluster costs, in our kernels and in XLA's: the numbers behind `choose="auto"`."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Buffer, Load, walk
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Cluster, Verdict
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.classify import contraction, cost, is_map, stride
from hlo_mlc.tensor.core import Loop, Nest, Stage, Step

# All figures: microseconds of one core of the reference machine class (bench/results).
OPERATIONS_PER_US = 16_000  # simple vector operations, f32, AVX-512
BYTES_PER_US = 40_000  # from the last-level cache, two cores
XLA_CALL_US = 0.1  # a thunk of XLA's runtime, also one of ours
BORDER_BYTES_PER_US = 200_000  # what an unfused border costs, mostly hidden in caches


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted cost of a kernel."""

    ours_us: float
    xla_us: float
    operations: int
    bytes: int


def estimate(kernel: Kernel, target: CpuTarget) -> Estimate:
    """Predict both sides from the kernel's stages."""
    border = sum(b.bytes for b in (*kernel.program.operands, *kernel.program.results))
    ours, xla, operations = 0.0, 0.0, 0
    for step in kernel.program.steps:
        a, b, n = _step(step, target)
        ours, xla, operations = ours + a, xla + b, operations + n
    floor = border / BYTES_PER_US
    return Estimate(max(ours, floor) + XLA_CALL_US, max(xla, floor) + XLA_CALL_US, operations,
                    border)


def _step(step: Step, target: CpuTarget) -> tuple[float, float, int]:
    if isinstance(step, Loop):
        inner = [_step(s, target) for s in (*step.body, *step.test)]
        trips = step.trip_count if step.trip_count is not None else 16
        ours, xla, operations = (sum(column) for column in zip(*inner, strict=True)) if inner \
            else (0.0, 0.0, 0)
        return trips * ours, trips * (xla + XLA_CALL_US * len(inner)), trips * operations
    return _nest(step, target)


def _nest(nest: Nest, target: CpuTarget) -> tuple[float, float, int]:
    ours = xla = 0.0
    operations = 0
    for stage in nest.stages:
        count = _points(stage) * max(1, cost(*stage.expressions))
        operations += count
        work = count / OPERATIONS_PER_US / max(1, min(target.cores, count // 50_000))
        moved = _traffic(stage) / BYTES_PER_US
        ours += max(work, moved)
        xla += max(work, moved) * slowdown(stage) + XLA_CALL_US
    return ours, xla, operations


def _points(stage: Stage) -> int:
    result = 1
    for v in (*stage.axes, *stage.reduce_axes):
        result *= v.extent
    return result


def _traffic(stage: Stage) -> int:
    touched: set[Buffer] = {*stage.inputs, *stage.outputs}
    return min(sum(b.bytes for b in touched), 4 * _points(stage) * len(touched))


# How much longer XLA's CPU code takes, by what a stage does.  Source: bench/results; a class is
# the most telling feature of a stage, looked up in this order.
_SLOWDOWN_OF_OP = {
    "sin": 10.0, "cos": 10.0, "tan": 10.0, "atan2": 8.0, "pow": 6.0, "rem": 8.0, "log1p": 3.0,
    "expm1": 3.0, "erf": 1.6, "tanh": 1.8, "exp": 1.8, "logistic": 1.8, "log": 1.3,
}


def slowdown(stage: Stage) -> float:
    """Factor by which XLA is expected to need longer than we do."""
    if stage.combiner is not None and len(stage.accumulators) > 1:
        return 30.0  # argmax and its kin run scalar there
    roles = contraction(stage)
    if roles is not None:
        size = _points(stage)
        return 1.02 if size > 1 << 26 else 1.15 if size > 1 << 22 else 2.0
    factor = 1.05 if is_map(stage) else 1.1
    for node in walk(*stage.expressions):
        if isinstance(node, Apply):
            factor = max(factor, _SLOWDOWN_OF_OP.get(node.op, 1.0))
        elif isinstance(node, Load) and stage.axes and stride(node, stage.axes[-1]) not in (0, 1):
            factor = max(factor, 1.3)
    return factor


def choose_all(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="ours": take whatever can be compiled."""
    predicted = estimate(cluster.kernel, target)
    return Verdict(True, 'choose="ours"', predicted.ours_us, predicted.xla_us)


def choose_predicted(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="auto": take what is predicted to be faster, its border included."""
    predicted = estimate(cluster.kernel, target)
    penalty = predicted.bytes / BORDER_BYTES_PER_US
    take = predicted.ours_us + penalty < predicted.xla_us
    reason = "predicted faster" if take else "XLA is predicted to be as fast"
    return Verdict(take, reason, predicted.ours_us, predicted.xla_us)


def is_small(step: Step, target: CpuTarget) -> bool:
    """Too short to deserve a custom call of its own, so that runs of such become one kernel."""
    return not isinstance(step, Loop) and _nest(step, target)[0] < 5.0
