"""Whether schedules that are derived by rule beat our templates, with as many trials for each.

    python scripts/derived.py [--trials 500] [--json found.jsonl] [NAME...]

The nests are folds and maps of all kinds, on made-up values.  Times are ratios to what analysis
chooses, measured in turns with it.  A nest whose line is in the file is left out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from search_model import costliest_of

from hlo_mlc.runtime import library
from hlo_mlc.runtime.records import Schedules, schedules_text
from hlo_mlc.tuning.messages import Task, Timed
from hlo_mlc.tuning.space import Space
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.tuner import Budget, tune_kernel
from hlo_mlc_bench.searches import Derived, keep, known

RULE = "derived"


def _erode(x: jax.Array) -> jax.Array:
    rows, columns = x.shape
    return jnp.stack(
        [x[i : rows - 4 + i, j : columns - 4 + j] for i in range(5) for j in range(5)]
    ).min(0)


def _laplace(x: jax.Array) -> jax.Array:
    inner = x[1:-1, 1:-1, 1:-1]
    return (
        x[2:, 1:-1, 1:-1]
        + x[:-2, 1:-1, 1:-1]
        + x[1:-1, 2:, 1:-1]
        + x[1:-1, :-2, 1:-1]
        + x[1:-1, 1:-1, 2:]
        + x[1:-1, 1:-1, :-2]
        - 6 * inner
    )


# By name: a function, and the shapes of its arguments.
NESTS: dict[str, tuple[Callable[..., Any], *tuple[tuple[int, ...], ...]]] = {
    "min of sums": (lambda x, y: (x[:, :, None] + y).min(1), (256, 256), (256, 256)),
    "reachability": (lambda x, y: ((x > 1)[:, :, None] & (y > 1)).any(1), (300, 300), (300, 300)),
    "gated products": (lambda x, y: jax.nn.relu(x[:, :, None] * y).sum(1), (256, 256), (256, 256)),
    "distances": (lambda x, y: jnp.abs(x[:, None] - y).sum(-1), (500, 64), (600, 64)),
    "long distances": (lambda x, y: jnp.abs(x[:, None] - y).sum(-1), (100, 4000), (100, 4000)),
    "few distances": (lambda x, y: jnp.abs(x[:, None] - y).sum(-1), (6, 512), (900, 512)),
    "density": (lambda x, y: jnp.exp(-((x[:, None] - y) ** 2)).sum(-1), (2000,), (2000,)),
    "three factors": (lambda x, y, z: (x[:, None] * y * z).sum(-1), (300, 100), (300, 100), (100,)),
    "batch of sums": (lambda x: x.sum(1), (64, 40, 500)),
    "rows": (lambda x: jnp.square(x).sum(1), (3000, 300)),
    "few places": (lambda x, y: (x[:, :, None] + y).min(1), (3, 1024), (1024, 1024)),
    "few gates": (lambda x, y: jax.nn.relu(x[:, :, None] * y).sum(1), (2, 512), (512, 2000)),
    "few rows of distances": (lambda x, y: jnp.abs(x[:, None] - y).sum(-1), (3, 256), (2000, 256)),
    "softmax": (jax.nn.softmax, (2000, 500)),
    "erosion": (_erode, (500, 500)),
    "stencil": (_laplace, (100, 100, 100)),
    "outer": (lambda x, y: jnp.tanh(x[:, None] + y), (900,), (900,)),
    "turned": (lambda x, y: x.T * 2 + y, (900, 700), (700, 900)),
}


def main() -> None:
    """Searches for the schedules of all nests, or of those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *NESTS])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    library.register_with_jax()
    done = {found.case for found in known(given.json, Derived)} if given.json else set[str]()
    names = [name for name in given.names or NESTS if name not in done]
    out = Console()
    with Progress(transient=True, console=out) as progress:
        bar = progress.add_task("", total=2 * given.trials * len(names))
        for name in names:
            progress.update(bar, description=name)
            found = compared(name, given.trials, lambda: progress.advance(bar))
            if given.json:
                keep(given.json, found)
            out.print(
                f"{name:16} {found.usual:12} templates {found.templates:5.2f}x, derived "
                f"{found.derived:5.2f}x as fast as the default  {found.schedule}",
                highlight=False,
                soft_wrap=True,
            )


def compared(name: str, trials: int, on_trial: Callable[[], None]) -> Derived:
    """Both searches for one nest."""
    function, *shapes = NESTS[name]
    rng = np.random.default_rng(0)
    task = costliest_of(function, [rng.standard_normal(s, np.float32) for s in shapes])
    space = task.generator.space(task.program, task.target)
    with tempfile.TemporaryDirectory() as folder:
        (templates, _), (derived, schedules) = (
            _searched(task, _only(space, side), trials, Path(folder, f"{name}{side}.log"), on_trial)
            for side in (False, True)
        )
    return Derived(
        name,
        task.target.cpu,
        space.choices[0].templates[0] if space.choices else "its only template",
        trials,
        round(templates, 3),
        round(derived, 3),
        "; ".join(schedules_text(schedules)),
    )


def _only(space: Space, derived: bool) -> Space:
    """The part of a space that holds derived schedules, or no such."""
    choices = (
        replace(c, templates=tuple(t for t in c.templates if (t == RULE) == derived))
        for c in space.choices
    )
    return Space(
        tuple(p for p in space.parameters if (p.template == RULE) == derived),
        tuple(c for c in choices if c.templates),
    )


def _searched(
    task: Task, space: Space, trials: int, journal: Path, on_trial: Callable[[], None]
) -> tuple[float, Schedules]:
    """How many times as fast as what analysis says the fastest schedule of a space is, and that
    schedule; 1 and none where that is what analysis says."""
    if not space.parameters:
        return 1.0, {}
    study = KernelStudy(open_storage(journal), journal.stem, space)
    winner = tune_kernel(task, study, space, Budget(trials=trials), on_trial=lambda *_: on_trial())
    if winner.schedules:
        return winner.measured.speedup, winner.schedules
    timed = (t.outcome.speedup for t in study.tried if isinstance(t.outcome, Timed))
    return min(1.0, max(timed, default=0.0)), {}


if __name__ == "__main__":
    main()
