"""The schedule primitive that writes loops out and runs what is in them side by side: jam."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, all_of, rebuild, substitute
from hlo_mlc.expr.core import Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.facts import Facts, exactly
from hlo_mlc.loops.core import Allocate, For, If, LoopKind, LoopProgram, Stmt, bodies, walk
from hlo_mlc.loops.dependence import Memory, accesses, meetings, variables
from hlo_mlc.loops.rewrite import Body, map_expressions, when, with_bodies
from hlo_mlc.schedule.loops import (
    band_of,
    changed,
    refuse,
    require_constant,
    require_kind,
    require_loops,
    unguarded,
)
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.guards import conjuncts


def jam(
    program: LoopProgram,
    names: tuple[str, ...],
    inner: str = "",
    choices: int = 0,
    *,
    checked: bool = True,
) -> LoopProgram:
    """Write the iterations of nested loops out, those together that ask for the same, and run the
    loops in them as one.

        for i in 0..3:                           if t >= 1:
          for w in 0..2:                           for k in 0..8:
            if (i + w + t) >= 1:                     s[0] <- add x[k, t - 1] * f[k, 0]
              for k in 0..8:               ->    for k in 0..8:
                s[i] <- add x[k, i + w + t - 1]    s[0] <- add x[k, t] * f[k, 1]
                  * f[k, w]                        s[1] <- add x[k, t] * f[k, 0]
                                                   s[1] <- add x[k, t + 1] * f[k, 1]
                                                   …

    Groups are in the order in which iterations first ask for something: where windows overlap, the
    results that share an element then meet it one after the other.  What branches around the loops
    say already is not asked again (`version`).  With an `inner` loop, those inside of it are not
    run as one.  Where no more than `choices` conditions are asked in all, they are asked first, and
    what is done runs as one for every answer that there may be: few iterations alone would wait for
    their own results.  Nests that are not these loops, and no others, stay as they are.  Refused
    where iterations touch the same element, unless by one declared reduction that commutes.
    Elsewhere unroll-and-jam, and loop skewing for the order.
    """
    if not names or len({*names}) < len(names):
        raise ScheduleError(f"jam: expected the names of different loops, got {', '.join(names)}")
    for name in (*names, inner) if inner else names:
        require_loops(program, "jam", name)
    memory = Memory.of(program) if checked else None

    def inside(statements: Body, known: Facts, refuted: tuple[Expr, ...]) -> Body:
        result: list[Stmt] = []
        for stmt in statements:
            nest = (
                band_of(stmt, {*names})
                if isinstance(stmt, For) and stmt.var.name in names
                else None
            )
            if nest is not None and len(nest[0]) == len(names):
                band, guard = nest
                groups = _jammed(band, guard, known, inner, memory)
                result += groups.by_answers(known, refuted, choices) or groups.in_turn()
                continue
            if isinstance(stmt, If):
                holds = (*known, *_facts(conjuncts(stmt.condition)))
                then = inside(stmt.then, holds, refuted)
                otherwise = inside(stmt.otherwise, known, (*refuted, stmt.condition))
                result.append(with_bodies(stmt, (then, otherwise)))
                continue
            result.append(
                with_bodies(stmt, tuple([inside(body, known, refuted) for body in bodies(stmt)]))
            )
        new = tuple(result)
        return statements if new == statements else new

    return changed(
        program,
        inside(program.body, (), ()),
        "jam",
        names[0],
        f"and {', '.join(names[1:]) or 'nothing else'} are not perfectly nested",
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    """Copies of what nested loops hold, those together that ask for the same, with what is left to
    ask; loops in them run as one, but for those inside of the `inner` one and, where that is one of
    the nested ones, all of them."""

    found: tuple[tuple[Expr, tuple[Body, ...]], ...]
    inner: str
    apart: bool

    def in_turn(self) -> Body:
        """Each group behind its own conditions."""
        result: Body = ()
        for own, alike in itertools.groupby(self.found, lambda group: group[0]):
            result += when(own, self._together([copy for _, group in alike for copy in group]))
        return result

    def by_answers(self, known: Facts, refuted: Sequence[Expr], most: int) -> Body | None:
        """What is done for each answer to all conditions, of which no more than `most` are asked,
        as one; None where there are more, or one depends on memory."""
        asked = tuple(dict.fromkeys(own for own, _ in self.found if own is not TRUE))
        if not 0 < len(asked) <= most or any(map(loads, asked)):
            return None
        return self._chosen(asked, (TRUE,), known, refuted)

    def _chosen(
        self, asked: Sequence[Expr], held: tuple[Expr, ...], known: Facts, refuted: Sequence[Expr]
    ) -> Body:
        """The same where the conditions `held` hold, and others are `asked`."""
        if not asked:
            copies = [copy for own, group in self.found if own in held for copy in group]
            return self._together(copies)
        first, *others = asked
        yes, no = (_facts(conjuncts(first)), exactly(first, holds=False) or ())
        with_it = self._chosen(others, (*held, first), (*known, *yes), refuted)
        without = self._chosen(others, held, (*known, *no), refuted)
        if _are_refuted((*known, *yes), refuted) or _is_contradicted(yes, known):
            return without
        return with_it if _is_contradicted(no, known) else (If(first, with_it, without),)

    def _together(self, copies: Sequence[Body]) -> Body:
        if self.apart or not copies:
            return tuple(itertools.chain(*copies))
        return _side_by_side(copies, self.inner)


def _jammed(
    band: Sequence[For], guard: Expr, known: Facts, inner: str, memory: Memory | None
) -> _Groups:
    """What nested loops do in all iterations; they do nothing unless the guard holds."""
    body = unguarded(band[-1].body)[1]
    for stmt in band:
        require_kind("jam", stmt, LoopKind.SERIAL, LoopKind.UNROLL)
    counts = [require_constant("jam", stmt) for stmt in band]
    if memory is not None:
        _check_independent(band, body, memory)
    held = next((s for s in walk(body) if isinstance(s, Allocate)), None)
    if held is not None:
        raise refuse(
            "jam",
            band[0],
            f"holds {held.buffer.name}, of which there is one for each iteration; expand first",
        )
    groups: dict[tuple[Expr, ...], list[Body]] = {}
    copies_of = _Copies(tuple(s.var for s in band))
    for numbers in itertools.product(*map(range, counts)):
        here = tuple(map(index.constant, numbers))
        asked = conjuncts(copies_of.at(here, guard))
        if FALSE not in asked:
            groups.setdefault(asked, []).append(
                map_expressions(body, functools.partial(copies_of.at, here))
            )
    # Those of which nothing is left to ask are one, in their order.
    left = tuple(
        (all_of(*(c for c in asked if not _follows(c, known))), tuple(copies))
        for asked, copies in groups.items()
    )
    return _Groups(left, inner, any(stmt.var.name == inner for stmt in band))


@dataclass(frozen=True, slots=True)
class _Copies:
    """What expressions are in each iteration of some loops: what depends on few of these is the
    same in many."""

    variables: tuple[Var, ...]
    places: dict[Expr, tuple[int, ...]] = field(default_factory=dict)
    known: dict[tuple[Expr, tuple[Expr, ...]], Expr] = field(default_factory=dict)

    def at(self, numbers: tuple[Expr, ...], e: Expr, depth: int = 0) -> Expr:
        """What an expression is in the iteration with these numbers."""
        places = self.places.get(e)
        if places is None:
            places = self.places[e] = tuple(
                [n for n, v in enumerate(self.variables) if v in e.free]
            )
        if not places:
            return e
        key = e, tuple([numbers[n] for n in places])
        new = self.known.get(key)
        if new is None:
            if e.dtype is INDEX or depth > _SHALLOW:
                new = substitute(e, dict(zip(self.variables, numbers, strict=True)))
            else:
                new = rebuild(e, tuple([self.at(numbers, part, depth + 1) for part in e.children]))
            self.known[key] = new
        return new


_SHALLOW = 8  # what is deeper in an expression is not looked for in other iterations


def _check_independent(band: Sequence[For], body: Body, memory: Memory) -> None:
    """Refuse iterations that may not be done in any order."""
    touched = accesses(body)
    written = [a for a in touched if a.writes]
    for a, b, agree in meetings(memory, written, touched, variables((band[0],))):
        free = next((s for s in band if s.var not in agree), None)
        if free is not None:
            raise refuse(
                "jam", free, f"would change the order in which {a} and {b} touch {a.buffer.name}"
            )


def _side_by_side(copies: Sequence[Body], inner: str) -> Body:
    """Copies of statements that differ in constants alone, side by side: loops as one."""
    first = copies[0]
    if len(copies) == 1 or any(len(copy) != len(first) for copy in copies):
        return tuple(itertools.chain(*copies))
    result: Body = ()
    for alike in zip(*copies, strict=True):
        one = alike[0]
        if not isinstance(one, For) or not all(
            isinstance(s, For) and s.var is one.var and s.extent is one.extent for s in alike
        ):
            result += alike
            continue
        inside = [s.body for s in alike]
        result += (
            For(
                one.var,
                one.extent,
                one.kind,
                tuple(itertools.chain(*inside))
                if one.var.name == inner
                else _side_by_side(inside, inner),
            ),
        )
    return result


def _facts(conditions: Sequence[Expr]) -> Facts:
    return tuple(fact for c in conditions if not loads(c) for fact in exactly(c) or ())


def _follows(condition: Expr, known: Facts) -> bool:
    """Whether a condition says less than one of these facts about the same things."""
    wanted = exactly(condition)
    return wanted is not None and all(
        any(index.bounds(one - fact)[1] <= 0 for fact in known) for one in wanted
    )


def _are_refuted(known: Facts, refuted: Sequence[Expr]) -> bool:
    """Whether one of these conditions, which do not hold, would follow from facts."""
    return any(all(_follows(c, known) for c in conjuncts(condition)) for condition in refuted)


def _is_contradicted(facts: Facts, known: Facts) -> bool:
    """Whether one of these facts cannot be true where one of the known ones is."""
    return any(index.bounds(one + other)[0] > 0 for one in facts for other in (*known, *facts))
