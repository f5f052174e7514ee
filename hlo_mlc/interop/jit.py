"""`mlc_jit`: `jax.jit` through our compiler."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import jax

from hlo_mlc.interop import compat
from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.jitted import MlcFunction, jitted

P = ParamSpec("P")
R = TypeVar("R")


class JitOptions(TypedDict, total=False):
    """The options of `mlc_jit`, its own and those of `jax.jit`."""

    choose: str | None
    target: str | None
    deterministic: bool | None
    records: str | os.PathLike[str] | None
    tune: str | None
    any_rows: bool | None
    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: jax.Device | None
    backend: str | None
    inline: bool
    compiler_options: dict[str, Any] | None


class Decorator(Protocol):
    """What `mlc_jit` with options alone returns."""

    def __call__(self, fun: Callable[P, R], /) -> MlcFunction[P, R]: ...


@overload
def mlc_jit(fun: Callable[P, R], /, **options: Unpack[JitOptions]) -> MlcFunction[P, R]: ...
@overload
def mlc_jit(**options: Unpack[JitOptions]) -> Decorator: ...
def mlc_jit(
    fun: Any = compat.NOT_SPECIFIED,
    /,
    *,
    choose: str | None = None,
    target: str | None = None,
    deterministic: bool | None = None,
    records: str | os.PathLike[str] | None = None,
    tune: str | None = None,
    any_rows: bool | None = None,
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

    It takes the arguments of `jax.jit`, and what comes back is as what that returns: it composes
    with every transformation. More arguments, of which None asks the environment:

    - `choose` says how to choose between our kernels and XLA's: "auto" (predict, and settle on some
      of your calls what is not clear-cut; on GPUs by a model alone), "measure", "ours" (all that we
      can compile) or "xla" (nothing).
    - `target` is what to compile for: "cpu" (this machine), or a level that it has, such as
      "x86-64-v3".
    - `deterministic`: our kernels give the same bits on any number of threads and in every process,
      and nothing that was tuned or measured has a say.
    - `records` is a file of `hlo-mlc records export`: kernels are built by what is recorded there,
      and by nothing else that was tuned or measured.
    - `tune="background"`: another process looks for faster schedules of the kernels that take most
      of the time, when nobody uses the machine, and calls run them from then on.
    - `any_rows` is for functions that are called with many sizes of a batch: kernels on CPUs serve
      any number of rows where each row is computed by itself or rows are summed, so that next to
      nothing is generated for another size; they take up to half as long again, twice as long in
      few cases.

    More methods of what comes back: `report(*args)` says what of the function is compiled for such
    arguments, `explain(*args)` shows where its time goes, `trace(*args, path=…)` writes when what
    runs, `verify(*args)` holds each kernel against f64, `tune(*args)` looks for faster schedules,
    `schedule(kernel, *args)` lets you write one, and `choosing(choose)` is the same function with
    another choice.

    Usable as `@mlc_jit`, as `@mlc_jit(choose="ours")`, on methods, and in place of `jax.jit`
    (`jax.jit = mlc_jit`; see also `hlo_mlc.install`).

    Raises: UsageError, UnknownTargetError or ConfigurationError for our options, when decorating;
    what `jax.jit` raises for its own.
    """
    decorate = functools.partial(
        jitted,
        options=resolve_options(choose, target, deterministic, records, tune, any_rows),
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
    return decorate if fun is compat.NOT_SPECIFIED else decorate(fun)
