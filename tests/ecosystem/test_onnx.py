"""`from_onnx`: models and operators against ONNX's own reference, and what it says of others."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import hlo_mlc
from hlo_mlc.cli import main
from hlo_mlc.support.errors import FrontendError, UnsupportedOpError, UsageError

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


def convolutional() -> tuple[Any, Mapping[str, np.ndarray]]:
    """A residual network: what ResNet, MobileNet and SqueezeNet consist of."""
    make = helper.make_node
    weights = {
        "w1": floats(8, 3, 3, 3),
        "w2": floats(8, 1, 3, 3),
        "w3": floats(8, 8, 1, 1),
        "scale": floats(8),
        "bias": floats(8),
        "mean": floats(8),
        "var": np.abs(floats(8)) + 0.5,
        "w4": floats(16, 5),
        "b4": floats(5),
    }
    nodes = [
        make("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        make("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["n1"]),
        make("Relu", ["n1"], ["r1"]),
        make("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        make("HardSwish", ["c2"], ["h2"]),
        make("Conv", ["h2", "w3"], ["c3"]),
        make("Add", ["c3", "r1"], ["a"]),
        make("MaxPool", ["a"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        make("AveragePool", ["a"], ["v"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Concat", ["m", "v"], ["k"], axis=1),
        make("GlobalAveragePool", ["k"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w4", "b4"], ["y"]),
        make("Softmax", ["y"], ["out"], axis=-1),
    ]
    inputs = {"x": floats(2, 3, 16, 16)}
    return model(nodes, inputs, ["out"], weights), inputs


def transformer() -> tuple[Any, Mapping[str, np.ndarray]]:
    """A block of BERT: embedding, attention with a mask, normalization, GELU."""
    make = helper.make_node
    weights = {
        "table": floats(50, 16),
        "wq": floats(16, 16),
        "wk": floats(16, 16),
        "wv": floats(16, 16),
        "g": floats(16),
        "b": floats(16),
        "w1": floats(16, 32),
        "w2": floats(32, 16),
        "heads": np.array([2, 6, 2, 8]),
        "flat": np.array([2, 6, 16]),
        "root": np.float32(8**-0.5),
        "low": np.float32(-1e9),
        "zero": np.float32(0),
    }
    nodes = [make("Gather", ["table", "ids"], ["e"])]
    for name in "qkv":
        nodes += [
            make("MatMul", ["e", f"w{name}"], [f"{name}0"]),
            make("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            make("Transpose", [f"{name}1"], [name], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        make("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        make("MatMul", ["q", "kt"], ["s0"]),
        make("Mul", ["s0", "root"], ["s1"]),
        make("Where", ["mask", "s1", "low"], ["s"]),
        make("Softmax", ["s"], ["p"], axis=-1),
        make("MatMul", ["p", "v"], ["o0"]),
        make("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        make("Reshape", ["o1", "flat"], ["o"]),
        make("Add", ["o", "e"], ["a"]),
        make("LayerNormalization", ["a", "g", "b"], ["n"]),
        make("MatMul", ["n", "w1"], ["h0"]),
        make("Gelu", ["h0"], ["h"]),
        make("MatMul", ["h", "w2"], ["out"]),
    ]
    inputs = {
        "ids": RNG.integers(0, 50, (2, 6)).astype(np.int32),
        "mask": RNG.random((2, 1, 6, 6)) < 0.8,
    }
    return model(nodes, inputs, ["out"], weights, opset=20), inputs


@pytest.mark.parametrize("make", [convolutional, transformer], ids=lambda make: make.__name__)
def test_models(make: Any) -> None:
    made, inputs = make()
    ours = check(made, inputs)
    assert [tuple(a.shape) for a in ours.example_args] == [a.shape for a in inputs.values()]


X = floats(2, 8, 6, 4)
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


@pytest.mark.parametrize("name, expected", [("up", "'up'"), ("", r"number 1 \(y\)")])
def test_what_depends_on_data_is_no_shape(name: str, expected: str) -> None:
    """Never the one that it has for some inputs."""
    made = model(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Resize", ["r", "", "s"], ["y"], name=name),
        ],
        {"x": X, "s": np.array([1, 1, 2, 2], np.float32)},
        ["y"],
    )
    message = f"^Resize is not supported: node {expected} .*: its input scales depends .*constant"
    with pytest.raises(UnsupportedOpError, match=message):
        hlo_mlc.from_onnx(made)(X, np.array([1, 1, 2, 2], np.float32))


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


def info(name: str, kind: Any, *sizes: int) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), sizes
    )


def test_loops() -> None:
    """One that goes on while it holds, of at most as many iterations as there are; and a scan,
    where what it starts from is known."""
    make, inside = helper.make_node, [info("i", int), info("go", bool), info("s", np.float32)]
    body = helper.make_graph(
        [make("Add", ["s", "s"], ["t"]), make("Less", ["t", "end"], ["on"])],
        "body",
        inside,
        [info("on", bool), info("t", np.float32)],
    )
    x = np.array(1.5, np.float32)
    made = model(
        [make("Loop", ["most", "", "x"], ["y"], body=body)],
        {"x": x},
        [info("y", np.float32)],
        {"end": np.array(9, np.float32), "most": np.array(2**63 - 1)},
    )
    assert hlo_mlc.from_onnx(made, choose="ours")(x)[0] == 12
    body = helper.make_graph(
        [
            make("Gather", ["x", "i"], ["e"]),
            make("Add", ["s", "e"], ["t"]),
            make("Identity", ["go"], ["on"]),
            make("Identity", ["t"], ["row"]),
        ],
        "body",
        inside,
        [info("on", bool), info("t", np.float32), info("row", np.float32)],
    )
    made = model(
        [make("Loop", ["count", "", "zero"], ["y", "rows"], body=body)],
        {"x": floats(90)},
        [info("y", np.float32), info("rows", np.float32, 90)],
        {"count": np.array(90), "zero": np.array(0, np.float32)},
    )
    ours, x = hlo_mlc.from_onnx(made, choose="ours"), floats(90)
    last, rows = ours(x)
    np.testing.assert_allclose(rows, np.cumsum(x), 1e-4, 1e-5)
    assert last == rows[-1] and "scan[" in str(jax.make_jaxpr(ours.origin.fun)(x))


def test_graphs_see_what_is_around_them() -> None:
    x, w = floats(4), floats(4)
    body = helper.make_graph(
        [helper.make_node("Mul", ["e", "x"], ["o"])],
        "body",
        [info("e", np.float32, 4)],
        [info("o", np.float32, 4)],
    )
    made = model(
        [
            helper.make_node("SequenceConstruct", ["x", "w"], ["parts"]),
            helper.make_node("SequenceMap", ["parts"], ["scaled"], body=body),
            helper.make_node("ConcatFromSequence", ["scaled"], ["y"], axis=0),
        ],
        {"x": x},
        [info("y", np.float32, 8)],
        {"w": w},
    )
    np.testing.assert_allclose(hlo_mlc.from_onnx(made)(x)[0], np.concatenate([x * x, w * x]), 1e-5)


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


def test_shapes_are_computed_when_it_is_imported() -> None:
    """As exporters write them: for each size of the batch anew, and a function of the model."""
    make = helper.make_node
    flat = helper.make_function(
        "own",
        "Flat",
        ["x"],
        ["y"],
        [
            make("Shape", ["x"], ["sizes"]),
            make("Constant", [], ["zero"], value_ints=[0]),
            make("Gather", ["sizes", "zero"], ["batch"]),
            make("Constant", [], ["rest"], value_ints=[-1]),
            make("Concat", ["batch", "rest"], ["flat"], axis=0),
            make("Reshape", ["x", "flat"], ["y"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    made = model([make("Relu", ["x"], ["r"])], {"x": X}, ["r"], sizes={"x": ["n", 8, 6, 4]})
    made.graph.node.append(make("Flat", ["r"], ["y"], domain="own"))
    made.graph.output[0].name = "y"
    made.graph.output[0].type.tensor_type.shape.Clear()
    for _ in range(2):
        made.graph.output[0].type.tensor_type.shape.dim.add()
    made.functions.append(flat)
    made.opset_import.append(helper.make_opsetid("own", 1))
    ours = hlo_mlc.from_onnx(made, choose="ours")
    for rows in (1, 2):
        np.testing.assert_array_equal(ours(X[:rows])[0], np.maximum(X[:rows].reshape(rows, -1), 0))


def test_shapes_that_do_not_fit_are_told_of_their_node() -> None:
    """Known when it is called: the model leaves the length open."""
    made = model(
        [
            helper.make_node("Relu", ["x"], ["r"], name="first"),
            helper.make_node("Add", ["r", "w"], ["y"], name="shift"),
        ],
        {"x": floats(4)},
        ["y"],
        {"w": floats(4)},
        sizes={"x": ["n"]},
    )
    with pytest.raises(UnsupportedOpError, match=r"^Add is not supported: node 'shift' cannot "):
        hlo_mlc.from_onnx(made)(floats(5))


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


def test_sizes_that_are_free() -> None:
    made = model(
        [helper.make_node("Softmax", ["x"], ["y"])],
        {"x": floats(4, 7)},
        ["y"],
        sizes={"x": ["batch", 7]},
    )
    ours = hlo_mlc.from_onnx(made, choose="ours")
    assert not hasattr(ours, "example_args") and "x[batch,7]" in ours.origin.fun.__doc__
    for rows in (1, 4, 9):
        x = floats(rows, 7)
        np.testing.assert_allclose(ours(x)[0], jax.nn.softmax(x), rtol=1e-5)
    with pytest.raises(UsageError, match="takes 1 argument "):
        ours(x, x)


@pytest.mark.parametrize("name, expected", [("suppress", "'suppress'"), ("", r"number 1 \(y\)")])
def test_an_operator_that_nobody_imports(name: str, expected: str) -> None:
    made = model(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("NonMaxSuppression", ["r", "s"], ["y"], name=name),
        ],
        {"x": floats(1, 5, 4), "s": floats(1, 2, 5)},
        ["y"],
    )
    message = f"^NonMaxSuppression.*node {expected} .*number of its results .*end the model before"
    with pytest.raises(UnsupportedOpError, match=message):
        hlo_mlc.from_onnx(made)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        hlo_mlc.from_onnx(tmp_path / "none.onnx")
    made, inputs = convolutional()
    expected = hlo_mlc.from_onnx(made, choose="ours")(*inputs.values())
    made.opset_import[0].version = 999
    with pytest.raises(UsageError, match=r"uses set 999 .* knows those up to \d+: pip install"):
        hlo_mlc.from_onnx(made)
    made.opset_import[0].version = 17
    onnx.save(
        made,
        tmp_path / "large.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    found = hlo_mlc.from_onnx(tmp_path / "large.onnx", choose="ours")(*inputs.values())
    np.testing.assert_array_equal(found, expected)
    (tmp_path / "weights").unlink()
    with pytest.raises(FrontendError, match=r"no valid ONNX model: .*weights"):
        hlo_mlc.from_onnx(tmp_path / "large.onnx")
    (tmp_path / "some.onnx").write_bytes(b"not a model")
    with pytest.raises(FrontendError, match="no valid ONNX model"):
        hlo_mlc.from_onnx(tmp_path / "some.onnx")


def test_the_command_line(tmp_path: Path) -> None:
    made, _ = convolutional()
    path = tmp_path / "network.onnx"
    onnx.save(made, path)
    shown = CliRunner().invoke(main, ["inspect", str(path), "--choose", "ours"])
    assert shown.exit_code == 0 and "conv" in shown.output
    timed = CliRunner().invoke(main, ["bench", str(path), "--choose", "ours", "--rounds", "2"])
    assert timed.exit_code == 0 and "jax.jit / ours" in timed.output
    file = tmp_path / "network.mlc"
    written = CliRunner().invoke(main, ["export", str(path), "-o", str(file)])
    assert written.exit_code == 0, written.output
    x = floats(2, 3, 16, 16)
    loaded = hlo_mlc.load(file)
    np.testing.assert_allclose(
        loaded.call(x)[0] if hasattr(loaded, "call") else loaded(x)[0],
        hlo_mlc.from_onnx(path)(x)[0],
        rtol=1e-4,
        atol=1e-5,
    )
