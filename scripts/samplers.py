"""Which sampler finds fast schedules in the fewest trials, in spaces of which everything is known.

    python scripts/samplers.py record spaces.jsonl CASE...    # times all schedules of each kernel
    python scripts/samplers.py replay spaces.jsonl [NAME...]  # searches among them, untimed
    python scripts/samplers.py again spaces.jsonl [CASE...]   # tunings, measured badly, untimed

The cases are those of the benchmarks; of each, the costliest kernel that can be timed on made-up
operands. Of large spaces, every other value of the parameters with the most is left out until at
most `MOST` configurations are left. What was recorded stands for the machine, so what replays find
depends on no clock: `bench/results/search_spaces.jsonl` was, on two cores of a Zen 4 that others
used, too. No search is told of the default schedule, which is the fastest of many kernels
and the first trial of every tuning: what it finds is compared with the fastest there is.

Optuna's GPSampler takes torch, its CmaEsSampler cmaes; without them they are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import optuna
from rich.progress import track
from search_model import costliest

from hlo_mlc.interop.tuning_session import LEAST_GAIN
from hlo_mlc.runtime import library
from hlo_mlc.support.errors import MlcError, TuningError
from hlo_mlc.target.cpu import host
from hlo_mlc.tuning.features import Description, description_of
from hlo_mlc.tuning.final import Final
from hlo_mlc.tuning.messages import Build, Failed, Timed
from hlo_mlc.tuning.model import WORST
from hlo_mlc.tuning.placed import Placed
from hlo_mlc.tuning.pool import Pool
from hlo_mlc.tuning.space import Configuration, Key, Space, key_of
from hlo_mlc.tuning.study import KernelStudy, quiet
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc.tuning.tuner import finalists_of
from hlo_mlc_bench.script import arguments
from hlo_mlc_bench.searches import SHORT, Timings, timings

MOST = 500
TRIAL_S = 0.05
STEPS = (4, 8, 16, 32)  # after how many trials searches are looked at
SEEDS = 4
AT_RANDOM = 4  # trials before the process over parameters is asked
REPEATS = 8  # of what is known that a sampler may propose before one at random is taken


TUNINGS, WITHIN = 10, math.log(1.02)
# What measurements are off by, standard deviations of logarithms, and the share of those that are
# off by more, since others used the machine.
NOISE, SPELL_NOISE, SPELLS = 0.01, 0.06, 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A kernel whose space is known: logarithms of time / the default's, `WORST` for what fails."""

    case: str
    space: Space
    logs: Mapping[Key, float]

    @property
    def best(self) -> float:
        """That of the fastest schedule."""
        return min(self.logs.values())


def main(arguments: Sequence[str]) -> None:
    """Does what the first argument says with the file that is the second."""
    what, path, *cases = arguments
    if what == "record":
        record(Path(path), cases)
    elif what == "again":
        again([one for one in recorded(Path(path)) if not cases or one.case in cases])
    else:
        replay(
            recorded(Path(path)),
            [name for name in searches() if not cases or any(part in name for part in cases)],
        )


def thinned(space: Space) -> Space:
    """A part of the space with at most `MOST` configurations, the default among them."""
    while space.size > MOST:
        widest = max(space.parameters, key=lambda p: len(p.values))
        usual = widest.values.index(widest.default)
        values = tuple(v for n, v in enumerate(widest.values) if (n - usual) % 2 == 0)
        space = dataclasses.replace(
            space,
            parameters=tuple(
                dataclasses.replace(p, values=values) if p is widest else p
                for p in space.parameters
            ),
        )
    return dataclasses.replace(
        space, parameters=tuple(p for p in space.parameters if len(p.values) > 1)
    )


def record(path: Path, cases: Sequence[str]) -> None:
    """Adds a line for each kernel: its space, and the times of all its configurations / that of the
    default, null for what fails."""
    library.register_with_jax()
    for case in cases:
        task = costliest(case)
        space = thinned(task.generator.space(task.program, task.target))
        ratios: list[float | None] = []
        known: dict[str, float | None] = {}
        try:
            with Supervisor(task) as supervisor:
                for configuration in track(list(space.all()), case):
                    (built,) = supervisor.build([Build(space.schedules(configuration))])
                    if isinstance(built, Failed):
                        ratios.append(None)
                        continue
                    if built.digest not in known:
                        timed = supervisor.measure(built, TRIAL_S)
                        known[built.digest] = (
                            None if isinstance(timed, Failed) else round(1 / timed.speedup, 3)
                        )
                    ratios.append(known[built.digest])
        except TuningError as error:
            print(f"{case}: {error}")
            continue
        found = Timings(
            case, task.target.cpu, space, dict(zip(map(key_of, space.all()), ratios, strict=True))
        )
        with path.open("a") as file:
            file.write(found.line())


def recorded(path: Path) -> list[Recorded]:
    """What a file holds."""
    return [
        Recorded(
            found.case,
            found.space,
            {
                key: WORST if ratio is None else min(math.log(ratio), WORST)
                for key, ratio in found.ratios.items()
            },
        )
        for found in timings(path)
    ]


Search = Callable[[Recorded, int], Iterator[float]]
"""The logarithms that a search comes upon, one for each trial, with a seed."""


def in_order(kernel: Recorded, seed: int) -> Iterator[float]:
    """One configuration after the other, as they are listed."""
    return itertools.islice(kernel.logs.values(), 1, None)


def at_random(kernel: Recorded, seed: int) -> Iterator[float]:
    """Configurations at random, each once."""
    logs = list(kernel.logs.values())[1:]
    random.Random(seed).shuffle(logs)
    return iter(logs)


def sampled(
    make: Callable[[int], optuna.samplers.BaseSampler], numbers: bool, flat: bool = False
) -> Search:
    """What a sampler of Optuna's proposes. It sees parameters as `numbers`, the positions of their
    values, or as so many categories; `flat`: all parameters at a time, also those of templates that
    are not chosen."""

    def search(kernel: Recorded, seed: int) -> Iterator[float]:
        with quiet():
            study = optuna.create_study(sampler=make(seed))
        rng, space = random.Random(seed), kernel.space
        seen = {key_of(space.default)}
        while len(seen) < len(kernel.logs):
            for _ in range(REPEATS):
                with quiet():
                    trial = study.ask()
                    drawn = _drawn(trial, space, numbers, flat)
                    study.tell(trial, kernel.logs[key_of(drawn)])
                if key_of(drawn) not in seen:
                    break
            else:
                left = [key for key in kernel.logs if key not in seen]
                drawn = dict(rng.choice(left))
            seen.add(key_of(drawn))
            yield kernel.logs[key_of(drawn)]

    return search


def _drawn(trial: optuna.Trial, space: Space, numbers: bool, flat: bool) -> Configuration:
    def one(name: str, values: Sequence[int | str]) -> int | str:
        if numbers:
            return values[trial.suggest_int(name, 0, len(values) - 1)]
        return trial.suggest_categorical(name, values)

    drawn = {choice.name: one(choice.name, choice.templates) for choice in space.choices}
    every = {
        p.name: one(p.name, p.values) for p in (space.parameters if flat else space.active(drawn))
    }
    return drawn | {p.name: every[p.name] for p in space.active(drawn)}


def placed(kernel: Recorded, seed: int) -> Iterator[float]:
    """What the tuner tries in small spaces where it knows nothing of loops."""
    points, rng, default = Placed(kernel.space), random.Random(seed), key_of(kernel.space.default)
    logs: dict[Key, float] = {}
    left = set(kernel.logs) - {default}
    while left:
        key = rng.choice(sorted(left))
        if len(logs) >= AT_RANDOM:
            # The default is no candidate, and nothing is known of it.
            first, *others = points.choose(logs, (), 2)
            key = key_of(first.configuration)
            if key == default:
                key = key_of(others[0].configuration)
        left.remove(key)
        logs[key] = kernel.logs[key]
        yield logs[key]


def pooled(count: int) -> Search:
    """What the tuner tries that looks at the loops of candidates, so many at a time."""

    def search(kernel: Recorded, seed: int) -> Iterator[float]:
        known = described(kernel)
        pool = Pool(host(), kernel.space.default, lambda some: [known[key_of(one)] for one in some])
        study = KernelStudy(optuna.storages.InMemoryStorage(), f"{kernel.case}{seed}", kernel.space)
        while trials := study.batch(count, pool):
            for trial in trials:
                log = kernel.logs[key_of(trial.configuration)]
                study.tell(trial, Timed(1.0, math.exp(log), math.exp(-log)), "")
                if trial.configuration != kernel.space.default:
                    yield log

    return search


@functools.cache
def described(kernel: Recorded) -> dict[Key, Description | None]:
    """What the loops of all configurations are like, as today's compiler makes them."""
    task = costliest(kernel.case)
    found: dict[Key, Description | None] = {}
    for key in kernel.logs:
        try:
            loops = task.generator.loops(
                task.program, task.target, kernel.space.schedules(dict(key))
            )
            found[key] = description_of(loops, task.target)
        except MlcError:
            found[key] = None
    return found


def searches() -> dict[str, Search]:
    """All that are compared."""
    samplers = optuna.samplers

    def tpe(seed: int) -> optuna.samplers.BaseSampler:
        return samplers.TPESampler(seed=seed, multivariate=False)

    def groups(seed: int) -> optuna.samplers.BaseSampler:
        return samplers.TPESampler(seed=seed, multivariate=True, group=True)

    found: dict[str, Search] = {
        "as listed": in_order,
        "at random": at_random,
        "TPE, categories": sampled(tpe, False),
        "TPE, numbers": sampled(tpe, True),
        "TPE in groups, categories": sampled(groups, False),
        "TPE in groups, numbers": sampled(groups, True),
    }
    if find_spec("torch"):
        found["GP, numbers"] = sampled(
            lambda seed: samplers.GPSampler(seed=seed, deterministic_objective=True),
            True,
            flat=True,
        )
    if find_spec("cmaes"):
        found["CMA-ES, numbers"] = sampled(
            lambda seed: samplers.CmaEsSampler(seed=seed), True, flat=True
        )
    found["process over parameters"] = placed
    return found | {f"features, {count} at a time": pooled(count) for count in (1, 2, 4, 8)}


def replay(kernels: Sequence[Recorded], names: Sequence[str]) -> None:
    """Prints how much slower than the fastest schedule the fastest found is, after so many trials:
    of each search the geometric mean of kernels and seeds, and each kernel's after 16 and 32."""
    curves: dict[str, np.ndarray] = {}
    for name in names:
        curves[name] = rows = _curves(searches()[name], kernels)
        print(
            f"{name:28}" + "".join(f"{math.expm1(x):8.1%}" for x in rows.mean((0, 1))), flush=True
        )
    for number, kernel in enumerate(kernels):
        print(
            f"{kernel.case} ({kernel.space.size} schedules, best "
            f"{math.exp(-kernel.best):.2f}x the default's speed), after 16 and 32 trials:"
        )
        for name, rows in curves.items():
            at16, at32 = rows[number].mean(0)[[2, 3]]
            print(f"    {name:28}{math.expm1(at16):8.1%}{math.expm1(at32):8.1%}")


def _curves(search: Search, kernels: Sequence[Recorded]) -> np.ndarray:
    """By kernel, seed and step: the logarithm of what a search has found / of the fastest."""
    result = np.zeros((len(kernels), SEEDS, len(STEPS)))
    for number, kernel in enumerate(kernels):
        for seed in range(SEEDS):
            found = list(itertools.islice(search(kernel, seed), STEPS[-1]))
            so_far = np.minimum.accumulate(found)
            result[number, seed] = [so_far[min(step, len(so_far)) - 1] for step in STEPS]
        result[number] -= min(
            log for key, log in kernel.logs.items() if key != key_of(kernel.space.default)
        )
    return result


def again(kernels: Sequence[Recorded]) -> None:
    """Prints how far apart the winners of tunings of each kernel are, in which every measurement is
    off by some noise."""
    near = 0
    for kernel in kernels:
        gains = sorted(_tuned(kernel, random.Random(seed)) for seed in range(TUNINGS))
        near += gains[-1] - gains[0] <= WITHIN
        print(f"{kernel.case:24}" + "".join(f"{math.exp(gain):7.3f}" for gain in gains), flush=True)
    print(f"winners are within {math.expm1(WITHIN):.0%} in {near} of {len(kernels)}")


def _tuned(kernel: Recorded, rng: random.Random) -> float:
    """By which logarithm the winner of a tuning is faster than the default."""

    def measured(configuration: Configuration) -> float:
        noise = rng.gauss(0, NOISE if rng.random() >= SPELLS else SPELL_NOISE)
        return noise - kernel.logs[key_of(configuration)]

    known, space = described(kernel), kernel.space
    pool = Pool(host(), space.default, lambda some: [known[key_of(one)] for one in some])
    study = KernelStudy(optuna.storages.InMemoryStorage(), kernel.case, space)
    while len(study.tried) < SHORT and (trials := study.batch(2, pool, LEAST_GAIN)):
        for trial in trials:
            gain = measured(trial.configuration)
            is_right = kernel.logs[key_of(trial.configuration)] < WORST
            outcome = Timed(1.0, math.exp(-gain), math.exp(gain)) if is_right else Failed("slow")
            study.tell(trial, outcome, repr(key_of(trial.configuration)))
    finalists = finalists_of(study.tried, space)
    final = Final(len(finalists))
    while left := final.next_round():
        for number in left:
            final.tell(number, measured(finalists[number]))
    winners = [finalists[number] for number in final.winners]
    return -kernel.logs[key_of(min(winners, default=space.default, key=key_of))]


if __name__ == "__main__":
    main(arguments(__doc__))
