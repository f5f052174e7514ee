"""Whether a call of a loaded function is what was exported, in terms of the caller's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from hlo_mlc.support.errors import UsageError


def check_call(
    name: str,
    exported: jax.export.Exported,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    embedded: int,
) -> None:
    """Compares a call with the types that a function was exported for, without those of its first
    `embedded` arguments, which are in the file.

    Raises: UsageError for other arguments; whether symbolic sizes agree is left to JAX.
    """
    every, keywords = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    taken = every[embedded:]
    if jax.tree.structure((taken, keywords)) != jax.tree.structure((tuple(args), dict(kwargs))):
        raise UsageError(
            f"{name} was exported for {_listed(taken, keywords)}, and is called with "
            f"{_listed(*jax.tree.map(jax.typeof, (args, kwargs)))}"
        )
    described = jax.tree_util.tree_flatten_with_path((taken, keywords))[0]
    for (where, expected), value in zip(described, jax.tree.leaves((args, kwargs)), strict=True):
        got = jax.typeof(value)
        if (
            got.dtype != expected.dtype
            or got.ndim != expected.ndim
            or any(
                isinstance(size, int) and isinstance(other, int) and size != other
                for size, other in zip(expected.shape, got.shape, strict=True)
            )
        ):
            side, first, *rest = where
            argument = f"argument {first.idx}" if side.idx == 0 else first.key
            raise UsageError(
                f"{name}: {argument}{jax.tree_util.keystr(rest)} is to be "
                f"{expected.str_short()}, and is {got.str_short()}"
            )


def _listed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """`(float32[2,4], {'w': float32[4]}, scale=float32[])`"""
    parts = [_type(value) for value in args]
    parts += [f"{name}={_type(value)}" for name, value in kwargs.items()]
    return f"({', '.join(parts)})"


def _type(tree: Any) -> str:
    return repr(jax.tree.map(lambda leaf: _Named(leaf.str_short()), tree))


class _Named(str):
    """Text that containers show as it is."""

    def __repr__(self) -> str:
        return str(self)
