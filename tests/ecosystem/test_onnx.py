"""`from_onnx`: models and operators against ONNX's own reference, and what it says of others."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hlo_mlc
from hlo_mlc.support.errors import UnsupportedOpError, UsageError
from making.onnx_models import RNG, X, check, floats, helper, model, onnx, reference

SEQUENCE = floats(5, 3, 4)


OPERATORS: Mapping[str, tuple[Sequence[np.ndarray], Mapping[str, Any]]] = {
    "ConvTranspose": (
        (X, floats(8, 3, 3, 2)),
        {"strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
    ),
    "CumSum": ((X, np.array(1)), {"reverse": 1, "exclusive": 1}),
    "DepthToSpace": ((X,), {"blocksize": 2, "mode": "CRD"}),
    "Elu": ((X,), {"alpha": 0.7}),
    "Floor": ((X * 4,), {}),
    "GatherND": ((X, RNG.integers(0, 6, (2, 3, 2))), {"batch_dims": 1}),
    "GlobalMaxPool": ((X,), {}),
    "Greater": ((X, floats(6, 4)), {}),
    "GreaterOrEqual": ((X, X), {}),
    "HardSigmoid": ((X * 4,), {"alpha": 0.3}),
    "HardSwish": ((X * 4,), {}),
    "InstanceNormalization": ((X, floats(8), floats(8)), {}),
    "IsNaN": ((np.where(X > 1, np.nan, X).astype(np.float32),), {}),
    "LayerNormalization": ((X, floats(6, 4), floats(6, 4)), {"axis": -2, "epsilon": 1e-3}),
    "Mean": ((X, X * 2, floats(2, 8, 6, 4)), {}),
    "Mod": ((X, X[::-1].copy()), {"fmod": 1}),
    "ReduceL1": ((X,), {"axes": [1, 2]}),
    "ReduceL2": ((X,), {"axes": [-1], "keepdims": 0}),
    "ReduceLogSumExp": ((X,), {"axes": [1]}),
    "ReduceMin": ((X,), {}),
    "ReduceProd": ((X,), {"axes": [3]}),
    "ReduceSumSquare": ((X,), {"axes": [0, 3]}),
    "Round": ((X * 4,), {}),
    "ScatterND": (
        (X, RNG.permutation(16).reshape(8, 2)[:3] % [2, 8], floats(3, 6, 4)),
        {"reduction": "add"},
    ),
    "Sign": ((X,), {}),
    "Softsign": ((X,), {}),
    "SpaceToDepth": ((X,), {"blocksize": 2}),
    "Tile": ((X, np.array([1, 2, 1, 3])), {}),
    "Xor": ((X > 0, X > 0.5), {}),
    "LSTM": ((SEQUENCE, floats(1, 24, 4), floats(1, 24, 6), floats(1, 48)), {"hidden_size": 6}),
    "GRU": (
        (SEQUENCE, floats(1, 18, 4), floats(1, 18, 6), floats(1, 36)),
        {"hidden_size": 6, "linear_before_reset": 1},
    ),
}


_DATA = {
    "ConvTranspose": 1,
    "CumSum": 1,
    "GatherND": 1,
    "Tile": 1,
    "ScatterND": 1,
    "LSTM": 1,
    "GRU": 1,
    "LayerNormalization": 1,
    "InstanceNormalization": 1,
}  # the rest are weights


@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op: str) -> None:
    arrays, attributes = OPERATORS[op]
    names = [f"x{n}" for n in range(len(arrays))]
    outputs = {"LSTM": ["y", "h", "c"], "GRU": ["y", "h"]}.get(op, ["y"])
    count = _DATA.get(op, len(arrays))
    inputs = dict(zip(names[:count], arrays[:count], strict=True))
    made = model(
        [helper.make_node(op, names, outputs, **attributes)],
        inputs,
        outputs,
        dict(zip(names[count:], arrays[count:], strict=True)),
    )
    check(made, inputs, least=0.5)


@pytest.mark.parametrize(
    "attributes",
    [
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        {"mode": "nearest"},
        {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ],
    ids=lambda attributes: "-".join(attributes.values()),
)
@pytest.mark.parametrize("how", ["scales", "sizes"])
def test_resizing(attributes: Mapping[str, str], how: str) -> None:
    given = {
        "scales": {"s": np.array([1, 1, 2, 1.5], np.float32)},
        "sizes": {"n": np.array([2, 8, 9, 3])},
    }[how]
    names = ["x", "", "s"] if how == "scales" else ["x", "", "", "n"]
    check(
        model([helper.make_node("Resize", names, ["y"], **attributes)], {"x": X}, ["y"], given),
        {"x": X},
        least=0.5,
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"antialias": 1},
        {"coordinate_transformation_mode": "align_corners"},
        {"coordinate_transformation_mode": "half_pixel_symmetric"},
        {"axes": [3, 2], "keep_aspect_ratio_policy": "not_larger"},
    ],
    ids=lambda attributes: "-".join(attributes) or "plain",
)
def test_cubic_resizing(attributes: Mapping[str, Any]) -> None:
    sizes = np.array([5, 9] if "axes" in attributes else [2, 8, 9, 3])
    check(
        model(
            [helper.make_node("Resize", ["x", "", "", "n"], ["y"], mode="cubic", **attributes)],
            {"x": X},
            ["y"],
            {"n": sizes},
            opset=19,
        ),
        {"x": X},
        least=0.5,
    )


@pytest.mark.parametrize(
    "attributes", [{}, {"onesided": 1}, {"inverse": 1}], ids=lambda given: "-".join(given) or "all"
)
@pytest.mark.parametrize("length", [None, 8, 12], ids=["whole", "cut", "longer"])
@pytest.mark.parametrize("opset", [17, 20])
def test_fourier_transforms(attributes: Mapping[str, int], length: int | None, opset: int) -> None:
    signal = floats(3, 10, 4, 1 if "onesided" in attributes else 2)
    sizes = {} if length is None else {"n": np.array(length)}
    names, axis = ["x", "n" if sizes else ""], {"axis": 1}
    if opset == 20:
        names, sizes, axis = [*names, "axis"], {**sizes, "axis": np.array(-3)}, {}
    node = helper.make_node("DFT", names, ["y"], **attributes, **axis)
    check(model([node], {"x": signal}, ["y"], sizes, opset=opset), {"x": signal}, least=0.8)


def test_a_signal_from_half_of_its_frequencies() -> None:
    signal = floats(3, 10)
    half = np.fft.rfft(signal)
    x = np.stack((half.real, half.imag), -1).astype(np.float32)
    node = helper.make_node("DFT", ["x"], ["y"], inverse=1, onesided=1)
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 10, 1))
    ours = hlo_mlc.from_onnx(model([node], {"x": x}, [out], opset=20), choose="ours")
    np.testing.assert_allclose(ours(x)[0][..., 0], signal, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("one_sided", [0, 1])
@pytest.mark.parametrize("window", [None, 16], ids=["frames", "window"])
def test_spectra_of_windows(one_sided: int, window: int | None) -> None:
    """And the bands that are summed up from them."""
    signal, sizes = floats(2, 103, 1), {"step": np.array(5), "frame": np.array(16)}
    if window:
        sizes["window"] = np.hanning(window).astype(np.float32)
    names = ["x", "step", "window" if window else "", "frame"]
    nodes = [helper.make_node("STFT", names, ["y"], onesided=one_sided)]
    check(model(nodes, {"x": signal}, ["y"], sizes), {"x": signal}, least=0.8)


def test_bands_of_a_spectrum() -> None:
    given = {
        "bands": np.array(6),
        "length": np.array(64),
        "rate": np.array(8000),
        "low": np.float32(0),
        "high": np.float32(3700),
    }
    power = floats(3, 33) ** 2
    nodes = [
        helper.make_node("MelWeightMatrix", list(given), ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    check(model(nodes, {"x": power}, ["y"], given), {"x": power})


@pytest.mark.parametrize("groups, kinds", [(1, 1), (2, 1), (1, 2), (4, 2)])
def test_windows_that_are_deformed(groups: int, kinds: int) -> None:
    """Each element is read somewhere else, also outside and between others."""
    inputs = {
        "x": floats(2, 4, 6, 5),
        "offset": 2 * floats(2, kinds * 2 * 3 * 2, 3, 4),
        "mask": floats(2, kinds * 2 * 3, 3, 4),
    }
    weights = {"w": floats(8, 4 // groups, 2, 3), "b": floats(8)}
    node = helper.make_node(
        "DeformConv",
        ["x", "w", "offset", "b", "mask"],
        ["y"],
        group=groups,
        offset_group=kinds,
        kernel_shape=[2, 3],
        strides=[2, 1],
        dilations=[2, 1],
        pads=[0, 0, 1, 1],
    )
    check(model([node], inputs, ["y"], weights, opset=19), inputs)


# ONNX's own cases, of what is most intricate: `scripts/onnx_conformance.py` runs all.
CASES = (
    "attention_4d_gqa",
    "averagepool_2d_ceil",
    "convtranspose_group_2",
    "deform_conv_with_multiple_offset_groups",
    "dequantizelinear_blocked",
    "dft_inverse",
    "gridsample_bicubic",
    "group_normalization_epsilon",
    "if",
    "loop11",
    "lstm_with_peepholes",
    "maxpool_2d_ceil",
    "melweightmatrix",
    "qlinearconv",
    "quantizelinear_blocked_asymmetric",
    "resize_downsample_scales_cubic_antialias",
    "roialign_aligned_true",
    "scan9_sum",
    "scatter_elements_with_negative_indices",
    "sequence_map_add_2_sequences",
    "slice_neg_steps",
    "stft_with_window",
    "topk_negative_axis",
)


@pytest.mark.filterwarnings("ignore")
def test_cases_of_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    script = importlib.import_module("onnx_conformance")
    found = {
        name: script.judged(case)[0]
        for name, case in script.cases("node")
        if name.removeprefix("test_") in CASES
    }
    assert len(found) > 12  # older ONNX has fewer
    assert {verdict.partition(",")[0] for verdict in found.values()} == {"passed"}, found


def test_constants_of_more_than_32_bits() -> None:
    """They are told of where JAX would cut them, and not where they only bound a slice."""
    far = {"first": np.array([1]), "last": np.array([2**63 - 1]), "most": np.array(2**40)}
    made = model([helper.make_node("Slice", ["x", "first", "last"], ["y"])], {"x": X}, ["y"], far)
    np.testing.assert_array_equal(hlo_mlc.from_onnx(made)(X)[0], X[1:])
    given = np.arange(4)
    made = model(
        [helper.make_node("Add", ["x", "most"], ["y"], name="far")], {"x": given}, ["y"], far
    )
    with pytest.raises(UnsupportedOpError, match=r"node 'far'.*more than 32 bits"):
        hlo_mlc.from_onnx(made)(given.astype(np.int32))
    for other, kind in ((given.astype(np.float32), r"float32\[4\]"), (given[:3], r"int32\[3\]")):
        with pytest.raises(UsageError, match=rf"x\[4\] of network is of type int64, got {kind}"):
            hlo_mlc.from_onnx(made)(other)
    made = model(
        [helper.make_node("Clip", ["x", "first", "last"], ["y"])],
        {"x": given},
        ["y"],
        {name: far[name].reshape(()) for name in ("first", "last")},
    )
    np.testing.assert_array_equal(hlo_mlc.from_onnx(made)(given)[0], [1, 1, 2, 3])


@pytest.mark.parametrize(
    "op, attributes, opset, inputs, expected",
    [
        ("ReduceMean", {"keepdims": 0}, 17, ([-2, 1, -1],), 0),
        ("Div", {}, 17, ([-7, 7, -7], [2, -2, -2]), [-3, -3, 3]),
        ("Mod", {}, 17, ([-7, 7, -7], [2, -2, -2]), [1, -1, -1]),
        ("Mod", {"fmod": 1}, 17, ([-7, 7, -7], [2, -2, -2]), [-1, 1, -1]),
        ("Pow", {}, 17, ([3, -3, 7], np.array([5, 3, 6], np.float32)), [243, -27, 117649]),
        ("Hardmax", {"axis": -2}, 11, (np.float32([[[1, 3], [4, 2]]]),), [[[0, 0], [1, 0]]]),
        (
            "Slice",
            {},
            17,
            ([1, 2, 3, 4], np.array([9]), np.array([-9]), np.array([0]), np.array([-2])),
            [4, 2],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_meanings(op: str, attributes: Any, opset: int, inputs: Any, expected: Any) -> None:
    arrays = {
        f"x{n}": np.asarray(given, None if hasattr(given, "dtype") else np.int32)
        for n, given in enumerate(inputs)
    }
    weights = {name: arrays.pop(name) for name in list(arrays)[1:]} if op == "Slice" else {}
    made = model(
        [helper.make_node(op, [*arrays, *weights], ["y"], **attributes)],
        arrays,
        ["y"],
        weights,
        opset,
    )
    (found,) = hlo_mlc.from_onnx(made)(*arrays.values())
    assert found.dtype == arrays["x0"].dtype
    np.testing.assert_array_equal(found, expected)


def test_groups_of_a_transposed_convolution() -> None:
    """ONNX's reference fails with groups: each is a convolution of its own."""
    w = floats(8, 3, 3, 2)

    def convolved(x: np.ndarray, w: np.ndarray, group: int) -> np.ndarray:
        made = model(
            [helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=group, strides=[2, 1])],
            {"x": x},
            ["y"],
            {"w": w},
        )
        return np.asarray(hlo_mlc.from_onnx(made, choose="ours")(x)[0])

    apart = [convolved(X[:, n : n + 4], w[n : n + 4], 1) for n in (0, 4)]
    np.testing.assert_allclose(convolved(X, w, 2), np.concatenate(apart, 1), rtol=1e-4, atol=1e-5)


def test_gelu_and_mish() -> None:
    for op, attributes, opset in (("Gelu", {"approximate": "tanh"}, 20), ("Mish", {}, 18)):
        made = model(
            [helper.make_node(op, ["x"], ["y"], **attributes)], {"x": X}, ["y"], opset=opset
        )
        check(made, {"x": X})


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_recurrent_layers_in_other_directions(direction: str) -> None:
    """ONNX's reference has only one direction: each is a run of its own, over reversed rows."""
    both = 2 if direction == "bidirectional" else 1
    w, r, b = floats(both, 24, 4), floats(both, 24, 6), floats(both, 48)
    made = model(
        [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=6, direction=direction)],
        {"x": SEQUENCE},
        ["y"],
        {"w": w, "r": r, "b": b},
    )
    (found,) = hlo_mlc.from_onnx(made, choose="ours")(SEQUENCE)
    for d in range(both):
        backwards = direction == "reverse" or d == 1
        rows = SEQUENCE[::-1].copy() if backwards else SEQUENCE
        one = model(
            [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=6)],
            {"x": rows},
            ["y"],
            {"w": w[d : d + 1], "r": r[d : d + 1], "b": b[d : d + 1]},
        )
        (expected,) = reference.ReferenceEvaluator(one).run(None, {"x": rows})
        expected = expected[::-1] if backwards else expected
        np.testing.assert_allclose(found[:, d], expected[:, 0], rtol=1e-4, atol=1e-5)
