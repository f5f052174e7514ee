"""Functions that print, call back or change references: what computes is called around that.

    y = tanh(x @ x)                   y, s, z = call(x)
    s = y[0]                   ->     print(s)
    print(s)
    z = softmax(y)

Equations without effects wait for no effect but those whose results they need: they are called
together as early as they can be, one call for each round of such waiting.  Effects keep their
order.  Loops, branches and inner calls that have effects stay where they are, and their bodies are
taken apart in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.extend.core as jex
from jax.extend.core import primitives

from hlo_mlc.interop import compat

# Whose bodies are lowered as they stand: in what else has a body, calls may mean something else.
_WITH_BODIES = frozenset(
    (
        primitives.jit_p,
        primitives.scan_p,
        primitives.while_p,
        primitives.cond_p,
        primitives.remat_p,
        primitives.custom_jvp_call_p,
        primitives.custom_vjp_call_p,
    )
)

Call = Callable[[Any], tuple[Any, dict[str, Any]]]
"""Closed jaxpr -> the primitive that calls it, and its parameters."""


def around_effects(closed_jaxpr: Any, call: Call) -> tuple[Any, tuple[Any, ...]]:
    """The same function with all that has no effect in calls; and the equations that have one,
    those of bodies included."""
    effectful: list[Any] = []
    return _closed(closed_jaxpr, call, effectful), tuple(effectful)


def _closed(closed_jaxpr: Any, call: Call, effectful: list[Any]) -> Any:
    return jex.ClosedJaxpr(_apart(closed_jaxpr.jaxpr, call, effectful), closed_jaxpr.consts)


def _apart(jaxpr: Any, call: Call, effectful: list[Any]) -> Any:
    """The jaxpr in rounds: what computes, then the effects that need only what is known then."""
    computing: dict[int, list[Any]] = {}
    acting: dict[int, list[Any]] = {}
    known_in: dict[Any, int] = {}  # the round from which on a variable can be read
    read_last: dict[Any, tuple[int, bool]] = {}  # the round, and whether by an effect
    latest = 0  # the round of the last effect, before which no later one comes
    for equation in jaxpr.eqns:
        acts = compat.has_effects(equation)
        read = _variables(equation.invars)
        number = max((known_in.get(v, 0) for v in read), default=0)
        if acts:
            number = latest = max(number, latest)
        (acting if acts else computing).setdefault(number, []).append(equation)
        known_in.update(dict.fromkeys(equation.outvars, number + acts))
        for variable in read:
            read_last[variable] = max(read_last.get(variable, (0, False)), (number, acts))
    results = set(_variables(jaxpr.outvars))
    equations: list[Any] = []
    for number in sorted({*computing, *acting}):
        if number in computing:
            part = computing[number]
            given = [
                v
                for v in dict.fromkeys(v for e in part for v in e.outvars)
                if v in results or read_last.get(v, (0, False)) > (number, False)
            ]
            equations.append(_called(part, given, jaxpr.debug_info, call))
        equations += (_with_bodies_apart(e, call, effectful) for e in acting.get(number, ()))
    return jaxpr.replace(eqns=equations)


def _called(equations: Sequence[Any], given: Sequence[Any], debug_info: Any, call: Call) -> Any:
    """One equation in place of some, whose results are those `given`."""
    computed = {v for equation in equations for v in equation.outvars}
    taken = [
        v
        for v in dict.fromkeys(v for e in equations for v in _variables(e.invars))
        if v not in computed
    ]
    jaxpr = jex.Jaxpr(
        (),
        taken,
        given,
        equations,
        frozenset().union(*(e.effects for e in equations)),
        compat.without_names(debug_info),
    )
    primitive, parameters = call(jex.ClosedJaxpr(jaxpr, ()))
    return compat.equation_like(equations[-1], taken, given, primitive, parameters, jaxpr.effects)


def _with_bodies_apart(equation: Any, call: Call, effectful: list[Any]) -> Any:
    if equation.primitive not in _WITH_BODIES:
        effectful.append(equation)
        return equation

    def apart(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(apart, value))
        if not isinstance(value, jex.ClosedJaxpr | jex.Jaxpr) or not compat.has_effects(value):
            return value
        if isinstance(value, jex.ClosedJaxpr):
            return _closed(value, call, effectful)
        return _apart(value, call, effectful)

    return equation.replace(params={name: apart(value) for name, value in equation.params.items()})


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]
