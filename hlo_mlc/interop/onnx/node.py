"""What an operator sees of its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph. What it is given is a NumPy array where it is known when the model is
    imported, else an array of JAX; or None for an input that is left out, or a list for a sequence.
    """

    version: int  # since which set of operators it has the meaning that it has
    attributes: Mapping[str, Any]  # with the specification's defaults
    results: int  # how many it has
    numpy: Any  # `numpy` if all inputs are known, else `jax.numpy`
    run: Callable[..., list[Any]]  # a graph among the attributes, for values of its inputs

    def __getitem__(self, name: str) -> Any:
        """An attribute, None if it is not given and has no default."""
        return self.attributes.get(name)


Operator = Callable[..., Any]
"""A node and its inputs -> its output, or a tuple of them."""


def is_known(*values: Any) -> bool:
    """Whether no value depends on what the model is called with."""
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values))


def known(value: Any, what: str) -> Any:
    """An input that says how.

    Raises: NotImplementedError where it depends on what the model is called with.
    """
    if not is_known(value):
        raise NotImplementedError(
            f"{what} depends on the values of the model's inputs: it has to "
            "be a constant, or computed from constants and shapes"
        )
    return np.asarray(value)


def integers(value: Any, what: str) -> tuple[int, ...]:
    """As `known`."""
    return tuple(int(number) for number in known(value, what).ravel())


def along(value: Any, axis: int, rank: int) -> Any:
    """A vector so that it broadcasts along an axis; a scalar as it is."""
    return (
        value.reshape(-1, *(1,) * (rank - axis % rank - 1)) if value.size > 1 else value.reshape(())
    )


def is_floating(x: Any) -> bool:
    return bool(jax.numpy.issubdtype(x.dtype, np.floating))
