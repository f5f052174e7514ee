"""What `jax.jit` is given in place of a function: an object that traces it into one `mlc_call`.

JAX finds what it has traced and compiled by the function that it was given, as long as that is
there: `jax.jit(f)(x)` in a loop compiles once. So the object here is one and the same for a
function and its options, lives as long as the function does, and does not keep it alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from hlo_mlc.interop import compat
from hlo_mlc.interop.experimental_rules import register_sparse_rule
from hlo_mlc.interop.faults import Faults
from hlo_mlc.interop.function import Ledger, TracedFunction
from hlo_mlc.interop.nesting import shallow
from hlo_mlc.interop.primitive import mlc_call_p
from hlo_mlc.interop.traces import Traces
from hlo_mlc.support.collection import no_collection
from hlo_mlc.support.options import Options
from hlo_mlc.support.stack import deep_calls


class Staged:
    """A function as JAX is to trace it. Whoever holds one to call it holds the function too.

    Those of functions that are equal, such as the methods of one object, are equal.
    """

    __slots__ = ("__weakref__", "_find", "function", "traces")

    def __init__(
        self,
        find: Callable[[], Callable[..., Any]],
        function: TracedFunction,
        traces: Traces | None = None,
    ) -> None:
        self._find = find
        self.function = function
        self.traces = traces or Traces()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._find()

    @property
    def __name__(self) -> str:
        return compat.name_of(self._find())

    def __repr__(self) -> str:
        return repr(self._find())  # messages of JAX's speak of the function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Staged) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        fun = self._find()
        # JAX also calls what it was given as if that were not jitted: to find where a NaN is from.
        if jax.config.jax_disable_jit or not compat.is_being_traced():
            return fun(*args, **kwargs)
        with deep_calls():
            # What a function changes is no result of it: such a function stays with JAX.
            if any(map(compat.is_mutable, jax.tree.leaves((args, kwargs)))):
                return fun(*args, **kwargs)
            given = compat.Arguments.of(args, kwargs)
            with no_collection():
                closed_jaxpr, result = self.traces.find(given) or compat.trace(fun, given)
            if any(map(compat.is_mutable, closed_jaxpr.consts)):
                return fun(*args, **kwargs)
            self.traces.keep(given, closed_jaxpr, result)
            register_sparse_rule(mlc_call_p)
            call_jaxpr, constants = compat.detach_constants(shallow(closed_jaxpr, given.operands))
            return result(
                mlc_call_p.bind(
                    *constants, *given.operands, call_jaxpr=call_jaxpr, function=self.function
                )
            )


_known: weakref.WeakKeyDictionary[Callable[..., Any], dict[Options, Staged]] = (
    weakref.WeakKeyDictionary()
)


def staged(fun: Callable[..., Any], options: Options) -> Staged:
    """The function as JAX is to trace it, with what of it is compiled with such options."""
    try:
        known = _known.setdefault(fun, {})
        weak = weakref.ref(fun)
    # Nothing can refer to it weakly, or what it does to be hashed or compared fails: JAX would
    # refuse to call it.
    except Exception:
        return staged_anew(fun, options)
    found = known.get(options)
    if found is None:
        found = known.setdefault(options, Staged(weak, _traced(fun, options)))
    return found if found.__wrapped__ is fun else Staged(weak, found.function)


def forget() -> None:
    """Has all that is jitted from now on compiled, also where that was done before."""
    _known.clear()


def staged_anew(fun: Callable[..., Any], options: Options, for_archive: bool = False) -> Staged:
    """The function as JAX has never seen it."""
    return Staged(lambda: fun, _traced(fun, options, for_archive))


def staged_as_settled(like: Staged, path: Path, choose: str) -> Staged:
    """The same function as JAX has never seen it, as it was traced before; the program of `path` is
    left to XLA, or all of it is compiled that can be.  Nobody is told of faults of ours meanwhile.
    """
    function = dataclasses.replace(
        like.function, ledger=Ledger(), faults=Faults(are_told=False), settled={path: choose}
    )
    return Staged(like._find, function, like.traces.alone())


def use_from_now_on(given: Staged) -> None:
    """Has the function jitted so where it is jitted anew."""
    with contextlib.suppress(Exception):  # of a function's own, as below
        known = _known[given.__wrapped__]
        known[given.function.options] = given


def _traced(fun: Callable[..., Any], options: Options, for_archive: bool = False) -> TracedFunction:
    return TracedFunction(compat.name_of(fun, type(fun).__name__), options, for_archive)
