"""The candidates at hand: what their loops are like, and which of them to try next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tuning.features import Description, Features
from hlo_mlc.tuning.model import Beliefs, Forest, beliefs
from hlo_mlc.tuning.space import Configuration, Key, key_of

# Candidates that come to the others for each trial, more where few wait, and how many are looked at
# for each of them; of all of them those that stay; trials that are learned from, the fastest.
# Looking at a candidate takes 1 to 10 ms, a trial 150.
_FRESH, _FEWEST_WAITING, _LOOKS, _MOST_WAITING, _MOST_LEARNED = 8, 32, 3, 256, 200
# What does not pay for being compiled: of 1,700 schedules at random of 33 kernels, 628 were said to
# take more than 4 times the default's cycles, and 20 to hold more than half as many accumulators
# again as there are registers; none of them was faster than the default. Nor is what has more
# operations than two first caches hold instructions of, unless the default has, and LLVM takes up
# to 15 s for it.
_MOST_CYCLES, _MOST_SPILLED, _MOST_WRITTEN = 4.0, 0.5, 1 << 14

Describe = Callable[[Sequence[Configuration]], Sequence[Description | None]]
"""What the loops of candidates are like; None for those whose loops cannot be made."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate to try, and the logarithm by which it is expected to be faster than the fastest
    so far, where losing counts nothing."""

    configuration: Configuration
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

    def choose(
        self,
        logs: Mapping[Key, float],
        candidates: Iterable[Configuration],
        count: int = 1,
        pending: Sequence[Configuration] = (),
    ) -> list[Choice] | None:
        """Of the candidates that came so far, some of these among them, the most promising: `logs`
        of time / the default's are known of those that were tried, and `pending` are under way.
        None where nothing can be seen of candidates.

        Several are chosen as if what is under way, and those before them, took what is expected.
        Source: D. Ginsbourger et al., "Kriging is well-suited to parallelize optimization" (2010),
        the kriging believer.
        """
        self._look([self.default, *map(dict, logs), *pending])
        default = self._seen[key_of(self.default)]
        if default is None:
            return None
        self._refill(candidates, count, default.features)
        under_way = {key_of(configuration) for configuration in pending}
        self._waiting = {
            key: c for key, c in self._waiting.items() if key not in logs and key not in under_way
        }
        believed = {key: log for key, log in logs.items() if self._seen[key] is not None}
        expected = [key for key in under_way - logs.keys() if self._seen[key] is not None]
        if expected:
            believed |= zip(
                expected, map(float, self._beliefs(believed, expected).mean), strict=True
            )
        chosen: list[Choice] = []
        while self._waiting and len(chosen) < count:
            waiting = list(self._waiting)
            found = self._beliefs(believed, waiting)
            gains = found.gain(min([0.0, *believed.values()]))
            order = sorted(range(len(waiting)), key=lambda n: -gains[n])
            first = order[0]
            chosen.append(Choice(self._waiting[waiting[first]], float(gains[first])))
            believed[waiting[first]] = float(found.mean[first])
            self._waiting = {
                waiting[n]: self._waiting[waiting[n]] for n in order[1 : _MOST_WAITING + 1]
            }
        return chosen

    def differences(self, configuration: Configuration) -> list[float] | None:
        """What the loops of a configuration do more or less than the default's, in logarithms."""
        self._look([self.default, configuration])
        if None in (self._seen[key_of(self.default)], self._seen[key_of(configuration)]):
            return None
        (row,) = self._differences([key_of(configuration)])
        return [round(float(d), 4) for d in row]

    def _beliefs(self, logs: Mapping[Key, float], others: Sequence[Key]) -> Beliefs:
        learned = sorted(logs, key=logs.__getitem__)[:_MOST_LEARNED]
        return beliefs(
            self.forest,
            self._differences(learned),
            np.array([logs[key] for key in learned]),
            self._differences(others),
        )

    def _refill(self, candidates: Iterable[Configuration], count: int, default: Features) -> None:
        """Adds candidates that can be made and may win, and are no others by another name."""
        wanted = max(_FRESH * count, _FEWEST_WAITING - len(self._waiting))
        unseen = itertools.islice(candidates, _LOOKS * wanted)
        while wanted > 0 and (some := list(itertools.islice(unseen, wanted))):
            fresh = {key: c for c in some if (key := key_of(c)) not in self._seen}
            self._look(list(fresh.values()))
            for key, configuration in fresh.items():
                found = self._seen[key]
                if (
                    found is not None
                    and self._first[found.digest] == key
                    and may_win(self.target, found.features, default)
                ):
                    self._waiting[key] = configuration
                    wanted -= 1

    def _look(self, configurations: Sequence[Configuration]) -> None:
        """Has the descriptions of these."""
        unseen = {key: c for c in configurations if (key := key_of(c)) not in self._seen}
        if not unseen:
            return
        for key, found in zip(unseen, self.describe(list(unseen.values())), strict=True):
            self._seen[key] = found
            if found is not None:
                self._first.setdefault(found.digest, key)

    def _differences(self, keys: Sequence[Key]) -> np.ndarray:
        default, *rows = (self._seen[key].features.vector for key in (key_of(self.default), *keys))
        return np.array(rows).reshape(len(rows), len(default)) - default


def may_win(target: CpuTarget, features: Features, default: Features) -> bool:
    """Whether a candidate is worth being compiled, as far as its loops and the default's tell."""
    return (
        features.cycles <= _MOST_CYCLES * default.cycles
        and features.spilled <= max(_MOST_SPILLED * target.registers, default.spilled)
        and features.written <= max(_MOST_WRITTEN, default.written)
    )
