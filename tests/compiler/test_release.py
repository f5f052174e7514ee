"""Kernels are in memory as long as somebody may call them, and no longer."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

from hlo_mlc import building, compile_stablehlo, kernel_objects, mlc_jit
from hlo_mlc.expr import core
from hlo_mlc.runtime import variants

X = np.linspace(-1, 1, 48, dtype=np.float32)


def function_of(number: int) -> Callable:
    """A function with a kernel that no other has."""
    return mlc_jit(lambda x: jnp.sin(x) * (7 + number / 8) + x[::-1], choose="ours")


def kernel_of(function: Callable) -> str:
    (kernel,) = function.report().kernels
    return kernel.id


def collect() -> None:
    jax.clear_caches()
    gc.collect()


def test_what_nobody_has_is_given_back() -> None:
    function_of(-1)(X)  # what is made once, by the first
    collect()
    kernels, expressions = len(building._built), len(core._interned)
    functions = [function_of(n) for n in range(12)]
    for function in functions:
        function(X)
    ids = list(map(kernel_of, functions))
    assert len(building._built) == kernels + 12
    assert all(map(variants.exists, ids))
    del functions, function
    collect()
    assert not any(map(variants.exists, ids))
    assert not any(kernel in variants._published for kernel in ids)
    assert len(building._built) <= kernels
    assert len(core._interned) <= expressions + 100  # small constants that others found as well


def test_programs_keep_their_kernels() -> None:
    function = function_of(100)
    loaded = function.lower(X).compile()
    expected, kernel = np.asarray(loaded(X)), kernel_of(function)
    del function
    collect()
    assert variants.exists(kernel)
    np.testing.assert_array_equal(loaded(X), expected)
    del loaded
    collect()
    assert not variants.exists(kernel)


def test_modules_keep_their_kernels_until_they_are_compiled() -> None:
    function = function_of(101)
    lowered = function.lower(X)
    kernel = kernel_of(function)
    del function
    collect()
    assert variants.exists(kernel)
    np.testing.assert_allclose(
        lowered.compile()(X), np.sin(X) * (7 + 101 / 8) + X[::-1], rtol=1e-5, atol=1e-5
    )


def test_several_calls_in_one_module() -> None:
    """Each of them has a report of its own; the kernels of all are needed."""
    inner = mlc_jit(lambda x: jnp.tanh(x * 1.375).sum(), choose="ours")
    gradient = jax.jit(lambda x: (jax.grad(inner)(x), inner(x[:40])))
    lowered = gradient.lower(X)
    gc.collect()
    np.testing.assert_allclose(
        lowered.compile()(X)[1], np.tanh(X[:40] * 1.375).sum(), rtol=1e-4, atol=1e-5
    )


def test_files_and_modules() -> None:
    text = jax.jit(lambda x: jnp.cos(x) * 6.625).lower(X).as_text()
    compiled = compile_stablehlo(text, choose="ours")
    collect()
    np.testing.assert_allclose(compiled(X)[0], np.cos(X) * 6.625, rtol=1e-5)
    (kernel,) = compiled.report().kernels
    del compiled
    collect()
    assert not variants.exists(kernel.id) or kernel.kept is not None
    kept = kernel.id
    del kernel
    collect()
    assert not variants.exists(kept)


def test_what_was_given_back_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = function_of(102)
    expected, kernel = np.asarray(first(X)), kernel_of(first)
    del first
    collect()
    assert not variants.exists(kernel)
    monkeypatch.setattr(
        kernel_objects.replay,
        "schedule_as_recorded",
        lambda *_: pytest.fail("the cache has its code"),
    )
    again = function_of(102)
    np.testing.assert_array_equal(again(X), expected)
    assert kernel_of(again) == kernel


def test_a_kernel_that_is_built_again_while_a_program_calls_it() -> None:
    loaded = function_of(103).lower(X).compile()
    expected = np.asarray(loaded(X))
    collect()
    second = function_of(103)
    np.testing.assert_array_equal(second(X), expected)
    kernel = kernel_of(second)
    del second
    collect()
    assert variants.exists(kernel)
    np.testing.assert_array_equal(loaded(X), expected)


def test_programs_from_a_persistent_cache(tmp_path: Path) -> None:
    """What XLA loads in place of compiling calls kernels that the module's lowering has brought
    back, in this process, where they had been given back, and in the next."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", _PERSISTENT, str(tmp_path)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert printed[0] == printed[1] == ["True", "False", "True", "True", "False"]


_PERSISTENT = """
import gc, sys
import jax, jax.numpy as jnp, numpy as np
from pathlib import Path
from hlo_mlc import mlc_jit
from hlo_mlc.runtime import variants

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
x = np.linspace(-1, 1, 48, dtype=np.float32)

def run():
    function = mlc_jit(lambda x: jnp.sin(x) * 3.1875 + x[::-1], choose="ours")
    result = np.asarray(function(x))
    (kernel,) = function.report().kernels
    print(variants.exists(kernel.id))
    return kernel.id, result

def dropped(kernel):
    jax.clear_caches()
    gc.collect()
    print(variants.exists(kernel))

kernel, first = run()
dropped(kernel)
assert any("lambda" in path.name for path in Path(sys.argv[1]).iterdir())
kernel, second = run()
print(bool((first == second).all()))
dropped(kernel)
"""


def test_a_loaded_executable_keeps_the_kernels_that_were_there() -> None:
    function = function_of(104)
    compiled = function.lower(X).compile()
    expected, kernel = np.asarray(compiled(X)), kernel_of(function)
    saved = serialize_executable.serialize(compiled)
    here = jax.devices()[:1]
    loaded = serialize_executable.deserialize_and_load(*saved, execution_devices=here)
    del function, compiled
    collect()
    assert variants.exists(kernel)
    np.testing.assert_array_equal(loaded(X), expected)
    del loaded
    collect()
    assert not variants.exists(kernel)
    with pytest.raises(jax.errors.JaxRuntimeError, match="not loaded in this process"):
        serialize_executable.deserialize_and_load(*saved, execution_devices=here)(X)


@pytest.mark.parametrize(
    "locks", ["variants._table_lock, building._building", "llvm.ffi.lib._lock"]
)
def test_a_process_forks_while_others_compile(locks: str, tmp_path: Path) -> None:
    """The child can compile, publish and give back kernels, whoever of its parent had the lock."""
    ran = subprocess.run(
        [sys.executable, "-c", _FORK.replace("LOCKS", locks)],
        timeout=100,
        env={**os.environ, "HLO_MLC_CACHE": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


_FORK = """
import os, signal, threading
import jax, jax.numpy as jnp, numpy as np
import llvmlite.binding as llvm
from hlo_mlc import building
from hlo_mlc.compiler import compile_module
from hlo_mlc.runtime import variants
from hlo_mlc.support.options import Options

def module(n):
    function = jax.jit(lambda x: jnp.sin(x) * (3 + n / 512))
    return function.lower(np.ones(40, np.float32)).compiler_ir()

options = Options.from_environment(choose="ours")
modules = [module(n) for n in range(3)]
compile_module(modules[0], options)
locked, done = threading.Event(), threading.Event()

def hold():
    with LOCKS:
        locked.set()
        done.wait(1)

threading.stack_size(1 << 18)  # too small for the child's threads, which else could be taken for it
thread = threading.Thread(target=hold)
thread.start()
threading.stack_size(0)
locked.wait()
child = os.fork()
if not child:
    signal.alarm(30)
    compiled = compile_module(modules[1], options)
    (kernel,) = compiled.report.kernels
    known = variants.exists(kernel.id)
    name = kernel.id
    del compiled, kernel
    variants.release_unused()
    os._exit(0 if known and not variants.exists(name) else 3)
done.set()
thread.join()
compile_module(modules[2], options)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


_FUNCTIONS = """
import ctypes, gc, sys
import jax, jax.numpy as jnp, numpy as np
from hlo_mlc import building, mlc_jit
from hlo_mlc.expr import core
from hlo_mlc.interop import function as of_functions
from hlo_mlc.runtime import variants

jit = jax.jit if sys.argv[1] == "jax" else mlc_jit(choose="ours")
x = np.ones(40, np.float32)

def make(first, count):
    numbers = range(first, first + count)
    functions = [jit(lambda x, n=n: jnp.sin(x) * (3 + n / 512)) for n in numbers]
    for function in functions:
        function(x)
    return functions

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free counts as given back
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1])

def objects():
    gc.collect()
    return [len(building._built), len(variants._published), len(variants._leases),
            len(variants._ended), len(core._interned), len(of_functions._reports_on),
            len(gc.get_objects())]

COUNT = 250
make(0, 40)
jax.clear_caches()
before, memory = objects(), resident()
functions = make(40, COUNT)
alive = resident() - memory
del functions
jax.clear_caches()
print(alive / COUNT, (resident() - memory) / COUNT, *(
    after - known for after, known in zip(objects(), before)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_functions_cost_little_more_than_those_of_jax() -> None:
    """While they can be called, and when they are gone: then nothing that we count is left of
    them, and of objects not one for each."""
    ours, theirs = (
        [
            float(number)
            for number in subprocess.run(
                [sys.executable, "-c", _FUNCTIONS, side], capture_output=True, text=True, check=True
            ).stdout.split()
        ]
        for side in ("ours", "jax")
    )
    assert ours[0] < theirs[0] + 0.1 * 1024
    assert ours[1] < theirs[1] + 0.05 * 1024
    built, published, leases, ended, interned, reports, objects = ours[2:]
    assert built <= 0 and published <= 0 and leases <= 0 and ended <= 0 and reports <= 0
    assert interned <= 100  # small constants
    assert objects < theirs[-1] + 250


_MANY = """
import ctypes, gc
import jax, numpy as np
from hlo_mlc.compiler import compile_module
from hlo_mlc.support.options import Options

def module(n):
    function = jax.jit(lambda x: abs(x) * (3 + n / 512))
    return function.lower(np.ones(40, np.float32)).compiler_ir()

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free counts as given back
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1])

modules = list(map(module, range(200)))
options = Options.from_environment(choose="ours")
for one in modules[:40]:
    assert compile_module(one, options).report.coverage == 1
before = resident()
for one in modules[40:]:
    compile_module(one, options)
print((resident() - before) / 160)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_memory_returns() -> None:
    """At most 0.05 MiB stay for a function that was compiled and dropped; what XLA keeps of its
    part varies between nothing and twice that."""
    ran = subprocess.run([sys.executable, "-c", _MANY], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 0.05 * 1024
