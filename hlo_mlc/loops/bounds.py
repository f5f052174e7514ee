"""Whether every access of a program stays inside of its buffer."""

from __future__ import annotations

import functools

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.loops.accesses import Access, Path, Survey
from hlo_mlc.loops.core import For, LoopProgram
from hlo_mlc.loops.facts import (
    Facts,
    exactly,
    impossible,
    learned,
    never_positive,
    of_condition,
    within,
)
from hlo_mlc.loops.guarding import Place
from hlo_mlc.loops.regions import within_in_numbers
from hlo_mlc.loops.text import trail
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.guards import where_guarded


def unbounded(program: LoopProgram, survey: Survey) -> dict[Place, str]:
    """The places that may lie outside of their buffers, each with what could not be proved.

    Raises: VerifyError for an index that leaves its buffer wherever it is used, or at some point
    that is certainly reached.
    """
    found: dict[Place, str] = {}
    around: dict[Path, Facts] = {}
    facts_of = functools.cache(learned)
    for access in survey.own:
        outside = [
            (i, d)
            for i, d in zip(access.indices, access.buffer.shape, strict=True)
            if not _is_within(i, d)
        ]
        if not outside or (access.buffer, access.indices) in found:
            continue
        if access.path not in around:
            around[access.path] = tuple(f for s, branch in access.path for f in facts_of(s)[branch])
        known = around[access.path]
        facts = (*known, *(f for g in access.guards for f in of_condition(g)))
        for i, extent in outside:
            if (
                within(i, extent, facts)
                or _is_seen(access, i, extent, known)
                or impossible(facts)
                or within_in_numbers(i, extent, facts, _extents(access.path))
            ):
                continue
            if _is_refuted(access, i, extent, facts):
                low, high = index.bounds(i)
                raise VerifyError(
                    f"kernel {program.name}: {i} takes values from {low} to {high}, which is "
                    f"outside of {access.buffer!r} in {access}",
                    context=trail([s for s, _ in access.path], access.stmt),
                )
            found[access.buffer, access.indices] = f"{i} is within {access.buffer!r} in {access}"
    return found


def _is_seen(access: Access, i: Expr, extent: int, around: Facts) -> bool:
    """Whether an index is in bounds where its guards hold, after what these guards imply has been
    used to simplify it."""
    if not access.guards:
        return False
    seen, facts = where_guarded(i, access.guards)
    return within(seen, extent, (*around, *facts))


def _is_refuted(access: Access, i: Expr, extent: int, facts: Facts) -> bool:
    terms, _ = index.affine(i)
    always = never_positive(i + 1, facts) or never_positive(extent - i, facts)
    attained = (
        all(isinstance(atom, Var) for atom in terms)
        and access.is_reached
        and not any(exactly(g) is None or not g.free.isdisjoint(i.free) for g in access.guards)
    )
    return always or attained


def _is_within(i: Expr, extent: int) -> bool:
    """Whether the ranges of the variables alone keep an index in bounds."""
    low, high = index.bounds(i)
    return low >= 0 and high < extent


def _extents(path: Path) -> dict[Var, Expr]:
    return {s.var: s.extent for s, _ in path if isinstance(s, For)}
