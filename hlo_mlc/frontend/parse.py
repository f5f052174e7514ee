"""StableHLO in any of its written forms -> `ir.Module`."""

from __future__ import annotations

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.frontend.foreign import write_as_jax_does
from hlo_mlc.frontend.types import is_resource, read_literal, read_type, write_literal
from hlo_mlc.frontend.walking import operations
from hlo_mlc.support.errors import FrontendError

BYTECODE_MAGIC = b"ML\xefR"
# After the magic come one byte of bytecode version and the name of the producer.
_ARTIFACT_PRODUCER = b"StableHLO_v"


def parse_module(source: str | bytes, context: ir.Context | None = None) -> ir.Module:
    """Reads MLIR text, MLIR bytecode or a StableHLO portable artifact, and verifies it.

    Raises: FrontendError with MLIR's own diagnostic.
    """
    if not source.strip():
        raise FrontendError("expected a StableHLO module, got an empty text")
    context = context if context is not None else mlir.make_ir_context()
    with context:
        try:
            is_artifact = isinstance(source, bytes) and _is_portable_artifact(source)
            module = (
                stablehlo.deserialize_portable_artifact(context, source)
                if is_artifact
                else ir.Module.parse(source)
            )
            write_as_jax_does(module)
            _write_constants_alike(module)
            return module
        except (ir.MLIRError, ValueError) as error:
            diagnostic = " ".join(str(error).split())
            raise FrontendError(
                f"expected a StableHLO module, got {_describe(source)} that MLIR rejects: "
                f"{diagnostic}"
            ) from error


def _write_constants_alike(module: ir.Module) -> None:
    """Constants of MLIR's own, and those whose values stand below the module, as JAX writes them:
    PyTorch's exporter has both, and XLA takes neither."""
    for constant in operations(module, "stablehlo.constant", "arith.constant"):
        tensor = read_type(constant.results[0].type, "")
        if tensor is None or (constant.name == "stablehlo.constant" and not is_resource(constant)):
            continue
        with constant.location, ir.InsertionPoint(constant):
            value = write_literal(read_literal(constant, tensor), tensor.dtype)
            alike = ir.Operation.create(
                "stablehlo.constant", [constant.results[0].type], attributes={"value": value}
            )
        constant.results[0].replace_all_uses_with(alike.result)
        constant.erase()


def _is_portable_artifact(source: bytes) -> bool:
    return source.startswith(BYTECODE_MAGIC) and source[5:].startswith(_ARTIFACT_PRODUCER)


def _describe(source: str | bytes) -> str:
    if isinstance(source, str):
        return f"text of {len(source)} characters"
    if _is_portable_artifact(source):
        return f"a portable artifact of {len(source)} bytes"
    kind = "bytecode" if source.startswith(BYTECODE_MAGIC) else "text"
    return f"{kind} of {len(source)} bytes"
