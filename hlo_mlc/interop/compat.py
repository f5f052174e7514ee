"""What differs between JAX 0.10, 0.11 and 0.12, and all that we take from inside JAX.

JAX 0.11 made the rules of a call primitive public; for 0.10 they stand here, written on the same
internals that its own `jit` uses.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax._src import (
    ad_util,
    api,
    api_util,
    checkify,
    compiler,
    core,
    effects,
    source_info_util,
    traceback_util,
)
from jax._src import linear_util as lu
from jax._src.export import _export
from jax._src.interpreters import ad, batching
from jax._src.interpreters import partial_eval as pe
from jax._src.state import discharge
from jax._src.state.types import AbstractRef
from jax._src.util import merge_lists, split_list, subs_list, weakref_lru_cache
from jax.extend.backend import get_backend
from jaxlib import _jax
from jaxlib.mlir import ir

jit = api.jit
"""JAX's own `jit`, whatever `jax.jit` stands for: it may be replaced by ours."""

UNSPECIFIED = inspect.signature(jit).parameters["in_shardings"].default
"""What `jax.jit` takes as "no sharding given"."""

NOT_SPECIFIED = inspect.signature(jit).parameters["fun"].default
"""What it takes as "no function given": it is to return a decorator."""

check_callable = api_util.check_callable
"""Raises the TypeError that `jax.jit` raises for what it cannot be applied to."""

hide_frames = traceback_util.register_exclusion
"""Leaves the frames of a folder's files out of the tracebacks that JAX filters."""

detach_constants = pe.separate_consts
"""Closed jaxpr -> (jaxpr that takes its constants as leading arguments, those constants)."""


def is_being_traced() -> bool:
    """Whether what runs now is written down, as `jax.jit` does, rather than computed."""
    return isinstance(core.trace_ctx.trace, pe.DynamicJaxprTrace)


def trace(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
          ) -> tuple[Any, list[Any], Callable[[Sequence[Any]], Any]]:
    """A function as a closed jaxpr, within the trace of the `jax.jit` that was given these
    arguments; its operands; and what makes the function's result of those of the jaxpr.

    Arguments without tracers are static to `jax.jit`, whatever they consist of: the function gets
    the very same objects.  It is traced in no other way, nor counted a second time: whoever has
    JAX count or explain its traces sees one.
    """
    is_static = [not any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(value))
                 for value in (*args, *kwargs.values())]
    static_argnums = [i for i, static in enumerate(is_static[:len(args)]) if static]
    static_argnames = [name for name, static in
                       zip(kwargs, is_static[len(args):], strict=True) if static]
    given = ([value for i, value in enumerate(args) if i not in static_argnums],
             {name: value for name, value in kwargs.items() if name not in static_argnames})
    operands, in_tree = jax.tree.flatten(given)
    out_tree, wrong = None, {}

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        traced, named = jax.tree.unflatten(in_tree, leaves)
        remaining = iter(traced)
        outs, out_tree = jax.tree.flatten(
            fun(*(value if static else next(remaining)
                  for value, static in zip(args, is_static, strict=False)), **{**kwargs, **named}))
        wrong.update((n, out) for n, out in enumerate(outs) if not core.valid_jaxtype(out))
        return [0 if n in wrong else out for n, out in enumerate(outs)]

    debug_info = api_util.debug_info("jit", fun, args, dict(kwargs), static_argnums=static_argnums,
                                     static_argnames=static_argnames)
    jaxpr, _, constants = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(flat, debug_info=debug_info), [core.typeof(value) for value in operands])

    def result(outs: Sequence[Any]) -> Any:
        # What is no array goes back to `jax.jit`, which says so, and which of the results it is.
        return jax.tree.unflatten(out_tree, [wrong.get(n, out) for n, out in enumerate(outs)])

    return jex.ClosedJaxpr(jaxpr, constants), operands, result


def bind_again(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation's primitive for other operands, as if it stood where it does."""
    primitive, source = equation.primitive, equation.source_info
    names = source_info_util.current_name_stack() + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=names), equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def has_side_effects(jaxpr: Any) -> bool:
    """Whether running it does more than compute results (prints, callbacks with effects, refs).

    Use of a mapped axis is an effect to JAX, but not to us.
    """
    return any(not isinstance(effect, core.NamedAxisEffect) for effect in jaxpr.effects)


def partition_count(axis_context: Any) -> int:
    """Over how many devices the partitioner will split what is lowered in this context.

    Axes that `shard_map` made manual do not count: there, the program of one device is written.
    """
    if hasattr(axis_context, "num_devices"):
        return axis_context.num_devices
    mesh = axis_context.mesh
    return math.prod(
        size for name, size in mesh.shape.items() if name not in axis_context.manual_axes
    )


def is_for_export(module_context: Any) -> bool:
    """Whether `jax.export` asks for the module that is being lowered."""
    return module_context.lowering_parameters.for_export


def source_line(jaxpr: Any) -> tuple[str, int] | None:
    """The file and the line at which the function that a jaxpr was made from begins."""
    info = jaxpr.jaxpr.debug_info
    if info is None or info.func_filename is None or info.func_lineno is None:
        return None
    return info.func_filename, info.func_lineno


def refusing_vjp(exported: jax.export.Exported, refuse: Callable[[Any], Any]
                 ) -> jax.export.Exported:
    """The exported function, which calls `refuse` where JAX asks for a derivative of a higher
    order than it has."""
    given = exported._get_vjp
    derivative = refuse if given is None else lambda it: refusing_vjp(given(it), refuse)
    return dataclasses.replace(exported, _get_vjp=derivative)


def map_calls_of_exported_functions() -> None:
    """Has `vmap` of an exported function call it for one element after the other, unless JAX knows
    better: without, it is an error."""
    primitive = _export.call_exported_p
    if primitive not in batching.fancy_primitive_batchers:
        batching.primitive_batchers[primitive] = partial(map_calls, primitive)


def map_calls(primitive: jex.Primitive, args: Sequence[Any], dims: Sequence[Any], **params: Any
              ) -> tuple[list[Any], list[int]]:
    """A batching rule: calls with one element of the batch after the other."""
    is_mapped = [dim is not None for dim in dims]
    mapped = [jax.numpy.moveaxis(arg, dim, 0)
              for arg, dim, chosen in zip(args, dims, is_mapped, strict=True) if chosen]

    def call(elements: Sequence[Any]) -> list[Any]:
        remaining = iter(elements)
        operands = [next(remaining) if chosen else arg
                    for arg, chosen in zip(args, is_mapped, strict=True)]
        return primitive.bind(*operands, **params)

    results = jax.lax.map(call, mapped)
    return results, [0] * len(results)


def compile_for_cpu(module: ir.Module) -> Callable[[Sequence[Any]], tuple[jax.Array, ...]]:
    """Compiles a module as `compile_for` does, for the CPU."""
    return compile_for("cpu", module)


def compile_for(platform: str, module: ir.Module
                ) -> Callable[[Sequence[Any]], tuple[jax.Array, ...]]:
    """Compiles a module with an entry `main` for one device of a platform, past `jax.jit`.

    What it returns takes NumPy or JAX arrays of exactly the entry's types, 64-bit ones also where
    JAX runs without `jax_enable_x64`.
    """
    client = get_backend(platform)
    device = client.local_devices()[0]
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    with module.context:
        executable = client.compile_and_load(module, _jax.DeviceList((device,)), options)

    def execute(arrays: Sequence[Any]) -> tuple[jax.Array, ...]:
        results = executable.execute_sharded([place_on(platform, array) for array in arrays])
        return tuple(shards[0] for shards in results.disassemble_into_single_device_arrays())

    return execute


def place_on_cpu(array: Any) -> jax.Array:
    """The array as `place_on` places it, on the CPU."""
    return place_on("cpu", array)


def place_on(platform: str, array: Any) -> jax.Array:
    """The array, of exactly its type, on the device that `compile_for` compiles for."""
    device = get_backend(platform).local_devices()[0]
    if isinstance(array, jax.Array) and array.devices() == {device}:
        return array
    with jax.enable_x64(True):
        return jax.device_put(array, device, may_alias=False)


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
        given = [
            ad.instantiate_zeros(t) for keep, t in zip(nonzero, tangents, strict=True) if keep
        ]
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
        pe.JaxprTracer(trace, pe.PartialVal.unknown(aval), None)
        for aval in unknown_jaxpr.out_avals
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


def _with_zeros(
    given: Sequence[Any], nonzero: Sequence[bool], avals: Sequence[Any]
) -> list[Any]:
    """Puts symbolic zeros where a tangent is not given."""
    remaining = iter(given)
    return [
        next(remaining) if keep else ad_util.Zero(aval.to_tangent_aval())
        for keep, aval in zip(nonzero, avals, strict=True)
    ]
