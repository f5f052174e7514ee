"""What type checkers say of programs that use `mlc_jit`: what it keeps, and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hlo_mlc

SAMPLE = Path(__file__).parent / "typed" / "sample.py"
PACKAGES = Path(hlo_mlc.__file__).parents[1]
# mypy finds what is installed by itself, and refuses to be told of that folder.
TOLD = {} if "site-packages" in PACKAGES.parts else {"MYPYPATH": str(PACKAGES)}


def checked(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )


def test_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    options = [
        "--config-file=",
        "--follow-imports=silent",
        "--warn-unused-ignores",
        "--check-untyped-defs",
        "--cache-dir",
        str(tmp_path),
    ]
    ran = checked([sys.executable, "-m", "mypy", *options, str(SAMPLE)], tmp_path, **TOLD)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_pyright(tmp_path: Path) -> None:
    if shutil.which("pyright") is None or shutil.which("node") is None:
        pytest.skip("pyright needs node, which it would fetch")
    (tmp_path / "pyrightconfig.json").write_text("{}")
    ran = checked(
        ["pyright", "--pythonpath", sys.executable, str(SAMPLE)], tmp_path, PYTHONPATH=str(PACKAGES)
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(hlo_mlc.__file__).parent / "py.typed").exists()
