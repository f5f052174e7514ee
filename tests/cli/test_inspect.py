"""`hlo-mlc inspect`: where programs come from, and what it shows of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import MlcError, limits
from hlo_mlc.cli.function import arguments, parse_argument, resolve
from hlo_mlc.limits import Level, MachineLimits
from hlo_mlc.target.levels import runnable

_SOURCE = """
import jax.numpy as jnp

def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def with_example(x):
    return jnp.tanh(x) + 1

with_example.example_args = lambda: (jnp.ones((64, 64)),)

def table():
    return jnp.sin(jnp.arange(9.0))

class Model:
    @staticmethod
    def apply(x):
        return x.astype('float64')
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder, which no other test has imported."""
    name = f"inspected_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_explains_a_function(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc("inspect", f"{module}:softmax", "--arg", "f32[128,64]", "--choose", "ours")
    assert result.exit_code == 0, result.output
    assert "coverage: 100%" in result.stdout


def test_a_function_without_parameters_needs_no_arguments(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc("inspect", f"{module}:table", "--choose", "ours")
    assert result.exit_code == 0, result.output
    assert "coverage: 100%" in result.stdout


def test_explains_a_function_in_a_file(
    hlo_mlc: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what lies beside it, and whatever other modules are called."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    beside = f"beside_{tmp_path.name}".replace("-", "_")
    (folder / f"{beside}.py").write_text(_SOURCE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("model_in_a_file", "json"):
        (folder / f"{name}.py").write_text(f"from {beside} import softmax\n")
        result = hlo_mlc(
            "inspect",
            f"elsewhere/{name}.py:softmax",
            "--arg",
            "float32[128,64]",
            "--choose",
            "ours",
        )
        assert result.exit_code == 0, result.output
        assert "coverage: 100%" in result.stdout
    assert not hasattr(sys.modules["json"], "softmax")


def test_explains_for_a_level(hlo_mlc: Callable, module: str) -> None:
    level = runnable()[1]
    result = hlo_mlc(
        "inspect",
        f"{module}:softmax",
        "--arg",
        "f32[128,64]",
        "--choose",
        "ours",
        "--target",
        level,
    )
    assert result.exit_code == 0, result.output
    assert f", compiled for {level}\n" in result.stdout


def test_the_environment_says_how_to_choose(
    hlo_mlc: Callable, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("inspect", f"{module}:softmax", "--arg", "f32[128,64]")
    monkeypatch.setenv("HLO_MLC_CHOOSE", "xla")
    assert 'choose="xla" asks for it' in hlo_mlc(*command).stdout
    assert "coverage: 100%" in hlo_mlc(*command, "--choose", "ours").stdout
    monkeypatch.setenv("HLO_MLC_CHOOSE", "us")
    result = hlo_mlc(*command)
    assert result.exit_code == 1
    assert "error: Environment variable HLO_MLC_CHOOSE='us'" in result.stderr


def test_shows_the_plan_and_how_fast_it_is(
    hlo_mlc: Callable, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = MachineLimits(100.0, (Level(1 << 20, 50.0),), 10.0)
    monkeypatch.setattr(limits, "measure_limits", lambda target: known)
    result = hlo_mlc(
        "inspect", f"{module}:softmax", "--arg", "f32[128,64]", "--choose", "ours", "--verbose"
    )
    assert result.exit_code == 0, result.output
    for expected in (
        "(128x64xf32) -> (128x64xf32)",
        f"{module}.py:",
        "reduction(",
        "predicted ",
        "measured ",
        "% of what this machine can do",
        "partition ",
    ):
        assert expected in result.stdout


def test_a_dump_folder_that_cannot_be_written(
    hlo_mlc: Callable, module: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = hlo_mlc(
        "inspect",
        f"{module}:with_example",
        "--choose",
        "ours",
        "--dump",
        str(tmp_path / "file" / "dump"),
    )
    assert result.exit_code == 1
    assert "error: The dump folder" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_takes_the_functions_own_arguments(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc("inspect", f"{module}:with_example", "--choose", "ours")
    assert result.exit_code == 0, result.output
    assert "coverage: 100%" in result.stdout


def test_finds_nested_names_and_64_bit_types(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc("inspect", f"{module}:Model.apply", "--arg", "f32[8]", "--x64")
    assert result.exit_code == 0, result.output
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("as_bytes", [False, True])
def test_explains_a_stablehlo_file(hlo_mlc: Callable, tmp_path: Path, as_bytes: bool) -> None:
    lowered = jax.jit(lambda x: jnp.exp(x) * 2).lower(jnp.ones(1000))
    path = tmp_path / "program.mlir"
    if as_bytes:
        bytecode = path.open("wb")
        with bytecode:
            lowered.compiler_ir().operation.write_bytecode(bytecode)
    else:
        path.write_text(lowered.as_text())
    result = hlo_mlc("inspect", str(path), "--choose", "ours")
    assert result.exit_code == 0, result.output
    assert "coverage: 100%" in result.stdout


def test_dumps_the_stages(hlo_mlc: Callable, module: str, tmp_path: Path) -> None:
    result = hlo_mlc(
        "inspect", f"{module}:with_example", "--choose", "ours", "--dump", str(tmp_path / "dump")
    )
    assert result.exit_code == 0, result.output
    assert any(file.name == "00-stablehlo.mlir" for file in (tmp_path / "dump").rglob("*"))


def test_leaves_the_rest_to_xla_and_says_so(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc("inspect", f"{module}:with_example", "--choose", "xla")
    assert result.exit_code == 0, result.output
    assert "XLA runs all of it" in result.stdout and "next: leave out" in result.stdout


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("f32[512,1024]", (512, 1024), np.float32),
        ("bf16[3]", (3,), jnp.bfloat16),
        ("i32[]", (), np.int32),
        ("u8[0, 2]", (0, 2), np.uint8),
        (" f32 [ 2 ,3 ] ", (2, 3), np.float32),
        ("bool[1]", (1,), np.bool_),
        ("float32[2,3]", (2, 3), np.float32),
        ("bfloat16[3]", (3,), jnp.bfloat16),
        ("uint8[]", (), np.uint8),
        ("s32[2]", (2,), np.int32),
        ("pred[2]", (2,), np.bool_),
    ],
)
def test_parse_argument(text: str, shape: tuple[int, ...], dtype: type) -> None:
    parsed = parse_argument(text)
    assert (parsed.shape, parsed.dtype) == (shape, jnp.dtype(dtype))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f32[",
        "f32[-1]",
        "f32[1,]",
        "F32[1]",
        "f31[1]",
        "f32[batch]",
        "f32[512 1024]",
        "f 32[2]",
    ],
)
def test_parse_argument_refuses(text: str) -> None:
    with pytest.raises(MlcError):
        parse_argument(text)


def test_resolve_finds_functions_of_installed_modules() -> None:
    assert resolve("jax.numpy:linalg.norm") is jnp.linalg.norm


def test_arguments_written_win_over_the_functions_own() -> None:
    def function() -> None: ...

    function.example_args = (1, 2)
    assert arguments("m:f", function, []) == (1, 2)
    assert arguments("m:f", function, ["f32[2]"]) == (parse_argument("f32[2]"),)
