"""cascade: long sums of floats in runs, so that rounding errors do not grow with their length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.loops.core import (
    LEAVES,
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    bodies,
)
from hlo_mlc.loops.dependence import lane_invariant
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    constant_extent,
    loads_of,
    loop,
    loop_names,
    paths,
    substitute,
    transform,
    with_bodies,
    with_body,
)
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import is_sum

RUN = 32
"""Terms that are added one after the other; so are the sums of runs, in runs.  One addition more
for every 32 costs 3 % where terms come from L1, and nothing elsewhere."""

_Box = tuple[tuple[float, float], ...]

_Added = dict[Accumulate, tuple[int, frozenset[Var]]]
"""Additions, with how often a place is added to at most, and the variables that say which it is."""

_PLAIN = (LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.VECTORIZE)


def cascade(program: LoopProgram, length: int = RUN) -> LoopProgram:
    """Make every long sum of floats a sum of sums of some `length` terms, and so on.

        for k in 0..256:               for k.r in 0..8:
          sum[] <- add x[k]              alloc sum.k: f32 register:
                              ->           sum.k[] = -0.0:f32
                                           for k in 0..32:
                                             sum.k[] <- add x[k + k.r * 32]
                                           sum[] <- add sum.k[]

    The error then grows with the logarithm of the number of terms.  Only private sums that a loop
    adds to at the same places in every iteration, and does nothing else to, are cut; a loop that
    continues the sum of another one counts as many terms as both have.  Source: N. J. Higham, The
    accuracy of floating point summation, 1993 (pairwise, or cascade, summation).
    """
    if length < 2:
        raise ScheduleError(f"cascade: expected runs of at least 2 terms, got {length}")
    new, _ = _in_runs(program.body, length, _Names({*loop_names(program.body)}))
    return program if new == program.body else with_body(program, new)


@dataclass(frozen=True, slots=True, eq=False)
class _Names:
    """Those of loops and buffers, and what was called how: alike what is for the same."""

    taken: set[str]
    known: dict[object, str] = field(default_factory=dict)

    def given(self, name: str, to: object) -> str:
        """What something is called: by this name, or one near to it that nothing else has."""
        if to not in self.known:
            while name in self.taken:
                name = f"{name}.r"
            self.taken.add(name)
            self.known[to] = name
        return self.known[to]


def _in_runs(statements: Body, terms: int, names: _Names) -> tuple[Body, _Added]:
    """Statements with their loops cut, and what they add to private sums of others."""
    result: list[Stmt] = []
    added: _Added = {}
    for stmt in statements:
        if type(stmt) in LEAVES:
            result.append(stmt)
            if isinstance(stmt, Accumulate) and _is_private_sum(stmt):
                added[stmt] = 1, frozenset().union(*[i.free for i in stmt.indices])
            continue
        if isinstance(stmt, Allocate):
            names.taken.add(stmt.buffer.name)
        inside = [_in_runs(body, terms, names) for body in bodies(stmt)]
        own = inside[0][1]
        for _, found in inside[1:]:
            own |= found
        stmt = with_bodies(stmt, tuple([body for body, _ in inside]))
        new: Body = (stmt,)
        if isinstance(stmt, Allocate):
            own = {u: of for u, of in own.items() if stmt.buffer not in u.buffers}
        elif isinstance(stmt, For) and own:
            most = stmt.var.extent or 2 * terms
            own = {
                u: (n if stmt.var in places else n * most, places) for u, (n, places) in own.items()
            }
            if sum([n for n, _ in own.values()]) >= 2 * terms:
                new = _cut(stmt, terms, names)
        result += new
        added |= own
    return tuple(result), added


def _cut(stmt: For, terms: int, names: _Names) -> Body:
    """A loop around others that are cut already."""
    longest = stmt.var.extent
    if stmt.kind is not LoopKind.SERIAL or longest is None or longest < 2:
        return (stmt,)
    updates = _sums(stmt.var, stmt.body)
    each = max(updates.values(), default=0)
    if longest * each < 2 * terms:
        return (stmt,)
    length, extent = max(terms // each, 1), constant_extent(stmt)
    if extent is not None:
        length = _even(extent, length)
    name = stmt.var.name
    parts = {
        b: replace(b, name=names.given(f"{b.name}.{name}", (b.name, name)))
        for u in updates
        for b in u.update.buffers
    }

    def run(number: Var) -> Body:
        begin = number * length
        size: Expr = index.constant(length)
        if extent is None or extent % length:
            size = index.minimum(size, stmt.extent - begin)
        near = Var(name, stmt.var.dtype, length)
        fold = For(
            near, size, stmt.kind, substitute(_into(stmt.body, parts), {stmt.var: begin + near})
        )
        return allocated(
            parts.values(),
            (
                *(s for u in updates for s in u.start(parts)),
                fold,
                *(s for u in updates for s in u.finish(parts)),
            ),
        )

    count = (stmt.extent + (length - 1)) // length
    whole = loop(names.given(f"{name}.r", name), count, stmt.kind, run)
    # Each run is added once.
    return (whole,) if (whole.var.extent or 0) < 2 * terms else _cut(whole, terms, names)


def _even(extent: int, length: int) -> int:
    """A length of runs near the given one that leaves no shorter run, where there is such."""
    near = range(max(length // 2, min(length, 2)), length + length // 2 + 1)
    return next((n for n in sorted(near, key=lambda n: abs(n - length)) if extent % n == 0), length)


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """An addition, and the statements between it and the loop that goes on adding."""

    update: Accumulate
    path: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        return tuple([s for s in self.path if type(s) is For])

    @property
    def across(self) -> tuple[For, ...]:
        """The loops over places."""
        return tuple([s for s in self.loops if not lane_invariant(self.update, s.var)])

    def box(self) -> _Box | None:
        """The first and the last place along each axis; None where not all between are added to."""
        ranges = tuple(map(index.bounds, self.update.indices))
        extents = [constant_extent(s) or 0 for s in self.across]
        full = math.prod(extents) == math.prod(last - first + 1 for first, last in ranges)
        return ranges if full else None

    def times(self) -> int:
        """How often each place is added to; what happens otherwise does not happen as well."""
        inner = (*self.path, self.update)[1:]
        if any(
            isinstance(s, If) and following in s.otherwise
            for s, following in zip(self.path, inner, strict=True)
        ):
            return 0
        around = self.across
        return math.prod(
            constant_extent(s) or s.var.extent or 1 for s in self.loops if s not in around
        )

    def start(self, parts: Mapping[Buffer, Buffer]) -> Body:
        """Neutral elements in the parts that stand for the sums."""
        update = self.update
        return self._around(
            tuple(
                Store(parts[b], update.indices, e)
                for b, e in zip(update.buffers, update.combiner.identity, strict=True)
            )
        )

    def finish(self, parts: Mapping[Buffer, Buffer]) -> Body:
        """The parts added to the sums."""
        update = self.update
        return self._around(
            (
                Accumulate(
                    update.buffers,
                    update.indices,
                    update.combiner,
                    tuple(Load(parts[b], update.indices) for b in update.buffers),
                ),
            )
        )

    def _around(self, body: Body) -> Body:
        for outer in reversed(self.across):
            body = (outer.around(body),)
        return body


def _sums(var: Var, body: Body) -> dict[_Update, int]:
    """The additions that a loop over `var` can be cut by, one for each place that it adds to, and
    how often it does so in an iteration."""
    found: dict[tuple[Buffer, ...], list[_Update]] = {}
    touched: set[Buffer] = set()
    for *around, stmt in paths(body):
        touched.update([read.source for read in loads_of(stmt)])
        if isinstance(stmt, Store | Allocate):
            touched.add(stmt.buffer)
        elif isinstance(stmt, Accumulate):
            if (
                _is_private_sum(stmt)
                and lane_invariant(stmt, var)
                and all(
                    isinstance(s, Allocate | If) or (isinstance(s, For) and s.kind in _PLAIN)
                    for s in around
                )
            ):
                found.setdefault(stmt.buffers, []).append(_Update(stmt, tuple(around)))
            else:
                touched.update(stmt.buffers)
    result: dict[_Update, int] = {}
    for buffers, updates in found.items():
        others = {b for other in found if other != buffers for b in other}
        if touched.isdisjoint(buffers) and others.isdisjoint(buffers):
            result |= _covering(updates)
    return result


def _covering(updates: list[_Update]) -> dict[_Update, int]:
    """Those that add to all places, each of them once, and how often they and others do; none where
    that cannot be told."""
    chosen: dict[_Update, int] = {}
    boxes: dict[_Box, _Update] = {}  # which are apart
    places: dict[tuple, tuple[int, _Box | None]] = {}  # many additions are to few
    found: list[tuple[int, _Box | None, _Update]] = []
    for update in updates:
        place = update.path, update.update.indices
        if place not in places:
            places[place] = update.times(), update.box()
        found.append((*places[place], update))
    for times, box, update in sorted(found, key=lambda one: -one[0]):
        if box is None:
            return {}
        holder = boxes.get(box) or next(
            (u for other, u in boxes.items() if _holds(other, box)), None
        )
        if holder is not None:
            chosen[holder] += times
        elif all(_are_apart(other, box) for other in boxes):
            chosen[update], boxes[box] = times, update
        else:
            return {}
    return chosen


def _holds(outer: _Box, inner: _Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def _are_apart(one: _Box, other: _Box) -> bool:
    return any(b < c or d < a for (a, b), (c, d) in zip(one, other, strict=True))


def _is_private_sum(update: Accumulate) -> bool:
    return (
        not update.atomic
        and update.combiner.identity is not None
        and is_sum(update.combiner)
        and all(b.scope in ("register", "stack") for b in update.buffers)
    )


def _into(statements: Body, parts: Mapping[Buffer, Buffer]) -> Body:
    """The statements, adding to parts."""

    def visit(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Accumulate) and stmt.buffers[0] in parts:
            return (
                Accumulate(
                    tuple(parts[b] for b in stmt.buffers),
                    stmt.indices,
                    stmt.combiner,
                    stmt.terms,
                    stmt.guard,
                ),
            )
        return None

    return transform(statements, visit)
