"""StableHLO in any of its written forms -> `ir.Module`."""

from __future__ import annotations

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.support.errors import FrontendError

_BYTECODE_MAGIC = b"ML\xefR"
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
            if isinstance(source, bytes) and _is_portable_artifact(source):
                return stablehlo.deserialize_portable_artifact(context, source)
            return ir.Module.parse(source)
        except (ir.MLIRError, ValueError) as error:
            diagnostic = " ".join(str(error).split())
            raise FrontendError(
                f"expected a StableHLO module, got {_describe(source)} that MLIR rejects: "
                f"{diagnostic}"
            ) from error


def _is_portable_artifact(source: bytes) -> bool:
    return source.startswith(_BYTECODE_MAGIC) and source[5:].startswith(_ARTIFACT_PRODUCER)


def _describe(source: str | bytes) -> str:
    if isinstance(source, str):
        return f"text of {len(source)} characters"
    if _is_portable_artifact(source):
        return f"a portable artifact of {len(source)} bytes"
    kind = "bytecode" if source.startswith(_BYTECODE_MAGIC) else "text"
    return f"{kind} of {len(source)} bytes"
