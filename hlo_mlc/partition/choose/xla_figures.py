"""What XLA takes where nobody measures it on the machine itself: `xla_figures.json`, read here.

`python scripts/xla_figures.py` writes that file, from the bench cases that show the figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hlo_mlc.target.rates import Rates

PATH = Path(__file__).with_name("xla_figures.json")
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Where and when figures were measured."""

    cpu: str
    cores: int
    jaxlib: str
    date: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number; what it counts; the run that it is from; the bench case that shows it, if there is
    one, and what was seen besides."""

    value: float
    unit: str
    run: str
    case: str = ""
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """All of them, and the runs that they are from, by their names."""

    runs: Mapping[str, Run]
    by_name: Mapping[str, Figure]


def read(path: Path = PATH) -> Figures:
    """The figures of a file."""
    document = json.loads(path.read_text())
    if document["schema"] != SCHEMA:
        raise ValueError(f"{path} has schema {document['schema']}, expected {SCHEMA}")
    return Figures(
        {name: Run(**one) for name, one in document["runs"].items()},
        {name: Figure(**one) for name, one in document["figures"].items()},
    )


_FIGURES = read()


def figure(name: str) -> float:
    """The value of a figure."""
    return _FIGURES.by_name[name].value


def thread_figure(name: str, rates: Rates) -> float:
    """A time of one thread's for each of what it does one by one, on a machine with these rates."""
    return figure(name) * rates.one_by_one
