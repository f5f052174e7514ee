"""What all functions of a kernel share: alias classes, metadata, constant tables, legal forms."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Kind
from hlo_mlc.codegen.cpu.function import NO_READS, Function
from hlo_mlc.codegen.cpu.nans import NansOf
from hlo_mlc.codegen.cpu.registers import Array
from hlo_mlc.codegen.legalize import Abilities, is_data, legalize
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Const, Expr, Var
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    While,
    bodies,
    walk,
)
from hlo_mlc.loops.signature import ALIGNMENT
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget

Term = tuple[Expr, int]  # an atom of an affine form and its coefficient
_CONSTANT_CLASS = 0
# Classes of buffers that LLVM is told to be apart from each other: of a thousand, all pairs would
# take a tenth of the time of the compilation.
MOST_APART = 64


class Storage(NamedTuple):
    """Where a buffer lies: a pointer with its alignment, and what it cannot overlap.

    `private_lanes`: each lane has its own copy, side by side, element by element; `own_bytes`: the
    size of a register buffer's array; `spare_lanes`: what lies behind the last lane of a short
    vector may be overwritten; `array`: what the function's registers know a register buffer by.
    """

    pointer: str
    alignment: int
    alias_class: int
    bytes: int
    tags: str = ""  # metadata of stores
    private_lanes: int = 0
    own_bytes: int = 0
    spare_lanes: bool = False
    array: Array | None = None

    @property
    def writable(self) -> int | None:
        """The alias class, if its memory can change while the kernel runs."""
        return self.alias_class or None

    @property
    def load_kind(self) -> Kind | int:
        """What loads do; of arrays that hold registers it is not said when these are put there."""
        if self.own_bytes:
            return Kind.READ
        return self.alias_class or Kind.COMPUTE

    @property
    def load_tags(self) -> str:
        """Metadata of loads, which say so where it cannot."""
        return self.tags if self.alias_class else self.tags + ", !invariant.load !0"


class Module:
    """The parts of a kernel's LLVM module that its functions have in common.

    A program that the kernel calls has a `Module` of its own, for its own buffers, and shares
    what becomes text with that of the kernel, its `root`.
    """

    def __init__(
        self,
        program: LoopProgram,
        target: CpuTarget,
        root: Module | None = None,
        checked: bool = False,
        most_lines: int = sys.maxsize,
    ) -> None:
        self.program, self.target = program, target
        self._root = root  # None for the kernel's own: a module does not hold itself
        self.most_lines = root.most_lines if root else most_lines
        self.checked = root.checked if root else checked  # with checks of every access
        self.functions: list[str] = root.functions if root else []
        # definition of a constant global -> its name
        self.tables: dict[str, str] = root.tables if root else {}
        # what is rarely computed, and the lanes of its parameters -> the function's name and lanes,
        # if it is one yet
        self.rare: dict[tuple[Expr, tuple[int, ...]], tuple[str, int] | None] = (
            root.rare if root else {}
        )
        self.checkers: set[int] = set()  # lanes that the root has functions to check
        self.numbers: Iterator[int] = root.numbers if root else itertools.count(1)
        self.called: dict[LoopProgram, Module] = {}
        self._first_class = _FIRST_CLASS
        if root is not None:
            root.called[program] = self
            self._first_class += _CLASSES_APART * len(root.called)
        self._arguments = {b: n for n, b in enumerate((*program.operands, *program.results))}
        self._offsets = dict(program.scratch)
        self._classes = _alias_classes(program)
        self._class_count = max(self._classes.values(), default=0) + 1
        self.unrolled = _Unrolled(
            frozenset(s.var for s in walk(program.body) if isinstance(s, For) and is_unrolled(s))
        )
        self.nans = NansOf()
        self._abilities = tuple(abilities(target, in_vector) for in_vector in (False, True))
        self._legal: tuple[dict[Expr, Expr], dict[Expr, Expr]] = ({}, {})
        self._linear: dict[tuple[Buffer, tuple[Expr, ...]], tuple[tuple[Term, ...], int]] = {}
        self._writes: dict[int, frozenset[int]] = {}

    @property
    def root(self) -> Module:
        return self._root or self

    def legalized(self, node: Expr, in_vector: bool = False) -> Expr:
        """`node` in terms of ops that the target has."""
        memo = self._legal[in_vector]
        known = memo.get(node)
        if known is None:
            if not is_data(node):
                return memo.setdefault(node, node)
            known = legalize(node, self._abilities[in_vector], memo)
        return known

    def table(self, element: str, text: str, count: int) -> str:
        """The name of a read-only array of `count` equal elements."""
        whole = types.vector(element, count)
        return self.constant(f"{whole} {types.spread(text, element, count)}")

    def constant(self, definition: str) -> str:
        """The name of a read-only global, equal ones being one."""
        definition = f"internal unnamed_addr constant {definition}"
        return self.tables.setdefault(definition, f"@table{len(self.tables)}")

    def linear(self, buffer: Buffer, where: tuple[Expr, ...]) -> tuple[tuple[Term, ...], int]:
        """The offset of an element in elements: terms and a constant."""
        key = (buffer, where)
        known = self._linear.get(key)
        if known is None:
            legal = tuple(self.legalized(i) for i in where)
            known = self._linear[key] = _linear_offset(buffer, legal)
        return known

    # Aliasing

    def alias_class(self, buffer: Buffer) -> int:
        """The class of a buffer: buffers of different classes never overlap; 0 is constant."""
        known = self._classes.get(buffer.name)
        if known is None:
            known = self._classes[buffer.name] = self._class_count
            self._class_count += 1
        return known

    def tags(self, buffer: Buffer) -> str:
        """The metadata by which LLVM knows what an access to `buffer` cannot touch."""
        number = self._first_class + 3 * self.alias_class(buffer)
        return f", !alias.scope !{number + 1}, !noalias !{number + 2}"

    def writes(self, statements: tuple[Stmt, ...]) -> frozenset[int]:
        """The alias classes of the buffers that statements write."""
        known = self._writes.get(id(statements))
        if known is None:
            found = NO_READS
            for stmt in statements:
                if isinstance(stmt, Store | Accumulate):
                    found |= {self.alias_class(b) for b in stmt.buffers}
                elif isinstance(stmt, Call):
                    found |= self.results_of(stmt)
                else:
                    found = found.union(*(self.writes(body) for body in bodies(stmt)))
            known = self._writes[id(statements)] = found
        return known

    def results_of(self, call: Call) -> frozenset[int]:
        """The alias classes of the buffers that a call writes."""
        return frozenset(map(self.alias_class, call.buffers[len(call.program.operands) :]))

    def storage(self, function: Function, buffer: Buffer) -> Storage:
        """Where a kernel's argument or scratch buffer lies, seen from the kernel's entry."""
        program, position = self.program, self._arguments.get(buffer)
        if position is not None:
            slot = function.prepare(f"getelementptr ptr, ptr %buffers, i64 {position}")
            pointer = function.prepare("load ptr, ptr ", slot, ", align 8, !invariant.load !0")
            return Storage(
                pointer,
                buffer.dtype.bytes,
                self.alias_class(buffer),
                buffer.bytes,
                self.tags(buffer),
            )
        offset = self._offsets.get(buffer)
        if offset is not None:
            pointer = function.prepare(f"getelementptr i8, ptr %scratch, i64 {offset}")
            return Storage(
                pointer, ALIGNMENT, self.alias_class(buffer), buffer.bytes, self.tags(buffer)
            )
        raise CodegenError(
            f"Expected {buffer!r} to be an operand, a result or scratch of kernel "
            f"{program.name!r}, or to be allocated around its use; it is none of these"
        )

    def metadata(self) -> Iterable[str]:
        """The module's metadata nodes, by the numbers used above and in the printer."""
        yield "!0 = !{}"
        yield "!1 = !{i32 1}"
        yield '!2 = !{!"branch_weights", i32 1, i32 2000}'
        yield "!3 = distinct !{!3}"
        for module in (self, *self.called.values()):
            yield from module._alias_metadata()

    def _alias_metadata(self) -> Iterable[str]:
        numbers = [self._first_class + 3 * k for k in range(self._class_count)]
        for first in range(0, len(numbers), MOST_APART):
            group = numbers[first : first + MOST_APART]
            for number in group:
                others = ", ".join(f"!{n}" for n in group if n != number)
                yield f"!{number} = distinct !{{!{number}, !3}}"
                yield f"!{number + 1} = !{{!{number}}}"
                yield f"!{number + 2} = !{{{others}}}"


class _Unrolled(dict[Expr, tuple[Var, ...]]):
    """The variables of unrolled loops in an expression, in a fixed order."""

    def __init__(self, variables: frozenset[Var]) -> None:
        super().__init__()
        self._variables = variables

    def __missing__(self, node: Expr) -> tuple[Var, ...]:
        found = self[node] = tuple(node.free & self._variables)
        return found


_FIRST_CLASS = 4
_CLASSES_APART = 30_000  # numbers for the classes of one program; metadata may have gaps


def is_unrolled(loop: For) -> bool:
    """Whether the loop's variable is a number wherever its body is written."""
    return loop.kind is LoopKind.UNROLL or (
        isinstance(loop.extent, Const) and loop.extent.value == 1
    )


def has_loops(statements: tuple[Stmt, ...]) -> bool:
    """Whether the code of `statements` contains a loop."""
    for stmt in walk(statements):
        if isinstance(stmt, While | Call):
            return True
        if isinstance(stmt, For) and not is_unrolled(stmt) and stmt.kind is not LoopKind.VECTORIZE:
            return True
    return False


def element_strides(buffer: Buffer) -> tuple[int, ...]:
    """Elements between neighbours along each axis.

    Rows of register buffers are padded so that a vector of any width lies in one row: LLVM makes
    registers only of arrays whose accesses do not overlap each other partly.
    """
    if buffer.scope != "register" or not buffer.shape:
        return buffer.element_strides
    row = buffer.shape[-1]
    padded = 1 << (row - 1).bit_length() if row <= _WIDEST else -(-row // _WIDEST) * _WIDEST
    return Buffer(buffer.name, buffer.dtype, (*buffer.shape[:-1], padded)).element_strides


_WIDEST = 64  # lanes: bytes in the widest register


def _linear_offset(buffer: Buffer, where: tuple[Expr, ...]) -> tuple[tuple[Term, ...], int]:
    terms, offset = index.weighted_sum(zip(where, element_strides(buffer), strict=True))
    return tuple(terms.items()), offset


def abilities(target: CpuTarget, in_vector: bool) -> Abilities:
    """What expansions are made of; of f64, a vector holds half as many."""
    return Abilities(
        target.has_fma,
        target.has_ldexp,
        target.has_fast_division,
        target.has_pick,
        has_fast_f64=not in_vector,
    )


def _alias_classes(program: LoopProgram) -> dict[str, int]:
    """A number for each buffer of the kernel; those that may overlap have the same."""
    group: dict[str, str] = {}

    def find(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    for result, operand in program.aliases:
        group[find(result.name)] = find(operand.name)
    spans = sorted((offset, offset + b.bytes, b.name) for b, offset in program.scratch)
    reach, owner = 0, ""
    for start, end, name in spans:
        if start < reach:
            group[find(name)] = find(owner)
        if end > reach:
            reach, owner = end, name
    on_stack = list(_stack_depths(program))
    for name, depth in on_stack:
        group[find(name)] = find(f"stack {depth}")
    aliased = {operand.name for _, operand in program.aliases}
    classes: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for operand in program.operands:
        if operand.name not in aliased:
            classes[operand.name] = _CONSTANT_CLASS
    for buffer in (*program.results, *(b for b, _ in program.scratch), *program.operands):
        if buffer.name not in classes:
            classes[buffer.name] = numbers.setdefault(find(buffer.name), len(numbers) + 1)
    for name, _ in on_stack:
        classes[name] = numbers.setdefault(find(name), len(numbers) + 1)
    return classes


def _stack_depths(program: LoopProgram) -> Iterator[tuple[str, int]]:
    """The names of buffers on the stack, and how many others there are around each: those that are
    equally deep are never there at once, and take turns in the same memory."""
    waiting = [(stmt, 0) for stmt in reversed(program.body)]
    while waiting:
        stmt, depth = waiting.pop()
        if isinstance(stmt, Allocate) and stmt.buffer.scope == "stack":
            yield stmt.buffer.name, depth
            depth += 1
        waiting += [(one, depth) for body in bodies(stmt) for one in reversed(body)]
