"""What the importer reads from hand-written modules."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from jax.interpreters import mlir

from hlo_mlc.expr import dtypes
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.frontend.emit import emit_module
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph, Node
from hlo_mlc.support.errors import FrontendError


def _function(body: str, arguments: str = "", results: str = "", tail: str = "") -> str:
    returned = f" -> {results}" if results else ""
    return f"func.func @main({arguments}){returned} {{\n{body}\n}}\n{tail}"


def _imported(body: str, arguments: str = "", results: str = "", tail: str = "") -> Graph:
    module = parse_module(_function(body, arguments, results, tail))
    graph = import_function(module)
    assert str(emit_module(graph, module)) == str(module)
    return graph


def _constant(text: str, tail: str = "") -> Node:
    graph = _imported(f"%0 = stablehlo.constant {text}\nfunc.return", tail=tail)
    return graph.nodes[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dense<[1.0, -0.0]> : tensor<2xf32>", np.array([1, -0.0], np.float32)),
        ("dense<0xFFC00001> : tensor<f32>", np.array(0xFFC00001, np.uint32).view(np.float32)),
        ("dense<[[1, -2]]> : tensor<1x2xi8>", np.array([[1, -2]], np.int8)),
        ("dense<[255, 0]> : tensor<2xui8>", np.array([255, 0], np.uint8)),
        ("dense<[true, false, true]> : tensor<3xi1>", np.array([True, False, True])),
        ("dense<true> : tensor<i1>", np.array(True)),
        ("dense<[1.5, 0xFFC1]> : tensor<2xbf16>", np.array([0x3FC0, 0xFFC1], np.uint16)),
        ("dense<1.5> : tensor<f16>", np.array(1.5, np.float16)),
        (
            "dense<[(1.0, -2.0), (0x7F800000, 1.0e-40)]> : tensor<2xcomplex<f32>>",
            np.array([1 - 2j, complex(np.inf, 1e-40)], np.complex64),
        ),
        ("dense<> : tensor<0x3xbf16>", np.zeros((0, 3), np.uint16)),
        ("dense<> : tensor<0xi1>", np.zeros(0, bool)),
        ('dense<"0x0000803F00000040"> : tensor<2xf32>', np.array([1, 2], np.float32)),
        ('dense<"0x803F0040"> : tensor<2xbf16>', np.array([0x3F80, 0x4000], np.uint16)),
    ],
)
def test_constants_are_read_bit_by_bit(text: str, expected: np.ndarray) -> None:
    literal = _constant(text).literal
    assert literal.shape == expected.shape
    if literal.dtype == ml_dtypes.bfloat16:
        literal = literal.view(np.uint16)
    assert literal.dtype == expected.dtype
    assert literal.tobytes() == expected.tobytes()


def test_hexadecimal_payload_of_a_large_bf16_constant() -> None:
    values = np.arange(300).astype(ml_dtypes.bfloat16)
    literal = _constant(f'dense<"0x{values.tobytes().hex()}"> : tensor<300xbf16>').literal
    np.testing.assert_array_equal(literal, values)


def test_payload_of_a_resource() -> None:
    blob = (4).to_bytes(4, "little") + np.array([1, 2, 3], np.float32).tobytes()
    tail = f'{{-# dialect_resources: {{ builtin: {{ foo: "0x{blob.hex()}" }} }} #-}}'
    literal = _constant("dense_resource<foo> : tensor<3xf32>", tail).literal
    np.testing.assert_array_equal(literal, np.array([1, 2, 3], np.float32))


@pytest.mark.parametrize("element", ["f32", "bf16", "complex<f32>", "i1", "ui64"])
def test_splats_are_not_expanded(element: str) -> None:
    one = {"complex<f32>": "(1.0, 0.0)", "i1": "true", "ui64": "1"}.get(element, "1.0")
    literal = _constant(f"dense<{one}> : tensor<4096x4096x{element}>").literal
    assert literal.shape == (4096, 4096)
    assert literal.strides == (0, 0)
    assert literal[7, 7] == 1


def test_dimension_numbers_are_flattened() -> None:
    graph = _imported(
        "%0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0],"
        " contracting_dims = [2] x [1], precision = [HIGH, DEFAULT]"
        " : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>\n"
        "func.return %0 : tensor<2x3x5xf32>",
        "%a: tensor<2x3x4xf32>, %b: tensor<2x4x5xf32>",
        "tensor<2x3x5xf32>",
    )
    assert graph.nodes[0].attributes == {
        "lhs_batching_dimensions": (0,),
        "rhs_batching_dimensions": (0,),
        "lhs_contracting_dimensions": (2,),
        "rhs_contracting_dimensions": (1,),
        "precision_config": ("HIGH", "DEFAULT"),
    }
    assert graph.nodes[0].results[0].type == TensorType((2, 3, 5), dtypes.F32)


def test_scatter_with_its_region() -> None:
    graph = _imported(
        '%0 = "stablehlo.scatter"(%a, %i, %u) <{indices_are_sorted = true,'
        " scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],"
        " inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,"
        " unique_indices = false}> ({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
        "%1 = stablehlo.add %x, %y : tensor<f32>\nstablehlo.return %1 : tensor<f32>\n})"
        " : (tensor<4x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>) -> tensor<4x4xf32>\n"
        "func.return %0 : tensor<4x4xf32>",
        "%a: tensor<4x4xf32>, %i: tensor<2x1xi32>, %u: tensor<2x4xf32>",
        "tensor<4x4xf32>",
    )
    (scatter,) = graph.nodes
    assert scatter.attributes == {
        "indices_are_sorted": True,
        "unique_indices": False,
        "update_window_dims": (1,),
        "inserted_window_dims": (0,),
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1,
    }
    (body,) = scatter.regions
    assert [node.op for node in body.nodes] == ["stablehlo.add"]
    assert body.nodes[0].operands == body.parameters
    assert body.results == body.nodes[0].results


def test_enums_and_foreign_attributes_are_text() -> None:
    graph = _imported(
        '%0 = stablehlo.compare LT, %a, %a, TOTALORDER {mhlo.sharding = "{replicated}"}'
        " : (tensor<f32>, tensor<f32>) -> tensor<i1>\nfunc.return",
        "%a: tensor<f32>",
    )
    assert graph.nodes[0].attributes == {
        "comparison_direction": "LT",
        "compare_type": "TOTALORDER",
        "mhlo.sharding": '"{replicated}"',
    }


@pytest.mark.parametrize(
    ("op", "argument", "reason"),
    [
        (
            "stablehlo.add %a, %a : tensor<2xf6E3M2FN>",
            "tensor<2xf6E3M2FN>",
            "type tensor<2xf6E3M2FN",
        ),
        (
            "stablehlo.custom_call @there(%a) : (tensor<2xf32>) -> tensor<2xf32>",
            "tensor<2xf32>",
            "custom call to there",
        ),
        (
            "stablehlo.exponential %a {result_accuracy = #stablehlo.result_accuracy<ulps = 1,"
            " mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<2xf32>",
            "tensor<2xf32>",
            "attribute result_accuracy",
        ),
        ("func.call @main(%a) : (tensor<2xf32>) -> ()", "tensor<2xf32>", "dialect func"),
        (
            "stablehlo.abs %a : tensor<?xf32, #stablehlo.bounds<4>>",
            "tensor<?xf32, #stablehlo.bounds<4>>",
            "type tensor<?xf32, #stablehlo.bounds<4>>",
        ),
    ],
)
def test_what_is_not_modelled_is_opaque_and_says_why(op: str, argument: str, reason: str) -> None:
    assign = "" if op.startswith("func.call") else "%0 = "
    graph = _imported(f"{assign}{op}\nfunc.return", f"%a: {argument}")
    assert graph.nodes[0].opaque.startswith(reason)


def test_dynamic_dimensions_get_distinct_names() -> None:
    graph = _imported("func.return", "%a: tensor<?x3xf32>, %b: tensor<?x3xf32>")
    first, second = (value.type.shape for value in graph.parameters)
    assert isinstance(first[0], str)
    assert first[1] == 3
    assert first != second


def test_location_is_the_innermost_frame_and_the_name_of_the_op() -> None:
    frames = 'callsite("f"("model.py":12:2) at "main"("train.py":3:1))'
    graph = _imported(
        f'%0 = stablehlo.sine %a : tensor<f32> loc("jit(f)/sin"({frames}))\n'
        '%1 = stablehlo.sine %a : tensor<f32> loc(fused["named", "other.py":7:1])\n'
        "%2 = stablehlo.sine %a : tensor<f32> loc(unknown)\nfunc.return",
        "%a: tensor<f32>",
    )
    assert [node.location for node in graph.nodes] == ["model.py:12 jit(f)/sin", "other.py:7", ""]


def test_a_line_of_the_users_is_better_than_one_of_a_package_that_is_installed() -> None:
    installed = '"dense"("/usr/lib/python3/site-packages/nn/linear.py":9:1)'
    graph = _imported(
        f'%0 = stablehlo.sine %a : tensor<f32> loc("dot"(callsite({installed} at '
        '"m"("me.py":3:1))))\n'
        f'%1 = stablehlo.sine %a : tensor<f32> loc("dot"({installed}))\nfunc.return',
        "%a: tensor<f32>",
    )
    assert [node.location for node in graph.nodes] == [
        "me.py:3 dot",
        "/usr/lib/python3/site-packages/nn/linear.py:9 dot",
    ]


def test_what_names_no_line_has_that_of_the_call_that_it_is_inside_of() -> None:
    """As the bodies of functions that JAX keeps the traces of, such as jnp.cumsum."""
    module = parse_module(
        "module {\nfunc.func @main(%a: tensor<f32>) -> tensor<f32> {\n"
        '%0 = call @twice(%a) : (tensor<f32>) -> tensor<f32> loc("jit(f)/jit(g)"("me.py":3:1))\n'
        "func.return %0 : tensor<f32>\n}\n"
        "func.func private @twice(%a: tensor<f32>) -> tensor<f32> {\n"
        '%0 = stablehlo.sine %a : tensor<f32> loc("sin")\n'
        '%1 = stablehlo.sine %0 : tensor<f32> loc("sin"("g.py":5:1))\n'
        "func.return %1 : tensor<f32>\n}\n}"
    )
    graph = import_function(module)
    assert [node.location for node in graph.nodes] == ["me.py:3 sin", "g.py:5 sin"]


def test_captures_of_a_region_that_cannot_be_read_are_operands() -> None:
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    module = parse_module(
        _function(
            "%0 = stablehlo.sine %a : tensor<f32>\n"
            '"other.op"(%a) ({\n"other.inner"(%0, %a) : (tensor<f32>, tensor<f32>) -> ()\n'
            '"other.end"(%0) : (tensor<f32>) -> ()\n}) : (tensor<f32>) -> ()\nfunc.return',
            "%a: tensor<f32>",
        ),
        context,
    )
    graph = import_function(module)
    sine, other = graph.nodes
    assert other.opaque
    assert other.operands == (graph.parameters[0], sine.results[0], graph.parameters[0])
    # What the region uses follows a rewrite of the values around it.
    moved = dataclasses.replace(other, operands=(sine.results[0],) * 3)
    emitted = str(emit_module(Graph(graph.parameters, (sine, moved), ()), module))
    assert '"other.op"(%0)' in emitted
    assert '"other.inner"(%0, %0)' in emitted


def test_body_of_a_manual_computation_is_read() -> None:
    graph = _imported(
        "%0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>]"
        " manual_axes={} (%x: tensor<2xf32>) {\n%1 = stablehlo.sine %x : tensor<2xf32>\n"
        "sdy.return %1 : tensor<2xf32>\n} : (tensor<2xf32>) -> tensor<2xf32>\n"
        "func.return %0 : tensor<2xf32>",
        "%a: tensor<2xf32>",
        "tensor<2xf32>",
        'sdy.mesh @mesh = <["x"=1]>',
    )
    assert graph.nodes[0].opaque
    assert [node.op for node in graph.walk()] == ["sdy.manual_computation", "stablehlo.sine"]


def test_missing_entry_is_refused() -> None:
    module = parse_module(_function("func.return"))
    with pytest.raises(FrontendError, match=r"@other.*\['main'\]"):
        import_function(module, "other")


def test_malformed_text_is_refused_with_the_diagnostic() -> None:
    with pytest.raises(FrontendError, match=r"stablehlo\.nonsense"):
        parse_module(_function("stablehlo.nonsense\nfunc.return"))


def test_a_composite_is_what_its_decomposition_does() -> None:
    text = """
      func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.composite "mine.twice" %a {
          composite_attributes = {times = 2 : i32}, decomposition = @twice
        } : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32>
      }
      func.func private @twice(%a: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %a, %a : tensor<3xf32>
        return %0 : tensor<3xf32>
      }"""
    assert [node.op for node in import_function(parse_module(text)).nodes] == ["stablehlo.add"]
