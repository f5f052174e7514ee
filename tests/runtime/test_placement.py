"""Which CPUs the participants of a parallel region run on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "custom_calls"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_threads_leave_cpus_that_others_have_taken(tmp_path: Path) -> None:
    program = tmp_path / "placement"
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-pthread",
            "-I",
            str(SOURCES),
            "-o",
            str(program),
            str(HERE / "placement.cc"),
            str(SOURCES / "placement.cc"),
        ],
        check=True,
    )
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    if said == "one CPU\n":
        pytest.skip("there is one CPU only")
    assert said == ""
