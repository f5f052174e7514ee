"""What every test relies on: eight CPU devices, a cache of its own, no options from outside; and
the fixtures of differential tests: `check`, `take_apart`, `machine_code`, `emulator`, `fenced`,
`arrays`."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from emulation.emulator import Emulator
from hlo_mlc import kept_programs, limits
from hlo_mlc.codegen.c.printer import print_file
from hlo_mlc.codegen.c.printer import print_program as print_c
from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.interop import comparing, measuring, scheduling, tuning_session
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.interop.staged import forget
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.report import Report
from hlo_mlc.runtime import busyness
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.runtime.variants import KernelCode
from hlo_mlc.support.errors import UnsupportedOpError
from hlo_mlc.target import cuda
from hlo_mlc.target.levels import THIS_MACHINE, runnable
from hlo_mlc.templates.cuda import program as cuda_templates
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning import tuner
from hlo_mlc_bench import runner
from making import apart
from making.agreement import assert_agree, compare
from making.apart import Arrays, Parts
from making.machine import Fenced, MachineCode, Tuned, is_for_cpus
from making.pairs import in_pairs, once

for _name in [name for name in os.environ if name.startswith("HLO_MLC_")]:
    del os.environ[_name]
_CACHE = tempfile.mkdtemp(prefix="hlo_mlc_tests_")
os.environ["HLO_MLC_CACHE"] = _CACHE
os.environ["HLO_MLC_CALIBRATE"] = "0"  # what is predicted may not depend on the machine
os.environ["HLO_MLC_SETTLE"] = "0"  # nor on which calls were timed
# After each product of NumPy's a thread of OpenBLAS spins for 27 ms, on the CPU of another worker:
# read by workers, and by processes of tests, when they import it.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# The same examples in every run; `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")
# Read when JAX starts its CPU backend, which no import does.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run all combinations of the parameters of "
        "a test, instead of as many as have every two values together",
    )
    parser.addoption(
        "--once",
        action="store_true",
        help="run as many as have every value of a parameter once, whatever it meets",
    )
    parser.addoption(
        "--emulate",
        action="store_true",
        help="check every function's kernels for "
        "GPUs too, on the emulator: takes some minutes, since g++ compiles them",
    )
    parser.addoption(
        "--as-c",
        action="store_true",
        help="check every function's kernels as C, too: takes some minutes, since cc compiles them",
    )
    parser.addoption(
        "--check",
        action="store_true",
        help="compile kernels for CPUs with checks of "
        "every access (HLO_MLC_CHECK=1, which the tests do not see otherwise)",
    )
    parser.addoption(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="run one test in N, always the same: a sample",
    )
    parser.addoption(
        "--start",
        type=int,
        default=0,
        metavar="K",
        help="begin every so many tests with the K-th: samples of different tests",
    )
    parser.addoption(
        "--target",
        default=THIS_MACHINE,
        metavar="LEVEL",
        help="compile for a level below this machine, such as x86-64-v3",
    )


def pytest_configure(config: pytest.Config) -> None:
    level = config.getoption("--target")
    if level not in runnable():
        raise pytest.UsageError(f"--target {level}: expected one of {', '.join(runnable())}")
    os.environ["HLO_MLC_TARGET"] = level
    if config.getoption("--check"):
        os.environ["HLO_MLC_CHECK"] = "1"


def pytest_xdist_auto_num_workers() -> int:
    """All CPUs that this process may use: of a core with two threads xdist takes one where psutil
    is installed, and leaves the other without work."""
    return len(os.sched_getaffinity(0))


@pytest.hookimpl(trylast=True)  # after -k and the like
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items
    if not config.getoption("--all") and not any("[" in asked for asked in config.args):
        chosen = once(items) if config.getoption("--once") else in_pairs(items)
    chosen = chosen[config.getoption("--start") :: config.getoption("--every")]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Twenty thousand tests stay: nobody looks for cycles while they come, or among them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Nor after every few objects of those that JAX keeps: that took a twentieth of the time.
        gc.set_threshold(10 * gc.get_threshold()[0])


@pytest.fixture(scope="session", autouse=True)
def _idle() -> Iterator[None]:
    """The machine counts as idle: what else runs decides nothing, not even other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(busyness, "read_clocks", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _measured_once() -> Iterator[None]:
    """What the machine can do at most is measured once, not for every test with a cache of its own:
    the four kernels are on all cores for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "measure_limits", functools.cache(limits.measure_limits))
        yield


# How long things are timed for, of what users wait for: seconds, by where they stand.
_BRIEFLY = {
    (comparing, "_BUDGET_S"): 0.2,
    (measuring, "_BUDGET_S"): 0.1,
    (runner, "_WARM_UP_S"): 0.05,
    (scheduling, "_SECONDS"): 0.05,
    (tuner, "ROUND_S"): 0.02,
    (tuner, "TRIAL_S"): 0.02,
    (tuning_session, "_COMPARISON_S"): 0.05,
}


@pytest.fixture(scope="session", autouse=True)
def _briefly() -> Iterator[None]:
    """What is timed is timed for a tenth of the time: tests ask what comes of figures, whatever
    these are, and for most of its time a search measures."""
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name), seconds in _BRIEFLY.items():
            assert seconds < getattr(owner, name)
            patch.setattr(owner, name, seconds)
        yield


@pytest.fixture(scope="session", autouse=True)
def _not_kept() -> Iterator[None]:
    """No program is known from before: tests watch the compiler at work, and change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_programs, "_LARGEST_BYTES", 0)
        yield


# What makes XLA compile quickly: without LLVM's passes; where it still can, loops written by itself
# and not through MLIR, all of them in one module.  Most programs of tests are compiled in a third
# of the time then.
_LEVEL = "xla_backend_optimization_level"
_QUICK = {_LEVEL: 0}
if jax.__version_info__ < (0, 11):
    _QUICK |= {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
_MOST_EVALUATIONS = 1000  # of one value: XLA's code takes milliseconds for some thousand elements


@pytest.fixture(scope="session", autouse=True)
def _quickly() -> Iterator[None]:
    """XLA compiles by `_QUICK`, since the rest takes longer than a run or two can gain; where it
    finds that much is computed again and again, cannot so, or is told a level, it does as for
    users."""
    compile_and_load = compiler.backend_compile_and_load

    def quickly(client, module, devices, options, *rest):
        told = options.env_option_overrides
        if _LEVEL not in dict(told) and not _is_tangled(module):
            options.env_option_overrides = [*told, *_QUICK.items()]
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                return compile_and_load(client, module, devices, options, *rest)
            options.env_option_overrides = told
        return compile_and_load(client, module, devices, options, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "backend_compile_and_load", quickly)
        yield


def _is_tangled(module: ir.Module) -> bool:
    """Whether there is much to compute if each value is computed anew wherever it is read: twice
    as much with every step of a chain that reads the one before in two ways."""
    evaluations: dict[ir.Value, int] = {}
    most = 0

    def note(operation: ir.Operation) -> ir.WalkResult:
        nonlocal most
        count = 1 + sum(evaluations.get(value, 0) for value in operation.operands)
        evaluations.update(dict.fromkeys(operation.results, count))
        most = max(most, count)
        return ir.WalkResult.INTERRUPT if most > _MOST_EVALUATIONS else ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return most > _MOST_EVALUATIONS


@pytest.fixture(scope="session", autouse=True)
def _few_dialects() -> Iterator[None]:
    """With JAX 0.10 and 0.11, which make a context of MLIR for each program, a context has the
    dialects that JAX lowers to, and others when a program has them: to load all takes longer than
    to lower a small program."""
    with pytest.MonkeyPatch.context() as patch:
        if jax.__version_info__ < (0, 12):
            patch.setattr(
                mlir.JaxIrContext,
                "load_all_available_dialects",
                lambda context: context.dialects["func"],
            )
        yield


@pytest.fixture(autouse=True)
def _first_seen() -> None:
    """No function was compiled before: tests change what compiles those of their modules."""
    forget()


def pytest_sessionfinish() -> None:
    """Nobody looks for cycles among what the process ends with."""
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


def _check(
    function: Callable,
    *args: object,
    coverage: float = 1.0,
    ulps: float = 16.0,
    magnitude: float | None = None,
    kernels: bool | None = True,
    exact: Callable | None = None,
) -> Report:
    """Compile with `choose="ours"` and compare with `jax.jit` of the same function.

    Floats may be off by `ulps` units in the last place of `magnitude` (by default the largest
    result; 0 means each result for itself), or by twice XLA's error against an evaluation in f64
    (of `exact`, where the function itself cannot be evaluated so); all else is equal.
    `kernels`: whether there is something for a kernel to do (None: there may be).
    """
    lowered = mlc_jit(function, choose="ours")
    stage = lowered.lower(*args)
    report = lowered.report()
    assert report.coverage >= coverage, report.explain()
    assert kernels in (None, KERNEL_TARGET in stage.as_text()), report.explain()
    actual = jax.tree.leaves(stage.compile()(*args))
    compare(actual, function, args, ulps, magnitude, exact)
    return report


@pytest.fixture(scope="session")
def emulated(request: pytest.FixtureRequest) -> Callable[..., list[np.ndarray] | None]:
    """`emulated(function, *args)`: the results by its kernels for GPUs, on the emulator, or with
    --as-c by those in C; None for what only XLA can run, and without --emulate."""
    if request.config.getoption("--as-c"):
        return request.getfixturevalue("through_c")
    if not request.config.getoption("--emulate"):
        return lambda function, *args: None
    emulator, cuda_source = map(request.getfixturevalue, ("emulator", "cuda_source"))

    def run(function: Callable, *args: object) -> list[np.ndarray] | None:
        parts = apart.take_apart(function, *args, limits=apart.GPU)
        sources = {p: cuda_source(p) for p in parts.programs}
        emulator.prepare(list(sources.values()), keep=False, run_once=True)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
        try:
            return parts.run(leaves, lambda p, operands: emulator.run(sources[p], p, operands, 7))
        except UnsupportedOpError:
            return None

    return run


@pytest.fixture(scope="session")
def through_c(as_c: Callable[..., list[KernelCode]]) -> Callable[..., list[np.ndarray] | None]:
    """`through_c(function, *args)`: the results by its kernels in C; None for what only XLA can
    run."""

    def run(function: Callable, *args: object) -> list[np.ndarray] | None:
        parts = apart.take_apart(function, *args)
        codes = dict(
            zip(
                parts.programs,
                as_c([schedule_program(p, apart.PLANNED)[0] for p in parts.programs]),
                strict=True,
            )
        )

        def execute(program: TensorProgram, operands: Arrays) -> list[np.ndarray]:
            outputs = [np.zeros(b.shape, b.dtype.numpy) for b in program.results]
            bind_kernel(codes[program], [np.ascontiguousarray(a) for a in operands], outputs)()
            return outputs

        try:
            return parts.run([np.asarray(leaf) for leaf in jax.tree.leaves(args)], execute)
        except UnsupportedOpError:
            return None

    return run


@pytest.fixture(scope="session")
def check(emulated: Callable) -> Callable[..., Report]:
    """`check(function, *args, …)`; with --emulate the kernels for GPUs are checked too."""

    def on_both(
        function: Callable,
        *args: object,
        ulps: float = 16.0,
        magnitude: float | None = None,
        exact: Callable | None = None,
        **rest: object,
    ) -> Report:
        report = _check(function, *args, ulps=ulps, magnitude=magnitude, exact=exact, **rest)
        actual = emulated(function, *args)
        if actual is not None:  # sums are in another order there
            compare(actual, function, args, max(ulps, 64.0), None, exact)
        return report

    return on_both


@pytest.fixture(scope="session")
def run(emulated: Callable) -> Callable[..., list[np.ndarray]]:
    """`run(function, *args)`: the results by our kernels, all ops being in them; with --emulate
    those for GPUs are to have the same."""

    def run(function: Callable, *args: object) -> list[np.ndarray]:
        compiled = mlc_jit(function, choose="ours")
        results = [np.asarray(r) for r in jax.tree.leaves(compiled(*args))]
        assert compiled.report().coverage == 1, str(compiled.explain(verbose=True))
        assert_agree(emulated(function, *args) or results, results)
        return results

    return run


@pytest.fixture(scope="session")
def take_apart() -> Callable[..., Parts]:
    """`take_apart(function, *args)`: its kernels, to be scheduled and run one by one."""
    return apart.take_apart


@pytest.fixture(scope="session")
def take_module_apart() -> Callable[[ir.Module], Parts]:
    """The same of a StableHLO module."""
    return apart.take_module_apart


@pytest.fixture(scope="session")
def fenced() -> Fenced:
    return Fenced()


@pytest.fixture(scope="session")
def machine_code(request: pytest.FixtureRequest, fenced: Fenced) -> MachineCode:
    """Machine code; with --emulate, kernels for GPUs must come to the same."""
    if not request.config.getoption("--emulate"):
        return MachineCode(fenced)
    emulator, cuda_source = map(request.getfixturevalue, ("emulator", "cuda_source"))
    sources: dict[TensorProgram, CudaSource] = {}

    def check(program: TensorProgram, operands: Arrays, results: Arrays) -> None:
        if program in sources:  # which parameters machine code has makes no difference
            return
        if any(map(is_for_cpus, program.steps)):
            return
        source = sources[program] = cuda_source(program)
        emulator.prepare([source], keep=False, run_once=True)
        assert_agree(emulator.run(source, program, operands, 7), results)

    return MachineCode(fenced, check)


@pytest.fixture(scope="session")
def as_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[KernelCode]]:
    """`as_c(loop programs, *flags)`: the programs as C, compiled without a warning; skips where
    there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("cc, a compiler for C, is not installed")

    def make(programs: Sequence[LoopProgram], *flags: str) -> list[KernelCode]:
        names = [f"kernel{n}" for n in range(len(programs))]
        functions = [
            print_c(program, name, is_static=False)
            for name, program in zip(names, programs, strict=True)
        ]
        folder = tmp_path_factory.mktemp("c")
        source, library = folder / "kernels.c", folder / "kernels.so"
        source.write_text(print_file("\n".join(functions)))
        subprocess.run(
            [
                "cc",
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-shared",
                "-fPIC",
                "-o",
                library,
                source,
                "-lm",
                *(flags or ("-O2",)),
            ],
            check=True,
        )
        loaded = ctypes.CDLL(library)
        return [
            KernelCode(
                ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value,
                program.scratch_bytes,
                loaded,
            )
            for name, program in zip(names, programs, strict=True)
        ]

    return make


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest, tmp_path_factory, fenced: Fenced) -> Emulator:
    """Runs CUDA C++ here; skips where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("g++, which the emulator is compiled with, is not installed")
    return Emulator(
        Path(request.config.cache.mkdir("emulator")),
        tmp_path_factory.mktemp("emulator"),
        lambda size, at_end: fenced.empty((size,), np.uint8, at_end),
    )


@pytest.fixture(scope="session")
def cuda_source() -> Callable[..., CudaSource]:
    """`cuda_source(tensor program, tuned=None)`: its CUDA C++ and launches."""
    target = cuda.named("sm_90")

    def make(program: TensorProgram, tuned: Tuned | None = None) -> CudaSource:
        return print_program(cuda_templates.schedule_program(program, target, tuned)[0], target)

    return make


def _arrays(
    dtype: str, *shapes: tuple[int, ...], special: bool = False, seed: int = 0
) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, zlib.crc32(f"{dtype}{shapes}".encode())])
    kind = jnp.dtype(dtype)
    result = []
    for shape in shapes:
        if kind == np.bool_:
            result.append(rng.random(shape) < 0.5)
        elif jnp.issubdtype(kind, jnp.integer):
            low, high = (0, 9) if jnp.issubdtype(kind, jnp.unsignedinteger) else (-5, 6)
            result.append(np.asarray(rng.integers(low, high, shape)).astype(kind))
        else:
            values = _numbers(rng, shape, special)
            if jnp.issubdtype(kind, jnp.complexfloating):
                values = values + 1j * _numbers(rng, shape, special)
            result.append(np.asarray(values).astype(kind))
    return result


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], special: bool) -> np.ndarray:
    values = rng.standard_normal(shape)
    if not special:
        return values
    chosen = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], shape)
    return np.where(rng.random(shape) < 0.2, chosen, values)


@pytest.fixture(scope="session")
def arrays() -> Callable[..., list[np.ndarray]]:
    """`arrays(dtype, *shapes, special=False, seed=0)`: random arrays, the same in every run."""
    return _arrays
