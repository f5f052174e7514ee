"""Nothing of ours hangs: many callers at once, callbacks, forks, the end of the interpreter.  All
of it runs in other processes, within a limit of time."""

from __future__ import annotations

import functools
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import building, compile_stablehlo, mlc_jit
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import host

THREADS = 8
X = np.cos(np.arange(300 * 400, dtype=np.float32)).reshape(300, 400)


def work(number: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.nn.softmax(x * (1 + number)), jnp.cumsum(x + number, 0)


def _ours(number: int) -> Callable:
    return mlc_jit(functools.partial(work, number), choose="ours")


def _expected(number: int) -> list[np.ndarray]:
    return [np.asarray(a) for a in jax.jit(functools.partial(work, number))(X)]


def _close(actual: object, expected: list[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def _at_once(calls: list[Callable[[], None]]) -> None:
    """All of the calls, each on a thread of its own, from the same moment on."""
    barrier, failures = threading.Barrier(len(calls)), []

    def run(call: Callable[[], None]) -> None:
        barrier.wait()
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def first_calls(distinct: int) -> None:
    functions = [_ours(n) for n in range(distinct)]
    expected = [_expected(n) for n in range(distinct)]

    def call(n: int) -> None:
        for _ in range(5):
            _close(functions[n % distinct](X), expected[n % distinct])

    _at_once([functools.partial(call, n) for n in range(THREADS)])


def beside_programs_of_xla() -> None:
    a = np.sin(np.arange(500 * 500, dtype=np.float32)).reshape(500, 500)
    product = jax.jit(lambda a: jnp.tanh(a @ a) @ a)
    ours, wanted, theirs = _ours(1), _expected(1), np.asarray(product(a))

    def call(n: int) -> None:
        for _ in range(20):
            if n % 2:
                _close(ours(X), wanted)
            else:
                np.testing.assert_allclose(product(a), theirs, rtol=1e-3, atol=1e-3)

    _at_once([functools.partial(call, n) for n in range(THREADS)])


def callbacks() -> None:
    """Around our kernels, and calling some from inside; by several threads.

    Their operands are small: JAX copies what has more than 100 kB for a callback on the threads
    that run programs, and waits for ever where all of those are in callbacks (jax #24255).
    """
    inner, seen = _ours(2), []

    def on_host(a: np.ndarray) -> np.ndarray:
        return np.asarray(a) * 2

    def program(x: jax.Array) -> jax.Array:
        first, _ = mlc_jit(functools.partial(work, 0), choose="ours")(x)
        jax.debug.print("{}", first[0, 0])
        few = first[:50]
        doubled = jax.pure_callback(on_host, jax.ShapeDtypeStruct(few.shape, X.dtype), few)
        jax.experimental.io_callback(lambda a: seen.append(float(a)), None, doubled[0, 0])
        return mlc_jit(lambda a: jax.nn.softmax(a + 1), choose="ours")(doubled)

    compiled = jax.jit(program)
    wanted = np.asarray(jax.nn.softmax(2 * _expected(0)[0][:50] + 1))
    others = _expected(2)

    def call(n: int) -> None:
        for _ in range(3):
            np.testing.assert_allclose(compiled(X), wanted, rtol=1e-4, atol=1e-5)
            _close(inner(X), others)

    _at_once([functools.partial(call, n) for n in range(THREADS)])
    jax.effects_barrier()
    assert len(seen) == 3 * THREADS


def failing_callbacks() -> None:
    """An exception of a callback reaches the caller; what runs next is none the worse."""

    class Own(Exception):
        pass

    def on_host(a: np.ndarray) -> np.ndarray:
        raise Own("on the host")

    def program(x: jax.Array) -> jax.Array:
        first, _ = mlc_jit(functools.partial(work, 0), choose="ours")(x)
        return first + jax.pure_callback(on_host, jax.ShapeDtypeStruct(X.shape, X.dtype), first)

    compiled = jax.jit(program)
    for _ in range(3):
        with pytest.raises(Exception, match="on the host"):
            jax.block_until_ready(compiled(X))
        _close(_ours(0)(X), _expected(0))


def processes(method: str) -> list[int]:
    """What children end with that begin while a kernel is being built on another thread."""
    function = _ours(0)  # which keeps its kernels
    _close(function(X), _expected(0))
    started, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with building._building:
            started.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    started.wait()
    context = multiprocessing.get_context(method)
    if method == "fork":  # no JAX, which forked children cannot run, but our compiler and its lock
        kernel = next(iter(building._built.values())).kernel
        backend = CpuBackend(host())
        target, args = building.rebuild_kernel, (kernel, Options.from_environment(), backend)
    else:
        target, args = compile_stablehlo, (jax.jit(jnp.tanh).lower(X).as_text(),)
    children = [context.Process(target=target, args=args) for _ in range(2)]
    for one in children:
        one.start()
    for one in children:
        one.join(60)
        if one.is_alive():
            one.kill()
    go_on.set()
    holder.join()
    _close(_ours(1)(X), _expected(1))
    return [one.exitcode for one in children]


def test_the_first_calls_of_one_function(bounded) -> None:
    bounded(first_calls, 1)


def test_the_first_calls_of_many_functions(bounded) -> None:
    bounded(first_calls, THREADS)


def test_beside_programs_of_xla(bounded) -> None:
    bounded(beside_programs_of_xla)


def test_callbacks(bounded) -> None:
    bounded(callbacks)


def test_failing_callbacks(bounded) -> None:
    bounded(failing_callbacks)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_end(bounded, method: str) -> None:
    assert bounded(processes, method) == [0, 0]


# What runs when the interpreter ends. JAX alone may abort there (a thread that Python stops inside
# of C++ code, which unwinds it); that the process ends, and soon, is what is asked for.
ENDINGS = {
    "running": "f = mlc_jit(work, choose='ours'); f(x); forever(lambda n: f(x))",
    "compiling": "forever(lambda n: mlc_jit(lambda y: work(y * n), choose='ours')(x))",
    "nothing": "mlc_jit(work, choose='ours')(x)",
}
ENDING = """
import threading, time
import jax, numpy as np
from hlo_mlc import mlc_jit

x = np.ones((300, 400), np.float32)

def work(x):
    return jax.nn.softmax(x * 2 + 1)

def forever(call):
    def run():
        n = 0
        while True:
            n += 1
            jax.block_until_ready(call(n))
    for _ in range(3):
        threading.Thread(target=run, daemon=True).start()
    time.sleep(0.3)
"""


@pytest.mark.parametrize("what", ENDINGS)
def test_the_interpreter_ends(what: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", ENDING + ENDINGS[what]],
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == 0 or what != "nothing", ended.stderr
