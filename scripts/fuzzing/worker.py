"""A process that judges programs one after the other; it may die or hang.

Reads one request a line: `{"seed": …}` or `{"program": …}`.  Writes a line `{"stage": …}` whenever
something else begins that may kill it, and at last the outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import jax
import numpy as np

from fuzzing.data import arrays
from fuzzing.families import text_of
from fuzzing.generator import generate
from fuzzing.judge import MANY_SAMPLES, MOST_SAMPLES, QUICK_SAMPLES, judge
from fuzzing.modes import SAME_AS_PLAIN, are_stacked
from fuzzing.program import Kernel, Program, UnfitError, identity, load, source
from fuzzing.reference import Oracle
from fuzzing.refusing import refusing

THREADS, CALLS = 3, 2  # of the mode `threads`, each with so many calls


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` is `right`, `void` (nothing to judge), `shared` (XLA has the same) or that of a fault:
    `wrong`, `error`, `warning`, `torn` (calls differ, or a mode from the plain program), `touched`
    (an argument changed), `crash`, `hang`."""

    kind: str
    detail: str = ""
    undetermined: int = 0
    elements: int = 0
    seconds: float = 0.0

    @property
    def is_fault(self) -> bool:
        return self.kind not in ("right", "void", "shared")


FAULTS = ("wrong", "error", "warning", "torn", "touched", "crash", "hang")


def outcome_of(program: Program, kernel: Kernel, enter: Callable[[str], None]) -> Outcome:
    """Runs a program and judges it; `enter` is told of every stage."""
    began = time.perf_counter()
    with jax.enable_x64(program.x64):
        outcome = _outcome(program, kernel, enter)
    return dataclasses.replace(outcome, seconds=time.perf_counter() - began)


def _outcome(program: Program, kernel: Kernel, enter: Callable[[str], None]) -> Outcome:
    try:
        text = source(program, text_of(program))
    except UnfitError as error:
        return Outcome("void", str(error))
    args = arguments(program)
    enter("reference")
    try:
        plain = load(text, identity)
        oracle = Oracle(plain, args, program.x64, program.data == "whole")
        reference = oracle.run(QUICK_SAMPLES, program.seed)
    except Exception as error:
        if _is_own(error):
            return Outcome("error", "the reference: " + _last_lines(error))
        return Outcome("void", f"no reference: {type(error).__name__}: {error}"[:500])
    enter("ours")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _cuts(program):
                results, fault = _run(load(text, kernel), program, args)
            if fault is None and program.mode in SAME_AS_PLAIN and oracle.has_no_order:
                fault = _unlike_plain(results, program, kernel, args, oracle)
        except Exception as error:
            enter("xla")
            if _fails(plain, args):
                return Outcome("void", f"XLA: {error}"[:500])
            return Outcome("error", _last_lines(error))
    if fault is not None:
        return fault
    found = judge(results, oracle.types, reference)
    if found.differences:
        enter("reference")
        reference = oracle.run(MANY_SAMPLES, program.seed + 1)
        found = judge(results, oracle.types, reference)
    kind = "right"
    if found.differences:
        enter("xla")
        theirs = [np.asarray(r) for r in jax.tree.leaves(jax.jit(plain)(*args))]
        mine = judge(results, oracle.types, reference, theirs)
        if mine.differences:
            enter("reference")
            reference = oracle.run(MOST_SAMPLES, program.seed + 2)
            mine = judge(results, oracle.types, reference, theirs)
        kind = "wrong" if mine.differences else "shared"
        found = mine if mine.differences else found
    ours = [str(w.message) for w in caught if "hlo_mlc" in str(w.message)]
    detail = "; ".join(map(str, found.differences[:3]))
    if ours and kind in ("right", "shared"):
        kind, detail = "warning", ours[0]
    return Outcome(kind, detail[:2000], found.undetermined, found.elements)


def _is_own(error: Exception) -> bool:
    """Whether the reference itself raised this, not JAX about the program."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return Path(frame.f_code.co_filename).parent == Path(__file__).parent


def _cuts(program: Program) -> contextlib.AbstractContextManager:
    return (
        refusing(program.mode_numbers[0]) if program.mode == "refused" else contextlib.nullcontext()
    )


def _unlike_plain(
    results: Sequence[np.ndarray],
    program: Program,
    kernel: Kernel,
    args: list[np.ndarray],
    oracle: Oracle,
) -> Outcome | None:
    """What differs from the plain program, compiled as well; nothing in it depends on an order.

    XLA, which may compute either, tells subnormal numbers of bf16 from zeros in some programs only.
    """
    plainly = program.replace(mode="plain")
    plain, _ = _run(load(source(plainly, text_of(plainly)), kernel), plainly, args)
    pairs = list(zip(results, plain, strict=True))
    if all(are_same(*pair) for pair in pairs):
        return None
    for number, (pair, disputed) in enumerate(zip(pairs, oracle.hang_on_flushing(), strict=True)):
        if not are_same(*(result[~disputed] for result in pair)):
            return Outcome("torn", f"result {number} is not that of the plain program")
    return None


def are_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two results agree to the sign of every zero.

    What is subnormal counts as a zero of its sign: XLA, which computes a part in some modes, makes
    it one in a maximum, where we hand it on (docs/accuracy.md). Of NaN, one is like another.
    """
    if one.dtype.kind in "biu":
        return np.array_equal(one, other)
    if one.dtype.kind == "c":
        return are_same(one.real, other.real) and are_same(one.imag, other.imag)
    tiny = jax.numpy.finfo(one.dtype).tiny
    with np.errstate(invalid="ignore"):  # which ml_dtypes makes of comparing NaN
        one, other = (
            np.where(np.abs(v) < tiny, np.copysign(v.dtype.type(0), v), v) for v in (one, other)
        )
        is_same = (one == other) & (np.signbit(one) == np.signbit(other))
    return bool((is_same | np.isnan(one) & np.isnan(other)).all())


def arguments(program: Program) -> list[np.ndarray]:
    """What a program is called with; stacks of it for `vmap`."""
    count = 2 + program.mode_numbers[1] % 2
    shapes = [
        (count, *i.shape) if is_stacked and program.mode == "vmap" else i.shape
        for i, is_stacked in zip(program.inputs, are_stacked(program), strict=True)
    ]
    return arrays(
        program.data,
        program.seed,
        [(s, i.dtype) for s, i in zip(shapes, program.inputs, strict=True)],
    )


def _fails(function: Callable, args: Sequence[np.ndarray]) -> bool:
    try:
        jax.block_until_ready(jax.jit(function)(*args))
    except Exception:
        return True
    return False


def _last_lines(error: Exception) -> str:
    """The error and where it was raised, without JAX's frames."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "hlo_mlc" in f.filename]
    where = (
        f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno} {frames[-1].name}"
        if frames
        else ""
    )
    return f"{type(error).__name__}: {str(error)[:600]}{where}"


def _run(
    function: Callable, program: Program, args: list[np.ndarray]
) -> tuple[list[np.ndarray], Outcome | None]:
    """The results of two calls, which are the same: with arrays of JAX's, then with NumPy's."""

    def call(array: Callable = jax.numpy.array) -> list[np.ndarray]:
        given = [array(a) for a in args]
        found = [np.asarray(r) for r in jax.tree.leaves(jax.block_until_ready(function(*given)))]
        if program.mode != "donated":
            touched.extend(
                k
                for k, (g, a) in enumerate(zip(given, args, strict=True))
                if not _equal([np.asarray(g)], [a])
            )
        return found

    touched: list[int] = []
    results = call()
    others = _at_once(call, program.x64) if program.mode == "threads" else [call(np.array)]
    if touched:
        return results, Outcome("touched", f"argument {touched[0]} changed during a call")
    for other in others:
        if not _equal(results, other):
            return results, Outcome("torn", "two calls with the same arguments differ")
    return results, None


def _at_once(call: Callable[[], list[np.ndarray]], x64: bool) -> list[list[np.ndarray]]:
    def calls(_: int) -> list[list[np.ndarray]]:
        with jax.enable_x64(x64):  # each thread has its own
            return [call() for _ in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [found for thread in pool.map(calls, range(THREADS)) for found in thread]


def _equal(ones: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return len(ones) == len(others) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(ones, others, strict=True)
    )


def xla(function: Callable, choose: str, **options: object) -> Callable:
    """A kernel that leaves all to XLA: to see whether it fails alike."""
    options = {k: v for k, v in options.items() if k not in ("any_rows", "deterministic")}
    return jax.jit(function, **options)


def kernel_named(name: str, choose: str) -> Kernel:
    """The compiler of this name, `module:function`, with its choice."""
    module, _, function = name.partition(":")
    return partial(getattr(importlib.import_module(module), function), choose=choose)


def serve(requests: TextIO, answers: TextIO, kernel: Kernel) -> None:
    """Answers requests until there are no more."""

    def say(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    say(stage="ready")
    for line in requests:
        request = json.loads(line)
        say(stage="generator")
        program = (
            generate(request["seed"])
            if "seed" in request
            else Program.from_json(request["program"])
        )
        outcome = outcome_of(program, kernel, lambda stage: say(stage=stage))
        say(
            mode=program.mode,
            steps=len(program.steps),
            program=program.to_json(),
            **dataclasses.asdict(outcome),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernel", default="hlo_mlc:mlc_jit")
    parser.add_argument("--choose", default="auto")
    options = parser.parse_args()
    # What is written to standard output by others must not come between answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers, kernel_named(options.kernel, options.choose))


if __name__ == "__main__":
    main()
