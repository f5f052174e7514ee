"""Stand-ins for the compiler, to see what the interop layer does with its answers."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from hlo_mlc.compiler import CompiledModule
from hlo_mlc.interop import compiling
from hlo_mlc.report import Report
from hlo_mlc.support.options import Options


class Replacing:
    """A compiler that answers every module with a copy, and remembers what it was given."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.entries: list[str] = []

    def __call__(
        self, module: ir.Module, options: Options, *, entry: str = "main"
    ) -> CompiledModule:
        self.modules.append(str(module))
        self.entries.append(entry)
        with module.context:
            copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
        return CompiledModule(copy, Report.untouched("it was copied"))


@pytest.fixture
def replacing(monkeypatch: pytest.MonkeyPatch) -> Replacing:
    compiler = Replacing()
    monkeypatch.setattr(compiling, "compile_module", compiler)
    return compiler
