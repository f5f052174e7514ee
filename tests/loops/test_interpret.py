"""The interpreter: lockstep lanes, shuffled tasks, poisoned memory, checked accesses."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import ALL, BF16, BOOL, F32, I8, I32, INDEX, DType, Kind
from hlo_mlc.expr.ops import OPS, compute
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
from hlo_mlc.loops.interpret import by_halves, interpret
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.combine import named_combiner

ONE, ZERO = const(1.0, F32), const(0.0, F32)
ADD = named_combiner("add", F32)


def loop(var: Var, kind: LoopKind, *body: Stmt) -> For:
    return For(var, index.constant(var.extent), kind, body)


def vector(name: str, extent: int, dtype: DType = F32, scope: str = "operand") -> Buffer:
    return Buffer(name, dtype, (extent,), scope)


def run(
    operands: dict[Buffer, np.ndarray], results: list[Buffer], *body: Stmt, **more
) -> list[np.ndarray]:
    program = LoopProgram("test", tuple(operands), tuple(results), body, **more)
    return interpret(program, list(operands.values()))


def test_parallel_iterations_run_in_an_order_that_the_seed_chooses() -> None:
    """A program with a race shows it: the last writer wins."""
    y, i = Buffer("y", INDEX, (), "result"), variable("i", 50)
    program = LoopProgram("race", (), (y,), (loop(i, LoopKind.PARALLEL, Store(y, (), i)),))
    last = {int(interpret(program, [], seed=s)[0]) for s in range(8)}
    assert len(last) > 3
    assert interpret(program, [], seed=3) == interpret(program, [], seed=3)


def test_blocks_and_threads_run_in_an_order_that_the_seed_chooses() -> None:
    y, b, t = Buffer("y", INDEX, (), "result"), variable("b", 9), variable("t", 9)
    both = index.add(index.multiply(b, index.constant(9)), t)
    program = LoopProgram(
        "race", (), (y,), (loop(b, LoopKind.BLOCK, loop(t, LoopKind.THREAD, Store(y, (), both))),)
    )
    assert len({int(interpret(program, [], seed=s)[0]) for s in range(8)}) > 3


def test_shared_memory_is_new_for_each_block() -> None:
    """What a block left there is not what the next one finds."""
    y, b, t = vector("y", 4, scope="result"), variable("b", 4), variable("t", 1)
    shared = Buffer("s", F32, (), "shared")
    (result,) = run(
        {},
        [y],
        loop(
            b,
            LoopKind.BLOCK,
            Allocate(
                shared,
                (
                    loop(t, LoopKind.THREAD, Store(y, (b,), load(shared, ()))),
                    loop(t, LoopKind.THREAD, Store(shared, (), ONE)),
                ),
            ),
        ),
    )
    assert np.isnan(result).all()


def test_threads_that_update_one_element_are_combined_by_halves() -> None:
    x, y, b, t = vector("x", 8), vector("y", 1, scope="result"), variable("b", 1), variable("t", 8)
    values = np.array([1e8, 3, -1e8, 5, 7, 1e8, 11, -1e8], np.float32)
    zero = index.constant(0)
    (result,) = run(
        {x: values},
        [y],
        loop(
            b,
            LoopKind.BLOCK,
            loop(t, LoopKind.THREAD, Store(y, (zero,), ZERO, apply("eq", t, zero))),
            loop(t, LoopKind.THREAD, Accumulate((y,), (zero,), ADD, (load(x, (t,)),))),
        ),
    )
    quarter = values[:4] + values[4:]
    half = quarter[:2] + quarter[2:]
    assert result[0] == half[0] + half[1]


def test_lanes_run_in_lockstep() -> None:
    """All lanes store before any lane goes on, and all read before any stores."""
    x, y, i = vector("x", 4), vector("y", 4, scope="result"), variable("i", 4)
    mirrored = load(y, (index.subtract(index.constant(3), i),))
    (result,) = run(
        {x: np.arange(4, dtype=np.float32)},
        [y],
        loop(i, LoopKind.VECTORIZE, Store(y, (i,), load(x, (i,))), Store(y, (i,), mirrored)),
    )
    assert result.tolist() == [3, 2, 1, 0]


def test_each_lane_has_its_own_private_buffers() -> None:
    x, y, i = vector("x", 4), vector("y", 4, scope="result"), variable("i", 4)
    held = Buffer("held", F32, (), "register")
    k = variable("k", 3)
    (result,) = run(
        {x: np.arange(4, dtype=np.float32)},
        [y],
        loop(
            i,
            LoopKind.VECTORIZE,
            Allocate(
                held,
                (
                    Store(held, (), ZERO),
                    loop(k, LoopKind.SERIAL, Accumulate((held,), (), ADD, (load(x, (i,)),))),
                    Store(y, (i,), load(held, ())),
                ),
            ),
        ),
    )
    assert result.tolist() == [0, 3, 6, 9]


def test_one_buffer_in_a_vector_and_outside_of_it() -> None:
    """Peeled copies allocate the same buffer, once for lanes and once for a scalar tail."""
    y, i, t = vector("y", 5, scope="result"), variable("i", 4), variable("t", 1)
    held = Buffer("held", F32, (), "register")

    def body(place: Expr) -> Allocate:
        value = apply("convert", place, dtype=F32)
        return Allocate(held, (Store(held, (), value), Store(y, (place,), load(held, ()))))

    (result,) = run(
        {},
        [y],
        loop(i, LoopKind.VECTORIZE, body(i)),
        loop(t, LoopKind.SERIAL, body(index.add(t, index.constant(4)))),
    )
    assert result.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13])
def test_lanes_are_combined_by_halves(width) -> None:
    """The order is documented, so the sum of floats is exactly this one."""
    x, y, i = vector("x", width), Buffer("y", F32, (), "result"), variable("i", width)
    values = (10.0 ** np.arange(width)).astype(np.float32) / 3
    (result,) = run(
        {x: values},
        [y],
        Store(y, (), ONE),
        loop(i, LoopKind.VECTORIZE, Accumulate((y,), (), ADD, (load(x, (i,)),))),
    )
    live = list(values)
    while len(live) > 1:
        half = (len(live) + 1) // 2
        folded = [live[k] + live[k + half] for k in range(len(live) - half)]
        live = folded + live[len(folded) : half]
    assert result == np.float32(1) + live[0]


def test_masked_lanes_take_no_part() -> None:
    lanes = [None, ((), 2), None, ((), 8), None]
    assert by_halves(lanes, lambda a, b: (a[0] + b[0],)) == ((), 10)
    assert by_halves([None, None], lambda a, b: a) is None
    x, y, i = vector("x", 3), Buffer("y", F32, (), "result"), variable("i", 8)
    inside = apply("lt", i, index.constant(3))
    (result,) = run(
        {x: np.array([1, 2, 4], np.float32)},
        [y],
        Store(y, (), ZERO),
        loop(i, LoopKind.VECTORIZE, Accumulate((y,), (), ADD, (load(x, (i,)),), inside)),
    )
    assert result == 7


def test_several_accumulators_change_at_once() -> None:
    """(a, b) <- (b, a + term): the second result must see the old first one."""
    a, b = Buffer("a", F32, (), "result"), Buffer("b", F32, (), "result")
    p, q, r, s = (Var(name, F32) for name in "pqrs")
    fibonacci = type(ADD)((p, q), (r, s), (q, apply("add", p, q)), None)
    k = variable("k", 10)
    results = run(
        {},
        [a, b],
        Store(a, (), ZERO),
        Store(b, (), ONE),
        loop(k, LoopKind.SERIAL, Accumulate((a, b), (), fibonacci, (ZERO, ZERO))),
    )
    assert [float(v) for v in results] == [55, 89]


def test_memory_that_was_never_written_is_poison() -> None:
    x, n, t = (
        vector("x", 2, scope="result"),
        vector("n", 2, I32, "result"),
        vector("t", 2, BF16, "scratch"),
    )
    i = variable("i", 2)
    floats, integers, from_scratch = run(
        {},
        [x, n, vector("s", 2, BF16, "result")],
        loop(i, LoopKind.SERIAL, Store(vector("s", 2, BF16, "result"), (i,), load(t, (i,)))),
        scratch=((t, 0),),
    )
    assert np.isnan(floats).all()
    assert (integers == -1).all()
    assert np.isnan(from_scratch.astype(np.float32)).all()


def test_private_buffers_are_new_in_every_iteration() -> None:
    held, y, i = Buffer("held", F32, (), "stack"), vector("y", 3, scope="result"), variable("i", 3)
    first = apply("eq", i, index.constant(0))
    (result,) = run(
        {},
        [y],
        loop(
            i,
            LoopKind.SERIAL,
            Allocate(held, (Store(held, (), ONE, first), Store(y, (i,), load(held, ())))),
        ),
    )
    assert result[0] == 1
    assert np.isnan(result[1:]).all()


def test_scratch_buffers_share_the_bytes_of_the_arena() -> None:
    a, b = vector("a", 1, F32, "scratch"), vector("b", 1, I32, "scratch")
    y, zero = vector("y", 1, I32, "result"), index.constant(0)
    (result,) = run(
        {},
        [y],
        Store(a, (zero,), ONE),
        Store(y, (zero,), load(b, (zero,))),
        scratch=((a, 0), (b, 0)),
    )
    assert result.view(np.float32) == 1


def test_aliases_share_memory_unless_told_otherwise() -> None:
    x, y, i = vector("x", 4), vector("y", 4, scope="result"), variable("i", 4)
    mirrored = load(x, (index.subtract(index.constant(3), i),))
    body = (loop(i, LoopKind.SERIAL, Store(y, (i,), mirrored)),)
    program = LoopProgram("mirror", (x,), (y,), body, aliases=((y, x),))
    values = np.arange(4, dtype=np.float32)
    assert interpret(program, [values])[0].tolist() == [3, 2, 2, 3]
    assert interpret(program, [values], aliased=False)[0].tolist() == [3, 2, 1, 0]
    assert values.tolist() == [0, 1, 2, 3]


def test_branches_and_while_loops() -> None:
    n, y = Buffer("n", I32, (), "result"), Buffer("y", I32, (), "result")
    even = apply("eq", apply("rem", load(n, ()), const(2, I32)), const(0, I32))
    halved = apply("div", load(n, ()), const(2, I32))
    tripled = apply("add", apply("mul", load(n, ()), const(3, I32)), const(1, I32))
    counted = Store(y, (), apply("add", load(y, ()), const(1, I32)))
    results = run(
        {},
        [n, y],
        Store(n, (), const(27, I32)),
        Store(y, (), const(0, I32)),
        While(
            apply("gt", load(n, ()), const(1, I32)),
            (If(even, (Store(n, (), halved),), (Store(n, (), tripled),)), counted),
        ),
    )
    assert [int(v) for v in results] == [1, 111]


def test_accesses_outside_of_a_buffer_are_caught() -> None:
    x, y, i = vector("x", 4), vector("y", 5, scope="result"), variable("i", 5)
    values = {x: np.zeros(4, np.float32)}
    with pytest.raises(VerifyError, match=r"outside of x: 4xf32.*got \(4,\) in: y\[i\] = x\[i\]"):
        run(values, [y], loop(i, LoopKind.SERIAL, Store(y, (i,), load(x, (i,)))))
    before = index.subtract(i, index.constant(1))
    with pytest.raises(VerifyError, match=r"outside of y.*got \(-1,\)"):
        run(values, [y], loop(i, LoopKind.SERIAL, Store(y, (before,), ZERO)))
    inside = apply("lt", i, index.constant(4))
    (result,) = run(
        values, [y], loop(i, LoopKind.SERIAL, Store(y, (i,), load(x, (i,), inside, ONE)))
    )
    assert result.tolist() == [0, 0, 0, 0, 1]


def test_what_a_false_guard_skips_is_not_evaluated() -> None:
    x, y, i = vector("x", 2), vector("y", 4, scope="result"), variable("i", 4)
    inside = apply("lt", i, index.constant(2))
    (result,) = run(
        {x: np.ones(2, np.float32)},
        [y],
        loop(i, LoopKind.VECTORIZE, Store(y, (i,), load(x, (i,)), inside)),
    )
    assert result[:2].tolist() == [1, 1]
    assert np.isnan(result[2:]).all()


def test_lanes_must_not_collide_or_diverge() -> None:
    y, i = vector("y", 4, scope="result"), variable("i", 4)
    half = index.floordiv(i, 2)
    with pytest.raises(VerifyError, match="several lanes write the same element"):
        run({}, [y], loop(i, LoopKind.VECTORIZE, Store(y, (half,), ZERO)))
    low = apply("lt", i, index.constant(2))
    with pytest.raises(VerifyError, match="expected one value in all lanes of i"):
        run({}, [y], loop(i, LoopKind.VECTORIZE, If(low, (Store(y, (i,), ZERO),))))
    inner = variable("j", 4)
    with pytest.raises(VerifyError, match="outside of any other"):
        run(
            {},
            [y],
            loop(i, LoopKind.VECTORIZE, loop(inner, LoopKind.VECTORIZE, Store(y, (inner,), ZERO))),
        )


def test_what_does_not_exist_is_named() -> None:
    x, y, i = vector("x", 4), vector("y", 4, scope="result"), variable("i", 4)
    with pytest.raises(VerifyError, match="variable i is not bound in: y"):
        run({}, [y], Store(y, (i,), ZERO))
    with pytest.raises(VerifyError, match="buffer x: 4xf32 operand does not exist"):
        run({}, [y], loop(i, LoopKind.SERIAL, Store(y, (i,), load(x, (i,)))))
    program = LoopProgram("copy", (x,), (y,), ())
    with pytest.raises(VerifyError, match="expected 1 operands, got 0"):
        interpret(program, [])
    with pytest.raises(VerifyError, match="expected an array for x: 4xf32 operand, got 4xint32"):
        interpret(program, [np.zeros(4, np.int32)])


SAMPLES = [
    0,
    1,
    -1,
    2,
    3,
    7,
    -8,
    100,
    127,
    -128,
    0.5,
    -0.0,
    1e30,
    -1e-30,
    math.inf,
    -math.inf,
    math.nan,
]


def samples(dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        if dtype is BOOL:
            return np.array([False, True])
        if dtype.kind is Kind.COMPLEX:
            return np.array([1 + 2j, -0.5 + 0j, 0j], dtype.numpy)
        if dtype.is_float:
            return np.array(SAMPLES, np.float64).astype(dtype.numpy)
        return np.array(
            [v for v in SAMPLES if float(v).is_integer() and abs(v) < 1000], np.int64
        ).astype(dtype.numpy)


def accepts(op: str, dtype: DType) -> bool:
    if op == "fma" and not dtype.is_float:
        return False
    try:
        compute(op, [samples(dtype)] * OPS[op].arity, dtype)
    except (TypeError, ValueError, KeyError):
        return False
    return True


@pytest.mark.parametrize(
    "op",
    [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "neg",
        "abs",
        "fma",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "xor",
        "not",
        "floor",
    ],
)
def test_every_op_means_what_its_definition_says(op) -> None:
    """The interpreter writes common ops in place; they agree bit for bit with expr/ops.py."""
    checked = 0
    for dtype in ALL:
        if not accepts(op, dtype):
            continue
        values = samples(dtype)
        arity = OPS[op].arity
        grids = [g.reshape(-1) for g in np.meshgrid(*[values] * arity, indexing="ij")]
        result = BOOL if OPS[op].result == "bool" else dtype
        with np.errstate(all="ignore"):
            expected = compute(op, grids, result)
        count = len(grids[0])
        buffers = [vector(f"x{k}", count, dtype) for k in range(arity)]
        y, i = vector("y", count, result, "result"), variable("i", count)
        value = Apply(op, tuple(Load(b, (i,)) for b in buffers), result)
        (actual,) = run(
            dict(zip(buffers, grids, strict=True)),
            [y],
            loop(i, LoopKind.SERIAL, Store(y, (i,), value)),
        )
        same = (
            actual.view(np.uint8).reshape(count, -1) == expected.view(np.uint8).reshape(count, -1)
        ).all(1)
        nan = np.array(
            [bool(a != a) and bool(b != b) for a, b in zip(actual, expected, strict=True)]
        )
        assert (same | nan).all(), f"{op} on {dtype}: {[g[~(same | nan)][:3] for g in grids]}"
        checked += 1
    assert checked


@pytest.mark.parametrize(
    "source, target, value, expected",
    [
        (F32, INDEX, 3.7, 3),
        (I8, INDEX, -5, -5),
        (I32, F32, 2**24 + 1, 2.0**24),
        (F32, BF16, 1.003, float(ml_dtypes.bfloat16(1.003))),
        (F32, I8, 300.0, 127),
    ],
)
def test_conversions(source, target, value, expected) -> None:
    x, y = Buffer("x", source, (), "operand"), Buffer("y", target, (), "result")
    (result,) = run(
        {x: np.array(value, source.numpy)},
        [y],
        Store(y, (), apply("convert", load(x, ()), dtype=target)),
    )
    assert float(result) == expected
