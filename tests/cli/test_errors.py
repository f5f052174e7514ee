"""What a user sees after a mistake: one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlo_mlc.runtime.archive import MAGIC

_MODULE = "module {{ func.func @{name}(%x: tensor<4xf32>) -> tensor<4xf32> {{ {body} }} }}"
_NEGATE = "%0 = stablehlo.negate %x : tensor<4xf32> return %0 : tensor<4xf32>"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.mlir").write_text("module { func.func @main( }")
    (tmp_path / "other.mlir").write_text(_MODULE.format(name="other", body=_NEGATE))
    (tmp_path / "mistaken.py").write_text(
        "number = 3\ndef f(x):\n    return -x\ndef g(x, y):\n    return x @ y\n"
        "def single(x):\n    return x\nsingle.example_args = 3.0\n"
        "def fails(x):\n    return x\nfails.example_args = lambda: {}['data']\n"
    )
    (tmp_path / "raising.py").write_text("raise OSError('no licence')\n")
    (tmp_path / "text.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk.npy").write_bytes(b"junk")
    np.save(tmp_path / "objects.npy", np.array([object()]), allow_pickle=True)
    np.save(tmp_path / "four.npy", np.ones(4, np.float32))
    (tmp_path / "open.mlir").write_text(
        _MODULE.format(name="main", body=_NEGATE).replace("4x", "?x")
    )
    (tmp_path / "call.mlir").write_text(
        _MODULE.format(
            name="main",
            body=(
                "%0 = stablehlo.custom_call @nobody_knows(%x) : (tensor<4xf32>) -> tensor<4xf32> "
                "return %0 : tensor<4xf32>"
            ),
        )
    )
    (tmp_path / "empty.mlir").touch()
    (tmp_path / "empty.mlc").touch()
    (tmp_path / "some.mlc").write_bytes(MAGIC)
    (tmp_path / "static.a").write_bytes(b"!<arch>\n" + bytes(60))
    (tmp_path / "shared.so").write_bytes(b"\x7fELF" + bytes(60))
    (tmp_path / "failing.py").write_text("def f(x):\n    raise OSError('no licence')\n")
    (tmp_path / "records.json").write_text('{"format": "hlo_mlc records 9", "records": []}')


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["benhc"], 2, "No such command 'benhc' (did you mean 'bench'?)"),
        (["explain", "mistaken:f"], 2, "No such command 'explain' (did you mean 'inspect'?)"),
        (["bench", "mistaken.py", "--arg", "f32[4]"], 2, "There is no case 'mistaken.py'"),
        (
            ["bench", "softmax", "--peers", "--json", "no/peers.json"],
            2,
            "Cannot write the results to 'no/peers.json'",
        ),
        (["bench", "sofmax"], 2, "There is no case 'sofmax' (did you mean 'softmax'?)"),
        (["bench", "--resume", "none.json"], 2, "Cannot read results from none.json"),
        (["bench", "--resume", "text.json"], 2, "text.json is not a file of benchmark results"),
        (["bench", "--json", "text.json/out.json"], 2, "Cannot write the results"),
        (
            ["bench", "mistaken:f", "--arg", "f32[4]", "--json", "no/out.json"],
            2,
            "Cannot write the results to 'no/out.json': there is no folder 'no'",
        ),
        (["inspect", "nothing"], 2, "There is no file 'nothing', and a function is given as"),
        (["inspect", "missing.mlir"], 2, "missing.mlir"),
        (["inspect", "broken.mlir"], 1, "StableHLO"),
        (["inspect", "other.mlir"], 1, "no function @main; its functions are: @other"),
        (
            ["inspect", "absent_module:f"],
            2,
            "Cannot import 'absent_module': ModuleNotFoundError: No module named 'absent_module'\n",
        ),
        (
            ["inspect", "raising:f"],
            2,
            "Cannot import 'raising': OSError: no licence (at raising.py:1)",
        ),
        (["inspect", "mistaken:h"], 2, "there is no 'h' in 'mistaken'"),
        (["inspect", "mistaken:number"], 2, "is of type int, not a function"),
        (
            ["inspect", "mistaken:single"],
            2,
            "The `example_args` of mistaken:single: expected a tuple of arguments, or a function "
            "that makes one, got float",
        ),
        (
            ["tune", "mistaken:fails"],
            2,
            "The `example_args` of mistaken:fails raised KeyError: 'data' (at mistaken.py:11)",
        ),
        (
            ["report", "mistaken:f", "--arg", "f32[4]", "--entry", "other"],
            2,
            "--entry is for a file with a StableHLO module, which mistaken:f is not",
        ),
        (["inspect", "mistaken:f"], 2, "--arg f32[512,1024] for each argument"),
        (["inspect", "mistaken:f", "--arg", "f32(4)"], 2, "written like f32[512,1024]"),
        (["inspect", "mistaken:f", "--arg", "q7[4]"], 2, "there is no dtype 'q7'"),
        (
            ["inspect", "mistaken:g", "--arg", "f32[4]"],
            2,
            "missing 1 required positional argument: 'y'\n",
        ),
        (["inspect", "mistaken:g", "--arg", "f32[4]", "--arg", "f32[5]"], 2, "(at mistaken.py:5)"),
        (["inspect", "folder"], 2, "'folder' is a folder; expected a file or MODULE:FUNCTION"),
        (["inspect", "open.mlir", "--arg", "f32[4]"], 2, "a StableHLO file says itself what"),
        (["inspect", "mistaken:f", "--arg-file", "gone.npy"], 2, "Cannot read gone.npy: No such"),
        (["inspect", "mistaken:f", "--arg", "f64[4]"], 2, "64-bit types only with --x64"),
        (["inspect", "mistaken:f", "--arg", "flaot32[4]"], 2, "'flaot32' (did you mean 'float32'"),
        (["inspect", "mistaken:f", "--arg", f"f32[{10**20}]"], 2, "no array has so many elements"),
        (["inspect", "mistaken:f", "--arg", "f32[4]", "--target", "v3"], 1, "'v3': there is no su"),
        (["inspect", "mistaken.py"], 2, "say which function, as mistaken.py:FUNCTION"),
        (["inspect", "gone.py:f"], 2, "There is no file 'gone.py'; a function is given as MODULE:"),
        (["inspect", "raising.py:f"], 2, "Cannot import 'raising.py': OSError: no licence"),
        (["inspect", "shared.so:f"], 2, "'shared.so' is no module of Python; a function is given"),
        (
            ["inspect", "failing.py:f", "--arg", "f32[4]"],
            2,
            "OSError: no licence (at failing.py:2)",
        ),
        (["inspect", "mistaken:f", "--arg", "f32[512 1024]"], 2, "written like f32[512,1024]"),
        (
            ["inspect", "call.mlir"],
            1,
            "No registered implementation for untyped custom call to "
            "nobody_knows for Host); custom calls are registered with jax.ffi.register_ffi_target",
        ),
        (["inspect", "empty.mlir"], 2, "empty.mlir is empty; expected a StableHLO module"),
        (
            ["inspect", "some.mlc", "--arg", "f32[4]"],
            2,
            "a StableHLO file says itself what it takes",
        ),
        (["inspect", "some.mlc", "--entry", "f"], 2, "a StableHLO module, which some.mlc is not"),
        (["inspect", "some.mlc", "--json"], 2, "--json and --dump are for what is compiled here"),
        (["inspect", "empty.mlc"], 2, "empty.mlc is empty; expected a StableHLO module"),
        (["inspect", "junk.npy"], 1, "junk.npy: expected a StableHLO module, got text of 4 bytes"),
        (["inspect", "four.npy"], 2, "four.npy is an array, for --arg-file to name"),
        (["inspect", "n" * 999], 2, "There is no file 'nnn"),
        (["inspect", "other.mlir"], 1, "other.mlir: "),
        (["worker", "--storage", "junk"], 2, "The studies in junk cannot be opened"),
        (["inspect", "static.a"], 2, "static.a is a library of machine code"),
        (["inspect", "shared.so"], 2, "shared.so is a library of machine code"),
        (["tune", "call.mlir", "--trials", "1"], 1, "XLA cannot compile it"),
        (["tune", "shared.so"], 2, "expected a StableHLO module, a file of `hlo-mlc export`"),
        (["export", "shared.so", "-o", "f.mlc"], 2, "shared.so is a library of machine code"),
        (
            ["export", "mistaken:f", "--arg", "f32[4]", "-o", "double.a", "--format", "c"],
            2,
            "cannot be called 'double': that is a keyword of C or C++",
        ),
        (["tune", "mistaken:f"], 2, "--arg f32[512,1024] for each argument"),
        (["tune", "mistaken:f", "--arg", "f32[n]"], 2, "sizes are numbers here"),
        (["tune", "mistaken:f", "--arg", "f32[4]", "--minutes", "nan"], 2, "and some time"),
        (["tune", "mistaken:f", "--target", "cuda"], 2, "--target cuda: kernels are tuned by"),
        (["tune", "mistaken:f", "--arg-file", "junk.npy"], 2, "junk.npy is no .npy or .npz file"),
        (["tune", "mistaken:f", "--arg-file", "objects.npy"], 2, "is no .npy or .npz file of num"),
        (["tune", "mistaken:f", "--arg-file", "gone.npy"], 2, "Cannot read gone.npy: No such"),
        (["tune", "mistaken:f", "--arg-file", "four.npy", "--arg", "f32[4]"], 2, "not by both"),
        (["tune", "mistaken:g", "--arg-file", "four.npy"], 2, "mistaken:g cannot be traced"),
        (["tune", "open.mlir"], 2, "has dynamic shapes: say for which arguments to tune it"),
        (["tune", "open.mlir", "--arg", "i32[4]"], 2, "expected float32[?], got int32[4]"),
        (["tune", "other.mlir"], 1, "no function @main; its functions are: @other"),
        (
            ["export", "failing.py:f", "--arg", "f32[4]", "-o", "no/f.mlc"],
            2,
            "Cannot write the export to 'no/f.mlc': there is no folder 'no'",
        ),
        (
            ["export", "mistaken:f", "-o", "folder"],
            2,
            "Cannot write the export to 'folder': it is a folder",
        ),
        (
            ["export", "mistaken:f", "--arg", "f32[4]", "-o", "f.mlc", "--embed", "0"],
            2,
            "argument 0 goes into the file by its value, and is a type here: float32[4]",
        ),
        (
            [
                "export",
                "mistaken:f",
                "--arg",
                "f32[4]",
                "-o",
                "text.json/f",
                "--format",
                "c-source",
            ],
            2,
            "Cannot make the folder 'text.json/f': Not a directory",
        ),
        (
            ["export", "mistaken:f", "--arg", "f32[4]", "-o", "f.mlc", "--embed", "1"],
            2,
            "expected different positions of arguments",
        ),
        (
            ["export", "mistaken:f", "--arg", "f32[4]", "-o", "f.mlc", "--target", "vax"],
            1,
            "There is no CPU target 'vax'",
        ),
        (
            ["export", "mistaken:f", "--arg", "f32[b]", "-o", "f", "--format", "c"],
            1,
            "shapes that are known only at run time",
        ),
        (["records", "import", "gone.json"], 2, "Cannot read gone.json"),
        (["records", "import", "records.json"], 1, "got 'hlo_mlc records 9'"),
        (["records", "export", "no/records.json"], 2, "Cannot write no/records.json"),
        (["dashboard", "--host", "256.1.1.1", "--port", "0"], 2, "Cannot listen on 256.1.1.1:0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes(hlo_mlc: Callable, arguments: list[str], status: int, message: str) -> None:
    result = hlo_mlc(*arguments)
    assert result.exit_code == status, result.output
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["bench", "--rounds", "0"], "0 is not in the range"),
        (["bench", "--choose", "best"], "'best' is not one of 'auto', 'measure', 'ours', 'xla'"),
        (["bench", "--group", "rowz"], "'rowz' is not one of"),
        (["inspect"], "Missing argument 'PROGRAM'"),
        (["tune", "mistaken:f", "--trials", "0"], "0 is not in the range"),
        (["dashboard", "--port", "99999"], "99999 is not in the range"),
        (["records", "list", "extra"], "unexpected extra argument (extra)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_misuse(hlo_mlc: Callable, arguments: list[str], message: str) -> None:
    result = hlo_mlc(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ") and "--help` says more)" in result.stderr


def test_an_interrupt_is_no_traceback(hlo_mlc: Callable, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt\n")
    result = hlo_mlc("inspect", "slow:f")
    assert result.exit_code == 130 and result.stderr == "interrupted\n"


def test_without_arguments_there_is_help(hlo_mlc: Callable) -> None:
    for arguments in ([], ["records"]):
        assert hlo_mlc(*arguments).output.startswith("Usage: ")


def test_warnings_of_ours_are_one_line(hlo_mlc: Callable, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "records" / "cpu" / "0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    result = hlo_mlc("records", "list")
    assert result.exit_code == 0 and "0 records in" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: records: {path} is damaged")


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["records", "list"]])
def test_what_needs_no_jax_does_not_import_it(command: list[str], tmp_path: Path) -> None:
    script = (
        f"import sys; sys.argv[1:] = {command!r}\nfrom hlo_mlc.cli import main\n"
        "main(standalone_mode=False)\nassert 'jax' not in sys.modules"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "HLO_MLC_CACHE": str(tmp_path / "cache")},
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("command", [["cache", "list"], ["cache", "clear"], ["cache", "verify"]])
def test_a_cache_folder_that_cannot_be_made(
    hlo_mlc: Callable, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "text.json" / "cache"))
    result = hlo_mlc(*command)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: The cache folder ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["records", "list"],
        ["dashboard", "--port", "0"],
        ["tune", "mistaken:f", "--arg", "f32[4]", "--trials", "1"],
    ],
)
def test_a_cache_folder_that_is_a_file(
    hlo_mlc: Callable, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "text.json"))
    result = hlo_mlc(*command)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ") and "HLO_MLC_CACHE" in result.stderr


def test_an_invalid_environment_variable(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE_LIMIT_MIB", "much")
    result = hlo_mlc("cache", "list")
    assert result.exit_code == 1
    assert "error: Environment variable HLO_MLC_CACHE_LIMIT_MIB='much'" in result.stderr


def test_what_nobody_expects_is_one_line_too(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback is shown on request."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of\nwit")

    monkeypatch.setattr("hlo_mlc.cli.cache.object_cache", fail)
    result = hlo_mlc("cache", "list")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: RuntimeError: out of wit (HLO_MLC_DEBUG=1 shows where it was raised)\n"
    )
    monkeypatch.setenv("HLO_MLC_DEBUG", "1")
    assert isinstance(hlo_mlc("cache", "list").exception, RuntimeError)


def test_unknown_variables_are_named(hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_CHOSE_AT_THE_COMMAND_LINE", "ours")
    result = hlo_mlc("records", "list")
    assert result.exit_code == 0
    assert "warning: there is no environment variable HLO_MLC_CHOSE_AT_THE" in result.stderr


def test_an_interrupt_while_a_command_is_imported_is_not_lost() -> None:
    """As in JAX's extensions, some of which catch whatever comes up while they are initialized."""
    program = """
import importlib, os, signal
from hlo_mlc.cli.root import main
signal.signal(signal.SIGINT, signal.default_int_handler)
import_module = importlib.import_module
def catching(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    return import_module(name)
importlib.import_module = catching
main(["cache", "list"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGINT and not done.stdout
