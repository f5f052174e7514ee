"""Small cases, and compilers for them that stand in for ours."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from hlo_mlc.partition.estimate import Prediction
from hlo_mlc_bench.case import Case, Inputs, Workload

COVERAGE = 0.25


class Compiled:
    """`jax.jit` of a function, with the report of a compiler that took a quarter of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._jitted = jax.jit(function)

    def __call__(self, *args: Any) -> Any:
        return self._jitted(*args)

    def lower(self, *args: Any) -> Any:
        return self._jitted.lower(*args)

    def report(self, *args: Any) -> SimpleNamespace:
        return SimpleNamespace(kernels=(), coverage=COVERAGE, predicted=Prediction(1.0, 2.0, 0.7))


def _build(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return x * 2 + 1

    return function, (inputs.normal(size),)


@pytest.fixture
def compile_right() -> type[Compiled]:
    """A compiler without faults."""
    return Compiled


@pytest.fixture
def case() -> Case:
    """A case that takes microseconds."""
    sizes = {"size": 16}
    return Case(name="double", group="test", build=_build, sizes=sizes, tiny=sizes, tolerance=2)
