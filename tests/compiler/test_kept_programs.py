"""Programs are compiled by one process for all later ones, as long as nothing that decides has
changed: then they are compiled anew."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from hlo_mlc import building, compiler, kept_programs, mlc_jit
from hlo_mlc.backends.cpu import CpuBackend, cpu_backend
from hlo_mlc.building import kernel_with_id
from hlo_mlc.compiler import CompiledModule, compile_module
from hlo_mlc.kernel_objects import object_key
from hlo_mlc.report import Report
from hlo_mlc.runtime import records, sources
from hlo_mlc.runtime.cache import object_cache
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import MlcWarning
from hlo_mlc.target.rates import Rates
from hlo_mlc.tensor.text import program_text
from making.left import by_xla

X = np.sin(np.arange(64 * 48, dtype=np.float32)).reshape(64, 48)
PROCESSES = 4


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs are kept, in a cache of the test's own, and nothing is known yet."""
    monkeypatch.setattr(kept_programs, "_LARGEST_BYTES", 1 << 20)
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HLO_MLC_CHECK", raising=False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompiledModule]:
    """Compiles as a process does that has compiled nothing before."""

    def compiled(module: ir.Module, choose: str = "ours", **options: Any) -> CompiledModule:
        monkeypatch.setattr(building, "_built", {})
        backend = options.pop("backend", None)
        return compile_module(
            module, Options.from_environment(choose=choose, **options), backend=backend
        )

    return compiled


def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two kernels, and something that XLA computes."""
    y = jax.nn.softmax(x * 2 + jnp.flip(x, 0))
    return y, by_xla(jnp.tanh(y)).sum(0) * 3


def lowered(donate: bool = False) -> ir.Module:
    return jax.jit(function, donate_argnums=(0,) if donate else ()).lower(X).compiler_ir()


def is_recalled(one: CompiledModule) -> bool:
    stages = one.report.stage_seconds
    assert ("recall" in stages) != ("import" in stages)
    return "recall" in stages


def text(one: CompiledModule) -> str:
    """With lines of files as bytecode has them, which does not say where one ends that is told to
    begin in column 0."""
    written = io.BytesIO()
    one.module.operation.write_bytecode(written)
    with one.module.context:
        module = ir.Module.parse(written.getvalue())
    return module.operation.get_asm(enable_debug_info=True)


def comparable(report: Report) -> Report:
    return replace(report, seconds=0.0, stage_seconds={})


@pytest.mark.parametrize("choose", ["ours", "auto"])
def test_a_later_process_compiles_nothing(
    compiled: Callable[..., CompiledModule], monkeypatch: pytest.MonkeyPatch, choose: str
) -> None:
    first = compiled(lowered(), choose)
    settle()
    for module, stage in (
        (compiler, "import_function"),
        (compiler.simplify, "simplify"),
        (compiler.planner, "partition"),
        (compiler, "build_kernels"),
        (compiler, "emit_module"),
    ):
        monkeypatch.setattr(module, stage, lambda *_: pytest.fail("compiled again"))
    again = compiled(lowered(), choose)
    assert not is_recalled(first) and is_recalled(again)
    assert text(again) == text(first)
    assert comparable(again.report) == comparable(first.report)
    assert [kernel.nests for kernel in again.report.kernels] == [
        kernel.nests for kernel in first.report.kernels
    ]
    assert choose == "auto" or again.report.kernels


CALLED = """
import sys
import jax
import numpy as np
from hlo_mlc import mlc_jit
from hlo_mlc.support.lazy_imports import is_loaded

def loaded_files():
    loaded = {name: module for name, module in sys.modules.items() if is_loaded(module)}
    return {name for name, module in loaded.items() if not hasattr(module, "__path__")}

function = mlc_jit(lambda x: jax.nn.softmax(x * 2).sum(0), choose="ours")
print("hlo_mlc.partition.planner" in loaded_files())
function(np.ones((64, 48), np.float32))
assert function.report().coverage == 1
print("recall" in function.report().stage_seconds)
print(*loaded_files())
"""
COMPILER = {"expr", "tensor", "ops", "passes", "loops", "schedule", "templates", "tuning"} | {
    "partition",
    "codegen",
    "explain",
    "limits",
    "page",
}
NEEDED = {  # types of arrays, calls by their names, kernels and what is reported of them, LLVM
    "expr.dtypes",
    "ops.library_calls",
    "loops.proof",
    "partition.estimate",
    "partition.fuse.limits",
    "partition.kernel",
    "codegen.cpu.assemble",
}


def test_a_process_that_finds_its_program_loads_no_compiler() -> None:
    def called(*arguments: str) -> tuple[bool, bool, set[str]]:
        ran = subprocess.run(
            [sys.executable, "-c", CALLED, *arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        is_preloaded, is_recalled, files = ran.stdout.splitlines()
        ours = {name for name in files.split() if name.startswith("hlo_mlc.")}
        loaded = {name.removeprefix("hlo_mlc.") for name in ours}
        return (
            is_preloaded == "True",
            is_recalled == "True",
            {name for name in loaded if name.split(".")[0] in COMPILER},
        )

    is_preloaded, is_recalled, loaded = called()
    assert is_preloaded and not is_recalled and len(loaded) > 100
    assert called() == (False, True, NEEDED)
    # Another command may have other programs.
    is_preloaded, is_recalled, loaded = called("another")
    assert is_preloaded and is_recalled and len(loaded) > 100
    assert called() == called("another") == (False, True, NEEDED)


def settle() -> None:
    """Waits until what is done behind a call is done."""
    for thread in threading.enumerate():
        if thread.name.startswith("hlo_mlc"):
            thread.join()


def test_what_stays_with_xla_as_a_whole_is_known_too(
    compiled: Callable[..., CompiledModule],
) -> None:
    module = jax.jit(lambda x: by_xla(x)).lower(X).compiler_ir()
    first = compiled(module)
    again = compiled(module)
    assert first.module is module
    assert is_recalled(again)
    assert again.module is module


def test_the_program_of_a_kernel_is_made_when_somebody_asks(
    compiled: Callable[..., CompiledModule],
) -> None:
    first = compiled(lowered())
    texts = {k.id: program_text(kernel_with_id(k.id).program) for k in first.report.kernels}
    again = compiled(lowered())
    assert is_recalled(again)
    for kernel in again.report.kernels:
        made = kernel_with_id(kernel.id)
        assert made.name == kernel.name
        assert program_text(made.program) == texts[kernel.id]
        assert (len(made.inputs), len(made.outputs)) == (len(kernel.operands), len(kernel.results))


def faster(target: Any) -> Any:
    return replace(target, rates=replace(Rates(), vector_operations=9_999.0))


@pytest.mark.parametrize(
    "changed",
    [
        {"choose": "auto"},
        {"deterministic": True},
        {"threads": 1},
        {"target": "x86-64-v2"},
        {"backend": faster},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_other_settings_are_other_programs(
    compiled: Callable[..., CompiledModule], changed: dict[str, Any]
) -> None:
    module = lowered()
    compiled(module)
    assert is_recalled(compiled(module))
    if "backend" in changed:
        backend = cpu_backend(Options.from_environment())
        changed = {"backend": CpuBackend(changed["backend"](backend.target))}
        assert changed["backend"] == backend
    assert not is_recalled(compiled(module, **changed))


def test_what_decides_nothing_does_not_count(
    compiled: Callable[..., CompiledModule], capsys: pytest.CaptureFixture[str]
) -> None:
    module = lowered()
    compiled(module)
    assert is_recalled(compiled(module, debug=4, settle=False, cache_limit_mib=7))
    assert "for i" in capsys.readouterr().err  # its loops


def test_donated_arguments_are_another_program(compiled: Callable[..., CompiledModule]) -> None:
    first, donating = compiled(lowered()), compiled(lowered(donate=True))
    assert not is_recalled(donating)
    assert is_recalled(again := compiled(lowered(donate=True)))
    assert text(again) == text(donating) != text(first)


@pytest.mark.parametrize("of", ["package_digest", "version"])
def test_other_sources_are_another_compiler(
    compiled: Callable[..., CompiledModule], monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Ours, or those of packages that we compute with."""
    module = lowered()
    compiled(module)
    monkeypatch.setattr(kept_programs, of, lambda _: "changed")
    assert not is_recalled(compiled(module))
    assert is_recalled(compiled(module))


def test_sources_that_changed_since_they_were_imported_are_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sources._digests.__wrapped__(tmp_path, 0) == sources._digests.__wrapped__(tmp_path, 1)
    monkeypatch.setattr(sources, "_IMPORTED_NS", 0)
    assert sources._digests.__wrapped__(tmp_path, 1) != sources._digests.__wrapped__(tmp_path, 1)
    known = sources.package_digest(tmp_path)
    assert sources.package_digest(tmp_path) == known
    monkeypatch.setattr(sources, "loaded_late", lambda: -1)
    assert sources.package_digest(tmp_path) != known, "what was loaded since may be newer"


def test_a_kernel_that_was_tuned_is_compiled_as_it_is_recorded(
    compiled: Callable[..., CompiledModule],
) -> None:
    module, options = lowered(), Options.from_environment(choose="auto")
    kernels = compiled(module).report.kernels
    first = compiled(module, "auto")
    settle()
    assert is_recalled(compiled(module, "auto"))
    target = cpu_backend(options).target.key
    for kernel in kernels:  # some of which are not taken
        record = Record(kernel.id, target, {}, Measured(2.0, 1.0, 2.0, 9.0, 9.0), "ours")
        open_records(options).put(record)
        tuned = compiled(module, "auto")
        settle()
        assert not is_recalled(tuned)
        (own,) = (k for k in tuned.report.kernels if k.id == kernel.id)
        assert own.tuned == record.measured
        assert is_recalled(again := compiled(module, "auto"))
        assert comparable(again.report) == comparable(tuned.report)
    for kernel in kernels:
        open_records(options).remove(kernel.id, target)
    untuned = compiled(module, "auto")
    assert comparable(untuned.report) == comparable(first.report)


def test_what_is_tuned_meanwhile_is_not_mixed_up(
    compiled: Callable[..., CompiledModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that comes between the choice and the end makes no program of the time before."""
    module, options = lowered(), Options.from_environment(choose="ours")
    report_on, target = compiler.report_on, cpu_backend(options).target.key

    def tuned_meanwhile(*args: Any) -> Report:
        report = report_on(*args)
        for kernel in report.kernels:
            open_records(options).put(Record(kernel.id, target, {}, Measured(2.0, 1.0, 2.0)))
        return report

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "report_on", tuned_meanwhile)
        compiled(module)
    assert not is_recalled(compiled(module))
    assert is_recalled(compiled(module))


def test_without_the_object_of_a_kernel_it_is_compiled_again(
    compiled: Callable[..., CompiledModule],
) -> None:
    module, options = lowered(), Options.from_environment(choose="ours")
    first, backend = compiled(module), cpu_backend(options)
    for number, kernel in enumerate(first.report.kernels):
        key = object_key(kernel.kept.kernel, options, backend, {})
        path = object_cache(options)._path(key)
        path.unlink()
        assert not is_recalled(compiled(module)), number
        assert path.exists()
    assert is_recalled(compiled(module))


def test_a_damaged_file_is_written_again(compiled: Callable[..., CompiledModule]) -> None:
    module, cache = lowered(), object_cache(Options.from_environment())
    before = {entry.key for entry in cache.entries()}
    compiled(module)
    (path,) = (
        cache._path(entry.key)
        for entry in cache.entries()
        if entry.key not in before and cache.beginning(entry.key, 8) == b"program:"
    )
    assert kept_programs.program_name(cache.beginning(path.parent.name + path.name, 99)) == "main"
    content = path.read_bytes()
    for damaged in (content[:-1], content[:100], b"", content[:-9] + b"\0" + content[-8:]):
        path.write_bytes(damaged)
        with pytest.warns(MlcWarning, match="is damaged"):
            assert not is_recalled(compiled(module))
        assert is_recalled(compiled(module))


def test_what_does_not_hold_what_it_should_is_a_fault_and_compiled_again(
    compiled: Callable[..., CompiledModule],
) -> None:
    module, cache = lowered(), object_cache(Options.from_environment())
    compiled(module, "auto")
    settle()
    (key,) = (e.key for e in cache.entries() if cache.beginning(e.key, 8) == b"program:")
    cache.put(key, b"program: main\nof another kind")
    again = compiled(module, "auto")
    assert not is_recalled(again)
    assert again.faults
    settle()
    assert is_recalled(compiled(module, "auto"))


def test_what_is_watched_or_large_is_not_kept(
    compiled: Callable[..., CompiledModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, cache = lowered(), object_cache(Options.from_environment())

    def programs() -> int:
        return sum(cache.beginning(e.key, 8) == b"program:" for e in cache.entries())

    compiled(module, dump_dir=tmp_path / "dump")
    compiled(module, check=True)
    monkeypatch.setattr(kept_programs, "_LARGEST_BYTES", 100)
    compiled(module)
    assert programs() == 0
    monkeypatch.setattr(kept_programs, "_LARGEST_BYTES", 1 << 20)
    compiled(module)
    assert programs() == 1
    assert not is_recalled(compiled(module, dump_dir=tmp_path / "dump"))


def test_large_constants_are_not_written_to_learn_their_size(
    compiled: Callable[..., CompiledModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[ir.Module] = []
    bytecode = kept_programs._bytecode

    def noted(module: ir.Module) -> bytes:
        written.append(module)
        return bytecode(module)

    monkeypatch.setattr(kept_programs, "_bytecode", noted)
    weights = np.sin(np.arange(300_000, dtype=np.float32))
    small, equal = weights[:200_000], weights[:200_000].copy()
    for function, is_written in (
        (lambda x: x[:300_000] * weights, False),
        (lambda x: x[:300_000] * weights.astype(np.int8), True),
        (lambda x: x * np.float32(2), True),
        (lambda x: (x[:200_000] * small, x[:200_000] + equal), True),  # written once
    ):
        del written[:]
        shape = jax.ShapeDtypeStruct((400_000,), np.float32)
        compiled(jax.jit(function).lower(shape).compiler_ir())
        assert bool(written) == is_written


def test_a_program_with_a_fault_is_not_kept(
    compiled: Callable[..., CompiledModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = jax.ShapeDtypeStruct((1024, 1024), np.float32)  # so that kernels are worth it
    module = jax.jit(function).lower(large).compiler_ir()
    with monkeypatch.context() as patch:
        patch.setattr(building, "begin_object", lambda *_: [][0])
        assert compiled(module, "auto").faults
        settle()
    whole = compiled(module, "auto")
    assert not is_recalled(whole)
    assert whole.report.kernels
    assert not whole.faults
    settle()
    assert is_recalled(compiled(module, "auto"))


def test_records_in_a_file_decide_as_others(
    compiled: Callable[..., CompiledModule], tmp_path: Path
) -> None:
    module, options = lowered(), Options.from_environment(choose="ours")
    kernel = compiled(module).report.kernels[0]
    target = cpu_backend(options).target.key
    path = tmp_path / "records.json"

    def export(speedup: float) -> None:
        record = Record(kernel.id, target, {}, Measured(2.0, 1.0, speedup))
        content = {"format": records._EXPORT_FORMAT, "records": [records._to_json(record)]}
        path.write_text(json.dumps(content))

    export(2.0)
    assert not is_recalled(compiled(module, records=path))
    assert is_recalled(compiled(module, records=path))
    export(3.0)
    assert not is_recalled(compiled(module, records=path))


SECOND = """
import sys, numpy as np
from hlo_mlc import mlc_jit, compiler
import jax, jax.numpy as jnp
compiled = []
imported = compiler.import_function
compiler.import_function = lambda *args: compiled.append(1) or imported(*args)
function = mlc_jit(lambda x: jax.nn.softmax(jnp.tanh(x) * 2)[::-1].sum(0), choose="ours")
x = np.sin(np.arange(64 * 48, dtype=np.float32)).reshape(64, 48)
np.save(sys.argv[1], function(x))
print(len(compiled), function.report().coverage, str(function.explain(x)).count("softmax"))
"""


def test_processes_share_it(tmp_path: Path) -> None:
    """Several at the same time, that all write it, and one afterwards that computes the same."""

    def start(number: int) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", SECOND, str(tmp_path / f"{number}.npy")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": ""},
        )

    first = [start(number) for number in range(PROCESSES)]
    outputs = [process.communicate(timeout=300)[0].split() for process in first]
    assert all(output[0] in ("0", "1") for output in outputs)
    assert "1" in [output[0] for output in outputs]
    last = start(PROCESSES)
    output = last.communicate(timeout=300)[0].split()
    assert output[0] == "0"
    assert output[1] == "1.0"
    assert output[2] != "0"
    results = [np.load(tmp_path / f"{number}.npy") for number in range(PROCESSES + 1)]
    expected = jax.nn.softmax(jnp.tanh(X) * 2)[::-1].sum(0)
    np.testing.assert_allclose(results[0], expected, rtol=1e-5)
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_functions_are_called_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `jax.jit`, with donated arguments, and with the same kernels twice."""
    expected = [np.asarray(r) for r in function(jnp.asarray(X))]
    for process in range(2):
        monkeypatch.setattr(building, "_built", {})
        mine = mlc_jit(lambda x: function(x), choose="ours", donate_argnums=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # XLA may not have used what was donated
            got = mine(jnp.array(X))
        assert ("recall" in mine.report().stage_seconds) == bool(process)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert mine.report().coverage > 0
