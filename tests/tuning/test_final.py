"""Who wins a final: the same again and again, on machines that measure badly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from hlo_mlc.tuning.final import EQUALLY_FAST, MOST_ROUNDS, Final

TIMES = 200
WITHIN = math.log(1.02)  # what winners of the same final may be apart

Noise = Callable[[random.Random], float]
"""What a measurement is off by, a logarithm."""


def idle(rng: random.Random) -> float:
    return rng.gauss(0, 0.004)


def usual(rng: random.Random) -> float:
    """One in ten is far off."""
    return rng.gauss(0, 0.01 if rng.random() < 0.9 else 0.06)


def busy(rng: random.Random) -> float:
    """In a third of them others had a part of the time."""
    return rng.gauss(0, 0.015) + (rng.gauss(0, 0.15) if rng.random() < 1 / 3 else 0)


def winner(gains: Sequence[float], noise: Noise, seed: int, **options: int) -> tuple[int, int]:
    """Who wins among finalists that are faster than the default by these logarithms (-1: the
    default does), and how many measurements that took."""
    rng, final, count = random.Random(seed), Final(len(gains), **options), 0
    while left := final.next_round():
        for number in left:
            final.tell(number, gains[number] + noise(rng))
            count += 1
    return min(final.winners, default=-1), count


@pytest.mark.parametrize("noise", [idle, usual, busy])
@pytest.mark.parametrize(
    "gains",
    [
        (0.3,),
        (0.001, 0.05, 0.048, 0.02),
        (0.015, 0.0, -0.03),
        (0.02, 0.022, 0.021, 0.02, 0.019, 0.018),
        (0.6, 0.59, 0.5),
        (-0.01, -0.02, 0.0),
    ],
)
def test_winners_are_near_each_other(gains: tuple[float, ...], noise: Noise) -> None:
    found = [(*gains, 0.0)[winner(gains, noise, seed)[0]] for seed in range(TIMES)]
    best = max(0.0, *gains)
    # Where little is sure, some keep to the default.
    allowed, times = (2 * WITHIN, TIMES // 10) if noise is busy else (WITHIN, 0)
    assert sum(best - gain > allowed for gain in found) <= times


@pytest.mark.parametrize("noise", [idle, usual, busy])
def test_what_is_no_faster_than_the_default_does_not_win(noise: Noise) -> None:
    won = sum(winner((0.0, -0.005, 0.0, 0.0), noise, seed)[0] >= 0 for seed in range(TIMES))
    assert won <= TIMES // 40


def test_of_equally_fast_ones_the_first_wins() -> None:
    found = [winner((0.1, 0.102, 0.098, 0.101), idle, seed)[0] for seed in range(TIMES)]
    assert found.count(0) > 0.95 * TIMES


def test_what_is_clear_takes_few_rounds() -> None:
    assert max(winner((0.2, 0.1, -0.1, 0.02), idle, seed)[1] for seed in range(TIMES)) <= 12
    counts = [winner((0.1, 0.09, 0.0), busy, seed)[1] for seed in range(TIMES)]
    assert max(counts) <= 3 * MOST_ROUNDS
    assert sum(counts) > TIMES * 12, "where little is sure, more is measured"


def test_what_fails_is_out() -> None:
    final = Final(2)
    assert final.next_round() == [0, 1]
    final.tell(0, None)
    final.tell(1, 0.1)
    while left := final.next_round():
        assert left == [1]
        final.tell(1, 0.1)
    assert final.winners == [1] and final.gain(1) == 0.1
    final.tell(1, None)
    assert not final.winners and not final.next_round()


def test_without_finalists_the_default_wins() -> None:
    assert not Final(0).next_round() and not Final(0).winners


def test_one_round_has_to_be_clear() -> None:
    for gain, wins in ((2 * EQUALLY_FAST, False), (5 * EQUALLY_FAST, True)):
        final = Final(1, most_rounds=1)
        assert final.next_round() == [0]
        final.tell(0, gain)
        assert not final.next_round()
        assert bool(final.winners) == wins
