"""Folds over windows that overlap: depthwise and narrow convolutions, pooling, stencils as sums.

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
from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, For, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop, when
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled
from hlo_mlc.templates.cuda.base import (
    THREADS,
    at,
    below,
    flat,
    lanes,
    power_of_two,
    product,
    store,
    thread_loop,
    thread_var,
    vector_width,
)
from hlo_mlc.templates.cuda.contraction import ContractionTemplate
from hlo_mlc.templates.cuda.elementwise import reads_foreign_results
from hlo_mlc.tensor.classify import contraction, cost, is_injective, is_map, slides, sliding, stride
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
        if stage.along or stage.scan is not None:
            return "it stores on the way"
        if any(v.extent == 0 for v in stage.reduce_axes):
            return "an axis without elements"
        if not slides(stage) and not (stage.axes and product(stage.reduce_axes) <= FEW_TERMS):
            return "its terms are used once"
        roles = contraction(stage)
        if roles is not None and product(roles.columns) >= MANY_FEATURES \
                and product(roles.rows) >= MANY_FEATURES \
                and not ContractionTemplate().refusal(nest, target):
            return "features enough for tiles of a matrix product"
        if not all(is_injective(a, stage.axes) for a in stage.assigns):
            return "several points may write one element"
        return reads_foreign_results(stage)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Outputs of a thread along an axis of the windows, elements of a vector, threads."""
        return {"along": (1, 2, 4, 8), "vector": (1, 2, 4), "threads": (64, 128, 256)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """As many outputs as there are threads to be had without them."""
        stage = coalesce(nest.stages[0])
        axis, vector = _axis(stage), _vector(stage)
        points = product(stage.axes) // vector
        most = SHARE_BYTES // (vector * max(b.dtype.bytes for b in stage.outputs))
        fits = [u for u in ALONG if axis is not None and axis.extent % u == 0
                and u <= most and _shares_most(stage, axis)
                and points // u >= THREADS * target.multiprocessors
                and u * vector * product(stage.reduce_axes) * cost(*stage.terms) <= WRITTEN_OUT]
        return {"along": fits[0] if fits else 1, "vector": vector,
                "threads": min(THREADS, max(32, power_of_two(points)))}

    def apply(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> Scheduled:
        """The loops for the given parameters."""
        return Scheduled(_windows(coalesce(nest.stages[0]), parameters, outer), ())


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


def _windows(stage: Stage, parameters: Parameters, outer: LoopKind) -> tuple[Stmt, ...]:
    thread = _Thread(stage, parameters)
    number, name = thread.number, stage.name
    blocks = -(-thread.threads // number.extent)
    if outer is LoopKind.SERIAL:  # one block does it all: its threads need not wait
        rounds = loop(f"{name}_o", blocks, LoopKind.SERIAL,
                      lambda o: thread.body(flat((o, 1), (number, number.extent))))
        body: tuple[Stmt, ...] = (thread_loop(number, (rounds,)),)
    else:
        body = (loop(f"{name}_b", blocks, LoopKind.BLOCK,
                     lambda b: allocated(thread.sums, (thread_loop(number, thread.body(flat(
                         (b, 1), (number, number.extent)))),))),)
    return body if outer is LoopKind.BLOCK else allocated(thread.sums, body)


class _Thread:
    """What one thread does: some outputs along an axis of the windows, as vectors.

    `threads` are how many there are to be, `number` is this one's in its block, `sums` what its
    outputs are folded in.
    """

    def __init__(self, stage: Stage, parameters: Parameters) -> None:
        self._stage, self._axis = stage, _axis(stage)
        self._along = (math.gcd(parameters["along"], self._axis.extent)
                       if self._axis is not None else 1)
        self._vector = math.gcd(parameters["vector"], _vector(stage))
        self._share = {v: self._along if v is self._axis else
                       self._vector if v is stage.axes[-1] else 1 for v in stage.axes}
        self._parts = tuple(Var(v.name, INDEX, v.extent // self._share[v]) for v in stage.axes)
        self.threads = product(self._parts)
        self.number = thread_var(f"{stage.name}_t",
                                 min(parameters["threads"], power_of_two(self.threads)))
        shape = (self.number.extent, self._along, self._vector)
        self.sums = tuple(Buffer(f"{stage.name}_{n}_sum", a.dtype, shape, "thread")
                          for n, a in enumerate(stage.accumulators))

    def body(self, position: Expr) -> tuple[Stmt, ...]:
        """The thread of that number among all."""
        stage, here = self._stage, at(position, self._parts)

        def place(u: Expr, v: Expr) -> dict[Var, Expr]:
            inner = {self._axis: u, stage.axes[-1]: v}
            return {x: index.add(index.multiply(here[part], index.constant(share)),
                                 inner[x] if share > 1 else index.constant(0))
                    for (x, share), part in zip(self._share.items(), self._parts, strict=True)}

        def begin(u: Expr, v: Expr) -> tuple[Stmt, ...]:
            return tuple(Store(b, (self.number, u, v), substitute(e, place(u, v)))
                         for b, e in zip(self.sums, stage.initial, strict=True))

        def step(u: Expr, v: Expr) -> tuple[Stmt, ...]:
            terms = tuple(substitute(e, place(u, v)) for e in stage.terms)
            return (Accumulate(self.sums, (self.number, u, v), stage.combiner, terms),)

        def finish(u: Expr, v: Expr) -> tuple[Stmt, ...]:
            mapping = {**place(u, v), **{a: Load(b, (self.number, u, v)) for a, b in
                                         zip(stage.accumulators, self.sums, strict=True)}}
            return tuple(store(a, mapping) for a in stage.assigns)

        return when(below(position, self.threads), (
            *self._each(begin), *self._over_window(self._each(step)), *self._each(finish)))

    def _each(self, body: Callable[[Expr, Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """`body(along the axis, along the vector)` for each output of the thread."""
        def row(u: Expr) -> tuple[Stmt, ...]:
            return lanes(f"{self._stage.name}_v", self._vector, lambda v: body(u, v))

        if self._along == 1:
            return row(index.constant(0))
        return (loop(f"{self._stage.name}_u", self._along, LoopKind.UNROLL, row),)

    def _over_window(self, step: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """`step` for each place of the window: the inner loops are written out."""
        written = self._along * self._vector * max(1, cost(*self._stage.terms))
        for window in reversed(self._stage.reduce_axes):
            written *= window.extent
            kind = LoopKind.UNROLL if written <= WRITTEN_OUT else LoopKind.SERIAL
            step = (For(window, index.constant(window.extent), kind, step),)
        return step
