"""Loops whose iterations are shared out to threads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "custom_calls"
_PARTS = ("thread_team", "worker_pool", "placement", "trace", "checked_run", "fenced_memory")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_every_task_runs_once(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "thread_team"
    options = ["-std=c++17", "-O1", "-pthread", f"-fsanitize={sanitizer}", "-I", str(SOURCES)]
    options += ["-Wl,--wrap=sched_getaffinity"]
    sources = [HERE / "thread_team.cc", *(SOURCES / f"{part}.cc" for part in _PARTS)]
    built = subprocess.run(
        ["g++", *options, "-o", program, *sources], capture_output=True, text=True
    )
    if built.returncode and f"lib{sanitizer[0]}san" in built.stderr:
        pytest.skip(f"the compiler has no library for -fsanitize={sanitizer}")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
