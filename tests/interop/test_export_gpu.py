"""Files of functions for GPUs: what comes out of one needs neither CuPy nor NVRTC."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax

import hlo_mlc
from emulation.compiler import why_not
from hlo_mlc import building, load, mlc_jit
from hlo_mlc.cli import main
from hlo_mlc.codegen.cuda import compile as nvrtc
from hlo_mlc.codegen.cuda.compile import Compiled, Usage
from hlo_mlc.interop import bundle_reader, devices
from hlo_mlc.interop.load import describe
from hlo_mlc.runtime.archive import Archive, read_archive, write_archive
from hlo_mlc.support.errors import ArchiveError, UnknownTargetError, UsageError
from hlo_mlc.target import cuda

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")

DRIVER = Path(__file__).parents[1] / "codegen" / "cuda" / "fake_driver.cc"
X = np.random.default_rng(0).standard_normal((20, 300)).astype(np.float32)


def function(x: jax.Array) -> dict[str, jax.Array]:
    """A loop in one kernel, a chain along rows, and a sum of several launches with scratch."""
    looped = lax.fori_loop(0, 3, lambda i, c: c * 0.5 + jnp.roll(c, 1), x[0])
    return {
        "rows": jax.nn.softmax(x),
        "looped": looped,
        "total": jnp.sum(jnp.tile(x, (8, 20)), axis=None),
    }


def long_rows(x: jax.Array) -> jax.Array:
    """Two values of each row are kept: of f64, one in the shared memory of sm_90, none of sm_80."""
    return jnp.cos(jax.nn.softmax(x) * 3) + jnp.sum(jax.nn.softmax(x), 1, keepdims=True)


def test_machine_code_for_each_architecture(path: Path) -> None:
    report = hlo_mlc.export(
        mlc_jit(function, choose="ours"), X, path=path, targets=("sm_80", "sm_90")
    )
    assert report.targets == ("sm_80", "sm_90")
    assert report.entries[0].report.coverage == 1
    archive = read_archive(path)
    assert archive.description["platform"] == "cuda"
    for target in archive.description["targets"]:
        assert target["kernels"]
        for kernel in target["kernels"].values():
            code = bytes(archive.blocks[kernel["block"]])
            assert code.startswith(b"\x7fELF")
            assert kernel["functions"] and kernel["plan"]
            assert all(f.encode() in code for f in kernel["functions"])
    text = describe(path)
    assert "target sm_90 (NVIDIA GPUs, up to 227 KiB of shared memory)" in text
    assert "registers" in text and "what this machine runs" not in text


def test_nothing_of_it_becomes_known_to_xla_here(path: Path, monkeypatch) -> None:
    """Kernels of another architecture must not run in the place of those for the GPU here."""
    published = []
    monkeypatch.setattr("hlo_mlc.runtime.cuda.publish", lambda *given: published.append(given))
    hlo_mlc.export(
        mlc_jit(lambda x: jnp.tanh(x) * 5, choose="ours"), X, path=path, targets=("sm_80",)
    )
    assert not published
    mlc_jit(lambda x: jnp.tanh(x) * 5, choose="ours").trace(X).lower(lowering_platforms=("cuda",))
    assert len(published) == 1


def test_scratch_is_that_of_the_least_shared_memory(path: Path) -> None:
    with jax.enable_x64(True):
        _scratch_is_that_of_the_least(path)


def _scratch_is_that_of_the_least(path: Path) -> None:
    rows = jax.ShapeDtypeStruct((64, 24_000), jnp.float64)
    needed = {}
    for name in cuda.names():
        kernels = mlc_jit(long_rows, choose="ours").choosing("ours", name).kernels(rows)
        needed[name] = sum(kernel.source.scratch_bytes for kernel in kernels)
    assert needed["sm_80"] > needed["sm_90"], "else this shows nothing"
    hlo_mlc.export(mlc_jit(long_rows, choose="ours"), rows, path=path, targets=("sm_90", "sm_80"))
    archive = read_archive(path)
    program = jax.export.deserialize(bytearray(archive.blocks["e0.program"])).mlir_module()
    assert f"tensor<{needed['sm_80']}xui8>" in program


def test_nothing_that_was_tuned_goes_into_what_is_deterministic(path: Path) -> None:
    report = hlo_mlc.export(
        mlc_jit(function, choose="ours", deterministic=True),
        X,
        path=path,
        targets=("sm_80", "sm_90"),
    )
    assert report.entries[0].report.coverage == 1
    for target in read_archive(path).description["targets"]:
        assert target["kernels"]
        assert all(kernel.endswith("-deterministic") for kernel in target["kernels"])


def test_cpus_and_gpus_do_not_mix(path: Path) -> None:
    with pytest.raises(UsageError, match="for CPUs or for GPUs, not for both"):
        hlo_mlc.export(function, X, path=path, targets=("host", "sm_90"))
    with pytest.raises(UnknownTargetError, match="sm_10"):
        hlo_mlc.export(function, X, path=path, targets=("sm_10",))


def test_without_a_gpu_it_says_so(path: Path) -> None:
    hlo_mlc.export(mlc_jit(function, choose="ours"), X, path=path, targets=("sm_90",))
    with pytest.raises(ArchiveError, match="is for NVIDIA GPUs, and JAX has none here"):
        load(path)


@pytest.mark.parametrize(
    ("capability", "fits"), [("9.0", ["sm_90"]), ("8.0", ["sm_80"]), ("8.9", []), ("12.0", [])]
)
def test_which_code_a_gpu_runs(path: Path, monkeypatch, capability: str, fits: list[str]) -> None:
    hlo_mlc.export(mlc_jit(jnp.tanh, choose="ours"), X, path=path, targets=("sm_90", "sm_80"))
    monkeypatch.setattr(
        devices,
        "first_gpu",
        lambda: type("Gpu", (), {"compute_capability": capability, "device_kind": ""}),
    )
    targets = read_archive(path).description["targets"]
    fitting = bundle_reader.PLATFORMS["cuda"].fitting(targets)
    assert [target["name"] for target in fitting] == fits
    assert not bundle_reader.PLATFORMS["cuda"].missing(targets)
    if not fits:
        with pytest.warns(RuntimeWarning, match="kernels for sm_90, sm_80, which this machine can"):
            original = load(path)
        assert (
            "hlo_mlc_kernel" not in original.trace(X).lower(lowering_platforms=("cuda",)).as_text()
        )


def test_the_command(path: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # which the command puts in front of the path
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(
        main,
        [
            "export",
            "jax.numpy:tanh",
            "--arg",
            "f32[64,300]",
            "--choose",
            "ours",
            "--target",
            "sm_80",
            "-o",
            str(path),
        ],
    )
    assert result.exit_code == 0, result.output
    assert "code for sm_80" in result.output
    shown = CliRunner().invoke(main, ["inspect", str(path)])
    assert "target sm_80 (NVIDIA GPUs" in shown.output


# Loads a file on what stands in for a GPU: the real handler under `jax.jit`, with the emulator as
# the driver, registered for the CPU under the name that the program calls.
ELSEWHERE = textwrap.dedent("""
    import json, sys
    for name in ("cupy", "cupy_backends", "hlo_mlc.codegen", "hlo_mlc.compiler"):
        sys.modules[name] = None
    import dataclasses
    import jax, numpy as np
    import hlo_mlc
    from hlo_mlc.interop import devices, load as loading
    from hlo_mlc.runtime import cuda, library

    driver, path, given, results = sys.argv[1:]
    own = library.load()
    own.mlc_cuda_use_driver(driver.encode())
    jax.local_devices(backend="cpu")
    jax.ffi.register_ffi_type("state", {
        "type_id": jax.ffi.pycapsule(own.mlc_cuda_ffi_state_type_id()),
        "type_info": jax.ffi.pycapsule(own.mlc_cuda_ffi_state_type_info())}, platform="cpu")
    jax.ffi.register_ffi_target(library.TARGET_NAME, {
        "instantiate": jax.ffi.pycapsule(own.mlc_cuda_ffi_instantiate),
        "initialize": jax.ffi.pycapsule(own.mlc_cuda_ffi_initialize),
        "execute": jax.ffi.pycapsule(own.mlc_cuda_ffi_execute_on_host)}, platform="cpu")
    devices.first_gpu = lambda: type("Gpu", (), {"compute_capability": "9.0", "device_kind": ""})
    deserialized = loading._deserialized
    loading._deserialized = lambda *given: dataclasses.replace(
        deserialized(*given), platforms=("cpu",))
    f = hlo_mlc.load(path)
    for turn in range(2):
        out = f(np.load(given) + turn)
        np.savez(f"{results}{turn}.npz", **out)
""")


def test_it_runs_in_a_process_without_a_compiler(
    path: Path, tmp_path: Path, emulator, monkeypatch
) -> None:
    def emulated(source, target) -> Compiled:
        usage = {name: Usage(32, 0, 0, 0) for name in source.functions}
        return Compiled(emulator.image(source), usage)

    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "compile_source", emulated)
    monkeypatch.setattr(building, "_built", {})
    report = hlo_mlc.export(mlc_jit(function, choose="ours"), X, path=path, targets=("sm_90",))
    assert report.entries[0].report.coverage == 1
    driver = emulator.build(DRIVER.read_text(), "-std=c++17", "-O1", "-fPIC", "-shared")
    np.save(tmp_path / "x.npy", X)
    ran = subprocess.run(
        [
            sys.executable,
            "-P",
            "-W",
            "error::RuntimeWarning",
            "-c",
            ELSEWHERE,
            str(driver),
            str(path),
            str(tmp_path / "x.npy"),
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    for turn in range(2):
        actual, expected = np.load(tmp_path / f"out{turn}.npz"), jax.jit(function)(X + turn)
        # Not that of XLA for CPUs, which is wrong now and then in JAX 0.10.2 where threads wait.
        expected["total"] = np.sum(X + turn, dtype=np.float64) * 8 * 20
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, 1e-4, 1e-4)


def test_code_that_is_damaged_is_named(path: Path, tmp_path: Path, emulator) -> None:
    """The file itself is whole, the driver refuses what is in it."""
    hlo_mlc.export(mlc_jit(function, choose="ours"), X, path=path, targets=("sm_90",))
    archive = read_archive(path)
    blocks = {
        name: b"no machine code\0" if name.startswith("sm_90.") else block
        for name, block in archive.blocks.items()
    }
    write_archive(path, Archive(json.loads(json.dumps(archive.description)), blocks))
    driver = emulator.build(DRIVER.read_text(), "-std=c++17", "-O1", "-fPIC", "-shared")
    np.save(tmp_path / "x.npy", X)
    ran = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            ELSEWHERE,
            str(driver),
            str(path),
            str(tmp_path / "x.npy"),
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert "CUDA_ERROR_INVALID_IMAGE" in ran.stderr and "for kernel " in ran.stderr
