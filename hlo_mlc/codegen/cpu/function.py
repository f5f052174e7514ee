"""A function being written: scopes, where values are placed, and what has been computed already.

A scope is a loop body or a branch.  Each value is emitted into the outermost scope in which its
operands are known, so loop-invariant code never enters a loop; the instructions of an inner scope
are joined to the outer's only when it is closed, hence whatever was hoisted meanwhile comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block, Names
from hlo_mlc.codegen.cpu.registers import Registers, Slot
from hlo_mlc.expr.core import Buffer, Expr, Var

NO_READS: frozenset[int] = frozenset()
# Pointers that move along in one loop: half of the registers for addresses.
_MOST_MOVING = 8


class Value(NamedTuple):
    """An LLVM operand: its text, element type and lanes (0: one value for all lanes).

    `depth` is the scope that it was emitted in; `reads` are the alias classes of the writable
    buffers that it was computed from.
    """

    text: str
    element: str
    lanes: int = 0
    depth: int = 0
    reads: frozenset[int] = NO_READS

    @property
    def type(self) -> str:
        return types.vector(self.element, self.lanes)


class Lane(NamedTuple):
    """The vector loop that code is written for: `live` of `width` lanes are iterations."""

    var: Var
    live: int
    width: int

    @property
    def is_full(self) -> bool:
        return self.live == self.width

    @property
    def mask(self) -> str:
        return "splat (i1 true)" if self.is_full else types.prefix_mask(self.live, self.width)


class Element(NamedTuple):
    """One element of a buffer: what is stored there is known until something else is."""

    buffer: Buffer
    offset: int  # in bytes

    def is_beside(self, other: Element) -> bool:
        return self.buffer is other.buffer and self.offset != other.offset


class Scope:
    """A loop body or a branch while it is open.

    `leaf`: the body of a loop that runs at least once and has no loop inside, so that loads may
    leave it; `writes`: the alias classes that such a body writes; `floor`: the outermost scope
    that values computed here may be moved to; `counter`: the name of the counter of a long loop;
    `moving`: the names of pointers that go along with it, by where they start and how far they
    move at each iteration.
    """

    __slots__ = ("block", "counter", "floor", "keys", "leaf", "moving", "writes")

    def __init__(
        self, block: Block, leaf: bool, writes: frozenset[int], floor: int, counter: str
    ) -> None:
        self.block, self.leaf, self.writes, self.floor = block, leaf, writes, floor
        self.counter = counter
        self.moving: dict[tuple[str, int], str] = {}
        self.keys: list[object] = []


class Function:
    """The instructions of one LLVM function, with the values that its scopes hold.

    What is part of it knows its names, not itself: it is freed when it is written.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.prologue = Block(self.names, "entry")
        self.registers = Registers(self.prologue)
        self.scopes = [Scope(Block(self.names, "entry"), False, NO_READS, 0, "")]
        self.bindings: dict[Var, Value] = {}
        self.constants: dict[Var, int] = {}  # variables of loops being unrolled
        self.unrolled_in: dict[Var, int] = {}  # and how many scopes there are around these
        self.lane: Lane | None = None
        self.mask: Value | None = None  # lanes in which a guarded statement is executed
        self.guard: Expr | None = None  # what the mask is the value of
        self.memo: dict[object, Value] = {}  # values known so far
        self._dependents: dict[int, list[object]] = {}

    # Blocks

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    @property
    def block(self) -> Block:
        """The block that statements are written to."""
        return self.scopes[-1].block

    def at(self, depth: int) -> Block:
        return self.scopes[depth].block

    def block_depth(self, depth: int) -> int:
        """The outermost scope that shares the block of scope `depth`."""
        while depth and self.scopes[depth - 1].block is self.scopes[depth].block:
            depth -= 1
        return depth

    def prepare(self, *pieces: str) -> str:
        """Define a value at the very start of the function."""
        return self.prologue.define(*pieces)

    # Scopes

    @contextmanager
    def scope(
        self,
        block: Block | None = None,
        *,
        leaf: bool = False,
        writes: frozenset[int] = NO_READS,
        branch: bool = False,
        computes: bool = False,
        counter: str = "",
    ) -> Iterator[Block]:
        """Open a scope; without a block of its own it writes into that of the enclosing one.

        Only index arithmetic leaves a `branch`: what is computed there may never be needed. One
        that `computes` has nothing to do with arrays that become registers.
        """
        outer = self.scopes[-1]
        floor = len(self.scopes) if branch else outer.floor
        scope = Scope(block or outer.block, leaf, writes, floor, counter)
        outside = None if block is None or computes else self.registers.begin(outer.block)
        self.scopes.append(scope)
        try:
            yield scope.block
        finally:
            if outside is not None:
                self.registers.end(outside, scope.block)
            self.scopes.pop()
            for key in scope.keys:
                self.memo.pop(key, None)

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """Write code behind a branch, so that it runs only where a condition holds."""
        with self.scope(Block(self.names, self.names.label()), branch=True) as inner:
            start = inner.label
            yield
        self.join(condition, [(start, inner)])

    def join(self, condition: str, arms: Sequence[tuple[str, Block]]) -> None:
        """Branch to the first arm if the condition holds, else to the second or past both."""
        outer, after = self.block, self.names.label()
        otherwise = arms[1][0] if len(arms) > 1 else after
        outer.branch(condition, arms[0][0], otherwise)
        for start, inner in arms:
            outer.start(start)
            outer.instructions += inner.instructions
            outer.jump(after)
        outer.start(after)

    def begin_loop(self, writes: frozenset[int], handed_on: Collection[int] = ()) -> list[Slot]:
        """What is known of these alias classes holds no longer: it would in the first iteration
        only.

        Gives what of those that are `handed_on` the first iteration begins with.
        """
        known = self.registers.take(handed_on)
        self.registers.flush(self.block)
        self.registers.forget(writes)
        self.forget(writes)
        return known

    @contextmanager
    def truncated(self, depth: int) -> Iterator[None]:
        """Write as if only the scopes up to `depth` were open."""
        inner = self.scopes[depth + 1 :]
        if inner:
            self.registers.flush(self.block)
        del self.scopes[depth + 1 :]
        try:
            yield
        finally:
            self.scopes += inner

    def pure_depth(self, operands: Iterable[Value]) -> int:
        """Where a value without side effects and worth some time is placed."""
        depth = self.scopes[-1].floor
        for operand in operands:
            if operand.depth > depth:
                depth = operand.depth
        return depth

    def load_depth(self, written: int | None) -> int:
        """The outermost scope in which memory of an alias class (None: constant) can be read.

        Loads leave innermost loops only: elsewhere they cost little, and a value that is live
        through an inner loop costs a register there.
        """
        depth = self.depth
        while depth:
            scope = self.scopes[depth]
            if not scope.leaf or written in scope.writes:
                break
            depth -= 1
        return depth

    def moving_pointer(self, start: Value, counter: Value, step: int) -> str | None:
        """The pointer `start + counter * step` as a variable of its own, where `counter` is that of
        a long innermost loop; None elsewhere."""
        depth = counter.depth
        scope = self.scopes[depth] if start.depth < depth < len(self.scopes) else None
        if scope is None or not scope.leaf or counter.text != scope.counter:
            return None
        known = scope.moving.get((start.text, step))
        if known is None and len(scope.moving) < _MOST_MOVING:
            known = scope.moving[start.text, step] = self.names.fresh()
        return known

    # Values known so far

    def remember(self, key: object, value: Value) -> Value:
        self.memo[key] = value
        self.scopes[value.depth].keys.append(key)
        for written in value.reads:
            self._dependents.setdefault(written, []).append(key)
        return value

    def forget(self, written: Iterable[int], beside: Element | None = None) -> None:
        """Forget loads of these alias classes, because their memory changes now."""
        for alias_class in written:
            dependents = self._dependents.pop(alias_class, None)
            if not dependents:
                continue
            kept = []
            for key in dependents:
                if beside is not None and type(key) is Element and key.is_beside(beside):
                    kept.append(key)
                else:
                    self.memo.pop(key, None)
            if kept:
                self._dependents[alias_class] = kept

    def widen(self, value: Value, lanes: int) -> str:
        """The text of a value as a vector of `lanes`."""
        if value.lanes or not lanes:
            return value.text
        if types.is_literal(value.text):
            return types.spread(value.text, value.element, lanes)
        key = ("splat", value.text, lanes)
        known = self.memo.get(key)
        if known is None:
            text = self.at(value.depth).spread(value.element, value.text, lanes)
            known = self.remember(key, Value(text, value.element, lanes, value.depth))
        return known.text
