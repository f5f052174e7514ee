"""The candidates at hand: what their loops are like, and which of them to try next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tuning.features import Features
from hlo_mlc.tuning.model import Forest, beliefs
from hlo_mlc.tuning.space import Configuration, Key, key_of

# Candidates that come to the others before each trial, and of all of them those that stay; trials
# that are learned from, the fastest. Looking at a candidate takes 1 to 5 ms, a trial 150.
_FRESH, _MOST_WAITING, _MOST_LEARNED = 16, 256, 200
# What does not pay for being compiled: of 1,700 schedules at random of 33 kernels, 628 were said to
# take more than 4 times the default's cycles, and 20 to hold more than half as many accumulators
# again as there are registers; none of them was faster than the default.
_MOST_CYCLES, _MOST_SPILLED = 4.0, 0.5

Describe = Callable[[Configuration], Features | None]
"""What the loops of a candidate are like; None where they cannot be made."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate to try next, None where there is none, and the logarithm by which it is
    expected to be faster than the fastest so far, where losing counts nothing."""

    configuration: Configuration | None
    gain: float


@dataclass(slots=True)
class Pool:
    """Candidates of one kernel, which a model puts in order."""

    target: CpuTarget
    default: Configuration
    describe: Describe
    forest: Forest | None = None
    _seen: dict[Key, Features | None] = field(default_factory=dict)
    _waiting: dict[Key, Configuration] = field(default_factory=dict)

    def choose(self, logs: Mapping[Key, float], candidates: Iterable[Configuration]) -> Choice:
        """Of the candidates that came so far, some of these among them, the most promising: `logs`
        of time / the default's are known of those that were tried."""
        default = self._features(self.default)
        if default is None:
            return Choice(None, math.inf)
        for configuration in itertools.islice(candidates, _FRESH):
            features = self._features(configuration)
            if features is not None and self._may_win(features, default):
                self._waiting.setdefault(key_of(configuration), configuration)
        for key in logs:
            self._waiting.pop(key, None)
        if not self._waiting:
            return Choice(None, 0.0)
        learned = [key for key in sorted(logs, key=logs.__getitem__)[:_MOST_LEARNED]
                   if self._seen.get(key) is not None]
        waiting = list(self._waiting)
        gains = beliefs(self.forest, self._differences(learned, default),
                        np.array([logs[key] for key in learned]),
                        self._differences(waiting, default)).gain(min([0.0, *logs.values()]))
        order = sorted(range(len(waiting)), key=lambda n: -gains[n])[:_MOST_WAITING]
        self._waiting = {waiting[n]: self._waiting[waiting[n]] for n in order}
        return Choice(self._waiting[waiting[order[0]]], float(gains[order[0]]))

    def differences(self, configuration: Configuration) -> list[float] | None:
        """What the loops of a configuration do more or less than the default's, in logarithms."""
        features, default = self._features(configuration), self._features(self.default)
        if features is None or default is None:
            return None
        return [round(float(d), 4) for d in features.vector - default.vector]

    def _features(self, configuration: Configuration) -> Features | None:
        key = key_of(configuration)
        if key not in self._seen:
            self._seen[key] = self.describe(configuration)
        return self._seen[key]

    def _may_win(self, features: Features, default: Features) -> bool:
        return features.cycles <= _MOST_CYCLES * default.cycles \
            and features.spilled <= max(_MOST_SPILLED * self.target.registers, default.spilled)

    def _differences(self, keys: Sequence[Key], default: Features) -> np.ndarray:
        rows = [self._seen[key].vector for key in keys]
        return np.array(rows).reshape(len(rows), len(default.vector)) - default.vector

