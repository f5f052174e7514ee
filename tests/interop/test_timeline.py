"""`trace(…, path=…)`: what ran when, in a file that Perfetto reads."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.interop import timeline, xla_profile
from hlo_mlc.interop.timeline import Timeline
from hlo_mlc.runtime import spans
from hlo_mlc.support.errors import UsageError

X = jnp.linspace(-2.0, 3.0, 256 * 512).reshape(256, 512)
W = jnp.ones((512, 256)) / 512
ours = functools.partial(mlc_jit, choose="ours")


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = jnp.tanh(x @ w)
    return jax.nn.softmax(h), jnp.fft.fft(h, 257).real.sum()  # of a large prime: stays with XLA


def events(path: Path, category: str = "") -> list[dict[str, Any]]:
    """The events of a file that have a time, of one category if that is given."""
    content = json.loads(path.read_text())
    return [e for e in content["traceEvents"] if e["ph"] == "X" and category in ("", e["cat"])]


def assert_nested(found: Sequence[dict[str, Any]]) -> None:
    """Events of one thread are one inside the other, or one after the other, which is what makes
    a picture of them."""
    slack = 2e-3  # two nanoseconds: times are written as floats
    for thread in {e["tid"] for e in found}:
        ends: list[float] = []
        for event in sorted(
            (e for e in found if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])
        ):
            while ends and ends[-1] <= event["ts"] + slack:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + slack, event
            ends.append(event["ts"] + event["dur"])


def test_all_kernels_and_what_xla_runs(tmp_path: Path) -> None:
    function = ours(step)
    found = function.trace(W, X, path=tmp_path / "t.json")
    assert isinstance(found, Timeline) and found.path == tmp_path / "t.json" and not found.lost
    report = function.report(W, X)
    assert report.kernels and report.left
    calls, kernels, tasks, xla = (events(found.path, c) for c in ("call", "kernel", "task", "XLA"))
    assert [e["name"] for e in calls] == [f"step, call {n}" for n in (1, 2, 3)]
    for kernel in report.kernels:
        runs = [e for e in kernels if e["name"] == kernel.name]
        assert len(runs) == 3 * kernel.calls
        assert all(e["args"]["id"] == kernel.id and e["args"]["ops"] for e in runs)
    assert len(kernels) == 3 * sum(kernel.calls for kernel in report.kernels)
    assert {e["name"].partition(" [")[0] for e in tasks} <= {k.name for k in report.kernels}
    assert tasks and sum("fft" in e["name"] for e in xla) == 3
    assert not any("softmax" in e["name"] for e in xla), "calls of kernels are not XLA's work"
    assert_nested(events(found.path))


def test_times_agree_with_those_of_the_calls(tmp_path: Path) -> None:
    found = ours(step).trace(W, X, path=tmp_path / "t.json", calls=4)
    calls, kernels = events(found.path, "call"), events(found.path, "kernel")
    assert len(found.calls_ns) == len(calls) == 4 and calls[0]["ts"] == 0
    assert [round(e["dur"] * 1e3) for e in calls] == list(found.calls_ns)
    for event in kernels:
        assert any(
            c["ts"] <= event["ts"] and event["ts"] + event["dur"] <= c["ts"] + c["dur"]
            for c in calls
        )
    assert 0 < found.kernels_ns <= sum(kernel.ns for kernel in found.kernels)
    assert found.kernels_ns <= sum(found.calls_ns) and 0 < found.xla_ns <= sum(found.calls_ns)


def test_threads_have_names(tmp_path: Path) -> None:
    found = ours(step).trace(W, X, path=tmp_path / "t.json")
    content = json.loads(found.path.read_text())
    named = {
        e["tid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"
    }
    assert named.keys() >= {e["tid"] for e in events(found.path)}
    assert named[threading.get_native_id()] == "Python, which calls"
    assert len(named) == len({e["tid"] for e in events(found.path)})


def test_what_is_printed(tmp_path: Path) -> None:
    found = ours(step).trace(W, X, path=tmp_path / "t.json")
    lines = str(found).splitlines()
    assert lines[0].startswith("3 calls of step, ") and "in operations of XLA's" in " ".join(lines)
    assert any(line.split()[2] == "3" and "softmax@test_timeline.py" in line for line in lines[2:])
    assert lines[-1] == f"{found.path}: open it at https://ui.perfetto.dev"
    assert repr(found) == str(found)


def test_kernels_alone_run_in_the_caller(tmp_path: Path) -> None:
    found = ours(lambda x: jnp.sin(x) * 2).trace(jnp.ones(100), path=tmp_path / "t.json")
    (thread,) = {e["tid"] for e in events(found.path, "kernel")}
    assert thread == threading.get_native_id()
    assert_nested(events(found.path))


def test_other_threads_may_call_meanwhile(tmp_path: Path) -> None:
    function, other, stop = ours(step), ours(lambda x: jnp.cos(x).sum(0)), threading.Event()
    jax.block_until_ready((function(W, X), other(X)))

    def call_on() -> None:
        while not stop.is_set():
            jax.block_until_ready(other(X))

    thread = threading.Thread(target=call_on)
    thread.start()
    try:
        found = function.trace(W, X, path=tmp_path / "t.json", calls=20)
    finally:
        stop.set()
        thread.join()
    (foreign,) = {kernel.name for kernel in other.report().kernels}
    names = [e["name"] for e in events(found.path, "kernel")]
    assert foreign in names and all(
        names.count(kernel.name) == 20 * kernel.calls for kernel in function.report(W, X).kernels
    )


def test_donated_arguments_are_kept(tmp_path: Path) -> None:
    x = X + 1
    found = ours(lambda x: jnp.sin(x) * 2, donate_argnums=0).trace(x, path=tmp_path / "t.json")
    assert len(events(found.path, "kernel")) == 3 and not x.is_deleted()


def test_spans_without_room_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        timeline, "recorded_spans", functools.partial(spans.recorded_spans, per_thread=1)
    )
    found = ours(step).trace(W, X, path=tmp_path / "t.json")
    assert found.lost > 0 and f"{found.lost:,} kernels or tasks are not in it" in str(found)
    assert json.loads(found.path.read_text())["otherData"]["lost"] == found.lost


def test_beside_a_profile_of_the_user(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        found = ours(step).trace(W, X, path=tmp_path / "t.json")
    assert "XLA's operations are not in it: JAX's profiler says" in str(found)
    assert events(found.path, "kernel") and not events(found.path, "XLA")
    assert ours(step).trace(W, X, path=tmp_path / "t.json").without_xla == ""


def test_methods_modules_and_functions_with_a_path(tmp_path: Path) -> None:
    class Model:
        @functools.partial(mlc_jit, choose="ours", static_argnums=0)
        def apply(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(x)

    assert Model().apply.trace(X, path=tmp_path / "m.json").kernels
    module = compile_stablehlo(jax.jit(jnp.tanh).lower(X).as_text(), choose="ours")
    assert module.trace(X, path=tmp_path / "s.json").kernels
    assert isinstance(module.trace(X), jax.stages.Traced)
    own = mlc_jit(lambda x, path: x if path else -x, static_argnames="path")
    assert isinstance(own.trace(X, path="there"), jax.stages.Traced)
    assert isinstance(ours(step).trace(W, X), jax.stages.Traced)


def test_what_cannot_be_traced(tmp_path: Path) -> None:
    function, path = ours(jnp.tanh), tmp_path / "t.json"
    called: list[int] = []

    def noisy(x: jax.Array) -> jax.Array:
        called.append(1)
        return x

    for bad, why in ((tmp_path / "no" / "t.json", "there is no folder"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=why):
            mlc_jit(noisy).trace(X, path=bad)
    assert not called, "it shows before anything runs"
    for calls in (0, "2"):
        with pytest.raises(UsageError, match=f"at least one call, not {calls!r}"):
            function.trace(X, path=path, calls=calls)
    with pytest.raises(UsageError, match="takes arrays, not ShapeDtypeStruct"):
        function.trace(jax.ShapeDtypeStruct((3,), jnp.float32), path=path)
    with pytest.raises(UsageError, match="takes arrays, not"):
        jax.jit(lambda x: function.trace(x, path=path))(X)
    with spans.recorded_spans(), pytest.raises(UsageError, match="one at a time"):
        function.trace(X, path=path)
    assert not path.exists()
    assert function.trace(X, path=path).kernels, "the profiler was stopped"


def test_jax_calls_kernels_by_what_they_compute_and_where() -> None:
    function = ours(step)
    jax.block_until_ready(function(W, X))
    with xla_profile.profiled() as profile:
        jax.block_until_ready(function(W, X))
    names = {op.name for thread in profile.threads for op in thread.operations}
    for kernel in "matmul_tanh", "softmax":
        assert any(name.startswith(f"{kernel}_at_test_timeline_py_") for name in names)


def test_clocks_are_read_together() -> None:
    with xla_profile.profiled() as profile:
        jax.block_until_ready(jax.jit(jnp.tanh)(X))
    (caller,) = [thread for thread in profile.threads if thread.is_caller]
    operations = [op for thread in profile.threads for op in thread.operations]
    assert caller.name and operations
    for op in operations:
        assert profile._readings[0][0] < op.begin_ns <= op.end_ns
