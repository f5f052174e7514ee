"""Faults of ours, planted at every stage, which are never the user's: results are those of
`jax.jit`, one warning points at the user's line and names a folder to see the fault again."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir

import hlo_mlc
import hlo_mlc.frontend.parse
from hlo_mlc import building, compiler, kernel_objects, mlc_jit
from hlo_mlc.backends import base, cpu
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.interop import compiling, extraction, function, measuring, primitive, reproducer
from hlo_mlc.interop.faults import Faults, Subject
from hlo_mlc.partition.choose.cost import choose_all
from hlo_mlc.runtime import cache, variants
from hlo_mlc.support.errors import CodegenError, MlcError, VerifyError
from hlo_mlc.support.faults import Fault
from hlo_mlc.support.options import Options
from making.left import by_xla
from making.prepared import wait_for_kernels

X = jnp.asarray(np.cos(np.arange(64 * 64, dtype=np.float32)).reshape(64, 64))
W = np.sin(np.arange(64 * 64, dtype=np.float32)).reshape(64, 64)

# Where each stage of a compilation begins, and what the functions are called by those before.
BEFORE_COMPILING = [
    (primitive, "_why_not"),
    (primitive, "_body_cache"),
    (primitive, "_constants"),
    (primitive, "_call"),
    (primitive, "extract"),
    (primitive, "donate"),
    (primitive, "write_in"),
]
OF_THE_FUNCTION = [
    (primitive, "compile_function"),
    (compiling, "_compile"),
    (cpu, "target_of"),
    (compiler.Recorder, "open"),
    (compiler, "import_function"),
    (compiler.simplify, "simplify"),
    (compiler, "read_donations"),
    (compiler.planner, "partition"),
    (compiler, "build_kernels"),
    (compiler, "emit_module"),
    (compiler, "report_on"),
    (cpu.predictions, "predict"),
    (compiler, "say_outcome"),
    (compiling, "_checked"),
    (compiling, "register_handler"),
    (function.Ledger, "record"),
    (primitive, "splice"),
    (extraction, "donate"),
    (extraction, "rename_to_main"),
]
OF_A_KERNEL = [
    (cpu.CpuBackend, "schedules"),
    (kernel_objects, "object_cache"),
    (kernel_objects, "object_key"),
    (cache.ObjectCache, "get"),
    (kernel_objects.replay, "schedule_as_recorded"),
    (cpu.printer, "print_program"),
]
# What is promised may fail when the program is compiled (tests/compiler/test_promises.py).
OF_CODE = [
    (cpu, "compile_ir"),
    (base.KernelObject, "pack"),
    (cache.ObjectCache, "put"),
    (variants, "load_object"),
    (variants, "publish"),
]
STAGES = [*BEFORE_COMPILING, *OF_THE_FUNCTION, *OF_A_KERNEL]


def named(stage: tuple[Any, str]) -> str:
    return f"{stage[0].__name__.rpartition('.')[2]}.{stage[1]}"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is compiled yet, nor by what other tests have begun, and all that can be is taken,
    whatever machine this is."""
    wait_for_kernels()
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "_built", {})
    monkeypatch.setattr(cpu, "recorded_or", lambda *_: choose_all)
    monkeypatch.setattr(cache.ObjectCache, "is_empty", lambda _: False)  # so that it is asked
    monkeypatch.setattr(cpu.worth, "worth_it", lambda plan, target: plan)
    monkeypatch.setattr(cpu.worth, "completion", lambda *_: ())
    monkeypatch.setattr(measuring, "_WORTH_IT", 0.0)
    monkeypatch.setattr(measuring, "_BUDGET_S", 0.01)


def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two kernels or more, with a constant that the function closes over."""
    return jax.nn.softmax(x @ W), by_xla(x)


STEP_LINE = step.__code__.co_firstlineno


def plant(monkeypatch: pytest.MonkeyPatch, stage: tuple[Any, str], error: BaseException) -> list:
    """Has a stage fail, always; what it was called with."""
    calls = []

    def fail(*args: object, **kwargs: object) -> None:
        calls.append(args)
        raise error

    monkeypatch.setattr(*stage, fail)
    return calls


def agree(actual: Any, expected: Any) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def ours(caught: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    return [w for w in caught if "hlo_mlc" in str(w.message)]


def kept_in(warning: warnings.WarningMessage) -> Path:
    """The folder that a warning names."""
    found = re.search(r"\(what it takes to see it again is in (.*)\)$", str(warning.message))
    assert found, warning
    return Path(found[1])


@pytest.mark.parametrize(
    "stage,choose",
    [
        *((stage, "auto") for stage in (*STAGES, (cpu, "Promise"))),
        *((stage, "measure") for stage in (*STAGES, *OF_CODE)),
    ],
    ids=lambda one: one if isinstance(one, str) else named(one),
)
def test_a_fault_leaves_the_function_to_xla(
    monkeypatch: pytest.MonkeyPatch, stage: tuple[Any, str], choose: str
) -> None:
    calls = plant(monkeypatch, stage, ZeroDivisionError("planted"))
    if stage == (cpu, "Promise"):  # which nobody makes of kernels with checks
        monkeypatch.delenv("HLO_MLC_CHECK", raising=False)
    f = mlc_jit(step, choose=choose)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agree(f(X), jax.jit(step)(X))
        agree(f(X[:32]), jax.jit(step)(X[:32]))  # another program, the same fault
    assert calls, "the stage was not reached"
    parts = {str(w.message).partition(" to XLA")[0] for w in ours(caught)}
    assert len(ours(caught)) == len(parts) == 1, caught
    (warning,) = ours(caught)
    assert issubclass(warning.category, RuntimeWarning)
    assert warning.filename == __file__
    assert STEP_LINE <= warning.lineno <= STEP_LINE + 2
    assert "ZeroDivisionError: planted" in str(warning.message)
    about = (kept_in(warning) / "fault.txt").read_text()
    assert about.endswith("ZeroDivisionError: planted\n")
    assert f"choose = {choose}" in about and f"jax {jax.__version__}" in about
    if stage not in BEFORE_COMPILING and stage != (function.Ledger, "record"):
        assert "ZeroDivisionError: planted" in str(f.explain(X))


@pytest.mark.parametrize("stage", [*STAGES, *OF_CODE], ids=named)
def test_with_ours_only_it_is_raised(
    monkeypatch: pytest.MonkeyPatch, stage: tuple[Any, str]
) -> None:
    """As an error of ours; the last of what is printed is about the user's lines."""
    error = ZeroDivisionError("planted")
    plant(monkeypatch, stage, error)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MlcError, match="ZeroDivisionError: planted") as caught:
            mlc_jit(step, choose="ours")(X)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    inside = str(Path(hlo_mlc.__file__).parent)
    assert files and not [file for file in files if file.startswith(inside)], files
    causes = []
    cause = caught.value
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__
    assert error in causes


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("planted"),
        RecursionError("planted"),
        VerifyError("planted"),
        CodegenError("planted"),
        StopIteration("planted"),
        UnicodeDecodeError("utf-8", b"", 0, 1, ""),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_the_fault_is(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    plant(monkeypatch, (compiler.planner, "partition"), error)
    with pytest.warns(RuntimeWarning, match=type(error).__name__) as caught:
        agree(mlc_jit(step, choose="auto")(X), jax.jit(step)(X))
    assert len(caught) == 1


@pytest.mark.parametrize("choose", ["auto", "measure", "ours"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_interrupts_pass(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, choose: str
) -> None:
    for stage in (
        (compiler.simplify, "simplify"),
        (kernel_objects.replay, "schedule_as_recorded"),
        (primitive, "splice"),
    ):
        with monkeypatch.context() as patch:
            plant(patch, stage, error)
            with warnings.catch_warnings(), pytest.raises(type(error)) as caught:
                warnings.simplefilter("error")
                mlc_jit(step, choose=choose)(X)
        assert caught.value is error
    f = mlc_jit(step, choose=choose)
    agree(f(X), jax.jit(step)(X))  # nothing is left locked, or half done


@pytest.mark.parametrize("choose", ["auto", "measure", "ours"])
def test_errors_of_the_user_pass(choose: str) -> None:
    own = ValueError("the user's own")

    def fails(x: jax.Array) -> jax.Array:
        raise own

    odd = jax.extend.core.Primitive("odd")
    odd.def_abstract_eval(lambda x: x)
    mlir.register_lowering(odd, lambda *_: fails(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f in (fails, lambda x: odd.bind(x) + 1, lambda x: mlc_jit(fails)(x) * 2):
            with pytest.raises(ValueError, match="the user's own") as caught:
                mlc_jit(f, choose=choose)(X)
            assert caught.value is own


@pytest.mark.parametrize("choose", ["auto", "measure", "ours"])
def test_programs_that_jax_refuses_are_refused_by_jax(choose: str) -> None:
    def wrong(x: jax.Array) -> jax.Array:
        return jax.lax.reshape(x * 2, (5,)) + 1  # found by the verifier of the whole module

    with pytest.raises((TypeError, ValueError)) as theirs:
        jax.jit(wrong)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(theirs.type):
            mlc_jit(wrong, choose=choose)(X)


@pytest.mark.parametrize(
    "stage",
    [(compiler.simplify, "simplify"), (kernel_objects.replay, "schedule_as_recorded")],
    ids=named,
)
def test_a_warning_that_was_made_an_error_is_raised(
    monkeypatch: pytest.MonkeyPatch, stage: tuple[Any, str]
) -> None:
    plant(monkeypatch, stage, ZeroDivisionError("planted"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="to XLA: the compiler failed with Zero"):
            mlc_jit(step, choose="auto")(X)


def test_a_fault_in_one_kernel_costs_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_as_recorded = kernel_objects.replay.schedule_as_recorded

    def faulty(program: Any, *rest: Any) -> Any:
        if len(program.operands) == 1:
            raise CodegenError("no code for this one")
        return schedule_as_recorded(program, *rest)

    monkeypatch.setattr(kernel_objects.replay, "schedule_as_recorded", faulty)
    f = mlc_jit(step, choose="auto")
    told = r"leaves \S+@test_faults.py:\d+ of step to XLA"
    with pytest.warns(RuntimeWarning, match=told) as caught:
        agree(f(X), jax.jit(step)(X))
    assert (caught[0].filename, len(caught)) == (__file__, 1)
    assert caught[0].lineno == STEP_LINE + 2, "the line of the operation"
    report = f.report(X)
    assert report.kernels and any("no code for this one" in left.reason for left in report.left)


class Halfway(Exception):
    """Raised in the middle of what is to happen as a whole or not at all."""


@pytest.mark.parametrize("after", [0, 1])
def test_what_is_spliced_in_half_is_taken_out_again(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The module that XLA gets is whole: it is the one that came, with nothing beside it."""

    def merge(module: ir.Module, name: str, compiled: ir.Module, dst_symtab: Any) -> str:
        if after:
            mlir.merge_mlir_modules(module, name, compiled, dst_symtab=dst_symtab)
        raise Halfway("planted")

    monkeypatch.setattr(extraction, "mlir", SimpleNamespace(merge_mlir_modules=merge))
    f = jax.jit(lambda x: mlc_jit(step)(x)[0] + mlc_jit(step)(x * 2)[1])
    with pytest.warns(RuntimeWarning, match="Halfway: planted"):
        lowered = f.lower(X)
    text = lowered.as_text()
    assert KERNEL_TARGET not in text and "mlc_step" not in text
    lowered.compiler_ir().operation.verify()
    np.testing.assert_allclose(
        lowered.compile()(X), jax.jit(lambda x: step(x)[0] + step(x * 2)[1])(X), rtol=1e-5
    )


def test_after_a_fault_other_functions_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    splice, failed = primitive.splice, []

    def once(*args: Any) -> None:
        if not failed:
            failed.append(args)
            raise ZeroDivisionError("planted")
        splice(*args)

    monkeypatch.setattr(primitive, "splice", once)

    @mlc_jit
    def a(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x @ W)

    @mlc_jit
    def b(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(W @ x)

    with pytest.warns(RuntimeWarning):
        lowered = jax.jit(lambda x: (a(x), b(x))).lower(X)
    assert "mlc_a" not in lowered.as_text() and "mlc_b" in lowered.as_text()
    agree(lowered.compile()(X), (jax.nn.softmax(X @ W), jax.nn.softmax(W @ X)))


def test_it_can_be_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        plant(patch, (compiler, "emit_module"), ZeroDivisionError("planted"))
        with pytest.warns(RuntimeWarning) as caught:
            mlc_jit(step, choose="auto")(X)
    folder = kept_in(caught[0])
    assert folder.stat().st_mode & 0o77 == 0
    module = folder / "module.mlir"
    (entry,) = re.findall(r"func\.func public @(\S+)\(", module.read_text())
    again = hlo_mlc.compile_stablehlo(module, entry=entry.strip('"'), choose="ours")
    assert again.report().kernels
    agree(again(np.zeros_like(W), X), jax.jit(step)(X))  # the constant is written in


def test_of_a_long_error_the_beginning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is in the folder."""
    plant(monkeypatch, STAGES[0], VerifyError("it starts " + "and goes on " * 9999 + "to the end"))
    with pytest.warns(RuntimeWarning, match="it starts and goes on") as caught:
        agree(mlc_jit(step)(X), jax.jit(step)(X))
    assert len(str(caught[0].message)) < 1000
    assert any("to the end" in file.read_text() for file in kept_in(caught[0]).glob("*.txt"))


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options.from_environment()
    large = hlo_mlc.frontend.parse.parse_module(
        """
        func.func @main() -> tensor<1000000xf32> {
          %0 = stablehlo.constant dense<"0x"""
        + np.arange(1e6, dtype="f").tobytes().hex()
        + """">
            : tensor<1000000xf32>
          return %0 : tensor<1000000xf32>
        }"""
    )
    folder = reproducer.keep(Fault(ZeroDivisionError("large")), lambda: large, options)
    assert (folder / "module.mlir").stat().st_size < 10_000
    hlo_mlc.compile_stablehlo(folder / "module.mlirbc")
    monkeypatch.setattr(reproducer, "_LARGEST_BYTES", 1000)
    folder = reproducer.keep(Fault(ZeroDivisionError("larger")), lambda: large, options)
    assert sorted(p.name for p in folder.iterdir()) == ["fault.txt", "module.mlir"]
    folders = [
        reproducer.keep(Fault(ZeroDivisionError(str(n))), lambda: "program", options)
        for n in range(30)
    ]
    left = list((tmp_path / reproducer.FOLDER).iterdir())
    assert len(left) == reproducer._MOST_FOLDERS and folders[-1] in left


def test_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / reproducer.FOLDER).write_text("a file in the way")
    plant(monkeypatch, (compiler.simplify, "simplify"), ZeroDivisionError("planted"))
    with pytest.warns(RuntimeWarning, match="failed with ZeroDivisionError: planted$"):
        agree(mlc_jit(step, choose="auto")(X), jax.jit(step)(X))


def test_a_fault_is_told_though_its_program_cannot_be_shown(tmp_path: Path) -> None:
    left: list[str] = []
    subject = Subject("f", Options(cache_dir=tmp_path), SimpleNamespace)  # no module, and no text
    with (
        pytest.warns(RuntimeWarning, match="leaves f to XLA: .*planted"),
        Faults().contained(subject, left.append),
    ):
        raise ValueError("planted")
    assert len(left) == 1 and "planted" in left[0]


def test_modules_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in `compile_stablehlo` points at the line that calls it."""
    text = jax.jit(step).lower(X).as_text()
    plant(monkeypatch, (compiler.simplify, "simplify"), ZeroDivisionError("planted"))
    with pytest.warns(RuntimeWarning, match="leaves main to XLA") as caught:
        compiled = hlo_mlc.compile_stablehlo(text)
        line = sys._getframe().f_lineno - 1
    assert (caught[0].filename, caught[0].lineno, len(caught)) == (__file__, line, 1)
    agree(compiled(X), jax.jit(step)(X))
