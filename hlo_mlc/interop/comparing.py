"""`compare`: a function with our kernels and by `jax.jit`, in turns, on the caller's arguments."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.frontend.walking import operations
from hlo_mlc.interop import compat
from hlo_mlc.interop.arguments import ArgumentType, argument_types, require_count
from hlo_mlc.interop.devices import platform_of
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.interop.function import PLATFORMS, resolve_options
from hlo_mlc.interop.jitted import MlcFunction, jitted
from hlo_mlc.interop.module import StablehloFunction
from hlo_mlc.interop.operands import matched_arrays
from hlo_mlc.interop.referee import as_near, disagreement, exact_results, largest_error
from hlo_mlc.interop.synthetic_arguments import synthetic_arguments
from hlo_mlc.interop.widening import calls_of_one_type
from hlo_mlc.report import Report
from hlo_mlc.runtime.busyness import disturbed_since, read_clocks
from hlo_mlc.runtime.measure import time_rounds
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import byte_size, counted, duration, table_lines, wrapped

_BUDGET_S = 2.0  # for timing both sides, unless somebody says how many rounds
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 51
_NEVER = 2**31 - 1  # the largest threshold that the collector takes
_PRINTING = "print"  # the stage in which kernels become code, where none is in the cache


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured of one side.

    `spread_us` is the distance between the quartiles of its times; `error` is the largest distance
    of a float from the same program in f64, relative to the largest of its result, None where that
    could not be run. `memory_bytes` is what a call needs at once for arguments, results and what is
    between them, as XLA plans it.
    """

    us: float
    spread_us: float
    first_call_s: float
    error: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class FunctionComparison:
    """A function with our kernels and by `jax.jit`; `print` shows it as a table.

    `speedup` is the median over the rounds of jax.jit's time / ours. `difference` says in what the
    results differ, beyond rounding; "" is in nothing.
    """

    name: str
    ours: Measurements
    jax: Measurements
    speedup: float
    speedup_spread: float
    rounds: int
    difference: str
    report: Report
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        ours, by_jax = self.ours, self.jax
        rows = [
            (self.name, "ours", "jax.jit", "jax.jit / ours"),
            (
                "a call",
                duration(ours.us),
                duration(by_jax.us),
                f"{self.speedup:.2f} ± {self.speedup_spread:.2f}",
            ),
            ("  spread", duration(ours.spread_us), duration(by_jax.spread_us), ""),
            (
                "first call",
                f"{ours.first_call_s:.2f} s",
                f"{by_jax.first_call_s:.2f} s",
                f"{by_jax.first_call_s / ours.first_call_s:.2f}",
            ),
        ]
        if ours.error is not None and by_jax.error is not None:
            rows.append(("error against f64", f"{ours.error:.1e}", f"{by_jax.error:.1e}", ""))
        if ours.memory_bytes and by_jax.memory_bytes:
            rows.append(
                (
                    "memory",
                    _size(ours.memory_bytes),
                    _size(by_jax.memory_bytes),
                    f"{by_jax.memory_bytes / ours.memory_bytes:.2f}",
                )
            )
        remarks = [line for remark in self._remarks() for line in wrapped(remark, "")]
        return "\n".join([*table_lines(rows), *remarks])

    __repr__ = __str__  # what a person sees who asks for it at a prompt

    def as_dict(self) -> dict[str, object]:
        """The same for machines: of what JSON knows only."""
        return {
            "function": self.name,
            "ours": asdict(self.ours),
            "jax": asdict(self.jax),
            "speedup": self.speedup,
            "speedup_spread": self.speedup_spread,
            "rounds": self.rounds,
            "difference": self.difference,
            "notes": list(self.notes),
            "report": self.report.as_dict(),
        }

    def _remarks(self) -> Iterator[str]:
        kernels = counted(len(self.report.kernels), "kernel")
        if self.report.kernels:
            yield (
                f"{self.report.time_coverage:.0%} of the time in {kernels} of ours (predicted); "
                f"{counted(self.rounds, 'round')} in turns"
            )
        else:
            why = "; ".join(self.report.reasons) or "explain(...) says why"
            yield f"no kernels of ours, both ran XLA's code: {why}"
        if self.difference:
            yield f"the results differ: {self.difference}"
        yield from self.notes


def compare(
    fun: Callable[..., Any], /, *args: Any, rounds: int | None = None, **kwargs: Any
) -> FunctionComparison:
    """Times a function with our kernels and by `jax.jit` in turns on these arguments, and holds the
    results of both against the same program in f64.

    `fun` is any function that JAX can trace, or what `mlc_jit` made of one, whose options are then
    those of both sides, or `jax.jit`, whose static arguments are. What it donates is kept, since it
    is called again and again. For arguments that are types (`jax.ShapeDtypeStruct`), values are
    made up. What is predicted is measured as it is: nothing is settled by these calls. `rounds` are
    as many as two seconds allow if nobody says.

    Raises: UsageError for what cannot be compared; whatever the function raises.
    """
    if rounds is not None:
        require_count("compare", "round", rounds)
    sides = _Sides.of(fun)
    args, kwargs, invented = _filled(sides, (*sides.bound, *args), kwargs)
    notes = ["its arguments are made up"] if invented else []
    if sides.donates:
        notes.append("nothing was donated: calls would have nothing left for those after them")
    sides.untimed().eval_shape(*args, **kwargs)  # both find the traces of what is called in it
    ours, by_jax = sides.ours(), sides.by_jax()
    before = read_clocks()
    jax_first, jax_results = _first_call(by_jax, args, kwargs)
    ours_first, results = _first_call(ours, args, kwargs)
    leaves, expected = _flat(results), _flat(jax_results)
    exact, why_not = _exact(sides, args, kwargs)
    if exact is None and any(jax.numpy.issubdtype(a.dtype, jax.numpy.inexact) for a in leaves):
        notes.append(f"no errors against f64: {why_not}")
    difference = disagreement(leaves, expected)
    if difference and as_near(leaves, expected, exact):
        difference = f"{difference}; both are as near to what f64 gives"

    def run(jit: Callable[..., Any]) -> Callable[[], object]:
        return lambda: jax.block_until_ready(jit(*args, **kwargs))

    count = rounds or _rounds(run(ours), run(by_jax))
    times = time_rounds(run(by_jax), run(ours), count)
    if line := disturbed_since(before):
        notes.append(line)
    report = ours.report(*args, **kwargs)
    if report.kernels and _PRINTING not in report.stage_seconds:
        notes.append(
            "first call: its kernels were known from before; one that compiles them takes longer"
        )
    return FunctionComparison(
        sides.name,
        Measurements(
            times.b.median_us,
            times.b.spread_us,
            ours_first,
            _error(leaves, exact),
            memory_bytes(ours, args, kwargs, report),
        ),
        Measurements(
            times.a.median_us,
            times.a.spread_us,
            jax_first,
            _error(expected, exact),
            memory_bytes(by_jax, args, kwargs),
        ),
        times.speedup,
        times.speedup_spread,
        count,
        difference,
        report,
        tuple(notes),
    )


def first_call_s(compiled: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Seconds from the call to the finished result, tracing and compiling included."""
    return _first_call(compiled, args, {})[0]


def _first_call(
    compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[float, Any]:
    with _without_full_collections():
        start = time.perf_counter()
        results = jax.block_until_ready(compiled(*args, **kwargs))
        return time.perf_counter() - start, results


@contextlib.contextmanager
def _without_full_collections() -> Iterator[None]:
    """Python's collections of all objects wait: one takes as long as the process has objects, up to
    a second, and falls into whichever call comes next.  Those of new objects are a call's own."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


@dataclass(frozen=True, slots=True)
class _Sides:
    """A function, and what makes either side of it; `bound` are the arguments of every call."""

    name: str
    fun: Callable[..., Any]
    bound: tuple[Any, ...]
    options: Options
    jit_arguments: Mapping[str, Any]
    donates: bool

    @classmethod
    def of(cls, fun: Callable[..., Any]) -> _Sides:
        if isinstance(fun, StablehloFunction):
            fun = fun.jitted
        if not isinstance(fun, MlcFunction):
            if not callable(fun):
                raise UsageError(f"compare takes a function first, got {type(fun).__name__}")
            fun = jitted(fun, resolve_options(None, None), compat.static_arguments(fun))
        origin = fun.origin
        arguments = {
            name: value
            for name, value in origin.jit_arguments.items()
            if name not in ("donate_argnums", "donate_argnames")
        }
        name = getattr(origin.fun, "__name__", type(origin.fun).__name__)
        return cls(
            name,
            origin.fun,
            fun.args,
            origin.options.replace(settle=False),
            arguments,
            origin.donates,
        )

    def ours(self) -> MlcFunction[..., Any]:
        return jitted(self._own(), self.options, self.jit_arguments)

    def by_jax(self) -> Any:
        return compat.jit(self._own(), **self.jit_arguments)

    def untimed(self) -> Any:
        """The function by `jax.jit`, with all its arguments, for whoever wants to know what they
        are."""
        return compat.jit(self._own(), **{**self.jit_arguments, "keep_unused": True})

    def _own(self) -> Callable[..., Any]:
        """A function of its own, so that no side finds what JAX keeps of the other."""
        fun = self.fun

        @functools.wraps(fun)
        def own(*args: Any, **kwargs: Any) -> Any:
            return fun(*args, **kwargs)

        return own


def _filled(
    sides: _Sides, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """The arguments, with values in place of types."""
    leaves, tree = jax.tree.flatten((args, dict(kwargs)))
    if not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return args, dict(kwargs), False
    module = sides.untimed().lower(*args, **kwargs).compiler_ir()
    made = iter(zip(argument_types(module, MAIN, MAIN), synthetic_arguments(module), strict=True))
    filled = [_value(leaf, made) for leaf in leaves]
    args, kwargs = jax.tree.unflatten(tree, filled)
    return args, kwargs, True


def _value(leaf: Any, made: Iterator[tuple[ArgumentType, np.ndarray]]) -> Any:
    """What takes the place of a leaf: `made` has something for each that is no static argument."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        fitting = (value for one, value in made if one.accepts(leaf))
        value = next(fitting, None)
        if value is None:
            raise UsageError(
                f"There are no values to make up for an argument {leaf}: give an array of them"
            )
        return jax.numpy.asarray(value)
    return leaf


def _exact(
    sides: _Sides, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any] | None, str]:
    """What the function gives with all floats in f64, or None and why that cannot be computed."""
    leaves = jax.tree.leaves((args, kwargs))
    platform = platform_of(leaves)
    if platform not in PLATFORMS:
        return None, f"they are not known on {platform}"
    module: ir.Module = sides.untimed().lower(*args, **kwargs).compiler_ir()
    given = matched_arrays(argument_types(module, MAIN, MAIN), leaves)
    if given is None:
        return None, "the program has other arguments than the call"
    # They do what they do for one type, or for the program that they came with.
    if calls := calls_of_one_type(operations(module, "stablehlo.custom_call")):
        return None, f"{', '.join(dict.fromkeys(calls))} cannot be called with it"
    return exact_results(module, given, platform), "the program cannot be run in it"


def _flat(results: Any) -> list[np.ndarray]:
    return [
        np.asarray(
            jax.random.key_data(leaf)
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else leaf
        )
        for leaf in jax.tree.leaves(results)
    ]


def _error(results: Sequence[np.ndarray], exact: Sequence[Any] | None) -> float | None:
    """The largest error of a float; None where there are none, or nothing exact is known."""
    if exact is None or len(exact) != len(results):
        return None
    pairs = [
        (a, np.asarray(b))
        for a, b in zip(results, exact, strict=True)
        if jax.numpy.issubdtype(a.dtype, jax.numpy.inexact)
    ]
    largest = max((float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) for _, b in pairs), default=0)
    noise = largest * float(np.finfo(np.float64).eps)
    return max((largest_error(*pair, noise) for pair in pairs), default=None)


def _rounds(*runs: Callable[[], object]) -> int:
    """As many rounds as the budget allows."""
    start = time.perf_counter()
    for run in runs:
        run()
    passed = max(time.perf_counter() - start, 1e-6)
    return min(max(int(_BUDGET_S / max(passed, 4e-3)), _FEWEST_ROUNDS), _MOST_ROUNDS)


def memory_bytes(
    compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], report: Report | None = None
) -> int | None:
    """What a call of a compiled function that was called before needs at once: what XLA plans for
    it, with arguments and results, and what kernels of ours, of which it has such a report, ask
    for besides.  None where XLA does not say."""
    planned = compiled.lower(*args, **kwargs).compile().memory_analysis()
    if planned is None:
        return None
    kernels = report.kernels if report is not None else ()
    return int(
        planned.argument_size_in_bytes
        + planned.output_size_in_bytes
        + planned.temp_size_in_bytes
        - planned.alias_size_in_bytes
        + max((_scratch_bytes(kernel.kept) for kernel in kernels), default=0)
    )


def _size(count: int) -> str:
    """Bytes in mebibytes, where there are any."""
    return f"{count / (1 << 20):.2f} MiB" if count >= 1 << 17 else byte_size(count)


def _scratch_bytes(built: object) -> int:
    """What a kernel for CPUs takes while it runs."""
    return int(getattr(getattr(built, "code", None), "scratch_bytes", 0))
