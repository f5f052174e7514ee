"""What a run of the benchmarks leaves: rows, and where they were measured, as a JSON file."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget, model_name, named
from hlo_mlc.target.rates import Rates

SCHEMA = 1

FIRST_CALL_FACTOR = 2.0
FIRST_CALL_EXTRA_S = 0.06
"""A first call may take the factor times that of jax.jit, or so much more, whichever is longer."""

MEMORY_FACTOR = 1.05
MEMORY_EXTRA_BYTES = 8 << 20
"""A call may need the factor times the memory that jax.jit's needs, and so much more."""

_PACKAGES = ("hlo-mlc", "jax", "jaxlib", "numpy", "llvmlite", "optuna")
_WIDEST = 64  # bytes of a vector
# What holds XLA and its libraries to a narrower CPU; none of them listens to another's.
_HOLDING = ("XLA_FLAGS", "ONEDNN_MAX_CPU_ISA")
# What has to agree for rows of two runs to stand in one table, and what those mean that are silent.
_COMPARABLE: Mapping[str, Any] = {
    "cpu": None,
    "cores": None,
    "target": "cpu",
    "variables": {},
    "python": None,
    "packages": None,
    "choose": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured of one case: times of one call, `ratio` = jax.jit / hlo_mlc, and errors.

    `status` is "right", "wrong" (a result is, so nothing was timed) or "failed" (it raised);
    `message` says why. `share` is the part of the run time that is spent in our kernels;
    `predicted_*` is what the cost model expected, unless it does not model a part of the case
    or cannot know how often a loop runs. `*_memory_bytes` is what a call needs at once, arguments
    and results included.
    """

    name: str
    group: str
    status: str
    message: str = ""
    figure: float | None = None
    jax_ms: float | None = None
    jax_spread_ms: float | None = None
    ours_ms: float | None = None
    ours_spread_ms: float | None = None
    ratio: float | None = None
    ratio_spread: float | None = None
    jax_error: float | None = None
    ours_error: float | None = None
    allowed_error: float | None = None
    clusters: int | None = None
    coverage: float | None = None
    share: float | None = None
    jax_first_call_s: float | None = None
    ours_first_call_s: float | None = None
    jax_memory_bytes: int | None = None
    ours_memory_bytes: int | None = None
    predicted_jax_ms: float | None = None
    predicted_ours_ms: float | None = None

    @property
    def misses_figure(self) -> bool:
        """Whether the ratio is below what it should be."""
        return self.ratio is not None and self.figure is not None and self.ratio < self.figure

    @property
    def misses_first_call(self) -> bool:
        """Whether our first call takes longer than it may."""
        if self.ours_first_call_s is None or self.jax_first_call_s is None:
            return False
        limit = max(
            FIRST_CALL_FACTOR * self.jax_first_call_s, self.jax_first_call_s + FIRST_CALL_EXTRA_S
        )
        return self.ours_first_call_s > limit

    @property
    def misses_memory(self) -> bool:
        """Whether our call needs more memory than it may."""
        if self.ours_memory_bytes is None or self.jax_memory_bytes is None:
            return False
        return self.ours_memory_bytes > MEMORY_FACTOR * self.jax_memory_bytes + MEMORY_EXTRA_BYTES


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of a run, in the order measured, and the environment they were measured in."""

    environment: Mapping[str, Any]
    rows: tuple[Row, ...] = ()

    def with_row(self, row: Row) -> Results:
        """These results with one more row, in place of an older one of the same name."""
        kept = tuple(old for old in self.rows if old.name != row.name)
        return dataclasses.replace(self, rows=(*kept, row))

    def measured_on(self, target: CpuTarget) -> Results:
        """These results with the CPU that they are of, and its rates."""
        machine = {**dataclasses.asdict(target), "rates": dataclasses.asdict(target.rates)}
        return dataclasses.replace(self, environment={**self.environment, "machine": machine})

    @property
    def machine(self) -> CpuTarget | None:
        """The CPU that they are of, with the rates that it had then or, if nobody measured them,
        such as are typical of it; None where that is not said.  What else is not said is as with
        others that have such vectors."""
        said = self.environment.get("machine")
        if said is None:
            return None
        given = {**said, "rates": Rates.typical(said["cpu"])}
        if "rates" in said:
            given["rates"] = dataclasses.replace(given["rates"], **said["rates"])
        like = named("x86-64-v4" if said["vector_bytes"] == _WIDEST else "x86-64-v3")
        return dataclasses.replace(like, **given)

    def right(self) -> frozenset[str]:
        """The names of the cases that need not be measured again."""
        return frozenset(row.name for row in self.rows if row.status == "right")

    @property
    def log_ratio_error(self) -> float:
        """What logarithms of predicted ratios are off by, as the root of its mean square; nan where
        nothing was predicted."""
        off = [
            math.log(row.ratio * row.predicted_ours_ms / row.predicted_jax_ms)
            for row in self.rows
            if row.status == "right" and row.predicted_ours_ms and row.predicted_jax_ms
        ]
        return math.sqrt(statistics.fmean(x * x for x in off)) if off else math.nan

    def save(self, path: Path) -> None:
        """Writes a JSON file that is complete at any instant.

        Raises: UsageError when the file cannot be written.
        """
        document = {
            "schema": SCHEMA,
            "environment": dict(self.environment),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, prefix=".writing-", delete=False
            ) as file:
                json.dump(document, file, indent=1)
                file.write("\n")
            # A temporary file is private; results are for everyone that the umask lets read.
            umask = os.umask(0)
            os.umask(umask)
            Path(file.name).chmod(0o666 & ~umask)
            Path(file.name).replace(path)
        except OSError as error:
            raise UsageError(
                f"Cannot write the results to {path}: {error.strerror or error}"
            ) from error


def load(path: Path) -> Results:
    """Reads what `Results.save` wrote.

    Raises: UsageError when the file is missing or is not such a file.
    """
    try:
        document = json.loads(path.read_text())
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, expected {SCHEMA}")
        rows = tuple(Row(**row) for row in document["rows"])
        return Results(dict(document["environment"]), rows)
    except OSError as error:
        raise UsageError(f"Cannot read results from {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is not a file of benchmark results: {error}") from error


def environment(choose: str, rounds: int) -> dict[str, Any]:
    """Everything about here and now that a reader of the numbers needs to know."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": model_name(),
        "cores": len(os.sched_getaffinity(0)),
        "target": Options.from_environment().target,
        "variables": {name: os.environ[name] for name in _HOLDING if name in os.environ},
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "choose": choose,
        "rounds": rounds,
    }


def check_comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuses to mix rows of different machines, versions or settings.

    Raises: UsageError naming the first thing that differs.
    """
    for name, unsaid in _COMPARABLE.items():
        there, here = old.get(name, unsaid), new.get(name, unsaid)
        if there != here:
            raise UsageError(
                f"The results to resume were measured with {name} = {there!r}, this run has "
                f"{here!r}: their rows cannot stand in one table; start a new file"
            )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
