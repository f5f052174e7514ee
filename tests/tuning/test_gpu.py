"""Kernels for GPUs are tuned like others; on the emulator, with times that are made up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from emulated_gpu import EmulatedGenerator

from emulation.compiler import why_not
from hlo_mlc import mlc_jit
from hlo_mlc.backends.cuda import CudaBackend
from hlo_mlc.codegen.cuda.plan import Launch
from hlo_mlc.interop import tuning
from hlo_mlc.interop.devices import CUDA
from hlo_mlc.interop.operands import parts_of_call
from hlo_mlc.runtime.measure import PairedTimes
from hlo_mlc.runtime.records import OURS, XLA, Measured, Record, open_records
from hlo_mlc.support.errors import ConfigurationError, ScheduleError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc.tuning.generator import CandidateSource, CudaGenerator
from hlo_mlc.tuning.messages import Build, Failed, Task, Timed
from hlo_mlc.tuning.supervisor import Supervisor

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator takes g++")

TARGET = cuda.named("sm_90")
X = np.random.default_rng(0).standard_normal((64, 250)).astype(np.float32)
SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x)


@pytest.fixture(scope="module")
def program(take_apart):
    return take_apart(softmax, X, platform="cuda").programs[0]


def blocks_of(team: int, rows: int) -> dict:
    return {0: ("rows", {"team": team, "rows": rows, "chunks": 1, "kept": 0, "grid": 0})}


def test_the_space_has_the_parameters_of_the_templates(program) -> None:
    space = CudaGenerator().space(program, TARGET)
    names = {p.key for p in space.parameters}
    assert names == {"team", "rows", "chunks", "kept", "grid"}
    assert dict(space.default)["0.rows.grid"] == 0
    _, (decision,) = schedule_program(program, TARGET)
    assert {f"0.rows.{key}": value for key, value in decision.parameters.items()} == space.default


def test_a_worker_measures_on_the_device(program) -> None:
    expected = np.asarray(jax.nn.softmax(X.astype(np.float64)), np.float32)
    with Supervisor(Task(program, TARGET, EmulatedGenerator(), (X,), (expected,))) as supervisor:
        assert supervisor.default_us == 64  # warps, one for each row
        outcomes = {}
        for team, rows in ((8, 8), (128, 1), (32, 4)):
            (built,) = supervisor.build([Build(blocks_of(team, rows))])
            outcomes[team] = supervisor.measure(built, 0.01)
    assert outcomes[8] == Timed(64, 16, 4, 1)
    assert outcomes[128] == Failed("registers do not suffice: 64 bytes spill")
    assert outcomes[32] == Failed("registers do not suffice: 64 bytes spill")


def test_equal_text_with_other_launches_is_other_code() -> None:
    one, other = (
        CandidateSource("text", "f", 0, (Launch("f", blocks, 32, (0, 1), False),))
        for blocks in (1, 2)
    )
    assert one.digest != other.digest


def test_nests_are_not_scheduled_by_steps(program) -> None:
    with pytest.raises(ScheduleError, match="not scheduled by steps"):
        schedule_program(program, TARGET, {0: ("rows", ())})


@pytest.fixture
def options(tmp_path: Path, monkeypatch) -> Options:
    """Those of functions now, with records of their own."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    return Options.from_environment(choose="auto")


@pytest.fixture
def tune(options, monkeypatch):
    """Tunes softmax for the GPU; `xla` is how many times as long XLA is said to take."""

    def tune(xla: float = 1.0, **budget):
        monkeypatch.setattr(CudaBackend, "generator", EmulatedGenerator())
        monkeypatch.setattr(
            tuning.Session,
            "_times",
            lambda self, *programs: PairedTimes.of([16.0 * xla] * 5, [16.0] * 5),
        )
        (part,) = parts_of_call(mlc_jit(softmax), (SHAPE,), {}, CUDA)
        return tuning.tune_module(part.module, options, entry=part.entry, platform=CUDA, **budget)

    return tune


needs_nvrtc = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")


@needs_nvrtc
def test_the_winner_is_built_from_then_on(tune, options, tmp_path: Path) -> None:
    (before,) = mlc_jit(softmax).kernels(SHAPE)
    assert [launch.blocks for launch in before.source.launches] == [8]
    report = tune(trials=150)
    (kernel,) = report.kernels
    record = kernel.record
    # A part of a warp for each row, of which a block has more than with whole warps.
    assert record.target == TARGET.key == "sm_90-227K"
    assert (record.measured.default_us, record.measured.ours_us) == (64, 16)
    assert record.schedules[0][1]["team"] == 8
    (after,) = mlc_jit(softmax).kernels(SHAPE)
    (launch,) = after.source.launches
    assert launch.blocks * launch.threads == 16 * 32
    assert str(kernel.row[-1]) == "as predicted"
    # Reproducible builds take nothing that was measured, or what a file says.
    (plain,) = mlc_jit(softmax, deterministic=True).kernels(SHAPE)
    assert plain.source == before.source
    lock = tmp_path / "lock.json"
    lock.write_text(open_records(options).export_text())
    (pinned,) = mlc_jit(softmax, records=lock).kernels(SHAPE)
    assert pinned.source == after.source
    assert pinned.id != after.id


@needs_nvrtc
def test_the_faster_side_is_taken_from_then_on(tune) -> None:
    def report():
        jitted = mlc_jit(lambda x: softmax(x))
        jitted.trace(SHAPE).lower(lowering_platforms=("cuda",))
        return jitted.report()

    (tuned,) = tune(xla=2.0, trials=3).kernels
    assert tuned.record.choice == OURS
    (taken,) = report().kernels
    assert "recorded when it was tuned: XLA takes 2.00 times as long" in taken.reason
    assert taken.tuned == tuned.record.measured
    (tuned,) = tune(xla=0.5, trials=3).kernels
    assert tuned.record.choice == XLA
    assert not report().kernels
    assert "recorded when it was tuned: XLA takes 0.50 times" in report().left[0].reason


def test_records_for_other_gpus_are_refused(options, tmp_path: Path, program) -> None:
    other = cuda.named("sm_80").key
    lock = tmp_path / "lock.json"
    open_records(options).put(Record("0" * 32, other, {}, Measured(8.0, 8.0, 1.0)))
    lock.write_text(open_records(options).export_text())
    assert json.loads(lock.read_text())["records"]
    jitted = mlc_jit(softmax, records=lock)  # for CPUs the file says nothing
    with pytest.raises(ConfigurationError, match=f"are for {other}, and this is sm_90"):
        jitted.kernels(SHAPE)


def test_other_devices_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(tuning, "platform_of", lambda leaves: "tpu")
    with pytest.raises(UsageError, match="runs on tpu here"):
        mlc_jit(softmax).tune(X)
