"""Small tensors of a batch in lanes: what is done with each is done for a vector of them at once.

In memory the elements of one tensor lie side by side, those of the next come after them.  A block
of tensors, as many as a vector has lanes, is transposed into arrays with a lane for each; all is
computed from arrays into arrays, and these are transposed back:

    naive loops:                            parallel block of tensors:
    for each tensor:                          for each 16 elements: for 16 tensors: a[…] = x[…]
      for each element: a[…] = x[…]     ->    for step, row: for 16 tensors: b[row] = …a[row]…
      for step, row: b[row] = …a[row]…        …
      for each element: y[…] = b[…]           for 16 tensors: for each 16 elements: y[…] = b[…]

The last block begins early: it computes some tensors again, and stores the others.  Where elements
lie beside those of the next tensor, vectors are read and stored as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX, DType
from hlo_mlc.expr.procedure import Count, Move, Procedure, Put, moves
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    Scheduled,
    in_tasks,
    lanes,
    open_stage,
    unroll_any,
    work,
    worth_a_task,
)
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.core import Assign, Nest, Stage, buffer_of

# Elements of a tensor from which on squares gain something over element by element.
_SMALLEST = 4
# Bytes between rows: addresses are first compared by their last twelve bits.  With such rows,
# eigenvectors of 16 square took two and a half times as long, and twice in f64.
_SEEMS_NEAR = 1024
# Numbers that a loop puts, up to which it is written out.
_MOST_PUTS = 16

Access = Load | Assign
Tensor = tuple[Buffer, tuple[Expr, ...]]
"""A buffer and the indices that say which tensor in it."""
Loops = tuple[Var, ...]


def begin(access: Access, axis: Var) -> int | None:
    """The first dimension of the tensors that an access is about, which come one after the other
    along `axis`, and of which it meets the same element in each; None where that is not so, or
    where a guard says which of them there are."""
    buffer = buffer_of(access)
    if access.guard is not None or any(loads(i) for i in access.indices):
        return None
    apart, size, position = stride(access, axis), 1, len(buffer.shape)
    while size != apart:
        position -= 1
        if position < 0 or axis in access.indices[position].free:
            return None
        size *= buffer.shape[position]
    return position


def tensor(access: Access, axis: Var) -> Tensor:
    """The tensor of an access that has a `begin`."""
    buffer = buffer_of(access)
    return buffer, access.indices[: begin(access, axis)]


def in_lanes(nest: Nest, stage: Stage, target: CpuTarget, *, abreast: int = 1) -> Scheduled:
    """The loops of a stage with a procedure over tensors, of which those along the last axis have a
    lane each, in up to so many vectors side by side."""
    axis, width = stage.axes[-1], lanes((stage,), target)
    width = min(width, 1 << (axis.extent - 1).bit_length())
    copied = _Copied.of(stage)
    stage = copied.stage
    if not _have_room(stage, width * abreast, target):
        abreast = 1
    side, width = width, width * abreast
    block, lane = f"{axis.name}.o", f"{axis.name}.i"
    schedule = open_stage(stage, replace(nest, stages=(stage,)))
    schedule = schedule.split(axis.name, width, "shift")
    near = [
        array.name
        for array in stage.procedure.arrays
        if len(array.shape) > 1
        and math.prod(array.shape[1:]) * width * array.dtype.bytes % _SEEMS_NEAR == 0
    ]
    for name in near if abreast == 1 else ():
        schedule = schedule.pad(name, 1, 1)
    schedule = schedule.expand(lane, "stack", width, "last")
    for name in near if abreast > 1 else ():  # squares go on from row to row: all elements so far
        schedule = schedule.pad(name, side)
    for number, loops in enumerate(copied.outward):
        schedule = _stored(schedule, lane, f"{lane}.{number}", block, loops, side)
    schedule = schedule.sink(lane)
    if abreast > 1:
        schedule = schedule.split(lane, side).unroll(f"{lane}.o").vectorize(f"{lane}.i")
    else:
        schedule = schedule.vectorize(lane)
    copying = {v.name for loops in (*copied.inward, *copied.outward) for v in loops}
    schedule = unroll_any(schedule, *(n for n in _short(stage.procedure) if n not in copying))
    for loops in copied.inward:
        schedule = _filled(schedule, loops, side)
    total = work(nest)
    depth = len(stage.axes)
    return Scheduled.of(in_tasks(schedule, depth, lambda blocks: worth_a_task(blocks, total)))


def _short(procedure: Procedure) -> list[str]:
    """The loops of a few puts that are always as many: as many operations count and jump."""
    counts = [move for move in moves(procedure.body) if isinstance(move, Count)]
    longer = {c.var.name for c in counts if c.extent.free or not 1 < _puts(c) <= _MOST_PUTS}
    return list(dict.fromkeys(c.var.name for c in counts if c.var.name not in longer))


def _puts(count: Count) -> int:
    """What an innermost loop puts in all its iterations; 0 for any other."""
    is_innermost = all(isinstance(move, Put) for move in count.body)
    return count.var.extent * len(count.body) if is_innermost else 0


def _have_room(stage: Stage, width: int, target: CpuTarget) -> bool:
    """Whether there are blocks of so many lanes for all cores, each within two fifths of the
    first cache: rows may get longer, and tensors come and go through the same cache.  With a third
    in place of two fifths, Q of 8 x 8 has no room, and takes 1.15 times as long."""
    size = sum(math.prod(a.shape) * a.dtype.bytes for a in stage.procedure.arrays)
    return stage.axes[-1].extent >= width * target.cores and 5 * size * width <= 2 * target.l1_bytes


def _filled(schedule: Schedule, loops: Loops, width: int) -> Schedule:
    """As many elements at a time as are transposed together."""
    schedule, name = _as_one(schedule, loops)
    side = _side(loops, width)
    if side < _SMALLEST:
        return schedule
    return unroll_any(schedule.split(name, side, "early"), f"{name}.i", f"{name}.t")


def _stored(
    schedule: Schedule, lane: str, own: str, block: str, loops: Loops, width: int
) -> Schedule:
    """Squares of elements by tensors, each a vector of elements."""
    if not loops:
        return schedule
    schedule = schedule.distribute(lane, loops[0].name).rename(lane, loops[0].name, own)
    schedule, name = _as_one(schedule.specialize(own, block), loops)
    side = _side(loops, width)
    if side < _SMALLEST:
        return schedule.reorder(name, own).unroll(name).vectorize(own)
    schedule = (
        schedule.split(name, side, "early")
        .distribute(own, f"{name}.o")
        .reorder(f"{name}.o", own)
        .split(own, side)
    )
    schedule = unroll_any(schedule, f"{own}.i", f"{own}.t")
    for part in (f"{name}.i", f"{name}.t"):
        if part in schedule.loop_names:
            schedule = schedule.vectorize(part)
    return schedule


def _as_one(schedule: Schedule, loops: Loops) -> tuple[Schedule, str]:
    names = [v.name for v in loops]
    return (schedule.fuse(*names) if len(names) > 1 else schedule), ".".join(names)


def _side(loops: Loops, width: int) -> int:
    """Elements of a square; fewer where a tensor has no more."""
    return min(width, 1 << math.prod(v.extent for v in loops).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class _Copied:
    """A stage whose procedure begins with copies of the tensors that it reads into arrays, and that
    stores nothing but arrays; the loops of these copies, by names of their own."""

    stage: Stage
    inward: tuple[Loops, ...]
    outward: tuple[Loops, ...]

    @staticmethod
    def of(stage: Stage) -> _Copied:
        copying = _Copying(stage, list(stage.procedure.arrays), list(stage.procedure.body))
        first, inward = copying.read()
        along, loops = copying.written()
        body = Procedure((), tuple(copying.steps)).mapped(copying.near).body
        return _Copied(
            replace(
                stage,
                along=along,
                reduce_axes=tuple(itertools.chain.from_iterable(loops)),
                procedure=Procedure(tuple(reversed(copying.arrays)), (*first, *body)),
            ),
            inward,
            tuple(
                () if begin(assign, stage.axes[-1]) == len(assign.buffer.shape) else own
                for assign, own in zip(stage.along, loops, strict=True)
            ),
        )


@dataclass(frozen=True, slots=True)
class _Copying:
    """The arrays and the steps of a stage, to which those of copies are added: `copied` has the
    arrays in place of tensors."""

    stage: Stage
    arrays: list[Buffer]
    steps: list[Move]
    copied: dict[Tensor, Buffer] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    memo: dict[Expr, Expr] = field(default_factory=dict)

    def read(self) -> tuple[list[Move], tuple[Loops, ...]]:
        """What copies each tensor that is read into an array, and its loops: one of the stage's
        own, if that is all that fills it."""
        first, inward = [], []
        for found, users in self._readers().items():
            source, leading = found
            copy = _copy(self.steps, users[0], len(leading)) if len(users) == 1 else None
            if copy is not None:
                array, done = copy
                self.steps[:] = [step for step in self.steps if step is not done]
            else:
                shape = source.shape[len(leading) :]
                array = self._array(f"in{len(inward)}", source.dtype, shape)
                self.copied[found] = array
            places, loops = self._over(array.shape)
            first.append(_nested(loops, Put(array, places, load(source, (*leading, *places)))))
            inward.append(loops)
        return first, tuple(inward)

    def written(self) -> tuple[tuple[Assign, ...], list[Loops]]:
        """What stores arrays, each as a whole, and the loops of each; what is no array as it stands
        becomes one by a step more."""
        along, outward = [], []
        for assign in self.stage.along:
            old = [i for i in assign.indices if i in self.stage.reduce_axes]
            extents = [v.extent for v in old]
            places, loops = self._over(extents)
            at = dict(zip(old, places, strict=True))
            value = substitute(self.near(assign.value), at)
            if not _is_whole(value, self.arrays, loops):
                array = self._array(f"out{len(along)}", value.dtype, [v.extent for v in loops])
                self.steps.append(_nested(loops, Put(array, loops, value)))
                places, loops = self._over(extents)
                at, value = dict(zip(old, places, strict=True)), load(array, loops)
            indices = tuple(substitute(i, at) for i in assign.indices)
            along.append(Assign(assign.buffer, indices, value))
            outward.append(loops)
        return tuple(along), outward

    def near(self, value: Expr) -> Expr:
        """The same of arrays in the place of tensors."""

        def here(node: Expr) -> Expr | None:
            found = _own_tensor(node, self.stage.axes)
            if found not in self.copied:
                return None
            return load(self.copied[found], node.indices[len(found[1]) :])

        return transform(value, here, self.memo)

    def _readers(self) -> Mapping[Tensor, list[Load]]:
        readers = dict[Tensor, list[Load]]()
        for one in itertools.chain.from_iterable(self.stage.loads_by_buffer.values()):
            if (found := _own_tensor(one, self.stage.axes)) is not None:
                readers.setdefault(found, []).append(one)
        return readers

    def _array(self, name: str, dtype: DType, shape: Sequence[int]) -> Buffer:
        array = Buffer(f"{self.stage.name}_{name}", dtype, tuple(shape), "stack")
        self.arrays.append(array)
        return array

    def _over(self, shape: Sequence[int]) -> tuple[tuple[Expr, ...], Loops]:
        """The places of an array, and the loops over them."""
        places = tuple(
            Var(f"{self.stage.name}_e{next(self.numbers)}", INDEX, n)
            if n > 1
            else index.constant(0)
            for n in shape
        )
        return places, tuple(v for v in places if isinstance(v, Var))


def _nested(loops: Loops, move: Move) -> Move:
    for v in reversed(loops):
        move = Count(v, index.constant(v.extent), (move,))
    return move


def _own_tensor(read: Expr, axes: tuple[Var, ...]) -> Tensor | None:
    """The tensor of its own at a point of the axes, whichever step reads it, that this reads from,
    if so."""
    position = begin(read, axes[-1]) if isinstance(read, Load) else None
    if position is None:
        return None
    leading = read.indices[:position]
    return (read.source, leading) if all(i.free <= {*axes} for i in leading) else None


def _is_whole(value: Expr, arrays: Sequence[Buffer], loops: Loops) -> bool:
    """Whether a value is what an array has at the place that some loops are at."""
    return (
        isinstance(value, Load)
        and value.source in arrays
        and loops == tuple(i for i in value.indices if i is not index.constant(0))
    )


def _copy(body: Sequence[Move], read: Load, leading: int) -> tuple[Buffer, Move] | None:
    """The step that fills an array with what is read and nothing else, as it lies in memory, before
    which nothing is done but that, with the array; None where there is none."""
    for move in body:
        put, points = move, 1
        while isinstance(put, Count) and len(put.body) == 1:
            points *= put.var.extent if put.extent is index.constant(put.var.extent) else 0
            (put,) = put.body
        if not isinstance(put, Put) or not isinstance(put.value, Load):
            return None
        shape = put.array.shape
        if (
            put.value is read
            and shape == read.source.shape[leading:]
            and read.indices[leading:] == put.indices
            and points == math.prod(shape)
            and all(isinstance(i, Var) or i is index.constant(0) for i in put.indices)
        ):
            return put.array, move
    return None
