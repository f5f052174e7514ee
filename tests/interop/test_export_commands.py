"""`hlo-mlc export`, and the script that is the same."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

from hlo_mlc import load
from hlo_mlc.cli import main
from making.exported import X, same


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported_model.py").write_text(
        "import jax\ndef f(x):\n    return jax.nn.gelu(x)\n"
    )
    runner = CliRunner()
    result = runner.invoke(
        main,
        [
            "export",
            "exported_model:f",
            "--arg",
            "f32[16,48]",
            "-o",
            "f.mlc",
            "--choose",
            "ours",
            "--vjp-order",
            "1",
        ],
    )
    assert result.exit_code == 0, result.output
    assert "100% of the operations in 3 kernels" in result.output  # two of them for gradients
    same(load("f.mlc")(X), jax.nn.gelu(X))
    shown = runner.invoke(main, ["inspect", "f.mlc"]).output
    assert "entry f: (float32[16,48]) -> (float32[16,48])" in shown
    assert "differentiable once" in shown and "(what this machine runs)" in shown
    Path("f.mlc").write_bytes(Path("f.mlc").read_bytes()[:-1])
    broken = runner.invoke(main, ["inspect", "f.mlc"])
    assert broken.exit_code == 1 and "error: f.mlc is damaged" in broken.output


def test_several_functions_on_the_command_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported_models.py").write_text(
        textwrap.dedent("""
        import jax, numpy as np
        def f(w, x):
            return jax.nn.gelu(x @ w)
        f.example_args = (np.ones((48, 8), np.float32), np.ones((16, 48), np.float32))
        def g(w, x):
            return x @ w
        g.example_args = f.example_args
    """)
    )
    runner = CliRunner()
    command = ["export", "exported_models:f", "exported_models:g", "-o", "both.mlc", "--embed", "0"]
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert load("both.mlc", entry="f")(X).shape == load("both.mlc", entry="g")(X).shape == (16, 8)
    for wrong, message in (
        ([*command, "--arg", "f32[1]"], "come from their `example_args`"),
        ([*command, "--format", "c"], "one function and one target"),
        (["export", "both.mlc", "-o", "x"], "both.mlc is a file"),
        (["export", "gone.mlir", "-o", "x"], "There is no file 'gone.mlir'"),
        (["export", "exported_models:f", "exported_models:f", "-o", "x"], "called 'f'"),
    ):
        result = runner.invoke(main, wrong)
        assert result.exit_code == 2 and message in result.output, result.output


def test_symbolic_sizes_on_the_command_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported_sizes.py").write_text("def f(w, x):\n    return x @ w\n")
    result = CliRunner().invoke(
        main,
        [
            "export",
            "exported_sizes:f",
            "-o",
            "f.mlc",
            "--arg",
            "f32[48,8]",
            "--arg",
            "f32[batch,48]",
        ],
    )
    assert result.exit_code == 0 and "float32[batch,8]" in result.output, result.output
    for rows in (1, 16):
        assert load("f.mlc")(np.ones((48, 8), np.float32), X[:rows]).shape == (rows, 8)


def test_the_script(path: Path, fresh, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "aot_export.py"
    (tmp_path / "by_script.py").write_text("import jax\ndef f(x):\n    return jax.nn.gelu(x) * 2\n")
    ran = subprocess.run(
        [
            sys.executable,
            str(script),
            "by_script:f",
            "--arg",
            "f32[16,48]",
            "--output",
            str(path),
            "--choose",
            "ours",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HLO_MLC_CACHE": str(tmp_path / "cache")},
    )
    assert ran.returncode == 0, ran.stderr
    assert "100% of the operations in 1 kernel" in ran.stdout
    fresh("np.testing.assert_allclose(f(jnp.ones((16, 48))), 2 * jax.nn.gelu(1.0), rtol=1e-5)")
