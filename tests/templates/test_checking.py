"""Checks in real kernels: they fail exactly where the interpreter leaves a buffer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Expr, Load, loads
from hlo_mlc.loops.core import LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.rewrite import expressions, inline_calls, map_expressions, transform, with_body
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.runtime.variants import load_object
from hlo_mlc.support.errors import KernelFaultError, VerifyError
from hlo_mlc.target.cpu import host
from hlo_mlc.templates.program import schedule_program
from making.code import generate

MOST = 4  # faulty kernels of each right one


def _moved(indices: tuple[Expr, ...], axis: int, by: int) -> tuple[Expr, ...]:
    moved = index.add(indices[axis], index.constant(by))
    return (*indices[:axis], moved, *indices[axis + 1 :])


def _loads_moved(program: LoopProgram, name: str, axis: int, by: int) -> LoopProgram:
    """Every load of a buffer is some elements off along an axis."""

    def swap(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source.name == name:
            return build.load(node.source, _moved(node.indices, axis, by), node.guard, node.default)
        return None

    return with_body(program, map_expressions(program.body, lambda e: build.transform(e, swap)))


def _stores_moved(program: LoopProgram, name: str, axis: int, by: int) -> LoopProgram:
    """Every store to a buffer is."""

    def visit(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Store) and stmt.buffer.name == name:
            return (
                Store(
                    stmt.buffer,
                    _moved(stmt.indices, axis, by),
                    stmt.value,
                    stmt.guard,
                    stmt.streaming,
                ),
            )
        return None

    return with_body(program, transform(program.body, visit))


def _faulty(program: LoopProgram, rng: np.random.Generator) -> Iterator[LoopProgram]:
    """Programs in which one buffer is read or written elsewhere."""
    statements = list(walk(program.body))
    read = {load.source for s in statements for e in expressions(s) for load in loads(e)}
    stored = {s.buffer for s in statements if isinstance(s, Store)}
    choices = [
        (change, buffer.name, axis, by)
        for change, buffers in ((_loads_moved, read), (_stores_moved, stored))
        for buffer in sorted(buffers, key=lambda b: b.name)
        for axis in range(len(buffer.shape))
        for by in (-1, 1)
    ]
    for n in rng.permutation(len(choices))[:MOST]:
        change, *what = choices[n]
        yield change(program, *what)


def test_checks_find_what_the_interpreter_finds(sample, name) -> None:
    """With any parameters, those that pack panels among them."""
    subject, rng = sample(name, 3, largest=17), np.random.default_rng(len(name))
    found = []

    def run(loops: LoopProgram, operands: list[np.ndarray]) -> list[np.ndarray]:
        generated = generate(loops, host(), checked=True)
        code = load_object(generated.object_code, generated.symbol, loops.scratch_bytes)
        results = [np.zeros(b.shape, b.dtype.numpy) for b in loops.results]
        bind_kernel(
            code,
            [
                np.ascontiguousarray(a).reshape(b.shape)
                for a, b in zip(operands, loops.operands, strict=True)
            ],
            results,
            threads=2,
        )()
        return results

    def execute(program, operands):
        tuned = {}
        for number, decision in enumerate(schedule_program(program, host())[1]):
            space = decision.template.space(decision.nest, host())
            tuned[number] = (
                decision.template.name,
                {key: int(rng.choice(values)) for key, values in space.items()},
            )
        scheduled, _ = schedule_program(program, host(), tuned)
        loops = with_body(scheduled, inline_calls(scheduled.body))
        for wrong in _faulty(loops, rng):
            found.append((_interpreted(wrong, operands), _checked(run, wrong, operands)))
        return run(scheduled, operands)

    subject.check(execute)
    assert any(interpreted for interpreted, _ in found)
    for interpreted, checked in found:
        assert bool(interpreted) == bool(checked), (interpreted, checked)


def _interpreted(loops: LoopProgram, operands: list[np.ndarray]) -> str:
    try:
        interpret(loops, operands)
    except VerifyError as error:
        return str(error)
    return ""


def _checked(run, loops: LoopProgram, operands: list[np.ndarray]) -> str:
    try:
        run(loops, operands)
    except KernelFaultError as fault:
        return "" if "nothing is written" in str(fault) else str(fault)
    return ""
