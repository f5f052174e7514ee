"""The object cache under several processes: writing at once, killed while writing, compiling the
same kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hlo_mlc.backends.base import object_name
from hlo_mlc.runtime.cache import ObjectCache


def start(script: str, *arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen:
    """A process that runs `script`, with the project as it is installed."""
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


WRITER = """
import sys, warnings
from hlo_mlc.runtime.cache import ObjectCache
warnings.simplefilter("error")
cache = ObjectCache(sys.argv[1], limit_bytes=200_000)
for round in range(60):
    for number in range(12):
        key = f"{number:064x}"
        data = cache.get(key)
        assert data is None or (len(data) > 20_000 and len(set(data)) == 1), "torn entry"
        cache.put(key, bytes([int(sys.argv[2])]) * (20_001 + round))
"""


def test_concurrent_processes(tmp_path: Path) -> None:
    writers = [start(WRITER, tmp_path, number) for number in range(2)]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert ObjectCache(tmp_path).verify() == []
    assert list(tmp_path.glob("**/.writing-*")) == []


# A child writes without a pause, and is killed at a random instant, a hundred times.
KILLER = """
import os, random, signal, sys, time
from hlo_mlc.runtime.cache import ObjectCache

folder, kills = sys.argv[1], int(sys.argv[2])
rng = random.Random(0)
cut_short = 0
for kill in range(kills):
    writing, begun = os.pipe()
    child = os.fork()
    if child == 0:
        cache = ObjectCache(folder, limit_bytes=1_000_000)
        number = 0
        while True:
            key = f"{rng.randrange(16):064x}"
            cache.put(key, bytes([number % 256]) * rng.randrange(1, 200_000))
            number += 1
            os.write(begun, b".")
    os.read(writing, 1)
    os.close(writing)
    time.sleep(rng.uniform(0, 0.003))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun)
    cache = ObjectCache(folder, limit_bytes=1_000_000)
    for entry in cache.entries():
        data = cache.get(entry.key)
        assert data and len(set(data)) == 1, f"torn entry after kill {kill}"
    assert cache.verify() == []
    size = sum(entry.size_bytes for entry in cache.entries())
    assert size <= 1_300_000, size  # a killed one may not have come to evicting
    left = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names
            if name.startswith(".writing-")]
    cut_short = max(cut_short, len(left))
print(cut_short)
"""


def test_a_hundred_writers_killed_at_any_instant(tmp_path: Path) -> None:
    killer = start(KILLER, tmp_path, 100)
    output, errors = killer.communicate()
    assert killer.returncode == 0, errors
    assert int(output) > 0, "no writer was killed in the middle of writing"
    assert ObjectCache(tmp_path).entries()


# Both compile the same kernels, beginning at different ends of the list, and run them.
COMPILER = """
import json, sys
import jax.numpy as jnp, numpy as np
from hlo_mlc import mlc_jit

count, step = int(sys.argv[1]), int(sys.argv[2])
x = jnp.linspace(-1, 1, 33)
print("ready", flush=True)
sys.stdin.readline()
ids = {}
for number in range(count)[::step]:
    compiled = mlc_jit(lambda x, n=number: jnp.tanh(x * n) + n / 7, choose="ours")
    np.testing.assert_allclose(compiled(x), np.tanh(x * number) + number / 7, atol=1e-5)
    (kernel,) = compiled.report().kernels
    ids[number] = kernel.id
print(json.dumps(ids))
"""


def test_two_processes_compile_the_same_kernels_at_once(tmp_path: Path) -> None:
    environment = os.environ | {"HLO_MLC_CACHE": str(tmp_path)}
    environment.pop("HLO_MLC_CHECK", None)  # no program whose kernels check is kept
    compilers = [start(COMPILER, 50, step, env=environment) for step in (1, -1)]
    for compiler in compilers:
        assert compiler.stdout.readline() == "ready\n", compiler.communicate()[1]
    for compiler in compilers:
        compiler.stdin.write("\n")
        compiler.stdin.flush()
    outputs = [compiler.communicate() for compiler in compilers]
    assert [compiler.returncode for compiler in compilers] == [0, 0], [e for _, e in outputs]
    first, second = (json.loads(output) for output, _ in outputs)
    assert first == second
    cache = ObjectCache(tmp_path / "objects")
    names = [object_name(cache.beginning(entry.key, 100)) for entry in cache.entries()]
    assert len(list(filter(None, names))) == len(set(first.values())) == 50
    assert len(names) == 100  # and a program for each
    assert cache.verify() == []
    assert [error for _, error in outputs if "damaged" in error] == []
