"""`fn.verify`: each kernel of a function, and XLA's code for the same, held against f64.

Both are given what the kernel is given in a call of the function; in bodies of loops that stay with
XLA, and where the call has types for arguments, operands are made up.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.building import keeping, rebuild_kernel
from hlo_mlc.compiler import clusters_of
from hlo_mlc.interop import compat
from hlo_mlc.interop.arguments import require_count
from hlo_mlc.interop.cluster_programs import KernelAlone, kernel_program
from hlo_mlc.interop.devices import CPU, require_cpu
from hlo_mlc.interop.operands import Part, parts_of_call
from hlo_mlc.interop.referee import as_near, disagreement, exact_results, largest_error
from hlo_mlc.interop.widening import widened_array
from hlo_mlc.runtime import library
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted, table_lines, wrapped

_HEADINGS = ("kernel", "ulp ours", "XLA", "error ours", "XLA", "NaN, Inf", "again", "1 thread")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far results are from the same operations in f64.

    `ulp`: the largest error in units of the last place of the exact value, in the type of the
    result; `error`: relative to the largest value of its result. Both are None where no result is
    of floats. `specials`: elements that are NaN or infinite on one
    side only; `differing`: elements of integers that are not those of the exact run.
    """

    ulp: float | None
    error: float | None
    specials: int
    differing: int


@dataclass(frozen=True, slots=True)
class VerifiedKernel:
    """One kernel of ours and XLA's code for the same operations, on the same operands.

    `exact_known`: whether there is more exact a run in f64; if not, ours is held against XLA's and
    `by_xla` is None. `repeats`: all runs of ours gave the same bits, `xla_repeats` all of
    XLA's; `one_thread`: so did our kernel for a machine of one core. `fault` says what is wrong
    with ours, beyond what rounding explains; "" is nothing. `skipped` is why it was not run.
    """

    name: str
    given: bool
    ours: Accuracy | None = None
    by_xla: Accuracy | None = None
    exact_known: bool = False
    repeats: bool = True
    xla_repeats: bool = True
    one_thread: bool = True
    fault: str = ""
    skipped: str = ""

    def row(self) -> tuple[str, ...]:
        """What the table shows of it."""
        if self.ours is None:
            return (self.name, *("-",) * (len(_HEADINGS) - 1))
        theirs = self.by_xla or Accuracy(None, None, 0, 0)
        wrong = self.ours.specials + self.ours.differing
        return (
            self.name,
            _number(self.ours.ulp, ".1f"),
            _number(theirs.ulp, ".1f"),
            _number(self.ours.error, ".1e"),
            _number(theirs.error, ".1e"),
            f"{wrong} differ" if wrong else "same",
            "same" if self.repeats else "differs",
            "same" if self.one_thread else "rounds",
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """All kernels of a function against f64; `print` shows a table."""

    name: str
    kernels: tuple[VerifiedKernel, ...]

    @property
    def is_right(self) -> bool:
        """Whether no kernel was found at fault, and each gave the same whenever it ran."""
        return all(not kernel.fault and kernel.repeats for kernel in self.kernels)

    def __str__(self) -> str:
        if not self.kernels:
            return f"{self.name}: there are no kernels of ours to verify; explain(...) says why"
        table = table_lines([_HEADINGS, *(kernel.row() for kernel in self.kernels)])
        return "\n".join(
            [*table, *(line for remark in self._remarks() for line in wrapped(remark, ""))]
        )

    __repr__ = __str__  # what a person sees who asks for it at a prompt

    def as_dict(self) -> dict[str, object]:
        """The same for machines: of what JSON knows only."""
        return {
            "function": self.name,
            "is_right": self.is_right,
            "kernels": [asdict(kernel) for kernel in self.kernels],
        }

    def _remarks(self) -> Iterator[str]:
        ran = [kernel for kernel in self.kernels if not kernel.skipped]
        if self.is_right:
            yield f"{counted(len(ran), 'kernel')}: as near to f64 as rounding allows"
        for kernel in self.kernels:
            if kernel.fault:
                yield (
                    f"{kernel.name}: {kernel.fault}; that is a fault of ours, which we would "
                    "like to see"
                )
            if not kernel.repeats:
                yield f"{kernel.name}: runs of ours differ"
            if not kernel.xla_repeats:
                yield f"{kernel.name}: runs of XLA's code differ"
            if kernel.skipped:
                yield f"{kernel.name} was not run: {kernel.skipped}"
        if made_up := sum(not kernel.given for kernel in ran):
            yield f"{counted(made_up, 'kernel')} on made-up operands"


def verify_call(
    jitted: Any,
    options: Options,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    runs: int,
) -> Verification:
    """Verifies every kernel that a function may run for such arguments, `runs` times each.

    Raises: UsageError for fewer than one run, and where the function does not run on the CPU.
    """
    require_count("verify", "run", runs)
    require_cpu(jax.tree.leaves((jitted.args, args, kwargs)), "verified")
    library.register_with_jax()
    found: dict[str, VerifiedKernel] = {}
    parts = parts_of_call(jitted, args, kwargs)  # as it is traced: nothing is computed of it there
    with jax.ensure_compile_time_eval(), keeping():
        for part in parts:
            for fingerprint, check in _checks(part, options, runs):
                if fingerprint not in found:
                    found[fingerprint] = check()
    return Verification(name, tuple(found.values()))


def _checks(
    part: Part, options: Options, runs: int
) -> Iterator[tuple[str, Callable[[], VerifiedKernel]]]:
    graph, plan = clusters_of(part.module, options, entry=part.entry)
    for cluster, _ in plan.taken:
        yield (
            cluster.kernel.fingerprint,
            functools.partial(_verified, KernelAlone(graph, cluster, part), options, runs),
        )


def _verified(alone: KernelAlone, options: Options, runs: int) -> VerifiedKernel:
    kernel = alone.cluster.kernel
    if alone.refusal:
        return VerifiedKernel(kernel.name, alone.given, skipped=alone.refusal)
    backend = cpu_backend(options)
    one_core = dataclasses.replace(backend.target, cores=1)
    built = rebuild_kernel(kernel, options, dataclasses.replace(backend, target=one_core))
    call = kernel_program(alone.module, alone.cluster, backend, built)
    (one_thread,) = _results(call, alone.operands, 1)
    rebuild_kernel(kernel, options, backend)
    return held_against_f64(alone, _results(call, alone.operands, runs), one_thread)


def held_against_f64(
    alone: KernelAlone, ours: Sequence[Sequence[np.ndarray]], one_thread: Sequence[np.ndarray]
) -> VerifiedKernel:
    """What there is to say of a kernel's results in several runs, and of those on one thread; XLA
    runs as often."""
    theirs = _results(alone.original, alone.operands, len(ours))
    exact = _exact(alone.original, alone.operands, ours[0])
    reference = theirs[0] if exact is None else exact
    fault = disagreement(
        ours[0], [_narrow(e, r.dtype) for e, r in zip(reference, ours[0], strict=True)]
    )
    if fault and as_near(ours[0], theirs[0], exact):
        fault = ""
    return VerifiedKernel(
        alone.cluster.kernel.name,
        alone.given,
        ours=accuracy(ours[0], reference),
        by_xla=None if exact is None else accuracy(theirs[0], exact),
        exact_known=exact is not None,
        fault=fault,
        repeats=all(_same_bits(ours[0], one) for one in ours),
        xla_repeats=all(_same_bits(theirs[0], one) for one in theirs),
        one_thread=_same_bits(ours[0], one_thread),
    )


def accuracy(results: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> Accuracy:
    """How far results are from what is exact, over all of them."""
    ulps, errors, specials, differing = [], [], 0, 0
    for result, expected in zip(results, exact, strict=True):
        if not jax.numpy.issubdtype(result.dtype, jax.numpy.inexact):
            differing += int(np.sum(result != expected.astype(result.dtype)))
            continue
        for one, other in _parts(result, expected):
            zero, wide, other = one.dtype.type(0), widened_array(one), widened_array(other)
            beyond = np.abs(other) > float(ml_dtypes.finfo(one.dtype).max)
            rounded = np.where(beyond, np.copysign(np.inf, other), other)
            finite = np.isfinite(wide) & np.isfinite(rounded)
            same = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
            specials += int(np.sum(~finite & ~same))
            distances = np.abs(wide[finite] - other[finite]) / ulp(other[finite], one.dtype)
            ulps.append(float(np.max(distances, initial=0.0)))
            errors.append(largest_error(np.where(finite, one, zero), np.where(finite, other, 0.0)))
    return Accuracy(max(ulps, default=None), max(errors, default=None), specials, differing)


def ulp(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance between floats of a type next to these values, in f64."""
    about = ml_dtypes.finfo(dtype)
    least = int(math.log2(float(about.smallest_normal)))
    _, exponents = np.frexp(np.asarray(values, np.float64))
    normal = np.where(values == 0, least, np.maximum(exponents - 1, least))
    return np.ldexp(float(about.eps), normal)


def _parts(result: np.ndarray, exact: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """A result and what is exact as real arrays."""
    if np.issubdtype(result.dtype, np.complexfloating):
        return [(result.real, exact.real), (result.imag, exact.imag)]
    return [(result, exact)]


def _narrow(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return exact.astype(dtype)


def _results(
    program: ir.Module, operands: Sequence[np.ndarray], runs: int
) -> list[list[np.ndarray]]:
    run = compat.compile_for(program)
    return [[np.asarray(r) for r in run(operands)] for _ in range(runs)]


def _exact(
    original: ir.Module, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """What the operations give in f64; None where they are in f64 already, or that is not to be
    had."""
    if any(r.dtype in (np.float64, np.complex128) for r in results):
        return None
    exact = exact_results(original, operands, CPU)
    return None if exact is None else [np.asarray(e) for e in exact]


def _same_bits(results: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(results, others, strict=True))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
