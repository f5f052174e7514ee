"""choose="measure": what is run, what is kept, what is remembered, and what may not be run."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.compiler import CompiledModule, target_of
from hlo_mlc.interop import compiling, measuring
from hlo_mlc.interop.measuring import CANDIDATES, disagreement
from hlo_mlc.runtime.measure import PairedTimes, Timing
from hlo_mlc.runtime.records import Measured, Record, open_records, target_key
from hlo_mlc.support.options import Options

X = jnp.linspace(-1.0, 1.0, 512).reshape(16, 32)


def program(x: jax.Array) -> jax.Array:
    return jnp.sort(jax.nn.softmax(x * 3))


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

    def watched(module: ir.Module, options: Options, *, entry: str) -> CompiledModule:
        asked.append(options.choose)
        return compile_module(module, options, entry=entry)

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
    assert "measured: " in g.explain(X)


@pytest.mark.parametrize(("speedup", "kept"), [(1.5, True), (1.02, True), (1.01, False),
                                               (0.5, False)])
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
    # Of a reversal and a sine, all is ours, but only the sine is predicted to be worth it.
    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x[::-1], jnp.sin(jnp.sort(x.reshape(-1)))

    x = jnp.ones((512, 1024))
    clock.speedups = [1.1, 1.4]
    _, report = lowered(function, x)
    assert [c.candidate for c in report.comparisons] == ["ours", "auto"]
    assert len(report.kernels) == 1
    assert "stablehlo.sine" in report.kernels[0].ops


def test_the_choice_is_remembered(
    clock: Clock, compilations: list[str], cache: Path
) -> None:
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
    record = Record(fingerprint, target_key(target_of(options)), {}, Measured(1.0, 1.0, 1.0))
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


@pytest.mark.parametrize("content", [b"", b"{}", b'{"choose": "both", "comparisons": [],'
                                     b' "reasons": []}', b'{"choose": "ours", "comparisons": 3}'])
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
    with pytest.warns(RuntimeWarning, match="does not compute what XLA does: all of it differs"):
        text, report = lowered()
    assert "hlo_mlc_kernel" not in text
    assert any("all of it differs" in reason for reason in report.reasons)


def halve(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda v: jnp.sum(v) > 1, lambda v: v * 0.5, x)


def sort_in_a_loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda _, v: jnp.sort(v)[::-1], jnp.sin(x))


def callback(x: jax.Array) -> jax.Array:
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda v: np.asarray(v) * 2, kind, jnp.sin(x))


@pytest.mark.parametrize(("function", "reason"), [
    (halve, "repeats itself depends on the arguments"),
    (sort_in_a_loop, "how often a loop runs"),
    (callback, "what xla_.*callback does is unknown"),
])
def test_what_may_not_be_run_on_made_up_arguments_is_predicted(
    clock: Clock, function: Callable, reason: str, cache: Path
) -> None:
    g = mlc_jit(function, choose="measure")
    np.testing.assert_allclose(g(X[0] + 2), jax.jit(function)(X[0] + 2), rtol=1e-5)
    assert clock.calls == 0
    assert not g.report().comparisons
    (remark,) = g.report().reasons
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


@pytest.mark.parametrize(("actual", "expected", "same"), [
    ([1.0, 2.0], [1.0, 2.0 + 1e-6], True),
    ([1.0, 2.0], [1.0, 2.1], False),
    ([np.nan, np.inf], [np.nan, np.inf], True),
    ([np.nan, 1.0], [1.0, 1.0], False),
    ([np.inf, 1.0], [-np.inf, 1.0], False),
    ([0.0, 1e8], [1e-3, 1e8], True),
    ([], [], True),
])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_disagreement_of_floats(
    actual: list[float], expected: list[float], same: bool, dtype: str
) -> None:
    pair = np.asarray(actual, dtype), np.asarray(expected, dtype)
    assert (not disagreement([pair[0]], [pair[1]])) is same


def test_disagreement_of_integers_allows_for_ties() -> None:
    expected = np.arange(1000)
    few, many = expected.copy(), expected.copy()
    few[3] += 1
    many[:20] += 1
    assert not disagreement([few], [expected])
    assert disagreement([expected, many], [expected, expected]).startswith("2% of the elements of "
                                                                           "result 1")


def test_bfloat16_is_compared_as_coarsely_as_it_is() -> None:
    expected = jnp.full(8, 100, jnp.bfloat16)
    assert not disagreement([expected + 1], [expected])
    assert disagreement([expected + 50], [expected])
