"""Programs to schedule, small ones by hand and at random, and a way to compare what two compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F16, F32, I32, DType
from hlo_mlc.loops.core import Allocate, For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_nest, lower_stage
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import ONE, TWO, in_tiles_of_four, minus
from making.verified import unproven


class RandomProgram:
    """A few stages over a matrix [n, m]: maps, shifted and transposed reads, reductions."""

    def __init__(self, seed: int, dtype: DType) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.n, self.m = (int(v) for v in self.rng.integers(1, 13, 2))
        if self.rng.random() < 0.4:
            self.m = self.n
        self.operands = [Buffer("x", dtype, (self.n, self.m), "operand")]
        self.buffers: list[Buffer] = []
        self.stages: list[Stage] = []
        for position in range(int(self.rng.integers(1, 5))):
            self.add_stage(position)

    def pick(self, options: list):
        return options[int(self.rng.integers(len(options)))]

    def term(self, i: Expr, j: Expr) -> Expr:
        """A value at (i, j) made of one or two reads."""
        value = self.read(i, j)
        if self.rng.random() < 0.7:
            value = apply(self.pick(["add", "sub", "mul", "max", "min"]), value, self.read(i, j))
        return value

    def read(self, i: Expr, j: Expr) -> Expr:
        source = self.pick([*self.operands, *self.buffers, *self.buffers])
        zero = const(0, self.dtype)
        if source.shape == ():
            return load(source, ())
        if source.shape == (self.n,):
            return load(source, (i,))
        if len(source.shape) == 1:
            return load(source, (j,))
        kind = self.rng.random()
        if kind < 0.15 and self.n == self.m:
            return load(source, (j, i))
        if kind < 0.3:
            before = index.subtract(j, index.constant(1))
            return load(source, (i, before), apply("ge", before, index.constant(0)), zero)
        if kind < 0.4:
            after = index.add(i, index.constant(1))
            return load(source, (after, j), apply("lt", after, index.constant(self.n)), zero)
        if kind < 0.5:
            return load(source, (index.subtract(index.constant(self.n - 1), i), j))
        return load(source, (i, j))

    def add_stage(self, position: int) -> None:
        i, j = variable(f"i{position}", self.n), variable(f"j{position}", self.m)
        accumulator = Var(f"acc{position}", self.dtype)
        shape, axes, reduced = self.pick(
            [
                ((self.n, self.m), (i, j), ()),
                ((self.n, self.m), (i, j), ()),
                ((self.n,), (i,), (j,)),
                ((self.m,), (j,), (i,)),
                ((), (), (i, j)),
            ]
        )
        buffer = Buffer(f"b{position}", self.dtype, shape, "scratch")
        term = self.term(i, j)
        if not reduced:
            stage = Stage(f"s{position}", axes, (Assign(buffer, axes, term),))
        else:
            op = self.pick(["add", "max", "min"])
            value = apply("add", accumulator, const(1, self.dtype))
            along, copy = (), None
            if self.rng.random() < 0.3:
                copy = Buffer(f"c{position}", self.dtype, (self.n, self.m), "scratch")
                along = (Assign(copy, (i, j), term),)
            stage = Stage(
                f"s{position}",
                axes,
                (Assign(buffer, axes, value),),
                reduced,
                named_combiner(op, self.dtype),
                (term,),
                (const(3, self.dtype),),
                (accumulator,),
                along,
            )
            if copy is not None:
                self.buffers.append(copy)
        self.buffers.append(buffer)
        self.stages.append(stage)

    def loops(self) -> LoopProgram:
        """The naive loops; the last buffer is the result, the others are scratch."""
        last = self.buffers[-1]
        result = Buffer(last.name, last.dtype, last.shape, "result")
        body = tuple(
            stmt for stage in self.stages for stmt in lower_stage(_with_buffer(stage, last, result))
        )
        scratch, offset = [], 0
        for buffer in self.buffers[:-1]:
            scratch.append((buffer, offset))
            offset += -(-buffer.bytes // 64) * 64
        return LoopProgram("random", tuple(self.operands), (result,), body, tuple(scratch))

    def inputs(self) -> list[np.ndarray]:
        values = self.rng.integers(-50, 50, (self.n, self.m))
        return [values.astype(self.dtype.numpy)]


class RandomProduct(RandomProgram):
    """Rows of a matrix [n, m], and what is computed of them, multiplied with each other."""

    def add_stage(self, position: int) -> None:
        i, j, k = (
            variable(f"{name}{position}", size)
            for name, size in (("i", self.n), ("j", self.n), ("k", self.m))
        )
        accumulator, x = Var(f"acc{position}", self.dtype), self.operands[0]
        buffer = Buffer(f"b{position}", self.dtype, (self.n, self.n), "scratch")
        left, right = (
            apply("add", load(x, (row, k)), const(self.pick([0, 1]), self.dtype))
            for row in self.pick([(i, j), (j, i)])
        )
        value = accumulator
        if self.buffers:
            value = apply("max", value, load(self.pick(self.buffers), (i, j)))
        self.stages.append(
            Stage(
                f"s{position}",
                (i, j),
                (Assign(buffer, (i, j), value),),
                (k,),
                named_combiner("add", self.dtype),
                (apply("mul", left, right),),
                (const(3, self.dtype),),
                (accumulator,),
            )
        )
        self.buffers.append(buffer)


class RandomUpdates(RandomProgram):
    """The same, what one stage has stored being updated before the next one."""

    def add_stage(self, position: int) -> None:
        if self.buffers:
            buffer = self.buffers[-1]
            axes = tuple(variable(f"u{position}{d}", size) for d, size in enumerate(buffer.shape))
            op = self.pick(["add", "max", "sub"])
            value = apply(op, load(buffer, axes), const(2, self.dtype))
            self.stages.append(Stage(f"u{position}", axes, (Assign(buffer, axes, value),)))
        super().add_stage(position)


def _with_buffer(stage: Stage, old: Buffer, new: Buffer) -> Stage:
    def swap(assigns: tuple[Assign, ...]) -> tuple[Assign, ...]:
        return tuple(
            Assign(new if a.buffer == old else a.buffer, a.indices, a.value, a.guard)
            for a in assigns
        )

    return Stage(
        stage.name,
        stage.axes,
        swap(stage.assigns),
        stage.reduce_axes,
        stage.combiner,
        stage.terms,
        stage.initial,
        stage.accumulators,
        swap(stage.along),
    )


@pytest.fixture(scope="session")
def random_program() -> Callable[..., RandomProgram]:
    """`random_program(seed, dtype=I32)`: integers make every order of summation exact."""
    return lambda seed, dtype=I32: RandomProgram(seed, dtype)


@pytest.fixture(scope="session")
def random_product() -> Callable[..., RandomProgram]:
    """The same of products."""
    return lambda seed, dtype=I32: RandomProduct(seed, dtype)


@pytest.fixture(scope="session")
def random_updates() -> Callable[..., RandomUpdates]:
    """The same with updates."""
    return lambda seed, dtype=I32: RandomUpdates(seed, dtype)


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """`assert_same(before, after, inputs)`: the second program is sound and computes the same."""

    def check(before: LoopProgram, after: LoopProgram, inputs: list[np.ndarray]) -> None:
        assert unproven(after) == ()
        expected, actual = interpret(before, inputs), interpret(after, inputs, seed=1)
        for one, other in zip(expected, actual, strict=True):
            if one.dtype.kind in "iub":
                np.testing.assert_array_equal(other, one)
            else:
                np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-4)

    return check


class Tiny:
    """Hand-made stages over f32 buffers, for golden texts and refusals."""

    def operand(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, F32, shape, "operand")

    def result(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, F32, shape, "result")

    def scratch(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, F32, shape, "scratch")

    def program(self, *stages: Stage) -> LoopProgram:
        """A program whose signature follows from the scopes of the buffers in it."""
        statements: list[Stmt] = []
        buffers: dict[Buffer, None] = {}
        for stage in stages:
            buffers.update(dict.fromkeys((*stage.inputs, *stage.outputs)))
            statements += lower_stage(stage)
        scoped = {
            scope: tuple(b for b in buffers if b.scope == scope)
            for scope in ("operand", "result", "scratch")
        }
        scratch, offset = [], 0
        for buffer in scoped["scratch"]:
            scratch.append((buffer, offset))
            offset += -(-buffer.bytes // 64) * 64
        return LoopProgram(
            "tiny", scoped["operand"], scoped["result"], tuple(statements), tuple(scratch)
        )

    def map(
        self,
        target: Buffer,
        names: str,
        value: Callable[..., Expr],
        order: tuple[int, ...] | None = None,
    ) -> Stage:
        """`target[axes] = value(*axes)`; axes are named by the letters of `names`."""
        axes = tuple(variable(c, n) for c, n in zip(names, target.shape, strict=True))
        placed = tuple(axes[k] for k in order) if order else axes
        return Stage(f"map_{target.name}", placed, (Assign(target, axes, value(*axes)),))

    def fold(
        self,
        target: Buffer,
        names: str,
        reduced: str,
        extents: int | tuple[int, ...],
        value: Callable[..., Expr],
        op: str = "add",
    ) -> Stage:
        """`target[axes] = sum over reduced of value(*axes, *reduced)`."""
        axes = tuple(variable(c, n) for c, n in zip(names, target.shape, strict=True))
        sizes = (extents,) if isinstance(extents, int) else extents
        inner = tuple(variable(c, n) for c, n in zip(reduced, sizes, strict=True))
        accumulator = Var("acc", F32)
        return Stage(
            op,
            axes,
            (Assign(target, axes, accumulator),),
            inner,
            named_combiner(op, F32),
            (value(*axes, *inner),),
            (const(0.0, F32),),
            (accumulator,),
        )


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture
def copy(tiny) -> LoopProgram:
    """y[i] = x[i] for ten elements."""
    x, y = tiny.operand("x", 10), tiny.result("y", 10)
    return tiny.program(tiny.map(y, "i", lambda i: load(x, (i,))))


@pytest.fixture
def transposed(tiny) -> LoopProgram:
    """y[i, j] = x[j, i]."""
    x, y = tiny.operand("x", 8, 4), tiny.result("y", 4, 8)
    return tiny.program(tiny.map(y, "ij", lambda i, j: load(x, (j, i))))


@pytest.fixture
def total(tiny) -> LoopProgram:
    """y[] = sum of 43 elements."""
    x, y = tiny.operand("x", 43), tiny.result("y")
    return tiny.program(tiny.fold(y, "", "k", 43, lambda k: load(x, (k,))))


@pytest.fixture
def grand_total(tiny) -> LoopProgram:
    """y[] = sum of 4 x 20 elements."""
    x, y = tiny.operand("x", 4, 20), tiny.result("y")
    return tiny.program(tiny.fold(y, "", "ij", (4, 20), lambda i, j: load(x, (i, j))))


@pytest.fixture
def running(tiny) -> LoopProgram:
    """y[i] = y[i - 1] + x[i]: every iteration needs the one before."""
    x, y = tiny.operand("x", 9), tiny.result("y", 9)

    def value(i: Expr) -> Expr:
        before = load(y, (minus(i, 1),), apply("ge", i, index.constant(1)), ONE)
        return apply("add", before, load(x, (i,)))

    return tiny.program(tiny.map(y, "i", value))


@pytest.fixture
def padded(tiny) -> LoopProgram:
    """A copy with a zero before and behind it."""
    x, y = tiny.operand("x", 8), tiny.result("y", 10)
    return tiny.program(
        tiny.map(
            y,
            "i",
            lambda i: load(
                x,
                (minus(i, 1),),
                all_of(
                    index.compare("ge", i, index.constant(1)),
                    index.compare("lt", i, index.constant(9)),
                ),
                const(0.0, F32),
            ),
        )
    )


@pytest.fixture
def windows(tiny) -> Schedule:
    return in_tiles_of_four(tiny, 7)


@pytest.fixture
def signals() -> list[np.ndarray]:
    return [
        np.arange(14, dtype=np.float32).reshape(2, 7),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    ]


@pytest.fixture
def small_product() -> Schedule:
    """y[e] = sum of a[e, k] * b[k], narrow factors, the sums of which are side by side."""
    a, b, y = (
        Buffer("a", F16, (4, 16), "operand"),
        Buffer("b", F16, (16,), "operand"),
        Buffer("y", F32, (4,), "result"),
    )
    e, k, sum_of = variable("e", 4), variable("k", 16), Var("acc", F32)
    term = apply(
        "mul", *(apply("convert", load(f, i), dtype=F32) for f, i in ((a, (e, k)), (b, (k,))))
    )
    stage = Stage(
        "dot",
        (e,),
        (Assign(y, (e,), sum_of),),
        (k,),
        named_combiner("add", F32),
        (term,),
        (const(0.0, F32),),
        (sum_of,),
    )
    return (
        Schedule(LoopProgram("dot", (a, b), (y,), lower_stage(stage)))
        .expand("e", "stack")
        .distribute("e", "k")
    )


@pytest.fixture
def halves() -> list[np.ndarray]:
    return [np.arange(64, dtype=np.float16).reshape(4, 16), np.arange(16, dtype=np.float16)]


@pytest.fixture
def normed(tiny) -> LoopProgram:
    """m[i] = sqrt(sum over k of x[i, k]), y[i, j] = x[i, j] / m[i], z[i] = m[i]."""
    x, y = tiny.operand("x", 4, 8), tiny.result("y", 4, 8)
    m, z = tiny.scratch("m", 4), tiny.result("z", 4)
    i, acc, j = variable("i", 4), Var("acc", F32), variable("j", 8)
    fold = replace(
        tiny.fold(m, "i", "k", 8, lambda i, k: load(x, (i, k))),
        axes=(),
        assigns=(Assign(m, (i,), apply("sqrt", acc)),),
    )
    stages = (
        fold,
        Stage("y", (j,), (Assign(y, (i, j), apply("div", load(x, (i, j)), load(m, (i,)))),)),
        Stage("z", (), (Assign(z, (i,), load(m, (i,))),)),
    )
    return LoopProgram("normed", (x,), (y, z), lower_nest((i,), stages), ((m, 0),))


@pytest.fixture
def chain(tiny) -> LoopProgram:
    """a = x + 1; b = a * 2."""
    x, a, b = tiny.operand("x", 8), tiny.result("a", 8), tiny.result("b", 8)
    return tiny.program(
        tiny.map(a, "i", lambda i: apply("add", load(x, (i,)), ONE)),
        tiny.map(b, "j", lambda j: apply("mul", load(a, (j,)), TWO)),
    )


@pytest.fixture
def column_sums(tiny) -> Schedule:
    """y[i] = sum over k of x[k, i]."""
    x, y = tiny.operand("x", 8, 6), tiny.result("y", 6)
    return Schedule(tiny.program(tiny.fold(y, "i", "k", 8, lambda i, k: load(x, (k, i)))))


@pytest.fixture
def product(tiny) -> Schedule:
    """s[i, j] = sum over k of x[i, k] * exp(y[k, j])."""
    x, y, s = tiny.operand("x", 4, 8), tiny.operand("y", 8, 6), tiny.result("s", 4, 6)
    return Schedule(
        tiny.program(
            tiny.fold(
                s,
                "ij",
                "k",
                8,
                lambda i, j, k: apply("mul", load(x, (i, k)), apply("exp", load(y, (k, j)))),
            )
        )
    )


@pytest.fixture
def matrices() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in ((4, 8), (8, 6))]


@pytest.fixture
def rising(tiny) -> Schedule:
    """Over rows i: p = a[i, k, k], and b[i, k, j] = p * 2 for j < k; then y[i] = p."""
    a, b = tiny.operand("a", 8, 4, 4), tiny.result("b", 8, 4, 4)
    y, p = tiny.result("y", 8), Buffer("p", F32, (), "register")
    i, k, j = variable("i", 8), variable("k", 4), variable("j", 3)
    inner = For(j, k, LoopKind.SERIAL, (Store(b, (i, k, j), apply("mul", load(p, ()), TWO)),))
    outer = For(k, index.constant(4), LoopKind.SERIAL, (Store(p, (), load(a, (i, k, k))), inner))
    body = Allocate(p, (outer, Store(y, (i,), load(p, ()))))
    fill = tiny.map(b, "mno", lambda m, n, o: ONE)
    return Schedule(
        LoopProgram(
            "rising",
            (a,),
            (b, y),
            (*lower_stage(fill), For(i, index.constant(8), LoopKind.SERIAL, (body,))),
        )
    )
