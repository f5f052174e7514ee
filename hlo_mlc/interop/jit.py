"""`mlc_jit`: `jax.jit` through our compiler."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax
import numpy as np
from jax.extend import source_info_util

from hlo_mlc.explain import explain as explain_report
from hlo_mlc.gpu import GpuKernel
from hlo_mlc.interop import compat
from hlo_mlc.interop.function import TracedFunction, resolve_options
from hlo_mlc.interop.gpus import gpu_kernels
from hlo_mlc.interop.primitive import mlc_call_p
from hlo_mlc.report import Report
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options

# Operations come from the user's code, not from the file here that traces it.
source_info_util.register_exclusion(str(Path(__file__).parent))


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class MlcFunction(Protocol[P, R_co]):
    """What `mlc_jit` returns: an object of `jax.jit` with methods of ours (`_Methods`)."""

    choose: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered: ...
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced: ...
    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def clear_cache(self) -> None: ...
    def report(self, *args: Any, **kwargs: Any) -> Report: ...
    def explain(self, *args: Any, **kwargs: Any) -> str: ...
    def tune(self, *args: Any, trials: int | None = None, minutes: float | None = None,
             **kwargs: Any) -> Any: ...
    def choosing(self, choose: str, target: str | None = None) -> MlcFunction[P, R_co]: ...
    def kernels(self, *args: Any, **kwargs: Any) -> tuple[GpuKernel, ...]: ...


@overload
def mlc_jit(fun: Callable[P, R_co], /, **options: Any) -> MlcFunction[P, R_co]: ...
@overload
def mlc_jit(
    fun: None = None, /, **options: Any
) -> Callable[[Callable[P, R_co]], MlcFunction[P, R_co]]: ...
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

    `choose` says how to choose between our kernels and XLA's: "auto" (predict; on GPUs by a model
    that was never checked on one), "measure", "ours" (all that we can compile) or "xla" (nothing);
    None asks the environment. `target` is what to compile for. All else is as for `jax.jit`, and so
    is what comes back, which composes with every transformation. It has more methods:
    `report(*args)` says what of the function is compiled for such arguments, `explain(*args)` says
    it in words, `tune(*args)` looks for faster schedules, and `choosing(choose)` is the same
    function with another choice.

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

    methods = _Methods(fun, jitted, function, options, jit_arguments)
    jitted.choose = options.choose
    for name in _METHODS:
        setattr(jitted, name, getattr(methods, name))
    return jitted


_METHODS = ("report", "explain", "tune", "choosing", "kernels")


@dataclass(frozen=True, slots=True, eq=False)
class _Methods:
    """What a function has beside the methods of `jax.jit`."""

    fun: Callable
    jitted: Any
    function: TracedFunction
    options: Options
    jit_arguments: dict[str, Any]

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What of the function is compiled for such arguments, and why the rest is not; without
        any, of the most recent compilation."""
        if not args and not kwargs:
            if self.function.ledger.latest is None:
                raise UsageError(
                    f"{self.function.name} has not been compiled yet: "
                    "call it, or give the report the arguments that it would be called with"
                )
            return self.function.ledger.latest
        module = self.jitted.lower(*args, **kwargs).compiler_ir()
        found = self.function.ledger.find(module)
        return found or Report.untouched("it computes nothing: its results are its arguments")

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """The report in words; each kernel is timed and compared with the machine's limits."""
        return explain_report(self.report(*args, **kwargs), self.options)

    def tune(self, *args: Any, trials: int | None = None, minutes: float | None = None,
             **kwargs: Any) -> Any:
        """Looks for faster schedules of each kernel on these arguments, until each had so many
        trials or for so many minutes (2), and remembers them; says what came of it."""
        # At first use: Optuna takes half a second to import, and few programs tune.
        tuning = importlib.import_module("hlo_mlc.interop.tuning")
        return tuning.tune_call(
            self.jitted, self.options, args, kwargs, trials=trials, minutes=minutes)

    def choosing(self, choose: str, target: str | None = None) -> Any:
        """The same function with another choice, for what needs both sides of it, or for another
        target, for what is not to run here."""
        changed = self.options.replace(choose=choose, target=target or self.options.target)
        return _decorate(self.fun, options=changed, jit_arguments=self.jit_arguments)

    def kernels(self, *args: Any, **kwargs: Any) -> tuple[GpuKernel, ...]:
        """The kernels for GPUs, with their source, that such a call would run."""
        if self.options.choose != "ours":
            return self.choosing("ours").kernels(*args, **kwargs)
        lowered = self.jitted.trace(*args, **kwargs).lower(lowering_platforms=("cuda",))
        found = self.function.ledger.find(lowered.compiler_ir())
        return () if found is None else gpu_kernels(found, self.options)


def _stage(
    function: TracedFunction, fun: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Traces a function into one `mlc_call`."""
    static = [i for i, value in enumerate(args) if _is_static(value)]
    static_kwargs = {name: value for name, value in kwargs.items() if _is_static(value)}
    traced = [value for i, value in enumerate(args) if i not in static]
    traced_kwargs = {name: value for name, value in kwargs.items() if name not in static_kwargs}
    # By its own signature: messages about tracers name the user's function and its arguments.
    closed_jaxpr, results = jax.make_jaxpr(
        functools.partial(fun, **static_kwargs), static_argnums=static, return_shape=True
    )(*args, **traced_kwargs)
    call_jaxpr, constants = compat.detach_constants(closed_jaxpr)
    operands = jax.tree.leaves((traced, traced_kwargs))
    outs = mlc_call_p.bind(*constants, *operands, call_jaxpr=call_jaxpr, function=function)
    return jax.tree.unflatten(jax.tree.structure(results), outs)


def _is_static(value: Any) -> bool:
    """Whether `jax.jit` was told that an argument is static: what is not consists of arrays."""
    leaves = jax.tree.leaves(value)
    arrays = (jax.core.Tracer, jax.Array, np.ndarray)
    return bool(leaves) and not any(isinstance(leaf, arrays) for leaf in leaves)
