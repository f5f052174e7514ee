"""What XLA computes, by programs that run once or twice and are to be compiled quickly for that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

# An older way to write the code of fusions, which XLA no longer has in JAX 0.12: it takes a third
# of the time of the newer one, but writes what several elements need again for each of them, which
# doubles with every step of a long chain.
_OLDER_FUSIONS = {"xla_cpu_use_fusion_emitters": False}
_MOST_OPERATIONS = 60


def by_xla(function: Callable[..., Any], *args: Any) -> Any:
    """The results of `jax.jit` of the function."""
    traced = jax.jit(function).trace(*args)
    is_small = _operations(traced.jaxpr.jaxpr) <= _MOST_OPERATIONS
    return jax.jit(function, compiler_options=_quick() if is_small else None)(*args)


@functools.cache
def _quick() -> Mapping[str, bool] | None:
    """Options of XLA's compiler, if it knows them."""
    try:
        jax.jit(lambda: 0, compiler_options=_OLDER_FUSIONS)()
    except jax.errors.JaxRuntimeError:
        return None
    return _OLDER_FUSIONS


def _operations(jaxpr: Jaxpr) -> int:
    """How many there are, with those of functions, branches and loops, each of them once."""
    return sum(1 + sum(map(_operations, jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns)
