"""What to try next in a small space where nothing is known of loops: what a Gaussian process finds
most promising that knows the configurations as points.

Such spaces are smooth: what differs in one step of one parameter takes about as long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from hlo_mlc.tuning.model import Beliefs, explained
from hlo_mlc.tuning.pool import Choice
from hlo_mlc.tuning.space import Configuration, Key, Space, key_of

MOST_PLACED = 500
"""Up to how many configurations a space may have.  Source: scripts/samplers.py; its figures are in
docs/internals.md."""

# How far apart the first and the last value of a parameter are, and two templates.
_APART = 3.0


@dataclass(slots=True)
class Placed:
    """All configurations of a space as points: where each value stands among its parameter's, and
    which templates are chosen."""

    space: Space
    _configurations: dict[Key, Configuration] = field(init=False)
    _points: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._configurations = {key_of(one): one for one in self.space.all()}
        places = [
            (p.name, {value: _APART * n / (len(p.values) - 1) for n, value in enumerate(p.values)})
            for p in self.space.parameters
            if len(p.values) > 1
        ]
        places += [
            (choice.name, {template: _APART})
            for choice in self.space.choices
            for template in choice.templates
        ]
        self._points = np.array(
            [
                [where.get(one.get(name), 0.0) for name, where in places]
                for one in self._configurations.values()
            ]
        ).reshape(len(self._configurations), len(places))

    def choose(
        self, logs: Mapping[Key, float], pending: Collection[Key], count: int
    ) -> list[Choice]:
        """The most promising: `logs` of time / the default's are known of those that were tried,
        and `pending` are under way. Several are chosen as in `Pool.choose`."""
        number = {key: n for n, key in enumerate(self._configurations)}
        keys = list(number)
        believed = dict(logs)
        for key in pending:  # of what others have begun, parts may be all that is known
            if key not in believed and key in number:
                believed[key] = float(self._explained(believed, [number[key]], number).mean[0])
        chosen: list[Choice] = []
        while len(chosen) < count and len(believed) < len(keys):
            left = [n for key, n in number.items() if key not in believed]
            found = self._explained(believed, left, number)
            gains = found.gain(min([0.0, *believed.values()]))
            first = int(np.argmax(gains))
            key = keys[left[first]]
            chosen.append(Choice(self._configurations[key], float(gains[first])))
            believed[key] = float(found.mean[first])
        return chosen

    def _explained(
        self, logs: Mapping[Key, float], others: list[int], number: Mapping[Key, int]
    ) -> Beliefs:
        rows = [number[key] for key in logs] + others
        return explained(np.zeros(len(rows)), self._points[rows], np.array([*logs.values()]))
