"""How much the cost model helps the search for schedules, on kernels that it was not trained on.

    python scripts/search_model.py collect trials.jsonl CASE...    # times schedules
    python scripts/search_model.py evaluate trials.jsonl...        # simulates searches among them
    python scripts/search_model.py train model.npz trials.jsonl... # what all of them teach

The cases are those of the benchmarks; of each, the costliest kernel that can be timed on made-up
operands. Half of the schedules are drawn at random, half are neighbours of the fastest, but for
those that are not worth being compiled; a kernel whose line is in the file is left out. What was
collected stands for the machine in simulated searches: nothing is timed again. Searches are among
the schedules of the first file; of each kernel the model is taught by all others, of the other
files as well.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import spearmanr

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.compiler import clusters_of
from hlo_mlc.interop import compat
from hlo_mlc.interop.cluster_programs import cluster_operands, in_memory, original_program
from hlo_mlc.reporting import is_data_dependent
from hlo_mlc.runtime import library
from hlo_mlc.support.errors import MlcError, TuningError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import host
from hlo_mlc.tuning import model
from hlo_mlc.tuning.features import NAMES, Description, description_of
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.messages import Build, Built, Failed, Task, Timed
from hlo_mlc.tuning.model import Forest
from hlo_mlc.tuning.pool import Pool, may_win
from hlo_mlc.tuning.space import Configuration, Key, Space, key_of
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc.tuning.workers import helpers
from hlo_mlc_bench.cases import BY_NAME
from hlo_mlc_bench.script import arguments
from hlo_mlc_bench.searches import Timings, timings

TRIALS, TRIAL_S = 96, 0.05  # of each kernel, all of them other code
CONFIRM_S, TIMES, MOST_CONFIRMED = 0.15, 3, 24
MOST_DRAWN = 4 * TRIALS  # with those that have the loops or the code of others, or may not win
PATIENCE = 0.5  # of what is usual: nobody waits for what takes LLVM 15 s
FASTEST = 4  # of which neighbours are drawn
STEPS = (4, 8, 16, 32, 64)  # after how many trials searches are looked at
SHUFFLES, SEEDS = 20, 2  # of any order, and of candidates in front of a model
WORTH_IT = 0.03  # the logarithm from which on there is a gain to have a share of


@dataclass(frozen=True, slots=True)
class Collected:
    """The schedules of one kernel that were right, the default first: what their loops are like,
    and logarithms of time / the default's."""

    case: str
    configurations: Sequence[Configuration]
    descriptions: Sequence[Description]
    logs: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """What each does differently from the default."""
        vectors = [one.features.vector for one in self.descriptions]
        return np.array([vector - vectors[0] for vector in vectors])

    @property
    def best(self) -> float:
        """What a search that tries all of them finds."""
        return min(0.0, float(self.logs.min()))


def main(arguments: Sequence[str]) -> None:
    """Does what the first argument says with the files that follow."""
    what, path, *others = arguments
    if what == "collect":
        collect(Path(path), others)
    elif what == "train":
        kernels = [kernel for other in others for kernel in collected(Path(other))]
        trained(kernels).save(Path(path))
    else:
        evaluate(
            collected(Path(path)), [kernel for other in others for kernel in collected(Path(other))]
        )


def costliest(case: str) -> Task:
    """The kernel of a case that is predicted to take longest."""
    with BY_NAME[case].in_its_mode():
        return costliest_of(*BY_NAME[case].make())


def costliest_of(function: Callable[..., Any], arguments: Sequence[Any]) -> Task:
    """That of a function of such arguments."""
    options = Options.from_environment()
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    graph, plan = clusters_of(module, options)
    cluster, _ = max(
        (
            pair
            for pair in (*plan.taken, *plan.rejected)
            if not any(map(is_data_dependent, pair[0].kernel.program.steps))
        ),
        key=lambda pair: pair[1].estimate.ours_us,
    )
    operands = cluster_operands(graph, cluster, None, ())
    run = compat.compile_for(original_program(graph, module, cluster))
    expected = tuple(np.asarray(r) for r in run(operands))
    return Task(
        cluster.kernel.program,
        target_of(options),
        TemplateGenerator(),
        in_memory(cluster, cluster.operands, operands),
        in_memory(cluster, cluster.results, expected),
    )


def collect(path: Path, cases: Sequence[str]) -> None:
    """Adds a line for each kernel, with the time of each schedule / that of the default."""
    library.register_with_jax()
    done = {found.case for found in timings(path)}
    with helpers() as others:
        for case in cases:
            if case in done:
                continue
            task = costliest(case)
            space = task.generator.space(task.program, task.target)
            try:
                with Supervisor(task, PATIENCE, others) as supervisor:
                    ratios = ratios_of(task, space, supervisor)
            except TuningError as error:
                print(f"{case}: {error}")
                continue
            with path.open("a") as file:
                file.write(Timings(case, task.target.cpu, space, ratios).line())


def ratios_of(task: Task, space: Space, supervisor: Supervisor) -> dict[Key, float | None]:
    """The time of schedules of a kernel / that of the default, None for what fails: some are built
    at the same time, then timed one after the other."""
    ratios: dict[Key, float | None] = {}
    codes = set[str]()
    candidates = _candidates(task, space, ratios)
    while len(ratios) < TRIALS and (some := list(islice(candidates, supervisor.at_once))):
        builds = [Build(space.schedules(one), frozenset(codes)) for one in some]
        for configuration, built in zip(some, supervisor.build(builds), strict=True):
            if isinstance(built, Built):
                if built.digest in codes:
                    continue
                codes.add(built.digest)
            outcome = built if isinstance(built, Failed) else supervisor.measure(built, TRIAL_S)
            ratios[key_of(configuration)] = (
                None if isinstance(outcome, Failed) else round(1 / outcome.speedup, 3)
            )
    confirm(supervisor, space, ratios)
    return ratios


def _candidates(
    task: Task, space: Space, ratios: Mapping[Key, float | None]
) -> Iterator[Configuration]:
    """What is drawn, of equal loops the first, but for what is not worth being compiled."""
    default = _description(task, space, key_of(space.default))
    loops = set[str]()
    for configuration in islice(drawn(space, ratios), MOST_DRAWN):
        look = _description(task, space, key_of(configuration))
        if (
            look is not None
            and look.digest not in loops
            and may_win(task.target, look.features, default.features)
        ):
            loops.add(look.digest)
            yield configuration


def confirm(supervisor: Supervisor, space: Space, ratios: dict[Key, float | None]) -> None:
    """Times those again, and for longer, that look fastest: of so many, the fastest was lucky."""
    sure: set[Key] = set()
    for _ in range(MOST_CONFIRMED):
        right = {key: ratio for key, ratio in ratios.items() if ratio is not None}
        near = heapq.nsmallest(FASTEST, right, key=right.__getitem__)
        key = next((key for key in near if key not in sure), None)
        if key is None:
            return
        (built,) = supervisor.build([Build(space.schedules(dict(key)))])
        times = [supervisor.measure(built, CONFIRM_S) for _ in range(TIMES)]
        speedups = [timed.speedup for timed in times if isinstance(timed, Timed)]
        ratios[key] = round(1 / statistics.median(speedups), 3) if len(speedups) == TIMES else None
        sure.add(key)


def drawn(space: Space, ratios: Mapping[Key, float | None]) -> Iterator[Configuration]:
    """Configurations, each once, the defaults of all templates first: all of a space that has no
    more, else one at random and a neighbour of one of the fastest so far in turns."""
    if space.size <= TRIALS:
        yield from space.all()
        return
    rng, seen = random.Random(0), set[Key]()
    starts = list(space.starts)
    for number in range(100 * TRIALS):
        right = {key: ratio for key, ratio in ratios.items() if ratio is not None}
        near = heapq.nsmallest(FASTEST, right, key=right.__getitem__)
        configuration = (
            starts[number]
            if number < len(starts)
            else space.neighbour(dict(rng.choice(near)), rng)
            if number % 2 and near
            else space.anything(rng)
        )
        if key_of(configuration) not in seen:
            seen.add(key_of(configuration))
            yield configuration


def collected(path: Path) -> list[Collected]:
    """What a file holds, with features as they are computed today, but for schedules of which
    others have the same loops."""
    kernels = []
    for found in timings(path):
        task = costliest(found.case)
        first: dict[str, tuple[Key, Description]] = {}
        for key, ratio in found.ratios.items():
            if ratio is not None and (look := _description(task, found.space, key)) is not None:
                first.setdefault(look.digest, (key, look))
        kernels.append(
            Collected(
                found.case,
                [dict(key) for key, _ in first.values()],
                [look for _, look in first.values()],
                np.log([found.ratios[key] for key, _ in first.values()]),
            )
        )
    return kernels


def _description(task: Task, space: Space, key: Key) -> Description | None:
    """What loops are like; None where today's compiler does not make them."""
    try:
        schedules = space.schedules(dict(key))
        return description_of(
            task.generator.loops(task.program, task.target, schedules), task.target
        )
    except MlcError:
        return None


def trained(kernels: Sequence[Collected]) -> Forest:
    """What these kernels teach."""
    return Forest.trained(
        np.concatenate([k.differences for k in kernels]), np.concatenate([k.logs for k in kernels])
    )


def evaluate(kernels: Sequence[Collected], teaching: Sequence[Collected] = ()) -> None:
    """Prints how well each kernel's schedules are ranked, and found, by a model of the others."""
    found: dict[str, list[list[float]]] = {}
    correlations: dict[str, list[float]] = {"forest": [], "roofline": []}
    for kernel in kernels:
        forest = trained([other for other in (*kernels, *teaching) if other.case != kernel.case])
        predicted = {
            "forest": model.predicted(forest, kernel.differences),
            "roofline": kernel.differences[:, NAMES.index("cycles")],
        }
        for name, values in predicted.items():
            correlations[name].append(float(spearmanr(values, kernel.logs).statistic))
        orders: dict[str, tuple[int, Callable[[int], list[float]]]] = {
            "any order": (SHUFFLES, lambda seed, k=kernel: _shuffled(k, seed)),
            "roofline, no forest": (SEEDS, lambda seed, k=kernel: _searched(k, None, seed)),
            "forest": (SEEDS, lambda seed, k=kernel, f=forest: _searched(k, f, seed)),
        }
        for name, (count, order) in orders.items():
            curves = [order(seed) for seed in range(count)]
            found.setdefault(name, []).append(np.mean(curves, axis=0).tolist())
        print(
            f"{kernel.case:24} {len(kernel.logs):3} schedules, best {math.exp(-kernel.best):.2f}x"
            f", rank correlation {correlations['forest'][-1]:5.2f}"
            f" (roofline {correlations['roofline'][-1]:5.2f})",
            flush=True,
        )
    for name, values in correlations.items():
        print(
            f"{name}: rank correlation {np.median(values):.2f} (median of {len(kernels)} kernels), "
            f"{np.percentile(values, 25):.2f} and {np.percentile(values, 75):.2f} (quartiles)"
        )
    worth = [n for n, kernel in enumerate(kernels) if kernel.best < -WORTH_IT]
    print(
        f"share of the gain after {STEPS} trials, mean of {len(worth)} kernels with one; "
        "how much slower than the best, mean of all"
    )
    for name, curves in found.items():
        shares = [
            np.mean([curves[n][s] / kernels[n].best for n in worth]) for s in range(len(STEPS))
        ]
        left = [
            np.mean([curves[n][s] - k.best for n, k in enumerate(kernels)])
            for s in range(len(STEPS))
        ]
        print(
            f"{name:20} "
            + "  ".join(f"{x:4.0%}" for x in shares)
            + "   "
            + "  ".join(f"{math.expm1(x):5.1%}" for x in left)
        )


def _shuffled(kernel: Collected, seed: int) -> list[float]:
    """The fastest so far after so many trials in any order, the default being the first."""
    order = np.random.default_rng(seed).permutation(np.arange(1, len(kernel.logs)))
    return _fastest(kernel, [0, *order])


def _searched(kernel: Collected, forest: Forest | None, seed: int) -> list[float]:
    """The same in the order of the tuner's pool."""
    number = {key_of(c): n for n, c in enumerate(kernel.configurations)}
    pool = Pool(
        host(),
        kernel.configurations[0],
        lambda some: [kernel.descriptions[number[key_of(one)]] for one in some],
        forest,
    )
    candidates = iter(random.Random(seed).sample(kernel.configurations, len(number)))
    logs = {key_of(kernel.configurations[0]): 0.0}
    while len(logs) < STEPS[-1]:
        choices = pool.choose(logs, candidates)
        if not choices:
            break
        configuration = choices[0].configuration
        logs[key_of(configuration)] = float(kernel.logs[number[key_of(configuration)]])
    return _fastest(kernel, [number[key] for key in logs])


def _fastest(kernel: Collected, order: Sequence[int]) -> list[float]:
    so_far = np.minimum.accumulate(np.minimum(kernel.logs[list(order)], 0))
    return [float(so_far[min(step, len(so_far)) - 1]) for step in STEPS]


if __name__ == "__main__":
    main(arguments(__doc__))
