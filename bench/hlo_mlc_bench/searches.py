"""What searches for schedules leave in files: how near short ones come to long ones
(`scripts/tuning_goal.py`), what schedules took that others can be held against
(`scripts/samplers.py`, `scripts/search_model.py`), and whether derived schedules beat templates
(`scripts/derived.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hlo_mlc.tuning.space import Configuration, Key, Parameter, Space, TemplateChoice, key_of

Line = TypeVar("Line", bound="Found | Derived")

SHORT = 32
"""Trials of a short search, at most."""


@dataclass(frozen=True, slots=True)
class Found:
    """What searches for the schedule of one kernel came upon, on a CPU of a kind.

    `short`: of each short search the speed of its winner / the default's, the trials, the seconds;
    `long`: the speed of the fastest of the long one / the default's; `trials` of it, of a space of
    `size` schedules. `error`: two standard errors of the logarithm of how far `apart` winners are;
    nobody knows it of earlier lines.
    """

    case: str
    target: str
    size: int
    default_us: float
    short: Sequence[tuple[float, int, float]]
    long: float
    trials: int
    error: float = 0.0

    @property
    def best(self) -> float:
        """The fastest there is, as far as is known; the default is as fast as itself."""
        return max(self.long, *(speedup for speedup, _, _ in self.short), 1.0)

    @property
    def reached(self) -> list[float]:
        """What share of the best each short search came to."""
        return [speedup / self.best for speedup, _, _ in self.short]

    @property
    def apart(self) -> float:
        """How many times as fast as the slowest winner of short searches the fastest is."""
        return max(self.reached) / min(self.reached)


@dataclass(frozen=True, slots=True)
class Derived:
    """What became of a nest when schedules that are derived by rule had as many trials as those of
    templates, of which analysis chooses that called `usual`: how many times as fast as what
    analysis chooses the fastest of either is, on a CPU of a kind."""

    case: str
    target: str
    usual: str
    trials: int
    templates: float
    derived: float
    schedule: str  # the fastest derived one; empty where it is no faster than what analysis says


@dataclass(frozen=True, slots=True, eq=False)
class Timings:
    """What schedules of a kernel took on a CPU of a kind: time / the default's, None for what
    fails. They are all of a space, or some of it."""

    case: str
    target: str
    space: Space
    ratios: Mapping[Key, float | None]

    def line(self) -> str:
        """As files have it: values alone, in the order of the space's choices and parameters."""
        is_whole = len(self.ratios) == self.space.size
        keys = [key_of(one) for one in self.space.all()] if is_whole else list(self.ratios)
        content: dict[str, Any] = {
            "case": self.case,
            "target": self.target,
            "choices": [[c.position, c.templates] for c in self.space.choices],
            "parameters": [
                [p.position, p.template, p.key, p.values, p.default] for p in self.space.parameters
            ],
        }
        if not is_whole:
            content["schedules"] = [[*self._values(dict(key))] for key in keys]
        content["ratios"] = [self.ratios[key] for key in keys]
        return json.dumps(content, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, line: str) -> Timings:
        """What `line` wrote."""
        content = json.loads(line)
        space = Space(
            tuple(
                Parameter(position, template, key, tuple(values), default)
                for position, template, key, values, default in content["parameters"]
            ),
            tuple(
                TemplateChoice(position, tuple(templates))
                for position, templates in content["choices"]
            ),
        )
        schedules = (
            [_configuration(space, values) for values in content["schedules"]]
            if "schedules" in content
            else space.all()
        )
        ratios = dict(zip(map(key_of, schedules), content["ratios"], strict=True))
        return cls(content["case"], content["target"], space, ratios)

    def _values(self, configuration: Configuration) -> Iterator[int | str]:
        yield from (configuration[choice.name] for choice in self.space.choices)
        yield from (configuration[p.name] for p in self.space.active(configuration))


def _configuration(space: Space, values: Sequence[int | str]) -> Configuration:
    count = len(space.choices)
    chosen = {c.name: value for c, value in zip(space.choices, values, strict=False)}
    active = space.active(chosen)
    return chosen | {p.name: value for p, value in zip(active, values[count:], strict=True)}


def known(path: Path, kind: type[Line]) -> list[Line]:
    """What a file holds, a line for each kernel; nothing if there is no file."""
    return (
        [kind(**json.loads(line)) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def keep(path: Path, found: Found | Derived) -> None:
    """Adds a line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(found)) + "\n")


def timings(path: Path) -> list[Timings]:
    """What a file holds of schedules that were timed; nothing if there is no file."""
    return list(map(Timings.read, path.read_text().splitlines())) if path.exists() else []
