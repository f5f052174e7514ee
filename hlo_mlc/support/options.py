"""The options of hlo_mlc, and the only place that reads them from the environment."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hlo_mlc.support.errors import ConfigurationError, UsageError, did_you_mean
from hlo_mlc.support.warning import warn

CHOICES = ("auto", "measure", "ours", "xla")
"""How to choose between our kernels and XLA's: by prediction, by measuring, always one side."""

TUNINGS = ("off", "background")
"""When kernels are tuned besides where somebody asks for it."""

MAX_DEBUG = 4

_PREFIX = "HLO_MLC_"


def _one_of(names: Collection[str]) -> Callable[[object], str]:
    def convert(value: object) -> str:
        if value in names:
            return str(value)
        raise ValueError(f"expected one of {', '.join(names)}{did_you_mean(value, names)}")

    return convert


def _target(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip().lower()
    raise ValueError('expected the name of a target, such as "cpu", "x86-64-v3" or "sm_90"')


def _path(kind: str) -> Callable[[object], Path]:
    def convert(value: object) -> Path:
        if isinstance(value, str | Path) and str(value):
            try:
                return Path(value).expanduser().absolute()
            except RuntimeError as error:  # there is no such home
                raise ValueError(f"expected the path of a {kind}: {error}") from error
        raise ValueError(f"expected the path of a {kind}")

    return convert


def _integer(lowest: int, highest: int | None = None) -> Callable[[object], int]:
    up_to = "or more" if highest is None else f"to {highest}"
    expected = f"a whole number, {lowest} {up_to}"

    def convert(value: object) -> int:
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected {expected}")
        if value < lowest or (highest is not None and value > highest):
            raise ValueError(f"expected {expected}")
        return value

    return convert


def _switch(value: object) -> bool:
    if value not in ("0", "1", False, True):
        raise ValueError("expected 0 or 1")
    return value in ("1", True)


_NO_HOME = Path("/nonexistent")
"""The home of who has none, where nothing is kept. Source: Debian Policy Manual, 9.2.3."""


def _default_cache_dir() -> Path:
    """The user's cache folder. Source: XDG Base Directory Specification, `$XDG_CACHE_HOME`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification: a relative path there is invalid and to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "hlo_mlc"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a name, as containers have them
        home = _NO_HOME
    return home / ".cache" / "hlo_mlc"


def _from(variable: str, convert: Callable[[object], object]) -> dict[str, Any]:
    """An option's environment variable, and what checks and converts its values."""
    return {"variable": variable, "convert": convert}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every choice a user has about compiling, checked, with its environment variable.

    Raises: UsageError for a value that is not allowed.
    """

    choose: str = field(default="auto", metadata=_from("HLO_MLC_CHOOSE", _one_of(CHOICES)))
    """`auto` (predict), `measure`, `ours` (all that we can compile) or `xla` (nothing)."""

    target: str = field(default="cpu", metadata=_from("HLO_MLC_TARGET", _target))
    """What to compile for: `cpu` is this machine, a level (`x86-64-v3`) one that has no more
    instructions; ahead of time also other CPUs and GPU architectures (`sm_90`)."""

    cache_dir: Path = field(
        default_factory=_default_cache_dir, metadata=_from("HLO_MLC_CACHE", _path("folder"))
    )
    """Where compiled kernels and programs, and best schedules, are kept."""

    cache_limit_mib: int = field(
        default=1024, metadata=_from("HLO_MLC_CACHE_LIMIT_MIB", _integer(1))
    )
    """How much room compiled kernels and programs may take there; those used least recently go
    first."""

    records: Path | None = field(default=None, metadata=_from("HLO_MLC_RECORDS", _path("file")))
    """A file of `hlo-mlc records export` by which kernels are built: nothing else that was tuned or
    measured is read or written; None takes what is in the cache."""

    dump_dir: Path | None = field(default=None, metadata=_from("HLO_MLC_DUMP", _path("folder")))
    """Where to write what every stage produced; None writes nothing."""

    debug: int = field(default=0, metadata=_from("HLO_MLC_DEBUG", _integer(0, MAX_DEBUG)))
    """How much to print: 0 nothing, each level more than the one below."""

    threads: int | None = field(default=None, metadata=_from("HLO_MLC_THREADS", _integer(1)))
    """For how many threads to plan kernels; None takes all CPUs this process may use."""

    calibrate: bool = field(default=True, metadata=_from("HLO_MLC_CALIBRATE", _switch))
    """Whether to predict with what was measured on this machine (`hlo-mlc doctor`, `demo` and
    `bench` do that) or, if nothing was, is typical of its CPU; else with figures of any machine."""

    settle: bool = field(default=True, metadata=_from("HLO_MLC_SETTLE", _switch))
    """Whether `auto` times some of a function's calls with our kernels and without, where what is
    predicted is not clear-cut, and keeps to the faster."""

    tune: str = field(default="off", metadata=_from("HLO_MLC_TUNE", _one_of(TUNINGS)))
    """`background`: the kernels that take most of a program's time are tuned while it runs, by
    another process, when nobody uses the machine."""

    deterministic: bool = field(default=False, metadata=_from("HLO_MLC_DETERMINISTIC", _switch))
    """Whether kernels for CPUs give the same bits on any number of threads and in every process:
    nothing that was tuned or measured has a say in them, or in what is left to XLA."""

    any_rows: bool = field(default=False, metadata=_from("HLO_MLC_ANY_ROWS", _switch))
    """Whether kernels for CPUs serve any number of rows where each row is computed by itself: for
    functions that are called with many sizes of a batch."""

    check: bool = field(default=False, metadata=_from("HLO_MLC_CHECK", _switch))
    """Whether kernels for CPUs check every access, on arrays between guard pages: to find faults of
    ours. They take many times as long."""

    enable: bool = field(default=False, metadata=_from("HLO_MLC_ENABLE", _switch))
    """Whether importing `hlo_mlc` is to route every `jax.jit` through it (`hlo_mlc.install`)."""

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if value is None and option.default is None:
                continue
            try:
                converted = option.metadata["convert"](value)
            except ValueError as error:
                raise UsageError(f"Option {option.name}={value!r}: {error}") from None
            object.__setattr__(self, option.name, converted)
        if self.choose == "measure" and (self.deterministic or self.records):
            pinned = "deterministic=True" if self.deterministic else f"records={self.records}"
            raise UsageError(
                f'{pinned} and choose="measure" contradict each other: what is '
                'measured differs from run to run. Take choose="auto"'
            )
        if self.deterministic and self.records:
            raise UsageError(
                "deterministic=True and records=… contradict each other: nothing that "
                "was tuned has a say in deterministic kernels"
            )

    @property
    def settles(self) -> bool:
        """Whether calls may show what is faster."""
        return (
            self.choose == "auto"
            and self.settle
            and not (self.deterministic or self.records or self.any_rows)
        )

    @classmethod
    def from_environment(cls, **overrides: Any) -> Options:
        """The options that the environment asks for, except where `overrides` say otherwise.

        An override of None stands for "not given"; so does an empty environment variable. One that
        is named like ours and is none gets a warning, once.

        Raises: UsageError for an unknown or invalid override, ConfigurationError for an invalid
        environment variable.
        """
        fields = {option.name: option for option in dataclasses.fields(cls)}
        for name in overrides:
            if name not in fields:
                raise UsageError(
                    f"There is no option {name!r}{did_you_mean(name, fields)}. "
                    f"Options are: {', '.join(fields)}"
                )
        for variable in sorted(os.environ):
            if variable.startswith(_PREFIX):
                _name_unknown(variable)
        given = {name: value for name, value in overrides.items() if value is not None}
        return cls(**_read_environment(fields, skip=given) | given)

    def replace(self, **changes: Any) -> Options:
        """These options with some changed."""
        return dataclasses.replace(self, **changes)


def is_enabled() -> bool:
    """What the environment says of `Options.enable`: the one option that is asked for on import,
    where faults of others have no place.

    Raises: ConfigurationError for a value that says neither yes nor no.
    """
    enable = {f.name: f for f in dataclasses.fields(Options)}["enable"]
    return _read_environment({enable.name: enable}, skip={}).get(enable.name, enable.default)


def _read_environment(
    fields: Mapping[str, dataclasses.Field], skip: Mapping[str, object]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, option in fields.items():
        variable = option.metadata["variable"]
        text = os.environ.get(variable, "")
        if name in skip or not text:
            continue
        try:
            values[name] = option.metadata["convert"](text)
        except ValueError as error:
            raise ConfigurationError(f"Environment variable {variable}={text!r}: {error}") from None
    return values


@functools.cache
def _name_unknown(variable: str) -> None:
    """Warns of an environment variable that nobody reads; of each once."""
    known = [option.metadata["variable"] for option in dataclasses.fields(Options)]
    if variable not in known:
        others = did_you_mean(variable, known, _PREFIX) or f"; there are {', '.join(known)}"
        warn(f"hlo_mlc: there is no environment variable {variable}{others}")
