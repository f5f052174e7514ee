"""The written forms of a module."""

from __future__ import annotations

import io

import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc import compile_stablehlo
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.support.errors import FrontendError

TEXT = """\
module {
  func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @square(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @square(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def _bytecode(module: ir.Module) -> bytes:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


def _artifact(module: ir.Module) -> bytes:
    with module.context:
        return stablehlo.serialize_portable_artifact(module, stablehlo.get_minimum_version())


def test_all_forms_are_the_same_module() -> None:
    module = parse_module(TEXT)
    assert str(module) == TEXT
    for source in (TEXT.encode(), _bytecode(module), _artifact(module)):
        assert str(parse_module(source)) == TEXT


def test_the_context_of_the_caller_is_used() -> None:
    context = mlir.make_ir_context()
    assert parse_module(TEXT, context).context == context


@pytest.mark.parametrize(
    ("form", "name"), [(_bytecode, "bytecode"), (_artifact, "portable artifact")]
)
def test_a_truncated_module_is_refused(form, name: str) -> None:
    source = form(parse_module(TEXT))
    with pytest.raises(FrontendError, match=name):
        parse_module(source[: len(source) // 2])


# As torch-mlir prints: values below the module, under names with dots, and a constant of MLIR's.
FOREIGN = """\
module {
  func.func @main(%arg0: tensor<3xf32>) -> (tensor<3xf32>, tensor<2xf64>, tensor<2xcomplex<f32>>) {
    %0 = stablehlo.constant dense_resource<torch_tensor_3_torch.float32> : tensor<3xf32>
    %1 = arith.constant dense<[1.5, 2.5]> : tensor<2xf64>
    %2 = stablehlo.constant dense<(1.0, 2.0)> : tensor<2xcomplex<f32>>
    %3 = stablehlo.add %arg0, %0 : tensor<3xf32>
    return %3, %1, %2 : tensor<3xf32>, tensor<2xf64>, tensor<2xcomplex<f32>>
  }
}
{-#
  dialect_resources: { builtin: {
    torch_tensor_3_torch.float32: "0x040000000000803F0000004000004040",
    torch_tensor_3_torch.float32_1: "0x04000000000000000000000000000000"
  } }
#-}
"""


@pytest.mark.parametrize("form", [str, _bytecode], ids=["text", "bytecode"])
def test_constants_of_other_front_ends(form) -> None:
    module = parse_module(form(parse_module(FOREIGN)) if form is _bytecode else FOREIGN)
    text = str(module)
    assert "dense_resource" not in text and "arith." not in text
    sums, doubles, pairs = compile_stablehlo(text, choose="ours")(np.float32([1, 1, 1]))
    np.testing.assert_array_equal(sums, [2, 3, 4])
    np.testing.assert_array_equal(doubles, [1.5, 2.5])
    np.testing.assert_array_equal(pairs, [1 + 2j] * 2)


def test_a_resource_that_is_missing() -> None:
    with pytest.raises(FrontendError, match="no payload"):
        parse_module(FOREIGN.replace("torch_tensor_3_torch.float32:", "another:"))
