"""Schedules for GPUs where there is none: what the model counts, and what is recorded of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from emulation.compiler import why_not
from hlo_mlc import mlc_jit
from hlo_mlc.cli import main
from hlo_mlc.codegen.cuda.compile import Compiled, Usage
from hlo_mlc.codegen.cuda.plan import Launch
from hlo_mlc.loops.prove import prove
from hlo_mlc.runtime.records import Measured, Record, Records, open_records
from hlo_mlc.support.errors import CodegenError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target import cuda
from hlo_mlc.tuning.generator import CudaGenerator, ModelledGenerator
from hlo_mlc.tuning.gpu_model import BlockWork, bank_cycles, predicted_us, sectors, works_of
from hlo_mlc.tuning.overview import overview_json
from hlo_mlc.tuning.storage import journal_path, open_studies

TARGET = cuda.named("sm_90")
LANES = np.arange(32, dtype=np.int64)
needs_nvrtc = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")


@pytest.mark.parametrize(
    ("starts", "width", "expected"),
    [
        (LANES * 4, 4, 4),
        (LANES * 4 + 4, 4, 5),
        (LANES * 8, 4, 8),
        (LANES * 16, 16, 16),
        (LANES * 4096, 4, 32),
        (LANES * 0, 4, 1),
        (LANES * 1, 1, 1),
        (LANES * 40 + 24, 16, 40),
    ],
)
def test_sectors_that_a_warp_touches(starts: np.ndarray, width: int, expected: int) -> None:
    assert sectors(starts, width) == expected


@pytest.mark.parametrize(
    ("starts", "width", "expected"),
    [
        (LANES * 4, 4, 1),
        (LANES * 0, 4, 1),
        (LANES * 8, 4, 2),
        (LANES * 128, 4, 32),
        (LANES * 132, 4, 1),  # rows of 33 words: what transposes pad theirs to
        (LANES * 16, 16, 4),
        (LANES * 8, 8, 2),
        (LANES * 2, 2, 1),
        (LANES * 64, 16, 16),
    ],
)
def test_cycles_of_shared_memory(starts: np.ndarray, width: int, expected: int) -> None:
    assert bank_cycles(starts, width) == expected


def work(take_apart, function, *args, schedules=None) -> BlockWork:
    """That of the only function of the only kernel."""
    (program,) = take_apart(function, *args, platform="cuda").programs
    loops, _ = prove(CudaGenerator().loops(program, TARGET, schedules or {}))
    (found,) = works_of(loops).values()
    return found


def test_a_map(take_apart) -> None:
    x = np.zeros((512, 1024), np.float32)
    found = work(take_apart, lambda x: x * 3 + 1, x)
    # 256 threads with 4 elements each: 8 warps that load and store 512 bytes.
    assert found.sector_bytes == 8 * (512 + 512) and found.shared_cycles == 0
    assert found.memory_bytes == 2 * x.nbytes
    assert found.instructions == 8 * (2 + 4), "a load, a store, and four multiply-adds"


def test_a_transpose_by_tiles_and_without(take_apart) -> None:
    x = np.zeros((512, 1024), np.float32)
    tiles = work(take_apart, lambda x: x.T + 1, x)
    assert tiles.sector_bytes == 2 * 32 * 32 * 4, "a tile of 32 x 32 is read and written once"
    assert tiles.shared_cycles == 2 * 32, "without conflicts"
    apart = work(
        take_apart,
        lambda x: x.T + 1,
        x,
        schedules={0: ("elementwise", {"unroll": 1, "threads": 256, "grid": 0})},
    )
    # Of each warp's 128 elements every one is read from a sector of its own.
    assert apart.sector_bytes == 8 * (128 + 16) * 32


def compiled(registers: int, spilled: int = 0, shared: int = 0) -> Compiled:
    return Compiled(b"", {"f": Usage(registers, spilled, 0, shared)})


def us(work: BlockWork, blocks: int, threads: int = 256, **usage) -> float:
    launch = Launch("f", blocks, threads, (), False)
    return predicted_us({"f": work}, [launch], compiled(**{"registers": 32, **usage}), TARGET)


def test_what_is_too_few_at_a_time_waits() -> None:
    waits = BlockWork(instructions=100.0, waits=5000.0)
    few, many = us(waits, 132 * 16), us(waits, 132 * 64)
    assert us(waits, 132) == us(waits, 1), "a block on each multiprocessor, or on one"
    assert us(waits, 132 * 8) < few < many
    # 256 threads with 128 registers: 2 blocks at a time instead of 8.
    assert us(waits, 132 * 16, registers=128) > 2 * few
    # 100 KiB of shared memory: 2 blocks, too.
    assert us(waits, 132 * 16, shared=100 * 1024) == us(waits, 132 * 16, registers=128)


def test_the_slowest_of_what_a_block_does_counts() -> None:
    busy = BlockWork(instructions=1e5)
    for other in (BlockWork(shared_cycles=1e5), BlockWork(sector_bytes=1e7)):
        both = dataclasses.replace(other, instructions=busy.instructions)
        assert us(both, 1000) == us(other, 1000) > us(busy, 1000)
    memory = BlockWork(memory_bytes=3.35e8)
    assert us(memory, 1000) == pytest.approx(100, rel=0.1), "us for what 3.35 TB/s need 100 for"
    assert us(BlockWork(), 1000, spilled=1000) > us(BlockWork(), 1000)


def test_blocks_that_nothing_has_room_for() -> None:
    with pytest.raises(CodegenError, match=r"1024 threads with 128 registers each .* no room"):
        us(BlockWork(), 1, threads=1024, registers=128)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x)


def sum_of_rows(x: jax.Array) -> jax.Array:
    return jnp.tanh(x).sum(0)


@needs_nvrtc
@pytest.mark.parametrize(
    ("function", "shape", "faster", "slower"),
    [
        (
            sum_of_rows,
            (4096, 1024),
            ("columns", {"warps": 8, "chunks": 32, "grid": 0}),
            ("columns", {"warps": 8, "chunks": 1, "grid": 0}),
        ),  # 8 blocks leave most of a GPU idle
        (
            lambda x: x.T + 1,
            (1024, 4096),
            ("transpose", {"rows": 8, "grid": 0}),
            ("elementwise", {"unroll": 1, "threads": 256, "grid": 0}),
        ),
        (
            softmax,
            (4096, 4096),
            ("rows", {"team": 128, "rows": 1, "chunks": 1, "kept": 223, "grid": 0}),
            ("rows", {"team": 8, "rows": 1, "chunks": 1, "kept": 0, "grid": 0}),
        ),
    ],
)
def test_what_is_known_to_be_faster_is_predicted_to_be(
    take_apart, function, shape, faster, slower
) -> None:
    (program,) = take_apart(function, np.zeros(shape, np.float32), platform="cuda").programs
    generator, times = ModelledGenerator(), []
    for way in (faster, slower):
        source = generator.source(program, TARGET, {0: way})
        bench = generator.bench(TARGET, (), ())
        times.append(bench.load(source, generator.assemble(source, TARGET)).us)
    assert 1.3 * times[0] < times[1]


@pytest.fixture
def options(tmp_path: Path, monkeypatch) -> Options:
    """Those of functions now, with records of their own."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    return Options.from_environment(choose="auto")


@needs_nvrtc
def test_kernels_are_built_as_the_model_says(options) -> None:
    shape = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    (before,) = mlc_jit(sum_of_rows).kernels(shape)
    report = mlc_jit(sum_of_rows).tune(shape, trials=25, target="sm_90")
    (kernel,) = report.kernels
    measured = kernel.record.measured
    assert measured.modelled and kernel.record.target == TARGET.key
    assert kernel.record.choice == "" and measured.xla_us == 0 and report.whole is None
    assert "1 kernel by a model: nothing was run" in str(report)
    assert "made-up operands" not in str(report)
    assert "us, modelled" in str(kernel.record)
    (after,) = mlc_jit(sum_of_rows).kernels(shape)
    assert (after.source != before.source) == bool(kernel.record.schedules)
    if kernel.record.schedules:
        assert measured.speedup >= 1.2
    (found,) = open_records(options).all()
    assert found == kernel.record
    (row,) = json.loads(overview_json(open_studies(journal_path(options))))
    assert (row["choice"], row["target"]) == ("modelled", "sm_90, by a model")
    # Arrays are as good as types.
    again = mlc_jit(sum_of_rows).tune(jnp.zeros(shape.shape), trials=25, target="sm_90")
    assert again.kernels[0].tried == 25


def test_what_was_measured_goes_before_what_was_modelled(tmp_path: Path) -> None:
    records = Records(tmp_path)
    way = {0: ("rows", {"team": 8})}
    modelled = Record("k", "sm_90-227K", way, Measured(9.0, 3.0, 3.0, modelled=True))
    measured = Record("k", "sm_90-227K", {}, Measured(9.0, 9.0, 1.0))
    assert records.put(modelled) == modelled == records.get("k", "sm_90-227K")
    assert '"modelled": true' in records.export_text()
    assert records.put(measured) == measured
    assert records.put(modelled) == measured
    assert "modelled" not in records.export_text(), "as earlier versions write and read it"
    assert "by a model" in str(modelled.measured) and "by a model" not in str(measured.measured)


@needs_nvrtc
def test_on_the_command_line(options, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import jax\ndef f(x):\n    return jax.nn.softmax(x)\n")
    arguments = ["tune", "mine.py:f", "--arg", "f32[64,250]", "--target", "sm_90", "--trials", "2"]
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 0 and "by a model of sm_90-227K" in ran.output, ran.output
    refused = CliRunner().invoke(main, [*arguments, "--storage", "sqlite:///team.db"])
    assert refused.exit_code == 2 and "A team measures" in refused.output
    Path("f.mlir").write_text("module {}")
    refused = CliRunner().invoke(main, ["tune", "f.mlir", "--target", "sm_90"])
    assert refused.exit_code == 2 and "give a MODULE:FUNCTION" in refused.output


def test_other_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="for sm_80 or sm_90; all others are tuned by running"):
        mlc_jit(softmax).tune(jnp.ones((4, 4)), trials=1, target="x86-64-v3")
