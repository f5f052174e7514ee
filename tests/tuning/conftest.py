"""A small matrix product to tune, with its operands and its result by NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlo_mlc.target.cpu import host
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.generator import Generator, TemplateGenerator
from hlo_mlc.tuning.messages import Task

# Workers look for modules where we do.
sys.path.append(str(Path(__file__).parent))

SIZE = 96


@pytest.fixture(scope="session")
def product(take_apart) -> TensorProgram:
    """x @ y + 1"""
    x = np.zeros((SIZE, SIZE), np.float32)
    (program,) = take_apart(lambda x, y: x @ y + 1, x, x).programs
    return program


@pytest.fixture(scope="session")
def nearly(take_apart) -> TensorProgram:
    """x @ y + 1.001"""
    x = np.zeros((SIZE, SIZE), np.float32)
    (program,) = take_apart(lambda x, y: x @ y + 1.001, x, x).programs
    return program


@pytest.fixture
def task(product, arrays) -> Callable[..., Task]:
    """`task(generator)`: to tune the product with it."""
    x, y = arrays("float32", (SIZE, SIZE), (SIZE, SIZE))

    def make(generator: Generator | None = None, offset: float = 1.0) -> Task:
        expected = (x.astype(np.float64) @ y + offset).astype(np.float32)
        return Task(product, host(), generator or TemplateGenerator(), (x, y), (expected,))

    return make
