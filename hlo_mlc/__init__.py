"""hlo_mlc makes JAX programs faster by compiling parts of their StableHLO itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hlo_mlc.support.collection import no_collection
from hlo_mlc.support.options import is_enabled
from hlo_mlc.support.versions import VERSION

if TYPE_CHECKING:
    from hlo_mlc.interop.comparing import compare
    from hlo_mlc.interop.export import entry, export
    from hlo_mlc.interop.jit import mlc_jit
    from hlo_mlc.interop.load import load
    from hlo_mlc.interop.module import compile_stablehlo
    from hlo_mlc.interop.onnx.models import from_onnx
    from hlo_mlc.interop.pytorch import from_torch
    from hlo_mlc.interop.routing import enabled, install, uninstall
    from hlo_mlc.interop.standalone import export_c
    from hlo_mlc.support.errors import MlcError, UnsupportedOpError

__all__ = [
    "MlcError",
    "UnsupportedOpError",
    "__version__",
    "compare",
    "compile_stablehlo",
    "enabled",
    "entry",
    "export",
    "export_c",
    "from_onnx",
    "from_torch",
    "install",
    "load",
    "mlc_jit",
    "uninstall",
]

__version__ = VERSION

_HOMES = {
    "mlc_jit": "hlo_mlc.interop.jit",
    "compare": "hlo_mlc.interop.comparing",
    "compile_stablehlo": "hlo_mlc.interop.module",
    "entry": "hlo_mlc.interop.export",
    "export": "hlo_mlc.interop.export",
    "export_c": "hlo_mlc.interop.standalone",
    "from_onnx": "hlo_mlc.interop.onnx.models",
    "from_torch": "hlo_mlc.interop.pytorch",
    "load": "hlo_mlc.interop.load",
    "enabled": "hlo_mlc.interop.routing",
    "install": "hlo_mlc.interop.routing",
    "uninstall": "hlo_mlc.interop.routing",
    "MlcError": "hlo_mlc.support.errors",
    "UnsupportedOpError": "hlo_mlc.support.errors",
}


def __getattr__(name: str) -> object:
    # At first use: who imports a lower floor, or asks the command line for help, needs no JAX.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with no_collection():  # which takes a fifth of what all modules take to load
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


if is_enabled():
    __getattr__("install")()
