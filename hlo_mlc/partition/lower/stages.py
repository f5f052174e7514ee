"""From graph to stages: a stored value gets a buffer and a stage; every other value is written into
the expressions of its users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, load, variable
from hlo_mlc.expr.combiner import NOTHING
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.graph.core import Graph, Node, Value, constant_node
from hlo_mlc.ops.definition import (
    Fold,
    Indices,
    Lowered,
    Pointwise,
    Read,
    Scan,
    Sorted,
    Staged,
    Stepwise,
    Unrolled,
    Update,
)
from hlo_mlc.ops.registry import lookup
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.lower.parts import axes_of, stages_of_parts
from hlo_mlc.partition.lower.picks import Pick, picks
from hlo_mlc.partition.lower.storing import Storing
from hlo_mlc.partition.lower.uses import written_out
from hlo_mlc.tensor import core as tensor
from hlo_mlc.tensor.access import at_axes
from hlo_mlc.tensor.classify import CROSSING_LEAST, stride, walks_columns
from hlo_mlc.tensor.coalesce import in_memory_order
from hlo_mlc.tensor.combine import commutes
from hlo_mlc.tensor.core import Assign, Stage
from hlo_mlc.tensor.extremum import in_one_pass

# What a reduction reads along rows of one array and along columns of another is stored first, in
# squares, up to so many bytes: a larger one would take memory that XLA does without.  Shorter rows
# lie in the cache lines of their neighbours (layernorm, argmax and rays of the bench).
CROSSED_LIMIT, SHORTEST_ROW = 8 << 20, 16


@dataclass(slots=True)
class Item:
    """A stage with the graph node that it came from."""

    stage: Stage
    node: Node
    update: bool = False  # writes parts of a buffer that an earlier stage filled
    closed: bool = False  # overwrites what earlier stages read: nothing moves across it
    inner: bool = False  # writes what only later stages of its node read


@dataclass(slots=True)
class StageLowering:
    """Lowers the nodes of one graph, in order, to stages.

    `wanted`: values that must have a buffer because something outside the stages reads them.
    `outside(value, indices)`: how to read a value that this graph does not define.
    `prologue`: operations of a factor that products compute whenever they read it.
    `costs`: of the machine.
    `around`: the lowering of the graph around this one.
    `given`: the buffers that values are to be in, of which nobody here reads what they hold.
    """

    graph: Graph
    wanted: frozenset[Value]
    outside: Callable[[Value, Indices], Expr]
    fresh: Callable[[str], str]
    costs: Costs
    prologue: int = 0
    around: StageLowering | None = None
    buffers: dict[Value, Buffer] = field(default_factory=dict)
    given: dict[Value, Buffer] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    tables: list[Node] = field(default_factory=list)  # constants that only stages read
    _producers: dict[Value, tuple[Node, int]] = field(default_factory=dict)
    _lowered: dict[Node, Lowered] = field(default_factory=dict)
    _reads: dict[tuple[Value, Indices], Expr] = field(default_factory=dict)
    _counted: set[Value] = field(default_factory=set)
    # Results of sorts that are never put in order as a whole, as if they were in buffers, and what
    # picks elements of them, with the sort and what picks the same.
    _unordered: dict[Value, Buffer] = field(default_factory=dict)
    _picks: dict[Node, tuple[Node, tuple[Pick, ...]]] = field(default_factory=dict)
    _passed: set[Node] = field(default_factory=set)  # nodes on the way there
    _inner: list[StageLowering] = field(default_factory=list)  # of graphs within this one
    _storing: Storing = field(init=False)
    _short: frozenset[Node] = field(init=False)

    def __post_init__(self) -> None:
        self._storing = Storing.of(
            self.graph, self.wanted, self.prologue, self.costs.scatters_in_turn
        )
        self._short = written_out(self.graph.nodes, self.costs.rows is not None)
        if self.around is not None:
            self.around._inner.append(self)

    def read(self, value: Value, indices: Indices) -> Expr:
        """The element of `value` at `indices`: a load, or the expression that computes it."""
        buffer = self.buffers.get(value) or self._unordered.get(value)
        if buffer is not None:
            return load(buffer, indices)
        if value not in self._producers:
            return self.outside(value, indices)
        key = (value, indices)
        found = self._reads.get(key)
        if found is None:
            node, position = self._producers[value]
            lowered = self.lowered(node)
            assert isinstance(lowered, Pointwise), node.op
            found = self._reads[key] = lowered.elements[position](indices)
        return found

    def close(self) -> None:
        """Nothing more is lowered: what reads values, which holds the lowering as this holds it, is
        let go of, and freed without anybody's looking for it."""
        for inner in self._inner:
            inner.close()
        for held in (self._inner, self._lowered, self._producers, self._reads):
            held.clear()

    def reader(self, value: Value) -> Read:
        return lambda indices: self.read(value, indices)

    def lowered(self, node: Node) -> Lowered:
        """The tensor expressions of a node."""
        if node not in self._lowered:
            reads = tuple(self.reader(v) for v in node.operands)
            self._lowered[node] = lookup(node.op).lower(node, reads)
        return self._lowered[node]

    def definition(self, value: Value) -> Node | None:
        """The node that computes `value`, if it was lowered here or around here."""
        found = self._producers.get(value)
        if found is None:
            return self.around.definition(value) if self.around is not None else None
        return found[0]

    def compute(self, node: Node, value: Value, element: Read) -> None:
        """Define `value` by an expression of its indices."""
        self._lowered[node] = Pointwise(
            tuple(element if v is value else self._elements(node, v) for v in node.results)
        )
        self._producers[value] = (node, node.results.index(value))
        if value in self.wanted:
            self.store(node, value, element)

    def alias(self, node: Node, value: Value, source: Value) -> None:
        """Make `value` another name of `source`."""
        self.compute(node, value, self.reader(source))

    def _elements(self, node: Node, value: Value) -> Read:
        lowered = self._lowered.get(node)
        return lowered.elements[node.results.index(value)] if lowered else self.reader(value)

    def define(self, value: Value, scope: str = "scratch") -> Buffer:
        """Give `value` a buffer of its own."""
        kind = value.type.stored
        buffer = self.given.get(value) or Buffer(self.fresh("b"), kind.dtype, kind.shape, scope)
        self.buffers[value] = buffer
        return buffer

    def add(self, node: Node, uses: Mapping[Value, tuple[Node, ...]]) -> None:
        """Lower one supported node that is not control flow."""
        for position, value in enumerate(node.results):
            self._producers[value] = (node, position)
        if node in self._picks:
            self._pick(node)
        if node in self._picks or node in self._passed:
            return
        if node.op == "stablehlo.reduce":
            self._store_crossed(node)
        lowered = self.lowered(node)
        terms = 1
        if isinstance(lowered, Fold) and (math.prod(lowered.extents) == 1 or node in self._short):
            terms = math.prod(lowered.extents)
            lowered = self._lowered[node] = lowered.as_terms()
        if isinstance(lowered, Pointwise):
            if node.op == "stablehlo.constant":
                return
            for value, element in zip(node.results, lowered.elements, strict=True):
                if self._is_counted(node, value):
                    self._counted.add(value)
                elif self._storing.in_parts(node, uses):
                    self._store_parts(node, value)
                elif self._storing.as_whole(node, value, terms, uses):
                    self.store(node, value, element)
        elif isinstance(lowered, Fold):
            self._fold(node, lowered)
        elif isinstance(lowered, Scan):
            self._scan(node, lowered)
        elif isinstance(lowered, Sorted):
            if not self._is_picked_of(node, lowered, uses):
                self._sorted(node, lowered)
        elif isinstance(lowered, Staged):
            self._staged(node, lowered)
        elif isinstance(lowered, Unrolled):
            self.unrolled(node, lowered, node.results)
        elif isinstance(lowered, Stepwise):
            self._stepwise(node, lowered)
        else:
            self._update(node, lowered)

    def _is_counted(self, node: Node, value: Value) -> bool:
        """Whether its elements are integers that follow from their places and from counters of
        loops, in even steps: indices have a normal form, and others find out more of what they
        see."""
        if not value.type.dtype.is_integer or value in self.wanted:
            return False
        axes, point = axes_of(value.type.shape, self.fresh)
        if axes and node.op != "stablehlo.iota" and self._counted.isdisjoint(node.operands):
            return False
        e = self.read(value, point)
        if (
            not isinstance(e, Apply)
            or e.op != "convert"
            or e.args[0].dtype is not INDEX
            or loads(e)
        ):
            return False
        return not axes or all(isinstance(atom, Var) for atom in index.affine(e.args[0])[0])

    def store(self, node: Node, value: Value, element: Read) -> Buffer:
        """Give `value` a buffer, filled with element(indices)."""
        buffer = self.define(value)
        self.store_into(node, buffer, element)
        return buffer

    def _store_crossed(self, reduction: Node) -> None:
        """Give what is reduced a buffer where it is read along rows here and columns there."""
        for value in reduction.operands:
            if (
                value in self.buffers
                or value not in self._producers
                or value.type.bytes > CROSSED_LIMIT
            ):
                continue
            axes, indices = axes_of(value.type.shape, self.fresh)
            element = self.read(value, indices)
            rows = [v for v in axes if v.extent >= SHORTEST_ROW]
            along = {
                v
                for one in loads(element)
                if one.source.size >= CROSSING_LEAST
                for v in rows
                if abs(stride(one, v) or 0) == 1
            }
            if len(along) > 1:
                node, position = self._producers[value]
                self.store(node, value, self.lowered(node).elements[position])

    def _store_parts(self, node: Node, value: Value) -> None:
        """Give what is joined a buffer, that stages fill part by part."""
        stages = stages_of_parts(node, self.define(value), self.read, self.fresh)
        for number, stage in enumerate(stages):
            self._emit(node, stage, update=number > 0)

    def store_into(self, node: Node, buffer: Buffer, element: Read, closed: bool = False) -> None:
        """Fill `buffer` with element(indices), the parts of a complex number at one point."""
        parts = ((),)
        if node.op == "stablehlo.complex":
            parts = tuple((index.constant(k),) for k in range(buffer.shape[-1]))
        axes, point = axes_of(buffer.shape[: len(buffer.shape) - len(parts[0])], self.fresh)
        assigns = tuple(Assign(buffer, (*point, *part), element((*point, *part))) for part in parts)
        self.items.append(Item(Stage(self.fresh("s"), axes, assigns), node, closed=closed))

    def _fold(self, node: Node, fold: Fold) -> None:
        self._fold_into(node, fold, tuple(self.define(value) for value in node.results))

    def _fold_into(
        self, node: Node, fold: Fold, buffers: tuple[Buffer, ...], inner: bool = False
    ) -> None:
        axes, indices = axes_of(buffers[0].shape, self.fresh)
        reduce_axes, reduce_indices = axes_of(fold.extents, self.fresh)
        if not reduce_axes and all(fold.extents):  # only axes of length one: nothing to fold
            assigns = tuple(
                Assign(buffer, indices, element(indices))
                for buffer, element in zip(buffers, fold.as_terms().elements, strict=True)
            )
            self._emit(node, Stage(self.fresh("s"), axes, assigns), inner=inner)
            return
        accumulators = tuple(Var(self.fresh("acc"), e.dtype) for e in fold.initial)
        finished = fold.finished(accumulators)
        terms = fold.terms(indices, reduce_indices)
        if node.op == "stablehlo.reduce" and commutes(fold.combiner):
            reduce_axes = in_memory_order(reduce_axes, terms)
        assigns = tuple(
            Assign(buffer, indices, e) for buffer, e in zip(buffers, finished, strict=True)
        )
        stage = Stage(
            self.fresh("s"),
            axes,
            assigns,
            reduce_axes,
            fold.combiner,
            terms,
            fold.initial,
            accumulators,
        )
        # sum over i of x[i, k, j] into y[j, k]: rows are of terms, results are stored apart.
        turned = replace(stage, axes=in_memory_order(axes, terms)) if axes else stage
        if walks_columns(turned) and not walks_columns(stage):
            stage = turned
        self._emit(node, in_one_pass(stage, self.fresh) or stage, inner=inner)

    def _staged(self, node: Node, staged: Staged) -> None:
        """The tensor in between, then the results."""
        dtypes = (e.dtype for e in staged.first.finished(staged.first.initial))
        between = tuple(Buffer(self.fresh("b"), dtype, staged.shape) for dtype in dtypes)
        self._fold_into(node, staged.first, between, inner=True)
        self._fold(node, staged.then(lambda indices: load(between[0], indices)))

    def unrolled(self, node: Node, unrolled: Unrolled, results: Sequence[Value]) -> None:
        """One stage that stores every element of `results`, which are written out."""
        axes, point = axes_of(unrolled.extents, self.fresh)
        found = unrolled.elements(point)
        buffers = [self.define(value) for value in results]
        assigns = tuple(
            Assign(buffer, place, element)
            for buffer, elements in zip(buffers, found, strict=True)
            for place, element in elements
        )
        self._emit(node, Stage(self.fresh("s"), axes, assigns))

    def _stepwise(self, node: Node, stepwise: Stepwise) -> None:
        """One stage that goes through a procedure at every point."""
        axes, point = axes_of(stepwise.extents, self.fresh)
        tables = tuple(map(self._table, stepwise.tables))
        along, inner = [], ()
        for value, array in zip(node.results, stepwise.results, strict=True):
            own, place = axes_of(array.shape, self.fresh)
            inner += own
            at = stepwise.place(point, place)
            along.append(Assign(self.define(value), at, load(array, place)))
        self._emit(
            node,
            Stage(
                self.fresh("s"),
                axes,
                (),
                inner,
                NOTHING,
                along=tuple(along),
                procedure=stepwise.procedure(point, tables),
            ),
        )

    def _table(self, array: np.ndarray) -> Read:
        """How to read a constant that belongs to no graph."""
        outermost = self
        while outermost.around is not None:
            outermost = outermost.around
        known = next(
            (
                node
                for node in outermost.tables
                if node.literal.dtype == array.dtype and np.array_equal(node.literal, array)
            ),
            None,
        )
        if known is None:
            known = constant_node(array)
            outermost.tables.append(known)
            outermost.define(known.results[0])
        buffer = outermost.buffers[known.results[0]]
        return lambda indices: load(buffer, indices)

    def _scan(self, node: Node, scan: Scan) -> None:
        axes, indices = axes_of(node.results[0].type.shape, self.fresh)
        accumulators = tuple(Var(self.fresh("acc"), e.dtype) for e in scan.initial)
        finished = scan.finish(accumulators) if scan.finish else accumulators
        assigns = tuple(
            Assign(self.define(value), indices, e)
            for value, e in zip(node.results, finished, strict=True)
        )
        self._emit(
            node,
            Stage(
                self.fresh("s"),
                axes,
                assigns,
                (),
                scan.combiner,
                scan.terms(indices),
                scan.initial,
                accumulators,
                scan=tensor.ScanAxis(indices[scan.axis], scan.reverse),
            ),
        )

    def _sorted(self, node: Node, order: Sorted) -> None:
        axes, indices = axes_of(node.results[0].type.shape, self.fresh)
        place = indices[order.axis]
        if not isinstance(place, Var):  # the first alone is an axis of one place
            place = variable(self.fresh("i"), 1)
            axes, indices = (
                (*axes, place),
                at_axes(
                    (order.axis,),
                    (place,),
                    tuple(i for d, i in enumerate(indices) if d != order.axis),
                ),
            )
        element = variable(self.fresh("i"), order.extent)
        terms = order.terms((*indices[: order.axis], element, *indices[order.axis + 1 :]))
        results = [(value, indices, k) for k, value in enumerate(node.results)]
        self._in_order(node, order, axes, element, terms, results, (place, place))

    def _in_order(
        self,
        node: Node,
        order: Sorted,
        axes: tuple[Var, ...],
        element: Var,
        terms: tuple[Expr, ...],
        results: Iterable[tuple[Value, Indices, int]],
        place: tuple[Var, Expr],
    ) -> None:
        """A stage that stores the terms of the element that takes a place: values, where, and which
        of the terms; the axis of the places, and which of them."""
        accumulators = tuple(Var(self.fresh("acc"), e.dtype) for e in terms)
        assigns = tuple(Assign(self.define(v), at, accumulators[k]) for v, at, k in results)
        axis, at = place
        sort = tensor.Sort(axis, order.keys(accumulators), at)
        stage = Stage(
            self.fresh("s"), axes, assigns, (element,), None, terms, (), accumulators, sort=sort
        )
        self._emit(node, stage)

    def _is_picked_of(
        self, sort: Node, order: Sorted, uses: Mapping[Value, tuple[Node, ...]]
    ) -> bool:
        """Whether only a few of its elements are read, which are found when they are."""
        keys = order.keys(tuple(Var(self.fresh("acc"), v.type.dtype) for v in sort.results))
        if len(keys) > 1:  # by which nothing is searched for: its rows are put in order anyway
            return False
        found, between = picks(sort, uses, self.wanted)
        if not found:
            return False
        self._unordered.update(
            (v, Buffer(self.fresh("b"), v.type.dtype, v.type.shape)) for v in sort.results
        )
        self._passed.update(between)
        for pick in found:
            same = tuple(p for p in found if p.places == pick.places)
            self._picks[pick.node] = (sort, same)
        return True

    def _pick(self, node: Node) -> None:
        """One stage for what is picked at the same places of all results of a sort."""
        sort, same = self._picks[node]
        if node.results[0] in self.buffers:
            return
        axes, indices = axes_of(node.results[0].type.shape, self.fresh)
        element = lookup(node.op).lower(node, [self.reader(v) for v in node.operands])
        assert isinstance(element, Pointwise)
        picked, order = element.elements[0](indices), self.lowered(sort)
        assert isinstance(picked, Load) and isinstance(order, Sorted)
        at, row = picked.indices[order.axis], list(picked.indices)
        row[order.axis] = variable(self.fresh("i"), order.extent)
        terms = order.terms(tuple(row))
        needed = frozenset[Expr]().union(*(e.free for e in terms))
        place = next((v for v in reversed(axes) if v in at.free and v not in needed), None)
        if place is None:  # an axis of one place
            place = variable(self.fresh("i"), 1)
            axes = (*axes, place)
        results = [(p.node.results[0], indices, p.position) for p in same]
        self._in_order(node, order, axes, row[order.axis], terms, results, (place, at))

    def _update(self, node: Node, update: Update) -> None:
        value = node.results[0]
        target = node.operands[update.target]
        axes, indices = axes_of(value.type.shape, self.fresh)
        source = self.read(target, indices)
        buffer = self.define(value)
        self._emit(node, Stage(self.fresh("s"), axes, (Assign(buffer, indices, source),)))
        self.emit_update(node, update, buffer)

    def emit_update(self, node: Node, update: Update, buffer: Buffer) -> None:
        """Write the changed elements of `update` into `buffer`, which holds the others already."""
        axes, point = axes_of(update.extents, self.fresh)
        place, element = update.place(point), update.element(point)
        if update.combiner is not None:
            (element,) = update.combiner.combined((load(buffer, place),), (element,))
        guard = update.guard(point) if update.guard else TRUE
        if guard is FALSE:
            return
        assign = Assign(buffer, place, element, None if guard is TRUE else guard)
        stage = Stage(self.fresh("u"), axes, (assign,))
        self._emit(node, stage, update=True)

    def _emit(self, node: Node, stage: Stage, update: bool = False, inner: bool = False) -> None:
        self.items.append(Item(stage, node, update, inner=inner))
