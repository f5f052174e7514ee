"""Folds over windows that overlap: depthwise and narrow convolutions, pooling, stencils as sums.

    naive loops  ->  split, reorder  ->  expand, distribute  ->  fuse, split "guard"  ->  bind

    for b block:
      for t thread:                        some outputs along an axis of the windows, as vectors
        for u, v: sums[u, v] = initial
        for the window: for u, v: sums[u, v] = combine(sums[u, v], term)
        for u, v: results

Neighbouring outputs of a thread share most of their windows: with the loops written out, what they
share is loaded once and stays in registers.  What threads share with each other is served by the
first cache, which is the same memory as shared memory would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Var, loads
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_stage
from hlo_mlc.templates.cuda.base import (
    THREADS,
    bound,
    by_threads,
    power_of_two,
    product,
    vector_width,
)
from hlo_mlc.templates.cuda.contraction import ContractionTemplate
from hlo_mlc.tensor.classify import (
    contraction,
    cost,
    is_map,
    slides,
    sliding,
    stride,
    why_not_apart,
    why_not_folded,
)
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Outputs of a thread along an axis of the windows, best first: each divides many image sizes.
ALONG = (4, 8, 7, 6, 5, 3, 2)
# Bytes of a thread's outputs: with more, the windows of all threads are too much for a cache.
SHARE_BYTES = 32
# Terms of a result that a thread folds alone where nothing is shared: those of small pools.
FEW_TERMS = 16
# Simple operations of a thread that are written out: code size.
WRITTEN_OUT = 1500
# Features of a convolution from which on it is done as a matrix product.
MANY_FEATURES = 16


@dataclass(frozen=True, slots=True)
class WindowTemplate:
    """Outputs to threads, windows in registers."""

    name: str = "window"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not a fold over windows for this template; empty where it is."""
        if len(nest.stages) != 1 or is_map(nest.stages[0]):
            return "not a single reduction"
        stage = nest.stages[0]
        if reason := why_not_folded(stage):
            return reason
        if not slides(stage) and not (stage.axes and product(stage.reduce_axes) <= FEW_TERMS):
            return "its terms are used once"
        roles = contraction(stage)
        if (
            roles is not None
            and product(roles.columns) >= MANY_FEATURES
            and product(roles.rows) >= MANY_FEATURES
            and not ContractionTemplate().refusal(nest, target)
        ):
            return "features enough for tiles of a matrix product"
        return why_not_apart(stage)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Outputs of a thread along an axis of the windows, elements of a vector, threads."""
        return {"along": (1, 2, 4, 8), "vector": (1, 2, 4), "threads": (64, 128, 256)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """As many outputs as there are threads to be had without them."""
        stage = coalesce(nest.stages[0])
        axis, vector = _axis(stage), _vector(stage)
        points = product(stage.axes) // vector
        most = SHARE_BYTES // (vector * max(b.dtype.bytes for b in stage.outputs))
        fits = [
            u
            for u in ALONG
            if axis is not None
            and axis.extent % u == 0
            and u <= most
            and _shares_most(stage, axis)
            and points // u >= THREADS * target.multiprocessors
            and u * vector * product(stage.reduce_axes) * cost(*stage.terms) <= WRITTEN_OUT
        ]
        return {
            "along": fits[0] if fits else 1,
            "vector": vector,
            "threads": min(THREADS, max(32, power_of_two(points))),
        }

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        schedule = open_stage(stage, nest)
        return Scheduled.of(_windows(schedule, stage, parameters, target))


def _axis(stage: Stage) -> Var | None:
    """The innermost axis along which windows overlap, but for the last one: there neighbouring
    threads have neighbouring outputs."""
    return next((v for v in reversed(stage.axes[:-1]) if sliding(stage, v)), None)


def _shares_most(stage: Stage, axis: Var) -> bool:
    """Whether neighbours along an axis share at least half of their windows."""
    for i in {i for term in stage.terms for load in loads(term) for i in load.indices}:
        terms, _ = index.affine(i)
        reach = sum(abs(c) * (v.extent - 1) for v, c in terms.items() if v in stage.reduce_axes)
        if 2 * abs(terms.get(axis, 0)) > reach + 1:
            return False
    return True


def _vector(stage: Stage) -> int:
    """Elements along the last axis that can be loaded at once."""
    last = stage.axes[-1]
    accesses = [access for term in stage.terms for access in loads(term)]
    if sliding(stage, last) or any(stride(a, last) not in (0, 1) for a in accesses):
        return 1
    return vector_width(stage, last)


def _windows(
    schedule: Schedule, stage: Stage, parameters: Parameters, target: CudaTarget
) -> Schedule:
    """The rewrites of naive loops."""
    axis, last = _axis(stage), stage.axes[-1]
    along = math.gcd(parameters["along"], axis.extent) if axis is not None else 1
    vector = math.gcd(parameters["vector"], _vector(stage))
    shares = {v: along if v is axis else vector if v is last else 1 for v in stage.axes}
    own = [f"{v.name}.i" for v, share in shares.items() if share > 1]
    others = [f"{v.name}.o" if share > 1 else v.name for v, share in shares.items()]
    for v, share in shares.items():
        schedule = schedule.split(v.name, share) if share > 1 else schedule
    schedule = schedule.reorder(*others, *own) if own else schedule
    schedule = _over_windows(schedule, stage, own, along * vector)
    if along > 1:
        schedule = schedule.unroll(f"{axis.name}.i")
    if vector > 1:
        schedule = schedule.vectorize(f"{last.name}.i")
    schedule, name = schedule.fuse(*others), ".".join(others)
    number = constant_extent(schedule.loops(name)[0])
    return bound(
        *by_threads(schedule, name, min(parameters["threads"], power_of_two(number)), target)
    )


def _over_windows(schedule: Schedule, stage: Stage, own: Sequence[str], outputs: int) -> Schedule:
    """The windows of all outputs of a thread, which the loops `own` are over, one place after the
    other: the inner loops over them are written out."""
    windows = [v.name for v in stage.reduce_axes]
    for each in reversed(own):
        schedule = schedule.expand(each, "register")
    if own:
        schedule = schedule.distribute(own[0], windows[0]).reorder(*windows, *own)
    written = outputs * max(1, cost(*stage.terms))
    for window in reversed(stage.reduce_axes):
        written *= window.extent
        if written > WRITTEN_OUT:
            break
        schedule = schedule.unroll(window.name)
    return schedule
