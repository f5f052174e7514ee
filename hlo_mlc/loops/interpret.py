"""Running loop programs on NumPy arrays, element by element: what the loop IR means, executed.

Memory that was never written holds NaN, or all bits set; every access is checked against the
bounds of its buffer; parallel iterations, blocks and threads run in a shuffled order; the lanes of
a vector run in lockstep, each statement for all lanes before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
    bodies,
    folding,
    walk,
)
from hlo_mlc.loops.rewrite import constant_extent, inline_calls, with_body
from hlo_mlc.loops.scalar import Compiled, Compiler, Frame, combine
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import VerifyError

Run = Callable[[Frame], None]
Update = Callable[[Sequence, Sequence], tuple]
Value = np.generic | int


def interpret(
    program: LoopProgram,
    operands: Sequence[np.ndarray],
    *,
    seed: int = 0,
    aliased: bool = True,
    blank: int = 0xFF,
) -> list[np.ndarray]:
    """The results of running `program`; `seed` chooses the order of parallel iterations, `blank`
    is what every byte of memory holds that was not written yet.

    With `aliased`, results that may share an operand's memory do; the arrays given are never
    written.

    Raises: VerifyError for operands that do not fit, an access outside of a buffer, or lanes that
    write the same element.
    """
    program = with_body(program, inline_calls(program.body))
    memory = _Memory(program, operands, aliased, blank)
    machine = _Machine(program, memory, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        run = machine.block(program.body, None)
        run(machine.frame)
    return [memory.arrays[b, None] for b in program.results]


class _Memory:
    """The arrays behind the buffers of a program."""

    def __init__(
        self, program: LoopProgram, operands: Sequence[np.ndarray], aliased: bool, blank: int
    ) -> None:
        self.blank = blank
        self.arrays: dict[tuple[Buffer, Var | None], np.ndarray] = {}
        if len(operands) != len(program.operands):
            raise VerifyError(
                f"kernel {program.name}: expected {len(program.operands)} operands, "
                f"got {len(operands)}"
            )
        for buffer, given in zip(program.operands, operands, strict=True):
            self.arrays[buffer, None] = self._fitting(buffer, np.array(given, order="C"))
        twins = dict(program.aliases) if aliased else {}
        for buffer in program.results:
            self.arrays[buffer, None] = (
                self._as(buffer, self.arrays[twins[buffer], None])
                if buffer in twins
                else self._blank(buffer)
            )
        arena = np.full(program.scratch_bytes, blank, np.uint8)
        for buffer, offset in program.scratch:
            size = self._blank(buffer).nbytes
            self.arrays[buffer, None] = self._as(buffer, arena[offset : offset + size])
        self._add_private(program.body, None)

    def _fitting(self, buffer: Buffer, given: np.ndarray) -> np.ndarray:
        if given.dtype != buffer.dtype.numpy or given.shape != buffer.shape:
            raise VerifyError(
                f"expected an array for {buffer!r}, got "
                f"{'x'.join(map(str, (*given.shape, given.dtype)))}"
            )
        return given

    def _as(self, buffer: Buffer, memory: np.ndarray) -> np.ndarray:
        """Other memory seen as this buffer."""
        return memory.reshape(-1).view(buffer.dtype.numpy).reshape(buffer.shape)

    def _blank(self, buffer: Buffer, copies: tuple[int, ...] = ()) -> np.ndarray:
        array = np.empty((*copies, *buffer.shape), buffer.dtype.numpy)
        poison(array, self.blank)
        return array

    def _add_private(self, statements: tuple[Stmt, ...], vector: For | None) -> None:
        """Arrays for allocated buffers; inside of a vector every lane has its own."""
        for stmt in statements:
            if isinstance(stmt, Allocate):
                copies = () if vector is None else (constant_extent(vector),)
                self.arrays[stmt.buffer, _lane(vector)] = self._blank(stmt.buffer, copies)
            inside = stmt if _is_vector(stmt) else vector
            for body in bodies(stmt):
                self._add_private(body, inside)


def poison(array: np.ndarray, blank: int) -> None:
    """Make every element NaN, or all bits set, or hold another byte."""
    if array.dtype == np.bool_:
        array.fill(blank & 1)
    else:
        array.reshape(-1).view(np.uint8).fill(blank)


def _lane(vector: For | None) -> Var | None:
    return None if vector is None else vector.var


def _is_vector(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZE


class _Machine:
    """Statements turned into functions of a frame, which holds the values of all variables.

    `vector` is the vector loop around a statement: such a function runs all lanes.
    """

    def __init__(self, program: LoopProgram, memory: _Memory, rng: np.random.Generator) -> None:
        self.arrays, self.rng, self.blank = memory.arrays, rng, memory.blank
        self.slots: dict[Var, int] = {}
        self.frame: Frame = []
        for stmt in walk(program.body):
            if isinstance(stmt, For):
                self._bind(stmt.var, 0)
        self.compiler = Compiler(memory.arrays, self.slots)

    def _bind(self, var: Var, value: int) -> None:
        if var not in self.slots:
            self.slots[var] = len(self.frame)
            self.frame.append(value)

    def _array(self, buffer: Buffer, vector: For | None) -> np.ndarray:
        own = self.arrays.get((buffer, _lane(vector)))
        return self.arrays[buffer, None] if own is None else own

    def block(self, statements: tuple[Stmt, ...], vector: For | None) -> Run:
        """All statements, one after the other."""
        parts = [self._statement(stmt, vector) for stmt in statements]
        if len(parts) == 1:
            return parts[0]

        def run(frame: Frame) -> None:
            for part in parts:
                part(frame)

        return run

    def _statement(self, stmt: Stmt, vector: For | None) -> Run:
        match stmt:
            case For():
                return self._for(stmt, vector)
            case Store():
                return self._store(stmt, vector)
            case Accumulate():
                return self._accumulate(stmt, vector)
            case Prefetch():
                return lambda frame: None
            case If():
                return self._if(stmt, vector)
            case While():
                return self._while(stmt, vector)
            case Allocate():
                return self._allocate(stmt, vector)
        raise TypeError(f"not a statement: {stmt!r}")

    def _uniform(self, value: Expr, stmt: Stmt, vector: For | None) -> Callable[[Frame], Value]:
        """The value of an expression that must be the same in all lanes."""
        function = self.compiler.compile([value], lane=_lane(vector), where=headline(stmt))
        if vector is None:
            return lambda frame: function(frame)[0]
        lanes = self._lanes(vector)

        def same(frame: Frame) -> Value:
            values = {r[0] for r in lanes(function, frame)}
            if len(values) != 1:
                raise VerifyError(
                    f"expected one value in all lanes of {vector.var.name}, got "
                    f"{sorted(values)} in: {headline(stmt)}"
                )
            return values.pop()

        return same

    def _lanes(self, vector: For) -> Callable[[Compiled, Frame], list]:
        """Runs a function for every lane."""
        slot, width = self.slots[vector.var], constant_extent(vector)

        def run(function: Compiled, frame: Frame) -> list:
            results = []
            for lane in range(width):
                frame[slot] = lane
                results.append(function(frame))
            return results

        return run

    def _for(self, stmt: For, vector: For | None) -> Run:
        if _is_vector(stmt):
            if vector is not None or constant_extent(stmt) is None:
                raise VerifyError(
                    f"expected a vector of constant extent outside of any other: {headline(stmt)}"
                )
            return self.block(stmt.body, stmt)
        extent = self._uniform(stmt.extent, stmt, vector)
        update = folding(stmt)
        if update is not None:
            return self._fold(stmt, update, extent)
        body = self.block(stmt.body, vector)
        slot, rng = self.slots[stmt.var], self.rng
        shuffled = stmt.kind in (LoopKind.PARALLEL, LoopKind.BLOCK, LoopKind.THREAD)

        def run(frame: Frame) -> None:
            trips = extent(frame)
            for i in rng.permutation(trips).tolist() if shuffled else range(trips):
                frame[slot] = i
                body(frame)

        return run

    def _fold(self, stmt: For, update: Accumulate, extent: Callable[[Frame], Value]) -> Run:
        """One update of an element by all threads of a loop."""
        function = self.compiler.compile(
            update.terms, update.guard, (update.buffers[0], update.indices), where=headline(update)
        )
        combiner = combine(update.combiner.results, update.combiner.lhs, update.combiner.rhs)
        arrays, slot = [self._array(b, None) for b in update.buffers], self.slots[stmt.var]

        def run(frame: Frame) -> None:
            terms = []
            for i in range(extent(frame)):
                frame[slot] = i
                terms.append(function(frame))
            result = by_halves(terms, combiner) if terms else None
            if result is not None:
                new = combiner([a[result[0]] for a in arrays], result[1:])
                for array, value in zip(arrays, new, strict=True):
                    array[result[0]] = value

        return run

    def _if(self, stmt: If, vector: For | None) -> Run:
        condition = self._uniform(stmt.condition, stmt, vector)
        then, otherwise = self.block(stmt.then, vector), self.block(stmt.otherwise, vector)

        def run(frame: Frame) -> None:
            (then if condition(frame) else otherwise)(frame)

        return run

    def _while(self, stmt: While, vector: For | None) -> Run:
        condition, body = self._uniform(stmt.condition, stmt, vector), self.block(stmt.body, vector)

        def run(frame: Frame) -> None:
            while condition(frame):
                body(frame)

        return run

    def _allocate(self, stmt: Allocate, vector: For | None) -> Run:
        array, body = self._array(stmt.buffer, vector), self.block(stmt.body, vector)

        def run(frame: Frame) -> None:
            poison(array, self.blank)
            body(frame)

        return run

    def _store(self, stmt: Store, vector: For | None) -> Run:
        where = headline(stmt)
        function = self.compiler.compile(
            [stmt.value], stmt.guard, (stmt.buffer, stmt.indices), _lane(vector), where
        )
        array = self._array(stmt.buffer, vector)
        if vector is None:

            def run(frame: Frame) -> None:
                result = function(frame)
                if result is not None:
                    array[result[0]] = result[1]

            return run
        lanes = self._lanes(vector)

        def run_lanes(frame: Frame) -> None:
            for place, value in _distinct(lanes(function, frame), where):
                array[place] = value

        return run_lanes

    def _accumulate(self, stmt: Accumulate, vector: For | None) -> Run:
        where = headline(stmt)
        function = self.compiler.compile(
            stmt.terms, stmt.guard, (stmt.buffers[0], stmt.indices), _lane(vector), where
        )
        update = combine(stmt.combiner.results, stmt.combiner.lhs, stmt.combiner.rhs)
        arrays = [self._array(b, vector) for b in stmt.buffers]

        def apply(place: tuple[int, ...], terms: Sequence) -> None:
            new = update([a[place] for a in arrays], terms)
            for array, value in zip(arrays, new, strict=True):
                array[place] = value

        def run(frame: Frame) -> None:
            result = function(frame)
            if result is not None:
                apply(result[0], result[1:])

        if vector is None:
            return run
        lanes = self._lanes(vector)
        shared = (
            all(vector.var not in i.free for i in stmt.indices)
            and (stmt.buffers[0], vector.var) not in self.arrays
        )

        def run_lanes(frame: Frame) -> None:
            results = lanes(function, frame)
            if shared:
                results = [by_halves(results, update)]
            for place, *terms in _distinct(results, where):
                apply(place, terms)

        return run_lanes


def by_halves(lanes: Sequence[tuple | None], update: Update) -> tuple | None:
    """(place, terms…) of all lanes combined: lane l with lane l + width/2, and so on, where the
    width is the power of two that holds all lanes; lanes that are masked take no part."""
    live = list(lanes)
    while len(live) > 1:
        half = 1 << (len(live) - 1).bit_length() - 1
        for lane in range(len(live) - half):
            low, high = live[lane], live[lane + half]
            if low is None or high is None:
                live[lane] = high if low is None else low
            else:
                live[lane] = (low[0], *update(low[1:], high[1:]))
        del live[half:]
    return live[0]


def _distinct(results: Sequence[tuple | None], where: str) -> list[tuple]:
    """The lanes that are not masked, whose places must differ."""
    active = [r for r in results if r is not None]
    if len({r[0] for r in active}) < len(active):
        raise VerifyError(f"several lanes write the same element in: {where}")
    return active
