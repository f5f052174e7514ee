"""What makes a primitive a call, to every transformation of JAX.

JAX 0.11 made such rules public; for 0.10 they stand here, written on the same internals that its
own `jit` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax._src import ad_util, checkify, core, effects, source_info_util
from jax._src import linear_util as lu
from jax._src.interpreters import ad, batching, remat
from jax._src.interpreters import partial_eval as pe
from jax._src.state import discharge
from jax._src.state.types import AbstractRef
from jax._src.util import merge_lists, split_list, subs_list, weakref_lru_cache


def register_call_rules(primitive: jex.Primitive) -> None:
    """Makes a primitive with a parameter `call_jaxpr` behave as a call under every transformation.

    All other parameters pass through every rule unchanged.
    """
    if hasattr(jex, "register_call_primitive_rules"):
        jex.register_call_primitive_rules(primitive)
        checkify.error_checks[primitive] = checkify.error_checks[pe.eval_jaxpr_p]
    else:
        _register_rules_of_0_10(primitive)


def _register_rules_of_0_10(primitive: core.Primitive) -> None:
    primitive.multiple_results = True
    primitive.skip_canonicalization = True
    primitive.def_impl(_implementation)
    primitive.def_effectful_abstract_eval(_abstract_eval)
    ad.primitive_jvps[primitive] = partial(_jvp, primitive)
    ad.primitive_linearizations[primitive] = partial(_linearize, primitive)
    ad.fancy_transposes[primitive] = partial(_transpose, primitive)
    batching.fancy_primitive_batchers[primitive] = partial(_batch, primitive)
    pe.custom_partial_eval_rules[primitive] = partial(_partial_eval, primitive)
    pe.partial_eval_jaxpr_custom_rules[primitive] = pe.partial_eval_jaxpr_custom_rules[
        core.closed_call_p
    ]
    pe.dce_rules[primitive] = pe.dce_rules[core.closed_call_p]
    primitive.to_lojax = partial(_to_lojax, primitive)
    remat.rules[primitive] = partial(_remat, primitive)
    discharge.register_discharge_rule(primitive)(partial(_discharge, primitive))
    checkify.error_checks[primitive] = _checkify


def _implementation(*args: Any, call_jaxpr: Any, **_: Any) -> list[Any]:
    return core.jaxpr_as_fun(call_jaxpr)(*args)


def _abstract_eval(*_: Any, call_jaxpr: Any, **__: Any) -> tuple[Any, Any]:
    return call_jaxpr.out_avals, core.positional_effects(call_jaxpr)


def _jvp(
    primitive: core.Primitive, primals: Any, tangents: Any, *, call_jaxpr: Any, **params: Any
) -> tuple[list[Any], list[Any]]:
    nonzero = [type(t) is not ad_util.Zero for t in tangents]
    jaxpr, nonzero_out = ad.jvp_jaxpr(call_jaxpr, nonzero, False)
    given = [t for t, keep in zip(tangents, nonzero, strict=True) if keep]
    outs = primitive.bind(*primals, *given, call_jaxpr=jaxpr, **params)
    primals_out, tangents_out = split_list(outs, [len(call_jaxpr.out_avals)])
    return primals_out, _with_zeros(tangents_out, nonzero_out, call_jaxpr.out_avals)


def _linearize(
    primitive: core.Primitive,
    is_vjp: bool,
    nonzero: Sequence[bool],
    *primals: Any,
    call_jaxpr: Any,
    **params: Any,
) -> tuple[Any, ...]:
    primal_jaxpr, residual_count, nonzero_out, forwarded, tangent_jaxpr = ad.linearize_jaxpr(
        call_jaxpr, nonzero, is_vjp=is_vjp
    )
    outs = primitive.bind(*primals, call_jaxpr=primal_jaxpr, **params)
    primals_out, computed = split_list(outs, [len(outs) - residual_count])
    residuals = subs_list(forwarded, [*call_jaxpr.consts, *primals], computed)

    def tangent_function(residuals: Any, *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for keep, t in zip(nonzero, tangents, strict=True) if keep]
        outs = primitive.bind(*residuals, *given, call_jaxpr=tangent_jaxpr, **params)
        return _with_zeros(outs, nonzero_out, call_jaxpr.out_avals)

    return primals_out, nonzero_out, residuals, tangent_function


def _transpose(
    primitive: core.Primitive, cotangents: Any, *args: Any, call_jaxpr: Any, **params: Any
) -> None:
    known, specs = ad.project_accums(args)
    flat, tree = jax.tree.flatten((known, cotangents))
    jaxpr, out_tree = _transposed_jaxpr(
        call_jaxpr, tree, tuple(core.typeof(x) for x in flat), specs
    )
    outs = primitive.bind(*flat, call_jaxpr=jaxpr, **params)
    for arg, cotangent in zip(args, jax.tree.unflatten(out_tree, outs), strict=True):
        if isinstance(arg, ad.ValAccum):
            arg.accum(cotangent)


@weakref_lru_cache
def _transposed_jaxpr(call_jaxpr: Any, tree: Any, avals: Any, specs: Any) -> tuple[Any, Any]:
    out_tree = None

    def transposed(*flat: Any) -> list[Any]:
        nonlocal out_tree
        known, cotangents = jax.tree.unflatten(tree, flat)
        args = ad.unproject_accums(specs, known)
        ad.backward_pass3(call_jaxpr.jaxpr, False, call_jaxpr.consts, args, cotangents)
        outs = [x.freeze() if isinstance(x, ad.ValAccum) else None for x in args]
        leaves, out_tree = jax.tree.flatten(outs)
        return leaves

    debug_info = call_jaxpr.jaxpr.debug_info.with_unknown_names()
    function = lu.wrap_init(transposed, debug_info=debug_info)
    jaxpr, _, constants = pe.trace_to_jaxpr_dynamic(function, avals)
    return core.ClosedJaxpr(jaxpr, constants), out_tree


def _batch(
    primitive: core.Primitive, axis: Any, args: Any, dims: Any, *, call_jaxpr: Any, **params: Any
) -> tuple[list[Any], list[Any]]:
    jaxpr, dims_out = batching.batch_jaxpr2(call_jaxpr, axis, tuple(dims))
    return primitive.bind(*args, call_jaxpr=jaxpr, **params), list(dims_out)


def _partial_eval(
    primitive: core.Primitive, trace: Any, *tracers: Any, call_jaxpr: Any, **params: Any
) -> list[Any]:
    unknown = [not t.is_known() for t in tracers]
    known_jaxpr, unknown_jaxpr, unknown_out, residual_avals, forwarded = (
        pe.partial_eval_jaxpr_nounits_fwd(call_jaxpr, unknown, instantiate=False)
    )
    known = [t.pval.get_known() for t in tracers if t.is_known()]
    outs = primitive.bind(*known, call_jaxpr=known_jaxpr, **params)
    known_out, computed = split_list(outs, [len(outs) - len(residual_avals)])
    residuals = subs_list(forwarded, [*call_jaxpr.consts, *known], computed)
    inputs = [
        *map(trace.new_instantiated_const, residuals),
        *(t for t in tracers if not t.is_known()),
    ]
    results = [
        pe.JaxprTracer(trace, pe.PartialVal.unknown(aval), None) for aval in unknown_jaxpr.out_avals
    ]
    equation = pe.new_eqn_recipe(
        trace,
        inputs,
        results,
        primitive,
        {**params, "call_jaxpr": unknown_jaxpr},
        core.positional_effects(unknown_jaxpr),
        source_info_util.current(),
    )
    for result in results:
        result.recipe = equation
    if effects.partial_eval_kept_effects.filter_in(unknown_jaxpr.effects):
        trace.effect_handles.append(pe.EffectHandle(inputs, equation))
    return merge_lists(unknown_out, known_out, results)


def _to_lojax(primitive: core.Primitive, *args: Any, call_jaxpr: Any, **params: Any) -> list[Any]:
    """The call of what has operations or values that JAX writes in terms of others before it lowers
    them (its "hijax"): of the same with the others in their place."""
    lowered = [aval.lower_val(arg) for aval, arg in zip(call_jaxpr.in_avals, args, strict=True)]
    outs = iter(
        primitive.bind(
            *(value for values in lowered for value in values),
            call_jaxpr=pe.lower_jaxpr2(call_jaxpr),
            **params,
        )
    )
    return [aval.raise_val(*(next(outs) for _ in aval.lo_ty())) for aval in call_jaxpr.out_avals]


def _remat(
    primitive: core.Primitive, policy: Any, *args: Any, call_jaxpr: Any, **params: Any
) -> tuple[list[Any], Callable[..., list[Any]]]:
    first, again, _ = remat.remat_jaxpr(call_jaxpr, policy)
    outs = primitive.bind(*args, call_jaxpr=first, **params)
    results, kept = split_list(outs, [len(call_jaxpr.out_avals)])
    return results, partial(primitive.bind, *kept, call_jaxpr=again, **params)


def _discharge(
    primitive: core.Primitive,
    avals_in: Sequence[Any],
    _: Any,
    *args: Any,
    call_jaxpr: Any,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    outs = primitive.bind(*args, call_jaxpr=_discharged_jaxpr(call_jaxpr), **params)
    results, ref_values = split_list(outs, [len(call_jaxpr.out_avals)])
    remaining = iter(ref_values)
    refs = [next(remaining) if isinstance(aval, AbstractRef) else None for aval in avals_in]
    return refs, results


@weakref_lru_cache
def _discharged_jaxpr(call_jaxpr: Any) -> Any:
    return discharge.discharge_state(call_jaxpr)


def _checkify(error: Any, enabled_errors: Any, *args: Any, call_jaxpr: Any, **_: Any) -> Any:
    return checkify.checkify_jaxpr(call_jaxpr, enabled_errors, error, *args)


def _with_zeros(given: Sequence[Any], nonzero: Sequence[bool], avals: Sequence[Any]) -> list[Any]:
    """Puts symbolic zeros where a tangent is not given."""
    remaining = iter(given)
    return [
        next(remaining) if keep else ad_util.Zero(aval.to_tangent_aval())
        for keep, aval in zip(nonzero, avals, strict=True)
    ]
