"""What can be seen of a compilation: its report, its dump, its debug output."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir

from hlo_mlc import building, kernel_objects, mlc_jit
from hlo_mlc.compiler import compile_module
from hlo_mlc.report import Report
from hlo_mlc.support.dumps import file_name
from hlo_mlc.support.errors import CodegenError, ConfigurationError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.core import TensorProgram
from making.left import by_xla

KERNEL_FILES = {
    "40-{}.tensors.txt",
    "50-{}.schedule.txt",
    "60-{}.loops.txt",
    "70-{}.proof.txt",
    "80-{}.ll",
    "90-{}.s",
}
MODULE_FILES = {
    "00-stablehlo.mlir",
    "10-graph.txt",
    "20-simplified.txt",
    "30-plan.txt",
    "31-plan.json",
    "99-stablehlo.mlir",
    "index.txt",
}


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(q @ k.T) @ v


def module_of(function: object, *args: object) -> ir.Module:
    return jax.jit(function).lower(*args).compiler_ir()


def compiled(function: object, *args: object, **options: object) -> Report:
    return compile_module(
        module_of(function, *args), Options.from_environment(choose="ours", **options)
    ).report


ARGS = (jnp.ones((32, 64)), jnp.ones((48, 64)), jnp.ones((48, 16)))
# Too much for its parts to become one kernel.
LARGE = (jnp.ones((256, 128)), jnp.ones((512, 128)))


def test_a_report_says_what_each_kernel_is() -> None:
    report = compiled(lambda q, k: jax.nn.softmax(q @ k.T), *LARGE)
    assert report.coverage == 1
    kernels = {kernel.nests[0].template: kernel for kernel in report.kernels}
    product = next(k for k in report.kernels if k.contraction_flops)
    assert [str(t) for t in product.operands] == ["256x128xf32", "512x128xf32"]
    assert [str(t) for t in product.results] == ["256x512xf32"]
    assert product.contraction_flops == 2 * 256 * 128 * 512
    assert product.bytes == 4 * (256 * 128 + 512 * 128 + 256 * 512)
    assert not product.data_dependent
    assert {"contraction", "reduction"} <= set(kernels)
    softmax = kernels["reduction"]
    assert "stablehlo.exponential" in softmax.ops
    assert any("test_stages.py" in place for place in softmax.locations)
    assert {"import", "partition", "schedule", "print", "assemble", "emit"} <= set(
        report.stage_seconds
    )


def test_products_of_wide_floats_count_twice() -> None:
    with jax.enable_x64(True):
        narrow = compiled(jnp.matmul, jnp.ones((8, 8), "float32"), jnp.ones((8, 8), "float32"))
        wide = compiled(jnp.matmul, jnp.ones((8, 8), "float64"), jnp.ones((8, 8), "float64"))
    assert wide.kernels[0].contraction_flops == 2 * narrow.kernels[0].contraction_flops == 2048


def test_bytes_are_those_that_are_touched() -> None:
    (kernel,) = compiled(lambda x: x[3] * 2, jnp.ones((1000, 64))).kernels
    assert kernel.bytes == 2 * 64 * 4


def test_a_loop_that_ends_when_its_data_says_so_depends_on_it() -> None:
    def halve(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: jnp.sum(v) > 1, lambda v: v * 0.5, x)

    def halve_ten_times(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 10, lambda _, v: v * 0.5, x)

    assert compiled(halve, jnp.ones(8)).kernels[0].data_dependent
    assert not compiled(halve_ten_times, jnp.ones(8)).kernels[0].data_dependent


def test_nothing_taken_hands_back_the_module_itself() -> None:
    module = module_of(lambda x: by_xla(x), jnp.ones(8))
    before = str(module)
    for choose in ("ours", "auto"):
        result = compile_module(module, Options.from_environment(choose=choose))
        assert result.module is module
        assert str(module) == before
        assert result.report.coverage == 0
        assert result.report.left


@pytest.mark.parametrize("choose", ["xla", "auto", "measure"])
def test_what_stays_with_xla_is_lowered_as_jax_does(choose: str) -> None:
    def three(x: jax.Array) -> jax.Array:
        return by_xla(x)

    untouched = mlc_jit(three, choose="xla").lower(ARGS[0])
    left = mlc_jit(three, choose=choose).lower(ARGS[0])
    assert left.as_text() == untouched.as_text()
    assert "hlo_mlc" not in left.as_text()


def test_a_dump_has_every_stage(tmp_path: Path) -> None:
    report = compiled(attention, *ARGS, dump_dir=tmp_path)
    (folder,) = tmp_path.iterdir()
    expected = {name.format(file_name(k.name)) for name in KERNEL_FILES for k in report.kernels}
    assert {file.name for file in folder.iterdir()} == MODULE_FILES | expected
    index = (folder / "index.txt").read_text()
    assert f"assemble {report.kernels[0].name}" in index
    assert f"taken: {report.kernels[0].name}, k_" in (folder / "30-plan.txt").read_text()


def test_a_dump_of_kernels_that_are_known_is_complete(tmp_path: Path) -> None:
    compiled(attention, *ARGS, dump_dir=tmp_path / "first")
    compiled(attention, *ARGS, dump_dir=tmp_path / "second")
    files = [
        {
            file.name: file.read_text()
            for file in next((tmp_path / name).iterdir()).iterdir()
            if file.name != "index.txt"
        }
        for name in ("first", "second")
    ]
    assert files[0] == files[1]


def test_a_dump_says_what_changed_nothing(tmp_path: Path) -> None:
    module = module_of(lambda x: by_xla(x), jnp.ones(8))
    compile_module(module, Options.from_environment(choose="ours", dump_dir=tmp_path))
    lines = (next(tmp_path.iterdir()) / "index.txt").read_text().splitlines()
    changed = {line.split()[0]: not line.endswith("unchanged") for line in lines}
    assert changed["import"]
    assert not changed["emit"]


@pytest.mark.parametrize("choose", ["auto", "measure", "ours"])
def test_a_dump_folder_that_cannot_be_written_is_an_error(
    choose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HLO_MLC_DUMP", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="dump folder"):
        mlc_jit(lambda x: jnp.tanh(x), choose=choose).lower(ARGS[0])


def test_debug_output_grows_with_its_level(capsys: pytest.CaptureFixture) -> None:
    def function(x: jax.Array) -> jax.Array:
        return by_xla(jax.nn.softmax(x))

    shown = []
    for level in range(5):
        report = compiled(function, ARGS[0], debug=level)
        shown.append(capsys.readouterr().err.splitlines())
    name = report.kernels[0].name
    assert shown[0] == []
    assert len(shown[1]) == 1
    assert shown[1][0].startswith("hlo_mlc: main: coverage: ")
    assert any(name in line and "reduction(" in line and "predicted" in line for line in shown[2])
    assert not any("not contraction" in line or "left to XLA" in line for line in shown[2])
    assert any("not contraction: " in line for line in shown[3])
    assert any("left to XLA" in line and "convert" in line for line in shown[3])
    assert not any("parallel" in line or " for " in line for line in shown[3])
    assert len(shown[4]) > len(shown[3]) + 5
    assert all(line.startswith("hlo_mlc: ") for line in shown[4])


def test_kernels_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(attention, *ARGS)
    monkeypatch.setattr(building, "begin_object", lambda *_: pytest.fail("built again"))
    assert compiled(attention, *ARGS).kernels == first.kernels


def test_a_cached_kernel_is_not_generated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(attention, *ARGS)
    monkeypatch.setattr(building, "_built", {})  # as in another process
    monkeypatch.setattr(
        kernel_objects.replay, "schedule_as_recorded", lambda *_: pytest.fail("generated again")
    )
    again = compiled(attention, *ARGS)
    assert again.kernels == first.kernels
    assert "assemble" in again.stage_seconds
    assert "print" not in again.stage_seconds


def test_a_kernel_that_cannot_be_built_stays_with_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of one kernel costs only its cluster, and is told."""

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.argmax(x, 1), jnp.argmax(by_xla(jnp.sin(x)), 0)[:, None] * 2

    x = jnp.arange(300_000.0).reshape(300, 1000) % 7
    schedule = kernel_objects.replay.schedule_as_recorded

    def faulty(program: TensorProgram, target: CpuTarget, *rest: object) -> object:
        if any(b.shape == (300,) for b in program.results):
            raise CodegenError("no code for this one")
        return schedule(program, target, *rest)

    monkeypatch.setattr(building, "_built", {})
    monkeypatch.setattr(kernel_objects, "object_key", lambda kernel, *_: kernel.fingerprint)
    monkeypatch.setattr(kernel_objects.replay, "schedule_as_recorded", faulty)
    module = module_of(function, x)
    compiled = compile_module(module, Options.from_environment(choose="auto"))
    report = compiled.report
    assert report.kernels
    (fault,) = compiled.faults
    assert fault.reason == "the compiler failed with CodegenError: no code for this one"
    assert Path(__file__).name in fault.location
    assert any("no code for this one" in left.reason for left in report.left)
    with pytest.raises(CodegenError):
        compile_module(module, Options.from_environment(choose="ours"))
