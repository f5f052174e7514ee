"""Compares first calls of long programs with those of jax.jit, and fails where ours take too long.

    python scripts/first_calls.py [KIND …] [--length N …] [--wall] [--second]

Each call is made in a process of its own with an empty cache, or with --second in one that comes
after another with the same cache of ours.  A call of ours may take twice as
long as one of jax.jit, or 1.5 s longer.  What counts is the time of all threads on a CPU, which
other programs of the machine hardly change; with --wall, on an idle machine, time that passes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

# No call of ours may take longer than so many times one of jax.jit and so many seconds more,
# whichever allows more.
TIMES, SECONDS = 2.0, 1.5
LENGTHS = (200, 2000, 10_000)  # operations, about
COSTLY = 2000  # XLA needs minutes for more of most kinds
STATES = 500  # arrays that an optimizer updates, at most: so many leaves has a large model
PATIENCE = 150  # seconds that may pass, after which a call counts as endless: some are, of XLA's


class Program(NamedTuple):
    """A function, and what it is called with."""

    function: Callable
    arguments: tuple


class Seconds(NamedTuple):
    """How long a call took: of all threads on CPUs, and on the wall; and what became of it."""

    cpu: float
    wall: float
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """Programs that differ in their number of operations."""

    program: Callable[[int], Program]
    longest: int = COSTLY


def main() -> int:
    """Prints a line for each call; 1 if one took too long."""
    options = _options()
    if options.child:
        (name,), (length,) = options.kinds, options.length
        print(json.dumps(_first_call(KINDS[name].program(length), options.child)))
        return 0
    print(f"{'program':>12} {'length':>7} {'jax.jit':>9} {'hlo_mlc':>9} {'allowed':>9}  outcome")
    late = 0
    for name in options.kinds or KINDS:
        for length in options.length or (n for n in LENGTHS if n <= KINDS[name].longest):
            theirs = _apart(name, length, "jax.jit")
            ours = _apart(name, length, "hlo_mlc", options.second)
            taken = [s.wall if options.wall else s.cpu for s in (theirs, ours)]
            allowed = max(TIMES * taken[0], taken[0] + SECONDS)
            late += taken[1] > allowed
            verdict = "TOO LONG; " if taken[1] > allowed else ""
            print(
                f"{name:>12} {length:>7} {taken[0]:>7.2f} s {taken[1]:>7.2f} s {allowed:>7.2f} s"
                f"  {verdict}{ours.outcome}",
                flush=True,
            )
    return 1 if late else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="KIND",
        choices=[[], *KINDS],
        help=f"some of {', '.join(KINDS)}; all if none is named",
    )
    parser.add_argument(
        "--length",
        nargs="*",
        type=int,
        metavar="N",
        help=f"operations; {', '.join(map(str, LENGTHS))} if none is given",
    )
    parser.add_argument("--wall", action="store_true", help="judge by the time that passes")
    parser.add_argument(
        "--second", action="store_true", help="our cache has what another process has compiled"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _apart(name: str, length: int, side: str, second: bool = False) -> Seconds:
    """The first call in a process of its own; if it is the `second`, one comes before it."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            for _ in range(1 + second):
                ran = subprocess.run(
                    [sys.executable, __file__, name, f"--length={length}", f"--child={side}"],
                    env={**os.environ, "HLO_MLC_CACHE": cache, "HLO_MLC_ENABLE": "0"},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    timeout=PATIENCE,
                )
        except subprocess.TimeoutExpired:
            return Seconds(math.inf, math.inf, "endless")
    return Seconds(*json.loads(ran.stdout.splitlines()[-1]))


def _first_call(program: Program, side: str) -> Seconds:
    import jax

    if side == "jax.jit":
        function = jax.jit(program.function)
    else:
        from hlo_mlc import mlc_jit

        function = mlc_jit(program.function)
    jax.devices()  # both need the backend, which starts threads
    cpu, wall = time.process_time(), time.perf_counter()
    jax.block_until_ready(function(*program.arguments))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Seconds(cpu, wall, "" if side == "jax.jit" else function.report().headline)


def _numbers(*shape: int) -> object:
    import numpy as np

    count = int(np.prod(shape))
    return (np.arange(1, count + 1, dtype=np.float32) / count - 0.5).reshape(shape)


def elementwise(length: int) -> Program:
    import jax.numpy as jnp

    operations = (jnp.sin, jnp.tanh, jnp.exp2, jnp.abs, jnp.sqrt, jnp.floor, jnp.cos)

    def run(x):
        for n in range(length // 2):
            x = operations[n % 7](x) * (0.9 + n / 2**17)
        return x

    return Program(run, (_numbers(64, 64),))


def reversed_sums(length: int) -> Program:
    import jax.numpy as jnp

    def run(x):
        for _ in range(length // 5):
            x = jnp.sin(x) * 0.9 + x[::-1] * 0.1
        return x

    return Program(run, (_numbers(256),))


def updates(length: int) -> Program:
    def run(x):
        for n in range(length):
            x = x.at[n % 256].set(n * 0.5)
        return x

    return Program(run, (_numbers(256),))


def products(length: int) -> Program:
    def run(x, w):
        for _ in range(length):
            x = x @ w
        return x

    return Program(run, (_numbers(8, 16), _numbers(16, 16)))


def folds(length: int) -> Program:
    def run(x):
        for n in range(length // 4):
            x = x - x.sum(n % 2, keepdims=True) * (0.01 + n / 2**20)
        return x

    return Program(run, (_numbers(16, 32),))


def moves(length: int) -> Program:
    import jax.numpy as jnp

    def run(x):
        x = jnp.cos(x)
        for n in range(length // 3):
            x = x[:, ::-1] if n % 4 == 0 else jnp.roll(x, n % 7 + 1, n % 2)
        return x

    return Program(run, (_numbers(16, 32),))


def mixed(length: int) -> Program:
    import jax.numpy as jnp

    def run(x, w):
        for n in range(length // 10):
            y = jnp.tanh(x @ w * (1 + n / 2**14))
            y = y - y.max(-1, keepdims=True)
            x = jnp.where(y > -1, y, x) + x[:, ::-1] * 0.1
        return x

    return Program(run, (_numbers(8, 16), _numbers(16, 16)))


def random_steps(length: int) -> Program:
    import random

    import jax.numpy as jnp

    steps = (
        lambda a, b, n: jnp.sin(a),
        lambda a, b, n: a * b,
        lambda a, b, n: a + b * (1 + n / 1024),
        lambda a, b, n: jnp.maximum(a, b),
        lambda a, b, n: a[::-1],
        lambda a, b, n: a - a.mean(-1, keepdims=True),
        lambda a, b, n: a / (1 + jnp.abs(a).max()),
        lambda a, b, n: jnp.tanh(a),
        lambda a, b, n: jnp.roll(a, n % 5 + 1, 1),
        lambda a, b, n: a.T.reshape(a.shape) * 0.5,
        lambda a, b, n: jnp.cumsum(a, 1) * 0.1,
    )

    def run(x):
        chosen = random.Random(5)
        values = [x]
        for n in range(length // 2):
            other = values[max(0, len(values) - 1 - chosen.randrange(6))]
            values.append(chosen.choice(steps)(values[-1], other, n))
        return values[-1], sum(values[-5:])

    return Program(run, (_numbers(8, 16),))


def network(length: int) -> Program:
    import jax.numpy as jnp

    def run(x, w, h):
        for n in range(length // 5):
            h = jnp.tanh(x[n % 16] @ w + h @ w)
        return h

    return Program(run, (_numbers(16, 4, 16), _numbers(16, 16), _numbers(4, 16)))


def optimizer(length: int) -> Program:
    import jax.numpy as jnp

    def run(parameters, gradients, means, squares):
        means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
        squares = [0.999 * s + 0.001 * g * g for s, g in zip(squares, gradients, strict=True)]
        moved = [
            p - 0.01 * m / (jnp.sqrt(s) + 1e-8)
            for p, m, s in zip(parameters, means, squares, strict=True)
        ]
        return moved, means, squares

    tree = [_numbers(8 + n % 13, 16) for n in range(min(STATES, max(1, length // 12)))]
    return Program(run, (tree, tree, tree, [abs(leaf) for leaf in tree]))


def scalars(length: int) -> Program:
    import jax.numpy as jnp

    def run(*values):
        values = list(values)
        for n in range(length):
            a, b = values[n % 7], values[(3 * n + 1) % 7]
            values[n % 7] = a * b if n % 2 else jnp.minimum(a, b)
        return values

    return Program(run, tuple(_numbers(7)))


def results(length: int) -> Program:
    import jax.numpy as jnp

    def run(x):
        return [x * n + jnp.sin(x) for n in range(min(length // 2, 1000))]

    return Program(run, (_numbers(33),))


KINDS = {
    "elementwise": Kind(elementwise, 10_000),
    "reversed": Kind(reversed_sums),
    "updates": Kind(updates),
    "products": Kind(products, 10_000),
    "folds": Kind(folds),
    "moves": Kind(moves),
    "mixed": Kind(mixed),
    "random": Kind(random_steps),
    "network": Kind(network),
    "optimizer": Kind(optimizer, 10_000),
    "scalars": Kind(scalars, 10_000),
    "results": Kind(results),
}

if __name__ == "__main__":
    sys.exit(main())
