"""What differs between JAX 0.10, 0.11 and 0.12, and all that we take from inside JAX but for the
rules of a call (`call_rules.py`), meshes (`compat_meshes.py`) and exports (`compat_exports.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
from jax._src import api, api_util, compiler, config, core, source_info_util, traceback_util
from jax._src import linear_util as lu
from jax._src.interpreters import partial_eval as pe
from jax._src.state.types import AbstractRef
from jax._src.util import fun_name
from jax.extend.backend import get_backend
from jaxlib import _jax
from jaxlib.mlir import ir

from hlo_mlc.frontend.walking import operations
from hlo_mlc.support.lazy_imports import lazy_imports

with lazy_imports():
    from hlo_mlc.partition.choose import xla_faults

jit = api.jit
"""JAX's own `jit`, whatever `jax.jit` stands for: it may be replaced by ours."""

UNSPECIFIED = inspect.signature(jit).parameters["in_shardings"].default
"""What `jax.jit` takes as "no sharding given"."""

NOT_SPECIFIED = inspect.signature(jit).parameters["fun"].default
"""What it takes as "no function given": it is to return a decorator."""

check_callable = api_util.check_callable
"""Raises the TypeError that `jax.jit` raises for what it cannot be applied to."""

name_of = fun_name
"""What JAX calls a function; a second argument says it of what has no name."""

hide_frames = traceback_util.register_exclusion
"""Leaves the frames of a folder's files out of the tracebacks that JAX filters."""

detach_constants = pe.separate_consts
"""Closed jaxpr -> (jaxpr that takes its constants as leading arguments, those constants)."""


def static_arguments(fun: Callable[..., Any]) -> Mapping[str, Any]:
    """What of the arguments of `jax.jit` says which of a function's own are static, where that is
    what made the function; nothing for any other, such as a method, whose first one is bound."""
    if not isinstance(fun, _jax.PjitFunction):
        return {}
    given = fun._jit_info
    return {"static_argnums": given.static_argnums, "static_argnames": given.static_argnames}


def is_being_traced() -> bool:
    """Whether what runs now is written down, as `jax.jit` does, rather than computed."""
    return isinstance(core.trace_ctx.trace, pe.DynamicJaxprTrace)


def is_computing() -> bool:
    """Whether what runs now is neither written down nor transformed: calls compute results."""
    return isinstance(core.trace_ctx.trace, core.EvalTrace) and not jax.config.jax_disable_jit


def context() -> Any:
    """What JAX compiles for besides a function and its arguments: equal where that is the same."""
    return config.trace_context()


def described(value: Any) -> Any:
    """What `lower` takes in place of an argument that may be gone by then."""
    if not isinstance(value, jax.Array):
        return value
    return jax.ShapeDtypeStruct(
        value.shape,
        value.dtype,
        weak_type=value.weak_type,
        sharding=value.sharding if value.committed else None,
    )


def is_mutable(value: Any) -> bool:
    """Whether it is one of JAX 0.10's values of a type of their own that functions may change; JAX
    0.12 has none."""
    aval = (
        value.aval
        if isinstance(value, core.Tracer)
        else core.typeof(value)
        if core.valid_jaxtype(value)
        else None
    )
    return getattr(aval, "has_qdd", False)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Those of a call that `jax.jit` traces: what is traced, and what is static to it.

    Arguments without tracers are static to `jax.jit`, whatever they consist of: the function gets
    the very same objects.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    operands: tuple[Any, ...]
    in_tree: Any

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Takes them apart."""

        def is_static(value: Any) -> bool:
            return not any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(value))

        argnums = tuple(i for i, value in enumerate(args) if is_static(value))
        argnames = tuple(name for name, value in kwargs.items() if is_static(value))
        given = (
            [value for i, value in enumerate(args) if i not in argnums],
            {name: value for name, value in kwargs.items() if name not in argnames},
        )
        operands, in_tree = jax.tree.flatten(given)
        return cls(args, kwargs, argnums, argnames, tuple(operands), in_tree)

    @property
    def types(self) -> list[Any]:
        return [core.typeof(value) for value in self.operands]

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal where the function is the same to `jax.jit`."""
        return (
            self.in_tree,
            self.types,
            self.static_argnums,
            self.static_argnames,
            [self.args[i] for i in self.static_argnums],
            [self.kwargs[name] for name in self.static_argnames],
        )


def trace(fun: Callable[..., Any], given: Arguments) -> tuple[Any, Callable[[Sequence[Any]], Any]]:
    """A function as a closed jaxpr, within the trace of the `jax.jit` that was given these
    arguments; and what makes the function's result of those of the jaxpr.

    It is traced in no other way, nor counted a second time: whoever has JAX count or explain its
    traces sees one.
    """
    out_tree, wrong = None, {}

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        traced, named = jax.tree.unflatten(given.in_tree, leaves)
        remaining = iter(traced)
        outs, out_tree = jax.tree.flatten(
            fun(
                *(
                    value if i in given.static_argnums else next(remaining)
                    for i, value in enumerate(given.args)
                ),
                **{**given.kwargs, **named},
            )
        )
        wrong.update((n, out) for n, out in enumerate(outs) if not core.valid_jaxtype(out))
        return [0 if n in wrong else out for n, out in enumerate(outs)]

    debug_info = api_util.debug_info(
        "jit",
        fun,
        given.args,
        dict(given.kwargs),
        static_argnums=given.static_argnums,
        static_argnames=given.static_argnames,
    )
    jaxpr, _, constants = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(flat, debug_info=debug_info), given.types
    )

    def result(outs: Sequence[Any]) -> Any:
        # What is no array goes back to `jax.jit`, which says so, and which of the results it is.
        return jax.tree.unflatten(out_tree, [wrong.get(n, out) for n, out in enumerate(outs)])

    return jex.ClosedJaxpr(jaxpr, constants), result


def bind_again(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation's primitive for other operands, as if it stood where it does."""
    primitive, source = equation.primitive, equation.source_info
    names = source_info_util.current_name_stack() + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=names), equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def has_effects(code: Any) -> bool:
    """Whether running a jaxpr, or an equation, does more than compute results (prints, callbacks
    with effects), or concerns references.

    Use of a mapped axis is an effect to JAX, but not to us.
    """
    if any(not isinstance(effect, core.NamedAxisEffect) for effect in code.effects):
        return True
    return any(isinstance(v.aval, AbstractRef) for v in (*code.invars, *code.outvars))


def equation_like(
    equation: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    primitive: Any,
    parameters: dict[str, Any],
    effects: Any,
) -> Any:
    """Another equation, as if it stood where this one does."""
    return core.new_jaxpr_eqn(
        list(operands),
        list(results),
        primitive,
        parameters,
        effects,
        equation.source_info,
        equation.ctx,
    )


def without_names(debug_info: Any) -> Any:
    """What is known of a function, but for the names of its arguments and results."""
    return debug_info._replace(arg_names=None, result_paths=None)


def equation_line(equation: Any) -> str:
    """Where an equation comes from: `model.py:7 print`; "" where nobody knows."""
    frame = source_info_util.user_frame(equation.source_info.traceback)
    if frame is None:
        return ""
    return f"{frame.file_name}:{frame.start_line} {equation.primitive.name}"


def source_line(jaxpr: Any) -> tuple[str, int] | None:
    """The file and the line at which the function that a jaxpr was made from begins."""
    info = jaxpr.jaxpr.debug_info
    if info is None or info.func_filename is None or info.func_lineno is None:
        return None
    return info.func_filename, info.func_lineno


def compile_for(
    module: ir.Module, platform: str = "cpu"
) -> Callable[[Sequence[Any]], tuple[jax.Array, ...]]:
    """Compiles a module with an entry `main` for one device of a platform, past `jax.jit`.

    What it returns takes NumPy or JAX arrays of exactly the entry's types, 64-bit ones also where
    JAX runs without `jax_enable_x64`.
    """
    client = get_backend(platform)
    device = client.local_devices()[0]
    with module.context:
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, env_options_overrides=_without_faults(module)
        )
        executable = client.compile_and_load(module, _jax.DeviceList((device,)), options)

    def execute(arrays: Sequence[Any]) -> tuple[jax.Array, ...]:
        results = executable.execute_sharded([place_on(array, platform) for array in arrays])
        return tuple(shards[0] for shards in results.disassemble_into_single_device_arrays())

    return execute


def _without_faults(module: ir.Module) -> dict[str, str | bool]:
    """XLA's options without which the program may kill this process, or come out wrong."""
    reductions = operations(module, "stablehlo.reduce")
    rank = max((len(one.operands[0].type.shape) for one in reductions), default=0)
    loops, transposes = (operations(module, f"stablehlo.{op}") for op in ("while", "transpose"))
    return xla_faults.options_without(rank, bool(loops and transposes))


def place_on(array: Any, platform: str = "cpu") -> jax.Array:
    """The array, of exactly its type, on the device that `compile_for` compiles for."""
    device = get_backend(platform).local_devices()[0]
    if isinstance(array, jax.Array) and array.devices() == {device}:
        return array
    with jax.enable_x64(True):
        return jax.device_put(array, device, may_alias=False)
