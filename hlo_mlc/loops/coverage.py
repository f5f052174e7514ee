"""Which elements of a buffer are written, and whether every element that is read is among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hlo_mlc.expr import index
from hlo_mlc.loops.accesses import Access, Path, Survey, frame, is_always_entered
from hlo_mlc.loops.core import Allocate, Call, For, If, LoopProgram, Store, While
from hlo_mlc.loops.regions import Boxes, box, covered, split_axes
from hlo_mlc.loops.rewrite import paths
from hlo_mlc.loops.signature import surveyed
from hlo_mlc.loops.touching import (
    Box,
    around,
    contains,
    interleaved,
    reached,
    solid,
    step_of,
    touched,
)

Shape = tuple[int, ...]

# Stores to a buffer that are looked at before all others: what fills it is few of them.
_FIRST = 4


class Problem(Enum):
    """Why elements are not known to be written, in the words of error messages."""

    NOTHING = "nothing writes it"
    PERHAPS = "that is not certain"
    MANY = "it is written in too many pieces to tell"

    @classmethod
    def of(cls, may_be_written: bool | None) -> Problem:
        """Of elements that are not known to be written; None: who may write them neither."""
        return {False: cls.NOTHING, True: cls.PERHAPS, None: cls.MANY}[may_be_written]


@dataclass(frozen=True, slots=True)
class Gap:
    """Elements that nothing writes, or that may remain unwritten."""

    text: str
    problem: Problem

    @property
    def certain(self) -> bool:
        """Whether it is known that nothing writes them."""
        return self.problem is Problem.NOTHING


def gaps(program: LoopProgram, survey: Survey | None = None) -> Iterator[Gap]:
    """The results that are not known to be written as a whole, and the reads of what nothing has
    written before; `survey` is that of the program, if somebody has it."""
    survey = surveyed(program) if survey is None else survey
    calls = _summarized(program, survey)
    if calls == {}:
        yield from _gaps(program, survey.found, {})
        return
    found = [*_gaps(program, survey.own, calls)] if calls is not None else []
    if calls is None or not all(gap.certain for gap in found):  # either side of a branch may call
        found = _gaps(program, Survey.of(program).found, {})
    yield from found


def _gaps(
    program: LoopProgram, accesses: Iterable[Access], calls: Mapping[str, tuple[Shape, bool]]
) -> Iterator[Gap]:
    """The gaps of what some accesses write, and calls as a whole."""
    stores: dict[str, _Stores] = {}
    reads: dict[str, dict[tuple, Access]] = {}
    homes: dict[Allocate, str] = {}  # buffers that exist one after the other may share a name
    frames: dict[Path, int] = {}
    numbers: dict[tuple, int] = {}  # of what paths say: cheaper to compare
    order: dict[Access, int] = {}
    for name, (shape, always) in calls.items():
        stores[name] = _Stores(shape, filled=True if always else None)
    for n, access in enumerate(accesses):
        buffer, path = access.buffer, access.path
        if buffer.scope == "operand":
            continue
        order[access] = n
        name = buffer.name
        if access.home >= 0:
            name = homes.setdefault(path[access.home][0], f"{name} {len(homes)}")
        if access.writes and isinstance(access.stmt, Store):
            stores.setdefault(name, _Stores(buffer.shape)).found.append(access)
        else:
            if path not in frames:
                frames[path] = numbers.setdefault(frame(path), len(numbers))
            reads.setdefault(name, {}).setdefault(
                (access.indices, access.guards, frames[path]), access
            )
    whole: dict[tuple, bool] = {}  # asked once of results that are written alike
    for result in program.results:
        if 0 not in result.shape:
            written = stores.get(result.name, _Stores(result.shape))
            alike = written.circumstances()
            if alike not in whole:
                whole[alike] = bool(written.cover_all(certainly=True))
            written.whole = whole[alike]
            if not written.whole:
                yield Gap(
                    f"every element of {result!r} is written",
                    Problem.of(written.cover_all(certainly=False)),
                )
    for name, places in reads.items():
        first = next(iter(places.values()))
        yield from _unwritten(
            list(places.values()), stores.get(name, _Stores(first.buffer.shape)), order
        )


def _unwritten(
    reads: Sequence[Access], stores: _Stores, order: Mapping[Access, int]
) -> Iterator[Gap]:
    """Reads of what nothing writes before; `order` are positions in the program."""
    groups: dict[tuple[Access, ...], list[Access]] = {}
    for access in reads:
        place = around(access)
        if stores.filled or any(
            contains(stores.solid(w), place) and _may_come_before(w, access, order)
            for w in stores.found
        ):
            continue
        before = tuple([w for w in stores.found if _may_come_before(w, access, order)])
        groups.setdefault(before, []).append(access)
    for before, group in groups.items():
        earlier = _Stores(stores.shape, list(before), stores.filled, stores.boxes, stores.solids)
        if stores.whole and len(before) == len(stores.found):
            continue
        # Whichever are fewer tell first: stores of a sort, whose rows are padded, are hundreds.
        few = len(group) < len(before)
        if not few and earlier.cover_all(certainly=False):
            continue
        found = [
            (access, boxes)
            for access in group
            if (boxes := _touched(access)) is not None and len(boxes.owners)
        ]
        if earlier.cover([boxes for _, boxes in found], certainly=False):
            continue
        if few and earlier.cover_all(certainly=False):
            continue
        for access, boxes in found:
            may_be_written = earlier.cover([boxes], certainly=False)
            if not may_be_written:
                text = f"what {access} reads of {access.buffer!r} is written before"
                yield Gap(text, Problem.of(may_be_written))


def _may_come_before(write: Access, read: Access, order: Mapping[Access, int]) -> bool:
    """Whether a store may be executed before a read of memory that has kept its value since."""
    if order[write] < order[read]:
        return True
    common = [s for (s, n), (t, m) in zip(write.path, read.path, strict=False) if s is t and n == m]
    for stmt in reversed(common):
        if isinstance(stmt, Allocate) and stmt.buffer == read.buffer:
            return False  # what an earlier iteration wrote is gone
        if isinstance(stmt, For | While):
            return True
    return False


def _summarized(program: LoopProgram, survey: Survey) -> dict[str, tuple[Shape, bool]] | None:
    """The buffers that calls write as a whole, with whether they always do; None where one of the
    calls does less than that: then it counts what the programs do that are called."""
    found: dict[str, tuple[Shape, bool]] = {}
    if not any(isinstance(stmt, Call) for stmt in survey.spans):
        return found
    whole: dict[LoopProgram, bool] = {}
    for *outer, stmt in paths(program.body):
        if not isinstance(stmt, Call):
            continue
        callee = stmt.program
        if callee not in whole:
            whole[callee] = not any(True for _ in gaps(callee))
        if not whole[callee]:
            return None
        always = all(
            isinstance(s, Allocate) or (isinstance(s, For) and index.bounds(s.extent)[0])
            for s in outer
        )
        for buffer in stmt.buffers[len(callee.operands) :]:
            _, before = found.get(buffer.name, (buffer.shape, False))
            found[buffer.name] = buffer.shape, always or before
    return found


def _touched(access: Access, steps: Sequence[int] = ()) -> Boxes | None:
    """What an access touches, if that is known: best without the statements around the place where
    the buffer begins to exist, which are around all that is done with it."""
    local = None if access.home < 0 else touched(access.within(access.home + 1), steps)
    return touched(access, steps) if local is None else local


@dataclass(slots=True)
class _Stores:
    """The stores to one buffer; `filled`: by a call as a whole, None where that may not happen;
    `whole`: all of them together are known to write every element."""

    shape: Shape
    found: list[Access] = field(default_factory=list)
    filled: bool | None = False
    boxes: dict[tuple[Access, Shape], tuple[Boxes | None, Boxes]] = field(default_factory=dict)
    solids: dict[Access, Box | None] = field(default_factory=dict)
    whole: bool = False

    def circumstances(self) -> tuple:
        """All that it depends on which elements are written."""
        places = tuple([(access.path, access.indices, access.guards) for access in self.found])
        return self.shape, self.filled, places

    def solid(self, access: Access) -> Box | None:
        """The box that one store alone writes, if that is seen at a glance.  What is around the
        place where the buffer begins to exist is around all that is done with it."""
        if access not in self.solids:
            self.solids[access] = solid(access.within(access.home + 1))
        return self.solids[access]

    def cover_all(self, certainly: bool) -> bool | None:
        """Whether every element is certainly written, or else may be written; None where there are
        too many pieces to tell."""
        sides = tuple((0, d - 1) for d in self.shape)
        if any(contains(self.solid(w), sides) for w in self.found):
            return True
        together = self.cover([box(sides)], certainly)
        by_branches = (
            not together
            and certainly
            and any(
                len(ways) == 2 and all(way.cover_all(certainly) for way in ways)
                for ways in self._branches()
            )
        )
        return by_branches or together

    def _branches(self) -> Iterator[Sequence[_Stores]]:
        """Of each outermost branch that is always come to, what is stored on either side of it."""
        found: dict[If, dict[int, _Stores]] = {}
        for access in self.found:
            depth = next((n for n, (s, _) in enumerate(access.path) if isinstance(s, If)), None)
            if depth is None or not is_always_entered(access.path[:depth]):
                continue
            branch, side = access.path[depth]
            found.setdefault(branch, {}).setdefault(side, _Stores(self.shape)).found.append(
                access.within(depth + 1)
            )
        return ([*ways.values()] for ways in found.values())

    def cover(self, wanted: Sequence[Boxes], certainly: bool) -> bool | None:
        """Whether all that is wanted is certainly written, or else may be written; None where there
        are too many pieces to tell."""
        if self.filled or (not certainly and self.filled is None):
            return True
        steps = self._steps()
        in_turns = None
        if steps:
            axes = interleaved(self.shape, steps)
            in_turns = self._covered([split_axes(b, axes) for b in wanted], certainly, steps)
        if in_turns:
            return True
        at_once = self._covered(wanted, certainly)
        return in_turns if at_once is None else at_once

    def _steps(self) -> Shape:
        """In which steps stores go along each axis: such as fill it in turns leave gaps, and are
        box by box where the axis is taken for two.  Empty where there are none."""
        columns = zip(*(access.indices for access in self.found), strict=True)
        found = tuple(
            min((step for step in map(step_of, column) if step > 1), default=1)
            for column in columns
        )
        return found if any(step > 1 for step in found) else ()

    def _covered(self, wanted: Sequence[Boxes], certainly: bool, steps: Shape = ()) -> bool | None:
        # What fills a buffer comes first, as a rule, and what changes it afterwards is much more.
        axes = interleaved(self.shape, steps) if steps else [(d,) for d in self.shape]
        shape = [extent for parts in axes for extent in parts]
        count = len(self.found)
        while count > _FIRST:
            count = -(-count // 2)
        while True:
            written = [*self._written(self.found[:count], certainly, steps)]
            are_covered = covered(wanted, written, shape)
            if are_covered or count == len(self.found):
                return are_covered
            count = min(2 * count, len(self.found))

    def _written(
        self, accesses: Iterable[Access], certainly: bool, steps: Shape
    ) -> Iterator[Boxes]:
        """What stores certainly write, or else may write."""
        for access in accesses:
            key = access, steps
            if key not in self.boxes:
                exact = _touched(access, steps)
                most = exact
                if most is None:
                    most = reached(access) or box((0, d - 1) for d in self.shape)
                    most = split_axes(most, interleaved(self.shape, steps)) if steps else most
                self.boxes[key] = exact, most
            exact, most = self.boxes[key]
            if not certainly:
                yield most
            elif exact is not None:
                yield exact
