"""Whether kernels for GPUs can be compiled here."""

from __future__ import annotations

from hlo_mlc.codegen.cuda.compile import require
from hlo_mlc.support.errors import CodegenError


def why_not() -> str:
    """Why nothing can be; empty if it can."""
    try:
        require()
    except CodegenError as error:
        return str(error)
    return ""
