"""What kind of computation a stage is, derived from its expressions."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads, walk
from hlo_mlc.expr.dtypes import BOOL, INDEX
from hlo_mlc.expr.ops import OPS
from hlo_mlc.tensor.access import Pair
from hlo_mlc.tensor.core import Assign, Stage, buffer_of, derived, derived_of_any_names

# Elements from which on reading a tensor against the grain takes longer than transposing it.
CROSSING_LEAST = 1 << 14


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products in which every axis has a role.

    out[batch, rows, columns] = sum over `summed` of lhs(batch, rows, summed) *
    rhs(batch, columns, summed); the factors are expressions.
    """

    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    summed: tuple[Var, ...]
    lhs: Expr
    rhs: Expr

    @property
    def outer(self) -> tuple[Var, ...]:
        """The axes around one product of rows by columns."""
        return (*self.batch, *self.rows[:-1], *self.columns[:-1])


@derived
def contraction(stage: Stage) -> Contraction | None:
    """The roles of a stage's axes if it is a matrix product with more than one row and column."""
    if stage.combiner is None or stage.combiner.name != "add" or stage.along or stage.scan:
        return None
    term = stage.terms[0]
    if not isinstance(term, Apply) or term.op != "mul":
        return None
    lhs, rhs = term.args
    if not all(v in lhs.free and v in rhs.free for v in stage.reduce_axes):
        return None
    batch = tuple(v for v in stage.axes if v in lhs.free and v in rhs.free)
    rows = tuple(v for v in stage.axes if v in lhs.free and v not in rhs.free)
    columns = tuple(v for v in stage.axes if v in rhs.free and v not in lhs.free)
    if len(batch) + len(rows) + len(columns) != len(stage.axes) or not rows or not columns:
        return None
    if _walks(stage, rows) > _walks(stage, columns):  # results side by side go into one vector
        lhs, rhs, rows, columns = rhs, lhs, columns, rows
    return Contraction(batch, rows, columns, stage.reduce_axes, lhs, rhs)


def _walks(stage: Stage, axes: tuple[Var, ...]) -> int:
    """How many of the stage's results lie side by side in memory along the last of `axes`."""
    return sum(stride(a, axes[-1]) == 1 for a in stage.assigns)


def is_map(stage: Stage) -> bool:
    """Every output element is computed from its own indices."""
    return stage.combiner is None and stage.sort is None


def folds_conditions(stage: Stage) -> bool:
    """Whether the stage only folds conditions, by "any" or by "all"."""
    return (
        stage.combiner is not None
        and stage.combiner.name in ("and", "or")
        and stage.terms[0].dtype is BOOL
    )


@derived
def is_written_out(stage: Stage, least: int = 2) -> bool:
    """A map that stores at least so many elements of one buffer at every point."""
    return is_map(stage) and max(Counter(a.buffer for a in stage.assigns).values()) >= least


def picks_along(stage: Stage, axis: Var) -> bool:
    """Whether the expression of an element depends on a condition on its position along an axis."""
    return any(
        node.dtype is BOOL and axis in node.free and any(e.dtype is INDEX for e in node.args)
        for node in walk(*stage.expressions)
        if isinstance(node, Apply)
    ) or any(
        x.guard is not None and axis in x.guard.free
        for group in stage.loads_by_buffer.values()
        for x in group
    )


def crosses(stage: Stage) -> bool:
    """A map that reads many elements along an axis other than the one that it writes along."""
    if not stage.axes or math.prod(v.extent for v in stage.axes) < CROSSING_LEAST:
        return False
    *others, last = stage.axes
    return any(
        stride(load, last) not in (0, 1, -1, None)
        and any(stride(load, v) in (1, -1) for v in others)
        for group in stage.loads_by_buffer.values()
        for load in group
    )


def is_part(assign: Assign, axes: tuple[Var, ...]) -> bool:
    """The assignment fills one of the two parts of all complex numbers in its buffer."""
    *point, part = assign.indices or (None,)
    return (
        isinstance(part, Const)
        and assign.buffer.shape[-1] == 2
        and assign.guard is None
        and len(set(point)) == len(point)
        and all(
            i in axes and i.extent == extent
            for i, extent in zip(point, assign.buffer.shape[:-1], strict=True)
        )
    )


def is_plain(assign: Assign, axes: tuple[Var, ...]) -> bool:
    """The assignment fills its whole buffer: every index is an axis of its own, or 0 of 1."""
    if assign.guard is not None:
        return False
    seen: set[Var] = set()
    for extent, i in zip(assign.buffer.shape, assign.indices, strict=True):
        if extent == 1:
            continue
        if not isinstance(i, Var) or i in seen or i.extent != extent or i not in axes:
            return False
        seen.add(i)
    return len(seen) == len(axes)


def is_injective(assign: Assign, axes: tuple[Var, ...]) -> bool:
    """No two points of the axes write the same element (as far as can be seen)."""
    waiting = [index.affine(i)[0] for i in assign.indices]
    known: set[Var] = set()  # axes whose position follows from the indices
    while waiting:
        terms = next((t for t in waiting if _tells_apart(t, axes, known)), None)
        if terms is None:
            break
        waiting.remove(terms)
        known.update(v for v in axes if v in terms)
    return known.issuperset(axes)


def writes_once(stage: Stage) -> bool:
    """No two points of a stage write the same element (as far as can be seen)."""
    return all(is_injective(a, stage.axes) for a in stage.assigns)


def is_apart(access: Load, assign: Assign, stage: Stage) -> bool:
    """No point of a stage reads, in this buffer, what another point writes: along one dimension
    their indices differ for every two points."""
    others = {v: Var(f"{v.name}'", INDEX, v.extent) for v in (*stage.axes, *stage.reduce_axes)}
    for i, j in zip(access.indices, assign.indices, strict=True):
        if not loads(i) and not loads(j):
            low, high = index.bounds(i - substitute(j, others))
            if low > 0 or high < 0:
                return True
    return False


def meets(access: Load, stage: Stage, store: Assign, writer: Stage, shared: int) -> bool:
    """Whether a stage reads, of what another stage of its nest stores, only what that stores at the
    same point of their `shared` axes."""
    own = dict(zip(writer.axes[:shared], stage.axes[:shared], strict=True))
    at = {
        i
        for i, place in zip(access.indices, store.indices, strict=True)
        if place in own and own[place] is i
    }
    return len(at) == len(own)


def reads_others(stage: Stage) -> bool:
    """Whether a point may read an element that another point of the stage writes."""

    def is_others(read: Load) -> bool:
        stores = [a for a in stage.assigns if a.buffer == read.source]
        return all(a.indices != read.indices for a in stores) and not all(
            is_apart(read, a, stage) for a in stores
        )

    return any(
        is_others(read)
        for buffer in stage.outputs
        for read in stage.loads_by_buffer.get(buffer, ())
    )


def why_not_apart(stage: Stage) -> str:
    """Why the points of a stage cannot be computed in any order: some point reads or writes what
    another one writes; empty where none does."""
    if not writes_once(stage):
        return "several points may write one element"
    return "it reads elements that other points overwrite" if reads_others(stage) else ""


def _tells_apart(terms: Mapping[Expr, int], axes: tuple[Var, ...], known: set[Var]) -> bool:
    """Whether the value of a sum determines its unknown axes, given the known ones: each step
    exceeds what all smaller terms can reach, and nothing else depends on an unknown axis."""
    unknown = set(axes) - known
    if any(not isinstance(atom, Var) and not unknown.isdisjoint(atom.free) for atom in terms):
        return False
    reach = 0
    for step, v in sorted(
        ((abs(c), v) for v, c in terms.items() if v in unknown), key=lambda term: term[0]
    ):
        if step <= reach:
            return False
        reach += step * (v.extent - 1)
    return True


@functools.lru_cache(256)  # of one access, several variables are asked for
def offset(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """Elements from the start of the buffer, as an index expression."""
    return index.from_affine(*index.weighted_sum(zip(indices, buffer.element_strides, strict=True)))


def stride(access: Load | Assign, variable: Var) -> int | None:
    """Elements between what neighbouring values of `variable` access; None where irregular."""
    buffer = buffer_of(access)
    total = 0
    for i, apart in zip(access.indices, buffer.element_strides, strict=True):
        if i is variable:
            total += apart
            continue
        if variable not in i.free:
            continue
        terms, _ = index.affine(i)
        if any(variable in atom.free and atom is not variable for atom in terms):
            # Indices may complete each other: i // 4 and i % 4 of one buffer are i.
            return index.coefficient(offset(buffer, access.indices), variable)
        total += terms.get(variable, 0) * apart
    return total


def vector_stride(access: Load | Assign, variable: Var) -> int | None:
    """`stride` as vectors along `variable` see it: 1 also where several of its values in a row
    access one element, and the next ones the one behind it, as of integers that share bytes."""
    *outer, last = access.indices or (None,)
    if last is None or last is variable or any(variable in i.free for i in outer):
        return stride(access, variable)
    shared = [(atom, step) for atom, step in index.affine(last)[0].items() if variable in atom.free]
    if (
        len(shared) == 1
        and shared[0][1] == 1
        and isinstance(shared[0][0], Apply)
        and shared[0][0].op == "floordiv"
        and shared[0][0].args[0] is variable
    ):
        return 1
    return stride(access, variable)


# A vector of quotients, or of remainders, of integers where the divisor is known at run time only:
# 26 to 33 ns for any number of bits, which is so many times what a simple operation takes.
_INTEGER_DIVISION = 75
# Of zeta and polygamma where their order is known: powers are products then.  A million of trigamma
# took a seventh of what zeta took.
_CONSTANT_ORDER = 32


def cost(*roots: Expr) -> int:
    """Rough number of simple operations to evaluate the expressions once, addresses excluded."""
    total = 0
    for node in walk(*roots):
        if isinstance(node, Apply) and node.dtype.name != "index":
            total += cost_of_node(node)
    return total


def parallelism(*roots: Expr) -> float:
    """Operations divided by the length of the longest dependence chain, addresses excluded: how
    many operations a processor could execute at a time."""
    chains: dict[Expr, int] = {}
    total = 0
    for node in walk(*roots):
        counts = isinstance(node, Apply) and node.dtype.name != "index"
        total += counts
        chains[node] = counts + max((chains[child] for child in node.children), default=0)
    return total / max(1, *(chains[root] for root in roots))


def cost_of_row(axis: Var, *roots: Expr) -> int:
    """`cost` of all elements along an axis where each is written out: it evaluates what conditions
    on where it stands leave of the expressions, and nothing that follows from there."""
    elements_of = dict.fromkeys(roots, (1 << axis.extent) - 1)  # that evaluate a node, a bit each
    total = 0
    for node in reversed([*walk(*roots)]):
        elements = elements_of.get(node, 0)
        kept = _chosen(node, axis)
        below = (
            (elements,) * len(node.children)
            if kept is None
            else (0, elements & kept, elements & ~kept)
        )
        for child, of in zip(node.children, below, strict=True):
            elements_of[child] = elements_of.get(child, 0) | of
        if (
            isinstance(node, Apply)
            and kept is None
            and not node.free <= {axis}
            and node.dtype.name != "index"
        ):
            total += elements.bit_count() * cost_of_node(node)
    return total


def _chosen(node: Expr, axis: Var) -> int | None:
    """The elements along an axis, a bit each, that are the first of two; None where more than where
    they stand decides."""
    if (
        not isinstance(node, Apply)
        or node.op not in ("select", "select_unlikely")
        or node.args[0].free != {axis}
    ):
        return None
    kept = 0
    for position in range(axis.extent):
        condition = substitute(node.args[0], {axis: index.constant(position)})
        if not isinstance(condition, Const):
            return None
        kept |= bool(condition.value) << position
    return kept


@derived_of_any_names
def stage_cost(stage: Stage) -> int:
    """`cost` of everything that a stage evaluates."""
    return cost(*stage.expressions)


def cost_of_node(node: Apply) -> int:
    """The cost of one operation alone, without that of its operands."""
    if node.op in ("zeta", "polygamma") and isinstance(node.args[0], Const):
        return _CONSTANT_ORDER
    return _INTEGER_DIVISION if divides_integers(node) else OPS[node.op].cost


def divides_integers(node: Apply) -> bool:
    """Whether `node` is an integer quotient or remainder whose divisor is known at run time
    only."""
    return (
        node.op in ("div", "rem") and node.dtype.is_integer and not isinstance(node.args[1], Const)
    )


def reads(stage: Stage, buffer: Buffer) -> tuple[Load, ...]:
    """The distinct loads of `buffer`."""
    return stage.loads_by_buffer.get(buffer, ())


def why_not_folded(stage: Stage) -> str:
    """Why a stage is more than a fold, or has nothing to fold; empty where neither is so."""
    if stage.along or stage.scan is not None:
        return "it stores on the way"
    return "an axis without elements" if any(v.extent == 0 for v in stage.reduce_axes) else ""


@derived_of_any_names
def walks_columns(stage: Stage) -> bool:
    """True for a reduction whose neighbouring results, not terms, are neighbours in memory.

    Every load votes with the number of elements that it visits, against the axis along which these
    lie apart; one that does not move along an axis is the same for a whole vector.  Neighbours of a
    part of a complex number are the same parts of others.
    """
    if is_map(stage) or not stage.axes or not stage.reduce_axes:
        return False
    last, inner = stage.axes[-1], stage.reduce_axes[-1]
    points = (*stage.axes, *stage.reduce_axes)
    votes = 0
    for access in {load for term in stage.terms for load in loads(term)}:
        elements = math.prod(v.extent for v in points if any(v in i.free for i in access.indices))
        is_part = bool(access.indices) and Pair.of(access.source, access.indices) is not None
        near = (0, 2 if is_part else 1)
        votes += elements * (
            (vector_stride(access, inner) not in near) - (vector_stride(access, last) not in near)
        )
    return votes > 0


def sliding(stage: Stage, axis: Var, *, surely: bool = False) -> tuple[Var, ...]:
    """The reduced axes along which neighbouring results of `axis` share terms: their windows;
    surely: not where places are read, which may lie anywhere."""
    found: set[Var] = set()
    for i in places_of_terms(stage):
        terms, _ = index.affine(i)
        inside = {v: abs(c) for v, c in terms.items() if v in stage.reduce_axes}
        reach = sum(c * (v.extent - 1) for v, c in inside.items())
        if 0 < abs(terms.get(axis, 0)) <= reach:
            found.update(inside)
        for atom in terms:  # elements that lie apart
            if isinstance(atom, Apply) and axis in atom.free and not (surely and loads(atom)):
                found.update(atom.free.intersection(stage.reduce_axes))
    return tuple(v for v in stage.reduce_axes if v in found)


@derived
def places_of_terms(stage: Stage) -> frozenset[Expr]:
    """The indices by which what is read differs from one term of a fold to the next."""
    places = {i for term in stage.terms for load in loads(term) for i in load.indices}
    return frozenset(i for i in places if not i.free.isdisjoint(stage.reduce_axes))


@derived_of_any_names
def slides(stage: Stage) -> bool:
    """True for a fold over windows that overlap."""
    return any(sliding(stage, axis) for axis in stage.axes)
