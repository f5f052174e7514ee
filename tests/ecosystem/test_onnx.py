"""`from_onnx`: models and operators against ONNX's own reference, and what it says of others."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import sys
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


def model(nodes: Sequence[Any], inputs: Mapping[str, np.ndarray], outputs: Sequence[str],
          weights: Mapping[str, np.ndarray] | None = None, opset: int = 17,
          sizes: Mapping[str, Sequence[int | str]] | None = None) -> Any:
    """A checked model; `sizes` are the shapes of inputs that are not those of the arrays."""
    def described(name: str, array: np.ndarray) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, (sizes or {}).get(name, array.shape))

    graph = helper.make_graph(
        list(nodes), "network", [described(*item) for item in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()])
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
    weights = {"w1": floats(8, 3, 3, 3), "w2": floats(8, 1, 3, 3), "w3": floats(8, 8, 1, 1),
               "scale": floats(8), "bias": floats(8), "mean": floats(8),
               "var": np.abs(floats(8)) + 0.5, "w4": floats(16, 5), "b4": floats(5)}
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
        make("GlobalAveragePool", ["k"], ["g"]), make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w4", "b4"], ["y"]), make("Softmax", ["y"], ["out"], axis=-1)]
    inputs = {"x": floats(2, 3, 16, 16)}
    return model(nodes, inputs, ["out"], weights), inputs


def transformer() -> tuple[Any, Mapping[str, np.ndarray]]:
    """A block of BERT: embedding, attention with a mask, normalization, GELU."""
    make = helper.make_node
    weights = {"table": floats(50, 16), "wq": floats(16, 16), "wk": floats(16, 16),
               "wv": floats(16, 16), "g": floats(16), "b": floats(16), "w1": floats(16, 32),
               "w2": floats(32, 16), "heads": np.array([2, 6, 2, 8]), "flat": np.array([2, 6, 16]),
               "root": np.float32(8 ** -0.5), "low": np.float32(-1e9), "zero": np.float32(0)}
    nodes = [make("Gather", ["table", "ids"], ["e"])]
    for name in "qkv":
        nodes += [make("MatMul", ["e", f"w{name}"], [f"{name}0"]),
                  make("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
                  make("Transpose", [f"{name}1"], [name], perm=[0, 2, 1, 3])]
    nodes += [
        make("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), make("MatMul", ["q", "kt"], ["s0"]),
        make("Mul", ["s0", "root"], ["s1"]), make("Where", ["mask", "s1", "low"], ["s"]),
        make("Softmax", ["s"], ["p"], axis=-1), make("MatMul", ["p", "v"], ["o0"]),
        make("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        make("Reshape", ["o1", "flat"], ["o"]), make("Add", ["o", "e"], ["a"]),
        make("LayerNormalization", ["a", "g", "b"], ["n"]), make("MatMul", ["n", "w1"], ["h0"]),
        make("Gelu", ["h0"], ["h"]), make("MatMul", ["h", "w2"], ["out"])]
    inputs = {"ids": RNG.integers(0, 50, (2, 6)).astype(np.int32),
              "mask": RNG.random((2, 1, 6, 6)) < 0.8}
    return model(nodes, inputs, ["out"], weights, opset=20), inputs


@pytest.mark.parametrize("make", [convolutional, transformer], ids=lambda make: make.__name__)
def test_models(make: Any) -> None:
    made, inputs = make()
    ours = check(made, inputs)
    assert [tuple(a.shape) for a in ours.example_args] == [a.shape for a in inputs.values()]


X = floats(2, 8, 6, 4)
SEQUENCE = floats(5, 3, 4)
OPERATORS: Mapping[str, tuple[Sequence[np.ndarray], Mapping[str, Any]]] = {
    "ConvTranspose": ((X, floats(8, 3, 3, 2)), {"strides": [2, 1], "pads": [1, 0, 0, 1],
                                                "output_padding": [1, 0]}),
    "CumSum": ((X, np.array(1)), {"reverse": 1, "exclusive": 1}),
    "DepthToSpace": ((X,), {"blocksize": 2, "mode": "CRD"}),
    "Elu": ((X,), {"alpha": 0.7}), "Floor": ((X * 4,), {}),
    "GatherND": ((X, RNG.integers(0, 6, (2, 3, 2))), {"batch_dims": 1}),
    "GlobalMaxPool": ((X,), {}), "Greater": ((X, floats(6, 4)), {}),
    "GreaterOrEqual": ((X, X), {}), "HardSigmoid": ((X * 4,), {"alpha": 0.3}),
    "HardSwish": ((X * 4,), {}), "InstanceNormalization": ((X, floats(8), floats(8)), {}),
    "IsNaN": ((np.where(X > 1, np.nan, X).astype(np.float32),), {}),
    "LayerNormalization": ((X, floats(6, 4), floats(6, 4)), {"axis": -2, "epsilon": 1e-3}),
    "Mean": ((X, X * 2, floats(2, 8, 6, 4)), {}), "Mod": ((X, X[::-1].copy()), {"fmod": 1}),
    "ReduceL1": ((X,), {"axes": [1, 2]}), "ReduceL2": ((X,), {"axes": [-1], "keepdims": 0}),
    "ReduceLogSumExp": ((X,), {"axes": [1]}), "ReduceMin": ((X,), {}),
    "ReduceProd": ((X,), {"axes": [3]}), "ReduceSumSquare": ((X,), {"axes": [0, 3]}),
    "Round": ((X * 4,), {}),
    "ScatterND": ((X, RNG.permutation(16).reshape(8, 2)[:3] % [2, 8],
                   floats(3, 6, 4)), {"reduction": "add"}),
    "Sign": ((X,), {}), "Softsign": ((X,), {}), "SpaceToDepth": ((X,), {"blocksize": 2}),
    "Tile": ((X, np.array([1, 2, 1, 3])), {}), "Xor": ((X > 0, X > 0.5), {}),
    "LSTM": ((SEQUENCE, floats(1, 24, 4), floats(1, 24, 6), floats(1, 48)), {"hidden_size": 6}),
    "GRU": ((SEQUENCE, floats(1, 18, 4), floats(1, 18, 6), floats(1, 36)),
            {"hidden_size": 6, "linear_before_reset": 1}),
}
_DATA = {"ConvTranspose": 1, "CumSum": 1, "GatherND": 1, "Tile": 1, "ScatterND": 1, "LSTM": 1,
         "GRU": 1, "LayerNormalization": 1, "InstanceNormalization": 1}  # the rest are weights


@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op: str) -> None:
    arrays, attributes = OPERATORS[op]
    names = [f"x{n}" for n in range(len(arrays))]
    outputs = {"LSTM": ["y", "h", "c"], "GRU": ["y", "h"]}.get(op, ["y"])
    count = _DATA.get(op, len(arrays))
    inputs = dict(zip(names[:count], arrays[:count], strict=True))
    made = model([helper.make_node(op, names, outputs, **attributes)], inputs, outputs,
                 dict(zip(names[count:], arrays[count:], strict=True)))
    check(made, inputs, least=0.5)


@pytest.mark.parametrize("attributes", [
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
], ids=lambda attributes: "-".join(attributes.values()))
@pytest.mark.parametrize("how", ["scales", "sizes"])
def test_resizing(attributes: Mapping[str, str], how: str) -> None:
    given = {"scales": {"s": np.array([1, 1, 2, 1.5], np.float32)},
             "sizes": {"n": np.array([2, 8, 9, 3])}}[how]
    names = ["x", "", "s"] if how == "scales" else ["x", "", "", "n"]
    check(model([helper.make_node("Resize", names, ["y"], **attributes)], {"x": X}, ["y"], given),
          {"x": X}, least=0.5)


@pytest.mark.parametrize("attributes", [
    {}, {"cubic_coeff_a": -0.5, "exclude_outside": 1}, {"antialias": 1},
    {"coordinate_transformation_mode": "align_corners"},
    {"coordinate_transformation_mode": "half_pixel_symmetric"},
    {"axes": [3, 2], "keep_aspect_ratio_policy": "not_larger"},
], ids=lambda attributes: "-".join(attributes) or "plain")
def test_cubic_resizing(attributes: Mapping[str, Any]) -> None:
    sizes = np.array([5, 9] if "axes" in attributes else [2, 8, 9, 3])
    check(model([helper.make_node("Resize", ["x", "", "", "n"], ["y"], mode="cubic", **attributes)],
                {"x": X}, ["y"], {"n": sizes}, opset=19), {"x": X}, least=0.5)


# ONNX's own cases, of what most models consist of and of what is most intricate.
CASES = ("resize_*_[al]*", "gridsample_bi*", "loop11", "if", "scan9_sum", "lstm_with*",
         "gru_batch*", "simple_rnn_batch*", "quantizelinear_b*", "dequantizelinear_b*",
         "qlinearconv", "qlinearmatmul_2D_u*", "matmulinteger", "convinteger_*", "maxpool_2d_c*",
         "averagepool_2d_c*", "convtranspose_*", "attention_4d_g*", "rotary_embedding",
         "rms_normalization_2d*", "group_normalization_*", "roialign_*", "sequence_map_*",
         "slice_neg*", "scatter_elements*", "gather_*", "top_k*", "onehot_*", "nonzero_example")


@functools.cache
def conformance() -> tuple[Any, list[tuple[str, Any]]]:
    """The script that runs ONNX's own cases, and those of single operators."""
    sys.path.append(str(Path(__file__).parents[2] / "scripts"))
    script = importlib.import_module("onnx_conformance")
    return script, [(name, case) for name, case in script.cases("node") if "expanded" not in name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", CASES)
def test_cases_of_onnx(pattern: str) -> None:
    script, cases = conformance()
    found = {name: script.judged(case) for name, case in cases
             if fnmatch.fnmatch(name, f"test_{pattern}")}
    assert found and not {name: why for name, why in found.items()
                          if not why[0].startswith("passed")}


@pytest.mark.parametrize("name, expected", [("up", "'up'"), ("", r"number 1 \(y\)")])
def test_what_depends_on_data_is_no_shape(name: str, expected: str) -> None:
    """Never the one that it has for some inputs."""
    made = model([helper.make_node("Relu", ["x"], ["r"]),
                  helper.make_node("Resize", ["r", "", "s"], ["y"], name=name)],
                 {"x": X, "s": np.array([1, 1, 2, 2], np.float32)}, ["y"])
    message = f"^Resize is not supported.* node {expected}: .*scales depends on the model's inputs"
    with pytest.raises(UnsupportedOpError, match=message):
        hlo_mlc.from_onnx(made)(X, np.array([1, 1, 2, 2], np.float32))


def test_constants_of_more_than_32_bits() -> None:
    """They are told of where JAX would cut them, and not where they only bound a slice."""
    far = {"first": np.array([1]), "last": np.array([2**63 - 1]), "most": np.array(2**40)}
    made = model([helper.make_node("Slice", ["x", "first", "last"], ["y"])], {"x": X}, ["y"], far)
    np.testing.assert_array_equal(hlo_mlc.from_onnx(made)(X)[0], X[1:])
    given = np.arange(4)
    made = model([helper.make_node("Add", ["x", "most"], ["y"], name="far")], {"x": given}, ["y"],
                 far)
    with pytest.raises(UnsupportedOpError, match=r"node 'far'.*more than 32 bits"):
        hlo_mlc.from_onnx(made)(given.astype(np.int32))
    with pytest.raises(UsageError, match=r"x\[4\] of network is of type int64, got float32"):
        hlo_mlc.from_onnx(made)(given.astype(np.float32))


def test_shapes_are_computed_when_it_is_imported() -> None:
    """As exporters write them: for each size of the batch anew, and a function of the model."""
    make = helper.make_node
    flat = helper.make_function("own", "Flat", ["x"], ["y"], [
        make("Shape", ["x"], ["sizes"]), make("Constant", [], ["zero"], value_ints=[0]),
        make("Gather", ["sizes", "zero"], ["batch"]),
        make("Constant", [], ["rest"], value_ints=[-1]),
        make("Concat", ["batch", "rest"], ["flat"], axis=0), make("Reshape", ["x", "flat"], ["y"])],
        [helper.make_opsetid("", 17)])
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
    made = model([helper.make_node("Relu", ["x"], ["r"], name="first"),
                  helper.make_node("Add", ["r", "w"], ["y"], name="shift")], {"x": floats(4)},
                 ["y"], {"w": floats(4)}, sizes={"x": ["n"]})
    with pytest.raises(UnsupportedOpError, match=r"^Add is not supported.* node 'shift': "):
        hlo_mlc.from_onnx(made)(floats(5))


def test_groups_of_a_transposed_convolution() -> None:
    """ONNX's reference fails with groups: each is a convolution of its own."""
    w = floats(8, 3, 3, 2)

    def convolved(x: np.ndarray, w: np.ndarray, group: int) -> np.ndarray:
        made = model([helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=group,
                                       strides=[2, 1])], {"x": x}, ["y"], {"w": w})
        return np.asarray(hlo_mlc.from_onnx(made, choose="ours")(x)[0])

    apart = [convolved(X[:, n:n + 4], w[n:n + 4], 1) for n in (0, 4)]
    np.testing.assert_allclose(convolved(X, w, 2), np.concatenate(apart, 1), rtol=1e-4, atol=1e-5)


def test_gelu_and_mish() -> None:
    for op, attributes, opset in (("Gelu", {"approximate": "tanh"}, 20), ("Mish", {}, 18)):
        made = model([helper.make_node(op, ["x"], ["y"], **attributes)], {"x": X}, ["y"],
                     opset=opset)
        check(made, {"x": X})


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_recurrent_layers_in_other_directions(direction: str) -> None:
    """ONNX's reference has only one direction: each is a run of its own, over reversed rows."""
    both = 2 if direction == "bidirectional" else 1
    w, r, b = floats(both, 24, 4), floats(both, 24, 6), floats(both, 48)
    made = model([helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=6,
                                   direction=direction)], {"x": SEQUENCE}, ["y"],
                 {"w": w, "r": r, "b": b})
    (found,) = hlo_mlc.from_onnx(made, choose="ours")(SEQUENCE)
    for d in range(both):
        backwards = direction == "reverse" or d == 1
        rows = SEQUENCE[::-1].copy() if backwards else SEQUENCE
        one = model([helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=6)],
                    {"x": rows}, ["y"], {"w": w[d:d + 1], "r": r[d:d + 1], "b": b[d:d + 1]})
        (expected,) = reference.ReferenceEvaluator(one).run(None, {"x": rows})
        expected = expected[::-1] if backwards else expected
        np.testing.assert_allclose(found[:, d], expected[:, 0], rtol=1e-4, atol=1e-5)


def test_sizes_that_are_free() -> None:
    made = model([helper.make_node("Softmax", ["x"], ["y"])], {"x": floats(4, 7)}, ["y"],
                 sizes={"x": ["batch", 7]})
    ours = hlo_mlc.from_onnx(made, choose="ours")
    assert not hasattr(ours, "example_args") and "x[batch, 7]" in ours.origin.fun.__doc__
    for rows in (1, 4, 9):
        x = floats(rows, 7)
        np.testing.assert_allclose(ours(x)[0], jax.nn.softmax(x), rtol=1e-5)
    with pytest.raises(UsageError, match="takes 1 arguments"):
        ours(x, x)


@pytest.mark.parametrize("name, expected", [("suppress", "'suppress'"), ("", r"number 1 \(y\)")])
def test_an_operator_that_nobody_imports(name: str, expected: str) -> None:
    made = model([helper.make_node("Relu", ["x"], ["r"]),
                  helper.make_node("NonMaxSuppression", ["r", "s"], ["y"], name=name)],
                 {"x": floats(1, 5, 4), "s": floats(1, 2, 5)}, ["y"])
    message = f"^NonMaxSuppression.*node {expected} .*number of its results depends on"
    with pytest.raises(UnsupportedOpError, match=message):
        hlo_mlc.from_onnx(made)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        hlo_mlc.from_onnx(tmp_path / "none.onnx")
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
    np.testing.assert_allclose(loaded.call(x)[0] if hasattr(loaded, "call") else loaded(x)[0],
                               hlo_mlc.from_onnx(path)(x)[0], rtol=1e-4, atol=1e-5)
