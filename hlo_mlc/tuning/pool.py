"""The candidates at hand: what their loops are like, and which of them to try next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tuning.features import Description, Features
from hlo_mlc.tuning.model import Forest, beliefs
from hlo_mlc.tuning.space import Configuration, Key, key_of

# Candidates that come to the others before each trial, more where few wait, and how many are looked
# at for each of them; of all of them those that stay; trials that are learned from, the fastest.
# Looking at a candidate takes 1 to 10 ms, a trial 150.
_FRESH, _FEWEST_WAITING, _LOOKS, _MOST_WAITING, _MOST_LEARNED = 8, 32, 3, 256, 200
# What does not pay for being compiled: of 1,700 schedules at random of 33 kernels, 628 were said to
# take more than 4 times the default's cycles, and 20 to hold more than half as many accumulators
# again as there are registers; none of them was faster than the default. Nor is what has more
# operations than two first caches hold instructions of, unless the default has, and LLVM takes up
# to 15 s for it.
_MOST_CYCLES, _MOST_SPILLED, _MOST_WRITTEN = 4.0, 0.5, 1 << 14

Describe = Callable[[Configuration], Description | None]
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
    _seen: dict[Key, Description | None] = field(default_factory=dict)
    _first: dict[str, Key] = field(default_factory=dict)  # of those with the same loops
    _waiting: dict[Key, Configuration] = field(default_factory=dict)

    def choose(self, logs: Mapping[Key, float], candidates: Iterable[Configuration]
               ) -> Choice | None:
        """Of the candidates that came so far, some of these among them, the most promising: `logs`
        of time / the default's are known of those that were tried. None where nothing can be seen
        of candidates."""
        default = self._look(self.default)
        if default is None:
            return None
        for key in logs:
            self._look(dict(key))
        wanted = max(_FRESH, _FEWEST_WAITING - len(self._waiting))
        fresh = (c for c in itertools.islice(candidates, _LOOKS * wanted)
                 if self._is_fresh(c, default.features))
        self._waiting |= {key_of(c): c for c in itertools.islice(fresh, wanted)}
        for key in logs:
            self._waiting.pop(key, None)
        if not self._waiting:
            return Choice(None, 0.0)
        learned = [key for key in sorted(logs, key=logs.__getitem__)[:_MOST_LEARNED]
                   if self._seen[key] is not None]
        waiting = list(self._waiting)
        gains = beliefs(self.forest, self._differences(learned),
                        np.array([logs[key] for key in learned]),
                        self._differences(waiting)).gain(min([0.0, *logs.values()]))
        order = sorted(range(len(waiting)), key=lambda n: -gains[n])[:_MOST_WAITING]
        self._waiting = {waiting[n]: self._waiting[waiting[n]] for n in order}
        return Choice(self._waiting[waiting[order[0]]], float(gains[order[0]]))

    def differences(self, configuration: Configuration) -> list[float] | None:
        """What the loops of a configuration do more or less than the default's, in logarithms."""
        if self._look(configuration) is None or self._look(self.default) is None:
            return None
        (row,) = self._differences([key_of(configuration)])
        return [round(float(d), 4) for d in row]

    def _look(self, configuration: Configuration) -> Description | None:
        key = key_of(configuration)
        if key not in self._seen:
            self._seen[key] = found = self.describe(configuration)
            if found is not None:
                self._first.setdefault(found.digest, key)
        return self._seen[key]

    def _is_fresh(self, configuration: Configuration, default: Features) -> bool:
        """Whether it can be made and may win, and is no other one by another name."""
        key = key_of(configuration)
        if key in self._seen:
            return False
        found = self._look(configuration)
        return found is not None and self._first[found.digest] == key \
            and self._may_win(found.features, default)

    def _may_win(self, features: Features, default: Features) -> bool:
        return features.cycles <= _MOST_CYCLES * default.cycles \
            and features.spilled <= max(_MOST_SPILLED * self.target.registers, default.spilled) \
            and features.written <= max(_MOST_WRITTEN, default.written)

    def _differences(self, keys: Sequence[Key]) -> np.ndarray:
        default, *rows = (self._seen[key].features.vector for key in (key_of(self.default), *keys))
        return np.array(rows).reshape(len(rows), len(default)) - default

