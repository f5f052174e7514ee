"""Files of functions: what comes out of one, in another process, computes what went in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import load, mlc_jit
from hlo_mlc.interop.load import describe
from hlo_mlc.runtime.archive import read_archive
from hlo_mlc.runtime.records import Records
from hlo_mlc.support.errors import UnknownTargetError, UsageError
from making.exported import PARAMETERS, X, kernels_of, layer, rows_of_48, same


def test_pytrees_and_keywords_in_a_fresh_process(path: Path, fresh, tmp_path: Path) -> None:
    report = hlo_mlc.export(
        mlc_jit(layer, choose="ours"), PARAMETERS, X, path=path, scale=np.float32(2)
    )
    assert report.entries[0].report.coverage == 1 and len(report.entries[0].kernels) > 0
    np.savez(tmp_path / "in.npz", x=X, **PARAMETERS)
    fresh(f"""
        given = np.load({str(tmp_path / "in.npz")!r})
        out = f({{"w": given["w"], "b": given["b"]}}, given["x"], scale=np.float32(2))
        assert out["best"][1] is None
        np.savez({str(tmp_path / "out.npz")!r}, hidden=out["hidden"], best=out["best"][0])
    """)
    out = np.load(tmp_path / "out.npz")
    same(
        {"hidden": out["hidden"], "best": (out["best"], None)},
        layer(PARAMETERS, X, scale=np.float32(2)),
    )


@pytest.mark.parametrize("targets", [("host",), ("host", "x86-64-v2")])
@pytest.mark.parametrize("how", ["deterministic", "records"])
def test_kernels_are_built_as_the_function_says(
    path: Path, tmp_path: Path, how: str, targets: tuple[str, ...]
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(Records(tmp_path / "none").export_text())
    said = {"deterministic": True, "records": lock}[how]
    hlo_mlc.export(
        mlc_jit(layer, choose="ours", **{how: said}), PARAMETERS, X, path=path, targets=targets
    )
    kernels = kernels_of(path)
    assert kernels and all("-" in kernel for kernel in kernels), "else this shows nothing"
    same(load(path)(PARAMETERS, X), layer(PARAMETERS, X))


def test_weights_inside(path: Path, fresh) -> None:
    report = hlo_mlc.export(mlc_jit(layer, choose="ours"), PARAMETERS, X, path=path, embed=(0,))
    assert report.bytes > PARAMETERS["w"].nbytes
    same(load(path)(X), layer(PARAMETERS, X))
    assert "6 KiB of embedded values" in describe(path)
    same(jax.jit(load(path))(X), layer(PARAMETERS, X))
    program = load(path).lower(X).as_text()
    assert not re.search(r"constant .*48x32xf32", program), "weights are no part of the program"
    assert load(path).__name__ == "layer"
    fresh("assert f(jnp.ones((16, 48)))['hidden'].shape == (16, 32)")


@pytest.mark.parametrize("embed", [1, -2, (-2,), np.int64(1), [1]])
def test_ways_to_say_what_is_embedded(path: Path, embed: int | Sequence[int]) -> None:
    x, w, b = (np.full((4,), value, np.float32) for value in (1, 2, 3))
    hlo_mlc.export(lambda x, w, b: x * w - b, x, w, b, path=path, embed=embed)
    np.testing.assert_array_equal(hlo_mlc.load(path)(x, 5 * b), x * w - 5 * b)


@pytest.mark.parametrize("embed", [(), (0,)], ids=["all given", "weights inside"])
def test_errors_count_the_arguments_of_the_caller(path: Path, embed: tuple[int, ...]) -> None:
    hlo_mlc.export(layer, PARAMETERS, X, path=path, embed=embed, scale=np.float32(2))
    function, given = load(path), () if embed else (PARAMETERS,)
    weights = "" if embed else r"{'b': float32\[32\], 'w': float32\[48,32\]}, "
    signature = rf"layer was exported for \({weights}float32\[16,48\], scale=float32\[\]\), and"
    for call in (function, jax.jit(function), function.lower):
        with pytest.raises(
            UsageError,
            match=rf"{signature} is called with \({weights}float32\[16,"
            r"48\]\)(\n|$)",
        ):
            call(*given, X)
        with pytest.raises(
            UsageError,
            match=rf"argument {len(given)} is to be float32\[16,48\], "
            r"and is float32\[48,16\]",
        ):
            call(*given, X.T, scale=np.float32(2))
        with pytest.raises(UsageError, match=r"scale is to be float32\[\], and is int32\[\]"):
            call(*given, X, scale=np.int32(2))
        with pytest.raises(TypeError, match=rf"path (args\[{len(given)}\]|x)"):
            call(*given, "x", scale=np.float32(2))
    if not embed:
        with pytest.raises(UsageError, match=r"argument 0\['w'\] is to be float32\[48,32\]"):
            function({**PARAMETERS, "w": X}, X, scale=np.float32(2))
    same(function(*given, X, scale=np.float32(2)), layer(PARAMETERS, X, scale=np.float32(2)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool", "float32"])
def test_embedded_types(path: Path, dtype: str) -> None:
    kind = jnp.dtype(dtype)
    weights = [np.arange(6).reshape(2, 3).astype(kind), np.zeros((0, 3), kind), jnp.ones((), kind)]
    hlo_mlc.export(
        lambda w, x: [v.astype(jnp.float32).sum() + x for v in w],
        weights,
        jnp.float32(1),
        path=path,
        embed=(0,),
    )
    assert [float(v) for v in load(path)(jnp.float32(1))] == [
        float(w.astype(np.float32).sum()) + 1 for w in weights
    ]


def test_several_entries_share_kernels(path: Path, fresh) -> None:
    entries = {
        "one": hlo_mlc.entry(mlc_jit(jax.nn.softmax, choose="ours"), X),
        "two": hlo_mlc.entry(mlc_jit(lambda x: jax.nn.softmax(x), choose="ours"), X),
        "gelu": hlo_mlc.entry(mlc_jit(jax.nn.gelu, choose="ours"), X),
    }
    report = hlo_mlc.export(entries, path=path)
    assert [e.name for e in report.entries] == ["one", "two", "gelu"]
    assert len(read_archive(path).description["targets"][0]["kernels"]) == 2
    same(load(path, entry="two")(X), jax.nn.softmax(X))
    same(load(path, entry="gelu")(X), jax.nn.gelu(X))
    fresh(f"f(jnp.ones({X.shape}))", entry="gelu")
    with pytest.raises(UsageError, match="the entries one, two, gelu"):
        load(path)
    with pytest.raises(UsageError, match="there is no 'three'"):
        load(path, entry="three")


def test_gradients(path: Path, fresh) -> None:
    def loss(w: jax.Array) -> jax.Array:
        return (jnp.tanh(w @ w.T) ** 2).sum()

    hlo_mlc.export(mlc_jit(loss, choose="ours"), X, path=path, vjp_order=1)
    with jax.enable_x64(True):  # in f32 XLA's are off by a hundredth where tanh is nearly 1
        right = jax.grad(loss)(X.astype(np.float64))
    np.testing.assert_allclose(jax.grad(load(path))(X), right, rtol=1e-5, atol=4e-6)
    assert len(kernels_of(path)) > 1
    fresh(f"jax.grad(f)(jnp.ones({X.shape}))")
    hlo_mlc.export(mlc_jit(loss, choose="ours"), X, path=path)
    with pytest.raises(Exception, match=r"vjp|differentiat|VJP"):
        jax.grad(load(path))(X)


def test_kernels_of_a_file_are_for_what_they_were_made_for(
    path: Path, tmp_path: Path, monkeypatch
) -> None:
    """Not for another target that is exported for in the process that has loaded them."""
    function = mlc_jit(jax.nn.gelu, choose="ours")
    hlo_mlc.export(function, rows_of_48("b"), path=path)
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))  # where nothing was made
    load(path)
    other = tmp_path / "other.mlc"
    hlo_mlc.export(function, rows_of_48("b"), path=other, targets=("aarch64",))

    def codes(path: Path) -> dict[str, bytes]:
        archive = read_archive(path)
        return {
            name: bytes(archive.blocks[kernel["block"]])
            for name, kernel in archive.description["targets"][0]["kernels"].items()
        }

    ours, others = codes(path), codes(other)
    assert ours.keys() == others.keys()
    assert all(ours[name] != others[name] for name in ours)


def test_reports_are_of_the_export_at_hand(path: Path) -> None:
    f = mlc_jit(layer, choose="ours")
    batch = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 48"), jnp.float32)
    for rows, coverage in ((X, 1), (rows_of_48("b", ["b >= 100000000"]), 0), (X, 1), (batch, 1)):
        report = hlo_mlc.export(f, PARAMETERS, rows, path=path)
        assert report.entries[0].report.coverage == coverage


class Pair(NamedTuple):
    a: jax.Array
    b: jax.Array


def test_what_cannot_be_exported(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be exported"):
        hlo_mlc.export(lambda x: Pair(x, x), X, path=path)
    with pytest.raises(UnknownTargetError, match="'x86-64-v9'"):
        hlo_mlc.export(jnp.tanh, X, path=path, targets="x86-64-v9")
    for embed in (1, (1,), (-2,), (0, -1), ("x",), 0.5):
        with pytest.raises(UsageError, match="expected different positions of arguments"):
            hlo_mlc.export(jnp.tanh, X, path=path, embed=embed)
    with pytest.raises(UsageError, match="by its value, and is a type here"):
        hlo_mlc.export(jnp.tanh, jax.ShapeDtypeStruct((2,), jnp.float32), path=path, embed=(0,))
    with pytest.raises(UsageError, match="nothing to export"):
        hlo_mlc.export({}, path=path)
    with pytest.raises(UsageError, match="given with each"):
        hlo_mlc.export({"a": hlo_mlc.entry(jnp.tanh, X)}, X, path=path)
    with pytest.raises(UsageError, match=r"'a' is given as hlo_mlc\.entry\(function, \*args\)"):
        hlo_mlc.export({"a": jnp.tanh}, path=path)
    with pytest.raises(UsageError, match="A function is exported, not int"):
        hlo_mlc.export(3, X, path=path)
    with pytest.raises(UsageError, match="targets=3: expected the name of a target"):
        hlo_mlc.export(jnp.tanh, X, path=path, targets=3)
    for order in (-1, "1"):
        with pytest.raises(UsageError, match=f"vjp_order={order!r}: expected how often"):
            hlo_mlc.export(jnp.tanh, X, path=path, vjp_order=order)
    with pytest.raises(UsageError, match="Cannot write"):
        hlo_mlc.export(jnp.tanh, X, path=tmp_path / "no" / "folder")
    assert not path.exists()


def test_static_arguments_and_what_xla_runs_alone(path: Path) -> None:
    f = mlc_jit(lambda x, n: jnp.sort(x) * n, static_argnums=1, choose="xla")
    hlo_mlc.export(f, X, 3, path=path)
    same(load(path)(X), jnp.sort(X) * 3)
    assert kernels_of(path) == []
