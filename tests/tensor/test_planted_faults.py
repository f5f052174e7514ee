"""Planted faults: what an oracle, which goes through all elements, finds unsafe is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.compiler import clusters_of
from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.support.options import Options
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.rewrite import map_expressions, replace_loads, with_parts
from hlo_mlc.tensor.verify import verify

X, Y, SQUARE = (5, 7), (7, 4), (6, 6)


def joined(x):
    e = jnp.tanh(x) * x
    return jax.nn.log_softmax(jnp.concatenate([e, x], 1), -1), e


def padded(x):
    e = jnp.tanh(x) * x
    return jnp.pad(e, ((0, 0), (1, 2))).sum(1), e


def product(x, y):
    return jnp.tanh(x @ y) + 1


def windows(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (3, 2), (2, 1), "SAME")


def window_gradient(x):
    return jax.grad(lambda x: windows(x).sum())(x)


def scanned(x):
    return jnp.cumsum(x, 1) * 2, lax.cummax(x, axis=0, reverse=True)


def looked_up(x, rows):
    return x[rows] * 2, x.at[rows].add(1.0)


def updated(x, rows):
    return lax.dynamic_update_slice(x, x[:2, :3] * 2, (rows[0], rows[1]))


def parts(x):
    return jnp.concatenate([jnp.tanh(x), jnp.exp(x) * x, jnp.sin(x), x.at[1:].mul(2)], 0)


def looped(x):
    return lax.fori_loop(0, 3, lambda i, c: jnp.roll(c, 1, 1) * 0.5 + x[i], x)


def chosen(x, rows):
    """Every trip sorts, adds up, or leaves alone, by its number or by what is carried."""

    def trip(i, c):
        total, x = c
        x = lax.switch(
            (rows[0] + i) % 3,
            [lambda x: jnp.sort(x, 1), lambda x: x.at[rows[1]].set(x.sum(0)), lambda x: x],
            x,
        )
        return lax.cond(x[0, 0] > total[0], lambda t: t + x.sum(0), lambda t: t, total), x

    return lax.fori_loop(0, 4, trip, (x[0], x))


def turned(x):
    return x.T + x, x[::-1].sum(0)


FAMILY: dict[Callable, tuple] = {
    joined: (X,),
    padded: (X,),
    product: (X, Y),
    windows: (X,),
    window_gradient: (X,),
    scanned: (X,),
    looked_up: (X, None),
    updated: (X, None),
    parts: (X,),
    looped: (X,),
    chosen: (X, None),
    turned: (SQUARE,),
}


def programs_of(
    function: Callable, *shapes: tuple[int, ...] | None, donate: Sequence[int] = ()
) -> list[TensorProgram]:
    """Its kernels; None stands for row numbers."""
    rng = np.random.default_rng(3)
    args = [
        np.array([0, 3, 1], np.int32)
        if shape is None
        else rng.normal(size=shape).astype(np.float32)
        for shape in shapes
    ]
    module = jax.jit(function, donate_argnums=tuple(donate)).lower(*args).compiler_ir()
    _, plan = clusters_of(module, Options().replace(choose="ours"))
    return [cluster.kernel.program for cluster, _ in plan.taken]


class Unsafe(Exception):
    """The oracle has found an access that must not happen."""


class Oracle:
    """Goes through all points, knowing what is written; the numbers themselves are random."""

    def __init__(self, program: TensorProgram) -> None:
        self.rng = np.random.default_rng(5)
        buffers = (*program.operands, *program.results, *program.temporaries)
        self.written = {b: np.full(b.shape, b.scope == "operand") for b in buffers}
        self.content = {b: self.numbers(b.shape, b.dtype) for b in buffers}
        self.heirs = dict(program.aliases)
        self.program = program

    def check(self) -> None:
        """Raises: Unsafe."""
        self.steps(self.program.steps, {})
        if not all(self.written[r].all() for r in self.program.results):
            raise Unsafe("a result is not complete")

    def steps(self, steps: Sequence[Step], env: dict[Var, np.ndarray]) -> None:
        for step in steps:
            if isinstance(step, Branch):
                evaluate(step.condition, {}, self.read)
                before = {b: done.copy() for b, done in self.written.items()}
                self.steps(step.then, env)
                one, self.written = self.written, before
                self.steps(step.otherwise, env)
                self.written = {b: np.asarray(done & one[b]) for b, done in self.written.items()}
            elif isinstance(step, Loop):
                for n in range(step.trip_count or 1):
                    self.steps((*step.test, *step.body), {**env, step.counter: np.array(n)})
            elif self.heirs.keys().isdisjoint(b for s in step.stages for b in s.outputs):
                for stage in step.stages:
                    self.stage(stage, stage.axes, env)
            else:
                self.point_by_point(step, env)

    def point_by_point(self, nest: Nest, env: dict[Var, np.ndarray]) -> None:
        """All stages at each point of the axes that they share."""
        shared = nest.shared if len(nest.stages) > 1 else 0
        for at in np.ndindex(*(v.extent for v in nest.stages[0].axes[:shared])):
            for stage in nest.stages:
                place = dict(zip(stage.axes[:shared], map(np.array, at), strict=True))
                self.stage(stage, stage.axes[shared:], {**env, **place})

    def stage(self, stage: Stage, axes: tuple[Var, ...], env: dict[Var, np.ndarray]) -> None:
        """A stage at all points of some axes, the others being known."""
        inner = self.points((*axes, *stage.reduce_axes), env)
        outer = self.points(axes, env)
        for e in stage.terms:
            evaluate(e, inner, self.read)
        for e in stage.initial:
            evaluate(e, outer, self.read)
        size = outer[axes[0]].size if axes else 1
        outer |= {a: self.numbers(size, a.dtype) for a in stage.accumulators}
        stores = [
            (a, self.stored(a, points))
            for group, points in ((stage.along, inner), (stage.assigns, outer))
            for a in group
        ]
        for position, (assign, places) in enumerate(stores):
            self.written[assign.buffer][places] = True
            operand = self.heirs.get(assign.buffer)
            if operand is not None:
                self.overwritten(stage, operand, assign, places, position, outer)

    def points(self, axes: Sequence[Var], env: dict[Var, np.ndarray]) -> dict[Var, np.ndarray]:
        extents = [v.extent for v in axes]
        grid = np.indices(extents).reshape(len(axes), math.prod(extents))
        return {**env, **dict(zip(axes, grid, strict=True))}

    def read(self, buffer: Buffer, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        self.inside(buffer, indices)
        if not self.written[buffer][indices].all():
            raise Unsafe(f"{buffer} is read before it is written")
        return self.content[buffer][indices]

    def numbers(self, shape: int | tuple[int, ...], dtype: DType) -> np.ndarray:
        """Also for row numbers: some of them exist, and some do not."""
        return self.rng.integers(-3, 40, shape).astype(dtype.numpy)

    def inside(self, buffer: Buffer, indices: tuple[np.ndarray, ...]) -> None:
        for i, extent in zip(indices, buffer.shape, strict=True):
            if i.size and (i.min() < 0 or i.max() >= extent):
                raise Unsafe(f"{i.min()} … {i.max()} in {buffer}")

    def stored(self, assign: Assign, env: dict[Var, np.ndarray]) -> tuple[np.ndarray, ...]:
        if assign.guard is not None:
            holds = np.asarray(evaluate(assign.guard, env, self.read))
            if not holds.any():
                return tuple(np.empty(0, int) for _ in assign.indices)
            env = {v: a[holds] if a.ndim and holds.ndim else a for v, a in env.items()}
        evaluate(assign.value, env, self.read)
        places = tuple(np.asarray(evaluate(i, env, self.read)) for i in assign.indices)
        self.inside(assign.buffer, places)
        return places

    def overwritten(
        self,
        stage: Stage,
        operand: Buffer,
        assign: Assign,
        places: tuple[np.ndarray, ...],
        position: int,
        env: dict[Var, np.ndarray],
    ) -> None:
        """From now on `operand` is not what it was; no point of the stage may care."""
        flat = np.ravel_multi_index(np.broadcast_arrays(*places), operand.shape)
        if np.unique(flat).size < flat.size:
            raise Unsafe("an element is stored twice")
        for n, other in enumerate(stage.assigns):
            for one in (r for e in (other.value, *other.indices) for r in loads(e)):
                if one.source != operand:
                    continue
                at = np.ravel_multi_index(
                    np.broadcast_arrays(*(evaluate(i, env, self.read) for i in one.indices)),
                    operand.shape,
                )
                if n > position or not np.array_equal(at, flat):
                    raise Unsafe("an element is read after it is overwritten")
        self.written[operand][places] = False


def stages_of(program: TensorProgram) -> list[Stage]:
    found, waiting = [], list(reversed(program.steps))
    while waiting:
        step = waiting.pop()
        if isinstance(step, Nest):
            found += step.stages
        else:
            waiting += reversed(step.inner)
    return found


def with_stage(program: TensorProgram, old: Stage, new: Sequence[Stage]) -> TensorProgram:
    def changed(steps: Sequence[Step]) -> tuple[Step, ...]:
        found: list[Step] = []
        for s in steps:
            if not isinstance(s, Nest):
                found.append(with_parts(s, changed))
            elif stages := tuple(
                n for stage in s.stages for n in (new if stage is old else (stage,))
            ):
                found.append(replace(s, stages=stages))
        return tuple(found)

    return replace(program, steps=changed(program.steps))


def moved_axis(stage: Stage, old: Var, new: Var) -> Stage:
    """The stage with an axis renamed, whatever the extents are."""

    def group(axes: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(new if v is old else v for v in axes)

    scan = stage.scan and replace(stage.scan, axis=group((stage.scan.axis,))[0])
    return replace(
        map_expressions(stage, lambda e: substitute(e, {old: new})),
        scan=scan,
        axes=group(stage.axes),
        reduce_axes=group(stage.reduce_axes),
    )


def other_indices(stage: Stage) -> Iterator[tuple[str, Callable[[tuple[Expr, ...]], tuple]]]:
    yield "swapped", lambda indices: (*indices[1::-1], *indices[2:])
    yield "shifted", lambda indices: (*indices[:-1], index.add(indices[-1], index.constant(1)))


def faults(program: TensorProgram) -> Iterator[tuple[str, TensorProgram]]:
    """The program with one fault each."""
    for stage in stages_of(program):
        for fault, new in stage_faults(stage):
            yield f"{stage.name} {fault}", with_stage(program, stage, new)
    steps = program.steps
    for n in range(1, len(steps)):
        yield (
            f"step {n} early",
            replace(program, steps=(*steps[: n - 1], steps[n], steps[n - 1], *steps[n + 1 :])),
        )


def stage_faults(stage: Stage) -> Iterator[tuple[str, Sequence[Stage]]]:
    yield "left out", ()
    for v in (*stage.axes, *stage.reduce_axes):
        for extent in {v.extent + 1, v.extent - 1, 2 * v.extent} - {0}:
            yield f"{v}: {extent}", (moved_axis(stage, v, Var(v.name, v.dtype, extent)),)
    for buffer in stage.inputs:
        yield (
            f"{buffer} without guard",
            (replace_loads(stage, {buffer: lambda one: load(one.source, one.indices)}),),
        )
        for name, other in other_indices(stage):
            if buffer.shape[1:] or (buffer.shape and name == "shifted"):
                yield (
                    f"{buffer} {name}",
                    (
                        replace_loads(
                            stage,
                            {
                                buffer: lambda one, other=other: load(
                                    one.source, other(one.indices), one.guard, one.default
                                )
                            },
                        ),
                    ),
                )
    for n, a in enumerate(stage.assigns):

        def changed(new: Sequence[Assign], n: int = n) -> tuple[Stage]:
            return (replace(stage, assigns=(*stage.assigns[:n], *new, *stage.assigns[n + 1 :])),)

        if len(stage.assigns) > 1:
            yield f"assignment {n} left out", changed(())
            yield (
                f"assignment {n} last",
                (replace(stage, assigns=(*stage.assigns[:n], *stage.assigns[n + 1 :], a)),),
            )
        if a.guard is not None:
            yield f"assignment {n} without guard", changed((replace(a, guard=None),))
        for name, other in other_indices(stage):
            if a.buffer.shape[1:] or (a.buffer.shape and name == "shifted"):
                yield f"assignment {n} {name}", changed((replace(a, indices=other(a.indices)),))


def is_unsafe(program: TensorProgram) -> str:
    try:
        Oracle(program).check()
    except Unsafe as error:
        return str(error)
    return ""


def optimizer(p, m, g):
    m = 0.9 * m + 0.1 * g
    return p - 0.01 * m, m


def beside_a_transpose(x, y):
    return x.T + y, x * 2


def normalized(x):
    return jnp.exp(x) / jnp.sum(x * x, 1, keepdims=True)


PROGRAMS = [(f, shapes, ()) for f, shapes in FAMILY.items()] + [
    (optimizer, (X, X, X), (0, 1)),
    (beside_a_transpose, (X, X[::-1]), (1,)),
    (normalized, (X,), (0,)),
]


@pytest.mark.parametrize(
    ("function", "shapes", "donate"), PROGRAMS, ids=[f.__name__ for f, *_ in PROGRAMS]
)
def test_planted_faults_are_refused(function, shapes, donate):
    planted = dangerous = 0
    for program in programs_of(function, *shapes, donate=donate):
        verify(program)
        assert not is_unsafe(program)
        for fault, changed in faults(program):
            planted += 1
            reason = is_unsafe(changed)
            if reason:
                dangerous += 1
                with pytest.raises(VerifyError):
                    verify(changed)
                    pytest.fail(f"{fault} is not seen: {reason}")
    assert dangerous > planted / 4
