"""Control flow: order of loops and tasks, branches, and what may be moved out of them."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    While,
)
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget, host, named
from making.code import generate

I32_ADD = Combiner(
    (Var("a", t.I32),),
    (Var("b", t.I32),),
    (apply("add", Var("a", t.I32), Var("b", t.I32)),),
    None,
    "add",
)


def _constant(value: int) -> Expr:
    return index.constant(value)


def _loop(name: str, extent: int, kind: LoopKind, *body: Stmt) -> For:
    return For(variable(name, extent), _constant(extent), kind, body)


def _check(machine, program: LoopProgram, operands: list[np.ndarray], target: CpuTarget) -> None:
    typed = [np.asarray(a, b.dtype.numpy) for a, b in zip(operands, program.operands, strict=True)]
    expected = interpret(program, typed)
    actual = machine.run(program, typed, target=target)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tasks_inside_serial_loops(target: CpuTarget, machine) -> None:
    """Ping-pong between scratch buffers; inner tasks use outer variables, scratch and the stack."""
    steps, rows, columns = 5, 4, 16
    x, y = (
        Buffer("x", t.I32, (rows, columns), "operand"),
        Buffer("y", t.I32, (rows, columns), "result"),
    )
    ping, pong = (Buffer(n, t.I32, (rows, columns)) for n in ("ping", "pong"))
    table = Buffer("table", t.I32, (rows,), "stack")
    s, r, c = variable("s", steps), variable("r", rows), variable("c", columns)
    left = index.floormod(index.add(c, _constant(1)), columns)
    number = apply("convert", s, dtype=t.I32)

    def sweep(source: Buffer, to: Buffer) -> For:
        value = apply(
            "add",
            apply("add", load(source, (r, c)), load(source, (r, left))),
            apply("mul", number, load(table, (r,))),
        )
        return _loop(
            "r",
            rows,
            LoopKind.PARALLEL,
            _loop("c", columns, LoopKind.VECTORIZE, Store(to, (r, c), value)),
        )

    copy_in = _loop(
        "r",
        rows,
        LoopKind.PARALLEL,
        _loop("c", columns, LoopKind.VECTORIZE, Store(ping, (r, c), load(x, (r, c)))),
    )
    copy_out = _loop(
        "r",
        rows,
        LoopKind.PARALLEL,
        _loop("c", columns, LoopKind.VECTORIZE, Store(y, (r, c), load(ping, (r, c)))),
    )
    fill = _loop(
        "r",
        rows,
        LoopKind.SERIAL,
        Store(table, (r,), apply("convert", index.multiply(r, r), dtype=t.I32)),
    )
    program = LoopProgram(
        "pingpong",
        (x,),
        (y,),
        (
            copy_in,
            Allocate(
                table,
                (fill, _loop("s", steps, LoopKind.SERIAL, sweep(ping, pong), sweep(pong, ping))),
            ),
            copy_out,
        ),
        scratch=((ping, 0), (pong, 256)),
    )
    _check(machine, program, [np.arange(64).reshape(4, 16)], target)


def test_tasks_inside_tasks(target: CpuTarget, machine) -> None:
    y = Buffer("y", t.I32, (3, 4), "result")
    i, j = variable("i", 3), variable("j", 4)
    value = apply("convert", index.add(index.multiply(i, _constant(10)), j), dtype=t.I32)
    program = LoopProgram(
        "nested",
        (),
        (y,),
        (
            _loop(
                "i", 3, LoopKind.PARALLEL, _loop("j", 4, LoopKind.PARALLEL, Store(y, (i, j), value))
            ),
        ),
    )
    _check(machine, program, [], target)


def test_a_single_task_is_no_task() -> None:
    y = Buffer("y", t.I32, (1,), "result")
    program = LoopProgram(
        "one",
        (),
        (y,),
        (_loop("i", 1, LoopKind.PARALLEL, Store(y, (variable("i", 1),), const(3, t.I32))),),
    )
    assert "@task" not in print_program(program, named("x86-64-v3"))


def test_while(target: CpuTarget, machine) -> None:
    """Collatz: the body changes what the condition reads; it may not run at all."""
    x, y = Buffer("x", t.I32, (), "operand"), Buffer("y", t.I32, (2,), "result")
    zero, one = _constant(0), _constant(1)
    n = load(y, (zero,))
    odd = apply("ne", apply("and", n, const(1, t.I32)), const(0, t.I32))
    step = apply(
        "select",
        odd,
        apply("add", apply("mul", n, const(3, t.I32)), const(1, t.I32)),
        apply("div", n, const(2, t.I32)),
    )
    program = LoopProgram(
        "collatz",
        (x,),
        (y,),
        (
            Store(y, (zero,), load(x, ())),
            Store(y, (one,), const(0, t.I32)),
            While(
                apply("ne", n, const(1, t.I32)),
                (
                    Store(y, (zero,), step),
                    Store(y, (one,), apply("add", load(y, (one,)), const(1, t.I32))),
                ),
            ),
        ),
    )
    for start in (1, 2, 27):
        _check(machine, program, [np.array(start)], target)


@pytest.mark.parametrize("flags", range(4))
def test_branches(flags: int, target: CpuTarget, machine) -> None:
    x = Buffer("x", t.I32, (2,), "operand")
    y = Buffer("y", t.I32, (4,), "result")
    conditions = [apply("ne", load(x, (_constant(k),)), const(0, t.I32)) for k in (0, 1)]

    def put(slot: int, value: int) -> Store:
        return Store(y, (_constant(slot),), const(value, t.I32))

    program = LoopProgram(
        "branches",
        (x,),
        (y,),
        (
            *(put(k, 0) for k in range(4)),
            If(
                conditions[0],
                (put(0, 1), If(conditions[1], (put(1, 2),), (put(1, 3),))),
                (put(2, 4),),
            ),
            If(conditions[1], (), (put(3, 5),)),
            If(conditions[0], ()),
            Store(y, (_constant(2),), const(9, t.I32), conditions[0]),
        ),
    )
    _check(machine, program, [np.array([flags & 1, flags >> 1])], target)


def test_a_branch_protects_its_loads(target: CpuTarget, machine) -> None:
    """Nothing is read from x[i] for i beyond its end, not even ahead of time."""
    x, y = Buffer("x", t.F32, (3,), "operand"), Buffer("y", t.F32, (4096,), "result")
    i = variable("i", 4096)
    program = LoopProgram(
        "protected",
        (x,),
        (y,),
        (
            _loop(
                "i",
                4096,
                LoopKind.SERIAL,
                If(
                    index.compare("lt", i, _constant(3)),
                    (_loop("k", 2, LoopKind.SERIAL, Store(y, (i,), load(x, (i,)))),),
                    (Store(y, (i,), const(1, t.F32)),),
                ),
            ),
        ),
    )
    _check(machine, program, [np.arange(3)], target)


def test_what_was_read_before_a_loop_may_change_in_it(target: CpuTarget, machine) -> None:
    y, z = Buffer("y", t.I32, (1,), "result"), Buffer("z", t.I32, (5,), "result")
    zero = _constant(0)
    item = load(y, (zero,))
    grow = Store(y, (zero,), apply("add", item, item))
    program = LoopProgram(
        "changes",
        (),
        (y, z),
        (
            Store(y, (zero,), const(1, t.I32)),
            Store(z, (zero,), item),
            _loop(
                "i",
                4,
                LoopKind.SERIAL,
                Store(z, (index.add(variable("i", 4), _constant(1)),), item),
                grow,
            ),
            While(apply("lt", item, const(1000, t.I32)), (grow,)),
        ),
    )
    _check(machine, program, [], target)


def test_a_place_that_was_read_may_change(target: CpuTarget, machine) -> None:
    """x[y[0]] is another element after y[0] has changed, whether x has changed or not."""
    x = Buffer("x", t.I32, (9,), "operand")
    y, z = Buffer("y", t.I32, (1,), "result"), Buffer("z", t.I32, (4,), "result")
    here = load(y, (_constant(0),))
    place = apply(
        "max", apply("min", apply("convert", here, dtype=t.INDEX), _constant(8)), _constant(0)
    )
    i = variable("i", 4)
    program = LoopProgram(
        "moves",
        (x,),
        (y, z),
        (
            Store(y, (_constant(0),), const(3, t.I32)),
            _loop(
                "i",
                4,
                LoopKind.UNROLL,
                Store(z, (i,), load(x, (place,))),
                Store(y, (_constant(0),), apply("add", here, const(1, t.I32))),
            ),
        ),
    )
    _check(machine, program, [np.arange(9) * 5], target)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_extents_known_at_run_time(count: int, target: CpuTarget, machine) -> None:
    """No iteration, no access: x and y have no element when count is 0."""
    x, y = Buffer("x", t.I32, (count,), "operand"), Buffer("y", t.I32, (count,), "result")
    i, k = variable("i", count), Var("k", t.INDEX)
    total = Accumulate((y,), (i,), I32_ADD, (load(x, (k,)),))
    rows = For(
        i,
        index.constant(count),
        LoopKind.PARALLEL,
        (Store(y, (i,), const(0, t.I32)), For(k, i, LoopKind.SERIAL, (total,))),
    )
    values = np.arange(1, count + 1, dtype=np.int32)
    program = LoopProgram("triangle", (x,), (y,), (rows,))
    (actual,) = machine.run(program, [values], target=target)
    np.testing.assert_array_equal(actual, np.cumsum(values) - values)


def test_unrolled_loops_share_what_does_not_depend_on_them() -> None:
    """A 4x3 outer product loads seven values in its loop, not twenty-four."""
    rows, columns, depth = 4, 3, 50
    a, b = (
        Buffer("a", t.F32, (depth, rows), "operand"),
        Buffer("b", t.F32, (depth, columns), "operand"),
    )
    acc = Buffer("acc", t.F32, (rows, columns), "register")
    c = Buffer("c", t.F32, (rows, columns), "result")
    k, r, u = variable("k", depth), variable("r", rows), variable("u", columns)
    add = Combiner(
        (Var("p", t.F32),),
        (Var("q", t.F32),),
        (apply("add", Var("p", t.F32), Var("q", t.F32)),),
        None,
        "add",
    )

    def tile(stmt: Stmt) -> For:
        return _loop("r", rows, LoopKind.UNROLL, _loop("u", columns, LoopKind.UNROLL, stmt))

    program = LoopProgram(
        "outer",
        (a, b),
        (c,),
        (
            Allocate(
                acc,
                (
                    tile(Store(acc, (r, u), const(0, t.F32))),
                    _loop(
                        "k",
                        depth,
                        LoopKind.SERIAL,
                        tile(
                            Accumulate(
                                (acc,),
                                (r, u),
                                add,
                                (apply("mul", load(a, (k, r)), load(b, (k, u))),),
                            )
                        ),
                    ),
                    tile(Store(c, (r, u), load(acc, (r, u)))),
                ),
            ),
        ),
    )
    text = print_program(program, named("x86-64-v3"))
    loop = text[text.index("phi i64") : text.index("br i1")]
    assert loop.count("!invariant.load") == rows + columns


def test_lane_conditions_need_guards() -> None:
    y = Buffer("y", t.I32, (4,), "result")
    lane = variable("lane", 4)
    inside = index.compare("lt", lane, _constant(2))
    for body in (
        If(inside, (Store(y, (lane,), const(1, t.I32)),)),
        While(inside, (Store(y, (lane,), const(1, t.I32)),)),
    ):
        program = LoopProgram("bad", (), (y,), (_loop("lane", 4, LoopKind.VECTORIZE, body),))
        with pytest.raises(CodegenError, match="same in all lanes"):
            generate(program, host())


def test_vector_loops_do_not_nest() -> None:
    y = Buffer("y", t.I32, (4, 4), "result")
    i, j = variable("i", 4), variable("j", 4)
    store = Store(y, (i, j), const(1, t.I32))
    inner = {
        kind: _loop("i", 4, LoopKind.VECTORIZE, _loop("j", 4, kind, store))
        for kind in (LoopKind.VECTORIZE, LoopKind.PARALLEL)
    }
    with pytest.raises(CodegenError, match="one vector loop at a time"):
        generate(LoopProgram("bad", (), (y,), (inner[LoopKind.VECTORIZE],)), host())
    with pytest.raises(CodegenError, match="tasks around vector loops"):
        generate(LoopProgram("bad", (), (y,), (inner[LoopKind.PARALLEL],)), host())


def test_unrolled_and_vector_extents_are_constant() -> None:
    y, n, i = Buffer("y", t.I32, (4,), "result"), variable("n", 4), Var("i", t.INDEX)
    for kind in (LoopKind.UNROLL, LoopKind.VECTORIZE):
        inner = For(i, n, kind, (Store(y, (i,), const(1, t.I32)),))
        outer = For(n, index.constant(4), LoopKind.SERIAL, (inner,))
        program = LoopProgram("bad", (), (y,), (outer,))
        with pytest.raises(CodegenError, match="constant extent"):
            generate(program, host())


# Random programs against the interpreter


class _Random:
    """Makes programs of random nests over three small integer buffers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.x = Buffer("x", t.I32, (8, 8), "operand")
        self.y = Buffer("y", t.I32, (8, 8), "result")
        self.z = Buffer("z", t.I32, (8, 8))
        self.loops = 0
        self.loads: list[Expr] = []

    def pick(self, *choices: object) -> object:
        return choices[self.random.integers(len(choices))]

    def index(self, variables: list[Var]) -> Expr:
        total: Expr = _constant(int(self.random.integers(0, 8)))
        for v in variables:
            total = index.add(total, index.multiply(v, _constant(int(self.pick(0, 0, 1, 2)))))
        return index.floormod(total, 8)

    def expression(self, variables: list[Var], depth: int = 0) -> Expr:
        kind = self.random.integers(0, 3 if depth > 2 else 6)
        if kind == 0:
            return const(int(self.random.integers(-4, 5)), t.I32)
        if kind < 3:
            known = [e for e in self.loads if e.free <= set(variables)]
            if known and kind == 2:  # again what was read before, perhaps to find it changed
                return known[self.random.integers(len(known))]
            source = self.pick(self.x, self.y, self.z)
            self.loads.append(load(source, (self.index(variables), self.index(variables))))
            return self.loads[-1]
        left, right = (self.expression(variables, depth + 1) for _ in range(2))
        if kind == 5:
            return apply("select", apply("lt", left, right), right, left)
        return apply(self.pick("add", "sub", "mul", "max", "xor"), left, right)

    def statements(self, variables: list[Var], lane: Var | None, depth: int) -> tuple[Stmt, ...]:
        return tuple(
            self.statement(variables, lane, depth) for _ in range(self.random.integers(1, 3))
        )

    def statement(self, variables: list[Var], lane: Var | None, depth: int) -> Stmt:
        kind = self.random.integers(0, 8 if depth < 4 else 3)
        every = [*variables, lane] if lane is not None else variables
        if kind < 3:
            where = (self.index(variables), lane if lane is not None else self.index(variables))
            guard = self.pick(
                None, apply("lt", self.expression(every, 2), self.expression(every, 2))
            )
            buffer = self.pick(self.y, self.z)
            if kind == 2:
                if lane is not None and self.random.integers(2):
                    where = (where[0], self.index(variables))
                return Accumulate((buffer,), where, I32_ADD, (self.expression(every),), guard)
            return Store(buffer, where, self.expression(every), guard)
        if kind == 3:
            condition = apply("lt", self.expression(variables, 2), self.expression(variables, 2))
            otherwise = (
                self.statements(variables, lane, depth + 1) if self.random.integers(2) else ()
            )
            return If(condition, self.statements(variables, lane, depth + 1), otherwise)
        self.loops += 1
        name = f"i{self.loops}"
        if kind == 4 and lane is None:
            inner = variable(name, int(self.pick(3, 5, 8)))
            body = self.statements(variables, inner, depth + 1)
            return For(inner, _constant(inner.extent), LoopKind.VECTORIZE, body)
        var = variable(name, int(self.random.integers(1, 4)))
        return For(
            var,
            _constant(var.extent),
            self.pick(LoopKind.SERIAL, LoopKind.UNROLL),
            self.statements([*variables, var], lane, depth + 1),
        )

    def program(self) -> LoopProgram:
        i, j = variable("i", 8), variable("j", 8)
        clear = [
            For(
                i,
                _constant(8),
                LoopKind.SERIAL,
                (For(j, _constant(8), LoopKind.SERIAL, (Store(b, (i, j), load(self.x, (j, i))),)),),
            )
            for b in (self.y, self.z)
        ]
        body = [s for _ in range(4) for s in self.statements([], None, 0)]
        return LoopProgram("random", (self.x,), (self.y,), (*clear, *body), scratch=((self.z, 0),))


@pytest.mark.parametrize("seed", range(150))
def test_random_programs(seed: int, machine) -> None:
    """What is hoisted, shared and reused is what the interpreter computes in order."""
    program = _Random(seed).program()
    values = np.random.default_rng(seed).integers(-9, 10, (8, 8)).astype(np.int32)
    (expected,) = interpret(program, [values])
    (actual,) = machine.run(program, [values])
    np.testing.assert_array_equal(actual, expected)
