"""Modules as other exporters write them, held against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hlo_mlc import compile_stablehlo

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def check(text: str, expected: Callable[..., Any], *arrays: np.ndarray, rtol: float = 1e-5) -> Any:
    """The function @main of a text, in kernels as a whole, gives what NumPy does."""
    function = compile_stablehlo(text, choose="ours")
    wanted = expected(*arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for ours, theirs in zip(function(*arrays), wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
    assert function.report().coverage == 1
    return function


SIZES = np.array([3, 0, 5, 2])  # of 11 rows, of which the last is in no group
