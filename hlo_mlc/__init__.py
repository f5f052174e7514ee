"""hlo_mlc makes JAX programs faster by compiling parts of their StableHLO itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hlo_mlc.interop.export import entry, export
    from hlo_mlc.interop.jit import mlc_jit
    from hlo_mlc.interop.load import load
    from hlo_mlc.interop.module import compile_stablehlo
    from hlo_mlc.interop.standalone import export_c
    from hlo_mlc.support.errors import MlcError, UnsupportedOpError

__all__ = ["MlcError", "UnsupportedOpError", "__version__", "compile_stablehlo", "entry", "export",
           "export_c", "load", "mlc_jit"]

__version__ = "0.1.0"

_HOMES = {
    "mlc_jit": "hlo_mlc.interop.jit",
    "compile_stablehlo": "hlo_mlc.interop.module",
    "entry": "hlo_mlc.interop.export",
    "export": "hlo_mlc.interop.export",
    "export_c": "hlo_mlc.interop.standalone",
    "load": "hlo_mlc.interop.load",
    "MlcError": "hlo_mlc.support.errors",
    "UnsupportedOpError": "hlo_mlc.support.errors",
}


def __getattr__(name: str) -> object:
    # At first use: who imports a lower floor, or asks the command line for help, needs no JAX.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
