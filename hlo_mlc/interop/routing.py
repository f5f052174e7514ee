"""Routing: `jax.jit` itself, wherever a program or its libraries use it, through our compiler.

While anything is routed, one function stands in the place of `jax.jit`: in `jax`, in every module
that has taken it from there (`from jax import jit`), and in partial functions of it that stand in a
module. It decides at each use who is to compile, so what keeps hold of it later does no harm.

What was jitted before keeps its compiler: nothing can be put in front of an object of `jax.jit`.
Within a function that is routed it is compiled as a part of that; only where it is called by itself
it stays with XLA. So does what JAX jits of its own, such as the functions of `jax.numpy`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax

from hlo_mlc.interop import compat
from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.jit import mlc_jit

_NOT_ROUTED = frozenset(("jax", "jaxlib", "hlo_mlc", "hlo_mlc_bench"))
"""Packages whose own `jax.jit` stays what it is: JAX's, which is inlined where it is used in a
function that is routed, and ours, which runs what we compare with."""


@dataclass(frozen=True, slots=True)
class _Route:
    """How functions are to be compiled."""

    choose: str | None
    target: str | None

    def __post_init__(self) -> None:
        resolve_options(self.choose, self.target)  # raises for what no function can be given


class _Places:
    """Where `jax.jit` stands, and how many want ours there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self.installed: _Route | None = None

    def install(self, route: _Route | None) -> None:
        with self._lock:
            before, self.installed = self.installed, route
            self._want((route is not None) - (before is not None))

    def hold(self) -> None:
        with self._lock:
            self._want(1)

    def release(self) -> None:
        with self._lock:
            self._want(-1)

    def _want(self, more: int) -> None:
        before, self._wanted = self._wanted, self._wanted + more
        if bool(before) != bool(self._wanted):
            pair = (compat.jit, _routed_jit)
            _replace(*(pair if self._wanted else reversed(pair)))


_places = _Places()
_enabled: ContextVar[_Route | None] = ContextVar("hlo_mlc_enabled", default=None)


def install(choose: str | None = None, target: str | None = None) -> None:
    """From now on every function that is given to `jax.jit`, by this program or a library, is
    compiled as by `mlc_jit(choose=choose, target=target)`.

    That holds for all threads. Libraries may be imported before or after; but functions that they
    have jitted by then stay with XLA where they are called by themselves, so it is best called
    first. `HLO_MLC_ENABLE=1` does so when `hlo_mlc` is imported, and `python -m hlo_mlc script.py`
    in front of a program. Installing again changes the options.

    Raises: UsageError, UnknownTargetError or ConfigurationError for the options.
    """
    _places.install(_Route(choose, target))


def uninstall() -> None:
    """Ends what `install` began: `jax.jit` is JAX's again. What was jitted meanwhile stays ours."""
    _places.install(None)


@contextlib.contextmanager
def enabled(choose: str | None = None, target: str | None = None) -> Iterator[None]:
    """`with enabled(choose="ours"):` does what `install` does for what is jitted within.

    It holds for the thread that enters it, and not for threads that this one starts; others go on
    as they were. The innermost one counts, and comes before `install`.

    Raises: UsageError, UnknownTargetError or ConfigurationError for the options.
    """
    token = _enabled.set(_Route(choose, target))
    _places.hold()
    try:
        yield
    finally:
        _places.release()
        _enabled.reset(token)


@functools.wraps(compat.jit)
def _routed_jit(*args: Any, **kwargs: Any) -> Any:
    route = _enabled.get() or _places.installed
    if route is None or _package(sys._getframe(1).f_globals.get("__name__", "")) in _NOT_ROUTED:
        return compat.jit(*args, **kwargs)
    return mlc_jit(*args, **{"choose": route.choose, "target": route.target} | kwargs)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Puts one function in the place of another wherever a module has it."""
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or (
            _package(module_name) in _NOT_ROUTED and module is not jax
        ):
            continue
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")  # loads no lazy module
        for name, value in list(names.items()):
            if value is old:
                names[name] = new
            elif type(value) is functools.partial and value.func is old:
                value.__setstate__((new, value.args, value.keywords, vars(value)))
