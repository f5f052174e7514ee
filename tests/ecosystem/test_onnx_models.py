"""Whole models of ONNX: their graphs, loops, free sizes, and what is none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import hlo_mlc
from hlo_mlc.cli import main
from hlo_mlc.support.errors import FrontendError, UnsupportedOpError, UsageError
from making.onnx_models import RNG, X, check, floats, helper, model, onnx


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
    for name in ("none.onnx", f"{'long' * 100}.onnx", "zero\0.onnx"):
        with pytest.raises(UsageError, match="no file"):
            hlo_mlc.from_onnx(tmp_path / name)
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
