"""What can be tuned in a kernel: the parameters of the templates of its costliest nests."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hlo_mlc.runtime.records import Schedules
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import work
from hlo_mlc.templates.program import Decision
from hlo_mlc.tensor.core import Loop, Nest, Step, TensorProgram

# Nests that take less of a kernel's work are left as analysis has them, and so are those after the
# costliest few: every parameter more makes the search longer for all.
SMALLEST_SHARE = 0.05
MOST_NESTS = 6
UNKNOWN_TRIPS = 16  # of a loop whose trip count nobody knows, as in partition/estimate.py

Configuration = Mapping[str, int]
"""A value for each parameter of a space, by name: `0.rows` is `rows` of the kernel's first nest."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number to choose: parameter `key` of the template of the nest at `position`."""

    position: int
    template: str
    key: str
    values: tuple[int, ...]  # in ascending order, the default among them
    default: int

    @property
    def name(self) -> str:
        return f"{self.position}.{self.key}"


@dataclass(frozen=True, slots=True)
class Space:
    """All configurations of a kernel."""

    parameters: tuple[Parameter, ...]

    @property
    def size(self) -> int:
        """How many configurations there are."""
        return math.prod(len(p.values) for p in self.parameters)

    @property
    def default(self) -> Configuration:
        """What analysis says."""
        return {p.name: p.default for p in self.parameters}

    @property
    def digest(self) -> str:
        """Equal for equal spaces."""
        text = json.dumps([[p.name, p.template, p.values, p.default] for p in self.parameters])
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def all(self) -> Iterator[Configuration]:
        """Every configuration, the default first."""
        yield self.default
        for values in itertools.product(*(p.values for p in self.parameters)):
            found = dict(zip((p.name for p in self.parameters), values, strict=True))
            if found != self.default:
                yield found

    def schedules(self, configuration: Configuration) -> Schedules:
        """The configuration as records and the scheduler have it."""
        found: dict[int, tuple[str, dict[str, int]]] = {}
        for p in self.parameters:
            found.setdefault(p.position, (p.template, {}))[1][p.key] = configuration[p.name]
        return found

    def configuration(self, schedules: Schedules) -> Configuration | None:
        """The reverse; None for schedules that are not of this space. Parameters that they do not
        name have their default."""
        result = dict(self.default)
        by_name = {p.name: p for p in self.parameters}
        for position, (template, values) in schedules.items():
            for key, value in values.items():
                parameter = by_name.get(f"{position}.{key}")
                if parameter is None or parameter.template != template \
                        or value not in parameter.values:
                    return None
                result[parameter.name] = value
        return result


def space_of(program: TensorProgram, decisions: Sequence[Decision], target: CpuTarget) -> Space:
    """The space of a kernel that `decisions` were taken for by default."""
    weights = [_weight(program, decision.nest) for decision in decisions]
    least = SMALLEST_SHARE * sum(weights)
    costliest = sorted(range(len(decisions)), key=lambda n: (-weights[n], n))[:MOST_NESTS]
    parameters = []
    for position in sorted(n for n in costliest if weights[n] >= least):
        decision = decisions[position]
        choices = decision.template.space(decision.nest, target)
        for key, values in choices.items():
            default = decision.parameters[key]
            distinct = tuple(sorted({*values, default}))
            if len(distinct) > 1:
                parameters.append(
                    Parameter(position, decision.template.name, key, distinct, default))
    return Space(tuple(parameters))


def _weight(program: TensorProgram, nest: Nest) -> int:
    """How much of the kernel's work is in this nest (in all that share its code, at least once)."""
    return work(nest) * max(1, sum(_trips(step, nest) for step in program.steps))


def _trips(step: Step, nest: Nest) -> int:
    if isinstance(step, Loop):
        trips = UNKNOWN_TRIPS if step.trip_count is None else step.trip_count
        return trips * sum(_trips(inner, nest) for inner in (*step.test, *step.body))
    return int(step is nest)
