"""How long an exported encoder block takes to load: `python -m hlo_mlc_bench.loading`.

Each round is a process of its own with an empty cache; imports, which any JAX program pays, do not
count.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hlo_mlc import export, mlc_jit
from hlo_mlc_bench.cases import BY_NAME

ROUNDS = 5
FIGURE_S = 0.3

_SCRIPT = """
import json, sys, time
import jax
from hlo_mlc.interop.load import load
from hlo_mlc_bench.cases import BY_NAME
_, args = BY_NAME["encoder_block"].make()
jax.block_until_ready(args)
start = time.perf_counter()
f = load(sys.argv[1])
loaded = time.perf_counter()
jax.block_until_ready(f(*args) if sys.argv[2] == "outside" else f(args[0]))
print(json.dumps([loaded - start, time.perf_counter() - loaded]))
"""


def main() -> None:
    """Prints the median time to load, and that of the first call, weights outside and inside."""
    function, args = BY_NAME["encoder_block"].make()
    with tempfile.TemporaryDirectory() as folder:
        for weights, embed in (("outside", ()), ("inside", (1,))):
            path = Path(folder) / f"{weights}.mlc"
            report = export(mlc_jit(function, choose="ours"), *args, path=path, embed=embed)
            environment = {**os.environ, "HLO_MLC_CACHE": str(Path(folder) / "empty")}
            times = [
                json.loads(
                    subprocess.run(
                        [sys.executable, "-c", _SCRIPT, str(path), weights],
                        check=True,
                        text=True,
                        capture_output=True,
                        env=environment,
                    ).stdout
                )
                for _ in range(ROUNDS)
            ]
            load_s, call_s = (statistics.median(side) for side in zip(*times, strict=True))
            print(
                f"encoder_block, weights {weights}, {report.bytes / 2**20:.1f} MiB, "
                f"{len(report.entries[0].kernels)} kernels: load {load_s:.3f} s (to be below "
                f"{FIGURE_S} s), first call {call_s:.3f} s"
            )


if __name__ == "__main__":
    main()
