"""Maps: 16 bytes a thread and step, neighbouring threads side by side.

    for b block:
      for t thread:
        for u unroll:
          position = (b * unroll + u) * threads + t
          if position < vectors: for v vectorize: y[position * width + v] = …
        the last thread of all: the elements behind the last vector
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Load, Var
from hlo_mlc.loops.core import LoopKind, Stmt
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import loop, substitute
from hlo_mlc.target.cuda import VECTOR_BYTES, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled
from hlo_mlc.templates.cuda.base import (
    THREADS,
    at,
    below,
    flat,
    lane_bytes,
    lanes,
    power_of_two,
    product,
    thread_loop,
    thread_var,
    vector_width,
    where,
)
from hlo_mlc.tensor.classify import cost, is_injective, is_map
from hlo_mlc.tensor.coalesce import accesses, coalesce
from hlo_mlc.tensor.core import Nest, Stage


@dataclass(frozen=True, slots=True)
class ElementwiseTemplate:
    """One or several vectors a thread."""

    name: str = "elementwise"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not one independent map; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = nest.stages[0]
        if not all(is_injective(a, stage.axes) for a in stage.assigns):
            return "several points may write one element"
        return reads_foreign_results(stage)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Vectors a thread, and threads a block."""
        return {"unroll": (1, 2, 4), "threads": (128, 256, 512)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """Several loads in flight for short bodies, if there are blocks enough for all of the
        GPU."""
        stage = coalesce(nest.stages[0])
        vectors = product(stage.axes) // _width(stage)
        threads = min(THREADS, max(32, power_of_two(vectors)))
        plenty = vectors > 8 * threads * target.multiprocessors
        short = sum(cost(a.value) for a in stage.assigns) <= 20
        return {"unroll": 2 if plenty and short else 1, "threads": threads}

    def apply(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        threads, unroll = parameters["threads"], parameters["unroll"]
        width, total = _width(stage), product(stage.axes)
        vectors, rest = divmod(total, width)
        name = stage.axes[-1].name if stage.axes else stage.name
        point = lower_stage(Stage(stage.name, (), stage.assigns))

        def element(position: Expr) -> tuple[Stmt, ...]:
            return substitute(point, at(position, stage.axes))

        def one(vector: Expr) -> tuple[Stmt, ...]:
            return where(below(vector, vectors), lanes(
                f"{name}_v", width, lambda v: element(flat((vector, 1), (v, width)))))

        def tail(place: Expr, places: int) -> tuple[Stmt, ...]:
            """The elements behind the last vector, by the last of all threads."""
            if not rest:
                return ()
            return where(index.compare("eq", place, index.constant(places - 1)), (
                loop(f"{name}_r", rest, LoopKind.SERIAL, lambda r: element(
                    index.add(index.constant(vectors * width), r))),))

        threads = min(threads, power_of_two(vectors))
        t = thread_var(f"{name}_t", threads)
        if outer is LoopKind.SERIAL:  # one block does it all: its threads need not wait
            rounds = loop(f"{name}_o", -(-vectors // threads), LoopKind.SERIAL,
                          lambda o: one(flat((o, 1), (t, threads))))
            return Scheduled((thread_loop(t, (*((rounds,) if vectors else ()),
                                              *tail(t, threads))),), ())
        unroll = min(unroll, max(1, vectors // threads))
        blocks = max(1, -(-vectors // (threads * unroll)))

        def block(b: Var) -> tuple[Stmt, ...]:
            last = tail(flat((b, 1), (t, threads)), blocks * threads)
            if not vectors:
                return (thread_loop(t, last),)
            if unroll == 1:
                return (thread_loop(t, (*one(flat((b, 1), (t, threads))), *last)),)
            return (thread_loop(t, (loop(f"{name}_u", unroll, LoopKind.UNROLL, lambda u: one(
                flat((b, 1), (u, unroll), (t, threads)))), *last)),)

        return Scheduled((loop(f"{name}_b", blocks, LoopKind.BLOCK, block),), ())


def reads_foreign_results(stage: Stage) -> str:
    """Says so where a point of the stage reads an element that another one overwrites."""
    written = set(stage.outputs)
    for access in accesses(stage):
        if isinstance(access, Load) and access.source in written and not any(
                a.buffer == access.source and a.indices == access.indices
                for a in stage.assigns):
            return "it reads elements that other points overwrite"
    return ""


def _width(stage: Stage) -> int:
    """Elements of one vector: a single row may end behind its last whole vector."""
    if not stage.axes:
        return 1
    inner = stage.axes[-1]
    return VECTOR_BYTES // lane_bytes(stage, inner) if len(stage.axes) == 1 \
        else vector_width(stage, inner)
