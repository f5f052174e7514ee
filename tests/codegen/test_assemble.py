"""Object code: what LLVM rejects, targets that are not this machine, and the quality of loops."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hlo_mlc.codegen.cpu import assemble
from hlo_mlc.codegen.cpu.assemble import assembly, compile_ir, warm_up
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget, host, named
from hlo_mlc.tensor.access import clamped_index
from making.code import generate

_ELF_MACHINES = {"x86-64": 62, "x86-64-v2": 62, "x86-64-v3": 62, "x86-64-v4": 62, "aarch64": 183}
_SUM = Combiner(
    (Var("a", t.F32),),
    (Var("b", t.F32),),
    (apply("add", Var("a", t.F32), Var("b", t.F32)),),
    None,
    "add",
)


def _times(factor: int, e: Expr, more: Expr) -> Expr:
    return index.add(index.multiply(e, index.constant(factor)), more)


def _loop(var: Var, kind: LoopKind, *body: Stmt) -> For:
    return For(var, index.constant(var.extent), kind, body)


def _matmul(rows: int, vectors: int, lanes: int) -> LoopProgram:
    """C = A @ B by register tiles of rows x (vectors * lanes)."""
    m, n, k = 4 * rows, 4 * vectors * lanes, 96
    a, b = Buffer("A", t.F32, (m, k), "operand"), Buffer("B", t.F32, (k, n), "operand")
    c = Buffer("C", t.F32, (m, n), "result")
    tile = Buffer("tile", t.F32, (rows, vectors * lanes), "register")
    im, jn, ik = variable("im", 4), variable("jn", 4), variable("ik", k)
    r, u, lane = variable("r", rows), variable("u", vectors), variable("lane", lanes)
    row, inner = _times(rows, im, r), _times(lanes, u, lane)
    column = _times(vectors * lanes, jn, inner)

    def each(stmt: Stmt) -> For:
        return _loop(
            r, LoopKind.UNROLL, _loop(u, LoopKind.UNROLL, _loop(lane, LoopKind.VECTORIZE, stmt))
        )

    product = apply("mul", load(a, (row, ik)), load(b, (ik, column)))
    body = Allocate(
        tile,
        (
            each(Store(tile, (r, inner), const(0, t.F32))),
            _loop(ik, LoopKind.SERIAL, each(Accumulate((tile,), (r, inner), _SUM, (product,)))),
            each(Store(c, (row, column), load(tile, (r, inner)))),
        ),
    )
    return LoopProgram(
        "matmul", (a, b), (c,), (_loop(jn, LoopKind.PARALLEL, _loop(im, LoopKind.SERIAL, body)),)
    )


def _innermost_loop(text: str) -> list[str]:
    """The longest run of instructions between a label and a jump back to it."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    found: list[list[str]] = []
    for end, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\S+)", line)
        if jump and f"{jump[1]}:" in lines[:end]:
            body = lines[lines.index(f"{jump[1]}:") + 1 : end + 1]
            if not any(inner.endswith(":") for inner in body):
                found.append([inner for inner in body if not inner.startswith(".")])
    return max(found, key=len)


@pytest.mark.parametrize(
    ("level", "rows", "vectors", "lanes", "register"),
    [
        ("x86-64-v4", 6, 4, 16, "zmm"),
        ("x86-64-v4", 9, 3, 16, "zmm"),
        ("x86-64-v4", 14, 2, 16, "zmm"),
        ("x86-64-v3", 6, 2, 8, "ymm"),
    ],
)
def test_register_tiles_stay_in_registers(
    level: str, rows: int, vectors: int, lanes: int, register: str
) -> None:
    """One fused multiply-add a vector, one load a vector of B, one broadcast an element of A."""
    target = named(level)
    program = _matmul(rows, vectors, lanes)
    loop = _innermost_loop(assembly(print_program(program, target), target))
    fused = [line for line in loop if line.startswith("vfmadd")]
    assert len(fused) == rows * vectors
    assert all(register in line for line in fused)
    assert len({line.rsplit("%", 1)[1] for line in fused}) == rows * vectors
    assert not any("%rsp" in line or "%rbp" in line for line in loop)
    reads = [line for line in loop if "(%r" in line]
    assert len(reads) == rows + vectors
    assert len(loop) <= rows * vectors + rows + vectors + 4


def test_elementwise_loops_have_nothing_to_spare() -> None:
    """Four vectors a turn: a load folded into the sum, a store; one counter, no other address."""
    x, y = Buffer("x", t.F32, (4096,), "operand"), Buffer("y", t.F32, (4096,), "result")
    scale = Buffer("scale", t.F32, (), "operand")
    outer, u, lane = variable("outer", 64), variable("u", 4), variable("lane", 16)
    at = _times(64, outer, _times(16, u, lane))
    value = apply("mul", load(x, (at,)), load(scale, ()))
    program = LoopProgram(
        "scaled",
        (x, scale),
        (y,),
        (
            _loop(
                outer,
                LoopKind.SERIAL,
                _loop(u, LoopKind.UNROLL, _loop(lane, LoopKind.VECTORIZE, Store(y, (at,), value))),
            ),
        ),
    )
    target = named("x86-64-v4")
    loop = _innermost_loop(assembly(print_program(program, target), target))
    assert len([line for line in loop if line.startswith("vmulps")]) == 4
    assert len([line for line in loop if line.startswith("vmovups")]) in (4, 8)
    assert len(loop) <= 4 + 8 + 3


def test_long_code_is_made_of_the_same_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another order, where LLVM knows a processor's: none that would take longer."""
    target = replace(named("x86-64-v4"), name="znver4", cpu="znver4")
    text = print_program(_matmul(4, 2, 16), target)
    usual = assembly(text, target)
    monkeypatch.setattr(assemble, "_LONG_CODE_LINES", text.count("\n") - 1)
    long = assembly(text, target)
    assert long != usual
    assert _instructions(long) == _instructions(usual)
    assert _instructions(long)["vfmadd231ps"] == 4 * 2


def test_what_is_linked_in_counts_for_the_length_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(named("x86-64-v4"), name="znver4", cpu="znver4")
    text = print_program(_matmul(4, 2, 16), target)
    part = "define void @part() {\n  ret void\n}\n"
    usual = compile_ir(text, target, static=[part])
    monkeypatch.setattr(assemble, "_LONG_CODE_LINES", text.count("\n"))
    assert compile_ir(text, target, static=iter([part])) != usual


def _instructions(text: str) -> Counter[str]:
    lines = (line for line in text.splitlines() if re.match(r"\t[a-z]", line))
    return Counter(line.split()[0] for line in lines)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_lanes_at_a_constant_stride_have_no_addresses(level: str, stored: bool) -> None:
    """An instruction an element, which knows how far away it is; besides them, only what puts the
    quarters of a vector together, and the counter."""
    target = named(level)
    lanes = target.lanes(4)
    lane, column = variable("lane", lanes), variable("column", 37)
    apart, beside = (lane, column), (column, lane)
    x = Buffer("x", t.F32, (37, lanes) if stored else (lanes, 37), "operand")
    y = Buffer("y", t.F32, (lanes, 37) if stored else (37, lanes), "result")
    copied = Store(y, apart if stored else beside, load(x, beside if stored else apart))
    program = LoopProgram(
        "columns",
        (x,),
        (y,),
        (_loop(column, LoopKind.SERIAL, _loop(lane, LoopKind.VECTORIZE, copied)),),
    )
    loop = _innermost_loop(assembly(print_program(program, target), target))
    assert len([line for line in loop if re.search(r"\(%\w+,%\w+,4\)", line)]) == lanes
    assert len(loop) <= lanes + lanes // 4 + 4


@pytest.mark.parametrize("dtype", [t.F32, t.F64, t.I32, t.I64], ids=str)
def test_what_some_lanes_keep_is_blended(dtype: t.DType) -> None:
    """AVX2's masked stores are slow, and what is loaded after them waits."""
    target = named("x86-64-v3")
    outer, lane = variable("outer", 64), variable("lane", target.lanes(dtype.bytes))
    at = _times(lane.extent, outer, lane)
    x = Buffer("x", dtype, (64 * lane.extent,), "operand")
    y = Buffer("y", dtype, (64 * lane.extent,), "result")
    zero = const(0, dtype)
    for chosen in ((load(x, (at,)), load(y, (at,))), (load(y, (at,)), load(x, (at,)))):
        kept = apply("select", apply("lt", load(x, (at,)), zero), *chosen)
        program = LoopProgram(
            "kept",
            (x,),
            (y,),
            tuple(
                _loop(
                    outer, LoopKind.SERIAL, _loop(lane, LoopKind.VECTORIZE, Store(y, (at,), value))
                )
                for value in (zero, kept)
            ),
        )
        text = assembly(print_program(program, target), target)
        assert "maskmov" not in text
        assert "vblendv" in text


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_positions_of_32_bits_are_clamped_in_32_bits(level: str) -> None:
    target = named(level)
    lanes = target.lanes(4)
    outer, lane = variable("outer", 64), variable("lane", lanes)
    at = _times(lanes, outer, lane)
    where = Buffer("where", t.I32, (64 * lanes,), "operand")
    x, y = Buffer("x", t.F32, (1000,), "operand"), Buffer("y", t.F32, (64 * lanes,), "result")
    position = clamped_index(load(where, (at,)), 999)
    program = LoopProgram(
        "picked",
        (x, where),
        (y,),
        (
            _loop(
                outer,
                LoopKind.SERIAL,
                _loop(lane, LoopKind.VECTORIZE, Store(y, (at,), load(x, (position,)))),
            ),
        ),
    )
    loop = _innermost_loop(assembly(print_program(program, target), target))
    clamps = [line for line in loop if re.match(r"v?p(min|max|cmp)", line)]
    assert [line.split()[0].removeprefix("v") for line in clamps] == ["pminsd", "pmaxsd"]


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", [t.I32, t.U32, t.I64], ids=str)
def test_extremes_of_single_integers_do_not_branch(dtype: t.DType, op: str) -> None:
    """Data decide which of two numbers stays at a place: the largest sender whose offer is best."""
    at = variable("at", 4096)
    operands = offer, best, sender, place = (
        Buffer("offer", t.F32, (4096,), "operand"),
        Buffer("best", t.F32, (1000,), "operand"),
        Buffer("sender", dtype, (4096,), "operand"),
        Buffer("place", t.I32, (4096,), "operand"),
    )
    result = Buffer("result", dtype, (1000,), "result")
    where = clamped_index(load(place, (at,)), 999)
    is_best = apply("eq", load(offer, (at,)), load(best, (where,)))
    one = apply("select", is_best, load(sender, (at,)), const(1, dtype))
    value = apply(op, load(result, (where,)), one)
    loop = _loop(at, LoopKind.SERIAL, Store(result, (where,), value))
    program, target = LoopProgram("extremes", operands, (result,), (loop,)), named("x86-64-v3")
    text = assembly(print_program(program, target), target)
    assert len(re.findall(r"^\s+j(?!mp)", text, re.MULTILINE)) == 1  # back to the loop's begin


@pytest.mark.parametrize("level", _ELF_MACHINES)
def test_objects_for_every_target(level: str) -> None:
    generated = generate(_matmul(2, 1, 4), named(level))
    assert generated.symbol == "matmul"
    assert generated.object_code[:4] == b"\x7fELF"
    assert int.from_bytes(generated.object_code[18:20], "little") == _ELF_MACHINES[level]


def test_the_same_kernel_gives_the_same_bytes() -> None:
    first, second = (generate(_matmul(2, 2, 8), named("x86-64-v3")) for _ in range(2))
    assert first == second


def test_register_buffers_are_no_memory() -> None:
    target = named("x86-64-v3")
    text = print_program(_matmul(2, 2, 8), target)
    assert "alloca" in text
    with assemble._machine(target) as machine:
        assert "alloca [64 x i8]" not in str(assemble._optimized(text, machine))


def test_threads_compile_at_the_same_time() -> None:
    programs = [_matmul(rows, 2, 8) for rows in (1, 2, 3, 4)]
    alone = [generate(p, named("x86-64-v3")).object_code for p in programs]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda p: generate(p, named("x86-64-v3")).object_code, programs * 2)
        )
    assert together == alone * 2


_ARCHITECTURES = """
import llvmlite.binding as llvm
from hlo_mlc.codegen.cpu.assemble import warm_up
from hlo_mlc.target.cpu import host, named, names

def knows(triple):
    try:
        return bool(llvm.Target.from_triple(triple))
    except RuntimeError:
        return False

others = [t for t in map(named, names()) if t.triple[:6] != host().triple[:6]]
warm_up(host())
print(any(knows(other.triple) for other in others))
for other in others:
    warm_up(other)
print(all(knows(other.triple) for other in others))
"""


def test_llvm_knows_other_architectures_once_they_are_asked_for() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ARCHITECTURES], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_what_warms_up_is_a_module(level: str) -> None:
    assert compile_ir(assemble._SMALL, named(level))[:4] == b"\x7fELF"


def test_llvm_is_warmed_up_once_also_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    both = threading.Barrier(2)

    def compile_slowly(ir: str, target: CpuTarget) -> bytes:
        made.append(target.name)
        time.sleep(0.05)
        return b""

    def ask(_: int) -> None:
        both.wait()
        warm_up(replace(named("x86-64-v3"), cores=77))  # nobody has asked for

    monkeypatch.setattr(assemble, "compile_ir", compile_slowly)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, range(2)))
    assert made == ["x86-64-v3"]


def test_rejected_text_is_shown() -> None:
    text = "define void @f() {\n  %x = add i32 1, 2.5\n  ret void\n}\n"
    with pytest.raises(CodegenError, match="LLVM rejects the generated code") as caught:
        compile_ir(text, host())
    assert caught.value.context == "%x = add i32 1, 2.5"


def test_invalid_modules_are_rejected() -> None:
    text = (
        "define void @f() {\n  br label %next\nnext:\n  %y = add i32 %x, 1\n"
        "  %x = add i32 1, 1\n  ret void\n}\n"
    )
    with pytest.raises(CodegenError, match="does not dominate"):
        compile_ir(text, host())
