"""Which dimensions of a program may be cut into parts, so that devices compute one each, alone.

    for i<64, j<16: r[i, j] = sum over k<32 of x[i, k] * w[k, j]
    x: i k, w: k j -> r: i j, add over k       cut along i: for i<8 with x[8, 32], w[32, 16]

Dimensions of buffers and axes of stages belong together where one is the plain index of the other.
All that do are one `Factor`, unless something needs to know where along them it is (a window, a
running sum, a number that counts).  What is folded over a factor is folded once more over devices:
who reads it comes after that, in another piece (pieces.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads, walk
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.combine import commutes, is_idempotent
from hlo_mlc.tensor.core import Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.covering import left_over, stored_box, whole
from hlo_mlc.tensor.rewrite import replace_buffers, with_parts

_JOINED_BY = {"add": "add", "max": "max", "larger": "max", "min": "min"}
"""What devices do to fold the folds of parts once more."""
_TRUTH_JOINED_BY = {"or": "max", "and": "min"}

Dimension = tuple[Buffer, int]
_Place = Var | Dimension | None  # None is what cannot be cut


@dataclass(frozen=True, slots=True)
class Factor:
    """An index that may be cut into parts: which dimensions of operands and results it is, as pairs
    of their numbers and the dimension's, and which axes and dimensions of the program.

    `folds`: what devices do to join what is folded over it, `add`, `max` or `min`.
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


def factors(program: TensorProgram, may_wait: bool | None = None) -> tuple[Factor, ...]:
    """The factors of a program, each of two points at least, in the order of its operands; what is
    folded over some may be read in the program where stages `may_wait`, as those of a program in
    pieces may."""
    classes = _Classes()
    folds: dict[Var, tuple[str, ...]] = {}
    may_wait = _is_in_pieces(program) if may_wait is None else may_wait
    for step in program.steps:
        for stage in stages(step):
            joining = _joining(stage) if isinstance(step, Nest) else ()
            if not (may_wait or _is_at_end(stage, program)):
                joining = ()
            for axis in stage.reduce_axes:
                if joining:
                    folds[axis] = joining
                else:
                    classes.join(axis, None)
            _tie(stage, classes)
        _fix_conditions(step, classes)
    for result, operand in program.aliases:
        for d in range(len(result.shape)):
            classes.join((result, d), (operand, d))
    found = (_factor(set(group), folds, program) for group in classes.members())
    return tuple(sorted(filter(None, found), key=lambda f: (not f.operands, f.operands, f.results)))


def _tie(stage: Stage, classes: _Classes) -> None:
    """Notes which of a stage's axes are the index of which dimensions, and nothing else."""
    axes = {*stage.axes, *stage.reduce_axes}

    def walks(buffer: Buffer, indices: Sequence[Expr]) -> None:
        for d, (i, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if i in axes and i.extent == extent:
                classes.join((buffer, d), i)
            else:
                classes.join((buffer, d), None)
                fix(axes.intersection((i,)))

    def fix(variables: Iterable[Var]) -> None:
        for variable in variables:
            classes.join(variable, None)

    for store in (*stage.along, *stage.assigns):
        walks(store.buffer, store.indices)
        own = axes if store in stage.along else stage.axes
        fix(set(own).difference(store.indices))
    values = (store.value for store in (*stage.along, *stage.assigns))
    places = () if stage.sort is None else (stage.sort.at,)
    fix(axes.intersection((*stage.terms, *stage.initial, *places, *values)))
    for node in walk(*stage.expressions):
        if isinstance(node, Load):
            walks(node.source, node.indices)
        else:
            fix(axes.intersection(node.children))
    for ordered in (stage.scan and stage.scan.axis, stage.sort and stage.sort.place):
        if ordered is not None:
            classes.join(ordered, None)


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
    group: set[_Place], folds: Mapping[Var, tuple[str, ...]], program: TensorProgram
) -> Factor | None:
    """What belongs together as a factor, if it is an index that each buffer and each stage has once
    and that some operand or result has."""
    axes = frozenset(place for place in group if isinstance(place, Var))
    dimensions = frozenset(place for place in group if isinstance(place, tuple))
    buffers = [buffer for buffer, _ in dimensions]
    alone = len(buffers) == len(set(buffers)) and all(
        len(axes.intersection((*s.axes, *s.reduce_axes))) <= 1 for s in all_stages(program)
    )
    extents = {axis.extent for axis in axes} | {b.shape[d] for b, d in dimensions}
    operands, results = (
        tuple(
            (n, d)
            for n, buffer in enumerate(border)
            for d in range(len(buffer.shape))
            if (buffer, d) in dimensions
        )
        for border in (program.operands, program.results)
    )
    if not alone or len(extents) != 1 or not (operands or results):
        return None
    (extent,) = extents
    if extent < 2:
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
    """The program in which factors have other extents."""
    folded = {v for s in all_stages(program) for v in s.reduce_axes}
    axes = {
        axis: index.constant(0)
        if extent == 1 and axis not in folded
        else Var(axis.name, axis.dtype, extent)
        for factor, extent in extents.items()
        for axis in factor.axes
    }
    cut = {
        dimension: extent for factor, extent in extents.items() for dimension in factor.dimensions
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
