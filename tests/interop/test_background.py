"""Kernels are tuned while a program runs: in nobody's way, by a process that may die."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import building, kernel_objects, mlc_jit
from hlo_mlc.backends.cpu import CpuBackend, LlvmSource
from hlo_mlc.interop import background, primitive
from hlo_mlc.interop.background import Background, Tuned
from hlo_mlc.interop.function import Ledger
from hlo_mlc.interop.staged import forget
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.generator import TemplateGenerator

LIMIT_S = 120.0
X = np.linspace(-1, 1, 96 * 64, dtype=np.float32).reshape(96, 64)
RIGHT = X @ X.T + 1  # once: callers are not to compete for the CPUs with what tunes
THREADS, SWAPS = 8, 30


def product(x: jax.Array) -> jax.Array:
    return x @ x.T + 1


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As for a user with one device who has tuned nothing yet, and checks nothing."""
    monkeypatch.delenv("HLO_MLC_CHECK", raising=False)
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setenv("HLO_MLC_CHOOSE", "ours")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    forget()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """Every kernel that was called is worth a few trials, however busy the machine is."""
    for name, value in {"_LOOK_S": 0.02, "_WORTH_NS": 1, "_TRIALS": 2, "_BUSY": 1.0}.items():
        monkeypatch.setattr(background, name, value)
    monkeypatch.setattr(background, "step_behind", lambda process: None)  # tests keep CPUs busy
    with _installed(monkeypatch) as installed:
        yield installed


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """Nothing is ever worth it."""
    monkeypatch.setattr(background, "_WORTH_NS", float("inf"))
    with _installed(monkeypatch) as installed:
        yield installed


@contextlib.contextmanager
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """Until the test ends; then it has nothing to do, and has no calls counted."""
    fresh = Background()
    monkeypatch.setattr(primitive, "BACKGROUND", fresh)
    yield fresh
    fresh._followed.clear()
    fresh._news.set()


class Traced:
    """A function that counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0

    def __call__(self, x: jax.Array) -> jax.Array:
        self.traces += 1
        return product(x)


def called_until_tuned(function: Any) -> str:
    """What is said of tuning once something came of it; calls are right all the time."""
    end = time.monotonic() + LIMIT_S
    while "not tuned yet" in function.report(X).background:
        assert time.monotonic() < end
        close(function(X))
        time.sleep(0.02)  # what tunes needs the CPUs
    return str(function.report(X).background)


def close(found: jax.Array) -> None:
    np.testing.assert_allclose(found, RIGHT, rtol=1e-5, atol=1e-6)


class Calls:
    """Threads that call a function until the end, and the right results of which they get; they
    rest between two calls."""

    def __init__(self, function: Any, count: int, rest_s: float = 0.0) -> None:
        self._function, self._over, self._changed = function, False, threading.Condition()
        self._rest_s = rest_s
        self._begun = self._ended = 0
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._call) for _ in range(count)]

    def __enter__(self) -> Calls:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert not self._errors and self._ended >= len(self._threads)

    def _call(self) -> None:
        try:
            while not self._over:
                with self._changed:
                    self._begun += 1
                    number = self._begun
                close(self._function(X))
                with self._changed:
                    self._ended = max(self._ended, number)
                    self._changed.notify_all()
                time.sleep(self._rest_s)
        except BaseException as error:
            self._errors.append(error)

    def one_passes(self) -> None:
        """Waits until a call that begins from now on has ended."""
        with self._changed:
            next_one = self._begun + 1
            assert self._changed.wait_for(lambda: self._ended >= next_one, LIMIT_S), "calls wait"


def test_no_call_waits_for_any_part_of_it(
    eager: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the first call of a function, which has its kernels followed: one begins and ends
    while a process starts, tunes, and has tuned; what it found is mapped in
    `test_swaps_under_load`."""
    function = mlc_jit(Traced(), tune="background")
    calls = Calls(lambda x: mlc_jit(Traced(), tune="background")(x), 1, rest_s=0.05)
    passed = []

    def passing(part: str, work: Any) -> Any:
        def done(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is eager._thread:
                calls.one_passes()
                passed.append(part)
            return work(*args, **kwargs)

        return done

    for owner, part in (
        (background, "start_process"),
        (background, "step_behind"),
        (background, "end_of"),
        (background, "open_records"),
        (variants, "read_profile"),
        (variants, "enable_profiling"),
        (Ledger, "revise"),
    ):
        monkeypatch.setattr(owner, part, passing(part, getattr(owner, part)))
    with calls:
        function(X)
        assert called_until_tuned(function).startswith("1 kernel tuned")
    assert set(passed) >= {"start_process", "step_behind", "open_records", "revise"}


def test_a_kernel_is_tuned_while_it_is_called(
    eager: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Traced()
    function = mlc_jit(counted, tune="background")
    function(X)
    assert function.report(X).background.startswith("1 kernel not tuned yet")
    assert called_until_tuned(function).startswith("1 kernel tuned")
    close(function(X))
    assert counted.traces == 1
    (kernel,) = function.report(X).kernels
    (record,) = open_records(Options.from_environment()).all()
    assert record.kernel == kernel.id and record.measured == kernel.tuned
    assert "tuning in the background: 1 kernel tuned" in str(function.explain(X))
    # Later processes have it from the beginning.
    with monkeypatch.context() as later, _installed(later):
        again = mlc_jit(Traced(), tune="background")
        close(again(X))
        assert again.report(X).background == "1 kernel tuned before"
        assert again.report(X).kernels[0].tuned == kernel.tuned


def test_swaps_under_load(patient: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that call get what is right whatever code runs; nothing is compiled for a swap, and
    no lock is held while the code is mapped."""
    counted = Traced()
    function = mlc_jit(counted, tune="background")
    close(function(X))
    ((program,),) = patient._followed.values()
    ((fingerprint, first),) = program.kernels.items()
    kernel, options, backend = first.kernel, program.job.options, program.backend
    records = open_records(options)
    rows = next(
        p
        for p in TemplateGenerator().space(kernel.program, backend.target).parameters
        if p.key == "rows" and p.template == first.nests[0].template
    )
    assert len(rows.values) > 1

    def recorded(value: int) -> None:
        record = Record(
            fingerprint,
            backend.target.key,
            {rows.position: (rows.template, {rows.key: value})},
            Measured(2.0, 1.0, 2.0),
        )
        assert records.put(record, replaces=records.get(fingerprint, record.target)) == record

    for value in rows.values:  # as the process that tunes does
        recorded(value)
        kernel_objects.kernel_object(kernel, options, backend)

    def load(self: CpuBackend, *args: Any) -> Any:
        for lock in (building._building, variants._table_lock):
            assert lock.acquire(timeout=LIMIT_S), "held by who maps code"
            lock.release()
        calls.one_passes()
        assert sys.getswitchinterval() <= background._TURN_S
        return loaded(self, *args)

    def compiled(self: LlvmSource) -> bytes:
        raise AssertionError("compiled for a swap")

    loaded = CpuBackend.load
    monkeypatch.setattr(CpuBackend, "load", load)
    monkeypatch.setattr(LlvmSource, "assemble", compiled)
    with Calls(function, THREADS) as calls:
        for _, value in zip(range(SWAPS), itertools.cycle(rows.values), strict=False):
            recorded(value)
            patient._take(program, Tuned(fingerprint))
            (now,) = function.report(X).kernels
            assert now.nests[0].parameters[rows.key] == value and now.tuned is not None
            assert now.kept is building.built_kernel(fingerprint, backend, False)
    assert counted.traces == 1
    close(function(X))
    assert function.report(X).background == "1 kernel tuned"


def test_code_goes_with_the_programs(patient: Background) -> None:
    def kernel_id() -> str:
        function = mlc_jit(lambda x: jnp.tanh(x) * 3, tune="background")
        function(X)
        ((program,),) = patient._followed.values()
        (kernel,) = program.kernels.values()
        return str(kernel.lease.kernel_id)

    gone = kernel_id()
    jax.clear_caches()
    gc.collect()
    gc.collect()
    assert not variants.exists(gone) and not patient._followed


@pytest.mark.parametrize("end", ["SIGKILL", "status 1"])
def test_a_crash_is_only_told(eager: Background, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    start = background.start_process

    def started(module: str, *args: Any, **kwargs: Any) -> Any:
        if end == "status 1":
            return start("hlo_mlc.no_such_module", *args, **kwargs)
        process = start(module, *args, **kwargs)
        process.kill()
        return process

    monkeypatch.setattr(background, "start_process", started)
    function = mlc_jit(Traced(), tune="background")
    function(X)
    said = f"as before: the process that tunes has crashed ({end})"
    assert called_until_tuned(function) == f"1 kernel {said}"
    assert said in " ".join(str(function.explain(X)).split())
    close(function(X))


def test_whatever_fails_here_is_only_told(
    eager: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        turns.append(sys.getswitchinterval())
        raise RuntimeError("planted")

    monkeypatch.setattr(background, "start_process", failing)
    function = mlc_jit(Traced(), tune="background")
    function(X)
    assert called_until_tuned(function) == "1 kernel as before: RuntimeError: planted"
    # Callers go on while a process starts, and the interpreter is soon back to have it step behind.
    assert turns == [pytest.approx(background._TURN_S)]


@pytest.mark.parametrize(
    ("variable", "why"),
    [("HLO_MLC_DETERMINISTIC", "deterministic=True"), ("HLO_MLC_CHECK", "kernels check")],
)
def test_it_is_off_where_nothing_tuned_may_run(
    patient: Background, monkeypatch: pytest.MonkeyPatch, variable: str, why: str
) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("HLO_MLC_TUNE", "background")
    function = mlc_jit(Traced())
    function(X)
    assert function.report(X).background.startswith(f"off: {why}")
    assert patient._thread is None


def test_it_is_off_on_several_devices(patient: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    function = mlc_jit(Traced(), tune="background")
    function(X)
    assert "several devices" in function.report(X).background and patient._thread is None


def test_it_is_off_in_programs_of_others_and_where_nobody_asks(patient: Background) -> None:
    function = mlc_jit(Traced(), tune="background")
    close(jax.jit(lambda x: function(x) + 1)(X) - 1)
    mlc_jit(Traced())(X)
    assert patient._thread is None and not patient._followed
    jax.vmap(function)(X[None])  # a program of its own
    assert patient._thread is not None


PROGRAM = textwrap.dedent("""
    import os, sys, time
    import jax.numpy as jnp
    from hlo_mlc import mlc_jit
    from hlo_mlc.interop import background
    background._WORTH_NS, background._LOOK_S, background._BUSY = 0, 0.02, -1.0  # it never is idle
    background.step_behind = lambda process: None
    start = background.start_process
    def started(*args, **kwargs):
        process = start(*args, **kwargs)
        print(process.pid, flush=True)
        return process
    background.start_process = started
    f = mlc_jit(lambda x: x @ x.T + 1, tune="background")
    f(jnp.ones((96, 64)))
    end = time.monotonic() + 60
    while "whenever nobody else uses the machine" not in f.report().background:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "1 kernel not tuned yet: " in f.report().background
    sys.stdin.readline()
""")


@pytest.mark.parametrize("how", ["end", "kill"])
def test_it_ends_with_the_program(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"XLA_FLAGS": ""},
    ) as process:  # one device
        tuner = int(process.stdout.readline())
        if how == "kill":
            process.kill()
        _, err = process.communicate("\n", timeout=LIMIT_S)
        assert process.returncode == (-signal.SIGKILL if how == "kill" else 0) and not err, err
    end = time.monotonic() + LIMIT_S
    while Path(f"/proc/{tuner}").exists() and _state(tuner) != "Z":
        assert time.monotonic() < end, "an orphan"
        time.sleep(0.02)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_it_is_off_where_no_thread_can_be_started(
    patient: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is compiled all the same."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    function = mlc_jit(Traced(), tune="background")
    close(function(X))
    assert function.report(X).background == "off: can't start new thread"
    assert patient._thread is None
