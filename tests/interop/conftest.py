"""Stand-ins for the compiler, to see what the interop layer does with its answers; and calls in
another process, which may take so long and no longer."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from hlo_mlc.backends.base import Backend
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
        self,
        module: ir.Module,
        options: Options,
        *,
        entry: str = "main",
        backend: Backend | None = None,
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


class Bounded:
    """Calls functions of test files in a process beside this one, within a limit of time each: one
    that never ends is a failure, not the end of all tests.

    A function is called by its name, with what JSON can hold, in a process that has run its file.
    The process goes on with the next call unless one did not end in time.
    """

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen] = {}

    def __call__(self, function: Callable, *args: object, seconds: float = 120) -> object:
        """What the function returns.

        Raises: AssertionError where it does not end in time, or fails.
        """
        file = function.__code__.co_filename
        process = self._processes.get(file) or self._start(file)
        process.stdin.write(json.dumps([function.__name__, args]) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        answer = process.stdout.readline() if ready else ""
        if not answer:
            process.kill()
            process.wait()
            del self._processes[file]
            said = (
                f"ended with status {process.returncode}"
                if ready
                else f"did not end within {seconds} s"
            )
            raise AssertionError(f"{function.__name__}{args} {said}")
        outcome = json.loads(answer)
        assert "failure" not in outcome, outcome["failure"]
        return outcome["result"]

    def _start(self, file: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CALLER, file],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes[file] = process
        return process

    def end(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.kill()
            process.communicate()


# Answers go where standard output went, which all else that is printed does not.
_CALLER = """
import json, os, runpy, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = runpy.run_path(sys.argv[1])
for line in sys.stdin:
    name, args = json.loads(line)
    try:
        outcome = {"result": names[name](*args)}
    except BaseException:
        outcome = {"failure": traceback.format_exc()}
    answers.write(json.dumps(outcome) + "\\n")
    answers.flush()
"""


@pytest.fixture(scope="module")
def bounded() -> Iterator[Bounded]:
    bounded = Bounded()
    yield bounded
    bounded.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a function is exported to."""
    return tmp_path / "model.mlc"


@pytest.fixture
def fresh(path: Path, tmp_path: Path) -> Callable[..., str]:
    """`fresh(lines)`: runs them in a new process with an empty cache; `f` is what was loaded.
    Making code is an error there."""

    def run(lines: str, entry: str | None = None) -> str:
        script = textwrap.dedent(f"""
            import jax, jax.numpy as jnp, numpy as np
            import hlo_mlc, hlo_mlc.backends.cpu, hlo_mlc.codegen.cpu.assemble as assemble
            def refuse(*_): raise AssertionError("a kernel is compiled")
            assemble.compile_ir = hlo_mlc.backends.cpu.compile_ir = refuse
            f = hlo_mlc.load({str(path)!r}, entry={entry!r})
        """) + textwrap.dedent(lines)
        environment = {"HLO_MLC_CACHE": str(tmp_path / "empty"), "PATH": ""}
        ran = subprocess.run(
            [sys.executable, "-P", "-W", "error::RuntimeWarning", "-c", script],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert ran.returncode == 0, ran.stderr
        assert not (tmp_path / "empty").exists()
        return ran.stdout

    return run


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which nothing was kept, in the folder that the test runs in."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"
