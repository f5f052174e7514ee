"""What is predicted is settled on the caller's own calls: either way, once, and in nobody's way."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.interop import meanwhile, settling
from hlo_mlc.interop.settling import Settling
from hlo_mlc.interop.staged import forget
from hlo_mlc.partition.estimate import Prediction
from hlo_mlc.report import KernelReport, Report
from hlo_mlc.target.cpu import CpuTarget
from making.left import by_xla

X = jnp.linspace(-2.0, 2.0, 40_000).reshape(200, 200)
LIMIT_S = 60.0


def softened(x: jax.Array, by: float = 2.0) -> jax.Array:
    """One kernel of ours, as predicted, but not by far."""
    return jax.nn.softmax(jnp.tanh(x) * by + jnp.flip(x, 0))


class Traced:
    """A function that counts how often it is traced."""

    def __init__(self, function: Callable = softened) -> None:
        self.function, self.traces = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.traces += 1
        return self.function(*args, **kwargs)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As for a user with one device who has settled nothing yet, and nothing is clear-cut."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setenv("HLO_MLC_SETTLE", "1")
    monkeypatch.setattr(settling, "_CLEAR", float("inf"))
    monkeypatch.setattr(meanwhile, "_QUIET_S", 0.0)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What either side is taken to need for a call."""
    told = {"ours": 1e-3, "xla": 1e-3}
    note = Settling._note

    def noted(self: Settling, side: settling.Side, _: float) -> None:
        is_xlas = (side is self._other) == (self._asked == "xla")
        note(self, side, told["xla" if is_xlas else "ours"])

    monkeypatch.setattr(Settling, "_note", noted)
    return told


def settled(function: Any, *args: Any, **kwargs: Any) -> int:
    """Calls a function until nothing of it is open; how often that was."""
    end, calls = time.monotonic() + LIMIT_S, 0
    while isinstance(function.func, Settling):
        assert time.monotonic() < end, function.func._stage
        jax.block_until_ready(function(*args, **kwargs))
        calls += 1
        time.sleep(1e-3)
    return calls


def kernels(function: Any, *args: Any) -> int:
    return len(function.report(*args).kernels)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_xla_takes_over_where_it_is_faster(seconds: dict[str, float]) -> None:
    seconds["xla"] = 0.5e-3
    counted = Traced()
    function = mlc_jit(counted)
    assert settled(function, X) >= 3 + 2 * settling._FEW
    close(function(X), softened(X))
    assert counted.traces == 1 and kernels(function, X) == 0
    (found,) = function.report(X).comparisons
    assert found.speedup == pytest.approx(0.5)
    assert "calls have shown that XLA is faster" in str(function.explain(X))
    # What else the function computes is predicted, as before.
    close(function(X[:100]), softened(X[:100]))
    assert kernels(function, X[:100]) > 0 and kernels(function, X) == 0


def test_ours_stay_where_they_are_faster(seconds: dict[str, float]) -> None:
    seconds["xla"] = 2e-3
    counted = Traced()
    function = mlc_jit(counted)
    settled(function, X)
    close(function(X), softened(X))
    assert counted.traces == 1 and kernels(function, X) > 0
    assert function.report(X).comparisons[0].speedup == pytest.approx(2.0)
    assert "XLA / ours 2.00" in str(function.explain(X))


@pytest.mark.parametrize(("xla", "count"), [(0.98e-3, 1), (0.96e-3, 0)])
def test_a_tie_is_what_was_predicted(seconds: dict[str, float], xla: float, count: int) -> None:
    seconds["xla"] = xla
    function = mlc_jit(Traced())
    assert settled(function, X) >= 3 + 2 * settling._MANY
    assert min(kernels(function, X), 1) == count


@pytest.mark.parametrize("xla", [0.5e-3, 2e-3])
def test_what_was_settled_is_remembered(seconds: dict[str, float], xla: float) -> None:
    """By what is computed, wherever it is written."""
    seconds["xla"] = xla
    settled(mlc_jit(lambda x: jax.nn.softmax(jnp.cos(x) * 3)), X)
    forget()
    again = mlc_jit(lambda x: jax.nn.softmax(jnp.cos(x) * 3))
    again(X)
    assert not isinstance(again.func, Settling), "one call is enough to know"
    assert min(kernels(again, X), 1) == (xla > 1e-3)
    assert again.report(X).comparisons[0].speedup == pytest.approx(xla * 1e3)


Y = jnp.linspace(-2.0, 2.0, 180_000).reshape(600, 300) ** 3


def covariance(x: jax.Array) -> jax.Array:
    """Of rows, times these.  Predicted to be hardly faster by us than by XLA."""
    return (x @ x.T) @ x / x.shape[1]


@pytest.mark.parametrize("xla, count", [(2e-3, 1), (1.04e-3, 1), (1.02e-3, 0), (0.5e-3, 0)])
def test_what_was_left_to_xla_is_ours_where_that_is_faster(
    seconds: dict[str, float], xla: float, count: int
) -> None:
    seconds["xla"] = xla
    counted = Traced(covariance)
    function = mlc_jit(counted)
    function(Y)
    assert kernels(function, Y) == 0
    settled(function, Y)
    close(function(Y), covariance(Y))
    assert counted.traces == 1 and min(kernels(function, Y), 1) == count
    (found,) = function.report(Y).comparisons
    assert found.candidate == "ours" and found.speedup == pytest.approx(xla * 1e3)
    # What else the function computes is predicted, as before.
    close(function(Y[:500]), covariance(Y[:500]))
    assert min(kernels(function, Y), 1) == count
    forget()
    again = mlc_jit(covariance)
    again(Y)
    assert not isinstance(again.func, Settling), "one call is enough to know"
    assert min(kernels(again, Y), 1) == count


def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Some of it is predicted to be faster by us, products of bytes one by one by XLA."""
    whole = x.astype(jnp.int8)
    product = jnp.matmul(whole, whole.T, preferred_element_type=jnp.int32)
    return jax.nn.softmax(jnp.tanh(x) * 2 + jnp.flip(x, 0)), product


@pytest.mark.parametrize("xla, count", [(2e-3, 2), (0.5e-3, 1)])
def test_what_is_left_beside_kernels_is_ours_where_that_is_faster(
    seconds: dict[str, float], xla: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds["xla"] = xla  # of what is run now
    monkeypatch.setattr(CpuTarget, "has_pairs", False)
    function = mlc_jit(both, target="x86-64-v3")
    function(Y)
    before = kernels(function, Y)
    assert before and function.report(Y).rejected is not None
    settled(function, Y)
    jax.tree.map(close, function(Y), both(Y))
    assert (kernels(function, Y) > before) == (count == 2)
    (found,) = function.report(Y).comparisons
    assert (found.candidate, found.against) == ("ours", "auto") and "auto" in str(found)
    assert found.speedup == pytest.approx(xla * 1e3) and not function.report(Y).is_measured
    forget()
    again = mlc_jit(both, target="x86-64-v3")
    again(Y)
    assert not isinstance(again.func, Settling), "one call is enough to know"
    assert (kernels(again, Y) > before) == (count == 2)
    assert again.report(Y).comparisons == (found,)


def _report(
    predicted: float | None, rejected: float | None = None, taken: float | None = None
) -> Report:
    """Of a program of 1 ms, by ratios of what XLA is predicted to take / ours."""

    def prediction(ratio: float | None) -> Prediction | None:
        return None if ratio is None else Prediction(1e3 / ratio, 1e3, 0.5)

    kernel = KernelReport("1", "softmax", (), (), (), (), (), 0, 0, 0, False, 700.0, 1e3, "")
    has_kernels = predicted is not None or taken is not None
    return Report(
        1.0,
        kernels=(kernel,) * has_kernels,
        predicted=prediction(predicted),
        rejected=prediction(rejected),
        taken=prediction(taken),
    )


@pytest.mark.parametrize(
    ("report", "side"),
    [
        (_report(1.5), "xla"),
        (_report(3.0), "xla"),
        (_report(3.5), None),
        (_report(None, taken=1.5), "xla"),
        (_report(None, taken=4.0), None),
        (_report(None, rejected=0.9), "ours"),
        (_report(None, rejected=0.35), "ours"),
        (_report(None, rejected=0.3), None),
        (_report(None), None),
        (_report(1.1, rejected=0.9, taken=4.0), "ours"),
        (_report(1.1, rejected=0.5, taken=1.2), "xla"),
        (_report(1.1, rejected=0.9, taken=1.5), "ours"),
        (_report(1.1, rejected=0.2, taken=4.0), None),
    ],
)
def test_the_side_that_is_more_likely_to_win_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, report: Report, side: str | None
) -> None:
    """Unless it is behind by so much that it wins once in a hundred times."""
    monkeypatch.undo()
    assert settling.other_side(report) == side


def test_next_to_nothing_is_not_compiled_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_WORTH_COMPILING_US", 1e9)
    function = mlc_jit(Traced(covariance))
    function(Y)
    assert not isinstance(function.func, Settling)


def test_nobody_hears_of_faults_of_a_side_that_is_tried(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]
) -> None:
    function = mlc_jit(Traced(covariance))
    function(Y)
    failed, told = [], []

    def fail(*args: Any) -> None:
        failed.append(args)
        _raise()

    monkeypatch.setattr("hlo_mlc.compiler.build_kernels", fail)
    monkeypatch.setattr("hlo_mlc.interop.faults.warn", lambda *args: told.append(args))
    settled(function, Y)
    close(function(Y), covariance(Y))
    assert kernels(function, Y) == 0 and failed and not told


def test_threads_take_their_usual_turns_again(seconds: dict[str, float]) -> None:
    usual = sys.getswitchinterval()
    settled(mlc_jit(Traced(covariance)), Y)
    assert sys.getswitchinterval() == usual


def test_what_xla_is_faster_at_stays_so_where_it_is_jitted_anew(seconds: dict[str, float]) -> None:
    seconds["xla"] = 0.5e-3
    settled(mlc_jit(softened), X)
    again = mlc_jit(softened)
    again(X)
    assert kernels(again, X) == 0 and not isinstance(again.func, Settling)
    forget()


@pytest.mark.parametrize(
    "variable", [("HLO_MLC_SETTLE", "0"), ("HLO_MLC_CHOOSE", "ours"), ("HLO_MLC_CHOOSE", "xla")]
)
def test_it_is_off_where_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    monkeypatch.setenv(*variable)
    assert not isinstance(mlc_jit(Traced()).func, Settling)


@pytest.mark.parametrize(
    ("change", "value"), [((jax, "device_count"), lambda: 8), ((settling, "_CLEAR"), 0.0)]
)
def test_one_call_ends_it_where_nothing_is_open(
    monkeypatch: pytest.MonkeyPatch, change: tuple, value: Any
) -> None:
    monkeypatch.setattr(*change, value)
    function = mlc_jit(Traced())
    function(X)
    assert not isinstance(function.func, Settling) and kernels(function, X) > 0
    xlas = mlc_jit(lambda x: by_xla(x))
    xlas(X)
    assert not isinstance(xlas.func, Settling)


def test_other_calls_run_as_they_are(seconds: dict[str, float]) -> None:
    """Traced, transformed, of other shapes or in another context: neither timed nor in the way."""
    seconds["xla"] = 0.5e-3
    counted = Traced()
    function = mlc_jit(counted)
    for _ in range(3):
        function(X)
    while function.func._stage is settling._Stage.COMPILING:
        time.sleep(1e-3)
    traces = counted.traces
    close(jax.jit(lambda x: function(x) + 1)(X), softened(X) + 1)
    close(jax.vmap(function)(X[None]), softened(X)[None])
    close(jax.grad(lambda x: function(x).sum())(X), jax.grad(lambda x: softened(x).sum())(X))
    close(function(X[:50]), softened(X[:50]))
    with jax.default_matmul_precision("float32"):
        close(function(X), softened(X))
    with jax.disable_jit():
        close(function(X), softened(X))
    assert jax.eval_shape(function, X).shape == X.shape
    assert not function.func._other.seconds and not function.func._present.seconds
    assert counted.traces > traces
    settled(function, X)
    assert kernels(function, X) == 0


def test_numbers_and_static_arguments(seconds: dict[str, float]) -> None:
    def powers(x: jax.Array, n: int, by: float) -> jax.Array:
        return jax.nn.softmax(jnp.tanh(x) ** n * by)

    seconds["xla"] = 0.5e-3
    counted = Traced(powers)
    function = mlc_jit(counted, static_argnums=1)
    settled(function, X, 3, 0.5)
    close(function(X, 3, 0.5), powers(X, 3, 0.5))
    close(function(X, 2, 0.5), powers(X, 2, 0.5))
    assert counted.traces == 2


@pytest.mark.parametrize("xla", [0.5e-3, 2e-3])
def test_donated_arguments(seconds: dict[str, float], xla: float) -> None:
    """A chain of calls, each given what the last one made, and none waited for."""
    seconds["xla"] = xla
    function = mlc_jit(lambda x, y: (jax.nn.softmax(x) + jnp.flip(y), x.sum()), donate_argnums=0)
    expected, state = X, jnp.array(X)
    end = time.monotonic() + LIMIT_S
    while isinstance(function.func, Settling):
        assert time.monotonic() < end
        expected = jax.nn.softmax(expected) + jnp.flip(X)
        state, total = function(state, X)
        total.block_until_ready()
    close(state, expected)
    assert min(kernels(function, state, X), 1) == (xla > 1e-3)


def test_calls_that_nobody_waits_for(seconds: dict[str, float]) -> None:
    seconds["xla"] = 0.5e-3
    function = mlc_jit(lambda x: jnp.linalg.matrix_power(jnp.tanh(x) + jnp.flip(x), 3) / 1e5)
    state, end = X, time.monotonic() + LIMIT_S
    while isinstance(function.func, Settling):
        assert time.monotonic() < end
        for _ in range(20):
            state = function(state)
        jax.block_until_ready(state)
    assert kernels(function, X) == 0


class Model:
    """A method is jitted once for all its objects."""

    def __init__(self, by: float) -> None:
        self.by = jnp.float32(by)

    def __hash__(self) -> int:
        return 1

    @functools.partial(mlc_jit, static_argnums=0)
    def apply(self, x: jax.Array) -> jax.Array:
        return softened(x) * self.by


def test_methods_stay_what_they_are(seconds: dict[str, float]) -> None:
    seconds["xla"] = 0.5e-3
    forget()
    Model.apply = mlc_jit(vars(Model)["apply"].__wrapped__, static_argnums=0)
    model = Model(2.0)
    before, number = model.apply, hash(model.apply)
    end = time.monotonic() + LIMIT_S
    while isinstance(vars(Model)["apply"].func, Settling):
        assert time.monotonic() < end
        close(model.apply(X), softened(X) * 2)
    assert model.apply == before and hash(model.apply) == number == hash(before)
    close(before(X), softened(X) * 2)
    close(model.apply(X), softened(X) * 2)


def test_many_threads(seconds: dict[str, float]) -> None:
    seconds["xla"] = 0.5e-3
    counted = Traced()
    function = mlc_jit(counted)
    function(X)
    expected = softened(X)

    def calls(_: int) -> None:
        end = time.monotonic() + LIMIT_S
        while isinstance(function.func, Settling):
            assert time.monotonic() < end
            close(function(X), expected)
        close(function(X), expected)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, range(8)))
    assert counted.traces == 1 and kernels(function, X) == 0


def test_what_is_around_a_function_counts() -> None:
    """It is traced wherever JAX asks for that, also for what was seen before."""
    function = mlc_jit(lambda x: x * jax.lax.axis_size("i") + softened(x))
    for size in (2, 3):
        found = jax.vmap(function, axis_name="i", axis_size=size, in_axes=None, out_axes=None)(X)
        close(found, X * size + softened(X))


def test_arrays_go_with_the_function() -> None:
    def weights_of_one() -> weakref.ref:
        weights = jnp.ones((200, 200))
        function = mlc_jit(lambda x: softened(x) * weights)
        function(X)
        function.clear_cache()
        return weakref.ref(weights)

    gone = weights_of_one()
    gc.collect()
    assert gone() is None


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


@pytest.mark.parametrize(
    "place",
    [
        (Settling, "_is_open"),
        (Settling, "_look_at"),
        (Settling, "_note"),
        (Settling, "_settle"),
        (settling, "remember"),
        (settling, "recorded"),
        (settling, "use_from_now_on"),
        (settling._Kind, "of"),
        (settling.compat, "described"),
    ],
)
def test_whatever_fails_the_caller_gets_what_is_right(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], place: tuple
) -> None:
    seconds["xla"] = 0.5e-3
    monkeypatch.setattr(*place, _raise)
    function = mlc_jit(Traced())
    settled(function, X)
    close(function(X), softened(X))
    forget()


def _side(jit: Any) -> Callable:
    """What XLA's side is made as, with another `jit` object."""
    made = settling.Side

    def side(given: Any, staged: Any) -> settling.Side:
        return made(jit(given) if staged.function.settled else given, staged)

    return side


class _Failing:
    """A compiled function that fails in a call."""

    def __init__(self, given: Any) -> None:
        self.lower = given.lower

    def __call__(self, *args: Any) -> Any:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize("jit", [_Failing, lambda given: None])
def test_a_side_that_fails_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], jit: Any
) -> None:
    monkeypatch.setattr("hlo_mlc.interop.jitted.Side", _side(jit))
    function = mlc_jit(Traced())
    settled(function, X)
    close(function(X), softened(X))
    assert kernels(function, X) > 0


def test_errors_of_the_callers_are_the_callers() -> None:
    function = mlc_jit(Traced())
    with pytest.raises(TypeError):
        function(X, X, X, X)
    with pytest.raises(TypeError, match="non-array argument"):
        function("text")
    assert isinstance(function.func, Settling)
    settled(function, X)


def test_looked_at_it_is_what_jax_makes() -> None:
    function = mlc_jit(softened)
    assert repr(function) == repr(jax.jit(softened))
    assert function.lower(X).as_text() and function.trace(X).jaxpr
    function.clear_cache()
    close(function(X), softened(X))
    forget()


def test_nothing_is_compiled_while_a_first_call_is_waited_for(seconds: dict[str, float]) -> None:
    """Whose compilation by XLA would stand behind that of the other side."""
    function = mlc_jit(Traced())
    with meanwhile.first_calls.disturbed():
        for _ in range(5):
            function(X)
        (thread,) = [t for t in threading.enumerate() if t.name == "hlo_mlc settles"]
        thread.join(0.5)
        assert thread.is_alive() and function.func._stage is settling._Stage.COMPILING
        assert function.func._other is None
    settled(function, X)


def test_one_is_compiled_at_a_time(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [mlc_jit(Traced(lambda x, by=by: softened(x, by))) for by in (2.0, 3.0, 4.0)]
    inside, most = [0], []

    def alternative(made: Callable, *args: Any) -> Any:
        inside[0] += 1
        most.append(inside[0])
        time.sleep(0.05)
        inside[0] -= 1
        return made(*args)

    for function in functions:
        made = function.func._alternative
        monkeypatch.setattr(
            function.func, "_alternative", lambda *args, made=made: alternative(made, *args)
        )
    for _ in range(4):
        for function in functions:
            function(X)
    for function in functions:
        settled(function, X)
    assert most == [1, 1, 1]


def test_no_thread_is_left(seconds: dict[str, float]) -> None:
    settled(mlc_jit(Traced()), X)
    end = time.monotonic() + LIMIT_S
    ours = ("hlo_mlc settles", "hlo_mlc watches")
    while any(thread.name in ours for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(1e-3)
