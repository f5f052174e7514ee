"""What can be tuned in a kernel: the templates of its costliest nests, and their parameters."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hlo_mlc.runtime.records import Schedules
from hlo_mlc.target import Target
from hlo_mlc.templates.base import Decision, Named, Template, work
from hlo_mlc.tensor.core import Nest, Step, TensorProgram

# Nests that take less of a kernel's work are left as analysis has them, and so are those after the
# costliest few: every parameter more makes the search longer for all.
SMALLEST_SHARE = 0.05
MOST_NESTS = 6

_FALLBACKS = ("update", "plain")  # for what no other template takes, and slow: no candidates

Configuration = Mapping[str, int | str]
"""A value for each choice of a space, by name: `0.template` is the template of the kernel's first
nest, `0.contraction.rows` a parameter of it. Parameters of templates that are not chosen have no
value."""

Key = tuple[tuple[str, int | str], ...]
"""A configuration as what can be looked up."""


def key_of(configuration: Configuration) -> Key:
    """Equal for equal configurations."""
    return tuple(sorted(configuration.items()))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number to choose: parameter `key` of a template of the nest at `position`."""

    position: int
    template: str
    key: str
    values: tuple[int, ...]  # in ascending order, the default among them
    default: int

    @property
    def name(self) -> str:
        return f"{self.position}.{self.template}.{self.key}"


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """The templates that take the nest at `position`, that of analysis first."""

    position: int
    templates: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.position}.template"


@dataclass(frozen=True, slots=True)
class Space:
    """All configurations of a kernel: a template for each nest that several take, and the
    parameters of the templates that are chosen."""

    parameters: tuple[Parameter, ...]
    choices: tuple[TemplateChoice, ...] = ()

    @property
    def size(self) -> int:
        """How many configurations there are."""
        return math.prod(
            sum(math.prod(len(p.values) for p in parameters) for _, parameters in alternatives)
            for alternatives in self._nests()
        )

    @property
    def default(self) -> Configuration:
        """What analysis says."""
        return self._defaults({c.position: c.templates[0] for c in self.choices})

    @property
    def starts(self) -> Iterator[Configuration]:
        """The default, and for each template that could replace another what analysis says of its
        parameters."""
        usual = {c.position: c.templates[0] for c in self.choices}
        yield self.default
        for choice in self.choices:
            for template in choice.templates[1:]:
                yield self._defaults({**usual, choice.position: template})

    @property
    def digest(self) -> str:
        """Equal for equal spaces."""
        text = json.dumps(
            [
                [[p.name, p.values, p.default] for p in self.parameters],
                [[c.name, c.templates] for c in self.choices],
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def active(self, configuration: Configuration) -> tuple[Parameter, ...]:
        """The parameters of the templates that a configuration chooses."""
        chosen = {c.position: configuration[c.name] for c in self.choices}
        return tuple(p for p in self.parameters if chosen.get(p.position, p.template) == p.template)

    def all(self) -> Iterator[Configuration]:
        """Every configuration, the default first."""
        yield self.default
        parts = [
            [
                {**chosen, **dict(zip((p.name for p in parameters), values, strict=True))}
                for chosen, parameters in alternatives
                for values in itertools.product(*(p.values for p in parameters))
            ]
            for alternatives in self._nests()
        ]
        for part in itertools.product(*parts):
            found = {name: value for one in part for name, value in one.items()}
            if found != self.default:
                yield found

    def neighbour(self, configuration: Configuration, rng: random.Random) -> Configuration:
        """The configuration with another value of one of its parameters; itself without any."""
        active = self.active(configuration)
        if not active:
            return configuration
        changed = rng.choice(active)
        others = [v for v in changed.values if v != configuration[changed.name]]
        return {**configuration, changed.name: rng.choice(others)}

    def crossing(
        self, one: Configuration, other: Configuration, rng: random.Random
    ) -> Configuration:
        """A configuration with each nest as in one of two."""
        chosen = {
            position: rng.choice((one, other))
            for position in {int(name.partition(".")[0]) for name in (*one, *other)}
        }
        return {
            name: value
            for position, source in sorted(chosen.items())
            for name, value in source.items()
            if int(name.partition(".")[0]) == position
        }

    def anything(self, rng: random.Random) -> Configuration:
        """A configuration at random, templates being as likely as each other."""
        drawn: dict[str, int | str] = {c.name: rng.choice(c.templates) for c in self.choices}
        return drawn | {p.name: rng.choice(p.values) for p in self.active(drawn)}

    def schedules(self, configuration: Configuration) -> Schedules:
        """The configuration as records and the scheduler have it."""
        found = {c.position: (str(configuration[c.name]), {}) for c in self.choices}
        for p in self.active(configuration):
            found.setdefault(p.position, (p.template, {}))[1][p.key] = configuration[p.name]
        return {**found}

    def configuration(self, schedules: Schedules) -> Configuration | None:
        """The reverse; None for schedules that are not of this space. What they do not name is as
        analysis has it."""
        chosen = {c.position: c.templates[0] for c in self.choices}
        known = {(c.position, template) for c in self.choices for template in c.templates}
        known |= {(p.position, p.template) for p in self.parameters}
        for position, (template, _) in schedules.items():
            if (position, template) not in known:
                return None
            if position in chosen:
                chosen[position] = template
        result = self._defaults(chosen)
        by_name = {p.name: p for p in self.parameters}
        for position, (template, values) in schedules.items():
            if isinstance(values, tuple):  # steps of a person's
                return None
            for key, value in values.items():
                parameter = by_name.get(f"{position}.{template}.{key}")
                if parameter is None or value not in parameter.values:
                    return None
                result[parameter.name] = value
        return result

    def most_like(self, schedules: Schedules) -> Configuration | None:
        """What comes nearest to schedules of a kernel of other sizes: each parameter has the value
        nearest to theirs. None where they name templates that do not take these nests."""
        values = {(p.position, p.template, p.key): p.values for p in self.parameters}
        fitted: dict[int, tuple[str, dict[str, int]]] = {}
        for position, (template, parameters) in schedules.items():
            if isinstance(parameters, tuple):  # steps of a person's
                return None
            fitted[position] = (
                template,
                {
                    key: min(
                        there, key=lambda v, value=value: (abs(math.log((1 + v) / (1 + value))), v)
                    )
                    for key, value in parameters.items()
                    if (there := values.get((position, template, key)))
                },
            )
        return self.configuration(fitted)

    def _defaults(self, chosen: Mapping[int, str]) -> dict[str, int | str]:
        """The configuration with these templates and all else as analysis has it."""
        found: dict[str, int | str] = {f"{n}.template": template for n, template in chosen.items()}
        return found | {
            p.name: p.default
            for p in self.parameters
            if chosen.get(p.position, p.template) == p.template
        }

    def _nests(self) -> Iterator[list[tuple[Configuration, list[Parameter]]]]:
        """For each nest: every choice of its template, and the parameters that there are then."""
        choices = {c.position: c for c in self.choices}
        for position in dict.fromkeys((*choices, *(p.position for p in self.parameters))):
            own = [p for p in self.parameters if p.position == position]
            choice = choices.get(position)
            if choice is None:
                yield [({}, own)]
            else:
                yield [
                    ({choice.name: template}, [p for p in own if p.template == template])
                    for template in choice.templates
                ]


def space_of(
    program: TensorProgram,
    decisions: Sequence[Decision[Named]],
    target: Target,
    templates: Sequence[Template],
    common: Mapping[str, tuple[int, ...]],
) -> Space:
    """The space of a kernel that `decisions` among these templates were taken for by default.
    `common` are the values of parameters that all of them have, of which the first is the default.
    """
    weights = [_weight(program, decision.nest) for decision in decisions]
    least = SMALLEST_SHARE * sum(weights)
    costliest = sorted(range(len(decisions)), key=lambda n: (-weights[n], n))[:MOST_NESTS]
    parameters: list[Parameter] = []
    choices = []
    for position in sorted(n for n in costliest if weights[n] >= least):
        decision = decisions[position]
        fitting = _fitting(decision, target, templates)
        if len(fitting) > 1:
            choices.append(TemplateChoice(position, tuple(t.name for t in fitting)))
        for template in fitting:
            defaults = template.default(decision.nest, target)
            space = {
                key: {*values, defaults[key]}
                for key, values in template.space(decision.nest, target).items()
            }
            defaults = {**defaults, **{key: values[0] for key, values in common.items()}}
            parameters += [
                Parameter(position, template.name, key, tuple(sorted(values)), defaults[key])
                for key, values in {**space, **common}.items()
                if len(values) > 1
            ]
    return Space(tuple(parameters), tuple(choices))


def _fitting(
    decision: Decision[Named], target: Target, templates: Sequence[Template]
) -> list[Template]:
    """That of analysis, and the others that take the nest; sorting is the business of one, and so
    are procedures."""
    chosen = next(t for t in templates if t.name == decision.template.name)
    if any(stage.sort is not None or stage.procedure is not None for stage in decision.nest.stages):
        return [chosen]
    others = (t for t in templates if t is not chosen and t.name not in _FALLBACKS)
    return [chosen, *(t for t in others if not t.refusal(decision.nest, target))]


def _weight(program: TensorProgram, nest: Nest) -> int:
    """How much of the kernel's work is in this nest (in all that share its code, at least once)."""
    return work(nest) * max(1, sum(_trips(step, nest) for step in program.steps))


def _trips(step: Step, nest: Nest) -> int:
    if isinstance(step, Nest):
        return int(step is nest)
    return step.likely_trips * sum(_trips(inner, nest) for inner in step.inner)
