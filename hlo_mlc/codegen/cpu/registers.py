"""What is in the arrays that become registers: read once, stored late.

LLVM keeps these arrays in registers and removes their loads and stores again, which were four lines
in five of a register tile.  So what was written in a block is what is read there, and is stored
only where the block ends; LLVM joins the blocks.  Innermost loops without branches hand on what
they hold from iteration to iteration.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from hlo_mlc.codegen.cpu.block import Block, Kind

ALIGNMENT = 64
"""Of every array, in bytes."""


class Array(NamedTuple):
    """An array of a function's own: its pointer and alias class."""

    pointer: str
    alias_class: int


class Form(NamedTuple):
    """What part of an array is as a value: its type, lanes (0: no vector) and bytes."""

    type: str
    lanes: int
    size: int


class Slot(NamedTuple):
    """What iterations of a loop hand on: `text` is at an offset of an array."""

    array: Array
    offset: int
    form: Form
    text: str


class _Held(NamedTuple):
    """What is in an array since scope `depth`; `pending`: not stored yet."""

    form: Form
    text: str
    depth: int
    pending: bool


class _Loop(NamedTuple):
    """A loop whose iterations hand on arrays of some alias classes: values by which it begins,
    their names inside, and the bytes that its body has touched so far."""

    outer: Block
    depth: int
    classes: Collection[int]
    before: list[Slot]
    inside: list[Slot]
    touched: dict[Array, set[tuple[int, float]]]

    def touch(self, array: Array, offset: int, size: float) -> None:
        self.touched.setdefault(array, set()).add((offset, offset + size))

    def has_touched(self, array: Array, offset: int, size: int) -> bool:
        """Whether any of these bytes were touched."""
        return any(
            start < offset + size and offset < end for start, end in self.touched.get(array, ())
        )


Contents = dict[Array, dict[int, _Held]]  # by offset in bytes; no two overlap


class Registers:
    """The contents of a function's arrays, as far as they are known at the place being written.

    The addresses of elements are computed in the function's prologue.
    """

    def __init__(self, prologue: Block) -> None:
        self._prologue = prologue
        self._contents: Contents = {}
        self._written: set[Array] = set()  # since the innermost block was begun
        self._addresses: set[str] = set()
        self._loop: _Loop | None = None  # whose iterations hand on what they hold

    # Elements

    def load(self, array: Array, offset: int, form: Form, block: Block, depth: int) -> str:
        """What is at an offset, loaded in `block`, that of scope `depth`, if it is not known."""
        slots = self._contents.get(array)
        held = None if slots is None else slots.get(offset)
        if held is not None and held.depth <= depth and held.form == form:
            return held.text
        first = self._first_touch(array, offset, form)
        self._make_room(array, offset, form.size, block)
        text = first or self._load(array, offset, form, block)
        self._contents[array][offset] = _Held(form, text, depth, first is not None)
        return text

    def store(
        self, array: Array, offset: int, form: Form, text: str, block: Block, depth: int
    ) -> None:
        """Let `text` be what is at an offset from now on, in `block`, that of scope `depth`."""
        slots = self._contents.get(array)
        held = None if slots is None else slots.get(offset)
        if held is None or held.form.size != form.size:
            self._make_room(array, offset, form.size, block)
        self._contents[array][offset] = _Held(form, text, depth, True)
        self._written.add(array)
        if self._loop is not None:
            self._loop.touch(array, offset, form.size)

    def _make_room(self, array: Array, offset: int, size: int, block: Block) -> None:
        """Store and forget what lies partly where an element is."""
        slots, end = self._contents.setdefault(array, {}), offset + size
        for start, held in [
            one for one in slots.items() if one[0] < end and offset < one[0] + one[1].form.size
        ]:
            if held.pending:
                self._store(array, start, held, block)
            del slots[start]

    # Arrays

    def write_back(self, array: Array, block: Block) -> None:
        """Store what an array holds, for those who look into memory, in each iteration."""
        self._store_pending(array, block)
        if self._loop is not None:
            self._loop.touch(array, 0, math.inf)

    def _store_pending(self, array: Array, block: Block) -> None:
        slots = self._contents.get(array, {})
        for offset, held in slots.items():
            if held.pending:
                self._store(array, offset, held, block)
                slots[offset] = held._replace(pending=False)

    def release(self, array: Array, block: Block) -> None:
        """Store what an array holds, and forget it: others write into it now."""
        self.write_back(array, block)
        self._contents.pop(array, None)
        self._written.add(array)

    def drop(self, array: Array) -> None:
        """Forget the array, whose scope ends."""
        self._contents.pop(array, None)

    # Loops

    def take(self, classes: Collection[int]) -> list[Slot]:
        """Before a loop: what is known of the arrays of these classes, which is forgotten."""
        taken = [
            Slot(array, offset, held.form, held.text)
            for array, slots in self._contents.items()
            if array.alias_class in classes
            for offset, held in slots.items()
        ]
        for one in taken:
            self._contents.pop(one.array, None)
        return taken

    def enter(self, before: list[Slot], classes: Collection[int], outer: Block, depth: int) -> None:
        """A loop begins with these values, in arrays of classes of which it uses the same elements
        each time."""
        inside = [one._replace(text=outer.names.fresh()) for one in before]
        self._loop = _Loop(outer, depth, classes, before, inside, {})
        self.put(inside, depth)

    def put(self, values: Iterable[Slot], depth: int) -> None:
        """In a loop or behind it: these values are known, but not in memory."""
        for one in values:
            slots = self._contents.setdefault(one.array, {})
            slots[one.offset] = _Held(one.form, one.text, depth, True)
            self._written.add(one.array)
            if self._loop is not None:
                self._loop.touch(one.array, one.offset, one.form.size)

    def leave(self, block: Block) -> list[tuple[Slot, Slot, Slot]]:
        """The loop's last `block` ends: what it begins with, what iterations begin with, and what
        they end with. All else that its arrays hold is stored."""
        loop, self._loop = self._loop, None
        last = [
            one._replace(text=self.load(one.array, one.offset, one.form, block, loop.depth))
            for one in loop.inside
        ]
        for one in last:
            self._contents[one.array].pop(one.offset)
        for array in {one.array for one in last}:
            self.release(array, block)
        return list(zip(loop.before, loop.inside, last, strict=True))

    def _first_touch(self, array: Array, offset: int, form: Form) -> str | None:
        """What iterations of the loop being written find at an offset, if nothing in them has
        touched any of it yet; it is loaded in front of the loop."""
        loop = self._loop
        if loop is None or array.alias_class not in loop.classes:
            return None
        is_first = not loop.has_touched(array, offset, form.size)
        loop.touch(array, offset, form.size)  # all of it, which must be in memory where it is not
        if not is_first:
            return None
        first = self._load(array, offset, form, loop.outer)
        loop.before.append(Slot(array, offset, form, first))
        loop.inside.append(loop.before[-1]._replace(text=loop.outer.names.fresh()))
        return loop.inside[-1].text

    # Blocks

    def flush(self, block: Block) -> None:
        """Store everything pending, at the end of a block or before control flow leaves it."""
        for array in self._contents:
            self._store_pending(array, block)

    def forget(self, classes: Collection[int]) -> None:
        """Forget arrays that change; nothing is pending."""
        for array in tuple(self._contents):
            if array.alias_class in classes:
                del self._contents[array]

    def begin(self, block: Block) -> tuple[Contents, set[Array]]:
        """Another block begins, inside of `block`; gives what `end` needs."""
        self.flush(block)
        outside = {array: dict(slots) for array, slots in self._contents.items()}, self._written
        self._written = set()
        return outside

    def end(self, outside: tuple[Contents, set[Array]], block: Block) -> None:
        """The inner `block` ends."""
        self.flush(block)
        contents, written = outside
        self._contents = {a: slots for a, slots in contents.items() if a not in self._written}
        self._written |= written

    # Instructions

    def _load(self, array: Array, offset: int, form: Form, block: Block) -> str:
        return block.define(
            f"load {form.type}, ptr ",
            self._address(array, offset),
            f", align {math.gcd(ALIGNMENT, offset, form.size)}",
            lanes=form.lanes,
            kind=Kind.READ,
        )

    def _store(self, array: Array, offset: int, held: _Held, block: Block) -> None:
        block.emit(
            f"store {held.form.type} ",
            held.text,
            ", ptr ",
            self._address(array, offset),
            f", align {math.gcd(ALIGNMENT, offset, held.form.size)}",
        )

    def _address(self, array: Array, offset: int) -> str:
        if not offset:
            return array.pointer
        name = f"{array.pointer}.{offset}"
        if name not in self._addresses:
            self._addresses.add(name)
            self._prologue.name(name, "getelementptr i8, ptr ", array.pointer, f", i64 {offset}")
        return name
