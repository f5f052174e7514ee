"""The work of a stage in numbers: operations, products, bytes."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads, walk
from hlo_mlc.expr.dtypes import F64, INDEX
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.target.cpu import WIDEST_STEP
from hlo_mlc.templates.base import points
from hlo_mlc.templates.window_roles import lane_of
from hlo_mlc.tensor.classify import (
    contraction,
    cost,
    cost_of_node,
    cost_of_row,
    is_map,
    picks_along,
    slides,
    sliding,
    stride,
    vector_stride,
    walks_columns,
)
from hlo_mlc.tensor.core import Stage, derived, derived_of_any_names

_ROUNDING = 5  # operations of codegen/legalize/rounding.py
_FACTOR_REUSE = 16  # of what is computed for a factor of a product: a register tile is so high
# What divides and takes roots computes no other lanes meanwhile: 10 to 24 cycles for a vector of 64
# bytes, where simple operations take one.  Source: uops.info, Ice Lake and Golden Cove.
_DIVIDER = {"div": 8, "sqrt": 10, "rsqrt": 14}
# Operations of a step of a scan for each of its combiner's: the next one waits for the result.
# Sums and maxima of a million elements took 218 to 744 us on Zen 4 and Emerald Rapids.
_WAITING = 20
# Quarters of what neighbours far apart take that come one by one: up to WIDEST_STEP elements apart
# they come by loads and a shuffle, and take 0 to 0.1 ns more, far apart a quarter.  So do those far
# apart whose own neighbours are read as well, which are transposed in registers: small matrices,
# and images with three channels that fit into a cache, took 0.06 to 0.12 ns for each.
_SHUFFLED = 4
_WRITTEN_OUT = 8  # elements of rows that are
KEPT_BYTES = 512 << 10  # that the second cache of a core keeps, by and large
_LINE = 64  # bytes that come from memory together
_LANES = 16  # of f32 in a wide vector: which axis suits vectors hardly depends on how wide they are


@dataclass(frozen=True, slots=True)
class Work:
    """What one run of a stage does.

    `operations` are simple ones, besides the multiply-adds of a product; `places` are those of them
    that say where rows lie, all where values only move. `moved` are the bytes read and written of
    each buffer, `apart` counts elements that do not lie beside those of the next lanes, a quarter
    for those that are near. `walked_bytes` are all that are read and written where loops have the
    order of the axes, without tiles.
    """

    operations: int
    places: int
    products: int  # multiply-adds of a sum of products
    moved: Mapping[Buffer, int]
    apart: int
    walked_bytes: int

    @staticmethod
    @derived
    def of(stage: Stage) -> Work:
        """The work of a stage."""
        amounts = _amounts(stage)
        moved = dict(zip(_moved(stage), amounts.moved, strict=True))
        products = points(stage) if multiplies(stage) else 0
        return Work(
            amounts.operations, amounts.places, products, moved, amounts.apart, amounts.walked_bytes
        )

    @property
    def only_moves(self) -> bool:
        """Whether no value is computed, but at most where it lies."""
        return self.operations == self.places

    @property
    def moved_bytes(self) -> int:
        """All that is read and written."""
        return sum(self.moved.values())

    @property
    def held_bytes(self) -> int:
        """What these buffers hold, all of which a loop around the stage may go through."""
        return sum(buffer.bytes for buffer in self.moved)


class _Amounts(NamedTuple):
    """What is in `Work` of a stage, but for its buffers; `moved` is in the order of `_moved`."""

    operations: int
    places: int
    moved: tuple[int, ...]
    apart: int
    walked_bytes: int


@derived_of_any_names
def _amounts(stage: Stage) -> _Amounts:
    count = points(stage)
    counted, places = _places_of_rows(stage)
    moved = dict.fromkeys(_moved(stage), 0)
    moved |= {b: min(b.bytes, count * b.dtype.bytes) for b in stage.outputs}
    walked = dict(moved)
    for buffer, read in stage.loads_by_buffer.items():
        both = [_read_bytes(load, stage) for load in read]
        moved[buffer], walked[buffer] = map(max, zip(*both, strict=True))
    return _Amounts(
        max(0, _operations(stage) - counted) + places,
        places,
        tuple(moved.values()),
        _apart(stage),
        sum(walked.values()),
    )


def _moved(stage: Stage) -> tuple[Buffer, ...]:
    """The buffers that a stage reads or writes."""
    return tuple(dict.fromkeys((*stage.outputs, *stage.inputs)))


def multiplies(stage: Stage) -> bool:
    """A sum of products, be there several rows and columns or not."""
    return (
        stage.combiner is not None
        and stage.scan is None
        and stage.combiner.name == "add"
        and isinstance(stage.terms[0], Apply)
        and stage.terms[0].op == "mul"
    )


def contraction_flops(stage: Stage) -> int:
    """Two for each multiply-add of a sum of products, four where it is in 64 bits."""
    products = Work.of(stage).products
    return 2 * products * max(1, stage.terms[0].dtype.bytes // 4) if products else 0


def _operations(stage: Stage) -> int:
    outer = math.prod(v.extent for v in stage.axes)
    values = [a.value for a in (*stage.along, *stage.assigns)]
    guards = [a.guard for a in (*stage.along, *stage.assigns) if a.guard is not None]
    folded = 0
    if stage.combiner is not None:
        folded = _cost_of_terms(stage)
        each = _cost(*stage.combiner.results)
        folded += each * _WAITING if stage.scan is not None else -1 if multiplies(stage) else each
    if stage.sort is not None:
        folded = _cost(*stage.terms, *stage.sort.keys)
    if stage.procedure is not None:
        folded = stage.procedure.total(_cost)
        if stage.procedure.is_side_by_side:  # vectors go through memory between its loops
            folded += stage.procedure.total(lambda *values: len(values))
    evaluated = points(stage)
    if contraction(stage) is not None:
        evaluated //= _FACTOR_REUSE
    each = _cost(*values, *guards) * _chosen_share(stage)
    return evaluated * folded + round(outer * each)


def _places_of_rows(stage: Stage) -> tuple[int, int]:
    """Operations of a map that say where rows lie: counted for each point, and as they are done, in
    front of the loops over the axes behind the last one that they depend on."""
    if not is_map(stage):
        return 0, 0
    rows = [1, *itertools.accumulate((v.extent for v in stage.axes), operator.mul)]
    places = (i for group in stage.loads_by_buffer.values() for load in group for i in load.indices)
    counted = done = 0
    for node in walk(*places):
        last = max((n for n, v in enumerate(stage.axes, 1) if v in node.free), default=0)
        if last < len(stage.axes):
            counted += operations_of(node) * rows[-1]
            done += operations_of(node) * rows[last]
    return counted, done


def _chosen_share(stage: Stage) -> float:
    """The share of what is written for each element of a short row that is computed for it, where
    its place says which: rows that are put together of others are computed one by one."""
    if not is_map(stage) or not stage.axes:
        return 1.0
    row, values = stage.axes[-1], [a.value for a in stage.assigns]
    whole = row.extent * cost(*values)
    if not 1 < row.extent <= _WRITTEN_OUT or not whole or not picks_along(stage, row):
        return 1.0
    return min(1.0, cost_of_row(row, *values) / whole)


def term_operations(stage: Stage) -> int:
    """The operations of a stage that compute the terms of its fold."""
    return points(stage) * _cost_of_terms(stage)


def _cost_of_terms(stage: Stage) -> int:
    # Whether an element exists is asked once for a whole tile (tensor/guards.py).
    return _cost(*stage.terms) - _cost(
        *(load.guard for term in stage.terms for load in loads(term) if load.guard is not None)
    )


def _cost(*roots: Expr) -> int:
    """Operations for evaluating these once, with what it takes to round every f16 and bf16."""
    return sum(map(operations_of, walk(*roots)))


def operations_of(node: Expr) -> int:
    """The operations of one node of an expression, without those of its operands."""
    if not isinstance(node, Apply) or node.dtype is INDEX:
        return 0
    is_exact = OPS[node.op].accuracy is Accuracy.EXACT
    rounded = node.dtype.is_narrow_float and not is_exact
    divider = _DIVIDER.get(node.op, 0) if node.dtype.is_float else 0
    total, op = cost_of_node(node), OPS[node.op]
    if node.dtype.is_float and op.operations is not None:
        total = total * op.operations[node.dtype is F64] // op.cost
    total += divider + _ROUNDING * rounded
    return total - 2 if rotates(node) else total  # one instruction for three


def rotates(node: Apply) -> bool:
    """x << a | x >> (bits - a)"""
    if node.op != "or" or not all(isinstance(part, Apply) for part in node.args):
        return False
    left, right = node.args
    return {left.op, right.op} == {"shl", "shr_logical"} and left.args[0] is right.args[0]


def _read_bytes(load: Load, stage: Stage) -> tuple[int, int]:
    """What a load brings from memory in all points of a stage, of which `KEPT_BYTES` are kept, or
    none."""
    buffer, count = load.source, points(stage)
    steps = {v: abs(stride(load, v) or 0) for v in (*stage.axes, *stage.reduce_axes)}
    nearest = min(filter(None, steps.values()), default=1) * buffer.dtype.bytes
    found = min(buffer.bytes, count * min(nearest, _LINE))
    lanes = _lanes(stage)
    if (
        lanes is None
        or nearest <= buffer.dtype.bytes
        or steps[lanes] * buffer.dtype.bytes < _LINE
        or not (between := _lines_between(steps, nearest // buffer.dtype.bytes) * _LINE)
    ):
        return found, found
    # Before its neighbours are read, a line may have left the cache.
    return count * _LINE if between > KEPT_BYTES else found, count * _LINE


def _lines_between(steps: Mapping[Var, int], nearest: int) -> int:
    """How many lines, at most, are read between two accesses to neighbours that are so many
    elements apart."""
    inside = itertools.dropwhile(lambda v: steps[v] != nearest, steps)
    return math.prod(v.extent for v in itertools.islice(inside, 1, None))


def _lanes(stage: Stage) -> Var | None:
    """The axis that vectors lie along, where the stage itself says so: in a map or in a fold."""
    if multiplies(stage) or stage.scan is not None or slides(stage):
        return None
    if stage.sort is not None:
        return stage.reduce_axes[0]
    if stage.combiner is None or walks_columns(stage):
        return stage.axes[-1] if stage.axes else None
    return stage.reduce_axes[-1] if stage.reduce_axes else None


def far_apart(stage: Stage) -> int:
    """What a stage reads that does not lie beside what the next lanes read, be it transposed in
    registers or not: a quarter of it where it is near."""
    return _apart(stage, False)


def _apart(stage: Stage, transposes: bool = True) -> int:
    read = [load for group in stage.loads_by_buffer.values() for load in group]
    shared = 1  # terms that use what is loaded once: a window's, in a tile of neighbours
    if slides(stage) and contraction(stage) is None:
        read = [load for load in read if any(_mixes(i, stage) for i in load.indices)]
        each = _each_apart(read, lane_of(stage, _LANES) or stage.axes[-1], WIDEST_STEP)
        shared = max(v.extent for axis in stage.axes for v in sliding(stage, axis))
    else:
        lanes = _lanes(stage)
        others = [v for v in stage.axes if v is not lanes] if is_map(stage) else []
        each = 0 if lanes is None else _each_apart(read, lanes, 1, others, transposes)
    return points(stage) * each // (_SHUFFLED * shared)


def _each_apart(
    read: Sequence[Load], lanes: Var, near: int, others: Sequence[Var] = (), transposes: bool = True
) -> int:
    """What these add for each point, in quarters; `others` are axes beside that of the lanes."""
    counts = Counter(load.source for load in read)
    total = 0
    for load in read:
        step = vector_stride(load, lanes)
        is_far = step is None or abs(step) > WIDEST_STEP
        in_registers = (
            transposes and step is not None and _is_transposed(load, counts[load.source], others)
        )
        total += _SHUFFLED if is_far and not in_registers else is_far or abs(step) > near
    return total


def _is_transposed(load: Load, count: int, others: Sequence[Var]) -> bool:
    """Whether elements beside those of a load are read as well, in places that follow from no
    others that are read: by one of so many of the buffer, or along another axis."""
    return not any(map(loads, load.indices)) and (
        count >= WIDEST_STEP
        or any(v.extent >= WIDEST_STEP and abs(stride(load, v) or 0) == 1 for v in others)
    )


def window(stage: Stage) -> int:
    """How many neighbours a result folds, where neighbouring results share them; else 0."""
    return (
        math.prod(v.extent for v in stage.reduce_axes)
        if any(
            _mixes(i, stage) for term in stage.terms for load in loads(term) for i in load.indices
        )
        else 0
    )


def _mixes(index: Expr, stage: Stage) -> bool:
    return any(v in index.free for v in stage.axes) and any(
        v in index.free for v in stage.reduce_axes
    )
