"""What it takes to see a fault of ours again, in a folder for those who can mend it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import platform
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from jaxlib.mlir import ir

from hlo_mlc.runtime.files import write_whole
from hlo_mlc.support.faults import Fault
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version
from hlo_mlc.target import cpu

FOLDER = "faults"
"""Where the folders lie, below the cache."""

# Together no more than a third of what the cache may take by default.
_MOST_FOLDERS = 20
_LARGEST_BYTES = 16 << 20  # of a module; of a larger one only the text is kept, without constants
_READABLE_BYTES = 1 << 20  # above, the text shows no constants either: the bytecode has them
_SHOWN_ELEMENTS = 16

_PACKAGES = ("hlo-mlc", "jax", "jaxlib", "llvmlite", "numpy")


def keep(fault: Fault, program: Callable[[], ir.Module | str], options: Options) -> Path | None:
    """Writes the program (`module.mlir`, or `program.txt` before there is a module) and what is
    known of the fault (`fault.txt`); the oldest folders make room. None where that fails."""
    try:
        files = _program_files(program())
        files["fault.txt"] = _description(fault, options).encode()
        digest = hashlib.sha256(fault.reason.encode())
        for name, content in files.items():
            if name != "fault.txt":  # which has addresses and line numbers that change
                digest.update(content)
        folder = options.cache_dir / FOLDER / digest.hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, [content])
        _make_room(folder)
    except Exception:  # the fault that is told matters more than that it cannot be kept
        return None
    return folder


def _program_files(program: ir.Module | str) -> dict[str, bytes]:
    if isinstance(program, str):
        return {"program.txt": program.encode()}
    written = io.BytesIO()
    program.operation.write_bytecode(written)
    bytecode = written.getvalue()
    shown = None if len(bytecode) <= _READABLE_BYTES else _SHOWN_ELEMENTS
    text = program.operation.get_asm(enable_debug_info=True, large_elements_limit=shown)
    files = {"module.mlir": text.encode()}
    if shown is not None and len(bytecode) <= _LARGEST_BYTES:
        files["module.mlirbc"] = bytecode
    return files


def _description(fault: Fault, options: Options) -> str:
    settings = dataclasses.asdict(options).items()
    return "\n".join(
        [
            fault.reason,
            *([f"part: {fault.part}"] if fault.part else ()),
            *([f"at: {fault.location}"] if fault.location else ()),
            "",
            'To see it again: hlo_mlc.compile_stablehlo(<the module here>, choose="ours")',
            "",
            f"Python {platform.python_version()}, {platform.platform()}",
            *(f"{package} {version(package)}" for package in _PACKAGES),
            f"CPU: {cpu.host()}",
            *(f"{name} = {value}" for name, value in settings),
            "",
            "".join(traceback.format_exception(fault.error)),
        ]
    )


def _make_room(newest: Path) -> None:
    folders = sorted(
        (f for f in newest.parent.iterdir() if f != newest),
        key=lambda folder: folder.stat().st_mtime,
    )
    for folder in folders[: max(0, len(folders) - _MOST_FOLDERS + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
