"""The final of a search: who of the fastest wins, however much single measurements differ.

By how much a candidate is faster than the default differs from one measurement to the next: by less
than a percent on an idle machine, by much more on a busy one. So the finalists are measured in
rounds, in each of which all that may still win have a turn, until it is known who does, or the
rounds are spent. Of those that are equally fast the first wins, and the default before all others:
that is not left to noise.

Source: O. Maron and A. Moore, "Hoeffding Races" (1993), with the deviations that are seen in place
of a bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

EQUALLY_FAST = math.log(1.01)
"""Up to this logarithm of a ratio two are equally fast: what some rounds can tell apart."""

MOST_ROUNDS = 16
"""How often a finalist is measured at most, where nobody has less time."""

_FEWEST_ROUNDS = 3  # from fewer, nobody knows how much measurements differ
_SURE = 2.0  # standard deviations between what is known and what is not
_CLOSE = 0.75 * EQUALLY_FAST  # how well all that are left have to be known
# Standard deviations of a measurement, in logarithms: where nothing is known of them, and at least,
# since a few may agree by chance.
_USUAL_NOISE, _LEAST_NOISE = 0.01, 0.003
# Of normal noise: the standard deviation / the mean one, and that of a median / of a mean. The
# median deviation would not see that every third measurement is far off.
_OF_MEAN_DEVIATION, _OF_MEDIAN = 1.25, 1.25


@dataclass(slots=True)
class Final:
    """By which logarithms each of `count` finalists was faster than the default."""

    count: int
    most_rounds: int = MOST_ROUNDS
    _gains: dict[int, list[float]] = field(init=False)  # of those that may still win

    def __post_init__(self) -> None:
        self._gains = {number: [] for number in range(self.count)}

    def tell(self, number: int, gain: float | None) -> None:
        """One was measured again; None where it failed, and is out."""
        if gain is None:
            del self._gains[number]
        else:
            self._gains[number].append(gain)

    def next_round(self) -> Sequence[int]:
        """Who is to be measured again; nobody once the winner is known, or the rounds are spent."""
        rounds = min(map(len, self._gains.values()), default=0)
        if rounds >= _FEWEST_ROUNDS:
            least = max([0.0, *(self.gain(n) - self._error(n) for n in self._gains)])
            self._gains = {
                n: known
                for n, known in self._gains.items()
                if self.gain(n) + self._error(n) >= least
            }
        if rounds >= self.most_rounds or (rounds >= _FEWEST_ROUNDS and self._is_known()):
            return []
        return list(self._gains)

    def gain(self, number: int) -> float:
        """By which logarithm one is faster than the default, as far as is known."""
        return statistics.median(self._gains[number])

    @property
    def winners(self) -> Sequence[int]:
        """The fastest, and all that are as fast; nobody where the default is, or may be."""
        if not self._gains:
            return []
        best = max(self._gains, key=self.gain)
        if self.gain(best) < max(EQUALLY_FAST, self._error(best)):
            return []
        return [n for n in self._gains if self.gain(n) >= self.gain(best) - EQUALLY_FAST]

    def _is_known(self) -> bool:
        """Whether more rounds would change nothing that matters."""
        errors = [self._error(n) for n in self._gains]
        if max(errors, default=0.0) <= _CLOSE:
            return True
        return len(self._gains) == 1 and self.gain(*self._gains) - errors[0] >= EQUALLY_FAST

    def _error(self, number: int) -> float:
        """How far what is known of one may be off; all are measured as well as each other."""
        apart: list[float] = []
        for known in self._gains.values():
            own = sorted(abs(gain - statistics.median(known)) for gain in known)
            apart += own[len(known) % 2 :]  # of an odd number one is the median itself
        noise = _USUAL_NOISE
        if len(apart) >= _FEWEST_ROUNDS:
            noise = max(_OF_MEAN_DEVIATION * statistics.fmean(apart), _LEAST_NOISE)
        return _SURE * _OF_MEDIAN * noise / math.sqrt(len(self._gains[number]))
