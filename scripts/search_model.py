"""How much the cost model helps the search for schedules, on kernels that it was not trained on.

    python scripts/search_model.py collect trials.jsonl CASE...    # times schedules at random
    python scripts/search_model.py evaluate trials.jsonl           # simulates searches among them

The cases are those of the benchmarks; of each, the costliest kernel that can be timed on made-up
operands. What was collected stands for the machine in simulated searches: nothing is timed again.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import spearmanr

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.compiler import clusters_of, is_data_dependent
from hlo_mlc.interop import compat
from hlo_mlc.interop.cluster_programs import cluster_operands, in_memory, original_program
from hlo_mlc.runtime import library
from hlo_mlc.support.errors import TuningError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import host
from hlo_mlc.tuning import model
from hlo_mlc.tuning.features import NAMES, Description, Features, features_of
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.messages import Build, Failed, Task
from hlo_mlc.tuning.model import Forest
from hlo_mlc.tuning.pool import Pool
from hlo_mlc.tuning.space import Configuration, Key, Space, key_of
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc_bench.cases import BY_NAME

TRIALS, TRIAL_S = 50, 0.05  # of each kernel
STEPS = (4, 8, 16, 32)  # after how many trials searches are looked at
SHUFFLES = 20
WORTH_IT = 0.03  # the logarithm from which on there is a gain to have a share of


@dataclass(frozen=True, slots=True)
class Collected:
    """The schedules of one kernel that were right, the default first: what their loops are like,
    and logarithms of time / the default's."""

    case: str
    configurations: Sequence[Configuration]
    features: Sequence[Features]
    logs: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """What each does differently from the default."""
        return np.array([f.vector - self.features[0].vector for f in self.features])

    @property
    def best(self) -> float:
        """What a search that tries all of them finds."""
        return min(0.0, float(self.logs.min()))


def main(arguments: Sequence[str]) -> None:
    """Does what the first argument says with the file that is the second."""
    what, path, *cases = arguments
    if what == "collect":
        collect(Path(path), cases)
    else:
        evaluate(collected(Path(path)))


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
    run = compat.compile_for_cpu(original_program(graph, module, cluster))
    expected = tuple(np.asarray(r) for r in run(operands))
    return Task(
        cluster.kernel.program,
        target_of(options),
        TemplateGenerator(),
        in_memory(cluster, cluster.operands, operands),
        in_memory(cluster, cluster.results, expected),
    )


def collect(path: Path, cases: Sequence[str]) -> None:
    """Adds a line for each schedule that was timed."""
    library.register_with_jax()
    with path.open("a") as file:
        for case in cases:
            task = costliest(case)
            space = task.generator.space(task.program, task.target)
            try:
                with Supervisor(task) as supervisor:
                    for configuration in itertools.islice(at_random(space), TRIALS):
                        ratio = _timed(supervisor, space, configuration)
                        line = {"case": case, "configuration": configuration, "ratio": ratio}
                        file.write(json.dumps(line) + "\n")
            except TuningError as error:
                print(f"{case}: {error}")


def at_random(space: Space) -> Iterator[Configuration]:
    """Configurations, each once, the defaults of all templates first."""
    rng, seen = random.Random(0), set[Key]()
    anything = (space.anything(rng) for _ in range(100 * TRIALS))
    for configuration in itertools.chain(space.starts, anything):
        if key_of(configuration) not in seen:
            seen.add(key_of(configuration))
            yield configuration


def _timed(supervisor: Supervisor, space: Space, configuration: Configuration) -> float | None:
    """The time of a schedule / the default's; None for one that fails."""
    (built,) = supervisor.build([Build(space.schedules(configuration))])
    if isinstance(built, Failed):
        return None
    timed = supervisor.measure(built, TRIAL_S)
    return None if isinstance(timed, Failed) else 1 / timed.speedup


def collected(path: Path) -> list[Collected]:
    """What a file holds, with features as they are computed today."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kernels = []
    for case, rows in itertools.groupby(lines, key=lambda line: line["case"]):
        task = costliest(case)
        space = task.generator.space(task.program, task.target)
        right = [row for row in rows if row["ratio"] is not None]
        features = [
            features_of(
                task.generator.loops(
                    task.program, task.target, space.schedules(row["configuration"])
                ),
                task.target,
            )
            for row in right
        ]
        kernels.append(
            Collected(
                case,
                [row["configuration"] for row in right],
                features,
                np.log([row["ratio"] for row in right]),
            )
        )
    return kernels


def trained(kernels: Sequence[Collected]) -> Forest:
    """What these kernels teach."""
    return Forest.trained(
        np.concatenate([k.differences for k in kernels]), np.concatenate([k.logs for k in kernels])
    )


def evaluate(kernels: Sequence[Collected]) -> None:
    """Prints how well each kernel's schedules are ranked, and found, by a model of the others."""
    found: dict[str, list[list[float]]] = {}
    correlations: dict[str, list[float]] = {"forest": [], "roofline": []}
    for kernel in kernels:
        forest = trained([other for other in kernels if other is not kernel])
        predicted = {
            "forest": model.predicted(forest, kernel.differences),
            "roofline": kernel.differences[:, NAMES.index("cycles")],
        }
        for name, values in predicted.items():
            correlations[name].append(float(spearmanr(values, kernel.logs).statistic))
        orders: dict[str, Callable[[int], list[float]]] = {
            "any order": lambda seed, k=kernel: _shuffled(k, seed),
            "roofline, no forest": lambda _, k=kernel: _searched(k, None),
            "forest": lambda _, k=kernel, f=forest: _searched(k, f),
        }
        for name, order in orders.items():
            runs = range(SHUFFLES if name == "any order" else 1)
            found.setdefault(name, []).append(np.mean([order(n) for n in runs], axis=0).tolist())
        print(
            f"{kernel.case:24} {len(kernel.logs):3} schedules, best {math.exp(-kernel.best):.2f}x"
            f", rank correlation {correlations['forest'][-1]:5.2f}"
            f" (roofline {correlations['roofline'][-1]:5.2f})"
        )
    for name, values in correlations.items():
        print(f"{name}: median rank correlation {np.median(values):.2f} of {len(kernels)} kernels")
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


def _searched(kernel: Collected, forest: Forest | None) -> list[float]:
    """The same in the order of the tuner's pool."""
    number = {key_of(c): n for n, c in enumerate(kernel.configurations)}
    pool = Pool(
        host(),
        kernel.configurations[0],
        lambda some: [Description(kernel.features[number[key_of(one)]], str(one)) for one in some],
        forest,
    )
    candidates = iter(random.Random(0).sample(kernel.configurations, len(number)))
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
    main(sys.argv[1:])
