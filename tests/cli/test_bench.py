"""`hlo-mlc bench` and `demo`: choosing cases, result files, exit statuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from rich.console import Console

from hlo_mlc import MlcError
from hlo_mlc.cli import measuring
from hlo_mlc.cli.bench import select
from hlo_mlc_bench import peers, runner
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.cases import BY_NAME, CASES, DEMO
from hlo_mlc_bench.results import Results, Row, environment

_QUICK = ("--rounds", "1", "--choose", "xla")


def _right(case: Case, compile_ours: Any = None, rounds: int = 1) -> Row:
    blank = Row(name=case.name, group=case.group, figure=case.figure, status="right", clusters=3)
    measured = [name for name, value in asdict(blank).items() if value is None and name != "figure"]
    return replace(blank, **dict.fromkeys(measured, 1.0))


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every case is right at once; the names of those that were run."""
    names: list[str] = []

    def run_case(case: Case, compile_ours: Any, rounds: int) -> Row:
        names.append(case.name)
        return _right(case)

    monkeypatch.setattr(runner, "run_case", run_case)
    return names


def test_measures_writes_and_shows_a_case(hlo_mlc: Callable, tmp_path: Path) -> None:
    result = hlo_mlc("bench", "tiny_call", *_QUICK, "--json", "out.json")
    assert result.exit_code == 0, result.output
    assert "tiny_call" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["tiny_call"]
    assert document["rows"][0]["status"] == "right"
    assert document["environment"]["choose"] == "xla"


def test_resume_measures_only_what_is_missing(
    hlo_mlc: Callable, no_measuring: list[str], tmp_path: Path
) -> None:
    hlo_mlc("bench", "exp", "sin", *_QUICK, "--json", "out.json")
    result = hlo_mlc("bench", "--group", "elementwise", *_QUICK, "--resume", "out.json")
    assert result.exit_code == 0, result.output
    assert no_measuring == ["exp", "sin", "gelu", "tanh", "log"]
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["exp", "sin", "gelu", "tanh", "log"]


def test_resume_repeats_what_was_not_right(
    hlo_mlc: Callable, no_measuring: list[str], tmp_path: Path
) -> None:
    hlo_mlc("bench", "exp", "sin", *_QUICK, "--json", "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    document["rows"][1]["status"] = "wrong"
    (tmp_path / "out.json").write_text(json.dumps(document))
    hlo_mlc("bench", "exp", "sin", *_QUICK, "--resume", "out.json")
    assert no_measuring == ["exp", "sin", "sin"]


def test_resume_refuses_results_of_other_settings(
    hlo_mlc: Callable, no_measuring: list[str]
) -> None:
    hlo_mlc("bench", "exp", *_QUICK, "--json", "out.json")
    result = hlo_mlc("bench", "exp", "--choose", "ours", "--resume", "out.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: The results to resume were measured with choose = ")


def test_an_interrupt_keeps_what_was_measured(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_case(case: Case, compile_ours: Any, rounds: int) -> Row:
        if case.name == "sin":
            raise KeyboardInterrupt
        return _right(case)

    monkeypatch.setattr(runner, "run_case", run_case)
    result = hlo_mlc("bench", "exp", "sin", "tanh", *_QUICK, "--json", "out.json")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["exp"]


@pytest.mark.parametrize("command", [("bench", "tiny_call", *_QUICK), ("demo",)])
def test_a_wrong_result_gives_exit_status_1(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def compile_wrong(function: Callable, choose: str) -> Any:
        compiled = jax.jit(lambda *args: jax.tree.map(lambda y: y + 1, function(*args)))
        compiled.report = lambda *args: SimpleNamespace(kernels=(), coverage=0.0, predicted=None)
        return compiled

    monkeypatch.setattr(measuring, "mlc_jit", compile_wrong)
    monkeypatch.setattr("hlo_mlc_bench.cases.DEMO", ("tiny_call",))
    result = hlo_mlc(*command)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert "error: tiny_call: wrong: error" in result.stderr


def test_demo_shows_every_workload(hlo_mlc: Callable, no_measuring: list[str]) -> None:
    result = hlo_mlc("demo")
    assert result.exit_code == 0, result.output
    assert no_measuring == list(DEMO)
    for heading in ("workload", "ratio", "error", "clusters", "coverage", "first call"):
        assert heading in result.stdout
    assert all(name in result.stdout for name in DEMO)
    groups = dict.fromkeys(BY_NAME[name].group for name in DEMO)
    lines = map(str.rstrip, result.stdout.splitlines())
    assert [line for line in lines if line in groups] == list(groups)


def test_demo_writes_its_rows(hlo_mlc: Callable, no_measuring: list[str], tmp_path: Path) -> None:
    result = hlo_mlc("demo", "--json", "out.json")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["name"] for row in rows] == list(DEMO)


def test_demo_refuses_a_path_that_cannot_be_written(
    hlo_mlc: Callable, no_measuring: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert hlo_mlc("demo", "--json", "file/out.json").exit_code == 2
    assert no_measuring == []


def test_an_interrupted_demo_shows_what_it_has(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_case(case: Case, compile_ours: Any, rounds: int) -> Row:
        if case.name == DEMO[2]:
            raise KeyboardInterrupt
        return _right(case)

    monkeypatch.setattr(runner, "run_case", run_case)
    result = hlo_mlc("demo")
    assert result.exit_code == 130
    assert all(name in result.stdout for name in DEMO[:2])
    assert DEMO[2] not in result.stdout
    assert f"interrupted after 2 of {len(DEMO)} workloads" in result.stderr


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """No line is folded, no cell cut, and wider consoles show more."""
    large = {"jax_ms": 1234.5, "ours_ms": 123.45, "jax_first_call_s": 12.34}
    rows = [replace(_right(BY_NAME[name]), **large) for name in DEMO]
    rows.append(replace(rows[0], name="wrong_one", status="wrong", message="a result is"))
    results = Results(environment("auto", 1), tuple(rows))
    measuring.show(results, Console(width=width))
    output, errors = capsys.readouterr()
    table = output[: output.index(" cores, Python")].splitlines()
    assert all(len(line.rstrip()) <= width for line in table)
    assert all(sum(f"  {name} " in line for line in table) == 1 for name in DEMO)
    assert output.count(" 1234 ") == output.count(" 123 ") == len(DEMO)
    assert ("coverage" in output) == (width >= 100)
    assert ("share of" in output) == (width >= 140)
    assert "WRONG" in output
    assert "error: wrong_one: wrong: a result is" in errors


def test_bench_says_which_goals_were_missed(hlo_mlc: Callable, no_measuring: list[str]) -> None:
    names = ("gelu", "exp", "encoder_block", "tiny_call")
    result = hlo_mlc("bench", *names)
    assert result.exit_code == 0
    assert "missed: gelu: ratio 1.00, its goal is 2.20" in result.stdout
    missed = [name for name in names if (BY_NAME[name].figure or 0) > 1]
    assert result.stdout.count("missed:") == len(missed)


def test_the_ratios_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        replace(_right(BY_NAME[name]), ratio=ratio) for name, ratio in (("exp", 0.5), ("sin", 8.0))
    )
    wrong = Row(name="log", group="elementwise", status="wrong")
    for shown, expected in (((*rows, wrong), True), (rows[:1], False)):
        measuring.show(Results(environment("auto", 1), shown), Console(width=80))
        line = "Geometric mean of the 2 ratios: 2.00 (0.50 to 8.00)."
        assert (line in capsys.readouterr().out) is expected


def test_a_slow_first_call_is_a_miss() -> None:
    row = replace(_right(BY_NAME["exp"]), figure=None)
    for by_jax, ours, missed in ((0.01, 0.069, 0), (0.01, 0.071, 1), (1.0, 1.99, 0), (1, 2.01, 1)):
        slow = replace(row, jax_first_call_s=by_jax, ours_first_call_s=ours)
        assert len(measuring.misses([slow])) == missed


def test_much_memory_is_a_miss() -> None:
    row, mib = replace(_right(BY_NAME["exp"]), figure=None), 1 << 20
    for by_jax, ours, missed in ((100, 112.9, 0), (100, 113.1, 1), (None, 500, 0), (1, 9, 0)):
        large = replace(
            row,
            jax_memory_bytes=None if by_jax is None else by_jax * mib,
            ours_memory_bytes=round(ours * mib),
        )
        assert len(measuring.misses([large])) == missed


def test_list_runs_nothing(hlo_mlc: Callable, no_measuring: list[str]) -> None:
    result = hlo_mlc("bench", "--list", "--neighbours")
    assert result.exit_code == 0
    assert no_measuring == []
    assert all(name in result.stdout for name in BY_NAME)


def test_select() -> None:
    names = [case.name for case in CASES]
    assert [case.name for case in select((), (), False)] == names
    assert [case.name for case in select((), (), True)] == list(BY_NAME)
    assert [case.name for case in select(("softmax/odd",), (), False)] == ["softmax/odd"]
    with_neighbours = [
        one.name
        for name in ("tiny_call", "softmax")
        for one in (BY_NAME[name], *BY_NAME[name].neighbours)
    ]
    chosen = select(("softmax", "tiny_call"), (), True)
    assert sorted(case.name for case in chosen) == sorted(with_neighbours)
    chosen = select(("exp",), ("overhead",), False)
    assert [case.name for case in chosen] == ["exp", "tiny_call"]


def test_select_refuses_an_unknown_name() -> None:
    with pytest.raises(MlcError, match=r"no case 'sofmax' \(did you mean 'softmax'\?\)"):
        select(("sofmax",), (), False)


def test_peers_are_shown_in_one_table(
    hlo_mlc: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlo_mlc_bench.peers.PEERS", peers.PEERS[:1])
    result = hlo_mlc(
        "bench", "--peers", "tiny_matmuls", "exp", "tiny_call", *_QUICK, "--json", "out.json"
    )
    assert result.exit_code == 0, result.output
    assert "NumPy" in result.stdout and result.stdout.count("of 2 best or tied") == 2
    assert "tiny_call" not in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["exp", "tiny_matmuls"]
    assert set(document["rows"][0]["ms"]) == {"hlo_mlc", "jax.jit", "NumPy"}
    assert list(document["peers"]) == ["NumPy"] and document["environment"]["choose"] == "xla"


def test_peers_where_there_is_nothing_to_compare(hlo_mlc: Callable) -> None:
    result = hlo_mlc("bench", "--peers", "tiny_call", *_QUICK)
    assert result.exit_code != 0 and "no peer has a program" in str(result.output)
    result = hlo_mlc("bench", "--peers", "exp", *_QUICK, "--resume", "out.json")
    assert result.exit_code != 0 and "not --resume" in result.output


_MODULE = """
import jax.numpy as jnp

def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def example(x):
    return x * 2

example.example_args = (jnp.ones(8),)
"""


@pytest.fixture
def module(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """A file with functions, in the current folder."""
    name = f"benched_{request.node.name[:24]}"
    Path(f"{name}.py").write_text(_MODULE)
    return f"{name}.py"


def test_a_function_of_the_users(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc(
        "bench",
        f"{module}:softmax",
        "--arg",
        "f32[64,32]",
        "--choose",
        "ours",
        "--rounds",
        "1",
        "--json",
        "out.json",
    )
    assert result.exit_code == 0, result.output
    for expected in (
        "softmax ",
        "jax.jit / ours",
        "first call",
        "error against f64",
        "memory",
        "100% of the time in 1 kernel of ours (predicted); 1 round in turns",
    ):
        assert expected in result.stdout
    content = json.loads(Path("out.json").read_text())
    assert content["rounds"] == 1 and content["report"]["kernels"][0]["name"].startswith("softmax@")


def test_a_function_with_arguments_of_its_own(hlo_mlc: Callable, module: str) -> None:
    result = hlo_mlc("bench", f"{module}:example", "--rounds", "1")
    assert result.exit_code == 0, result.output
    assert "made up" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("softmx", "--arg", "f32[2]"), "there is no 'softmx' in"),
        (("softmax",), "softmax is called with: --arg f32[512,1024]"),
        (("softmax", "--arg", "f32[2"), "An argument is written like f32[512,1024]"),
        (
            ("softmax", "--arg", "f32[2]", "--arg", "f32[2]"),
            "cannot be traced with these arguments",
        ),
        (
            ("softmax", "--arg", "f32[2]", "--arg-file", "x.npy"),
            "by --arg or by --arg-file, not by",
        ),
        (("softmax", "--peers"), "is a function, which is measured by itself"),
    ],
)
def test_functions_that_cannot_be_measured(
    hlo_mlc: Callable, module: str, arguments: tuple[str, ...], message: str
) -> None:
    name, *rest = arguments
    result = hlo_mlc("bench", f"{module}:{name}", *rest)
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_arguments_are_not_for_cases(hlo_mlc: Callable) -> None:
    result = hlo_mlc("bench", "softmax", "--arg", "f32[2]")
    assert result.exit_code == 2 and "are for MODULE:FUNCTION" in result.stderr
