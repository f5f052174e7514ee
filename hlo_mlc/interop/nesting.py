"""Functions that call functions that call functions: how deep what JAX is handed may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.extend.core.primitives import jit_p

from hlo_mlc.interop import compat
from hlo_mlc.interop.primitive import mlc_call_p

# Calls inside each other, two for each `mlc_jit`.  JAX walks through them by calls of Python's
# inside each other, a dozen for each in places that we have no hand in.
MOST_NESTED = 32


def shallow(closed_jaxpr: Any, operands: Sequence[Any]) -> Any:
    """The same function of such operands, with the calls in it written out: all where they are
    nested deeper than `MOST_NESTED`, else those with effects, so that what has none can be computed
    together.  XLA writes out all calls."""
    if _depth(closed_jaxpr.jaxpr, {}) > MOST_NESTED:
        called = _called
    elif any(_called_with_effects(equation) is not None for equation in closed_jaxpr.jaxpr.eqns):
        called = _called_with_effects
    else:
        return closed_jaxpr
    return jax.make_jaxpr(lambda *given: _written_out(closed_jaxpr, given, called))(*operands)


def _depth(jaxpr: Any, known: dict[Any, int]) -> int:
    """How many calls are inside each other in it."""
    if jaxpr not in known:
        called = (_called(equation) for equation in jaxpr.eqns)
        known[jaxpr] = max((1 + _depth(c.jaxpr, known) for c in called if c is not None), default=0)
    return known[jaxpr]


def _called(equation: Any) -> Any | None:
    """What an equation calls, if it is the same written out."""
    if equation.primitive is mlc_call_p:
        return equation.params["call_jaxpr"]
    if equation.primitive is not jit_p:
        return None
    shardings = (*equation.params["in_shardings"], *equation.params["out_shardings"])
    placed = any(sharding is not compat.UNSPECIFIED for sharding in shardings)
    return None if placed else equation.params["jaxpr"]


def _called_with_effects(equation: Any) -> Any | None:
    return _called(equation) if compat.has_effects(equation) else None


def _written_out(
    closed_jaxpr: Any, operands: Sequence[Any], called: Callable[[Any], Any | None]
) -> list[Any]:
    jaxpr = closed_jaxpr.jaxpr
    values = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*closed_jaxpr.consts, *operands), strict=True)
    )

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else values[atom]

    for equation in jaxpr.eqns:
        given, inner = [read(atom) for atom in equation.invars], called(equation)
        results = (
            compat.bind_again(equation, given)
            if inner is None
            else _written_out(inner, given, called)
        )
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
