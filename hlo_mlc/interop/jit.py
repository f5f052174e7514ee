"""`mlc_jit`: `jax.jit` through our compiler."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.extend import source_info_util

from hlo_mlc.explain import explain as explain_report
from hlo_mlc.gpu import GpuKernel
from hlo_mlc.interop import compat
from hlo_mlc.interop.compiling import gpu_kernels
from hlo_mlc.interop.function import TracedFunction, resolve_options
from hlo_mlc.interop.primitive import mlc_call_p
from hlo_mlc.report import Report
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options

# Operations come from the user's code, not from the file here that traces it.
source_info_util.register_exclusion(str(Path(__file__).parent))


def mlc_jit(
    fun: Callable | None = None,
    /,
    *,
    choose: str | None = None,
    target: str | None = None,
    in_shardings: Any = compat.UNSPECIFIED,
    out_shardings: Any = compat.UNSPECIFIED,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: jax.Device | None = None,
    backend: str | None = None,
    inline: Any = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """`jax.jit`, with what we compute faster in our own kernels.

    `choose` says how to choose between our kernels and XLA's: "auto" (predict), "measure", "ours"
    (all that we can compile) or "xla" (nothing); None asks the environment. `target` is what to
    compile for. All else is as for `jax.jit`, and so is what comes back, which composes with every
    transformation. It has two methods more: `report(*args)` says what of the function is compiled
    for such arguments (the most recent compilation without any), `explain(*args)` says it in words,
    and measures each kernel to say how near it comes to what the machine can do.

    Usable as `@mlc_jit` and as `@mlc_jit(choose="ours")`.

    Raises: UsageError, UnknownTargetError or ConfigurationError, when decorating.
    """
    decorate = functools.partial(
        _decorate,
        options=resolve_options(choose, target),
        jit_arguments={
            "in_shardings": in_shardings,
            "out_shardings": out_shardings,
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "keep_unused": keep_unused,
            "device": device,
            "backend": backend,
            "inline": inline,
            "compiler_options": compiler_options,
        },
    )
    return decorate if fun is None else decorate(fun)


def _decorate(fun: Callable, *, options: Options, jit_arguments: dict[str, Any]) -> Any:
    if not callable(fun):
        raise UsageError(f"mlc_jit expects a function, got {fun!r}")
    function = TracedFunction(getattr(fun, "__name__", type(fun).__name__), options)

    @functools.wraps(fun)
    def staged(*args: Any, **kwargs: Any) -> Any:
        if jax.config.jax_disable_jit:
            return fun(*args, **kwargs)
        return _stage(function, fun, args, kwargs)

    jitted = jax.jit(staged, **jit_arguments)

    def report(*args: Any, **kwargs: Any) -> Report:
        if not args and not kwargs:
            if function.ledger.latest is None:
                raise UsageError(
                    f"{function.name} has not been compiled yet: "
                    "call it, or give the report the arguments that it would be called with"
                )
            return function.ledger.latest
        module = jitted.lower(*args, **kwargs).compiler_ir()
        found = function.ledger.find(module)
        return found or Report.untouched("it computes nothing: its results are its arguments")

    def explain(*args: Any, **kwargs: Any) -> str:
        return explain_report(report(*args, **kwargs), options)

    def tune(*args: Any, trials: int | None = None, minutes: float | None = None,
             **kwargs: Any) -> Any:
        # At first use: Optuna takes half a second to import, and few programs tune.
        tuning = importlib.import_module("hlo_mlc.interop.tuning")
        return tuning.tune_call(jitted, options, args, kwargs, trials=trials, minutes=minutes)

    def choosing(choose: str) -> Any:
        # The same function with another choice, for what needs both sides of it.
        return _decorate(fun, options=options.replace(choose=choose), jit_arguments=jit_arguments)

    def kernels(*args: Any, **kwargs: Any) -> tuple[GpuKernel, ...]:
        if options.choose != "ours":
            return choosing("ours").kernels(*args, **kwargs)
        lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=("cuda",))
        found = function.ledger.find(lowered.compiler_ir())
        return () if found is None else gpu_kernels(found)

    jitted.choose = options.choose
    jitted.kernels = kernels
    jitted.choosing = choosing
    jitted.report = report
    jitted.explain = explain
    jitted.tune = tune
    return jitted


def _stage(
    function: TracedFunction, fun: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Traces a function into one `mlc_call`. Arguments without a tracer in them are static."""
    traced_args = {i: value for i, value in enumerate(args) if _is_traced(value)}
    traced_kwargs = {name: value for name, value in kwargs.items() if _is_traced(value)}

    def of_traced(traced_args: dict[int, Any], traced_kwargs: dict[str, Any]) -> Any:
        all_args = [traced_args.get(i, value) for i, value in enumerate(args)]
        return fun(*all_args, **(kwargs | traced_kwargs))

    closed_jaxpr, results = jax.make_jaxpr(of_traced, return_shape=True)(
        traced_args, traced_kwargs
    )
    call_jaxpr, constants = compat.detach_constants(closed_jaxpr)
    operands = jax.tree.leaves((traced_args, traced_kwargs))
    outs = mlc_call_p.bind(*constants, *operands, call_jaxpr=call_jaxpr, function=function)
    return jax.tree.unflatten(jax.tree.structure(results), outs)


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
