"""Schedule primitives that ask once what loops ask at every element: branch, version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from hlo_mlc.expr.build import FALSE, TRUE, all_of
from hlo_mlc.expr.core import Expr, loads
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, LoopProgram, Stmt, Store, bodies, walk
from hlo_mlc.loops.rewrite import Body, expressions, map_expressions, transform, when, with_bodies
from hlo_mlc.schedule.loops import lane_variables, rewrite_loops
from hlo_mlc.schedule.ranges import renamed
from hlo_mlc.tensor.guards import conjuncts, everywhere, guards, vanishes_outside, where_true

Conditions = dict[Expr, None]  # in their order


def branch(program: LoopProgram, name: str) -> LoopProgram:
    """Ask before statements, as far outside as it is known, what they need to do anything.

        for i in 0..4:                           if n >= 1:
          for j in 0..8:                           for i in 0..4:
            s[i] <- add x[n - 1, i + t, j]   ->      if (i + t) < 9:
              if n >= 1 and (i + t) < 9                for j in 0..8:
              else 0                                     s[i] <- add x[n - 1, i + t, j]

    Around the loop, at most.  That is what guards of stores and of updates say, and those of what
    an update reads if its term is neutral where they fail; a product with zero counts as that, as
    in the padding of a convolution.  What lanes of a vector disagree about stays as it is, and so
    do loops that need nothing.  Elsewhere loop unswitching, and the reverse of if-conversion.
    """
    lanes = lane_variables(program)

    def visit(stmt: For) -> Body:
        needs: dict[Stmt, Conditions] = {}
        _find_needs((stmt,), needs)
        needs = {
            s: {c: None for c in asked if lanes.isdisjoint(c.free)} for s, asked in needs.items()
        }
        return _behind_branches((stmt,), frozenset(), needs)

    return rewrite_loops(program, "branch", name, visit)


def _behind_branches(statements: Body, known: Set[Expr], needs: Mapping[Stmt, Conditions]) -> Body:
    """Statements, each behind what it needs as far as that is not known to hold; behind one branch
    what all of them need."""
    asked = [[c for c in needs[s] if c not in known] for s in statements]
    common = [c for c in asked[0] if all(c in others for others in asked)] if asked else []
    result: Body = ()
    for stmt, conditions in zip(statements, asked, strict=True):
        own = all_of(*(c for c in conditions if c not in common))
        result += when(own, _inside(stmt, frozenset((*known, *conditions)), needs))
    return when(all_of(*common), result)


def _inside(stmt: Stmt, known: Set[Expr], needs: Mapping[Stmt, Conditions]) -> Body:
    """A statement where some conditions hold."""
    if isinstance(stmt, Store | Accumulate):
        return _settled(stmt, known) if known else (stmt,)
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZE:
        return transform(
            (stmt,),
            lambda s: _inside(s, known, needs) if isinstance(s, Store | Accumulate) else None,
        )
    if isinstance(stmt, If) and not stmt.otherwise and known.issuperset(conjuncts(stmt.condition)):
        return _behind_branches(stmt.then, known, needs)
    return (
        with_bodies(stmt, tuple([_behind_branches(body, known, needs) for body in bodies(stmt)])),
    )


def _find_needs(statements: Body, found: dict[Stmt, Conditions]) -> Conditions:
    """The conditions, known before statements, without which none of them does anything; `found`
    says so of each of them, and of those inside."""
    for stmt in statements:
        inside = [_find_needs(body, found) for body in bodies(stmt)]
        match stmt:
            case Store() | Accumulate():
                found[stmt] = dict.fromkeys(_decisive(stmt))
            case If(condition, _, ()):
                own = [c for c in conjuncts(condition) if not loads(c)]
                found[stmt] = dict.fromkeys((*own, *inside[0]))
            case For():
                found[stmt] = {c: None for c in inside[0] if stmt.var not in c.free}
            case _:
                found[stmt] = {}
    every = [found[s] for s in statements]
    return {c: None for c in every[0] if all(c in others for others in every)} if every else {}


def _decisive(stmt: Store | Accumulate) -> Iterator[Expr]:
    """The conditions without which a store or an update changes nothing."""
    found = [] if stmt.guard is None else [*conjuncts(stmt.guard)]
    if (
        isinstance(stmt, Accumulate)
        and stmt.combiner.identity is not None
        and all(
            vanishes_outside(term, stmt.combiner.name, neutral)
            for term, neutral in zip(stmt.terms, stmt.combiner.identity, strict=True)
        )
    ):
        of_terms = [[c for guard in guards(term) for c in conjuncts(guard)] for term in stmt.terms]
        found += [c for c in of_terms[0] if all(c in others for others in of_terms)]
    return (c for c in found if not loads(c))


def _settled(stmt: Store | Accumulate, facts: Set[Expr]) -> Body:
    """A statement where these conditions hold."""

    def rule(e: Expr) -> Expr:
        known = where_true(e, facts)
        return (
            known
            if known.dtype is not BOOL
            else all_of(*(c for c in conjuncts(known) if c not in facts))
        )

    return map_expressions((stmt,), rule)


def version(program: LoopProgram, name: str) -> LoopProgram:
    """Give a loop a copy for where all that it asks holds in all its iterations.

        for i in 0..4:                     if (t * 4 + -7) < 0:
          s[i] <- add x[i + t * 4]   ->      for i in 0..4:
            if (i + t * 4) < 10 else 1         s[i] <- add x[i + t * 4]
                                           else:
                                             for i.e in 0..4:
                                               s[i.e] <- add x[i.e + t * 4]
                                                 if (i.e + t * 4) < 10 else 1

    In the copy loads, stores and updates have no guards; branches are left for `jam`, which says
    what is done together by them, and does not ask again.  Loops in the other copy have names of
    their own (i.e).  Where nothing is asked, or it cannot be told, or lanes of a vector around the
    loop disagree about it, the loop stays as it is.
    LLVM: loop versioning; Halide: specialize.
    """
    lanes = lane_variables(program)

    def visit(stmt: For) -> Body:
        asked = _asked((stmt,))
        loops = [s.var for s in walk((stmt,)) if isinstance(s, For)]
        if not asked or any(map(loads, asked)) or any(v.extent is None for v in loops):
            return (stmt,)
        inside = everywhere(asked, frozenset(loops))
        if inside is None or inside is FALSE or not lanes.isdisjoint(inside.free):
            return (stmt,)
        facts = asked.keys()
        free = transform(
            (stmt,), lambda s: _settled(s, facts) if isinstance(s, Store | Accumulate) else None
        )
        return free if inside is TRUE else (If(inside, free, renamed((stmt,))),)

    return rewrite_loops(program, "version", name, visit)


def _asked(statements: Body) -> Conditions:
    """All that loads, stores, updates, and branches with one side ask."""
    found: Conditions = {}
    for stmt in walk(statements):
        if isinstance(stmt, If):
            asked = () if stmt.otherwise else (stmt.condition,)
        else:
            own = (
                (stmt.guard,)
                if isinstance(stmt, Store | Accumulate) and stmt.guard is not None
                else ()
            )
            asked = (*(g for e in expressions(stmt) for g in guards(e)), *own)
        found |= dict.fromkeys(c for condition in asked for c in conjuncts(condition))
    return found
