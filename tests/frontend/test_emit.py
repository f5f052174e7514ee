"""Writing graphs that passes changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from jaxlib.mlir import ir

from hlo_mlc.expr import dtypes
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.frontend.emit import KERNEL_OP, emit_module
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.support.errors import FrontendError

MATRIX = TensorType((2, 3), dtypes.F32)

TEXT = """\
module @named attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, \
%arg1: tensor<2x3xf32> {jax.buffer_donor = true}) -> (tensor<2x3xf32> {jax.result_info = "out"}) {
    %0 = stablehlo.sine %arg0 : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"""


@pytest.fixture
def module() -> ir.Module:
    return parse_module(TEXT)


def _line(module: ir.Module, word: str) -> str:
    (line,) = [line.strip() for line in str(module).splitlines() if word in line]
    return line


def _kernel(operands: tuple[Value, ...], results: int, aliases: tuple = ()) -> Node:
    attributes = {"id": "abc", "aliases": aliases, "dims": (7, 8)}
    return Node(KERNEL_OP, operands, tuple(Value(MATRIX) for _ in range(results)), attributes)


def test_kernel_becomes_one_typed_custom_call(module: ir.Module) -> None:
    graph = import_function(module)
    kernel = _kernel(graph.parameters, 1, ((0, 1),))
    emitted = emit_module(Graph(graph.parameters, (kernel,), kernel.results), module)
    line = _line(emitted, "custom_call")
    assert "custom_call @hlo_mlc_kernel(%arg0, %arg1)" in line
    assert "api_version = 4" in line
    assert "has_side_effect" not in line  # false is the default
    assert 'backend_config = {dims = array<i64: 7, 8>, id = "abc"}' in line
    layout = "dense<[1, 0]> : tensor<2xindex>"
    assert f"operand_layouts = [{layout}, {layout}], " in line
    assert f"result_layouts = [{layout}]" in line
    assert (
        "output_operand_alias<output_tuple_indices = [], operand_index = 1, "
        "operand_tuple_indices = []>" in line
    )
    # Names, donation and results of the function stay.
    assert TEXT.splitlines()[:2] == str(emitted).splitlines()[:2]


def test_kernel_of_several_results_names_the_aliased_one(module: ir.Module) -> None:
    graph = import_function(module)
    kernel = _kernel(graph.parameters, 2, ((1, 0),))
    emitted = emit_module(Graph(graph.parameters, (kernel,), kernel.results[:1]), module)
    assert "output_tuple_indices = [1], operand_index = 0" in _line(emitted, "custom_call")


def test_no_call_is_all_of_a_tuple(module: ir.Module) -> None:
    """A call with several results has one more, which nothing reads; it is the scratch if any."""
    graph = import_function(module)
    for results, scratch, types in (
        (1, 0, "tensor<2x3xf32>"),
        (2, 0, "(tensor<2x3xf32>, tensor<2x3xf32>, tensor<0xui8>)"),
        (1, 64, "(tensor<2x3xf32>, tensor<64xui8>)"),
        (2, 64, "(tensor<2x3xf32>, tensor<2x3xf32>, tensor<64xui8>)"),
    ):
        kernel = _kernel(graph.parameters, results)
        kernel = dataclasses.replace(
            kernel, attributes={**kernel.attributes, "scratch_bytes": scratch}
        )
        emitted = emit_module(Graph(graph.parameters, (kernel,), kernel.results[:1]), module)
        assert _line(emitted, "custom_call").endswith(f"-> {types}")


@pytest.mark.parametrize(
    ("aliases", "what"), [(((0, 0), (1, 0)), "each operand"), (((0, 0), (0, 1)), "each result")]
)
def test_aliases_are_one_to_one(module: ir.Module, aliases: tuple, what: str) -> None:
    graph = import_function(module)
    kernel = _kernel(graph.parameters, 2, aliases)
    with pytest.raises(FrontendError, match=f"expected {what} of a kernel in one alias at most"):
        emit_module(Graph(graph.parameters, (kernel,), kernel.results[:1]), module)


def test_source_stays_as_it_was(module: ir.Module) -> None:
    graph = import_function(module)
    emit_module(Graph(graph.parameters, (), graph.parameters[:1]), module)
    assert str(module) == TEXT


def test_graph_keeps_its_module_alive() -> None:
    module = parse_module(TEXT)
    copy = parse_module(TEXT, module.context)
    graph = import_function(module)
    del module
    assert str(emit_module(graph, copy)) == TEXT


def test_changed_attributes_are_written(module: ir.Module) -> None:
    graph = import_function(module)
    reversed_ = Node(
        "stablehlo.reverse", graph.parameters[:1], (Value(MATRIX),), {"dimensions": (0,)}
    )
    again = import_function(
        emit_module(Graph(graph.parameters, (reversed_,), reversed_.results), module)
    )
    changed = dataclasses.replace(again.nodes[0], attributes={"dimensions": (1,)})
    emitted = emit_module(
        Graph(again.parameters, (changed,), changed.results), again.nodes[0].origin.module
    )
    assert "dims = [1]" in _line(emitted, "reverse")


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (
            np.arange(6, dtype=np.int8).reshape(2, 3),
            "dense<[[0, 1, 2], [3, 4, 5]]> : tensor<2x3xi8",
        ),
        (np.broadcast_to(np.float32(2), (2, 3)), "dense<2.000000e+00> : tensor<2x3xf32>"),
        (np.zeros((0, 3), np.float16), "dense<> : tensor<0x3xf16>"),
        (np.array([[True, False, True]]), "dense<[[true, false, true]]> : tensor<1x3xi1>"),
        (np.broadcast_to(np.False_, (9,)), "dense<false> : tensor<9xi1>"),
        (np.array([1, 2], dtypes.BF16.numpy), "dense<[1.000000e+00, 2.000000e+00]> : tensor<2xbf"),
        (np.array(1 - 2j, np.complex64), "dense<(1.000000e+00,-2.000000e+00)> : tensor<complex<"),
        (
            np.arange(6, dtype=np.int64).reshape(2, 3).T[:, :1],
            "dense<[[0], [1], [2]]> : tensor<3x1",
        ),
        (np.arange(12, dtype=np.uint8)[::-4], "dense<[11, 7, 3]> : tensor<3xui8>"),
    ],
)
def test_literals_are_written(module: ir.Module, literal: np.ndarray, text: str) -> None:
    graph = import_function(module)
    tensor = TensorType(literal.shape, dtypes.from_numpy(literal.dtype))
    constant = Node("stablehlo.constant", (), (Value(tensor),), literal=literal)
    emitted = emit_module(Graph(graph.parameters, (constant,), graph.parameters[:1]), module)
    assert text in _line(emitted, "constant")
    (again,) = import_function(emitted).nodes
    assert again.literal.tobytes() == literal.tobytes()


WHILE = """\
module {
  func.func @main(%arg0: tensor<i32>, %arg1: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.sine %arg1 : tensor<f32>
    %1:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1) : tensor<i32>, tensor<f32>
    cond {
      %2 = stablehlo.compare LT, %iterArg, %arg0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.add %iterArg_0, %0 : tensor<f32>
      stablehlo.return %iterArg, %2 : tensor<i32>, tensor<f32>
    }
    return %1#1 : tensor<f32>
  }
}
"""


def test_captures_of_a_cloned_region_follow_the_graph() -> None:
    module = parse_module(WHILE)
    graph = import_function(module)
    sine, loop = graph.nodes
    # The same node once more in front, so that every value of the copy differs from the source's.
    first = dataclasses.replace(
        sine, operands=sine.operands, results=(Value(sine.results[0].type),)
    )
    emitted = emit_module(Graph(graph.parameters, (first, sine, loop), graph.results), module)
    assert "stablehlo.add %iterArg_0, %1" in str(emitted)


def test_changed_region_is_written_and_the_rest_of_the_loop_cloned() -> None:
    module = parse_module(WHILE)
    graph = import_function(module)
    sine, loop = graph.nodes
    condition, body = loop.regions
    add = body.nodes[0]
    swapped = dataclasses.replace(add, operands=add.operands[::-1])
    changed = dataclasses.replace(
        loop, regions=(condition, Graph(body.parameters, (swapped,), body.results))
    )
    emitted = emit_module(Graph(graph.parameters, (sine, changed), graph.results), module)
    assert str(emitted) == WHILE.replace("%iterArg_0, %0 :", "%0, %iterArg_0 :")


def test_captures_that_inlining_made_equal() -> None:
    module = parse_module("""
      func.func @main(%p: tensor<i1>, %a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
        %0 = func.call @choose(%p, %a, %b, %a) : (tensor<i1>, tensor<f32>, tensor<f32>, tensor<f32>)
          -> tensor<f32>
        return %0 : tensor<f32>
      }
      func.func private @choose(
          %p: tensor<i1>, %x: tensor<f32>, %y: tensor<f32>, %z: tensor<f32>) -> tensor<f32> {
        %0 = "stablehlo.if"(%p) ({
          %1 = stablehlo.add %x, %y : tensor<f32>
          %2 = stablehlo.add %1, %z : tensor<f32>
          stablehlo.return %2 : tensor<f32>
        }, {
          stablehlo.return %x : tensor<f32>
        }) : (tensor<i1>) -> tensor<f32>
        return %0 : tensor<f32>
      }""")
    text = str(emit_module(import_function(module), module))
    assert "%1 = stablehlo.add %arg1, %arg2" in text
    assert "%2 = stablehlo.add %1, %arg1" in text
    assert "stablehlo.return %arg1" in text


def test_opaque_node_that_a_pass_changed_is_refused() -> None:
    module = parse_module(
        TEXT.replace("stablehlo.sine %arg0 :", "stablehlo.custom_call @f(%arg0) :").replace(
            ": tensor<2x3xf32>\n    ret", ": (tensor<2x3xf32>) -> tensor<2x3xf32>\n    ret"
        )
    )
    graph = import_function(module)
    changed = dataclasses.replace(graph.nodes[0], attributes={})
    with pytest.raises(FrontendError, match="custom call to f"):
        emit_module(Graph(graph.parameters, (changed,), graph.results), module)


def test_graph_that_does_not_fit_the_function_is_refused(module: ir.Module) -> None:
    graph = import_function(module)
    with pytest.raises(FrontendError, match="malformed"):
        emit_module(Graph(graph.parameters, graph.nodes, ()), module)
