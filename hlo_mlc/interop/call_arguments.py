"""The arguments of the call that has a function compiled, for who wants to try it on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax

from hlo_mlc.interop import compat
from hlo_mlc.interop.arguments import ArgumentType

_at_hand: ContextVar[tuple[Any, ...]] = ContextVar("at_hand", default=())


class Handing:
    """Called in place of a `jax.jit` object: what is compiled during a call finds its arguments."""

    def __init__(self, jit: Callable[..., Any]) -> None:
        self._jit = jit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jit, name)

    def __repr__(self) -> str:
        return repr(self._jit)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not compat.is_computing():
            return self._jit(*args, **kwargs)
        token = _at_hand.set((args, kwargs))
        try:
            return self._jit(*args, **kwargs)
        finally:
            _at_hand.reset(token)


@contextlib.contextmanager
def at_hand(arrays: Sequence[Any]) -> Iterator[None]:
    """What is compiled in here finds these arguments."""
    token = _at_hand.set((tuple(arrays), {}))
    try:
        yield
    finally:
        _at_hand.reset(token)


def arguments_at_hand(types: Sequence[ArgumentType]) -> list[jax.Array] | None:
    """Those of the present call for a function of such types; None if they are for another one, or
    there is no call.

    The function may take fewer: what is static to `jax.jit` is none of its arguments. It may not
    take more, such as arrays that the user's function is closed over.
    """
    found = []
    for leaf in map(_array, jax.tree.leaves(_at_hand.get())):
        if len(found) < len(types) and leaf is not None and types[len(found)].accepts(leaf):
            found.append(leaf)
    return found if found and len(found) == len(types) else None


def _array(leaf: Any) -> jax.Array | None:
    """What `jax.jit` hands on of an argument; None if it is none of an array's kind."""
    try:
        typed = jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.extended)
        return jax.random.key_data(leaf) if typed else jax.numpy.asarray(leaf)
    except (TypeError, ValueError, OverflowError):
        return None
