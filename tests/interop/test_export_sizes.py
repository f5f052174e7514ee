"""Functions exported for sizes that are left open."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import load, mlc_jit
from hlo_mlc.interop import bundle_reader
from making.exported import LEVELS, PARAMETERS, X, hidden, kernels_of, layer, rows_of_48, same


def centred(parameters, x):
    return hidden(parameters, x) - hidden(parameters, x).mean(0)


@pytest.mark.parametrize(
    ("hidden", "sizes"),
    [(hidden, (1, 4, 21, 22, 100, 149)), (centred, (1, 21, 22, 100, 128, 149, 5000))],
)
def test_symbolic_batch(path: Path, tmp_path: Path, hidden: Callable, sizes: Sequence[int]) -> None:
    """In another process no kernel is compiled: those in the file are for any number of rows."""
    report = hlo_mlc.export(
        mlc_jit(hidden, choose="ours"), PARAMETERS, rows_of_48("b"), path=path, embed=0
    )
    (one,) = report.entries
    assert one.report.coverage == 1 and len(one.kernels) >= 4
    assert one.signature == "(float32[b,48]) -> (float32[b,32])"
    xs = {
        f"x{rows}": np.random.default_rng(rows).normal(size=(rows, 48)).astype(np.float32)
        for rows in sizes
    }
    np.savez(tmp_path / "in.npz", **xs)
    script = textwrap.dedent(f"""
        import numpy as np
        import hlo_mlc, hlo_mlc.backends.cpu as cpu
        def refuse(*_): raise AssertionError("a kernel is compiled")
        cpu.compile_ir = refuse
        f = hlo_mlc.load({str(path)!r})
        given = np.load({str(tmp_path / "in.npz")!r})
        np.savez({str(tmp_path / "out.npz")!r}, **{{name: f(given[name]) for name in given}})
    """)
    ran = subprocess.run(
        [sys.executable, "-P", "-W", "error::RuntimeWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={"HLO_MLC_CACHE": str(tmp_path / "empty"), "PATH": ""},
    )
    assert ran.returncode == 0, ran.stderr
    out = np.load(tmp_path / "out.npz")
    for name, x in xs.items():
        # In f32, XLA's results and ours are up to 1.3e-6 from those in f64.
        np.testing.assert_allclose(out[name], hidden(PARAMETERS, x), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("size, rows", [("b", 3), ("8*b", 16), ("b + 4", 7)])
def test_symbolic_sizes_of_all_kinds(path: Path, size: str, rows: int) -> None:
    hlo_mlc.export(mlc_jit(layer, choose="ours"), PARAMETERS, rows_of_48(size), path=path)
    assert kernels_of(path)
    same(load(path)(PARAMETERS, X[:rows]), layer(PARAMETERS, X[:rows]))


def test_symbolic_sizes_that_no_size_was_found_for(path: Path) -> None:
    """XLA may know some."""
    report = hlo_mlc.export(layer, PARAMETERS, rows_of_48("b", ["b >= 100000000"]), path=path)
    assert "no sizes were found" in str(report) and not kernels_of(path)


def test_gradients_for_symbolic_sizes(path: Path) -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (jnp.tanh(x @ w) ** 2).sum()

    hlo_mlc.export(
        mlc_jit(loss, choose="ours"), PARAMETERS["w"], rows_of_48("b"), path=path, vjp_order=1
    )
    loaded = load(path)
    for rows in (1, 16):
        same(jax.grad(loaded)(PARAMETERS["w"], X[:rows]), jax.grad(loss)(PARAMETERS["w"], X[:rows]))
    stack = X.reshape(2, 8, 48)
    same(
        jax.vmap(loaded, (None, 0))(PARAMETERS["w"], stack),
        jnp.stack([loss(PARAMETERS["w"], x) for x in stack]),
    )


def test_symbolic_sizes_where_no_level_fits(path: Path, monkeypatch, recwarn) -> None:
    """Kernels are generated here."""
    hlo_mlc.export(
        mlc_jit(jax.nn.gelu, choose="ours"), rows_of_48("b"), path=path, targets=LEVELS[-1:]
    )
    monkeypatch.setattr(bundle_reader, "present_features", frozenset)
    loaded = load(path)
    same(loaded(X), jax.nn.gelu(X))
    assert "for the sizes of each call" in loaded.explain()
    assert not [w for w in recwarn if "cannot run" in str(w.message)]
