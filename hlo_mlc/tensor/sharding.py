"""Which dimensions of a program may be cut into parts, so that devices compute one each, alone.

    for i<64, j<16: r[i, j] = sum over k<32 of x[i, k] * w[k, j]
    x: i k, w: k j -> r: i j, add over k       cut along i: for i<8 with x[8, 32], w[32, 16]

Dimensions of buffers and axes of stages belong together where one is the plain index of the other,
or the leading part of it, as rows are of what is reshaped: `y[i*8 + j]` is cut as i is.
All that do are one `Factor`, unless something needs to know where along them it is (a window, a
running sum, a number that counts).  What is folded over a factor is folded once more over devices:
who reads it comes after that, in another piece (pieces.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.combine import commutes, is_idempotent
from hlo_mlc.tensor.core import Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.covering import left_over, stored_box, whole
from hlo_mlc.tensor.rewrite import replace_buffers, with_parts

_JOINED_BY = {"add": "add", "mul": "mul", "max": "max", "larger": "max", "min": "min"}
"""What devices do to fold the folds of parts once more."""
_TRUTH_JOINED_BY = {"or": "max", "and": "min"}

Dimension = tuple[Buffer, int]
_Place = Var | Dimension | None  # None is what cannot be cut


@dataclass(frozen=True, slots=True)
class Factor:
    """An index that may be cut into parts: which dimensions of operands and results it is, as pairs
    of their numbers and the dimension's, and which axes and dimensions of the program.

    `extent`: what the number of parts must divide; dimensions and axes that it leads are multiples.
    `folds`: what devices do to join what is folded over it, `add`, `mul`, `max` or `min`.
    """

    extent: int
    operands: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    folds: tuple[str, ...]
    axes: frozenset[Var]
    dimensions: frozenset[Dimension]


class _Classes:
    """What belongs together, by union of what is found to."""

    def __init__(self) -> None:
        self._parent: dict[_Place, _Place] = {}
        self.units: dict[Var, list[int]] = {}  # of what remains along an axis by a divisor, these

    def find(self, place: _Place) -> _Place:
        root = place
        while (above := self._parent.get(root, root)) != root:
            root = above
        self._parent[place] = root
        return root

    def join(self, one: _Place, other: _Place) -> None:
        one, other = self.find(one), self.find(other)
        if one is None:
            one, other = other, one
        self._parent[one] = other

    def members(self) -> Iterator[list[_Place]]:
        groups: dict[_Place, list[_Place]] = {}
        for place in self._parent:
            groups.setdefault(self.find(place), []).append(place)
        return (group for root, group in groups.items() if root is not None)


def factors(
    program: TensorProgram,
    may_wait: bool | None = None,
    may_lead: bool = True,
    may_run: bool = False,
) -> tuple[Factor, ...]:
    """The factors of a program, each of two points at least, in the order of its operands; what is
    folded over some may be read in the program where stages `may_wait`, as those of a program in
    pieces may.  Where none `may_lead` others, all dimensions and axes of one have its extent.  With
    `may_run`, as if running folds could be cut along what they run along."""
    classes = _Classes()
    folds: dict[Var, tuple[str, ...]] = {}
    may_wait = _is_in_pieces(program) if may_wait is None else may_wait
    for step in program.steps:
        for stage in stages(step):
            joining = _joining(stage) if isinstance(step, Nest) else ()
            if not (may_wait or _is_at_end(stage, program)):
                joining = ()
            runs = stage.scan.axis if may_run and stage.scan is not None else None
            for axis in stage.reduce_axes:
                if joining:
                    folds[axis] = joining
                elif axis is not runs:
                    classes.join(axis, None)
            _tie(stage, classes, may_lead, may_run)
        _fix_conditions(step, classes)
    for result, operand in program.aliases:
        for d in range(len(result.shape)):
            classes.join((result, d), (operand, d))
    found = (_factor(set(group), classes.units, folds, program) for group in classes.members())
    return tuple(sorted(filter(None, found), key=lambda f: (not f.operands, f.operands, f.results)))


def _tie(stage: Stage, classes: _Classes, may_lead: bool, may_run: bool) -> None:
    """Notes which of a stage's axes lead which dimensions, and that others are whole."""
    axes = {*stage.axes, *stage.reduce_axes}
    stores = (*stage.along, *stage.assigns)
    steps = stage.procedure.expressions if stage.procedure is not None else ()
    waiting: list[Expr] = [*stage.terms, *stage.initial, *(store.value for store in stores)]
    waiting += (store.guard for store in stores if store.guard is not None)
    waiting += () if stage.sort is None else (*stage.sort.keys, stage.sort.at)
    waiting += (e for e in steps if e not in axes)  # such are places in its own arrays
    seen: set[Expr] = set()

    def walks(buffer: Buffer, places: Sequence[Expr]) -> set[Var]:
        """The axes that lead a dimension of this access."""
        leaders: set[Var] = set()
        for d, (place, extent) in enumerate(zip(places, buffer.shape, strict=True)):
            leader, rest = _leader(place, extent, axes)
            if leader is None or (leader is not place and not may_lead):
                classes.join((buffer, d), None)
                waiting.append(place)
                continue
            classes.join((buffer, d), leader)
            leaders.add(leader)
            if rest is not None:
                waiting.append(rest)
        return leaders

    for store in stores:
        own = axes if store in stage.along else set(stage.axes)
        for axis in own - walks(store.buffer, store.indices):
            classes.join(axis, None)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            walks(node.source, node.indices)
            waiting += [e for e in (node.guard, node.default) if e is not None]
        elif may_lead and (remainder := _remainder(node, axes)) is not None:
            axis, unit = remainder
            classes.units.setdefault(axis, []).append(unit)
        elif isinstance(node, Var) and node in axes:
            classes.join(node, None)
        else:
            waiting += node.children
    runs = stage.scan is not None and not may_run
    for ordered in (stage.scan.axis if runs else None, stage.sort and stage.sort.place):
        if ordered is not None:
            classes.join(ordered, None)


def _leader(place: Expr, extent: int, axes: set[Var]) -> tuple[Var | None, Expr | None]:
    """The axis whose parts are those of a dimension that is accessed there, and the rest of the
    index, which is as large in each part.

        i -> i, None        i*8 + j -> i, j        i // 8 -> i, None
    """
    terms, offset = index.affine(place)
    for atom, step in terms.items():
        axis, length = _divided(atom, "floordiv") or (atom, 1)
        if (
            not isinstance(axis, Var)
            or axis not in axes
            or axis.extent * step != extent * length
            or axis.extent % length
        ):
            continue
        others = {a: c for a, c in terms.items() if a is not atom}
        if not others and not offset:
            return axis, None
        rest = index.from_affine(others, offset)
        low, high = index.bounds(rest)
        if low >= 0 and high < step:
            return axis, rest
    return None, place


def _remainder(node: Expr, axes: set[Var]) -> tuple[Var, int] | None:
    """The axis and the number of `i % 8`, which is the same in parts of multiples of so many."""
    axis, unit = _divided(node, "floormod") or (None, 1)
    is_one = isinstance(axis, Var) and axis in axes and axis.extent % unit == 0
    return (axis, unit) if is_one else None


def _divided(node: Expr, op: str) -> tuple[Expr, int] | None:
    """What is divided by a number, and the number."""
    if not isinstance(node, Apply) or node.op != op or not isinstance(node.args[1], Const):
        return None
    return node.args[0], node.args[1].value


def _fix_conditions(step: Step, classes: _Classes) -> None:
    """What decides how a loop or a branch goes on is read by all."""
    if isinstance(step, Nest):
        return
    for access in () if step.condition is None else loads(step.condition):
        for d in range(len(access.indices)):
            classes.join((access.source, d), None)
    for inner in step.inner:
        _fix_conditions(inner, classes)


def _joining(stage: Stage) -> tuple[str, ...]:
    """What folds each accumulator of a stage, where that may be folds of parts; else nothing."""
    if (
        stage.combiner is None
        or stage.scan is not None
        or not (commutes(stage.combiner) and is_idempotent(stage.combiner, stage.initial))
        or any(store.value.free.intersection(stage.accumulators) for store in stage.along)
    ):
        return ()
    ops = tuple(
        (_TRUTH_JOINED_BY if accumulator.dtype is BOOL else _JOINED_BY).get(result.op, "")
        for accumulator, result in zip(stage.accumulators, stage.combiner.results, strict=True)
    )
    return ops if all(ops) else ()


def _is_in_pieces(program: TensorProgram) -> bool:
    """Whether its stages may be computed one after the other, each by a kernel of its own: all that
    one writes nobody else does, and as a whole."""
    outputs = [b for s in all_stages(program) for b in s.outputs]
    return len(outputs) == len(set(outputs)) and all(
        isinstance(step, Nest) and all(map(fills, step.stages)) for step in program.steps
    )


def fills(stage: Stage) -> bool:
    """Whether nothing stays in the buffers that a stage writes."""
    stores = [(store, stage.axes) for store in stage.assigns]
    stores += [(store, (*stage.axes, *stage.reduce_axes)) for store in stage.along]
    boxes = [(store.buffer, stored_box(store, axes)) for store, axes in stores]
    return {b for b, box in boxes if box is not None and not left_over(whole(b.shape), box)} == {
        *stage.outputs
    }


def _is_at_end(stage: Stage, program: TensorProgram) -> bool:
    """Whether the folds of a stage are results, as they are, which nobody else writes or reads."""
    others = [s for s in all_stages(program) if s is not stage]
    return (
        not stage.along
        and folded_as_is(stage) is not None
        and all(
            store.buffer in program.results
            and not any(store.buffer in (*s.inputs, *s.outputs) for s in others)
            for store in stage.assigns
        )
    )


def folded_as_is(stage: Stage) -> dict[Buffer, str] | None:
    """The buffers that are the folds of a stage and nothing else, and what folds each; None where
    it makes something else of them."""
    ops = dict(zip(stage.accumulators, _joining(stage), strict=False))
    found = {
        store.buffer: ops.get(_rounded(store.value))
        for store in stage.assigns
        if store.guard is None
    }
    return found if len(found) == len(stage.assigns) and None not in found.values() else None


def _rounded(value: Expr) -> Expr:
    """What is rounded to a type of floats, or has 0 added to it: parts may be so before they are
    folded, as XLA does it."""
    while isinstance(value, Apply):
        if value.op == "convert" and value.dtype.is_float and value.args[0].dtype.is_float:
            (value,) = value.args
        elif value.op == "add" and isinstance(value.args[1], Const) and value.args[1].value == 0:
            value = value.args[0]
        else:
            break
    return value


def _factor(
    group: set[_Place],
    units: Mapping[Var, Sequence[int]],
    folds: Mapping[Var, tuple[str, ...]],
    program: TensorProgram,
) -> Factor | None:
    """What belongs together as a factor, if it is an index that each buffer and each stage has once
    and that some operand or result has."""
    axes = frozenset(place for place in group if isinstance(place, Var))
    dimensions = frozenset(place for place in group if isinstance(place, tuple))
    buffers = [buffer for buffer, _ in dimensions]
    alone = len(buffers) == len(set(buffers)) and all(
        len(axes.intersection((*s.axes, *s.reduce_axes))) <= 1 for s in all_stages(program)
    )
    extent = gcd(
        *(axis.extent for axis in axes),
        *(buffer.shape[d] for buffer, d in dimensions),
        *(axis.extent // unit for axis in axes for unit in units.get(axis, ())),
    )
    operands, results = (
        tuple(
            (n, d)
            for n, buffer in enumerate(border)
            for d in range(len(buffer.shape))
            if (buffer, d) in dimensions
        )
        for border in (program.operands, program.results)
    )
    if not alone or extent < 2 or not (operands or results):
        return None
    names = {name for axis in axes for name in folds.get(axis, ())}
    return Factor(extent, operands, results, tuple(sorted(names)), axes, dimensions)


def part_of(program: TensorProgram, parts: Mapping[Factor, int]) -> TensorProgram:
    """What one device computes if factors are cut into so many parts; each divides its extent."""
    return resized(program, {factor: factor.extent // count for factor, count in parts.items()})


def all_stages(program: TensorProgram) -> Iterator[Stage]:
    """The stages of all steps, in order."""
    return (s for step in program.steps for s in stages(step))


def resized(program: TensorProgram, extents: Mapping[Factor, int]) -> TensorProgram:
    """The program in which factors have other extents, and what they lead as many times those."""
    folded = {v for s in all_stages(program) for v in s.reduce_axes}

    def resized_axis(axis: Var, extent: int) -> Expr:
        if extent == 1 and axis not in folded:
            return index.constant(0)
        return Var(axis.name, axis.dtype, extent)

    axes = {
        axis: resized_axis(axis, axis.extent * extent // factor.extent)
        for factor, extent in extents.items()
        for axis in factor.axes
    }
    cut = {
        (buffer, d): buffer.shape[d] * extent // factor.extent
        for factor, extent in extents.items()
        for buffer, d in factor.dimensions
    }

    def local(buffer: Buffer) -> Buffer:
        return replace(
            buffer,
            shape=tuple(cut.get((buffer, d), extent) for d, extent in enumerate(buffer.shape)),
        )

    operands, results, temporaries = (
        tuple(map(local, group))
        for group in (program.operands, program.results, program.temporaries)
    )
    buffers = dict(
        zip(
            (*program.operands, *program.results, *program.temporaries),
            (*operands, *results, *temporaries),
            strict=True,
        )
    )
    steps = (
        part
        for step in program.steps
        for part in _apart(step, replace_buffers(step, buffers, axes=axes))
    )
    return TensorProgram(
        program.name,
        operands,
        results,
        temporaries,
        tuple(steps),
        tuple((buffers[r], buffers[o]) for r, o in program.aliases),
    )


def _apart(step: Step, cut: Step) -> Iterator[Step]:
    """A step that was cut; stages that have no axis in common any more are nests of their own."""
    if not isinstance(step, Nest):
        inner = dict(zip(cut.inner, step.inner, strict=True))
        yield with_parts(cut, lambda steps: (n for s in steps for n in _apart(inner[s], s)))
    elif step.shared and not cut.shared:
        yield from (Nest((stage,), len(stage.axes)) for stage in cut.stages)
    else:
        yield cut


def pays_to_share(program: TensorProgram, found: Sequence[Factor]) -> bool:
    """Whether devices that have parts of the first dimensions, as they mostly do, compute theirs
    without gathering what XLA would not gather.

    Where a result is reversed, rolled, joined or sorted along it, each would need all of it, and
    XLA passes on what lies at borders alone: `roll` of 2048 x 1024 on 8 devices took 13 times as
    long.  So it is where arrays are folded along it by what devices cannot join, as by argmax: of
    16384 x 128 that took 2.4 times as long.  Running folds along it XLA gathers as well, and then
    sums all numbers before each: 2048 x 128 took 3.5 s, and ours 5 ms.
    """
    return _cuts_first(program, found) or _cuts_first(program, factors(program, may_run=True))


def _cuts_first(program: TensorProgram, found: Sequence[Factor]) -> bool:
    """Whether the first dimensions are cut of all results, and of half of what is read at least."""

    def whole(border: Sequence[Buffer], cut: set[tuple[int, int]]) -> int:
        firsts = (next((d for d, n in enumerate(b.shape) if n > 1), None) for b in border)
        return sum(
            border[number].bytes
            for number, d in enumerate(firsts)
            if d is not None and (number, d) not in cut
        )

    return not whole(program.results, {p for f in found for p in f.results}) and (
        2 * whole(program.operands, {p for f in found for p in f.operands})
        <= sum(b.bytes for b in program.operands)
    )


def described(program: TensorProgram) -> str:
    """The factors as people write products: `ab, bc -> ac, add over b`; `.` is no factor."""
    found = factors(program)
    letters = {factor: chr(ord("a") + n % 26) for n, factor in enumerate(found)}
    names = {dimension: letters[f] for f in found for dimension in f.dimensions}

    def spelled(border: Sequence[Buffer]) -> str:
        return ", ".join(
            "".join(names.get((b, d), ".") for d in range(len(b.shape))) or "()" for b in border
        )

    folds = (f", {name} over {letters[f]}" for f in found for name in f.folds)
    return f"{spelled(program.operands)} -> {spelled(program.results)}{''.join(folds)}"
