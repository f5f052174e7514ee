"""Programs are compiled while kernels are assembled; what they run waits, never for ever."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import building, kernel_objects, mlc_jit, promises
from hlo_mlc.backends import cpu
from hlo_mlc.backends import interpreted as backends_interpreted
from hlo_mlc.backends.cpu import CpuKernel
from hlo_mlc.backends.interpreted import interpreted
from hlo_mlc.kernel_objects import proved_loops
from hlo_mlc.partition.choose.cost import choose_all
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.runtime import cache, variants
from hlo_mlc.runtime.library import TARGET_NAME, register_with_jax
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget

LIMIT_S = 60
X = np.sin(np.arange(15 * 37, dtype=np.float32)).reshape(15, 37)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is compiled yet, all that can be is taken, whatever machine this is, and nothing is
    checked."""
    monkeypatch.delenv("HLO_MLC_CHECK", raising=False)
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "_built", {})
    monkeypatch.setattr(promises, "_broken", {})
    monkeypatch.setattr(cpu, "recorded_or", lambda *_: choose_all)
    monkeypatch.setattr(cpu.worth, "worth_it", lambda plan, target: plan)
    monkeypatch.setattr(cpu.worth, "completion", lambda *_: ())


class Assembler:
    """Assembles when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, self.begun, self._assemble = threading.Event(), threading.Event(), cpu.compile_ir
        monkeypatch.setattr(cpu, "compile_ir", self)

    def __call__(self, ir: str, target: CpuTarget) -> bytes:
        self.begun.set()
        assert self.may.wait(LIMIT_S)
        return self._assemble(ir, target)


@pytest.fixture
def assembler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Assembler]:
    one = Assembler(monkeypatch)
    yield one
    one.may.set()


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x * 2)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_program_is_compiled_before_its_kernel(assembler: Assembler) -> None:
    function = mlc_jit(softmax, choose="auto")
    compiled = function.lower(X).compile()
    assert function.report(X).coverage == 1
    assert not assembler.may.is_set()
    assembler.may.set()
    close(compiled(X), jax.nn.softmax(X * 2))


def test_assembling_begins_before_the_proof(
    assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembler.may.set()
    prove = kernel_objects._proved

    def proved(*args: Any) -> Any:
        assert assembler.begun.wait(LIMIT_S)
        return prove(*args)

    monkeypatch.setattr(kernel_objects, "_proved", proved)
    function = mlc_jit(softmax, choose="auto")
    close(function(X), jax.nn.softmax(X * 2))
    assert function.report(X).coverage == 1


def test_what_is_guarded_is_printed_again(
    assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the loops without guards is not what runs."""
    assembler.may.set()
    prove = kernel_objects._proved
    begun: list[bool] = []

    def guarded(*args: Any) -> Any:
        begun.append(assembler.begun.wait(LIMIT_S))
        loops, proof = prove(*args)
        return replace(loops, name=f"{loops.name}_guarded"), proof

    monkeypatch.setattr(kernel_objects, "_proved", guarded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that a kernel is interpreted
        close(mlc_jit(softmax, choose="auto")(X), jax.nn.softmax(X * 2))
    (kernel,) = building._built.values()
    assert begun == [True] and kernel.wait()


def test_nobody_waits_for_the_key_of_a_kernel_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sources that it names are read behind the call; later ones look for theirs."""
    asked: list[str] = []
    digest = kernel_objects.generators_digest

    def generators_digest(folder: Path) -> str:
        asked.append(threading.current_thread().name)
        return digest(folder)

    monkeypatch.setattr(kernel_objects, "generators_digest", generators_digest)
    close(mlc_jit(softmax, choose="auto")(X), jax.nn.softmax(X * 2))
    objects, end = cache.object_cache(Options(cache_dir=tmp_path)), time.monotonic() + LIMIT_S
    while objects.is_empty() and time.monotonic() < end:
        time.sleep(0.01)
    here = threading.current_thread().name
    assert here not in asked
    building._built.clear()
    mlc_jit(lambda x: softmax(x), choose="auto")(X)
    assert here in asked


def test_executions_wait_for_it_on_any_thread(assembler: Assembler) -> None:
    function = mlc_jit(softmax, choose="auto")
    outer = jax.jit(lambda x: function(x) + 1)
    results: list[Any] = []
    calls = [lambda: function(X), lambda: outer(X) - 1, lambda: jax.vmap(function)(X[None])[0]]
    threads = [
        threading.Thread(target=lambda call=call: results.append(np.asarray(call())))
        for call in calls
    ]
    for thread in threads:
        thread.start()
    assert assembler.begun.wait(LIMIT_S)
    threads[0].join(0.2)
    assert not results
    assembler.may.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert len(results) == len(calls)
    for result in results:
        close(result, jax.nn.softmax(X * 2))


@pytest.mark.parametrize("choose", ["ours", "measure"])
def test_what_is_looked_at_first_is_not_promised(choose: str, assembler: Assembler) -> None:
    """With "ours" faults are raised; of what is measured, all but the prediction is "ours"."""
    assembler.may.set()
    function = mlc_jit(softmax, choose=choose)
    close(function(X), jax.nn.softmax(X * 2))


@pytest.mark.parametrize(
    "stage", [(cpu, "compile_ir"), (variants, "load_object")], ids=["assemble", "load"]
)
@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("planted"), MemoryError("planted"), SystemExit("planted")],
    ids=lambda e: type(e).__name__,
)
def test_what_cannot_be_assembled_is_interpreted_once(
    stage: tuple[Any, str], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasts, usual = isinstance(error, Exception), getattr(*stage)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if lasts or not promises._broken:
            raise error
        return usual(*args, **kwargs)

    monkeypatch.setattr(*stage, fail)
    monkeypatch.setenv("HLO_MLC_SETTLE", "1")  # which notices

    def call(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return softmax(x), jnp.cumsum(x, 1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function = mlc_jit(call, choose="auto")
        compiled = function.lower(X).compile()
        kernels = function.report(X).kernels
        assert kernels
        assert not all(k.kept.wait() for k in kernels if isinstance(k.kept, CpuKernel))
        first, second = compiled(X)  # before anybody could look
        close(first, jax.nn.softmax(X * 2))
        close(second, jnp.cumsum(X, 1))
        function(X)
        with monkeypatch.context() as patched:
            patched.setattr("hlo_mlc.backends.interpreted.interpret", None)  # not once more
            close(function(X)[0], jax.nn.softmax(X * 2))
            assert bool(function.report().kernels) != lasts
    left = [str(w.message) for w in caught if "hlo_mlc leaves" in str(w.message)]
    assert len(left) == lasts and all("to see it again is in" in one for one in left), caught
    said = [w for w in caught if "hlo_mlc interprets" in str(w.message)]
    assert len(said) == 1, caught
    assert said[0].filename == __file__
    assert "planted" in str(said[0].message)
    if lasts:
        with pytest.warns(RuntimeWarning, match="leaves .* to XLA"):
            again = mlc_jit(lambda x: call(x), choose="auto")
            close(again(X)[0], jax.nn.softmax(X * 2))
        assert not again.report(X).kernels


@pytest.mark.parametrize(
    "stage,said",
    [
        ((backends_interpreted, "interpret"), "interpreting it failed: ZeroDivisionError"),
        ((cpu.interpreted, "interpreted"), "interpreting it came to no end"),
    ],
    ids=["interpret", "interpreted"],
)
def test_where_interpreting_fails_too_the_execution_does(
    stage: tuple[Any, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(cpu, "compile_ir", fail)
    monkeypatch.setattr(*stage, fail)
    with pytest.warns(RuntimeWarning, match="planted"):
        compiled = mlc_jit(softmax, choose="auto").lower(X).compile()
        for _ in range(2):
            with pytest.raises(jax.errors.JaxRuntimeError, match=said):
                jax.block_until_ready(compiled(X))


def test_a_promise_that_nobody_is_left_to_keep_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot happen but by an interrupt between two lines."""
    kept: list[Any] = []

    def interrupted(promised: CpuKernel, *args: object) -> None:
        kept.append(weakref.ref(promised))
        compiled.append(call_of(promised.kernel, promised.lease.kernel_id))
        raise KeyboardInterrupt

    compiled: list[Any] = []
    monkeypatch.setattr(building, "keep_later", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mlc_jit(softmax, choose="auto")(X)
    gc.collect()
    assert kept[0]() is None
    with pytest.raises(jax.errors.JaxRuntimeError, match="came to no end"):
        jax.block_until_ready(compiled[0](X))


def call_of(kernel: Kernel, kernel_id: str) -> Any:
    """A program of XLA's that calls a kernel, which holds on to it."""
    (result,) = kernel.program.results
    register_with_jax()
    call = jax.ffi.ffi_call(TARGET_NAME, jax.ShapeDtypeStruct(result.shape, result.dtype.numpy))
    return jax.jit(lambda x: call(x, id=kernel_id, dims=np.zeros(0, np.int64))).lower(X).compile()


def test_what_cannot_be_stored_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(cache.ObjectCache, "put", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function = mlc_jit(softmax, choose="auto")
        close(function(X), jax.nn.softmax(X * 2))
        for thread in threading.enumerate():
            if thread.name.startswith("hlo_mlc_"):
                thread.join(LIMIT_S)
    assert [w for w in caught if "again in each process" in str(w.message)], caught


def test_a_kernel_that_is_built_anew_comes_after_its_promise(assembler: Assembler) -> None:
    function = mlc_jit(softmax, choose="auto")
    compiled = function.lower(X).compile()
    (kernel,) = function.report(X).kernels
    options = Options.from_environment()
    threading.Timer(0.1, assembler.may.set).start()
    fresh = building.rebuild_kernel(kernel.kept.kernel, options, cpu.cpu_backend(options))
    assert kernel.kept.loaded.done() and fresh is not kernel.kept
    close(compiled(X), jax.nn.softmax(X * 2))


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's: what is forked here calls nothing of it
def test_forks_wait_for_promises(assembler: Assembler) -> None:
    function = mlc_jit(softmax, choose="auto")
    function.lower(X).compile()
    (kernel,) = function.report(X).kernels
    threading.Timer(0.1, assembler.may.set).start()
    child = os.fork()
    if not child:
        os._exit(not kernel.kept.loaded.done())
    assert os.waitpid(child, 0)[1] == 0


def test_interpreted_loops_are_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    function = mlc_jit(
        lambda x, n: (jnp.cumsum(x, 1), n > 3, x[:, ::-1].astype(jnp.bfloat16)), choose="ours"
    )
    n = np.arange(7, dtype=np.int8)
    expected = [np.asarray(r) for r in function(X, n)]
    options = Options.from_environment()
    backend = cpu.cpu_backend(options)
    for kernel in function.report(X, n).kernels:
        built = kernel.kept
        program = built.kernel.program
        operands = [next(a for a in (X, n) if a.shape == b.shape) for b in program.operands]
        results = [np.zeros(b.shape, b.dtype.numpy) for b in program.results]
        code = interpreted(proved_loops(built.kernel, options, backend))
        bind_kernel(code, operands, results, threads=2)()
        for result in results:
            assert any(
                result.shape == e.shape
                and result.dtype == e.dtype
                and np.allclose(np.float32(result), np.float32(e), atol=1e-5)
                for e in expected
            )


@pytest.mark.parametrize("choose", ("auto", "ours"))
def test_kernels_are_built_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, choose: str
) -> None:
    """As while Python ends; nor twice by one that there is."""

    def submit(self: Any, work: Any, *args: Any) -> None:
        later.append(lambda: work(*args))
        raise RuntimeError("can't start new thread")

    later: list[Any] = []
    monkeypatch.setattr(building.ThreadPoolExecutor, "submit", submit)
    function = mlc_jit(softmax, choose=choose)
    close(function(X), jax.nn.softmax(X * 2))
    (kernel,) = function.report(X).kernels
    assert choose == "ours" or kernel.kept.wait()
    for work in later:
        work()
    close(function(X), jax.nn.softmax(X * 2))


def test_what_nobody_waits_for_takes_short_turns() -> None:
    turns: list[float] = []
    before = sys.getswitchinterval()
    with building.assemblers(wait=True) as assembler:
        promises.do_later(lambda: turns.append(sys.getswitchinterval()), assembler)
    assert turns == [pytest.approx(promises.TURN_S)] and sys.getswitchinterval() == before
