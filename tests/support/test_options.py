"""Options: where a value comes from, and what is said about one that is wrong."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest

from hlo_mlc.support.errors import ConfigurationError, UsageError
from hlo_mlc.support.options import Options


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for option in dataclasses.fields(Options):
        monkeypatch.delenv(option.metadata["variable"], raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


def test_defaults():
    options = Options.from_environment()
    assert options == Options()
    assert options.choose == "auto"
    assert options.target == "cpu"
    assert options.cache_dir == Path("/home/someone/.cache/hlo_mlc")
    assert options.dump_dir is None
    assert options.debug == 0
    assert options.threads is None
    assert hash(options) == hash(Options())


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("HLO_MLC_CHOOSE", "ours", "choose", "ours"),
        ("HLO_MLC_TARGET", " X86-64-V3 ", "target", "x86-64-v3"),
        ("HLO_MLC_CACHE", "~/kernels", "cache_dir", Path("/home/someone/kernels")),
        ("HLO_MLC_CACHE_LIMIT_MIB", "20", "cache_limit_mib", 20),
        ("HLO_MLC_DUMP", "/dumps", "dump_dir", Path("/dumps")),
        ("HLO_MLC_DEBUG", "3", "debug", 3),
        ("HLO_MLC_THREADS", "2", "threads", 2),
        ("HLO_MLC_CALIBRATE", "0", "calibrate", False),
        ("HLO_MLC_CALIBRATE", "1", "calibrate", True),
        ("HLO_MLC_CHECK", "1", "check", True),
        ("HLO_MLC_CHOOSE", "", "choose", "auto"),
        ("XDG_CACHE_HOME", "/xdg", "cache_dir", Path("/xdg/hlo_mlc")),
        ("XDG_CACHE_HOME", "relative", "cache_dir", Path("/home/someone/.cache/hlo_mlc")),
    ],
)
def test_environment(monkeypatch, variable, text, name, value):
    monkeypatch.setenv(variable, text)
    assert getattr(Options.from_environment(), name) == value


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    """As in a container that runs as a number: what needs no home works."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert Options.from_environment().cache_dir == Path("/nonexistent/.cache/hlo_mlc")
    monkeypatch.setenv("HLO_MLC_CACHE", "~nobody_at_all/kernels")
    with pytest.raises(ConfigurationError, match=r"HLO_MLC_CACHE='~nobody.* path of a folder"):
        Options.from_environment()


def test_relative_folders_do_not_move_with_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Options(dump_dir="dumps").dump_dir == tmp_path / "dumps"


def test_overrides_win_over_the_environment_unless_none(monkeypatch):
    monkeypatch.setenv("HLO_MLC_DEBUG", "1")
    monkeypatch.setenv("HLO_MLC_CHOOSE", "nonsense")
    options = Options.from_environment(debug=4, choose="xla", dump_dir=None)
    assert (options.debug, options.choose, options.dump_dir) == (4, "xla", None)
    assert Options.from_environment(debug=None, choose="xla").debug == 1


def test_unknown_override():
    with pytest.raises(UsageError, match=r"no option 'chose' \(did you mean 'choose'\?\)"):
        Options.from_environment(chose="ours")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("calibrate", "yes", r"calibrate='yes': expected 0 or 1"),
        ("calibrate", None, r"calibrate=None: expected 0 or 1"),
        ("choose", "messure", r"choose='messure': .*auto, measure, ours, xla .*'measure'\?"),
        ("choose", 1, "choose=1: expected one of"),
        ("target", "", "name of a target"),
        ("target", None, "name of a target"),
        ("cache_dir", 3, "path of a folder"),
        ("debug", 5, "debug=5: expected a whole number, 0 to 4"),
        ("debug", True, "expected a whole number"),
        ("threads", 0, "threads=0: expected a whole number, 1 or more"),
        ("threads", "two", "expected a whole number"),
    ],
)
def test_values_that_are_not_allowed(name, value, message):
    with pytest.raises(UsageError, match=message):
        Options(**{name: value})


def test_an_invalid_variable_is_named(monkeypatch):
    monkeypatch.setenv("HLO_MLC_DEBUG", "verbose")
    with pytest.raises(
        ConfigurationError, match="HLO_MLC_DEBUG='verbose': expected a whole number"
    ):
        Options.from_environment()


@pytest.mark.parametrize(
    ("variable", "rest"),
    [
        ("HLO_MLC_THREAD", r" \(did you mean 'HLO_MLC_THREADS'\?\)"),
        ("HLO_MLC_SOMETHING_ELSE", "; there are HLO_MLC_CHOOSE, HLO_MLC_TARGET, .*"),
    ],
)
def test_a_variable_that_nobody_reads_is_named_once(monkeypatch, variable, rest):
    monkeypatch.setenv(variable, "4")
    with pytest.warns(
        RuntimeWarning, match=f"^hlo_mlc: there is no environment variable {variable}{rest}$"
    ):
        assert Options.from_environment(choose="xla").threads is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Options.from_environment()


def test_replace_checks_too():
    assert Options().replace(debug=2).debug == 2
    with pytest.raises(UsageError, match="debug"):
        Options().replace(debug=-1)
