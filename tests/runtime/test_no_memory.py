"""The native library when memory runs out: it says so, and goes on when there is some again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "custom_calls"
# What XLA and GPUs have no part in.
PARTS = (
    "c_api",
    "checked_run",
    "code_memory",
    "fenced_memory",
    "pages",
    "placement",
    "scratch_pool",
    "thread_team",
    "trace",
    "variant_table",
    "worker_pool",
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_no_function_ends_the_process(tmp_path: Path) -> None:
    program = tmp_path / "no_memory"
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-O1",
            "-pthread",
            "-I",
            str(SOURCES),
            "-o",
            str(program),
            str(HERE / "no_memory.cc"),
            *(str(SOURCES / f"{p}.cc") for p in PARTS),
        ],
        check=True,
    )
    ran = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
