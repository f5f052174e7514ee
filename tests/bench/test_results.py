"""Result files: complete, checked when read, and never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hlo_mlc import MlcError
from hlo_mlc.target.cpu import named
from hlo_mlc.target.rates import Rates
from hlo_mlc_bench import results
from hlo_mlc_bench.results import Results, Row


@pytest.fixture
def some_results() -> Results:
    row = Row(name="one", group="g", status="right", ratio=1.5)
    return Results(results.environment("auto", 3), (row,))


def test_what_is_saved_is_loaded(some_results: Results, tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    some_results.save(path)
    assert results.load(path) == some_results
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_the_environment_names_machine_and_versions(some_results: Results) -> None:
    here = some_results.environment
    assert here["cpu"] and here["cores"] >= 1
    assert here["packages"]["jax"] and here["packages"]["jaxlib"]
    assert here["choose"] == "auto" and here["rounds"] == 3
    assert here["date"].endswith("+00:00")


def test_what_xla_is_held_by_is_known_and_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_FLAGS", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    free = results.environment("auto", 3)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    held = results.environment("auto", 3)
    assert (free["variables"], held["variables"]) == ({}, {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    with pytest.raises(MlcError, match="measured with variables ="):
        results.check_comparable(free, held)
    silent = {name: value for name, value in free.items() if name != "variables"}
    results.check_comparable(silent, free)


def test_a_new_row_replaces_its_older_one(some_results: Results) -> None:
    again = Row(name="one", group="g", status="wrong")
    other = Row(name="two", group="g", status="right")
    assert some_results.right() == {"one"}
    changed = some_results.with_row(other).with_row(again)
    assert changed.rows == (other, again)
    assert changed.right() == {"two"}


def test_the_machine_is_kept_with_its_rates(some_results: Results, tmp_path: Path) -> None:
    assert some_results.machine is None
    target = replace(named("x86-64-v3"), cpu="znver3", cores=2, rates=Rates(xla_exp=1.25))
    path = tmp_path / "results.json"
    some_results.measured_on(target).save(path)
    machine = results.load(path).machine
    assert machine == target and machine.rates == target.rates


def test_a_machine_without_rates_has_those_that_are_typical(some_results: Results) -> None:
    said = {"cpu": "znver5", "vector_bytes": 64, "l2_bytes": 1 << 20, "cores": 2}
    machine = replace(some_results, environment={"machine": said}).machine
    assert (machine.cores, machine.registers, machine.l2_bytes) == (2, 32, 1 << 20)
    assert machine.rates == Rates.typical("znver5")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "Expecting value"),
        ("{}", "its schema is None, expected 1"),
        ("[]", "its schema is None, expected 1"),
        ('{"schema": 99}', "its schema is 99, expected 1"),
        ('{"schema": 1, "environment": {}, "rows": [3]}', "must be a mapping, not int"),
    ],
)
def test_a_file_of_something_else_is_refused(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(MlcError, match=f"not a file of benchmark results: .*{why}"):
        results.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MlcError, match="Cannot read results"):
        results.load(tmp_path / "none.json")


def test_a_path_that_cannot_be_written_is_refused(some_results: Results, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MlcError, match="Cannot write the results"):
        some_results.save(tmp_path / "file" / "results.json")


@pytest.mark.parametrize("name", ["cpu", "python", "packages", "choose"])
def test_results_of_another_kind_do_not_mix(name: str, some_results: Results) -> None:
    here = dict(some_results.environment)
    results.check_comparable(here, here)
    with pytest.raises(MlcError, match=f"measured with {name} ="):
        results.check_comparable({**here, name: "another"}, here)


def test_the_file_is_plain_json(some_results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    some_results.save(path)
    document = json.loads(path.read_text())
    assert document["schema"] == results.SCHEMA
    assert document["rows"][0]["name"] == "one"
