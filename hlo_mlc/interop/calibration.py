"""Measuring the rates of this machine: a few small functions, compiled by both sides and timed.

This takes some seconds, so no compilation waits for it: a first call has less to spare. The
commands `doctor`, `demo` and `bench`, which take their time anyway, do it once per machine; until
then predictions rest on typical figures. It does not happen behind the user's back on another
thread either: that would disturb what the user runs, be disturbed by it, and make what is chosen
depend on when.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.expr.ops import OPS
from hlo_mlc.interop import compat
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.runtime.busyness import BUSY, observed, supersedes
from hlo_mlc.runtime.measure import made_up
from hlo_mlc.runtime.rates import known_rates, others_share, remember_rates
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import warn
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import DISTANT_BYTES, FAR_BYTES, NEAR_BYTES, Rates

LONGEST_S = 20.0
"""What is not measured by then keeps its typical figure.  Nearly all of it is compiling: 5 s on two
cores of a Zen 4, of which 2 s came to products and never to loops."""

_SECONDS_EACH = 0.03
# For large products, of which there are few calls in that: longer than the tenth of a second in
# which a virtual CPU may get less than all, when two threads have been seen to take as long as one.
_SECONDS_FOR_LARGE = 0.15
_FEWEST_ROUNDS = 6
_LEAST_US = 0.05  # where noise leaves nothing of a difference
# What is beyond comes from other programs that use the cores.
_LONGEST_WAKING_US = 25.0
# XLA's time / ours; it may have instructions that we do not use.
_PLAUSIBLE = {"compute": (0.8, 4.0), "wait": (0.9, 1.6), "narrow": (0.25, 4.0)}
_SLOWEST = 8.0  # of a thread, or as many times as fast, against those that figures are from
_CHAIN = 16  # steps of four operations: long enough that memory does not count
_FUNCTIONS = 2  # of each kind
# As far apart as caches allow, so that a moment of somebody else's is little of the difference: of
# 2^14 and 2^16 elements a busy Zen 4 did 17,000 operations a microsecond, three times what it can.
_CHAIN_SIZES = (1 << 14, 1 << 18)
_EXPONENTIALS = 1 << 17
_TRIPS = 1_000
_SMALL_LOOP = 128  # elements: XLA makes one function of loops over fewer
_PRODUCTS = {"small": 128, "medium": 256, "large": 512}  # square matrices
_ROWS = 1024  # and columns, of a sum over rows
_CALLED, _SCANNED, _SORTED = 1 << 13, (64, 512), (64, 256)  # so few that one thread does it

Found = Mapping[str, float]
"""Rates by the names of their fields."""

_one_at_a_time = process_lock()


def calibrated(options: Options, *, refresh: bool = False) -> Rates:
    """The rates of this machine: those in the cache folder, measured now if there are none, if they
    were measured while it was busy, or if `refresh` asks for it; typical ones where the options
    want no others."""
    target = target_of(options)
    if options.target != "cpu" or not options.calibrate:
        return target.rates
    with _one_at_a_time:
        known = known_rates(options.cache_dir, target)
        earlier = None if known is None else others_share(options.cache_dir, target)
        if known is not None and earlier <= BUSY and not refresh:
            return known
        found, share = observed(lambda: measure_rates(target))
        if known is not None and not supersedes(share, earlier):
            return known
        remember_rates(options.cache_dir, target, found, share)
    return found


def measure_rates(target: CpuTarget, longest_s: float = LONGEST_S) -> Rates:
    """Measures for at most about `longest_s`; what cannot be measured keeps its typical figure."""
    rates = Rates.typical(target.cpu)
    end = time.perf_counter() + longest_s
    with jax.ensure_compile_time_eval(), jax.enable_x64(False):
        for probe in _PROBES:
            try:
                for found in probe(target, rates):
                    rates = dataclasses.replace(rates, **found)
                    if time.perf_counter() > end:
                        return rates if rates.are_sane else Rates.typical(target.cpu)
            except Exception as error:  # whatever a compiler may raise: nothing depends on this
                warn(f"hlo_mlc cannot measure this machine: {error}")
    return rates if rates.are_sane else Rates.typical(target.cpu)


def _calls(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    """A program with nothing to do, and one with a little, which XLA hands to another thread."""
    tiny = _compare(lambda x: x + 1, _values(8))
    yield {"dispatch_us": tiny.xla.best_us}
    little = _compare(lambda x: x * 2 + 1, _values(64, 64))
    yield {
        "start_us": max(little.xla.best_us - little.ours.best_us, _LEAST_US),
        "sleeping_us": little.xla.waking_us,
    }


def _arithmetic(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    """Two sizes tell how both sides compare; what a call mostly takes longer than at best, what it
    takes to wake the other threads."""
    small, large = (_compare(_chain, _values(size)) for size in _CHAIN_SIZES)
    ours_us = max(large.ours.best_us - small.ours.best_us, _LEAST_US)
    xla_us = max(large.xla.best_us - small.xla.best_us, _LEAST_US)
    yield {
        "xla_arithmetic": _ratio(xla_us, ours_us, "compute", rates.xla_arithmetic),
        "fork_us": small.ours.waking_us,
        "xla_fork_us": small.xla.waking_us,
    }
    yield {"vector_operations": _operations(target)}


def _operations(target: CpuTarget) -> float:
    """Those of the functions that we compute most of the time in, a microsecond and core: on some
    processors fewer units multiply and add than do one of these, and what waits for what counts."""
    few, many = _CHAIN_SIZES
    more_us = _ours(_functions, _values(many)).best_us - _ours(_functions, _values(few)).best_us
    each = _FUNCTIONS * sum(OPS[name].operations[0] for name in ("exp", "log1p"))
    return each * (many - few) / target.lanes(4) / max(more_us, _LEAST_US) / target.cores


def _functions(x: jax.Array) -> jax.Array:
    for _ in range(_FUNCTIONS):
        x = jnp.log1p(jnp.exp(x))
    return x


def _chain(x: jax.Array) -> jax.Array:
    for _ in range(_CHAIN):
        x = jnp.abs(x * (x - 1)) - 0.5  # no product meets a sum: XLA would make one operation of it
    return x


def _transcendental(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    ours_us, xla_us = _compare(jnp.exp, _values(_EXPONENTIALS)).inside(rates)
    yield {"xla_exp": _ratio(xla_us, ours_us, "compute", rates.xla_exp)}


def _passes(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    for name, size in (("near", NEAR_BYTES), ("far", FAR_BYTES), ("distant", DISTANT_BYTES)):
        count = size // (3 * 4)
        times = _compare(lambda x, y: x * 2 + y, _values(count), _values(count))
        ours_us, xla_us = times.inside(rates)
        typical = getattr(rates, f"xla_{name}")
        yield {
            f"{name}_bytes": size / ours_us,
            f"xla_{name}": _ratio(xla_us, ours_us, "wait", typical),
        }


def _reduction(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    ours_us, xla_us = _compare(lambda x: x.sum(-1), _values(_ROWS, _ROWS)).inside(rates)
    yield {"xla_reduction": _ratio(xla_us, ours_us, "wait", rates.xla_reduction)}


def _products(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    for name, size in _PRODUCTS.items():
        seconds = _SECONDS_FOR_LARGE if name == "large" else _SECONDS_EACH
        times = _compare(jnp.matmul, _values(size, size), _values(size, size), seconds=seconds)
        ours_us, xla_us = times.inside(rates)
        typical = getattr(rates, f"xla_{name}_product")
        yield {f"xla_{name}_product": _ratio(xla_us, ours_us, "compute", typical)}
        if name == "large":
            yield {"vector_products": size**3 / target.lanes(4) / ours_us / target.cores}
    size = _PRODUCTS["large"]
    narrow = _values(size, size).astype(jnp.bfloat16)
    ours_us, xla_us = _compare(jnp.matmul, narrow, narrow).inside(rates)
    yield {"xla_narrow_product": _ratio(xla_us, ours_us, "narrow", rates.xla_narrow_product)}


def _loops(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    """The same step in a loop of XLA's, in a kernel called from there and as XLA's own."""

    def step(x: jax.Array) -> jax.Array:
        return x * 0.5 + 1

    called = mlc_jit(step, choose="ours")

    def repeated(one: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: lax.fori_loop(0, _TRIPS, lambda _, v: one(v), x)

    times = _time(compat.jit(repeated(step)), compat.jit(repeated(called)), _values(_SMALL_LOOP))
    yield {
        "call_us": max(times.ours.best_us - rates.dispatch_us, _LEAST_US) / _TRIPS,
        "loop_thunk_us": max(times.xla.best_us - rates.dispatch_us, _LEAST_US) / _TRIPS,
    }


def _one_by_one(target: CpuTarget, rates: Rates) -> Iterator[Found]:
    """What XLA does on one thread, element by element, against what its figures say: where it calls
    a function, waits for a sum, and compares.

    Few elements whose branches a processor learns would tell nothing: sin of 8,192 numbers took 2
    ns each, of a million 7.
    """
    scanned, ordered = math.prod(_SCANNED), math.prod(_SORTED)
    probes = (
        (lambda x: jnp.abs(x) ** (x + 2), (_CALLED,), _CALLED * OPS["pow"].xla_ns[0]),
        (functools.partial(lax.cumsum, axis=1), _SCANNED, scanned * figure("scan_ns")),
        (
            functools.partial(lax.sort, dimension=1),
            _SORTED,
            ordered * math.log2(_SORTED[1]) * figure("sort_ns"),
        ),
    )
    paid = rates.dispatch_us + rates.start_us
    times = [
        max(_by_xla(function, _values(*shape)).best_us - paid, _LEAST_US) * 1e3 / expected_ns
        for function, shape, expected_ns in probes
    ]
    yield {"one_by_one": min(max(statistics.median(times), 1 / _SLOWEST), _SLOWEST)}


_PROBES = (
    _calls,
    _arithmetic,
    _one_by_one,
    _passes,
    _transcendental,
    _reduction,
    _products,
    _loops,
)


@dataclass(frozen=True, slots=True)
class _Time:
    """What each of several calls took."""

    samples_us: tuple[float, ...]

    @property
    def best_us(self) -> float:
        """When nothing else runs and all threads are awake."""
        return min(self.samples_us)

    @property
    def waking_us(self) -> float:
        """How much longer it mostly takes."""
        waking_us = statistics.median(self.samples_us) - self.best_us
        return min(max(waking_us, _LEAST_US), _LONGEST_WAKING_US)


@dataclass(frozen=True, slots=True)
class _Times:
    """Our code and XLA's for one function, timed in turns."""

    ours: _Time
    xla: _Time

    def inside(self, rates: Rates) -> tuple[float, float]:
        """What each takes at best in the middle of a program, whose call is paid for.

        XLA's is taken from the ratio of calls one after the other: the speed of a machine that is
        shared changes from one moment to the next, and the best of each may be of different ones.
        """
        ours_paid = rates.dispatch_us + rates.call_us
        xla_paid = rates.dispatch_us + rates.start_us
        ratio = statistics.median(
            max(xla_us - xla_paid, _LEAST_US) / max(ours_us - ours_paid, _LEAST_US)
            for ours_us, xla_us in zip(self.ours.samples_us, self.xla.samples_us, strict=True)
        )
        ours_us = max(self.ours.best_us - ours_paid, _LEAST_US)
        return ours_us, ours_us * ratio


def _compare(
    function: Callable[..., jax.Array], *args: jax.Array, seconds: float = _SECONDS_EACH
) -> _Times:
    """Times our code and XLA's for a function."""
    # Another function for each, so that neither finds the trace of the other.
    return _time(
        compat.jit(lambda *args: function(*args)),
        mlc_jit(lambda *args: function(*args), choose="ours"),
        *args,
        seconds=seconds,
    )


def _ours(function: Callable[..., jax.Array], *args: jax.Array) -> _Time:
    """Times our code alone."""
    compiled = mlc_jit(lambda *args: function(*args), choose="ours")
    return _time(compiled, compiled, *args).ours


def _by_xla(function: Callable[..., jax.Array], *args: jax.Array) -> _Time:
    """Times XLA's code alone."""
    compiled = compat.jit(lambda *args: function(*args))
    return _time(compiled, compiled, *args).xla


def _time(
    by_xla: Callable[..., jax.Array],
    ours: Callable[..., jax.Array],
    *args: jax.Array,
    seconds: float = _SECONDS_EACH,
) -> _Times:
    sides = ours, by_xla
    for compiled in sides:
        jax.block_until_ready(compiled(*args))
    samples: tuple[list[float], list[float]] = ([], [])  # in microseconds
    end = time.perf_counter() + seconds
    while len(samples[0]) < _FEWEST_ROUNDS or time.perf_counter() < end:
        for compiled, times in zip(sides, samples, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(compiled(*args))
            times.append((time.perf_counter() - start) * 1e6)
    return _Times(*(_Time(tuple(each)) for each in samples))


def _ratio(xla_us: float, ours_us: float, of: str, typical: float) -> float:
    """XLA's time / ours, of which the typical figure is as good a witness as a short measurement:
    their geometric mean."""
    lowest, highest = _PLAUSIBLE[of]
    return math.sqrt(min(max(xla_us / ours_us, lowest), highest) * typical)


def _values(*shape: int) -> jax.Array:
    return compat.place_on(made_up(shape, np.float32, np.random.default_rng(0)))
