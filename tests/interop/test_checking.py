"""HLO_MLC_CHECK=1: faults of kernels inside XLA's programs are errors that say where."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import building, kernel_objects
from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Expr, Load
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.interop.standalone import export_c
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.proof import Proof
from hlo_mlc.loops.rewrite import map_expressions, with_body
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.core import TensorProgram

HERE = Path(__file__).name


def _shifted(program: LoopProgram, name: str) -> LoopProgram:
    """The program with one added to the last index of every load of a buffer."""

    def swap(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source.name == name:
            *rows, last = node.indices
            return build.load(node.source, (*rows, index.add(last, index.constant(1))))
        return None

    return with_body(program, map_expressions(program.body, lambda e: build.transform(e, swap)))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLO_MLC_CHECK", "1")
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "_built", {})


@pytest.fixture
def plant(checked: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`plant(buffer)`: from now on loads of it are one element off; of "" nothing is."""
    faulty = [""]
    schedule_as_recorded = kernel_objects.replay.schedule_as_recorded

    def planted(program: TensorProgram, target: CpuTarget, *rest: object) -> tuple:
        loops, decisions = schedule_as_recorded(program, target, *rest)
        return (_shifted(loops, faulty[0]) if faulty[0] else loops), decisions

    monkeypatch.setattr(kernel_objects.replay, "schedule_as_recorded", planted)
    # It would refuse them.
    monkeypatch.setattr(kernel_objects.prove, "prove", lambda loops: (loops, Proof()))
    return lambda name: faulty.__setitem__(0, name)


def _line_of(function: Callable) -> str:
    """Of what the function returns, which is its second line."""
    return f"{HERE}:{function.__code__.co_firstlineno + 1}"


def _fails(compiled: Callable, *args: object) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(compiled(*args))
    return str(caught.value)


def test_a_fault_says_where_and_the_process_goes_on(plant) -> None:
    def scaled(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 3.0

    x = jnp.arange(3000.0).reshape(60, 50)
    plant("a0")
    faulty = mlc_jit(scaled, choose="ours")
    for _ in range(2):
        message = _fails(faulty, x)
        assert "hlo_mlc: kernel k_" in message
        assert "load of a0[" in message
        assert "index 1 is 50, its extent is 50" in message
        assert _line_of(scaled) in message
    plant("")
    right = mlc_jit(lambda x: jnp.tanh(x) * 2.0, choose="ours")
    np.testing.assert_allclose(right(x), np.tanh(x) * 2.0, rtol=1e-6)


def test_the_line_is_that_of_what_is_computed(plant) -> None:
    """Two results of one kernel, computed in two lines of which one reads the operand wrongly."""

    def two(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = jnp.exp(x) + 1.0
        second = jnp.exp(y) * first
        return first, second

    plant("a1")
    line = two.__code__.co_firstlineno + 2
    message = _fails(mlc_jit(two, choose="ours"), jnp.ones((40, 30)), jnp.ones((40, 30)))
    assert f"{HERE}:{line}" in message
    assert f"{HERE}:{line - 1}" not in message


def test_faults_on_many_threads_and_from_several_callers(plant) -> None:
    def rows(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x * 2.0, axis=-1)

    x = jnp.ones((512, 700))
    plant("a0")
    faulty = mlc_jit(rows, choose="ours")
    _fails(faulty, x)
    plant("")
    right = mlc_jit(lambda x: jax.nn.softmax(x * 3.0, axis=-1), choose="ours")
    jax.block_until_ready(right(x))
    messages: list[str] = []
    results: list[np.ndarray] = []

    def call_both() -> None:
        for _ in range(5):
            messages.append(_fails(faulty, x))
            results.append(np.asarray(right(x)))

    threads = [threading.Thread(target=call_both) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages) == len(results) == 20
    assert all("its extent is 700" in message for message in messages)
    for result in results:
        np.testing.assert_allclose(result, 1 / 700, rtol=1e-5)


def test_a_fault_inside_of_loops_of_ours_and_of_xla(plant) -> None:
    """The loop ends, although what it waits for is never computed."""

    def whole(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: c[0] < 8, lambda c: c + jnp.abs(jnp.sin(c)) + 1.0, x)

    plant("a0")
    _fails(mlc_jit(whole, choose="ours"), jnp.zeros((64,)))
    body = mlc_jit(lambda c: jnp.tanh(c) + c + 1.0, choose="ours")
    around = jax.jit(lambda x: lax.while_loop(lambda c: c[0] < 8, body, x))
    assert "load of a0[" in _fails(around, jnp.zeros((64,)))


def test_fault_in_what_takes_over_an_argument(plant) -> None:
    """A donated array is not touched by a call that fails."""

    def add(x: jax.Array, y: jax.Array) -> jax.Array:
        return x * 2.0 + y

    plant("a0")
    compiled = mlc_jit(add, choose="ours", donate_argnums=(1,))
    assert "its extent is 33" in _fails(compiled, jnp.ones((20, 33)), jnp.ones((20, 33)))
    plant("")
    right = mlc_jit(lambda x, y: x * 3.0 + y, choose="ours", donate_argnums=(1,))
    np.testing.assert_array_equal(
        right(jnp.ones((20, 33)), jnp.ones((20, 33))), np.full((20, 33), 4.0, np.float32)
    )


PROGRAMS = {
    "softmax": lambda x: jax.nn.softmax(x.astype(jnp.float32), -1),
    "product": lambda x: (x.astype(jnp.float32) @ x.astype(jnp.float32).T, x.sum(0)),
    "moved": lambda x: (x.T, x[::-1, ::2], jnp.pad(x, ((1, 2), (0, 3)))),
    "compared": lambda x: (x > x[0], jnp.argmax(x, 1), jnp.where(x > x[1], x, x[:1])),
    "scanned": lambda x: jnp.cumsum(x, 1),
    "gathered": lambda x: x[jnp.array([3, 1, 1, 5])],
    "added to": lambda x: x.at[jnp.array([3, 1, 1, 5])].add(x[:4]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int32", "int8", "uint16", "bool"]
)
def test_bit_equal_to_kernels_without_checks(
    name: str, dtype: str, arrays, monkeypatch, tmp_path
) -> None:
    if dtype == "bool" and name in ("product", "scanned", "added to"):
        pytest.skip("JAX computes these in another type")
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    (x,) = arrays(dtype, (23, 37))
    results = []
    for mode in ("0", "1", "0"):
        monkeypatch.setenv("HLO_MLC_CHECK", mode)
        compiled = mlc_jit(PROGRAMS[name], choose="ours")
        results.append([np.asarray(r).tobytes() for r in jax.tree.leaves(compiled(x))])
        assert compiled.report().kernels
    assert results[0] == results[1] == results[2]


def test_both_kinds_of_a_kernel_are_kept(checked: None, monkeypatch, tmp_path: Path) -> None:
    """In the cache as well; what was compiled last runs."""
    x = jnp.arange(100.0)
    compiled = {}
    for mode in ("1", "0", "1"):
        monkeypatch.setenv("HLO_MLC_CHECK", mode)
        function = mlc_jit(lambda x: jnp.tanh(x) * 5.0, choose="ours")
        compiled[mode] = np.asarray(function(x))
    np.testing.assert_array_equal(compiled["0"], compiled["1"])
    assert len({key[2] for key in building._built}) == 2
    assert len(building._built) == 2


def test_c_libraries_have_no_checks(checked: None, tmp_path: Path) -> None:
    report = export_c(lambda x: jnp.tanh(x), jnp.ones((10,)), path=tmp_path / "plain.a")
    assert report.kernels
    assert b"its extent is" not in report.library.read_bytes()


_CRASH = """
import os
os.environ["HLO_MLC_CHECK"] = "1"
import ctypes, faulthandler
import jax.numpy as jnp
from hlo_mlc import mlc_jit
if {enabled}:
    faulthandler.enable()
mlc_jit(lambda x: jnp.tanh(x) * 2.0, choose="ours")(jnp.ones((100,))).block_until_ready()
ctypes.string_at(0)
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_faults_of_others_end_the_process_as_ever(enabled: bool, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _CRASH.format(enabled=enabled)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -11, ended.stderr
    assert ("Segmentation fault" in ended.stderr) is enabled
