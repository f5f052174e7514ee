"""Kernels with checks: every planted fault is told with its place, and harms nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlo_mlc.codegen.cpu import reading, writing
from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
)
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.runtime.variants import KernelCode, load_object
from hlo_mlc.support.errors import KernelFaultError
from hlo_mlc.target.cpu import host
from hlo_mlc.tensor.combine import named_combiner
from making.code import generate

N = 20
A, R = Buffer("a", t.F32, (N,), "operand"), Buffer("r", t.F32, (N,), "result")
GRID, OUT = Buffer("g", t.F32, (5, 8), "operand"), Buffer("o", t.F32, (5, 8), "result")
T = Buffer("t", t.F32, (N,))
STACK = Buffer("s", t.F32, (N,), "stack")
REGISTER = Buffer("q", t.F32, (16,), "register")


def _at(e: Expr, offset: int) -> Expr:
    return index.add(e, index.constant(offset))


def _loop(name: str, extent: int, kind: LoopKind, body: Callable[[Expr], Sequence[Stmt]]) -> For:
    var = variable(name, extent)
    return For(var, index.constant(extent), kind, tuple(body(var)))


def _code(program: LoopProgram) -> KernelCode:
    generated = generate(program, host(), checked=True)
    return load_object(generated.object_code, generated.symbol, program.scratch_bytes)


def _copy(
    to: Buffer, source: Buffer, kind: LoopKind, extent: int = N, *, stored: int = 0, loaded: int = 0
) -> For:
    return _loop(
        "i", extent, kind, lambda i: [Store(to, (_at(i, stored),), load(source, (_at(i, loaded),)))]
    )


def _program(*body: Stmt, scratch: bool = False) -> LoopProgram:
    return LoopProgram("k", (A,), (R,), body, ((T, 0),) if scratch else ())


KINDS = (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZE, LoopKind.UNROLL)


def _in_tasks(body: Callable[[Expr], Sequence[Stmt]]) -> LoopProgram:
    """Rows as tasks, columns as lanes."""
    return LoopProgram("k", (GRID,), (OUT,), (_loop("row", 5, LoopKind.PARALLEL, body),))


def _down_columns(*, stored: int, loaded: int) -> LoopProgram:
    """Rows as lanes."""
    return LoopProgram(
        "k",
        (GRID,),
        (OUT,),
        (
            _loop(
                "column",
                8,
                LoopKind.SERIAL,
                lambda column: [
                    _loop(
                        "lane",
                        5,
                        LoopKind.VECTORIZE,
                        lambda lane: [
                            Store(
                                OUT,
                                (_at(lane, stored), column),
                                load(GRID, (_at(lane, loaded), column)),
                            )
                        ],
                    )
                ],
            ),
        ),
    )


def _in_a_while(offset: int) -> LoopProgram:
    """The counter is an element of scratch: it would never end if the fault did not end it."""
    counter = Buffer("n", t.I32, ())
    below = apply("lt", load(counter, ()), const(3, t.I32))
    step = Store(counter, (), apply("add", load(counter, ()), const(0 if offset else 1, t.I32)))
    return LoopProgram(
        "k",
        (A,),
        (R,),
        (
            Store(counter, (), const(0, t.I32)),
            While(below, (_copy(R, A, LoopKind.PARALLEL, loaded=offset), step)),
        ),
        ((counter, 0),),
    )


def _called() -> LoopProgram:
    x, y = Buffer("x", t.F32, (N,), "operand"), Buffer("y", t.F32, (N,), "result")
    inner = LoopProgram("inner", (x,), (y,), (_copy(y, x, LoopKind.SERIAL, loaded=1),))
    return LoopProgram("k", (A,), (R,), (Call(inner, (A, R)),))


def _gathered(indices: DType, stored: bool) -> LoopProgram:
    """Lanes anywhere, as far as values say."""
    where = Buffer("w", indices, (N,), "operand")

    def body(i: Expr) -> Sequence[Stmt]:
        place = apply("convert", load(where, (i,)), dtype=t.INDEX)
        return [Store(R, (place,), load(A, (i,))) if stored else Store(R, (i,), load(A, (place,)))]

    return LoopProgram("k", (A, where), (R,), (_loop("i", N, LoopKind.VECTORIZE, body),))


def _added(body: Callable[[Expr], tuple[Expr, ...]], kind: LoopKind) -> LoopProgram:
    clear = _loop("i", N, LoopKind.SERIAL, lambda i: [Store(R, (i,), const(0.0, t.F32))])
    return _program(
        clear,
        _loop(
            "j",
            N,
            kind,
            lambda j: [Accumulate((R,), body(j), named_combiner("add", t.F32), (load(A, (j,)),))],
        ),
    )


FAULTS = {
    **{
        f"load {kind.value}": (
            _program(_copy(R, A, kind, loaded=1)),
            "load of a[i + 1] (operand f32[20]): index 0 is 20, its extent is 20",
        )
        for kind in KINDS
    },
    **{
        f"load before {kind.value}": (
            _program(_copy(R, A, kind, loaded=-1)),
            "load of a[i + -1] (operand f32[20]): index 0 is -1, its extent is 20",
        )
        for kind in KINDS
    },
    **{
        f"store {kind.value}": (
            _program(_copy(R, A, kind, stored=1)),
            "store of r[i + 1] (result f32[20]): index 0 is 20, its extent is 20",
        )
        for kind in KINDS
    },
    **{
        f"too many {kind.value}": (
            _program(_copy(R, A, kind, N + 1)),
            "load of a[i] (operand f32[20]): index 0 is 20, its extent is 20",
        )
        for kind in KINDS
    },
    "scratch store": (
        _program(
            _copy(T, A, LoopKind.SERIAL, stored=1), _copy(R, T, LoopKind.SERIAL), scratch=True
        ),
        "store of t[i + 1] (scratch f32[20]): index 0 is 20, its extent is 20",
    ),
    "scratch load": (
        _program(
            _copy(T, A, LoopKind.VECTORIZE), _copy(R, T, LoopKind.VECTORIZE, loaded=1), scratch=True
        ),
        "load of t[i + 1] (scratch f32[20]): index 0 is 20, its extent is 20",
    ),
    "stack": (
        _program(
            Allocate(
                STACK,
                (_copy(STACK, A, LoopKind.SERIAL), _copy(R, STACK, LoopKind.SERIAL, loaded=2)),
            )
        ),
        "load of s[i + 2] (stack f32[20]): index 0 is 20, its extent is 20",
    ),
    "registers": (
        _program(
            Allocate(
                REGISTER, (_copy(REGISTER, A, LoopKind.UNROLL, 17), _copy(R, A, LoopKind.SERIAL))
            )
        ),
        "store of q[i] (register f32[16]): index 0 is 16, its extent is 16",
    ),
    "a row too far": (
        _in_tasks(
            lambda row: [
                _loop(
                    "lane",
                    8,
                    LoopKind.VECTORIZE,
                    lambda lane: [Store(OUT, (row, lane), load(GRID, (_at(row, 1), lane)))],
                )
            ]
        ),
        "load of g[row + 1, lane] (operand f32[5, 8]): index 0 is 5, its extent is 5",
    ),
    "into the next row": (
        _in_tasks(
            lambda row: [
                _loop(
                    "lane",
                    8,
                    LoopKind.VECTORIZE,
                    lambda lane: [Store(OUT, (row, lane), load(GRID, (row, _at(lane, 1))))],
                )
            ]
        ),
        "load of g[row, lane + 1] (operand f32[5, 8]): index 1 is 8, its extent is 8",
    ),
    "down a column": (
        _down_columns(stored=0, loaded=-1),
        "load of g[lane + -1, column] (operand f32[5, 8]): index 0 is -1, its extent is 5",
    ),
    "written down a column": (
        _down_columns(stored=1, loaded=0),
        "store of o[lane + 1, column] (result f32[5, 8]): index 0 is 5, its extent is 5",
    ),
    "backwards": (
        _program(
            _loop(
                "i",
                N,
                LoopKind.VECTORIZE,
                lambda i: [
                    Store(
                        R,
                        (i,),
                        load(
                            A,
                            (index.add(index.multiply(i, index.constant(-1)), index.constant(18)),),
                        ),
                    )
                ],
            )
        ),
        "index 0 is -1, its extent is 20",
    ),
    "every other": (
        _program(
            _loop(
                "i",
                8,
                LoopKind.VECTORIZE,
                lambda i: [
                    Store(
                        R,
                        (i,),
                        load(
                            A,
                            (index.add(index.multiply(i, index.constant(3)), index.constant(-1)),),
                        ),
                    )
                ],
            )
        ),
        "index 0 is -1, its extent is 20",
    ),
    "accumulation": (
        _added(lambda j: (_at(j, 1),), LoopKind.VECTORIZE),
        "of r[j + 1] (result f32[20]): index 0 is 20, its extent is 20",
    ),
    "one place for all lanes": (
        _added(lambda j: (index.constant(N),), LoopKind.VECTORIZE),
        "of r[20] (result f32[20]): index 0 is 20, its extent is 20",
    ),
    "in a called program": (
        _called(),
        "load of x[i + 1] (operand f32[20]): index 0 is 20, its extent is 20",
    ),
    "in a while": (
        _in_a_while(1),
        "load of a[i + 1] (operand f32[20]): index 0 is 20, its extent is 20",
    ),
    "nothing written": (
        _program(_copy(R, A, LoopKind.VECTORIZE, N - 1)),
        "nothing is written to element 19 of r, which has 20",
    ),
    "under a guard that lets it": (
        _program(
            _copy(R, A, LoopKind.SERIAL),
            _loop(
                "j",
                32,
                LoopKind.VECTORIZE,
                lambda j: [Store(R, (j,), const(0.0, t.F32), apply("lt", j, index.constant(21)))],
            ),
        ),
        "store of r[j] (result f32[20]): index 0 is 20, its extent is 20",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name: str) -> None:
    """Each is told, with several threads too; then a kernel without faults works."""
    program, expected = FAULTS[name]
    code, right = _code(program), _code(_program(_copy(R, A, LoopKind.VECTORIZE)))
    values = np.arange(N, dtype=np.float32)
    for threads in (1, 3):
        inputs = [np.resize(values, b.shape) for b in program.operands]
        outputs = [np.full(b.shape, 7.0, b.dtype.numpy) for b in program.results]
        with pytest.raises(KernelFaultError) as caught:
            bind_kernel(code, inputs, outputs, threads=threads)()
        assert str(caught.value).startswith("hlo_mlc: kernel k: ")
        assert expected in str(caught.value)
        assert all((output == 7.0).all() for output in outputs)
        bind_kernel(right, [values], outputs := [np.zeros(N, np.float32)], threads=threads)()
        np.testing.assert_array_equal(outputs[0], values)


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.VECTORIZE], ids=lambda k: k.value)
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("extent", [3, 15])
def test_bytes_are_checked_whatever_indices_are(
    monkeypatch: pytest.MonkeyPatch, extent: int, stored: bool, kind: LoopKind
) -> None:
    """Also where an access is wider than all of its buffer."""
    for module in (reading, writing):
        monkeypatch.setattr(module, "check_place", lambda *_: None)
    count = 16
    source, result = Buffer("x", t.F32, (count,), "operand"), Buffer("y", t.F32, (count,), "result")
    short, behind = Buffer("s", t.F32, (extent,)), Buffer("b", t.F32, (count,))
    copies = _copy(short, source, kind, count) if stored else _copy(result, short, kind, count)
    program = LoopProgram("k", (source,), (result,), (copies,), ((short, 0), (behind, 64)))
    code = _code(program)
    with pytest.raises(KernelFaultError) as caught:
        bind_kernel(code, [np.zeros(count, np.float32)], [np.zeros(count, np.float32)])()
    assert f"{'store' if stored else 'load'} of s[i] (scratch f32[{extent}]): " in str(caught.value)
    assert str(caught.value).endswith(f" of {4 * extent}")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("bad", [-1, N, 1 << 30])
@pytest.mark.parametrize("lane", [0, 7, N - 1])
def test_places_that_values_say(lane: int, bad: int, stored: bool) -> None:
    program = _gathered(t.I32, stored)
    where = np.arange(N, dtype=np.int32)
    code, values = _code(program), np.arange(N, dtype=np.float32)
    bind_kernel(code, [values, where], outputs := [np.zeros(N, np.float32)])()
    np.testing.assert_array_equal(outputs[0], values)
    where[lane] = bad
    what = "store of r[" if stored else "load of a["
    with pytest.raises(KernelFaultError) as caught:
        bind_kernel(code, [values, where], [np.zeros(N, np.float32)])()
    assert what in str(caught.value)
    assert f"index 0 is {bad}, its extent is 20" in str(caught.value)


def test_what_is_not_accessed_is_no_fault() -> None:
    """Guards of stores, of loads and of branches, and what is only fetched early."""
    i, last = variable("i", 32), index.constant(N)
    inside = apply("lt", i, last)
    guarded = For(
        i,
        index.constant(32),
        LoopKind.VECTORIZE,
        (Store(R, (i,), load(A, (i,), inside, const(0.0, t.F32)), inside),),
    )
    serial = _loop(
        "j",
        32,
        LoopKind.SERIAL,
        lambda j: [
            Prefetch(A, (_at(j, 100),), 1000),
            If(apply("lt", j, last), (Store(R, (j,), load(A, (j,))),)),
        ],
    )
    values = np.arange(N, dtype=np.float32)
    for body in (guarded, serial):
        bind_kernel(_code(_program(body)), [values], outputs := [np.zeros(N, np.float32)])()
        np.testing.assert_array_equal(outputs[0], values)


@pytest.mark.parametrize(
    "dtype", [t.BOOL, t.I8, t.U16, t.I32, t.U64, t.F16, t.BF16, t.F32, t.F64], ids=str
)
def test_values_do_not_look_like_what_was_never_written(dtype: DType) -> None:
    """Every element is the very pattern that results are filled with, and yet it is written."""
    count = 24
    x = Buffer("x", dtype, (count,), "operand")
    y = Buffer("y", dtype, (count,), "result")
    body = _loop("i", count, LoopKind.VECTORIZE, lambda i: [Store(y, (i,), load(x, (i,)))])
    part = _loop("i", count - 5, LoopKind.VECTORIZE, lambda i: [Store(y, (i,), load(x, (i,)))])
    patterns = {t.F16: 0x7DA5, t.BF16: 0x7FA5, t.F32: 0x7FA5A5A5, t.F64: 0x7FF5A5A5A5A5A5A5}
    pattern = patterns.get(dtype, int.from_bytes(b"\xa5" * dtype.bytes))
    raw = np.full(count, pattern, f"u{dtype.bytes}")
    if dtype is t.BOOL:
        raw[...] = 1
    bind_kernel(
        _code(LoopProgram("k", (x,), (y,), (body,))),
        [raw.view(dtype.numpy)],
        outputs := [np.zeros(count, dtype.numpy)],
    )()
    np.testing.assert_array_equal(outputs[0].view(raw.dtype), raw)
    with pytest.raises(KernelFaultError, match="nothing is written to element 19 of y"):
        bind_kernel(
            _code(LoopProgram("k", (x,), (y,), (part,))),
            [np.zeros(count, dtype.numpy)],
            [np.zeros(count, dtype.numpy)],
        )()


@pytest.mark.parametrize("scope", ["stack", "register", "scratch"])
def test_what_was_never_written_is_not_a_number(scope: str) -> None:
    """The sum of an array of which one element was left out."""
    buffer = Buffer("p", t.F32, (16,), scope)
    fill = _loop("i", 15, LoopKind.UNROLL, lambda i: [Store(buffer, (i,), const(1.0, t.F32))])
    total = [Store(R, (j,), load(buffer, (j,))) for j in map(index.constant, range(16))]
    rest = _loop("k", 4, LoopKind.SERIAL, lambda k: [Store(R, (_at(k, 16),), const(0.0, t.F32))])
    inside = (fill, *total, rest)
    program = _program(*inside) if scope == "scratch" else _program(Allocate(buffer, inside))
    if scope == "scratch":
        program = LoopProgram("k", (A,), (R,), inside, ((buffer, 0),))
    bind_kernel(_code(program), [np.zeros(N, np.float32)], outputs := [np.zeros(N, np.float32)])()
    assert np.flatnonzero(np.isnan(outputs[0])).tolist() == [15]


def test_results_that_take_over_an_operand() -> None:
    """They hold its values, and elements that are left as they were are no fault."""
    program = LoopProgram(
        "k",
        (A,),
        (R,),
        (
            _loop(
                "i",
                7,
                LoopKind.SERIAL,
                lambda i: [Store(R, (i,), apply("add", load(A, (i,)), const(1.0, t.F32)))],
            ),
        ),
        aliases=((R, A),),
    )
    values = np.arange(N, dtype=np.float32)
    bind_kernel(_code(program), [values], [values])()
    np.testing.assert_array_equal(values, np.arange(N) + (np.arange(N) < 7))


def test_fences_catch_what_no_check_knows_of() -> None:
    """Checks that have been taken out of the code: in either direction, and a written operand."""
    for offset, expected in (
        (N, "to byte 80 of a, which has 80"),
        (-1100, "to byte -4400 of a, which has 80"),
    ):
        program = _program(
            _copy(R, A, LoopKind.SERIAL, 1, loaded=offset), _copy(R, A, LoopKind.SERIAL)
        )
        with pytest.raises(KernelFaultError) as caught:
            bind_kernel(_unchecked(program), [np.zeros(N, np.float32)], [np.zeros(N, np.float32)])()
        assert f"an access that no check knows of, {expected}" in str(caught.value)
    program = _program(_copy(R, A, LoopKind.PARALLEL, N, stored=-1), _copy(R, A, LoopKind.SERIAL))
    with pytest.raises(KernelFaultError, match="something was written in front of r"):
        bind_kernel(
            _unchecked(program), [np.ones(N, np.float32)], [np.zeros(N, np.float32)], threads=3
        )()


def _unchecked(program: LoopProgram) -> KernelCode:
    """The kernel between fences, with every check replaced by nothing."""
    text = print_program(program, host(), checked=True)
    kept = [line for line in text.splitlines() if not line.startswith("  call void @check")]
    code = compile_ir("\n".join(kept), host())
    return load_object(code, program.name, program.scratch_bytes)


def test_only_kernels_with_checks_have_any() -> None:
    program = FAULTS["in a while"][0]
    plain = print_program(program, host())
    assert "@check" not in plain and "memset" not in plain
    assert "@check" in print_program(program, host(), checked=True)
