"""Models of ONNX, held against its own reference; what imports this is skipped without onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import hlo_mlc

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
helper = onnx.helper
RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str | Any],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    sizes: Mapping[str, Sequence[int | str]] | None = None,
) -> Any:
    """A checked model; `sizes` are the shapes of inputs that are not those of the arrays. Outputs
    are names where ONNX infers their types."""

    def described(name: str, array: np.ndarray) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, (sizes or {}).get(name, array.shape))

    graph = helper.make_graph(
        list(nodes),
        "network",
        [described(*item) for item in inputs.items()],
        [
            helper.make_empty_tensor_value_info(out) if isinstance(out, str) else out
            for out in outputs
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, check_type=True)


def check(made: Any, inputs: Mapping[str, np.ndarray], least: float = 0.9) -> Any:
    """Ours gives what ONNX's reference gives, from kernels of ours."""
    expected = reference.ReferenceEvaluator(made).run(None, dict(inputs))
    ours = hlo_mlc.from_onnx(made, choose="ours")
    found = ours(*inputs.values())
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    report = ours.report(*inputs.values())
    assert report.coverage >= least, report.explain()
    return ours


X = floats(2, 8, 6, 4)
