"""Files for machines and versions that are not here, damaged ones, and what is none."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import MlcError, load, mlc_jit
from hlo_mlc.interop import bundle_reader
from hlo_mlc.interop.load import describe
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.archive import MAGIC, Archive, read_archive, write_archive
from hlo_mlc.support.errors import ArchiveError, UsageError
from making.exported import LEVELS, X, kernels_of, same


@pytest.fixture
def levels(path: Path) -> Path:
    hlo_mlc.export(mlc_jit(jax.nn.gelu, choose="ours"), X, path=path, targets=LEVELS)
    for kernel in kernels_of(path):
        variants.remove(kernel)
    return path


# What each level adds to the one before. Source: x86-64 psABI, "Micro-Architecture Levels".
FEATURES = (
    {"cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"},
    {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"},
    {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_best_level_that_fits(levels: Path, count: int, monkeypatch) -> None:
    present = frozenset().union(*FEATURES[:count])
    if not present <= bundle_reader.present_features():
        pytest.skip(f"this machine is below {LEVELS[count - 1]}")
    monkeypatch.setattr(bundle_reader, "present_features", lambda: present)
    loaded = []
    load_object = variants.load_object
    monkeypatch.setattr(
        variants, "load_object", lambda code, *rest: loaded.append(code) or load_object(code, *rest)
    )
    same(load(levels)(X), jax.nn.gelu(X))
    archive = read_archive(levels)
    assert f"target {LEVELS[count - 1]}" in describe(levels).replace(" (what", "\n", 1)
    (kernel,) = archive.description["targets"][count - 1]["kernels"].values()
    assert loaded == [bytes(archive.blocks[kernel["block"]])]


def test_no_level_fits(levels: Path, monkeypatch) -> None:
    monkeypatch.setattr(bundle_reader, "present_features", frozenset)
    with pytest.warns(RuntimeWarning, match="which this machine cannot run; XLA compiles"):
        f = load(levels)
    same(f(X), jax.nn.gelu(X))
    assert not variants.exists(kernels_of(levels)[0])


def test_another_architecture(path: Path) -> None:
    hlo_mlc.export(mlc_jit(jax.nn.gelu, choose="ours"), X, path=path, targets=("aarch64",))
    with pytest.raises(ArchiveError, match="is for aarch64, this machine is x86_64"):
        load(path)
    assert "target aarch64" in describe(path)


def test_code_of_another_architecture_under_a_false_name(path: Path, tmp_path: Path) -> None:
    hlo_mlc.export(mlc_jit(jax.nn.gelu, choose="ours"), X, path=path, targets=("aarch64",))
    archive = read_archive(path)
    archive.description["targets"][0]["architecture"] = "x86_64"
    write_archive(path, archive)
    for kernel in kernels_of(path):
        variants.remove(kernel)
    with pytest.raises(MlcError, match="is for another machine"):
        load(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", 99, "has format 99"),
        ("abi", 99, "runtime version 99"),
        ("entries", 3, "malformed"),
        ("platform", "tpu", "is for tpu"),
        ("targets", [{}], "malformed"),
    ],
)
def test_files_of_other_versions(path: Path, name: str, value, message: str) -> None:
    hlo_mlc.export(jnp.tanh, X, path=path)
    archive = read_archive(path)
    write_archive(path, Archive({**archive.description, name: value}, archive.blocks))
    with pytest.raises(ArchiveError, match=message):
        load(path)


def test_a_program_that_jax_cannot_read(path: Path) -> None:
    hlo_mlc.export(jnp.tanh, X, path=path)
    archive = read_archive(path)
    blocks = {
        n: b"\x10\0\0\0nonsense" if n.endswith("program") else b for n, b in archive.blocks.items()
    }
    write_archive(path, Archive(archive.description, blocks))
    with pytest.raises(ArchiveError, match="cannot read"):
        load(path)


def test_every_damaged_byte(path: Path) -> None:
    hlo_mlc.export(mlc_jit(jnp.tanh, choose="ours"), X[:2], path=path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    places = [*range(200), *rng.integers(0, len(content), 300)]
    damaged = [
        content[:n] + bytes([content[n] ^ (1 << int(rng.integers(8)))]) + content[n + 1 :]
        for n in places
    ]
    damaged += [content[:n] for n in rng.integers(0, len(content), 100)] + [content + b"\0", b""]
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(ArchiveError):
            load(path)
    path.write_bytes(MAGIC)
    with pytest.raises(ArchiveError):
        describe(path)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read"):
        load(tmp_path / "gone")
    (tmp_path / "text").write_text("module {}")
    with pytest.raises(ArchiveError, match="no file of exported functions"):
        load(tmp_path / "text")
