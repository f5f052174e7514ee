"""Programs for levels below this machine: planned and compiled for them, and run here."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import mlc_jit
from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.building import built_kernel
from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.support.options import Options
from hlo_mlc.target import levels
from hlo_mlc.target.levels import THIS_MACHINE, runnable

LEVELS = [level for level in runnable() if level != THIS_MACHINE]
X = np.random.default_rng(0).standard_normal((48, 70)).astype(np.float32)
# Registers that code for a level may not touch.
WIDER = {"x86-64": "[yz]mm", "x86-64-v2": "[yz]mm", "x86-64-v3": "zmm", "x86-64-v4": "tmm"}


def function(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ x.T / 10)


def ids(text: str) -> list[str]:
    return re.findall(r'id = "([^"]+)"', text)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_has_its_own_code(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_DUMP", str(tmp_path))
    compiled = mlc_jit(function, choose="ours", target=level)
    np.testing.assert_allclose(compiled(X), jax.jit(function)(X), rtol=2e-5)
    report = compiled.report(X)
    assert report.coverage == 1 and f"compiled for {level}\n" in str(compiled.explain(X))
    code = [path.read_text() for path in tmp_path.rglob("90-*.s")]
    assert code and not any(re.search(WIDER[level], text) for text in code)
    called = ids(compiled.lower(X).as_text())
    assert sorted(set(called)) == sorted(f"{kernel.id}-{level}" for kernel in report.kernels)
    options = Options.from_environment(target=level)
    assert all(
        built_kernel(kernel.id, cpu_backend(options), options.check) for kernel in report.kernels
    )


def test_programs_for_several_targets_do_not_share_code() -> None:
    """Whichever is compiled last."""
    texts = [
        mlc_jit(function, choose="ours", target=target).lower(X).as_text() for target in runnable()
    ]
    assert len({tuple(ids(text)) for text in texts}) == len(texts)
    assert "compiled in" in mlc_jit(function, choose="ours", target="cpu").report(X).headline


@pytest.mark.parametrize("level", LEVELS[:1])
def test_the_environment_names_a_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_TARGET", level)
    compiled = mlc_jit(function, choose="ours")
    assert compiled.report(X).level == level
    assert compiled.choosing("ours", "cpu").report(X).level == ""
    module = jax.jit(function).lower(X).as_text()
    loaded = hlo_mlc.compile_stablehlo(module, choose="ours")
    np.testing.assert_allclose(loaded(X)[0], function(X), rtol=2e-5)
    assert loaded.report().level == level


@pytest.mark.parametrize("choose", ["auto", "measure"])
@pytest.mark.parametrize("level", LEVELS[-1:])
def test_every_choice_can_be_made_for_a_level(level: str, choose: str) -> None:
    compiled = mlc_jit(lambda x: jnp.exp(x) * 2, choose=choose, target=level)
    x = np.linspace(-1, 1, 1 << 16, dtype=np.float32)
    np.testing.assert_allclose(compiled(x), np.exp(x) * 2, rtol=1e-5)


def test_a_level_beyond_this_machine_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "present_features", lambda: frozenset({"sse3"}))
    with pytest.raises(UnknownTargetError, match=r"'x86-64-v2': this machine lacks cx16, .*cpu"):
        mlc_jit(function, target="x86-64-v2")
