"""Long programs: linear in their operations, right, and no more code than XLA's time allows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from hlo_mlc import compiler, kernel_objects, mlc_jit
from hlo_mlc.backends import cpu as backend
from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.building import build_kernels
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.compiler import clusters_of, compile_module, most_lines_for
from hlo_mlc.graph.core import Graph
from hlo_mlc.partition.choose.cost import choose_all
from hlo_mlc.partition.choose.predictions import saved_us
from hlo_mlc.partition.fuse import groups
from hlo_mlc.partition.plan import Plan
from hlo_mlc.partition.planner import partition
from hlo_mlc.report import Report
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.errors import CodeLimitError
from hlo_mlc.support.options import Options
from hlo_mlc.target import cpu
from hlo_mlc.templates.program import is_longer, schedule_program

# Twice the program, and what differs in its fixed parts.
MOST_GROWTH = 2.3
OURS = Options.from_environment(choose="ours", target="cpu")
ROWS = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
MATRIX = np.linspace(-0.2, 0.2, 256, dtype=np.float32).reshape(16, 16)
Chain = Callable[[jax.Array, jax.Array, int], jax.Array]


def _different(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    for n in range(length):
        x = jnp.sin(x) * (0.9 + n / 1024) + x[::-1] * 0.125
    return x


def _updated(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    for n in range(length):
        x = x.at[n % 8, n % 16].set(x[n % 5, n % 3] * (1 + n / 64))
    return x


def _multiplied(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    for n in range(length):
        x = jnp.tanh(x @ w) + n / 64
    return x


def _folded(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    for n in range(length):
        x = x - x.sum(n % 2, keepdims=True) / 64 + n / 1024
    return x


def _rotated(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    x = jnp.cos(x)  # is read through all of the rotations
    for n in range(length):
        x = jnp.roll(x, n % 7 + 1, n % 2)
    return x


def _joined(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    for _ in range(length):
        x = jnp.concatenate([x[3:], x[:3] * 0.875])
    return x


def _scalars(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    a, b = x[0, 0], x[1, 1]
    for n in range(length):
        a, b = jnp.minimum(a * b, 1) + n / 64, a
    return a


def _looked_up(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    places = x[0].astype(int)
    for n in range(length):
        x = x.at[places + n].get(mode="promise_in_bounds")
    return x


def _network(x: jax.Array, w: jax.Array, length: int) -> jax.Array:
    h = jnp.zeros((16,))
    for n in range(length):
        h = jnp.tanh(x[n % 8] @ w + h @ w + n / 64)
    return h


CHAINS = [_different, _updated, _multiplied, _folded, _rotated, _joined, _scalars, _network]


def module_of(chain: Chain, length: int) -> ir.Module:
    return jax.jit(lambda x, w: chain(x, w, length)).lower(ROWS, MATRIX).compiler_ir()


def calls_of(run: Callable[[], object]) -> int:
    """How many Python functions are called meanwhile, which no other process can change."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def generated(module: ir.Module) -> int:
    """The lines of LLVM IR of all kernels of a module, for a CPU that it need not run on."""
    target = cpu.named("x86-64-v3")
    _, plan = clusters_of(module, OURS)
    kernels = {c.kernel.fingerprint: c.kernel for c, _ in plan.taken}
    return sum(
        print_program(schedule_program(k.program, target)[0], target).count("\n")
        for k in kernels.values()
    )


@pytest.mark.parametrize("chain", CHAINS)
def test_twice_the_program_takes_twice_the_work(chain: Chain) -> None:
    """From the module to LLVM IR; what LLVM does grows with the lines, which grow no faster."""
    lines: list[int] = []
    short, long = module_of(chain, 60), module_of(chain, 120)
    once, twice = (calls_of(lambda m=m: lines.append(generated(m))) for m in (short, long))
    assert twice <= MOST_GROWTH * once
    assert lines[1] <= MOST_GROWTH * lines[0]


@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_are_right(chain: Chain, check: Callable[..., Report]) -> None:
    check(lambda x, w: chain(x, w, 90), ROWS, MATRIX, ulps=256.0)


@pytest.mark.parametrize("chain", [_joined, _scalars])
def test_ten_thousand_operations_need_no_deep_stack(chain: Chain) -> None:
    _, plan = clusters_of(module_of(chain, 2500), OURS)
    assert plan.coverage == 1
    assert plan.nodes >= 2500


def test_many_arguments_and_results(check: Callable[..., Report]) -> None:
    arrays = [np.full((1 + n % 7,), n, np.float32) for n in range(600)]
    check(lambda *xs: [x * 0.5 + 1 for x in xs], *arrays)


def test_a_thousand_results(check: Callable[..., Report]) -> None:
    check(lambda x: [x * (n + 1) for n in range(1000)], ROWS[0], kernels=None)


def test_three_thousand_arguments(check: Callable[..., Report]) -> None:
    check(
        lambda xs: [x * 0.5 for x in xs],
        [np.full((4,), n, np.float32) for n in range(3000)],
        kernels=None,
    )


def test_loops_in_loops(check: Callable[..., Report]) -> None:
    """Each of them hides the next from what looks at one body only."""

    def nest(depth: int, x: jax.Array) -> jax.Array:
        if not depth:
            return jnp.sin(x)
        return lax.while_loop(
            lambda c: c[0] < 1, lambda c: (c[0] + 1, nest(depth - 1, c[1])), (0, x)
        )[1]

    check(lambda x: nest(12, x), ROWS[0], coverage=0.0, kernels=None)


def test_branches_in_branches(check: Callable[..., Report]) -> None:
    def nest(depth: int, x: jax.Array) -> jax.Array:
        if not depth:
            return jnp.sin(x)
        return lax.cond(x.sum() > depth, lambda v: nest(depth - 1, v) * 0.5, jnp.cos, x)

    check(lambda x: nest(30, x), ROWS[0] + 40, coverage=0.0, kernels=None)


def test_runs_of_groups_are_cut(
    monkeypatch: pytest.MonkeyPatch, check: Callable[..., Report]
) -> None:
    monkeypatch.setattr(groups, "MOST_TOGETHER", 8)
    report = check(lambda x, w: _folded(x, w, 40), ROWS, MATRIX, ulps=256.0)
    assert len(report.kernels) > 3


def test_no_more_is_compiled_than_the_program_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same kernels are taken whether they are in the cache by then or not."""
    monkeypatch.setattr(groups, "MOST_TOGETHER", 8)
    monkeypatch.setattr(backend, "recorded_or", lambda *_: choose_all)
    module, auto = module_of(_different, 40), Options.from_environment(choose="auto")
    whole = compile_module(module, auto).report
    assert whole.coverage == 1
    monkeypatch.setattr(compiler, "_LINES", 1500)
    report = compile_module(module, auto).report
    assert 0 < report.coverage < 1
    assert any('choose="ours" compiles it' in left.reason for left in report.left)
    again = compile_module(module, auto).report
    assert [k.id for k in again.kernels] == [k.id for k in report.kernels]
    assert compile_module(module, OURS).report.coverage == 1


def test_what_saves_the_most_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is in the program; and what fits beside it."""
    monkeypatch.setattr(groups, "MOST_TOGETHER", 8)
    monkeypatch.setattr(backend, "recorded_or", lambda *_: choose_all)
    monkeypatch.setattr(compiler, "_LINES", 1200)

    def long(x: jax.Array, images: jax.Array, k: jax.Array) -> jax.Array:
        for n in range(6):
            x = jnp.tanh(_different(x, x, 4) - x.sum(n % 2, keepdims=True))
        convolved = lax.conv_general_dilated(
            images, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return convolved * x.sum()

    images, k = np.ones((8, 64, 64, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    options = Options.from_environment(choose="auto", target="x86-64-v2", check=False)
    report = compile_module(jax.jit(long).lower(ROWS, images, k).compiler_ir(), options).report
    assert len(report.kernels) > 1 and 0 < report.coverage < 1
    assert any("stablehlo.convolution" in kernel.ops for kernel in report.kernels)
    assert all('choose="ours" compiles it' in left.reason for left in report.left)


def test_what_is_too_long_costs_no_second_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of a plan cannot be built, the rest of it stands."""
    plans: list[Plan] = []
    monkeypatch.setattr(groups, "MOST_TOGETHER", 8)
    monkeypatch.setattr(backend, "recorded_or", lambda *_: choose_all)
    monkeypatch.setattr(compiler, "_LINES", 1000)
    monkeypatch.setattr(
        compiler.planner,
        "partition",
        lambda *arguments: plans.append(partition(*arguments)) or plans[-1],
    )
    report = compile_module(module_of(_different, 40), Options.from_environment(choose="auto"))
    assert 0 < report.report.coverage < 1
    assert len(plans) == 1
    taken = [c.kernel.fingerprint for c, _ in plans[0].taken]
    kept = dict.fromkeys(k.id for k in report.report.kernels)
    assert list(dict.fromkeys(taken))[: len(kept)] == list(kept)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_kernel_is_printed_no_further_than_it_may_be_long(chain: Chain) -> None:
    """The lines that are counted on the way are lines of the whole, with checks as well."""
    target = cpu.named("x86-64-v3")
    _, plan = clusters_of(module_of(chain, 40), OURS)
    program = plan.taken[0][0].kernel.program
    loops, _ = schedule_program(program, target)
    for checked in (False, True):

        def printed(most: int, checked: bool = checked) -> str:
            return print_program(loops, target, checked, most)

        text = printed(sys.maxsize)
        lines = text.count("\n")
        assert printed(lines) == text
        with pytest.raises(CodeLimitError, match=f"more than {lines - 1:,} lines"):
            printed(lines - 1)
        assert not is_longer(program, lines)


def test_what_is_too_long_for_sure_is_not_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the inverses of 4 x 4 matrices, written out."""
    monkeypatch.setattr(kernel_objects.replay, "schedule_as_recorded", None)
    module = module_of(lambda x, w, length: jnp.linalg.inv(x.reshape(8, 4, 4)), 1)
    _, plan = clusters_of(module, OURS)
    kernels = [cluster.kernel for cluster, _ in plan.taken]
    assert all(is_longer(kernel.program, 50) for kernel in kernels)
    options = Options.from_environment(choose="auto", target="cpu")
    made = build_kernels(kernels, options, cpu_backend(options), Recorder(None), 50)
    assert made.refused.keys() == {kernel.fingerprint for kernel in kernels}


def test_printing_ends_at_the_limit() -> None:
    """A tenth of the lines for about a tenth of the calls, besides what is there for any kernel."""
    target = cpu.named("x86-64-v3")
    _, plan = clusters_of(module_of(_network, 60), OURS)
    loops, _ = schedule_program(plan.taken[0][0].kernel.program, target)
    texts: list[str] = []
    whole = calls_of(lambda: texts.append(print_program(loops, target)))

    def begin() -> None:
        with pytest.raises(CodeLimitError):
            print_program(loops, target, most_lines=texts[0].count("\n") // 10)

    assert calls_of(begin) < whole / 3


@pytest.mark.parametrize("chain", [_different, _folded, _rotated])
def test_ten_times_the_operations_take_ten_times_the_work(chain: Chain) -> None:
    """Importing, the passes and the plan of some 200 operations, and of some 2,000."""
    graphs: list[Graph] = []

    def planned(module: ir.Module) -> int:
        return calls_of(lambda: graphs.append(clusters_of(module, OURS)[0]))

    short, long = (planned(module_of(chain, length)) for length in (40, 400))
    operations = len(graphs[1].nodes) / len(graphs[0].nodes)
    assert long < 1.2 * operations * short


def test_the_limit_follows_the_operations() -> None:
    def limit(chain: Chain, length: int) -> int:
        graph, _ = clusters_of(module_of(chain, length), OURS)
        return most_lines_for(graph)

    assert limit(_scalars, 1) < limit(_scalars, 50) < limit(_scalars, 100)
    least = 2 * (limit(_scalars, 8) - limit(_scalars, 4))
    for chain in (_multiplied, _looked_up):  # which take XLA longer
        assert limit(chain, 8) - limit(chain, 4) > least


def test_the_limit_follows_what_a_call_saves() -> None:
    """XLA convolves volumes that are spread out element by element."""
    auto = replace(OURS, choose="auto", target="x86-64-v3")

    def spread(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, kernel, (1, 1, 1), [(1, 2)] * 3, lhs_dilation=(2, 2, 2)
        ).sum()

    def limit(size: int) -> int:
        x, kernel = jnp.zeros((1, 16, size, size, size)), jnp.zeros((1, 16, 3, 3, 3))
        module = jax.jit(jax.grad(spread, 1)).lower(x, kernel).compiler_ir()
        graph, plan = clusters_of(module, auto)
        assert plan.taken
        return most_lines_for(graph, saved_us(plan)) - most_lines_for(graph)

    assert 0 < 100 * limit(4) < limit(40)
    module = module_of(lambda x, w, _: lax.while_loop(jnp.any, lambda v: v @ w, x), 1)
    assert saved_us(clusters_of(module, OURS)[1]) == 0  # nobody knows how often it runs


def nested(depth: int, jit: Callable, innermost: Callable = jnp.sin) -> Callable:
    """A function in so many others, each compiled by `jit`."""
    function = innermost
    for n in range(depth):
        function = jit(lambda x, f=function, n=n: f(x) * 0.5 + n)
    return function


@pytest.mark.parametrize("depth", [40, 200])
def test_functions_inside_each_other(depth: int) -> None:
    limit = sys.getrecursionlimit()
    function = nested(depth, mlc_jit(choose="ours"))
    np.testing.assert_allclose(function(ROWS), nested(depth, lambda f: f)(ROWS), rtol=1e-6)
    assert function.report().coverage == 1
    assert sys.getrecursionlimit() == limit


def test_transformations_inside_each_other(check: Callable[..., Report]) -> None:
    def depth_of_ten(x: jax.Array) -> jax.Array:
        function = nested(3, mlc_jit(choose="ours"), jnp.tanh)
        for n in range(10):
            function = jax.vmap(mlc_jit(function)) if n < 1 else mlc_jit(function)
        return jax.grad(lambda v: function(v).sum())(x)

    check(depth_of_ten, ROWS, ulps=64.0)


def test_what_is_nested_deep_keeps_its_constants_and_effects() -> None:
    table = jnp.arange(16.0)
    shown = []

    def innermost(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: shown.append(float(v)), x[0, 0])
        return x + table

    function = nested(60, mlc_jit, innermost)
    np.testing.assert_allclose(
        function(ROWS), nested(60, lambda f: f, lambda x: x + table)(ROWS), rtol=1e-6
    )
    jax.effects_barrier()
    assert shown == [-1.0]
