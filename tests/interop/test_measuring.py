"""choose="measure": what is run, what is kept, what is remembered, and what may not be run."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.backends.base import Backend
from hlo_mlc.backends.cpu import target_of
from hlo_mlc.compiler import CompiledModule
from hlo_mlc.interop import compiling, measuring
from hlo_mlc.interop.measuring import CANDIDATES
from hlo_mlc.runtime.measure import PairedTimes, Timing
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.support.options import Options
from making.left import by_xla

X = jnp.linspace(-1.0, 1.0, 512).reshape(16, 32)


def program(x: jax.Array) -> jax.Array:
    return by_xla(jax.nn.softmax(x * 3))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    return tmp_path


class Clock:
    """Decides how fast ours are: `speedups` in the order in which candidates are timed."""

    def __init__(self) -> None:
        self.speedups: list[float] = []
        self.calls = 0

    def __call__(self, run_a: Callable, run_b: Callable, seconds: float) -> PairedTimes:
        run_a()
        run_b()
        speedup = self.speedups[min(self.calls, len(self.speedups) - 1)]
        self.calls += 1
        return PairedTimes(Timing(100.0 * speedup, 1.0), Timing(100.0, 1.0), speedup, 0.1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measuring, "_time", clock)
    return clock


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler was asked for."""
    asked: list[str] = []
    compile_module = compiling.compile_module

    def watched(
        module: ir.Module, options: Options, *, entry: str, backend: Backend
    ) -> CompiledModule:
        asked.append(options.choose)
        return compile_module(module, options, entry=entry, backend=backend)

    monkeypatch.setattr(compiling, "compile_module", watched)
    return asked


def lowered(function: Callable = program, *args: Any) -> tuple[str, Any]:
    jitted = mlc_jit(function, choose="measure")
    text = jitted.lower(*(args or (X,))).as_text()
    return text, jitted.report()


def test_what_is_really_faster_is_not_asked_here_but_all_is_run() -> None:
    g = mlc_jit(program, choose="measure")
    np.testing.assert_allclose(g(X), program(X), rtol=1e-5)
    report = g.report()
    assert report.comparisons
    assert {c.candidate for c in report.comparisons} <= set(CANDIDATES)
    assert all(c.ours_us > 0 and c.xla_us > 0 and c.speedup > 0 for c in report.comparisons)
    best = max(c.speedup for c in report.comparisons)
    assert bool(report.kernels) == (best >= 1.02)
    assert "measured: " in str(g.explain(X))


@pytest.mark.parametrize(("seconds", "rounds"), [(1e-9, 0), (1e9, measuring._MOST_ROUNDS)])
def test_what_takes_longer_than_there_is_time_for_is_run_once(seconds: float, rounds: int) -> None:
    """A user waits for it, each time."""
    ran: list[str] = []

    def taking(name: str, each: float) -> Callable[[], None]:
        return lambda: (ran.append(name), time.sleep(each))

    times = measuring._time(taking("a", 0.002), taking("b", 0.001), seconds)
    assert ran.count("a") == ran.count("b") == 1 + rounds
    assert times.a.median_us >= 2000 and times.b.median_us >= 1000
    if not rounds:
        assert times.speedup == pytest.approx(times.a.median_us / times.b.median_us)


@pytest.mark.parametrize(
    ("speedup", "kept"), [(1.5, True), (1.02, True), (1.01, False), (0.5, False)]
)
def test_ours_is_kept_if_it_is_faster(clock: Clock, speedup: float, kept: bool) -> None:
    clock.speedups = [speedup]
    text, report = lowered()
    assert ("hlo_mlc_kernel" in text) is kept
    assert bool(report.kernels) is kept
    assert report.comparisons[0].speedup == speedup
    assert any("XLA's is kept" in reason for reason in report.reasons) is not kept
    if not kept:
        assert text == mlc_jit(program, choose="xla").lower(X).as_text()


def test_the_faster_candidate_is_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of sums scattered and a sine, all is ours, but only the sine is predicted to be worth it.
    places = np.arange(512) * 7 % 100

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(100).at[places].add(x[:, 0]), jnp.sin(by_xla(x.reshape(-1)))

    x = jnp.ones((512, 1024))
    clock.speedups = [1.1, 1.4]
    _, report = lowered(function, x)
    assert [c.candidate for c in report.comparisons] == ["ours", "auto"]
    assert len(report.kernels) == 1
    assert "stablehlo.sine" in report.kernels[0].ops


def test_the_choice_is_remembered(clock: Clock, compilations: list[str], cache: Path) -> None:
    clock.speedups = [1.5]
    _, first = lowered()
    assert compilations == ["ours", "auto"]
    (note,) = (cache / "choices").glob("*.json")
    assert json.loads(note.read_text())["choose"] == "ours"
    compilations.clear()
    text, second = lowered(lambda x: program(x))
    assert compilations == ["ours"]
    assert clock.calls == 1
    assert second.comparisons == first.comparisons
    assert "hlo_mlc_kernel" in text


@pytest.mark.parametrize("speedup", [1.5, 0.7])
def test_kernels_that_were_tuned_since_are_measured_again(
    clock: Clock, compilations: list[str], speedup: float
) -> None:
    clock.speedups = [speedup]
    lowered()
    lowered(lambda x: program(x))
    assert clock.calls == 1
    options = Options.from_environment()
    fingerprint = mlc_jit(lambda x: program(x), choose="ours").report(X).kernels[0].id
    records = open_records(options)
    record = Record(fingerprint, target_of(options).key, {}, Measured(1.0, 1.0, 1.0))
    records.put(record)
    lowered(lambda x: program(x))
    assert clock.calls == 2
    lowered(lambda x: program(x))
    assert clock.calls == 2
    records.put(dataclasses.replace(record, choice="xla"), replaces=record)
    lowered(lambda x: program(x))
    assert clock.calls > 2


def test_that_xla_wins_is_remembered_without_compiling(
    clock: Clock, compilations: list[str]
) -> None:
    clock.speedups = [0.7]
    lowered()
    compilations.clear()
    text, report = lowered(lambda x: program(x))
    assert not compilations
    assert "hlo_mlc_kernel" not in text
    assert report.comparisons[0].speedup == 0.7
    assert report.coverage == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"choose": "both", "comparisons": [], "reasons": []}',
        b'{"choose": "ours", "comparisons": 3}',
    ],
)
def test_a_damaged_choice_is_measured_again(clock: Clock, cache: Path, content: bytes) -> None:
    clock.speedups = [1.5]
    lowered()
    (note,) = (cache / "choices").glob("*.json")
    note.write_bytes(content)
    lowered(lambda x: program(x))
    assert clock.calls == 2
    assert json.loads(note.read_text())["choose"] == "ours"


def test_another_program_is_another_choice(clock: Clock, cache: Path) -> None:
    clock.speedups = [1.5]
    lowered()
    lowered(lambda x: program(x + 1))
    assert clock.calls == 2
    assert len(list((cache / "choices").glob("*.json"))) == 2


def test_wrong_results_are_not_taken(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.speedups = [9.0]
    monkeypatch.setattr(measuring, "disagreement", lambda *_: "all of it differs")
    monkeypatch.setattr(measuring, "as_near", lambda *_: False)
    with pytest.warns(RuntimeWarning, match="does not compute what XLA does: all of it differs"):
        text, report = lowered()
    assert "hlo_mlc_kernel" not in text
    assert any("all of it differs" in reason for reason in report.reasons)


def halve(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda v: jnp.sum(v) > 1, lambda v: v * 0.5, x)


def sort_in_a_loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda _, v: by_xla(v)[::-1], jnp.sin(x))


def callback(x: jax.Array) -> jax.Array:
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda v: np.asarray(v) * 2, kind, jnp.sin(x))


def chaotic(x: jax.Array) -> jax.Array:
    """What another order of adding makes another number of."""
    v = jnp.mean(x, axis=1)
    for _ in range(60):
        v = 3.99 * v * (1 - v)
    return v


@pytest.mark.filterwarnings("error")
def test_what_magnifies_rounding_is_taken(clock: Clock) -> None:
    clock.speedups = [2.0]
    x = np.random.default_rng(0).random((400, 1000), np.float32)
    g = mlc_jit(chaotic, choose="measure")
    g(x)
    report = g.report()
    assert report.coverage == 1
    (remark,) = report.reasons
    assert re.search("ours.*and XLA differ .*% of the elements.*as near to what f64 gives", remark)


def test_what_is_wrong_is_not_taken_because_it_is_in_the_middle_of_chaos(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.speedups = [2.0]
    bind, bound = measuring._bind, []

    def tripling(*args: Any) -> Callable[[], Any]:
        run = bind(*args)
        bound.append(run)
        return run if len(bound) != 2 else lambda: [3 * result for result in run()]

    monkeypatch.setattr(measuring, "_bind", tripling)
    x = np.random.default_rng(0).random((400, 1000), np.float32)
    g = mlc_jit(chaotic, choose="measure")
    with pytest.warns(RuntimeWarning, match="does not compute what XLA does"):
        g(x)
    assert g.report().coverage == 0


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[list[np.ndarray]]:
    """The arguments that programs were bound to."""
    bind, arguments = measuring._bind, []

    def watched(module: ir.Module, given: list[jax.Array], platform: str) -> Callable[[], Any]:
        arguments.append([np.asarray(one) for one in given])
        return bind(module, given, platform)

    monkeypatch.setattr(measuring, "_bind", watched)
    return arguments


def test_a_call_is_measured_on_its_own_arguments(
    clock: Clock, tried: list[list[np.ndarray]]
) -> None:
    clock.speedups = [2.0]

    @partial(mlc_jit, choose="measure", static_argnames="power", donate_argnums=0)
    def f(x: jax.Array, tree: dict[str, Any], power: float, key: jax.Array) -> jax.Array:
        noise = jax.random.uniform(key, x.shape)
        return jnp.tanh(x) ** power * tree["scale"] + tree["offset"] + noise

    key = jax.random.key(3)
    tree = {"offset": np.arange(32.0), "scale": 2.5}  # which is f64 until `jax.jit` takes it
    for rows in (16, 8):
        x = np.asarray(X[:rows])
        tried.clear()
        np.testing.assert_allclose(
            f(jnp.array(x), tree, power=2, key=key),
            np.tanh(x) ** 2 * 2.5 + np.arange(32.0) + jax.random.uniform(key, x.shape),
            rtol=1e-5,
        )
        expected = [x, np.arange(32, dtype=np.float32), np.float32(2.5), jax.random.key_data(key)]
        assert len(tried) >= 2
        for given in tried:
            for one, wanted in zip(given, expected, strict=True):
                np.testing.assert_array_equal(one, wanted)


def test_what_depends_on_its_arguments_is_measured_on_them(clock: Clock) -> None:
    clock.speedups = [2.0]
    for function in (halve, sort_in_a_loop):
        g = mlc_jit(function, choose="measure")
        np.testing.assert_allclose(g(X[0] + 2), jax.jit(function)(X[0] + 2), rtol=1e-5)
        assert g.report().comparisons


def test_arguments_of_another_call_are_none(clock: Clock, tried: list[list[np.ndarray]]) -> None:
    """Neither those of a call around it, nor such as are traced, nor those that are gone."""
    clock.speedups = [2.0]
    inner = mlc_jit(lambda x: jnp.tanh(x[:4]) * 2, choose="measure")

    @partial(mlc_jit, choose="measure")
    def outer(x: jax.Array) -> jax.Array:
        inner.lower(jnp.zeros((4, 7)))
        return jnp.sin(x)

    outer(X)
    assert [given[0].shape for given in tried[:2]] == [(4, 7)] * 2
    np.testing.assert_array_equal(tried[-1][0], X)
    tried.clear()
    jax.jit(lambda x: inner(x))(X)
    assert tried
    assert not any(np.array_equal(given[0], X) for given in tried)
    tried.clear()
    inner.lower(X[:5])
    assert tried
    assert not any(np.array_equal(given[0], X[:5]) for given in tried)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (halve, "repeats itself depends on the arguments"),
        (sort_in_a_loop, "how often a loop runs"),
        (callback, "what xla_.*callback does is unknown"),
    ],
)
def test_what_may_not_be_run_on_made_up_arguments_is_predicted(
    clock: Clock, function: Callable, reason: str, cache: Path
) -> None:
    g = jax.jit(mlc := mlc_jit(function, choose="measure"))
    np.testing.assert_allclose(g(X[0] + 2), jax.jit(function)(X[0] + 2), rtol=1e-5)
    assert clock.calls == 0
    assert not mlc.report().comparisons
    (remark,) = mlc.report().reasons
    assert remark.startswith("predicted, not measured: ")
    assert re.search(reason, remark)
    assert not (cache / "choices").exists()


def test_communication_is_not_run_alone(clock: Clock) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    g = mlc_jit(lambda x: jax.lax.psum(jnp.sin(x), "i"), choose="measure")
    h = jax.jit(jax.shard_map(g, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()))
    np.testing.assert_allclose(h(X), jnp.sum(jnp.sin(X).reshape(8, 2, 32), 0), rtol=1e-4, atol=1e-6)
    assert clock.calls == 0
    assert "it takes other devices" in g.report().reasons[0]


def test_large_arguments_are_not_made_up(clock: Clock) -> None:
    x = jax.ShapeDtypeStruct((1 << 14, 1 << 15), jnp.float32)
    _, report = lowered(lambda x: jnp.sin(x), x)
    assert clock.calls == 0
    assert "its arguments take 2048 MiB" in report.reasons[0]


def test_under_another_trace(clock: Clock) -> None:
    clock.speedups = [1.5]
    g = mlc_jit(lambda x: jnp.tanh(x) * 2, choose="measure")

    @jax.jit
    def outer(x: jax.Array) -> jax.Array:
        g.lower(X)
        return jax.vmap(jax.grad(lambda v: jnp.sum(g(v))))(x)

    np.testing.assert_allclose(outer(X), 2 / np.cosh(X) ** 2, rtol=1e-4)
    assert clock.calls > 0


def test_modules_too(clock: Clock) -> None:
    clock.speedups = [1.5]
    text = jax.jit(jnp.sin, donate_argnums=0).lower(X).as_text()
    compiled = compile_stablehlo(text, choose="measure")
    assert compiled.report().comparisons[0].speedup == 1.5
    np.testing.assert_allclose(compiled(np.asarray(X))[0], jnp.sin(X), rtol=1e-5)


def test_nothing_is_held_against_xla_where_that_is_wrong(clock: Clock, cache: Path) -> None:
    """It would be what ours have to agree with, and the original would be kept."""
    clock.speedups = [0.5]
    x = np.array([[-(2**31), 70000, 3, -4]], np.int32)
    ours = mlc_jit(lambda x: jnp.abs(x[::-1]) < 0, choose="measure")
    np.testing.assert_array_equal(ours(x), x == -(2**31))
    (reason,) = ours.report(x).reasons
    assert reason.startswith("predicted, not measured: XLA takes integers that overflow")
    assert clock.calls == 0 and not (cache / "choices").exists()


def test_no_record_gives_xla_what_it_is_wrong_at() -> None:
    """It may be of the same kernel in another program."""
    x = np.array([[-(2**31), 70000, 3, -4]], np.int32)
    fingerprint = mlc_jit(lambda x: jnp.abs(x) < 0, choose="ours").report(x).kernels[0].id
    options = Options.from_environment()
    measured = Measured(1.0, 1.0, 1.0)
    open_records(options).put(
        Record(fingerprint, target_of(options).key, {}, measured, choice="xla")
    )
    ours = mlc_jit(lambda x: jnp.abs(x) < 0)
    np.testing.assert_array_equal(ours(x), x == -(2**31))
    assert [kernel.id for kernel in ours.report(x).kernels] == [fingerprint]
