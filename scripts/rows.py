"""Programs for any number of rows: how many kernels they have, and what those cost.

    python scripts/rows.py [PROGRAM …]

Each is called with 50 numbers of rows: kernels, and the median of first calls beside jax.jit's.
Then for some numbers the time of a call by shared kernels, relative to kernels for that number
alone. All results are compared with jax.jit's.  Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hlo_mlc import compile_stablehlo
from hlo_mlc.interop.module import StablehloFunction

ROWS = -1
SIZES = range(3, 53)
TIMED = (3, 7, 50, 64, 150, 1000)


def layers(x, w, v):
    return jax.nn.softmax(jax.nn.gelu(x @ w) @ v, -1)


def pointwise(x):
    return jnp.tanh(x) * 2 + x * x


def normalized(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bhid,bhjd->bhij", q, k), -1)
    return jnp.einsum("bhij,bhjd->bhid", scores, v)


def convolved(x, kernel):
    return jax.nn.relu(
        lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )


def trained(x, y, w, v):
    def loss(w, v):
        return jnp.mean((jnp.tanh(x @ w) @ v - y) ** 2)

    return jax.value_and_grad(loss, (0, 1))(w, v)


def batch_norm(x, scale):
    mean = x.mean(0)
    variance = ((x - mean) ** 2).mean(0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale, mean, variance


PROGRAMS: dict[str, tuple[Callable, Sequence[tuple[int, ...]]]] = {
    "layers": (layers, [(ROWS, 128), (128, 256), (256, 10)]),
    "product": (jnp.matmul, [(ROWS, 512), (512, 512)]),
    "pointwise": (pointwise, [(ROWS, 300)]),
    "normalized": (normalized, [(ROWS, 300)]),
    "attention": (attention, [(ROWS, 4, 32, 16)] * 3),
    "convolved": (convolved, [(ROWS, 16, 16, 8), (3, 3, 8, 16)]),
    "trained": (trained, [(ROWS, 128), (ROWS, 10), (128, 256), (256, 10)]),
    "batch_norm": (batch_norm, [(ROWS, 300), (300,)]),
}


def main() -> int:
    """Prints a table; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    names = parser.parse_args().programs or [*PROGRAMS]
    if unknown := {*names} - {*PROGRAMS}:
        parser.error(f"there is no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    table = Table(
        "program",
        "kernels",
        "first call",
        "jax.jit's",
        *(f"{rows} rows" for rows in TIMED),
        title=f"{len(SIZES)} numbers of rows",
    )
    wrong = []
    for name in track(names, "programs", transient=True):
        line, is_right = _measured(name)
        table.add_row(name, *line)
        wrong += [] if is_right else [name]
    Console().print(table)
    print("rows: time by kernels for any number / by kernels for this number alone")
    if wrong:
        print(f"wrong results: {', '.join(wrong)}")
    return bool(wrong)


def _measured(name: str) -> tuple[list[str], bool]:
    """A line of the table, and whether all results are right."""
    function, shapes = PROGRAMS[name]
    (rows,) = export.symbolic_shape("rows")
    exported = export.export(jax.jit(function))(
        *(
            jax.ShapeDtypeStruct([rows if d == ROWS else d for d in shape], np.float32)
            for shape in shapes
        )
    )
    shared, plain = compile_stablehlo(exported), jax.jit(function)
    kernels, ours, theirs, is_right = set(), [], [], True
    for size in SIZES:
        args = _arguments(shapes, size)
        began = time.perf_counter()
        results = jax.block_until_ready(shared(*args))
        between = time.perf_counter()
        expected = jax.block_until_ready(plain(*args))
        theirs.append(time.perf_counter() - between)
        ours.append(between - began)
        kernels |= {kernel.id for kernel in shared.report(*args).kernels}
        is_right &= all(
            np.allclose(result, one, 2e-4, 2e-4)
            for result, one in zip(results, jax.tree.leaves(expected), strict=True)
        )
    ratios = [_ratio(exported, shared, _arguments(shapes, size)) for size in TIMED]
    return [
        str(len(kernels)),
        *(f"{statistics.median(s) * 1e3:.0f} ms" for s in (ours, theirs)),
        *(f"{ratio:.2f}" for ratio in ratios),
    ], is_right


def _arguments(shapes: Sequence[tuple[int, ...]], rows: int) -> list[jax.Array]:
    rng = np.random.default_rng(rows)
    return [
        jnp.asarray(rng.standard_normal([rows if d == ROWS else d for d in shape]), np.float32)
        for shape in shapes
    ]


def _ratio(
    exported: export.Exported, shared: StablehloFunction, args: Sequence[jax.Array]
) -> float:
    """Of the least times of both kernels, taken in turns: few calls, or they would be the same."""
    alone = compile_stablehlo(exported)
    times: dict[StablehloFunction, list[float]] = {shared: [], alone: []}
    for _ in range(24):
        for function, known in times.items():
            began = time.perf_counter()
            jax.block_until_ready(function(*args))
            known.append(time.perf_counter() - began)
    return min(times[shared]) / min(times[alone])


if __name__ == "__main__":
    sys.exit(main())
