"""Which dimensions of a program may be cut into parts, so that devices compute one each, alone.

    for i<64, j<16: r[i, j] = sum over k<32 of x[i, k] * w[k, j]
    x: i k, w: k j -> r: i j, add over k       cut along i: for i<8 with x[8, 32], w[32, 16]

Dimensions of buffers and axes of stages belong together where one is the plain index of the other.
All that do are one `Factor`, unless something needs to know where along them it is (a window, a
running sum, a number that counts), or all of them at once (what is folded over them and then read).
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
from hlo_mlc.tensor.rewrite import replace_buffers, with_parts

JOINING = ("add", "max", "min")
"""What devices can do to fold the folds of parts once more."""
_OF_TRUTH = {"or": "max", "and": "min"}

Dimension = tuple[Buffer, int]
_Place = Var | Dimension | None  # None is what cannot be cut


@dataclass(frozen=True, slots=True)
class Factor:
    """An index that may be cut into parts: which dimensions of operands and results it is, as pairs
    of their numbers and the dimension's, and which axes and dimensions of the program.

    `joined`: the numbers of results that are folds over it, and what folds them.
    """

    extent: int
    operands: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    joined: tuple[tuple[int, str], ...]
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


def factors(program: TensorProgram) -> tuple[Factor, ...]:
    """The factors of a program, each of two points at least, in the order of its operands."""
    classes = _Classes()
    joined: dict[Var, list[tuple[int, str]]] = {}
    for step in program.steps:
        for stage in stages(step):
            folded = _joined(stage, program) if isinstance(step, Nest) else []
            for axis in stage.reduce_axes:
                if folded:
                    joined[axis] = folded
                else:
                    classes.join(axis, None)
            _tie(stage, classes)
        _fix_conditions(step, classes)
    for result, operand in program.aliases:
        for d in range(len(result.shape)):
            classes.join((result, d), (operand, d))
    found = (_factor(set(group), joined, program) for group in classes.members())
    return tuple(sorted(filter(None, found), key=lambda f: (not f.operands, f.operands, f.results)))


def _tie(stage: Stage, classes: _Classes) -> None:
    """Notes which of a stage's axes are the index of which dimensions, and nothing else."""
    axes = {*stage.axes, *stage.reduce_axes}

    def walks(buffer: Buffer, indices: Sequence[Expr]) -> None:
        for d, (i, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if i in axes and i.extent == extent and buffer.strides is None:
                classes.join((buffer, d), i)
            else:
                classes.join((buffer, d), None)
                fix(i.free)

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
    for load in () if step.condition is None else loads(step.condition):
        for d in range(len(load.indices)):
            classes.join((load.source, d), None)
    for inner in step.inner:
        _fix_conditions(inner, classes)


def _joined(stage: Stage, program: TensorProgram) -> list[tuple[int, str]]:
    """The results that a stage's folds are, as they are, and what folds them; none where they may
    not be folds of parts."""
    if stage.combiner is None or stage.scan is not None or stage.along \
            or not (commutes(stage.combiner) and is_idempotent(stage.combiner, stage.initial)):
        return []
    folds = {a: _OF_TRUTH.get(result.op, "") if a.dtype is BOOL else result.op
             for a, result in zip(stage.accumulators, stage.combiner.results, strict=True)}
    others = [s for step in program.steps for s in stages(step) if s is not stage]
    found = []
    for store in stage.assigns:
        op = folds.get(_rounded(store.value))
        if op not in JOINING or store.guard is not None or store.buffer not in program.results \
                or any(store.buffer in (*s.inputs, *s.outputs) for s in others):
            return []
        found.append((program.results.index(store.buffer), op))
    return found


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


def _factor(group: set[_Place], joined: Mapping[Var, list[tuple[int, str]]],
            program: TensorProgram) -> Factor | None:
    """What belongs together as a factor, if it is an index that each buffer and each stage has once
    and that some operand or result has."""
    axes = frozenset(place for place in group if isinstance(place, Var))
    dimensions = frozenset(place for place in group if isinstance(place, tuple))
    buffers = [buffer for buffer, _ in dimensions]
    alone = len(buffers) == len(set(buffers)) and all(
        len(axes.intersection((*s.axes, *s.reduce_axes))) <= 1
        for step in program.steps for s in stages(step))
    extents = {axis.extent for axis in axes} | {b.shape[d] for b, d in dimensions}
    operands, results = (tuple((n, d) for n, buffer in enumerate(border)
                               for d in range(len(buffer.shape)) if (buffer, d) in dimensions)
                         for border in (program.operands, program.results))
    if not alone or len(extents) != 1 or not (operands or results):
        return None
    (extent,) = extents
    if not isinstance(extent, int) or extent < 2:
        return None
    folds = dict.fromkeys(f for axis in axes for f in joined.get(axis, ()))
    return Factor(extent, operands, results, tuple(folds), axes, dimensions)


def part_of(program: TensorProgram, parts: Mapping[Factor, int]) -> TensorProgram:
    """What one device computes if factors are cut into so many parts; each divides its extent."""
    folded = {v for step in program.steps for s in stages(step) for v in s.reduce_axes}
    axes = {axis: index.constant(0) if count == factor.extent and axis not in folded
            else Var(axis.name, axis.dtype, factor.extent // count)
            for factor, count in parts.items() for axis in factor.axes}
    cut = {dimension: factor.extent // count
           for factor, count in parts.items() for dimension in factor.dimensions}

    def local(buffer: Buffer) -> Buffer:
        return replace(buffer, shape=tuple(cut.get((buffer, d), extent)
                                           for d, extent in enumerate(buffer.shape)))

    operands, results, temporaries = (
        tuple(map(local, group))
        for group in (program.operands, program.results, program.temporaries))
    buffers = dict(zip((*program.operands, *program.results, *program.temporaries),
                       (*operands, *results, *temporaries), strict=True))
    steps = (part for step in program.steps
             for part in _apart(step, replace_buffers(step, buffers, axes=axes)))
    return TensorProgram(program.name, operands, results, temporaries, tuple(steps),
                         tuple((buffers[r], buffers[o]) for r, o in program.aliases))


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
        return ", ".join("".join(names.get((b, d), ".") for d in range(len(b.shape))) or "()"
                         for b in border)

    folds = dict.fromkeys(f", {name} over {letters[f]}" for f in found for _, name in f.joined)
    return f"{spelled(program.operands)} -> {spelled(program.results)}{''.join(folds)}"
