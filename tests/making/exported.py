"""What tests of exported functions export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hlo_mlc.runtime.archive import read_archive

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")

PARAMETERS = {
    "w": np.linspace(-1, 1, 48 * 32, dtype=np.float32).reshape(48, 32),
    "b": np.arange(32, dtype=np.float32),
}

X = np.linspace(0, 1, 16 * 48, dtype=np.float32).reshape(16, 48)


def layer(parameters: dict, x: jax.Array, *, scale: float = 1.0) -> dict:
    hidden = jax.nn.softmax(x @ parameters["w"] + parameters["b"] * scale)
    return {"hidden": hidden, "best": (jnp.argmax(hidden, 1), None)}


def same(actual, expected) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def kernels_of(path: Path) -> list[str]:
    return [k for entry in read_archive(path).description["entries"] for k in entry["kernels"]]


def rows_of_48(size: str, constraints: Sequence[str] = ()) -> jax.ShapeDtypeStruct:
    (rows,) = jax.export.symbolic_shape(size, constraints=constraints)
    return jax.ShapeDtypeStruct((rows, 48), jnp.float32)


def hidden(parameters, x):
    return jax.nn.softmax(jax.nn.gelu(x @ parameters["w"] + parameters["b"]))
