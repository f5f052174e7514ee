"""The written forms of a module."""

from __future__ import annotations

import io

import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

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
