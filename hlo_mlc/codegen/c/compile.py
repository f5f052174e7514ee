"""C -> machine code, by the system's compiler."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import HOST, CpuTarget

# An object that runtime/linking.py can link: it may lie anywhere, and asks for functions only.
_OPTIONS = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-c",
)


def options(target: CpuTarget) -> tuple[str, ...]:
    """What the compiler is told."""
    if not target.is_x86:
        return _OPTIONS
    return (*_OPTIONS, f"-march={'native' if target.name == HOST else target.name}")


def version() -> str:
    """What the compiler calls itself.

    Raises: CodegenError where there is none.
    """
    return _run("--version").partition("\n")[0]


def compile_c(text: str, target: CpuTarget) -> bytes:
    """The relocatable object of a file of C.

    Raises: CodegenError where there is no compiler, or it rejects the file.
    """
    with tempfile.TemporaryDirectory(prefix="hlo_mlc") as folder:
        source, made = Path(folder, "kernel.c"), Path(folder, "kernel.o")
        source.write_text(text, "utf-8")
        _run(*options(target), "-o", str(made), str(source))
        return made.read_bytes()


def _run(*arguments: str) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        raise CodegenError("C cannot be compiled: there is no cc; install a compiler such as GCC")
    ran = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise CodegenError(f"{compiler} rejects a kernel", context=ran.stderr)
    return ran.stdout
