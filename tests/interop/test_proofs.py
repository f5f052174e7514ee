"""Kernels whose loops are wrong do not run, whoever calls: a template is made to plant faults."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import building, kernel_objects, mlc_jit
from hlo_mlc.backends import cpu
from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Expr, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Stmt, Store
from hlo_mlc.loops.rewrite import Body, map_expressions, transform
from hlo_mlc.partition.choose.cost import choose_all
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates import program
from hlo_mlc.templates.base import Parameters, Scheduled, Template
from hlo_mlc.tensor.core import Nest

X = jnp.asarray(np.cos(np.arange(100 * 64, dtype=np.float32)).reshape(100, 64))
ROWS = jnp.asarray(np.arange(48, dtype=np.int32) * 7 % 100)


@dataclass(frozen=True)
class Planted:
    """A template with a fault in its loops."""

    template: Template
    fault: Callable[[Body], Body]

    @property
    def name(self) -> str:
        return self.template.name

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        return self.template.default(nest, target)

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        scheduled = self.template.apply(nest, target, parameters)
        return replace(scheduled, body=self.fault(scheduled.body))


def one_further(body: Body) -> Body:
    """Every store to a result one element further."""

    def move(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Store) or stmt.buffer.scope != "result":
            return None
        *rows, last = stmt.indices
        return (replace(stmt, indices=(*rows, index.add(last, index.constant(1)))),)

    return transform(body, move)


def half_of_it(body: Body) -> Body:
    """No store to the first elements of a row."""

    def narrow(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Store) or stmt.buffer.scope != "result":
            return None
        return (replace(stmt, guard=build.apply("ge", stmt.indices[-1], index.constant(8))),)

    return transform(body, narrow)


def unclamped(body: Body) -> Body:
    """Indices that are loaded are taken as they are."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Apply) and node.op in ("min", "max") and node.dtype is INDEX:
            for n, part in enumerate(node.args):
                if loads(part) and not loads(node.args[1 - n]):
                    return build.transform(part, rule)
        return None

    return map_expressions(body, lambda e: build.transform(e, rule))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable], None]:
    """Has every template plant a fault; nothing is compiled yet, and all that can be is taken."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "_built", {})
    monkeypatch.setattr(cpu, "recorded_or", lambda *_: choose_all)
    monkeypatch.setattr(cpu.worth, "worth_it", lambda plan, target: plan)
    monkeypatch.setattr(cpu.worth, "completion", lambda *_: ())
    chosen = program.choose_template

    def planting(fault: Callable[[Body], Body]) -> None:
        def choose(nest: Nest, target: CpuTarget, wanted: str = ""):
            template, refused = chosen(nest, target, wanted)
            return Planted(template, fault), refused

        monkeypatch.setattr(program, "choose_template", choose)

    return planting


def scaled(x: jax.Array) -> jax.Array:
    return jnp.abs(x) * 2 + 1


def picked(x: jax.Array, rows: jax.Array) -> jax.Array:
    return jnp.take(x, rows, axis=0, mode="clip") * 2


def counts(tmp_path: Path) -> dict[str, int]:
    """What is noted of proofs; it may be written behind the call, when its kernels are stored."""
    for _ in range(1000):
        found = dict(kernel_objects.proofs_here(Options(cache_dir=tmp_path)))
        if any(found.values()):
            break
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("fault", [one_further, half_of_it])
def test_what_is_refused_is_an_error_where_only_ours_will_do(plant, tmp_path, fault) -> None:
    plant(fault)
    with pytest.raises(VerifyError, match="kernel k_"):
        mlc_jit(scaled, choose="ours")(X)
    assert counts(tmp_path) == {"proved": 0, "guarded": 0, "refused": 1}


@pytest.mark.parametrize("fault", [one_further, half_of_it])
def test_what_is_refused_stays_with_xla(plant, tmp_path, fault) -> None:
    plant(fault)
    f = mlc_jit(scaled, choose="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            np.testing.assert_array_equal(f(X), jax.jit(scaled)(X))
    told = [str(w.message) for w in caught if "hlo_mlc" in str(w.message)]
    assert len(told) == 1 and "VerifyError" in told[0], told
    assert not f.report(X).kernels
    assert counts(tmp_path)["refused"] >= 1


@pytest.mark.parametrize("choose", ["ours", "auto"])
def test_what_is_not_proved_to_be_inside_is_guarded(plant, tmp_path, choose) -> None:
    plant(unclamped)
    f = mlc_jit(picked, choose=choose)
    np.testing.assert_array_equal(f(X, ROWS), jax.jit(picked)(X, ROWS))
    (kernel,) = f.report(X, ROWS).kernels
    assert "is within" in kernel.proof
    assert counts(tmp_path) == {"proved": 0, "guarded": 1, "refused": 0}
    outside = f(X, ROWS.at[3].set(1 << 30).at[5].set(-(1 << 30)))
    assert not np.any(outside[jnp.array([3, 5])])  # read as zero, whatever lies there
