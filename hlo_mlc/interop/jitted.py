"""What `mlc_jit` makes of a function: an object of `jax.jit` that knows what we compile of it."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

import jax
from jax.extend import source_info_util

from hlo_mlc.interop import compat
from hlo_mlc.interop.call_arguments import Handing
from hlo_mlc.interop.function import TracedFunction
from hlo_mlc.interop.jit_object import JitObject, P, R_co
from hlo_mlc.interop.platforms import gpu_kernels
from hlo_mlc.interop.settling import Settling, Side
from hlo_mlc.interop.staged import Staged, staged, staged_anew, staged_as_settled
from hlo_mlc.preloading import preload_compiler
from hlo_mlc.report import Report
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import from_users_line

with lazy_imports():
    from hlo_mlc import explain as explaining
    from hlo_mlc.interop import scheduling, timeline, tuning, verifying

if TYPE_CHECKING:
    from hlo_mlc.backends.cuda import GpuKernel
    from hlo_mlc.explain import Explanation
    from hlo_mlc.interop.scheduling import KernelSchedule
    from hlo_mlc.interop.timeline import Timeline
    from hlo_mlc.interop.tuning_report import TuningReport
    from hlo_mlc.interop.verifying import Verification

# Operations come from the user's code, not from the file here that traces it.
source_info_util.register_exclusion(str(Path(__file__).parent))
# Nor do errors.
compat.hide_frames(str(Path(__file__).parents[1]))


Q = ParamSpec("Q")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What an object was made of."""

    fun: Callable[..., Any]
    function: TracedFunction
    options: Options
    jit_arguments: Mapping[str, Any]

    @property
    def donates(self) -> bool:
        """Whether a call may take some of its arguments away."""
        return any(
            self.jit_arguments.get(name) is not None
            for name in ("donate_argnums", "donate_argnames")
        )


class MlcFunction(JitObject[P, R_co]):
    """What `mlc_jit` returns: used as what `jax.jit` returns, which it is but for more methods."""

    choose: str
    _origin: Origin

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(
            self: MlcFunction[Concatenate[S, Q], R_co], instance: S, owner: type | None = None
        ) -> MlcFunction[Q, R_co]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self.args:
            return self
        bound = MlcFunction(self.func, instance)  # as `_bind`, in half the time
        bound.__dict__ = self.__dict__
        return bound

    def __reduce__(self) -> str | tuple[Any, ...]:
        unbound = self._in_module()
        if unbound is self:
            return self.__qualname__
        if unbound is not None:
            return _bound, (unbound, self.args)
        origin = self._origin
        return _again, (origin.fun, origin.options, origin.jit_arguments, self.args)

    def _in_module(self) -> MlcFunction[..., Any] | None:
        """The object that another process finds by the name of the function, which it then stands
        in the place of; None where there is none, or the module is a program that others do not
        run."""
        found: Any = sys.modules.get(self.__module__)
        for name in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, name, None)
        is_this = isinstance(found, MlcFunction) and found.__dict__ is self.__dict__
        return found if is_this and self.__module__ != "__main__" else None

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What of the function is compiled for such arguments, and why the rest is not; without
        any, of the most recent compilation. Its `html(path)` writes a page for a browser."""
        found = self._report(args, kwargs)
        return (
            found
            if not args and not kwargs
            else replace(found, page=lambda path: self.explain(*args, **kwargs).html(path))
        )

    def _report(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Report:
        function = self._origin.function
        if not self._is_a_call(args, kwargs):
            if function.ledger.latest is None:
                raise UsageError(
                    f"{function.name} has not been compiled yet: "
                    "call it, or give the report the arguments that it would be called with"
                )
            return function.ledger.latest
        found = function.ledger.find(self.lower(*args, **kwargs).compiler_ir())
        return found or Report.untouched("it computes nothing: its results are its arguments")

    def explain(self, *args: Any, verbose: bool = False, **kwargs: Any) -> Explanation:
        """Where the time of such a call goes, to be printed: in 30 lines at most, or with all that
        is known if `verbose`; its `as_dict()` is for machines, `html(path)` writes a page for a
        browser. Each kernel is timed and compared
        with the machine's limits."""
        origin = self._origin

        def compile_again(options: Options) -> Report:
            return self._with(options).report(*args, **kwargs)

        return explaining.explain(
            self._report(args, kwargs),
            origin.options,
            origin.function.name,
            verbose,
            compile_again if self._is_a_call(args, kwargs) else None,
        )

    if TYPE_CHECKING:

        @overload
        def trace(
            self, *args: Any, path: str | os.PathLike[str], calls: int = ..., **kwargs: Any
        ) -> Timeline: ...
        @overload
        def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced: ...

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The function traced for such arguments, as by `jax.jit`. With a `path`, a few `calls` (3)
        of it are run, and when each of our kernels and its tasks ran, on which threads, and what
        XLA ran in between, is written there, for https://ui.perfetto.dev.

        A function with a parameter `path` of its own is traced as by `jax.jit`.
        """
        if "path" not in kwargs or self._has_parameter("path"):
            return super().trace(*args, **kwargs)
        path, calls = kwargs.pop("path"), kwargs.pop("calls", timeline.CALLS)
        origin = self._origin
        return timeline.record_timeline(
            origin.function.name,
            self.func,
            functools.partial(self.report, *args, **kwargs),
            self._with_bound(args, kwargs),
            kwargs,
            path,
            calls,
            origin.donates,
        )

    def tune(
        self,
        *args: Any,
        trials: int | None = None,
        minutes: float | None = None,
        storage: str | None = None,
        target: str | None = None,
        **kwargs: Any,
    ) -> TuningReport:
        """Looks for faster schedules of each kernel on these arguments, until each had so many
        trials, or else until next to nothing is expected of another trial, for so many minutes in
        all at most, and remembers them; says what came of it. `storage`, the URL of a database, has
        others take trials as well (`hlo-mlc worker`). `target`, a GPU architecture ("sm_90"), has
        kernels for it tuned where there is no such GPU: nothing runs, times are those of a model,
        and records say so."""
        return tuning.tune_call(
            self,
            self._origin.options,
            args,
            kwargs,
            trials=trials,
            minutes=minutes,
            storage=storage,
            target=target,
        )

    def verify(self, *args: Any, runs: int = 3, **kwargs: Any) -> Verification:
        """Holds each kernel of such a call against the same operations in f64, and XLA's code for
        them as well: the largest errors in units of the last place, NaNs and infinities, integers,
        and whether each of the `runs`, and a run for one thread, gives the same bits."""
        origin = self._origin
        return verifying.verify_call(
            self, origin.options, origin.function.name, args, kwargs, runs=runs
        )

    def schedule(
        self, kernel: str, /, *args: Any, nest: int | None = None, **kwargs: Any
    ) -> KernelSchedule:
        """The loops of a kernel of such a call, by the name that `explain` shows it by, for you to
        rewrite by the primitives of docs/schedules.md, to run, to time and to pin: those of its
        costliest nest, or of the one at position `nest`."""
        origin = self._origin
        return scheduling.schedule_kernel(
            self, origin.options, origin.function.name, kernel, nest, args, kwargs
        )

    @property
    def origin(self) -> Origin:
        """What it was made of, for whoever makes it anew."""
        return self._origin

    def choosing(self, choose: str, target: str | None = None) -> MlcFunction[P, R_co]:
        """The same function with another choice, for what needs both sides of it, or for another
        target, for what is not to run here."""
        options = self._origin.options
        return self._with(options.replace(choose=choose, target=target or options.target))

    def for_archive(self, target: str) -> MlcFunction[P, R_co]:
        """The same function made anew for a target, so that nothing of it is lowered yet; only
        then does `jax.export` get our kernels."""
        return self._with(self._origin.options.replace(target=target), for_archive=True)

    def kernels(self, *args: Any, **kwargs: Any) -> tuple[GpuKernel, ...]:
        """The kernels for GPUs, with their source, that such a call would run."""
        origin = self._origin
        if origin.options.choose != "ours":
            return self.choosing("ours").kernels(*args, **kwargs)
        lowered = self.trace(*args, **kwargs).lower(lowering_platforms=("cuda",))
        found = origin.function.ledger.find(lowered.compiler_ir())
        return () if found is None else gpu_kernels(found)

    def call_from_now_on(self, compiled: Any, function: TracedFunction) -> None:
        """Has this object and methods bound to it call another function, with no frame of ours."""
        self._origin = replace(self._origin, function=function)
        self.__setstate__((compiled, self.args, self.keywords, self.__dict__))

    def _is_a_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the function can be called so: with none where it has no parameters."""
        parameters = self._parameters()
        return bool(args or kwargs) or (
            parameters is not None and len(parameters) == len(self.args)
        )

    def _has_parameter(self, name: str) -> bool:
        parameters = self._parameters() or {}
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def _parameters(self) -> Mapping[str, inspect.Parameter] | None:
        """The function's; None of what is written in C."""
        try:
            return inspect.signature(self._origin.fun).parameters
        except (TypeError, ValueError):
            return None

    def _with(self, options: Options, for_archive: bool = False) -> MlcFunction[P, R_co]:
        again = jitted(self._origin.fun, options, self._origin.jit_arguments, for_archive)
        return again._bind(*self.args)


def jitted(
    fun: Callable[..., Any],
    options: Options,
    jit_arguments: Mapping[str, Any],
    for_archive: bool = False,
) -> MlcFunction[..., Any]:
    """The function through `jax.jit` with its arguments, and through our compiler.

    Raises: what `jax.jit` raises for a function or arguments that it does not take.
    """
    compat.check_callable(fun)
    preload_compiler(options)
    given = staged_anew(fun, options, for_archive) if for_archive else staged(fun, options)
    jit = functools.partial(compat.jit, given, **jit_arguments)
    # JAX warns of these: they are deprecated.
    is_placed = any(jit_arguments.get(name) is not None for name in ("device", "backend"))
    compiled = _standing_for(fun, from_users_line(jit) if is_placed else jit())
    settles = options.settles and not (for_archive or is_placed)
    if settles:
        compiled = _settling(fun, given, compiled, jit_arguments)
    elif options.choose == "measure":
        compiled = Handing(compiled)
    made = functools.update_wrapper(MlcFunction(compiled), fun, updated=())
    if settles:
        compiled.owner = weakref.ref(made)
    made.choose = options.choose
    made._origin = Origin(fun, given.function, options, jit_arguments)
    return made


def _standing_for(fun: Callable[..., Any], compiled: Any) -> Any:
    """What JAX makes of a staged function, as it would be of the function: with the function's own
    attributes, which are found behind our methods. It also keeps the function."""
    for name, value in getattr(fun, "__dict__", {}).items():
        vars(compiled).setdefault(name, value)
    compiled.__wrapped__ = fun
    return compiled


def _settling(
    fun: Callable[..., Any], given: Staged, compiled: Any, jit_arguments: Mapping[str, Any]
) -> Settling:
    """What is called until it is settled whether to run our kernels."""

    def alternative(path: Path, choose: str) -> Side:
        other = staged_as_settled(given, path, choose)
        return Side(_standing_for(fun, compat.jit(other, **jit_arguments)), other)

    return Settling(compiled, given, alternative)


def _bound(function: MlcFunction[..., Any], args: tuple[Any, ...]) -> MlcFunction[..., Any]:
    """A method that was pickled."""
    return function._bind(*args)


def _again(
    fun: Callable[..., Any],
    options: Options,
    jit_arguments: Mapping[str, Any],
    bound: tuple[Any, ...],
) -> MlcFunction[..., Any]:
    """What was pickled, which takes a pickler that can write functions."""
    return jitted(fun, options, jit_arguments)._bind(*bound)
