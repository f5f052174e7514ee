"""The rules of tensor programs: kept by all that is compiled, and broken by planted faults.

An oracle goes through every point of a program and looks where it reads and writes.  What it finds
unsafe in a program with a fault planted, the verifier must refuse without going anywhere.
"""

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
from hlo_mlc.expr.build import apply, const, load, substitute, variable
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BOOL, F32, I32, INDEX, DType
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


def store(
    buffer: Buffer,
    axes: Sequence[Var],
    value: Expr | None = None,
    indices: Sequence[Expr] | None = None,
    guard: Expr | None = None,
) -> Assign:
    return Assign(
        buffer,
        tuple(axes if indices is None else indices),
        const(1, F32) if value is None else value,
        guard,
    )


A, R, T = (
    Buffer("a", F32, (4, 6), "operand"),
    Buffer("r", F32, (4, 6), "result"),
    Buffer("t", F32, (4, 6)),
)
I, J, K = variable("i", 4), variable("j", 6), variable("k", 6)  # noqa: E741


def program(*steps: Step, aliases: tuple = ()) -> TensorProgram:
    return TensorProgram("kernel", (A,), (R,), (T,), steps, aliases)


def nest(*stages: Stage, shared: int = 2) -> Nest:
    return Nest(stages, shared)


def mirrored(buffer: Buffer) -> Expr:
    return load(buffer, (I, index.subtract(index.constant(5), J)))


FULL = Stage("s", (I, J), (store(R, (I, J)),))
EARLY = Stage("e", (I, J), (store(T, (I, J)),))
MIRRORS = Stage("m", (I, J), (store(T, (I, J), mirrored(A)),))
COPY = Stage("c", (I, J), (store(R, (I, J), load(A, (I, J))),), overwrites=(A,))
N = Buffer("n", I32, (), "operand")
# A row of the result in each trip of a loop.
TRIP3, TRIP4 = variable("m", 3), variable("l", 4)
ROW = Stage("s", (J,), (store(R, (J,), indices=(TRIP3, J)),))
ROW_OF_FOUR = (store(R, (J,), indices=(TRIP4, J)),)
READS = Stage("t", (I, J), (store(T, (I, J), load(R, (I, J))),))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            [nest(Stage("s", (I, J), (store(R, (I, J), load(A, (I, index.add(J, I)))),)))],
            "index i \\+ j, from 0 to 8",
        ),
        (
            [
                nest(
                    Stage(
                        "s",
                        (I, J),
                        (store(R, (I, J), apply("add", load(T, (I, J)), const(1, F32))),),
                    )
                )
            ],
            "is read before",
        ),
        (
            [nest(Stage("s", (I,), (store(R, (I,), indices=(I, index.constant(2))),)))],
            r"\[0…3, 0…1\] is missing",
        ),
        ([nest(Stage("s", (I,), (store(R, (I,), indices=(I, J)),)))], "defines j"),
        ([nest(replace(FULL, assigns=(store(A, (I, J)),)))], "nothing that it may write"),
        ([nest(EARLY, Stage("s", (I, J), (store(R, (I, J), mirrored(T)),)))], "point by point"),
        ([nest(EARLY, Stage("s", (J, I), (store(R, (I, J)),)))], "expected its first axes"),
        (
            [
                nest(EARLY),
                nest(
                    Stage("s", (I, J), (store(R, (I, J), load(T, (I, J))),)),
                    replace(EARLY, name="later"),
                ),
            ],
            "overwrites t",
        ),
        (
            [nest(FULL), nest(Stage("s", (I, J), (store(R, (I, J), mirrored(R)),)))],
            "another of its points writes",
        ),
        ([Loop((nest(FULL),), variable("n", 0), 0)], "is missing"),
        ([Loop((nest(FULL),), variable("n", 2), 3)], "count 3 rounds"),
        ([Loop((nest(ROW, shared=1),), TRIP3, 3)], r"\[3, 0…5\] is missing"),
        (
            [
                Loop(
                    (
                        Branch(
                            const(1, BOOL), (nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1),), ()
                        ),
                    ),
                    TRIP4,
                    4,
                )
            ],
            "is missing",
        ),
        (
            [Loop((nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1), nest(READS)), TRIP4, 4)],
            "is read before",
        ),
        (
            [
                Loop(
                    (nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1),),
                    TRIP4,
                    None,
                    (),
                    const(1, BOOL),
                )
            ],
            "count None rounds",
        ),
        ([Branch(const(1, BOOL), (nest(FULL),), ())], "is missing"),
        ([Branch(const(1, BOOL), (), (nest(FULL),))], "is missing"),
        ([Branch(apply("eq", I, index.constant(1)), (), ())], "no axis or loop defines"),
        ([Loop((nest(FULL),), variable("n", 2), None, (), const(1, BOOL))], "count None rounds"),
        (
            [nest(EARLY, replace(FULL, assigns=(store(R, (I, J), guard=apply("ge", J, I)),)))],
            "under a guard",
        ),
        ([nest(replace(FULL, assigns=(store(R, (I, J), const(1, I32)),)))], "of the type"),
        (
            [nest(replace(FULL, assigns=(store(R, (I, J), load(Buffer("?", F32, ()), ())),)))],
            "does not exist",
        ),
    ],
)
def test_what_breaks_a_rule(steps, reason):
    with pytest.raises(VerifyError, match=reason):
        verify(program(*steps))


@pytest.mark.parametrize("read_by", [(), (nest(READS),)], ids=["result", "read_later"])
def test_a_loop_stores_a_row_in_each_trip(read_by):
    """All of them have run when it ends; so it is of a loop in a loop."""
    row = nest(replace(ROW, assigns=ROW_OF_FOUR), shared=1)
    verify(program(Loop((row,), TRIP4, 4), *read_by))
    one = variable("o", 1)
    element = Stage("s", (), (store(R, (), indices=(TRIP4, J)),))
    verify(program(Loop((Loop((nest(element, shared=0),), J, 6),), TRIP4, 4), *read_by))
    verify(program(Loop((Loop((row,), one, 1),), TRIP4, 4), *read_by))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([nest(replace(COPY, overwrites=()))], "does not say so"),
        (
            [nest(COPY), nest(Stage("s", (I, J), (store(T, (I, J), load(A, (I, J))),)))],
            "by stage s",
        ),
        ([nest(replace(COPY, assigns=(store(R, (I, J), mirrored(A)),)))], "another point reads"),
        (
            [nest(replace(COPY, assigns=(*COPY.assigns, store(T, (I, J), load(A, (I, J))))))],
            "before its point has read it",
        ),
        ([nest(MIRRORS, COPY)], "another point reads"),
        ([nest(COPY, MIRRORS, shared=1)], "by stage m"),
        ([nest(COPY), nest(FULL)], "one elementwise stage"),
        ([Loop((nest(COPY),), variable("n", 2), 2)], "one elementwise stage"),
    ],
)
def test_what_is_lost_in_place(steps, reason):
    for right in (nest(COPY), nest(EARLY, COPY), nest(MIRRORS, COPY, shared=1)):
        verify(program(right, aliases=((R, A),)))
    with pytest.raises(VerifyError, match=reason):
        verify(program(*steps, aliases=((R, A),)))


def test_the_kernel_and_the_index_are_named():
    far = index.add(J, index.constant(1))
    guard = apply("ge", J, index.constant(2))
    stage = Stage("s7", (I, J), (store(R, (I, J), load(A, (I, far), guard, const(0, F32))),))
    with pytest.raises(VerifyError) as caught:
        verify(program(nest(stage)))
    assert str(caught.value) == (
        "kernel kernel, stage s7 for i<4, j<6: index j + 1, from 1 to 6, is not known to stay "
        "inside of a: 4x6xf32 operand where j >= 2"
    )


@pytest.mark.parametrize("offset, right", [(-2, True), (-1, False)])
def test_what_is_looked_up_may_be_read_again_under_its_own_comparison(offset, right):
    """As from parts that are joined: the index is compared, and read or chosen under that."""
    table = Buffer("table", I32, (4,), "operand")
    first = apply("lt", I, index.constant(3))
    zero = const(0, I32)

    def place(value: Expr) -> Expr:
        clamped = index.minimum(apply("convert", value, dtype=INDEX), index.constant(7))
        return index.add(index.maximum(clamped, index.constant(0)), index.constant(-2))

    there = load(table, (I,), first, zero)
    inside = apply("ge", place(there), index.constant(-2 - offset))
    guard = apply("and", first, inside)
    for value in (load(table, (I,), guard, zero), apply("select", inside, there, zero)):
        looked = load(A, (I, place(value)), guard, const(0, F32))
        checked = TensorProgram(
            "kernel", (A, table), (R,), (), (nest(Stage("s", (I, J), (store(R, (I, J), looked),))),)
        )
        if right:
            verify(checked)
        else:
            with pytest.raises(VerifyError, match="from -2 to 5"):
                verify(checked)


def test_what_is_looked_up_is_guarded_or_clamped():
    there = apply("convert", load(N, ()), dtype=INDEX)
    inside = apply(
        "and", apply("ge", there, index.constant(0)), apply("lt", there, index.constant(6))
    )
    clamped = index.maximum(index.minimum(there, index.constant(5)), index.constant(0))
    for value, right in (
        (Load(A, (I, there)), False),
        (Load(A, (I, clamped)), True),
        (Load(A, (I, there), inside, const(0, F32)), True),
    ):
        looked = TensorProgram(
            "kernel", (A, N), (R,), (), (nest(Stage("s", (I, J), (store(R, (I, J), value),))),)
        )
        if right:
            verify(looked)
        else:
            with pytest.raises(VerifyError, match="from -2147483648 to 2147483647"):
                verify(looked)
