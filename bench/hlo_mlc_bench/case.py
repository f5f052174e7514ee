"""What a benchmark case is: a plain JAX function, how to make its arguments, what is expected."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Function = Callable[..., Any]
Workload = tuple[Function, tuple[Any, ...]]
"""A function and the arguments to call it with."""

NEIGHBOUR_FIGURE = 0.95
"""A change of size, dtype or layout may lose the gain, but must not cost anything to speak of."""


class Inputs:
    """Random arrays of one dtype; the same seed gives the same values in every dtype."""

    def __init__(self, seed: int, dtype: str) -> None:
        self._generator = np.random.default_rng(seed)
        self.dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0) -> jax.Array:
        """Normally distributed values with standard deviation `scale`."""
        return jnp.asarray(self._generator.standard_normal(shape) * scale, self.dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> jax.Array:
        """Values spread evenly over [low, high)."""
        return jnp.asarray(self._generator.uniform(low, high, shape), self.dtype)

    def weight(self, *shape: int) -> jax.Array:
        """A weight matrix [..., inputs, outputs] that keeps the magnitude of what it multiplies."""
        return self.normal(*shape, scale=1 / math.sqrt(shape[-2]))

    def key(self) -> jax.Array:
        """The data of a key of JAX's random numbers."""
        return jnp.asarray(self._generator.integers(0, 1 << 32, 2), jnp.uint32)

    def places(self, count: int, *shape: int) -> jax.Array:
        """Numbers below `count`, with repetitions."""
        return jnp.asarray(self._generator.integers(0, count, shape), jnp.int32)

    def ones(self, *shape: int) -> jax.Array:
        """All ones."""
        return jnp.ones(shape, self.dtype)

    def zeros(self, *shape: int) -> jax.Array:
        """All zeros."""
        return jnp.zeros(shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark: `build(inputs, **sizes)` makes a fresh function and its arguments.

    `tolerance` bounds the error of every result in units of the dtype's rounding step, relative to
    the result's largest magnitude (0: exact); about four times what XLA shows. `figure` is the
    ratio jax.jit / hlo_mlc to reach. `tiny` are sizes for tests. `view` is how the argument number
    `viewed` arrives: "plain", "transposed" (last two axes swapped) or "strided" (every other
    element of a larger array). `threads` are reports of users that it is rebuilt from. Where
    `xla_errs`, jax.jit is known to give wrong results: its error excuses nothing, and what is right
    is evaluated one operation at a time.
    """

    name: str
    build: Callable[..., Workload]
    sizes: Mapping[str, int]
    _: KW_ONLY
    group: str
    tiny: Mapping[str, int]
    tolerance: float
    figure: float | None = None
    dtype: str = "float32"
    view: str = "plain"
    viewed: int = 0
    threads: tuple[str, ...] = ()
    xla_errs: bool = False
    neighbours: tuple[Case, ...] = field(default=(), repr=False)

    def make(self, seed: int = 0, *, tiny: bool = False) -> Workload:
        """A function that nothing has traced yet, and its arguments; call it `in_its_mode`."""
        sizes = {**self.sizes, **self.tiny} if tiny else self.sizes
        workload = self.build(Inputs(seed, self.dtype), **sizes)
        return _VIEWS[self.view](workload, self.viewed)

    def in_its_mode(self) -> contextlib.AbstractContextManager[Any]:
        """The JAX configuration that the case is to be made and run under: 64-bit types or not."""
        return jax.enable_x64(self.dtype == "float64")

    def with_neighbours(
        self, *, odd: Mapping[str, int], dtype: str, view: str, viewed: int = 0
    ) -> Case:
        """This case with three neighbours: sizes that nothing divides, a dtype, a layout."""
        variants = (
            replace(self, name=f"{self.name}/odd", sizes={**self.sizes, **odd}),
            replace(self, name=f"{self.name}/{dtype}", dtype=dtype),
            replace(self, name=f"{self.name}/{view}", view=view, viewed=viewed),
        )
        return replace(
            self, neighbours=tuple(replace(v, figure=NEIGHBOUR_FIGURE) for v in variants)
        )


def of_normals(function: Function, scale: float = 1.0) -> Callable[..., Workload]:
    """What builds `function` of one normally distributed array, whose shape is the case's sizes."""

    def build(inputs: Inputs, **sizes: int) -> Workload:
        return lambda x: function(x), (inputs.normal(*sizes.values(), scale=scale),)

    return build


def of_uniforms(function: Function, low: float, high: float) -> Callable[..., Workload]:
    """The same of values spread evenly over [low, high)."""

    def build(inputs: Inputs, **sizes: int) -> Workload:
        return lambda x: function(x), (inputs.uniform(*sizes.values(), low=low, high=high),)

    return build


def _plain(workload: Workload, viewed: int) -> Workload:
    return workload


def _transposed(workload: Workload, viewed: int) -> Workload:
    function, args = workload
    swapped = jnp.swapaxes(args[viewed], -1, -2)

    def on_transposed(*args: Any) -> Any:
        back = jnp.swapaxes(args[viewed], -1, -2)
        return function(*args[:viewed], back, *args[viewed + 1 :])

    return on_transposed, (*args[:viewed], swapped, *args[viewed + 1 :])


def _strided(workload: Workload, viewed: int) -> Workload:
    function, args = workload
    spread = jnp.repeat(args[viewed], 2, axis=-1)

    def on_strided(*args: Any) -> Any:
        picked = args[viewed][..., ::2]
        return function(*args[:viewed], picked, *args[viewed + 1 :])

    return on_strided, (*args[:viewed], spread, *args[viewed + 1 :])


_VIEWS = MappingProxyType({"plain": _plain, "transposed": _transposed, "strided": _strided})
