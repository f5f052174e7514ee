"""Every example of every op as CUDA C++ on the emulator, against its reference.

The examples are compiled in a few calls of g++, whose results are kept between runs.
"""

from __future__ import annotations

import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.backends.cuda import limits_of
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.ops.registry import DEFINITIONS, evaluate_graph
from hlo_mlc.target import cuda

TEXTS = {
    f"{name}-{k}": text
    for name, definition in DEFINITIONS.items()
    for k, text in enumerate(definition.examples)
    if not name.startswith("lapack.")
}  # programs for GPUs have no calls of it
PARTS = 4
# Roundings that nothing prescribes: of functions, of sums in another order.
ULPS = 64
# Examples without anything to compute: constants, empty tensors, other views of the same elements;
# besides those of ops that GPUs leave to XLA.
WITHOUT_KERNELS = 20
LIMITS = limits_of(cuda.named("sm_90"))


def _split(names: list[str]) -> list[list[str]]:
    return [names[part::PARTS] for part in range(PARTS)]


def _differences(actual: list[np.ndarray], expected: list[np.ndarray]) -> str:
    """What is wrong with results; empty if nothing is."""
    for one, other in zip(actual, expected, strict=True):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{one.dtype}{one.shape} instead of {other.dtype}{other.shape}"
        eps = 0.0
        if jnp.issubdtype(other.dtype, jnp.inexact):
            eps = float(jnp.finfo(other.dtype).eps)
            wide = np.complex128 if other.dtype.kind == "c" else np.float64
            one, other = one.astype(wide), other.astype(wide)
        try:
            np.testing.assert_allclose(one, other, ULPS * eps, ULPS * eps)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("part", range(PARTS))
def test_examples(part: int, take_module_apart, examples, emulator, cuda_source) -> None:
    prepared = {}
    for name in _split(sorted(TEXTS))[part]:
        text = TEXTS[name]
        graph = examples.graph(text)
        arrays = examples.inputs(graph, text, tamed=True)
        parts = take_module_apart(parse_module(text), LIMITS)
        prepared[name] = parts, {p: cuda_source(p) for p in parts.programs}, arrays, graph
    without = [
        name
        for name, (parts, *_) in prepared.items()
        if not parts.programs and name.rpartition("-")[0] not in LIMITS.left
    ]
    assert len(without) <= WITHOUT_KERNELS // PARTS + 3, without
    emulator.prepare(
        [s for _, sources, *_ in prepared.values() for s in sources.values()], run_once=True
    )
    wrong = {}
    for name, (parts, sources, arrays, graph) in prepared.items():
        order = zlib.crc32(name.encode()) % 9

        def execute(program, operands, sources=sources, order=order):
            return emulator.run(
                sources[program], program, operands, order, "end" if order % 2 else "start"
            )

        found = _differences(parts.run(arrays, execute), evaluate_graph(graph, arrays))
        if found:
            wrong[name] = found
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())
